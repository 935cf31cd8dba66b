//! The one error of all decoders.

use crate::Hash;

/// Why bytes are not what they claim to be. Nothing of the input was used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The bytes end too early: fetch them again.
    #[error(
        "{what} is truncated: {need} bytes needed at offset {at}, the input has {have} in all; fetch it again"
    )]
    Truncated {
        /// The format.
        what: &'static str,
        /// Offset at which bytes were missing.
        at: u64,
        /// Bytes needed there.
        need: u64,
        /// Bytes of the whole input.
        have: u64,
    },
    /// Something else lies where this format was expected.
    #[error("this is no {what}: it starts with {found:02x?}; check the address or the file's name")]
    Magic {
        /// The format.
        what: &'static str,
        /// The bytes found (at most 8).
        found: Vec<u8>,
    },
    /// Written by a later floe.
    #[error(
        "{what} has version {found}, this floe knows version {known}; update floe, or publish the image with this one"
    )]
    Version {
        /// The format.
        what: &'static str,
        /// The version found.
        found: u32,
        /// The version known here.
        known: u32,
    },
    /// A count or size above its named limit.
    #[error("{what} is {found}, at most {max} is allowed")]
    Limit {
        /// The quantity.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The limit.
        max: u64,
    },
    /// A field that contradicts another or the format.
    #[error("{what} is invalid: {why}")]
    Invalid {
        /// The format.
        what: &'static str,
        /// What is wrong, and where.
        why: String,
    },
    /// The content is not what its name promises: another source may have the right bytes.
    #[error(
        "{what} hashes to {found}, expected {expected}: the bytes are damaged or forged, use another source"
    )]
    Mismatch {
        /// The format.
        what: &'static str,
        /// The hash asked for.
        expected: Hash,
        /// The hash of the bytes.
        found: Hash,
    },
}

impl FormatError {
    pub(crate) fn invalid(what: &'static str, why: impl Into<String>) -> FormatError {
        FormatError::Invalid {
            what,
            why: why.into(),
        }
    }
}
