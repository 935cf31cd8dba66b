//! Layouts that were replaced while a swarm still reads by them: their packs stay for a while.
//!
//! An image that is pushed anew may come in other packs. Nodes that run it go on with those that they have pieces of, and bring these to each
//! other; so the hub gives them, too, as long as a member of the swarm names the layout, at most for a day, and only in room that their owner
//! does not use: they don't count as stored, and go as soon as it is needed. Nobody may read them who could not before.

use super::catalogue::{Catalogue, Publication, Rows, hash, pack_ref};
use super::disk::BLOCK_BYTES;
use super::visible::VisibleImage;
use floe_image::{Hash, PackRef};
use floe_peers::{Content, Pack};
use rusqlite::{Connection, OptionalExtension, params};

/// Longest time that a layout is kept after it was replaced, in seconds.
const KEPT_S: u64 = 24 * 3600;

/// Returns what members of swarms call a layout; `None` if none of them can know it.
fn name_of(packs: &[PackRef]) -> Option<[u8; 32]> {
    let known = packs.iter().map(|pack| {
        let root = pack.root?;
        Some(Pack {
            root: *root.as_bytes(),
            bytes: pack.file_bytes,
        })
    });
    let content = Content::new(known.collect::<Option<_>>()?).ok()?;
    Some(content.id())
}

/// Whether the same users may read an image as before.
fn same_readers(db: &Connection, new: &Publication<'_>) -> Rows<bool> {
    let of = params![new.id.as_bytes(), new.owner];
    let public = "SELECT public FROM images WHERE id = ?1 AND owner = ?2";
    let public: Option<bool> = db.query_row(public, of, |row| row.get(0)).optional()?;
    let mut rows = db.prepare("SELECT user FROM readers WHERE image = ?1 AND owner = ?2")?;
    let readers = rows.query_map(of, |row| row.get::<_, String>(0))?;
    let mut readers = readers.collect::<Rows<Vec<String>>>()?;
    let mut named = new.readers.to_vec();
    for users in [&mut readers, &mut named] {
        users.sort();
        users.dedup();
    }
    Ok(public == Some(new.public) && readers == named)
}

/// Keeps the layout that a publication replaces if a swarm reads by it. If others may read the image from now on, nothing is kept: what was
/// stored for the one may hold what the others must not see.
pub(super) fn keep(db: &Connection, new: &Publication<'_>, now_unix_s: u64) -> Rows<()> {
    let of = params![new.id.as_bytes(), new.owner];
    if !same_readers(db, new)? {
        db.execute(
            "DELETE FROM replaced_packs WHERE image = ?1 AND owner = ?2",
            of,
        )?;
        return Ok(());
    }
    let mut rows = db.prepare(
        "SELECT p.id, p.file_bytes, p.index_offset, p.index_bytes, p.root FROM image_packs i JOIN packs p ON p.id = i.pack
         WHERE i.image = ?1 AND i.owner = ?2 ORDER BY i.seq",
    )?;
    let before = rows.query_map(of, |row| pack_ref(row, 0))?;
    let before = before.collect::<Rows<Vec<PackRef>>>()?;
    let ids = |packs: &[PackRef]| packs.iter().map(|pack| pack.id).collect::<Vec<Hash>>();
    let name = name_of(&before).filter(|name| new.named.contains(name));
    let Some(name) = name.filter(|_| ids(&before) != ids(new.packs)) else {
        return Ok(());
    };
    for (seq, pack) in before.iter().enumerate() {
        db.execute(
            "INSERT OR REPLACE INTO replaced_packs VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![
                new.id.as_bytes(),
                new.owner,
                name,
                seq as i64,
                pack.id.as_bytes(),
                now_unix_s as i64
            ],
        )?;
    }
    Ok(())
}

/// Stops keeping replaced layouts of an owner's images if what the owner stores (`used_bytes`) needs the room.
pub(super) fn make_room(
    db: &Connection,
    owner: &str,
    quota_bytes: u64,
    used_bytes: impl FnOnce() -> Rows<u64>,
) -> Rows<()> {
    let kept: i64 = db.query_row(
        "SELECT coalesce(sum((file_bytes + ?2 - 1) / ?2 * ?2), 0) FROM packs
         WHERE id IN (SELECT pack FROM replaced_packs WHERE owner = ?1)
         AND id NOT IN (SELECT pack FROM image_packs WHERE owner = ?1)",
        params![owner, BLOCK_BYTES as i64],
        |row| row.get(0),
    )?;
    if kept > 0 && used_bytes()?.saturating_add(kept as u64) > quota_bytes {
        db.execute("DELETE FROM replaced_packs WHERE owner = ?1", [owner])?;
    }
    Ok(())
}

impl Catalogue {
    /// Returns the packs that members of an image's swarm may bring each other, each once: of layouts that were replaced, the first ones
    /// first, and of the present one. All public copies of an image are one swarm.
    pub fn swarm_packs(&self, image: &VisibleImage) -> Rows<Vec<PackRef>> {
        let db = self.reads.lock();
        let mut rows = db.prepare_cached(
            "SELECT p.id, p.file_bytes, p.index_offset, p.index_bytes, p.root FROM
             (SELECT owner, replaced AS until, layout, seq, pack FROM replaced_packs WHERE image = ?1 UNION ALL
              SELECT owner, 9223372036854775807, x'', seq, pack FROM image_packs WHERE image = ?1) l JOIN packs p ON p.id = l.pack
             WHERE l.owner = ?2 OR ?3 AND EXISTS
               (SELECT 1 FROM images i WHERE i.id = ?1 AND i.owner = l.owner AND i.public)
             ORDER BY l.until, l.owner, l.layout, l.seq",
        )?;
        let of = params![image.id().as_bytes(), &**image.owner(), image.public()];
        let rows = rows.query_map(of, |row| pack_ref(row, 0))?;
        let mut packs = rows.collect::<Rows<Vec<PackRef>>>()?;
        let mut known = std::collections::HashSet::new();
        packs.retain(|pack| known.insert(pack.id));
        Ok(packs)
    }

    /// Stops keeping layouts, of one image or of all, that were replaced and that nobody reads by, or that were kept long enough. `is_used`
    /// says whether somebody reads by one: an image, its layout's name, and when that was replaced, in seconds. The files go when packs are
    /// swept.
    pub fn retire(
        &self,
        image: Option<&Hash>,
        now_unix_s: u64,
        is_used: impl Fn(&Hash, &[u8; 32], u64) -> bool,
    ) -> Rows<()> {
        let (from, to) = match image {
            Some(image) => (*image, *image),
            None => (Hash([0; 32]), Hash([0xFF; 32])),
        };
        let mut over = {
            let db = self.reads.lock();
            let mut rows = db.prepare_cached(
                "SELECT DISTINCT image, layout, replaced FROM replaced_packs WHERE image BETWEEN ?1 AND ?2",
            )?;
            let range = params![from.as_bytes(), to.as_bytes()];
            let rows = rows.query_map(range, |row| {
                Ok((hash(row, 0)?, hash(row, 1)?, row.get::<_, i64>(2)?))
            })?;
            rows.collect::<Rows<Vec<(Hash, Hash, i64)>>>()?
        };
        let old = now_unix_s.saturating_sub(KEPT_S) as i64;
        over.retain(|(image, layout, replaced)| {
            *replaced <= old || !is_used(image, layout.as_bytes(), *replaced as u64)
        });
        if over.is_empty() {
            return Ok(());
        }
        self.change(|db| {
            for (image, layout, replaced) in &over {
                db.execute(
                    "DELETE FROM replaced_packs WHERE image = ?1 AND layout = ?2 AND replaced = ?3",
                    params![image.as_bytes(), layout.as_bytes(), replaced],
                )?;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Quota;
    use super::*;
    use std::collections::HashSet;

    const IMAGE: Hash = Hash([1; 32]);
    const MIB: u64 = 1 << 20;

    fn pack(name: u8) -> PackRef {
        PackRef {
            id: Hash([name; 32]),
            file_bytes: MIB,
            index_offset: 100,
            index_bytes: 100,
            root: None,
        }
    }

    /// A hub of ann's, with what the members of the image's swarm name.
    struct World {
        catalogue: Catalogue,
        named: HashSet<[u8; 32]>,
        public: bool,
        _dir: tempfile::TempDir,
    }

    impl World {
        fn new() -> World {
            let dir = tempfile::tempdir().unwrap();
            let catalogue = Catalogue::open(dir.path()).unwrap();
            catalogue.ensure_user("ann").unwrap();
            World {
                catalogue,
                named: HashSet::new(),
                public: false,
                _dir: dir,
            }
        }

        /// Publishes the image in these packs, of which a swarm has asked the roots, and whose layout its members name from then on.
        fn publish(&mut self, image: Hash, names: &[u8], quota_bytes: u64) {
            let packs: Vec<PackRef> = names.iter().map(|name| pack(*name)).collect();
            let new = Publication {
                id: image,
                owner: "ann",
                public: self.public,
                readers: &[],
                created_unix_s: 0,
                raw_bytes: 0,
                packs: &packs,
                files_bytes: 0,
                name: None,
                upload: None,
                quota: Quota {
                    bytes: quota_bytes,
                    ..Quota::default()
                },
                named: &self.named,
            };
            assert_eq!(self.catalogue.publish(&new).unwrap(), Ok(()));
            for pack in &packs {
                self.catalogue.note_root(&pack.id, &pack.id).unwrap();
            }
            let name = name_of(&self.present(image));
            self.named.extend(name);
        }

        fn present(&self, image: Hash) -> Vec<PackRef> {
            let image = self.catalogue.visible(&image, Some("ann")).unwrap();
            self.catalogue.packs(&image).unwrap()
        }

        /// The names of what the swarm may bring.
        fn brings(&self) -> Vec<u8> {
            let image = self.catalogue.visible(&IMAGE, Some("ann")).unwrap();
            let packs = self.catalogue.swarm_packs(&image).unwrap();
            packs.iter().map(|pack| pack.id.0[0]).collect()
        }

        fn retire(&self, now_unix_s: u64) {
            let used = |_: &Hash, layout: &[u8; 32], _| self.named.contains(layout);
            self.catalogue.retire(None, now_unix_s, used).unwrap();
        }
    }

    fn now_unix_s() -> u64 {
        super::super::catalogue::now_unix_s()
    }

    #[test]
    fn a_replaced_layout_is_kept_while_it_is_named_and_no_longer_than_a_day() {
        let mut world = World::new();
        world.publish(IMAGE, &[1, 2, 3], 100 * MIB);
        assert_eq!(world.brings(), [1, 2, 3]);
        // the same again replaces nothing
        world.publish(IMAGE, &[1, 2, 3], 100 * MIB);
        world.publish(IMAGE, &[4, 2], 100 * MIB);
        assert_eq!(world.brings(), [1, 2, 3, 4]);
        assert_eq!(world.catalogue.forget_unused_packs().unwrap(), []);
        let readable = |name: u8, who| {
            let found = world.catalogue.pack_readable(&Hash([name; 32]), who);
            found.unwrap().is_some()
        };
        assert!(readable(1, Some("ann")) && !readable(1, None) && !readable(1, Some("bob")));
        world.retire(now_unix_s());
        assert_eq!(world.brings(), [1, 2, 3, 4]);
        world.retire(now_unix_s() + KEPT_S + 1);
        assert_eq!(world.brings(), [4, 2]);
        let mut gone = world.catalogue.forget_unused_packs().unwrap();
        gone.sort();
        assert_eq!(gone, [Hash([1; 32]), Hash([3; 32])]);
        // nobody names it any more, or ever did
        world.publish(IMAGE, &[5], 100 * MIB);
        assert_eq!(world.brings(), [4, 2, 5]);
        world.named.clear();
        world.retire(now_unix_s());
        assert_eq!(world.brings(), [5]);
        world.publish(IMAGE, &[6], 100 * MIB);
        assert_eq!(world.brings(), [6]);
        // what goes with the image goes
        world.publish(IMAGE, &[7], 100 * MIB);
        assert_eq!(world.brings(), [6, 7]);
        world.catalogue.remove(&IMAGE, "ann").unwrap();
        assert_eq!(world.catalogue.forget_unused_packs().unwrap().len(), 5);
    }

    #[test]
    fn what_is_kept_takes_only_room_that_its_owner_does_not_use() {
        let mut world = World::new();
        // there is no room for both
        world.publish(IMAGE, &[1, 2], 3 * MIB);
        world.publish(IMAGE, &[3, 4], 3 * MIB);
        assert_eq!(world.brings(), [3, 4]);
        // there is, until something else needs it
        world.publish(IMAGE, &[5, 6], 4 * MIB);
        assert_eq!(world.brings(), [3, 4, 5, 6]);
        assert_eq!(world.catalogue.used("ann").unwrap().bytes, 2 * MIB);
        world.publish(Hash([2; 32]), &[7], 4 * MIB);
        assert_eq!(world.brings(), [5, 6]);
    }

    #[test]
    fn nothing_is_kept_for_other_readers() {
        let mut world = World::new();
        world.publish(IMAGE, &[1, 2], 100 * MIB);
        world.publish(IMAGE, &[3], 100 * MIB);
        assert_eq!(world.brings(), [1, 2, 3]);
        world.public = true;
        world.publish(IMAGE, &[4], 100 * MIB);
        assert_eq!(world.brings(), [4]);
        // all who may read it now may read what was public already
        world.publish(IMAGE, &[5], 100 * MIB);
        assert_eq!(world.brings(), [4, 5]);
        let strangers = world.catalogue.pack_readable(&Hash([4; 32]), None);
        assert!(strangers.unwrap().is_some());
        world.public = false;
        world.publish(IMAGE, &[5], 100 * MIB);
        assert_eq!(world.brings(), [5]);
    }
}
