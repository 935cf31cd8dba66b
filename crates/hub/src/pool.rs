//! Keeps substrates in memory, in a hub that was started as a pool (`floe pool serve`).
//!
//! ```text
//! published, read, or there at the start -> waits in a queue -> one thread reads and compresses it (`substrates`) -> memory
//! a read -> items of its image that are in memory; the rest comes from the packs
//! ```
//! A substrate is an image whose label says so. All that it needs is held, also what it has of its base image, since another host may
//! lack that: chunk by chunk, each once for all substrates. Packs on the disk are complete, so memory may lose anything at any time: to
//! the budget (those that were read least recently go, whole), or with this process, after which those that were published last come
//! back. Who may read an image is decided before anything here is asked, and only items of that image are looked up.
//!
//! Locks: `known`, `queue`, the stock's. None is held while another is taken, or while something is read, compressed or unpacked.

use floe_api::hub::PooledSubstrate;
use floe_api::{PoolStatus, SUBSTRATE_LABEL};
use floe_image::{Hash, Kind, MachineConfig, Manifest};
use floe_store::SubstratePool;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

/// What lists show of a substrate and the catalogue does not have.
#[derive(Clone)]
pub(super) struct Known {
    pub machine: String,
    pub cpus: u32,
    pub memory_bytes: u64,
    /// It does not fit the budget, or can't be read: it is not tried again before it is published again.
    pub stays_out: bool,
}

impl Known {
    /// Returns it for an image of this configuration; `None` if that is no substrate.
    pub fn of(config: &MachineConfig) -> Option<Known> {
        let machine = config.labels.get(SUBSTRATE_LABEL)?;
        Some(Known {
            machine: machine.chars().take(64).collect(),
            cpus: config.cpus_now().unwrap_or(1),
            memory_bytes: config.memory_bytes_now().unwrap_or_default(),
            stays_out: false,
        })
    }
}

/// Substrates that are to be brought into memory, each once.
#[derive(Default)]
pub(super) struct Queue {
    pub waiting: VecDeque<Hash>,
    /// How long it took after the start until memory was full of what was there.
    pub warm: Option<Duration>,
}

/// The substrates in memory: see the module.
pub(crate) struct Pool {
    pub(super) stock: Mutex<SubstratePool>,
    pub(super) known: RwLock<BTreeMap<Hash, Known>>,
    pub(super) queue: Mutex<Queue>,
    pub(super) came: tokio::sync::Notify,
}

impl Pool {
    /// Returns a pool that takes `budget_bytes` of memory at most, and holds nothing yet.
    pub fn new(budget_bytes: u64) -> Pool {
        Pool {
            stock: Mutex::new(SubstratePool::new(budget_bytes)),
            known: RwLock::default(),
            queue: Mutex::default(),
            came: tokio::sync::Notify::new(),
        }
    }

    /// Notes an image that was published just now; a substrate is brought into memory.
    pub fn note(&self, id: &Hash, manifest: &Manifest) {
        if let Some(known) = Known::of(&manifest.config) {
            self.known.write().insert(*id, known);
            self.want(id);
        }
    }

    /// Lets an image go that nobody holds any more.
    pub fn forget(&self, id: &Hash) {
        if self.known.write().remove(id).is_some() {
            self.stock.lock().release(id);
            self.settle();
        }
    }

    /// Notes that an image is read. A substrate that is not in memory comes back into it.
    pub fn used(&self, id: &Hash) {
        let may_be_there = matches!(self.known.read().get(id), Some(known) if !known.stays_out);
        if may_be_there && !self.stock.lock().touch(id) {
            self.want(id);
        }
    }

    /// Notes that a substrate does not fit, or can't be read.
    pub fn leave_out(&self, id: &Hash) {
        if let Some(known) = self.known.write().get_mut(id) {
            known.stays_out = true;
        }
    }

    fn want(&self, id: &Hash) {
        let waiting = &mut self.queue.lock().waiting;
        if !waiting.contains(id) {
            waiting.push_back(*id);
            self.came.notify_one();
        }
    }

    /// Compresses anew what lost neighbours when substrates left. The stock is free in between, for reads.
    pub fn settle(&self) {
        while self.stock.lock().thin_some() {}
    }

    /// Returns these items, if all of them are in memory.
    pub fn items(&self, kind: Kind, wanted: &[Hash]) -> Option<Vec<Vec<u8>>> {
        let wants: Vec<(Kind, Hash)> = wanted.iter().map(|hash| (kind, *hash)).collect();
        let (pieces, rest) = self.stock.lock().find(&wants);
        if !rest.is_empty() {
            return None;
        }
        let these: HashSet<&Hash> = wanted.iter().collect();
        let mut found: HashMap<Hash, Vec<u8>> = HashMap::new();
        for piece in pieces {
            let read = piece.read(&mut |_, hash, bytes| {
                if these.contains(&hash) {
                    found.insert(hash, bytes.to_vec());
                }
            });
            if let Err(error) = read {
                tracing::warn!(%error, "memory of the pool went bad; the packs are read");
                return None;
            }
        }
        wanted.iter().map(|hash| found.remove(hash)).collect()
    }

    /// Says how full the pool is, to somebody who may read the substrates that are `seen`.
    pub fn status(&self, seen: &[PooledSubstrate]) -> PoolStatus {
        let (budget_bytes, usage) = {
            let stock = self.stock.lock();
            (stock.budget_bytes(), stock.usage())
        };
        let warm = self.queue.lock().warm;
        PoolStatus {
            budget_bytes,
            used_bytes: usage.bytes,
            compressed_bytes: usage.compressed_bytes,
            raw_bytes: usage.raw_bytes,
            referred_bytes: usage.referred_bytes,
            substrates: seen.len() as u64,
            in_memory: seen.iter().filter(|one| one.in_memory).count() as u64,
            warming: warm.is_none(),
            warm_ms: warm.map(|took| took.as_secs_f64() * 1e3),
            ..Default::default()
        }
    }
}
