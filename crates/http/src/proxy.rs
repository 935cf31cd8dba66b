//! Proxies between this host and the web, as the environment names them: `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`, in small
//! or in capital letters, with the meaning that curl gives them.

use std::fmt;
use std::net::IpAddr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http_body_util::Empty;
use hyper::Request;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue, PROXY_AUTHORIZATION};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use tokio::io::{AsyncRead, AsyncWrite};
use url::{Host, Url};

use crate::address::shown;
use crate::dial::{BUFFER_BYTES_MAX, connected, names};
use crate::fault::chain;
use crate::tls;

/// What the environment says of proxies.
///
/// Its `Debug` form says nothing of the values, which may have passwords in them.
#[derive(Clone, Default)]
pub struct Proxies {
    http: Option<Value>,
    https: Option<Value>,
    /// The entries of `no_proxy`.
    direct: Vec<String>,
}

/// A variable that is set, and its value.
#[derive(Clone)]
struct Value {
    variable: String,
    text: String,
}

impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variable = |value: &Option<Value>| value.as_ref().map(|value| value.variable.clone());
        f.debug_struct("Proxies")
            .field("http", &variable(&self.http))
            .field("https", &variable(&self.https))
            .field("direct", &self.direct)
            .finish()
    }
}

impl Proxies {
    /// Reads the variables, whose values `get` returns.
    pub fn of(get: impl Fn(&str) -> Option<String>) -> Proxies {
        let set = |name: &str| {
            let names = [name.to_owned(), name.to_ascii_uppercase()];
            let mut values = names.into_iter().filter_map(|variable| {
                let text = get(&variable)?.trim().to_owned();
                (!text.is_empty()).then_some(Value { variable, text })
            });
            values.next()
        };
        let direct = set("no_proxy").map_or_else(Vec::new, |value| {
            let entries = value.text.split([',', ' ']).map(str::trim);
            let entries = entries.filter(|entry| !entry.is_empty());
            entries.map(str::to_ascii_lowercase).collect()
        });
        Proxies {
            http: set("http_proxy").or_else(|| set("all_proxy")),
            https: set("https_proxy").or_else(|| set("all_proxy")),
            direct,
        }
    }

    /// Reads this process's environment.
    pub fn of_environment() -> Proxies {
        Proxies::of(|name| std::env::var(name).ok())
    }

    /// Returns the proxy that stands before the server of an http or https URL; `None` if there is none. A server on this host is always
    /// asked directly. The error says what is wrong with the variable.
    pub fn before(&self, url: &Url) -> Result<Option<Proxy>, String> {
        let value = match url.scheme() {
            "http" => &self.http,
            "https" => &self.https,
            _ => &None,
        };
        match value {
            Some(value) if !self.is_direct(url) => Proxy::new(value).map(Some),
            _ => Ok(None),
        }
    }

    fn is_direct(&self, url: &Url) -> bool {
        let name = match url.host() {
            None => return true,
            Some(Host::Ipv4(ip)) if ip.is_loopback() => return true,
            Some(Host::Ipv6(ip)) if ip.is_loopback() => return true,
            Some(Host::Ipv4(ip)) => ip.to_string(),
            Some(Host::Ipv6(ip)) => ip.to_string(),
            Some(Host::Domain(name)) => name.trim_end_matches('.').to_ascii_lowercase(),
        };
        let port = url.port_or_known_default();
        name == "localhost"
            || name.ends_with(".localhost")
            || self.direct.iter().any(|entry| excepts(entry, &name, port))
    }
}

/// Returns whether an entry of `no_proxy` names a host: `*`, a name (and all below it), an address, or a network such as `10.0.0.0/8`.
fn excepts(entry: &str, host: &str, port: Option<u16>) -> bool {
    if entry == "*" {
        return true;
    }
    let of_port = entry.rsplit_once(':');
    let of_port = of_port.and_then(|(name, port)| Some((name, port.parse::<u16>().ok()?)));
    // the colons of an address of version 6 are no port's, unless it has its brackets
    let of_port = of_port.filter(|(name, _)| !name.contains(':') || name.ends_with(']'));
    let (name, only) = match of_port {
        Some((name, port)) => (name, Some(port)),
        None => (entry, None),
    };
    if only.is_some() && only != port {
        return false;
    }
    let name = name.trim_start_matches('[').trim_end_matches(']');
    match host.parse::<IpAddr>() {
        Ok(address) => is_within(name, address),
        Err(_) => {
            let name = name.trim_start_matches('*').trim_matches('.');
            let rest = host.strip_suffix(name).filter(|_| !name.is_empty());
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        }
    }
}

/// Returns whether an address is the one of the text, or in its network.
fn is_within(text: &str, address: IpAddr) -> bool {
    let (network, bits) = match text.split_once('/') {
        None => return text.parse() == Ok(address),
        Some((network, bits)) => (network.parse::<IpAddr>(), bits.parse::<u32>()),
    };
    match (network, bits, address) {
        (Ok(IpAddr::V4(network)), Ok(bits @ 0..=32), IpAddr::V4(address)) => {
            let differ = network.to_bits() ^ address.to_bits();
            differ.checked_shr(32 - bits).unwrap_or(0) == 0
        }
        (Ok(IpAddr::V6(network)), Ok(bits @ 0..=128), IpAddr::V6(address)) => {
            let differ = network.to_bits() ^ address.to_bits();
            differ.checked_shr(128 - bits).unwrap_or(0) == 0
        }
        _ => false,
    }
}

/// A proxy that speaks HTTP.
#[derive(Clone)]
pub struct Proxy {
    url: Url,
    authorization: Option<HeaderValue>,
    said: String,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

impl Proxy {
    fn new(value: &Value) -> Result<Proxy, String> {
        let Value { variable, text } = value;
        // no value in a message: there may be a password in it
        let bad = |why: String| {
            format!("{variable} names no proxy that can be used: {why}; write http://HOST:PORT")
        };
        let text = match text.contains("://") {
            true => text.clone(),
            false => format!("http://{text}"),
        };
        let url = Url::parse(&text).map_err(|e| bad(e.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(bad(format!("it is a {} proxy", url.scheme())));
        }
        let decode = |part: &str| percent_decode_str(part).decode_utf8_lossy().into_owned();
        let mut authorization = None;
        if !url.username().is_empty() {
            let password = decode(url.password().unwrap_or_default());
            let both = format!("{}:{password}", decode(url.username()));
            let value = format!("Basic {}", BASE64_STANDARD.encode(both));
            let value = HeaderValue::from_str(&value);
            let mut value = value.map_err(|e| bad(e.to_string()))?;
            value.set_sensitive(true);
            authorization = Some(value);
        }
        let said = format!("the proxy {} ({variable})", shown(url.as_str()));
        Ok(Proxy {
            url,
            authorization,
            said,
        })
    }

    /// Returns what and where it is, for messages, without secrets.
    pub fn shown(&self) -> &str {
        &self.said
    }

    /// Returns its URL, with a user and a password if it has them: not for messages.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Returns what a request that it is to pass on must carry for it.
    pub fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    /// Connects to the proxy itself.
    pub(crate) async fn connect(&self) -> Result<Box<dyn Stream>, String> {
        let silent = |why: String| {
            let said = &self.said;
            format!(
                "{said} does not answer: {why}; check the variable, or name the server in NO_PROXY"
            )
        };
        let (host, name) = names(&self.url).map_err(silent)?;
        let port = self.url.port_or_known_default().unwrap_or(80);
        let tcp = connected(&host, port).await.map_err(silent)?;
        if self.url.scheme() == "http" {
            return Ok(Box::new(tcp));
        }
        let config = tls::trusting(None).map_err(silent)?;
        let name = name.map_err(silent)?;
        let stream = tokio_rustls::TlsConnector::from(config).connect(name, tcp);
        let stream = stream.await.map_err(|e| silent(tls::reason(&e)))?;
        Ok(Box::new(stream))
    }

    /// Has it open a connection to a server, of which it sees nothing more than the bytes.
    pub(crate) async fn tunnel(
        &self,
        stream: Box<dyn Stream>,
        server: &str,
    ) -> Result<TokioIo<Upgraded>, String> {
        let said = &self.said;
        let broken = |e: hyper::Error| format!("{said} ended the connection: {}", chain(&e));
        let mut builder = http1::Builder::new();
        builder.max_buf_size(BUFFER_BYTES_MAX);
        let shaken = builder.handshake(TokioIo::new(stream)).await;
        let (mut send, connection) = shaken.map_err(broken)?;
        tokio::spawn(connection.with_upgrades());
        let mut request = Request::connect(server).header(HOST, server);
        if let Some(value) = &self.authorization {
            request = request.header(PROXY_AUTHORIZATION, value.clone());
        }
        let request = request.body(Empty::<Bytes>::new());
        let request = request.map_err(|e| format!("{said} can't be asked for {server}: {e}"))?;
        let answer = send.send_request(request).await.map_err(broken)?;
        match answer.status().as_u16() {
            200..=299 => hyper::upgrade::on(answer)
                .await
                .map(TokioIo::new)
                .map_err(broken),
            407 => Err(format!(
                "{said} wants a user and a password; write http://USER:PASSWORD@HOST:PORT"
            )),
            status => Err(format!(
                "{said} refuses the way to {server}: it answered {status}; check the server's name, or name it in NO_PROXY"
            )),
        }
    }
}

/// Bytes in both directions.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(set: &[(&str, &str)]) -> Proxies {
        Proxies::of(|name| {
            let found = set.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn before(proxies: &Proxies, url: &str) -> Option<String> {
        let found = proxies.before(&Url::parse(url).unwrap()).unwrap();
        found.map(|proxy| proxy.url().to_string())
    }

    #[test]
    fn each_scheme_has_its_variable_and_this_host_none() {
        let both = proxies(&[
            ("http_proxy", "one:3128"),
            ("HTTP_PROXY", "http://other"),
            ("HTTPS_PROXY", "http://two:8080"),
        ]);
        for (url, proxy) in [
            ("http://hub.example:4500/x", Some("http://one:3128/")),
            ("https://hub.example", Some("http://two:8080/")),
            ("http://127.0.0.1:4500", None),
            ("https://[::1]:4500", None),
            ("http://localhost", None),
            ("http://hub.localhost", None),
            ("ftp://hub.example", None),
        ] {
            assert_eq!(before(&both, url).as_deref(), proxy, "{url}");
        }
        let all = proxies(&[("all_proxy", "http://p"), ("https_proxy", " ")]);
        assert_eq!(before(&all, "https://h").as_deref(), Some("http://p/"));
        assert_eq!(before(&Proxies::default(), "https://h"), None);
    }

    #[test]
    fn what_no_proxy_names_is_asked_directly() {
        let list = ".inner.example, *.wide.example,exact.example:4500 10.0.0.0/8,192.0.2.7,fd00::/8,[2001:db8::1]:443";
        let some = proxies(&[("ALL_PROXY", "p:1"), ("NO_PROXY", list)]);
        for (url, direct) in [
            ("http://inner.example", true),
            ("http://HUB.inner.example.", true),
            ("http://winner.example", false),
            ("http://a.b.wide.example", true),
            ("https://exact.example:4500", true),
            ("https://exact.example", false),
            ("http://10.200.0.1", true),
            ("http://11.0.0.1", false),
            ("http://192.0.2.7:80", true),
            ("http://192.0.2.70", false),
            ("http://[fd12::1]", true),
            ("http://[fe80::1]", false),
            ("https://[2001:db8::1]", true),
            ("https://[2001:db8::1]:444", false),
        ] {
            assert_eq!(before(&some, url).is_none(), direct, "{url}");
        }
        let none = proxies(&[("all_proxy", "p:1"), ("no_proxy", "*")]);
        assert_eq!(before(&none, "https://h"), None);
        let zero = proxies(&[("all_proxy", "p:1"), ("no_proxy", "0.0.0.0/0")]);
        assert_eq!(before(&zero, "https://198.51.100.1"), None);
    }

    #[test]
    fn a_password_reaches_the_proxy_and_no_message() {
        let with = proxies(&[("https_proxy", "http://ann:ge%3Aheim@p:3128")]);
        let url = Url::parse("https://hub.example").unwrap();
        let proxy = with.before(&url).unwrap().unwrap();
        let value = proxy.authorization().unwrap();
        assert_eq!(
            value,
            &format!("Basic {}", BASE64_STANDARD.encode("ann:ge:heim"))
        );
        let text = format!("{with:?} {proxy:?} {} {value:?}", proxy.shown());
        assert!(!text.contains("heim") && text.contains("p:3128"), "{text}");
        for bad in ["socks5://ann:geheim@p:1080", "http://ann:geheim@:x"] {
            let error = proxies(&[("HTTPS_PROXY", bad)]).before(&url).unwrap_err();
            assert!(
                error.contains("HTTPS_PROXY") && !error.contains("geheim"),
                "{error}"
            );
        }
    }
}
