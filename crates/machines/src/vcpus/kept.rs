//! What is to be undone, in a file: a node that is killed leaves vCPUs as they are, and the next one gives them back what they had.

use super::threads;
use floe_ground::{
    error::NodeError,
    files::{load_one, replace_file_soon},
};
use floe_sched::cpu::user::{Held, ThreadId};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Largest file that is read, in bytes: that of some ten thousand vCPUs.
const BYTES_MAX: u64 = 16 << 20;

/// A thread that was changed.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Thread {
    tid: u32,
    started: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    allowed: Option<Vec<u16>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nice: Option<i8>,
}

impl From<&Held> for Thread {
    fn from(held: &Held) -> Thread {
        Thread {
            tid: held.thread.tid,
            started: held.thread.started,
            allowed: held.allowed.map(|cores| cores.iter().collect()),
            nice: held.nice,
        }
    }
}

impl From<&Thread> for Held {
    fn from(thread: &Thread) -> Held {
        let allowed = thread.allowed.iter().flatten().copied().collect();
        Held {
            thread: ThreadId {
                tid: thread.tid,
                started: thread.started,
            },
            allowed: thread.allowed.as_ref().map(|_| allowed),
            nice: thread.nice,
        }
    }
}

/// The file.
pub(super) struct Kept {
    path: PathBuf,
    /// What stands in it.
    held: Vec<Held>,
}

impl Kept {
    /// Gives the threads in the file back what they had, and forgets them.
    pub fn open(path: PathBuf) -> Result<Kept, NodeError> {
        let parse =
            |bytes: &[u8]| serde_json::from_slice::<Vec<Thread>>(bytes).map_err(|e| e.to_string());
        let lost = "vCPUs whose affinity an earlier node has set keep it until their machine is started again";
        let threads = load_one(&path, BYTES_MAX, parse, lost)?.unwrap_or_default();
        let mut kept = Kept {
            path,
            held: threads.iter().map(Held::from).collect(),
        };
        for held in &kept.held {
            if let Err(error) = threads::restore(held) {
                let thread = held.thread.tid;
                tracing::warn!(thread, %error, "a vCPU keeps the affinity that an earlier node has set");
            }
        }
        kept.write(Vec::new())?;
        Ok(kept)
    }

    /// Writes down what is to be undone, before it is done. It need not survive the host, which no thread does.
    pub fn write(&mut self, held: Vec<Held>) -> Result<(), NodeError> {
        if held != self.held {
            let threads: Vec<Thread> = held.iter().map(Thread::from).collect();
            let text = serde_json::to_vec(&threads).expect("numbers");
            replace_file_soon(&self.path, &text)?;
            self.held = held;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_node_has_changed_is_put_right_by_the_next_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vcpus.json");
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let before = threads::look(own).unwrap().unwrap();
        let held = Held {
            thread: before.id,
            allowed: Some(before.allowed),
            nice: None,
        };
        let mut kept = Kept::open(path.clone()).unwrap();
        kept.write(vec![held]).unwrap();
        let one = before.allowed.iter().take(1).collect();
        let action = floe_sched::cpu::user::Action::Pin {
            machine: 1,
            thread: before.id,
            expect: before.allowed,
            to: one,
        };
        threads::carry_out(&action);
        assert_eq!(threads::look(own).unwrap().unwrap().allowed, one);
        drop(kept);
        let kept = Kept::open(path.clone()).unwrap();
        assert_eq!(threads::look(own).unwrap().unwrap().allowed, before.allowed);
        assert!(kept.held.is_empty());
        assert_eq!(std::fs::read(&path).unwrap(), b"[]");
    }

    #[test]
    fn a_file_that_means_nothing_is_set_aside_and_one_that_cant_be_read_now_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vcpus.json");
        std::fs::write(&path, b"[{\"tid\":").unwrap();
        assert!(Kept::open(path.clone()).unwrap().held.is_empty());
        assert!(std::fs::read_dir(dir.path()).unwrap().count() > 0);
        let file = dir.path().join("file");
        std::fs::write(&file, b"").unwrap();
        let nowhere = file.join("vcpus.json");
        assert!(Kept::open(nowhere).is_err());
    }
}
