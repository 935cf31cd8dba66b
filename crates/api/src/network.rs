//! Networks of families: the requests and answers about them.

use super::*;
use std::{fmt, net::Ipv4Addr, str::FromStr};

/// A destination outside of their network that guests of a family may reach: `10.0.0.0/8`, `192.0.2.7:443`,
/// `0.0.0.0/0:53`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Allow {
    /// Address of the destination.
    pub address: Ipv4Addr,
    /// Number of leading bits of the address that must match, 0 to 32.
    pub bits: u8,
    /// TCP and UDP port; if absent, all ports and protocols.
    pub port: Option<u16>,
}

/// Text that does not denote a destination. The field says why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no destination; write ADDRESS[/BITS][:PORT] such as 192.0.2.0/24:443 (IPv4)")]
pub struct AllowError(pub String);

impl FromStr for Allow {
    type Err = AllowError;

    fn from_str(text: &str) -> Result<Allow, AllowError> {
        let parse = || -> Option<Allow> {
            let (network, port) = match text.split_once(':') {
                Some((network, port)) => (network, Some(port.parse().ok().filter(|p| *p > 0)?)),
                None => (text, None),
            };
            let (address, bits) = match network.split_once('/') {
                Some((address, bits)) => (address, bits.parse().ok().filter(|bits| *bits <= 32)?),
                None => (network, 32),
            };
            let address = u32::from(address.parse::<Ipv4Addr>().ok()?);
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            Some(Allow {
                address: (address & mask).into(),
                bits,
                port,
            })
        };
        parse().ok_or_else(|| AllowError(text.to_owned()))
    }
}

impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)?;
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

impl TryFrom<String> for Allow {
    type Error = AllowError;

    fn try_from(text: String) -> Result<Allow, AllowError> {
        text.parse()
    }
}

impl From<Allow> for String {
    fn from(allow: Allow) -> String {
        allow.to_string()
    }
}

/// Settings of a network for a machine and all of its clones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkRequest {
    /// Destinations outside of the network that its guests may reach, through the host's address; by default none.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub allow: Vec<Allow>,
    /// Largest rate, in bytes per second, of all traffic with those destinations, on all of the family's hosts together: each has an equal
    /// part; by default [`NETWORK_BYTES_PER_S`].
    #[serde(default)]
    pub bytes_per_s: Option<u64>,
}

/// What the host of a clone needs to know about the network of the clone's family.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkOrder {
    /// Id of the network.
    pub id: String,
    /// The clone's number in the network, which determines its addresses.
    pub number: u32,
    /// MAC address of the network card of member 0.
    pub parent_mac: String,
    /// Destinations outside of the network that may be reached.
    #[schema(value_type = Vec<String>)]
    pub allow: Vec<Allow>,
    /// Largest rate of traffic with those on all hosts together, in bytes per second.
    pub bytes_per_s: u64,
    /// The receiving host's own address among the family's hosts (IPv4).
    pub local: String,
    /// Addresses of all of the family's hosts.
    pub hosts: Vec<String>,
    /// Between members of a cluster, how the network is encrypted; `local` and `hosts` are not used then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seal: Option<NetworkSeal>,
}

/// How the network of a family is encrypted between its hosts.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkSeal {
    /// The secret from which the key is derived: 64 hexadecimal digits.
    pub secret: String,
    /// `ADDRESS:PORT` of all of the family's hosts, as members of the cluster.
    pub hosts: Vec<String>,
}

impl fmt::Debug for NetworkSeal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NetworkSeal(.., {:?})", self.hosts)
    }
}

/// Body of `POST /v1/networks/{id}/hosts`: the new list of a family's hosts, after it has spread to more of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkHosts {
    /// All of the family's hosts: IPv4 addresses, or `ADDRESS:PORT` of members of the cluster.
    pub hosts: Vec<String>,
}

/// Most destinations that one network may have.
pub const NETWORK_ALLOW_MAX: usize = 256;
/// Default rate of a family's traffic with destinations outside of its network, in bytes per second: 100 Mbit/s.
pub const NETWORK_BYTES_PER_S: u64 = 12_500_000;

/// A machine's addresses in its family's network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NetworkInfo {
    /// Id of the network, the same for the whole family.
    pub id: String,
    /// Its IPv4 address there, with the network's prefix length. A clone's guest must use it; frames with another
    /// address are dropped.
    pub address: String,
    /// MAC address of its network card, which its guest must use, too.
    pub mac: String,
    /// Address of the gateway.
    pub gateway: String,
    /// Destinations outside of the network that may be reached.
    #[schema(value_type = Vec<String>)]
    pub allow: Vec<Allow>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn destinations_are_read_as_they_are_written() {
        let allow: Allow = "192.0.2.77/24:443".parse().unwrap();
        assert_eq!(allow.to_string(), "192.0.2.0/24:443");
        assert_eq!(
            "10.1.2.3".parse::<Allow>().unwrap().to_string(),
            "10.1.2.3/32"
        );
        assert_eq!(
            "1.2.3.4/0".parse::<Allow>().unwrap().to_string(),
            "0.0.0.0/0"
        );
        for bad in [
            "",
            "10.0.0.0/33",
            "10.0.0.0:0",
            "10.0.0.0:x",
            "::1",
            "host:80",
            "1.2.3.4/8/8",
        ] {
            assert!(bad.parse::<Allow>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_destination_that_comes_back_or_an_error(text in "[0-9./:]{0,24}") {
            if let Ok(allow) = text.parse::<Allow>() {
                prop_assert_eq!(allow.to_string().parse::<Allow>(), Ok(allow));
            }
        }
    }
}
