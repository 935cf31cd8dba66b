//! What is measured in a round of each part.

use super::figures::{self, NOISES};
use super::launches::{
    Launches, MIXED_BEFORE, MIXED_BYTES, MIXED_FROM, MIXED_READS, MIXED_TIMES, PAGES,
};
use super::noise::{Beside, Lie};
use super::replay::{self, FRAME, FRAME_BYTES, LARGE_FRAME_BYTES, Replayed, replay};
use super::site::{Candidate, SETTLE, Site, Stage};
use super::{Extent, FIFO, Part, QUICK, VSIP, WHOLE, candidates, host};
use anyhow::Context as _;
use floe_mount::IoScheduling;
use floe_testbed::harness::{Context, CpuTimes, cpu_times};
use floe_testbed::launch::Launch;
use floe_testbed::slow_disk::Kind;
use std::time::{Duration, Instant};

/// The look at what was launched, before the next.
pub const LOOK: Duration = Duration::from_secs(1);
/// How long a film is, in seconds.
const FILM_S: usize = 12;
/// Commands of a round, and the pause before each.
const COMMANDS: usize = 10;
const TYPES: Duration = Duration::from_millis(700);
/// For how long it is counted what the noisy machines get: longer than a launch takes that comes last of all.
const WINDOW: Duration = Duration::from_secs(40);
/// How long a liar has lied before he is compared: whatever credit he began with is spent.
const SPENT: Duration = Duration::from_secs(40);
/// How long the benchmark of the paper's section 4.6 rests, and the machines beside it.
const MIXED_IDLE: Duration = Duration::from_secs(1);
const MIXED_OTHERS: usize = 3;
/// Machines that saturate a disk.
const TWO: usize = 2;

/// What a round has measured: names and values.
pub type Told = Vec<(String, f64)>;

/// Everything that a round needs.
pub struct Lab<'a> {
    pub site: &'a mut Site,
    pub launches: &'a Launches,
    pub context: &'a Context,
    pub extent: Extent,
}

impl Lab<'_> {
    /// Returns the first in a full run, the second in one of what promises are of, the third in a quick one.
    fn choose<T>(&self, full: T, promises: T, quick: T) -> T {
        match self.extent {
            Extent::Full => full,
            Extent::Promises => promises,
            Extent::Quick => quick,
        }
    }

    /// Does one round of a part.
    pub fn round(&mut self, part: Part, round: usize) -> anyhow::Result<Told> {
        let mut told = Told::new();
        match part {
            Part::Launches => self.launches(round, &mut told)?,
            Part::Pages => self.pages(round, &mut told)?,
            Part::Echo => self.echo(round, &mut told)?,
            Part::Shares => self.shares(round, &mut told)?,
            Part::Two => self.two(&mut told)?,
            Part::Mixed => self.mixed(round, &mut told)?,
            Part::Live => self.live(round, &mut told)?,
            Part::Curves => self.curves(round, &mut told)?,
            Part::Work => self.work(round, &mut told)?,
        }
        Ok(told)
    }

    /// Returns those who are compared, every other round in reverse order.
    pub fn in_turn(&self, some: &[Candidate], round: usize) -> Vec<Candidate> {
        let mut turns = some.to_vec();
        if round % 2 == 1 {
            turns.reverse();
        }
        turns
    }

    fn launches(&mut self, round: usize, told: &mut Told) -> anyhow::Result<()> {
        let compared = &NOISES[..figures::COMPARED];
        let noises = self.choose(&NOISES[..], compared, &NOISES[..2]);
        let (recorded, launch) = (self.launches, self.launches.program(round));
        for candidate in self.in_turn(candidates(self.context), round) {
            let who = candidate.prefix();
            // beside what no promise is of, the others would take most of the time
            let often = candidates(self.context)[..QUICK].contains(&candidate);
            let noises = noises
                .iter()
                .copied()
                .filter(|noise| (often || compared.contains(noise)) && recorded.has(noise));
            let all = [None].into_iter().chain(noises.map(Some));
            for noise in all {
                let beside = noise.map(|noise| self.launches.noise(noise));
                let before = self.site.taken(candidate);
                let cell = self.site.beside(
                    candidate,
                    Kind::HardDisk,
                    beside.as_ref(),
                    SETTLE,
                    |stage| {
                        let before = stage.got();
                        let replayed = one(stage, launch)?;
                        Ok((replayed, stage.since(&before)))
                    },
                )?;
                let Some((replayed, got)) = cell else { break };
                let name = format!("{who}launch_{}", noise.unwrap_or("alone"));
                eprintln!(
                    "io: round {round}, {name} of {}: {:.2} s, {:.2} of them on the disk",
                    launch.name, replayed.took_s, replayed.waited_s
                );
                told.push((format!("{name}_s"), replayed.took_s));
                told.push((format!("{name}_wait_s"), replayed.waited_s));
                if noise.is_some() {
                    told.push((format!("{name}_others_ms"), figures::mean_wait_ms(&got)));
                    if let (Some(before), Some(after)) = (before, self.site.taken(candidate)) {
                        told.push((format!("{name}_taken_pct"), percent(before, after)));
                    }
                }
            }
        }
        Ok(())
    }

    fn pages(&mut self, round: usize, told: &mut Told) -> anyhow::Result<()> {
        let some = [VSIP, host("bfq", 100), host("none", 100)];
        let some = self.choose(&some[..], &some[..1], &some[..1]);
        let pages = &self.launches.pages;
        let pages = &pages[..pages.len().min(self.context.pick(PAGES, 3))];
        for candidate in self.in_turn(some, round) {
            let who = candidate.prefix();
            let mut alone: Vec<f64> = Vec::new();
            for noise in [None, Some("reader7"), Some("boot7")] {
                let beside = noise.map(|noise| self.launches.noise(noise));
                let load = |stage: &Stage| -> anyhow::Result<Vec<f64>> {
                    let mut took = Vec::new();
                    for page in pages {
                        std::thread::sleep(LOOK);
                        took.push(one(stage, page)?.took_s);
                    }
                    Ok(took)
                };
                let took =
                    self.site
                        .beside(candidate, Kind::HardDisk, beside.as_ref(), SETTLE, load)?;
                let Some(took) = took else { break };
                match noise {
                    None => {
                        told.push((format!("{who}page_alone_s"), figures::geometric_mean(&took)));
                        alone = took;
                    }
                    Some(noise) => {
                        let slower: Vec<f64> =
                            took.iter().zip(&alone).map(|(a, b)| a / b).collect();
                        let mean = figures::geometric_mean(&slower);
                        eprintln!(
                            "io: round {round}, {who}pages beside {noise}: {mean:.2} x alone"
                        );
                        told.push((format!("{who}page_{noise}"), mean));
                    }
                }
            }
            self.films(candidate, told)?;
        }
        Ok(())
    }

    fn films(&mut self, candidate: Candidate, told: &mut Told) -> anyhow::Result<()> {
        let frames = self.context.pick(FILM_S, 4) * 1000 / FRAME.as_millis() as usize;
        let from = self.site.film_at;
        let films = [
            ("reader7", Some("reader7"), FRAME_BYTES),
            ("boot7", Some("boot7"), FRAME_BYTES),
            ("alone", None, FRAME_BYTES),
            ("over_share", Some("reader7"), LARGE_FRAME_BYTES),
        ];
        let films = self.choose(&films[..], &films[..2], &films[..]);
        for (name, noise, bytes) in films.iter().copied() {
            let beside = noise.map(|noise| self.launches.noise(noise));
            let dropped = self.site.beside(
                candidate,
                Kind::HardDisk,
                beside.as_ref(),
                SETTLE,
                |stage| replay::film(stage.desk, stage.machine, from, bytes, frames),
            )?;
            let Some(dropped) = dropped else {
                return Ok(());
            };
            let who = candidate.prefix();
            eprintln!("io: {who}film, {name}: {dropped:.2} % of the frames dropped");
            told.push((format!("{who}drops_{name}_pct"), dropped));
        }
        Ok(())
    }

    fn echo(&mut self, round: usize, told: &mut Told) -> anyhow::Result<()> {
        let some = [VSIP, host("bfq", 100), FIFO];
        let some = self.choose(&some[..], &some[..1], &some[..1]);
        let commands = &self.launches.commands;
        let times = self.context.pick(COMMANDS, 3);
        for (kind, of) in [(Kind::HardDisk, ""), (Kind::SmallSsd, "ssd.")] {
            for candidate in self.in_turn(some, round) {
                let who = candidate.prefix();
                let mut medians = Vec::new();
                for noise in [None, Some("sync7")] {
                    let beside = noise.map(|noise| self.launches.noise(noise));
                    let type_all = |stage: &Stage| -> anyhow::Result<Vec<f64>> {
                        let mut took_ms = Vec::new();
                        for number in 0..times {
                            std::thread::sleep(TYPES);
                            let command = &commands[(round + number) % commands.len()];
                            took_ms.push(one(stage, command)?.took_s * 1e3);
                        }
                        Ok(took_ms)
                    };
                    let took =
                        self.site
                            .beside(candidate, kind, beside.as_ref(), SETTLE, type_all)?;
                    let Some(took) = took else { break };
                    let samples: floe_testbed::harness::Samples = took.iter().copied().collect();
                    medians.push(samples.median());
                    let name = format!("{who}{of}echo_{}_ms", noise.unwrap_or("alone"));
                    eprintln!("io: round {round}, {name}: {:.1}", samples.median());
                    told.extend(took.into_iter().map(|ms| (name.clone(), ms)));
                }
                if let [alone, beside] = medians[..] {
                    told.push((format!("{who}{of}echo_sync7_over_alone"), beside / alone));
                }
            }
        }
        Ok(())
    }

    /// What seven readers get beside a user who launches once, by both orders and by peers; and what a liar among them gets.
    fn shares(&mut self, round: usize, told: &mut Told) -> anyhow::Result<()> {
        let window = self.context.pick(WINDOW, Duration::from_secs(8));
        let readers = self.launches.noise("reader7");
        let launch = self.launches.program(round);
        let some = [VSIP, FIFO, host("none", 100), host("bfq", 100)];
        for candidate in self.in_turn(self.context.pick(&some[..], &some[..3]), round) {
            let cell =
                self.site
                    .beside(candidate, Kind::HardDisk, Some(&readers), SETTLE, |stage| {
                        let (before, start) = (stage.got(), Instant::now());
                        one(stage, launch)?;
                        std::thread::sleep(window.saturating_sub(start.elapsed()));
                        Ok((stage.since(&before), start.elapsed().as_secs_f64()))
                    })?;
            let Some((got, seconds)) = cell else { continue };
            let each: Vec<f64> = got.iter().map(|got| got.requests).collect();
            let who = candidate.prefix();
            told.push((format!("{who}noisy_per_s"), figures::rate(&got, seconds)));
            told.push((format!("{who}jain"), figures::jain(&each)));
        }
        let spent = self.context.pick(SPENT, Duration::from_secs(2));
        for (name, lie) in Lie::ALL {
            let lies = Beside {
                lie,
                ..readers.clone()
            };
            let got = self
                .site
                .beside(VSIP, Kind::HardDisk, Some(&lies), spent, |stage| {
                    let before = stage.got();
                    std::thread::sleep(window);
                    Ok(stage.since(&before))
                })?;
            let got = got.context("floe is always there")?;
            let (liar, others) = got.split_first().context("there is a liar")?;
            let gain = figures::liar_gain(*liar, others);
            eprintln!("io: round {round}, a liar by {name} gains {gain:.3}");
            told.push((format!("liar_gain_{name}"), gain));
        }
        Ok(())
    }

    /// Two machines that saturate a disk, against the bare device with as much to do; and that against its model.
    fn two(&mut self, told: &mut Told) -> anyhow::Result<()> {
        let window = self
            .context
            .pick(Duration::from_secs(20), Duration::from_secs(3));
        let kinds = [(Kind::HardDisk, ""), (Kind::SmallSsd, "ssd.")];
        let kinds = self.choose(&kinds[..], &kinds[..1], &kinds[..]);
        for (kind, of) in kinds.iter().copied() {
            let two = Beside {
                machines: TWO,
                ..self.launches.noise("reader7")
            };
            let mut rates = Vec::new();
            for candidate in [host("none", 100), VSIP] {
                let server = self.site.disk.process();
                let cell = self
                    .site
                    .beside(candidate, kind, Some(&two), SETTLE, |stage| {
                        let (before, cpu, start) = (stage.got(), used(server)?, Instant::now());
                        std::thread::sleep(window);
                        let seconds = start.elapsed().as_secs_f64();
                        Ok((
                            stage.since(&before),
                            (used(server)? - cpu) / 1e3 / seconds,
                            seconds,
                        ))
                    })?;
                let (got, cores, seconds) = cell.context("every host has these")?;
                rates.push(figures::rate(&got, seconds));
                if candidate.is_peer() {
                    let model = kind.random_per_s() as f64;
                    told.push((format!("{of}device_over_model"), rates[0] / model));
                    told.push((format!("{of}device_cores"), cores));
                } else {
                    let each: Vec<f64> = got.iter().map(|got| got.requests).collect();
                    told.push((format!("{of}two_jain"), figures::jain(&each)));
                }
            }
            let over = rates[1] / rates[0];
            eprintln!(
                "io: two machines on the {}: {over:.3} of the bare device",
                kind.name()
            );
            told.push((format!("{of}two_total_over_device"), over));
        }
        Ok(())
    }

    /// Section 4.6: a machine that runs the benchmark alone, and one that reads without end beside it, among others that read.
    fn mixed(&mut self, round: usize, told: &mut Told) -> anyhow::Result<()> {
        let (before, times) = self.context.pick((MIXED_BEFORE, MIXED_TIMES), (2, 3));
        let others = Beside {
            machines: MIXED_OTHERS,
            ..self.launches.noise("reader7")
        };
        let readers_bytes = super::noise::DISK_BYTES;
        anyhow::ensure!(
            MIXED_FROM >= readers_bytes,
            "the benchmark has a place of its own"
        );
        let some = [VSIP, WHOLE, FIFO, host("bfq", 100)];
        let some = self.choose(&some[..], &some[..1], &some[..3]);
        for candidate in self.in_turn(some, round) {
            let who = candidate.prefix();
            let Some(alone) = self.benchmark(candidate, None, false, (before, times))? else {
                continue;
            };
            let beside = Some(&others);
            let interactive = self.benchmark(candidate, beside, false, (before, times))?;
            let mixed = self.benchmark(candidate, beside, true, (before, times))?;
            let (Some(interactive), Some(mixed)) = (interactive, mixed) else {
                continue;
            };
            told.push((
                format!("{who}interactive_latency_over_alone"),
                interactive.latency_s / alone.latency_s,
            ));
            let over = mixed.latency_s / alone.latency_s;
            told.push((format!("{who}mixed_latency_over_alone"), over));
            let share = figures::others_over_share(mixed.own, &mixed.others);
            told.push((format!("{who}others_over_share"), share));
            eprintln!(
                "io: round {round}, {who}mixed: {over:.2} x alone, the others have {share:.2} of their share"
            );
        }
        Ok(())
    }

    /// Measures the benchmark once; `None` if the host has nothing like this candidate.
    fn benchmark(
        &mut self,
        candidate: Candidate,
        beside: Option<&Beside>,
        reads_too: bool,
        (before, times): (u64, u64),
    ) -> anyhow::Result<Option<Benchmarked>> {
        let launches = self.launches;
        // what the disk takes for a read of the benchmark, in reads of the readers
        let disk = Kind::HardDisk;
        let cost = disk.random_us(MIXED_BYTES) / disk.random_us(16 << 10);
        self.site
            .beside(candidate, Kind::HardDisk, beside, SETTLE, |stage| {
                let reader = match reads_too {
                    true => Some(stage.reader()?),
                    false => None,
                };
                let mut measured = Benchmarked::default();
                let mut marks = None;
                for time in 0..before + times {
                    if time == before {
                        let own = reader.as_ref().map(super::noise::Noise::got);
                        marks = Some((stage.got(), own));
                    }
                    std::thread::sleep(MIXED_IDLE);
                    let replayed = one(stage, &launches.mixed[time as usize])?;
                    if time >= before {
                        measured.latency_s += replayed.reads_s / (times * MIXED_READS) as f64;
                        measured.own += MIXED_READS as f64 * cost;
                    }
                }
                let (got, own) = marks.context("it was measured")?;
                measured.others = stage.since(&got).iter().map(|got| got.requests).collect();
                if let (Some(reader), Some(own)) = (&reader, own) {
                    measured.own += reader.got().since(own).requests;
                }
                Ok(measured)
            })
    }

    /// A real guest that makes the requests of a launch, and the replay of the same, alone and beside a reader. What is compared is the time of
    /// its reads as QEMU counts it, without what the guest computes. That guest has no agent, so nobody tells of the replay either who reads.
    fn live(&mut self, round: usize, told: &mut Told) -> anyhow::Result<()> {
        let launch = self.launches.program(round).unnamed();
        let programs = self.launches.programs.clone();
        let reader1 = self.launches.noise("reader1");
        for (name, beside) in [("alone", None), ("reader1", Some(&reader1))] {
            let line = format!("play {}", launch.name);
            let live = self
                .site
                .live(IoScheduling::Vsip, Kind::HardDisk, &programs, |live| {
                    let noise = "noise reader 30";
                    if beside.is_some() {
                        live.noise.begin(noise)?;
                        std::thread::sleep(SETTLE);
                    }
                    let before = live.desk.read()?;
                    live.machine.input();
                    live.desk.begin(&line)?;
                    let answer = live.desk.end(&line)?;
                    let after = live.desk.read()?;
                    if beside.is_some() {
                        live.noise.end(noise)?;
                    }
                    Ok((answer, after.reads_s - before.reads_s))
                });
            let (answer, reads_s) = live?;
            let took_s = answer.first().context("a guest tells how long it took")? / 1e6;
            let replayed = self
                .site
                .beside(VSIP, Kind::HardDisk, beside, SETTLE, |stage| {
                    one(stage, &launch)
                })?;
            let replayed = replayed.context("floe is always there")?;
            eprintln!(
                "io: round {round}, live, {name}: {reads_s:.2} s of reads, replayed {:.2}; {took_s:.2} s in all",
                replayed.reads_s
            );
            told.push((format!("live_{name}_reads_s"), reads_s));
            told.push((format!("live_{name}_took_s"), took_s));
            told.push((format!("replay_{name}_reads_s"), replayed.reads_s));
        }
        Ok(())
    }
}

/// What came of the benchmark.
#[derive(Debug, Default)]
struct Benchmarked {
    /// The mean time of its reads, in seconds.
    latency_s: f64,
    /// What its machine had, in requests.
    own: f64,
    /// What the others had.
    others: Vec<f64>,
}

/// Replays a launch at the desk.
pub fn one(stage: &Stage, launch: &Launch) -> anyhow::Result<Replayed> {
    replay(stage.lanes, launch, stage.machine, &mut |_| true)
}

/// Returns which part of the requests between two looks was taken for waited for, in percent.
fn percent(before: (u64, u64), after: (u64, u64)) -> f64 {
    // a scheduler forgets a machine that has asked for nothing for long, and counts from nothing
    let is_anew = after.0 < before.0 || after.1 < before.1;
    let before = if is_anew { (0, 0) } else { before };
    let (taken, all) = (after.0 - before.0, after.1 - before.1);
    taken as f64 / all.max(1) as f64 * 100.0
}

fn used(process: u32) -> anyhow::Result<f64> {
    let CpuTimes { own_ms, .. } = cpu_times(process)?;
    Ok(own_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_that_was_taken_for_waited_for_is_of_what_came_between() {
        assert_eq!(percent((10, 100), (40, 140)), 75.0);
        assert_eq!(percent((10, 100), (10, 100)), 0.0);
        assert_eq!(percent((10, 100), (4, 8)), 50.0);
    }
}
