//! What every service of the node uses: its options, its state directory, its events, and the request to end.
//!
//! Locks: the list of long calls, and the events that are kept. Each is held only briefly, and never together with another lock.

use floe_api::{NodeEvent, paths::Home};
use floe_front::page::guard::Guard;
use floe_ground::{
    error::{NodeError, refused},
    news::News,
    options::NodeOptions,
    reserve::Reserve,
};
use floe_machine::Accel;
use floe_mount::Keeper;
use floe_threads::{Pulse, Threads};
use floe_transfer::Cancel;
use parking_lot::Mutex;
use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};
use tokio::sync::{broadcast, watch};

/// How many events a slow listener may lag behind before it loses some, and how many are kept for those who ask for the past.
const EVENTS_KEPT: usize = 1024;

/// How the node is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Whether the machines are powered down too.
    pub machines: bool,
}

/// What all services share; its fields do not change while the node runs.
pub struct Core {
    /// How the node was started.
    pub options: NodeOptions,
    /// The state directory.
    pub home: Home,
    /// The connection to the supervisor process, which outlives this one.
    pub keeper: Keeper,
    /// Disk space set aside for records that must be written even when the disk is full.
    pub reserve: Arc<Reserve>,
    /// What runs the guests: KVM or TCG.
    pub accel: Accel,
    /// Whether the mount was taken over from an earlier node.
    pub took_over: bool,
    /// Who may see the page, if there is one.
    pub page: Option<Arc<Guard>>,
    /// When the node started; its times count from then.
    pub started: Instant,
    /// The background threads of all services.
    pub threads: Threads,
    events: Arc<Events>,
    stop: watch::Sender<Option<Stop>>,
    jobs: Mutex<HashMap<u64, Cancel>>,
    /// Beats when a job begins or ends.
    jobs_changed: Arc<Pulse>,
    next_job: AtomicU64,
}

impl Core {
    /// Creates the core of a node that starts now. The receiver gets a value when somebody asks the node to end.
    pub fn new(
        options: NodeOptions,
        keeper: Keeper,
        reserve: Arc<Reserve>,
        took_over: bool,
        page: Option<Arc<Guard>>,
    ) -> (Arc<Core>, watch::Receiver<Option<Stop>>) {
        let (stop, stopped) = watch::channel(None);
        let events = Arc::new(Events::new());
        let listeners = events.clone();
        let panicked = move |thread: &str| {
            listeners.tell(thread, &News::ThreadFailed);
        };
        let core = Core {
            home: options.home.clone(),
            options,
            keeper,
            reserve,
            accel: floe_machine::accel::detect(),
            took_over,
            page,
            started: Instant::now(),
            threads: Threads::new(Arc::new(panicked)),
            events,
            stop,
            jobs: Mutex::default(),
            jobs_changed: Arc::default(),
            next_job: AtomicU64::new(0),
        };
        (Arc::new(core), stopped)
    }

    /// Tells everybody who listens what happened to this, and logs it.
    pub fn tell(&self, subject: &str, news: &News) {
        self.events.tell(subject, news);
    }

    /// Returns a receiver of the events from now on.
    pub fn listen(&self) -> broadcast::Receiver<NodeEvent> {
        self.events.sender.subscribe()
    }

    /// Returns the events that are known since a Unix time in milliseconds, and a receiver of those after them.
    pub fn listen_since(
        &self,
        since_unix_ms: u64,
    ) -> (Vec<NodeEvent>, broadcast::Receiver<NodeEvent>) {
        let kept = self.events.kept.lock();
        let past = kept.iter().filter(|e| e.time_unix_ms >= since_unix_ms);
        (past.cloned().collect(), self.events.sender.subscribe())
    }

    /// Asks the node to end; `NodeHandle::wait` returns then.
    pub fn ask_to_stop(&self, machines: bool) {
        self.stop.send_replace(Some(Stop { machines }));
    }

    /// Adds a long call to the list of those that are cancelled when the node ends.
    pub fn job(self: &Arc<Self>, cancel: Cancel) -> Job {
        let id = self.next_job.fetch_add(1, Ordering::Relaxed);
        self.jobs.lock().insert(id, cancel);
        self.jobs_changed.beat();
        Job {
            core: self.clone(),
            id,
        }
    }

    /// Asks all long calls to end, and those that begin meanwhile, and waits until none is left, but not beyond the time that
    /// `until` returns after each of them.
    pub fn end_jobs(&self, until: impl Fn() -> Instant) {
        loop {
            let seen = self.jobs_changed.seen();
            let jobs: Vec<Cancel> = self.jobs.lock().values().cloned().collect();
            jobs.iter().for_each(Cancel::cancel);
            if jobs.is_empty() || !self.jobs_changed.wait(seen, Some(until())) {
                return;
            }
        }
    }

    /// Returns an error if the users that machines run as cannot traverse the path to the state directory.
    pub fn check_passable(&self) -> Result<(), NodeError> {
        match crate::host::impassable(self.home.root()) {
            None => Ok(()),
            Some(dir) => {
                let dir = dir.display();
                Err(refused(
                    format!("the machine's own user could not pass {dir} on the way to its files"),
                    format!("chmod o+x {dir}, or start the node with another FLOE_HOME"),
                ))
            }
        }
    }
}

/// A long call under way; dropping this removes it from the list.
pub struct Job {
    core: Arc<Core>,
    id: u64,
}

impl Drop for Job {
    fn drop(&mut self) {
        self.core.jobs.lock().remove(&self.id);
        self.core.jobs_changed.beat();
    }
}

/// What has happened, and who listens.
struct Events {
    sender: broadcast::Sender<NodeEvent>,
    /// The last [`EVENTS_KEPT`] events. An event is kept and sent under this lock, so that nobody misses one or gets it twice.
    kept: Mutex<VecDeque<NodeEvent>>,
}

impl Events {
    fn new() -> Events {
        Events {
            sender: broadcast::channel(EVENTS_KEPT).0,
            kept: Mutex::default(),
        }
    }

    fn tell(&self, subject: &str, news: &News) {
        let event = event(subject, news);
        tracing::info!(kind = %event.kind, subject, detail = event.detail);
        let mut kept = self.kept.lock();
        keep(&mut kept, event.clone());
        let _ = self.sender.send(event); // nobody may be listening
    }
}

/// Keeps an event. If there is no room, it takes that of the oldest event of whoever has the most: a guest that makes its machine
/// talk without end pushes out what its machine has said, and nobody else's.
fn keep(kept: &mut VecDeque<NodeEvent>, event: NodeEvent) {
    if kept.len() >= EVENTS_KEPT {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for event in kept.iter() {
            *counts.entry(&event.subject).or_default() += 1;
        }
        let most = counts.values().copied().max();
        let has_most = |event: &NodeEvent| counts.get(&*event.subject).copied() == most;
        let oldest = kept.iter().position(has_most);
        kept.remove(oldest.unwrap_or_default());
    }
    kept.push_back(event);
}

/// Builds an event with the current time.
pub fn event(subject: &str, news: &News) -> NodeEvent {
    let (kind, detail) = news.event();
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    NodeEvent {
        time_unix_ms: since.unwrap_or_default().as_millis() as u64,
        kind,
        subject: subject.into(),
        detail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_talks_without_end_pushes_out_nobody_elses_events() {
        let mut kept = VecDeque::new();
        let mut tell = |subject: &str, number: usize| {
            let event = event(subject, &News::Port(number.to_string()));
            keep(&mut kept, event);
            assert!(kept.len() <= EVENTS_KEPT);
        };
        for number in 0..10 {
            tell("quiet", number);
        }
        for number in 0..3 * EVENTS_KEPT {
            tell("loud", number);
        }
        tell("quiet", 10);
        for number in 0..EVENTS_KEPT {
            tell("louder", number);
        }
        let of = |subject: &str| -> Vec<usize> {
            let its = kept.iter().filter(|event| event.subject == subject);
            its.map(|event| event.detail.parse().unwrap()).collect()
        };
        assert_eq!(of("quiet"), Vec::from_iter(0..=10));
        let (loud, louder) = (of("loud"), of("louder"));
        assert!(
            loud.len().abs_diff(louder.len()) <= 1,
            "{loud:?} {louder:?}"
        );
        // the latest of each
        assert_eq!(loud.last(), Some(&(3 * EVENTS_KEPT - 1)));
        assert_eq!(louder.last(), Some(&(EVENTS_KEPT - 1)));
        assert!(louder.windows(2).all(|pair| pair[1] == pair[0] + 1));
    }
}
