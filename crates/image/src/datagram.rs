//! Datagrams of a multicast group: receivers ask for items, and a server sends them in pieces to everybody (SnowFlock, section
//! 4.5).
//!
//! Datagrams are encrypted and authenticated with a key that all members of the group have. Without the key nobody can read
//! what is sent, make the server send, or change what it knows of its receivers. Items are also checked against their own
//! hashes.

use crate::seal::{SENDER_BYTES, Sealer, Secret, TAG_BYTES, not_a_member};
use crate::wire::{Cursor, limit};
use crate::{Encoding, FormatError, Hash, Kind};

const MAGIC: &[u8; 3] = b"FLC";
const VERSION: u8 = 2;
const WHAT: &str = "multicast datagram";
const OP_ASK: u8 = 1;
const OP_PIECE: u8 = 2;
/// The purpose that the key is derived for: the same token used for something else gives another key.
const KEY_CONTEXT: &str = "floe multicast group 2";
/// Bytes of magic, version, the sender's number and the sequence number: these, and the sender's random bytes, aren't
/// encrypted.
const CLEAR_BYTES: usize = 18;
/// Number of a sender's random bytes.
const RANDOM_BYTES: usize = 8;
/// Most datagrams of a sender: what six bytes of a sequence number can count. At a million a second that takes nine years.
const SEQUENCE_MAX: u64 = (1 << 48) - 1;
const WANT_BYTES: usize = 37;
const FLAG_AGAIN: u8 = 2;
const FLAG_DEMAND: u8 = 4;

/// Most bytes of an item in one datagram: a third of a chunk. With all headers that is an IP packet of at most 1450 bytes,
/// which an Ethernet, and a VXLAN over one, carries unfragmented: one lost fragment would cost the whole packet.
pub const PIECE_BYTES_MAX: usize = 1366;
/// Most pieces of an item: those of a segment that doesn't compress.
pub const PIECES_MAX: usize = Kind::Segment.raw_size().div_ceil(PIECE_BYTES_MAX);
/// Most items asked for in one datagram.
pub const WANTS_MAX: usize = 35;
/// Bytes of the longest datagram, encrypted.
pub const DATAGRAM_BYTES_MAX: usize = 1450 - 28;
const _: () = assert!(
    CLEAR_BYTES + RANDOM_BYTES + 2 + 12 + PIECE_BYTES_MAX + TAG_BYTES <= DATAGRAM_BYTES_MAX
);

/// The key of a group.
#[derive(Clone, Copy, Debug)]
pub struct GroupKey(Secret);

impl GroupKey {
    /// Derives the key from a secret token.
    pub fn of(token: &str) -> GroupKey {
        GroupKey(Secret::derive(KEY_CONTEXT, token))
    }

    /// Decrypts a sealed datagram; fails if no member of the group sealed it.
    pub fn open(&self, sealed: &[u8]) -> Result<Vec<u8>, FormatError> {
        limit(
            "length of a multicast datagram",
            sealed.len() as u64,
            DATAGRAM_BYTES_MAX as u64,
        )?;
        let Some((header, content)) = sealed.split_at_checked(CLEAR_BYTES + RANDOM_BYTES) else {
            return Err(FormatError::invalid(WHAT, "it has no seal"));
        };
        let (sender, sequence) = sender_of(header)?;
        let opened = self.0.open(&sender, sequence, header, content);
        let content = opened.ok_or_else(|| not_a_member(WHAT))?;
        let mut datagram = Vec::with_capacity(CLEAR_BYTES + content.len());
        datagram.extend_from_slice(&header[..CLEAR_BYTES]);
        datagram.extend_from_slice(&content);
        Ok(datagram)
    }
}

/// Returns who sealed a datagram, and its sequence number. `header` is the clear bytes and the random ones.
fn sender_of(header: &[u8]) -> Result<([u8; SENDER_BYTES], u64), FormatError> {
    let mut c = Cursor::new(WHAT, header);
    let (number, sequence) = decode_head(&mut c)?;
    let mut sender = [0; SENDER_BYTES];
    sender[..8].copy_from_slice(&number.to_le_bytes());
    sender[8..].copy_from_slice(c.take(RANDOM_BYTES)?);
    Ok((sender, sequence))
}

/// A member that sends: encrypts the datagrams of one receiver or server.
#[derive(Debug)]
pub struct GroupSealer {
    key: GroupKey,
    random: [u8; RANDOM_BYTES],
    /// The sender's number, as it is in its datagrams, and its sealer.
    sealer: Option<(u64, Sealer)>,
}

impl GroupSealer {
    /// Makes a sealer. `random` must be drawn anew each time: it keeps the nonces of a restarted program from repeating.
    pub fn new(key: GroupKey, random: [u8; RANDOM_BYTES]) -> GroupSealer {
        GroupSealer {
            key,
            random,
            sealer: None,
        }
    }

    /// Encrypts an encoded datagram. Returns `None` if it is not one of this sender's, or if its sequence number isn't greater
    /// than the last one: if that were sent, both datagrams could be read.
    pub fn seal(&mut self, datagram: &[u8]) -> Option<Vec<u8>> {
        let (clear, content) = datagram.split_at_checked(CLEAR_BYTES)?;
        let mut header = [0; CLEAR_BYTES + RANDOM_BYTES];
        header[..CLEAR_BYTES].copy_from_slice(clear);
        header[CLEAR_BYTES..].copy_from_slice(&self.random);
        let (sender, sequence) = sender_of(&header).ok()?;
        let (number, _) = decode_head(&mut Cursor::new(WHAT, clear)).ok()?;
        let (of, sealer) = self
            .sealer
            .get_or_insert_with(|| (number, Sealer::new(&self.key.0, &sender)));
        match *of == number {
            true => sealer.seal(sequence, &header, content),
            false => None,
        }
    }
}

/// An item that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Whether it is a chunk or a segment.
    pub kind: Kind,
    /// Its hash.
    pub hash: Hash,
    /// The wanted pieces, one bit each; all bits while the number of pieces isn't known. Never 0.
    pub pieces: u32,
    /// Whether it was asked for before and didn't arrive.
    pub again: bool,
    /// Whether a guest waits for it.
    pub demand: bool,
}

/// What a receiver asks the server for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// The receiver's number, which it has drawn at random.
    pub receiver: u64,
    /// Grows with each datagram of this receiver, from 1; below 2^48.
    pub sequence: u64,
    /// What it receives now, in bytes a second.
    pub bytes_per_s: u64,
    /// The items that it asks for; at most [`WANTS_MAX`].
    pub wants: Vec<Want>,
}

/// A part of an item, for everybody in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// When the server was started, in microseconds since 1970: distinguishes its datagrams from those of an earlier server.
    pub server: u64,
    /// Grows with each datagram of this server, from 1; below 2^48.
    pub sequence: u64,
    /// Whether the item is a chunk or a segment.
    pub kind: Kind,
    /// How the item is encoded.
    pub encoding: Encoding,
    /// Which piece this is, from 0.
    pub index: u8,
    /// Bytes of the encoded item.
    pub total: u32,
    /// The first bytes of the item's hash. The rest follows from its content.
    pub tag: [u8; 8],
    /// The piece: [`PIECE_BYTES_MAX`] bytes, or what is left for the last piece.
    pub bytes: &'a [u8],
}

/// Returns how many pieces an encoded item of `total` bytes has.
pub const fn pieces_of(total: usize) -> usize {
    total.div_ceil(PIECE_BYTES_MAX)
}

/// Returns the bits of all pieces of an item of `total` bytes.
pub const fn all_pieces(total: usize) -> u32 {
    let pieces = pieces_of(total);
    if pieces >= 32 {
        u32::MAX
    } else {
        (1 << pieces) - 1
    }
}

/// Returns the range of piece `index` in an item of `total` bytes.
pub fn piece_range(total: usize, index: usize) -> std::ops::Range<usize> {
    let from = (index * PIECE_BYTES_MAX).min(total);
    from..(from + PIECE_BYTES_MAX).min(total)
}

/// A datagram, without its seal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Datagram<'a> {
    /// A request, sent to the server.
    Ask(Ask),
    /// A piece, sent to the group.
    Piece(Piece<'a>),
}

fn head(op: u8, count: u8, sender: u64, sequence: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(DATAGRAM_BYTES_MAX);
    out.extend_from_slice(MAGIC);
    out.push(VERSION);
    out.extend_from_slice(&sender.to_le_bytes());
    out.extend_from_slice(&sequence.min(SEQUENCE_MAX).to_le_bytes()[..6]);
    out.extend_from_slice(&[op, count]);
    out
}

/// Decodes the beginning of a datagram; returns the sender's number and the sequence number.
fn decode_head(c: &mut Cursor<'_>) -> Result<(u64, u64), FormatError> {
    c.datagram(MAGIC, VERSION)?;
    let sender = c.u64()?;
    let mut sequence = [0; 8];
    sequence[..6].copy_from_slice(c.take(6)?);
    Ok((sender, u64::from_le_bytes(sequence)))
}

impl Ask {
    /// Returns the datagram, which is then sealed.
    pub fn encode(&self) -> Vec<u8> {
        let count = self.wants.len().min(WANTS_MAX);
        let mut out = head(OP_ASK, count as u8, self.receiver, self.sequence);
        out.extend_from_slice(&self.bytes_per_s.to_le_bytes());
        for want in &self.wants[..count] {
            let again = if want.again { FLAG_AGAIN } else { 0 };
            let demand = if want.demand { FLAG_DEMAND } else { 0 };
            out.push(want.kind as u8 | again | demand);
            out.extend_from_slice(&want.hash.0);
            out.extend_from_slice(&want.pieces.to_le_bytes());
        }
        out
    }
}

impl Piece<'_> {
    /// Returns the datagram, which is then sealed.
    pub fn encode(&self) -> Vec<u8> {
        let packing = self.kind as u8 | (self.encoding as u8) << 1;
        let mut out = head(OP_PIECE, packing, self.server, self.sequence);
        // An item has at most 32768 bytes, so its length and a piece's number fit into four bytes.
        let place = self.total | u32::from(self.index) << 24;
        out.extend_from_slice(&place.to_le_bytes());
        out.extend_from_slice(&self.tag);
        out.extend_from_slice(self.bytes);
        out
    }
}

impl Datagram<'_> {
    /// Decodes a datagram that [`GroupKey::open`] has opened.
    pub fn decode(bytes: &[u8]) -> Result<Datagram<'_>, FormatError> {
        let mut c = Cursor::new(WHAT, bytes);
        let (sender, sequence) = decode_head(&mut c)?;
        let (op, count) = (c.u8()?, c.u8()?);
        match op {
            OP_ASK => decode_ask(c, count, sender, sequence).map(Datagram::Ask),
            OP_PIECE => decode_piece(c, count, sender, sequence).map(Datagram::Piece),
            op => Err(FormatError::invalid(
                WHAT,
                format!("operation {op} is unknown (1 ask, 2 piece)"),
            )),
        }
    }
}

fn decode_ask(
    mut c: Cursor<'_>,
    count: u8,
    receiver: u64,
    sequence: u64,
) -> Result<Ask, FormatError> {
    limit(
        "number of items in a multicast datagram",
        count.into(),
        WANTS_MAX as u64,
    )?;
    let bytes_per_s = c.u64()?;
    c.expect_items(count.into(), WANT_BYTES as u64)?;
    let mut wants = Vec::with_capacity(count.into());
    for _ in 0..count {
        let flags = c.u8()?;
        let kind = Kind::from_wire(WHAT, flags & !(FLAG_AGAIN | FLAG_DEMAND))?;
        let (hash, pieces) = (c.hash()?, c.u32()?);
        if hash.is_zero() || pieces == 0 {
            return Err(FormatError::invalid(WHAT, "nothing is asked for"));
        }
        wants.push(Want {
            kind,
            hash,
            pieces,
            again: flags & FLAG_AGAIN != 0,
            demand: flags & FLAG_DEMAND != 0,
        });
    }
    c.end()?;
    Ok(Ask {
        receiver,
        sequence,
        bytes_per_s,
        wants,
    })
}

fn decode_piece(
    mut c: Cursor<'_>,
    packing: u8,
    server: u64,
    sequence: u64,
) -> Result<Piece<'_>, FormatError> {
    let kind = Kind::from_wire(WHAT, packing & 1)?;
    let encoding = match packing >> 1 {
        0 => Encoding::Raw,
        1 => Encoding::Zstd,
        n => {
            return Err(FormatError::invalid(
                WHAT,
                format!("encoding {n} is unknown (0 raw, 1 zstd)"),
            ));
        }
    };
    let place = c.u32()?;
    let (index, total) = ((place >> 24) as u8, place & 0xff_ffff);
    limit(
        "length of an item in a multicast datagram",
        total.into(),
        kind.raw_size() as u64,
    )?;
    if encoding == Encoding::Raw && total as usize != kind.raw_size() {
        return Err(FormatError::invalid(
            WHAT,
            format!("a raw {} has not {total} bytes", kind.name()),
        ));
    }
    let mut tag = [0; 8];
    tag.copy_from_slice(c.take(8)?);
    let bytes = c.take(c.left())?;
    let range = piece_range(total as usize, index.into());
    if bytes.is_empty() || range.len() != bytes.len() {
        return Err(FormatError::invalid(
            WHAT,
            format!("piece {index} of {total} bytes has not {}", bytes.len()),
        ));
    }
    Ok(Piece {
        server,
        sequence,
        kind,
        encoding,
        index,
        total,
        tag,
        bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn want(n: u8) -> Want {
        Want {
            kind: if n.is_multiple_of(2) {
                Kind::Chunk
            } else {
                Kind::Segment
            },
            hash: Hash::of(&[n]),
            pieces: u32::from(n) + 1,
            again: n.is_multiple_of(3),
            demand: n.is_multiple_of(5),
        }
    }

    fn sealed(key: &GroupKey, datagram: &[u8]) -> Vec<u8> {
        GroupSealer::new(*key, [8; 8]).seal(datagram).unwrap()
    }

    #[test]
    fn the_largest_datagrams_fit_a_packet() {
        let ask = Ask {
            wants: (0..WANTS_MAX as u8).map(want).collect(),
            ..Default::default()
        };
        let key = GroupKey::of("token");
        let ask = Ask { sequence: 1, ..ask };
        assert!(sealed(&key, &ask.encode()).len() <= DATAGRAM_BYTES_MAX);
        let bytes = [7; PIECE_BYTES_MAX];
        let piece = Piece {
            server: 1,
            sequence: 2,
            kind: Kind::Segment,
            encoding: Encoding::Raw,
            index: 3,
            total: 32768,
            tag: [9; 8],
            bytes: &bytes,
        };
        let sealed = sealed(&key, &piece.encode());
        assert_eq!(sealed.len(), DATAGRAM_BYTES_MAX);
        // Nothing of the content, not even the item's hash, can be read on the way.
        assert!(!sealed.windows(6).any(|w| w == [7; 6] || w == [9; 6]));
        let opened = key.open(&sealed).unwrap();
        assert_eq!(Datagram::decode(&opened), Ok(Datagram::Piece(piece)));
        assert_eq!(pieces_of(4096), 3);
        const { assert!(PIECES_MAX <= 32) };
    }

    #[test]
    fn a_stranger_is_no_member() {
        let ask = Ask {
            sequence: 1,
            ..Default::default()
        };
        let sealed = sealed(&GroupKey::of("token"), &ask.encode());
        assert!(GroupKey::of("token").open(&sealed).is_ok());
        let error = GroupKey::of("another").open(&sealed).unwrap_err();
        assert!(error.to_string().contains("no member"), "{error}");
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(GroupKey::of("token").open(&changed).is_err(), "{at}");
        }
        assert!(GroupKey::of("token").open(&[0; 15]).is_err());
        assert!(!format!("{:?}", GroupKey::of("token")).contains('['));
    }

    #[test]
    fn a_number_is_sealed_once_and_only_the_senders_own() {
        let mut sealer = GroupSealer::new(GroupKey::of("token"), [1; 8]);
        let mut seal = |receiver, sequence| {
            let ask = Ask {
                receiver,
                sequence,
                ..Default::default()
            };
            sealer.seal(&ask.encode()).is_some()
        };
        assert!(seal(5, 1) && seal(5, 3));
        assert!(!seal(5, 3) && !seal(5, 2) && !seal(5, 0) && !seal(6, 4));
        // Beyond what six bytes can count, every further datagram gets the last number.
        assert!(seal(5, u64::MAX) && !seal(5, u64::MAX));
        assert!(sealer.seal(b"FLC").is_none());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let good = Ask {
            wants: vec![want(1)],
            ..Default::default()
        };
        let good = good.encode();
        let changed = |at: usize, to: u8| {
            let mut bytes = good.clone();
            bytes[at] = to;
            Datagram::decode(&bytes).unwrap_err().to_string()
        };
        assert!(changed(0, 0).contains("multicast datagram"));
        assert!(changed(3, 9).contains("version 9"));
        assert!(changed(18, 7).contains("operation 7"));
        assert!(changed(19, 200).contains("at most 35"));
        assert!(changed(28, 0xff).contains("kind"));
        assert!(changed(61, 0).contains("nothing is asked for"));
    }

    proptest! {
        #[test]
        fn anything_is_read_or_refused_and_has_one_encoding(bytes in proptest::collection::vec(any::<u8>(), 0..200), op in 0u8..4) {
            let mut shaped = head(op, bytes.first().copied().unwrap_or(0) & 3, 5, 6);
            shaped.extend_from_slice(&bytes);
            for input in [&bytes, &shaped] {
                match Datagram::decode(input) {
                    Ok(Datagram::Ask(ask)) => prop_assert_eq!(&ask.encode(), input),
                    Ok(Datagram::Piece(piece)) => prop_assert_eq!(&piece.encode(), input),
                    Err(_) => {}
                }
            }
        }

        #[test]
        fn what_is_asked_is_heard(seeds in proptest::collection::vec(any::<u8>(), 0..WANTS_MAX), receiver: u64, sequence in 0..1u64 << 48, bytes_per_s: u64) {
            let ask = Ask { receiver, sequence, bytes_per_s, wants: seeds.into_iter().map(want).collect() };
            let bytes = ask.encode();
            prop_assert_eq!(Datagram::decode(&bytes), Ok(Datagram::Ask(ask)));
        }
    }
}
