//! Port forwards as the user writes them: `8080:80`, `0:22`, `127.0.0.1:5353:53/udp`.

use serde::{Deserialize, Serialize};
use std::{fmt, net::IpAddr, str::FromStr};
use utoipa::ToSchema;

/// A port of the host that leads to a port of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PortForward {
    /// TCP or UDP.
    #[serde(default)]
    pub protocol: Protocol,
    /// Address of the host to listen on.
    #[serde(default = "localhost")]
    pub host_address: String,
    /// Port of the host; 0 chooses a free one.
    pub host_port: u16,
    /// Port of the guest.
    pub guest_port: u16,
}

/// Transport protocols that can be forwarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        })
    }
}

/// By default nothing outside of the host can connect.
fn localhost() -> String {
    "127.0.0.1".into()
}

/// A port forward that can't be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("port forward {text:?}: {why}; write [ADDRESS:]HOST:GUEST[/udp], for example 8080:80")]
pub struct ForwardError {
    /// The text that was given.
    pub text: String,
    /// What is wrong with it.
    pub why: String,
}

impl PortForward {
    /// Returns an error if the forward is impossible: a host address that is none, or guest port 0.
    pub fn check(&self) -> Result<(), ForwardError> {
        let error = |why: &str| ForwardError {
            text: self.to_string(),
            why: why.into(),
        };
        if self.host_address.parse::<IpAddr>().is_err() {
            return Err(error("the host's address must be an IP address"));
        }
        if self.guest_port == 0 {
            return Err(error("the guest's port must be 1 to 65535"));
        }
        Ok(())
    }
}

impl fmt::Display for PortForward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = &self.host_address;
        if address.contains(':') {
            write!(f, "[{address}]:{}:{}", self.host_port, self.guest_port)?;
        } else {
            write!(f, "{address}:{}:{}", self.host_port, self.guest_port)?;
        }
        match self.protocol {
            Protocol::Tcp => Ok(()),
            Protocol::Udp => f.write_str("/udp"),
        }
    }
}

impl FromStr for PortForward {
    type Err = ForwardError;

    fn from_str(text: &str) -> Result<Self, ForwardError> {
        let error = |why: &str| ForwardError {
            text: text.into(),
            why: why.into(),
        };
        let (ports, protocol) = match text.rsplit_once('/') {
            None | Some((_, "tcp")) => (text.trim_end_matches("/tcp"), Protocol::Tcp),
            Some((ports, "udp")) => (ports, Protocol::Udp),
            Some(_) => return Err(error("the protocol must be tcp or udp")),
        };
        let (rest, guest) = ports
            .rsplit_once(':')
            .ok_or_else(|| error("a colon is missing"))?;
        let (address, host) = match rest.rsplit_once(':') {
            None => (localhost(), rest),
            Some((address, host)) => (
                address
                    .trim_start_matches('[')
                    .trim_end_matches(']')
                    .to_owned(),
                host,
            ),
        };
        let port = |text: &str| {
            text.parse::<u16>()
                .map_err(|_| error("a port must be a number up to 65535"))
        };
        let forward = PortForward {
            protocol,
            host_address: address,
            host_port: port(host)?,
            guest_port: port(guest)?,
        };
        forward.check().map_err(|e| ForwardError {
            text: text.into(),
            why: e.why,
        })?;
        Ok(forward)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forward_is_read_as_it_is_written() {
        for text in [
            "127.0.0.1:8080:80",
            "0.0.0.0:0:22",
            "127.0.0.1:5353:53/udp",
            "[::1]:8080:80",
        ] {
            assert_eq!(text.parse::<PortForward>().unwrap().to_string(), text);
        }
        assert_eq!(
            "8080:80".parse::<PortForward>().unwrap().to_string(),
            "127.0.0.1:8080:80"
        );
        assert_eq!(
            "8080:80/tcp".parse::<PortForward>().unwrap().protocol,
            Protocol::Tcp
        );
    }

    #[test]
    fn a_bad_forward_is_refused_with_the_reason() {
        for text in [
            "",
            "80",
            "a:80",
            "80:b",
            "70000:80",
            "1:0",
            "host:1:2",
            "1:2/sctp",
            "1:2,hostfwd=x",
            "::",
        ] {
            let error = text.parse::<PortForward>().unwrap_err();
            assert!(error.to_string().contains("8080:80"), "{error}");
        }
    }
}
