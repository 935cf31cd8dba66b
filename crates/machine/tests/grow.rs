//! Tests of hardware that is added to a running, a restored and a cloned guest, and is kept in captures.

mod common;

use std::path::{Path, PathBuf};
use std::time::Duration;

use common::*;
use floe_machine::{
    Capture, CaptureOptions, GrowError, MEMORY_STEP_BYTES, Machine, MachineError, Profile,
    Reception, Spec, User,
};

const DISK_BYTES: u64 = 8 << 20;
/// Brings everything online that was added to the guest, as a distribution's udev rules do.
const ONLINE: &str = "for cpu in /sys/devices/system/cpu/cpu[1-9]*/online; do echo 1 > $cpu; done; \
    for block in /sys/devices/system/memory/memory*/state; do \
    grep -q offline $block && echo online_movable > $block; done";

/// The hardware that a guest sees.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    cpus: u64,
    memory_mib: u64,
    cards: u64,
    disks: Vec<String>,
}

fn look(console: &mut Console) -> Seen {
    let said = console.run(
        "nproc; awk '/MemTotal/ {print int($2/1024)}' /proc/meminfo; ls /sys/class/net | grep -c eth; \
         for disk in /sys/block/vd*; do [ -e $disk ] && echo $(cat $disk/serial); done",
    );
    let mut lines = said.lines().map(str::trim);
    let mut number = || lines.next().unwrap_or_default().parse().unwrap_or(u64::MAX);
    let (cpus, memory_mib, cards) = (number(), number(), number());
    let mut disks: Vec<String> = lines.map(str::to_owned).collect();
    disks.sort();
    Seen {
        cpus,
        memory_mib,
        cards,
        disks,
    }
}

fn disk_file(dir: &Path, name: &str, user: Option<User>) -> PathBuf {
    let path = dir.join(name);
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(DISK_BYTES).unwrap();
    give(&path, user);
    path
}

/// Adds one device of each kind to a machine and waits until its guest uses it. Returns the disk's name.
fn grow(machine: &Machine, console: &mut Console, dir: &Path) -> String {
    let before = look(console);
    let user = machine.user();
    let mut ids = machine.add_cpus(1).unwrap();
    ids.push(machine.add_memory(MEMORY_STEP_BYTES).unwrap());
    ids.push(machine.add_card(None).unwrap());
    let disk = machine.free_disk_name();
    let file = disk_file(dir, &format!("{}-{disk}", machine.name()), user);
    machine.add_disk(&disk, &file, None).unwrap();
    ids.push(disk.clone());
    for id in ids {
        let reception = machine.reception(&id, PATIENCE).unwrap();
        assert_eq!(reception, Reception::Taken, "{id}");
    }
    console.run(ONLINE);
    let after = look(console);
    assert_eq!(after.cpus, before.cpus + 1, "{after:?}");
    assert_eq!(after.cards, before.cards + 1, "{after:?}");
    assert!(after.disks.contains(&disk), "{after:?}");
    let more_mib = after.memory_mib - before.memory_mib;
    assert!((120..=128).contains(&more_mib), "{before:?} {after:?}");
    disk
}

/// Fills half of the added memory with a file in memory, and writes to the disk. Returns the checksum of the file.
fn fill(console: &mut Console, mark: &str, mib: u32) -> String {
    console.run(&format!(
        "mkdir -p /{mark}; mount -t tmpfs -o size=100% {mark} /{mark}; \
         dd if=/dev/urandom of=/{mark}/content bs=1M count={mib} 2>/dev/null"
    ));
    sum(console, mark)
}

fn sum(console: &mut Console, mark: &str) -> String {
    let said = console.run(&format!("md5sum < /{mark}/content"));
    let sum = said.split_whitespace().next().unwrap_or_default();
    assert_eq!(sum.len(), 32, "{said}");
    sum.to_owned()
}

/// Returns the guest's device name of a disk.
fn device(console: &mut Console, disk: &str) -> String {
    let said = console.run(&format!("grep -lx {disk} /sys/block/vd*/serial"));
    let name = said.trim().split('/').nth(3).unwrap_or_default().to_owned();
    assert!(name.starts_with("vd"), "{said}");
    format!("/dev/{name}")
}

fn write_disk(console: &mut Console, disk: &str, text: &str) {
    let device = device(console, disk);
    console.run(&format!("echo {text} > {device}; sync"));
}

fn read_disk(console: &mut Console, disk: &str) -> String {
    let device = device(console, disk);
    console.run(&format!("head -n 1 {device}"))
}

/// Captures a machine and copies its disks as they were in the pause.
fn capture(machine: &Machine, copies: &Path) -> Capture<Vec<PathBuf>> {
    std::fs::create_dir_all(copies).unwrap();
    let disks = machine.record().disks;
    let copy = || {
        let copies = disks.iter().enumerate().map(|(number, disk)| {
            let to = copies.join(number.to_string());
            std::fs::copy(disk, &to).map(|_| to)
        });
        copies.collect::<std::io::Result<Vec<_>>>()
    };
    machine.capture(CaptureOptions::default(), copy).unwrap()
}

/// Restores a machine from a capture, on disks of its own.
fn restore(
    original: &Spec,
    capture: &Capture<Vec<PathBuf>>,
    base: Option<&Path>,
    dir: &Path,
    (name, number): (&str, u32),
) -> (Machine, Console, PathBuf) {
    let mut spec = clone_spec(original, capture, dir, name, number);
    spec.disks = (0..)
        .zip(&capture.frozen)
        .map(|(disk, from)| {
            let to = dir.join(format!("{name}-copy-{disk}"));
            std::fs::copy(from, &to).unwrap();
            give(&to, spec.user);
            to
        })
        .collect();
    let ram = dir.join(format!("{name}.ram"));
    let snapshot = snapshot(capture, base, &ram, spec.user);
    let machine = Machine::restore(spec, &snapshot).unwrap().machine;
    for file in std::iter::once(&snapshot.ram).chain(&snapshot.blocks) {
        let modes = open_modes(machine.pid(), file);
        assert_eq!(modes, [libc::O_RDONLY], "{}", file.display());
    }
    let mut console = Console::open(&machine);
    console.send("");
    console.expect("tiny#");
    (machine, console, ram)
}

#[test]
#[ignore = "needs QEMU and the tiny guest: make test-all"]
fn what_is_added_to_a_guest_goes_with_it_through_capture_restore_and_fork() {
    let guest = guest();
    let dir = scratch();
    let original = spec(&guest, dir.path(), "first", 60);
    let (first, mut console) = boot(original.clone());
    let _first = Guard(&first);
    let bare = look(&mut console);
    assert_eq!((bare.cpus, bare.cards, bare.disks.len()), (1, 1, 0));

    // A running guest.
    let disk = grow(&first, &mut console, dir.path());
    let kept = fill(&mut console, "one", 140);
    write_disk(&mut console, &disk, "written-before");
    let one = capture(&first, &dir.path().join("one"));
    let seen = look(&mut console);
    assert_eq!(one.config.cpus_now(), Some(2));
    assert_eq!(
        one.config.memory_bytes_now(),
        Some(MEMORY_BYTES + MEMORY_STEP_BYTES)
    );
    assert_eq!(one.config.disks, [disk.as_str()]);
    let sizes: Vec<u64> = one.blocks.iter().map(|pages| pages.size()).collect();
    assert_eq!(sizes, [MEMORY_STEP_BYTES]);
    assert!(one.blocks[0].len() > 10_000, "the content is in the block");
    first.quit(PATIENCE).unwrap();

    // A restored guest: everything is still there, and more can be added.
    let (second, mut console, ram) = restore(&original, &one, None, dir.path(), ("second", 61));
    let _second = Guard(&second);
    assert_eq!(look(&mut console), seen);
    assert_eq!(sum(&mut console, "one"), kept);
    assert!(read_disk(&mut console, &disk).contains("written-before"));
    let ping = console
        .run("ip link set eth1 up; ip addr add 10.0.3.15/24 dev eth1; ping -c 1 -W 20 10.0.3.2");
    assert!(ping.contains("1 packets received"), "{ping}");
    let another = grow(&second, &mut console, dir.path());
    let also_kept = fill(&mut console, "two", 100);
    write_disk(&mut console, &another, "written-after");
    second.remove_disk(&disk, PATIENCE).unwrap();
    second.remove_card("nic1", PATIENCE).unwrap();
    let seen = look(&mut console);
    assert_eq!((seen.cpus, seen.cards), (3, 2));
    assert_eq!(seen.disks, [another.as_str()]);
    let two = capture(&second, &dir.path().join("two"));
    assert_eq!(two.config.disks, [another.as_str()]);
    assert_eq!(two.blocks.len(), 2);
    let ram_of_one = ram;

    // Two clones beside their parent: each has everything, and more can be added to it.
    for (name, number) in [("left", 62), ("right", 63)] {
        let (clone, mut console, _) = restore(
            &original,
            &two,
            Some(&ram_of_one),
            dir.path(),
            (name, number),
        );
        let _clone = Guard(&clone);
        assert_eq!(look(&mut console), seen, "{name}");
        assert_eq!(sum(&mut console, "one"), kept, "{name}");
        assert_eq!(sum(&mut console, "two"), also_kept, "{name}");
        assert!(read_disk(&mut console, &another).contains("written-after"));
        grow(&clone, &mut console, dir.path());
        clone.quit(PATIENCE).unwrap();
    }
}

#[test]
#[ignore = "needs QEMU and the tiny guest: make test-all"]
fn an_image_of_profile_1_goes_on_as_what_it_was() {
    let guest = guest();
    let dir = scratch();
    let mut original = spec(&guest, dir.path(), "old", 64);
    original.profile = Profile::Fixed;
    let (old, _) = boot(original.clone());
    let _old = Guard(&old);
    let first = capture(&old, &dir.path().join("disks"));
    let (again, _, _) = restore(&original, &first, None, dir.path(), ("again", 65));
    let _again = Guard(&again);
    let config = capture(&again, &dir.path().join("disks")).config;
    assert_eq!(config, first.config);
    assert_eq!((config.profile, config.cpus_max), (None, None));
    assert!(!config.devices.iter().any(|d| d.contains("pcie-")));
    let fixed = |error: MachineError| match error {
        MachineError::Grow(GrowError::Fixed { what, .. }) => what,
        error => panic!("{error}"),
    };
    assert_eq!(fixed(again.add_cpus(1).unwrap_err()), "CPUs");
    let refused = again.add_memory(MEMORY_STEP_BYTES).unwrap_err();
    assert_eq!(fixed(refused), "memory");
    assert_eq!(fixed(again.add_card(None).unwrap_err()), "cards and disks");
    let file = disk_file(dir.path(), "no.raw", again.user());
    let refused = again.add_disk("disk0", &file, None).unwrap_err();
    assert_eq!(fixed(refused), "cards and disks");
    assert_eq!(again.config(), config, "what was refused left nothing");
}

/// Starts a machine that stays paused: QEMU answers, the guest does not run.
fn paused(guest: &Path, dir: &Path, name: &str, number: u32) -> Machine {
    let machine = Machine::start(spec(guest, dir, name, number)).unwrap();
    machine.stop().unwrap();
    machine
}

#[test]
#[ignore = "needs QEMU and the tiny guest: make test-all"]
fn what_a_machine_has_no_room_for_is_refused_in_words() {
    let guest = guest();
    let dir = scratch();
    let machine = paused(&guest, dir.path(), "full", 66);
    let _machine = Guard(&machine);
    let room = machine.room();
    assert_eq!((room.cpus, room.cpus_max), (1, 8));
    let error = machine.add_cpus(8).unwrap_err();
    assert!(
        error.to_string().contains("1 CPUs and can have 8"),
        "{error}"
    );
    machine.add_cpus(7).unwrap();
    let error = machine.add_memory(1 << 20).unwrap_err();
    assert!(error.to_string().contains("128 MiB"), "{error}");
    let error = machine.add_memory(1 << 40).unwrap_err();
    assert!(matches!(error, MachineError::Grow(GrowError::Limit { .. })));
    for _ in 0..room.memory_slots_free {
        machine.add_memory(MEMORY_STEP_BYTES).unwrap();
    }
    let error = machine.add_memory(MEMORY_STEP_BYTES).unwrap_err();
    assert!(error.to_string().contains("no free memory slot"), "{error}");
    let error = machine.add_card(Some("52:54:00")).unwrap_err();
    assert!(error.to_string().contains("52:54:00:12:34:56"), "{error}");
    for _ in 0..room.places_free {
        machine.add_card(None).unwrap();
    }
    let error = machine.add_card(None).unwrap_err();
    assert!(error.to_string().contains("no free place"), "{error}");
    let now = machine.room();
    assert_eq!(
        (now.cpus, now.memory_slots_free, now.places_free),
        (8, 0, 0)
    );
    // Only devices that were added can be removed.
    let error = machine.remove_card("nic0", Duration::ZERO).unwrap_err();
    assert!(matches!(
        error,
        MachineError::Grow(GrowError::NotThere { .. })
    ));
    assert_eq!(
        machine.reception("cpu1", Duration::ZERO).unwrap(),
        Reception::Silent
    );
}

#[test]
#[ignore = "needs QEMU and the tiny guest: make test-all"]
fn a_change_that_was_cut_short_is_settled_by_who_adopts_the_machine() {
    let guest = guest();
    let dir = scratch();
    let machine = paused(&guest, dir.path(), "cut", 67);
    machine.add_cpus(1).unwrap();
    machine.add_memory(MEMORY_STEP_BYTES).unwrap();
    machine.add_card(None).unwrap();
    let whole = machine.config();
    let home = machine.dir().to_owned();
    let file = home.join("machine.json");
    // As if the process had ended after recording a change and before making it, for one device of each kind, and before
    // it knew the memory's address.
    let mut record: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let devices = record["config"]["devices"].as_array_mut().unwrap();
    for device in devices.iter_mut() {
        let text = device.as_str().unwrap();
        if let Some(at) = text.find(",addr=").filter(|_| text.starts_with("pc-dimm")) {
            *device = text[..at].into();
        }
    }
    for never in [
        "Nehalem-x86_64-cpu,id=cpu2,socket-id=0,core-id=2,thread-id=0",
        "pc-dimm,id=dimm2,memdev=ram2,slot=1",
        "virtio-blk-pci,id=vd0,drive=disk0,serial=disk0,werror=stop,rerror=report,bus=places0,addr=0x2",
    ] {
        devices.push(never.into());
    }
    record["config"]["disks"] = serde_json::json!(["disk0"]);
    record["disks"] = serde_json::json!(["/nowhere"]);
    let blocks = record["config"]["memory_blocks"].as_array_mut().unwrap();
    blocks.push(MEMORY_STEP_BYTES.into());
    let backings = record["blocks"].as_array_mut().unwrap();
    backings.push(serde_json::json!({"added": {"inode": 1}}));
    let pid = machine.pid();
    drop(machine);
    std::fs::write(&file, record.to_string()).unwrap();
    let adopted = Machine::adopt(&home).unwrap();
    let _adopted = Guard(&adopted);
    assert_eq!(adopted.pid(), pid);
    assert_eq!(adopted.config(), whole);
    assert!(adopted.record().disks.is_empty());
    adopted.add_memory(MEMORY_STEP_BYTES).unwrap();
    assert_eq!(adopted.add_cpus(1).unwrap(), ["cpu2"]);
}
