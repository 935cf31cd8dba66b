//! `move`: a machine goes on on another node of the cluster, with its memory, disks, name, ports and limits, and is forgotten here.
//!
//! ```text
//! here                                                    there
//! asks whether it could come ---------------------------> host, name, ports, memory          `depart`, `arrive`
//! captured while it runs -------------------------------> brings what it lacks of that, ahead
//! stored with its disks as one image, parked, offered --> brings the chunks that it lacks
//! given away (its record, durably) ---------------------> its record, then its guest goes on
//! forgotten <-------------------------------------------- it runs
//! ```
//! Who may let the guest go on, whatever is killed or cut in between, is decided without I/O in [`turn`](floe_inventory::inventory::turn), from
//! what is in both records. What a call cannot finish is finished by a thread (`watch`), here or by the next node.
//!
//! The image is a hidden one, as of a parked machine, and read as a fork's memory is: over the port for members, with a token of its own.
//! It comes by an ordinary pull, which continues where it stopped and brings nothing that is there.
//!
//! A machine can be lent (`floe offload`): what it was stays here, and it comes back. Meanwhile, or before it moves, each side can tell the
//! other what it is (`sync`; `when` says, without I/O, when that is done by itself), so that less is left to be sent. The other node need not be
//! able to read it (`sealed`).
//!
//! Locks: the lists of machines that are being brought here, of the copies that are kept, of what members have asked for, of what had
//! changed when machines were synced, of leases, and of links' rates, each of which is only held for a moment; that of this host's speed is held
//! while the speed is measured, and that of lent machines' ports while they are opened.
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "a test may ask whether a file is there"
    )
)]

mod advise;
mod arrive;
mod depart;
mod lease;
mod leases;
mod look;
mod ports;
mod recall;
mod results;
mod sealed;
mod sync;
mod watch;
mod when;
mod wire;

pub use wire::{
    EndAsked, Granted, LeaseAsked, Order, OtherSize, Question, Recall, Recalled, Reply, Results,
    ResultsAsked, Speed, SyncAsked,
};

use advise::{KnownSpeed, Rates};
use arrive::Bringing;
use floe_api::{LEASE_S_MAX, LEASE_S_MIN, MoveRequest, Outcome, RestartPolicy};
use floe_fork::Forks;
use floe_ground::{
    caller::FromMember,
    error::{NodeError, busy, usage},
    news::News,
    report::Report,
    time::unix_now,
};
use floe_hosts::cluster::Cluster;
use floe_image::{Hash, ImageName};
use floe_inputs::Inputs;
use floe_inventory::{
    core::Core,
    inventory::{
        Entry, Inventory, Operation,
        lifecycle::Task,
        turn::{Answer, Turn, is_key},
    },
    network::Inbound,
};
use floe_library::images::{ImageUser, Images, parse_name};
use floe_machines::{
    capture::{Captures, Taking},
    machines::Machines,
    resize::Resizes,
};
use floe_park::park::Parks;
use leases::Leases;
use parking_lot::Mutex;
use recall::Ended;
use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};
use when::Known;

/// The service that moves machines.
pub struct Moves {
    core: Arc<Core>,
    cluster: Arc<Cluster>,
    images: Arc<Images>,
    inventory: Arc<Inventory>,
    machines: Arc<Machines>,
    captures: Arc<Captures>,
    forks: Arc<Forks>,
    parks: Arc<Parks>,
    inputs: Arc<Inputs>,
    resizes: Arc<Resizes>,
    /// What is being brought here, by the machines' keys.
    arriving: Mutex<HashMap<String, Arc<Bringing>>>,
    /// What is kept of machines that are to come, or may come back, by their keys.
    copies: Mutex<HashMap<String, KeptCopy>>,
    /// What members have asked for and is under way: machines that go back to them, or that they are told of.
    asked: Mutex<HashMap<(String, SocketAddr), Ended>>,
    /// How much machines had changed when the other node knew all of them last.
    known: Mutex<Known>,
    /// How fast bytes went over the links to other nodes last.
    rates: Mutex<HashMap<SocketAddr, Rates>>,
    /// How fast this host was last.
    speed: KnownSpeed,
    leases: Leases,
    /// The open ports of lent machines, by the machines' keys.
    ports: Mutex<HashMap<String, Vec<Inbound>>>,
}

/// An image of what a machine was, which has most of what is to be brought when it comes.
struct KeptCopy {
    image: Hash,
    since: Instant,
    /// For how long it is kept.
    long: Duration,
}

impl KeptCopy {
    /// For how long it is still kept.
    fn left(&self) -> Duration {
        self.long.saturating_sub(self.since.elapsed())
    }
}

impl ImageUser for Moves {
    fn user_of(&self, image: &Hash) -> Option<String> {
        let copies = self.copies.lock();
        let kept = copies.values().any(|copy| copy.image == *image);
        drop(copies);
        let is_synced = |entry: &Arc<Entry>| {
            let turn = entry.turn();
            turn.is_some_and(|turn| turn.synced == Some(*image))
        };
        let kept = kept || self.inventory.all().iter().any(is_synced);
        kept.then(|| "a machine that is to come, or may come back".to_owned())
    }

    fn images(&self) -> Vec<Hash> {
        let copies = self.copies.lock();
        let mut images: Vec<Hash> = copies.values().map(|copy| copy.image).collect();
        drop(copies);
        let all = self.inventory.all().into_iter();
        images.extend(all.filter_map(|entry| entry.turn()?.synced));
        images
    }

    fn needs_shown(&self, _image: &Hash) -> bool {
        false
    }
}

impl Moves {
    /// Returns the service, over what captures need too. What an earlier node has left is looked after by [`Moves::start_looking_after`].
    pub fn new(
        captures: Arc<Captures>,
        cluster: Arc<Cluster>,
        forks: Arc<Forks>,
        parks: Arc<Parks>,
        inputs: Arc<Inputs>,
        resizes: Arc<Resizes>,
    ) -> Arc<Moves> {
        let moves = Arc::new(Moves {
            core: captures.core.clone(),
            cluster,
            images: captures.images.clone(),
            inventory: captures.inventory.clone(),
            machines: captures.machines.clone(),
            captures,
            forks,
            parks,
            inputs,
            resizes,
            arriving: Mutex::default(),
            copies: Mutex::default(),
            asked: Mutex::default(),
            known: Mutex::default(),
            rates: Mutex::default(),
            speed: Mutex::default(),
            leases: Leases::new(),
            ports: Mutex::default(),
        });
        let user: Weak<Moves> = Arc::downgrade(&moves);
        moves.images.ask_too(user);
        moves
    }

    /// Keeps an image of what a machine was for so long, in place of an earlier one, and as long as that one was to be kept; while this
    /// node runs.
    fn keep_copy(&self, key: &str, image: Hash, long: Duration) {
        let mut copies = self.copies.lock();
        let left = copies.get(key).map_or(Duration::ZERO, KeptCopy::left);
        let copy = KeptCopy {
            image,
            since: Instant::now(),
            long: long.max(left),
        };
        copies.insert(key.to_owned(), copy);
        drop(copies);
        self.parks.is_memory(image); // it goes once nobody names it
    }

    /// Moves a machine to another node, or lets it go on here although another one has it, or may have it.
    pub fn move_machine(
        self: &Arc<Self>,
        name: &str,
        request: &MoveRequest,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        match (&request.to, request.here) {
            (Some(to), false) => self.depart(name, to, request, report),
            (None, true) => self.force(name, report),
            _ => Err(usage(
                "a machine moves to one place",
                format!("floe move {name} --to NODE, or floe move {name} --here"),
            )),
        }
    }

    /// Lets a machine go on here, since the other node is gone for good.
    fn force(&self, name: &str, report: &mut Report) -> Result<Outcome, NodeError> {
        let entry = self.inventory.get(name)?;
        let operation = self.begin(&entry, Task::Move)?.ok_or_else(|| {
            busy(
                format!("machine {name} is gone from here just now"),
                "floe ps, here and on the other node, shows where it is",
            )
        })?;
        let turn = operation.turn();
        let forced = turn.and_then(|turn| Some((turn.clone(), turn.forces()?)));
        let Some((turn, forced)) = forced else {
            return Err(usage(
                format!("machine {name} is neither given away nor on its way here"),
                format!("floe ps {name} shows how it stands"),
            ));
        };
        self.check_forces(name, &turn)?;
        let _no_lease = self.outlasts(&turn, report)?;
        if let Some(peer) = turn.peer() {
            report.note(format!(
                "{0} may have it run too, until it hears of this node: what it did after it was given is not merged, and one of the two is \
                 kept as an image",
                peer.name
            ));
        }
        self.take_up(&operation, &turn, forced, report)?;
        Ok(Outcome {
            machine: Some(self.machines.info_of(&operation)),
            ..Default::default()
        })
    }

    /// Lets a machine go on here by another turn than it had `before`. What was lent goes on from where its borrower has told of it last.
    fn take_up(
        &self,
        operation: &Operation,
        before: &Turn,
        next: Turn,
        report: &mut Report,
    ) -> Result<(), NodeError> {
        let image_name = operation.record().image_name.clone();
        self.close_ports(&before.key);
        if before.borrower().is_some() {
            self.known.lock().arrives(&before.key, false); // that node's copy is another by now, if there is one
            self.goes_on_from(operation, before, report)?;
        }
        operation.update(|record| {
            record.turn = Some(next);
            record.image_name = image_name;
        })?;
        let trouble = self.go_on(operation);
        report.stage("wake")?;
        if !trouble.is_empty() {
            report.note(format!("{} does not run yet: {trouble}", operation.name));
        }
        Ok(())
    }

    /// Has what was lent stand where the borrower has told of it last, and says what is lost.
    fn goes_on_from(
        &self,
        operation: &Operation,
        lent: &Turn,
        report: &mut Report,
    ) -> Result<(), NodeError> {
        let image = lent.synced.unwrap_or(operation.record().image);
        let made = self.images.repo.manifest(&image)?.created_unix_s;
        if lent.synced.is_some() {
            self.parks.goes_to(operation, &image, report)?;
        }
        let minutes = unix_now().saturating_sub(made).div_ceil(60);
        let results = if lent.ends {
            ", but for its results"
        } else {
            ""
        };
        report.note(format!(
            "{} goes on from what it was {minutes} min ago: what it has done since then is lost{results}",
            operation.name
        ));
        Ok(())
    }

    /// Lets a machine go on whose turn says that this is due. Returns why it could not; it is parked then, and its user sees that. One that
    /// is to stay parked listens at its ports.
    fn go_on(&self, operation: &Operation) -> String {
        if operation.is_parked() && !operation.turn().is_some_and(|turn| turn.is_due()) {
            self.parks.hold_again(&operation.entry);
            return String::new();
        }
        // one that runs, since a node was killed before it wrote that down, is stored when its lease ends
        if operation.is_parked()
            && let Some(lapsed) = operation.turn().and_then(|turn| turn.lapses())
            && !self.may_go_on(operation)
        {
            if let Err(error) = operation.update(|record| record.turn = Some(lapsed)) {
                tracing::warn!(machine = %operation.name, %error, "its record says that it is still to go on");
            }
            return "its lender does not grant its lease, and it goes on once that does".to_owned();
        }
        // whoever asked may have hung up, and it goes on all the same
        let (mut report, _events) = Report::new();
        let woken = self.parks.wake_machine(operation, false, &mut report);
        if let Some(turn) = operation.turn().filter(Turn::is_due) {
            let noted = operation.update(|record| record.turn = Some(turn.has_gone_on()));
            if let Err(error) = noted {
                tracing::warn!(machine = %operation.name, %error, "its record says that it is still to go on");
            }
        }
        let trouble = woken.err().map(|error| error.to_api().to_string());
        trouble.unwrap_or_default()
    }

    /// Keeps what a machine did here after it had gone on elsewhere, as an image, and ends it. It never goes on here.
    fn fence(&self, operation: &Operation, turn: Turn) -> Result<(), NodeError> {
        // one that has a QEMU which does not answer may be running, and is tried again
        if operation.waits_for_adoption() {
            return Err(busy(
                format!(
                    "the QEMU of machine {} does not answer this node yet",
                    operation.name
                ),
                "try again in a moment",
            ));
        }
        operation.answers()?;
        let (mut report, _events) = Report::new();
        // one that was never let go on here is what came, which has no memory of this node's over it
        let due = operation.turn().is_some_and(|turn| turn.is_due());
        let came = operation.turn().is_some_and(|turn| turn.is_owed());
        let never_went_on = came && (due || operation.record().own_layers == 0);
        let lapsed = operation.turn().is_some_and(|turn| turn.lapsed);
        let answers = self.lets_answer(operation)?;
        if operation.is_parked() && !never_went_on && !lapsed {
            self.parks.wake_machine(operation, false, &mut report)?;
        }
        let mut kept = String::new();
        if operation.state().vm.is_some() {
            let name = self.late_name(operation.name.as_str(), turn.number)?;
            kept = name.name().to_owned();
            let labels = BTreeMap::new();
            let taking = Taking {
                stop: true,
                rehearse_s: 0,
                // what has no lease any more runs for no longer than it must
                hooks_s: answers.is_some().then_some(0),
                picture: true,
                labels: &labels,
                keep: &|id, _| Ok(self.images.repo.tag(&name, id)?),
            };
            self.captures.take(operation, &taking, &mut report)?;
        }
        // what was stored when its lease was over has all of it
        if lapsed {
            let name = self.late_name(operation.name.as_str(), turn.number)?;
            kept = name.name().to_owned();
            self.images.repo.tag(&name, &operation.record().image)?;
        }
        operation.update(|record| {
            record.turn = Some(turn);
            // it is not tried to start it again
            record.afterwards.restart = RestartPolicy::No;
            record.afterwards = record.afterwards.stopped();
        })?;
        self.core.tell(operation.name.as_str(), &News::Fenced(kept));
        Ok(())
    }

    /// Returns a name for what a machine did too late: one that no image has, so that what is kept of another keeps its name.
    fn late_name(&self, machine: &str, number: u64) -> Result<ImageName, NodeError> {
        let tags = self.images.repo.tags()?;
        let mut name = parse_name(&format!("{machine}-late-{number}"))?;
        let mut more = 2u64;
        while tags.iter().any(|tag| tag.name == name) {
            name = parse_name(&format!("{machine}-late-{number}.{more}"))?;
            more += 1;
        }
        Ok(name)
    }

    /// Answers a member that asks where a machine is that comes from here.
    pub fn answer(&self, question: &Question, by: &FromMember) -> Result<Answer, NodeError> {
        question.check()?;
        let found = self.find(&question.key);
        if found.is_none() && self.inventory.any_left_alone() {
            return Ok(Answer::Wait); // it may be one of those whose records can't be read
        }
        let turn = found.and_then(|entry| entry.turn());
        let answer = Turn::answer(turn.as_ref(), question.number);
        tracing::debug!(
            member = by.name,
            key = question.key,
            ?answer,
            "asks where a machine is"
        );
        Ok(answer)
    }

    /// Begins an operation on a machine that was found; nothing if it is gone by now. Its name and directory may be another's then.
    fn begin(&self, entry: &Arc<Entry>, what: Task) -> Result<Option<Operation>, NodeError> {
        let operation = entry.begin(what)?;
        let named = self.inventory.get(operation.name.as_str());
        let is_there = named.is_ok_and(|named| Arc::ptr_eq(&named, entry));
        Ok(is_there.then_some(operation))
    }

    /// Returns what this node is called in its cluster; `None` if it is in none.
    pub fn own_name(&self) -> Option<String> {
        let own = self.cluster.own_address()?;
        let found = self.cluster.find(&own.to_string());
        Some(found.map_or_else(|| own.to_string(), |member| member.name))
    }

    /// Returns the name of the one other node of the cluster, or an error if that is none, or one of several.
    pub fn only_other(&self) -> Result<String, NodeError> {
        let mut others = self.cluster.others();
        match (others.pop(), others.is_empty()) {
            (Some(only), true) => Ok(only.name),
            (None, _) => Err(usage(
                "this node's cluster has no other node",
                "floe cluster invite here, and floe cluster join there",
            )),
            (Some(_), false) => Err(usage(
                "this node's cluster has several other nodes",
                "name the one that is meant: floe cluster members lists them",
            )),
        }
    }

    /// Finds a machine by its key.
    fn find(&self, key: &str) -> Option<Arc<Entry>> {
        let mut all = self.inventory.all().into_iter();
        all.find(|entry| entry.turn().is_some_and(|turn| turn.key == key))
    }
}

/// Returns an error unless this can be a machine's key.
fn check_key(key: &str) -> Result<(), NodeError> {
    match is_key(key) {
        true => Ok(()),
        false => Err(usage(
            format!("{key:?} is no machine's key"),
            "it has 16 hex digits",
        )),
    }
}

/// Refuses a lease that is too short to be renewed, or too long to be waited for.
fn check_lease(lease_s: Option<u64>, lends: bool) -> Result<(), NodeError> {
    let Some(lease_s) = lease_s else {
        return Ok(());
    };
    if !lends {
        return Err(usage(
            "only a machine that is lent has a lease",
            "floe offload lends it",
        ));
    }
    match (LEASE_S_MIN..=LEASE_S_MAX).contains(&lease_s) {
        true => Ok(()),
        false => Err(usage(
            format!("{lease_s} s are no lease"),
            format!("name a time from {LEASE_S_MIN} s to {LEASE_S_MAX} s"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_lent_has_a_lease_of_some_length() {
        check_lease(None, false).unwrap();
        check_lease(Some(LEASE_S_MIN), true).unwrap();
        assert!(check_lease(Some(LEASE_S_MIN), false).is_err());
        assert!(check_lease(Some(LEASE_S_MIN - 1), true).is_err());
        assert!(check_lease(Some(LEASE_S_MAX + 1), true).is_err());
    }
}
