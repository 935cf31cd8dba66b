//! The seed: a server that answers requests as they come, of which each host has a few under way, or a host that has all pieces.
use super::super::net::{Carries, Flow};
use super::{Event, Purpose, Seed, Swarm, What, id};
use floe_swarm::policy::PieceId;

/// Round trips until a new connection to the server carries a request: the handshakes of TCP and TLS.
pub(super) const CONNECT_TRIPS: u64 = 2;

impl Swarm<'_> {
    pub(super) fn ask_seed(&mut self, host: u32, piece: PieceId, purpose: Purpose) {
        if self.kind == Seed::Host {
            return self.soon_answered(What::Asked(self.seed, host, piece, purpose));
        }
        self.node(host).requests.ask(piece, purpose);
        self.request(host);
    }

    pub(super) fn cancel_at_seed(&mut self, host: u32, piece: PieceId) {
        match self.kind {
            Seed::Host => self.soon(What::Withdrawn(self.seed, host, piece)),
            Seed::Server => self.node(host).requests.cancel(piece),
        }
    }

    /// Sends as many requests as may be under way.
    fn request(&mut self, host: u32) {
        let way_ns = self.way_ns();
        let service_ns = self.setup.link.service_us * 1000;
        while let Some(piece) = self.node(host).requests.begin() {
            let node = self.node(host);
            node.under_way += 1;
            let opens = node.under_way > node.seed_connections;
            node.seed_connections = node.seed_connections.max(node.under_way);
            let trips = if opens { CONNECT_TRIPS } else { 0 };
            let at_ns = self.now_ns + (2 * trips + 1) * way_ns + service_ns;
            self.at(at_ns, What::Requested(host, piece));
        }
    }

    pub(super) fn requested(&mut self, host: u32, piece: PieceId) {
        // a server is not told why
        let carries = Carries::Piece(piece);
        let flow = Flow::new(host, carries, Purpose::Prefetch, self.wire_bytes);
        self.send(self.seed, flow);
    }

    /// A piece has come from the seed: the next one may be requested.
    pub(super) fn seeded(&mut self, host: u32, piece: PieceId) {
        if self.kind == Seed::Server {
            let node = self.node(host);
            node.requests.done(piece);
            node.under_way -= 1;
            self.request(host);
        }
    }

    /// The policy hears that there is a seed, and a seed that is a host hears of this one.
    pub(super) fn meet_seed(&mut self, host: u32) {
        self.tell(host, Event::Seed(id(self.seed)));
        if self.kind == Seed::Host {
            self.tell(self.seed, Event::Joined(id(host)));
        }
    }
}
