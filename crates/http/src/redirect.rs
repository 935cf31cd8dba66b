//! Where an answer sends us, and whether we go there.

use std::net::IpAddr;

use hyper::header::{HeaderMap, LOCATION};
use url::{Host, Url};

use crate::address::shown;

/// Longest address that is followed. Signed ones have some 1500 bytes.
const LOCATION_BYTES_MAX: usize = 16 << 10;

/// Returns where an answer with these headers to a request for `from` sends us. The error says why nobody should go there; it has no query
/// in it, which may be a signature.
///
/// Whoever follows asks without the credentials for `from`, unless both are on one server ([`Url::origin`]).
pub fn redirected(from: &Url, headers: &HeaderMap) -> Result<Url, String> {
    let nowhere = || "redirects to nowhere".to_owned();
    let text = headers.get(LOCATION).ok_or_else(nowhere)?;
    let text = text.to_str().map_err(|_| nowhere())?;
    if text.len() > LOCATION_BYTES_MAX {
        return Err("redirects to an address that is too long".into());
    }
    let mut to = from.join(text).map_err(|_| nowhere())?;
    to.set_fragment(None);
    let at = shown(to.as_str());
    if !matches!(to.scheme(), "http" | "https") || to.host().is_none() {
        return Err(format!("redirects to {at}, which is no address of the web"));
    }
    if !to.username().is_empty() || to.password().is_some() {
        return Err(format!("redirects to {at} with a user and a password"));
    }
    if from.scheme() == "https" && to.scheme() == "http" {
        return Err(format!(
            "redirects from https to {at}, where everybody on the way could read and change what comes"
        ));
    }
    if is_private_to_this_host(&to) && !is_private_to_this_host(from) {
        return Err(format!(
            "redirects to {at}, which is this host itself or has a link-local address"
        ));
    }
    Ok(to)
}

/// Returns whether a URL names this host or a link-local address, which a stranger's server has no business with.
fn is_private_to_this_host(url: &Url) -> bool {
    let address: IpAddr = match url.host() {
        None => return false,
        Some(Host::Domain(name)) => {
            let name = name.trim_end_matches('.');
            return name == "localhost" || name.ends_with(".localhost");
        }
        Some(Host::Ipv4(ip)) => ip.into(),
        Some(Host::Ipv6(ip)) => IpAddr::from(ip).to_canonical(),
    };
    let link_local = match address {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    address.is_loopback() || address.is_unspecified() || link_local
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn to(from: &str, location: &str) -> Result<String, String> {
        let mut headers = HeaderMap::new();
        headers.insert(
            LOCATION,
            HeaderValue::from_bytes(location.as_bytes()).unwrap(),
        );
        redirected(&Url::parse(from).unwrap(), &headers).map(String::from)
    }

    #[test]
    fn an_answer_sends_us_on_but_not_out_of_https_nor_into_this_host() {
        let hub = "https://hub.example/base/x?name=web";
        for (from, location, target) in [
            (
                hub,
                "https://cdn.example/y?sig=1#part",
                "https://cdn.example/y?sig=1",
            ),
            (hub, "//cdn.example/y", "https://cdn.example/y"),
            (hub, "/y", "https://hub.example/y"),
            (hub, "y", "https://hub.example/base/y"),
            (
                "http://hub.example",
                "https://hub.example/",
                "https://hub.example/",
            ),
            ("http://hub.example", "http://10.0.0.1/", "http://10.0.0.1/"),
            (
                "http://127.0.0.1:1",
                "http://localhost:2/",
                "http://localhost:2/",
            ),
        ] {
            assert_eq!(to(from, location).as_deref(), Ok(target), "{location}");
        }
        for (location, why) in [
            ("http://cdn.example/y?sig=geheim", "from https"),
            ("https://127.0.0.1/?sig=geheim", "this host"),
            ("https://[::ffff:127.0.0.1]/?sig=geheim", "this host"),
            ("https://[::1]/?sig=geheim", "this host"),
            ("https://x.localhost/?sig=geheim", "this host"),
            ("https://169.254.169.254/?sig=geheim", "this host"),
            ("https://0.0.0.0/?sig=geheim", "this host"),
            ("file:///etc/passwd?geheim", "no address of the web"),
            ("https://ann:geheim@cdn.example/", "a user and a password"),
            ("https://", "nowhere"),
            ("https://\u{fc}", "nowhere"),
        ] {
            let error = to(hub, location).unwrap_err();
            assert!(
                error.contains(why) && !error.contains("geheim"),
                "{location}: {error}"
            );
        }
        let long = format!("https://cdn.example/{}", "x".repeat(LOCATION_BYTES_MAX));
        assert!(to(hub, &long).unwrap_err().contains("too long"));
        assert!(redirected(&Url::parse(hub).unwrap(), &HeaderMap::new()).is_err());
    }
}
