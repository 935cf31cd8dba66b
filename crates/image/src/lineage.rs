//! An image's ancestors.

use crate::Hash;

/// Most ancestors that are followed. A capture a minute for a working day stays below it; republish to flatten a longer one
/// (a manifest is complete in itself, so nothing is lost by dropping its parent).
pub const LINEAGE_DEPTH_MAX: usize = 1024;

/// Why a lineage could not be followed; `E` is the lookup's own error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineageError<E> {
    /// An image is its own ancestor: the catalogue that answered is damaged or lies.
    #[error(
        "image {0} is its own ancestor: the source's manifests are forged or mixed up, do not use it"
    )]
    Loop(Hash),
    /// More than [`LINEAGE_DEPTH_MAX`] ancestors.
    #[error(
        "image {0} has more than {LINEAGE_DEPTH_MAX} ancestors; publish it again without a parent"
    )]
    TooDeep(Hash),
    /// The lookup failed.
    #[error("ancestor {0} cannot be read")]
    Lookup(Hash, #[source] E),
}

/// The ids from `id` to its oldest ancestor that `parent_of` knows, `id` first. `parent_of` returns an image's parent,
/// `None` for a root (or for an ancestor that is not here, which is no error: manifests are complete).
pub fn lineage<E>(
    id: Hash,
    mut parent_of: impl FnMut(&Hash) -> Result<Option<Hash>, E>,
) -> Result<Vec<Hash>, LineageError<E>> {
    let mut out = vec![id];
    let mut seen = std::collections::HashSet::from([id]);
    let mut last = id;
    while let Some(parent) = parent_of(&last).map_err(|e| LineageError::Lookup(last, e))? {
        if !seen.insert(parent) {
            return Err(LineageError::Loop(parent));
        }
        if out.len() > LINEAGE_DEPTH_MAX {
            return Err(LineageError::TooDeep(id));
        }
        out.push(parent);
        last = parent;
    }
    Ok(out)
}
