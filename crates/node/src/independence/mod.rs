//! Independence: all of a machine's image is brought to this host in the background, and then it needs no source any more (VM
//! Substrate, section 3.4.1).
//!
//! The image comes by an ordinary pull into the repository, which continues where it stopped, however it stopped. What the machine
//! has written lies over the image, in files of its own on this host, and stays there; once the image is whole, the machine's
//! record names no place but this host, and the record keeps the image in the repository.
//!
//! That a machine is to be independent stands in its record. A thread compares the records with what is being done (`decide` says
//! what comes next), so that a node that starts after a kill goes on by itself. Each pull goes at the pace of [`pace`], after what
//! guests wait for, and stops before the disk is full. Locks: the attempts under way, and the ends that the thread has not heard of;
//! each is held only briefly, and never together with another lock.

mod decide;
mod gate;
mod pace;

use crate::{
    core::Core,
    error::{NodeError, failed, refused, usage},
    images::Images,
    inventory::{
        Entry, Inventory,
        lifecycle::{Event as Life, Task},
        record::{Independent, Origin, Record},
    },
    machines::Machines,
    news::News,
    report::Report,
    transfer::{self, Cancel, Destination, Progress, PullOptions, TransferError},
};
use decide::{Action, Duties, Event, How, Wish};
use floe_api::{
    INDEPENDENT_RATE_DEFAULT, INDEPENDENT_RATE_MIN, Independence as Standing, IndependenceState,
    IndependentRequest, Outcome, PauseReason, size_text,
};
use floe_image::Hash;
use floe_threads::{Waited, Waker};
use gate::Gate;
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

/// How often the records are compared with what is being done; also done at once when something was asked for or has ended.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often a machine's progress is noted.
const NOTE_EVERY: Duration = Duration::from_millis(200);
/// Nice value of the threads that pack what has come: guests and their requests go first where processors are short.
const NICENESS: i32 = 15;

/// The service that makes machines independent.
pub(crate) struct Independence {
    core: Arc<Core>,
    images: Arc<Images>,
    inventory: Arc<Inventory>,
    machines: Arc<Machines>,
    waker: Waker,
    /// What cancels each attempt under way, by the machine's directory.
    cancels: Mutex<HashMap<String, Cancel>>,
    /// Attempts that have ended.
    ended: Mutex<Vec<(String, How)>>,
}

impl Independence {
    /// Creates the service. Nothing is done yet.
    pub fn new(
        core: Arc<Core>,
        images: Arc<Images>,
        inventory: Arc<Inventory>,
        machines: Arc<Machines>,
    ) -> Arc<Independence> {
        Arc::new(Independence {
            core,
            images,
            inventory,
            machines,
            waker: Waker::default(),
            cancels: Mutex::default(),
            ended: Mutex::default(),
        })
    }

    /// Starts the thread that carries out what machines' records say.
    pub fn start_looking_after(self: &Arc<Self>) -> Result<(), NodeError> {
        let (mut duties, began) = (Duties::default(), Instant::now());
        let threads = &self.core.threads;
        let look = move |here: &Arc<Self>| here.look(&mut duties, began);
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
            false => entry.update(|record| {
                let known = record.independence;
                let before = known.map(|known| known.rate_bytes_s);
                record.independence = Some(Independent {
                    rate_bytes_s: rate.or(before).unwrap_or(INDEPENDENT_RATE_DEFAULT),
                    whole: known.is_some_and(|known| known.whole),
                });
            })?,
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

    /// Waits until a machine is independent. It goes on if the client hangs up.
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
            if now.state == IndependenceState::Whole {
                return Some(Ok(()));
            }
            if now.why != told {
                told = now.why.clone();
                match told.is_empty() {
                    true => report.note("it goes on"),
                    false => report.note(format!("it waits: {told}")),
                }
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

    /// Compares what is wanted with what is being done.
    fn look(self: &Arc<Self>, duties: &mut Duties, began: Instant) {
        let now_us = || began.elapsed().as_micros() as u64;
        let ended = std::mem::take(&mut *self.ended.lock());
        let mut actions = Vec::new();
        for (place, how) in ended {
            actions.extend(duties.step(now_us(), Some(Event::Ended(place, how))));
        }
        let mut wanted = BTreeMap::new();
        let mut entries = HashMap::new();
        for entry in self.inventory.all() {
            let record = entry.record();
            let Some(asked) = record.independence.filter(|asked| !asked.whole) else {
                continue;
            };
            let wish = Wish {
                image: record.image,
                rate_bytes_s: asked.rate_bytes_s,
            };
            wanted.insert(place_of(&entry), wish);
            entries.insert(place_of(&entry), entry);
        }
        actions.extend(duties.step(now_us(), Some(Event::Wanted(wanted))));
        for action in actions {
            match action {
                Action::Cancel(place) => {
                    if let Some(cancel) = self.cancels.lock().get(&place) {
                        cancel.cancel();
                    }
                }
                Action::Begin(place, wish) => match entries.get(&place) {
                    Some(entry) => self.begin(place, entry, wish),
                    None => self.has_ended(place, How::Cancelled),
                },
            }
        }
    }

    fn has_ended(&self, place: String, how: How) {
        self.cancels.lock().remove(&place);
        self.ended.lock().push((place, how));
        self.waker.wake();
    }

    /// Brings a machine's image here, on a thread of its own.
    fn begin(self: &Arc<Self>, place: String, entry: &Arc<Entry>, wish: Wish) {
        let cancel = Cancel::default();
        self.cancels.lock().insert(place.clone(), cancel.clone());
        let (here, entry) = (Arc::downgrade(self), entry.clone());
        // a node that is ending waits until what has come is noted
        let job = self.core.job(cancel.clone());
        let of = place.clone();
        let work = move || {
            // a thread that can't change its nice value does its work anyway; those that it starts have the same
            let _ = rustix::process::setpriority_process(None, NICENESS);
            let ends = Ends {
                here: here.clone(),
                place,
                how: How::Away { moved: false },
            };
            if let Some(here) = here.upgrade() {
                here.attempt(&entry, &wish, &cancel, ends);
            }
            drop(job);
        };
        if let Err(error) = self.core.threads.start("independent", work) {
            tracing::error!(%error, "no thread to bring an image here");
            self.has_ended(of, How::Away { moved: false });
        }
    }

    /// Tries to bring a machine's image here; `ends` tells how that ended.
    fn attempt(&self, entry: &Arc<Entry>, wish: &Wish, cancel: &Cancel, mut ends: Ends) {
        let before = entry.independence().unwrap_or_default();
        // one that waits for a source or for room does so until something comes
        if before.state == IndependenceState::Queued {
            self.stands(entry, IndependenceState::Copying, "", &before);
        }
        let moved = Mutex::new(Moved::default());
        let done = self.copy(entry, wish, cancel, &moved);
        let done = done.and_then(|()| self.settle(entry));
        let now = entry.independence().unwrap_or_default();
        let (state, why) = match &done {
            Ok(()) => {
                ends.how = How::Whole;
                let name = entry.name.as_str();
                self.core.tell(name, &News::Independent);
                return;
            }
            Err(_) if cancel.is_cancelled() => {
                ends.how = How::Cancelled;
                self.stands(entry, IndependenceState::Queued, "", &now);
                return;
            }
            Err(error) if has_no_room(error) => {
                ends.how = How::Full;
                (IndependenceState::NoRoom, error.to_api().to_string())
            }
            Err(error) => {
                ends.how = How::Away {
                    moved: moved.lock().any(),
                };
                (IndependenceState::SourceAway, error.to_api().to_string())
            }
        };
        if before.state != state {
            let name = entry.name.as_str();
            self.core.tell(name, &News::IndependentWaits(why.clone()));
        }
        self.stands(entry, state, &why, &now);
    }

    /// Notes how far a machine is; what is known of its bytes stays.
    fn stands(&self, entry: &Entry, state: IndependenceState, why: &str, bytes: &Standing) {
        entry.independence_stands(Standing {
            state,
            why: why.to_owned(),
            ..bytes.clone()
        });
    }

    /// Pulls the machine's image, and the one that its disks stand on if that is another, into the repository.
    fn copy(
        &self,
        entry: &Arc<Entry>,
        wish: &Wish,
        cancel: &Cancel,
        moved: &Mutex<Moved>,
    ) -> Result<(), NodeError> {
        let record = entry.record();
        let fetcher = self.images.sources.fetcher(&record.origin)?;
        let _storing = self.images.storing.read();
        let gate = Gate::new(
            wish.rate_bytes_s,
            self.images.repo.dir().to_owned(),
            self.images.cache.clone(),
            fetcher.clone(),
        );
        let options = PullOptions {
            // one connection only: a second would take from what guests wait for
            connections: 1,
            cancel: cancel.clone(),
            gate: Some(Arc::new(gate)),
            whole_packs: true,
            ..PullOptions::default()
        };
        let note = |progress: Progress| {
            let soon = !moved.lock().notes(&progress);
            if soon && progress.done_bytes < progress.total_bytes {
                return;
            }
            entry.independence_stands(Standing {
                state: IndependenceState::Copying,
                done_bytes: progress.done_bytes,
                total_bytes: progress.total_bytes,
                left_bytes: progress.total_bytes.saturating_sub(progress.done_bytes),
                ..Default::default()
            });
        };
        let to = Destination::Repository(&self.images.repo, Some(&self.images.cache));
        for image in images_of(&record) {
            transfer::pull(fetcher.source().as_ref(), &image, to, &options, &note)?;
        }
        Ok(())
    }

    /// Records that a machine needs nothing from other hosts any more. If it was paused because its parent's node is silent, it goes on.
    fn settle(&self, entry: &Arc<Entry>) -> Result<(), NodeError> {
        entry.update(|record| {
            // from now on this node reads the image from its own repository
            record.origin = Origin::default();
            if let Some(family) = &mut record.family {
                family.settled = true;
            }
        })?;
        if entry.record().family.is_some() && entry.state().vm.is_some() {
            // who watches its parent's node holds the machine while it stops it
            let operation = entry.begin(Task::Continue)?;
            if operation.life().is(PauseReason::Orphaned) {
                let over = "all of its image is here".to_owned();
                operation.drive(Life::Over(PauseReason::Orphaned, over))?;
            }
        }
        entry.update(|record| {
            if let Some(asked) = &mut record.independence {
                asked.whole = true;
            }
        })
    }
}

/// Tells how an attempt ended, also if its thread has panicked.
struct Ends {
    here: Weak<Independence>,
    place: String,
    how: How,
}

impl Drop for Ends {
    fn drop(&mut self) {
        if let Some(here) = self.here.upgrade() {
            here.has_ended(std::mem::take(&mut self.place), self.how);
        }
    }
}

/// What an attempt has brought so far.
#[derive(Default)]
struct Moved {
    wire_bytes: u64,
    noted: Option<Instant>,
}

impl Moved {
    /// Learns of progress; returns whether it is time to note it.
    fn notes(&mut self, progress: &Progress) -> bool {
        // each part of the way counts anew
        self.wire_bytes = self.wire_bytes.max(progress.wire_bytes);
        let soon = self.noted.is_some_and(|noted| noted.elapsed() < NOTE_EVERY);
        if !soon {
            self.noted = Some(Instant::now());
        }
        !soon
    }

    fn any(&self) -> bool {
        self.wire_bytes > 0
    }
}

/// What identifies a machine also after it was renamed: its directory.
fn place_of(entry: &Entry) -> String {
    entry.dir.display().to_string()
}

/// The images that a machine needs.
fn images_of(record: &Record) -> Vec<Hash> {
    let mut images = vec![record.image, record.disk_base];
    images.dedup();
    images
}

fn has_no_room(error: &NodeError) -> bool {
    match error {
        NodeError::Transfer(TransferError::NoRoom { .. }) => true,
        NodeError::Transfer(TransferError::Store(error)) | NodeError::Store(error) => {
            error.is_full()
        }
        NodeError::Io { source, .. } => source.kind() == std::io::ErrorKind::StorageFull,
        _ => false,
    }
}

/// Returns a rate that was asked for, or an error if it is too low to be meant.
fn checked_rate(rate: Option<u64>) -> Result<Option<u64>, NodeError> {
    match rate {
        Some(rate) if rate < INDEPENDENT_RATE_MIN => Err(usage(
            format!("{} a second would never come to an end", size_text(rate)),
            format!("give at least {}", size_text(INDEPENDENT_RATE_MIN)),
        )),
        rate => Ok(rate),
    }
}

/// Returns what the record of a machine that is about to run says of its independence.
pub(crate) fn asked(
    request: Option<&floe_api::Independent>,
) -> Result<Option<Independent>, NodeError> {
    let Some(request) = request else {
        return Ok(None);
    };
    let rate = checked_rate(request.rate_bytes_s)?;
    Ok(Some(Independent {
        rate_bytes_s: rate.unwrap_or(INDEPENDENT_RATE_DEFAULT),
        whole: false,
    }))
}
