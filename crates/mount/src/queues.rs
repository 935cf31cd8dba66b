//! The bounded queues between a mount's threads.

use crate::inbox::Inbox;
use crate::job::{CHORES_QUEUED_MAX, Chore, Job, PUSHES_QUEUED_MAX, PushBlock};
use crate::options::{IoScheduling, MountOptions};
use crate::queue::Queue;
use crate::retries::Retries;
use crate::start::WORKERS;
use crate::trace::Writer;
use floe_sched::{Fifo, Policy, Vsip, VsipConfig};
use std::sync::Arc;

/// How many bytes of disk requests may wait for a worker. Beyond that the thread that reads a request does work itself.
const DISK_BYTES_QUEUED_MAX: u64 = 64 << 20;

/// The queues between a mount's threads.
pub(crate) struct Queues {
    /// What waits for the planner's thread.
    pub inbox: Arc<Inbox>,
    /// What the disk workers have to do.
    pub work: Arc<Queue<Job>>,
    /// What is to be pushed into the page cache.
    pub pusher: Arc<Queue<PushBlock>>,
    /// What the planner's thread would have to read a disk for.
    pub chores: Arc<Queue<Chore>>,
    /// Requests that are tried again.
    pub retries: Arc<Retries>,
    /// Ends the thread that writes traces out.
    pub traces: Arc<Writer>,
}

impl Queues {
    pub(crate) fn new(options: &MountOptions) -> Queues {
        let disk = policy(options.io, options.disk_requests_queued_max);
        let pushes = Fifo::new(PUSHES_QUEUED_MAX);
        let chores = Fifo::new(CHORES_QUEUED_MAX);
        Queues {
            inbox: Arc::default(),
            work: Arc::new(Queue::new(disk, DISK_BYTES_QUEUED_MAX)),
            pusher: Arc::new(Queue::new(Box::new(pushes), u64::MAX)),
            chores: Arc::new(Queue::new(Box::new(chores), u64::MAX)),
            retries: Arc::default(),
            traces: Arc::default(),
        }
    }

    /// Ends the threads.
    pub(crate) fn close(&self) {
        self.inbox.close();
        self.work.close();
        self.pusher.close();
        self.chores.close();
        self.retries.close();
        self.traces.close();
    }
}

/// Makes what orders the disk requests; at most `most` are queued.
fn policy(scheduling: IoScheduling, most: usize) -> Box<dyn Policy<Job>> {
    match scheduling {
        IoScheduling::Vsip => Box::new(Vsip::new(VsipConfig::disk(most, WORKERS))),
        IoScheduling::Fifo | IoScheduling::Off => Box::new(Fifo::new(most)),
    }
}
