//! The hosts of a swarm and what happens between them.
use super::net::{BLOCK_BYTES, Flow, Uplink};
use super::pieces::{PIECE_BYTES, Recorded};
use floe_swarm::policy::{Action, Config, Event, PeerId, PieceId, Policy, Purpose};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How often a host tells its neighbours what it has got.
const GOSSIP_NS: u64 = 100_000_000;
/// How often a policy gets the time; without peers it has nothing to do with it.
const TICK_NS: u64 = 50_000_000;
/// Hosts that a host tells what it has; all of them while there are few.
const NEIGHBOURS: usize = 48;
/// A host takes part so long before its machine starts: that is when its user's command asks the hub for the image.
const KNOWN_NS: u64 = 2_000_000_000;

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

/// A host.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    /// What its machine does.
    pub run: &'a Recorded,
    /// What is predicted of that.
    pub profile: &'a [PieceId],
    /// When it starts, in microseconds.
    pub start_us: u64,
    /// How much slower than recorded this host computes: 1.1 is ten percent.
    pub slowness: f64,
    /// How many times as long its link takes for the same bytes as [`Setup::link`], in both directions; 1 for all but odd ones.
    pub link_slowness: u64,
}

/// A swarm.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    /// The policy of all hosts.
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
    /// Of each host: how long its machine took, over how long it takes with everything in memory.
    pub slowdowns: Vec<f64>,
    /// Bytes that the seed sent.
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
    Joins(u32),
    Starts(u32),
    Access(u32),
    Asked(u32, u32, PieceId, Purpose),
    Withdrawn(u32, u32, PieceId),
    Refused(u32, u32, PieceId),
    BlockSent(u32),
    Got(u32, u32, PieceId),
    Gossip(u32),
    Tick(u32),
}

struct Node {
    policy: Policy,
    uplink: Uplink,
    down_free_ns: u64,
    neighbours: Vec<u32>,
    /// Whether the others know of it.
    takes_part: bool,
    /// What its neighbours were not told of.
    fresh: Vec<PieceId>,
    gossips: bool,
    /// The machine: its next access, its own time when it last went on, and when that was.
    next: usize,
    own_ns: u64,
    since_ns: u64,
    waits_for: Option<PieceId>,
}

struct Swarm<'a> {
    setup: &'a Setup<'a>,
    now_ns: u64,
    queue: BinaryHeap<Reverse<(u64, u64, What)>>,
    sequence: u64,
    nodes: Vec<Node>,
    /// The seed's number, after those of the hosts.
    seed: u32,
    block_ns: u64,
    running: usize,
    outcome: Outcome,
    actions: Vec<Action>,
}

/// Runs a swarm until each of its machines is done.
pub fn simulate(setup: &Setup<'_>) -> Outcome {
    Swarm::new(setup).run()
}

/// Returns symmetrical neighbourhoods: everybody while there are few, and random ones otherwise.
fn neighbourhoods(hosts: usize, chance: u64) -> Vec<Vec<u32>> {
    if hosts <= NEIGHBOURS + 1 {
        let all = |host| (0..hosts as u32).filter(move |other| *other != host);
        return (0..hosts as u32).map(|host| all(host).collect()).collect();
    }
    let mut random = StdRng::seed_from_u64(chance);
    let mut all = vec![Vec::new(); hosts];
    let mut others: Vec<u32> = (0..hosts as u32).collect();
    for host in 0..hosts as u32 {
        let (some, _) = others.partial_shuffle(&mut random, NEIGHBOURS / 2);
        for other in some.iter().copied().filter(|other| *other != host) {
            all[host as usize].push(other);
            all[other as usize].push(host);
        }
    }
    for list in &mut all {
        list.sort_unstable();
        list.dedup();
    }
    all
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
    fn new(setup: &'a Setup<'a>) -> Swarm<'a> {
        let hosts = setup.hosts.len();
        let mut neighbourhoods = neighbourhoods(hosts, setup.chance);
        neighbourhoods.push(Vec::new());
        let nodes = neighbourhoods.into_iter().enumerate();
        let nodes = nodes.map(|(host, neighbours)| Node {
            policy: Policy::new(setup.config, id(host as u32), setup.pieces, setup.chance),
            uplink: Uplink::default(),
            down_free_ns: 0,
            neighbours,
            takes_part: false,
            fresh: Vec::new(),
            gossips: false,
            next: 0,
            own_ns: 0,
            since_ns: 0,
            waits_for: None,
        });
        let mut swarm = Swarm {
            setup,
            now_ns: 0,
            queue: BinaryHeap::new(),
            sequence: 0,
            nodes: nodes.collect(),
            seed: hosts as u32,
            block_ns: BLOCK_BYTES * 8 * 1_000_000_000 / setup.link.bits_per_s,
            running: hosts,
            outcome: Outcome::default(),
            actions: Vec::new(),
        };
        for piece in 0..setup.pieces {
            swarm.nodes[hosts].policy.put(piece);
        }
        for (number, host) in setup.hosts.iter().enumerate() {
            let start_ns = host.start_us * 1000;
            swarm.at(
                start_ns.saturating_sub(KNOWN_NS),
                What::Joins(number as u32),
            );
            swarm.at(start_ns, What::Starts(number as u32));
        }
        swarm.outcome.slowdowns = vec![0.0; hosts];
        swarm
    }

    fn at(&mut self, at_ns: u64, what: What) {
        self.sequence += 1;
        self.queue.push(Reverse((at_ns, self.sequence, what)));
    }

    fn soon(&mut self, what: What) {
        self.at(self.now_ns + self.setup.link.rtt_us * 500, what);
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

    fn tell(&mut self, node: u32, event: Event<'_>) {
        let mut actions = std::mem::take(&mut self.actions);
        let policy = &mut self.nodes[node as usize].policy;
        policy.on_event(self.now_ns / 1000, event, &mut actions);
        for action in actions.drain(..) {
            self.act(node, action);
        }
        self.actions = actions;
    }

    fn act(&mut self, node: u32, action: Action) {
        let service_ns = self.setup.link.service_us * 1000;
        match action {
            Action::Ask(peer, piece, purpose) => {
                let at_ns = self.now_ns + self.setup.link.rtt_us * 500 + service_ns;
                self.at(at_ns, What::Asked(number(peer), node, piece, purpose));
            }
            Action::Cancel(peer, piece) => self.soon(What::Withdrawn(number(peer), node, piece)),
            Action::Refuse(peer, piece) => self.soon(What::Refused(number(peer), node, piece)),
            Action::Serve(peer, piece, purpose) => {
                let flow = Flow {
                    to: number(peer),
                    piece,
                    purpose,
                    blocks: (PIECE_BYTES / BLOCK_BYTES) as u32,
                };
                if self.nodes[node as usize].uplink.send(flow) {
                    self.put_on_link(node);
                }
            }
            // all are honest: a drop is an error of judgement, and counts
            Action::Drop(..) => self.outcome.dropped += 1,
        }
    }

    fn put_on_link(&mut self, node: u32) {
        if self.nodes[node as usize].uplink.pass_next() {
            self.at(self.now_ns + self.block_ns(node), What::BlockSent(node));
        }
    }

    /// Returns how long a block takes to pass a node's link.
    fn block_ns(&self, node: u32) -> u64 {
        let host = self.setup.hosts.get(node as usize);
        self.block_ns * host.map_or(1, |host| host.link_slowness)
    }

    fn happens(&mut self, what: What) {
        match what {
            What::Joins(host) => self.joins(host),
            What::Starts(host) => {
                let node = &mut self.nodes[host as usize];
                node.since_ns = self.now_ns;
                let profile = self.setup.hosts[host as usize].profile;
                self.tell(host, Event::Window(profile, &[]));
                self.goes_on(host);
                if self.setup.config.peers {
                    // hosts do not act in step
                    self.at(
                        self.now_ns + u64::from(host) * 1_009_331 % TICK_NS,
                        What::Tick(host),
                    );
                }
            }
            What::Access(host) => self.access(host),
            What::Asked(node, from, piece, purpose) => {
                self.tell(node, Event::Asked(id(from), piece, purpose));
            }
            What::Withdrawn(node, from, piece) => {
                self.tell(node, Event::Withdrawn(id(from), piece))
            }
            What::Refused(node, from, piece) => self.tell(node, Event::Failed(id(from), piece)),
            What::BlockSent(node) => self.block_sent(node),
            What::Got(host, from, piece) => self.got(host, from, piece),
            What::Gossip(host) => {
                let node = &mut self.nodes[host as usize];
                node.gossips = false;
                let (fresh, neighbours) = (
                    std::mem::take(&mut node.fresh),
                    std::mem::take(&mut node.neighbours),
                );
                for neighbour in &neighbours {
                    self.tell(*neighbour, Event::Has(id(host), &fresh));
                }
                self.nodes[host as usize].neighbours = neighbours;
            }
            What::Tick(host) => {
                self.tell(host, Event::Tick);
                self.at(self.now_ns + TICK_NS, What::Tick(host));
            }
        }
    }

    fn joins(&mut self, host: u32) {
        self.tell(self.seed, Event::Joined(id(host)));
        self.tell(host, Event::Seed(id(self.seed)));
        for other in 0..self.seed {
            let near = self.nodes[host as usize]
                .neighbours
                .binary_search(&other)
                .is_ok();
            let known = self.setup.config.wardens || self.setup.config.peers && near;
            if !known || !self.nodes[other as usize].takes_part {
                continue;
            }
            self.tell(host, Event::Joined(id(other)));
            self.tell(other, Event::Joined(id(host)));
            if near && self.setup.config.peers {
                let it = &self.nodes[other as usize].policy;
                let has: Vec<_> = (0..self.setup.pieces).filter(|p| it.has(*p)).collect();
                self.tell(host, Event::Has(id(other), &has));
            }
        }
        self.nodes[host as usize].takes_part = true;
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
        self.outcome.misses += 1;
        self.tell(host, Event::Miss(piece));
    }

    fn block_sent(&mut self, node: u32) {
        let Some(flow) = self.nodes[node as usize].uplink.passed() else {
            return;
        };
        let half_ns = self.setup.link.rtt_us * 500;
        let (up_ns, down_ns) = (self.block_ns(node), self.block_ns(flow.to));
        let to = &mut self.nodes[flow.to as usize];
        // the first bit arrives half a round trip after it left, unless others stand before it; the last one no sooner than it left
        let first_ns = (self.now_ns - up_ns + half_ns).max(to.down_free_ns);
        to.down_free_ns = (first_ns + down_ns).max(self.now_ns + half_ns);
        let last_ns = to.down_free_ns;
        self.outcome.received_bytes += BLOCK_BYTES;
        if node == self.seed {
            self.outcome.seed_bytes += BLOCK_BYTES;
        }
        self.put_on_link(node);
        if flow.blocks == 0 {
            self.at(last_ns, What::Got(flow.to, node, flow.piece));
            self.tell(node, Event::Served(id(flow.to), flow.piece));
        }
    }

    fn got(&mut self, host: u32, from: u32, piece: PieceId) {
        let second = (self.now_ns / 1_000_000_000) as usize;
        if self.outcome.received.len() <= second {
            self.outcome.received.resize(second + 1, 0);
        }
        self.outcome.received[second] += 1;
        let gossips = self.setup.config.peers;
        let node = &mut self.nodes[host as usize];
        if gossips && !node.policy.has(piece) {
            node.fresh.push(piece);
            if !std::mem::replace(&mut node.gossips, true) {
                self.at(self.now_ns + GOSSIP_NS, What::Gossip(host));
            }
        }
        self.tell(host, Event::Arrived(id(from), piece));
        let node = &mut self.nodes[host as usize];
        if node.waits_for == Some(piece) {
            node.waits_for = None;
            node.since_ns = self.now_ns;
            node.next += 1;
            self.played(host);
            self.goes_on(host);
        }
    }

    fn played(&mut self, host: u32) {
        if host == 0 {
            let since_us = self.now_ns / 1000 - self.setup.hosts[0].start_us;
            self.outcome.played_us.push(since_us);
        }
    }
}

/// Hosts that start at the same second, each with one of the runs in turn and computing a little faster or slower than recorded.
pub fn hosts<'a>(
    count: usize,
    runs: &[&'a Recorded],
    profile: &'a [PieceId],
    spread_us: u64,
    chance: u64,
) -> Vec<Host<'a>> {
    let mut random = StdRng::seed_from_u64(chance);
    let host = |n: usize| Host {
        run: runs[n % runs.len()],
        profile,
        start_us: random.random_range(0..=spread_us),
        slowness: random.random_range(0.9..1.1),
        link_slowness: 1,
    };
    (0..count).map(host).collect()
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
