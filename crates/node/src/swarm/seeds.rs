//! Images that this node gives to others although no machine of its own runs them, in a file that outlives it.

use super::{decide::Key, member::Place};
use crate::{
    error::NodeError,
    files::{load_one, replace_file},
};
use floe_image::Hash;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Most images that are given at a time.
const SEEDS_MAX: usize = 1024;
/// Largest file that is read.
const BYTES_MAX: u64 = 16 << 20;

/// One image. The file has tokens in it, and is readable by the node's user only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Seeded {
    pub image: Hash,
    /// As its user named it.
    pub name: String,
    pub url: String,
    pub token: Option<String>,
    pub ca: Option<String>,
}

impl Seeded {
    pub fn place(&self) -> Place {
        Place {
            url: self.url.clone(),
            token: self.token.clone(),
            ca: self.ca.clone(),
        }
    }

    pub fn key(&self) -> Option<Key> {
        Some(Key {
            hub: floe_api::credentials::HubAddress::of(&self.url)?,
            image: self.image,
        })
    }
}

/// All of them. Locks: itself, while the file is written, so that it says what is meant.
pub(super) struct Seeds {
    file: PathBuf,
    all: Mutex<Vec<Seeded>>,
}

impl Seeds {
    /// Reads the file. A damaged one is set aside, and nothing is given; one that can't be read now is an error.
    pub fn open(file: PathBuf) -> Result<Seeds, NodeError> {
        let parse = |bytes: &[u8]| serde_json::from_slice(bytes).map_err(|why| why.to_string());
        let all = load_one(&file, BYTES_MAX, parse, "holds no list of images to give")?;
        Ok(Seeds {
            file,
            all: Mutex::new(all.unwrap_or_default()),
        })
    }

    pub fn all(&self) -> Vec<Seeded> {
        self.all.lock().clone()
    }

    /// Adds an image, or replaces how it is reached.
    pub fn add(&self, seeded: Seeded) -> Result<(), NodeError> {
        self.change(|all| {
            all.retain(|other| other.key() != seeded.key());
            all.push(seeded);
            let excess = all.len().saturating_sub(SEEDS_MAX);
            all.drain(..excess);
        })
    }

    /// Takes those away that are meant.
    pub fn remove(&self, meant: impl Fn(&Seeded) -> bool) -> Result<bool, NodeError> {
        let before = self.all.lock().len();
        self.change(|all| all.retain(|one| !meant(one)))?;
        Ok(self.all.lock().len() < before)
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Seeded>)) -> Result<(), NodeError> {
        let mut all = self.all.lock();
        let mut next = all.clone();
        change(&mut next);
        if next != *all {
            let text = serde_json::to_vec_pretty(&next).unwrap_or_default();
            replace_file(&self.file, &text)?;
            *all = next;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seeded_outlives_the_node_and_a_damaged_list_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("seeds.json");
        let seeded = |image: &[u8], token: &str| Seeded {
            image: Hash::of(image),
            name: "https://hub/web".into(),
            url: "https://hub".into(),
            token: Some(token.into()),
            ca: None,
        };
        let seeds = Seeds::open(file.clone()).unwrap();
        seeds.add(seeded(b"a", "old")).unwrap();
        seeds.add(seeded(b"b", "t")).unwrap();
        seeds.add(seeded(b"a", "new")).unwrap();
        let again = Seeds::open(file.clone()).unwrap();
        assert_eq!(again.all(), [seeded(b"b", "t"), seeded(b"a", "new")]);
        assert!(again.remove(|one| one.image == Hash::of(b"b")).unwrap());
        assert!(!again.remove(|one| one.image == Hash::of(b"b")).unwrap());
        assert_eq!(
            Seeds::open(file.clone()).unwrap().all(),
            [seeded(b"a", "new")]
        );
        std::fs::write(&file, b"[{").unwrap();
        assert!(Seeds::open(file.clone()).unwrap().all().is_empty());
        // what can't be read now may be whole
        std::os::unix::fs::symlink("x".repeat(300), &file).unwrap();
        assert!(Seeds::open(file.clone()).is_err());
        assert!(file.is_symlink());
    }
}
