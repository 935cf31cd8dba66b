//! What can go wrong on the local disk, in the terms of what the caller can do about it.

use std::io;
use std::path::{Path, PathBuf};

use floe_image::{FormatError, Hash};

/// An error of the cache, the repository or an ingest.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// An I/O error that has no better name.
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
        /// What is full.
        why: String,
        /// The way out, as an instruction.
        fix: String,
    },
    /// Another process holds the directory.
    #[error("{} is in use by {holder}; stop that process, or set another FLOE_HOME", path.display())]
    Busy {
        /// The directory.
        path: PathBuf,
        /// Who holds it, as it wrote itself down: "process 4711 (floe)".
        holder: String,
    },
    /// Bytes that are not what their name says. They were not stored, or are treated as missing from now on.
    #[error(
        "{what} is corrupt: it should hash to {expected} and hashes to {found}; fetch it again from another source"
    )]
    Corrupt {
        /// What was read or offered.
        what: String,
        /// Its name.
        expected: Hash,
        /// The hash of the bytes.
        found: Hash,
    },
    /// A file that does not parse.
    #[error("{} is not valid: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: FormatError,
    },
    /// No image, tag, region or pack of this name.
    #[error("{what} not found in {}; {fix}", path.display())]
    NotFound {
        /// What was asked for, with its name.
        what: String,
        /// The repository.
        path: PathBuf,
        /// The way out, as an instruction.
        fix: String,
    },
    /// A prefix that several images share.
    #[error(
        "`{prefix}` is ambiguous, it begins {}; give more digits",
        list(matches)
    )]
    Ambiguous {
        /// What was asked for.
        prefix: String,
        /// The images that begin so.
        matches: Vec<Hash>,
    },
    /// An image whose packs don't hold all that its manifest names. It is not published.
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
        /// Where in the image it belongs.
        place: String,
    },
    /// A call that cannot be carried out as asked.
    #[error("{what}")]
    Invalid {
        /// What is wrong and what to do instead.
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
    /// Name an I/O error: a full disk or quota becomes [`StoreError::Full`], the rest keeps its path.
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

    /// A file whose content cannot be used; for callers with other sources the same as one that cannot be read.
    pub(crate) fn damaged(path: impl AsRef<Path>, why: String) -> StoreError {
        let source = io::Error::new(io::ErrorKind::InvalidData, why);
        StoreError::Io {
            what: "use",
            path: path.as_ref().to_path_buf(),
            source,
        }
    }

    /// Is this a full disk or a full cache?
    pub fn is_full(&self) -> bool {
        matches!(self, StoreError::Full { .. })
    }
}

/// The three ways in which a file system says that it has no room. By kind: wrapped errors keep that, not their number.
pub(crate) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}
