//! `ways`: a guest with a file system goes from one way in which a machine comes to run to the next, in every ordered pair of them. Between
//! two ways it writes, also into the middle of a file, and syncs; after each way its caches are dropped and all that it wrote is compared.
//!
//! A full run takes long, so that it can be done in sittings (`--kept FILE --minutes N`), and goes on where it was cut.
use anyhow::{Context as _, bail, ensure};
use floe_api::{
    ActivateRequest, DockRequest, Event, ForkRequest, IndependentRequest, Limits, ResizeRequest,
    RestartRequest, RunRequest, StartRequest, StopRequest, Wait,
};
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Kept, Report};
use floe_testbed::live::{Hub, Node, import_request, tell_console};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time for a guest to boot and do what it is told, under emulation on a busy host.
const PATIENCE: Duration = Duration::from_secs(300);
const DISK_BYTES: u64 = 96 << 20;
const MEMORY_BYTES: u64 = 128 << 20;
/// Bytes of each new file, and of the file that is written in its middle, a block at a time.
const FILE_BYTES: usize = 700_001;
const BOOK_BYTES: usize = 1 << 20;
const BLOCK_BYTES: usize = 4096;
/// So many of the new files are kept.
const FILES_KEPT: usize = 12;
/// How often a run is repeated that should have found a QEMU waiting for its image.
const STANDBY_TRIES: usize = 100;
/// How often a machine is captured and run anew until a QEMU was waiting for its hardware.
const BLANK_TRIES: usize = 10;

/// Options of the experiment.
#[derive(clap::Args)]
pub struct Options {
    /// Goes only so many ways, each once before any comes again [default: all ordered pairs of ways]
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
    /// Keep what came of each way in FILE, and take from there what this very code has gone on this machine: one that was cut goes on
    #[arg(long, value_name = "FILE", conflicts_with = "steps")]
    kept: Option<PathBuf>,
    /// Go no further way after so many minutes
    #[arg(long, value_name = "N", requires = "kept")]
    minutes: Option<u64>,
}

/// A way in which a machine comes to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Way {
    /// An image's running state, in a QEMU of its own.
    Run,
    /// The same, in a QEMU that waited for this image.
    Standby,
    /// The same, in a QEMU that waited for an image with this hardware.
    Blank,
    /// An image's disks.
    Boot,
    Clone,
    Wake,
    WakeOfClone,
    Activate,
    Start,
    Restart,
    /// Under a node that starts after another one was killed.
    Adopt,
    /// With a larger disk.
    Resize,
    /// On another node, over a hub that it needs no more.
    Independent,
}

const WAYS: [Way; 13] = [
    Way::Run,
    Way::Standby,
    Way::Blank,
    Way::Boot,
    Way::Clone,
    Way::Wake,
    Way::WakeOfClone,
    Way::Activate,
    Way::Start,
    Way::Restart,
    Way::Adopt,
    Way::Resize,
    Way::Independent,
];

/// Runs the experiment.
///
/// # Errors
/// If nodes, the hub or the first guest do not start. A machine that is lost, and a byte that is wrong, are broken promises of the report.
pub fn run(context: &Context, options: &Options) -> anyhow::Result<Report> {
    let steps = options.steps.or(context.quick.then_some(WAYS.len()));
    let walk = match steps {
        Some(steps) => WAYS.into_iter().cycle().take(steps).collect(),
        None => all_pairs(),
    };
    let mut report = Report::new("ways", context.quick || steps.is_some());
    let mut kept: Kept<usize, Told> = Kept::open(options.kept.as_deref(), "ways", context.quick)?;
    let until = options
        .minutes
        .map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    let mut world = None;
    for (number, way) in walk.iter().enumerate() {
        if kept.told.contains_key(&number) || until.is_some_and(|until| Instant::now() >= until) {
            continue;
        }
        let world = match &mut world {
            Some(world) => world,
            None => world.insert(World::new(&context.scratch)?),
        };
        eprint!("{number}: ");
        let before = number.checked_sub(1).map(|number| walk[number]);
        let told = world.come_after(before, *way)?;
        kept.put(&number, &told)?;
        kept.told.insert(number, told);
    }
    tell(&kept.told, &mut report);
    report.lacks(walk.len() - kept.told.len(), walk.len(), "ways");
    Ok(report)
}

/// What came of a way.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Told {
    /// The way before it and this one, if the machine went both and nothing is wrong.
    pair: Option<(Way, Way)>,
    wrong_bytes: u64,
    lost_machines: u64,
    /// What went wrong.
    wrong: Option<String>,
}

/// Adds the figures, and the promises that were broken.
fn tell(told: &BTreeMap<usize, Told>, report: &mut Report) {
    let pairs: BTreeSet<_> = told.values().filter_map(|told| told.pair).collect();
    let wrong: u64 = told.values().map(|told| told.wrong_bytes).sum();
    let lost: u64 = told.values().map(|told| told.lost_machines).sum();
    report.add_value("pairs", "count", pairs.len() as f64);
    report.add_value("wrong_bytes", "B", wrong as f64);
    report.add_value("lost_machines", "count", lost as f64);
    for wrong in told.values().filter_map(|told| told.wrong.as_ref()) {
        report.fail(wrong);
    }
}

/// A walk in which each way follows each one, itself included: an Eulerian circuit of the complete graph.
fn all_pairs() -> Vec<Way> {
    let mut left: Vec<Vec<Way>> = WAYS.iter().map(|_| WAYS.to_vec()).collect();
    let (mut path, mut walk) = (vec![WAYS[0]], Vec::new());
    while let Some(at) = path.last() {
        match left[*at as usize].pop() {
            Some(next) => path.push(next),
            None => walk.extend(path.pop()),
        }
    }
    walk.reverse();
    walk
}

/// The machine that goes the ways, where it is, and what must be on its disk.
struct World {
    nodes: [Node; 2],
    hub: Hub,
    /// Which of the nodes has the machine.
    here: usize,
    machine: String,
    /// By which way it came to run; `None` if it has begun anew.
    by: Option<Way>,
    disk_bytes: u64,
    /// Names for machines, images and substrates so far.
    names: u32,
    /// Writes so far.
    writes: usize,
    /// Files by name, and the one that is written in its middle.
    files: Vec<(String, Vec<u8>)>,
    book: Vec<u8>,
}

impl World {
    fn new(scratch: &Path) -> anyhow::Result<World> {
        let disk = scratch.join("disk.raw");
        make_disk(&disk)?;
        let homes = ["a", "b"].map(|name| scratch.join(name));
        let nodes = [
            Node::start(None, &homes[0], true)?,
            Node::start(None, &homes[1], true)?,
        ];
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = free.local_addr()?.port();
        drop(free);
        let hub = Hub::start(None, &scratch.join("hub"), Ipv4Addr::LOCALHOST, port)?;
        let tiny = Guest::tiny()?;
        for node in &nodes {
            let mut request = import_request(&tiny, "first", tiny.cmdline()?);
            request.disks = vec![disk.display().to_string()];
            request.memory_bytes = Some(MEMORY_BYTES);
            request.cpus = Some(1);
            node.client.import(&request)?.finish(|_| ())?;
        }
        let mut world = World {
            nodes,
            hub,
            here: 0,
            machine: String::new(),
            by: None,
            disk_bytes: DISK_BYTES,
            names: 0,
            writes: 0,
            files: Vec::new(),
            book: Vec::new(),
        };
        world.begin_anew()?;
        Ok(world)
    }

    fn node(&self) -> &Node {
        &self.nodes[self.here]
    }

    fn name(&mut self, kind: &str) -> String {
        self.names += 1;
        format!("{kind}{}", self.names)
    }

    /// Lets the machine come to run in a way after another one, which it goes first if it has begun anew.
    fn come_after(&mut self, before: Option<Way>, way: Way) -> anyhow::Result<Told> {
        if let (None, Some(before)) = (self.by, before) {
            let told = self.come(before)?;
            if told.wrong.is_some() {
                return Ok(told);
            }
        }
        self.come(way)
    }

    /// Lets the machine come to run in a way, compares its disk, and writes to it. It begins anew if anything is wrong.
    fn come(&mut self, way: Way) -> anyhow::Result<Told> {
        let from = self.by.map_or("boot".to_owned(), |way| format!("{way:?}"));
        let step = format!("{from} -> {way:?}");
        eprintln!("{step}");
        let went = self.go(way).and_then(|()| self.ask_whether_it_lives());
        let mut compared = went.and_then(|()| self.wrong_bytes());
        if matches!(compared, Ok(0)) {
            compared = self.write().map(|()| 0);
        }
        let mut told = Told::default();
        match compared {
            Ok(0) => {
                told.pair = self.by.map(|before| (before, way));
                self.by = Some(way);
                return Ok(told);
            }
            Ok(bytes) => {
                told.wrong_bytes = bytes;
                told.wrong = Some(format!("{step}: {bytes} bytes are wrong"));
            }
            Err(error) => {
                told.lost_machines = 1;
                told.wrong = Some(format!("{step}: {error:#}"));
            }
        }
        self.begin_anew()?;
        Ok(told)
    }

    /// Boots a new machine with an empty disk, in place of all that there are.
    fn begin_anew(&mut self) -> anyhow::Result<()> {
        for node in &self.nodes {
            for machine in node.client.machines()?.machines {
                node.remove(&machine.name)?;
            }
        }
        self.machine = self.name("m");
        self.by = None;
        self.disk_bytes = DISK_BYTES;
        self.node().boot("first", &self.machine)?;
        self.mount()?;
        self.files.clear();
        self.book = vec![0; BOOK_BYTES];
        self.tell(&format!(
            "head -c {BOOK_BYTES} /dev/zero > /data/book && sync"
        ))?;
        self.write()
    }

    fn tell(&self, command: &str) -> anyhow::Result<()> {
        let console = self.node().client.attach(&self.machine)?;
        tell_console(console, command, PATIENCE).map(drop)
    }

    fn mount(&self) -> anyhow::Result<()> {
        self.tell("mkdir -p /data; grep -q ' /data ' /proc/mounts || mount -t ext4 /dev/vda /data")
    }

    /// Writes a new file, and a block in the middle of another one, syncs, and notes what must be there from now on.
    fn write(&mut self) -> anyhow::Result<()> {
        self.writes += 1;
        let number = self.writes;
        let (file, word, other) = (
            format!("f{number:04}"),
            format!("file-{number}"),
            format!("block-{number}"),
        );
        let gone = match self.files.len() >= FILES_KEPT {
            true => self.files.remove(0).0,
            false => String::new(),
        };
        let at = number * 37 % (BOOK_BYTES / BLOCK_BYTES);
        self.tell(&format!(
            "cd /data && rm -f x{gone} {gone} && yes {word} | head -c {FILE_BYTES} > {file} && \
             yes {other} | head -c {BLOCK_BYTES} | dd of=book bs={BLOCK_BYTES} seek={at} conv=notrunc 2>/dev/null && cd / && sync"
        ))?;
        self.files.push((file, repeated(&word, FILE_BYTES)));
        self.book[at * BLOCK_BYTES..][..BLOCK_BYTES]
            .copy_from_slice(&repeated(&other, BLOCK_BYTES));
        Ok(())
    }

    /// Asks again and again: what is said to a guest that boots is lost.
    fn ask_whether_it_lives(&self) -> anyhow::Result<()> {
        const EACH: Duration = Duration::from_secs(10);
        let answers = |console| tell_console(console, "", EACH).is_ok();
        self.until("it does not answer", |_| {
            Ok(self.node().client.attach(&self.machine).is_ok_and(answers))
        })
    }

    /// Drops the guest's caches and compares all that is on its disk. Returns the bytes of the files that are not as they were written; a
    /// complaint of the guest's file system counts as one.
    fn wrong_bytes(&self) -> anyhow::Result<u64> {
        self.mount()?;
        self.tell("echo 3 > /proc/sys/vm/drop_caches")?;
        let book = ("book".to_owned(), self.book.clone());
        let mut wrong = 0;
        for (name, content) in self.files.iter().chain([&book]) {
            let sum = md5(content)?;
            let same = self.tell(&format!("md5sum < /data/{name} | grep -q {sum}"));
            wrong += same.map_or(content.len() as u64, |()| 0);
        }
        let quiet = self.tell("! dmesg | grep 'EXT4-fs.*error'");
        Ok(wrong + u64::from(quiet.is_err()))
    }

    /// Brings the machine to run in another way.
    fn go(&mut self, way: Way) -> anyhow::Result<()> {
        match way {
            Way::Run => {
                let image = self.become_image()?;
                // no QEMU waits with limits that no machine had before
                let limits = Limits {
                    cpu_millicores: Some(64_000 + self.names),
                    ..Limits::default()
                };
                let waited = self.run(&image, limits, false)?;
                ensure!(!waited, "it found a QEMU that waited");
            }
            Way::Blank => self.run_on_blank()?,
            Way::Standby => self.run_on_standby()?,
            Way::Boot => {
                let image = self.become_image()?;
                self.run(&image, Limits::default(), true)?;
            }
            Way::Clone => self.become_clone(false)?,
            Way::Wake => self.park_and_wake()?,
            Way::WakeOfClone => {
                self.become_clone(true)?;
                self.park_and_wake()?;
            }
            Way::Activate => self.dock_and_activate()?,
            Way::Start => {
                let now = StopRequest {
                    now: true,
                    ..StopRequest::default()
                };
                self.node().client.stop(&self.machine, &now)?;
                let started = self
                    .node()
                    .client
                    .start(&self.machine, &StartRequest::default())?;
                started.finish(|_| ())?;
            }
            Way::Restart => {
                let mut request = RestartRequest::default();
                request.stop.now = true;
                let restarted = self.node().client.restart(&self.machine, &request)?;
                restarted.finish(|_| ())?;
            }
            Way::Adopt => self.nodes[self.here].kill_and_start_again(&["--standby"])?,
            Way::Resize => {
                self.disk_bytes += 1 << 20;
                let request = ResizeRequest {
                    disk: "disk0".into(),
                    bytes: self.disk_bytes,
                };
                self.node().client.resize_disk(&self.machine, &request)?;
            }
            Way::Independent => self.move_to_the_other_node()?,
        }
        Ok(())
    }

    /// Captures the machine as an image, and removes it.
    fn become_image(&mut self) -> anyhow::Result<String> {
        let image = self.name("i");
        self.node().capture(&self.machine, &image, true, 0)?;
        self.node().remove(&self.machine)?;
        Ok(image)
    }

    /// Runs an image as a new machine. Returns whether it found a QEMU that waited.
    fn run(&mut self, image: &str, limits: Limits, cold: bool) -> anyhow::Result<bool> {
        self.machine = self.name("m");
        let request = RunRequest {
            image: image.into(),
            name: Some(self.machine.clone()),
            limits,
            cold,
            wait: Wait::None,
            ..RunRequest::default()
        };
        let mut waited = false;
        self.node().run(&request, |event| {
            waited |= matches!(event, Event::Stage { name, .. } if name == "standby");
        })?;
        if cold {
            self.until_it_has_booted()?;
        }
        Ok(waited)
    }

    fn run_on_standby(&mut self) -> anyhow::Result<()> {
        let image = self.become_image()?;
        self.run(&image, Limits::default(), false)?;
        // a QEMU that waits for hardware only has no weight: what waits for one with a weight has loaded this image
        let weighs = Limits {
            io_weight: Some(200),
            ..Limits::default()
        };
        for _ in 0..STANDBY_TRIES {
            self.node().remove(&self.machine)?;
            if self.run(&image, weighs, false)? {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(200)); // one is being started
        }
        bail!("no QEMU waited for {image}")
    }

    fn run_on_blank(&mut self) -> anyhow::Result<()> {
        for _ in 0..BLANK_TRIES {
            // nobody ran this state before, so no QEMU has loaded it
            let image = self.become_image()?;
            if self.run(&image, Limits::default(), false)? {
                return Ok(());
            }
            // one is being started for the next run of a machine like this
            self.until("no QEMU waits for this hardware", |node| {
                Ok(node.client.node()?.blanks > 0)
            })?;
        }
        bail!("no QEMU that waited was taken")
    }

    /// Goes on as the machine's clone. With `settle` what it was cloned from is stored at once, otherwise when the host has time for that.
    fn become_clone(&mut self, settle: bool) -> anyhow::Result<()> {
        let request = ForkRequest {
            clones: 1,
            settle,
            ..ForkRequest::default()
        };
        let fork = self.node().client.fork(&self.machine, &request)?;
        let fork = fork
            .finish(|_| ())?
            .fork
            .context("a fork answers with its report")?;
        let clone = fork.clones.first().context("no clone was asked for")?;
        let clone = clone.name.clone();
        ensure!(fork.running == 1, "{:?}", fork.clones);
        self.node().remove(&self.machine)?;
        self.machine = clone;
        Ok(())
    }

    fn park_and_wake(&mut self) -> anyhow::Result<()> {
        let client = &self.node().client;
        self.until("what it was cloned from is not stored", |node| {
            let cloned = node.machine(&self.machine)?.cloned;
            Ok(cloned.is_none_or(|cloned| cloned.settled))
        })?;
        client
            .park(&self.machine, &Default::default())?
            .finish(|_| ())?;
        let request = StartRequest::default();
        client.wake(&self.machine, &request)?.finish(|_| ())?;
        Ok(())
    }

    fn dock_and_activate(&mut self) -> anyhow::Result<()> {
        let substrate = self.name("s");
        let request = DockRequest {
            name: substrate.clone(),
            ..DockRequest::default()
        };
        let client = &self.node().client;
        client.dock(&self.machine, &request)?.finish(|_| ())?;
        let machine = self.name("m");
        let request = ActivateRequest {
            name: Some(machine.clone()),
            answer_s: Some(0),
            ..ActivateRequest::default()
        };
        let client = &self.node().client;
        // who was docked stands still and is there until it is removed
        self.node().remove(&self.machine)?;
        client.activate(&substrate, &request)?.finish(|_| ())?;
        self.machine = machine;
        Ok(())
    }

    fn move_to_the_other_node(&mut self) -> anyhow::Result<()> {
        let image = self.become_image()?;
        self.node().publish(&image, &self.hub)?;
        self.here = 1 - self.here;
        let from = self.hub.address(&image);
        self.run(&from, Limits::default(), false)?;
        let request = IndependentRequest {
            wait: true,
            ..IndependentRequest::default()
        };
        let client = &self.node().client;
        client
            .independent(&self.machine, &request)?
            .finish(|_| ())?;
        Ok(())
    }

    fn until_it_has_booted(&self) -> anyhow::Result<()> {
        let log = PathBuf::from(self.node().client.console(&self.machine)?.log);
        self.until("it does not boot", |_| {
            let text = std::fs::read(&log)?;
            Ok(String::from_utf8_lossy(&text).contains(floe_testbed::guest::READY))
        })
    }

    fn until(&self, not: &str, is: impl Fn(&Node) -> anyhow::Result<bool>) -> anyhow::Result<()> {
        let began = Instant::now();
        while !is(self.node())? {
            ensure!(began.elapsed() < PATIENCE, "{not}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

/// What `yes WORD | head -c BYTES` prints.
fn repeated(word: &str, bytes: usize) -> Vec<u8> {
    format!("{word}\n")
        .into_bytes()
        .into_iter()
        .cycle()
        .take(bytes)
        .collect()
}

fn md5(content: &[u8]) -> anyhow::Result<String> {
    let mut md5sum = Command::new("md5sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut input = md5sum.stdin.take().context("it was started with a pipe")?;
    input.write_all(content)?;
    drop(input);
    let said = String::from_utf8(md5sum.wait_with_output()?.stdout)?;
    Ok(said.split(' ').next().unwrap_or_default().to_owned())
}

fn make_disk(path: &Path) -> anyhow::Result<()> {
    std::fs::File::create(path)?.set_len(DISK_BYTES)?;
    let made = Command::new("mkfs.ext4").arg("-q").arg(path).status()?;
    ensure!(made.success(), "mkfs.ext4: {made}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_follows_each_way_once() {
        let walk = all_pairs();
        let pairs: BTreeSet<_> = walk.windows(2).map(|two| (two[0], two[1])).collect();
        assert_eq!(pairs.len(), WAYS.len() * WAYS.len());
        assert_eq!(walk.len(), pairs.len() + 1);
    }

    #[test]
    fn ways_of_several_sittings_are_told_together() {
        let right = Told {
            pair: Some((Way::Run, Way::Wake)),
            ..Told::default()
        };
        let wrong = Told {
            wrong_bytes: 7,
            wrong: Some("Wake -> Run: 7 bytes are wrong".into()),
            ..Told::default()
        };
        let lost = Told {
            lost_machines: 1,
            wrong: Some("boot -> Adopt: it does not answer".into()),
            ..Told::default()
        };
        let told = [Told::default(), right, wrong, lost]
            .into_iter()
            .enumerate();
        let line = serde_json::to_string(&told.collect::<BTreeMap<_, _>>()).unwrap();
        let mut report = Report::new("ways", true);
        tell(&serde_json::from_str(&line).unwrap(), &mut report);
        for (name, value) in [("pairs", 1.0), ("wrong_bytes", 7.0), ("lost_machines", 1.0)] {
            assert_eq!(report.figures[name].value, value, "{name}");
        }
        assert_eq!(report.violations.len(), 2);
    }

    #[test]
    fn what_is_written_is_what_yes_prints() {
        assert_eq!(repeated("ab", 7), b"ab\nab\na");
        assert_eq!(md5(b"").unwrap(), "d41d8cd98f00b204e9800998ecf8427e");
    }
}
