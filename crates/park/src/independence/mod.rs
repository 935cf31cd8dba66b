//! Independence: all of a machine's image is brought to this host in the background, and then it needs no source any more (VM
//! Substrate, section 3.4.1).
//!
//! The image comes by an ordinary pull into the repository, which continues where it stopped, however it stopped. Once it is whole, the
//! machine's record names no place but this host, and the record keeps the image in the repository. What the machine has written to its
//! disks until then is merged into an image of its own (`park/own_base.rs`), on which they stand from then on; what it writes later is,
//! too, once that is much.
//!
//! That a machine is to be independent stands in its record. A thread compares the records with what is being done (`decide` says
//! what comes next), so that a node that starts after a kill goes on by itself. Each pull goes at the pace of `pace`, after what
//! guests wait for, and stops before the disk is full. Locks: the attempts under way, and the ends that the thread has not heard of;
//! each is held only briefly, and never together with another lock.

mod attempt;
mod decide;
mod gate;
mod pace;

use crate::park::Parks;
use attempt::Ends;
use decide::{Action, Duties, Event, How, Wish, is_to_merge};
use floe_api::{INDEPENDENT_RATE_DEFAULT, IndependenceState, IndependentRequest, Outcome};
use floe_ground::{
    error::{NodeError, failed, refused},
    report::Report,
};
use floe_inventory::{
    core::Core,
    inventory::{
        Entry, Inventory, checked_rate,
        record::{Independent, Record},
    },
};
use floe_library::images::Images;
use floe_machines::machines::Machines;
use floe_threads::{Waited, Waker};
use floe_transfer::Cancel;
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

/// How often the records are compared with what is being done; also done at once when something was asked for or has ended.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Nice value of the threads that pack what has come: guests and their requests go first where processors are short.
const NICENESS: i32 = 15;

/// What is done for a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    /// Its image is brought here.
    Copy,
    /// What it has written over that is merged into an image of its own.
    Merge,
}

/// Whose turn it is with each.
#[derive(Default)]
struct Turns {
    copies: Duties,
    merges: Duties,
}

impl Turns {
    fn step(&mut self, what: What, now_us: u64, event: Event) -> Vec<(What, Action)> {
        let duties = match what {
            What::Copy => &mut self.copies,
            What::Merge => &mut self.merges,
        };
        let actions = duties.step(now_us, Some(event)).into_iter();
        actions.map(|action| (what, action)).collect()
    }
}

/// The service that makes machines independent.
pub struct Independence {
    core: Arc<Core>,
    images: Arc<Images>,
    inventory: Arc<Inventory>,
    machines: Arc<Machines>,
    parks: Arc<Parks>,
    waker: Waker,
    /// What cancels each attempt under way, by what is attempted and the machine's directory.
    cancels: Mutex<HashMap<(What, String), Cancel>>,
    /// Attempts that have ended.
    ended: Mutex<Vec<(What, String, How)>>,
}

impl Independence {
    /// Creates the service. Nothing is done yet.
    pub fn new(
        core: Arc<Core>,
        images: Arc<Images>,
        inventory: Arc<Inventory>,
        machines: Arc<Machines>,
        parks: Arc<Parks>,
    ) -> Arc<Independence> {
        Arc::new(Independence {
            core,
            images,
            inventory,
            machines,
            parks,
            waker: Waker::default(),
            cancels: Mutex::default(),
            ended: Mutex::default(),
        })
    }

    /// Starts the thread that carries out what machines' records say.
    pub fn start_looking_after(self: &Arc<Self>) -> Result<(), NodeError> {
        let (mut turns, began) = (Turns::default(), Instant::now());
        let threads = &self.core.threads;
        let look = move |here: &Arc<Self>| here.look(&mut turns, began);
        Ok(threads.keep_waking("independence", &self.waker, self, LOOK_EVERY, look)?)
    }

    /// Makes a machine independent, or gives that up; waits for the end if that is asked for.
    pub fn ask(
        &self,
        name: &str,
        request: &IndependentRequest,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let rate = checked_rate(request.rate_bytes_s)?;
        let entry = self.inventory.get(name)?;
        let whole = |record: &Record| record.independence.is_some_and(|known| known.whole);
        match request.stop {
            true if whole(&entry.record()) => {
                return Err(refused(
                    format!("machine {name} is independent already"),
                    "nothing is being done that could be stopped",
                ));
            }
            true => entry.update(|record| {
                record.independence = record.independence.filter(|known| known.whole);
            })?,
            false => self.note(&entry, rate)?,
        }
        self.waker.wake();
        report.stage("note")?;
        if request.wait && !request.stop {
            self.wait(&entry, report)?;
            report.stage("copy")?;
        }
        Ok(Outcome {
            machine: Some(self.machines.info_of(&entry)),
            ..Default::default()
        })
    }

    /// Notes in a machine's record that it is to be independent, and that what it has written until now is to be merged.
    fn note(&self, entry: &Arc<Entry>, rate: Option<u64>) -> Result<(), NodeError> {
        // one that is under way may have begun before what was written last
        if let Some(cancel) = self.cancels.lock().get(&(What::Merge, place_of(entry))) {
            cancel.cancel();
        }
        if let Some(now) = entry.independence()
            && now.state == IndependenceState::Whole
        {
            let why = String::new();
            entry.independence_stands(floe_api::Independence { why, ..now });
        }
        entry.update(|record| {
            let known = record.independence;
            let before = known.map(|known| known.rate_bytes_s);
            record.independence = Some(Independent {
                rate_bytes_s: rate.or(before).unwrap_or(INDEPENDENT_RATE_DEFAULT),
                whole: known.is_some_and(|known| known.whole),
                merged: false,
            });
        })
    }

    /// Waits until a machine is independent, and what it had written is merged or can't be yet. It goes on if the client hangs up.
    fn wait(&self, entry: &Arc<Entry>, report: &Report) -> Result<(), NodeError> {
        let line = report.progress_line("independent", "bytes");
        let mut told = String::new();
        let over = |why: &str, fix: String| Some(Err(failed(why, fix)));
        let look = || {
            let name = &entry.name;
            if !self.is_known(entry) {
                return over(&format!("machine {name} was removed"), String::new());
            }
            let Some(now) = entry.independence() else {
                let fix = format!("floe independent {name} goes on where it stopped");
                return over(&format!("machine {name}: it was given up"), fix);
            };
            let is_whole = now.state == IndependenceState::Whole;
            if is_whole && !self.has_to_merge(entry) {
                return Some(Ok(()));
            }
            if now.why != told {
                told = now.why.clone();
                match told.is_empty() {
                    true => report.note("it goes on"),
                    false => report.note(format!("it waits: {told}")),
                }
            }
            if is_whole && !now.why.is_empty() {
                return Some(Ok(()));
            }
            if now.total_bytes > 0 {
                line.at(now.done_bytes.min(now.total_bytes - 1), now.total_bytes);
            }
            None
        };
        match self
            .inventory
            .changed()
            .wait_for(None, Some(&report.cancel()), look)
        {
            Waited::Come(done) => done,
            Waited::TimedOut | Waited::Cancelled => Err(NodeError::Cancelled),
        }
    }

    fn is_known(&self, entry: &Arc<Entry>) -> bool {
        let known = self.inventory.get(entry.name.as_str());
        known.is_ok_and(|known| Arc::ptr_eq(&known, entry))
    }

    /// Whether what a machine's disks have over its image is still to be merged for the first time.
    fn has_to_merge(&self, entry: &Entry) -> bool {
        let asked = entry.record().independence;
        asked.is_some_and(|asked| !asked.merged)
            && entry.mounted().is_ok()
            && entry.is_here().is_ok()
    }

    /// Compares what is wanted with what is being done.
    fn look(self: &Arc<Self>, turns: &mut Turns, began: Instant) {
        let now_us = || began.elapsed().as_micros() as u64;
        let ended = std::mem::take(&mut *self.ended.lock());
        let mut actions = Vec::new();
        for (what, place, how) in ended {
            actions.extend(turns.step(what, now_us(), Event::Ended(place, how)));
        }
        let (mut copies, mut merges) = (BTreeMap::new(), BTreeMap::new());
        let mut entries = HashMap::new();
        for entry in self.inventory.all() {
            let record = entry.record();
            let Some(asked) = record.independence else {
                continue;
            };
            let wanted = match asked.whole {
                false => &mut copies,
                true if has_to_merge_now(&entry, asked.merged) => &mut merges,
                true => continue,
            };
            let wish = Wish {
                image: record.image,
                rate_bytes_s: asked.rate_bytes_s,
            };
            wanted.insert(place_of(&entry), wish);
            entries.insert(place_of(&entry), entry);
        }
        for (what, wanted) in [(What::Copy, copies), (What::Merge, merges)] {
            actions.extend(turns.step(what, now_us(), Event::Wanted(wanted)));
        }
        for (what, action) in actions {
            match action {
                Action::Cancel(place) => {
                    if let Some(cancel) = self.cancels.lock().get(&(what, place)) {
                        cancel.cancel();
                    }
                }
                Action::Begin(place, wish) => match entries.get(&place) {
                    Some(entry) => self.begin(what, place, entry, wish),
                    None => self.has_ended(what, place, How::Cancelled),
                },
            }
        }
    }

    fn has_ended(&self, what: What, place: String, how: How) {
        self.cancels.lock().remove(&(what, place.clone()));
        self.ended.lock().push((what, place, how));
        self.waker.wake();
    }

    /// Brings a machine's image here, or merges what it has written, on a thread of its own.
    fn begin(self: &Arc<Self>, what: What, place: String, entry: &Arc<Entry>, wish: Wish) {
        let cancel = Cancel::default();
        let key = (what, place.clone());
        self.cancels.lock().insert(key, cancel.clone());
        let (here, entry) = (Arc::downgrade(self), entry.clone());
        // a node that is ending waits until what has come is noted
        let job = self.core.job(cancel.clone());
        let of = place.clone();
        let work = move || {
            // a thread that can't change its nice value does its work anyway; those that it starts have the same
            let _ = rustix::process::setpriority_process(None, NICENESS);
            let ends = Ends::new(here.clone(), what, place);
            if let Some(here) = here.upgrade() {
                match what {
                    What::Copy => here.attempt(&entry, &wish, &cancel, ends),
                    What::Merge => here.attempt_merge(&entry, &wish, &cancel, ends),
                }
            }
            drop(job);
        };
        if let Err(error) = self.core.threads.start("independent", work) {
            tracing::error!(%error, "no thread to make a machine independent");
            self.has_ended(what, of, How::Away { moved: false });
        }
    }
}

/// What identifies a machine also after it was renamed: its directory.
fn place_of(entry: &Entry) -> String {
    entry.dir.display().to_string()
}

/// Whether what a machine's disks have over its image is to be merged now. One that is not on the mount, or is another node's, has to
/// wait.
fn has_to_merge_now(entry: &Entry, merged: bool) -> bool {
    let disks = entry.state().disks.clone();
    disks.is_some_and(|disks| {
        if entry.is_here().is_err() {
            return false;
        }
        let disk_bytes = disks.disk_sizes().iter().map(|(_, bytes)| bytes).sum();
        is_to_merge(merged, disks.stats().overlay_bytes, disk_bytes)
    })
}
