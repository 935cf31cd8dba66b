//! Proves pieces of packs to the members of swarms, by trees that are made when they are first asked for and kept (`swarm::trees`).

use super::access::Viewer;
use super::disk::{is_damage, write_durably};
use super::error::{ApiError, ApiResult};
use super::packs::verify_pack;
use super::state::{Hub, blocking, blocking_long};
use super::swarm::tree_file;
use axum::http::StatusCode;
use bytes::Bytes;
use floe_image::{Hash, PackRef};
use floe_peers::{Pack, Tree};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The code of the error for a pack that is damaged.
const DAMAGED: &str = "damaged";

/// Returns root and length of a pack. If they have to be found out first, that counts as the viewer's work.
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
    let bytes = std::fs::read(hub.packs.pack_path(&pack.id));
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
    hub.swarms.trees.forget_root(&pack.id);
    let made = blocking_long(hub, viewer.party(), move |hub| {
        let known = make(hub, &pack)?;
        Ok(prove_now(hub, &pack.id, known, &range)?)
    });
    made.await
}

fn prove_now(hub: &Hub, id: &Hash, pack: Pack, range: &Range<u64>) -> io::Result<Bytes> {
    let bytes = File::open(hub.packs.pack_path(id))?;
    let hashes = File::open(hub.swarms.trees.path(id))?;
    pack.prove(range, &bytes, hashes)
}
