//! Why a foreign disk is refused. No I/O.

/// Why an image is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It refers to another file.
    Needs {
        /// What that file is to it: `backing file`.
        what: &'static str,
        /// That file's name, as the image gives it.
        name: String,
    },
    /// Its disk is encrypted, in this way.
    Encrypted(&'static str),
    /// It is one of several files of a disk, and not the one that names the others.
    Part,
    /// Its header makes no sense.
    Damaged(String),
}
