//! What names mean: each user has names of its own, and a public name means the image of the user who published it first.
//!
//! A name is published from when it first points to a public image of its owner until it is withdrawn: removed, or pointed to an
//! image that is not public, or its image is made private or removed. The order in which names were published is a number in the
//! catalogue, not a time, and is given in the transaction that publishes. So nobody takes over a name that is public, neither by
//! having had it privately before nor by naming readers, and a name that was withdrawn goes to the next who has published it.

use super::catalogue::{Catalogue, Rows, hash, now_unix_s};
use super::visible::OwnImage;
use floe_image::{Hash, ImageName};
use rusqlite::{Connection, OptionalExtension, params};

impl Catalogue {
    /// Returns the image that `name` means to `viewer`: the viewer's own, otherwise the public one that was published first,
    /// otherwise one that names the viewer as a reader. `OWNER/NAME` means that user's image, whatever names others choose.
    pub fn resolve(&self, name: &ImageName, viewer: Option<&str>) -> Rows<Option<Hash>> {
        let (owner, rest) = name.name().split_once('/').unzip();
        self.reads
            .lock()
            .query_row(
                "SELECT t.image FROM tags t JOIN images i ON i.id = t.image AND i.owner = t.owner
                 LEFT JOIN published p ON p.owner = t.owner AND p.name = t.name AND p.tag = t.tag
                 WHERE t.tag = ?2 AND (t.owner = ?3 AND t.name = ?4 OR t.name = ?1 AND
                   (t.owner IS ?5 OR t.owner IS ?3 OR NOT EXISTS (SELECT 1 FROM users WHERE name = ?3)))
                 AND (i.public OR t.owner = ?5 OR (i.id, i.owner, ?5) IN readers)
                 ORDER BY t.owner IS ?5 DESC, t.name = ?1 DESC, p.seq IS NULL, p.seq, t.moved, t.owner LIMIT 1",
                params![name.name(), name.tag(), owner, rest, viewer],
                |row| hash(row, 0),
            )
            .optional()
    }

    /// Points a tag of an image's owner to the image.
    pub fn tag(&self, image: &OwnImage, name: &ImageName) -> Rows<()> {
        let (owner, id) = (image.owner(), image.id());
        self.change(|db| {
            point(db, owner, name, id)?;
            settle(db, owner, id)
        })
    }

    /// Removes a tag of `owner`. Returns whether it existed.
    pub fn untag(&self, owner: &str, name: &ImageName) -> Rows<bool> {
        let changed = self.change(|db| {
            db.execute(
                "DELETE FROM tags WHERE owner = ?1 AND name = ?2 AND tag = ?3",
                params![owner, name.name(), name.tag()],
            )
        })?;
        Ok(changed > 0)
    }
}

/// Points a tag to an image; [`settle`] must follow in the same transaction.
pub(super) fn point(db: &Connection, owner: &str, name: &ImageName, id: &Hash) -> Rows<()> {
    db.execute(
        "INSERT INTO tags VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO UPDATE SET image = ?4",
        params![
            owner,
            name.name(),
            name.tag(),
            id.as_bytes(),
            now_unix_s() as i64
        ],
    )?;
    Ok(())
}

/// Publishes or withdraws the names of an owner's image, as the image is public or not. Those that are published already keep
/// their place.
pub(super) fn settle(db: &Connection, owner: &str, id: &Hash) -> Rows<()> {
    let named = params![owner, id.as_bytes()];
    db.execute(
        "DELETE FROM published WHERE owner = ?1 AND (name, tag) IN (SELECT name, tag FROM tags t JOIN images i
           ON i.id = t.image AND i.owner = t.owner WHERE t.owner = ?1 AND t.image = ?2 AND NOT i.public)",
        named,
    )?;
    db.execute(
        "INSERT OR IGNORE INTO published (owner, name, tag) SELECT t.owner, t.name, t.tag FROM tags t JOIN images i
           ON i.id = t.image AND i.owner = t.owner WHERE t.owner = ?1 AND t.image = ?2 AND i.public",
        named,
    )?;
    Ok(())
}
