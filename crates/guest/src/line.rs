//! One message as one line of text.
//!
//! ```text
//! cloned id=3 clones=8\n
//! refused code=spent message=the%20ticket%20was%20used%20already fix=\n
//! ```
//! A line is a verb, then keys with values, separated by single blanks, and a newline. Verbs and keys consist of `a-z`
//! and `-`. In a value, every byte that is not a letter, digit or one of `._:/,+@-` is written as `%` and two capital hex
//! digits. So every message has exactly one form, any tool can read a line, and a reader that lost its place continues
//! after the next newline.

use std::fmt;

/// Longest line in bytes, including its newline.
pub const LINE_BYTES_MAX: usize = 2048;
/// Most keys in a line.
pub const KEYS_MAX: usize = 24;
/// Longest verb or key, in bytes.
pub const WORD_BYTES_MAX: usize = 24;

/// Why bytes are not a valid message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineError {
    /// The line is longer than [`LINE_BYTES_MAX`].
    TooLong,
    /// A byte or a sequence that no message contains.
    Malformed(&'static str),
    /// A verb that this version does not know.
    UnknownVerb(String),
    /// A key that the verb needs is missing.
    Missing(&'static str),
    /// The value of this key is invalid.
    BadValue(&'static str),
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LineError::TooLong => write!(f, "a line is longer than {LINE_BYTES_MAX} bytes"),
            LineError::Malformed(why) => write!(f, "a line is no message: {why}"),
            LineError::UnknownVerb(verb) => {
                write!(f, "{verb:?} is unknown; is the other side newer?")
            }
            LineError::Missing(key) => write!(f, "a message lacks {key}"),
            LineError::BadValue(key) => write!(f, "a message's {key} can't be understood"),
        }
    }
}

impl std::error::Error for LineError {}

/// A verb and its keys, in their order in the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    verb: String,
    fields: Vec<(String, String)>,
}

impl Line {
    /// Makes a line with this verb and no keys.
    pub fn new(verb: &str) -> Line {
        Line {
            verb: verb.into(),
            fields: Vec::new(),
        }
    }

    /// Appends a key with its value.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl ToString) -> Line {
        self.fields.push((key.into(), value.to_string()));
        self
    }

    /// Appends a key if there is a value.
    #[must_use]
    pub fn with_some(self, key: &str, value: Option<impl ToString>) -> Line {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    /// Returns the verb.
    pub fn verb(&self) -> &str {
        &self.verb
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        let (_, value) = fields.find(|(known, _)| known == key)?;
        Some(value)
    }

    /// Returns the value of a key that must be present.
    pub fn text(&self, key: &'static str) -> Result<&str, LineError> {
        self.get(key).ok_or(LineError::Missing(key))
    }

    /// Returns the value of a key that must be present, as a number.
    pub fn number<T: std::str::FromStr>(&self, key: &'static str) -> Result<T, LineError> {
        let text = self.text(key)?;
        text.parse().map_err(|_| LineError::BadValue(key))
    }

    /// Parses a line, with or without its newline.
    pub fn decode(bytes: &[u8]) -> Result<Line, LineError> {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        if bytes.len() >= LINE_BYTES_MAX {
            return Err(LineError::TooLong);
        }
        let mut parts = bytes.split(|&b| b == b' ');
        let verb = word(parts.next().unwrap_or_default())?;
        let mut fields: Vec<(String, String)> = Vec::new();
        for part in parts {
            let at = part.iter().position(|&b| b == b'=');
            let at = at.ok_or(LineError::Malformed("a key without a value"))?;
            let key = word(&part[..at])?;
            if fields.len() == KEYS_MAX || fields.iter().any(|(known, _)| *known == key) {
                return Err(LineError::Malformed("too many keys, or one twice"));
            }
            fields.push((key, unescape(&part[at + 1..])?));
        }
        Ok(Line { verb, fields })
    }

    /// Returns the line's bytes with the newline, at most [`LINE_BYTES_MAX`]: values that would make it longer are
    /// truncated.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.verb.clone().into_bytes();
        let keys: usize = self.fields.iter().map(|(key, _)| key.len() + 2).sum();
        let mut room = (LINE_BYTES_MAX - 1).saturating_sub(out.len() + keys);
        for (key, value) in &self.fields {
            out.push(b' ');
            out.extend(key.bytes());
            out.push(b'=');
            room -= escape(value, room, &mut out);
        }
        out.push(b'\n');
        out
    }
}

fn word(bytes: &[u8]) -> Result<String, LineError> {
    let good = |b: &u8| b.is_ascii_lowercase() || *b == b'-';
    if bytes.is_empty() || bytes.len() > WORD_BYTES_MAX || !bytes.iter().all(good) {
        return Err(LineError::Malformed("a verb or key is not of a-z and -"));
    }
    Ok(bytes.iter().map(|&b| char::from(b)).collect())
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._:/,+@-".contains(&byte)
}

/// Appends as many whole characters of the value, escaped, as fit into `room` bytes. Returns the number of bytes that
/// they take.
fn escape(value: &str, room: usize, out: &mut Vec<u8>) -> usize {
    let begin = out.len();
    for char in value.chars() {
        let mut buffer = [0; 4];
        let bytes = char.encode_utf8(&mut buffer).as_bytes();
        let needed: usize = bytes.iter().map(|&b| if is_plain(b) { 1 } else { 3 }).sum();
        if out.len() + needed > begin + room {
            break;
        }
        for &byte in bytes {
            match is_plain(byte) {
                true => out.push(byte),
                false => out.extend(format!("%{byte:02X}").bytes()),
            }
        }
    }
    out.len() - begin
}

fn unescape(bytes: &[u8]) -> Result<String, LineError> {
    let bad = LineError::Malformed("a value is not escaped as it must be");
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if is_plain(byte) {
            out.push(byte);
            continue;
        }
        let Some((digits, after)) = after.split_first_chunk::<2>() else {
            return Err(bad);
        };
        let upper = |b: &u8| matches!(b, b'0'..=b'9' | b'A'..=b'F');
        let text = std::str::from_utf8(digits).ok();
        let decoded = text.and_then(|text| u8::from_str_radix(text, 16).ok());
        match decoded {
            Some(decoded) if byte == b'%' && digits.iter().all(upper) && !is_plain(decoded) => {
                out.push(decoded);
            }
            _ => return Err(bad),
        }
        rest = after;
    }
    String::from_utf8(out).map_err(|_| LineError::Malformed("a value is no UTF-8"))
}

/// Splits a stream of bytes into lines; a line that is too long is dropped up to the next newline.
#[derive(Debug, Default)]
pub struct Lines {
    bytes: Vec<u8>,
    skipping: bool,
}

impl Lines {
    /// Adds bytes that were read. Returns the lines that they complete, without newlines; `Err` stands for one that was
    /// too long.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Result<Vec<u8>, LineError>> {
        let mut lines = Vec::new();
        for &byte in bytes {
            match byte {
                b'\n' if self.skipping => self.skipping = false,
                b'\n' => lines.push(Ok(std::mem::take(&mut self.bytes))),
                _ if self.skipping => {}
                _ if self.bytes.len() + 1 >= LINE_BYTES_MAX => {
                    self.bytes.clear();
                    self.skipping = true;
                    lines.push(Err(LineError::TooLong));
                }
                byte => self.bytes.push(byte),
            }
        }
        lines
    }

    /// Drops the incomplete line.
    pub fn clear(&mut self) {
        *self = Lines::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_can_be_read_by_people() {
        let line = Line::new("refused")
            .with("code", "spent")
            .with("message", "no, twice: 100 %\n");
        let bytes = line.encode();
        assert_eq!(
            String::from_utf8(bytes.clone()).unwrap(),
            "refused code=spent message=no,%20twice:%20100%20%25%0A\n"
        );
        assert_eq!(Line::decode(&bytes).unwrap(), line);
        assert_eq!(line.number::<u32>("code"), Err(LineError::BadValue("code")));
        assert_eq!(line.text("id"), Err(LineError::Missing("id")));
    }

    #[test]
    fn what_is_no_line_is_refused() {
        for bad in [
            &b""[..],
            b"Clone",
            b"clone id",
            b"clone id=1 id=2",
            b"clone  id=1",
            b"clone id=%41",
            b"clone id=%0a",
            b"clone id=%2",
            b"clone id=a b",
            b"clone id=%FF",
            b"clone\tid=1",
        ] {
            assert!(Line::decode(bad).is_err(), "{:?}", bad.escape_ascii());
        }
        let long = [b"clone id=".as_slice(), &[b'1'; LINE_BYTES_MAX]].concat();
        assert_eq!(Line::decode(&long), Err(LineError::TooLong));
        let many: String = (0..=KEYS_MAX as u8)
            .map(|n| format!(" {}=1", char::from(b'a' + n)))
            .collect();
        assert!(Line::decode(format!("clone{many}").as_bytes()).is_err());
    }

    #[test]
    fn after_a_line_that_is_too_long_the_next_one_is_understood() {
        let mut lines = Lines::default();
        let mut told = lines.feed(&[b'x'; 3 * LINE_BYTES_MAX]);
        told.extend(lines.feed(b"rest\ndone\npart"));
        assert_eq!(told, [Err(LineError::TooLong), Ok(b"done".to_vec())]);
        assert_eq!(lines.feed(b"ial\n"), [Ok(b"partial".to_vec())]);
    }

    proptest! {
        #[test]
        fn every_message_has_one_form(
            verb in "[a-z-]{1,24}",
            keys in prop::collection::btree_set("[a-z-]{1,24}", 0..KEYS_MAX),
            value in "\\PC{0,20}",
        ) {
            let mut line = Line::new(&verb);
            for key in keys {
                line = line.with(&key, &value);
            }
            let bytes = line.encode();
            prop_assert!(bytes.len() <= LINE_BYTES_MAX);
            prop_assert_eq!(Line::decode(&bytes).unwrap().encode(), bytes);
        }

        #[test]
        fn garbage_never_panics_and_what_is_accepted_has_that_form(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(line) = Line::decode(&bytes) {
                let stripped = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
                let encoded = line.encode();
                prop_assert_eq!(&encoded[..encoded.len() - 1], stripped);
            }
        }

        #[test]
        fn values_come_back_as_they_were(value in "\\PC{0,60}") {
            let line = Line::new("self").with("name", &value);
            let again = Line::decode(&line.encode()).unwrap();
            prop_assert_eq!(again.get("name"), Some(value.as_str()));
        }
    }
}
