//! The decisions of the guard in QEMU's process, without I/O: compiled into the guard, and into this crate for its tests.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Address families as Linux numbers them.
const AF_UNSPEC: u16 = 0;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
/// The port of name servers.
pub const DNS_PORT: u16 = 53;
/// IPv4 addresses, not link-local ones, at which a cloud's metadata service or another service for its hosts answers. They reveal the
/// host's credentials, which a guest must not get. Alibaba's, Azure's, and Oracle's older one.
pub const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(192, 0, 0, 192),
];
/// The same at IPv6 addresses: Google's, Oracle's, Scaleway's, Akamai's and Alibaba's.
const METADATA_V6: [Ipv6Addr; 5] = [
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe),
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),
    Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0xfd00, 0x100, 0, 0, 0, 0, 0x100, 0x200),
];
/// The beginning of the addresses at which Amazon answers for its hosts: their metadata, and the credentials of their containers.
const AMAZON_V6: [u16; 2] = [0xfd00, 0xec2];
/// The beginning of the IPv6 addresses that a gateway translates into IPv4 addresses (RFC 6052), which are their last 32 bits.
const TRANSLATED: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];

/// Returns the IP address and port of a `struct sockaddr`; `None` for other families. The kernel refuses those that are
/// too short.
pub fn target(sockaddr: &[u8]) -> Option<(IpAddr, u16)> {
    let family = u16::from_ne_bytes(*sockaddr.first_chunk()?);
    let port = u16::from_be_bytes(*sockaddr.get(2..)?.first_chunk()?);
    let address = match family {
        // sending to AF_UNSPEC means sending to an IPv4 address
        AF_INET | AF_UNSPEC => {
            let bytes: [u8; 4] = *sockaddr.get(4..)?.first_chunk()?;
            IpAddr::from(bytes)
        }
        AF_INET6 => {
            let bytes: [u8; 16] = *sockaddr.get(8..)?.first_chunk()?;
            IpAddr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    Some((address, port))
}

/// Returns whether an address is the host's loopback, link-local, or a metadata service of a cloud.
pub fn is_guarded(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => {
            let [first, second, third, _] = a.octets();
            // 0.0.0.0 means this host to `connect`; 224.0.0.0/24 are multicast groups of one link
            let local = first == 127
                || first == 0
                || (first, second) == (169, 254)
                || (first, second, third) == (224, 0, 0);
            local || METADATA_V4.contains(&a)
        }
        IpAddr::V6(a) => {
            let segments = a.segments();
            let embedded = segments[..6] == [0; 6]; // ::, ::1, and IPv4 addresses in their oldest form
            let link = segments[0] & 0xffc0 == 0xfe80;
            let group = segments[0] & 0xff00 == 0xff00 && segments[0] & 0xf <= 2;
            let metadata = METADATA_V6.contains(&a) || segments[..2] == AMAZON_V6;
            let translated = segments[..6] == TRANSLATED && {
                let [.., b0, b1, b2, b3] = a.octets();
                is_guarded(IpAddr::from([b0, b1, b2, b3]))
            };
            embedded || link || group || metadata || translated
        }
    }
}

/// Returns whether a policy (`none`, `all`, or ports such as `80,443`) permits this port of guarded addresses.
pub fn allows(policy: &[u8], port: u16) -> bool {
    policy == b"all"
        || policy
            .split(|byte| *byte == b',')
            .any(|word| number(word) == Some(port))
}

fn number(word: &[u8]) -> Option<u16> {
    core::str::from_utf8(word).ok()?.parse().ok()
}

/// Returns whether the text of `resolv.conf` lists this address as a name server.
pub fn is_nameserver(resolv_conf: &[u8], address: IpAddr) -> bool {
    resolv_conf.split(|byte| *byte == b'\n').any(|line| {
        let mut words = line
            .split(|byte| byte.is_ascii_whitespace())
            .filter(|word| !word.is_empty());
        let names = words.next() == Some(b"nameserver");
        let word = words.next().unwrap_or_default();
        // a link-local address is followed by its interface: fe80::1%eth0
        let word = word.split(|byte| *byte == b'%').next().unwrap_or_default();
        let server = core::str::from_utf8(word).ok().and_then(|w| w.parse().ok());
        names && server.map(|server: IpAddr| server.to_canonical()) == Some(address)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(address: [u8; 4], port: u16) -> Vec<u8> {
        let mut bytes = AF_INET.to_ne_bytes().to_vec();
        bytes.extend(port.to_be_bytes());
        bytes.extend(address);
        bytes.extend([0; 8]);
        bytes
    }

    fn v6(address: &str, port: u16) -> Vec<u8> {
        let mut bytes = AF_INET6.to_ne_bytes().to_vec();
        bytes.extend(port.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(address.parse::<Ipv6Addr>().unwrap().octets());
        bytes.extend([0; 4]);
        bytes
    }

    #[test]
    fn an_address_is_read_however_it_is_written() {
        assert_eq!(
            target(&v4([127, 0, 0, 1], 80)),
            Some(([127, 0, 0, 1].into(), 80))
        );
        let mapped = target(&v6("::ffff:127.0.0.1", 80)).unwrap();
        assert_eq!(mapped, ([127, 0, 0, 1].into(), 80));
        let mut unspecified = v4([127, 0, 0, 1], 80);
        unspecified[..2].copy_from_slice(&AF_UNSPEC.to_ne_bytes());
        assert_eq!(target(&unspecified), target(&v4([127, 0, 0, 1], 80)));
        assert_eq!(target(b"\x01\x00/run/x"), None, "a unix socket");
        let whole = v6("::1", 1);
        (0..24).for_each(|len| assert_eq!(target(&whole[..len]), None));
        (0..8).for_each(|len| assert_eq!(target(&v4([1; 4], 1)[..len]), None));
    }

    #[test]
    fn the_host_its_link_local_addresses_and_metadata_are_guarded_and_the_rest_is_not() {
        let guarded = "127.0.0.1 127.8.9.1 0.0.0.0 169.254.169.254 224.0.0.251 100.100.100.200 168.63.129.16 192.0.0.192 \
                       :: ::1 ::7f00:1 fe80::1 febf::1 ff02::fb ff01::1 fd00:ec2::254 fd00:ec2::23 fd20:ce::254 \
                       fd00:c1::a9fe:a9fe fd00:42::42 fd00:a9fe:a9fe::1 fd00:100::100:200 \
                       64:ff9b::a9fe:a9fe 64:ff9b::127.0.0.1 64:ff9b::168.63.129.16";
        for address in guarded.split_whitespace() {
            assert!(is_guarded(address.parse().unwrap()), "{address}");
        }
        let free = "10.0.0.1 192.168.1.1 169.253.0.1 1.1.1.1 224.1.0.1 168.63.129.17 192.0.0.8 100.100.100.199 \
                    2001:db8::1 fec0::2 fd00::1 fd00:ec3::254 fd00:42::43 ff05::1 ::1:0:1 64:ff9b::1.1.1.1 64:ff9b:1::7f00:1";
        for address in free.split_whitespace() {
            assert!(!is_guarded(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn a_policy_names_ports_or_all_or_nothing() {
        assert!(allows(b"all", 22) && allows(b"80,443", 443));
        for policy in [&b"none"[..], b"", b"80,443", b"x", b"\xff", b",,", b"99999"] {
            assert!(!allows(policy, 22), "{policy:?}");
        }
    }

    #[test]
    fn only_the_resolvers_that_are_named_are_name_servers() {
        let text = b"# nameserver 127.0.0.9\nsearch x\nnameserver\t127.0.0.53\noptions edns0\nnameserver fe80::1%eth0";
        let is = |address: &str| is_nameserver(text, address.parse().unwrap());
        assert!(is("127.0.0.53") && is("fe80::1"));
        assert!(!is("127.0.0.9") && !is("127.0.0.1"));
        assert!(!is_nameserver(
            b"nameserver\nnameserver \xff",
            [0, 0, 0, 0].into()
        ));
    }
}
