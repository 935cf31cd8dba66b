//! One frame: a mark that begins no line, then bytes without a newline, and a newline.
//!
//! ```text
//! 01 | stuffed(kind u8, stream u32, length u16, body) | 0a
//! ```
//! Numbers are little-endian. Stuffing replaces newlines as COBS replaces zeros: blocks of a length byte and up to 254
//! bytes, the length byte exclusive-or 0a. So a reader that lost its place, because a fork or a restart has cut a message
//! in two, goes on after the next newline, whether a line or a frame follows; and the length tells a frame that was cut.
//! Every frame has exactly one form.

use crate::line::{LINE_BYTES_MAX, LineError};
use std::fmt;

/// The byte that begins a frame.
pub const MARK: u8 = 0x01;
/// Most bytes of a stream, or of a request, in one frame: what a keystroke waits for at most while one is being sent.
pub const DATA_BYTES_MAX: usize = 16 << 10;
/// Bytes of kind, stream and length.
const HEAD_BYTES: usize = 7;
/// Most bytes of a body: those of a stream with the number of its channel.
const BODY_BYTES_MAX: usize = DATA_BYTES_MAX + 1;
/// Most bytes of a stuffed frame, without mark and newline.
const STUFFED_BYTES_MAX: usize =
    HEAD_BYTES + BODY_BYTES_MAX + (HEAD_BYTES + BODY_BYTES_MAX) / BLOCK_BYTES + 1;
/// Most bytes between two length bytes of the stuffing.
const BLOCK_BYTES: usize = 254;
/// Longest reason in a frame, in bytes.
const WHY_BYTES_MAX: usize = 512;

/// What a channel of a stream carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Channel {
    /// What the process reads, from node to guest.
    Input = 0,
    /// What it writes, from guest to node; with a terminal, all of it.
    Output = 1,
    /// What it writes about errors, from guest to node.
    Errors = 2,
}

impl Channel {
    /// All channels.
    pub const ALL: [Channel; 3] = [Channel::Input, Channel::Output, Channel::Errors];
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It returned this code.
    Exited(u8),
    /// This signal ended it.
    Signalled(u8),
    /// The agent ended it, because its time was over.
    TimedOut,
    /// It did not begin. The code is what shells return then: 126 or 127.
    NotStarted {
        /// The code.
        code: u8,
        /// Why.
        why: String,
    },
    /// Nobody knows: the connection to the agent ended first, and what runs goes on.
    Lost {
        /// Why.
        why: String,
    },
}

/// One frame. `stream` is the number that the node gave to the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Node to guest: start a process.
    Open {
        /// The stream.
        stream: u32,
        /// Whether somebody waits for each answer, so that its bytes go before those of other streams.
        interactive: bool,
        /// A [`Request`](super::request::Request).
        request: Vec<u8>,
    },
    /// Bytes of a channel, at least one.
    Data {
        /// The stream.
        stream: u32,
        /// The channel.
        channel: Channel,
        /// At most [`DATA_BYTES_MAX`].
        bytes: Vec<u8>,
    },
    /// No more bytes come on this channel.
    End {
        /// The stream.
        stream: u32,
        /// The channel.
        channel: Channel,
    },
    /// The receiver of a channel has room for so many more bytes.
    Credit {
        /// The stream.
        stream: u32,
        /// The channel.
        channel: Channel,
        /// More than 0.
        bytes: u32,
    },
    /// So many more bytes of all streams have crossed the port.
    Taken {
        /// More than 0.
        bytes: u32,
    },
    /// Node to guest: send the process and what it started this signal.
    Signal {
        /// The stream.
        stream: u32,
        /// The signal's number on Linux.
        number: u8,
    },
    /// Node to guest: the terminal's size.
    Size {
        /// The stream.
        stream: u32,
        /// Columns.
        columns: u16,
        /// Rows.
        rows: u16,
    },
    /// Node to guest: nobody listens any more.
    Close {
        /// The stream.
        stream: u32,
    },
    /// Guest to node: the process runs.
    Started {
        /// The stream.
        stream: u32,
        /// Its process id in the guest.
        pid: u32,
    },
    /// Guest to node: the process ended, and this stream with it.
    Over {
        /// The stream.
        stream: u32,
        /// How.
        outcome: Outcome,
    },
}

/// Why bytes are no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// They are longer than any frame.
    TooLong,
    /// The end is missing, or a value is none that may stand there.
    Malformed,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::TooLong => write!(f, "a frame is longer than any may be"),
            FrameError::Malformed => write!(f, "a frame was cut, or is none"),
        }
    }
}

impl std::error::Error for FrameError {}

impl Frame {
    /// Returns the stream that it belongs to; `None` for one that concerns the port as a whole.
    pub fn stream(&self) -> Option<u32> {
        match self {
            Frame::Taken { .. } => None,
            Frame::Open { stream, .. }
            | Frame::Data { stream, .. }
            | Frame::End { stream, .. }
            | Frame::Credit { stream, .. }
            | Frame::Signal { stream, .. }
            | Frame::Size { stream, .. }
            | Frame::Close { stream }
            | Frame::Started { stream, .. }
            | Frame::Over { stream, .. } => Some(*stream),
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Frame::Open { .. } => 1,
            Frame::Data { .. } => 2,
            Frame::End { .. } => 3,
            Frame::Credit { .. } => 4,
            Frame::Taken { .. } => 5,
            Frame::Signal { .. } => 6,
            Frame::Size { .. } => 7,
            Frame::Close { .. } => 8,
            Frame::Started { .. } => 9,
            Frame::Over { .. } => 10,
        }
    }

    fn body(&self, out: &mut Vec<u8>) {
        match self {
            Frame::Open {
                interactive,
                request,
                ..
            } => {
                out.push(u8::from(*interactive));
                out.extend_from_slice(&request[..request.len().min(DATA_BYTES_MAX)]);
            }
            Frame::Data { channel, bytes, .. } => {
                out.push(*channel as u8);
                out.extend_from_slice(&bytes[..bytes.len().min(DATA_BYTES_MAX)]);
            }
            Frame::End { channel, .. } => out.push(*channel as u8),
            Frame::Credit { channel, bytes, .. } => {
                out.push(*channel as u8);
                out.extend(bytes.to_le_bytes());
            }
            Frame::Taken { bytes } => out.extend(bytes.to_le_bytes()),
            Frame::Signal { number, .. } => out.push(*number),
            Frame::Size { columns, rows, .. } => {
                out.extend(columns.to_le_bytes());
                out.extend(rows.to_le_bytes());
            }
            Frame::Close { .. } => {}
            Frame::Started { pid, .. } => out.extend(pid.to_le_bytes()),
            Frame::Over { outcome, .. } => match outcome {
                Outcome::Exited(code) => out.extend([0, *code]),
                Outcome::Signalled(number) => out.extend([1, *number]),
                Outcome::TimedOut => out.push(2),
                Outcome::NotStarted { code, why } => {
                    out.extend([3, *code]);
                    out.extend(cut(why).bytes());
                }
                Outcome::Lost { why } => {
                    out.push(4);
                    out.extend(cut(why).bytes());
                }
            },
        }
    }

    /// Appends the frame's bytes, with mark and newline.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut plain = Vec::with_capacity(match self {
            Frame::Data { bytes, .. } => HEAD_BYTES + 1 + bytes.len(),
            _ => 32,
        });
        plain.push(self.kind());
        plain.extend(self.stream().unwrap_or(0).to_le_bytes());
        plain.extend([0, 0]);
        self.body(&mut plain);
        let length = (plain.len() - HEAD_BYTES) as u16; // a body has at most BODY_BYTES_MAX bytes
        plain[5..7].copy_from_slice(&length.to_le_bytes());
        out.push(MARK);
        stuff(&plain, out);
        out.push(b'\n');
    }

    /// Parses a frame's bytes, without mark and newline.
    pub fn decode(stuffed: &[u8]) -> Result<Frame, FrameError> {
        if stuffed.len() > STUFFED_BYTES_MAX {
            return Err(FrameError::TooLong);
        }
        let plain = unstuff(stuffed).ok_or(FrameError::Malformed)?;
        decode_plain(plain).ok_or(FrameError::Malformed)
    }
}

/// Returns as much of a reason as a frame has room for.
fn cut(why: &str) -> &str {
    let mut end = why.len().min(WHY_BYTES_MAX);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    &why[..end]
}

fn decode_plain(plain: Vec<u8>) -> Option<Frame> {
    let (head, body) = plain.split_first_chunk::<HEAD_BYTES>()?;
    let stream = u32::from_le_bytes(head[1..5].try_into().ok()?);
    let length = u16::from_le_bytes([head[5], head[6]]);
    if usize::from(length) != body.len() || body.len() > BODY_BYTES_MAX {
        return None;
    }
    let why = |bytes: &[u8]| {
        let text = std::str::from_utf8(bytes).ok()?;
        (text.len() <= WHY_BYTES_MAX).then(|| text.to_owned())
    };
    Some(match (head[0], body) {
        (1, [interactive @ (0 | 1), request @ ..]) => Frame::Open {
            stream,
            interactive: *interactive == 1,
            request: request.to_vec(),
        },
        (2, [channel, _, ..]) => {
            let channel = channel_of(*channel)?;
            let mut bytes = plain;
            bytes.drain(..HEAD_BYTES + 1);
            Frame::Data {
                stream,
                channel,
                bytes,
            }
        }
        (3, [channel]) => Frame::End {
            stream,
            channel: channel_of(*channel)?,
        },
        (4, [channel, bytes @ ..]) => Frame::Credit {
            stream,
            channel: channel_of(*channel)?,
            bytes: number(bytes)?,
        },
        (5, bytes) if stream == 0 => Frame::Taken {
            bytes: number(bytes)?,
        },
        (6, [number]) => Frame::Signal {
            stream,
            number: *number,
        },
        (7, [c0, c1, r0, r1]) => Frame::Size {
            stream,
            columns: u16::from_le_bytes([*c0, *c1]),
            rows: u16::from_le_bytes([*r0, *r1]),
        },
        (8, []) => Frame::Close { stream },
        (9, pid) => Frame::Started {
            stream,
            pid: number(pid)?,
        },
        (10, outcome) => Frame::Over {
            stream,
            outcome: match outcome {
                [0, code] => Outcome::Exited(*code),
                [1, number] => Outcome::Signalled(*number),
                [2] => Outcome::TimedOut,
                [3, code, reason @ ..] => Outcome::NotStarted {
                    code: *code,
                    why: why(reason)?,
                },
                [4, reason @ ..] => Outcome::Lost { why: why(reason)? },
                _ => return None,
            },
        },
        _ => return None,
    })
}

fn channel_of(byte: u8) -> Option<Channel> {
    Channel::ALL.get(usize::from(byte)).copied()
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// Appends `plain` without newlines.
fn stuff(plain: &[u8], out: &mut Vec<u8>) {
    out.reserve(plain.len() + plain.len() / BLOCK_BYTES + 3);
    let mut rest = plain;
    loop {
        let window = &rest[..rest.len().min(BLOCK_BYTES)];
        let (block, skip) = match memchr::memchr(b'\n', window) {
            Some(at) => (&window[..at], 1),
            None => (window, 0),
        };
        out.push((block.len() as u8 + 1) ^ b'\n');
        out.extend_from_slice(block);
        rest = &rest[block.len() + skip..];
        // a block that is neither full nor before a newline is the last one
        if skip == 0 && block.len() < BLOCK_BYTES {
            return;
        }
    }
}

/// Returns what was stuffed; `None` if the end is missing.
fn unstuff(stuffed: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(stuffed.len());
    let mut rest = stuffed;
    loop {
        let (&length, after) = rest.split_first()?;
        let length = usize::from(length ^ b'\n').checked_sub(1)?;
        let (block, after) = after.split_at_checked(length)?;
        out.extend_from_slice(block);
        rest = after;
        match (length < BLOCK_BYTES, rest.is_empty()) {
            (true, true) => return Some(out),
            (true, false) => out.push(b'\n'),
            (false, _) => {}
        }
    }
}

/// What comes over a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// A line, without its newline; an error stands for one that was too long.
    Line(Result<Vec<u8>, LineError>),
    /// A frame; an error stands for bytes that begin as one.
    Frame(Result<Frame, FrameError>),
}

/// Splits a stream of bytes into lines and frames; what is too long is dropped up to the next newline.
#[derive(Debug, Default)]
pub struct Messages {
    bytes: Vec<u8>,
    skipping: bool,
}

impl Messages {
    /// Adds bytes that were read. Returns the messages that they complete.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Vec<Message> {
        let mut messages = Vec::new();
        while !bytes.is_empty() {
            let end = memchr::memchr(b'\n', bytes);
            let (piece, rest) = match end {
                Some(at) => (&bytes[..at], &bytes[at + 1..]),
                None => (bytes, &bytes[bytes.len()..]),
            };
            bytes = rest;
            if !self.skipping {
                let first = self.bytes.first().or(piece.first());
                let is_frame = first == Some(&MARK);
                let room = match is_frame {
                    true => STUFFED_BYTES_MAX + 1,
                    false => LINE_BYTES_MAX - 1,
                };
                if self.bytes.len() + piece.len() > room {
                    messages.push(match is_frame {
                        true => Message::Frame(Err(FrameError::TooLong)),
                        false => Message::Line(Err(LineError::TooLong)),
                    });
                    self.bytes.clear();
                    self.skipping = true;
                } else {
                    self.bytes.extend_from_slice(piece);
                }
            }
            if end.is_some() {
                match (std::mem::take(&mut self.skipping), self.bytes.split_first()) {
                    (true, _) => {}
                    (false, Some((&MARK, frame))) => {
                        messages.push(Message::Frame(Frame::decode(frame)));
                    }
                    (false, _) => messages.push(Message::Line(Ok(self.bytes.clone()))),
                }
                // its room is kept: the next frame is as long
                self.bytes.clear();
            }
        }
        messages
    }

    /// Drops the incomplete message.
    pub fn clear(&mut self) {
        *self = Messages::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Any frame.
    pub(crate) fn any_frame() -> impl Strategy<Value = Frame> {
        let channel = prop::sample::select(Channel::ALL.to_vec());
        let bytes = prop::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 1..600);
        let outcome = prop_oneof![
            any::<u8>().prop_map(Outcome::Exited),
            any::<u8>().prop_map(Outcome::Signalled),
            Just(Outcome::TimedOut),
            (any::<u8>(), "\\PC{0,40}").prop_map(|(code, why)| Outcome::NotStarted { code, why }),
            "\\PC{0,40}".prop_map(|why| Outcome::Lost { why }),
        ];
        (any::<u32>(), channel, bytes, any::<u32>(), outcome, 0..10u8).prop_map(
            |(stream, channel, bytes, number, outcome, kind)| match kind {
                0 => Frame::Open {
                    stream,
                    interactive: number.is_multiple_of(2),
                    request: bytes,
                },
                1 => Frame::Data {
                    stream,
                    channel,
                    bytes,
                },
                2 => Frame::End { stream, channel },
                3 => Frame::Credit {
                    stream,
                    channel,
                    bytes: number,
                },
                4 => Frame::Taken { bytes: number },
                5 => Frame::Signal {
                    stream,
                    number: number as u8,
                },
                6 => Frame::Size {
                    stream,
                    columns: number as u16,
                    rows: (number >> 16) as u16,
                },
                7 => Frame::Close { stream },
                8 => Frame::Started {
                    stream,
                    pid: number,
                },
                _ => Frame::Over { stream, outcome },
            },
        )
    }

    fn encoded(frame: &Frame) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        bytes
    }

    #[test]
    fn a_frame_is_what_docs_guest_md_says() {
        let frame = Frame::Data {
            stream: 7,
            channel: Channel::Output,
            bytes: b"hi\n".to_vec(),
        };
        // 10 bytes before the newline that is replaced, none after it
        let text = b"\x01\x00\x02\x07\0\0\0\x04\0\x01hi";
        let mut wanted = text.to_vec();
        wanted[1] = 11 ^ b'\n';
        wanted.extend([1 ^ b'\n', b'\n']);
        assert_eq!(encoded(&frame), wanted);
    }

    #[test]
    fn the_longest_frame_passes_and_what_is_longer_is_dropped_up_to_the_next_newline() {
        for byte in [b'\n', b'x'] {
            let frame = Frame::Data {
                stream: 1,
                channel: Channel::Input,
                bytes: vec![byte; DATA_BYTES_MAX],
            };
            let got = Messages::default().feed(&encoded(&frame));
            assert_eq!(got, [Message::Frame(Ok(frame))]);
        }
        let mut messages = Messages::default();
        let mut got = messages.feed(&[MARK; STUFFED_BYTES_MAX + 2]);
        got.extend(messages.feed(b"rest\nline\n"));
        let line = Message::Line(Ok(b"line".to_vec()));
        assert_eq!(got, [Message::Frame(Err(FrameError::TooLong)), line]);
        let mut got = messages.feed(&[b'x'; LINE_BYTES_MAX]);
        got.extend(messages.feed(b"\n\n"));
        let empty = Message::Line(Ok(Vec::new()));
        assert_eq!(got, [Message::Line(Err(LineError::TooLong)), empty]);
    }

    proptest! {
        #[test]
        fn frames_and_lines_come_back_whatever_pieces_they_come_in(
            frames in prop::collection::vec(any_frame(), 1..8),
            pieces in prop::collection::vec(1..900usize, 1..20),
        ) {
            let mut bytes = Vec::new();
            let mut wanted = Vec::new();
            for frame in frames {
                frame.encode(&mut bytes);
                bytes.extend(b"wake version=1\n");
                wanted.push(Message::Frame(Ok(frame)));
                wanted.push(Message::Line(Ok(b"wake version=1".to_vec())));
            }
            let mut messages = Messages::default();
            let mut got = Vec::new();
            let mut rest = &bytes[..];
            for length in pieces.iter().cycle() {
                let (piece, after) = rest.split_at(rest.len().min(*length));
                got.extend(messages.feed(piece));
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(got, wanted);
        }

        #[test]
        fn after_a_frame_that_was_cut_the_next_line_is_understood(
            frame in any_frame(), at in 0.0..1.0f64,
        ) {
            let bytes = encoded(&frame);
            let at = (bytes.len() as f64 * at) as usize;
            let mut messages = Messages::default();
            let mut got = messages.feed(&bytes[..at]);
            got.extend(messages.feed(b"\nhello\n"));
            prop_assert!(!got.contains(&Message::Frame(Ok(frame))) || at + 1 == bytes.len());
            prop_assert_eq!(got.last(), Some(&Message::Line(Ok(b"hello".to_vec()))));
        }

        #[test]
        fn garbage_never_panics_and_what_is_accepted_has_one_form(
            bytes in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            if let Ok(frame) = Frame::decode(&bytes) {
                let again = encoded(&frame);
                prop_assert_eq!(&again[1..again.len() - 1], &bytes[..]);
            }
        }
    }
}
