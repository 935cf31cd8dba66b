//! One cell of a table: a workload in a queue of some length, under a policy, n times.

use floe_sched::cpu::{Balance, Base, Gang, Plain, Policy, Sbco, Threshold, Told, WEIGHT};
use floe_simulator::cpu_sim::world::TICK_NS;
use floe_simulator::cpu_sim::{
    DirectedYield, HolderBoost, LockKind, Outcome, Setup, Workload, World,
};
use floe_simulator::sim::sweep::parallel;
use floe_testbed::harness::Samples;

/// vCPUs of a machine, and cores of the host in the first setting.
pub const VCPUS: usize = 4;
/// What a run that doesn't end is given.
pub const OPEN_S: f64 = 15.0;
/// A run that has an end is not cut before, in virtual seconds: nothing but a convoy of locks takes so long.
const LIMIT_S: f64 = 600.0;

/// Who decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Who {
    /// The kernel.
    Default,
    /// Balanced scheduling.
    Balance,
    /// SBCO with the paper's threshold.
    Sbco,
    /// SBCO with this threshold, in thousandths of the queue.
    Fixed(u32),
    /// SBCO with a threshold that adapts.
    Adaptive,
    /// Co-scheduling led by vCPU 0.
    Procco,
    /// Co-scheduling led by core 0.
    Cpuco,
    /// Our own.
    Told,
    /// KVM's directed yield.
    Yield,
    /// The same with the patches for semantics-aware scheduling.
    Patched,
    /// LAVD's boost, told of each lock.
    Holder,
}

impl Who {
    /// Its name in figures.
    pub fn name(self) -> &'static str {
        match self {
            Who::Default => "default",
            Who::Balance => "balance",
            Who::Sbco => "sbco",
            Who::Fixed(_) => "fixed",
            Who::Adaptive => "adaptive",
            Who::Procco => "procco",
            Who::Cpuco => "cpuco",
            Who::Told => "told",
            Who::Yield => "yield",
            Who::Patched => "patched",
            Who::Holder => "lavd",
        }
    }

    /// Whether it makes anything of what host and guest tell.
    fn listens(self) -> bool {
        matches!(self, Who::Adaptive | Who::Told | Who::Yield | Who::Patched)
    }

    /// Makes the policy.
    pub fn policy(self) -> Box<dyn Policy> {
        match self {
            Who::Default => Box::new(Plain),
            Who::Balance => Box::new(Balance),
            Who::Sbco => Box::new(Sbco::paper()),
            Who::Fixed(thousandths) => Box::new(Sbco::new(Threshold::Fixed(thousandths))),
            Who::Adaptive => Box::new(Sbco::adaptive()),
            Who::Procco => Box::new(Gang::procco()),
            Who::Cpuco => Box::new(Gang::cpuco()),
            Who::Told => Box::new(Told::default()),
            Who::Yield => Box::new(DirectedYield::today()),
            Who::Patched => Box::new(DirectedYield::patched()),
            Who::Holder => Box::new(HolderBoost),
        }
    }
}

/// The host's kernel, how many cores it has, and its guests' locks.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Whether its scheduler is EEVDF; else CFS.
    pub modern: bool,
    /// Its cores.
    pub cores: usize,
    /// How guests take spin locks.
    pub locks: LockKind,
}

/// The paper's.
pub const THEN: Host = Host {
    modern: false,
    cores: VCPUS,
    locks: LockKind::Unfair,
};
/// Linux 6.18.
pub const NOW: Host = Host {
    modern: true,
    ..THEN
};

impl Host {
    /// What a policy is compared with here: the kernel as it was, or as it is, which yields.
    pub fn default(self) -> Who {
        if self.modern {
            Who::Yield
        } else {
            Who::Default
        }
    }

    /// Its scheduler.
    pub fn base(self) -> Base {
        match self.modern {
            true => Base::eevdf(self.cores),
            false => Base::cfs(self.cores),
        }
    }

    /// After how many virtual seconds a run is cut, and counts with that time: as long as its work takes in the slowest convoy of locks. In
    /// that one, of all vCPUs that wait in line only one gets the lock each time the queues have gone round. It computes until it needs it
    /// again, and spins for the rest of its turn.
    pub fn limit_s(self, machines: &[(usize, Workload)]) -> f64 {
        let (vcpus, measured) = machines[0];
        let Some(work_ns) = measured.work_ns(vcpus) else {
            return OPEN_S;
        };
        let all: usize = machines.iter().map(|(vcpus, _)| vcpus).sum();
        let queue = all.div_ceil(self.cores);
        let load = queue as u64 * u64::from(WEIGHT);
        let slice_ns = self.base().slice_ns(queue, WEIGHT, load) as u64;
        let round_s = (queue as u64 * slice_ns.next_multiple_of(TICK_NS)) as f64 / 1e9;
        let locks = measured.locks();
        let computes_ns = 1e9 * locks.count as f64 / locks.per_s;
        (work_ns as f64 / computes_ns * round_s).max(LIMIT_S)
    }

    /// Runs the first workload beside the others, a machine each.
    pub fn run(
        self,
        who: Who,
        machines: Vec<(usize, Workload)>,
        seed: u64,
        note_s: f64,
        limit_s: f64,
    ) -> Outcome {
        let setup = Setup {
            cores: self.cores,
            base: self.base(),
            policy: who.policy(),
            tells: who.listens(),
            locks: self.locks,
            machines,
            seed,
            limit_s,
            note_s,
        };
        World::new(setup).run()
    }
}

/// A workload among disturbers.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// What is measured.
    pub workload: Workload,
    /// How long the queues are: machines, as long as each has as many vCPUs as the host has cores.
    pub queue: usize,
}

/// What came of a cell's runs.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    /// Seconds of a fixed amount of work, or the seconds of a unit of work.
    pub cost: Samples,
    /// Switches of all cores until the end.
    pub switches: Samples,
}

/// Whether a workload has an end.
pub fn ends(workload: Workload) -> bool {
    workload.work_ns(VCPUS).is_some()
}

impl Cell {
    /// Its machines, the one that is measured first.
    pub fn machines(self, host: Host) -> Vec<(usize, Workload)> {
        let disturbers = self.queue * host.cores / VCPUS - 1;
        let mut machines = vec![(VCPUS, self.workload)];
        machines.extend(vec![(VCPUS, Workload::Pi); disturbers]);
        machines
    }

    /// What came of it.
    pub fn runs(self, outcomes: &[Outcome]) -> Runs {
        let mut runs = Runs::default();
        for outcome in outcomes {
            let cost = match ends(self.workload) {
                true => outcome.took_s,
                false => outcome.took_s / outcome.count.max(1) as f64,
            };
            runs.cost.push(cost);
            runs.switches.push(outcome.switches as f64);
        }
        runs
    }
}

/// Runs machines, the first of which is measured, once for each seed, on all cores of this machine.
pub fn outcomes(
    host: Host,
    who: Who,
    machines: &[(usize, Workload)],
    rounds: usize,
) -> Vec<Outcome> {
    let limit_s = host.limit_s(machines);
    parallel(rounds, |seed| {
        host.run(who, machines.to_vec(), seed as u64, 0.0, limit_s)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_simulator::cpu_sim::world::SWITCH_NS;

    /// All vCPUs here compute or spin, and under CFS the queues of the four cores go round in step: once siblings wait in line for a lock
    /// they do so to the end. None of them is forgotten: the convoy goes on, slowly.
    #[test]
    fn a_convoy_goes_on_and_has_the_time_that_it_takes() {
        let host = Host {
            locks: LockKind::Queued,
            ..THEN
        };
        let cell = Cell {
            workload: Workload::Kernbench,
            queue: 4,
        };
        let machines = cell.machines(host);
        // the machine has one core's time: a quarter of four; each turn of 4 ms begins with a switch
        let switching = SWITCH_NS as f64 / 4e6;
        let computes = |seed| {
            let outcome = host.run(Who::Default, machines.clone(), seed, 0.0, 15.0);
            1.0 - outcome.spun_pct[0] / 100.0 - switching
        };
        // by chance all four siblings may have cores at once, and then there is none
        let computes = (0..4).map(computes).fold(1.0, f64::min);
        assert!(computes < 0.1, "no convoy: {computes}");
        // 160 jobs of 120 ms and a link of 500; each of four vCPUs computes for 92.5 us in 16 ms
        let (work_s, each) = (19.7, 92.5e-6 / 16e-3);
        let limit_s = host.limit_s(&machines);
        for takes_s in [work_s / computes, work_s / (4.0 * each)] {
            assert!(takes_s < limit_s, "{takes_s} s of {limit_s}");
        }
    }

    #[test]
    fn what_waits_for_no_lock_has_ten_minutes_and_what_has_no_end_is_cut_soon() {
        for (workload, limit_s) in [(Workload::X264, LIMIT_S), (Workload::Npb, OPEN_S)] {
            let cell = Cell { workload, queue: 4 };
            assert_eq!(THEN.limit_s(&cell.machines(THEN)), limit_s);
        }
    }
}
