//! The content of a substrate's file. No I/O.

use floe_api::{MadeOf, SubstrateInfo, Visibility, check_users};
use floe_ground::names::{MachineName, NameError};
use floe_image::Hash;
use serde::{Deserialize, Serialize};

/// Version of a substrate's file.
pub(super) const SUBSTRATE_VERSION: u32 = 1;
/// Most entries of the list of what its machines forget.
const RESET_MAX: usize = 64;

/// A substrate. Its state is an image in the repository, which is its backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubstrateRecord {
    /// [`SUBSTRATE_VERSION`].
    pub version: u32,
    /// Its name.
    pub name: String,
    /// Who may see it.
    pub visibility: Visibility,
    /// The users who may see it if it is restricted, by name or number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
    /// Who docked it.
    pub owner_uid: u32,
    /// When it was docked, Unix time in seconds.
    pub docked_unix_s: u64,
    /// When it was activated last, Unix time in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activated_unix_s: Option<u64>,
    /// The machine that it was docked from.
    pub machine: String,
    /// vCPUs of that machine.
    pub cpus: u32,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// Its image.
    pub image: Hash,
    /// The image below, whose chunks are not its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Hash>,
    /// What it is made of.
    pub made_of: MadeOf,
    /// What its machines forget of the identity of the machine that was docked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reset: Vec<String>,
    /// By how many bytes the pool's memory grew for it.
    pub pool_bytes: u64,
}

impl SubstrateRecord {
    /// Decodes a file's content, or returns why that is impossible.
    pub fn parse(bytes: &[u8]) -> Result<SubstrateRecord, String> {
        let record: SubstrateRecord = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        if record.version != SUBSTRATE_VERSION {
            return Err(format!(
                "it has version {}, this floe knows version {SUBSTRATE_VERSION}",
                record.version
            ));
        }
        let name: Result<MachineName, NameError> = record.name.parse();
        name.map_err(|e| e.to_string())?;
        check_users(record.visibility, &record.users)?;
        if record.reset.len() > RESET_MAX {
            return Err(format!(
                "its list of what was reset has {} entries",
                record.reset.len()
            ));
        }
        Ok(record)
    }

    /// When it was used last, Unix time in seconds.
    pub fn used_unix_s(&self) -> u64 {
        self.activated_unix_s.unwrap_or(self.docked_unix_s)
    }

    /// Returns what users are told of it.
    pub fn info(&self, in_memory: bool) -> SubstrateInfo {
        SubstrateInfo {
            name: self.name.clone(),
            visibility: self.visibility,
            users: self.users.clone(),
            owner_uid: self.owner_uid,
            docked_unix_s: self.docked_unix_s,
            activated_unix_s: self.activated_unix_s,
            machine: self.machine.clone(),
            cpus: self.cpus,
            memory_bytes: self.memory_bytes,
            image: self.image.to_string(),
            base: self.base.map(|base| base.to_string()),
            made_of: self.made_of,
            reset: self.reset.clone(),
            in_memory,
            pool_bytes: self.pool_bytes,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn record(visibility: Visibility, users: &[&str]) -> SubstrateRecord {
        SubstrateRecord {
            version: SUBSTRATE_VERSION,
            name: "shop".into(),
            visibility,
            users: users.iter().map(|user| (*user).to_owned()).collect(),
            owner_uid: 1000,
            docked_unix_s: 7,
            activated_unix_s: None,
            machine: "web".into(),
            cpus: 1,
            memory_bytes: 1 << 28,
            image: Hash::of(b"image"),
            base: None,
            made_of: MadeOf::default(),
            reset: Vec::new(),
            pool_bytes: 0,
        }
    }

    #[test]
    fn a_damaged_record_is_refused_with_the_reason() {
        let good = record(Visibility::Restricted, &["anna"]);
        let bytes = serde_json::to_vec(&good).unwrap();
        assert_eq!(SubstrateRecord::parse(&bytes).unwrap(), good);
        let refused = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut value = serde_json::to_value(&good).unwrap();
            change(&mut value);
            SubstrateRecord::parse(value.to_string().as_bytes()).unwrap_err()
        };
        assert!(refused(&|v| v["version"] = 2.into()).contains("version 2"));
        assert!(refused(&|v| v["name"] = "../x".into()).contains("not allowed"));
        assert!(refused(&|v| v["users"] = serde_json::json!([])).contains("names no user"));
        assert!(refused(&|v| v["users"] = serde_json::json!(["a:b"])).contains("no user's name"));
        assert!(refused(&|v| v["visibility"] = "public".into()).contains("only a restricted"));
        assert!(SubstrateRecord::parse(b"[").is_err());
    }
}
