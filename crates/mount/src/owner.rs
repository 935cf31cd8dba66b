//! The thread that owns the planner and the clock: it gives events to the planner and carries out the actions that it returns.
//! It reads and writes no disk and never waits for one: what needs that is a chore (`chores`), a retry (`retries`), a push
//! (`push`) or the traces' thread (`crew`), and the outcome comes back as an event (`inbox`).

use crate::Buffering;
use crate::chores::{self, image};
use crate::core::Core;
use crate::image::Image;
use crate::inbox::{Inbox, Message, Next, Stir};
use crate::job::{Chore, PushBlock};
use crate::machine::Machine;
use crate::push;
use floe_planner::{Action, Event, Planner};
use floe_sched::{MachineId, Purpose, Who};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often links are measured. A run over a slow link is decided in its first seconds, so once a second would be too late.
const TICK: Duration = Duration::from_millis(250);

/// How often the planner is given the time while there is a model.
const BEAT: Duration = Duration::from_millis(100);

/// What the thread has for itself.
struct Owner {
    planner: Planner,
    /// The machines that are streamed.
    machines: HashMap<MachineId, Arc<Machine>>,
}

/// Runs until the mount is gone.
pub(crate) fn run(core: &Weak<Core>, inbox: &Inbox, planner: Planner) {
    let mut owner = Owner {
        planner,
        machines: HashMap::new(),
    };
    let start = Instant::now();
    let mut tick = start;
    let mut beat = start;
    loop {
        let next = inbox.next(tick.min(beat));
        let Some(core) = core.upgrade() else {
            return;
        };
        let now_us = start.elapsed().as_micros() as u64;
        match next {
            Next::Message(message) => owner.take(&core, now_us, message),
            Next::Nothing => {}
            Next::Closed => return,
        }
        let now = Instant::now();
        if now >= beat {
            let streaming = owner.stream(&core, now_us);
            beat = now + if streaming { BEAT } else { TICK };
        }
        if now >= tick {
            tick = now + TICK;
            for event in housekeeping(&core) {
                owner.plan(&core, now_us, event);
            }
        }
    }
}

impl Owner {
    fn take(&mut self, core: &Arc<Core>, now_us: u64, message: Message) {
        let event = match message {
            Message::Event(event) => event,
            Message::Miss { region, chunk, who } => {
                let block = chunk / 64;
                // The table of a chunk that was missed is in memory: it named the chunk.
                let known = image(core, region).filter(|(image, r)| image.knows(*r, block));
                let candidates = known.map_or(0, |(image, r)| image.candidates(r, block));
                Event::Miss {
                    region,
                    chunk,
                    candidates,
                    who,
                }
            }
            Message::Machine(Stir::Starts { machine, running }) => {
                let who = machine.who(Purpose::Prefetch);
                let Some(image) = machine.image.regions.first().map(|r| r.id) else {
                    return;
                };
                self.machines.insert(machine.id, machine);
                Event::MachineStarted {
                    who,
                    image,
                    running,
                }
            }
            Message::Machine(Stir::Gone(machine)) => {
                self.plan(core, now_us, Event::MachineGone { machine });
                self.machines.remove(&machine);
                return;
            }
        };
        self.plan(core, now_us, event);
    }

    /// Gives an event to the planner and carries out its actions.
    fn plan(&mut self, core: &Core, now_us: u64, event: Event) {
        let mut actions = VecDeque::from(self.planner.on_event(now_us, event));
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Fetch {
                    region,
                    block,
                    chunks,
                    who,
                } => match image(core, region).filter(|(image, r)| !image.knows(*r, block)) {
                    None => chores::fetch(core, region, block, chunks, who),
                    Some(_) => {
                        let chore = Chore::Fetch {
                            region,
                            block,
                            chunks,
                        };
                        core.chore(who, chore);
                    }
                },
                Action::FetchSegments {
                    region,
                    segments,
                    who,
                } => core.chore(who, Chore::Tables { region, segments }),
                Action::Look { region, block, who } => {
                    let found = image(core, region);
                    if found.as_ref().is_some_and(|(i, r)| !i.knows(*r, block)) {
                        core.chore(who, Chore::Look { region, block });
                        continue;
                    }
                    let candidates = found.map_or(0, |(image, r)| image.candidates(r, block));
                    let looked = Event::Candidates {
                        region,
                        block,
                        candidates,
                        who,
                    };
                    actions.extend(self.planner.on_event(now_us, looked));
                }
                Action::Buffer {
                    machine,
                    pause,
                    missing_bytes,
                    eta_us,
                } => {
                    let told = Buffering {
                        pause,
                        missing_bytes,
                        eta_us,
                    };
                    self.buffer(machine, told);
                }
                Action::Push {
                    region,
                    block,
                    chunks,
                    who,
                } => {
                    let found = image(core, region);
                    if let Some((image, r, ino)) =
                        found.and_then(|(image, r)| self.inode(core, &image, r, who))
                    {
                        let order = PushBlock {
                            image: Arc::downgrade(&image),
                            ino,
                            region: r,
                            block,
                            chunks,
                            only_zero: false,
                        };
                        push::submit(core, who, order);
                    }
                }
            }
        }
    }

    /// Returns the inode in which a machine sees a region of an image, after what identifies the region; the image's own if
    /// the machine shows none. `None` if there is no such file.
    fn inode(
        &self,
        core: &Core,
        image: &Arc<Image>,
        region: usize,
        who: Who,
    ) -> Option<(Arc<Image>, usize, u64)> {
        let name = &image.regions[region].name;
        let of_machine = |machine: &Arc<Machine>| {
            let path = format!("machines/{}/{name}", machine.name);
            core.tree.ino(&path)
        };
        let ino = self.machines.get(&who.machine).and_then(of_machine);
        let ino = ino.or_else(|| core.tree.ino(&format!("images/{}/{name}", image.id)))?;
        Some((image.clone(), region, ino))
    }

    /// Reports to the node that a machine should pause or go on. While it is paused, no time passes in its trace.
    fn buffer(&self, machine: MachineId, told: Buffering) {
        if let Some(machine) = self.machines.get(&machine) {
            self.note_progress(machine);
            machine.trace.pause(told.pause);
            machine.image.streaming.say(&machine.name, told);
        }
    }

    fn note_progress(&self, machine: &Machine) {
        *machine.progress.lock() = self.planner.progress(machine.id).unwrap_or_default();
    }

    /// Gives the planner the time if any image has a model; returns whether any has.
    fn stream(&mut self, core: &Core, now_us: u64) -> bool {
        let active = |image: &Arc<Image>| image.streaming.is_active();
        if !core.images.read().values().any(active) {
            return false;
        }
        self.plan(core, now_us, Event::Tick);
        self.machines.values().for_each(|m| self.note_progress(m));
        true
    }
}

/// Returns events about links and about regions whose image is gone.
fn housekeeping(core: &Core) -> Vec<Event> {
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
