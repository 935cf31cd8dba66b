//! What an agent tells of who in its guest reads from disks: a program's name, and which parts it has asked for.
//!
//! ```text
//! node                                       agent
//!   watch session=S ->                       from now on, tell
//!   <- asked session=S by=firefox at=2048+8,4096+256 bytes=135168
//! ```
//! Parts are in sectors of 512 bytes, `first+count`, on whichever disk. Where the kernel tells only amounts, `at` is missing.

use crate::line::{Line, LineError};

/// Bytes of a sector.
pub const SECTOR_BYTES: u64 = 512;
/// Most parts of disks in one message: it still fits into a line.
pub const PARTS_MAX: usize = 48;
/// Most bytes of a program's name. Linux' have 15.
pub const NAME_BYTES_MAX: usize = 48;
/// The largest sector number, so that a byte's place is a number as well.
const SECTORS_MAX: u64 = u64::MAX / SECTOR_BYTES;

/// A program, and what it has asked for since it was told last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// The program's name.
    pub by: String,
    /// The parts: first sector and how many. Empty if only the amount is known.
    pub parts: Vec<(u64, u64)>,
    /// How many bytes in all; more than the parts' if those were too many.
    pub bytes: u64,
}

impl Asked {
    pub(crate) fn add_to(&self, line: Line) -> Line {
        let part = |(first, count): &(u64, u64)| format!("{first}+{count}");
        let parts: Vec<String> = self.parts.iter().take(PARTS_MAX).map(part).collect();
        line.with("by", &self.by)
            .with_some("at", (!parts.is_empty()).then(|| parts.join(",")))
            .with("bytes", self.bytes)
    }

    pub(crate) fn of(line: &Line) -> Result<Asked, LineError> {
        let by = line.text("by")?;
        if by.is_empty() || by.len() > NAME_BYTES_MAX || by.chars().any(char::is_control) {
            return Err(LineError::BadValue("by"));
        }
        let parts: Option<Vec<(u64, u64)>> = match line.get("at") {
            None => Some(Vec::new()),
            Some(text) => text.split(',').map(part).collect(),
        };
        let parts = parts.filter(|parts| parts.len() <= PARTS_MAX);
        Ok(Asked {
            by: by.to_owned(),
            parts: parts.ok_or(LineError::BadValue("at"))?,
            bytes: line.number("bytes")?,
        })
    }
}

fn part(text: &str) -> Option<(u64, u64)> {
    let (first, count) = text.split_once('+')?;
    let number = |text: &str| {
        // one form only: `+1` and `01` are numbers to parse() as well
        let number: u64 = text.parse().ok()?;
        (number.to_string() == text && number <= SECTORS_MAX).then_some(number)
    };
    Some((number(first)?, number(count)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::ToHost;

    #[test]
    fn who_asked_is_told_in_a_line_and_nothing_else_is_understood() {
        let asked = Asked {
            by: "web content".into(),
            parts: vec![(2048, 8), (4096, 256)],
            bytes: 135_168,
        };
        let told = ToHost::Asked { session: 7, asked };
        let line = told.encode();
        assert_eq!(
            String::from_utf8_lossy(&line),
            "asked session=0000000000000007 by=web%20content at=2048+8,4096+256 bytes=135168\n"
        );
        assert_eq!(ToHost::decode(&line), Ok(told));
        let bad = [
            "by= at=1+1 bytes=1",
            "by=a at=1 bytes=1",
            "by=a at=01+1 bytes=1",
            "by=a at=+1+1 bytes=1",
            "by=a at=18446744073709551615+1 bytes=1",
            "by=a at= bytes=1",
            "by=a at=1+1",
            "by=%0A bytes=1",
        ];
        for bad in bad {
            let line = format!("asked session=0000000000000007 {bad}");
            assert!(ToHost::decode(line.as_bytes()).is_err(), "{bad}");
        }
        let many = vec!["1+1"; PARTS_MAX + 1].join(",");
        let line = format!("asked session=0000000000000007 by=a at={many} bytes=1");
        assert!(ToHost::decode(line.as_bytes()).is_err());
    }

    #[test]
    fn the_longest_message_fits_into_a_line() {
        let asked = Asked {
            by: "\u{ff}".repeat(NAME_BYTES_MAX / 2),
            parts: vec![(SECTORS_MAX, 9999); PARTS_MAX],
            bytes: u64::MAX,
        };
        let told = ToHost::Asked { session: 7, asked };
        assert_eq!(ToHost::decode(&told.encode()), Ok(told));
    }
}
