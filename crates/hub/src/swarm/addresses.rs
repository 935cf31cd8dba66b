//! Checks the addresses at which a member says that it can be reached.
//!
//! Every member of the list will send packets there. So nobody may name what is no host's, and strangers name only the address that
//! they ask from: a swarm can't be pointed at somebody else.

use floe_api::SWARM_ADDRESSES_MAX;
use std::net::{IpAddr, SocketAddr};

/// Longest text of an address that is looked at: IPv6 with a scope and a port.
const TEXT_MAX: usize = 64;

/// Reads the addresses of a member whose request comes `from` there; a stranger has shown no token. The error says what is wrong.
pub(crate) fn read(
    texts: &[String],
    from: IpAddr,
    stranger: bool,
) -> Result<Vec<SocketAddr>, String> {
    if texts.len() > SWARM_ADDRESSES_MAX {
        return Err(format!(
            "{} addresses are more than {SWARM_ADDRESSES_MAX}",
            texts.len()
        ));
    }
    let from = from.to_canonical();
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for text in texts {
        let shown: String = text.chars().take(TEXT_MAX).collect();
        let named = Some(text).filter(|text| text.len() <= TEXT_MAX);
        let named: Option<SocketAddr> = named.and_then(|text| text.parse().ok());
        let named = named.ok_or_else(|| format!("{shown:?} is no address:port"))?;
        let mut ip = named.ip().to_canonical();
        if ip.is_unspecified() {
            ip = from;
        }
        if let Some(wrong) = wrong(ip, named.port(), from, stranger) {
            return Err(format!("{shown:?} {wrong}"));
        }
        let address = SocketAddr::new(ip, named.port());
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

/// Returns what is wrong with an address.
fn wrong(ip: IpAddr, port: u16, from: IpAddr, stranger: bool) -> Option<&'static str> {
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    if port == 0 {
        Some("has no port")
    } else if ip.is_unspecified() || ip.is_multicast() || broadcast {
        Some("is not the address of one host")
    } else if ip.is_loopback() && !from.is_loopback() || is_local(ip) && !is_local(from) {
        Some("can't be reached from other hosts")
    } else if stranger && ip != from {
        Some(
            "is not the address from which this request comes; without a token no other can be given",
        )
    } else {
        None
    }
}

/// Returns a member's address for a host that asks `from` there. A member that told the hub a loopback address is on the hub's own host,
/// which others know by the address at which they have `reached` the hub.
pub(crate) fn seen(address: SocketAddr, from: IpAddr, reached: Option<IpAddr>) -> SocketAddr {
    let from_here = from.to_canonical().is_loopback();
    match reached.map(|ip| ip.to_canonical()) {
        Some(hub) if address.ip().is_loopback() && !from_here => {
            SocketAddr::new(hub, address.port())
        }
        _ => address,
    }
}

/// Whether an address means something on one link alone.
fn is_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(text: &str, from: &str, stranger: bool) -> Option<String> {
        let read = read(&[text.to_owned()], from.parse().unwrap(), stranger);
        read.ok().map(|addresses| addresses[0].to_string())
    }

    #[test]
    fn an_unspecified_address_is_where_the_request_comes_from() {
        let taken = |text: &str| take(text, "::ffff:192.0.2.7", true);
        assert_eq!(taken("0.0.0.0:5").as_deref(), Some("192.0.2.7:5"));
        assert_eq!(taken("[::]:5").as_deref(), Some("192.0.2.7:5"));
        let taken = take("0.0.0.0:5", "2001:db8::1", true);
        assert_eq!(taken.as_deref(), Some("[2001:db8::1]:5"));
        // of one that is not known, there is nothing to be told
        assert_eq!(take("0.0.0.0:5", "0.0.0.0", false), None);
    }

    #[test]
    fn a_stranger_names_itself_and_a_user_its_hosts() {
        let (from, other) = ("192.0.2.7", "198.51.100.1:9");
        assert_eq!(take(other, from, false).as_deref(), Some(other));
        assert_eq!(take(other, from, true), None);
        let own = "[::ffff:192.0.2.7]:9";
        assert_eq!(take(own, from, true).as_deref(), Some("192.0.2.7:9"));
    }

    #[test]
    fn what_is_no_hosts_address_is_refused() {
        for text in [
            "",
            "192.0.2.1",
            "192.0.2.1:0",
            "192.0.2.1:65536",
            "hub.example:9",
            "224.0.0.1:9",
            "255.255.255.255:9",
            "[ff02::1]:9",
            "127.0.0.1:9",
            "[::1]:9",
            "[::ffff:127.0.0.1]:9",
            "169.254.169.254:80",
            "[fe80::1%2]:9",
            " 192.0.2.1:9",
            "0192.0.2.1:9",
        ] {
            assert_eq!(take(text, "192.0.2.7", false), None, "{text}");
        }
        let loopback = take("127.0.0.1:9", "127.0.0.1", true);
        assert_eq!(loopback.as_deref(), Some("127.0.0.1:9"));
        let long = format!("[::1%{}]:9", "1".repeat(1000));
        let error = read(&[long], [127, 0, 0, 1].into(), false).unwrap_err();
        assert!(error.len() < 200, "{error}");
    }

    #[test]
    fn a_host_that_is_the_hubs_own_is_seen_where_the_hub_is() {
        let see = |address: &str, from: &str| {
            let hub = "::ffff:192.0.2.1".parse().unwrap();
            let address = address.parse().unwrap();
            seen(address, from.parse().unwrap(), Some(hub)).to_string()
        };
        assert_eq!(see("127.0.0.1:9", "192.0.2.7"), "192.0.2.1:9");
        assert_eq!(see("[::1]:9", "2001:db8::1"), "192.0.2.1:9");
        assert_eq!(see("127.0.0.1:9", "::ffff:127.0.0.1"), "127.0.0.1:9");
        assert_eq!(see("192.0.2.8:9", "192.0.2.7"), "192.0.2.8:9");
        let unknown = seen(([127, 0, 0, 1], 9).into(), [192, 0, 2, 7].into(), None);
        assert_eq!(unknown.to_string(), "127.0.0.1:9");
    }

    #[test]
    fn there_are_few_and_each_is_there_once() {
        let from = IpAddr::from([192, 0, 2, 7]);
        let many: Vec<String> = (1..=9).map(|n| format!("0.0.0.0:{n}")).collect();
        assert!(read(&many, from, true).is_err());
        assert_eq!(read(&many[1..], from, true).unwrap().len(), 8);
        let twice = ["0.0.0.0:1", "192.0.2.7:1"].map(str::to_owned);
        assert_eq!(read(&twice, from, true).unwrap().len(), 1);
        assert!(read(&[], from, true).unwrap().is_empty());
    }
}
