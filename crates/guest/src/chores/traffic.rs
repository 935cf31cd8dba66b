//! Tells what the guest's network cards have received and sent, as its kernel counts it.

use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// Sums over all cards since they came up. What is no hardware (loopback, bridges, containers' networks) is left out: it would count twice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes that came in.
    pub received_bytes: u64,
    /// Bytes that went out.
    pub sent_bytes: u64,
}

/// Reads the counters of the cards in `/sys/class/net`.
pub(super) fn count(class: &Path) -> Result<Traffic, String> {
    let cards = fs::read_dir(class).map_err(|error| format!("{}: {error}", class.display()))?;
    let mut sum = Traffic {
        received_bytes: 0,
        sent_bytes: 0,
    };
    for card in cards.filter_map(|card| Some(card.ok()?.path())) {
        let bytes = |name: &str| {
            let text = fs::read_to_string(card.join("statistics").join(name)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        // a card may go away meanwhile
        if let (true, Some(received), Some(sent)) = (
            fs::metadata(card.join("device")).is_ok(),
            bytes("rx_bytes"),
            bytes("tx_bytes"),
        ) {
            sum.received_bytes = sum.received_bytes.saturating_add(received);
            sum.sent_bytes = sum.sent_bytes.saturating_add(sent);
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hardware_counts() {
        let class = tempfile::tempdir().unwrap();
        for (card, is_hardware, received, sent) in [
            ("eth0", true, "1000\n", "20\n"),
            ("eth1", true, "500\n", "3\n"),
            ("lo", false, "7777\n", "7777\n"),
            ("odd0", true, "many\n", "1\n"),
        ] {
            let dir = class.path().join(card);
            fs::create_dir_all(dir.join("statistics")).unwrap();
            fs::write(dir.join("statistics/rx_bytes"), received).unwrap();
            fs::write(dir.join("statistics/tx_bytes"), sent).unwrap();
            if is_hardware {
                fs::create_dir(dir.join("device")).unwrap();
            }
        }
        let counted = count(class.path()).unwrap();
        assert_eq!((counted.received_bytes, counted.sent_bytes), (1500, 23));
        assert!(count(&class.path().join("none")).is_err());
    }
}
