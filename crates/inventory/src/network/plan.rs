//! What a family's network consists of: addresses, and the commands for `ip` and `nft`. No I/O.
//!
//! ```text
//!  namespace of the family on this host            host
//!  m0 (parent) --+
//!  m1 (clone)  --+-- br0 10.0.2.2/24 -- up0 ======= flXXXXXXXX -- NAT -- allowed destinations (only with --allow)
//!  m2 (clone)  --+
//!                +-- vx0 (encrypted, or VXLAN) --- the family's other hosts
//! ```
//! The inner addresses are those of QEMU's user network, so that a machine that was captured there goes on here: the parent
//! is 10.0.2.15 and clone n is 10.0.2.(15+n), in every family alike. Each family has a namespace of its own, so families
//! never meet. A port passes only frames with its member's addresses: a clone that still uses its parent's can send nothing,
//! and no member can pose as another (SnowFlock, section 4.6.2, which rewrites addresses for the same purpose).

use floe_api::Allow;
use floe_image::Hash;
use floe_machine::guard::METADATA_V4;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    net::{Ipv4Addr, SocketAddr},
};

/// Version of a network's file.
pub(crate) const NETWORK_VERSION: u32 = 1;
/// Prefix length of the network.
pub(crate) const BITS: u8 = 24;
/// The gateway's address.
pub(crate) const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// The gateway's MAC address: that of QEMU's user network, which guests may remember.
const GATEWAY_MAC: &str = "52:55:0a:00:02:02";
/// The last byte of the parent's address; clone n has n more.
const PARENT_LAST: u32 = 15;
/// Most clones of a family on one network: what is left of the 254 addresses.
pub const MEMBERS_MAX: u32 = 254 - PARENT_LAST;
/// UDP port of VXLAN (RFC 7348).
pub(crate) const VXLAN_PORT: u16 = 4789;
/// How many new connections a second a family may open beyond its network, on all of its hosts: a port scan needs more.
const NEW_PER_S: u32 = 200;

/// Returns the nftables rule that refuses link-local addresses, the host's loopback, and metadata services of clouds that are at neither.
fn guarded_drop() -> String {
    let metadata = METADATA_V4.map(|address| address.to_string()).join(", ");
    format!("        ip daddr {{ 127.0.0.0/8, 169.254.0.0/16, 224.0.0.0/24, {metadata} }} drop\n")
}

/// Whether [`guarded_drop`] would refuse all of a destination. A user who names such a destination means it.
fn is_guarded(allow: &Allow) -> bool {
    let link = allow.address.is_link_local() && allow.bits >= 16;
    link || METADATA_V4.contains(&allow.address) && allow.bits == 32
}

/// Returns the destinations that a family may reach from hosts other than its parent's. Link-local addresses and the cloud's metadata
/// service are left out: the user means those of the parent's host.
pub(crate) fn allowed_elsewhere(allow: &[Allow]) -> Vec<Allow> {
    let reached = allow.iter().filter(|allow| !is_guarded(allow));
    reached.copied().collect()
}

/// A family's network on one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// [`NETWORK_VERSION`].
    pub version: u32,
    /// Its id: 8 hex digits, the same on all of the family's hosts.
    pub id: String,
    /// The MAC address of the parent's card, which its image may have brought along.
    pub parent_mac: String,
    /// Destinations outside the network that members may reach.
    pub allow: Vec<Allow>,
    /// Most bytes a second that all members together, on all hosts, may send out of the network.
    pub bytes_per_s: u64,
    /// Members by name, with their numbers; 0 is the parent. On the parent's host, members on other hosts are included.
    pub members: BTreeMap<String, u32>,
    /// The unencrypted connection to other hosts, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlay: Option<Overlay>,
    /// The encrypted connection to other members of the cluster, if there is one instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<Sealed>,
}

/// The encrypted connection to the family's other hosts.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sealed {
    /// The secret that the key is derived from: 64 hex digits, random for this family. The file is readable by the node's
    /// user only.
    pub secret: String,
    /// This host's address in the cluster.
    pub local: SocketAddr,
    /// The other hosts' addresses.
    pub peers: BTreeSet<SocketAddr>,
    /// Whether this is the parent's host, which assigns the numbers.
    pub home: bool,
}

impl std::fmt::Debug for Sealed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sealed({} to {:?})", self.local, self.peers)
    }
}

/// The unencrypted connection to the family's other hosts, by VXLAN.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overlay {
    /// This host's address among them.
    pub local: Ipv4Addr,
    /// The other hosts' addresses.
    pub peers: BTreeSet<Ipv4Addr>,
    /// Whether this is the parent's host, which assigns the numbers.
    pub home: bool,
}

impl Network {
    /// Decodes a file's content, or returns why that is impossible.
    pub fn parse(bytes: &[u8]) -> Result<Network, String> {
        let network: Network = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        network.check()?;
        Ok(network)
    }

    /// Returns an error for values that floe would not have written, since they become commands for `ip` and `nft`.
    pub fn check(&self) -> Result<(), String> {
        if self.version != NETWORK_VERSION {
            return Err(format!(
                "it has version {}, this floe knows version {NETWORK_VERSION}",
                self.version
            ));
        }
        if self.id.len() != 8 || !self.id.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(format!("{:?} is no network's id", self.id));
        }
        let parts: Vec<&str> = self.parent_mac.split(':').collect();
        let hex = |b: u8| b.is_ascii_hexdigit();
        // not as a number, which may have a sign
        let byte = |part: &&str| part.len() == 2 && part.bytes().all(hex);
        if parts.len() != 6 || !parts.iter().all(byte) {
            return Err(format!("{:?} is no network address", self.parent_mac));
        }
        if let Some(sealed) = &self.sealed
            && (sealed.secret.len() != 64 || !sealed.secret.bytes().all(hex))
        {
            return Err("its secret is none".into());
        }
        if self.members.values().any(|index| *index > MEMBERS_MAX) {
            return Err(format!("it has members beyond {MEMBERS_MAX}"));
        }
        Ok(())
    }

    /// Whether another host assigns its members' numbers.
    pub fn is_guest(&self) -> bool {
        let overlay = self.overlay.as_ref().map(|overlay| overlay.home);
        overlay.or(self.sealed.as_ref().map(|sealed| sealed.home)) == Some(false)
    }

    /// Whether a member of the cluster is one of its other hosts.
    pub fn has_host(&self, member: SocketAddr) -> bool {
        let sealed = self.sealed.as_ref();
        sealed.is_some_and(|sealed| sealed.peers.contains(&member))
    }

    /// Returns how many hosts the family has reached so far.
    fn hosts(&self) -> u32 {
        let sealed = self.sealed.as_ref().map(|sealed| sealed.peers.len());
        let overlay = self.overlay.as_ref().map(|overlay| overlay.peers.len());
        sealed.or(overlay).unwrap_or(0) as u32 + 1
    }

    /// Returns how many bytes a second its members on this host may send out of it: an equal part for each host, since none knows how
    /// much the others send.
    pub fn bytes_per_s_here(&self) -> u64 {
        self.bytes_per_s / u64::from(self.hosts())
    }

    /// Returns the id as a number, as it is in datagrams.
    pub fn number(&self) -> u32 {
        u32::from_str_radix(&self.id, 16).unwrap_or(0)
    }

    /// Returns rules for `nft -f` in the namespace that limit TCP segments between hosts to `mss` bytes. Guests take an
    /// Ethernet of 1500 bytes for granted, and nobody tells them otherwise; longer packets of other protocols are sent in two
    /// parts.
    pub fn clamp_rules(&self, mss: u32) -> String {
        let syn = "ether type ip tcp flags & (syn | rst) == syn tcp option maxseg size set";
        format!(
            "add table bridge clamp
delete table bridge clamp
table bridge clamp {{
    chain forward {{
        type filter hook forward priority 0; policy accept;
        oifname \"vx0\" {syn} {mss}
        iifname \"vx0\" {syn} {mss}
    }}
}}
"
        )
    }

    /// Returns the VXLAN network identifier: 24 bits of the id, with the lowest one set so that it is never zero.
    pub fn vni(&self) -> u32 {
        u32::from_str_radix(&self.id, 16).unwrap_or(1) & 0xff_ffff | 1
    }

    /// Returns a number for a member: the one that its name ends with if that is free, otherwise the smallest free one.
    pub fn free_number(&self, name: &str) -> Option<u32> {
        // a member of the same name has ended, and nobody has noticed yet
        let others = || self.members.iter().filter(|(other, _)| *other != name);
        let taken = |number: u32| others().any(|(_, index)| *index == number);
        let wish = name.rsplit('.').next().and_then(|last| last.parse().ok());
        let wish = wish.filter(|n| (1..=MEMBERS_MAX).contains(n) && !taken(*n));
        wish.or_else(|| (1..=MEMBERS_MAX).find(|n| !taken(*n)))
    }

    /// Notes all hosts of a family whose home is another host.
    pub fn meet(&mut self, local: Ipv4Addr, hosts: &[Ipv4Addr]) {
        let overlay = self.overlay.get_or_insert_with(|| Overlay {
            local,
            peers: BTreeSet::new(),
            home: false,
        });
        let others = hosts.iter().filter(|host| **host != overlay.local);
        overlay.peers.extend(others);
    }

    /// Returns a member's address.
    pub fn address(number: u32) -> Ipv4Addr {
        let [a, b, c, _] = GATEWAY.octets();
        Ipv4Addr::new(a, b, c, (PARENT_LAST + number).min(254) as u8)
    }

    /// Returns the MAC address of a member's card: the parent's own, and for a clone one derived from the family and the
    /// number.
    pub fn mac(&self, number: u32) -> String {
        if number == 0 {
            return self.parent_mac.clone();
        }
        let id = Hash::of(self.id.as_bytes());
        let [a, b, c, ..] = *id.as_bytes();
        // QEMU's prefix is locally administered; the family's bytes distinguish it where hosts bridge it to other networks
        format!("52:54:{a:02x}:{b:02x}:{c:02x}:{number:02x}")
    }

    /// Returns the name of a member's device.
    pub fn port(number: u32) -> String {
        format!("m{number}")
    }

    /// Returns the commands for `ip -batch` in the namespace that create the network.
    pub fn build(&self) -> String {
        // ports forward without delay: a bridge whose ports lead to single machines has no loops
        format!(
            "link set lo up\n\
             link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
             link set br0 address {GATEWAY_MAC}\n\
             addr add {GATEWAY}/{BITS} dev br0\n\
             link set br0 up\n"
        )
    }

    /// Returns the rules for `nft -f` in the namespace, which replace the earlier ones.
    // Long: one text of rules, in the order in which a packet meets them.
    pub fn rules(&self) -> String {
        let mut known = String::new();
        let mut ports = String::new();
        for number in 0..=MEMBERS_MAX {
            let (mac, address) = (self.mac(number), Network::address(number));
            let comma = if number == 0 { "" } else { ", " };
            let _ = write!(known, "{comma}{mac} . {address}");
            let _ = write!(
                ports,
                "{comma}\"{}\" . {mac} . {address}",
                Network::port(number)
            );
        }
        // the host's link-local addresses and its cloud's metadata can be reached only if they are named, not through a wide destination
        let (mut named, mut wide) = (String::new(), String::new());
        for allow in &self.allow {
            let allowed = match is_guarded(allow) {
                true => &mut named,
                false => &mut wide,
            };
            let out = "        iifname \"br0\" oifname \"up0\" ip daddr";
            let to = format!("{}/{}", allow.address, allow.bits);
            let _ = match allow.port {
                Some(port) => writeln!(
                    allowed,
                    "{out} {to} tcp dport {port} accept\n{out} {to} udp dport {port} accept"
                ),
                None => writeln!(allowed, "{out} {to} accept"),
            };
        }
        let rate = self.bytes_per_s_here().clamp(1, u64::from(u32::MAX));
        let burst = (rate / 4).max(64 << 10);
        let guarded = guarded_drop();
        let new = (NEW_PER_S / self.hosts()).max(1);
        format!(
            "add table bridge floe
delete table bridge floe
add table ip floe
delete table ip floe
table bridge floe {{
    set ports {{
        typeof iifname . ether saddr . ip saddr
        elements = {{ {ports} }}
    }}
    set known {{
        typeof ether saddr . ip saddr
        elements = {{ {known} }}
    }}
    chain arrive {{
        type filter hook prerouting priority -300; policy accept;
        iifname \"m*\" jump member
        iifname \"vx0\" jump sibling
    }}
    chain member {{
        ether type arp iifname . arp saddr ether . arp saddr ip @ports accept
        ether type ip iifname . ether saddr . ip saddr @ports accept
        drop
    }}
    chain sibling {{
        ether daddr {GATEWAY_MAC} drop
        ether type arp arp daddr ip {GATEWAY} drop
        ether type arp arp saddr ether . arp saddr ip @known accept
        ether type ip ether saddr . ip saddr @known accept
        drop
    }}
    chain leave {{
        type filter hook output priority 0; policy accept;
        oifname \"vx0\" ether saddr {GATEWAY_MAC} drop
    }}
}}
table ip floe {{
    chain input {{
        type filter hook input priority 0; policy drop;
        iifname \"lo\" accept
        ct state established,related accept
        iifname \"br0\" icmp type echo-request limit rate 50/second accept
    }}
    chain forward {{
        type filter hook forward priority 0; policy drop;
        iifname \"br0\" oifname \"br0\" accept
        limit rate over {rate} bytes/second burst {burst} bytes counter drop
        ct state established,related accept
        ct state new limit rate over {new}/second burst {new} packets drop
{named}{guarded}{wide}    }}
    chain post {{
        type nat hook postrouting priority 100;
        oifname \"up0\" masquerade
    }}
}}
"
        )
    }

    /// Returns the rules for `nft -f` on the host: this family's frames are accepted from its hosts only. Its number follows
    /// the headers of UDP (8 bytes) and the flags of VXLAN (4 bytes).
    pub fn overlay_rules(&self, table: &str, overlay: &Overlay) -> String {
        let peers: Vec<String> = overlay.peers.iter().map(Ipv4Addr::to_string).collect();
        let vni = self.vni();
        let from = match peers.is_empty() {
            true => String::new(),
            false => format!("ip saddr != {{ {} }} ", peers.join(", ")),
        };
        format!(
            "add table ip {table}
delete table ip {table}
table ip {table} {{
    chain input {{
        type filter hook input priority -10; policy accept;
        udp dport {VXLAN_PORT} @th,96,24 {vni} {from}drop
    }}
}}
"
        )
    }

    /// Returns the addresses of both ends of the veth pair between host and namespace, in the shared range 100.64.0.0/10 (RFC
    /// 6598).
    fn veth_addresses(namespace: &str) -> (Ipv4Addr, Ipv4Addr) {
        let [a, b, c, ..] = *Hash::of(namespace.as_bytes()).as_bytes();
        let number = u32::from_be_bytes([0, a & 0x0f, b, c]);
        let base = u32::from(Ipv4Addr::new(100, 64, 0, 0)) + number * 4;
        ((base + 1).into(), (base + 2).into())
    }

    /// Returns the commands for `ip -batch` in the namespace, once `up0` exists: the route to the host.
    pub fn uplink(namespace: &str) -> String {
        let (host, own) = Network::veth_addresses(namespace);
        format!("addr add {own}/30 dev up0\nlink set up0 up\nroute add default via {host}\n")
    }

    /// Returns the commands for `ip -batch` on the host, for its end of that pair.
    pub fn downlink(namespace: &str, device: &str) -> String {
        let (host, _) = Network::veth_addresses(namespace);
        format!("addr add {host}/30 dev {device}\nlink set {device} up\n")
    }

    /// Returns the rules for `nft -f` on the host: out through its address, nothing in, and nothing to the host itself.
    pub fn host_rules(namespace: &str, device: &str) -> String {
        let (_, own) = Network::veth_addresses(namespace);
        format!(
            "add table ip {device}
delete table ip {device}
table ip {device} {{
    chain input {{
        type filter hook input priority -10; policy accept;
        iifname \"{device}\" drop
    }}
    chain forward {{
        type filter hook forward priority -10; policy accept;
        oifname \"{device}\" ct state new drop
    }}
    chain post {{
        type nat hook postrouting priority 100;
        ip saddr {own} oifname != \"{device}\" masquerade
    }}
}}
"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn network() -> Network {
        Network {
            version: NETWORK_VERSION,
            id: "0a1b2c3d".into(),
            parent_mac: "52:54:00:12:34:56".into(),
            allow: vec![
                "192.0.2.0/24:443".parse().unwrap(),
                "10.0.0.1".parse().unwrap(),
            ],
            bytes_per_s: 1_000_000,
            members: [("web".into(), 0)].into(),
            overlay: None,
            sealed: None,
        }
    }

    #[test]
    fn members_have_the_addresses_of_their_numbers() {
        let mut network = network();
        assert_eq!(Network::address(0).to_string(), "10.0.2.15");
        assert_eq!(Network::address(3).to_string(), "10.0.2.18");
        assert_eq!(Network::address(MEMBERS_MAX).to_string(), "10.0.2.254");
        assert_eq!(network.mac(0), "52:54:00:12:34:56");
        let macs: BTreeSet<_> = (0..=MEMBERS_MAX).map(|n| network.mac(n)).collect();
        assert_eq!(macs.len() as u32, MEMBERS_MAX + 1);
        assert_eq!(network.free_number("web.3"), Some(3));
        network.members.insert("web.3".into(), 3);
        assert_eq!(network.free_number("web.2.3"), Some(1));
        assert_eq!(network.free_number("web.9999"), Some(1));
        for number in 1..=MEMBERS_MAX {
            network.members.insert(format!("web.{number}"), number);
        }
        assert_eq!(network.free_number("db"), None);
        // a member of this name was here before
        assert_eq!(network.free_number("web.1"), Some(1));
    }

    #[test]
    fn rules_name_every_destination_and_nothing_is_let_out_without_one() {
        let mut network = network();
        let rules = network.rules();
        assert!(rules.contains("ip daddr 192.0.2.0/24 tcp dport 443 accept"));
        assert!(rules.contains("ip daddr 10.0.0.1/32 accept"));
        assert!(rules.contains("limit rate over 1000000 bytes/second"));
        network.sealed = Some(Sealed {
            secret: "0".repeat(64),
            local: "10.0.0.1:7071".parse().unwrap(),
            peers: ["10.0.0.2:7071", "10.0.0.3:7071"]
                .map(|peer| peer.parse().unwrap())
                .into(),
            home: true,
        });
        assert!(
            network
                .rules()
                .contains("limit rate over 333333 bytes/second")
        );
        network.sealed = None;
        network.allow = vec![
            "0.0.0.0/0".parse().unwrap(),
            "169.254.169.254:80".parse().unwrap(),
            "168.63.129.16:53".parse().unwrap(),
        ];
        let rules = network.rules();
        let place = |text: &str| {
            rules
                .find(text)
                .unwrap_or_else(|| panic!("{text}: {rules}"))
        };
        let refused = place(
            "169.254.0.0/16, 224.0.0.0/24, 100.100.100.200, 168.63.129.16, 192.0.0.192 } drop",
        );
        assert!(place("ip daddr 169.254.169.254/32 tcp dport 80 accept") < refused);
        assert!(place("ip daddr 168.63.129.16/32 tcp dport 53 accept") < refused);
        assert!(refused < place("ip daddr 0.0.0.0/0 accept"));
        // and another host's link-local addresses and metadata are not meant
        let elsewhere = allowed_elsewhere(&network.allow);
        assert_eq!(elsewhere, ["0.0.0.0/0".parse().unwrap()]);
        network.allow.clear();
        assert!(!network.rules().contains("ip daddr 1"));
        let overlay = Overlay {
            local: Ipv4Addr::new(10, 0, 0, 1),
            peers: [Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 3)].into(),
            home: true,
        };
        let rules = network.overlay_rules("vx1", &overlay);
        assert!(
            rules.contains("ip saddr != { 10.0.0.2, 10.0.0.3 } drop"),
            "{rules}"
        );
        assert!((1..1 << 24).contains(&network.vni()));
        let (host, own) = Network::veth_addresses("floe-1");
        assert!(Ipv4Addr::new(100, 64, 0, 0) < host && own < Ipv4Addr::new(100, 128, 0, 0));
        assert_eq!(u32::from(host) + 1, u32::from(own));
    }

    #[test]
    fn what_floe_would_not_have_written_is_refused() {
        let bad = |change: &dyn Fn(&mut Network)| {
            let mut network = network();
            change(&mut network);
            Network::parse(&serde_json::to_vec(&network).unwrap()).unwrap_err()
        };
        assert!(bad(&|n| n.id = "x; drop".into()).contains("no network's id"));
        assert!(bad(&|n| n.parent_mac = "52:54:00:12:34:5}".into()).contains("no network address"));
        assert!(bad(&|n| n.parent_mac = "52:54:+0:12:34:56".into()).contains("no network address"));
        assert!(bad(&|n| n.version = 9).contains("version 9"));
        let beyond = |n: &mut Network| n.members = [("x".to_owned(), 240)].into();
        assert!(bad(&beyond).contains("beyond"));
        let good = serde_json::to_vec(&network()).unwrap();
        assert_eq!(Network::parse(&good), Ok(network()));
    }

    proptest! {
        #[test]
        fn a_damaged_file_is_refused_and_never_a_panic(at in 0usize..200, byte: u8) {
            let mut bytes = serde_json::to_vec(&network()).unwrap();
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(network) = Network::parse(&bytes) {
                let _ = (network.vni(), network.rules());
            }
        }
    }
}
