//! What a process is to be, as it stands in a frame that opens a stream.
//!
//! ```text
//! version u8 = 1, what u8, flags u8, [columns u16, rows u16], [timeout u64 ms],
//! user, directory, count u16 of arguments, arguments, count u16 of variables, variables     each text: length u16, UTF-8
//! ```

use super::frame::DATA_BYTES_MAX;

/// The version of this form.
const VERSION: u8 = 1;
/// Most bytes of a request: command line and environment together.
pub const REQUEST_BYTES_MAX: usize = DATA_BYTES_MAX;
/// Most arguments, and most variables.
const TEXTS_MAX: usize = 1024;

/// The program of a [`Request`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// The first argument names it.
    Command,
    /// The agent's own, with the arguments given: it reads and writes files, or connects to a port of the guest.
    Tool,
}

/// A process that a user wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The program.
    pub what: What,
    /// Its arguments; for a command, the first one is its name.
    pub arguments: Vec<String>,
    /// Variables of its environment, as `NAME=VALUE`, beside those of its user.
    pub environment: Vec<String>,
    /// The user whose rights it has, by name or number; empty for root.
    pub user: String,
    /// The directory that it starts in; empty for the user's own.
    pub directory: String,
    /// Columns and rows of its terminal, if it has one.
    pub terminal: Option<(u16, u16)>,
    /// How long it may run, in ms.
    pub timeout_ms: Option<u64>,
    /// Whether it has neither input nor output, and nobody waits for it.
    pub detached: bool,
}

impl Request {
    /// Returns the request's bytes; `None` if they are more than [`REQUEST_BYTES_MAX`].
    pub fn encode(&self) -> Option<Vec<u8>> {
        let flags = u8::from(self.terminal.is_some())
            | u8::from(self.timeout_ms.is_some()) << 1
            | u8::from(self.detached) << 2;
        let mut out = vec![VERSION, self.what as u8, flags];
        if let Some((columns, rows)) = self.terminal {
            out.extend(columns.to_le_bytes());
            out.extend(rows.to_le_bytes());
        }
        out.extend(self.timeout_ms.iter().flat_map(|ms| ms.to_le_bytes()));
        put(&mut out, &self.user)?;
        put(&mut out, &self.directory)?;
        for texts in [&self.arguments, &self.environment] {
            let count = u16::try_from(texts.len()).ok()?;
            out.extend(count.to_le_bytes());
            for text in texts {
                put(&mut out, text)?;
            }
        }
        let fits = self.arguments.len().max(self.environment.len()) <= TEXTS_MAX;
        (fits && out.len() <= REQUEST_BYTES_MAX).then_some(out)
    }

    /// Parses a request's bytes; `None` if they are none.
    pub fn decode(mut bytes: &[u8]) -> Option<Request> {
        let rest = &mut bytes;
        let [version, what, flags] = take(rest)?;
        let what = match what {
            0 => What::Command,
            1 => What::Tool,
            _ => return None,
        };
        if version != VERSION || flags > 7 {
            return None;
        }
        let terminal = match flags & 1 {
            0 => None,
            _ => Some((
                u16::from_le_bytes(take(rest)?),
                u16::from_le_bytes(take(rest)?),
            )),
        };
        let timeout_ms = match flags & 2 {
            0 => None,
            _ => Some(u64::from_le_bytes(take(rest)?)),
        };
        let request = Request {
            what,
            terminal,
            timeout_ms,
            detached: flags & 4 != 0,
            user: text(rest)?,
            directory: text(rest)?,
            arguments: texts(rest)?,
            environment: texts(rest)?,
        };
        rest.is_empty().then_some(request)
    }
}

fn put(out: &mut Vec<u8>, text: &str) -> Option<()> {
    out.extend(u16::try_from(text.len()).ok()?.to_le_bytes());
    out.extend(text.bytes());
    Some(())
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*taken)
}

/// A text, which has no zero byte: nothing that is passed to the kernel may.
fn text(bytes: &mut &[u8]) -> Option<String> {
    let length = u16::from_le_bytes(take(bytes)?);
    let (text, rest) = bytes.split_at_checked(length.into())?;
    *bytes = rest;
    let text = std::str::from_utf8(text).ok()?;
    (!text.contains('\0')).then(|| text.to_owned())
}

fn texts(bytes: &mut &[u8]) -> Option<Vec<String>> {
    let count = usize::from(u16::from_le_bytes(take(bytes)?));
    if count > TEXTS_MAX {
        return None;
    }
    (0..count).map(|_| text(bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_request() -> impl Strategy<Value = Request> {
        let texts = || prop::collection::vec("[a-z =é]{0,12}", 0..6);
        (
            any::<bool>(),
            texts(),
            texts(),
            "[a-z]{0,8}",
            "[/a-z]{0,8}",
            any::<Option<(u16, u16)>>(),
            any::<Option<u64>>(),
            any::<bool>(),
        )
            .prop_map(
                |(own, arguments, environment, user, directory, terminal, timeout_ms, detached)| {
                    Request {
                        what: if own { What::Tool } else { What::Command },
                        arguments,
                        environment,
                        user,
                        directory,
                        terminal,
                        timeout_ms,
                        detached,
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn a_request_comes_back_as_it_was(request in any_request(), cut in 0.0..1.0f64) {
            let bytes = request.encode().unwrap();
            prop_assert_eq!(Request::decode(&bytes), Some(request));
            let part = &bytes[..(bytes.len() as f64 * cut) as usize];
            prop_assert_eq!(Request::decode(part), None);
        }

        #[test]
        fn garbage_never_panics_and_what_is_accepted_has_one_form(
            bytes in prop::collection::vec(prop_oneof![0..4u8, any::<u8>()], 0..60),
        ) {
            if let Some(request) = Request::decode(&bytes) {
                prop_assert_eq!(request.encode(), Some(bytes));
            }
        }
    }

    #[test]
    fn a_command_line_that_is_too_long_is_refused() {
        let mut request = Request {
            what: What::Command,
            arguments: vec!["x".repeat(REQUEST_BYTES_MAX - 20)],
            environment: Vec::new(),
            user: String::new(),
            directory: String::new(),
            terminal: None,
            timeout_ms: None,
            detached: false,
        };
        assert!(request.encode().is_some());
        request.arguments.push("y".repeat(20));
        assert!(request.encode().is_none());
        request.arguments = vec!["x".repeat(70_000)];
        assert!(request.encode().is_none());
    }
}
