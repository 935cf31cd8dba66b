//! Swarms: nodes that run one image bring its pieces to each other (VMTorrent), and the hub sends what none of them has.
//!
//! What is wanted follows from the records of machines and from the list of what is seeded (`seeds`), so that a node that starts after a
//! kill goes on by itself with what is on its shelves. A thread compares that with what is being done; `decide` says what comes next.
//! `ask` asks who takes part (`member`: a hub, `offers`: a cluster), `enter` opens a shelf and joins, `beside` reads images out of
//! what comes (`pieces`), `predict` says what will be needed, `sooner` what the hub is asked for instead, `hedge` how long a machine waits
//! for the swarm, `reach` whether the others answer at all, and `give` when an image has been given to enough of them; `borrow` lets clones
//! of other hosts' machines read out of what comes, where that is `cheaper`. If anything goes wrong here, machines read their hubs as
//! without all this.
//!
//! Locks, each held only briefly and never together with another: what is known of each swarm, the events that the thread has not heard of,
//! the list of seeds (held while it is written), what is predicted by which model, whether others answer, how the hub answers, whether it
//! or the swarm is sooner, what is brought later, what is spoilt, what was counted for `/metrics` (`traffic`), whose shelf is opened or
//! removed (`shelves`), which image of a hub was read last without a swarm, and what is known of forks' images and decided for them. The
//! endpoint's lock is held while it is opened, which asks nobody.

mod ask;
mod beside;
mod borrow;
mod cheaper;
mod decide;
mod enter;
mod give;
mod hedge;
mod identity;
mod member;
mod offers;
mod pieces;
mod predict;
mod reach;
mod reading;
mod report;
mod seeds;
mod shelves;
mod sooner;
mod traffic;

pub use pieces::Active;

use decide::{Action, Duties, Event, Key, Wish};
use floe_api::{
    SwarmLeave, SwarmMember, SwarmMembers, SwarmMembership, SwarmReport, SwarmUse,
    credentials::HubAddress,
};
use floe_ground::{
    aside,
    error::{NodeError, failed, not_found},
};
use floe_hosts::cluster::Cluster;
use floe_image::Hash;
use floe_inventory::{
    core::Core,
    inventory::{Entry, Inventory, lifecycle::Phase, record::Origin},
};
use floe_library::{images::Images, traces::Traces};
use floe_peers::Host;
use identity::Identity;
use member::{Place, add_members, key_text};
use parking_lot::Mutex;
use pieces::{Part, wait_for};
use seeds::{Seeded, Seeds};
use shelves::Shelves;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};
use tokio::{runtime::Handle, task::JoinSet};

/// How often the disk is looked at while pieces come.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long sockets may take to be opened.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long others may take to be told that this node leaves.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long all hubs together may take to be told that this node ends: they forget it by themselves, and the mount waits to be left.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(5);
/// After how many times that pieces fit their roots and are not the image's a swarm is not entered any more. The first time it may be this
/// host's disk; after that it is the hub.
const SPOILT_MAX: u32 = 2;
/// So much of the disk is left to everything else: a swarm that would take it is given up.
const FREE_BYTES_MIN: u64 = 64 << 20;

/// What is known of one swarm.
struct Known {
    place: Place,
    /// Other hubs that may have the image, for what the first does not give.
    others: Vec<Place>,
    /// Who says who takes part.
    members: SwarmMembers,
    /// Whether other users' nodes may be told of this one.
    open: bool,
    /// If the cluster says it: those of its members that take part, by their ids.
    offered: BTreeMap<String, SwarmMember>,
    /// What the hub said last, with the packs of its content.
    membership: SwarmMembership,
    /// What the hub calls the packs of the layout by which the image is read here.
    layout: Option<String>,
    /// Why it is not used, if something is wrong.
    trouble: String,
    /// The content whose pieces fitted their roots and were not the image's, and how often that was so.
    spoilt: (String, u32),
}

impl Known {
    /// Whether there is no use in entering it, as the hub describes it.
    fn is_spoilt(&self) -> bool {
        let (content, times) = &self.spoilt;
        *content == self.membership.content && *times >= SPOILT_MAX
    }

    /// Whether this node has heard who takes part.
    fn is_listed(&self) -> bool {
        !self.membership.content.is_empty()
    }

    /// Forgets who takes part, and returns the hub that is to forget this node.
    fn unlist(&mut self) -> Option<Place> {
        self.membership = SwarmMembership::default();
        self.layout = None;
        self.members.is_hub().then(|| self.place.clone())
    }
}

/// The service that takes part in swarms.
pub struct Swarms {
    core: Arc<Core>,
    cluster: Arc<Cluster>,
    images: Arc<Images>,
    inventory: Arc<Inventory>,
    traces: Arc<Traces>,
    /// Where the swarms' sockets and tasks live.
    runtime: Handle,
    active: Active,
    identity: Identity,
    seeds: Seeds,
    shelves: Shelves,
    endpoint: Mutex<Option<Arc<Host>>>,
    known: Mutex<HashMap<Key, Known>>,
    happened: Mutex<Vec<Event>>,
    counted: traffic::Counted,
}

/// What this node wants of a swarm.
struct Wanted {
    place: Place,
    others: Vec<Place>,
    members: SwarmMembers,
    wish: Wish,
    /// Whether all of it is to be brought here and given to others, also without a machine.
    given: Option<Seeded>,
    machines: Vec<String>,
}

impl Swarms {
    /// Creates the service, which makes pieces readable through `active`. Nothing is done yet.
    pub fn open(
        core: Arc<Core>,
        cluster: Arc<Cluster>,
        images: Arc<Images>,
        inventory: Arc<Inventory>,
        traces: Arc<Traces>,
        active: Active,
        runtime: Handle,
    ) -> Result<Arc<Swarms>, NodeError> {
        let dir = core.home.swarm();
        Ok(Arc::new(Swarms {
            identity: Identity::open(&dir)?,
            seeds: Seeds::open(dir.join("seeds.json"))?,
            shelves: Shelves::default(),
            core,
            cluster,
            images,
            inventory,
            traces,
            runtime,
            active,
            endpoint: Mutex::default(),
            known: Mutex::default(),
            happened: Mutex::default(),
            counted: traffic::Counted::default(),
        }))
    }

    /// Starts the thread that carries out what is wanted.
    pub fn start_taking_part(self: &Arc<Self>) -> Result<(), NodeError> {
        self.tidy();
        let (mut duties, began) = (Duties::default(), Instant::now());
        let here = Arc::downgrade(self);
        let (changed, over) = (
            self.inventory.changed().clone(),
            self.core.threads.over().clone(),
        );
        let keep = move || {
            let beats = changed.clone();
            let _hook = over.on_cancel(move || beats.beat());
            while !over.is_cancelled() {
                let seen = changed.seen();
                let Some(swarms) = here.upgrade() else {
                    return;
                };
                let until = swarms.look(&mut duties, began);
                drop(swarms);
                changed.wait(seen, Some(until));
            }
        };
        Ok(self.core.threads.keep_running("swarm", keep)?)
    }

    /// Leaves all swarms: the node ends. Shelves stay where there is something left to do for the next node.
    pub fn close(&self) {
        let mut leaving = JoinSet::new();
        for (key, part) in self.active.all() {
            self.active.take(&key);
            let swarm = part.swarm.clone();
            leaving.spawn_on(async move { swarm.leave().await }, &self.runtime);
        }
        wait_for(&self.runtime, LEAVE_TIMEOUT, leaving.join_all());
        let (me, until) = (self.key(), Instant::now() + FAREWELL_TIMEOUT);
        let known: Vec<_> = self.known.lock().drain().collect();
        for (key, mut known) in known {
            if Instant::now() < until
                && let Some(me) = me.as_ref().filter(|_| known.is_listed())
                && let Some(hub) = known.unlist()
            {
                hub.leave(&key, me);
            }
        }
        let host = self.endpoint.lock().take();
        if let Some(host) = host.and_then(Arc::into_inner) {
            wait_for(&self.runtime, LEAVE_TIMEOUT, host.close());
        }
    }

    /// Takes this node out of an image's swarm: its machines go on by the hub alone.
    pub fn leave(&self, request: &SwarmLeave) -> Result<SwarmReport, NodeError> {
        let text = request.image.as_str();
        let means = |image: &Hash, name: &str| {
            name == text || (text.len() >= 6 && image.to_string().starts_with(text))
        };
        let mut found = self.seeds.remove(|one| means(&one.image, &one.name))?;
        for entry in self.inventory.all() {
            let record = entry.record();
            let takes_part = self.use_of(record.swarm) != SwarmUse::Off;
            if takes_part && uses(&entry) && means(&record.image, &record.image_name) {
                entry.update(|record| record.swarm = Some(SwarmUse::Off))?;
                found = true;
            }
        }
        self.wake();
        match found {
            true => Ok(self.report()),
            false => Err(not_found(
                format!("this node is in no swarm of an image {text:?}"),
                "see floe swarm status",
            )),
        }
    }

    /// Lets this node listen for others from now on, so that its user can tell them where it is.
    pub fn listen(&self) -> Result<SwarmReport, NodeError> {
        let listens = self.host();
        listens.map_err(|why| {
            failed(
                format!("this node can't listen for others: {why}"),
                "name an address and a port of this host: floe node --swarm-listen",
            )
        })?;
        Ok(self.report())
    }

    fn use_of(&self, of_machine: Option<SwarmUse>) -> SwarmUse {
        of_machine.unwrap_or(self.core.options.swarm.usage)
    }

    /// Makes the thread look.
    fn wake(&self) {
        self.inventory.changed().beat();
    }

    fn tell(&self, event: Event) {
        self.happened.lock().push(event);
        self.wake();
    }

    /// How the hubs of an image's origin are reached, as far as its addresses could be hubs'. The first lists who takes part.
    fn places_of(&self, origin: &Origin) -> Vec<Place> {
        let sources = &self.images.sources;
        let urls = origin.urls.iter().filter(|url| sources.may_be_hub(url));
        let place = |url: &String| Place {
            token: sources.token_for(url, origin.token_for(url)),
            ca: origin.ca_for(url).map(str::to_owned),
            url: url.clone(),
        };
        urls.map(place).collect()
    }

    /// What machines and seeds want.
    fn wanted(&self) -> BTreeMap<Key, Wanted> {
        let mut all: BTreeMap<Key, Wanted> = BTreeMap::new();
        for entry in self.inventory.all() {
            let record = entry.record();
            let usage = self.use_of(record.swarm);
            if usage == SwarmUse::Off || !uses(&entry) {
                continue;
            }
            let mut places = self.places_of(&record.origin).into_iter();
            let Some(place) = places.next() else {
                continue;
            };
            let Some(hub) = HubAddress::of(&place.url) else {
                continue;
            };
            let image = record.image;
            let wanted = all.entry(Key { hub, image }).or_insert_with(|| Wanted {
                place,
                others: places.collect(),
                members: SwarmMembers::Hub,
                wish: Wish::default(),
                given: None,
                machines: Vec::new(),
            });
            add_members(&mut wanted.members, &record.origin.swarm);
            wanted.wish.always |= usage == SwarmUse::On;
            wanted.machines.push(entry.name.to_string());
        }
        for seeded in self.seeds.all() {
            let Some(key) = seeded.key() else {
                continue;
            };
            let wanted = all.entry(key).or_insert_with(|| Wanted {
                place: seeded.place(),
                others: Vec::new(),
                members: SwarmMembers::Hub,
                wish: Wish::default(),
                given: None,
                machines: Vec::new(),
            });
            (wanted.wish.always, wanted.given) = (true, Some(seeded));
        }
        // a hub knows by the token whose nodes may meet by themselves
        all.retain(|_, wanted| {
            let is_known = wanted.place.token.is_some() || !wanted.members.is_hub();
            wanted.wish.always || is_known
        });
        all
    }

    /// Compares what is wanted with what is being done, and returns when to look again.
    fn look(self: &Arc<Self>, duties: &mut Duties, began: Instant) -> Instant {
        let now_us = || began.elapsed().as_micros() as u64;
        let wanted = self.wanted();
        let wishes = wanted.iter().map(|(key, of)| (key.clone(), of.wish));
        let wishes: BTreeMap<Key, Wish> = wishes.collect();
        self.note_wishes(&wanted);
        let mut actions = duties.step(now_us(), Some(Event::Wanted(wishes)));
        for event in std::mem::take(&mut *self.happened.lock()) {
            actions.extend(duties.step(now_us(), Some(event)));
        }
        for action in actions {
            let (key, name) = match &action {
                Action::Ask(key) => (key, "swarm-ask"),
                Action::Enter(key) => (key, "swarm-enter"),
                Action::Leave(key) => (key, "swarm-leave"),
            };
            let (here, key) = (self.clone(), key.clone());
            let work = move || match action {
                Action::Ask(_) => here.ask(&key),
                Action::Enter(_) => here.enter(&key),
                Action::Leave(_) => here.leave_one(&key),
            };
            if let Err(error) = self.core.threads.start(name, work) {
                tracing::error!(%error, name, "no thread for a swarm");
            }
        }
        for (key, part) in self.active.all() {
            part.look();
            self.bring_later(&part);
            if let Some((why, packs)) = part.newly_spoilt() {
                self.note_spoilt(&key, &part.content);
                self.give_up(&key, why);
                self.doubt(&key, packs);
            }
        }
        self.show_out_removed();
        self.look_at_given();
        self.look_at_disk();
        let next = duties.next_us().map(|us| began + Duration::from_micros(us));
        let often = Instant::now() + LOOK_EVERY;
        match self.active.is_empty() {
            true => next.unwrap_or(often).max(Instant::now()),
            false => next.map_or(often, |next| next.min(often)),
        }
    }

    /// Makes known what is wanted of the swarms that this node is in.
    fn note_wishes(self: &Arc<Self>, wanted: &BTreeMap<Key, Wanted>) {
        let mut known = self.known.lock();
        known.retain(|key, known| wanted.contains_key(key) || known.is_listed());
        for (key, of) in wanted {
            let known = known.entry(key.clone()).or_insert_with(|| Known {
                place: of.place.clone(),
                others: Vec::new(),
                members: SwarmMembers::Hub,
                offered: BTreeMap::new(),
                open: false,
                membership: SwarmMembership::default(),
                layout: None,
                trouble: String::new(),
                spoilt: (String::new(), 0),
            });
            (known.place, known.open) = (of.place.clone(), of.wish.always);
            known.others.clone_from(&of.others);
            known.members.clone_from(&of.members);
        }
        drop(known);
        for (key, part) in self.active.all() {
            let Some(of) = wanted.get(&key) else {
                continue;
            };
            part.always.store(of.wish.always, Relaxed);
            let whole = of.given.is_some();
            let before = part.whole.swap(whole, Relaxed);
            if whole && !before {
                self.bring_whole(&key, &part);
            }
        }
    }

    /// Gives swarms up for which the disk has no room.
    fn look_at_disk(self: &Arc<Self>) {
        let all = self.active.all();
        if all.is_empty() || self.free_bytes() >= FREE_BYTES_MIN {
            return;
        }
        for (key, _) in all {
            let why = format!(
                "the disk is full: fewer than {} MiB are free below {}",
                FREE_BYTES_MIN >> 20,
                self.core.home.root().display()
            );
            self.give_up(&key, why);
        }
    }

    /// Returns the free bytes of the disk that shelves are on; if nobody knows, there is room.
    fn free_bytes(&self) -> u64 {
        let disk = rustix::fs::statvfs(self.core.home.swarm());
        disk.map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// Ends the exchange of pieces of an image, which is tried again later.
    fn give_up(self: &Arc<Self>, key: &Key, why: String) {
        tracing::warn!(
            image = key.image.short(),
            why,
            "a swarm is given up for a while"
        );
        self.trouble(key, why);
        let (here, key) = (self.clone(), key.clone());
        let work = move || {
            here.end_part(&key);
            here.remove_shelf(&key);
            here.tell(Event::Broken(key));
        };
        if let Err(error) = self.core.threads.start("swarm-leave", work) {
            tracing::error!(%error, "no thread to leave a swarm");
        }
    }

    fn note_spoilt(&self, key: &Key, content: &str) {
        if let Some(known) = self.known.lock().get_mut(key) {
            if known.spoilt.0 != content {
                known.spoilt = (content.to_owned(), 0);
            }
            known.spoilt.1 += 1;
        }
    }

    fn trouble(&self, key: &Key, why: String) {
        if let Some(known) = self.known.lock().get_mut(key) {
            known.trouble = why;
        }
    }

    /// This node's public key, once it has an endpoint.
    fn key(&self) -> Option<String> {
        let endpoint = self.endpoint.lock();
        endpoint.as_ref().map(|host| key_text(&host.key()))
    }

    /// Leaves a swarm in an orderly way.
    fn leave_one(&self, key: &Key) {
        self.end_part(key);
        let hub = self.known.lock().get_mut(key).and_then(Known::unlist);
        if let (Some(hub), Some(me)) = (hub, self.key()) {
            hub.leave(key, &me);
        }
        self.remove_shelf(key);
        self.tell(Event::Left(key.clone()));
    }

    /// Ends the exchange of pieces of an image, and tells the others. Returns what has ended.
    fn end_part(&self, key: &Key) -> Option<Arc<Part>> {
        let part = self.active.take(key)?;
        self.count_last(key, &part);
        let swarm = part.swarm.clone();
        wait_for(&self.runtime, LEAVE_TIMEOUT, async move {
            swarm.leave().await;
        });
        Some(part)
    }

    fn shelf_of(&self, image: &Hash) -> PathBuf {
        self.core.home.swarm().join(image.to_string())
    }

    fn remove_shelf(&self, key: &Key) {
        let dir = self.shelf_of(&key.image);
        let Some(_claim) = self.shelves.claim(key.image) else {
            return; // another swarm of the image is being entered, or this one again
        };
        let elsewhere = self.active.all();
        if elsewhere.iter().any(|(other, _)| other.image == key.image) {
            return;
        }
        match std::fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(%error, dir = %dir.display(), "pieces could not be removed");
            }
            _ => {}
        }
    }

    /// Removes shelves of images that nobody here wants any more: a node was killed before it could.
    fn tidy(&self) {
        if self.inventory.any_left_alone() {
            return; // it may want some
        }
        let wanted: BTreeSet<Hash> = self.wanted().keys().map(|key| key.image).collect();
        let found = aside::list(&self.core.home.swarm()).unwrap_or_else(|error| {
            tracing::warn!(%error, "pieces of images that nobody wants stay");
            Vec::new()
        });
        for entry in found {
            let name = entry.file_name();
            let image = name.to_str().and_then(|name| name.parse::<Hash>().ok());
            if image.is_some_and(|image| !wanted.contains(&image))
                && let Err(error) = std::fs::remove_dir_all(entry.path())
            {
                tracing::warn!(%error, dir = %entry.path().display(), "pieces could not be removed");
            }
        }
    }

    /// This node's endpoint, opened with its first swarm.
    fn host(&self) -> Result<Arc<Host>, String> {
        let mut endpoint = self.endpoint.lock();
        if let Some(host) = &*endpoint {
            return Ok(host.clone());
        }
        let sets = match self.core.options.swarm.listen {
            Some(listen) => vec![vec![listen]],
            None => self.identity.addresses(),
        };
        let mut why = String::new();
        for addresses in sets {
            let secret = self.identity.secret();
            let opened = wait_for(&self.runtime, LISTEN_TIMEOUT, async move {
                Host::listen(secret, &addresses).await
            });
            match opened {
                Some(Ok(host)) => {
                    host.cap_uploads(self.core.options.swarm.upload_bytes_per_s);
                    let host = Arc::new(host);
                    if self.core.options.swarm.listen.is_none() {
                        self.identity.keep(&host.addresses());
                    }
                    tracing::info!(key = %host.key(), addresses = ?host.addresses(), "listens for swarms");
                    *endpoint = Some(host.clone());
                    return Ok(host);
                }
                Some(Err(error)) => why = error.to_string(),
                None => why = "the node is ending".into(),
            }
        }
        Err(why)
    }
}

/// Whether a machine reads its image, or is about to.
fn uses(entry: &Entry) -> bool {
    matches!(
        entry.phase(),
        Phase::Creating
            | Phase::Starting
            | Phase::Left
            | Phase::Running
            | Phase::Resetting
            | Phase::Waking
            | Phase::Woken
    )
}

#[cfg(test)]
mod world_tests;
