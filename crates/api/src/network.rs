//! Family networks: what is asked and told of them.

use super::*;
use std::{fmt, net::Ipv4Addr, str::FromStr};

/// Where guests of a family network may go beyond it: `10.0.0.0/8`, `192.0.2.7:443`, `0.0.0.0/0:53`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Allow {
    /// Destination.
    pub address: Ipv4Addr,
    /// Leading bits of it that count, 0 to 32.
    pub bits: u8,
    /// TCP and UDP port; all ports and protocols if none.
    pub port: Option<u16>,
}

/// Text that is no destination.
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

/// A network of a machine and all of its clones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkRequest {
    /// Where they may go beyond it, through the host's address; nowhere by default.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub allow: Vec<Allow>,
    /// Most bytes a second that they exchange with those destinations in all, on each host; [`NETWORK_BYTES_PER_S`] by
    /// default.
    #[serde(default)]
    pub bytes_per_s: Option<u64>,
}

/// What a clone's host is told of its family's network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkOrder {
    /// The network.
    pub id: String,
    /// The clone's number in it, from which its addresses follow.
    pub number: u32,
    /// Of the network card of member 0.
    pub parent_mac: String,
    /// Destinations beyond the network.
    #[schema(value_type = Vec<String>)]
    pub allow: Vec<Allow>,
    /// Most bytes a second to and from there.
    pub bytes_per_s: u64,
    /// The host's own address among the family's hosts (IPv4).
    pub local: String,
    /// All of the family's hosts.
    pub hosts: Vec<String>,
    /// Between members of a cluster: how the network is encrypted. `local` and `hosts` say nothing then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seal: Option<NetworkSeal>,
}

/// How a family's network is encrypted between its hosts.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkSeal {
    /// From which the key follows: 64 hex digits.
    pub secret: String,
    /// All of the family's hosts, as members of the cluster: `ADDRESS:PORT`.
    pub hosts: Vec<String>,
}

impl fmt::Debug for NetworkSeal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NetworkSeal(.., {:?})", self.hosts)
    }
}

/// Body of `POST /v1/networks/{id}/hosts`: a family has come to more hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkHosts {
    /// All of the family's hosts: IPv4, or as members of the cluster, `ADDRESS:PORT`.
    pub hosts: Vec<String>,
}

/// Most destinations of one network.
pub const NETWORK_ALLOW_MAX: usize = 256;
/// What a family may exchange with the world unless told otherwise, bytes a second: 100 Mbit/s.
pub const NETWORK_BYTES_PER_S: u64 = 12_500_000;

/// A machine's place in its family's network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NetworkInfo {
    /// The network, the same for the whole family.
    pub id: String,
    /// Its address there, with the network's bits. A clone's guest must take it; frames with another one go nowhere.
    pub address: String,
    /// Of its network card, for which the same goes.
    pub mac: String,
    /// The way out.
    pub gateway: String,
    /// Destinations beyond the network.
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
