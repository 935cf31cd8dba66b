//! Trees of packs: each is computed when a swarm first asks for it, and kept in a file of `trees/`, which goes with its pack.
//!
//! They take 0.4 % of what the packs take. In memory is the root of each, 100 bytes a pack; what a piece needs of the hashes is read
//! when it is proven. A tree is made of a pack that was verified item by item, so that no root vouches for bytes that went bad on the
//! disk. The catalogue has the root from then on, and layouts name it.

use super::super::HubError;
use super::super::access::Viewer;
use super::super::error::{ApiError, ApiResult};
use super::super::shelf::verify_pack;
use super::super::state::{Hub, blocking, blocking_long, is_damage, write_durably};
use super::tree_file;
use axum::http::StatusCode;
use bytes::Bytes;
use floe_image::{Hash, PackRef};
use floe_peers::{Pack, Tree};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::OnceCell;

/// The code of the error for a pack that is damaged.
const DAMAGED: &str = "damaged";

/// A pack's root once it is known. Those who ask for it meanwhile wait for the one who finds it out.
type Root = Arc<OnceCell<Pack>>;

pub(super) struct Trees {
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

    fn path(&self, id: &Hash) -> PathBuf {
        let name = id.to_string();
        self.folder.join(&name[..2]).join(format!("{name}.tree"))
    }

    fn root(&self, id: &Hash) -> Root {
        self.roots.lock().entry(*id).or_default().clone()
    }

    pub fn forget(&self, id: &Hash) {
        self.roots.lock().remove(id);
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
    fn kept(&self, pack: &PackRef) -> ApiResult<Option<Pack>> {
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

/// Returns root and length of a pack. Whose turn it is to find them out is the viewer's.
pub(super) async fn root_of(hub: &Arc<Hub>, viewer: &Viewer, pack: PackRef) -> ApiResult<Pack> {
    let root = hub.swarms.trees.root(&pack.id);
    let found = root.get_or_try_init(|| async {
        let kept = blocking(hub, viewer.party(), move |hub| {
            let kept = hub.swarms.trees.kept(&pack)?;
            kept.map(|kept| note(hub, &pack, kept)).transpose()
        });
        match kept.await? {
            Some(kept) => Ok(kept),
            None => blocking_long(hub, viewer.party(), move |hub| make(hub, &pack)).await,
        }
    });
    found.await.copied()
}

/// Lets layouts name a pack's root, if they don't yet. Blocks.
fn note(hub: &Hub, pack: &PackRef, known: Pack) -> ApiResult<Pack> {
    let root = Hash::from(known.root);
    if pack.root != Some(root) {
        hub.catalogue.note_root(&pack.id, &root)?;
    }
    Ok(known)
}

/// Reads a pack and verifies it item by item. One that is damaged is known as such from then on. Blocks.
fn whole(hub: &Hub, pack: &PackRef) -> ApiResult<Vec<u8>> {
    let damaged = |error: &dyn std::fmt::Display| {
        hub.found_damaged(&pack.id, error);
        ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            DAMAGED,
            format!("pack {} is damaged on this hub", pack.id),
            "push the image again: what is damaged is replaced",
        )
    };
    let bytes = std::fs::read(hub.shelf.pack_path(&pack.id));
    let bytes = bytes.map_err(|error| match is_damage(&error) {
        true => damaged(&error),
        false => error.into(),
    })?;
    verify_pack(&bytes, &pack.id).map_err(|error| damaged(&error))?;
    Ok(bytes)
}

/// Looks whether a pack is damaged, and whether its tree is that of its bytes; one that is not is forgotten, and made anew when it is asked
/// for. Returns whether the pack is damaged.
pub(super) async fn check(hub: &Arc<Hub>, viewer: &Viewer, pack: PackRef) -> ApiResult<bool> {
    blocking_long(hub, viewer.party(), move |hub| {
        let bytes = match whole(hub, &pack) {
            Err(error) if error.body.code == DAMAGED => return Ok(true),
            bytes => bytes?,
        };
        let tree = Tree::of(&bytes[..], bytes.len() as u64)?;
        let kept = hub.swarms.trees.kept(&pack)?;
        if kept.is_some_and(|kept| kept.root != tree.pack().root) {
            tracing::error!(pack = %pack.id, "the kept tree of a pack is another one's; it is made anew");
            hub.swarms.trees.forget(&pack.id);
            note(hub, &pack, tree.pack())?;
        }
        Ok(false)
    })
    .await
}

/// Computes the tree of a pack and keeps it. Blocks.
fn make(hub: &Hub, pack: &PackRef) -> ApiResult<Pack> {
    let bytes = whole(hub, pack)?;
    let tree = Tree::of(&bytes[..], bytes.len() as u64)?;
    let known = tree.pack();
    let file = tree_file::write(&pack.id, &known.root, known.bytes, tree.hashes());
    hub.check_room(file.len() as u64)?;
    let path = hub.swarms.trees.path(&pack.id);
    floe_store::private::make_dirs(path.parent().unwrap_or(Path::new(".")))?;
    write_durably(&path, &file)?;
    if !hub.catalogue.knows_pack(&pack.id)? {
        hub.swarms.trees.forget(&pack.id); // it was removed meanwhile
    }
    note(hub, pack, known)
}

/// Returns a range of a pack in its proven form. If the kept tree does not prove it, one is made anew, which does unless the pack itself
/// is damaged.
pub(super) async fn prove(
    hub: &Arc<Hub>,
    viewer: &Viewer,
    pack: PackRef,
    range: Range<u64>,
) -> ApiResult<Bytes> {
    let known = root_of(hub, viewer, pack).await?;
    let wanted = range.clone();
    let proven = blocking(hub, viewer.party(), move |hub| {
        Ok(prove_now(hub, &pack.id, known, &wanted).ok())
    });
    if let Some(proven) = proven.await? {
        return Ok(proven);
    }
    tracing::warn!(pack = %pack.id, "the kept tree of a pack does not prove it; it is made anew");
    hub.swarms.trees.roots.lock().remove(&pack.id);
    let made = blocking_long(hub, viewer.party(), move |hub| {
        let known = make(hub, &pack)?;
        Ok(prove_now(hub, &pack.id, known, &range)?)
    });
    made.await
}

fn prove_now(hub: &Hub, id: &Hash, pack: Pack, range: &Range<u64>) -> io::Result<Bytes> {
    let bytes = File::open(hub.shelf.pack_path(id))?;
    let hashes = File::open(hub.swarms.trees.path(id))?;
    pack.prove(range, &bytes, hashes)
}
