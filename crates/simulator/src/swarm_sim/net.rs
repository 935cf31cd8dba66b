//! Links: what a host sends goes through its uplink in blocks, those of demands first and those of copies last and otherwise in turn, and
//! arrives through the receiver's downlink in the order of its coming.
use floe_swarm::policy::{PieceId, Purpose};
use std::collections::VecDeque;

/// Bytes that pass before another one has its turn: what is verified at a time on the wire.
pub const BLOCK_BYTES: u64 = 16 << 10;
/// Bytes of the pack that a piece is proven to be in.
const PACK_BYTES: u64 = 8 << 20;
/// Bytes of a pair of hashes in a proof.
const PAIR_BYTES: u64 = 64;
/// Bytes of a packet, and those of them that are no header: of IP, UDP and QUIC, or of IP, TCP and TLS.
const PACKET_BYTES: u64 = 1470;
const PAYLOAD_BYTES: u64 = 1400;

/// Returns the bytes that pass a link for so many of a message.
pub fn in_packets(bytes: u64) -> u64 {
    (bytes * PACKET_BYTES).div_ceil(PAYLOAD_BYTES)
}

/// Returns the bytes that pass a link for a piece of so many: the proof is a pair of hashes for each step from the pack's root to the
/// piece, and for each fork inside it.
pub fn piece_in_packets(piece_bytes: u64) -> u64 {
    let inside = (piece_bytes / BLOCK_BYTES).max(1) - 1;
    let above = (PACK_BYTES / piece_bytes.max(BLOCK_BYTES)).max(1).ilog2();
    in_packets(piece_bytes + PAIR_BYTES * (inside + u64::from(above)))
}

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// A piece.
    Piece(PieceId),
    /// The hub's list of so many members, the first ones.
    List(u32),
}

/// Something that is being sent.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// The receiver.
    pub to: u32,
    /// What.
    pub carries: Carries,
    /// Why.
    pub purpose: Purpose,
    /// Blocks that have not passed yet.
    pub blocks: u32,
    /// Bytes of each on the wire.
    pub block_bytes: u64,
}

impl Flow {
    /// Makes one of so many bytes on the wire.
    pub fn new(to: u32, carries: Carries, purpose: Purpose, wire_bytes: u64) -> Flow {
        // what headers and proofs add makes no block of its own
        let blocks = (wire_bytes / BLOCK_BYTES).max(1);
        Flow {
            to,
            carries,
            purpose,
            blocks: blocks as u32,
            block_bytes: wire_bytes.div_ceil(blocks),
        }
    }
}

/// A host's uplink.
#[derive(Clone, Debug, Default)]
pub struct Uplink {
    /// By purpose, the least urgent first.
    waiting: [VecDeque<Flow>; 3],
    passing: Option<Flow>,
}

impl Uplink {
    /// Adds something to be sent. Returns whether the link was idle: [`Uplink::pass_next`] must be called then.
    pub fn send(&mut self, flow: Flow) -> bool {
        let idle = self.passing.is_none();
        self.waiting[flow.purpose as usize].push_back(flow);
        idle
    }

    /// Puts the next block on the link. Returns its bytes, if there is one.
    pub fn pass_next(&mut self) -> Option<u64> {
        let mut waiting = self.waiting.iter_mut().rev();
        self.passing = waiting.find_map(VecDeque::pop_front);
        self.passing.map(|flow| flow.block_bytes)
    }

    /// A block has passed. Returns its flow as it is now: without blocks left, all of it is sent.
    pub fn passed(&mut self) -> Option<Flow> {
        let mut flow = self.passing.take()?;
        flow.blocks -= 1;
        if flow.blocks > 0 {
            self.send(flow);
        }
        Some(flow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_receivers_share_a_link_and_a_demand_goes_first() {
        let flow = |to, purpose| Flow::new(to, Carries::Piece(to), purpose, 2 * BLOCK_BYTES);
        let mut link = Uplink::default();
        assert!(link.send(flow(1, Purpose::Prefetch)));
        assert_eq!(link.pass_next(), Some(BLOCK_BYTES));
        assert!(!link.send(flow(2, Purpose::Prefetch)) && !link.send(flow(3, Purpose::Demand)));
        let mut order = Vec::new();
        while let Some(flow) = link.passed() {
            order.push(flow.to);
            link.pass_next();
        }
        assert_eq!(order, [1, 3, 3, 2, 1, 2]);
    }

    #[test]
    fn a_small_piece_has_the_larger_share_of_proof() {
        // 7 steps from the root of 8 MiB to 64 KiB and 3 forks inside are 1 %, 9 steps to 16 KiB are 3.5 %
        let share = |bytes| piece_in_packets(bytes) as f64 / in_packets(bytes) as f64;
        assert!((share(64 << 10) - 1.0098).abs() < 0.0005);
        assert!((share(16 << 10) - 1.0352).abs() < 0.0005);
        let flow = Flow::new(0, Carries::List(1), Purpose::Prefetch, 100);
        assert_eq!((flow.blocks, flow.block_bytes), (1, 100));
        let wire = piece_in_packets(64 << 10);
        let flow = Flow::new(0, Carries::Piece(1), Purpose::Prefetch, wire);
        assert_eq!(flow.blocks, 4);
        assert!(flow.block_bytes * 4 >= wire && flow.block_bytes * 4 < wire + 4);
    }
}
