//! A user's inputs through QEMU's own keyboard and pointer, for guests without an agent that takes them.
//!
//! QEMU drops what comes while the machine stands still, and does not say what the guest has got: whoever needs to know that each input
//! came once has the agent give it.

use serde_json::{Value, json};

use crate::error::MachineError;
use crate::machine::Machine;

/// The bits of a pointer's buttons, with QEMU's names.
const BUTTONS: [(u8, &str); 5] = [
    (1, "left"),
    (2, "middle"),
    (4, "right"),
    (8, "wheel-up"),
    (16, "wheel-down"),
];
/// Linux' codes of keys, from the first to the last of a row, with QEMU's numbers: a PC keyboard's codes, of which those with a prefix have
/// the highest bit set.
const KEYS: [(u16, u16, u16); 12] = [
    (1, 83, 1),
    (86, 88, 86),
    (96, 97, 0x9c),
    (98, 98, 0xb5),
    (100, 100, 0xb8),
    (102, 104, 0xc7),
    (105, 105, 0xcb),
    (106, 106, 0xcd),
    (107, 111, 0xcf),
    (113, 113, 0xa0),
    (114, 114, 0xae),
    (125, 127, 0xdb),
];

/// Returns QEMU's number of a key; `None` if a PC's keyboard has no such key.
fn number_of(code: u16) -> Option<u16> {
    let mut rows = KEYS.iter();
    let (first, _, number) = rows.find(|(first, last, _)| (*first..=*last).contains(&code))?;
    Some(number + (code - first))
}

/// Returns Linux' code of a key by QEMU's number, which VNC clients send too; `None` if a PC's keyboard has no such key.
pub fn key_of(number: u16) -> Option<u16> {
    let mut rows = KEYS.iter();
    let (first, _, start) = rows.find(|(first, last, start)| {
        let end = start + (last - first);
        (*start..=end).contains(&number)
    })?;
    Some(first + (number - start))
}

/// What a pointer does that has these buttons down now, and had others before.
fn pointed(x: u16, y: u16, before: u8, now: u8) -> Vec<Value> {
    let place =
        |axis: &str, value: u16| json!({"type": "abs", "data": {"axis": axis, "value": value}});
    let changed = BUTTONS
        .iter()
        .filter(|(bit, _)| (before ^ now) & bit != 0)
        .map(|(bit, button)| {
            json!({"type": "btn", "data": {"button": button, "down": now & bit != 0}})
        });
    [place("x", x), place("y", y)]
        .into_iter()
        .chain(changed)
        .collect()
}

impl Machine {
    /// Has a key go down or up, by Linux' code for it. Returns whether the keyboard has that key.
    pub fn press(&self, code: u16, down: bool) -> Result<bool, MachineError> {
        let Some(number) = number_of(code) else {
            return Ok(false);
        };
        let key = json!({"type": "number", "data": number});
        self.send_input(vec![
            json!({"type": "key", "data": {"down": down, "key": key}}),
        ])?;
        Ok(true)
    }

    /// Has the pointer be at a place, from 0 to 32767 in both directions, with these buttons down after those `before`: a bit each, from
    /// the lowest: left, middle, right, the wheel forward and back.
    pub fn point(&self, x: u16, y: u16, before: u8, now: u8) -> Result<(), MachineError> {
        self.send_input(pointed(x, y, before, now))
    }

    fn send_input(&self, events: Vec<Value>) -> Result<(), MachineError> {
        self.qmp
            .execute("input-send-event", json!({ "events": events }))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_qemus_number() {
        let keys = [
            (30, 0x1e),  // a
            (57, 0x39),  // the space bar
            (88, 88),    // F12
            (96, 0x9c),  // the keypad's Enter
            (97, 0x9d),  // the right Ctrl
            (103, 0xc8), // up
            (108, 0xd0), // down
            (111, 0xd3), // Del
            (126, 0xdc), // the right Meta
        ];
        for (code, number) in keys {
            assert_eq!(number_of(code), Some(number), "{code}");
            assert_eq!(key_of(number), Some(code), "{number}");
        }
        for none in [0, 84, 99, 200, 767] {
            assert_eq!(number_of(none), None);
        }
        for none in [0, 84, 0x80, 0xff, u16::MAX] {
            assert_eq!(key_of(none), None);
        }
    }

    #[test]
    fn only_buttons_that_change_are_told() {
        assert_eq!(pointed(1, 2, 1, 1).len(), 2);
        let told = pointed(1, 2, 1, 4);
        let left = json!({"type": "btn", "data": {"button": "left", "down": false}});
        let right = json!({"type": "btn", "data": {"button": "right", "down": true}});
        assert_eq!(told[2..], [left, right]);
    }
}
