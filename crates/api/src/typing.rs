//! What users do at a machine, wherever it runs.

use super::*;

/// Most inputs in one request.
pub const TYPED_MAX: usize = 1024;

/// Body of `POST /v1/machines/{name}/type`: inputs of one source, which follow on each other. A source that has no answer sends the same
/// again: what has come already is known by its number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TypeRequest {
    /// The source: 16 hex digits of its own, by chance.
    pub from: String,
    /// The number of the first input. A source counts from 1.
    pub first: u64,
    /// The inputs, at most [`TYPED_MAX`].
    pub inputs: Vec<TypedInput>,
}

/// One input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TypedInput {
    /// How long after the one before it is given to the guest, in milliseconds; by default as soon as the guest takes it.
    #[serde(default, skip_serializing_if = "is_none")]
    pub gap_ms: u64,
    /// What is done.
    pub input: UserInput,
}

/// What a user does once. Places on the screen go from 0 to 32767 in both directions, whatever its size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum UserInput {
    /// A key goes down or up.
    Key {
        /// Linux' code of the key (`input-event-codes.h`).
        code: u16,
        /// Whether it goes down.
        down: bool,
    },
    /// The pointer is here, and these of its buttons are down.
    Pointer {
        /// From the left.
        x: u16,
        /// From above.
        y: u16,
        /// A bit each, from the lowest: left, middle, right; the wheel forward and back.
        buttons: u8,
    },
    /// A finger touches the screen here, or is moved.
    Touch {
        /// Which finger: 0 to 9.
        finger: u8,
        /// From the left.
        x: u16,
        /// From above.
        y: u16,
    },
    /// A finger leaves the screen.
    Leave {
        /// Which finger.
        finger: u8,
    },
    /// Text that is typed on the serial console: 1 to 256 bytes.
    Text {
        /// The text.
        text: String,
    },
}

/// Answer of `POST /v1/machines/{name}/type`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TypeReport {
    /// The number of the source's last input that is kept, on the disk: this one and those before it need not be sent again.
    pub kept: u64,
    /// How many inputs of all sources wait for the machine.
    pub waiting: u64,
    /// Whether the guest's agent gives inputs to it, each once. If that is not so, or not known yet, an input may be lost, and does not
    /// come twice.
    pub once: bool,
}

/// Answer of `POST /v1/machines/{name}/input`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InputNoted {
    /// Whether what is typed now would be lost on the console's line: it is to be sent to `POST /v1/machines/{name}/type`, which keeps it
    /// until the guest has got it.
    #[serde(default)]
    pub keep: bool,
    /// Whether inputs wait for the machine. What follows on one's own is to be sent there as well, so that it does not overtake them.
    #[serde(default)]
    pub waits: bool,
}

fn is_none(gap_ms: &u64) -> bool {
    *gap_ms == 0
}
