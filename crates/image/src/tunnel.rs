//! Frames of a family's network between two hosts: each frame is sent in a datagram, encrypted.
//!
//! All hosts of the family have its key, which they get over an authenticated connection. A receiver knows each sender's
//! datagrams by their numbers and accepts none twice ([`Window`]).

use crate::FormatError;
use crate::seal::{SENDER_BYTES, Sealer, Secret, TAG_BYTES, not_a_member};
use crate::wire::{Cursor, limit};

const MAGIC: &[u8; 3] = b"FLF";
const VERSION: u8 = 1;
const WHAT: &str = "frame of a family network";
/// The purpose that the key is derived for.
const PURPOSE: &str = "floe family network 1";
const HEADER_BYTES: usize = 32;

/// Bytes that a datagram adds to its frame.
pub const TUNNEL_OVERHEAD: usize = HEADER_BYTES + TAG_BYTES;
/// Bytes of the longest frame: what an Ethernet of 1500 bytes carries, with its header and a VLAN's.
pub const TUNNEL_FRAME_MAX: usize = 1518;
/// Bytes of the shortest frame: an Ethernet header.
pub const TUNNEL_FRAME_MIN: usize = 14;

/// Identifies who sent a datagram: 128 bits, random for each start of a node.
pub type TunnelSender = [u8; SENDER_BYTES];

/// The key of a family's network.
#[derive(Clone, Copy, Debug)]
pub struct TunnelKey(Secret);

impl TunnelKey {
    /// Derives the key from a secret text.
    pub fn of(secret: &str) -> TunnelKey {
        TunnelKey(Secret::derive(PURPOSE, secret))
    }

    /// Decrypts a datagram and returns its frame; fails if it wasn't sealed with this key.
    pub fn open(&self, header: &TunnelHeader, datagram: &[u8]) -> Result<Vec<u8>, FormatError> {
        let (head, sealed) = datagram
            .split_at_checked(HEADER_BYTES)
            .ok_or_else(|| not_a_member(WHAT))?;
        let opened = self.0.open(&header.sender, header.number, head, sealed);
        let frame = opened.ok_or_else(|| not_a_member(WHAT))?;
        match frame.len() {
            TUNNEL_FRAME_MIN..=TUNNEL_FRAME_MAX => Ok(frame),
            length => Err(FormatError::invalid(
                WHAT,
                format!("a frame has not {length} bytes"),
            )),
        }
    }
}

/// What can be read from a datagram without the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelHeader {
    /// The number of the family's network.
    pub network: u32,
    /// Who sent it.
    pub sender: TunnelSender,
    /// Grows with each datagram of this sender.
    pub number: u64,
}

impl TunnelHeader {
    /// Decodes the header of a datagram. None of it may be trusted before [`TunnelKey::open`] succeeds.
    pub fn decode(datagram: &[u8]) -> Result<TunnelHeader, FormatError> {
        limit(
            "length of a frame's datagram",
            datagram.len() as u64,
            (TUNNEL_FRAME_MAX + TUNNEL_OVERHEAD) as u64,
        )?;
        let mut c = Cursor::new(WHAT, datagram);
        c.datagram(MAGIC, VERSION)?;
        let network = c.u32()?;
        let mut sender = [0; SENDER_BYTES];
        sender.copy_from_slice(c.take(SENDER_BYTES)?);
        Ok(TunnelHeader {
            network,
            sender,
            number: c.u64()?,
        })
    }

    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..3].copy_from_slice(MAGIC);
        out[3] = VERSION;
        out[4..8].copy_from_slice(&self.network.to_le_bytes());
        out[8..24].copy_from_slice(&self.sender);
        out[24..].copy_from_slice(&self.number.to_le_bytes());
        out
    }
}

/// This host as a sender into one network.
#[derive(Debug)]
pub struct TunnelSealer {
    sealer: Sealer,
    header: TunnelHeader,
}

impl TunnelSealer {
    /// Makes a sender. `sender` must be drawn at random, anew for each `TunnelSealer`.
    pub fn new(key: &TunnelKey, network: u32, sender: TunnelSender) -> TunnelSealer {
        TunnelSealer {
            sealer: Sealer::new(&key.0, &sender),
            header: TunnelHeader {
                network,
                sender,
                number: 0,
            },
        }
    }

    /// Returns the datagram for a frame; `None` if the frame is too short or too long, or the numbers are used up.
    pub fn seal(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        if !(TUNNEL_FRAME_MIN..=TUNNEL_FRAME_MAX).contains(&frame.len()) {
            return None;
        }
        self.header.number = self.header.number.checked_add(1)?;
        self.sealer
            .seal(self.header.number, &self.header.encode(), frame)
    }
}

/// Which of a sender's numbers were received: each is accepted once, and those far behind the newest never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    highest: u64,
    /// Bit n is set if the number `highest - n` was received.
    seen: u128,
}

impl Window {
    /// Notes the number of an opened datagram; returns whether the datagram may be accepted.
    pub fn takes(&mut self, number: u64) -> bool {
        if number > self.highest {
            let ahead = number - self.highest;
            self.seen = u32::try_from(ahead)
                .ok()
                .and_then(|ahead| self.seen.checked_shl(ahead))
                .unwrap_or(0)
                | 1;
            self.highest = number;
            return true;
        }
        let behind = self.highest - number;
        if number == 0 || behind >= u128::BITS.into() || self.seen >> behind & 1 == 1 {
            return false;
        }
        self.seen |= 1 << behind;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const FRAME: [u8; 60] = [7; 60];

    #[test]
    fn a_frame_comes_out_as_it_went_in_and_cannot_be_read_on_the_way() {
        let key = TunnelKey::of("secret");
        let mut sealer = TunnelSealer::new(&key, 9, [3; 16]);
        let datagram = sealer.seal(&FRAME).unwrap();
        assert_eq!(datagram.len(), FRAME.len() + TUNNEL_OVERHEAD);
        assert!(!datagram.windows(8).any(|w| w == [7; 8]));
        let header = TunnelHeader::decode(&datagram).unwrap();
        assert_eq!((header.network, header.number), (9, 1));
        assert_eq!(key.open(&header, &datagram).unwrap(), FRAME);
        let longest = sealer.seal(&[1; TUNNEL_FRAME_MAX]).unwrap();
        let header = TunnelHeader::decode(&longest).unwrap();
        assert_eq!(key.open(&header, &longest).unwrap().len(), TUNNEL_FRAME_MAX);
        assert!(sealer.seal(&[1; TUNNEL_FRAME_MAX + 1]).is_none());
        assert!(sealer.seal(&[1; 13]).is_none());
    }

    #[test]
    fn a_stranger_and_a_changed_byte_are_refused() {
        let key = TunnelKey::of("secret");
        let datagram = TunnelSealer::new(&key, 9, [3; 16]).seal(&FRAME).unwrap();
        let header = TunnelHeader::decode(&datagram).unwrap();
        assert!(TunnelKey::of("other").open(&header, &datagram).is_err());
        for at in 0..datagram.len() {
            let mut changed = datagram.clone();
            changed[at] ^= 1;
            let opened = TunnelHeader::decode(&changed)
                .and_then(|header| key.open(&header, &changed).map(drop));
            assert!(opened.is_err(), "{at}");
        }
        assert!(TunnelHeader::decode(&datagram[..31]).is_err());
    }

    proptest! {
        #[test]
        fn a_number_is_taken_once(numbers in proptest::collection::vec(1u64..300, 0..200)) {
            let mut window = Window::default();
            let mut taken = HashSet::new();
            for number in numbers {
                let first = window.takes(number);
                prop_assert!(!(first && taken.contains(&number)));
                let far = taken.iter().max().is_some_and(|max| max - number.min(*max) >= 128);
                prop_assert!(first || far || taken.contains(&number));
                if first {
                    taken.insert(number);
                }
            }
        }

        #[test]
        fn anything_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(header) = TunnelHeader::decode(&bytes) {
                prop_assert_eq!(&header.encode()[..], &bytes[..HEADER_BYTES]);
                prop_assert!(TunnelKey::of("secret").open(&header, &bytes).is_err());
            }
        }
    }
}
