//! `io-cost`: what it costs that the mount decides whose disk request goes first. Random reads of 4 KiB through a real mount, from
//! the chunks in the store's files on this host's disk, which are dropped from the page cache before each run: with the scheduler
//! (`--io vsip`) and without (`--io off`), in turn. And the processor time of the scheduler's own decisions.
use super::local::LocalMount;
use crate::harness::{Context, Report, Samples};
use crate::workload;
use anyhow::Context as _;
use floe_image::MachineConfig;
use floe_mount::{
    DiskSpec, ImageSpec, IoScheduling, MachineHandle, MachineSpec, Mount, MountOptions,
};
use floe_sched::classify::{Classifier, ImageId, Owned, Place, Program, Seen};
use floe_sched::{Class, MachineId, Op, Policy, Vsip, VsipConfig, Who};
use floe_store::{Ingest, IngestOptions};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Instant;

/// Bytes of a read.
const READ_BYTES: usize = 4096;
/// Threads that read, as a VMM has several: each machine has one at least.
const THREADS: usize = 8;
/// The numbers of machines that share the disk.
const MACHINES: [usize; 3] = [1, 8, 100];
/// Decisions of which the cost is measured, in each round.
const DECISIONS: u64 = 300_000;
/// Files that each machine reads meanwhile, and how many of them a directory has.
const FILES: u64 = 400;
const FOLDER_FILES: u64 = 20;
/// Most requests that are queued meanwhile.
const QUEUED_MAX: usize = 4096;

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("io-cost", context.quick);
    let (rounds, bytes) = context.pick((7, 512 << 20), (2, 32 << 20));
    let reads = context.pick(12_000, 1000);
    decisions(&mut report, rounds);
    let bench = Bench::new(&context.scratch, bytes)?;
    for machines in MACHINES {
        let (mut with, mut without) = (Run::default(), Run::default());
        let mut added_us = Samples::default();
        for round in 0..=rounds {
            // The first pair finds the device's depth and is not counted.
            let seed = round as u64;
            let mut pair = [(&bench.vsip, &mut with), (&bench.off, &mut without)];
            if round % 2 == 1 {
                pair.reverse();
            }
            for (side, run) in pair {
                let (per_s, cpu_us) = bench.read(side, machines, reads, seed)?;
                if round > 0 {
                    run.per_s.push(per_s);
                    run.cpu_us.push(cpu_us);
                }
            }
            if round > 0 {
                let last = |run: &Run| run.cpu_us.values().last().copied().unwrap_or(0.0);
                added_us.push(last(&with) - last(&without));
            }
        }
        let name = |figure: &str| match machines {
            1 => figure.to_owned(),
            more => format!("{figure}_{more}_machines"),
        };
        report
            .add(
                &name("rand_read_ratio"),
                "x",
                &with.per_s.over(&without.per_s),
            )
            .against(
                "the same mount with --io off",
                "reads/s",
                without.per_s.median(),
            );
        report
            .add(&name("live_added_us_per_request"), "us", &added_us)
            .against(
                "all of the process with --io off",
                "us",
                without.cpu_us.median(),
            );
    }
    report.note(format!(
        "{reads} reads of 4 KiB at random places of {} MB in the store's files, {THREADS} threads or one for each machine, page cache dropped before \
         each run, {rounds} pairs of runs in turn",
        bytes / 1_000_000
    ));
    report.note(
        "us_per_request is the processor time of the decisions alone (classify by its file, queue, choose, report as served), in a loop, with 8 \
         machines; by number of machines beside it. us_per_hit is the part of it that a read of what is in memory costs too: to classify it. live_added_us_per_request is what the whole process used more for a read with the scheduler than without: \
         also the attempt to read without waiting and the way to another thread, which --io off has only when its threads are taken",
    );
    Ok(report)
}

/// What one side of a comparison has measured.
#[derive(Default)]
struct Run {
    per_s: Samples,
    cpu_us: Samples,
}

/// One mount, with a machine for each place.
struct Side {
    _mount: Mount,
    machines: Vec<MachineHandle>,
}

struct Bench {
    vsip: Side,
    off: Side,
    bytes: usize,
    /// The files that have the chunks.
    files: Vec<PathBuf>,
}

impl Bench {
    fn new(dir: &Path, bytes: usize) -> anyhow::Result<Bench> {
        let local = LocalMount::new(&dir.join("first"), 4 * bytes as u64)?;
        let mut ingest = Ingest::new(&local.repository, IngestOptions::default())?;
        ingest.region_bytes("disk0", &workload::noise(bytes, 3))?;
        let id = ingest.finish(MachineConfig::default())?;
        let manifest = local.repository.manifest(&id)?;
        let side = |name: &str, io| -> anyhow::Result<Side> {
            let mountpoint = dir.join(name);
            std::fs::create_dir_all(&mountpoint)?;
            let mut options = MountOptions::new(dir.join(format!("run-{name}")));
            options.io = io;
            let mount = Mount::start(&mountpoint, options)?;
            let image = mount.add_image(ImageSpec {
                id,
                manifest: manifest.clone(),
                fetcher: local.fetcher.clone(),
                cache: local.cache.clone(),
            })?;
            let most = MACHINES.into_iter().max().unwrap_or(1);
            let machine = |number: usize| {
                mount.add_machine(MachineSpec {
                    name: format!("m{number}"),
                    uid: 0,
                    gid: 0,
                    image: image.clone(),
                    dir: dir.join(format!("machines-{name}/{number}")),
                    disks: vec![DiskSpec::of_region("disk0", bytes as u64)],
                    base: None,
                })
            };
            let machines = (0..most).map(machine).collect::<Result<_, _>>()?;
            Ok(Side {
                _mount: mount,
                machines,
            })
        };
        let (vsip, off) = (
            side("vsip", IoScheduling::Vsip)?,
            side("off", IoScheduling::Off)?,
        );
        // Reads everything into the store.
        for side in [&vsip, &off] {
            let path = side.machines[0].disk_path("disk0").context("it has one")?;
            std::io::copy(&mut File::open(path)?, &mut std::io::sink())?;
        }
        let files = files_below(&dir.join("first/cache"))?;
        local.mount.unmount()?;
        Ok(Bench {
            vsip,
            off,
            bytes,
            files,
        })
    }

    /// Drops the chunks from the page cache.
    fn drop_cache(&self) -> anyhow::Result<()> {
        for file in &self.files {
            let file = File::open(file)?;
            rustix::fs::fsync(&file)?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
        Ok(())
    }

    /// Reads at random places, each once; returns the reads per second and the processor time of this process for each, in
    /// microseconds.
    fn read(
        &self,
        side: &Side,
        machines: usize,
        reads: usize,
        seed: u64,
    ) -> anyhow::Result<(f64, f64)> {
        let mut places: Vec<u64> = (0..(self.bytes / READ_BYTES) as u64).collect();
        places.shuffle(&mut StdRng::seed_from_u64(seed));
        places.truncate(reads);
        let threads = THREADS.max(machines);
        let part = places.len().div_ceil(threads);
        let mut files = Vec::new();
        for thread in 0..threads {
            let path = side.machines[thread % machines].disk_path("disk0");
            let mut options = OpenOptions::new();
            let options = options.read(true).custom_flags(libc::O_DIRECT);
            files.push(options.open(path.context("it has one")?)?);
        }
        self.drop_cache()?;
        let (start, end) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
        let outcome = std::thread::scope(|scope| {
            let readers: Vec<_> = files
                .iter()
                .enumerate()
                .map(|(thread, file)| {
                    let own = places.chunks(part).nth(thread).unwrap_or_default();
                    let (start, end) = (&start, &end);
                    scope.spawn(move || -> std::io::Result<()> {
                        let mut page = Page([0; READ_BYTES]);
                        start.wait();
                        let read = own.iter().try_for_each(|place| {
                            file.read_exact_at(&mut page.0, place * READ_BYTES as u64)
                        });
                        end.wait();
                        read
                    })
                })
                .collect();
            let cpu = cpu_us();
            start.wait();
            let began = Instant::now();
            end.wait();
            let (took_s, cpu) = (began.elapsed().as_secs_f64(), cpu_us() - cpu);
            for reader in readers {
                let read = reader.join();
                read.map_err(|_| anyhow::anyhow!("a reader panicked"))??;
            }
            anyhow::Ok((took_s, cpu))
        });
        let (took_s, cpu) = outcome?;
        let reads = places.len() as f64;
        Ok((reads / took_s, cpu / reads))
    }
}

/// A page that direct I/O may read into.
#[repr(align(4096))]
struct Page([u8; READ_BYTES]);

fn files_below(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => files.extend(files_below(&entry.path())?),
            false => files.push(entry.path()),
        }
    }
    Ok(files)
}

/// Returns the processor time that this process has used, in microseconds.
fn cpu_us() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as f64 * 1e6 + now.tv_nsec as f64 / 1e3
}

/// Adds what a decision costs.
fn decisions(report: &mut Report, rounds: usize) {
    for machines in MACHINES {
        let name = |figure: &str| match machines {
            8 => figure.to_owned(),
            other => format!("{figure}_{other}_machines"),
        };
        let all: Samples = (0..rounds)
            .map(|_| us_per_decision(machines as u32))
            .collect();
        report.add(&name("us_per_request"), "us", &all);
        let hits: Samples = (0..rounds).map(|_| us_per_hit(machines as u32)).collect();
        report.add(&name("us_per_hit"), "us", &hits);
    }
}

/// Machines whose files are known, and to each of which somebody has sent an input.
fn classifier(machines: u32) -> Classifier {
    let mut classifier = Classifier::new();
    for machine in (1..=machines).map(MachineId) {
        classifier.began(0, machine, Owned::default());
        classifier.input(0, machine);
    }
    classifier
}

/// Classifies a read of one of a machine's files.
fn classify(classifier: &mut Classifier, now_us: u64, machine: MachineId, number: u64) {
    let image = ImageId::default();
    let inode = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % FILES;
    let file = Program::File { image, inode };
    let folder = Program::Folder {
        image,
        inode: inode / FOLDER_FILES,
    };
    let seen = Seen {
        machine,
        program: Some(&file),
        folder: Some(&folder),
        place: Some(Place {
            region: 0,
            offset: inode << 20,
        }),
        bytes: READ_BYTES as u64,
        op: Op::Read,
    };
    black_box(classifier.request(now_us, &seen));
}

/// Classifies reads of what is in memory; returns the microseconds that each took.
fn us_per_hit(machines: u32) -> f64 {
    let mut classifier = classifier(machines);
    let began = cpu_us();
    for number in 0..DECISIONS {
        let machine = MachineId(1 + number as u32 % machines);
        classify(&mut classifier, number * 50, machine, number);
    }
    (cpu_us() - began) / DECISIONS as f64
}

/// Serves requests at an SSD's pace, four at a time for each machine, of which one in eight is interactive; returns the microseconds that
/// each took, from being classified to being reported as served, without the device.
fn us_per_decision(machines: u32) -> f64 {
    let mut policy: Vsip<u64> = Vsip::new(VsipConfig::disk(QUEUED_MAX, 16));
    let mut classifier = classifier(machines);
    let mut submit = |policy: &mut Vsip<u64>, now_us, who: Who, number| {
        classify(&mut classifier, now_us, who.machine, number);
        let _ = policy.submit(now_us, who, Op::Read, READ_BYTES as u64, number);
    };
    let who = |number: u64| Who {
        class: match number % 8 {
            0 => Class::Interactive,
            _ => Class::Normal,
        },
        ..Who::demand(MachineId(1 + number as u32 % machines))
    };
    let mut under_way = VecDeque::new();
    let (mut now_us, mut number, mut served) = (0, 0, 0);
    let began = cpu_us();
    for _ in 0..u64::from(machines) * 4 {
        submit(&mut policy, now_us, who(number), number);
        number += 1;
    }
    while served < DECISIONS {
        now_us += 50;
        while under_way.len() < 8
            && let Some(taken) = policy.next(now_us, &mut |_, _| true)
        {
            under_way.push_back(taken);
        }
        if let Some((who, request)) = under_way.pop_front() {
            policy.served(now_us, who, Op::Read, READ_BYTES as u64);
            black_box(request);
            served += 1;
            submit(&mut policy, now_us, who, number);
            number += 1;
        }
    }
    (cpu_us() - began) / DECISIONS as f64
}
