//! Who may see an image: only the check of a caller makes a [`VisibleImage`], and everything that reads an image takes one.
//!
//! A handler takes it as an argument (`seen`), and is not reached by those who may not see the image. One that forgets to does not
//! compile: it has no packs, no scope, no manifest and no owner's name to go on with. What the hub does by itself, such as filling a pool, it does
//! as the image's owner.

use super::catalogue::{Catalogue, Holding, Rows, pack_ref};
use floe_image::{Hash, PackRef};
use rusqlite::params;
use std::sync::Arc;

/// One owner's copy of an image that somebody may see.
#[derive(Clone, Debug)]
pub(crate) struct VisibleImage {
    id: Hash,
    holding: Holding,
}

impl Catalogue {
    /// Returns the copy of image `id` that `viewer` may see: the viewer's own, or a public one, or one that names the viewer.
    pub fn visible(&self, id: &Hash, viewer: Option<&str>) -> Option<VisibleImage> {
        let held = self.holdings.read();
        let holdings = held.get(id)?;
        let own = holdings.iter().find(|h| Some(&*h.owner) == viewer);
        let names = |h: &&Holding| h.readers.iter().any(|reader| Some(&**reader) == viewer);
        let other = || holdings.iter().find(|h| h.public);
        let other = own.or_else(other).or_else(|| holdings.iter().find(names));
        let holding = other?.clone();
        Some(VisibleImage { id: *id, holding })
    }

    /// Returns the packs of an image, in layout order.
    pub fn packs(&self, image: &VisibleImage) -> Rows<Vec<PackRef>> {
        let db = self.reads.lock();
        let mut rows = db.prepare_cached(
            "SELECT p.id, p.file_bytes, p.index_offset, p.index_bytes, p.root FROM image_packs i JOIN packs p ON p.id = i.pack
             WHERE i.image = ?1 AND i.owner = ?2 ORDER BY i.seq",
        )?;
        let of = params![image.id().as_bytes(), &**image.owner()];
        let rows = rows.query_map(of, |row| pack_ref(row, 0))?;
        rows.collect()
    }
}

impl VisibleImage {
    /// Returns the image's id.
    pub fn id(&self) -> &Hash {
        &self.id
    }

    /// Returns the name of the user whose copy it is.
    pub fn owner(&self) -> &Arc<str> {
        &self.holding.owner
    }

    /// Returns whether everybody may see it.
    pub fn public(&self) -> bool {
        self.holding.public
    }

    /// Returns whose copy it is, with all who may see it.
    pub fn holding(&self) -> &Holding {
        &self.holding
    }

    /// Returns it as the viewer's own, if it is.
    pub fn own(self, viewer: Option<&str>) -> Result<OwnImage, VisibleImage> {
        match viewer == Some(&*self.holding.owner) {
            true => Ok(OwnImage(self)),
            false => Err(self),
        }
    }
}

/// An image of the caller's own, which alone may be changed.
#[derive(Clone, Debug)]
pub(crate) struct OwnImage(VisibleImage);

impl std::ops::Deref for OwnImage {
    type Target = VisibleImage;

    fn deref(&self) -> &VisibleImage {
        &self.0
    }
}
