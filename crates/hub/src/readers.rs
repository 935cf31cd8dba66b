//! Users who may read a private image beside its owner: those whom a restricted substrate names.
//!
//! The image says it itself, in the label that `floe dock --restricted` writes; its owner publishes it with that. Users are those of this
//! hub, by name. Whoever makes an image public, or private again, drops the list.

use super::catalogue::{Catalogue, Publication, Rows, hash};
use floe_api::{SUBSTRATE_LABEL, VISIBLE_LABEL, Visibility, visibility_of_label};
use floe_image::{Hash, MachineConfig};
use rusqlite::{Connection, params};
use std::sync::Arc;

/// Returns the users whom an image's configuration names. A label that makes no sense names nobody.
pub(crate) fn named_by(config: &MachineConfig) -> Vec<String> {
    let labels = &config.labels;
    let label = labels.get(VISIBLE_LABEL);
    let label = label.filter(|_| labels.contains_key(SUBSTRATE_LABEL));
    match label.map(|label| visibility_of_label(label)) {
        Some(Ok((Visibility::Restricted, users))) => users,
        _ => Vec::new(),
    }
}

/// Enters the readers of an image that is being published, in place of earlier ones.
pub(super) fn set(db: &Connection, new: &Publication<'_>) -> Rows<()> {
    let (id, owner) = (new.id.as_bytes(), new.owner);
    db.execute(
        "DELETE FROM readers WHERE image = ?1 AND owner = ?2",
        params![id, owner],
    )?;
    for user in new.readers {
        db.execute(
            "INSERT OR IGNORE INTO readers VALUES (?1, ?2, ?3)",
            params![id, owner, user],
        )?;
    }
    Ok(())
}

impl Catalogue {
    /// Returns the users who may read an owner's image beside the owner.
    pub fn readers_of(&self, id: &Hash, owner: &str) -> Vec<Arc<str>> {
        let held = self.holdings.read();
        let mut holdings = held.get(id).into_iter().flatten();
        let found = holdings.find(|holding| *holding.owner == *owner);
        found.map_or(Vec::new(), |holding| holding.readers.clone())
    }

    /// Returns when each image was published last, Unix time in seconds.
    pub fn by_age(&self) -> Rows<Vec<(u64, Hash)>> {
        let db = self.reads.lock();
        let mut rows = db.prepare("SELECT max(pushed), id FROM images GROUP BY id")?;
        let rows = rows.query_map([], |row| Ok((row.get::<_, i64>(0)? as u64, hash(row, 1)?)))?;
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_substrate_names_readers_and_only_in_words_that_make_sense() {
        let named = |labels: &[(&str, &str)]| {
            let label = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            named_by(&MachineConfig {
                labels: labels.iter().map(label).collect(),
                ..Default::default()
            })
        };
        let docked = (SUBSTRATE_LABEL, "web");
        assert_eq!(
            named(&[docked, (VISIBLE_LABEL, "restricted anna,berta")]),
            ["anna", "berta"]
        );
        for nobody in [
            &[(VISIBLE_LABEL, "restricted anna")][..],
            &[docked],
            &[docked, (VISIBLE_LABEL, "public")],
            &[docked, (VISIBLE_LABEL, "private")],
            &[docked, (VISIBLE_LABEL, "restricted a:b")],
            &[docked, (VISIBLE_LABEL, "restricted")],
        ] {
            assert!(named(nobody).is_empty(), "{nobody:?}");
        }
    }
}
