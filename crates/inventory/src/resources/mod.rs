//! What machines use of this host: memory, virtual CPUs, the network. Everything that starts a QEMU reserves first.
//!
//! ```text
//! run, start, fork, standby -> reserve -> QEMU runs: commit -> it has ended: release
//! a node that adopts        -> commit
//! ```
//! **How memory is counted.** A machine is promised what it is expected to use, which depends on how it was started:
//!
//! - Started cold, it has its RAM for itself, and its guest may touch all of it: the whole RAM, and [`STANDBY_BYTES`] for
//!   QEMU.
//! - Restored or cloned, it maps the RAM of its image or parent privately from a file that all share. It needs memory of its
//!   own only for what it writes, which nobody knows beforehand: [`STANDBY_BYTES`] and the `WRITTEN_PART` of its RAM. If it
//!   writes more, less memory is free, and that is checked as well.
//!
//! A reservation must fit twice: into the host's memory together with all other promises, and into what is free right now
//! less what was promised but is not used yet. A machine whose RAM alone is more than the host has is refused, too.
//! `--overcommit` overrides all of this. `ledger` decides, [`host`] reads the host's figures.
//!
//! What the pool's substrates take is promised to the pool, as it is taken. They have a backup on the disk, so they leave memory when
//! a machine needs it ([`Yields`]), before one is refused.
//!
//! `limits` enforces the most that the machines of a household may use, by its control group; [`household`] says how that is shared
//! with other hosts.
//!
//! Two limits of the host are looked at as well, before a QEMU would end at them: how many descriptors the node may have, and what a
//! kernel that lends no memory (vm.overcommit_memory=2) still hands out.
//!
//! Locks: `machines`, then the ledger's own. Neither is held while a QEMU is started or ended, or the pool is asked to give way. That of
//! the households is held alone, while control groups are made, limited and removed.

pub mod host;
pub mod household;
mod ledger;
mod limits;
mod refusal;
mod trim;

use crate::inventory::{given::Given, record::Record};
use floe_api::{Room, Size, paths::Home, size_text};
use floe_ground::{
    error::NodeError,
    names::MachineName,
    options::{BLANK_BYTES, STANDBY_BYTES},
};
use floe_image::MachineConfig;
use floe_machine::{MEMORY_BYTES_DEFAULT, accel::Accel};
use ledger::{
    Amount, Ask, Capacity, Claim, Committed, Ledger, Reserved, Resource, Shortage, Sight,
};
use limits::Groups;
pub use limits::control_groups;
use parking_lot::Mutex;
pub(crate) use refusal::{COMMIT_FIX, DESCRIPTORS_FIX};
use refusal::{explain, refusal};
use std::{
    collections::HashMap,
    sync::{OnceLock, Weak},
};

/// Divisor of the RAM of a restored or cloned machine: one eighth is promised for what it writes. A clone of a guest with 256
/// MiB was measured at 70 MB, QEMU's own included.
const WRITTEN_PART: u64 = 8;
/// Memory of the host that machines must leave free, in bytes.
const HOST_RESERVE_BYTES: u64 = 128 << 20;

/// What a QEMU takes beside its guest's memory where the kernel lends none, in bytes: its data, and stacks of 8 MiB. One of 7.2 with
/// 16 vCPUs to come has 77 MiB.
const COMMIT_OWN_BYTES: u64 = 96 << 20;
/// How much more an emulating QEMU takes if the size of its cache of translated code is left to it, in MiB.
const EMULATOR_CACHE_MIB_MAX: u32 = 1024;

/// This host's resources and which machines have them.
pub struct Resources {
    ledger: Ledger,
    /// The machines' claims by name. A machine is in here from before its QEMU is started until after that has ended.
    machines: Mutex<HashMap<String, Holding>>,
    /// The machines' control groups.
    groups: Groups,
    /// What the pool has.
    pool: Claim<Committed>,
    /// Who gives memory back when a machine needs it. Registered once, and forgotten when that service is gone.
    yields: OnceLock<Weak<dyn Yields>>,
}

/// Who gives memory back when a machine needs it.
pub trait Yields: Send + Sync {
    /// Gives back `bytes`, or what there is. Returns how many bytes that were.
    fn give_way(&self, bytes: u64) -> u64;
}

/// Room for what the pool takes in.
pub struct ForPool {
    _claim: Claim<Reserved>,
    /// How many bytes it is.
    pub bytes: u64,
}

enum Holding {
    Reserved(Claim<Reserved>),
    Committed(Claim<Committed>, u32),
}

/// Memory and virtual CPUs of a QEMU that is started ahead.
pub struct Ahead(#[allow(dead_code, reason = "given back when dropped")] Claim<Reserved>);

/// What a running machine is about to be given.
pub struct More(#[allow(dead_code, reason = "given back when dropped")] Claim<Reserved>);

/// Room for the clones of one fork on this host.
#[derive(Default)]
pub struct ForClones(Mutex<Vec<Claim<Reserved>>>);

/// Room for one clone.
pub struct ForClone(Claim<Reserved>);

impl ForClones {
    /// Returns whether there is room for none.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Returns for how many clones there is room.
    pub fn len(&self) -> u32 {
        self.0.lock().len() as u32
    }

    /// Takes the room for one clone out of it.
    pub fn one(&self) -> Option<ForClone> {
        self.0.lock().pop().map(ForClone)
    }
}

/// Where a machine's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    /// All of it is the machine's own.
    Own,
    /// It maps a file that other machines map, too.
    Shared,
}

/// Returns what a machine that is as its record says needs. `added_bytes` of its memory were added while it ran, and are its own.
fn ask_of_record(
    record: &Record,
    memory: Memory,
    added_bytes: u64,
    network_bytes_per_s: u64,
) -> Ask {
    let mut ask = ask_of(&record.config, memory, network_bytes_per_s, true);
    let given = record.given.of(&record.config);
    let own = match memory {
        Memory::Own => given.memory_bytes,
        Memory::Shared => {
            let shared = given.memory_bytes.saturating_sub(added_bytes) / WRITTEN_PART;
            shared.saturating_add(given.memory_bytes.min(added_bytes))
        }
    };
    ask.amount.memory_bytes = own.saturating_add(STANDBY_BYTES);
    ask.amount.vcpus = given.cpus;
    ask
}

/// Returns what a machine needs that has all of its hardware.
fn ask_of(
    config: &MachineConfig,
    memory: Memory,
    network_bytes_per_s: u64,
    overcommit: bool,
) -> Ask {
    let ram = config.memory_bytes_now().unwrap_or(MEMORY_BYTES_DEFAULT);
    let own = match memory {
        Memory::Own => ram,
        Memory::Shared => ram / WRITTEN_PART,
    };
    Ask {
        amount: Amount {
            vcpus: config.cpus_now().unwrap_or(1),
            memory_bytes: own.saturating_add(STANDBY_BYTES),
            network_bytes_per_s,
            descriptors: host::descriptors_of(config.disks.len()),
        },
        peak_bytes: ram.saturating_add(STANDBY_BYTES),
        overcommit,
    }
}

/// Returns the same for a machine whose state is loaded: what its guest had given back when that was saved is in its balloon then.
fn ask_of_state(config: &MachineConfig, network_bytes_per_s: u64, overcommit: bool) -> Ask {
    let ask = ask_of(config, Memory::Shared, network_bytes_per_s, overcommit);
    let given = Given::in_labels(config).of(config).memory_bytes;
    if given == 0 {
        return ask; // its size is not said
    }
    Ask {
        peak_bytes: ask.peak_bytes.min(given.saturating_add(STANDBY_BYTES)),
        ..ask
    }
}

fn memory_of(record: &Record) -> Memory {
    match record.restored {
        true => Memory::Shared,
        false => Memory::Own,
    }
}

impl Resources {
    /// Opens the resources of this host. Machines together get at most `memory_max_bytes`, if that is given. An emulating QEMU's cache
    /// has `emulator_cache_mib`; 0 leaves that to QEMU.
    pub fn of_this_host(
        home: &Home,
        memory_max_bytes: Option<u64>,
        emulator_cache_mib: u32,
    ) -> Resources {
        let cache_mib = match (floe_machine::accel::detect(), emulator_cache_mib) {
            (Accel::Kvm, _) => 0,
            (Accel::Tcg { .. }, 0) => EMULATOR_CACHE_MIB_MAX,
            (Accel::Tcg { .. }, mib) => mib,
        };
        let host = host::memory().map(|memory| memory.total_bytes);
        let host = host.map(|all| all.saturating_sub(HOST_RESERVE_BYTES));
        let ledger = Ledger::new(Capacity {
            vcpus: None,
            memory_bytes: host.into_iter().chain(memory_max_bytes).min(),
            network_bytes_per_s: None,
            commit_each_bytes: COMMIT_OWN_BYTES + (u64::from(cache_mib) << 20),
        });
        let (pool, _) = ledger.reserve_what_is_free(POOL, 0, Sight::default);
        Resources {
            pool: pool.commit(),
            ledger,
            machines: Mutex::default(),
            groups: Groups::open(home),
            yields: OnceLock::new(),
        }
    }

    /// Registers who gives memory back when a machine needs it.
    pub fn ask_for_memory(&self, yields: Weak<dyn Yields>) {
        let first = self.yields.set(yields);
        debug_assert!(first.is_ok(), "there is one pool");
    }

    /// Reserves as much of `want_bytes` for what the pool takes in as is free. Once it has that, [`Resources::pool_has`] counts it.
    pub fn for_pool(&self, want_bytes: u64) -> ForPool {
        let (claim, bytes) = self
            .ledger
            .reserve_what_is_free(POOL, want_bytes, self.sight());
        ForPool {
            _claim: claim,
            bytes,
        }
    }

    /// Notes how many bytes the pool takes.
    pub fn pool_has(&self, bytes: u64) {
        let amount = Amount {
            memory_bytes: bytes,
            ..Default::default()
        };
        // all of it gives way to a machine
        let ask = Ask {
            amount,
            ..Default::default()
        };
        self.pool.becomes(&ask);
    }

    /// Returns how many bytes more are free for the pool; `None` if that is not limited.
    pub fn free_for_pool(&self) -> Option<u64> {
        self.ledger.free_memory_bytes(self.sight())
    }

    /// Has the pool give back what `count` machines lack. Returns whether it gave anything.
    fn pool_gives_way(&self, short: &Shortage, count: u32) -> bool {
        let yields = self.yields.get().and_then(Weak::upgrade);
        let (Some(yields), Some(bytes)) = (yields, short.lacking_bytes(count)) else {
            return false;
        };
        let gave = yields.give_way(bytes) > 0;
        if gave && short.of == Resource::FreeMemory {
            trim::to_host();
        }
        gave
    }

    /// Reserves memory for a machine. While there is too little, `give_way` ends something that can be started again, then substrates leave
    /// the pool. With overcommit nothing is ended, since the memory is granted anyway, but substrates leave all the same.
    fn reserve_yielding(
        &self,
        holder: &str,
        ask: &Ask,
        mut give_way: impl FnMut() -> bool,
    ) -> Result<Claim<Reserved>, NodeError> {
        let modest = match ask.overcommit {
            true => Ask {
                peak_bytes: 0,
                overcommit: false,
                ..*ask
            },
            false => *ask,
        };
        loop {
            let short = match self.ledger.reserve(holder, &modest, self.sight()) {
                Ok(claim) => return Ok(claim),
                Err(short) => short,
            };
            let may_help = short.of != Resource::WholeMemory && !ask.overcommit;
            if (may_help && give_way()) || self.pool_gives_way(&short, 1) {
                continue;
            }
            let reserved = self.ledger.reserve(holder, ask, self.sight());
            return reserved.map_err(|short| refusal(&short));
        }
    }

    /// Reserves what a machine needs to be started. While there is too little, `give_way` is called to end something that can
    /// be started again; it returns whether it did.
    pub fn reserve(
        &self,
        record: &Record,
        network_bytes_per_s: u64,
        overcommit: bool,
        give_way: impl FnMut() -> bool,
    ) -> Result<(), NodeError> {
        let config = &record.config;
        let ask = match memory_of(record) {
            Memory::Own => ask_of(config, Memory::Own, network_bytes_per_s, overcommit),
            Memory::Shared => ask_of_state(config, network_bytes_per_s, overcommit),
        };
        let claim = self.reserve_yielding(&record.name, &ask, give_way)?;
        self.enter(&record.name, Holding::Reserved(claim));
        Ok(())
    }

    /// Counts a machine that an earlier node left running, even if there is too little.
    pub fn found(&self, record: &Record, network_bytes_per_s: u64) {
        let ask = ask_of_record(record, memory_of(record), 0, network_bytes_per_s);
        if let Ok(claim) = self.ledger.reserve(&record.name, &ask, Sight::default) {
            self.enter(&record.name, Holding::Reserved(claim));
        }
    }

    /// Notes that a machine's QEMU runs.
    pub fn started(&self, record: &Record, pid: u32) {
        self.limit_again(record);
        if !self.machines.lock().contains_key(&record.name) {
            self.found(record, 0);
        }
        let mut machines = self.machines.lock();
        let claim = match machines.remove(&record.name) {
            Some(Holding::Reserved(claim)) => claim.commit(),
            Some(Holding::Committed(claim, _)) => claim,
            None => return,
        };
        machines.insert(record.name.clone(), Holding::Committed(claim, pid));
    }

    /// Reserves what a running machine is to be given beside what it has. Once it has that, [`Resources::resized`] counts it.
    pub fn reserve_more(
        &self,
        record: &Record,
        has: Size,
        largest: Size,
        overcommit: bool,
        give_way: impl FnMut() -> bool,
    ) -> Result<More, NodeError> {
        let there = record.config.memory_bytes_now().unwrap_or_default();
        let back = largest
            .memory_bytes
            .min(there)
            .saturating_sub(has.memory_bytes);
        let back = match memory_of(record) {
            Memory::Own => back,
            Memory::Shared => back / WRITTEN_PART,
        };
        let new = largest.memory_bytes.saturating_sub(there);
        let ask = Ask {
            amount: Amount {
                vcpus: largest.cpus.saturating_sub(has.cpus),
                memory_bytes: back.saturating_add(new),
                ..Default::default()
            },
            peak_bytes: largest
                .memory_bytes
                .max(there)
                .saturating_add(STANDBY_BYTES),
            overcommit,
        };
        let claim = self.reserve_yielding(&record.name, &ask, give_way)?;
        Ok(More(claim))
    }

    /// Counts a running machine anew, which has another size. `added_bytes` of its memory were added while it ran.
    pub fn resized(&self, record: &Record, added_bytes: u64, network_bytes_per_s: u64) {
        self.bound_again(record);
        let ask = ask_of_record(record, memory_of(record), added_bytes, network_bytes_per_s);
        if let Some(Holding::Committed(claim, _)) = self.machines.lock().get(&record.name) {
            claim.becomes(&ask);
        }
    }

    /// Notes that a running machine is started anew from its disks, so that its memory is its own from now on.
    pub fn starts_cold(&self, record: &Record) {
        let mut machines = self.machines.lock();
        if let Some(Holding::Committed(_, pid)) = machines.get(&record.name) {
            let pid = *pid;
            let ask = ask_of(&record.config, Memory::Own, 0, true);
            if let Ok(claim) = self.ledger.reserve(&record.name, &ask, Sight::default) {
                machines.insert(record.name.clone(), Holding::Committed(claim.commit(), pid));
            }
        }
    }

    /// Notes that a machine has another name.
    pub fn renamed(&self, from: &str, to: &str) {
        let mut machines = self.machines.lock();
        if let Some(holding) = machines.remove(from) {
            machines.insert(to.to_owned(), holding);
        }
    }

    /// Notes that a machine's QEMU has ended or was never started.
    pub fn ended(&self, record: &Record) {
        self.remove_group(record.household_id(), &record.mount_name);
        match self.machines.lock().remove(&record.name) {
            Some(Holding::Committed(claim, _)) => claim.release(),
            Some(Holding::Reserved(claim)) => drop(claim),
            None => {}
        }
    }

    /// Reserves what a QEMU needs that waits for a run, or rehearses one.
    pub fn ahead(&self, config: &MachineConfig) -> Result<Ahead, NodeError> {
        let mut ask = ask_of(config, Memory::Shared, 0, false);
        // its peak is checked when a machine is started with it
        ask.peak_bytes = ask.amount.memory_bytes;
        let claim = self.ledger.reserve(AHEAD, &ask, self.sight());
        claim.map(Ahead).map_err(|short| refusal(&short))
    }

    /// Reserves what a QEMU needs that waits and is bound to no image yet.
    pub fn ahead_of_image(&self) -> Result<Ahead, NodeError> {
        let ask = Ask {
            amount: Amount {
                memory_bytes: BLANK_BYTES,
                ..Default::default()
            },
            peak_bytes: BLANK_BYTES,
            overcommit: false,
        };
        let claim = self.ledger.reserve(AHEAD, &ask, self.sight());
        claim.map(Ahead).map_err(|short| refusal(&short))
    }

    /// Reserves room for `count` clones of a machine or image, or for as many as possible; then also returns why not for
    /// more.
    pub fn for_clones(
        &self,
        parent: &str,
        config: &MachineConfig,
        count: u32,
        overcommit: bool,
    ) -> (ForClones, Option<String>) {
        let modest = ask_of_state(config, 0, false);
        let holder = format!("a fork of {parent}");
        let reserve =
            |count, ask: &Ask| self.ledger.reserve_up_to(count, &holder, ask, self.sight());
        let (mut claims, mut short) = reserve(count, &modest);
        while let Some(lacking) = &short {
            let rest = count - claims.len() as u32;
            let gave = self.pool_gives_way(lacking, rest);
            if !gave && !overcommit {
                break;
            }
            let ask = Ask {
                overcommit: !gave,
                ..modest
            };
            let more = reserve(rest, &ask);
            claims.extend(more.0);
            short = more.1;
        }
        let why = short.map(|short| explain(&short));
        (ForClones(Mutex::new(claims)), why)
    }

    /// Gives a clone the room that was reserved for it.
    pub fn give(&self, name: &MachineName, room: ForClone) {
        room.0.hand_to(name.as_str());
        self.enter(name.as_str(), Holding::Reserved(room.0));
    }

    /// Returns this host's room for clones of other nodes' machines: memory that no machine here could ever use, and free
    /// CPUs. As the clones' size is not known yet, the number of clones counts only what QEMU itself takes.
    pub fn room(&self) -> Result<Room, String> {
        let (free, clones) = self.clones_of(STANDBY_BYTES)?;
        let all = self.ledger.capacity().memory_bytes.unwrap_or(u64::MAX);
        let whole = all.saturating_sub(self.ledger.peak_bytes());
        Ok(Room {
            clones,
            free_cpus: host::cores().saturating_sub(self.ledger.promised().vcpus),
            free_memory_bytes: whole.min(free),
        })
    }

    /// Returns for how many clones of such a machine there is room now.
    pub fn room_for_clones(&self, config: &MachineConfig) -> Result<u32, String> {
        let ask = ask_of(config, Memory::Shared, 0, false);
        Ok(self.clones_of(ask.amount.memory_bytes)?.1)
    }

    /// Returns how much memory is free, in bytes, and how many clones of that size fit into it.
    fn clones_of(&self, each_bytes: u64) -> Result<(u64, u32), String> {
        let free = self.ledger.free_memory_bytes(self.sight());
        // the pool gives way to clones
        let free = free.unwrap_or_default();
        let free = free.saturating_add(self.ledger.bytes_of(&self.pool));
        let descriptors = host::descriptors_free().unwrap_or(u64::MAX);
        let files = descriptors / host::descriptors_of(1);
        match files.min(free / each_bytes) {
            0 if files == 0 => Err(format!(
                "the node has too few open files left for one more machine, {descriptors}; {DESCRIPTORS_FIX}"
            )),
            0 => Err(format!(
                "{} of memory are free, a clone takes {} and what it writes",
                size_text(free),
                size_text(each_bytes)
            )),
            clones => Ok((free, u32::try_from(clones).unwrap_or(u32::MAX))),
        }
    }

    /// Returns how many bytes of pages a capture may keep in memory; `None` if unknown.
    pub fn capture_bytes_max(&self) -> Option<u64> {
        let free = host::memory()?.available_bytes;
        Some(free.saturating_sub(HOST_RESERVE_BYTES))
    }

    /// Returns in words how much is promised.
    pub fn summary(&self) -> String {
        let promised = self.ledger.promised();
        let all = self.ledger.capacity().memory_bytes;
        let of = all.map_or_else(String::new, |all| format!(" of {}", size_text(all)));
        let network = match promised.network_bytes_per_s {
            0 => String::new(),
            rate => format!(", up to {} a second of the host's network", size_text(rate)),
        };
        format!(
            "machines and the pool were promised {}{of} memory and {} CPUs on {} cores{network}",
            size_text(promised.memory_bytes),
            promised.vcpus,
            host::cores()
        )
    }

    fn enter(&self, name: &str, holding: Holding) {
        // an earlier claim of this name is dropped only now, so that two starts at once are both counted
        let earlier = self.machines.lock().insert(name.to_owned(), holding);
        drop(earlier);
    }

    /// Returns a function that reads the host's free memory. What machines use is read at once: a machine that starts
    /// meanwhile counts as using none.
    fn sight(&self) -> impl FnOnce() -> Sight + use<> {
        let machines = self.machines.lock();
        let running: Vec<(u64, u32)> = machines
            .values()
            .filter_map(|holding| match holding {
                Holding::Committed(claim, pid) => Some((claim.id(), *pid)),
                Holding::Reserved(_) => None,
            })
            .collect();
        drop(machines);
        let pool = (self.pool.id(), self.ledger.bytes_of(&self.pool));
        let used = running
            .into_iter()
            .filter_map(|(id, pid)| Some((id, host::used_bytes(pid)?)));
        let used_bytes = used.chain([pool]).collect();
        move || Sight {
            free_bytes: host::memory()
                .map(|memory| memory.available_bytes.saturating_sub(HOST_RESERVE_BYTES)),
            used_bytes,
            free_descriptors: host::descriptors_free(),
            commit_bytes: host::commit_bytes(),
        }
    }
}

/// Name of the pool in errors.
const POOL: &str = "the pool's substrates";
/// Name of the waiting QEMUs in errors.
const AHEAD: &str = "QEMUs that wait for a run";

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a state directory that doesn't exist, so that no control groups are made for it.
    fn nowhere() -> Home {
        Home::at("/nowhere")
    }

    fn config(memory_bytes: u64) -> MachineConfig {
        MachineConfig {
            cpus: Some(2),
            memory_bytes: Some(memory_bytes),
            ..Default::default()
        }
    }

    #[test]
    fn a_clone_is_counted_with_what_it_may_write_and_never_by_more_than_the_host() {
        let own = ask_of(&config(1 << 30), Memory::Own, 0, false);
        let clone = ask_of(&config(1 << 30), Memory::Shared, 0, false);
        assert_eq!(own.amount.memory_bytes, (1 << 30) + STANDBY_BYTES);
        assert_eq!(clone.amount.memory_bytes, (128 << 20) + STANDBY_BYTES);
        assert_eq!(clone.peak_bytes, own.peak_bytes);
    }

    #[test]
    fn two_forks_at_the_same_time_never_get_the_same_memory() {
        let one = STANDBY_BYTES + (32 << 20);
        let resources = Resources::of_this_host(&nowhere(), Some(10 * one), 0);
        let small = config(256 << 20);
        std::thread::scope(|scope| {
            let fork = |name: &'static str| {
                let (resources, small) = (&resources, &small);
                scope.spawn(move || resources.for_clones(name, small, 6, false))
            };
            let forks = [fork("web"), fork("db")].map(|fork| fork.join().unwrap());
            let granted: Vec<u32> = forks.iter().map(|(claims, _)| claims.len()).collect();
            assert_eq!(granted.iter().sum::<u32>(), 10, "{granted:?}");
            let whys: Vec<&String> = forks.iter().filter_map(|(_, why)| why.as_ref()).collect();
            assert_eq!(whys.len(), 1);
            assert!(whys[0].contains("; promised to a fork of "), "{whys:?}");
        });
        let all = resources.for_clones("web", &small, 10, false);
        assert_eq!((all.0.len(), all.1), (10, None));
    }

    #[test]
    fn a_run_gets_the_memory_of_qemus_that_wait() {
        let resources = Resources::of_this_host(&nowhere(), Some(1 << 30), 0);
        let mut waiting: Vec<Ahead> = (0..3)
            .map(|_| resources.ahead(&config(256 << 20)).unwrap())
            .collect();
        let mut record = crate::inventory::sample_record();
        record.config = config(768 << 20);
        record.restored = false;
        let refused = resources.reserve(&record, 0, false, || false).unwrap_err();
        let refused = refused.to_api();
        assert!(refused.message.contains(AHEAD), "{refused}");
        assert!(refused.fix.contains("--overcommit"), "{refused}");
        resources
            .reserve(&record, 0, false, || waiting.pop().is_some())
            .unwrap();
        assert_eq!(waiting.len(), 2, "as many as are needed give way");
        resources.ended(&record);
        record.config = config(100 << 30);
        let refused = resources.reserve(&record, 0, false, || panic!("it would not help"));
        let refused = refused.unwrap_err().to_api();
        assert!(refused.message.contains("1.0 GiB in all"), "{refused}");
        resources.reserve(&record, 0, true, || false).unwrap();
    }
}
