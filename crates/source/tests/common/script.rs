//! A source that behaves as a test's script says.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use floe_image::{Hash, Kind, Layout, Manifest};
use floe_source::{Purpose, Request, Sink, Source, SourceError, Who};
use parking_lot::{Condvar, Mutex};

/// What one read does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Give,
    /// Delivers this many items, then fails.
    GiveThenFail(usize),
    /// As `GiveThenFail(0)`, but denies access.
    Deny,
    /// The same, but says that it can't serve this request.
    Refuse,
    /// Answers that it has none of the items.
    Lack,
    /// Delivers wrong bytes, which a source must not do.
    Lie,
    /// Delivers nothing and returns no error.
    Silent,
    Panic,
}

/// Holds items in memory and a script for the reads to come; after the script's end every read delivers.
#[derive(Default)]
pub struct Script {
    pub items: Mutex<HashMap<Hash, Vec<u8>>>,
    pub acts: Mutex<Vec<Act>>,
    pub log: Mutex<Vec<(Purpose, Vec<Hash>)>>,
    /// Who asked in each read.
    pub asked: Mutex<Vec<Who>>,
    /// What is being read now, and whether anything was ever read twice at the same time.
    flying: Mutex<(HashSet<Hash>, bool)>,
    gate: Mutex<Gate>,
    changed: Condvar,
    /// Whether it says that two reads of an item cost what one costs.
    pub merges: AtomicBool,
}

#[derive(Default)]
struct Gate {
    /// Reads with these purposes wait.
    closed: Vec<Purpose>,
    waiting: usize,
}

impl Script {
    pub fn new(items: &[(Hash, Vec<u8>)]) -> Arc<Script> {
        let script = Script::default();
        *script.items.lock() = items.iter().cloned().collect();
        Arc::new(script)
    }

    pub fn play(self: &Arc<Script>, acts: &[Act]) -> Arc<Script> {
        *self.acts.lock() = acts.iter().rev().copied().collect();
        self.clone()
    }

    pub fn close(&self, purposes: &[Purpose]) {
        self.gate.lock().closed = purposes.to_vec();
        self.changed.notify_all();
    }

    /// Waits until this many reads wait at the gate.
    pub fn await_waiting(&self, count: usize) {
        let mut gate = self.gate.lock();
        while gate.waiting < count {
            let late = self
                .changed
                .wait_for(&mut gate, Duration::from_secs(60))
                .timed_out();
            assert!(!late, "only {} of {count} reads came", gate.waiting);
        }
    }

    pub fn read_twice_at_once(&self) -> bool {
        self.flying.lock().1
    }

    pub fn reads(&self) -> usize {
        self.log.lock().len()
    }

    fn error(&self, act: Act) -> SourceError {
        let (at, what) = ("script".to_string(), "items".to_string());
        match act {
            Act::Deny => SourceError::Denied {
                at,
                what,
                fix: SourceError::NO_TOKEN.into(),
            },
            Act::Refuse => SourceError::Unsupported {
                at,
                reason: "the script says so".into(),
            },
            Act::Lack => SourceError::Missing { at, what },
            _ => SourceError::Unreachable {
                at,
                what,
                reason: "the script says so".into(),
            },
        }
    }
}

impl Source for Script {
    fn describe(&self) -> String {
        "script".into()
    }

    fn resolve(&self, _: &str) -> Result<Hash, SourceError> {
        match self.acts.lock().pop().unwrap_or(Act::Give) {
            Act::Give => Ok(Hash::of(b"resolved")),
            act => Err(self.error(act)),
        }
    }

    fn manifest(&self, _: &Hash) -> Result<Manifest, SourceError> {
        Err(self.error(Act::Silent))
    }

    fn merges(&self, _: &Hash, _: &Hash) -> bool {
        self.merges.load(SeqCst)
    }

    fn layout(&self, _: &Hash) -> Result<Option<Layout>, SourceError> {
        Ok(None)
    }

    fn read(
        &self,
        _: &Hash,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        self.asked.lock().push(request.who);
        self.log.lock().push((
            request.who.purpose,
            wants.iter().map(|(_, hash)| *hash).collect(),
        ));
        {
            let mut flying = self.flying.lock();
            for (_, hash) in wants {
                flying.1 |= !flying.0.insert(*hash);
            }
        }
        let land = |hash: &Hash| self.flying.lock().0.remove(hash);
        let mut gate = self.gate.lock();
        gate.waiting += 1;
        self.changed.notify_all();
        while gate.closed.contains(&request.who.purpose) {
            self.changed.wait(&mut gate);
        }
        gate.waiting -= 1;
        drop(gate);
        let act = self.acts.lock().pop().unwrap_or(Act::Give);
        let mut missing = 0;
        let give = match act {
            Act::Give | Act::Lie => wants.len(),
            Act::GiveThenFail(n) => n.min(wants.len()),
            _ => 0,
        };
        for (i, (kind, hash)) in wants.iter().enumerate() {
            land(hash);
            if i >= give {
                continue;
            }
            match self.items.lock().get(hash).cloned() {
                Some(mut bytes) => {
                    if act == Act::Lie {
                        bytes[0] ^= 1;
                    }
                    sink(*kind, *hash, &bytes);
                }
                None => missing += 1,
            }
        }
        match act {
            Act::Panic => panic!("the script says so"),
            Act::Give if missing > 0 => Err(SourceError::Missing {
                at: "script".into(),
                what: format!("{missing} items"),
            }),
            Act::Give | Act::Lie | Act::Silent => Ok(()),
            act => Err(self.error(act)),
        }
    }
}
