//! One cell of a table: a workload in a queue of some length, under a policy, n times.

use floe_sched::cpu::{Balance, Base, Gang, Plain, Policy, Sbco, Threshold, Told};
use floe_simulator::cpu_sim::{
    DirectedYield, HolderBoost, LockKind, Outcome, Setup, Workload, World,
};
use floe_simulator::sim::sweep::parallel;
use floe_testbed::harness::Samples;

/// vCPUs of a machine, and cores of the host in the first setting.
pub const VCPUS: usize = 4;
/// What a run that doesn't end is given.
pub const OPEN_S: f64 = 15.0;
/// Nothing takes this long unless it stands still: a run that is cut here counts with this time.
pub const LIMIT_S: f64 = 600.0;

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
    !matches!(workload, Workload::Jbb(_) | Workload::Npb | Workload::Pi)
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
    let limit_s = if ends(machines[0].1) { LIMIT_S } else { OPEN_S };
    parallel(rounds, |seed| {
        host.run(who, machines.to_vec(), seed as u64, 0.0, limit_s)
    })
}
