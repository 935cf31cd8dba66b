//! How hosts come to know each other: by the hub's list, by dialling, and by news of what each of them has.
use super::super::net::{Carries, Flow, in_packets};
use super::seed::CONNECT_TRIPS;
use super::{Event, PieceId, Purpose, Swarm, TICK_NS, What, id, number};
use floe_swarm::policy::Fault;
use floe_swarm::roster::{CONNECTIONS_MAX, Move, REST_US, TELL_EVERY_US, TOLD_MAX};

/// Half round trips until a dialled host has heard what it is asked: QUIC's handshake, a hello each way, and the question.
const DIAL_WAYS: u64 = 5;
/// Processor time of a handshake at either end.
const HANDSHAKE_NS: u64 = 1_000_000;
/// Bytes of the hub's answer: for each member its key and addresses, for each piece of the prediction its place.
const ANSWER_BYTES: u64 = 500;
const MEMBER_BYTES: u64 = 120;
const PREDICTED_BYTES: u64 = 8;
/// When hosts ask the hub again: soon while others come, later otherwise, and all of them together not more often than once in
/// [`ASKS_EACH_NS`] (`crates/hub/src/swarm/members.rs`).
const SOON_NS: u64 = 1_000_000_000;
const SELDOM_NS: u64 = 10_000_000_000;
const NEWS_NS: u64 = 15_000_000_000;
const ASKS_EACH_NS: u64 = 10_000_000;
/// How often a host looks for connections that nobody needs.
const REST_EVERY_NS: u64 = 1_000_000_000;

/// A connection to another host.
pub(super) struct Connected {
    /// Whether the other is told what comes here.
    told: bool,
    /// Whether this host has dialled.
    dialled: bool,
    /// When one last asked the other, or a piece came.
    used_ns: u64,
}

impl Swarm<'_> {
    pub(super) fn starts(&mut self, host: u32) {
        let connected_ns = self.now_ns + 2 * CONNECT_TRIPS * self.way_ns();
        let service_ns = self.setup.link.service_us * 1000;
        let asked_ns = connected_ns + self.way_ns() + service_ns;
        self.at(asked_ns, What::Joins(host));
    }

    /// The hub takes a host onto its list, and answers with all of it.
    pub(super) fn joins(&mut self, host: u32) {
        let mut bytes = ANSWER_BYTES;
        let joined = self.node(host).joined;
        if self.setup.config.prefetch && !joined {
            bytes += PREDICTED_BYTES * self.setup.hosts[host as usize].profile.pieces.len() as u64;
        }
        if self.setup.config.peers {
            if !joined {
                self.members.push(host);
                self.changed_ns = self.now_ns;
            }
            bytes += MEMBER_BYTES * self.members.len() as u64;
        }
        let carries = Carries::List(self.members.len() as u32);
        let flow = Flow::new(host, carries, Purpose::Prefetch, in_packets(bytes));
        self.send(self.seed, flow);
    }

    /// A host hears who takes part; with the first answer its machine starts.
    pub(super) fn listed(&mut self, host: u32, members: u32) {
        let first = !std::mem::replace(&mut self.node(host).joined, true);
        if first {
            self.meet_seed(host);
        }
        if self.setup.config.peers {
            let members = self.members[..members as usize].iter();
            let members: Vec<_> = members.map(|member| (id(*member), ())).collect();
            let each_ns = ASKS_EACH_NS * members.len() as u64;
            let mut moves = Vec::new();
            self.node(host).roster.set(members, &mut moves);
            self.steps(host, moves);
            let news = self.now_ns < self.changed_ns + NEWS_NS;
            let again_ns = each_ns.max(if news { SOON_NS } else { SELDOM_NS });
            let service_ns = self.setup.link.service_us * 1000;
            let asked_ns = self.now_ns + again_ns + self.way_ns() + service_ns;
            self.at(asked_ns, What::Joins(host));
        }
        if first {
            let profile = self.setup.hosts[host as usize].profile;
            self.tell(host, Event::Window(&profile.pieces, &profile.due_ms));
            let now_ns = self.now_ns;
            self.node(host).since_ns = now_ns;
            self.goes_on(host);
            if self.setup.config.peers {
                // hosts do not act in step
                let step_ns = u64::from(host) * 1_009_331 % TICK_NS;
                self.at(now_ns + step_ns, What::Tick(host));
            }
        }
    }

    fn steps(&mut self, host: u32, moves: Vec<Move>) {
        for step in moves {
            match step {
                Move::Joined(peer) => self.tell(host, Event::Joined(peer)),
                Move::Left(peer) => {
                    let waiting = &mut self.node(host).waiting;
                    waiting.retain(|(other, ..)| *other != number(peer));
                    self.tell(host, Event::Left(peer));
                }
                Move::Dial(peer) => {
                    let other = number(peer);
                    let free_ns = self.handshake(host).max(self.handshake(other));
                    let met_ns = free_ns + DIAL_WAYS * self.way_ns();
                    self.at(met_ns, What::Met(host, other));
                }
                // nobody is taken off the list
                Move::Close(_) => {}
            }
        }
    }

    /// Takes a node's processor for a handshake. Returns when that is done.
    fn handshake(&mut self, node: u32) -> u64 {
        let now_ns = self.now_ns;
        let node = self.node(node);
        node.busy_ns = node.busy_ns.max(now_ns) + HANDSHAKE_NS;
        node.busy_ns
    }

    pub(super) fn met(&mut self, host: u32, other: u32) {
        if self.node(host).connections.contains_key(&other) {
            return; // the other has dialled, too
        }
        let known = self.node(other).roster.may_enter(id(host));
        if !known || self.is_full(host) || self.is_full(other) {
            let (now_us, mut moves) = (self.now_us(), Vec::new());
            let roster = &mut self.node(host).roster;
            roster.failed(now_us, id(other), &mut moves);
            return self.steps(host, moves);
        }
        let both = [(host, other), (other, host)];
        for (one, of) in both {
            self.connect(one, of, one == host);
        }
        for (one, of) in both {
            let node = &self.nodes[one as usize];
            if node
                .connections
                .get(&of)
                .is_some_and(|connected| connected.told)
            {
                let here = (0..self.setup.pieces).filter(|piece| node.policy.has(*piece));
                let here: Vec<PieceId> = here.collect();
                self.tell(of, Event::Has(id(one), &here));
            }
        }
        for (one, of) in both {
            let waiting = std::mem::take(&mut self.node(one).waiting);
            for (to, piece, purpose) in waiting {
                match to == of {
                    true => self.soon_answered(What::Asked(of, one, piece, purpose)),
                    false => self.node(one).waiting.push((to, piece, purpose)),
                }
            }
        }
    }

    fn is_full(&self, node: u32) -> bool {
        self.nodes[node as usize].connections.len() >= CONNECTIONS_MAX
    }

    fn connect(&mut self, one: u32, of: u32, dialled: bool) {
        let used_ns = self.now_ns;
        let node = self.node(one);
        let told = node
            .connections
            .values()
            .filter(|connected| connected.told)
            .count()
            < TOLD_MAX;
        let connected = Connected {
            told,
            dialled,
            used_ns,
        };
        node.connections.insert(of, connected);
        let mut moves = Vec::new();
        node.roster.connected(id(of), &mut moves);
        self.steps(one, moves);
    }

    /// Notes that a connection is used. Returns whether there is one.
    pub(super) fn uses_connection(&mut self, host: u32, other: u32) -> bool {
        let now_ns = self.now_ns;
        let connected = self.node(host).connections.get_mut(&other);
        connected.is_some_and(|connected| {
            connected.used_ns = now_ns;
            true
        })
    }

    pub(super) fn ask(&mut self, host: u32, other: u32, piece: PieceId, purpose: Purpose) {
        if self.uses_connection(host, other) {
            return self.soon_answered(What::Asked(other, host, piece, purpose));
        }
        let mut moves = Vec::new();
        let node = self.node(host);
        if node.roster.wanted(id(other), &mut moves) {
            let waiting = &mut node.waiting;
            waiting.retain(|(to, what, _)| (*to, *what) != (other, piece));
            waiting.push((other, piece, purpose));
        } else {
            self.at(self.now_ns, What::Refused(host, other, piece));
        }
        self.steps(host, moves);
    }

    pub(super) fn cancel(&mut self, host: u32, other: u32, piece: PieceId) {
        let waiting = &mut self.node(host).waiting;
        waiting.retain(|(to, what, _)| (*to, *what) != (other, piece));
        self.soon(What::Withdrawn(other, host, piece));
    }

    /// What a host does for its connections at each tick.
    pub(super) fn tick_connections(&mut self, host: u32) {
        let (now_us, now_ns, mut moves) = (self.now_us(), self.now_ns, Vec::new());
        self.node(host).roster.tick(now_us, &mut moves);
        self.steps(host, moves);
        let node = self.node(host);
        if now_ns - node.rested_ns >= REST_EVERY_NS {
            node.rested_ns = now_ns;
            self.rest(host);
        }
        let node = self.node(host);
        if !node.fresh.is_empty() && now_ns - node.told_ns >= TELL_EVERY_US * 1000 {
            node.told_ns = now_ns;
            self.soon(What::Told(host));
        }
    }

    pub(super) fn told(&mut self, host: u32) {
        let node = self.node(host);
        let fresh = std::mem::take(&mut node.fresh);
        let told = node
            .connections
            .iter()
            .filter(|(_, connected)| connected.told);
        let told: Vec<u32> = told.map(|(other, _)| *other).collect();
        for other in told {
            self.tell(other, Event::Has(id(host), &fresh));
        }
    }

    /// Ends connections that nobody needs: what the others have is not known any more.
    fn rest(&mut self, host: u32) {
        let now_ns = self.now_ns;
        let node = self.node(host);
        let idle = node.connections.iter().filter(|(other, connected)| {
            let old = now_ns - connected.used_ns >= REST_US * 1000;
            old && connected.dialled && !node.roster.is_near(id(**other))
        });
        let idle: Vec<u32> = idle.map(|(other, _)| *other).collect();
        for other in idle {
            for (one, of) in [(host, other), (other, host)] {
                let node = self.node(one);
                node.connections.remove(&of);
                node.roster.rested(id(of));
                self.tell(one, Event::Left(id(of)));
                self.tell(one, Event::Joined(id(of)));
            }
        }
    }

    /// Ends the connection to a host that the policy has dropped.
    pub(super) fn expel(&mut self, host: u32, other: u32, fault: Fault) {
        let (now_us, mut moves) = (self.now_us(), Vec::new());
        let node = self.node(host);
        node.waiting.retain(|(to, ..)| *to != other);
        node.roster.dropped(now_us, id(other), fault);
        if node.connections.remove(&other).is_some() {
            let node = self.node(other);
            node.connections.remove(&host);
            node.roster.lost(now_us, id(host), &mut moves);
            self.steps(other, moves);
        }
    }
}
