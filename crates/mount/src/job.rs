//! What the disk workers have to do, and what the queue before them has to know of it.

use crate::abi;
use crate::machine::Machine;
use crate::overlay::Disk;
use crate::queue::Queued;
use crate::raw::Raw;
use floe_sched::Op;
use std::sync::Arc;

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
