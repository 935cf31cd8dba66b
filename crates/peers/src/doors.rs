//! Where strangers knock: which swarms a host takes part in, and who may come in.
use crate::connection::Note;
use crate::members::Key;
use crate::wire::Hello;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// The doors of a host: its swarms, by image.
#[derive(Debug, Default)]
pub(crate) struct Doors(Mutex<HashMap<[u8; 32], Inside>>);

#[derive(Debug)]
struct Inside {
    token: blake3::Hash,
    members: HashSet<Key>,
    notes: mpsc::Sender<Note>,
}

/// One swarm's entry there; removed when this is dropped.
pub(crate) struct Door {
    doors: Arc<Doors>,
    image: [u8; 32],
}

impl Doors {
    fn all(&self) -> MutexGuard<'_, HashMap<[u8; 32], Inside>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a door for an image's swarm, whose task takes notes; `None` if there is one already.
    pub(crate) fn open(self: &Arc<Doors>, hello: Hello, notes: mpsc::Sender<Note>) -> Option<Door> {
        let inside = Inside {
            token: blake3::Hash::from_bytes(hello.token),
            members: HashSet::new(),
            notes,
        };
        let mut all = self.all();
        if all.contains_key(&hello.image) {
            return None;
        }
        all.insert(hello.image, inside);
        Some(Door {
            doors: self.clone(),
            image: hello.image,
        })
    }

    /// Returns whether a host is a member of any of the swarms.
    pub(crate) fn knows(&self, key: Key) -> bool {
        let all = self.all();
        all.values().any(|inside| inside.members.contains(&key))
    }

    /// Returns the swarm's channel for a host that wants to join, if that host may.
    pub(crate) fn let_in(&self, key: Key, hello: &Hello) -> Option<mpsc::Sender<Note>> {
        let all = self.all();
        let inside = all.get(&hello.image)?;
        // compared in constant time
        let right = inside.token == blake3::Hash::from_bytes(hello.token);
        (right && inside.members.contains(&key)).then(|| inside.notes.clone())
    }
}

impl Door {
    pub(crate) fn set_members(&self, members: HashSet<Key>, token: [u8; 32]) {
        if let Some(inside) = self.doors.all().get_mut(&self.image) {
            inside.members = members;
            inside.token = blake3::Hash::from_bytes(token);
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.doors.all().remove(&self.image);
    }
}
