//! Errors of the local store, by what the caller can do about them.

use std::io;
use std::path::{Path, PathBuf};

use floe_image::{FormatError, Hash};

/// An error of the cache, the repository or an ingest.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// An I/O error that none of the others describes.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried: "read", "create" ...
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// No room: the disk is full, or everything in the cache is pinned by running machines.
    #[error("no room in {}: {why}; {fix}", path.display())]
    Full {
        /// The directory that is full.
        path: PathBuf,
        /// Why there is no room.
        why: String,
        /// What to do about it, as an instruction.
        fix: String,
    },
    /// Another process uses the directory.
    #[error("{} is in use by {holder}; stop that process, or set another FLOE_HOME", path.display())]
    Busy {
        /// The directory.
        path: PathBuf,
        /// Who uses it, in that process's own words: "process 4711 (floe)".
        holder: String,
    },
    /// Bytes don't have the hash that they should have. They were not stored, or count as missing from now on.
    #[error(
        "{what} is corrupt: it should hash to {expected} and hashes to {found}; fetch it again from another source"
    )]
    Corrupt {
        /// What was read, or was to be stored.
        what: String,
        /// The hash that it should have.
        expected: Hash,
        /// The hash of its bytes.
        found: Hash,
    },
    /// A file can't be decoded.
    #[error("{} is not valid: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: FormatError,
    },
    /// There is no image, tag, region or pack with this name.
    #[error("{what} not found in {}; {fix}", path.display())]
    NotFound {
        /// What was asked for, with its name.
        what: String,
        /// The repository.
        path: PathBuf,
        /// What to do about it, as an instruction.
        fix: String,
    },
    /// Several images' ids begin with this prefix.
    #[error(
        "`{prefix}` is ambiguous, it begins {}; give more digits",
        list(matches)
    )]
    Ambiguous {
        /// The prefix.
        prefix: String,
        /// The images whose ids begin with it.
        matches: Vec<Hash>,
    },
    /// An image's packs don't hold everything that its manifest names. It is not published.
    #[error(
        "image {image} is incomplete: {missing} items are in none of its packs, the first is {first} ({place}); upload the packs that hold them"
    )]
    Incomplete {
        /// The image.
        image: Hash,
        /// How many segments and chunks are missing.
        missing: u64,
        /// The first of them.
        first: Hash,
        /// Where in the image it is needed.
        place: String,
    },
    /// A call can't be carried out as asked.
    #[error("{what}")]
    Invalid {
        /// What is wrong, and what to do instead.
        what: String,
    },
    /// The caller's progress callback asked to stop.
    #[error("stopped on request; nothing was published")]
    Cancelled,
}

fn list(hashes: &[Hash]) -> String {
    let shown: Vec<String> = hashes
        .iter()
        .take(4)
        .map(|h| h.to_string()[..16].to_owned())
        .collect();
    let more = hashes.len().saturating_sub(4);
    if more > 0 {
        format!("{} and {more} more", shown.join(", "))
    } else {
        shown.join(", ")
    }
}

impl StoreError {
    /// Makes an error of an I/O error: [`StoreError::Full`] for a full disk or quota, else [`StoreError::Io`].
    pub(crate) fn io(what: &'static str, path: impl AsRef<Path>, source: io::Error) -> StoreError {
        let path = path.as_ref().to_path_buf();
        if is_full(&source) {
            return StoreError::Full {
                path,
                why: format!("the file system refused to {what}: {source}"),
                fix: "free space there (`floe cache gc`, `floe image rm`) or move FLOE_HOME to a larger disk, then repeat"
                    .to_owned(),
            };
        }
        StoreError::Io { what, path, source }
    }

    /// Makes an error for a file whose content can't be used. Callers with other sources treat it like a file that can't be
    /// read.
    pub(crate) fn damaged(path: impl AsRef<Path>, why: String) -> StoreError {
        let source = io::Error::new(io::ErrorKind::InvalidData, why);
        StoreError::Io {
            what: "use",
            path: path.as_ref().to_path_buf(),
            source,
        }
    }

    /// Returns whether this is a full disk or a full cache.
    pub fn is_full(&self) -> bool {
        matches!(self, StoreError::Full { .. })
    }
}

/// Returns whether a file system reports that it has no room, in any of three ways. It looks at the kind of error, because
/// wrapped errors keep that, but not the errno.
pub(crate) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}
