//! What a guest has of its machine's hardware: CPUs may be offline in it, and memory in its balloon. It uses still less while memory is
//! offline in it: after a boot, memory that was added to the machine is offline until something in the guest brings it online.
//!
//! A captured state has that too. So an image says it in labels, for whoever restores it.

use floe_api::Size;
use floe_image::MachineConfig;
use serde::{Deserialize, Serialize};

/// Label of an image whose guest had so many CPUs online, of more.
const CPUS_LABEL: &str = "floe.cpus";
/// Label of an image whose guest had so many bytes of memory, of more.
const MEMORY_LABEL: &str = "floe.memory";
/// Label of an image whose guest did not use so many bytes of the memory that was added to its machine.
const UNUSED_LABEL: &str = "floe.memory-unused";

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
    /// Memory that it does not use, as far as is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unused: Option<Unused>,
}

/// Memory of its machine that a guest does not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unused {
    /// How many bytes.
    pub bytes: u64,
    /// How many bytes the guest is to have outside its balloon once it uses all. Until then the balloon takes less.
    pub then_bytes: u64,
}

impl Unused {
    /// How many bytes must be outside the balloon, of `all` that the machine has, so that the guest has `wanted` that it can use.
    pub fn outside(bytes: u64, wanted: u64, all: u64) -> u64 {
        wanted.saturating_add(bytes).min(all)
    }
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
            unused: None,
        }
    }

    /// Returns what a guest of such hardware has that boots in a QEMU that was just started.
    pub fn of_a_boot(config: &MachineConfig) -> Given {
        let bytes = added(config);
        let then_bytes = hardware(config).memory_bytes;
        Given {
            unused: Some(Unused { bytes, then_bytes }).filter(|unused| unused.bytes > 0),
            ..Given::default()
        }
    }

    /// Returns the same for so many bytes of memory that its guest does not use.
    pub fn without(self, config: &MachineConfig, bytes: u64) -> Given {
        let then_bytes = match self.unused {
            Some(unused) => unused.then_bytes,
            None => self.of(config).memory_bytes,
        };
        // a guest may say anything
        let bytes = bytes.min(added(config));
        Given {
            unused: Some(Unused { bytes, then_bytes }).filter(|unused| unused.bytes > 0),
            ..self
        }
    }

    /// How many bytes of memory a guest of such hardware does not use.
    pub fn unused_bytes(&self) -> u64 {
        self.unused.map_or(0, |unused| unused.bytes)
    }

    /// How many of the bytes that are not in its balloon it does not use. (What the balloon has may be part of what is unused.)
    pub fn idle_bytes(&self, config: &MachineConfig) -> u64 {
        let all = hardware(config).memory_bytes;
        let used = all.saturating_sub(self.unused_bytes());
        self.of(config).memory_bytes.saturating_sub(used)
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
        let given = Given {
            cpus: number(CPUS_LABEL).and_then(|cpus| cpus.try_into().ok()),
            memory_bytes: number(MEMORY_LABEL),
            unused: None,
        };
        given.without(config, number(UNUSED_LABEL).unwrap_or_default())
    }

    /// Writes into an image what the guest in it has.
    pub fn label(&self, config: &mut MachineConfig) {
        let cpus = self.cpus.map(u64::from);
        let unused = self.unused.map(|unused| unused.bytes);
        for (label, value) in [
            (CPUS_LABEL, cpus),
            (MEMORY_LABEL, self.memory_bytes),
            (UNUSED_LABEL, unused),
        ] {
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

/// How much memory was added to a machine while it ran, in bytes.
pub fn added(config: &MachineConfig) -> u64 {
    let blocks = config.memory_blocks.iter().copied();
    blocks.fold(0, u64::saturating_add)
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
    #[test]
    fn what_a_guest_does_not_use_is_never_taken_from_what_it_uses() {
        const GIB: u64 = 1 << 30;
        let mut config = MachineConfig {
            cpus: Some(1),
            memory_bytes: Some(GIB),
            ..Default::default()
        };
        assert!(Given::of_a_boot(&config).is_all(), "nothing was added");
        assert!(Given::default().without(&config, GIB).is_all());
        config.memory_blocks = vec![GIB];
        let booted = Given::of_a_boot(&config);
        assert_eq!(booted.of(&config).memory_bytes, 2 * GIB);
        assert_eq!(
            (booted.unused_bytes(), booted.idle_bytes(&config)),
            (GIB, GIB)
        );
        assert!(booted.without(&config, 0).is_all(), "all is in use again");

        // one whose balloon had half of a gibibyte begins anew, and what it is to have then is kept however often that happens
        let half = GIB / 2;
        let has = |memory_bytes| Size {
            cpus: 1,
            memory_bytes,
        };
        let given = Given::new(&config, has(2 * GIB - half));
        let anew = given.without(&config, u64::MAX);
        assert_eq!(anew.unused_bytes(), GIB);
        assert_eq!(anew.idle_bytes(&config), half);
        let settled = Given {
            unused: anew.unused,
            ..Given::new(&config, has(2 * GIB))
        };
        let again = settled.without(&config, GIB).unused.unwrap();
        assert_eq!(again.then_bytes, 2 * GIB - half);
        assert_eq!(anew.without(&config, 0), given);

        // a state that is loaded has that too, whatever an image says of it
        let mut image = config.clone();
        anew.label(&mut image);
        assert_eq!(Given::in_labels(&image), anew);
        let most = u64::MAX.to_string();
        image.labels.insert(UNUSED_LABEL.into(), most);
        assert_eq!(Given::in_labels(&image), anew);
        given.label(&mut image);
        assert_eq!(Given::in_labels(&image), given);

        let all = 2 * GIB;
        for (unused, wanted, outside) in [
            (0, half, half),
            (GIB, half, GIB + half),
            (GIB, GIB, all),
            (GIB, all, all),
            (u64::MAX, half, all),
        ] {
            assert_eq!(Unused::outside(unused, wanted, all), outside);
        }
    }
}
