//! An image's ancestors.

use crate::Hash;

/// Most ancestors that are followed: enough for a capture every minute of a working day. Publish an image without a parent to
/// end a longer lineage (a manifest is complete in itself, so nothing is lost without the parent).
pub const LINEAGE_DEPTH_MAX: usize = 1024;

/// Why a lineage could not be followed. `E` is the error of the look-up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineageError<E> {
    /// An image is its own ancestor: whoever answered has damaged or forged data.
    #[error(
        "image {0} is its own ancestor: the source's manifests are forged or mixed up, do not use it"
    )]
    Loop(Hash),
    /// There are more than [`LINEAGE_DEPTH_MAX`] ancestors.
    #[error(
        "image {0} has more than {LINEAGE_DEPTH_MAX} ancestors; publish it again without a parent"
    )]
    TooDeep(Hash),
    /// The look-up failed.
    #[error("ancestor {0} cannot be read")]
    Lookup(Hash, #[source] E),
}

/// Returns the ids from `id` to its oldest known ancestor, `id` first. `parent_of` returns an image's parent: `None` for an
/// image without a parent, or for one that isn't here (which is no error, since manifests are complete in themselves).
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
