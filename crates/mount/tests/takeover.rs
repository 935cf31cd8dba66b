//! Tests a node that is killed under a running machine, and the node that takes over.
#![allow(
    clippy::disallowed_methods,
    reason = "a test may ask whether a file is there"
)]

mod common;

use common::{DISK_BYTES, Node, Place, RAM_BYTES, Random, map};
use floe_mount::supervisor::{self, Client};
use floe_mount::{BlankDisk, BlankSpec, DiskSpec, ImageHandle, Keeper, MachineHandle, MachineSpec};
use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Runs the part of another process if an environment variable says which: this binary starts itself.
#[test]
fn role() {
    let Ok(role) = std::env::var("FLOE_TEST_ROLE") else {
        return;
    };
    let root = PathBuf::from(std::env::var("FLOE_TEST_ROOT").unwrap());
    if role == "supervisor" {
        return supervisor::run(&root.join("sock"), || ()).unwrap();
    }
    let id = std::env::var("FLOE_TEST_IMAGE").unwrap().parse().unwrap();
    let place = Place::found(&root, id);
    let mut options = place.options();
    options.keeper = Some(keeper(&root.join("sock")));
    if let Ok(threads) = std::env::var("FLOE_TEST_THREADS") {
        options.threads = threads.parse().unwrap();
    }
    std::fs::write(root.join(format!("starting-{}", std::process::id())), "").unwrap();
    let mut node = place.start(options);
    let _machine = place.machine(&node, "a");
    let waiting = match std::env::var("FLOE_TEST_BOUND").as_deref() {
        Ok("later") => Some(blank_machine(&place, &node)),
        Ok(_) => Some(place.machine(&node, "waiting")),
        Err(_) => None,
    };
    node.mount.takeover_done(|_| false);
    std::fs::write(root.join(format!("ready-{}", std::process::id())), "").unwrap();
    if std::env::var("FLOE_TEST_BOUND").as_deref() == Ok("later") {
        while !root.join("bind").exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(waiting);
        let image = node.image.clone().unwrap();
        let spec = waiting_spec(&place, image);
        node.mount.bind_machine(spec).unwrap();
        std::fs::write(root.join(format!("bound-{}", std::process::id())), "").unwrap();
    }
    node.mount.wait();
}

fn waiting_spec(place: &Place, image: ImageHandle) -> MachineSpec {
    MachineSpec {
        name: "waiting".into(),
        uid: 0,
        gid: 0,
        image,
        dir: place.root.join("machines/waiting"),
        disks: vec![DiskSpec::of_region("disk0", DISK_BYTES as u64)],
        base: None,
    }
}

fn blank_machine(place: &Place, node: &Node) -> MachineHandle {
    let image = node.mount.blank(BlankSpec {
        memory: vec![("ram".into(), RAM_BYTES as u64)],
        disks: vec![BlankDisk {
            name: "disk0".into(),
            size: DISK_BYTES as u64,
            beginning: Vec::new(),
        }],
    });
    let spec = waiting_spec(place, image);
    node.mount.add_machine(spec).unwrap()
}

/// Returns a keeper that starts no supervisor, because the test runs one in another process.
fn keeper(socket: &Path) -> Keeper {
    let wait = |socket: &Path| {
        while Client::connect(socket).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    };
    Keeper::start(socket, wait).unwrap()
}

struct Process(Child);

impl Process {
    fn command(role: &str, place: &Place) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "role", "--nocapture"])
            .env("FLOE_TEST_ROLE", role);
        command
            .env("FLOE_TEST_ROOT", &place.root)
            .env("FLOE_TEST_IMAGE", place.id.to_string());
        command
    }

    fn start(role: &str, place: &Place) -> Self {
        Self(Self::command(role, place).spawn().unwrap())
    }

    fn node(place: &Place) -> Self {
        Self::ready(Self::command("node", place), place)
    }

    fn ready(mut command: Command, place: &Place) -> Self {
        let mut node = Self(command.spawn().unwrap());
        node.reaches("ready", place);
        node
    }

    /// Waits until a node has reached a stage, which it reports by creating a file.
    fn reaches(&mut self, stage: &str, place: &Place) {
        let file = place.root.join(format!("{stage}-{}", self.0.id()));
        while !file.exists() {
            assert!(self.0.try_wait().unwrap().is_none(), "the node ended");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

fn supervisor_of(place: &Place) -> (Process, PathBuf) {
    let process = Process::start("supervisor", place);
    let socket = place.root.join("sock");
    while Client::connect(&socket).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    (process, socket)
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_killed_node_loses_no_write_and_no_reader_notices() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let (supervisor, socket) = supervisor_of(&place);
    let unmount = Unmount(place.root.join("mnt"));
    let mut node = Process::node(&place);
    let machine = place.root.join("mnt/machines/a");
    let stop = AtomicBool::new(false);
    let writes = AtomicU64::new(0);
    let touches = AtomicU64::new(0);
    let model = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .open(machine.join("disk0"))
                .unwrap();
            let mut model = place.disk.clone();
            let mut random = Random(3);
            while !stop.load(Ordering::Relaxed) {
                let unit = [100, 512, 4096][random.below(3) as usize];
                let at = random.below((DISK_BYTES as u64 - 65536) / unit) * unit;
                let data = vec![random.below(256) as u8; ((random.below(8) + 1) * unit) as usize];
                file.write_all_at(&data, at).unwrap();
                model[at as usize..][..data.len()].copy_from_slice(&data);
                if random.below(50) == 0 {
                    file.sync_data().unwrap();
                }
                writes.fetch_add(1, Ordering::Relaxed);
            }
            model
        });
        let reader = scope.spawn(|| {
            let memory = map(&machine.join("ram"));
            let mut random = Random(9);
            while !stop.load(Ordering::Relaxed) {
                let page = random.below(RAM_BYTES as u64 / 4096) as usize * 4096;
                assert!(memory[page..page + 4096] == place.ram[page..page + 4096]);
                touches.fetch_add(1, Ordering::Relaxed);
                // Drops pages that were read, so that memory stays cold.
                if random.below(1000) == 0 {
                    memory.advise(memmap2::Advice::Normal).unwrap();
                    let file = std::fs::File::open(machine.join("ram")).unwrap();
                    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
                }
            }
        });
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(300));
            node.0.kill().unwrap();
            node.0.wait().unwrap();
            std::thread::sleep(Duration::from_millis(50));
            node = Process::node(&place);
            let (w, t) = (
                writes.load(Ordering::Relaxed),
                touches.load(Ordering::Relaxed),
            );
            while writes.load(Ordering::Relaxed) < w + 20
                || touches.load(Ordering::Relaxed) < t + 20
            {
                assert!(!writer.is_finished() && !reader.is_finished());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        writer.join().unwrap()
    });
    assert!(std::fs::read(machine.join("disk0")).unwrap() == model);
    assert!(writes.load(Ordering::Relaxed) > 60);
    drop(unmount);
    drop(node);
    Client::connect(&socket).unwrap().quit().unwrap();
    drop(supervisor);
}

/// A VMM that waited on blank files, and the node that bound them is killed: the next node gives it the image's bytes.
#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn what_was_bound_under_a_killed_node_goes_on_under_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let (supervisor, socket) = supervisor_of(&place);
    let unmount = Unmount(place.root.join("mnt"));
    let node = |bound: &str| {
        let mut command = Process::command("node", &place);
        command.env("FLOE_TEST_BOUND", bound);
        Process::ready(command, &place)
    };
    let mut first = node("later");
    let waiting = place.root.join("mnt/machines/waiting");
    let memory = map(&waiting.join("ram"));
    let disk = std::fs::File::open(waiting.join("disk0")).unwrap();
    std::fs::write(place.root.join("bind"), "").unwrap();
    first.reaches("bound", &place);
    let half = RAM_BYTES / 2;
    assert!(memory[..half] == place.ram[..half]);
    first.kill();
    let second = node("already");
    assert!(memory[..] == place.ram[..]);
    let mut bytes = vec![0; DISK_BYTES];
    disk.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == place.disk);
    drop(unmount);
    drop(second);
    Client::connect(&socket).unwrap().quit().unwrap();
    drop(supervisor);
}

/// The map of a running machine's disk can't be read at a takeover, as when the host's disk has an error: that is told, everything stays
/// as it is, and once it can be read again the machine goes on with all that was written.
#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_map_that_can_not_be_read_at_a_takeover_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let (supervisor, socket) = supervisor_of(&place);
    let unmount = Unmount(place.root.join("mnt"));
    let first = Process::node(&place);
    let mut open = OpenOptions::new();
    let disk = open.read(true).write(true);
    let disk = disk.open(place.root.join("mnt/machines/a/disk0")).unwrap();
    let mut model = place.disk.clone();
    for (at, byte, flushed) in [(4096, 0x11, true), (1 << 20, 0x22, false)] {
        model[at..at + 8192].fill(byte);
        disk.write_all_at(&[byte; 8192], at as u64).unwrap();
        if flushed {
            disk.sync_data().unwrap();
        }
    }
    first.kill();

    let layers = place.root.join("machines/a/disks/disk0");
    let (map, kept) = (layers.join("layer-1.map"), place.root.join("kept"));
    std::fs::rename(&map, &kept).unwrap();
    std::os::unix::fs::symlink(&map, &map).unwrap(); // leads to itself
    let data = std::fs::read(layers.join("layer-1.data")).unwrap();
    let mut options = place.options();
    options.keeper = Some(keeper(&socket));
    let second = place.start(options);
    assert!(second.mount.took_over());
    let add = || {
        second.mount.add_machine(MachineSpec {
            name: "a".into(),
            dir: place.root.join("machines/a"),
            ..waiting_spec(&place, second.image.clone().unwrap())
        })
    };
    let told = add().err().unwrap().to_string();
    assert!(told.contains(map.to_str().unwrap()), "{told}");
    // its guest waits meanwhile, and finds everything once the disk can be read
    second.mount.takeover_done(|name| name == "a");
    assert!(std::fs::read(layers.join("layer-1.data")).unwrap() == data);
    assert_eq!(std::fs::read_dir(&layers).unwrap().count(), 3);

    std::fs::remove_file(&map).unwrap();
    std::fs::rename(&kept, &map).unwrap();
    let machine = add().unwrap();
    second.mount.takeover_done(|_| false);
    let mut now = vec![0; DISK_BYTES];
    disk.read_exact_at(&mut now, 0).unwrap();
    assert!(now == model);
    drop((disk, machine));
    second.mount.unmount().unwrap();
    drop(unmount);
    Client::connect(&socket).unwrap().quit().unwrap();
    drop(supervisor);
}

/// The kernel copies a request into the buffer of the thread that reads it. If that thread is killed at that moment, the
/// request must not be lost. Each thread's first read is such a moment, and there are as many threads as waiting requests.
#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn a_node_killed_in_its_first_moments_fails_no_write() {
    const WRITERS: usize = 16;
    const KILLS: usize = 60;
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let (supervisor, socket) = supervisor_of(&place);
    let unmount = Unmount(place.root.join("mnt"));
    let start = || {
        let mut command = Process::command("node", &place);
        command.env("FLOE_TEST_THREADS", WRITERS.to_string());
        Process(command.spawn().unwrap())
    };
    let mut first = start();
    first.reaches("ready", &place);
    let disk = place.root.join("mnt/machines/a/disk0");
    let stop = AtomicBool::new(false);
    let failed = Mutex::new(Vec::new());
    let node = std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (disk, stop, failed) = (&disk, &stop, &failed);
            scope.spawn(move || {
                let mut file = OpenOptions::new();
                file.read(true).write(true).custom_flags(libc::O_DIRECT);
                let file = file.open(disk).unwrap();
                let len = DISK_BYTES / WRITERS;
                let mut data = memmap2::MmapMut::map_anon(len).unwrap();
                for round in (1..=u8::MAX).cycle() {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    data.fill(round);
                    if let Err(error) = file.write_all_at(&data, (writer * len) as u64) {
                        failed.lock().unwrap().push(error);
                    }
                }
            });
        }
        let mut node = first;
        let mut random = Random(5);
        for _ in 0..KILLS {
            // The kill comes at any time from before the first read of the queue until some time after it.
            let delay = Duration::from_micros(random.below(30_000));
            let since = Instant::now();
            while since.elapsed() < delay {
                std::thread::yield_now();
            }
            node.kill();
            node = start();
            node.reaches("starting", &place);
        }
        node.reaches("ready", &place);
        stop.store(true, Ordering::Relaxed);
        // The scope ends when the writers do; until then the last node answers them.
        node
    });
    let failed = failed.into_inner().unwrap();
    assert!(
        failed.is_empty(),
        "{} writes failed: {failed:?}",
        failed.len()
    );
    drop(unmount);
    drop(node);
    Client::connect(&socket).unwrap().quit().unwrap();
    drop(supervisor);
}

#[test]
#[ignore = "needs root and /dev/fuse: make test-all"]
fn what_a_takeover_does_not_bring_back_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::make(dir.path());
    let (_supervisor, socket) = supervisor_of(&place);
    let _unmount = Unmount(place.root.join("mnt"));
    let mut node = Process::node(&place);
    let disk = place.root.join("mnt/machines/a/disk0");
    let file = std::fs::File::open(&disk).unwrap();
    node.0.kill().unwrap();
    node.0.wait().unwrap();
    let mut options = place.options();
    options.keeper = Some(keeper(&socket));
    let node = place.start(options);
    assert!(node.mount.took_over());
    assert_eq!(node.mount.expected(), (vec![], vec!["a".to_owned()]));
    std::thread::scope(|scope| {
        let early = scope.spawn(|| file.read_at(&mut [0; 512], 0));
        // locks the directory until it is answered, and the kernel locks that to forget the names in it
        let looks = scope.spawn(|| std::fs::metadata(disk.with_file_name("another")));
        std::thread::sleep(Duration::from_millis(200));
        assert!(
            !early.is_finished(),
            "a request for what isn't added yet waits"
        );
        // its machine can't be added yet, and is still waited for
        node.mount.takeover_done(|name| name == "a");
        std::thread::sleep(Duration::from_millis(200));
        assert!(!early.is_finished());
        assert_eq!(node.mount.expected().1, ["a"]);
        node.mount.takeover_done(|_| false);
        assert_eq!(
            early.join().unwrap().unwrap_err().raw_os_error(),
            Some(libc::ESTALE)
        );
        assert!(looks.join().unwrap().is_err());
    });
    assert!(!disk.exists());
    node.mount.unmount().unwrap();
}

#[test]
fn a_supervisor_that_is_just_ending_is_replaced_by_the_node_that_starts() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("sock");
    let start = |socket: PathBuf| std::thread::spawn(move || supervisor::run(&socket, || ()));
    let first = start(socket.clone());
    while Client::connect(&socket).is_err() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let (first, second) = (Mutex::new(Some(first)), Mutex::new(None));
    let second = std::sync::Arc::new(second);
    let started = second.clone();
    let ensure = move |socket: &Path| {
        // The supervisor answers, and ends before the node has connected.
        if let Some(first) = first.lock().unwrap().take() {
            Client::connect(socket).unwrap().quit().unwrap();
            first.join().unwrap().unwrap();
            return Ok(());
        }
        let mut second = started.lock().unwrap();
        if second.is_none() {
            *second = Some(start(socket.to_owned()));
        }
        while Client::connect(socket).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    };
    let keeper = Keeper::start(&socket, ensure).unwrap();
    keeper
        .hold("a", std::fs::File::open("/dev/null").unwrap())
        .unwrap();
    assert_eq!(keeper.list().unwrap(), ["a"]);
    keeper.end();
    second
        .lock()
        .unwrap()
        .take()
        .unwrap()
        .join()
        .unwrap()
        .unwrap();
}

#[test]
fn the_supervisor_keeps_descriptors_and_gives_them_back() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("sock");
    let serving = socket.clone();
    let thread = std::thread::spawn(move || supervisor::run(&serving, || ()));
    let mut client = loop {
        match Client::connect(&socket) {
            Ok(client) => break client,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let path = dir.path().join("file");
    std::fs::write(&path, "content").unwrap();
    client
        .put("a", std::fs::File::open(&path).unwrap())
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(client.list().unwrap(), ["a"]);
    let mut other = Client::connect(&socket).unwrap();
    let fd = other.get("a").unwrap().unwrap();
    assert!(
        rustix::io::fcntl_getfd(&fd)
            .unwrap()
            .contains(rustix::io::FdFlags::CLOEXEC)
    );
    assert_eq!(
        std::io::read_to_string(std::fs::File::from(fd)).unwrap(),
        "content"
    );
    assert!(client.get("b").unwrap().is_none());
    assert!(
        client
            .put(&"n".repeat(65), std::fs::File::open("/dev/null").unwrap())
            .is_err()
    );
    assert!(
        supervisor::run(&socket, || ()).is_err(),
        "there is one already"
    );
    assert!(client.drop_fd("a").unwrap() && !client.drop_fd("a").unwrap());
    client.quit().unwrap();
    assert!(other.list().is_err(), "one that ends answers nobody");
    thread.join().unwrap().unwrap();
    assert!(!Path::new(&socket).exists());
}
