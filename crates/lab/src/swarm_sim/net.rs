//! Links: what a host sends goes through its uplink in blocks, those of demands first and otherwise in turn, and arrives through the
//! receiver's downlink in the order of its coming.
use floe_swarm::policy::{PieceId, Purpose};
use std::collections::VecDeque;

/// Bytes that pass before another one has its turn: what is verified at a time on the wire.
pub const BLOCK_BYTES: u64 = 16 << 10;

/// A piece that is being sent.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// The receiver.
    pub to: u32,
    /// What.
    pub piece: PieceId,
    /// Why.
    pub purpose: Purpose,
    /// Blocks that have not passed yet.
    pub blocks: u32,
}

/// A host's uplink.
#[derive(Clone, Debug, Default)]
pub struct Uplink {
    demand: VecDeque<Flow>,
    prefetch: VecDeque<Flow>,
    passing: Option<Flow>,
}

impl Uplink {
    /// Adds a piece to be sent. Returns whether the link was idle: [`Uplink::pass_next`] must be called then.
    pub fn send(&mut self, flow: Flow) -> bool {
        let idle = self.passing.is_none();
        match flow.purpose {
            Purpose::Demand => self.demand.push_back(flow),
            Purpose::Prefetch => self.prefetch.push_back(flow),
        }
        idle
    }

    /// Puts the next block on the link. Returns whether there is one.
    pub fn pass_next(&mut self) -> bool {
        self.passing = self
            .demand
            .pop_front()
            .or_else(|| self.prefetch.pop_front());
        self.passing.is_some()
    }

    /// A block has passed. Returns its flow as it is now: without blocks left, the piece is sent.
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
        let flow = |to, purpose| Flow {
            to,
            piece: to,
            purpose,
            blocks: 2,
        };
        let mut link = Uplink::default();
        assert!(link.send(flow(1, Purpose::Prefetch)));
        assert!(link.pass_next());
        assert!(!link.send(flow(2, Purpose::Prefetch)) && !link.send(flow(3, Purpose::Demand)));
        let mut order = Vec::new();
        while let Some(flow) = link.passed() {
            order.push(flow.to);
            link.pass_next();
        }
        assert_eq!(order, [1, 3, 3, 2, 1, 2]);
    }
}
