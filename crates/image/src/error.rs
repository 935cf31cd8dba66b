//! The error of all decoders.

use crate::Hash;

/// Why bytes are not what they should be. Nothing of the input was used.
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
    /// The bytes are something else than this format.
    #[error("this is no {what}: it starts with {found:02x?}; check the address or the file's name")]
    Magic {
        /// The format.
        what: &'static str,
        /// The bytes found (at most 8).
        found: Vec<u8>,
    },
    /// The bytes were written by a later version of floe.
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
    /// A count or size is above its limit.
    #[error("{what} is {found}, at most {max} is allowed")]
    Limit {
        /// The quantity that is limited.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The limit.
        max: u64,
    },
    /// A field contradicts another one, or the format.
    #[error("{what} is invalid: {why}")]
    Invalid {
        /// The format.
        what: &'static str,
        /// What is wrong, and where.
        why: String,
    },
    /// The content doesn't have the hash that it should have: another source may have the right bytes.
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
