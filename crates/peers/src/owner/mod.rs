//! The one task that owns a swarm's policy: it tells it what happens, and does what it decides. It never waits for a peer, a disk or
//! the seed: tasks of their own do that, and what becomes of it returns as a [`Note`].
mod gossip;
mod needs;
mod peers;
mod wants;

use crate::cap::places;
use crate::connection::{Connection, Note, Outcome, Shared, Wire, shelve};
use crate::doors::Door;
use crate::endpoints::Endpoints;
use crate::members::{Key, Member};
use crate::seed::Seed;
use crate::sharers::Sharer;
use crate::swarm::{Command, Gauges, Options, Peer, Status, Traffic};
use crate::wire::{Hello, Message};
use floe_swarm::policy::{Action, Event, Fault, PEERS_MAX, PeerId, PieceId, Policy, Purpose};
use floe_swarm::roster::{Move, Roster};
use floe_swarm::seed::SeedQueue;
use gossip::Gossip;
use needs::Needs;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;
use wants::Wants;

/// How often the policy gets the time.
const TICK: Duration = Duration::from_millis(50);
/// How often what has come is synced to the disk: what a power cut may cost is fetched again.
const SYNC_US: u64 = 5_000_000;
/// A request to the seed that takes longer is given up.
const SEED_PATIENCE: Duration = Duration::from_secs(30);
/// Pieces of which the policy is told at a time.
const TOLD_AT_A_TIME: usize = 1024;
/// Dropped hosts that a status names.
const DROPPED_MAX: usize = 50;

/// A neighbour, or a host that was asked something lately.
struct Connected {
    connection: Connection,
    /// Whether it is told what comes here.
    told: bool,
    /// When one last asked the other, or a piece came.
    used_us: u64,
}

/// A seed, and what it is asked for.
struct SeedOf {
    seed: Arc<dyn Seed>,
    queue: SeedQueue,
}

impl SeedOf {
    fn new(seed: Arc<dyn Seed>) -> SeedOf {
        SeedOf {
            seed,
            queue: SeedQueue::default(),
        }
    }
}

pub(crate) struct Owner {
    key: Key,
    hello: Hello,
    endpoints: Endpoints,
    door: Door,
    shared: Shared,
    /// The policy knows seeds by their places here. No member has such a small number, unless the hash of its key is as small.
    seeds: Vec<SeedOf>,
    policy: Policy,
    roster: Roster<Member>,
    connections: HashMap<PeerId, Connected>,
    gauges: Arc<Gauges>,
    sharer: Sharer,
    /// Hosts by the numbers of their connections.
    numbers: HashMap<u64, PeerId>,
    next_number: u64,
    /// Questions to hosts that are being dialled.
    waiting: HashMap<PeerId, Vec<(PieceId, Purpose)>>,
    needs: Needs,
    wants: Wants,
    gossip: Gossip,
    traffic: HashMap<PeerId, Traffic>,
    /// The host's cap, as the policy knows it.
    cap: Option<u64>,
    seed_bytes: u64,
    seed_wrong: u64,
    pieces_here: u32,
    /// Who has had all pieces, [`PEERS_MAX`] of them at most.
    complete: BTreeSet<Key>,
    dropped: VecDeque<(Key, Fault)>,
    since: Instant,
    /// When the shelf was last synced, and whether that is under way.
    synced_us: u64,
    syncing: bool,
    unsynced: bool,
    actions: Vec<Action>,
    moves: Vec<Move>,
}

impl Owner {
    pub(crate) fn new(
        key: Key,
        hello: Hello,
        endpoints: Endpoints,
        door: Door,
        shared: Shared,
        seeds: impl IntoIterator<Item = Arc<dyn Seed>>,
        options: Options,
    ) -> Owner {
        let me = key.peer();
        let pieces = shared.shelf.content().pieces();
        let mut owner = Owner {
            key,
            hello,
            endpoints,
            door,
            policy: Policy::new(options.config, me, pieces, hello.session),
            roster: Roster::new(me),
            connections: HashMap::new(),
            gauges: Arc::default(),
            sharer: Sharer::new(shared.sharers.clone()),
            numbers: HashMap::new(),
            next_number: 0,
            waiting: HashMap::new(),
            needs: Needs::new(&options.config),
            wants: Wants::default(),
            gossip: Gossip::default(),
            traffic: HashMap::new(),
            cap: None,
            seed_bytes: 0,
            seed_wrong: 0,
            pieces_here: 0,
            complete: BTreeSet::new(),
            dropped: VecDeque::new(),
            since: Instant::now(),
            synced_us: 0,
            syncing: false,
            unsynced: false,
            actions: Vec::new(),
            moves: Vec::new(),
            shared,
            seeds: seeds.into_iter().map(SeedOf::new).collect(),
        };
        for piece in owner.shared.shelf.pieces() {
            owner.policy.put(piece);
            owner.pieces_here += 1;
        }
        for number in 0..owner.seeds.len() {
            owner.tell(Event::Seed(PeerId(number as u64)));
        }
        owner.set_members(options.members, hello.token);
        owner
    }

    /// Figures that can be read at any time without asking the task.
    pub(crate) fn gauges(&self) -> Arc<Gauges> {
        self.gauges.clone()
    }

    /// Runs until the swarm is left or its handle is dropped.
    pub(crate) async fn run(
        mut self,
        mut commands: mpsc::Receiver<Command>,
        mut notes: mpsc::Receiver<Note>,
    ) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::Leave(done)) => {
                        self.leave().await;
                        drop(self); // the door is free for who joins again
                        let _ = done.send(());
                        return;
                    }
                    Some(command) => self.obey(command),
                    None => return,
                },
                Some(note) = notes.recv() => self.note(note),
                _ = ticks.tick() => self.tick(),
            }
            // a planner says much at once, and the policy looks through all of it each time
            if commands.is_empty() {
                self.look_ahead();
            }
            self.settle();
        }
    }

    fn now_us(&self) -> u64 {
        self.since.elapsed().as_micros() as u64
    }

    fn tell(&mut self, event: Event<'_>) {
        let now_us = self.now_us();
        self.policy.on_event(now_us, event, &mut self.actions);
        self.grant(now_us);
    }

    /// Lets pieces be sent, as far as the host's cap allows.
    fn grant(&mut self, now_us: u64) {
        let cap = self.shared.cap.rate();
        if cap != self.cap {
            self.cap = cap;
            self.policy.set_shared_cap(cap.is_some());
            // who is connected already heard another number, which costs nothing but duties
            self.hello.places = places(cap);
            let event = Event::Places(self.key.peer(), self.hello.places);
            self.policy.on_event(now_us, event, &mut self.actions);
        }
        let wish = cap.map_or(0, |_| self.policy.sendable());
        if wish > 0 {
            let granted = self.shared.cap.take(wish);
            let event = Event::Granted(granted);
            self.policy.on_event(now_us, event, &mut self.actions);
        }
    }

    /// Does what was decided, and what follows from that.
    fn settle(&mut self) {
        while !self.moves.is_empty() || !self.actions.is_empty() {
            for step in std::mem::take(&mut self.moves) {
                self.step(step);
            }
            for action in std::mem::take(&mut self.actions) {
                self.act(action);
            }
        }
        let connected = self.connections.len();
        self.gauges.connected.store(connected, Ordering::Relaxed);
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Ask(peer, piece, purpose) => match self.seed_at(peer) {
                Some(number) => {
                    self.seeds[number].queue.ask(piece, purpose);
                    self.ask_seed(number);
                }
                None => self.ask(peer, piece, purpose),
            },
            Action::Cancel(peer, piece) => {
                if let Some(number) = self.seed_at(peer) {
                    return self.seeds[number].queue.cancel(piece);
                }
                if let Some(waiting) = self.waiting.get_mut(&peer) {
                    waiting.retain(|(other, _)| *other != piece);
                }
                self.say(peer, Message::Withdraw(piece));
            }
            Action::Serve(peer, piece, purpose) => {
                let begun = match self.connections.get(&peer) {
                    Some(connected) => connected.connection.send(piece, purpose, &self.shared),
                    None => false,
                };
                if !begun {
                    self.say(peer, Message::Refuse(piece));
                    self.tell(Event::Served(peer, piece));
                }
            }
            Action::Refuse(peer, piece) => self.say(peer, Message::Refuse(piece)),
            Action::Drop(peer, fault) => self.expel(peer, fault),
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Need(pieces, done) => {
                let lacks = self.lacking(pieces);
                self.needs.add(lacks.into_iter().collect(), done);
                self.miss();
            }
            Command::Want(pieces, done) => {
                let lacks = self.lacking(pieces);
                self.wants.add(lacks, done);
            }
            Command::Copy(pieces, done) => {
                let lacks = self.lacking(pieces);
                self.wants.copy(lacks, done);
            }
            Command::Predict(pieces, due_ms) => self.wants.predict(pieces, due_ms),
            Command::Rarest(ranges, done) => {
                let _ = done.send(self.policy.rarest(&ranges).unwrap_or(0));
            }
            Command::Lost(pieces, done) => {
                self.remove(pieces, Some(done));
            }
            Command::Members(members, token) => self.set_members(members, token),
            Command::Status(done) => {
                let _ = done.send(self.status());
            }
            Command::Leave(_) => {} // the caller's
        }
    }

    /// Returns those of the pieces that are not here.
    fn lacking(&mut self, mut pieces: Vec<PieceId>) -> Vec<PieceId> {
        let all = self.shared.shelf.content().pieces();
        pieces.retain(|piece| *piece < all && !self.shared.shelf.has(*piece));
        for piece in &pieces {
            self.gone(*piece); // being removed
        }
        pieces
    }

    /// Tells the policy what is to be fetched ahead and what is to be copied, if that has changed.
    fn look_ahead(&mut self) {
        if let Some((pieces, due_ms)) = self.wants.window() {
            self.tell(Event::Window(&pieces, &due_ms));
        }
        if let Some(pieces) = self.wants.copies() {
            self.tell(Event::Copies(&pieces));
        }
    }

    fn note(&mut self, note: Note) {
        match note {
            Note::Dialled(key, met) => self.dialled(key, met),
            Note::Entered(meeting) => self.admit(meeting),
            Note::Wire(number, wire) => match self.numbers.get(&number).copied() {
                Some(peer) => self.wire(peer, wire),
                None => self.late(wire),
            },
            Note::Passed(number, piece) => {
                if let Some(peer) = self.numbers.get(&number).copied() {
                    self.tell(Event::Served(peer, piece));
                }
            }
            Note::Sent(number, piece, outcome) => self.sent(number, piece, outcome),
            Note::Seeded(number, piece, outcome) => self.seeded(number, piece, outcome),
            Note::Removed(pieces, done) => {
                for piece in pieces {
                    self.gone(piece);
                }
                if let Some(done) = done {
                    let _ = done.send(());
                }
            }
            Note::Synced => self.syncing = false,
        }
    }

    fn wire(&mut self, peer: PeerId, wire: Wire) {
        match wire {
            Wire::Said(message) => self.said(peer, message),
            Wire::Got(piece, bytes) => {
                self.traffic.entry(peer).or_default().received += bytes;
                self.gauges.received.fetch_add(bytes, Ordering::Relaxed);
                self.used(peer);
                self.arrived(peer, piece);
            }
            Wire::Wrong(piece) => self.tell(Event::Wrong(peer, piece)),
            Wire::Broke(piece) => self.tell(Event::Failed(peer, piece)),
            Wire::Flood => {
                self.tell(Event::Left(peer));
                self.expel(peer, Fault::Flooded);
            }
            Wire::Closed(ended) => self.ended(peer, ended),
        }
    }

    /// Takes what a connection says that has ended meanwhile: a piece that came over it is on the shelf all the same, and no other host need be
    /// asked for it.
    fn late(&mut self, wire: Wire) {
        if let Wire::Got(piece, bytes) = wire {
            self.gauges.received.fetch_add(bytes, Ordering::Relaxed);
            let nobody = self.key.peer();
            self.arrived(nobody, piece);
        }
    }

    fn said(&mut self, peer: PeerId, message: Message) {
        match message {
            Message::Has(runs) => {
                self.each_of(&runs, |owner, pieces| {
                    owner.tell(Event::Has(peer, pieces));
                });
                self.note_complete(peer);
            }
            Message::Lacks(runs) => self.each_of(&runs, |owner, pieces| {
                owner.tell(Event::Lacks(peer, pieces));
            }),
            Message::Ask(piece, purpose) => {
                self.used(peer);
                self.tell(Event::Asked(peer, piece, purpose));
            }
            Message::Withdraw(piece) => self.tell(Event::Withdrawn(peer, piece)),
            Message::Refuse(piece) => {
                if let Some(connected) = self.connections.get(&peer) {
                    connected.connection.refused(piece);
                }
                self.tell(Event::Failed(peer, piece));
            }
            // a second hello; packs are no news to who has the connection
            Message::Hello(_) | Message::Packs(_) => self.wire(peer, Wire::Flood),
        }
    }

    /// Remembers a host that has all pieces, as it says: it may leave right afterwards.
    fn note_complete(&mut self, peer: PeerId) {
        let all = self.policy.pieces_of(peer) == self.shared.shelf.content().pieces();
        if let Some(member) = self.roster.member(peer).filter(|_| all)
            && self.complete.len() < PEERS_MAX
        {
            self.complete.insert(member.key);
        }
    }

    /// Goes through the pieces of runs, some at a time.
    fn each_of(&mut self, runs: &[(PieceId, u32)], mut does: impl FnMut(&mut Owner, &[PieceId])) {
        let mut pieces = Vec::with_capacity(TOLD_AT_A_TIME);
        for piece in runs.iter().flat_map(|(first, count)| *first..first + count) {
            pieces.push(piece);
            if pieces.len() == TOLD_AT_A_TIME {
                does(self, &pieces);
                pieces.clear();
            }
        }
        does(self, &pieces);
    }

    fn arrived(&mut self, from: PeerId, piece: PieceId) {
        if !self.policy.has(piece) {
            self.pieces_here += 1;
            self.gossip.came(piece);
        }
        self.unsynced = true;
        self.tell(Event::Arrived(from, piece));
        if !self.shared.shelf.has(piece) {
            return self.gone(piece); // it was removed at once
        }
        self.wants.here(piece);
        if self.needs.here(piece) {
            self.miss();
        }
    }

    /// Tells the policy what is waited for.
    fn miss(&mut self) {
        while let Some(piece) = self.needs.next() {
            self.tell(Event::Miss(piece));
        }
    }

    /// A piece is not on the shelf any more.
    fn gone(&mut self, piece: PieceId) {
        if self.policy.has(piece) && !self.shared.shelf.has(piece) {
            self.policy.lose(piece);
            self.pieces_here -= 1;
            self.gossip.went(piece);
            if self.needs.waits_for(piece) {
                self.tell(Event::Miss(piece));
            }
        }
    }

    fn remove(&mut self, pieces: Vec<PieceId>, done: Option<oneshot::Sender<()>>) {
        let (shelf, notes) = (self.shared.shelf.clone(), self.shared.notes.clone());
        tokio::spawn(async move {
            let removed = tokio::task::spawn_blocking(move || {
                if let Err(error) = shelf.remove(&pieces) {
                    tracing::warn!(%error, "pieces could not be removed");
                }
                pieces
            });
            if let Ok(pieces) = removed.await {
                let _ = notes.send(Note::Removed(pieces, done)).await;
            }
        });
    }

    fn sent(&mut self, number: u64, piece: PieceId, outcome: Outcome) {
        let peer = self.numbers.get(&number).copied();
        match outcome {
            Outcome::Done(bytes) => {
                if let Some(peer) = peer {
                    self.traffic.entry(peer).or_default().sent += bytes;
                }
                return;
            }
            Outcome::Wrong => self.remove(vec![piece], None),
            Outcome::NotHere => self.gone(piece),
            Outcome::Unread => {}
            Outcome::Failed => return, // the other has seen that
        }
        if let Some(peer) = peer {
            self.say(peer, Message::Refuse(piece));
        }
    }

    /// Which seed the policy means, if it means one.
    fn seed_at(&self, peer: PeerId) -> Option<usize> {
        let number = usize::try_from(peer.0).ok()?;
        (number < self.seeds.len()).then_some(number)
    }

    fn seeded(&mut self, number: usize, piece: PieceId, outcome: Outcome) {
        self.seeds[number].queue.done(piece);
        let seed = PeerId(number as u64);
        match outcome {
            Outcome::Done(bytes) => {
                self.seed_bytes += bytes;
                self.gauges.received.fetch_add(bytes, Ordering::Relaxed);
                self.arrived(seed, piece);
            }
            Outcome::Wrong => {
                tracing::warn!(piece, "a seed has sent wrong bytes");
                self.seed_wrong += 1;
                if let Some((pack, _)) = self.shared.shelf.content().place(piece) {
                    self.seeds[number].seed.was_wrong(pack);
                }
                self.tell(Event::Wrong(seed, piece));
            }
            Outcome::NotHere | Outcome::Unread | Outcome::Failed => {
                self.tell(Event::Failed(seed, piece));
            }
        }
        self.ask_seed(number);
    }

    fn ask_seed(&mut self, number: usize) {
        let SeedOf { seed, queue } = &mut self.seeds[number];
        while let Some(piece) = queue.begin() {
            let Some((pack, range)) = self.shared.shelf.content().place(piece) else {
                queue.done(piece);
                continue;
            };
            let (seed, shared) = (seed.clone(), self.shared.clone());
            tokio::spawn(async move {
                let fetched = tokio::time::timeout(SEED_PATIENCE, seed.fetch(pack, range)).await;
                let outcome = match fetched {
                    Ok(Ok(proven)) => shelve(piece, proven, Some(seed), &shared).await,
                    _ => Outcome::Failed,
                };
                let note = Note::Seeded(number, piece, outcome);
                let _ = shared.notes.send(note).await;
            });
        }
    }

    fn tick(&mut self) {
        let now_us = self.now_us();
        self.wants.sweep();
        for piece in self.needs.sweep(now_us) {
            self.tell(Event::Unmissed(piece));
        }
        self.miss();
        let (ahead, copy) = self.sharer.fetches(self.policy.fetches());
        self.policy.set_sharers(ahead, copy);
        self.tell(Event::Tick);
        if let Some(speed) = self.policy.speed() {
            self.gauges.set_speed(speed);
        }
        self.roster.tick(now_us, &mut self.moves);
        self.rest(now_us);
        for message in self.gossip.due(now_us) {
            self.spread(&message);
        }
        if self.unsynced && !self.syncing && now_us - self.synced_us >= SYNC_US {
            self.synced_us = now_us;
            (self.syncing, self.unsynced) = (true, false);
            let (shelf, notes) = (self.shared.shelf.clone(), self.shared.notes.clone());
            tokio::spawn(async move {
                sync(shelf).await;
                let _ = notes.send(Note::Synced).await;
            });
        }
    }

    async fn leave(&mut self) {
        self.part();
        sync(self.shared.shelf.clone()).await;
    }

    fn status(&self) -> Status {
        let peers = self.roster.members().map(|(id, member)| Peer {
            key: member.key,
            connected: self.connections.contains_key(&id),
            pieces: self.policy.pieces_of(id),
            traffic: self.traffic.get(&id).copied().unwrap_or_default(),
        });
        Status {
            peers: peers.collect(),
            seed_bytes: self.seed_bytes,
            seed_wrong: self.seed_wrong,
            pieces_here: self.pieces_here,
            pieces: self.shared.shelf.content().pieces(),
            needed: self.needs.len(),
            wanted: self.wants.len(),
            window: self.policy.window(),
            complete: self.complete.iter().copied().collect(),
            dropped: self.dropped.iter().copied().collect(),
        }
    }
}

async fn sync(shelf: Arc<crate::shelf::Shelf>) {
    let synced = tokio::task::spawn_blocking(move || shelf.sync()).await;
    if let Ok(Err(error)) = synced {
        tracing::warn!(%error, "the shelf could not be synced");
    }
}
