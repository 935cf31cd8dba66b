//! What must hold of floe's scheduler, in a kernel that takes it: facts are printed, and the lab's test `scx` says what they must be.

use crate::{
    Answer, Host4, Machine, Machines, holder, in_force, kill, max, sbco, switches, use_up,
};
use floe_scx::btf::Btf;
use floe_scx::sys::{self, Map, Shape};
use floe_scx::{Ledger, Scheduler};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use std::{fs, thread};

/// vCPUs of a machine that has far more of them than there are cores.
const MANY: u64 = 200;
/// How long what must come is waited for at most, in seconds.
const PATIENCE_S: u64 = 60;
/// Machines live longer than that, in seconds.
const LIFE_S: f64 = 300.0;

/// Waits until something is so, or patience is at its end.
fn until(mut is_so: impl FnMut() -> Answer<bool>) -> Answer<()> {
    let begin = Instant::now();
    while !is_so()? && begin.elapsed().as_secs() < PATIENCE_S {
        thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

/// Which part of the time of two equal groups the first gets, with this `cpu.max`.
fn share(scheduler: &Scheduler, max: &str) -> Answer<f64> {
    let used = use_up(scheduler, 3.0, max, 4)?;
    Ok(used.quota_us as f64 / (used.quota_us + used.beside_us).max(1) as f64)
}

/// How many vCPUs of a machine that has many are given a core and made to leave it, again and again.
fn many(scheduler: &mut Scheduler) -> Answer<usize> {
    let mut machine = Machine::start("compute", MANY, LIFE_S)?;
    let tids = machine.vcpus()?;
    let vcpus: BTreeMap<u32, u32> = tids.iter().map(|tid| (*tid, 0)).collect();
    scheduler.set_vcpus(&vcpus)?;
    let left = |tid: &u32| switches(*tid, "nonvoluntary");
    let before: Vec<u64> = tids.iter().map(left).collect();
    machine.go()?;
    let mut served = 0;
    until(|| {
        let each = tids.iter().zip(&before);
        let served_again = each.filter(|&(tid, before)| left(tid) >= before + 2);
        served = served_again.count();
        Ok(served == tids.len())
    })?;
    in_force(scheduler)?;
    machine.child.kill()?;
    machine.child.wait()?;
    Ok(served)
}

/// What was lent and neither used nor given back yet, in nanoseconds.
fn owed(ledger: &Ledger) -> u64 {
    let settled = ledger.borrowed_ns + ledger.returned_ns + ledger.written_off_ns;
    ledger.lent_ns.saturating_sub(settled)
}

/// Ends machines at a moment at which one of their vCPUs owes another. Returns what it owed, in nanoseconds.
fn owing(scheduler: &mut Scheduler, threads: u64) -> Answer<u64> {
    let mut machines = Machines::start("lock", threads, LIFE_S)?;
    scheduler.set_vcpus(&machines.vcpus())?;
    machines.go()?;
    let mut owes = 0;
    until(|| {
        owes = owed(&scheduler.ledger()?);
        Ok(owes > 0)
    })?;
    for machine in &mut machines.all {
        machine.child.kill()?;
    }
    for machine in &mut machines.all {
        machine.child.wait()?;
    }
    // the kernel may tell the scheduler of a thread's end a moment after the process's
    until(|| Ok(owed(&scheduler.ledger()?) == 0))?;
    in_force(scheduler)?;
    Ok(owes)
}

/// Puts another scheduler in force, one that has no functions of its own, until what is returned is dropped.
fn other() -> Answer<(OwnedFd, Map)> {
    const NAME: &[u8] = b"other";
    let types = Btf::parse(fs::read("/sys/kernel/btf/vmlinux")?)?;
    let holder = types.structure("bpf_struct_ops_sched_ext_ops");
    let holder = holder.ok_or("no sched_ext")?;
    let ops = types.structure("sched_ext_ops").ok_or("no sched_ext")?;
    let data = types.field(holder, "data").ok_or("no functions")?;
    let name = types.field(ops, "name").ok_or("no name")?;
    let size = types.size(holder).ok_or("no size")?;
    let mut value = vec![0; size as usize];
    let at = (data.offset + name.offset) as usize;
    value[at..at + NAME.len()].copy_from_slice(NAME);
    // a structure of functions that ends with its loader
    let map = Map::new(&Shape {
        kind: 26,
        key: 4,
        value: size,
        entries: 1,
        flags: 1 << 13,
        of_kernel: holder,
    })?;
    map.set(&[0; 4], &value)?;
    Ok((sys::attach(&map)?, map))
}

/// What is said if another scheduler is in force already.
fn refused(object: &str) -> Answer<String> {
    let _other = other()?;
    match sbco(object) {
        Ok(_) => Err("the kernel has two schedulers".into()),
        Err(error) => Ok(error.to_string()),
    }
}

/// How many tasks are in the hands of a loaded scheduler, and not of the kernel's own.
fn tasks_of_loaded() -> Answer<usize> {
    let mut count = 0;
    for entry in fs::read_dir("/proc")? {
        // what is no process, or has ended meanwhile, has no tasks
        let Ok(tasks) = fs::read_dir(entry?.path().join("task")) else {
            continue;
        };
        for task in tasks.flatten() {
            let text = fs::read_to_string(task.path().join("sched")).unwrap_or_default();
            let mut lines = text.lines().filter(|line| line.starts_with("ext.enabled"));
            count += usize::from(lines.any(|line| line.ends_with('1')));
        }
    }
    Ok(count)
}

/// What must hold: who was refused, what [`attempt`] prints, and who has the tasks before and after the loader is killed.
pub(crate) fn check(object: &str) -> Answer<()> {
    println!("@refused {}", refused(object)?);
    let child = holder("try", object)?;
    let held = tasks_of_loaded()?;
    println!("@exit {:.1}", kill(child)?);
    println!("@tasks {held} {}", tasks_of_loaded()?);
    Ok(())
}

/// All that one scheduler in force is put through. It is loaded once: each time the kernel changes its own code while all cores run it, which it does
/// not always survive under the emulation of a QEMU older than 8.1.
pub(crate) fn attempt(object: &str) -> Answer<Scheduler> {
    let mut scheduler = sbco(object)?;
    println!("@loaded");
    let threads = thread::available_parallelism()?.get() as u64;
    let seconds = 3.0;
    let host = Host4 { threads, seconds };
    host.run(0, "sbco", "lock", Some(&mut scheduler))?;
    println!("@many {}", many(&mut scheduler)?);
    let owes = owing(&mut scheduler, threads)?;
    let ledger = scheduler.ledger()?;
    println!("@owing {owes} {}", owed(&ledger));
    println!("# {ledger:?}");
    // the last, since from the first quota on all groups are looked at
    let (without, with) = (share(&scheduler, "max")?, share(&scheduler, &max())?);
    println!("@shares {without:.3} {with:.3}");
    Ok(scheduler)
}
