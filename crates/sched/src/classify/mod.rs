//! How urgent a request is, by what a person in front of the machine did before: vSIP, section 3.1.
//!
//! A program is interactive if it asks for much more after inputs than before them. The [`Classifier`] hears of inputs (that there
//! was one, never which) and of requests, with whatever is known of who in the guest asked, and answers with a
//! [`Class`]. The first rule that fits decides; [`Rule`] tells a user which one it was:
//!
//! 1. by hand: the program is allowed or forbidden, in this machine or in all with its base disk;
//! 2. the exception for multimedia: it started on an input and reads like a player (`pace`);
//! 3. a long, fast sequential stream is bulk, whoever reads it (`streams`);
//! 4. learned: several machines with the same base disk and owner found it interactive;
//! 5. its counts before and after inputs (`counts`), and how its runs begin (`runs`); not once this run has lasted longer than anybody
//!    waits for something;
//! 6. a launch: too little is known of it, other machines didn't find that it is not interactive, and it started on an input a moment ago.
//!    A scan, which reads one new file after the other, must not be taken for a launch. So all programs (or files) of which too little is
//!    known, the *strangers*, are also counted together: if they asked for as much before the input, none of them counts as launched. A
//!    file that was never read before must pass one more test: the strangers began promptly after the input, or the files of its directory
//!    are known to be read on inputs. If they are known to be read at other times, it is no launch;
//! 7. a request of which nobody knows who asks: if it comes soon after an input, under the same condition about strangers.
//!
//! Who asks is known from the guest's agent (`told`), which names the program, or else from the caller, who names the file that a block
//! belongs to.
//!
//! Anything else is normal, or bulk if it has moved very much without a pause. A request that is wrongly taken for interactive does no harm
//! to other machines: the class decides the order within the share that a machine has anyway. So neither an agent that lies nor a user who
//! clicks without end gains anything; what is kept in memory because of either is bounded (`limits`).

mod counts;
mod limits;
mod list;
mod machine;
mod pace;
mod program;
mod runs;
mod status;
mod streams;
#[cfg(test)]
mod tests;
mod told;

pub use list::{List, ListError, Tally};
pub use program::{ImageId, Name, NameError, Program};
pub use status::{ProgramStatus, Rule, Status, Unnamed};
pub use told::Told;

use crate::{Class, MachineId, Op};
use limits::{LISTS_MAX, MACHINES_MAX};
use list::{Hand, Said};
use machine::Machine;
use std::collections::BTreeMap;

/// A base disk, and the user whose machines stand on it: those of its image, of the images that were captured from them, and clones.
/// They learn from each other, and from nobody else's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owned {
    /// The lowest layer of the disk.
    pub disk: ImageId,
    /// The number of the user on this host.
    pub uid: u32,
}

/// Where a request's bytes are: an image's region or a machine's disk, as the caller numbers them, and the offset there in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The number of the region or disk.
    pub region: u32,
    /// The first byte.
    pub offset: u64,
}

/// A request, as far as it is seen from outside of the guest.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The machine whose request it is.
    pub machine: MachineId,
    /// Who in the guest asks, if anything is known of that.
    pub program: Option<&'a Program>,
    /// The directory of the file that `program` is, if the caller knows.
    pub folder: Option<&'a Program>,
    /// Where, if the caller knows.
    pub place: Option<Place>,
    /// How many bytes.
    pub bytes: u64,
    /// What it does.
    pub op: Op,
}

/// Where something that is said by hand holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In this machine, until it is gone.
    Machine(MachineId),
    /// In all machines of an owner with one base disk; it is part of their list.
    Disk(Owned),
}

/// By what it is known who in a guest asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// The guest's agent has named the program.
    Agent,
    /// The caller has: the file that the block belongs to.
    Caller,
    /// Nothing is known.
    #[default]
    Nothing,
}

/// How urgent a request is, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Its class.
    pub class: Class,
    /// The rule that gave it this class.
    pub rule: Rule,
    /// By what it is known who asks.
    pub source: Source,
    /// Who asks, if anything is known of that.
    pub program: Option<Program>,
}

/// A base disk's list, and its machines here.
#[derive(Debug, Default)]
struct Kept {
    list: List,
    machines: usize,
    /// When it came, or its last machine began: a number that grows.
    used: u64,
}

/// Decides how urgent the requests of all machines of a mount are. It knows no clock: times are in microseconds of any clock that
/// doesn't go backwards, the same in all calls. The same calls have the same answers.
#[derive(Debug, Default)]
pub struct Classifier {
    machines: BTreeMap<MachineId, Machine>,
    lists: BTreeMap<Owned, Kept>,
    uses: u64,
}

impl Classifier {
    /// Makes a classifier without machines and lists.
    pub fn new() -> Classifier {
        Classifier::default()
    }

    /// Adds a machine that begins. Requests and inputs of machines that haven't begun are not noted, and such requests are normal; so are
    /// those of more than 1024 machines at a time.
    pub fn began(&mut self, now_us: u64, machine: MachineId, of: Owned) {
        if machine == MachineId::NONE
            || self.machines.contains_key(&machine)
            || self.machines.len() >= MACHINES_MAX
        {
            return;
        }
        self.machines.insert(machine, Machine::new(now_us, of));
        self.kept(of).machines += 1;
    }

    /// Forgets a machine that is gone. What it has taught remains in its base disk's list.
    pub fn gone(&mut self, machine: MachineId) {
        let Some(machine) = self.machines.remove(&machine) else {
            return;
        };
        if let Some(kept) = self.lists.get_mut(&machine.of) {
            kept.machines = kept.machines.saturating_sub(1);
        }
    }

    /// Notes that a key, a button or a touch was sent to this machine. Movements of a pointer are no inputs.
    pub fn input(&mut self, now_us: u64, machine: MachineId) {
        if let Some(machine) = self.machines.get_mut(&machine) {
            let kept = self.lists.get_mut(&machine.of);
            machine.input(now_us, kept.map(|kept| &mut kept.list));
        }
    }

    /// Notes a request, and returns how urgent it is.
    pub fn request(&mut self, now_us: u64, seen: &Seen) -> Class {
        self.judge(now_us, seen).class
    }

    /// Notes a request, and returns how urgent it is and why. What the machine's agent has told of who asks goes before what the
    /// caller knows.
    pub fn judge(&mut self, now_us: u64, seen: &Seen) -> Verdict {
        let Some(machine) = self.machines.get_mut(&seen.machine) else {
            return Verdict {
                class: Class::Normal,
                rule: Rule::Unknown,
                source: Source::Nothing,
                program: None,
            };
        };
        let kept = self.lists.get(&machine.of);
        machine.request(now_us, seen, kept.map(|kept| &kept.list))
    }

    /// Notes an agent's report of who in its guest has read what. The report needn't be true: it affects its own machine alone.
    pub fn told(&mut self, now_us: u64, machine: MachineId, told: &[Told]) {
        if let Some(machine) = self.machines.get_mut(&machine) {
            machine.told(now_us, told);
        }
    }

    /// Says that programs of this name are interactive, whatever they do.
    pub fn allow(&mut self, scope: Scope, name: Name) -> Result<(), ListError> {
        self.said(scope)?.say(name, Hand::Allowed)
    }

    /// Says that programs of this name are not interactive, whatever they do.
    pub fn forbid(&mut self, scope: Scope, name: Name) -> Result<(), ListError> {
        self.said(scope)?.say(name, Hand::Forbidden)
    }

    /// Takes back what was said of this name, and returns whether anything was.
    pub fn unsay(&mut self, scope: Scope, name: Name) -> Result<bool, ListError> {
        Ok(self.said(scope)?.forget(&name))
    }

    /// Forgets all that a base disk's list has of this name, said by hand or learned.
    pub fn forget(&mut self, of: Owned, name: Name) {
        self.kept(of).list.forget(&name);
    }

    /// Takes a list that was stored earlier, or comes from another host. If there is one already it stays, and takes over what the
    /// other knows and it doesn't, so that importing twice changes nothing more.
    pub fn import(&mut self, of: Owned, list: List) {
        self.kept(of).list.merge(list);
    }

    /// Returns a base disk's list, to be stored. Without one, an empty list.
    pub fn export(&self, of: Owned) -> List {
        let kept = self.lists.get(&of);
        kept.map(|kept| kept.list.clone()).unwrap_or_default()
    }

    /// Returns who is interactive in a machine, and why. `None` if there is no such machine.
    pub fn status(&self, machine: MachineId) -> Option<Status> {
        self.machines.get(&machine).map(Machine::status)
    }

    fn said(&mut self, scope: Scope) -> Result<&mut Said, ListError> {
        match scope {
            Scope::Machine(machine) => {
                let machine = self.machines.get_mut(&machine);
                Ok(&mut machine.ok_or(ListError::NoMachine)?.said)
            }
            Scope::Disk(of) => Ok(&mut self.kept(of).list.said),
        }
    }

    /// Returns the list of a base disk, made now if there was none. If there are too many, one without machines gives way: the one
    /// that was used longest ago. There is always one, because there are more lists than machines.
    fn kept(&mut self, of: Owned) -> &mut Kept {
        if !self.lists.contains_key(&of) && self.lists.len() >= LISTS_MAX {
            let idle = self.lists.iter().filter(|(_, kept)| kept.machines == 0);
            if let Some((oldest, _)) = idle.min_by_key(|(_, kept)| kept.used) {
                let oldest = *oldest;
                self.lists.remove(&oldest);
            }
        }
        self.uses += 1;
        let kept = self.lists.entry(of).or_default();
        kept.used = self.uses;
        kept
    }
}
