//! The content of a fork's file: which clones there are, and where. No I/O.

use floe_api::{CLONES_MAX, Limits, MulticastGroup};
use floe_ground::names::{MachineName, NameError};
use floe_image::Hash;
use serde::{Deserialize, Serialize};

/// Version of a fork's file.
pub(crate) const FORK_VERSION: u32 = 1;

/// A fork that has, or had, clones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForkRecord {
    /// [`FORK_VERSION`].
    pub version: u32,
    /// Its id: 16 hex digits.
    pub id: String,
    /// The machine or image that was forked.
    pub parent: String,
    /// The image that the clones started from.
    pub image: Hash,
    /// The token with which clones' nodes read that image here. The file is readable by the node's user only.
    pub token: String,
    /// Token for the pages of hosts that are asked in clear text. Without it no host is asked so, and no state of the fork is
    /// sent so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts_token: Option<String>,
    /// The multicast group of its clones on other hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multicast: Option<MulticastGroup>,
    /// The household whose guest asked for the fork, and whose limits its clones share; `None` if a user did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub household: Option<String>,
    /// What each clone on another host has of those limits.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub share: Limits,
    /// When the fork was made, Unix time in seconds.
    pub created_unix_s: u64,
    /// The clones by number, without those that could not be started.
    pub clones: Vec<CloneRecord>,
    /// Clones that nobody waits for and that may run nevertheless, because their hosts fell silent while they started them. They are
    /// ended once those answer again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unended: Vec<CloneRecord>,
}

/// A clone of a fork.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloneRecord {
    /// Its number in the fork, from 1.
    pub number: u32,
    /// Its machine's name.
    pub name: String,
    /// The node that runs it; `None` is this one.
    pub host: Option<String>,
}

impl ForkRecord {
    /// Whether nothing is left of it.
    pub fn is_over(&self) -> bool {
        self.clones.is_empty() && self.unended.is_empty()
    }

    /// Returns the household of which clones on other hosts have a part of the limits, if they have.
    pub fn shares_limits(&self) -> Option<&str> {
        let household = self.household.as_deref();
        household.filter(|_| self.share.bind_process())
    }

    /// Returns how many clones run, or may run, on other hosts.
    pub fn count_away(&self) -> usize {
        let away = self.clones.iter().filter(|clone| clone.host.is_some());
        away.count() + self.unended.len()
    }

    /// Whether a clone runs on another host.
    pub fn has_clones_away(&self) -> bool {
        self.clones.iter().any(|clone| clone.host.is_some())
    }

    /// Decodes a file's content, or returns why that is impossible.
    pub fn parse(bytes: &[u8]) -> Result<ForkRecord, String> {
        let record: ForkRecord = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        if record.version != FORK_VERSION {
            return Err(format!(
                "it has version {}, this floe knows version {FORK_VERSION}",
                record.version
            ));
        }
        if record.id.len() > 64 || !record.id.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(format!("its id {:?} is no id", record.id));
        }
        let clones = record.clones.len() + record.unended.len();
        // one that is still to be ended may be named as a clone, too, in what was written before all had started
        if clones > 2 * CLONES_MAX as usize {
            return Err(format!("it has {clones} clones"));
        }
        for clone in record.clones.iter().chain(&record.unended) {
            let name: Result<MachineName, NameError> = clone.name.parse();
            name.map_err(|e| e.to_string())?;
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_record_is_refused_with_the_reason() {
        let record = ForkRecord {
            version: FORK_VERSION,
            id: "00ff".into(),
            parent: "web".into(),
            image: Hash::of(b"i"),
            token: "t".into(),
            hosts_token: None,
            multicast: None,
            household: None,
            share: Limits::default(),
            created_unix_s: 7,
            clones: vec![CloneRecord {
                number: 1,
                name: "web.1".into(),
                host: None,
            }],
            unended: Vec::new(),
        };
        let text = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut value = serde_json::to_value(&record).unwrap();
            change(&mut value);
            ForkRecord::parse(value.to_string().as_bytes()).unwrap_err()
        };
        assert!(text(&|v| v["version"] = 2.into()).contains("version 2"));
        assert!(text(&|v| v["id"] = "../../etc".into()).contains("no id"));
        assert!(text(&|v| v["clones"][0]["name"] = "../x".into()).contains("not allowed"));
        assert!(ForkRecord::parse(b"[").is_err());
    }
}
