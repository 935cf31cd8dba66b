//! `io-cost`: what it costs that the mount decides whose disk request goes first. Random reads of 4 KiB through a real mount, from
//! the chunks in the store's files on this host's disk, which are dropped from the page cache before each run: with the scheduler
//! (`--io vsip`) and without (`--io off`), in turn; and again from the page cache, where nobody queues. And the processor time of the scheduler's own
//! decisions, with the map of the disk's files and what guests' agents tell.
use anyhow::{Context as _, ensure};
use floe_extents::{Kind, Limits, Map};
use floe_image::MachineConfig;
use floe_mount::{
    DiskSpec, ImageSpec, IoScheduling, MachineHandle, MachineSpec, Mount, MountOptions,
};
use floe_sched::classify::{Classifier, ImageId, Name, Owned, Place, Program, Seen, Told};
use floe_sched::{MachineId, Op, Policy, Vsip, VsipConfig, Who};
use floe_store::{Ingest, IngestOptions};
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::local::LocalMount;
use floe_testbed::slow_disk::output_of;
use floe_testbed::workload;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
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
/// Threads of a mount that give requests to the disk.
const WORKERS: usize = 8;
/// Requests of a machine between two inputs, of one file, and of one program.
const INPUT_EVERY: u64 = 4_000;
const READS_OF_FILE: u64 = 16;
const READS_OF_PROGRAM: u64 = 512;
/// Files that a machine reads, how many there are on its disk, and how many of those a directory has.
const FILES: usize = 200;
const FILES_ALL: usize = 10_000;
const FOLDER_FILES: usize = 50;
/// So many of these files lie between two that are read one after the other: nobody reads them in the order of the disk.
const FILES_APART: usize = 77;
/// Bytes of that disk.
const DISK_BYTES: u64 = 256 << 20;
/// Programs of a machine.
const PROGRAMS: usize = 64;
/// A guest's agent tells so often, in microseconds, and at most of so many parts of a disk.
const AGENT_TELLS_US: u64 = 40_000;
const AGENT_PARTS: usize = 48;
/// Most requests that are queued meanwhile.
const QUEUED_MAX: usize = 4096;

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("io-cost", context.quick);
    let (rounds, bytes) = context.pick((7, 512 << 20), (2, 32 << 20));
    let reads = context.pick(12_000, 1000);
    let disk = MappedDisk::new(&context.scratch, context.pick(FILES_ALL, 2 * FILES))?;
    decisions(&mut report, rounds, &disk)?;
    let bench = Bench::new(&context.scratch, bytes)?;
    for machines in MACHINES {
        for from in [From::Disk, From::Memory] {
            compare(&mut report, &bench, (machines, from), (rounds, reads))?;
        }
    }
    report.note(format!(
        "{reads} reads of 4 KiB at random places of {} MB in the store's files, {THREADS} threads or one for each machine, page cache dropped before \
         each run, {rounds} pairs of runs in turn",
        bytes / 1_000_000
    ));
    report.note(
        "us_per_request is the processor time of all decisions about a request alone (whose file it is, what the guest's agent tells of it, who asks, queue, choose, report as served), in a loop, with 8 machines; by \
         number of machines beside it. us_per_hit is the same of a request that the page cache answers: whose file, what is told, who asks, and nothing else. live_added_us_per_request is what the whole process used more for a read with the \
         scheduler than without, without a map of files and an agent: also the attempt to read without waiting and the way to another thread, which --io off has only when its threads are taken",
    );
    Ok(report)
}

/// Where the chunks are that are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    /// On the host's disk.
    Disk,
    /// In the page cache.
    Memory,
}

/// Adds what the scheduler changes of reads by so many machines.
fn compare(
    report: &mut Report,
    bench: &Bench,
    (machines, from): (usize, From),
    (rounds, reads): (usize, usize),
) -> anyhow::Result<()> {
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
            let (per_s, cpu_us) = bench.read(side, (machines, from), reads, seed)?;
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
    let (ratio, added) = match from {
        From::Disk => ("rand_read_ratio", "live_added_us_per_request"),
        From::Memory => ("hit_read_ratio", "live_added_us_per_hit"),
    };
    let name = |figure: &str| match machines {
        1 => figure.to_owned(),
        more => format!("{figure}_{more}_machines"),
    };
    report
        .add(&name(ratio), "x", &with.per_s.over(&without.per_s))
        .against(
            "the same mount with --io off",
            "reads/s",
            without.per_s.median(),
        );
    report.add(&name(added), "us", &added_us).against(
        "all of the process with --io off",
        "us",
        without.cpu_us.median(),
    );
    Ok(())
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

    /// Brings all chunks into the page cache.
    fn warm(&self) -> anyhow::Result<()> {
        for file in &self.files {
            std::io::copy(&mut File::open(file)?, &mut std::io::sink())?;
        }
        Ok(())
    }

    /// Reads at random places, each once; returns the reads per second and the processor time of this process for each, in
    /// microseconds.
    fn read(
        &self,
        side: &Side,
        (machines, from): (usize, From),
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
        match from {
            From::Disk => self.drop_cache()?,
            From::Memory => self.warm()?,
        }
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

/// Adds what decisions cost.
fn decisions(report: &mut Report, rounds: usize, disk: &MappedDisk) -> anyhow::Result<()> {
    for machines in MACHINES {
        let (mut requests, mut hits) = (Samples::default(), Samples::default());
        for _ in 0..rounds {
            requests.push(us_per_decision(Askers::new(machines as u32, disk)?, false));
            hits.push(us_per_decision(Askers::new(machines as u32, disk)?, true));
        }
        for (name, costs) in [("us_per_request", requests), ("us_per_hit", hits)] {
            let name = match machines {
                8 => name.to_owned(),
                other => format!("{name}_{other}_machines"),
            };
            report.add(&name, "us", &costs);
        }
    }
    Ok(())
}

/// What the mount knows of a machine's disk, and where the files are that machines read.
struct MappedDisk {
    map: Map,
    places: Vec<u64>,
}

impl MappedDisk {
    /// Makes an ext4 with so many files, `FILES` of which are large enough to be read, and its map.
    fn new(dir: &Path, files: usize) -> anyhow::Result<MappedDisk> {
        let (tree, disk) = (dir.join("tree"), dir.join("mapped.raw"));
        let large = READS_OF_FILE as usize * READ_BYTES;
        for number in 0..files {
            let folder = tree.join((number / FOLDER_FILES).to_string());
            std::fs::create_dir_all(&folder)?;
            let is_read = number.is_multiple_of(files / FILES);
            let bytes = if is_read { large } else { READ_BYTES };
            std::fs::write(folder.join(number.to_string()), vec![7; bytes])?;
        }
        File::create(&disk)?.set_len(DISK_BYTES)?;
        let mut make = Command::new("mkfs.ext4");
        output_of(make.args(["-q", "-b", "4096", "-d"]).arg(&tree).arg(&disk))?;
        std::fs::remove_dir_all(&tree)?;
        let map = Map::read(&std::fs::read(&disk)?[..], Limits::default())?;
        std::fs::remove_file(&disk)?;
        let places: Vec<u64> = map
            .extents()
            .filter(|(range, kind)| {
                matches!(kind, Kind::File(_)) && range.end - range.start >= large as u64
            })
            .map(|(range, _)| range.start)
            .collect();
        ensure!(places.len() >= FILES / 2, "{} large files", places.len());
        Ok(MappedDisk { map, places })
    }

    /// Returns whose a byte of it is: the file, and its directory.
    fn of(&self, offset: u64) -> (Option<Program>, Option<Program>) {
        let image = ImageId([1; 32]);
        let Some(Kind::File(file)) = self.map.at(offset) else {
            return (None, None);
        };
        let folder = self.map.directory(file).map(|folder| Program::Folder {
            image,
            inode: u64::from(folder.inode),
        });
        let inode = u64::from(file.inode);
        (Some(Program::File { image, inode }), folder)
    }
}

/// What a guest's agent has not told yet, and when it told last.
#[derive(Clone, Default)]
struct Agent {
    parts: Vec<Told>,
    told_us: u64,
}

impl Agent {
    /// Notes a read as an agent does: it tells of neighbours in one.
    fn reads(&mut self, name: Name, offset: u64) {
        let bytes = READ_BYTES as u64;
        let is_full = self.parts.len() >= AGENT_PARTS;
        match self.parts.last_mut() {
            Some(last) if last.name == name && last.from == offset.checked_sub(last.bytes) => {
                last.bytes += bytes;
            }
            _ if !is_full => self.parts.push(Told {
                name,
                from: Some(offset),
                bytes,
            }),
            _ => {}
        }
    }
}

/// Machines whose requests are classified as the mount does it: each of a file, now and then after an input. Their agents tell which program
/// has read what.
struct Askers<'a> {
    classifier: Classifier,
    machines: u32,
    disk: &'a MappedDisk,
    programs: Vec<Name>,
    agents: Vec<Agent>,
}

impl<'a> Askers<'a> {
    fn new(machines: u32, disk: &'a MappedDisk) -> anyhow::Result<Askers<'a>> {
        let mut classifier = Classifier::new();
        let of = Owned {
            disk: ImageId([1; 32]),
            uid: 1000,
        };
        (1..=machines).for_each(|machine| classifier.began(0, MachineId(machine), of));
        let programs = (0..PROGRAMS).map(|number| Name::new(&format!("program-{number}")));
        Ok(Askers {
            classifier,
            machines,
            disk,
            programs: programs.collect::<Result<_, _>>()?,
            agents: vec![Agent::default(); machines as usize],
        })
    }

    /// Returns who makes the request of this number.
    fn who(&mut self, now_us: u64, number: u64) -> Who {
        let machine = MachineId(1 + (number % u64::from(self.machines)) as u32);
        let of_machine = number / u64::from(self.machines);
        if of_machine.is_multiple_of(INPUT_EVERY) {
            self.classifier.input(now_us, machine);
        }
        let agent = &mut self.agents[(machine.0 - 1) as usize];
        if now_us - agent.told_us >= AGENT_TELLS_US {
            self.classifier.told(now_us, machine, &agent.parts);
            agent.parts.clear();
            agent.told_us = now_us;
        }
        let file = (of_machine / READS_OF_FILE) as usize * FILES_APART % self.disk.places.len();
        let within = of_machine % READS_OF_FILE * READ_BYTES as u64;
        let offset = self.disk.places[file] + within;
        let program = (of_machine / READS_OF_PROGRAM) as usize % PROGRAMS;
        agent.reads(self.programs[program], offset);
        let (file, folder) = self.disk.of(offset);
        let seen = Seen {
            machine,
            program: file.as_ref(),
            folder: folder.as_ref(),
            place: Some(Place { region: 0, offset }),
            bytes: READ_BYTES as u64,
            op: Op::Read,
        };
        Who {
            class: self.classifier.request(now_us, &seen),
            ..Who::demand(machine)
        }
    }
}

/// Serves requests at an SSD's pace, four at a time for each machine; returns the microseconds that the decisions about each took, from whose file it
/// is to being reported as served, without the device. Of hits: to who asks.
fn us_per_decision(mut askers: Askers, hits: bool) -> f64 {
    let mut policy: Vsip<u64> = Vsip::new(VsipConfig::disk(QUEUED_MAX, WORKERS));
    let machines = askers.machines;
    let mut under_way = VecDeque::new();
    let (mut now_us, mut number, mut served) = (0, 0, 0);
    let began = cpu_us();
    if hits {
        while number < DECISIONS {
            now_us += 50;
            black_box(askers.who(now_us, number));
            number += 1;
        }
        return (cpu_us() - began) / DECISIONS as f64;
    }
    for _ in 0..u64::from(machines) * 4 {
        let who = askers.who(now_us, number);
        let _ = policy.submit(now_us, who, Op::Read, 4096, number);
        number += 1;
    }
    while served < DECISIONS {
        now_us += 50;
        while under_way.len() < WORKERS
            && let Some(taken) = policy.next(now_us, &mut |_, _| true)
        {
            under_way.push_back(taken);
        }
        if let Some((who, request)) = under_way.pop_front() {
            policy.served(now_us, who, Op::Read, 4096);
            black_box(request);
            served += 1;
            // whoever was served asks again
            let next = number - number % u64::from(machines) + u64::from(who.machine.0 - 1);
            let who = askers.who(now_us, next);
            let _ = policy.submit(now_us, who, Op::Read, 4096, next);
            number += 1;
        }
    }
    (cpu_us() - began) / DECISIONS as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_sched::Class;

    #[test]
    fn askers_take_turns_and_some_of_what_they_ask_for_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let disk = MappedDisk::new(dir.path(), FILES).unwrap();
        assert!(disk.places.iter().all(|place| disk.of(*place).1.is_some()));
        let mut askers = Askers::new(8, &disk).unwrap();
        let mut classes = [0; 3];
        for number in 0..80_000u64 {
            let who = askers.who(number * 50, number);
            assert_eq!(who.machine, MachineId(1 + (number % 8) as u32));
            classes[who.class as usize] += 1;
        }
        let interactive = classes[Class::Interactive as usize];
        assert!(interactive > 0 && interactive < 80_000, "{classes:?}");
    }
}
