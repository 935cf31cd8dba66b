//! What is kept of one machine's inputs, and its file.

use super::{decide::Waiting, file};
use crate::{
    error::{NodeError, at},
    files::replace_file,
    inventory::turn::Peer,
};
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
