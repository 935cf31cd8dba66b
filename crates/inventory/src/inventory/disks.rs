//! What a machine's disks are called. QEMU, the mount and images know a disk by its number (`disk1`), which is also its serial number in
//! the guest; its user may have another name for it, which is in the record and in the labels of images.

use super::record::Record;
use floe_ground::error::{NodeError, usage};
use floe_image::MachineConfig;

/// The beginning of labels of an image that say what its disks are called; the disk's name follows.
const LABEL: &str = "floe.disk.";
/// Longest name of a user's for a disk, in bytes.
const ALIAS_MAX: usize = 32;

/// Refuses names for disks that could be taken for something else.
pub fn check_alias(alias: &str) -> Result<(), NodeError> {
    match is_alias(alias) {
        true => Ok(()),
        false => Err(usage(
            format!("a disk can't be called {alias:?}"),
            "use up to 32 of a-z, 0-9 and -, a letter first, and nothing like disk1 or nic1, which floe gives out itself",
        )),
    }
}

fn is_alias(alias: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let counted = |prefix: &str| {
        let rest = alias.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()))
    };
    alias.starts_with(|c: char| c.is_ascii_lowercase())
        && alias.len() <= ALIAS_MAX
        && alias.bytes().all(plain)
        && !counted("disk")
        && !counted("nic")
        && !floe_image::is_special_disk(alias)
}

impl Record {
    /// Returns what the user calls a disk of this name.
    pub fn disk_alias(&self, disk: &str) -> Option<&str> {
        if let Some(own) = self.own_disks.iter().find(|own| own.name == disk) {
            return own.alias.as_deref();
        }
        // an image may come from anyone
        let label = self.config.labels.get(&format!("{LABEL}{disk}"))?;
        Some(label.as_str()).filter(|label| is_alias(label))
    }

    /// Returns what the user calls the disks that have such a name.
    pub fn disk_aliases(&self) -> Vec<String> {
        let disks = self.config.disks.iter();
        let aliases = disks.filter_map(|disk| self.disk_alias(disk));
        aliases.map(str::to_owned).collect()
    }

    /// Returns the name of the disk that the user calls so, or that has this name.
    pub fn disk_called(&self, called: &str) -> Option<String> {
        let disks = &self.config.disks;
        let by_name = disks.iter().find(|disk| *disk == called);
        let by_alias = || {
            disks
                .iter()
                .find(|disk| self.disk_alias(disk) == Some(called))
        };
        by_name.or_else(by_alias).cloned()
    }

    /// Returns the number for the machine's next disk. A machine's first disk is its image's, or it has none.
    pub fn free_disk(&self) -> usize {
        let own = self.own_disks.iter().map(|own| &own.name);
        let numbers = self.config.disks.iter().chain(own);
        let numbers = numbers.filter_map(|disk| floe_image::disk_number(disk));
        let most = numbers.max().unwrap_or(0);
        self.next_disk.max(most + 1)
    }

    /// Writes into an image what its disks are called.
    pub(crate) fn label_disks(&self, config: &mut MachineConfig) {
        config.labels.retain(|label, _| !label.starts_with(LABEL));
        for disk in &config.disks {
            if let Some(alias) = self.disk_alias(disk) {
                config
                    .labels
                    .insert(format!("{LABEL}{disk}"), alias.to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::record::OwnDisk;

    fn with_disks() -> Record {
        let mut record = crate::inventory::sample_record();
        record.config.disks = ["disk0", "seed", "disk3"].map(str::to_owned).into();
        record.own_disks = vec![OwnDisk {
            name: "disk3".into(),
            bytes: 4096,
            alias: Some("data".into()),
        }];
        record
    }

    #[test]
    fn a_disk_is_known_by_its_number_and_by_its_users_name_also_in_images() {
        let record = with_disks();
        assert_eq!(record.disk_called("data").as_deref(), Some("disk3"));
        assert_eq!(record.disk_called("disk3").as_deref(), Some("disk3"));
        assert_eq!(record.disk_called("disk1"), None);
        let mut config = record.config.clone();
        config
            .labels
            .insert("floe.disk.disk7".into(), "gone".into());
        record.label_disks(&mut config);
        let labels: Vec<_> = config.labels.iter().collect();
        assert_eq!(
            labels,
            [(&"floe.disk.disk3".to_owned(), &"data".to_owned())]
        );
        let mut restored = record;
        (restored.config, restored.own_disks) = (config, Vec::new());
        assert_eq!(restored.disk_called("data").as_deref(), Some("disk3"));
        // what an image says is not believed
        let label = "floe.disk.disk3".to_owned();
        restored.config.labels.insert(label, "disk0".into());
        assert_eq!(restored.disk_alias("disk3"), None);
    }

    #[test]
    fn no_number_is_used_twice() {
        let mut record = with_disks();
        assert_eq!(record.free_disk(), 4);
        record.next_disk = 9;
        assert_eq!(record.free_disk(), 9);
        record.config.disks.clear();
        record.own_disks.clear();
        record.next_disk = 0;
        assert_eq!(record.free_disk(), 1);
    }

    #[test]
    fn names_that_floe_gives_out_are_refused() {
        for good in ["data", "db-2", "disks", "nic-disk", "diskette"] {
            check_alias(good).unwrap();
        }
        let long = "a".repeat(ALIAS_MAX + 1);
        for bad in [
            "", "disk", "disk1", "nic2", "seed", "cdrom", "-a", "A", "a/b", "1a", "a.b", &long,
        ] {
            assert!(check_alias(bad).is_err(), "{bad}");
        }
    }
}
