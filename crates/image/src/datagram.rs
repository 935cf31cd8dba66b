//! Datagrams of a multicast group: receivers ask for items, a server sends them in pieces to all (SnowFlock, section 4.5).
//!
//! Every datagram ends with a keyed BLAKE3 hash over the rest. Whoever does not have the group's key can neither make the
//! server send nor change what it believes of its receivers; items are checked against their own hashes besides.

use crate::wire::{Cursor, limit};
use crate::{Encoding, FormatError, Hash, Kind};

const MAGIC: &[u8; 8] = b"FLOECAST";
const VERSION: u32 = 1;
const WHAT: &str = "multicast datagram";
const OP_ASK: u8 = 1;
const OP_PIECE: u8 = 2;
/// What the key is derived for, so that the same token used elsewhere is another key.
const KEY_CONTEXT: &str = "floe multicast group 1";
const SEAL_BYTES: usize = 16;
const WANT_BYTES: usize = 37;
const FLAG_AGAIN: u8 = 2;
const FLAG_DEMAND: u8 = 4;

/// Most bytes of an item in one datagram: a third of a chunk. With all headers that is an IP packet of at most 1450 bytes,
/// which passes an Ethernet, and a VXLAN over one, in one piece: a lost fragment would cost the whole packet.
pub const PIECE_BYTES_MAX: usize = 1366;
/// Most pieces of an item: those of a segment that does not compress.
pub const PIECES_MAX: usize = Kind::Segment.raw_size().div_ceil(PIECE_BYTES_MAX);
/// Most items asked for in one datagram.
pub const WANTS_MAX: usize = 35;
/// Longest datagram, its seal included.
pub const DATAGRAM_BYTES_MAX: usize = 1450 - 28;

/// The key of a group.
#[derive(Clone, Copy)]
pub struct GroupKey([u8; 32]);

impl std::fmt::Debug for GroupKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GroupKey(..)")
    }
}

impl GroupKey {
    /// The key that belongs to a secret token.
    pub fn of(token: &str) -> GroupKey {
        GroupKey(blake3::derive_key(KEY_CONTEXT, token.as_bytes()))
    }

    fn seal_of(&self, bytes: &[u8]) -> [u8; SEAL_BYTES] {
        let mut seal = [0; SEAL_BYTES];
        seal.copy_from_slice(&blake3::keyed_hash(&self.0, bytes).as_bytes()[..SEAL_BYTES]);
        seal
    }

    /// Puts the seal behind a datagram's bytes.
    pub fn seal(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        let seal = self.seal_of(&bytes);
        bytes.extend_from_slice(&seal);
        bytes
    }

    /// The bytes before the seal, if that is right.
    pub fn open<'a>(&self, sealed: &'a [u8]) -> Result<&'a [u8], FormatError> {
        limit(
            "length of a multicast datagram",
            sealed.len() as u64,
            DATAGRAM_BYTES_MAX as u64,
        )?;
        let Some((bytes, seal)) = sealed.split_last_chunk::<SEAL_BYTES>() else {
            return Err(FormatError::invalid(WHAT, "it has no seal"));
        };
        // all bytes are compared, so that the time it takes tells nothing of the right ones
        let pairs = self.seal_of(bytes).into_iter().zip(seal);
        match pairs.fold(0, |differ, (own, given)| differ | (own ^ given)) {
            0 => Ok(bytes),
            _ => Err(FormatError::invalid(
                WHAT,
                "its seal is wrong: the sender is no member of this group",
            )),
        }
    }
}

/// An item that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// What it is.
    pub kind: Kind,
    /// Its name.
    pub hash: Hash,
    /// Which pieces, by bit; all bits while it is not known how many there are. Never 0.
    pub pieces: u32,
    /// It was asked for before and did not come.
    pub again: bool,
    /// A guest waits for it.
    pub demand: bool,
}

/// What a receiver asks the server for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Who asks: a number that the receiver has drawn.
    pub receiver: u64,
    /// Grows with each datagram of this receiver.
    pub sequence: u64,
    /// What it receives now, bytes a second.
    pub bytes_per_s: u64,
    /// At most [`WANTS_MAX`].
    pub wants: Vec<Want>,
}

/// A part of an item, for everybody in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// When the server was started, microseconds since 1970: tells its datagrams from those of an earlier one.
    pub server: u64,
    /// Grows with each datagram of this server.
    pub sequence: u64,
    /// What the item is.
    pub kind: Kind,
    /// How it is packed.
    pub encoding: Encoding,
    /// Which piece this is, from 0.
    pub index: u8,
    /// Bytes of the packed item.
    pub total: u32,
    /// The first bytes of its name. The rest follows from its content.
    pub tag: [u8; 8],
    /// The piece: [`PIECE_BYTES_MAX`] bytes, the last one what is left.
    pub bytes: &'a [u8],
}

/// How many pieces a packed item of `total` bytes has.
pub const fn pieces_of(total: usize) -> usize {
    total.div_ceil(PIECE_BYTES_MAX)
}

/// The bits of all of its pieces.
pub const fn all_pieces(total: usize) -> u32 {
    let pieces = pieces_of(total);
    if pieces >= 32 {
        u32::MAX
    } else {
        (1 << pieces) - 1
    }
}

/// The bytes of piece `index` of an item of `total` bytes.
pub fn piece_range(total: usize, index: usize) -> std::ops::Range<usize> {
    let from = (index * PIECE_BYTES_MAX).min(total);
    from..(from + PIECE_BYTES_MAX).min(total)
}

/// A datagram, without its seal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Datagram<'a> {
    /// To the server.
    Ask(Ask),
    /// To the group.
    Piece(Piece<'a>),
}

fn head(op: u8, count: u8, sender: u64, sequence: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(DATAGRAM_BYTES_MAX);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&(VERSION as u16).to_le_bytes());
    out.extend_from_slice(&[op, count]);
    out.extend_from_slice(&sender.to_le_bytes());
    out.extend_from_slice(&sequence.to_le_bytes());
    out
}

impl Ask {
    /// The datagram, to be sealed.
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
    /// The datagram, to be sealed.
    pub fn encode(&self) -> Vec<u8> {
        let packing = self.kind as u8 | (self.encoding as u8) << 1;
        let mut out = head(OP_PIECE, packing, self.server, self.sequence);
        // an item has at most 32768 bytes: its length and a piece's number fit four bytes
        let place = self.total | u32::from(self.index) << 24;
        out.extend_from_slice(&place.to_le_bytes());
        out.extend_from_slice(&self.tag);
        out.extend_from_slice(self.bytes);
        out
    }
}

impl Datagram<'_> {
    /// Reads a datagram that [`GroupKey::open`] has opened.
    pub fn decode(bytes: &[u8]) -> Result<Datagram<'_>, FormatError> {
        let mut c = Cursor::new(WHAT, bytes);
        c.magic(MAGIC)?;
        let version = u32::from(c.u16()?);
        if version != VERSION {
            return Err(FormatError::Version {
                what: WHAT,
                found: version,
                known: VERSION,
            });
        }
        let (op, count) = (c.u8()?, c.u8()?);
        let (sender, sequence) = (c.u64()?, c.u64()?);
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

    #[test]
    fn the_largest_datagrams_fit_a_packet() {
        let ask = Ask {
            wants: (0..WANTS_MAX as u8).map(want).collect(),
            ..Default::default()
        };
        let key = GroupKey::of("token");
        assert!(key.seal(ask.encode()).len() <= DATAGRAM_BYTES_MAX);
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
        let sealed = key.seal(piece.encode());
        assert_eq!(sealed.len(), DATAGRAM_BYTES_MAX);
        let opened = key.open(&sealed).unwrap();
        assert_eq!(Datagram::decode(opened), Ok(Datagram::Piece(piece)));
        assert_eq!(pieces_of(4096), 3);
        const { assert!(PIECES_MAX <= 32) };
    }

    #[test]
    fn a_stranger_is_no_member() {
        let sealed = GroupKey::of("token").seal(Ask::default().encode());
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
        assert!(changed(8, 9).contains("version 9"));
        assert!(changed(10, 7).contains("operation 7"));
        assert!(changed(11, 200).contains("at most 35"));
        assert!(changed(36, 0xff).contains("kind"));
        assert!(changed(69, 0).contains("nothing is asked for"));
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
        fn what_is_asked_is_heard(seeds in proptest::collection::vec(any::<u8>(), 0..WANTS_MAX), receiver: u64, sequence: u64, bytes_per_s: u64) {
            let ask = Ask { receiver, sequence, bytes_per_s, wants: seeds.into_iter().map(want).collect() };
            let bytes = ask.encode();
            prop_assert_eq!(Datagram::decode(&bytes), Ok(Datagram::Ask(ask)));
        }
    }
}
