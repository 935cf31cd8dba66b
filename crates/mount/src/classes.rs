//! How urgent each machine's disk requests are: by what was sent to it before, and by who in its guest asks.

use crate::machine::Machine;
use crate::overlay::Disk;
use crate::verdicts::{Decided, Verdicts};
use floe_image::{CHUNK_SIZE, Hash};
use floe_sched::classify::{
    self, Classifier, ImageId, Owned, Place, Program, ProgramStatus, Seen, Unnamed,
};
use floe_sched::{Class, MachineId, MachineStatus, Op, Purpose, Who};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is known of one machine's disk requests.
#[derive(Clone, Debug, PartialEq)]
pub struct IoMachine {
    /// Its name on the mount.
    pub name: String,
    /// What the scheduler knows of it.
    pub status: MachineStatus,
    /// How many inputs it has had: keys, buttons and touches that somebody sent to it.
    pub inputs: u64,
    /// How long ago the last one came.
    pub since_input: Option<Duration>,
    /// How often its guest's agent has told who asks.
    pub words: u64,
    /// How many of its disks' files are known, or why none are; `None` as long as they are looked for, and where nobody has sent it an input
    /// lately.
    pub files: Option<Result<usize, String>>,
    /// Who asked last, the last one first.
    pub programs: Vec<IoProgram>,
    /// The reads of which neither program nor file is known, if there was one.
    pub unknown: Option<IoUnknown>,
}

/// What is known of who in a guest asks.
#[derive(Clone, Debug, PartialEq)]
pub struct IoProgram {
    /// What it is called: a program's name that the guest's agent has told, or a file's path.
    pub name: String,
    /// What the scheduler knows of it.
    pub status: ProgramStatus,
    /// How long ago it asked last.
    pub since: Duration,
}

/// What is known of reads of which neither program nor file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoUnknown {
    /// What the scheduler knows of them.
    pub status: Unnamed,
    /// How long ago the last one was.
    pub since: Duration,
    /// Those within four seconds after the last input, with what was asked for by those of whom too little is known: against
    pub after_input: u32,
    /// as much time before it, it tells whether they answer.
    pub before_input: u32,
}

/// How urgent each machine's disk requests are, by what was sent to it before. Locks: the classifier, for a request at a time.
pub(crate) struct Classes {
    pub classifier: Mutex<Classifier>,
    began: Instant,
    /// Records what was decided, if somebody measures.
    pub verdicts: Option<Verdicts>,
}

impl Classes {
    /// Makes it; what is decided is recorded in `trace`, if that is a directory's name.
    pub(crate) fn new(trace: Option<&Path>) -> Classes {
        let verdicts = trace.and_then(|dir| match Verdicts::new(dir) {
            Ok(verdicts) => Some(verdicts),
            Err(error) => {
                tracing::warn!(%error, "what is decided of disk requests is not recorded");
                None
            }
        });
        Classes {
            classifier: Mutex::default(),
            began: Instant::now(),
            verdicts,
        }
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// Adds a machine that is on the mount from now on; it shares the list of this base disk.
    pub(crate) fn began(&self, machine: &Machine, base: Hash) {
        let now_us = self.now_us();
        let of = owned(base);
        self.classifier.lock().began(now_us, machine.id, of);
        if let Some(verdicts) = &self.verdicts {
            verdicts.began(machine.id, &machine.name);
        }
    }

    /// Forgets a machine that is no longer on the mount.
    pub(crate) fn gone(&self, machine: MachineId) {
        self.classifier.lock().gone(machine);
        if let Some(verdicts) = &self.verdicts {
            verdicts.gone(machine);
        }
    }

    /// Returns who asks for `bytes` bytes of a machine's disk from `offset` on, with how urgent that is. A class that was set for
    /// the whole machine stands.
    pub(crate) fn who(
        &self,
        machine: &Machine,
        disk: &Arc<Disk>,
        (op, offset, bytes): (Op, u64, u64),
    ) -> Who {
        let purpose = match op {
            Op::Read => Purpose::Demand,
            Op::Write | Op::Flush => Purpose::Store,
        };
        let who = machine.who(purpose);
        if who.class != Class::default() {
            return who;
        }
        let disks = machine.disks.read();
        let region = disks.iter().position(|known| Arc::ptr_eq(known, disk));
        drop(disks);
        let place = region.map(|region| Place {
            region: region as u32,
            offset,
        });
        let file = match op {
            Op::Read | Op::Write => machine.files.at(&machine.image.id, disk, offset),
            Op::Flush => None,
        };
        let (file, folder) = file.map_or((None, None), |(file, folder)| (Some(file), folder));
        let seen = Seen {
            machine: machine.id,
            program: file.as_ref(),
            folder: folder.as_ref(),
            place,
            bytes,
            op,
        };
        let now_us = self.now_us();
        let verdict = self.classifier.lock().judge(now_us, &seen);
        if let Some(verdicts) = &self.verdicts {
            let name = match (verdict.program, &file) {
                (Some(Program::Task(name)), _) => name.to_string(),
                (_, Some(file)) => machine.files.path(file).unwrap_or_default(),
                _ => String::new(),
            };
            let decided = Decided {
                op,
                disk: place.map(|place| place.region),
                offset,
                bytes,
                verdict,
                program: &name,
            };
            verdicts.record(machine.id, &decided);
        }
        let class = verdict.class;
        Who { class, ..who }
    }

    /// Returns who asks for a page of a machine's memory, with how urgent that is.
    pub(crate) fn who_faults(&self, machine: &Machine) -> Who {
        let who = machine.who(Purpose::Demand);
        if who.class != Class::default() {
            return who;
        }
        let seen = Seen {
            machine: machine.id,
            program: None,
            folder: None,
            place: None,
            bytes: CHUNK_SIZE as u64,
            op: Op::Read,
        };
        let now_us = self.now_us();
        let class = self.classifier.lock().request(now_us, &seen);
        Who { class, ..who }
    }

    /// Returns what is known of a machine's requests, with what the scheduler says of them.
    pub(crate) fn status(&self, machine: &Machine, status: MachineStatus) -> IoMachine {
        let now_us = self.now_us();
        let since = |us: u64| Duration::from_micros(now_us.saturating_sub(us));
        let known = self.classifier.lock().status(machine.id);
        let unknown = known.as_ref().and_then(|known| {
            let status = known.unnamed?;
            Some(IoUnknown {
                status,
                since: since(status.last_us),
                after_input: known.strangers_after_input,
                before_input: known.strangers_before_input,
            })
        });
        let (inputs, last_us, words, programs) = known.map_or((0, None, 0, Vec::new()), |known| {
            let classify::Status {
                inputs,
                last_input_us,
                words,
                programs,
                ..
            } = known;
            (inputs, last_input_us, words, programs)
        });
        let programs = programs.into_iter().map(|status| IoProgram {
            name: match machine.files.path(&status.program) {
                Some(path) => path,
                None => status.program.to_string(),
            },
            since: since(status.last_us),
            status,
        });
        IoMachine {
            name: machine.name.clone(),
            status,
            inputs,
            since_input: last_us.map(since),
            words,
            files: machine.files.known(),
            programs: programs.collect(),
            unknown,
        }
    }
}

/// Returns whose lists those of a base disk's machines are: this process's user has all machines of the mount.
pub(crate) fn owned(base: Hash) -> Owned {
    Owned {
        disk: ImageId(*base.as_bytes()),
        uid: rustix::process::geteuid().as_raw(),
    }
}
