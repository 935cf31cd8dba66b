//! The HTTP connections of object_store, with what this crate promises of them: redirects are not followed, so no server can send a
//! signed request elsewhere, the certificate authorities are those of the address, and proxies are those of the environment.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use floe_http::Proxies;
use object_store::client::{HttpClient, HttpConnector};
use object_store::{ClientConfigKey, ClientOptions};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Proxy};

use crate::Origin;

/// Makes the connections of a bucket.
#[derive(Clone, Debug)]
pub(super) struct Connect {
    certificates: Vec<Certificate>,
    connect_timeout: Duration,
    proxies: Proxies,
    via: Via,
}

/// The proxy through which a bucket was first asked, for messages; empty while there was none.
pub(super) type Via = Arc<OnceLock<String>>;

impl Connect {
    /// Reads the certificate authorities that an address has.
    pub fn new(
        origin: &Origin,
        connect_timeout: Duration,
        proxies: Proxies,
    ) -> Result<Connect, String> {
        let mut certificates = Vec::new();
        if let Some(ca) = origin.ca() {
            let pem = std::fs::read(ca)
                .map_err(|e| format!("cannot read certificates from {}: {e}", ca.display()))?;
            certificates =
                Certificate::from_pem_bundle(&pem).map_err(|e| format!("{}: {e}", ca.display()))?;
        }
        Ok(Connect {
            certificates,
            connect_timeout,
            proxies,
            via: Via::default(),
        })
    }

    /// Returns where the proxy stands that is used.
    pub fn via(&self) -> Via {
        self.via.clone()
    }

    /// Returns what says for each request which proxy it takes.
    fn proxy(&self) -> Proxy {
        let (proxies, via) = (self.proxies.clone(), self.via.clone());
        Proxy::custom(move |url| match proxies.before(url) {
            Ok(None) => None,
            Ok(Some(proxy)) => {
                via.get_or_init(|| proxy.shown().to_owned());
                Some(proxy.url().to_string())
            }
            Err(why) => {
                via.get_or_init(|| why);
                // no request may go another way than the environment says: nobody listens there
                Some("http://127.0.0.1:0".into())
            }
        })
    }

    /// Returns what object_store is told about connections. Its own limits of time are off: each call here has one.
    pub fn options(&self, http: bool) -> ClientOptions {
        ClientOptions::new()
            .with_connect_timeout(self.connect_timeout)
            .with_timeout_disabled()
            .with_allow_http(http)
    }
}

impl HttpConnector for Connect {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // object_store asks for plain HTTP, and for less patience, where it looks for a cloud's own service of credentials
        let http = options.get_config_value(&ClientConfigKey::AllowHttp);
        let patience = options.get_config_value(&ClientConfigKey::ConnectTimeout);
        let patience = patience.and_then(|text| whole_seconds(&text));
        let mut builder = Client::builder()
            .user_agent(concat!("floe/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            .proxy(self.proxy())
            .http1_only()
            .connect_timeout(patience.unwrap_or(self.connect_timeout))
            .https_only(http.as_deref() != Some("true"));
        for certificate in &self.certificates {
            builder = builder.add_root_certificate(certificate.clone());
        }
        let client = builder.build().map_err(|e| object_store::Error::Generic {
            store: "bucket",
            source: Box::new(e),
        })?;
        Ok(HttpClient::new(client))
    }
}

/// Reads a time such as `1s` or `30 seconds`; `None` if it has another unit.
fn whole_seconds(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = text[digits.len()..].trim();
    let seconds = digits.parse().ok()?;
    matches!(unit, "s" | "sec" | "seconds").then(|| Duration::from_secs(seconds))
}
