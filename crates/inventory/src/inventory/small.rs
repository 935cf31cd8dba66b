//! What records and images' labels say of machines that were made small, and of images whose machines forget whom they were captured from.
//! No I/O.
//!
//! The labels go with an image wherever it goes, so that any node that runs it gives back what was taken, and has the machine forget; a
//! pool is not needed for that.

use floe_api::Identity;
use floe_image::MachineConfig;
use serde::{Deserialize, Serialize};

/// Label of an image that was captured from a machine while it was small: [`Small`] as JSON.
const SMALL_LABEL: &str = "floe.small";
/// Label of an image whose machines are to forget whom it was captured from.
pub const FORGETS_LABEL: &str = "floe.forgets";
/// Most bytes of a label that is looked into.
const LABEL_BYTES_MAX: usize = 1 << 10;
/// Most CPUs that a label may tell of.
const CPUS_MAX: u32 = 1 << 10;

/// What was taken from a machine to make it small, or may have been.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Small {
    /// How much memory its guest had outside of the balloon, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// How many CPUs its guest used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Whether its network cables were pulled.
    #[serde(rename = "link")]
    pub cables: bool,
    /// Whether its hooks have stopped what they name.
    pub hooks: bool,
}

impl Small {
    /// Whether the machine is its own size.
    pub fn is_nothing(&self) -> bool {
        *self == Small::default()
    }

    /// Returns what a machine of an image lacks at first. A label that can't be understood is none: the image may be anybody's.
    pub fn of_image(config: &MachineConfig) -> Small {
        let label = config.labels.get(SMALL_LABEL);
        let label = label.filter(|label| label.len() <= LABEL_BYTES_MAX);
        let small = label.and_then(|label| serde_json::from_str(label).ok());
        let small: Small = small.unwrap_or_default();
        Small {
            memory: small.memory.map(|bytes| {
                let all = config.memory_bytes_now().unwrap_or(bytes);
                bytes.min(all)
            }),
            cpus: small.cpus.map(|count| count.clamp(1, CPUS_MAX)),
            ..small
        }
    }

    /// Sets or removes the label of an image that is captured from the machine.
    pub(super) fn label(&self, config: &mut MachineConfig) {
        config.labels.remove(SMALL_LABEL);
        let text = serde_json::to_string(self);
        if let (false, Ok(text)) = (self.is_nothing(), text) {
            config.labels.insert(SMALL_LABEL.into(), text);
        }
    }
}

/// The identity of a machine that forgets whom its image was captured from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fresh {
    /// Its machine id: 32 hex digits that no other machine has.
    pub machine_id: String,
    /// Whether its guest knows.
    pub identity: Identity,
}

impl Fresh {
    /// Removes the label: what is captured now is of a machine that has forgotten, or that is to be remembered.
    pub(super) fn unlabel(config: &mut MachineConfig) {
        config.labels.remove(FORGETS_LABEL);
    }

    /// The label of an image whose machines forget whom it was captured from, with its value.
    pub fn label() -> (String, String) {
        (FORGETS_LABEL.into(), "1".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_image_says_is_taken_within_bounds_and_nonsense_is_not() {
        let mut config = MachineConfig {
            memory_bytes: Some(1 << 30),
            ..Default::default()
        };
        assert!(Small::of_image(&config).is_nothing());
        let small = Small {
            memory: Some(1 << 30),
            cpus: Some(4),
            cables: true,
            hooks: true,
        };
        small.label(&mut config);
        assert_eq!(Small::of_image(&config), small);
        Small::default().label(&mut config);
        assert!(config.labels.is_empty());
        let mut say = |text: &str| {
            config.labels.insert(SMALL_LABEL.into(), text.into());
            Small::of_image(&config)
        };
        for nonsense in ["", "1", "{\"link\":7}", "{\"more\":1}", &"[".repeat(5000)] {
            assert!(say(nonsense).is_nothing(), "{nonsense}");
        }
        let odd = say("{\"memory\":99999999999999,\"cpus\":4000000000}");
        assert_eq!((odd.memory, odd.cpus), (Some(1 << 30), Some(CPUS_MAX)));
    }
}
