//! The thread that owns the planner and the clock: it gives events to the planner and carries out the actions that it returns.

use crate::Buffering;
use crate::core::{Core, Parked, Touches};
use crate::image::Image;
use crate::machine;
use crate::push::{self, PushBlock};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use floe_image::{Hash, Kind};
use floe_planner::{Action, Event, Planner, RegionId};
use floe_sched::Purpose;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often links are measured, traces written out and deadlines checked. A run over a slow link is decided in its first
/// seconds, so once a second would be too late.
const TICK: Duration = Duration::from_millis(250);

/// How often the planner is given the time while there is a model.
const BEAT: Duration = Duration::from_millis(100);

/// A message to the owner.
pub(crate) enum Message {
    /// An event for the planner.
    Event(Event),
    /// A chunk was touched and isn't here. The owner looks its neighbours up for the planner.
    Miss { region: RegionId, chunk: u64 },
    /// An answered request whose thread isn't known yet.
    Account(Touches),
    /// A parked request is to be tried again at this time.
    Retry(Instant, Arc<Parked>),
}

/// Runs until the mount is gone.
pub(crate) fn run(core: &Weak<Core>, inbox: &Receiver<Message>, mut planner: Planner) {
    let start = Instant::now();
    let mut retries: VecDeque<(Instant, Arc<Parked>)> = VecDeque::new();
    let mut tick = start;
    let mut beat = start;
    loop {
        let next = retries.iter().map(|r| r.0).min().unwrap_or(tick);
        let next = next.min(tick).min(beat);
        let message = inbox.recv_timeout(next.saturating_duration_since(Instant::now()));
        let Some(core) = core.upgrade() else {
            return;
        };
        let now_us = start.elapsed().as_micros() as u64;
        let event = match message {
            Ok(Message::Event(event)) => Some(event),
            Ok(Message::Miss { region, chunk }) => {
                let candidates =
                    image(&core, region).map_or(0, |(image, r)| image.candidates(r, chunk / 64));
                Some(Event::Miss {
                    region,
                    chunk,
                    candidates,
                })
            }
            Ok(Message::Account(touches)) => {
                core.askers.look_up(touches.asking.thread);
                core.account_now(&touches);
                None
            }
            Ok(Message::Retry(when, parked)) => {
                retries.push_back((when, parked));
                None
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if let Some(event) = event {
            plan(&core, &mut planner, now_us, event);
        }
        let now = Instant::now();
        let (due, later): (VecDeque<_>, _) = retries.into_iter().partition(|r| r.0 <= now);
        retries = later;
        due.iter().for_each(|(_, parked)| core.resume(parked));
        if now >= beat {
            let streaming = stream(&core, &mut planner, now_us);
            beat = now + if streaming { BEAT } else { TICK };
        }
        if now >= tick {
            let timeout = core.options.io_timeout;
            tick = now + timeout.map_or(TICK, |t| (t / 4).clamp(Duration::from_millis(10), TICK));
            for event in housekeeping(&core) {
                plan(&core, &mut planner, now_us, event);
            }
        }
    }
}

fn image(core: &Core, region: RegionId) -> Option<(Arc<Image>, usize)> {
    let regions = core.regions.read();
    let (image, number) = regions.get(&region)?;
    Some((image.upgrade()?, *number))
}

/// Gives an event to the planner and carries out its actions.
fn plan(core: &Arc<Core>, planner: &mut Planner, now_us: u64, event: Event) {
    let mut actions = VecDeque::from(planner.on_event(now_us, event));
    while let Some(action) = actions.pop_front() {
        match action {
            Action::Fetch {
                region,
                block,
                chunks,
            } => fetch(core, region, block, chunks),
            Action::FetchSegments { region, segments } => fetch_tables(core, region, segments),
            Action::Look { region, block } => {
                let candidates =
                    image(core, region).map_or(0, |(image, r)| image.candidates(r, block));
                actions.extend(planner.on_event(
                    now_us,
                    Event::Candidates {
                        region,
                        block,
                        candidates,
                    },
                ));
            }
            Action::Buffer {
                region,
                pause,
                missing_bytes,
                eta_us,
            } => {
                if let Some((image, _)) = image(core, region) {
                    let told = Buffering {
                        pause,
                        missing_bytes,
                        eta_us,
                    };
                    if let Some(progress) = planner.progress_of(region) {
                        image.streaming.set_progress(progress);
                    }
                    buffer(core, &image, told);
                }
            }
            Action::Push {
                region,
                block,
                chunks,
            } => {
                if let Some((image, r)) = image(core, region) {
                    let order = PushBlock {
                        image: Arc::downgrade(&image),
                        region: r,
                        block,
                        chunks,
                        only_zero: false,
                    };
                    push::submit(core, &image, order);
                }
            }
        }
    }
}

/// Reports to the node that an image's machines should pause or go on. While they are paused, no time passes in their traces.
fn buffer(core: &Core, image: &Arc<Image>, told: Buffering) {
    let machines = core.machines.read();
    for machine in machines.values().filter(|m| Arc::ptr_eq(&m.image, image)) {
        machine.trace.pause(told.pause);
    }
    image.streaming.say(told);
}

/// Gives the planner the time if any image has a model; returns whether any has.
fn stream(core: &Arc<Core>, planner: &mut Planner, now_us: u64) -> bool {
    let images: Vec<_> = core.images.read().values().cloned().collect();
    let streaming: Vec<_> = images.iter().filter(|i| i.streaming.is_active()).collect();
    if streaming.is_empty() {
        return false;
    }
    plan(core, planner, now_us, Event::Tick);
    for image in streaming {
        let first = image.regions.first();
        if let Some(progress) = first.and_then(|r| planner.progress_of(r.id)) {
            image.streaming.set_progress(progress);
        }
    }
    true
}

fn fetch(core: &Arc<Core>, region: RegionId, block: u64, chunks: u64) {
    let done = |ok| {
        Message::Event(Event::Fetched {
            region,
            block,
            chunks,
            ok,
        })
    };
    let Some((image, number)) = image(core, region) else {
        let _ = core.owner.send(done(false));
        return;
    };
    image.regions[number].ahead.set_word(block, chunks);
    let hashes = image.hashes(number, block, chunks);
    machine::add(&core.counters.ahead_chunks, hashes.len() as u64);
    if hashes.is_empty() {
        let _ = core.owner.send(done(true));
        return;
    }
    // How many items are left, and whether all so far have come.
    let left = Mutex::new((hashes.len(), true));
    let owner = core.owner.clone();
    let each = move |_: &Hash, result: Result<(), String>| {
        let mut left = left.lock();
        left.0 = left.0.saturating_sub(1);
        left.1 &= result.is_ok();
        if left.0 == 0 {
            let _ = owner.send(Message::Event(Event::Fetched {
                region,
                block,
                chunks,
                ok: left.1,
            }));
        }
    };
    let items = hashes.into_iter().map(|h| (Kind::Chunk, h)).collect();
    let who = core.ahead_of(&image, Purpose::Prefetch);
    image.backend.prefetch(who, items, Arc::new(each));
}

fn fetch_tables(core: &Arc<Core>, region: RegionId, segments: Vec<u32>) {
    let Some((image, number)) = image(core, region) else {
        return;
    };
    let mut wanted: HashMap<Hash, Vec<u32>> = HashMap::new();
    for segment in segments {
        if let Some(hash) = image.regions[number].segment_hash(segment) {
            wanted.entry(hash).or_default().push(segment);
        }
    }
    let items = wanted.keys().map(|h| (Kind::Segment, *h)).collect();
    let (owner, for_image) = (core.owner.clone(), Arc::downgrade(&image));
    let each = move |hash: &Hash, result: Result<(), String>| {
        let image = result.ok().and_then(|()| for_image.upgrade());
        let table = image.as_ref().and_then(|i| i.backend.segment(hash));
        for segment in wanted.get(hash).into_iter().flatten() {
            if let (Some(table), Some(image)) = (&table, &image) {
                image.regions[number].set_table(*segment as usize, table.clone());
            }
            let _ = owner.send(Message::Event(Event::SegmentLoaded {
                region,
                segment: *segment,
                ok: table.is_some(),
            }));
        }
    };
    let who = core.ahead_of(&image, Purpose::Prefetch);
    image.backend.prefetch(who, items, Arc::new(each));
}

/// Writes traces out, fails requests past their deadline, and returns events about links and about regions whose image is gone.
fn housekeeping(core: &Arc<Core>) -> Vec<Event> {
    let machines: Vec<_> = core.machines.read().values().cloned().collect();
    for machine in machines {
        if let Err(error) = machine.trace.write_out() {
            tracing::warn!(machine = machine.name, %error, "the trace could not be written");
        }
    }
    if let Some(timeout) = core.options.io_timeout {
        let late: Vec<_> = core
            .waiting
            .lock()
            .values()
            .filter(|p| p.since.elapsed() >= timeout)
            .cloned()
            .collect();
        for parked in late {
            tracing::error!(?timeout, "a request waited too long for a chunk and fails");
            core.answer_errno(&parked, libc::EIO);
        }
    }
    let mut events: Vec<Event> = Vec::new();
    core.regions.write().retain(|id, (image, _)| {
        let alive = image.strong_count() > 0;
        events.extend((!alive).then_some(Event::RegionRemoved { region: *id }));
        alive
    });
    let images: Vec<_> = core.images.read().values().cloned().collect();
    let links: BTreeMap<_, _> = images.iter().map(|i| (i.backend.link_id(), i)).collect();
    events.extend(links.into_values().filter_map(|image| measured(image)));
    events
}

/// Returns what is measured of an image's link, as an event; `None` before anything came over it.
pub(crate) fn measured(image: &Image) -> Option<Event> {
    Some(Event::LinkEstimate {
        link: image.backend.link_id(),
        measured: image.backend.link()?,
    })
}
