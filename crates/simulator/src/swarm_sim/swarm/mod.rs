//! The hosts of a swarm and what happens between them.
mod connections;
mod seed;

use super::net::{Carries, Flow, Uplink, piece_in_packets};
use super::pieces::{Profile, Recorded};
use connections::Connected;
use floe_swarm::policy::{Action, Config, Event, PeerId, PieceId, Policy, Purpose};
use floe_swarm::roster::Roster;
use floe_swarm::seed::SeedQueue;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// How often a host looks at its policy and its roster; without peers it has nothing to do with it.
const TICK_NS: u64 = 50_000_000;
/// Longest run: ten days of virtual time.
const RUN_NS_MAX: u64 = 864_000_000_000_000;

/// The links of all hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Each way.
    pub bits_per_s: u64,
    /// Between any two, in microseconds.
    pub rtt_us: u64,
    /// What a host needs to answer a question for a piece (the paper's Q), in microseconds.
    pub service_us: u64,
}

/// What has all pieces.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub enum Seed {
    /// A server, as the hub is: it answers requests for ranges as they come, and its link is shared by all answers alike.
    #[default]
    Server,
    /// A host of the swarm, as in the paper: it hears why it is asked, and serves a few pieces at a time.
    Host,
}

/// A host.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    /// What its machine does.
    pub run: &'a Recorded,
    /// What is predicted of that.
    pub profile: &'a Profile,
    /// When its user starts it, in microseconds.
    pub start_us: u64,
    /// How much slower than recorded this host computes: 1.1 is ten percent.
    pub slowness: f64,
    /// How many times as long its link takes for the same bytes as [`Setup::link`], in both directions; 1 for all but odd ones.
    pub link_slowness: u64,
}

/// A swarm.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    /// The policy of all hosts, which also says how large a piece is.
    pub config: Config,
    /// The hosts.
    pub hosts: Vec<Host<'a>>,
    /// Number of the image's pieces.
    pub pieces: u32,
    /// Their links, and the seed's.
    pub link: Link,
    /// What decides all that is random.
    pub chance: u64,
}

/// What became of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Of each host: how long its machine took from the user's command on, over how long it takes with everything in memory.
    pub slowdowns: Vec<f64>,
    /// Bytes that the seed sent, with headers, proofs and lists of members.
    pub seed_bytes: u64,
    /// Bytes that all hosts received.
    pub received_bytes: u64,
    /// Misses of all machines.
    pub misses: u64,
    /// Hosts that were dropped by others, though all are honest.
    pub dropped: u64,
    /// Events of the simulation.
    pub events: u64,
    /// Of each second: pieces that hosts received.
    pub received: Vec<u32>,
    /// Of the first host: when its machine had each of its accesses, in microseconds since its start.
    pub played_us: Vec<u64>,
}

impl Outcome {
    /// Returns the mean slowdown.
    pub fn mean(&self) -> f64 {
        self.slowdowns.iter().sum::<f64>() / self.slowdowns.len().max(1) as f64
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A user starts a host's machine.
    Starts(u32),
    /// The hub hears that a host takes part.
    Joins(u32),
    /// A host has the hub's list of so many members.
    Listed(u32, u32),
    /// A host has dialled another.
    Met(u32, u32),
    /// A host's neighbours hear what it has got.
    Told(u32),
    Tick(u32),
    Access(u32),
    /// A machine has gone on for as long as it waited.
    Calm(u32),
    Asked(u32, u32, PieceId, Purpose),
    Withdrawn(u32, u32, PieceId),
    Refused(u32, u32, PieceId),
    /// The server has read a piece that a host has requested.
    Requested(u32, PieceId),
    BlockSent(u32),
    Got(u32, u32, PieceId),
}

struct Node {
    policy: Policy,
    roster: Roster<()>,
    connections: BTreeMap<u32, Connected>,
    /// Questions to hosts that are being dialled.
    waiting: Vec<(u32, PieceId, Purpose)>,
    /// Whether it has heard from the hub.
    joined: bool,
    /// When its processor is free for another handshake.
    busy_ns: u64,
    requests: SeedQueue,
    /// Requests to the seed that are under way, and connections to it that were opened for them.
    under_way: usize,
    seed_connections: usize,
    uplink: Uplink,
    down_free_ns: u64,
    /// What its neighbours were not told of, and when they were last told of anything.
    fresh: Vec<PieceId>,
    told_ns: u64,
    /// When it last looked for connections that nobody needs.
    rested_ns: u64,
    /// The machine: its next access, its own time when it last went on, when that was, and for what it waits since when.
    next: usize,
    own_ns: u64,
    since_ns: u64,
    waits_for: Option<PieceId>,
    missed_ns: u64,
}

struct Swarm<'a> {
    setup: &'a Setup<'a>,
    kind: Seed,
    now_ns: u64,
    queue: BinaryHeap<Reverse<(u64, u64, What)>>,
    sequence: u64,
    nodes: Vec<Node>,
    /// The seed's number, after those of the hosts.
    seed: u32,
    /// The hub's list: hosts in the order in which they joined, and when the last one did.
    members: Vec<u32>,
    changed_ns: u64,
    /// Bytes on the wire of a piece.
    wire_bytes: u64,
    running: usize,
    outcome: Outcome,
    actions: Vec<Action>,
}

/// Runs a swarm, whose seed is a server, until each of its machines is done.
pub fn simulate(setup: &Setup<'_>) -> Outcome {
    simulate_at(setup, Seed::Server)
}

/// Runs a swarm with a seed of a kind until each of its machines is done.
pub fn simulate_at(setup: &Setup<'_>, seed: Seed) -> Outcome {
    Swarm::new(setup, seed).run()
}

/// A host's number as all others know it, scattered like the hash of a key.
fn id(host: u32) -> PeerId {
    PeerId((u64::from(host) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

fn number(peer: PeerId) -> u32 {
    // the inverse of the odd factor above, modulo 2^64
    (peer.0.wrapping_mul(0xF1DE_83E1_9937_733D) - 1) as u32
}

impl<'a> Swarm<'a> {
    fn new(setup: &'a Setup<'a>, kind: Seed) -> Swarm<'a> {
        let hosts = setup.hosts.len();
        let nodes = (0..=hosts as u32).map(|host| Node {
            policy: Policy::new(setup.config, id(host), setup.pieces, setup.chance),
            roster: Roster::new(id(host)),
            connections: BTreeMap::new(),
            waiting: Vec::new(),
            joined: false,
            busy_ns: 0,
            requests: SeedQueue::default(),
            under_way: 0,
            seed_connections: 0,
            uplink: Uplink::default(),
            down_free_ns: 0,
            fresh: Vec::new(),
            told_ns: 0,
            rested_ns: 0,
            next: 0,
            own_ns: 0,
            since_ns: 0,
            waits_for: None,
            missed_ns: 0,
        });
        let mut swarm = Swarm {
            setup,
            kind,
            now_ns: 0,
            queue: BinaryHeap::new(),
            sequence: 0,
            nodes: nodes.collect(),
            seed: hosts as u32,
            members: Vec::new(),
            changed_ns: 0,
            wire_bytes: piece_in_packets(setup.config.piece_bytes),
            running: hosts,
            outcome: Outcome::default(),
            actions: Vec::new(),
        };
        for piece in 0..setup.pieces {
            swarm.nodes[hosts].policy.put(piece);
        }
        for (number, host) in setup.hosts.iter().enumerate() {
            swarm.at(host.start_us * 1000, What::Starts(number as u32));
        }
        swarm.outcome.slowdowns = vec![0.0; hosts];
        swarm
    }

    fn node(&mut self, node: u32) -> &mut Node {
        &mut self.nodes[node as usize]
    }

    fn at(&mut self, at_ns: u64, what: What) {
        self.sequence += 1;
        self.queue.push(Reverse((at_ns, self.sequence, what)));
    }

    /// Half a round trip, in nanoseconds.
    fn way_ns(&self) -> u64 {
        self.setup.link.rtt_us * 500
    }

    fn soon(&mut self, what: What) {
        self.at(self.now_ns + self.way_ns(), what);
    }

    /// Something happens at another host that has to look for an answer.
    fn soon_answered(&mut self, what: What) {
        let service_ns = self.setup.link.service_us * 1000;
        self.at(self.now_ns + self.way_ns() + service_ns, what);
    }

    fn now_us(&self) -> u64 {
        self.now_ns / 1000
    }

    fn run(mut self) -> Outcome {
        while self.running > 0 {
            let Some(Reverse((at_ns, _, what))) = self.queue.pop() else {
                panic!("machines wait and nothing is under way");
            };
            assert!(
                at_ns < RUN_NS_MAX,
                "a machine of this swarm waits for a piece that nobody sends"
            );
            self.now_ns = at_ns;
            self.outcome.events += 1;
            self.happens(what);
        }
        self.outcome
    }

    fn happens(&mut self, what: What) {
        match what {
            What::Starts(host) => self.starts(host),
            What::Joins(host) => self.joins(host),
            What::Listed(host, members) => self.listed(host, members),
            What::Met(host, other) => self.met(host, other),
            What::Told(host) => self.told(host),
            What::Tick(host) => self.tick(host),
            What::Access(host) => self.access(host),
            What::Calm(host) => self.tell(host, Event::Tick),
            What::Asked(node, from, piece, purpose) => {
                self.uses_connection(node, from);
                self.tell(node, Event::Asked(id(from), piece, purpose));
            }
            What::Withdrawn(node, from, piece) => {
                self.tell(node, Event::Withdrawn(id(from), piece));
            }
            What::Refused(node, from, piece) => self.tell(node, Event::Failed(id(from), piece)),
            What::Requested(host, piece) => self.requested(host, piece),
            What::BlockSent(node) => self.block_sent(node),
            What::Got(host, from, piece) => self.got(host, from, piece),
        }
    }

    fn tell(&mut self, node: u32, event: Event<'_>) {
        let mut actions = std::mem::take(&mut self.actions);
        let now_us = self.now_us();
        self.node(node).policy.on_event(now_us, event, &mut actions);
        for action in actions.drain(..) {
            self.act(node, action);
        }
        self.actions = actions;
    }

    fn act(&mut self, node: u32, action: Action) {
        match action {
            Action::Ask(peer, piece, purpose) if number(peer) == self.seed => {
                self.ask_seed(node, piece, purpose);
            }
            Action::Cancel(peer, piece) if number(peer) == self.seed => {
                self.cancel_at_seed(node, piece);
            }
            Action::Ask(peer, piece, purpose) => self.ask(node, number(peer), piece, purpose),
            Action::Cancel(peer, piece) => self.cancel(node, number(peer), piece),
            Action::Refuse(peer, piece) => self.soon(What::Refused(number(peer), node, piece)),
            Action::Serve(peer, piece, purpose) => {
                let carries = Carries::Piece(piece);
                let flow = Flow::new(number(peer), carries, purpose, self.wire_bytes);
                self.send(node, flow);
            }
            Action::Drop(peer, fault) => {
                // all are honest: a drop is an error of judgement, and counts
                self.outcome.dropped += 1;
                self.expel(node, number(peer), fault);
            }
        }
    }

    fn send(&mut self, node: u32, flow: Flow) {
        if self.node(node).uplink.send(flow) {
            self.put_on_link(node);
        }
    }

    fn put_on_link(&mut self, node: u32) {
        if let Some(bytes) = self.node(node).uplink.pass_next() {
            let passed_ns = self.now_ns + self.passes_ns(node, bytes);
            self.at(passed_ns, What::BlockSent(node));
        }
    }

    /// Returns how long so many bytes take to pass a node's link.
    fn passes_ns(&self, node: u32, bytes: u64) -> u64 {
        let host = self.setup.hosts.get(node as usize);
        let slowness = host.map_or(1, |host| host.link_slowness);
        bytes * 8 * 1_000_000_000 / self.setup.link.bits_per_s * slowness
    }

    fn tick(&mut self, host: u32) {
        self.tell(host, Event::Tick);
        self.tick_connections(host);
        self.at(self.now_ns + TICK_NS, What::Tick(host));
    }

    /// Schedules the machine's next access, or its end.
    fn goes_on(&mut self, host: u32) {
        let it = &self.setup.hosts[host as usize];
        let node = &self.nodes[host as usize];
        let own_us = it
            .run
            .accesses
            .get(node.next)
            .map_or(it.run.end_us, |a| a.0);
        let own_ns = (own_us as f64 * 1000.0 * it.slowness) as u64;
        let at_ns = node.since_ns + own_ns.saturating_sub(node.own_ns);
        self.at(at_ns.max(self.now_ns), What::Access(host));
    }

    fn access(&mut self, host: u32) {
        let it = self.setup.hosts[host as usize];
        let node = &mut self.nodes[host as usize];
        let Some((own_us, piece)) = it.run.accesses.get(node.next).copied() else {
            let took_ns = (self.now_ns - it.start_us * 1000) as f64;
            let own_ns = it.run.end_us as f64 * 1000.0 * it.slowness;
            self.outcome.slowdowns[host as usize] = took_ns / own_ns.max(1.0);
            self.running -= 1;
            return;
        };
        if node.policy.has(piece) {
            node.next += 1;
            self.played(host);
            return self.goes_on(host);
        }
        node.own_ns = (own_us as f64 * 1000.0 * it.slowness) as u64;
        node.waits_for = Some(piece);
        node.missed_ns = self.now_ns;
        self.outcome.misses += 1;
        self.tell(host, Event::Miss(piece));
    }

    fn block_sent(&mut self, node: u32) {
        let Some(flow) = self.node(node).uplink.passed() else {
            return;
        };
        let way_ns = self.way_ns();
        let up_ns = self.passes_ns(node, flow.block_bytes);
        let down_ns = self.passes_ns(flow.to, flow.block_bytes);
        let now_ns = self.now_ns;
        let to = self.node(flow.to);
        // the first bit arrives half a round trip after it left, unless others stand before it; the last one no sooner than it left
        let first_ns = (now_ns - up_ns + way_ns).max(to.down_free_ns);
        to.down_free_ns = (first_ns + down_ns).max(now_ns + way_ns);
        let last_ns = to.down_free_ns;
        self.outcome.received_bytes += flow.block_bytes;
        if node == self.seed {
            self.outcome.seed_bytes += flow.block_bytes;
        }
        self.put_on_link(node);
        if flow.blocks > 0 {
            return;
        }
        match flow.carries {
            Carries::List(members) => self.at(last_ns, What::Listed(flow.to, members)),
            Carries::Piece(piece) => {
                self.at(last_ns, What::Got(flow.to, node, piece));
                if node != self.seed || self.kind == Seed::Host {
                    self.tell(node, Event::Served(id(flow.to), piece));
                }
            }
        }
    }

    fn got(&mut self, host: u32, from: u32, piece: PieceId) {
        let second = (self.now_ns / 1_000_000_000) as usize;
        if self.outcome.received.len() <= second {
            self.outcome.received.resize(second + 1, 0);
        }
        self.outcome.received[second] += 1;
        let tells = self.setup.config.peers;
        let node = self.node(host);
        if tells && !node.policy.has(piece) {
            node.fresh.push(piece);
        }
        self.uses_connection(host, from);
        self.tell(host, Event::Arrived(id(from), piece));
        if from == self.seed {
            self.seeded(host, piece);
        }
        let now_ns = self.now_ns;
        let node = self.node(host);
        if node.waits_for == Some(piece) {
            node.waits_for = None;
            let waited_ns = now_ns - node.missed_ns;
            node.since_ns = now_ns;
            node.next += 1;
            self.played(host);
            self.goes_on(host);
            if self.setup.config.quiet {
                // the policy asks ahead again when it hears something; it counts in microseconds
                self.at(now_ns + waited_ns + 2_000, What::Calm(host));
            }
        }
    }

    fn played(&mut self, host: u32) {
        if host == 0 {
            let since_us = self.now_us() - self.setup.hosts[0].start_us;
            self.outcome.played_us.push(since_us);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_their_numbers_back() {
        for host in [0, 1, 77, 1023] {
            assert_eq!(number(id(host)), host);
        }
    }
}
