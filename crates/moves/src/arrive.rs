//! Takes a machine from another node.

use super::{
    Moves,
    sealed::is_sealed,
    wire::{Order, Reply, Travels, Word},
};
use floe_api::{ApiError, Event, PortForward};
use floe_fork as fork;
use floe_ground::{
    caller::FromMember,
    error::{NodeError, busy, failed, refused, usage},
    files::save_manifest,
    names::MachineName,
    news::News,
    report::Report,
};
use floe_image::{Hash, MachineConfig};
use floe_inventory::inventory::{
    Entry, NewMachine, Operation,
    given::Given,
    lifecycle::Task,
    record::{Afterwards, Household, Origin, Record, Wanted},
    small::Small,
    turn::{Heard, Peer, Side, Turn, heard},
};
use floe_library::images::{PARK_LABEL, sources::Found};
use floe_machines::machines::launch::choose_ports;
use floe_threads::Cancel;
use parking_lot::Mutex;
use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc::UnboundedReceiver;

/// How many machines may be on their way here at once.
const ARRIVING_MAX: usize = 16;
/// For how long what was brought ahead of a machine is kept if the machine itself does not come.
pub(super) const AHEAD_KEPT: Duration = Duration::from_secs(600);
/// For how long what was brought ahead is kept if no hand-over is to follow soon.
const SYNC_KEPT: Duration = Duration::from_secs(36 * 3600);

/// A machine that is being brought here.
pub(super) struct Bringing {
    name: String,
    number: u64,
    image: Hash,
    cancel: Cancel,
    /// What the pull reports.
    events: Mutex<UnboundedReceiver<Event>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Raw bytes that are here, and of all of it.
    progress: (u64, u64),
    /// How it ended: with so many bytes from the network, or why not.
    ended: Option<Result<u64, ApiError>>,
}

impl Bringing {
    /// Returns how far it is.
    fn look(&self) -> (u64, u64) {
        let mut events = self.events.lock();
        let mut state = self.state.lock();
        while let Ok(event) = events.try_recv() {
            if let Event::Progress { done, total, .. } = event {
                state.progress = (done, total);
            }
        }
        state.progress
    }

    fn ended(&self) -> Option<Result<u64, ApiError>> {
        self.state.lock().ended.clone()
    }
}

impl Moves {
    /// Does what another member says of a machine of its own.
    pub fn receive(self: &Arc<Self>, order: &Order, by: &FromMember) -> Result<Reply, NodeError> {
        order.check()?;
        let from = Peer {
            name: by.name.clone(),
            address: by.address,
        };
        let here = self.find(&order.key);
        if let Word::Asked { config } = &order.word {
            self.could_come(&order.machine, config, here.as_deref(), &from)?;
            return Ok(Reply::Could);
        }
        if matches!(order.word, Word::Ahead { .. }) {
            return self.bring(order, by);
        }
        let turn = here.as_ref().and_then(|entry| entry.turn());
        let given = order.word == Word::Given;
        if given && here.is_none() && self.inventory.any_left_alone() {
            return Err(busy(
                "it may be one of the machines here whose records can't be read",
                "floe ps there shows them",
            ));
        }
        match (heard(turn.as_ref(), order.number, given, &from), here) {
            (Heard::Bring, here) => {
                if let Some(entry) = here {
                    self.drop_copy(&entry)?;
                }
                self.bring(order, by)
            }
            (Heard::Ready, Some(entry)) => Ok(match self.was_brought(&order.key) {
                Some(wire_bytes) if entry.task().is_none() => Reply::Ready { wire_bytes },
                // its record may not be on the disk yet
                _ => Reply::Bringing { done: 0, total: 0 },
            }),
            (Heard::Takes(_), Some(entry)) => self.take(&entry, order.number, &from),
            // another, who has heard the same, lets it go on just now
            (Heard::Runs, Some(entry)) if goes_on_soon(&entry) => {
                Ok(Reply::Bringing { done: 0, total: 0 })
            }
            (Heard::Runs, Some(entry)) => Ok(runs(&entry)),
            (Heard::Fence(_) | Heard::Void, Some(entry)) => {
                let Some(operation) = self.begin(&entry, Task::Move)? else {
                    return Ok(Reply::Stale);
                };
                match heard(operation.turn().as_ref(), order.number, given, &from) {
                    Heard::Fence(turn) => self.fence(&operation, turn)?,
                    Heard::Void => self.machines.remove(&operation, true)?,
                    _ => {}
                }
                Ok(Reply::Stale)
            }
            _ => Ok(Reply::Stale),
        }
    }

    /// Returns an error if a machine could not come here, so that its guest need not stand still to find that out.
    fn could_come(
        &self,
        machine: &Travels,
        config: &MachineConfig,
        here: Option<&Entry>,
        from: &Peer,
    ) -> Result<(), NodeError> {
        let name = parse(&machine.name)?;
        match here.and_then(Entry::turn).map(|turn| turn.side) {
            None => self.inventory.check_free(&name)?,
            // what is left of an earlier attempt gives way
            Some(Side::Arriving { from: known }) if known.address == from.address => {}
            // it comes back
            Some(Side::Lent { to }) if to.address == from.address => {}
            Some(_) => {
                return Err(refused(
                    format!("{name} is here, from an earlier move"),
                    "floe ps there shows how it stands",
                ));
            }
        }
        self.core.check_passable()?;
        self.machines.check_room()?;
        self.machines.resources.check_limits(&machine.limits)?;
        self.machines.check_loads(config, None)?;
        let is_open =
            |forward: &PortForward| here.is_some_and(|here| self.is_open_for(here, forward));
        let mut forwards = machine.forwards.clone();
        forwards.retain(|forward| !is_open(forward));
        choose_ports(&self.inventory, &forwards)?;
        let resources = &self.machines.resources;
        let (room, why) = resources.for_clones(name.as_str(), config, 1, false);
        match room.one() {
            Some(_) => Ok(()),
            None => Err(refused(
                format!("there is no room for {name}: {}", why.unwrap_or_default()),
                "end machines there that are no longer needed (floe ps, floe stop, floe park)",
            )),
        }
    }

    /// Brings a machine here, or what it was a moment ago, or says how far that is.
    fn bring(self: &Arc<Self>, order: &Order, by: &FromMember) -> Result<Reply, NodeError> {
        let (Word::Ahead { image, token, .. } | Word::Offered { image, token, .. }) = &order.word
        else {
            return Ok(Reply::Stale);
        };
        let ahead = matches!(order.word, Word::Ahead { .. });
        let mut arriving = self.arriving.lock();
        if let Some(known) = arriving.get(&order.key).cloned() {
            let is_it = known.number == order.number && known.image == *image;
            match known.ended() {
                None if is_it => {
                    let (done, total) = known.look();
                    return Ok(Reply::Bringing { done, total });
                }
                Some(Err(error)) if is_it => {
                    arriving.remove(&order.key);
                    return Err(error.into());
                }
                Some(Ok(wire_bytes)) if is_it && ahead => return Ok(Reply::Ready { wire_bytes }),
                // of an earlier hand-over, or what it brought is gone again
                _ => {
                    known.cancel.cancel();
                    arriving.remove(&order.key);
                }
            }
        }
        arriving.retain(|_, known| known.ended().is_none());
        if arriving.len() >= ARRIVING_MAX {
            return Err(busy(
                format!("{ARRIVING_MAX} machines are on their way here already"),
                "try again when one of them is there",
            ));
        }
        let (report, events) = Report::new();
        let bringing = Arc::new(Bringing {
            name: order.machine.name.clone(),
            number: order.number,
            image: *image,
            cancel: report.cancel(),
            events: Mutex::new(events),
            state: Mutex::default(),
        });
        arriving.insert(order.key.clone(), bringing.clone());
        drop(arriving);
        let job = self.core.job(report.cancel());
        let key = order.key.clone();
        let (moves, order, by) = (self.clone(), order.clone(), by.clone());
        let (image, token) = (*image, token.clone());
        let work = move || {
            let arrive = || moves.arrive(&order, &image, token, &by, &report);
            let ended = std::panic::catch_unwind(AssertUnwindSafe(arrive));
            let ended = ended.unwrap_or_else(|_| {
                Err(failed(
                    "the node made a mistake",
                    "see its log, and report it",
                ))
            });
            if let Err(error) = &ended {
                tracing::warn!(machine = order.machine.name, %error, "it could not be brought here");
            }
            bringing.state.lock().ended = Some(ended.map_err(|error| error.to_api()));
            drop(job);
        };
        if let Err(error) = floe_threads::spawn("move-arrive", work) {
            self.arriving.lock().remove(&key);
            return Err(error.into());
        }
        Ok(Reply::Bringing { done: 0, total: 0 })
    }

    /// Returns how many raw bytes of a machine by this name have come, and of how many, while it is brought here.
    pub(super) fn progress_of(&self, name: &str) -> Option<(u64, u64)> {
        let arriving = self.arriving.lock();
        let mut all = arriving.values();
        let known = all.find(|known| known.name == name && known.ended().is_none())?;
        Some(known.look())
    }

    /// Returns how many bytes crossed the network for a machine that has come, as far as this node remembers; `None` if that is still under
    /// way.
    fn was_brought(&self, key: &str) -> Option<u64> {
        let known = self.arriving.lock().get(key).cloned();
        known.map_or(Some(0), |known| {
            let ended = known.ended()?;
            Some(ended.unwrap_or_default())
        })
    }

    /// Brings a machine's image here, and makes the machine: parked, and not to go on before it is given.
    fn arrive(
        self: &Arc<Self>,
        order: &Order,
        image: &Hash,
        token: String,
        by: &FromMember,
        report: &Report,
    ) -> Result<u64, NodeError> {
        self.machines
            .resources
            .check_limits(&order.machine.limits)?;
        let mut origin = Origin {
            urls: vec![format!("floe://{}{}", by.address, fork::PATH)],
            token: Some(token),
            ..Default::default()
        };
        self.forks.check_source(by, image, &mut origin)?;
        let found = self.images.sources.find_at(*image, origin)?;
        let sealed = matches!(order.word, Word::Ahead { .. }) && is_sealed(&found.manifest);
        // what is sealed says nothing of its machine
        if !sealed {
            self.machines.check_loads(&found.manifest.config, None)?;
        }
        let opened = match &order.word {
            Word::Offered { key: Some(key), .. } => self.opens(&order.key, key, report),
            _ => None,
        };
        let began = Instant::now();
        let brought = self.images.bring_here(&found, report);
        if let Some(opened) = opened {
            self.parks.is_memory(opened); // it goes
        }
        // what nobody can read here goes on where it was
        if brought.is_err() && order.machine.sealed && !is_sealed(&found.manifest) {
            self.forgets_arrival(image);
        }
        let brought = brought?;
        self.saw_rate(by.address, brought.wire_bytes, began.elapsed(), false);
        if let Word::Ahead { kept, .. } = order.word {
            // a later one may have taken its place
            if let Err(error) = report.check() {
                self.parks.is_memory(*image); // it goes
                return Err(error);
            }
            match sealed {
                true => self.keep_copy(&order.key, *image, SYNC_KEPT),
                false => self.hears_what_it_is(order, *image, kept, by)?,
            }
            return Ok(brought.wire_bytes);
        }
        // another hand-over may have begun meanwhile
        let made = report.check().and_then(|()| self.make(order, &found, by));
        // only now, or it would be taken for what no machine needs; if there is no machine, it goes
        self.parks.is_memory(*image);
        made?;
        // what opens still does so when it goes there again
        if opened.is_none() {
            self.copies.lock().remove(&order.key);
        }
        Ok(brought.wire_bytes)
    }

    /// Keeps what a machine was a moment ago: as that from which it goes on if its borrower is gone, or for when it comes.
    fn hears_what_it_is(
        self: &Arc<Self>,
        order: &Order,
        image: Hash,
        kept: bool,
        by: &FromMember,
    ) -> Result<(), NodeError> {
        let syncs = |entry: &Entry| entry.turn()?.syncs(image, by.address);
        let lent = self.find(&order.key).filter(|entry| syncs(entry).is_some());
        let Some(entry) = lent else {
            let long = if kept { SYNC_KEPT } else { AHEAD_KEPT };
            self.keep_copy(&order.key, image, long);
            return Ok(());
        };
        let over = self.core.threads.over();
        if let Some(operation) = entry.begin_when_free(Task::Settle, over)
            && let Some(turn) = syncs(&operation)
        {
            operation.update(|record| record.turn = Some(turn))?;
        }
        self.parks.is_memory(image); // it goes once another takes its place
        Ok(())
    }

    /// Removes what is here of a machine that was lent to a node and comes back from it. Returns its record.
    fn gives_way(&self, key: &str, by: &FromMember) -> Result<Option<Arc<Record>>, NodeError> {
        let Some(entry) = self.find(key) else {
            return Ok(None);
        };
        let operation = self.begin(&entry, Task::Move)?;
        let is_lent = |operation: &Operation| {
            let turn = operation.turn();
            let to = turn.as_ref().and_then(Turn::borrower);
            to.is_some_and(|to| to.address == by.address)
        };
        let Some(operation) = operation.filter(is_lent) else {
            return Ok(None);
        };
        self.close_ports(key);
        let record = operation.record();
        // until it is here, and if it is not let go on here after all, what its users do goes there
        let from = Peer {
            name: by.name.clone(),
            address: by.address,
        };
        let name = operation.name.as_str();
        self.inputs.was_given(name, record.created_unix_s, &from);
        self.machines.remove(&operation, true)?;
        Ok(Some(record))
    }

    /// Makes a machine of an image that has come. The record is what makes it be there.
    fn make(
        self: &Arc<Self>,
        order: &Order,
        found: &Found,
        by: &FromMember,
    ) -> Result<(), NodeError> {
        let name = parse(&order.machine.name)?;
        let from = Peer {
            name: by.name.clone(),
            address: by.address,
        };
        let mut config = found.manifest.config.clone();
        config.labels.remove(PARK_LABEL);
        // what it was goes only now that all of it is here; the other node has it until it is given
        let lent = self.gives_way(&order.key, by)?;
        // a borrower keeps what it gives back, and a lender what it lends; what was sealed is of the last sync
        let kept = (lent.is_some() || order.machine.lends) && !order.machine.sealed;
        self.known.lock().arrives(&order.key, kept);
        let syncing = lent.and_then(|lent| lent.syncing.clone());
        let mut turn = Turn::arrived(&order.key, order.number, from.clone());
        turn.parked = order.machine.parked;
        turn.sealed = order.machine.sealed;
        turn.lender = Some(from).filter(|_| order.machine.lends);
        turn.lease_s = order.machine.lease_s.filter(|_| order.machine.lends);
        if let Some(home) = order.machine.home.clone() {
            let is_own = self.cluster.own_address() == Some(home.address);
            turn.home = Some(home).filter(|_| !is_own); // one that is home is not asked back
        }
        let make = |name: &MachineName, place: &str, uid: Option<u32>| {
            let mut record = arrived(name, place, uid, &order.machine, found.id, config, turn);
            record.syncing = syncing;
            let size = record.size();
            if let Some(turn) = record.turn.as_mut().filter(|turn| turn.lender.is_some()) {
                turn.size = Some(size);
            }
            (self.core.home.machine(place), record)
        };
        let image_name = &order.machine.image_name;
        let operation = self
            .inventory
            .reserve(Some(name), image_name, make, Task::Move);
        // a name that was given to another machine meanwhile stays that one's
        let operation = operation.map_err(|error| {
            let error = error.to_api();
            failed(error.message, error.fix)
        })?;
        let mut making = self.machines.making(operation);
        making.make_dir()?;
        // first the record: a directory without one is nobody's
        making.record().save(&making.dir)?;
        save_manifest(&making.dir, &found.id, &found.manifest)?;
        drop(making.complete());
        Ok(())
    }

    /// Takes a machine that is given, and lets it go on.
    fn take(&self, entry: &Arc<Entry>, number: u64, from: &Peer) -> Result<Reply, NodeError> {
        let Some(operation) = self.begin(entry, Task::Move)? else {
            return Ok(Reply::Stale);
        };
        match heard(operation.turn().as_ref(), number, true, from) {
            Heard::Takes(turn) => {
                operation.update(|record| record.turn = Some(turn))?;
                let trouble = self.comes(&operation, from);
                Ok(match trouble.is_empty() {
                    true => runs(entry),
                    false => Reply::Runs { trouble },
                })
            }
            Heard::Runs => Ok(runs(entry)),
            _ => Ok(Reply::Stale),
        }
    }

    /// Lets a machine go on that was given to this node. Returns why it could not.
    pub(super) fn comes(&self, operation: &Operation, from: &Peer) -> String {
        let trouble = self.go_on(operation);
        if let Some(turn) = operation.turn() {
            let changes = self.machines.changes_of(operation);
            self.known.lock().goes_on(&turn.key, changes);
        }
        let news = News::Arrived(from.name.clone());
        self.core.tell(operation.name.as_str(), &news);
        trouble
    }

    /// Removes a copy that was never given.
    pub(super) fn drop_copy(&self, entry: &Arc<Entry>) -> Result<(), NodeError> {
        let operation = self.begin(entry, Task::Move)?;
        let is_copy = |operation: &Operation| {
            let side = operation.turn().map(|turn| turn.side);
            matches!(side, Some(Side::Arriving { .. }))
        };
        match operation.filter(is_copy) {
            Some(operation) => self.machines.remove(&operation, true),
            None => Ok(()),
        }
    }
}

/// The record of a machine that has come and is not to go on yet.
fn arrived(
    name: &MachineName,
    place: &str,
    uid: Option<u32>,
    travels: &Travels,
    image: Hash,
    config: MachineConfig,
    turn: Turn,
) -> Record {
    Record {
        small: Small::of_image(&config),
        // what its guest has given back it need not have here
        given: Given::in_labels(&config),
        forwards: travels.forwards.clone(),
        wanted: Wanted::Parked,
        // a trace is of one way from an image on
        traced: false,
        limits: travels.limits,
        afterwards: Afterwards {
            remove: travels.remove,
            restart: travels.restart,
            ..Default::default()
        },
        park_after_s: travels.park_after_s,
        no_trim: travels.no_trim,
        turn: Some(turn),
        // without access to its host: what its guest might reach of another says nothing of this one
        ..Record::new(NewMachine {
            name: name.as_str(),
            image_name: &travels.image_name,
            image,
            origin: Origin::default(),
            config,
            restored: true,
            created_unix_s: travels.created_unix_s,
            uid,
            place: format!("machines/{place}"),
            mount_name: place.to_owned(),
            household: Household::begin(),
        })
    }
}

/// Reads the name of a machine.
pub(super) fn parse(name: &str) -> Result<MachineName, NodeError> {
    let parsed = name.parse::<MachineName>();
    parsed.map_err(|error| usage(error.to_string(), ""))
}

/// Whether a machine that is this node's is being let go on.
fn goes_on_soon(entry: &Entry) -> bool {
    entry.task().is_some() && entry.turn().is_some_and(|turn| turn.is_due())
}

/// Says that a machine is this node's.
fn runs(entry: &Entry) -> Reply {
    let trouble = match entry.is_parked() {
        true => format!(
            "it is parked there; floe wake {} there lets it go on",
            entry.name
        ),
        false => String::new(),
    };
    Reply::Runs { trouble }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_inventory::inventory::sample_record as record;

    #[test]
    fn what_has_come_is_parked_at_its_image_until_it_is_given() {
        let mut before = record();
        before.limits.memory_max_bytes = Some(1 << 30);
        before.afterwards.remove = true;
        let peer = Peer {
            name: "alpha".into(),
            address: "10.0.0.1:7071".parse().unwrap(),
        };
        let image = Hash::of(b"moved");
        let name: MachineName = "web".parse().unwrap();
        let turn = Turn::arrived("00112233445566aa", 1, peer);
        let travels = Travels::of(&before);
        let config = before.config.clone();
        let now = arrived(&name, "web.2", Some(7), &travels, image, config, turn);
        assert_eq!((now.image, now.disk_base), (image, image));
        assert_eq!(now.wanted, Wanted::Parked);
        assert!(!now.turn.as_ref().unwrap().is_here());
        assert_eq!(
            (&now.forwards, now.limits, now.created_unix_s),
            (&before.forwards, before.limits, before.created_unix_s)
        );
        assert!(now.afterwards.remove && now.origin.urls.is_empty());
        assert_eq!((&*now.place, &*now.mount_name), ("machines/web.2", "web.2"));
        assert_eq!(Record::parse(&now.bytes()).unwrap(), now);
    }
}
