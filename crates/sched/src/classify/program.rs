//! What names who in a guest has asked.

use super::limits::NAME_BYTES_MAX;
use serde::{Deserialize, Serialize};
use std::fmt;

/// An image, or a disk, by the hash that names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageId(pub [u8; 32]);

/// A program's name, as its guest calls it: 1 to 48 bytes without control characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name {
    bytes: [u8; NAME_BYTES_MAX],
    len: u8,
}

impl Name {
    /// Makes a name of what an agent or a user says.
    pub fn new(text: &str) -> Result<Name, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong { bytes: text.len() });
        }
        if text.chars().any(char::is_control) {
            return Err(NameError::Control(text.to_owned()));
        }
        let mut bytes = [0; NAME_BYTES_MAX];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        let len = text.len() as u8;
        Ok(Name { bytes, len })
    }

    /// Returns its text.
    pub fn as_str(&self) -> &str {
        // it was made of a text of this length
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;

    fn try_from(text: String) -> Result<Name, NameError> {
        Name::new(&text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.as_str().to_owned()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Why a text isn't a program's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It is empty.
    #[error("a program's name is empty")]
    Empty,
    /// It is too long.
    #[error("a program's name has {bytes} bytes, at most {NAME_BYTES_MAX} are allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It contains control characters.
    #[error("the program's name {0:?} contains a control character")]
    Control(String),
}

/// Who in a guest asks, from the exact to the inferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Program {
    /// The guest's agent tells a task's or command's name. All tasks of this name are one program.
    Task(Name),
    /// The file that the block belongs to: who reads it isn't known, but files are read by the same programs again and again.
    File {
        /// The image, or the disk, whose file system has the file.
        image: ImageId,
        /// The file's number in that file system.
        inode: u64,
    },
    /// The directory that the file is in: what belongs to one application lies together, and of a file that was never read before it
    /// tells more than nothing.
    Folder {
        /// The image, or the disk, whose file system has the directory.
        image: ImageId,
        /// The directory's number in that file system.
        inode: u64,
    },
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Program::Task(name) => name.fmt(f),
            Program::File { image, inode } => {
                let [a, b, c, d, ..] = image.0;
                write!(f, "file {inode} of {a:02x}{b:02x}{c:02x}{d:02x}")
            }
            Program::Folder { image, inode } => {
                let [a, b, c, d, ..] = image.0;
                write!(f, "directory {inode} of {a:02x}{b:02x}{c:02x}{d:02x}")
            }
        }
    }
}
