//! What the threads behind the queues have to do: the disk workers, the one for the planner's chores, and the one that pushes. And what
//! the queues have to know of it.

use crate::abi;
use crate::image::Image;
use crate::machine::Machine;
use crate::overlay::Disk;
use crate::queue::Queued;
use crate::raw::Raw;
use crate::request::Touches;
use floe_planner::RegionId;
use floe_sched::Op;
use std::sync::{Arc, Weak};

/// How many chores may wait. The planner has far fewer tables and looks under way; beyond this it is told that they failed, and
/// asks again.
pub(crate) const CHORES_QUEUED_MAX: usize = 4096;
/// How many orders to push a block may wait. More aren't worth it: the guest will have touched those pages by then.
pub(crate) const PUSHES_QUEUED_MAX: usize = 256;

/// One thing to do on the host's disk.
pub(crate) enum Job {
    /// A request of the kernel's.
    Request(Raw),
    /// Write this many bytes of a disk to the host's disk: the oldest of those that are only in the page cache.
    Piece(Arc<Machine>, Arc<Disk>, u64),
    /// Read so many bytes that no guest waits for.
    Look(Box<dyn FnOnce() + Send>, u64),
}

impl Queued for Job {
    fn bytes(&self) -> u64 {
        match self {
            Job::Request(raw) => raw.bytes.len() as u64,
            Job::Piece(..) => 0,
            Job::Look(_, bytes) => *bytes,
        }
    }

    fn is_quick(&self) -> bool {
        let Job::Request(raw) = self else {
            return false;
        };
        let header = abi::parse(&raw.bytes).map(|(header, _)| header.opcode);
        matches!(header, Some(abi::op::READ | abi::op::WRITE))
    }

    fn work(&self) -> (Op, u64) {
        let raw = match self {
            Job::Request(raw) => raw,
            Job::Piece(_, _, bytes) => return (Op::Write, *bytes),
            Job::Look(_, bytes) => return (Op::Read, *bytes),
        };
        let Some((header, body)) = abi::parse(&raw.bytes) else {
            return (Op::Read, 0);
        };
        match header.opcode {
            abi::op::READ => {
                let len = abi::parse_read(body).map_or(0, |(_, len)| len.into());
                (Op::Read, len)
            }
            abi::op::FSYNC => (Op::Flush, 0),
            _ => (Op::Write, body.len() as u64),
        }
    }
}

/// Something to do for the planner's thread.
pub(crate) enum Chore {
    /// Load tables from the cache, or have them fetched.
    Tables {
        region: RegionId,
        segments: Vec<u32>,
    },
    /// Report which chunks of a block are worth fetching, of which the table isn't in memory.
    Look { region: RegionId, block: u64 },
    /// Have chunks of a block fetched, of which the table isn't in memory.
    Fetch {
        region: RegionId,
        block: u64,
        chunks: u64,
    },
    /// Find out which machine a thread belongs to, and account for what it touched.
    Account(Touches),
}

impl Queued for Chore {
    fn bytes(&self) -> u64 {
        size_of::<Chore>() as u64
    }

    fn is_quick(&self) -> bool {
        false
    }
}

/// An order to push some chunks of one block of 64, given as a mask.
pub(crate) struct PushBlock {
    pub image: Weak<Image>,
    /// The inode whose page was touched: an image's content may be in several.
    pub ino: u64,
    pub region: usize,
    pub block: u64,
    pub chunks: u64,
    /// Leaves out chunks that aren't zero.
    pub only_zero: bool,
}

impl Queued for PushBlock {
    fn bytes(&self) -> u64 {
        size_of::<PushBlock>() as u64
    }

    fn is_quick(&self) -> bool {
        false
    }
}
