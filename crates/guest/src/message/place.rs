//! Who and where a machine is, as its node tells its guest.

use super::{ENTROPY_BYTES, some, text};
use crate::line::{Line, LineError};

/// Which machine this is, as far as its agent knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Me {
    /// The clone's number in its fork; 0 if it is no clone.
    pub id: u32,
    /// Its name on its node; empty if it is no clone.
    pub machine: String,
    /// Its parent's name.
    pub parent: String,
    /// The ticket that it was cloned with.
    pub ticket: String,
}

/// What distinguishes a clone from its siblings (SnowFlock, section 4.6: the address is derived from the id).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// The clone's number and names.
    pub me: Me,
    /// MAC address of its network card, such as `52:54:00:12:34:56`; `None` if it has no card.
    pub mac: Option<String>,
    /// The MAC address that the card had in the parent.
    pub mac_was: Option<String>,
    /// Host name.
    pub hostname: String,
    /// 32 hex digits for `/etc/machine-id`.
    pub machine_id: String,
    /// Address such as `10.64.0.7/16` that the card gets instead of its parent's; with `None` it keeps the parent's.
    pub address: Option<String>,
    /// The default gateway.
    pub gateway: Option<String>,
}

/// What a node sends to a guest at the beginning of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The host's time, nanoseconds since 1970.
    pub time_ns: u64,
    /// Random numbers that no other machine gets.
    pub entropy: Vec<u8>,
    /// Which generation of itself the machine is, as its vmgenid device has it; `None` if it has no such device.
    pub generation: Option<String>,
    /// The identity, if this is a clone.
    pub identity: Option<Identity>,
    /// What the node is called in its cluster: another one after a move. `None` if it is in none, or says nothing new.
    pub node: Option<String>,
}

impl Me {
    pub(super) fn add_to(&self, line: Line) -> Line {
        line.with("id", self.id)
            .with("machine", &self.machine)
            .with("parent", &self.parent)
            .with("ticket", &self.ticket)
    }

    pub(super) fn of(line: &Line) -> Result<Me, LineError> {
        Ok(Me {
            id: line.number("id")?,
            machine: text(line, "machine")?,
            parent: text(line, "parent")?,
            ticket: text(line, "ticket")?,
        })
    }
}

impl Place {
    pub(super) fn add_to(&self, line: Line) -> Line {
        let hex: String = self.entropy.iter().map(|b| format!("{b:02x}")).collect();
        let line = line
            .with("time-ns", self.time_ns)
            .with("entropy", hex)
            .with_some("generation", self.generation.as_deref())
            .with_some("node", self.node.as_deref());
        let Some(identity) = &self.identity else {
            return line;
        };
        identity
            .me
            .add_to(line)
            .with_some("mac", identity.mac.as_deref())
            .with_some("mac-was", identity.mac_was.as_deref())
            .with("hostname", &identity.hostname)
            .with("machine-id", &identity.machine_id)
            .with_some("address", identity.address.as_deref())
            .with_some("gateway", identity.gateway.as_deref())
    }

    pub(super) fn of(line: &Line) -> Result<Place, LineError> {
        let hex = line.text("entropy")?.as_bytes();
        let bad = || LineError::BadValue("entropy");
        if hex.len() != 2 * ENTROPY_BYTES {
            return Err(bad());
        }
        let byte = |pair: &[u8]| {
            let lower = |b: &u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
            let text = std::str::from_utf8(pair)
                .ok()
                .filter(|_| pair.iter().all(lower));
            text.and_then(|text| u8::from_str_radix(text, 16).ok())
        };
        let entropy: Option<Vec<u8>> = hex.chunks(2).map(byte).collect();
        let identity = match line.get("id") {
            None => None,
            Some(_) => Some(Identity {
                me: Me::of(line)?,
                mac: some(line, "mac")?,
                mac_was: some(line, "mac-was")?,
                hostname: text(line, "hostname")?,
                machine_id: text(line, "machine-id")?,
                address: some(line, "address")?,
                gateway: some(line, "gateway")?,
            }),
        };
        Ok(Place {
            time_ns: line.number("time-ns")?,
            entropy: entropy.ok_or_else(bad)?,
            generation: some(line, "generation")?,
            identity,
            node: some(line, "node")?,
        })
    }
}
