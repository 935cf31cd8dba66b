//! The behaviour of one direction of a link.
use super::{MTU, Trace};
use std::sync::Arc;

/// The default queue holds 100 ms of the rate, but at least this many full packets. Mobile links and home routers buffer
/// about that much; a shorter queue would starve a single TCP stream.
const QUEUE_PACKETS_MIN: usize = 32;

/// How fast bytes leave the queue.
#[derive(Clone, Debug)]
pub enum Rate {
    /// Immediately: nothing waits.
    Unlimited,
    /// At a constant bit rate, of IP packets (Ethernet framing is not counted).
    BitsPerSecond(u64),
    /// As on a recorded link: at each of its moments, up to 1500 bytes may pass.
    Recorded(Arc<Trace>),
}

/// One direction of a link. `Shape::default()` is a perfect wire.
#[derive(Clone, Debug)]
pub struct Shape {
    /// How fast bytes leave the queue.
    pub rate: Rate,
    /// Propagation delay, one way, from the moment when a packet's last bit leaves the queue to its arrival, in
    /// nanoseconds.
    pub delay_ns: u64,
    /// The delay varies evenly by up to this much in both directions, in nanoseconds. Packets never overtake each other.
    pub jitter_ns: u64,
    /// The share of packets that are lost, 0 to 1, each independently.
    pub loss: f64,
    /// Bytes that may wait; a packet that finds no room is dropped (drop-tail). `None` means a queue for 100 ms at the
    /// rate.
    pub queue_bytes: Option<usize>,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            rate: Rate::Unlimited,
            delay_ns: 0,
            jitter_ns: 0,
            loss: 0.0,
            queue_bytes: None,
        }
    }
}

impl Shape {
    /// Returns one direction of the design's slow link: 7.2 Mbit/s with a round trip of 120 ms.
    pub fn wan() -> Shape {
        Shape {
            rate: Rate::BitsPerSecond(7_200_000),
            delay_ns: 60_000_000,
            ..Shape::default()
        }
    }

    /// Returns the queue's limit in bytes.
    pub fn queue_limit(&self) -> usize {
        let least = QUEUE_PACKETS_MIN * MTU;
        match (&self.queue_bytes, &self.rate) {
            (Some(bytes), _) => *bytes,
            (None, Rate::Unlimited) => usize::MAX,
            (None, Rate::BitsPerSecond(rate)) => {
                least.max((rate / 80).try_into().unwrap_or(usize::MAX))
            }
            (None, Rate::Recorded(trace)) => least.max((trace.mean_bits_per_s() / 80.0) as usize),
        }
    }

    /// Returns a description in one line.
    pub fn describe(&self) -> String {
        let mut text = match &self.rate {
            Rate::Unlimited => "unlimited".to_string(),
            Rate::BitsPerSecond(rate) => format!("{} Mbit/s", *rate as f64 / 1e6),
            Rate::Recorded(trace) => format!(
                "recorded, {:.1} Mbit/s on average",
                trace.mean_bits_per_s() / 1e6
            ),
        };
        if self.delay_ns > 0 {
            text += &format!(", {} ms one way", self.delay_ns as f64 / 1e6);
        }
        if self.jitter_ns > 0 {
            text += &format!(" +- {} ms", self.jitter_ns as f64 / 1e6);
        }
        if self.loss > 0.0 {
            text += &format!(", {} % lost", self.loss * 100.0);
        }
        text
    }
}
