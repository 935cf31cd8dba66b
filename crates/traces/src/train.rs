//! Trains models from traces: in the background, when no new traces have come for a moment, one image at a time.
//!
//! A training that fails, for whatever reason, is logged, and the model stays as it was. A training that a crash interrupted is
//! detected at the next start, by the model's digest ([`Trainer::schedule_outdated`]). The thread has a higher nice value than
//! others, so that guests and page faults go first.

use super::{TRACES_MAX, TraceStore};
use floe_image::{Hash, TraceReader};
use floe_planner::{Method, Model, TrainOptions, ZeroTrace, train};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most accesses that a training uses, newest traces first: those of 16 traces of the greatest length. Limits time and memory.
const TRAIN_ACCESSES_MAX: usize = 16 * super::ACCESSES_MAX;
/// However often new traces come, a training waits at most this many times the quiet time.
const PATIENCE: u32 = 12;
/// The nice value of the training thread.
const NICENESS: i32 = 10;

/// Makes the bytes of a model from traces; the error says why it can't.
pub type Train = dyn Fn(Method, &Hash, &[Vec<u8>]) -> Result<Vec<u8>, String> + Send + Sync;

/// The usual training of a [`Trainer`], by floe-planner. The model is decoded again before it is returned.
pub fn learn(method: Method, image: &Hash, traces: &[Vec<u8>]) -> Result<Vec<u8>, String> {
    let mut zero = Vec::with_capacity(traces.len());
    for bytes in traces {
        let reader = TraceReader::new(bytes).map_err(|error| error.to_string())?;
        zero.push(ZeroTrace::from_reader(reader));
    }
    let bytes = train(method, image, &zero, &TrainOptions::default()).encode();
    let model =
        Model::decode(&bytes).map_err(|error| format!("its model can't be read: {error}"))?;
    if model.image() != *image {
        return Err("its model is of another image".into());
    }
    Ok(bytes)
}

type Key = (Hash, String);

/// An image that waits for its training.
struct Waiting {
    due: Instant,
    /// New traces can't put the training off beyond this time.
    latest: Instant,
    methods: Vec<Method>,
}

#[derive(Default)]
struct Queue {
    waiting: HashMap<Key, Waiting>,
    running: Option<Key>,
    over: bool,
}

struct Inner {
    store: Arc<TraceStore>,
    train: Box<Train>,
    quiet: Duration,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// The thread that trains. Dropping this ends the thread after the training under way.
pub struct Trainer {
    inner: Arc<Inner>,
}

impl Trainer {
    /// Starts the thread. An image is trained when no new trace of it came for `quiet`.
    pub fn start(
        store: Arc<TraceStore>,
        quiet: Duration,
        train: Box<Train>,
    ) -> io::Result<Trainer> {
        let inner = Arc::new(Inner {
            store,
            train,
            quiet,
            queue: Mutex::default(),
            changed: Condvar::new(),
        });
        let thread = inner.clone();
        floe_threads::keep_running("train", move || thread.run())?;
        Ok(Trainer { inner })
    }

    /// Schedules a training because new traces of an image came.
    pub fn schedule(&self, image: &Hash, owner: &str) {
        self.inner
            .enter(image, owner, &[Method::Floe], self.inner.quiet);
    }

    /// Trains a model next that somebody wants and that isn't there, and blocks until it is done, but not longer than
    /// `patience`.
    pub fn train_now(&self, image: &Hash, owner: &str, method: Method, patience: Duration) {
        self.inner.enter(image, owner, &[method], Duration::ZERO);
        let key = (*image, owner.to_owned());
        let until = floe_threads::from_now(patience);
        let mut queue = self.inner.queue.lock();
        while !queue.over
            && (queue.waiting.contains_key(&key) || queue.running.as_ref() == Some(&key))
        {
            if self.inner.changed.wait_until(&mut queue, until).timed_out() {
                return;
            }
        }
    }

    /// Schedules every image whose model wasn't made from the traces that count now.
    pub fn schedule_outdated(&self) -> io::Result<()> {
        for (image, owner) in self.inner.store.images()? {
            let traces = self.inner.store.traces(&image, &owner)?;
            let model = self
                .inner
                .store
                .model(&image, &owner, Method::Floe.name())?;
            let current = model.is_some_and(|m| {
                m.digest == TraceStore::digest(&TraceStore::counting(&traces, &owner))
            });
            if !traces.is_empty() && !current {
                self.schedule(&image, &owner);
            }
        }
        Ok(())
    }
}

impl Drop for Trainer {
    fn drop(&mut self) {
        self.inner.queue.lock().over = true;
        self.inner.changed.notify_all();
    }
}

impl Inner {
    fn enter(&self, image: &Hash, owner: &str, methods: &[Method], quiet: Duration) {
        let now = Instant::now();
        let mut queue = self.queue.lock();
        let waiting = queue
            .waiting
            .entry((*image, owner.to_owned()))
            .or_insert_with(|| Waiting {
                due: now + quiet,
                latest: now + self.quiet * PATIENCE,
                methods: Vec::new(),
            });
        // A training that is wanted at once isn't put off.
        waiting.due = if quiet.is_zero() {
            now
        } else {
            waiting.due.max(now + quiet).min(waiting.latest)
        };
        for method in methods {
            if !waiting.methods.contains(method) {
                waiting.methods.push(*method);
            }
        }
        drop(queue);
        self.changed.notify_all();
    }

    fn run(&self) {
        // A thread that can't change its nice value trains anyway.
        let _ = rustix::process::setpriority_process(None, NICENESS);
        while let Some((key, methods)) = self.next() {
            if let Err(error) = self.train_image(&key.0, &key.1, &methods) {
                tracing::warn!(image = key.0.short(), %error, "the traces can't be read");
            }
            self.queue.lock().running = None;
            self.changed.notify_all();
        }
    }

    /// Waits for an image whose time has come, and returns it.
    fn next(&self) -> Option<(Key, Vec<Method>)> {
        let mut queue = self.queue.lock();
        loop {
            if queue.over {
                return None;
            }
            let soonest = queue
                .waiting
                .iter()
                .min_by_key(|(key, waiting)| (waiting.due, *key))
                .map(|(key, waiting)| (key.clone(), waiting.due));
            match soonest {
                None => self.changed.wait(&mut queue),
                Some((key, due)) if due <= Instant::now() => {
                    let waiting = queue.waiting.remove(&key)?;
                    queue.running = Some(key.clone());
                    return Some((key, waiting.methods));
                }
                Some((_, due)) => {
                    self.changed.wait_until(&mut queue, due);
                }
            }
        }
    }

    fn train_image(&self, image: &Hash, owner: &str, wanted: &[Method]) -> io::Result<()> {
        let kept = TraceStore::counting(&self.store.traces(image, owner)?, owner);
        if kept.is_empty() {
            return Ok(());
        }
        let digest = TraceStore::digest(&kept);
        let mut traces: Vec<Vec<u8>> = Vec::new();
        let mut accesses = 0;
        for trace in kept.iter().rev().take(TRACES_MAX) {
            let Some(bytes) = self.store.read(image, owner, &trace.hash)? else {
                continue;
            };
            accesses += TraceReader::new(&bytes).map_or(0, Iterator::count);
            if accesses > TRAIN_ACCESSES_MAX && !traces.is_empty() {
                break;
            }
            traces.push(bytes);
        }
        traces.sort_unstable();
        for method in Method::ALL {
            let name = method.name();
            let before = self.store.model(image, owner, name)?;
            // A model that somebody has asked for once is kept up to date.
            let wants = wanted.contains(&method) || before.is_some();
            if !wants || before.is_some_and(|model| model.digest == digest) {
                continue;
            }
            let began = Instant::now();
            let trained = catch_unwind(AssertUnwindSafe(|| (self.train)(method, image, &traces)))
                .unwrap_or_else(|_| Err("the training panicked".into()));
            match trained {
                Ok(model) => {
                    let version = self.store.add_model(image, owner, name, digest, &model);
                    let ms = began.elapsed().as_millis() as u64;
                    match version {
                        Ok(version) => {
                            tracing::info!(
                                image = image.short(),
                                method = name,
                                version,
                                traces = traces.len(),
                                bytes = model.len(),
                                ms,
                                "model trained"
                            );
                        }
                        Err(error) => {
                            tracing::warn!(image = image.short(), method = name, %error, "a model was not kept");
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(image = image.short(), method = name, %error, "no model was made of the traces; the one before stays");
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::trace;
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    const SOON: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    fn image() -> Hash {
        Hash::of(b"image")
    }

    fn store(dir: &tempfile::TempDir, traces: u64) -> Arc<TraceStore> {
        let store = TraceStore::open(dir.path()).unwrap();
        for start in 0..traces {
            let bytes = trace(start, &[(0, 1, 0, 0), (0, 2, 10, 0)]);
            store
                .add(&image(), "ann", Some("ann"), &bytes, start)
                .unwrap();
        }
        Arc::new(store)
    }

    fn eventually(mut check: impl FnMut() -> bool) {
        let until = Instant::now() + LONG;
        while !check() {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn many_traces_at_once_are_one_training() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir, 3);
        let count = Arc::new(AtomicUsize::new(0));
        let counter = count.clone();
        let trainer = Trainer::start(
            store.clone(),
            SOON,
            Box::new(move |_, _, traces| {
                counter.fetch_add(1, Ordering::SeqCst);
                Ok(vec![traces.len() as u8])
            }),
        )
        .unwrap();
        for _ in 0..20 {
            trainer.schedule(&image(), "ann");
        }
        eventually(|| store.model(&image(), "ann", "floe").unwrap().is_some());
        // Nothing is new, so nothing is done.
        trainer.train_now(&image(), "ann", Method::Floe, LONG);
        assert_eq!(count.load(Ordering::SeqCst), 1);
        let model = store.model(&image(), "ann", "floe").unwrap().unwrap();
        assert_eq!(std::fs::read(model.path).unwrap(), [3]);
        // Another method, on request.
        assert!(store.model(&image(), "ann", "vtube").unwrap().is_none());
        trainer.train_now(&image(), "ann", Method::VTube, LONG);
        assert!(store.model(&image(), "ann", "vtube").unwrap().is_some());
    }

    #[test]
    fn a_training_that_fails_leaves_the_model_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir, 1);
        let fail = Arc::new(AtomicBool::new(false));
        let failing = fail.clone();
        let trainer = Trainer::start(
            store.clone(),
            SOON,
            Box::new(move |_, _, traces| match traces.len() {
                _ if !failing.load(Ordering::SeqCst) => Ok(b"good".to_vec()),
                2 => Err("it does not want to".into()),
                _ => panic!("it breaks"),
            }),
        )
        .unwrap();
        trainer.train_now(&image(), "ann", Method::Floe, LONG);
        fail.store(true, Ordering::SeqCst);
        for start in 10..12 {
            let bytes = trace(start, &[(0, 3, 0, 0)]);
            store
                .add(&image(), "ann", Some("ann"), &bytes, start)
                .unwrap();
            trainer.train_now(&image(), "ann", Method::Floe, LONG);
            let model = store.model(&image(), "ann", "floe").unwrap().unwrap();
            assert_eq!(
                (model.version, &*std::fs::read(model.path).unwrap()),
                (1, &b"good"[..])
            );
        }
        // And the thread goes on.
        fail.store(false, Ordering::SeqCst);
        trainer.train_now(&image(), "ann", Method::Floe, LONG);
        assert_eq!(
            store
                .model(&image(), "ann", "floe")
                .unwrap()
                .unwrap()
                .version,
            2
        );
    }

    #[test]
    fn what_a_crash_interrupted_is_trained_after_it_and_the_same_traces_give_the_same_model() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir, 4);
        let trained = || {
            let trainer = Trainer::start(store.clone(), SOON, Box::new(learn)).unwrap();
            trainer.schedule_outdated().unwrap();
            eventually(|| store.model(&image(), "ann", "floe").unwrap().is_some());
            let model = store.model(&image(), "ann", "floe").unwrap().unwrap();
            (model.version, std::fs::read(model.path).unwrap())
        };
        let (version, bytes) = trained();
        assert_eq!(version, 1);
        assert_eq!(Model::decode(&bytes).unwrap().image(), image());
        // Everything is up to date, so a restart does nothing.
        assert_eq!(trained().0, 1);
        let path = store.model(&image(), "ann", "floe").unwrap().unwrap().path;
        std::fs::remove_file(path).unwrap();
        assert_eq!(trained().1, bytes);
    }
}
