//! What a guest has of its machine's hardware: CPUs may be offline in it, and memory in its balloon.
//!
//! A captured state has that too. So an image says it in labels, for whoever restores it.

use floe_api::Size;
use floe_image::MachineConfig;
use serde::{Deserialize, Serialize};

/// Label of an image whose guest had so many CPUs online, of more.
const CPUS_LABEL: &str = "floe.cpus";
/// Label of an image whose guest had so many bytes of memory, of more.
const MEMORY_LABEL: &str = "floe.memory";

/// What a guest has, where that is less than its machine's hardware.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Given {
    /// CPUs that are online in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Bytes of memory that are not in its balloon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

impl Given {
    /// Whether it has all.
    pub fn is_all(&self) -> bool {
        *self == Given::default()
    }

    /// Notes that a guest of such hardware has so much.
    pub fn new(config: &MachineConfig, has: Size) -> Given {
        let all = hardware(config);
        Given {
            cpus: Some(has.cpus).filter(|cpus| *cpus < all.cpus),
            memory_bytes: Some(has.memory_bytes).filter(|bytes| *bytes < all.memory_bytes),
        }
    }

    /// Returns what a guest of such hardware has.
    pub fn of(&self, config: &MachineConfig) -> Size {
        let all = hardware(config);
        Size {
            cpus: self.cpus.map_or(all.cpus, |cpus| cpus.clamp(1, all.cpus)),
            memory_bytes: self
                .memory_bytes
                .map_or(all.memory_bytes, |bytes| bytes.min(all.memory_bytes)),
        }
    }

    /// Reads what an image says of the guest in it. An image may come from anyone: what it says is never more than its hardware.
    pub fn in_labels(config: &MachineConfig) -> Given {
        let number = |label: &str| config.labels.get(label)?.parse::<u64>().ok();
        Given {
            cpus: number(CPUS_LABEL).and_then(|cpus| cpus.try_into().ok()),
            memory_bytes: number(MEMORY_LABEL),
        }
    }

    /// Writes into an image what the guest in it has.
    pub fn label(&self, config: &mut MachineConfig) {
        let cpus = self.cpus.map(u64::from);
        for (label, value) in [(CPUS_LABEL, cpus), (MEMORY_LABEL, self.memory_bytes)] {
            match value {
                Some(value) => config.labels.insert(label.into(), value.to_string()),
                None => config.labels.remove(label),
            };
        }
    }
}

/// Returns all that a guest of such hardware can have.
fn hardware(config: &MachineConfig) -> Size {
    Size {
        cpus: config.cpus_now().unwrap_or(1),
        memory_bytes: config.memory_bytes_now().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_says_what_its_guest_had_and_never_more_than_the_hardware() {
        let mut config = MachineConfig {
            cpus: Some(4),
            memory_bytes: Some(1 << 30),
            ..Default::default()
        };
        let has = |cpus, memory_bytes| Size { cpus, memory_bytes };
        let given = Given::new(&config, has(2, 512 << 20));
        assert_eq!(given.of(&config), has(2, 512 << 20));
        given.label(&mut config);
        assert_eq!(Given::in_labels(&config), given);
        let all = Given::new(&config, has(4, 1 << 30));
        assert!(all.is_all());
        all.label(&mut config);
        assert!(config.labels.is_empty());
        config.labels.insert(CPUS_LABEL.into(), "0".into());
        config
            .labels
            .insert(MEMORY_LABEL.into(), (1u64 << 50).to_string());
        assert_eq!(Given::in_labels(&config).of(&config), has(1, 1 << 30));
        config.labels.insert(CPUS_LABEL.into(), "many".into());
        assert_eq!(Given::in_labels(&config).of(&config).cpus, 4);
    }
}
