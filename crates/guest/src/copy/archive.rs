//! What both ends know of an archive: its bounds, and what is said of one that floe can't have made.

use std::io;

/// Deepest directory below the one that is sent; deeper ones are refused.
pub(super) const DEPTH_MAX: usize = 200;

/// Returns the error for an archive with something in it that no sender writes.
pub(super) fn hostile(why: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the archive is not one that floe makes: {why}"),
    )
}
