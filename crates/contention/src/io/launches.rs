//! What is launched at the desk, and what noisy machines replay: what was recorded, and made up what was not.

use super::noise::{Beside, Kind as NoiseKind, Lie, NOISY};
use super::record::{BOOT, WARM};
use floe_image::CHUNK_SIZE;
use floe_planner::ZeroTrace;
use floe_sched::Op;
use floe_testbed::launch::{self, Launch, NOBODY, Script, Step};
use floe_testbed::traces;
use std::path::Path;
use std::sync::Arc;

/// Requests of a recorded launch that are replayed, the first ones: first come, first served, more would take minutes beside seven readers.
const REPLAYED_MAX: usize = 120;
/// Programs that are launched warm where none was recorded, as many as in the paper's figure 11.
const WARM_PROGRAMS: u64 = 5;
/// How many pages are loaded one after the other, with a look at each.
pub const PAGES: usize = 10;
/// The benchmark of the paper's section 4.6: so many random reads of so many bytes.
pub const MIXED_READS: u64 = 10;
pub const MIXED_BYTES: u64 = 128 << 10;
/// Where it reads: behind what the reader in the same machine does.
pub const MIXED_FROM: u64 = 64 << 20;
const MIXED_AMONG: u64 = 256;
/// Times that it runs before it counts, and that it counts.
pub const MIXED_BEFORE: u64 = 5;
pub const MIXED_TIMES: u64 = 8;
/// The region of a recorded machine's disk.
const DISK: &str = "disk0";
/// Reads of a recorded machine that are replayed, the first ones, again and again: noisy machines' disks are as large as what they use.
const MACHINE_READS_MAX: usize = 600;
/// Chunks that follow each other are taken for one read if they came so soon, and up to so many bytes: what a guest's kernel reads ahead.
const TOGETHER_US: u64 = 200;
const READ_BYTES_MAX: u64 = 128 << 10;

/// What is launched at the desk.
pub struct Launches {
    /// Programs, of what was recorded the first requests alone.
    pub programs: Vec<Launch>,
    /// The same of programs that were used before, of which the guest still has the most.
    warm: Vec<Launch>,
    /// Pages of a browser, and commands of a shell.
    pub pages: Vec<Launch>,
    pub commands: Vec<Launch>,
    /// The one of section 4.6, as a launch for each time.
    pub mixed: Vec<Launch>,
    boot: Option<Arc<Launch>>,
    /// Recorded machines that read their disks, and the recorded launch that flushes most: what noisy machines replay.
    machines: Vec<Arc<Launch>>,
    writer: Option<Arc<Launch>>,
    /// Those that were recorded of real guests, as they are.
    pub recorded: Vec<Launch>,
}

impl Launches {
    /// Reads what was recorded; what was not is made up.
    pub fn load(dir: &Path) -> anyhow::Result<Launches> {
        let scripts = launch::load(dir)?;
        let is_boot = |name: &str| name.starts_with("boot");
        let recorded: Vec<Launch> = scripts.iter().map(Launch::of).collect();
        let of = |is: &dyn Fn(&str) -> bool| -> Vec<Launch> {
            let some = scripts.iter().filter(|script| is(&script.name));
            some.map(|script| Launch::of(&script.first(REPLAYED_MAX)))
                .collect()
        };
        let mut boots = scripts.iter().filter(|script| is_boot(&script.name));
        let boot = boots.next().map(|script| Arc::new(Launch::of(script)));
        let or =
            |found: Vec<Launch>, number: u64, made_up: fn(u64) -> Script| match found.is_empty() {
                true => (0..number).map(|n| Launch::of(&made_up(n))).collect(),
                false => found,
            };
        let is_page = |name: &str| name.starts_with("page");
        let is_command = |name: &str| name.starts_with("command");
        let is_warm = |name: &str| name.starts_with(WARM);
        let is_program =
            |name: &str| !is_page(name) && !is_command(name) && !is_boot(name) && !is_warm(name);
        Ok(Launches {
            programs: or(of(&is_program), 4, launch::made_up),
            warm: or(of(&is_warm), WARM_PROGRAMS, launch::made_up_warm),
            pages: or(of(&is_page), PAGES as u64, launch::made_up_page),
            commands: or(of(&is_command), 4, launch::made_up_command),
            mixed: (0..MIXED_BEFORE + MIXED_TIMES).map(benchmark).collect(),
            boot,
            machines: Vec::new(),
            writer: writer(&recorded).cloned().map(Arc::new),
            recorded,
        })
    }

    /// Returns the same with the recorded machines of a folder of traces, if it is there: each workload but boots is a machine.
    pub fn with_machines(self, folder: &Path) -> anyhow::Result<Launches> {
        if !folder.try_exists()? {
            return Ok(self);
        }
        let workloads = traces::read_all(folder)?;
        let machines = workloads.iter().filter_map(|workload| {
            let of = &workload.meta.workload;
            let disk = workload.regions().iter().position(|name| name == DISK)?;
            let trace = workload.traces.first().filter(|_| of != BOOT)?;
            Some(Arc::new(machine(of, trace, disk as u8)?))
        });
        Ok(Launches {
            machines: machines.collect(),
            ..self
        })
    }

    /// Returns whether there is a noise of this name: loops always are, replays only of what was recorded.
    pub fn has(&self, noise: &str) -> bool {
        match noise.trim_end_matches(|c: char| c.is_ascii_digit()) {
            "machine" => !self.machines.is_empty(),
            "writer" => self.writer.is_some(),
            _ => true,
        }
    }

    /// Returns all that use the desk's disk.
    pub fn all(&self) -> Vec<&Launch> {
        let all = self.programs.iter().chain(&self.warm).chain(&self.pages);
        all.chain(&self.commands).chain(&self.mixed).collect()
    }

    /// Returns the boot that was recorded, as a whole.
    pub fn boot(&self) -> Option<&Launch> {
        self.boot.as_deref()
    }

    /// Returns where what noisy machines use of their disks ends, as far as it was recorded.
    pub fn noise_end(&self) -> u64 {
        let all = self.boot.iter().chain(&self.writer).chain(&self.machines);
        all.map(|launch| launch.end()).max().unwrap_or(0)
    }

    /// Returns a launch of each kind by its number: there are no more than were recorded, over and over.
    pub fn program(&self, number: usize) -> &Launch {
        &self.programs[number % self.programs.len()]
    }

    pub fn warm(&self, number: usize) -> &Launch {
        &self.warm[number % self.warm.len()]
    }

    pub fn page(&self, number: usize) -> &Launch {
        &self.pages[number % self.pages.len()]
    }

    /// Returns what a noise of this name is, which ends with how many machines make it.
    pub fn noise(&self, name: &str) -> Beside {
        let what = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let kind = match (what, &self.boot, &self.writer) {
            ("sync", ..) => NoiseKind::Sync,
            ("boot", Some(boot), _) => NoiseKind::Recorded(vec![boot.clone()]),
            ("boot", None, _) => NoiseKind::Boot,
            ("machine", ..) if !self.machines.is_empty() => {
                NoiseKind::Recorded(self.machines.clone())
            }
            ("writer", _, Some(writer)) => NoiseKind::Recorded(vec![writer.clone()]),
            _ => NoiseKind::Reader,
        };
        let machines = name[what.len()..]
            .parse::<usize>()
            .unwrap_or(NOISY)
            .min(NOISY);
        Beside {
            kind,
            machines,
            lie: Lie::None,
        }
    }
}

/// Returns the benchmark's reads of one time, which begin with an input.
fn benchmark(time: u64) -> Launch {
    let step = |number: u64| {
        let block = (time * MIXED_READS + number).wrapping_mul(97) % MIXED_AMONG;
        Step {
            think_us: Some(0),
            after_input: number == 0,
            op: Op::Read,
            offset: MIXED_FROM + block * MIXED_BYTES,
            bytes: MIXED_BYTES,
            program: "benchmark".into(),
        }
    };
    Launch {
        name: format!("benchmark{time}"),
        steps: (0..MIXED_READS).map(step).collect(),
    }
}

/// Returns the recorded launch that flushes most: an installation, or whatever else makes sure that its writes last.
fn writer(recorded: &[Launch]) -> Option<&Launch> {
    let flushes = |launch: &&Launch| {
        let flushes = launch.steps.iter().filter(|step| step.op == Op::Flush);
        flushes.count()
    };
    let all = recorded.iter().filter(|launch| flushes(launch) > 0);
    all.max_by_key(flushes)
}

/// Makes a machine's first reads of its disk ready to be replayed, at the pace of the guest that was recorded: chunks that follow each other at once
/// are one read. `None` if it has read nothing.
fn machine(name: &str, trace: &ZeroTrace, disk: u8) -> Option<Launch> {
    const CHUNK_BYTES: u64 = CHUNK_SIZE as u64;
    let (mut steps, mut last_us): (Vec<Step>, Option<u64>) = (Vec::new(), None);
    for access in trace.accesses.iter().filter(|one| one.region == disk) {
        let offset = u64::from(access.chunk) * CHUNK_BYTES;
        let think_us = last_us.map_or(0, |last_us| access.t_us - last_us);
        last_us = Some(access.t_us);
        let is_full = steps.len() == MACHINE_READS_MAX;
        match steps.last_mut() {
            Some(step)
                if step.offset + step.bytes == offset
                    && think_us <= TOGETHER_US
                    && step.bytes < READ_BYTES_MAX =>
            {
                step.bytes += CHUNK_BYTES;
            }
            _ if is_full => break,
            _ => steps.push(Step {
                think_us: Some(think_us),
                after_input: false,
                op: Op::Read,
                offset,
                bytes: CHUNK_BYTES,
                program: NOBODY.to_owned(),
            }),
        }
    }
    (!steps.is_empty()).then(|| Launch::moved_together(name, steps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_recorded_is_made_up_and_what_was_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let none = Launches::load(dir.path()).unwrap();
        assert_eq!(
            (none.recorded.len(), none.programs.len(), none.pages.len()),
            (0, 4, PAGES)
        );
        assert_eq!(none.warm.len(), WARM_PROGRAMS as usize);
        assert!(none.boot.is_none());
        for name in ["xpdf", "warm-xpdf", "page-tutorial", "command-ls", "boot"] {
            let mut script = Script {
                name: name.into(),
                ..launch::made_up(1)
            };
            script.requests.extend(launch::made_up(2).requests);
            script.requests.extend(launch::made_up(3).requests);
            launch::store(dir.path(), &script).unwrap();
        }
        let some = Launches::load(dir.path()).unwrap();
        let names = |of: &[Launch]| -> Vec<String> { of.iter().map(|l| l.name.clone()).collect() };
        assert_eq!(names(&some.programs), ["xpdf"]);
        assert_eq!(names(&some.warm), ["warm-xpdf"]);
        assert_eq!(names(&some.pages), ["page-tutorial"]);
        assert_eq!(names(&some.commands), ["command-ls"]);
        assert!(some.recorded.len() == 5 && some.boot.is_some());
        assert_eq!(some.program(3).name, "xpdf");
        // a boot is replayed as a whole
        assert_eq!(some.program(3).steps.len(), REPLAYED_MAX);
        assert!(
            some.boot
                .as_ref()
                .is_some_and(|boot| boot.steps.len() == 180)
        );
        assert!(matches!(some.noise("boot7").kind, NoiseKind::Recorded(_)));
        assert_eq!(some.noise("boot1").machines, 1);
        assert_eq!(some.noise("reader7").machines, NOISY);
        assert!(matches!(some.noise("sync7").kind, NoiseKind::Sync));
        // no record flushes, and no machine was recorded
        assert!(!some.has("writer7") && !some.has("machine1") && some.has("sync7"));
        let three = some.noise("reader3");
        assert!(matches!(three.kind, NoiseKind::Reader) && three.machines == 3);
    }

    #[test]
    fn the_benchmark_is_the_papers() {
        let launch = benchmark(3);
        assert_eq!(launch.steps.len(), 10);
        assert!(launch.steps.iter().all(|step| step.bytes == 128 << 10));
        let inputs = launch.steps.iter().filter(|step| step.after_input);
        assert_eq!(inputs.count(), 1);
        let mut places: Vec<u64> = launch.steps.iter().map(|step| step.offset).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 10);
        // no two stand side by side, which an arm would read at once
        assert!(places.windows(2).all(|two| two[1] - two[0] > MIXED_BYTES));
    }

    #[test]
    fn recorded_machines_of_the_tree_are_neighbours_each_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut flushes = launch::made_up(1);
        flushes.name = "install".into();
        flushes.requests.push(launch::Recorded {
            think_us: Some(0),
            does: launch::Does::Flush,
            offset: 0,
            bytes: 0,
            program: "dpkg".into(),
            after_input: false,
        });
        launch::store(dir.path(), &flushes).unwrap();
        let launches = Launches::load(dir.path()).unwrap();
        let launches = launches
            .with_machines(Path::new(traces::OF_THE_TREE))
            .unwrap();
        let NoiseKind::Recorded(machines) = launches.noise("machine7").kind else {
            panic!("the tree has recorded machines");
        };
        let names: Vec<&str> = machines.iter().map(|one| one.name.as_str()).collect();
        assert!(
            names.contains(&"compile") && !names.contains(&BOOT),
            "{names:?}"
        );
        for machine in &machines {
            assert!((1..=MACHINE_READS_MAX).contains(&machine.steps.len()));
            let most = machine.steps.iter().map(|step| step.bytes).max();
            assert!(most <= Some(READ_BYTES_MAX));
            assert!(machine.end() <= launches.noise_end());
        }
        let NoiseKind::Recorded(writer) = launches.noise("writer7").kind else {
            panic!("a launch that flushes was recorded");
        };
        assert_eq!(writer[0].name, "install");
        assert!(launches.has("writer7") && launches.has("machine1"));
    }

    #[test]
    fn chunks_that_follow_each_other_at_once_are_one_read() {
        let accesses = [
            (50, 1, 100),
            (60, 0, 7),
            (100, 1, 101),
            (5_100, 1, 102),
            (5_200, 1, 400_000),
        ];
        let trace = traces::of(&accesses, 9_000);
        let launch = machine("compile", &trace, 1).unwrap();
        let steps: Vec<(Option<u64>, u64)> = launch
            .steps
            .iter()
            .map(|step| (step.think_us, step.bytes))
            .collect();
        let chunk = CHUNK_SIZE as u64;
        assert_eq!(
            steps,
            [
                (Some(0), 2 * chunk),
                (Some(5_000), chunk),
                (Some(100), chunk)
            ]
        );
        assert_eq!(launch.steps[1].offset - launch.steps[0].offset, 2 * chunk);
        assert!(launch.end() < 1 << 20);
        assert!(machine("compile", &trace, 2).is_none());
    }
}
