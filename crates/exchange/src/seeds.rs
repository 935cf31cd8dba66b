//! Images that this node gives to others although no machine of its own runs them, in a file that outlives it.

use super::{decide::Key, member::Place};
use floe_ground::{
    error::{NodeError, usage},
    files::{load_one, replace_file},
};
use floe_image::Hash;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, path::PathBuf};

/// Most images that are given at a time.
const SEEDS_MAX: usize = 1024;
/// Largest file that is read: as many, each with the keys of as many nodes as a swarm has.
const BYTES_MAX: u64 = 512 << 20;

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
    /// How many other nodes are to have had all of it before it is given no longer; `None`: its user ends that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u32>,
    /// The keys of those that have, as they say; not kept where nobody counts them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub complete: BTreeSet<String>,
}

impl Seeded {
    /// Whether enough others have had all of it.
    fn is_done(&self) -> bool {
        let enough = |until: u32| self.complete.len() >= until as usize;
        self.until.is_some_and(enough)
    }

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

    /// Adds an image, or replaces how it is reached and until when it is given: who has had all of it stays known.
    pub fn add(&self, mut seeded: Seeded) -> Result<(), NodeError> {
        let key = seeded.key();
        let is_same = |other: &Seeded| other.key() == key;
        let (known, count) = {
            let all = self.all.lock();
            (all.iter().any(is_same), all.len())
        };
        if !known && count >= SEEDS_MAX {
            return Err(usage(
                format!("this node gives {SEEDS_MAX} images already, which are the most"),
                "end one of them first: floe swarm leave",
            ));
        }
        self.change(|all| {
            if let Some(before) = all.iter().position(is_same) {
                seeded.complete.extend(all.remove(before).complete);
            }
            all.push(seeded);
        })
    }

    /// Notes which nodes have had all of an image that is given until so many have. Takes it away once they are enough and all of it is
    /// `here`, and returns whether it did.
    pub fn saw(
        &self,
        key: &Key,
        complete: &BTreeSet<String>,
        here: bool,
    ) -> Result<bool, NodeError> {
        let mut done = false;
        self.change(|all| {
            all.retain_mut(|one| {
                if one.until.is_none() || one.key().as_ref() != Some(key) {
                    return true;
                }
                if !one.is_done() {
                    one.complete.extend(complete.iter().cloned());
                }
                done = here && one.is_done();
                !done
            });
        })?;
        Ok(done)
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
            until: None,
            complete: BTreeSet::new(),
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

    #[test]
    fn an_image_too_many_is_refused_and_none_is_given_up_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let seeded = |number: usize| Seeded {
            image: Hash::of(&number.to_le_bytes()),
            name: "web".into(),
            url: "https://hub".into(),
            token: None,
            ca: None,
            until: None,
            complete: BTreeSet::new(),
        };
        let seeds = Seeds {
            file: dir.path().join("seeds.json"),
            all: Mutex::new((0..SEEDS_MAX).map(seeded).collect()),
        };
        assert!(seeds.add(seeded(SEEDS_MAX)).is_err());
        assert!(seeds.all().contains(&seeded(0)));
        seeds.add(seeded(7)).unwrap();
        assert_eq!(seeds.all().len(), SEEDS_MAX);
    }

    #[test]
    fn who_has_had_all_is_kept_and_enough_of_them_end_it_once_all_is_here() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("seeds.json");
        let seeded = |image: &[u8], until: Option<u32>| Seeded {
            image: Hash::of(image),
            name: "web".into(),
            url: "https://hub".into(),
            token: None,
            ca: None,
            until,
            complete: BTreeSet::new(),
        };
        let nodes = |names: &[&str]| -> BTreeSet<String> {
            names.iter().map(|&name| name.to_owned()).collect()
        };
        let seeds = Seeds::open(file.clone()).unwrap();
        seeds.add(seeded(b"ends", Some(3))).unwrap();
        seeds.add(seeded(b"stays", None)).unwrap();
        let [ends, stays] = [0, 1].map(|at| seeds.all()[at].key().unwrap());
        let many = nodes(&["a", "b", "c", "d"]);
        assert!(!seeds.saw(&stays, &many, true).unwrap());
        assert!(!seeds.saw(&ends, &nodes(&["a"]), true).unwrap());
        assert!(!seeds.saw(&ends, &nodes(&["a"]), true).unwrap());
        // after a restart, and with another end
        let seeds = Seeds::open(file.clone()).unwrap();
        assert!(!seeds.saw(&ends, &nodes(&["b"]), true).unwrap());
        seeds.add(seeded(b"ends", Some(2))).unwrap();
        assert_eq!(seeds.all()[1].complete, nodes(&["a", "b"]));
        assert!(!seeds.saw(&ends, &nodes(&[]), false).unwrap());
        assert!(seeds.saw(&ends, &nodes(&[]), true).unwrap());
        assert_eq!(Seeds::open(file).unwrap().all(), [seeded(b"stays", None)]);
        assert!(!seeds.saw(&ends, &many, true).unwrap());
    }
}
