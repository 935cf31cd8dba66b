//! The messages between floe-mpirun, its launcher and its clones.
//!
//! ```text
//! offset 0   u8      kind
//!        1   u32     bytes that follow, little-endian, at most 64 KiB
//!        5   ...     1 hello: u8 version = 1, 32 bytes secret, u32 id
//!                    2 run: u16 bytes of the host's name, the name, the command (a line for sh)
//!                    3, 4 bytes of the command's standard output, standard error
//!                    5 ended: i32 exit status
//! ```
//! A clone says hello and then gets at most one command; it answers with output and the end. A launcher sends `run` and
//! gets the same answer. Each frame has only one form.

use std::fmt;
use std::io::{self, Read, Write};

/// Version of the protocol. Both sides are the same program, copied while it ran.
pub const VERSION: u8 = 1;
/// Most bytes of a frame after its header.
pub const PAYLOAD_BYTES_MAX: usize = 64 << 10;
/// Bytes before the payload.
pub const HEAD_BYTES: usize = 5;
/// Bytes of a secret.
pub const SECRET_BYTES: usize = 32;

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// A clone is connected, and can get a command.
    Hello {
        /// The secret that floe-mpirun drew before it cloned.
        secret: [u8; SECRET_BYTES],
        /// The clone's number.
        id: u32,
    },
    /// Run this command.
    Run {
        /// The host, under the name that Hydra uses.
        host: String,
        /// A line for `sh`.
        command: String,
    },
    /// Bytes from the command's standard output.
    Out(Vec<u8>),
    /// Bytes from the command's standard error.
    Err(Vec<u8>),
    /// The command has ended.
    Ended {
        /// Exit status; 128 plus the signal's number if it was killed.
        status: i32,
    },
}

/// Why bytes are not a valid frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireError {
    /// The kind is unknown.
    UnknownKind(u8),
    /// The frame claims this many bytes, which is too many.
    TooLong(u32),
    /// The other side uses this unknown version of the protocol.
    UnknownVersion(u8),
    /// The payload does not have the form of its kind.
    Malformed,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::UnknownKind(kind) => write!(f, "{kind} is no kind of frame"),
            WireError::TooLong(bytes) => {
                write!(f, "a frame of {bytes} bytes; at most {PAYLOAD_BYTES_MAX}")
            }
            WireError::UnknownVersion(version) => {
                write!(f, "version {version} of the protocol; {VERSION} is spoken")
            }
            WireError::Malformed => write!(f, "a frame's bytes are not of its kind's form"),
        }
    }
}

impl std::error::Error for WireError {}

impl Frame {
    /// Returns the frame's bytes. Output must have been cut into pieces of [`PAYLOAD_BYTES_MAX`] before.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, payload) = match self {
            Frame::Hello { secret, id } => {
                (1, [&[VERSION][..], secret, &id.to_le_bytes()].concat())
            }
            Frame::Run { host, command } => {
                let host = &host.as_bytes()[..host.len().min(usize::from(u16::MAX))];
                let length = (host.len() as u16).to_le_bytes();
                (2, [&length[..], host, command.as_bytes()].concat())
            }
            Frame::Out(bytes) => (3, bytes.clone()),
            Frame::Err(bytes) => (4, bytes.clone()),
            Frame::Ended { status } => (5, status.to_le_bytes().to_vec()),
        };
        let mut bytes = vec![kind];
        bytes.extend((payload.len() as u32).to_le_bytes());
        bytes.extend(payload);
        bytes
    }
}

/// Returns the first frame in some bytes, and its length in bytes; `None` if it is incomplete.
pub fn decode(bytes: &[u8]) -> Result<Option<(Frame, usize)>, WireError> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
        return match bytes.first() {
            Some(kind) if !(1..=5).contains(kind) => Err(WireError::UnknownKind(*kind)),
            _ => Ok(None),
        };
    };
    let length = payload_bytes(*head)?;
    match rest.get(..length) {
        None => Ok(None),
        Some(payload) => Ok(Some((parse(head[0], payload)?, HEAD_BYTES + length))),
    }
}

fn payload_bytes(head: [u8; HEAD_BYTES]) -> Result<usize, WireError> {
    let [kind, length @ ..] = head;
    if !(1..=5).contains(&kind) {
        return Err(WireError::UnknownKind(kind));
    }
    let length = u32::from_le_bytes(length);
    match usize::try_from(length) {
        Ok(length) if length <= PAYLOAD_BYTES_MAX => Ok(length),
        _ => Err(WireError::TooLong(length)),
    }
}

fn parse(kind: u8, payload: &[u8]) -> Result<Frame, WireError> {
    match kind {
        1 => {
            let (version, rest) = payload.split_first().ok_or(WireError::Malformed)?;
            if *version != VERSION {
                return Err(WireError::UnknownVersion(*version));
            }
            let (secret, id) = rest
                .split_first_chunk::<SECRET_BYTES>()
                .ok_or(WireError::Malformed)?;
            let id = id.try_into().map_err(|_| WireError::Malformed)?;
            Ok(Frame::Hello {
                secret: *secret,
                id: u32::from_le_bytes(id),
            })
        }
        2 => {
            let (length, rest) = payload
                .split_first_chunk::<2>()
                .ok_or(WireError::Malformed)?;
            let (host, command) = rest
                .split_at_checked(usize::from(u16::from_le_bytes(*length)))
                .ok_or(WireError::Malformed)?;
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec());
            Ok(Frame::Run {
                host: text(host).map_err(|_| WireError::Malformed)?,
                command: text(command).map_err(|_| WireError::Malformed)?,
            })
        }
        3 => Ok(Frame::Out(payload.to_vec())),
        4 => Ok(Frame::Err(payload.to_vec())),
        5 => {
            let status = payload.try_into().map_err(|_| WireError::Malformed)?;
            Ok(Frame::Ended {
                status: i32::from_le_bytes(status),
            })
        }
        kind => Err(WireError::UnknownKind(kind)),
    }
}

/// Reads one frame; `None` if the stream ends before it begins.
pub fn read(from: &mut impl Read) -> io::Result<Option<Frame>> {
    let mut head = [0; HEAD_BYTES];
    if from.read(&mut head[..1])? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut head[1..])?;
    let length = payload_bytes(head).map_err(io::Error::other)?;
    let mut payload = vec![0; length];
    from.read_exact(&mut payload)?;
    parse(head[0], &payload).map(Some).map_err(io::Error::other)
}

/// Writes one frame.
pub fn write(to: &mut impl Write, frame: &Frame) -> io::Result<()> {
    to.write_all(&frame.encode())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame() -> impl Strategy<Value = Frame> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..300);
        prop_oneof![
            (any::<[u8; 32]>(), any::<u32>()).prop_map(|(secret, id)| Frame::Hello { secret, id }),
            (".{0,20}", ".{0,200}").prop_map(|(host, command)| Frame::Run { host, command }),
            bytes().prop_map(Frame::Out),
            bytes().prop_map(Frame::Err),
            any::<i32>().prop_map(|status| Frame::Ended { status }),
        ]
    }

    proptest! {
        #[test]
        fn every_frame_comes_back_and_a_cut_one_is_waited_for(frame in frame(), more in any::<[u8; 3]>(), cut in 0usize..400) {
            let bytes = frame.encode();
            prop_assert_eq!(decode(&[&bytes[..], &more].concat()), Ok(Some((frame.clone(), bytes.len()))));
            prop_assert_eq!(decode(&bytes[..cut.min(bytes.len() - 1)]), Ok(None));
            prop_assert_eq!(read(&mut &bytes[..]).unwrap(), Some(frame));
        }

        #[test]
        fn what_is_accepted_has_one_form(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(Some((frame, length))) = decode(&bytes) {
                prop_assert_eq!(frame.encode(), &bytes[..length]);
            }
        }
    }

    #[test]
    fn nonsense_is_told_apart() {
        assert_eq!(decode(&[9]), Err(WireError::UnknownKind(9)));
        assert_eq!(
            decode(&[3, 1, 0, 1, 0]),
            Err(WireError::TooLong(PAYLOAD_BYTES_MAX as u32 + 1))
        );
        let mut hello = Frame::Hello {
            secret: [7; 32],
            id: 1,
        }
        .encode();
        hello[HEAD_BYTES] = 2;
        assert_eq!(decode(&hello), Err(WireError::UnknownVersion(2)));
        assert_eq!(decode(&[5, 1, 0, 0, 0, 0]), Err(WireError::Malformed));
        assert!(read(&mut &[3, 200, 0, 0, 0, 1][..]).is_err(), "cut short");
        assert!(read(&mut &[][..]).unwrap().is_none());
    }
}
