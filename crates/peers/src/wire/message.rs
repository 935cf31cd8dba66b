//! Messages as bytes, and back (docs/format.md, "Pieces of a swarm"). A message has one encoding.
use floe_swarm::policy::{PIECES_MAX, PLACES, PieceId, Purpose};

/// Most bytes of a message.
pub const FRAME_BYTES_MAX: usize = 16 << 10;
/// Most bytes of a number.
const NUMBER_BYTES_MAX: usize = 5;
/// Most runs that surely fit a message.
const RUNS_MAX: usize = (FRAME_BYTES_MAX - 1) / (2 * NUMBER_BYTES_MAX);
/// Bytes of a pack's name.
const PACK_NAME_BYTES: usize = 32 + 8;
/// Most packs that a message names.
const PACK_NAMES_MAX: usize = (FRAME_BYTES_MAX - 1) / PACK_NAME_BYTES;

/// Consecutive pieces: the first one and how many.
pub type Run = (PieceId, u32);

/// A pack as hosts name it to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PackName {
    /// BLAKE3 hash of all its bytes.
    pub root: [u8; 32],
    /// Its length.
    pub bytes: u64,
}

/// How hosts begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What is to be brought: the image.
    pub image: [u8; 32],
    /// Name of the packs that the sender knows of it, in the order that numbers their pieces.
    pub content: [u8; 32],
    /// What all members were given.
    pub token: [u8; 32],
    /// Tells one life of a host from the next.
    pub session: u64,
    /// At how many of its [`PLACES`] the sender is a warden, one at least.
    pub places: u8,
}

/// What hosts say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// What both say first.
    Hello(Hello),
    /// The sender has these pieces, in addition to those that it had. Runs ascend.
    Has(Vec<Run>),
    /// The sender no longer has these pieces.
    Lacks(Vec<Run>),
    /// A piece is wanted; said again, its purpose rises.
    Ask(PieceId, Purpose),
    /// A piece is no longer wanted.
    Withdraw(PieceId),
    /// A piece won't be sent.
    Refuse(PieceId),
    /// The sender's next packs, in the order that numbers their pieces. Said after the hellos, and by no host whose packs are the other's.
    Packs(Vec<PackName>),
}

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a message of this protocol")]
pub struct Malformed;

/// Appends a number.
pub fn put_number(mut number: u32, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads a number at the start of `bytes` and takes it off. `None` if it isn't complete.
pub fn number(bytes: &mut &[u8]) -> Result<Option<u32>, Malformed> {
    let mut number = 0u64;
    for at in 0..NUMBER_BYTES_MAX {
        let Some(byte) = bytes.get(at).copied() else {
            return Ok(None);
        };
        number |= u64::from(byte & 0x7F) << (7 * at);
        if byte & 0x80 == 0 {
            if byte == 0 && at > 0 {
                return Err(Malformed); // there is a shorter form
            }
            *bytes = &bytes[at + 1..];
            return u32::try_from(number).map(Some).map_err(|_| Malformed);
        }
    }
    Err(Malformed)
}

fn whole_number(bytes: &mut &[u8]) -> Result<u32, Malformed> {
    number(bytes)?.ok_or(Malformed)
}

fn piece(bytes: &mut &[u8]) -> Result<PieceId, Malformed> {
    let piece = whole_number(bytes)?;
    (piece < PIECES_MAX).then_some(piece).ok_or(Malformed)
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Malformed> {
    let (taken, rest) = bytes.split_first_chunk().ok_or(Malformed)?;
    *bytes = rest;
    Ok(*taken)
}

fn places(bytes: &mut &[u8]) -> Result<u8, Malformed> {
    let [places] = take(bytes)?;
    let known = (1..=PLACES).contains(&places);
    known.then_some(places).ok_or(Malformed)
}

fn runs(bytes: &mut &[u8]) -> Result<Vec<Run>, Malformed> {
    let mut runs = Vec::new();
    let mut next = 0u64;
    while !bytes.is_empty() {
        let gap = u64::from(whole_number(bytes)?);
        if gap == 0 && !runs.is_empty() {
            return Err(Malformed); // it would belong to the run before
        }
        let first = next + gap;
        let count = u64::from(whole_number(bytes)?) + 1;
        next = first + count;
        if next > u64::from(PIECES_MAX) {
            return Err(Malformed);
        }
        runs.push((first as PieceId, count as u32));
    }
    (!runs.is_empty()).then_some(runs).ok_or(Malformed)
}

fn pack_names(bytes: &mut &[u8]) -> Result<Vec<PackName>, Malformed> {
    let mut names = Vec::new();
    while !bytes.is_empty() {
        names.push(PackName {
            root: take(bytes)?,
            bytes: u64::from_le_bytes(take(bytes)?),
        });
    }
    (!names.is_empty()).then_some(names).ok_or(Malformed)
}

fn put_runs(kind: u8, runs: &[Run], out: &mut Vec<u8>) {
    out.push(kind);
    let mut next = 0;
    for (first, count) in runs {
        put_number(first - next, out);
        put_number(count - 1, out);
        next = first + count;
    }
}

impl Message {
    /// Reads a message, all of it.
    pub fn decode(mut bytes: &[u8]) -> Result<Message, Malformed> {
        let [kind] = take(&mut bytes)?;
        let rest = &mut bytes;
        let message = match kind {
            0 => Message::Hello(Hello {
                image: take(rest)?,
                content: take(rest)?,
                token: take(rest)?,
                session: u64::from_le_bytes(take(rest)?),
                places: places(rest)?,
            }),
            1 => Message::Has(runs(rest)?),
            2 => Message::Lacks(runs(rest)?),
            3 => {
                let piece = piece(rest)?;
                match take(rest)? {
                    [0] => Message::Ask(piece, Purpose::Copy),
                    [1] => Message::Ask(piece, Purpose::Prefetch),
                    [2] => Message::Ask(piece, Purpose::Demand),
                    _ => return Err(Malformed),
                }
            }
            4 => Message::Withdraw(piece(rest)?),
            5 => Message::Refuse(piece(rest)?),
            6 => Message::Packs(pack_names(rest)?),
            _ => return Err(Malformed),
        };
        bytes.is_empty().then_some(message).ok_or(Malformed)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Message::Hello(hello) => {
                out.push(0);
                out.extend_from_slice(&hello.image);
                out.extend_from_slice(&hello.content);
                out.extend_from_slice(&hello.token);
                out.extend_from_slice(&hello.session.to_le_bytes());
                out.push(hello.places);
            }
            Message::Has(runs) => put_runs(1, runs, out),
            Message::Lacks(runs) => put_runs(2, runs, out),
            Message::Ask(piece, purpose) => {
                out.push(3);
                put_number(*piece, out);
                out.push(*purpose as u8);
            }
            Message::Withdraw(piece) => {
                out.push(4);
                put_number(*piece, out);
            }
            Message::Refuse(piece) => {
                out.push(5);
                put_number(*piece, out);
            }
            Message::Packs(names) => {
                out.push(6);
                for name in names {
                    out.extend_from_slice(&name.root);
                    out.extend_from_slice(&name.bytes.to_le_bytes());
                }
            }
        }
    }

    fn frame(&self, out: &mut Vec<u8>) {
        let mut body = Vec::new();
        self.encode(&mut body);
        put_number(body.len() as u32, out);
        out.extend_from_slice(&body);
    }
}

/// Returns a message in frames: one, or several where it lists more than a frame holds.
pub fn frames_of(message: &Message) -> Vec<Vec<u8>> {
    let framed = |message: Message| {
        let mut out = Vec::new();
        message.frame(&mut out);
        out
    };
    match message {
        Message::Has(runs) => {
            let parts = runs.chunks(RUNS_MAX);
            parts
                .map(|part| framed(Message::Has(part.to_vec())))
                .collect()
        }
        Message::Lacks(runs) => {
            let parts = runs.chunks(RUNS_MAX);
            parts
                .map(|part| framed(Message::Lacks(part.to_vec())))
                .collect()
        }
        Message::Packs(names) => {
            let parts = names.chunks(PACK_NAMES_MAX);
            parts
                .map(|part| framed(Message::Packs(part.to_vec())))
                .collect()
        }
        other => vec![framed(other.clone())],
    }
}

/// Messages out of a stream of bytes that comes in parts of any size.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    /// Less than a frame, once [`Frames::next`] has returned `None`.
    bytes: Vec<u8>,
    taken: usize,
}

impl Frames {
    /// Appends what has come.
    pub fn put(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next message; `None` if it isn't complete. After an error, nothing of this stream can be believed.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Message>, Malformed> {
        let mut rest = &self.bytes[self.taken..];
        let Some(length) = number(&mut rest)? else {
            return Ok(None);
        };
        let length = length as usize;
        if length > FRAME_BYTES_MAX {
            return Err(Malformed);
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        self.taken = self.bytes.len() - (rest.len() - length);
        Message::decode(body).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_runs() -> impl Strategy<Value = Vec<Run>> {
        prop::collection::vec((1u32..200, 1u32..200), 0..5000).prop_map(|parts| {
            let mut next = 0;
            let place = |(gap, count)| {
                let run = (next + gap, count);
                next += gap + count;
                run
            };
            parts.into_iter().map(place).collect()
        })
    }

    fn any_message() -> impl Strategy<Value = Message> {
        let purpose = prop_oneof![
            Just(Purpose::Copy),
            Just(Purpose::Prefetch),
            Just(Purpose::Demand)
        ];
        prop_oneof![
            (any::<([u8; 32], [u8; 32], [u8; 32], u64)>(), 1..=PLACES).prop_map(
                |((image, content, token, session), places)| {
                    Message::Hello(Hello {
                        image,
                        content,
                        token,
                        session,
                        places,
                    })
                }
            ),
            any_runs().prop_map(Message::Has),
            any_runs().prop_map(Message::Lacks),
            (0..PIECES_MAX, purpose).prop_map(|(piece, purpose)| Message::Ask(piece, purpose)),
            (0..PIECES_MAX).prop_map(Message::Withdraw),
            (0..PIECES_MAX).prop_map(Message::Refuse),
            prop::collection::vec(any::<([u8; 32], u64)>(), 1..1000).prop_map(|names| {
                let name = |(root, bytes)| PackName { root, bytes };
                Message::Packs(names.into_iter().map(name).collect())
            }),
        ]
    }

    /// Puts together what was said in several messages of one kind.
    fn joined(messages: Vec<Message>) -> Vec<Message> {
        let mut all: Vec<Message> = Vec::new();
        for message in messages {
            let goes_on = match (all.last_mut(), &message) {
                (Some(Message::Has(runs)), Message::Has(more))
                | (Some(Message::Lacks(runs)), Message::Lacks(more)) => {
                    runs.extend(more);
                    true
                }
                (Some(Message::Packs(names)), Message::Packs(more)) => {
                    names.extend(more);
                    true
                }
                _ => false,
            };
            if !goes_on {
                all.push(message);
            }
        }
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn messages_arrive_as_they_were_sent(
            messages in prop::collection::vec(any_message(), 1..5), step in 1usize..9000,
        ) {
            let bytes: Vec<u8> = messages.iter().flat_map(frames_of).flatten().collect();
            let (mut frames, mut came) = (Frames::default(), Vec::new());
            for part in bytes.chunks(step) {
                frames.put(part);
                while let Some(message) = frames.next().unwrap() {
                    came.push(message);
                }
            }
            let said = messages.into_iter().filter(|message| !frames_of(message).is_empty());
            prop_assert_eq!(joined(came), joined(said.collect()));
        }

        #[test]
        fn what_is_read_would_be_written_so(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(message) = Message::decode(&bytes) {
                let mut again = Vec::new();
                message.encode(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let wrong: &[&[u8]] = &[
            &[],
            &[7],
            &[1],
            &[0; 105],
            &[0; 106],
            &[0; 107],
            &[6],
            &[6; 40],
            &[6; 42],
            &[3, 1],
            &[3, 1, 3],
            &[3, 1, 1, 0],
            &[4, 0x80],
            &[4, 0x80, 0],
            &[4, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F],
            &[4, 0x80, 0x80, 0x80, 2],
            &[1, 0, 0, 0, 0],
            &[1, 5],
            &[1, 0, 0xFF, 0xFF, 0xFF, 1, 1],
        ];
        for bytes in wrong {
            assert_eq!(Message::decode(bytes), Err(Malformed), "{bytes:?}");
        }
        let mut frames = Frames::default();
        frames.put(&[0x81, 0x80, 1]);
        assert_eq!(frames.next(), Err(Malformed));
    }
}
