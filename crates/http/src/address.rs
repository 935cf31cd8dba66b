//! URLs: what floe's own schemes mean, how a URL is shown, and how text is escaped for one.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::net::{IpAddr, SocketAddr};
use url::{Host, Position, Url};

/// What is escaped in a path segment or a query's value: everything but RFC 3986's unreserved characters.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Returns the http or https URL that requests for `address` go to: `floe://` is a hub over https, `floe+http://` a hub over
/// http. `None` for other schemes, and if there is no host.
pub fn web(address: &Url) -> Option<Url> {
    address.host_str().filter(|host| !host.is_empty())?;
    let scheme = match address.scheme() {
        "http" | "https" => return Some(address.clone()),
        "floe" => "https",
        "floe+http" => "http",
        _ => return None,
    };
    // URLs of the web have other rules for hosts than floe's schemes, so the rest is parsed again by those rules.
    Url::parse(&format!("{scheme}{}", &address[Position::AfterScheme..])).ok()
}

/// Returns the address and port of a URL whose host is an IP address; `None` for a name, which would have to be looked up.
pub fn socket_address(url: &Url) -> Option<SocketAddr> {
    let ip: IpAddr = match url.host()? {
        Host::Domain(_) => return None,
        Host::Ipv4(ip) => ip.into(),
        Host::Ipv6(ip) => ip.into(),
    };
    Some(SocketAddr::new(ip, url.port_or_known_default()?))
}

/// Returns `address` for messages and logs: without what may be secret, which is a user, a password and a query.
pub fn shown(address: &str) -> String {
    let Ok(url) = Url::parse(address) else {
        // Not a URL: what is before an @ might still be a password.
        let end = address.rsplit('@').next().unwrap_or_default();
        return end.split('?').next().unwrap_or_default().to_owned();
    };
    let end = &url[Position::BeforeHost..Position::AfterPath];
    let text = match url.has_host() {
        true => format!("{}://{end}", url.scheme()),
        false => url[..Position::AfterPath].to_owned(),
    };
    text.trim_end_matches('/').to_owned()
}

/// Escapes `text` for one path segment or a query's value.
pub fn escape(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Escapes a relative path, but not its slashes.
pub fn escape_path(path: &str) -> String {
    path.split('/').map(escape).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floe_addresses_are_hubs_by_https_and_http() {
        let web = |text: &str| web(&Url::parse(text).unwrap()).map(String::from);
        for (address, url) in [
            ("floe://HUB.example/team", "https://hub.example/team"),
            ("floe+http://[::1]:7070/fork", "http://[::1]:7070/fork"),
            ("http://hub:80/a b", "http://hub/a%20b"),
            ("https://hub", "https://hub/"),
        ] {
            assert_eq!(web(address).as_deref(), Some(url), "{address}");
        }
        for none in ["s3://bucket/x", "file:///x", "debian:12", "floe:x"] {
            assert_eq!(web(none), None, "{none}");
        }
    }

    #[test]
    fn only_a_host_that_is_an_address_has_one_without_being_looked_up() {
        let of = |text: &str| socket_address(&Url::parse(text).unwrap()).map(|at| at.to_string());
        assert_eq!(
            of("https://10.0.0.2:7071/").as_deref(),
            Some("10.0.0.2:7071")
        );
        assert_eq!(of("https://[::1]").as_deref(), Some("[::1]:443"));
        assert_eq!(of("https://localhost:7071"), None);
    }

    #[test]
    fn what_may_be_secret_is_not_shown() {
        for (address, text) in [
            ("https://ann:pw@hub:4500/x?token=y", "https://hub:4500/x"),
            ("https://hub", "https://hub"),
            ("s3://bucket/prefix/", "s3://bucket/prefix"),
            ("https://ann:pw@hub:port/x?y", "hub:port/x"),
        ] {
            assert_eq!(shown(address), text);
        }
    }

    #[test]
    fn text_survives_being_put_into_a_url() {
        for text in ["team/web:v2", "a b&c=d#e?f+g%h", "ä~-._"] {
            let url = Url::parse(&format!("http://h/?name={}", escape(text))).unwrap();
            assert_eq!(url.query_pairs().next().unwrap().1, text);
        }
        assert_eq!(escape_path("tags/a b:1"), "tags/a%20b%3A1");
    }
}
