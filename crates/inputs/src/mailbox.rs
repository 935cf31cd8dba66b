//! What is kept of one machine's inputs, and its file.

use super::{decide::Waiting, file};
use floe_ground::{
    error::{NodeError, at},
    files::replace_file,
};
use floe_inventory::inventory::turn::Peer;
use std::{
    fs::{self, OpenOptions},
    io::{ErrorKind, Write},
    path::Path,
    time::Instant,
};

/// When a file is written anew, in bytes, though something waits.
const FILE_BYTES_LONG: u64 = 8 << 20;

/// What is kept of one machine.
#[derive(Default)]
pub(super) struct Mailbox {
    /// When the machine was made, by which it is known: its name may be another's later.
    pub machine: u64,
    /// Where it is if it was moved from here.
    pub node: Option<Peer>,
    /// What waits for it.
    pub waiting: Waiting,
    /// Whether a thread looks after it.
    pub is_served: bool,
    /// How long its file is; `None` if there is none that could be written on.
    pub length: Option<u64>,
    /// Whether its file says what is over.
    pub stale: bool,
    /// Whether the file is another machine's of the same name by now, or nobody's: it is left alone.
    pub is_over: bool,
    /// Since when its agent has been silent while it ran.
    pub silent: Option<Instant>,
    /// Whether its agent takes inputs; `None` if that is not known.
    pub by_agent: Option<bool>,
    /// What its pointer's buttons were when QEMU was told last.
    pub buttons: u8,
}

impl Mailbox {
    /// Returns what an earlier node has kept.
    pub fn of(found: file::Found) -> Mailbox {
        if found.damaged {
            let machine = found.machine;
            tracing::error!(
                machine,
                "a file of inputs is damaged: those that stood after that are lost"
            );
        }
        let mut waiting = Waiting::default();
        waiting.keep(found.waiting);
        waiting.were_said(found.said);
        waiting.were_kept(&found.taken);
        Mailbox {
            machine: found.machine,
            node: found.node,
            waiting,
            stale: true,
            ..Mailbox::default()
        }
    }

    /// Writes lines at the end of a machine's file, to the disk if they are to survive the host as well as the node.
    pub fn write(&mut self, path: &Path, lines: &str, durable: bool) -> Result<(), NodeError> {
        if self.is_over {
            return Ok(());
        }
        if self.length.is_none_or(|length| length > FILE_BYTES_LONG) {
            self.write_anew(path)?;
        }
        let length = self.length.take();
        self.stale = true;
        let append = || {
            let mut file = OpenOptions::new().append(true).open(path)?;
            file.write_all(lines.as_bytes())?;
            if durable { file.sync_data() } else { Ok(()) }
        };
        append().map_err(at(format!("cannot write {}", path.display())))?;
        // if it could not be written, half a line may be there: it is written anew the next time
        self.length = length.map(|length| length + lines.len() as u64);
        Ok(())
    }

    /// Replaces a machine's file by one that says what is the case now.
    pub fn write_anew(&mut self, path: &Path) -> Result<(), NodeError> {
        if self.is_over {
            return Ok(());
        }
        self.length = None;
        let waiting = &self.waiting;
        let (node, said) = (self.node.as_ref(), waiting.said());
        let text = file::text(self.machine, node, said, waiting.all());
        replace_file(path, text.as_bytes())?;
        self.length = Some(text.len() as u64);
        self.stale = false;
        Ok(())
    }

    /// Forgets what was taken, now that nothing waits.
    pub fn tidy(&mut self, path: &Path) {
        if self.is_over {
            return;
        }
        let done = match (self.node.is_some(), self.stale) {
            (_, false) => Ok(()),
            (true, true) => self.write_anew(path),
            (false, true) => {
                (self.length, self.stale) = (None, false);
                match fs::remove_file(path) {
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                    done => done.map_err(at(format!("cannot remove {}", path.display()))),
                }
            }
        };
        if let Err(error) = done {
            tracing::warn!(path = %path.display(), %error, "what its users did stays on the disk");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::Kept;
    use floe_guest::input::Input;

    fn typed(number: u64) -> Kept {
        Kept {
            from: 7,
            number,
            gap_ms: 0,
            input: Input::Text(vec![b'a']),
        }
    }

    #[test]
    fn what_a_guest_has_got_is_not_kept_again_after_a_kill() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("web.inputs");
        let mut before = Mailbox::default();
        let lines = file::kept([typed(1), typed(2)].iter());
        before.write(&path, &lines, true).unwrap();
        // through QEMU, and the node is killed before whoever typed that has its answer
        let line = file::line("taken", 7, 2);
        before.write(&path, &line, false).unwrap();
        let found = file::parse(&fs::read(&path).unwrap()).unwrap();
        let after = Mailbox::of(found);
        assert!(after.waiting.is_empty());
        assert_eq!(after.waiting.sort(vec![typed(1), typed(2)]), Ok(vec![]));
        let new = after.waiting.sort(vec![typed(2), typed(3)]);
        assert_eq!(new, Ok(vec![typed(3)]));
    }

    #[test]
    fn what_was_kept_of_an_earlier_machine_leaves_the_file_of_the_next_one_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("web.inputs");
        let mut earlier = Mailbox::default();
        earlier.write(&path, "", false).unwrap();
        earlier.is_over = true;
        let mut next = Mailbox {
            machine: 2,
            ..Mailbox::default()
        };
        let lines = file::kept([typed(1)].iter());
        next.write(&path, &lines, true).unwrap();
        let line = file::line("taken", 7, 1);
        earlier.write(&path, &line, false).unwrap();
        earlier.write_anew(&path).unwrap();
        earlier.tidy(&path);
        let found = file::parse(&fs::read(&path).unwrap()).unwrap();
        assert_eq!((found.machine, found.waiting), (2, vec![typed(1)]));
    }
}
