//! What a node has the agent do for a machine: bring CPUs and memory into use, for example. Each chore is a process of the agent's own
//! program, `floe-guest chore NAME [ARGUMENTS]`, which the node starts as it starts a user's command. It writes one line of JSON
//! and ends. The types of these lines are here, so that both ends share them; the node believes nothing that they say.
//!
//! A new chore is a file of its own, a name and an arm of [`run`].

mod account;
mod cpus;
mod disk;
mod forget;
mod hooks;
mod hosts;
mod memory;
mod settle;
mod traffic;
mod trim;

pub use account::Account;
pub use cpus::Cpus;
pub use disk::DiskUse;
pub use forget::{FORGOTTEN, Forgotten};
pub(crate) use hooks::{COPIED, any as any_hooks, owe};
pub use hooks::{DIR as HOOKS_DIR, DOCK_DIR, HOOK_LIMIT, HOOKS_MAX, Hooks, OWED_PATH, Ran};
pub use hosts::{HOSTS_NAMES_MAX, Hosts};
pub use memory::Memory;
pub use settle::Settled;
pub use traffic::Traffic;
pub use trim::Trimmed;

use serde::{Deserialize, Serialize};
use std::path::Path;

/// The word with which the program is told that it is to do a chore.
pub const WORD: &str = "chore";
/// The exit code of a chore that could not be done; the reason is what it wrote as errors. Any other code but 0 is that of an agent
/// which does not know the chore.
pub const FAILED: u8 = 3;
/// Most bytes of a chore's answer, and of its reason.
pub const ANSWER_BYTES_MAX: usize = 16 << 10;
/// The exit code of an agent that does not know the chore: that of all agents for a word they don't know.
const UNKNOWN: u8 = 1;

/// The names of the chores.
pub mod names {
    /// Brings as many CPUs online as its argument says, and takes the others offline; without one it counts them. Answers with
    /// [`Cpus`](super::Cpus).
    pub const CPUS: &str = "cpus";
    /// Brings all memory online. Answers with [`Memory`](super::Memory).
    pub const MEMORY: &str = "memory";
    /// Counts what came in and went out through the guest's cards. Answers with [`Traffic`](super::Traffic).
    pub const TRAFFIC: &str = "traffic";
    /// Tells how the kernel accounts for the memory. Answers with [`Account`](super::Account).
    pub const ACCOUNT: &str = "account";
    /// Writes to the disks what is not there yet, and drops what can be read again. Answers with [`Settled`](super::Settled).
    pub const SETTLE: &str = "settle";
    /// Calls the hooks of [`DOCK_DIR`](super::DOCK_DIR) with its argument, `stop`, `start` or `joined`; with three arguments those of
    /// [`HOOKS_DIR`](super::HOOKS_DIR) with the first two, `freeze` or `thaw` and what for, within so many ms as the third says. Answers
    /// with [`Hooks`](super::Hooks).
    pub const HOOKS: &str = "hooks";
    /// Looks what the disk with the serial number of its argument is used for. Answers with [`DiskUse`](super::DiskUse).
    pub const DISK: &str = "disk";
    /// Makes the machine forget what it has from the one that it was copied from. Answers with [`Forgotten`](super::Forgotten).
    pub const FORGET: &str = "forget";
    /// Tells the machine the names of others, each an argument `NAME=ADDRESS`. Answers with [`Hosts`](super::Hosts).
    pub const HOSTS: &str = "hosts";
    /// Has file systems tell their disks what they do not use. Answers with [`Trimmed`](super::Trimmed).
    pub const TRIM: &str = "trim";
}

/// Something that the guest's kernel has refused to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The kernel's name of it (`cpu3`, `memory40`).
    pub what: String,
    /// The kernel's reason.
    pub why: String,
}

/// Most refusals in an answer: each further one has the same reasons.
const REFUSED_MAX: usize = 32;

/// Does a chore, and returns its line, or the exit code and the reason.
pub fn run(arguments: &[String]) -> Result<String, (u8, String)> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let system = Path::new("/sys/devices/system");
    match words[..] {
        [names::CPUS] => line(cpus::count(system)),
        [names::CPUS, count] => line(cpus::bring(system, count)),
        [names::MEMORY] => line(memory::bring(system)),
        [names::TRAFFIC] => line(traffic::count(Path::new("/sys/class/net"))),
        [names::ACCOUNT] => line(account::read(Path::new("/proc"))),
        [names::SETTLE] => line(settle::settle(Path::new("/proc/sys/vm"))),
        [names::HOOKS, word] => line(hooks::run(Path::new(DOCK_DIR), word, HOOK_LIMIT)),
        [names::HOOKS, word, what, limit_ms] => {
            let (dir, owed) = (Path::new(HOOKS_DIR), Path::new(OWED_PATH));
            line(hooks::around(dir, owed, word, what, limit_ms))
        }
        [names::DISK, serial] => line(disk::look(Path::new("/"), serial)),
        [names::FORGET] => line(forget::this_machine()),
        [names::TRIM] => line(trim::trim(Path::new("/"))),
        [names::HOSTS, ref given @ ..] => line(hosts::write(Path::new("/"), given)),
        _ => Err((
            UNKNOWN,
            format!("chore {:?} is unknown: is the node newer?", words.join(" ")),
        )),
    }
}

fn line<T: Serialize>(answer: Result<T, String>) -> Result<String, (u8, String)> {
    let line = answer.and_then(|answer| serde_json::to_string(&answer).map_err(|e| e.to_string()));
    line.map_err(|why| (FAILED, why))
}

/// Returns the numbers of a directory's entries that are called `prefix` and a number, in order.
fn numbers(dir: &Path, prefix: &str) -> Result<Vec<u32>, String> {
    let entries = std::fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let number = |name: &str| name.strip_prefix(prefix)?.parse().ok();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut numbers: Vec<u32> = names.filter_map(|name| number(&name)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_chore_is_told_apart_from_one_that_failed() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for unknown in ["dishes", "memory 1", "cpus 1 2"] {
            let (code, why) = run(&words(unknown)).unwrap_err();
            assert!(code == UNKNOWN && why.contains("unknown"), "{why}");
        }
        let (code, why) = run(&words("cpus many")).unwrap_err();
        assert!(code == FAILED && why.contains("many"), "{why}");
    }
}
