//! What runs in the simulated guests. The numbers are explained in `docs/cpu-scheduling.md`, which says of each whether it was changed after
//! the first runs.

use super::random::Random;

/// Nanoseconds of a microsecond and of a millisecond.
pub const US: u64 = 1_000;
/// See [`US`].
pub const MS: u64 = 1_000_000;

/// What a thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// It computes for so many nanoseconds, taking spin locks in between.
    Compute(u64),
    /// It waits until all members of a barrier are there.
    Barrier(usize),
    /// It puts something into a queue, and blocks while that is full.
    Put(usize),
    /// It takes something from a queue, and blocks while that is empty.
    Take(usize),
    /// It takes the lock of its process's memory beside others that read, and blocks while somebody writes or is to.
    Read,
    /// It takes that lock alone, and blocks while anybody has it.
    Write,
    /// It releases that lock.
    Release,
    /// It has all other processors of its guest forget a mapping, and spins until they have.
    Flush,
    /// It waits for a device, for so many nanoseconds.
    Sleep(u64),
    /// A unit of work is done.
    Count,
    /// It ends.
    End,
}

/// Spin locks of a guest: taken so often in a second of computing, held for so long, one of `count`.
#[derive(Clone, Copy, Debug)]
pub struct Locks {
    /// Acquisitions in a second of processor time.
    pub per_s: f64,
    /// For how long one is held.
    pub hold_ns: f64,
    /// How many different locks there are, each as likely as any other.
    pub count: usize,
}

impl Locks {
    /// The part of its processor time for which a thread holds one.
    pub fn held(&self) -> f64 {
        self.per_s * self.hold_ns / 1e9
    }
}

/// A barrier: how many take part, and for how long they spin before they block.
#[derive(Clone, Copy, Debug)]
pub struct Barrier {
    /// Threads that have to come.
    pub members: usize,
    /// For how long one spins; `u64::MAX` if it never blocks.
    pub spin_ns: u64,
}

/// A program, or several of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// `make -j16` of a kernel, everything in memory: 16 jobs at a time, many locks of the guest's kernel.
    Kernbench,
    /// Parsec's dedup: a pipeline that blocks, and whose memory comes and goes: page faults, and flushes of translations.
    Dedup,
    /// Parsec's streamcluster: barriers, very often.
    Streamcluster,
    /// Parsec's x264: each frame follows its predecessor row by row.
    X264,
    /// Parsec's facesim: four tasks at a time, then a serial part.
    Facesim,
    /// Parsec's ferret: a pipeline of six stages.
    Ferret,
    /// SPECjbb2005 with so many warehouses.
    Jbb(usize),
    /// SuperPI on each processor: the disturber.
    Pi,
    /// NPB with busy waiting (`OMP_WAIT_POLICY=active`).
    Npb,
}

/// Those of Parsec and kernbench, which end.
pub const FINITE: [Workload; 6] = [
    Workload::Kernbench,
    Workload::Dedup,
    Workload::Streamcluster,
    Workload::X264,
    Workload::Facesim,
    Workload::Ferret,
];

const KERNBENCH_JOBS: u64 = 160;
const KERNBENCH_JOB_NS: u64 = 120 * MS;
const KERNBENCH_LINK_NS: u64 = 500 * MS;
const DEDUP_ITEMS: u64 = 4000;
const FERRET_ITEMS: u64 = 700;
const STREAM_PHASES: u64 = 20_000;
const STREAM_PHASE_NS: u64 = 120 * US;
const X264_THREADS: usize = 6;
const X264_FRAMES: u64 = 480;
const X264_ROWS: u64 = 16;
const X264_ROW_NS: u64 = 500 * US;
const FACESIM_PHASES: u64 = 400;
const FACESIM_TASK_NS: u64 = 5 * MS;
const FACESIM_SERIAL_NS: u64 = MS;
/// Batches of transactions of all warehouses between two collections of garbage, and phases of one: JRockit's collectors mark and sweep.
const JBB_BATCHES: u64 = 150;
const JBB_GC_PHASES: u64 = 2;
/// What each collector does in one.
const JBB_GC_PHASE_NS: u64 = 2500 * US;
/// How much a queue of a pipeline holds.
const QUEUE_MAX: usize = 20;
/// Parsec's own barriers spin for 35,000 rounds before they block, by its source "no more than 0.1 ms".
const BARRIER_SPIN_NS: u64 = 100 * US;

/// Threads of each stage and nanoseconds of an item in it.
type Stage = (usize, u64);
const DEDUP: [Stage; 5] = [
    (1, 100 * US),
    (4, 500 * US),
    (4, 300 * US),
    (4, 1200 * US),
    (1, 100 * US),
];
/// Which stage of dedup gives memory back, and how long that takes without the flush.
const DEDUP_FREES: usize = 3;
const UNMAP_NS: u64 = 20 * US;
/// One part in so many of an item's time goes into page faults.
const FAULTS: u64 = 8;
const FERRET: [Stage; 6] = [
    (1, 300 * US),
    (4, 2 * MS),
    (4, MS),
    (4, 3 * MS),
    (4, 5 * MS),
    (1, 200 * US),
];

impl Workload {
    /// Its name in figures.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Kernbench => "kernbench",
            Workload::Dedup => "dedup",
            Workload::Streamcluster => "streamcluster",
            Workload::X264 => "x264",
            Workload::Facesim => "facesim",
            Workload::Ferret => "ferret",
            Workload::Jbb(_) => "specjbb",
            Workload::Pi => "superpi",
            Workload::Npb => "npb",
        }
    }

    /// How many threads it has in a guest with so many processors.
    pub fn threads(self, vcpus: usize) -> usize {
        let stages = |stages: &[Stage]| stages.iter().map(|stage| stage.0).sum();
        match self {
            Workload::Kernbench => 16,
            Workload::Dedup => stages(&DEDUP),
            Workload::Ferret => stages(&FERRET),
            Workload::X264 => X264_THREADS,
            Workload::Jbb(warehouses) => warehouses,
            Workload::Streamcluster | Workload::Facesim | Workload::Pi | Workload::Npb => vcpus,
        }
    }

    /// The processor time that all its threads compute until it ends, in nanoseconds, on average; `None` if it has no end.
    pub fn work_ns(self, vcpus: usize) -> Option<u64> {
        let items = |stages: &[Stage], count: u64| {
            let each: u64 = stages.iter().map(|stage| stage.1).sum();
            count * each
        };
        let vcpus = vcpus as u64;
        let ns = match self {
            Workload::Kernbench => KERNBENCH_JOBS * KERNBENCH_JOB_NS + KERNBENCH_LINK_NS,
            Workload::Dedup => items(&DEDUP, DEDUP_ITEMS) + DEDUP_ITEMS * UNMAP_NS,
            Workload::Streamcluster => vcpus * STREAM_PHASES * STREAM_PHASE_NS,
            Workload::X264 => X264_FRAMES * X264_ROWS * X264_ROW_NS,
            Workload::Facesim => FACESIM_PHASES * (vcpus * FACESIM_TASK_NS + FACESIM_SERIAL_NS),
            Workload::Ferret => items(&FERRET, FERRET_ITEMS),
            Workload::Jbb(_) | Workload::Pi | Workload::Npb => return None,
        };
        Some(ns)
    }

    /// Its guest's spin locks: of table 4.1 where that has them, both kinds together, with 124,000 and 49,000 in a second for kernbench.
    pub fn locks(self) -> Locks {
        let (per_s, hold_ns, count) = match self {
            Workload::Kernbench => (173_000.0, 512.0, 16),
            Workload::Dedup => (62_000.0, 650.0, 8),
            Workload::Jbb(_) => (4_196.0, 141.0, 16),
            Workload::Pi => (1_045.0, 174.0, 16),
            Workload::X264 | Workload::Facesim | Workload::Ferret => (5_000.0, 300.0, 16),
            Workload::Streamcluster | Workload::Npb => (1_045.0, 174.0, 16),
        };
        Locks {
            per_s,
            hold_ns,
            count,
        }
    }

    /// How likely it is that its guest's kernel runs while it computes and holds no spin lock.
    pub fn in_kernel(self) -> f64 {
        match self {
            Workload::Kernbench => 0.3,
            Workload::Dedup => 0.2,
            _ => 0.03,
        }
    }

    /// Its barriers.
    pub fn barriers(self, vcpus: usize) -> Vec<Barrier> {
        let blocks = |members| Barrier {
            members,
            spin_ns: 0,
        };
        match self {
            Workload::Kernbench => vec![blocks(16)],
            Workload::Streamcluster => vec![Barrier {
                members: vcpus,
                spin_ns: BARRIER_SPIN_NS,
            }],
            Workload::Facesim => vec![blocks(vcpus)],
            Workload::Npb => vec![Barrier {
                members: vcpus,
                spin_ns: u64::MAX,
            }],
            // all warehouses stop; as many collect as there are processors
            Workload::Jbb(warehouses) => vec![
                blocks(warehouses),
                Barrier {
                    members: warehouses.min(vcpus),
                    spin_ns: u64::MAX,
                },
            ],
            _ => Vec::new(),
        }
    }

    /// How much each of its queues holds.
    pub fn queues(self) -> Vec<usize> {
        match self {
            Workload::Dedup => vec![QUEUE_MAX; DEDUP.len() - 1],
            Workload::Ferret => vec![QUEUE_MAX; FERRET.len() - 1],
            Workload::X264 => vec![2 * X264_ROWS as usize; X264_THREADS],
            _ => Vec::new(),
        }
    }
}

/// A run of a workload in a guest.
#[derive(Clone, Debug)]
pub struct Program {
    workload: Workload,
    vcpus: usize,
    /// How far each thread is, in a counter of its own.
    steps: Vec<u64>,
    /// What is left of each thread's job.
    left: Vec<u64>,
    /// What all threads share: jobs or items taken, by stage.
    taken: Vec<u64>,
    /// What is left of the computing of each thread that was put aside in its guest.
    kept: Vec<u64>,
}

impl Program {
    /// Begins a run.
    pub fn new(workload: Workload, vcpus: usize) -> Program {
        let threads = workload.threads(vcpus);
        Program {
            workload,
            vcpus,
            steps: vec![0; threads],
            left: vec![0; threads],
            taken: vec![0; 8],
            kept: vec![0; threads],
        }
    }

    /// A thread is put aside with so much of its computing left.
    pub fn keep(&mut self, thread: usize, left: u64) {
        self.kept[thread] = left;
    }

    /// What is left of the computing of a thread that is taken up again.
    pub fn kept(&mut self, thread: usize) -> u64 {
        std::mem::take(&mut self.kept[thread])
    }

    /// What a thread does next.
    pub fn next(&mut self, thread: usize, random: &mut Random) -> Op {
        let step = self.steps[thread];
        self.steps[thread] += 1;
        match self.workload {
            Workload::Kernbench => self.kernbench(thread, random),
            Workload::Dedup => {
                self.pipeline(&DEDUP, DEDUP_ITEMS, Some(DEDUP_FREES), thread, random)
            }
            Workload::Ferret => self.pipeline(&FERRET, FERRET_ITEMS, None, thread, random),
            Workload::Streamcluster => match step {
                step if step / 2 == STREAM_PHASES => Op::End,
                step if step.is_multiple_of(2) => Op::Compute(random.around(STREAM_PHASE_NS, 0.2)),
                _ => Op::Barrier(0),
            },
            Workload::X264 => self.x264(thread, step, random),
            Workload::Facesim => match (step / 4, step % 4) {
                (FACESIM_PHASES, _) => Op::End,
                (_, 0) => Op::Compute(random.around(FACESIM_TASK_NS, 0.3)),
                (_, 2) if thread == 0 => Op::Compute(random.around(FACESIM_SERIAL_NS, 0.3)),
                (_, 2) => Op::Count,
                _ => Op::Barrier(0),
            },
            Workload::Jbb(warehouses) => self.jbb(warehouses, thread, random),
            Workload::Pi => Op::Compute(50 * MS),
            Workload::Npb => match step % 3 {
                0 => Op::Compute(random.around(MS, 0.1)),
                1 => Op::Barrier(0),
                _ => Op::Count,
            },
        }
    }

    /// 160 jobs of 120 ms on average, which wait for a device now and then, and a link by one thread.
    fn kernbench(&mut self, thread: usize, random: &mut Random) -> Op {
        const PIECE: u64 = 10 * MS;
        if self.left[thread] == 0 {
            if self.taken[0] < KERNBENCH_JOBS {
                self.taken[0] += 1;
                let job = random.exponential(KERNBENCH_JOB_NS as f64);
                self.left[thread] = job.clamp(PIECE, 5 * KERNBENCH_JOB_NS);
            } else {
                // steps are no longer needed: they count what comes at the end
                let end = self.taken[1 + usize::from(thread != 0)];
                match (thread, self.steps[thread]) {
                    (_, step) if step < u64::MAX / 2 => {
                        self.steps[thread] = u64::MAX / 2;
                        return Op::Barrier(0);
                    }
                    (0, _) if end == 0 => {
                        self.taken[1] = 1;
                        self.left[0] = KERNBENCH_LINK_NS;
                    }
                    _ => return Op::End,
                }
            }
        }
        if self.steps[thread] < u64::MAX / 2 && random.chance(0.2) {
            return Op::Sleep(random.exponential(2e6));
        }
        let piece = self.left[thread].min(PIECE);
        self.left[thread] -= piece;
        Op::Compute(piece)
    }

    /// Each thread of a stage takes an item, works on it, and hands it on. Where a stage `frees` memory, all of them fault it in, which reads
    /// the process's map of it; to free changes that map.
    fn pipeline(
        &mut self,
        stages: &[Stage],
        items: u64,
        frees: Option<usize>,
        thread: usize,
        random: &mut Random,
    ) -> Op {
        let (mut stage, mut first) = (0, 0);
        while thread >= first + stages[stage].0 {
            first += stages[stage].0;
            stage += 1;
        }
        let (touches, frees_here) = (frees.is_some(), frees == Some(stage));
        let work = stages[stage].1;
        let faults = if touches { work / FAULTS } else { 0 };
        // take, fault in, work, free, put
        let at = self.left[thread];
        self.left[thread] = (at + 1) % 10;
        match at {
            0 if self.taken[stage] == items => Op::End,
            0 => {
                self.taken[stage] += 1;
                match stage {
                    0 => self.pipeline(stages, items, frees, thread, random),
                    _ => Op::Take(stage - 1),
                }
            }
            1 if touches => Op::Read,
            2 if touches => Op::Compute(random.around(faults, 0.5)),
            3 if touches => Op::Release,
            4 => Op::Compute(random.around(work - faults, 0.5)),
            5 if frees_here => Op::Write,
            6 if frees_here => Op::Compute(UNMAP_NS),
            7 if frees_here => Op::Flush,
            8 if frees_here => Op::Release,
            9 if stage + 1 == stages.len() => Op::Count,
            9 => Op::Put(stage),
            _ => self.pipeline(stages, items, frees, thread, random),
        }
    }

    /// Thread `t` has frames `t`, `t + 6` ...; each row needs the same row of the frame before.
    fn x264(&mut self, thread: usize, step: u64, random: &mut Random) -> Op {
        let (row, part) = (step / 3, step % 3);
        let frame = thread as u64 + X264_THREADS as u64 * (row / X264_ROWS);
        match part {
            _ if frame >= X264_FRAMES => Op::End,
            0 if frame == 0 => Op::Count,
            0 => Op::Take((thread + X264_THREADS - 1) % X264_THREADS),
            1 => Op::Compute(random.around(X264_ROW_NS, 0.4)),
            _ if frame + 1 == X264_FRAMES => Op::Count,
            _ => Op::Put(thread),
        }
    }

    /// Batches of a millisecond; after 150 of them all stop, and as many threads as processors mark and sweep.
    fn jbb(&mut self, warehouses: usize, thread: usize, random: &mut Random) -> Op {
        let collectors = warehouses.min(self.vcpus);
        // `left` is where a thread is: 0 computes, 1 counts, from 2 on it collects
        let at = self.left[thread];
        self.left[thread] += 1;
        if at < 2 {
            if at == 1 {
                self.left[thread] = 0;
                self.taken[0] += 1;
                return Op::Count;
            }
            // whoever has seen fewer collections than are due goes there
            if self.taken[0] / JBB_BATCHES > self.steps_of_gc(thread) {
                self.left[thread] = 3;
                return Op::Barrier(0);
            }
            return Op::Compute(random.around(MS, 0.3));
        }
        let collects = thread < collectors && at < 3 + 2 * JBB_GC_PHASES;
        match collects {
            true if (at - 3).is_multiple_of(2) => Op::Compute(random.around(JBB_GC_PHASE_NS, 0.2)),
            true => Op::Barrier(1),
            false => {
                self.left[thread] = 0;
                self.steps[thread] += 1 << 40;
                Op::Barrier(0)
            }
        }
    }

    /// How many collections a thread has seen: the upper part of its steps.
    fn steps_of_gc(&self, thread: usize) -> u64 {
        self.steps[thread] >> 40
    }
}
