//! The tables of the catalogue, and how those of an earlier hub become those of this one.

use super::catalogue::Rows;
use rusqlite::Connection;

/// Version of the schema, in SQLite's `user_version`.
pub(super) const VERSION: i64 = 7;

const SCHEMA: &str = "
CREATE TABLE users (name TEXT PRIMARY KEY, created INTEGER NOT NULL) STRICT;
CREATE TABLE tokens (hash BLOB PRIMARY KEY, user TEXT NOT NULL REFERENCES users(name), created INTEGER NOT NULL) STRICT;
CREATE TABLE images (id BLOB NOT NULL, owner TEXT NOT NULL REFERENCES users(name), public INTEGER NOT NULL,
    created INTEGER NOT NULL, pushed INTEGER NOT NULL, raw_bytes INTEGER NOT NULL, stored_bytes INTEGER NOT NULL,
    PRIMARY KEY (id, owner)) STRICT;
CREATE TABLE packs (id BLOB PRIMARY KEY, file_bytes INTEGER NOT NULL, index_offset INTEGER NOT NULL,
    index_bytes INTEGER NOT NULL) STRICT;
CREATE TABLE image_packs (image BLOB NOT NULL, owner TEXT NOT NULL, seq INTEGER NOT NULL,
    pack BLOB NOT NULL REFERENCES packs(id), PRIMARY KEY (image, owner, seq),
    FOREIGN KEY (image, owner) REFERENCES images(id, owner) ON DELETE CASCADE) STRICT;
CREATE INDEX image_packs_by_pack ON image_packs(pack);
CREATE TABLE tags (owner TEXT NOT NULL, name TEXT NOT NULL, tag TEXT NOT NULL, image BLOB NOT NULL,
    moved INTEGER NOT NULL, PRIMARY KEY (owner, name, tag),
    FOREIGN KEY (image, owner) REFERENCES images(id, owner) ON DELETE CASCADE) STRICT;
CREATE INDEX tags_by_name ON tags(name, tag);
CREATE TABLE uploads (key TEXT PRIMARY KEY, owner TEXT NOT NULL REFERENCES users(name), image BLOB NOT NULL,
    created INTEGER NOT NULL, touched INTEGER NOT NULL, UNIQUE (owner, image)) STRICT;
CREATE TABLE upload_packs (upload TEXT NOT NULL REFERENCES uploads(key) ON DELETE CASCADE,
    pack BLOB NOT NULL REFERENCES packs(id), staged INTEGER NOT NULL, PRIMARY KEY (upload, pack)) STRICT;
CREATE INDEX upload_packs_by_pack ON upload_packs(pack);
";

/// What version 2 adds.
const SCHEMA_2: &str = "
CREATE TABLE quotas (user TEXT PRIMARY KEY REFERENCES users(name), bytes INTEGER, images INTEGER, traces INTEGER) STRICT;
CREATE TABLE damaged (pack BLOB PRIMARY KEY) STRICT;
";

/// What version 3 adds: further users who may read an image.
const SCHEMA_3: &str = "
CREATE TABLE readers (image BLOB NOT NULL, owner TEXT NOT NULL, user TEXT NOT NULL, PRIMARY KEY (image, owner, user),
    FOREIGN KEY (image, owner) REFERENCES images(id, owner) ON DELETE CASCADE) STRICT;
";

/// What version 4 adds: the order in which public names were published, for those that are public now. Names of an earlier hub
/// get the order in which they were made.
const SCHEMA_4: &str = "
CREATE TABLE published (seq INTEGER PRIMARY KEY, owner TEXT NOT NULL, name TEXT NOT NULL, tag TEXT NOT NULL,
    UNIQUE (owner, name, tag), FOREIGN KEY (owner, name, tag) REFERENCES tags(owner, name, tag) ON DELETE CASCADE) STRICT;
INSERT INTO published (owner, name, tag) SELECT t.owner, t.name, t.tag FROM tags t JOIN images i
    ON i.id = t.image AND i.owner = t.owner WHERE i.public ORDER BY t.moved, t.owner;
";

/// What version 5 adds: what the manifests and layouts of images, and the manifests of uploads, take on the disk, in bytes.
const SCHEMA_5: &str = "
CREATE TABLE image_files (owner TEXT NOT NULL, image BLOB NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (owner, image),
    FOREIGN KEY (image, owner) REFERENCES images(id, owner) ON DELETE CASCADE) STRICT;
CREATE TABLE upload_files (upload TEXT PRIMARY KEY REFERENCES uploads(key) ON DELETE CASCADE, bytes INTEGER NOT NULL) STRICT;
";

/// What version 6 adds: the roots of packs' files, as far as they are known.
const SCHEMA_6: &str = "
ALTER TABLE packs ADD COLUMN root BLOB;
";

/// What version 7 adds: packs of layouts that were replaced, by the name that swarms know a layout by, and when that was.
const SCHEMA_7: &str = "
CREATE TABLE replaced_packs (image BLOB NOT NULL, owner TEXT NOT NULL, layout BLOB NOT NULL, seq INTEGER NOT NULL,
    pack BLOB NOT NULL REFERENCES packs(id), replaced INTEGER NOT NULL, PRIMARY KEY (image, owner, layout, seq),
    FOREIGN KEY (image, owner) REFERENCES images(id, owner) ON DELETE CASCADE) STRICT;
CREATE INDEX replaced_packs_by_pack ON replaced_packs(pack);
";

/// All versions' changes, in their order.
const SCHEMAS: [&str; VERSION as usize] = [
    SCHEMA, SCHEMA_2, SCHEMA_3, SCHEMA_4, SCHEMA_5, SCHEMA_6, SCHEMA_7,
];

fn version(db: &Connection) -> Rows<i64> {
    db.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// Adds to the catalogue what this version has and an older one lacks. Returns the version that it has then. The catalogue of a later hub
/// is left alone.
pub(super) fn bring_up(db: &mut Connection) -> Rows<i64> {
    if version(db)? < VERSION {
        let change = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let before = version(&change)?; // another process may have created the schema first
        for (number, schema) in (1..).zip(SCHEMAS) {
            if before < number {
                change.execute_batch(schema)?;
            }
        }
        change.pragma_update(None, "user_version", VERSION.max(before))?;
        change.commit()?;
    }
    version(db)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_catalogue_of_each_earlier_version_gets_what_it_lacks_once() {
        for before in 0..=VERSION {
            let mut db = Connection::open_in_memory().unwrap();
            for schema in SCHEMAS.iter().take(before as usize) {
                db.execute_batch(schema).unwrap();
            }
            db.pragma_update(None, "user_version", before).unwrap();
            for _ in 0..2 {
                assert_eq!(bring_up(&mut db).unwrap(), VERSION);
            }
            for table in [
                "images",
                "quotas",
                "readers",
                "published",
                "upload_files",
                "replaced_packs",
            ] {
                let count = format!("SELECT count(*) FROM {table}");
                let rows: i64 = db.query_row(&count, [], |row| row.get(0)).unwrap();
                assert_eq!(rows, 0);
            }
            let roots = db.query_row("SELECT count(root) FROM packs", [], |row| row.get(0));
            assert_eq!(roots, Ok(0));
        }
        let mut later = Connection::open_in_memory().unwrap();
        later
            .pragma_update(None, "user_version", VERSION + 1)
            .unwrap();
        assert_eq!(bring_up(&mut later).unwrap(), VERSION + 1);
    }

    #[test]
    fn public_names_of_an_earlier_hub_keep_the_order_that_they_had() {
        let mut db = Connection::open_in_memory().unwrap();
        for schema in &SCHEMAS[..3] {
            db.execute_batch(schema).unwrap();
        }
        db.pragma_update(None, "user_version", 3).unwrap();
        db.execute_batch(
            "INSERT INTO users VALUES ('ann', 0), ('bob', 0), ('eve', 0);
             INSERT INTO images VALUES (x'01', 'ann', 1, 0, 0, 0, 0), (x'02', 'bob', 1, 0, 0, 0, 0), (x'03', 'eve', 0, 0, 0, 0, 0);
             INSERT INTO tags VALUES ('ann', 'web', 'latest', x'01', 9), ('bob', 'web', 'latest', x'02', 8),
                 ('bob', 'cat', 'latest', x'02', 9), ('eve', 'web', 'latest', x'03', 7);",
        )
        .unwrap();
        bring_up(&mut db).unwrap();
        let mut rows = db
            .prepare("SELECT owner || '/' || name FROM published ORDER BY seq")
            .unwrap();
        let names: Rows<Vec<String>> = rows.query_map([], |row| row.get(0)).unwrap().collect();
        assert_eq!(names.unwrap(), ["bob/web", "ann/web", "bob/cat"]);
    }
}
