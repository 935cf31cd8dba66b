//! Trees of packs: each is computed when a swarm first asks for it, and kept in a file of `trees/`, which goes with its pack.
//!
//! They take 0.4 % of what the packs take. In memory is the root of each, 100 bytes a pack; what a piece needs of the hashes is read
//! when it is proven. A tree is made of a pack that was verified item by item, so that no root vouches for bytes that went bad on the
//! disk. The catalogue has the root from then on, and layouts name it.

use super::super::HubError;
use super::super::error::ApiResult;
use super::tree_file;
use floe_image::{Hash, PackRef};
use floe_peers::{Pack, Tree};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::OnceCell;

/// A pack's root, once it is known. Whoever asks first finds it out; the others wait for that.
pub(crate) type Root = Arc<OnceCell<Pack>>;

pub(crate) struct Trees {
    folder: PathBuf,
    roots: Mutex<HashMap<Hash, Root>>,
}

impl Trees {
    pub fn open(dir: &Path) -> Result<Trees, HubError> {
        let folder = dir.join("trees");
        floe_store::private::make_dirs(&folder)
            .map_err(HubError::file("cannot create", &folder))?;
        Ok(Trees {
            folder,
            roots: Mutex::default(),
        })
    }

    /// Returns where the tree of a pack is kept.
    pub fn path(&self, id: &Hash) -> PathBuf {
        let name = id.to_string();
        self.folder.join(&name[..2]).join(format!("{name}.tree"))
    }

    /// Returns what is known of a pack's root, or is being found out.
    pub fn root(&self, id: &Hash) -> Root {
        self.roots.lock().entry(*id).or_default().clone()
    }

    /// Forgets the root of a pack, which is found out anew then.
    pub fn forget_root(&self, id: &Hash) {
        self.roots.lock().remove(id);
    }

    /// Forgets the tree of a pack, and removes its file.
    pub fn forget(&self, id: &Hash) {
        self.forget_root(id);
        match std::fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(pack = %id, %error, "the tree of a pack could not be removed");
            }
            _ => {}
        }
    }

    pub fn clear_litter(&self, knows: impl Fn(&Hash) -> bool) -> Result<(), HubError> {
        let clear = || {
            for folder in std::fs::read_dir(&self.folder)? {
                for file in std::fs::read_dir(folder?.path())? {
                    let path = file?.path();
                    let name = path.file_name().and_then(|name| name.to_str());
                    let id = name.and_then(|name| name.strip_suffix(".tree")?.parse().ok());
                    if !id.is_some_and(|id| knows(&id)) {
                        std::fs::remove_file(&path)?;
                    }
                }
            }
            Ok(())
        };
        clear().map_err(HubError::file("cannot clear", &self.folder))
    }

    /// Reads the tree of a pack from its file; `None` if there is none, or none that is whole. Blocks.
    pub fn kept(&self, pack: &PackRef) -> ApiResult<Option<Pack>> {
        let file = match std::fs::read(self.path(&pack.id)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let kept = tree_file::read(&pack.id, &file).filter(|kept| {
            let hashes = Tree::hashes_of(kept.pack_bytes);
            kept.pack_bytes == pack.file_bytes && hashes == Some(kept.hashes_bytes)
        });
        Ok(kept.map(|kept| Pack {
            root: kept.root,
            bytes: kept.pack_bytes,
        }))
    }
}
