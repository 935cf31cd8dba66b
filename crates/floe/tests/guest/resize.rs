//! Machines that become larger and smaller while they run, with real guests: `floe resize`, `floe attach`, `floe detach`.

use crate::support::command::{ends, floe, said};
use crate::support::node::{PATIENCE, Setup, Signal, TestNode, eventually, finish};
use floe_api::*;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Runs floe, which must end with this exit code, and returns what it said.
pub fn floe_ends(node: &TestNode, args: &[&str], code: i32) -> String {
    let done = ends(floe(node, args));
    let said = said(&done);
    assert_eq!(
        done.status.code(),
        Some(code),
        "{args:?}: {said}\n{}",
        node.log()
    );
    said
}

/// What a shell's line in a guest writes; it is tried until the guest's agent answers.
pub fn sh(node: &TestNode, name: &str, line: &str) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let done = ends(floe(node, &["exec", name, "--", "sh", "-c", line]));
        if done.status.success() {
            return String::from_utf8(done.stdout).unwrap().trim().to_owned();
        }
        assert!(
            Instant::now() < until,
            "{line}: {}\n{}",
            said(&done),
            node.log()
        );
    }
}

/// CPUs and MiB of memory that a machine is said to have.
pub fn has(node: &TestNode, name: &str) -> (u32, u64) {
    let info = node.client().machine(name).unwrap();
    (info.cpus, info.memory_bytes / MIB)
}

/// How many network cards the guest sees.
fn cards(node: &TestNode, name: &str) -> String {
    sh(node, name, "ls /sys/class/net | grep -c eth")
}

/// MiB of memory that the guest's kernel counts, with those in its balloon and without its own.
pub fn counted(node: &TestNode, name: &str) -> u64 {
    let line = "sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo";
    sh(node, name, line).parse::<u64>().unwrap() >> 10
}

/// What the node has promised, in its own words.
fn promised(node: &TestNode) -> String {
    let mut checks = node.client().doctor().unwrap().checks.into_iter();
    let check = checks.find(|check| check.name == "promises");
    check.unwrap().detail
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_machine_grows_and_shrinks_and_so_do_its_images_and_clones() {
    let mut node = TestNode::with(Setup {
        args: ["--memory".into(), "1G".into()].into(),
        ..Default::default()
    });
    node.boot_tiny("web");
    let small = counted(&node, "web");
    assert!(
        promised(&node).contains("promised 304.0 MiB"),
        "{}",
        promised(&node)
    );
    let said = floe_ends(
        &node,
        &["resize", "web", "--cpus", "3", "--memory", "400M"],
        0,
    );
    let told = "web has 3 CPUs and 400.0 MiB of memory; it had 1 CPU and 256.0 MiB";
    assert!(said.contains(told), "{said}");
    assert_eq!(
        (sh(&node, "web", "nproc").as_str(), has(&node, "web")),
        ("3", (3, 400))
    );
    // a block of 256 MiB, of which the balloon has what is too much: the guest's kernel counts that as used
    let grown = counted(&node, "web");
    assert!(grown > small + 240, "{small} became {grown}");
    assert!(
        promised(&node).contains("promised 448.0 MiB"),
        "{}",
        promised(&node)
    );
    let shown = floe_ends(&node, &["ps", "web"], 0);
    assert!(shown.contains("at most 8 while it runs"), "{shown}");

    // Another node knows all of it, and takes it back.
    node.end(Signal::KILL);
    node.start_again();
    eventually("the machine is taken over", || {
        promised(&node).contains("promised 448.0 MiB")
    });
    let said = floe_ends(
        &node,
        &["resize", "web", "--cpus", "2", "--memory", "192M"],
        0,
    );
    assert!(said.contains("web has 2 CPUs and 192.0 MiB"), "{said}");
    assert_eq!(sh(&node, "web", "nproc"), "2");
    assert!(
        promised(&node).contains("promised 240.0 MiB"),
        "{}",
        promised(&node)
    );
    let log = node.log();
    assert!(log.contains("machine.resized"), "{log}");

    // Another card: its driver sets it up, and a capture has it.
    let said = floe_ends(&node, &["attach", "web", "--network"], 0);
    assert!(said.contains("web has the card nic1\n"), "{said}");
    assert_eq!(cards(&node, "web"), "2");

    // Its image is as it was, and a machine of it grows: first by what was taken, then by hardware.
    let request = CaptureRequest {
        name: Some("sized".into()),
        rehearse_s: Some(0),
        ..Default::default()
    };
    finish(node.client().capture("web", &request).unwrap());
    // what was given can be taken away, and nothing else
    let said = floe_ends(&node, &["detach", "web", "nic0"], 3);
    assert!(said.contains("it was given nic1"), "{said}");
    floe_ends(&node, &["detach", "web", "nic1"], 0);
    assert_eq!(cards(&node, "web"), "1");
    floe_ends(&node, &["rm", "--force", "web"], 0);
    node.run_named("sized", "two");
    assert_eq!(
        (sh(&node, "two", "nproc").as_str(), has(&node, "two")),
        ("2", (2, 192))
    );
    floe_ends(
        &node,
        &["resize", "two", "--cpus", "4", "--memory", "640M"],
        0,
    );
    assert_eq!(
        (sh(&node, "two", "nproc").as_str(), has(&node, "two")),
        ("4", (4, 640))
    );
    let all = counted(&node, "two");
    assert!(all > small + 360, "{small} became {all}");

    assert_eq!(cards(&node, "two"), "2");

    // A clone too.
    let request = ForkRequest {
        clones: 1,
        ..Default::default()
    };
    finish(node.client().fork("two", &request).unwrap());
    assert_eq!(
        (sh(&node, "two.1", "nproc").as_str(), has(&node, "two.1")),
        ("4", (4, 640))
    );
    floe_ends(
        &node,
        &["resize", "two.1", "--cpus", "1", "--memory", "256M"],
        0,
    );
    assert_eq!(has(&node, "two.1"), (1, 256));
    assert_eq!(sh(&node, "two.1", "nproc"), "1");
    assert_eq!(has(&node, "two"), (4, 640), "nobody else");

    // More than the profile and more than the host: nothing is done, and the way out is named.
    let said = floe_ends(&node, &["resize", "two", "--cpus", "9"], 5);
    assert!(
        said.contains("can have 8 CPUs") && said.contains("floe stop two"),
        "{said}"
    );
    let said = floe_ends(&node, &["resize", "two", "--memory", "100G"], 5);
    assert!(
        said.contains("can have 16.0 GiB") && said.contains("floe stop two"),
        "{said}"
    );
    let said = floe_ends(
        &node,
        &["resize", "two", "--memory", "2G", "--cpus", "5"],
        5,
    );
    assert!(said.contains("--overcommit"), "{said}");
    assert_eq!(has(&node, "two"), (4, 640));

    // A stopped one starts with it.
    floe_ends(&node, &["stop", "--now", "two"], 0);
    floe_ends(
        &node,
        &["resize", "two", "--cpus", "2", "--memory", "320M"],
        0,
    );
    assert_eq!(has(&node, "two"), (2, 320));
    floe_ends(&node, &["start", "two", "--wait", "agent"], 0);
    assert_eq!(
        (sh(&node, "two", "nproc").as_str(), has(&node, "two")),
        ("2", (2, 320))
    );
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_guest_that_cannot_follow_keeps_what_it_has_and_the_reason_is_told() {
    let node = TestNode::start();
    node.import_tiny("tiny", None);
    node.run(&RunRequest {
        image: "tiny".into(),
        name: Some("web".into()),
        cmdline: Some("console=ttyS0 init_on_free=1 quiet nr_cpus=1".into()),
        wait: Wait::Agent,
        ..Default::default()
    });
    // a kernel that takes no further CPU
    let said = floe_ends(&node, &["resize", "web", "--cpus", "2"], 5);
    assert!(
        said.contains("has 1 of 2 CPUs online") && said.contains("floe restart web"),
        "{said}"
    );
    assert_eq!(
        (sh(&node, "web", "nproc").as_str(), has(&node, "web").0),
        ("1", 1)
    );

    // a guest whose programs need what it is to give: they keep it, and nothing of theirs is lost
    let sum = sh(
        &node,
        "web",
        "dd if=/dev/urandom of=/dev/shm/x bs=1M count=110 2>/dev/null; md5sum </dev/shm/x",
    );
    let said = floe_ends(&node, &["resize", "web", "--memory", "64M"], 5);
    assert!(said.contains("of 64.0 MiB: it gives no more"), "{said}");
    let (_, left) = has(&node, "web");
    assert!((110..256).contains(&left), "{left} MiB");
    assert_eq!(sh(&node, "web", "md5sum </dev/shm/x"), sum);
    assert_eq!(
        sh(
            &node,
            "web",
            "dmesg | grep -c 'Out of memory: Killed' || true"
        ),
        "0"
    );
    // and with that out of the way it gives it, and gets it back
    sh(&node, "web", "rm /dev/shm/x");
    floe_ends(&node, &["resize", "web", "--memory", "128M"], 0);
    floe_ends(&node, &["resize", "web", "--memory", "256M"], 0);
    assert_eq!(has(&node, "web"), (1, 256));

    // one that stands still
    floe_ends(&node, &["pause", "web"], 0);
    let said = floe_ends(&node, &["resize", "web", "--memory", "128M"], 5);
    assert!(
        said.contains("stands still because its user paused it"),
        "{said}"
    );
    floe_ends(&node, &["resume", "web"], 0);

    // without the driver, and without the agent
    sh(&node, "web", "rmmod virtio_balloon");
    let said = floe_ends(&node, &["resize", "web", "--memory", "128M"], 5);
    assert!(said.contains("modprobe virtio_balloon"), "{said}");
    node.run_named("tiny", "other");
    node.wait_console("other", "floe-guest ready");
    floe_ends(&node, &["resize", "other", "--cpus", "2"], 0);
    node.type_and_wait(
        "other",
        "kill $(pidof floe-guest); echo gone-$((40+4))",
        "gone-44",
    );
    let said = floe_ends(&node, &["resize", "other", "--cpus", "1"], 5);
    assert!(said.contains("floe agent install other"), "{said}");
    assert_eq!(has(&node, "other"), (2, 256));
}

/// Has a machine's QEMU do something, whether a node is there or not.
pub fn qmp(node: &TestNode, name: &str, command: &str) -> serde_json::Value {
    node.qmp(name, command, serde_json::json!({})).unwrap()
}

/// Whether record, ledger and limits of a machine say what its QEMU and its guest have. `limits`: processor time for each CPU in
/// thousandths of a core, and memory beyond that of the guest in bytes.
fn agree(node: &TestNode, name: &str, limits: (u32, u64)) -> Result<(), String> {
    let info = node.client().machine(name).unwrap();
    let given = qmp(node, name, "query-balloon")["actual"].as_u64().unwrap();
    let cpus: u32 = sh(node, name, "nproc").parse().unwrap();
    let promise = format!("promised {}", size_text(info.memory_bytes + 48 * MIB));
    let wanted = Limits {
        cpu_millicores: Some(limits.0 * cpus),
        memory_max_bytes: Some(given + limits.1),
        ..Default::default()
    };
    let agree = (info.cpus, info.memory_bytes) == (cpus, given)
        && info.limits == wanted
        && promised(node).contains(&promise);
    let said = || format!("{given} bytes, {cpus} CPUs, {}: {info:?}", promised(node));
    agree.then_some(()).ok_or_else(said)
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_node_killed_at_any_step_of_a_resize_leaves_a_machine_of_which_all_say_the_same() {
    let mut node = TestNode::start();
    node.boot_tiny("web");
    let limits = (2000, 512 * MIB);
    let limit = ["limit", "web", "--cpu-quota", "2", "--memory-max", "768M"];
    floe_ends(&node, &limit, 0);
    let steps = [
        (3, 384, "at once"),
        (1, 256, "at once"),
        (3, 512, "cpus"),
        (2, 192, "cpus"),
        (3, 320, "memory"),
        (1, 128, "giving"),
        (2, 256, "memory"),
        (1, 256, "cpus"),
    ];
    for (cpus, mib, at) in steps {
        let request = SizeRequest {
            cpus: Some(cpus),
            memory_bytes: Some(mib * MIB),
            ..Default::default()
        };
        let resize = node.client().resize("web", &request).unwrap();
        if at == "at once" {
            node.signal(Signal::KILL);
        }
        // it is cut off, or was over
        let _ = resize.finish(|event| {
            let now = match event {
                Event::Stage { name, .. } => *name == at,
                Event::Progress { name, .. } => at == "giving" && *name == "memory",
                _ => false,
            };
            if now {
                node.signal(Signal::KILL);
            }
        });
        node.end(Signal::KILL);
        node.start_again();
        let until = Instant::now() + PATIENCE;
        while let Err(said) = agree(&node, "web", limits) {
            assert!(
                Instant::now() < until,
                "{cpus} CPUs, {mib} MiB, killed {at}: {said}\n{}",
                node.log()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        let (_, now) = has(&node, "web");
        assert!((128..=512).contains(&now), "{now}");
    }
    // and it is resized as ever
    let resize = ["resize", "web", "--cpus", "2", "--memory", "300M"];
    floe_ends(&node, &resize, 0);
    assert_eq!(has(&node, "web"), (2, 300));
    agree(&node, "web", limits).unwrap();
}

/// The guest's name of the disk with this serial number, as a line of shell.
fn device(disk: &str) -> String {
    format!("for d in /sys/block/*; do grep -qsx {disk} $d/serial && echo /dev/${{d##*/}}; done")
}

/// The first word on a disk of a guest; empty if the guest has no such disk.
fn first_word(node: &TestNode, name: &str, disk: &str) -> String {
    let line = format!(
        "D=$({}); [ -z \"$D\" ] || head -c 4 $D | tr '\\0' -",
        device(disk)
    );
    sh(node, name, &line)
}

/// Writes a word of four letters to the beginning of a disk of a guest.
fn write_word(node: &TestNode, name: &str, disk: &str, word: &str) {
    let line = format!(
        "printf {word} | dd of=$({}) conv=notrunc,fsync 2>/dev/null",
        device(disk)
    );
    sh(node, name, &line);
}

/// What `floe disk ls` shows of a machine: names and numbers.
fn disks(node: &TestNode, name: &str) -> Vec<(String, Option<String>)> {
    let disks = node.client().disks(name).unwrap().disks.into_iter();
    disks.map(|disk| (disk.name, disk.alias)).collect()
}

/// Changes the record of a machine, as a node may have left it that was killed between two steps.
pub fn leave_in_the_record(
    node: &TestNode,
    name: &str,
    change: impl FnOnce(&mut serde_json::Value),
) {
    let path = node.home().join("machines").join(name).join("machine.json");
    let mut record = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut record);
    std::fs::write(&path, serde_json::to_vec(&record).unwrap()).unwrap();
}

fn named(disk: &str, alias: &str) -> (String, Option<String>) {
    (disk.to_owned(), Some(alias.to_owned()))
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_disk_is_given_to_a_machine_that_runs_and_goes_wherever_it_goes() {
    let mut node = TestNode::start();
    node.boot_tiny("web");
    let said = floe_ends(&node, &["attach", "web", "--disk", "data=64M"], 0);
    assert!(
        said.contains("web has the disk data (64.0 MiB, disk1): in Linux"),
        "{said}"
    );
    assert_eq!(first_word(&node, "web", "disk1"), "----");
    write_word(&node, "web", "disk1", "kept");

    // one with what is in a file, which stays as it is
    let raw = node.home().join("db.raw");
    std::fs::write(&raw, [b"file".as_slice(), &[0; 8188]].concat()).unwrap();
    let file = node.home().join("db.qcow2");
    let convert = ["convert", "-f", "raw", "-O", "qcow2"];
    let mut qemu_img = std::process::Command::new("qemu-img");
    assert!(
        qemu_img
            .args(convert)
            .args([&raw, &file])
            .status()
            .unwrap()
            .success()
    );
    let file = file.to_str().unwrap();
    floe_ends(&node, &["attach", "web", "--disk", file], 0);
    assert_eq!(first_word(&node, "web", "disk2"), "file");
    let both = [named("disk1", "data"), named("disk2", "db")];
    assert_eq!(disks(&node, "web"), both);
    assert_eq!(node.client().machine("web").unwrap().disks, ["data", "db"]);
    let listed = floe_ends(&node, &["disk", "resize", "web", "data", "128M"], 0);
    assert!(
        listed.contains("data") && listed.contains("128.0 MiB"),
        "{listed}"
    );

    // A node that is killed changes nothing. What one left that was killed between the steps of giving a machine a disk goes: of the first
    // QEMU has never heard, the other was about to be plugged in.
    node.end(Signal::KILL);
    leave_in_the_record(&node, "web", |record| {
        let own = |name: &str| serde_json::json!({"name": name, "bytes": 4096, "alias": name.replace("disk", "left")});
        let owned = record["own_disks"].as_array_mut().unwrap();
        owned.extend([own("disk3"), own("disk4")]);
        record["next_disk"] = 5.into();
        let disks = record["config"]["disks"].as_array_mut().unwrap();
        disks.push("disk4".into());
    });
    node.start_again();
    eventually("what was left of other disks is gone", || {
        disks(&node, "web") == both
    });
    assert_eq!(first_word(&node, "web", "disk1"), "kept");

    // It is in the machine's image, and in what is made of that.
    let request = CaptureRequest {
        name: Some("with".into()),
        rehearse_s: Some(0),
        ..Default::default()
    };
    finish(node.client().capture("web", &request).unwrap());
    write_word(&node, "web", "disk1", "more");
    node.run_named("with", "two");
    assert_eq!(first_word(&node, "two", "disk1"), "kept");
    assert_eq!(disks(&node, "two"), both);
    let request = ForkRequest {
        clones: 1,
        ..Default::default()
    };
    finish(node.client().fork("web", &request).unwrap());
    assert_eq!(first_word(&node, "web.1", "disk1"), "more");
    assert_eq!(disks(&node, "web.1"), both);
    write_word(&node, "web.1", "disk2", "mine");
    assert_eq!(first_word(&node, "web", "disk2"), "file");
    floe_ends(&node, &["rm", "--force", "web.1"], 0);

    // While its guest uses it, it is not taken away. What is on it goes with it, and its name is free again.
    sh(
        &node,
        "web",
        &format!("mkswap $({0}) && swapon $({0})", device("disk1")),
    );
    let said = floe_ends(&node, &["detach", "web", "data", "--force"], 5);
    assert!(
        said.contains("is swap space") && said.contains("swapoff"),
        "{said}"
    );
    sh(&node, "web", &format!("swapoff $({})", device("disk1")));
    let said = floe_ends(&node, &["detach", "web", "data"], 2);
    assert!(said.contains("nobody is there to be asked"), "{said}");
    floe_ends(&node, &["detach", "web", "data", "--force"], 0);
    assert_eq!(first_word(&node, "web", "disk1"), "");
    assert_eq!(disks(&node, "web"), both[1..]);
    let said = floe_ends(&node, &["attach", "web", "--disk", "data=32M"], 0);
    assert!(said.contains("disk5"), "no number is used twice: {said}");
    assert_eq!(first_word(&node, "web", "disk5"), "----");
    write_word(&node, "web", "disk5", "anew");

    // parked and woken, and started from its disks: it is there, and can still be taken away
    // once what its clone was made of is stored, or given up
    eventually("it is parked", || {
        ends(floe(&node, &["park", "web"])).status.success()
    });
    floe_ends(&node, &["wake", "web"], 0);
    assert_eq!(first_word(&node, "web", "disk5"), "anew");
    floe_ends(&node, &["restart", "web", "--force", "--wait", "agent"], 0);
    assert_eq!(first_word(&node, "web", "disk5"), "anew");
    floe_ends(&node, &["detach", "web", "db", "--force"], 0);
    assert_eq!(first_word(&node, "web", "disk2"), "");
    assert_eq!(first_word(&node, "web", "disk5"), "anew");
    // also that of an image
    floe_ends(&node, &["detach", "two", "data", "--force"], 0);
    assert_eq!(disks(&node, "two"), both[1..]);
    assert_eq!(first_word(&node, "two", "disk2"), "file");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_disk_that_cannot_be_given_or_taken_is_told_and_nothing_is_left_of_it() {
    let node = TestNode::start();
    node.import_tiny("tiny", Some(&node.blank_disk()));
    node.run_named("tiny", "web");
    node.wait_console("web", "floe-guest ready");
    let first = ("disk0".to_owned(), None);

    let said = floe_ends(&node, &["attach", "web", "--disk", "/no/such.qcow2"], 3);
    assert!(said.contains("/no/such.qcow2"), "{said}");
    let said = floe_ends(&node, &["attach", "web", "--disk", "20G"], 2);
    assert!(said.contains("--disk data=20G"), "{said}");
    let said = floe_ends(&node, &["attach", "web", "--disk", "disk1=20G"], 2);
    assert!(said.contains("nothing like disk1"), "{said}");
    let said = floe_ends(&node, &["attach", "web", "--disk", "data=0"], 2);
    assert!(said.contains("no size of a disk"), "{said}");
    // one that ends early
    let whole = node.home().join("whole.qcow2");
    let mut qemu_img = std::process::Command::new("qemu-img");
    let create = ["create", "-q", "-f", "qcow2", "-o", "preallocation=full"];
    assert!(
        qemu_img
            .args(create)
            .arg(&whole)
            .arg("8M")
            .status()
            .unwrap()
            .success()
    );
    let file = std::fs::File::options().write(true).open(&whole).unwrap();
    file.set_len(100 << 10).unwrap();
    let cut = format!("data={}", whole.display());
    let said = floe_ends(&node, &["attach", "web", "--disk", &cut], 5);
    assert!(said.contains("whole.qcow2"), "{said}");
    assert_eq!(disks(&node, "web"), std::slice::from_ref(&first));

    let said = floe_ends(&node, &["detach", "web", "disk0", "--force"], 5);
    assert!(said.contains("can't do without its disk disk0"), "{said}");
    let said = floe_ends(&node, &["detach", "web", "data", "--force"], 3);
    assert!(said.contains("it has disk0"), "{said}");
    floe_ends(&node, &["attach", "web", "--disk", "data=4M"], 0);
    let said = floe_ends(&node, &["attach", "web", "--disk", "data=8M"], 5);
    assert!(said.contains("has a disk data already"), "{said}");

    // a guest that stands still could neither take nor give one
    floe_ends(&node, &["pause", "web"], 0);
    let said = floe_ends(&node, &["attach", "web", "--disk", "more=4M"], 5);
    assert!(
        said.contains("stands still because its user paused it"),
        "{said}"
    );
    floe_ends(&node, &["resume", "web"], 0);
    // one without the driver has it all the same, and uses it once it has the driver
    floe_ends(&node, &["detach", "web", "data", "--force"], 0);
    sh(
        &node,
        "web",
        "echo 0000:00:08.0 >/sys/bus/pci/drivers/virtio-pci/unbind; rmmod virtio_blk",
    );
    let said = floe_ends(&node, &["attach", "web", "--disk", "late=4M"], 0);
    assert!(
        said.contains("no driver in its guest uses yet") && said.contains("modprobe virtio_blk"),
        "{said}"
    );
    sh(
        &node,
        "web",
        "insmod /modules/$(grep virtio_blk /modules/order)",
    );
    assert_eq!(first_word(&node, "web", "disk2"), "----");

    // a machine that is stopped has them from its next start, up to the most that there can be
    floe_ends(&node, &["stop", "--now", "web"], 0);
    for number in 2..20 {
        let disk = format!("more-{number}=4K");
        floe_ends(&node, &["attach", "web", "--disk", &disk], 0);
    }
    let said = floe_ends(&node, &["attach", "web", "--disk", "most=4K"], 5);
    assert!(said.contains("20 disks already"), "{said}");
    floe_ends(&node, &["detach", "web", "more-7", "--force"], 0);
    floe_ends(&node, &["start", "web", "--wait", "agent"], 0);
    assert_eq!(sh(&node, "web", "ls -d /sys/block/vd* | wc -l"), "19");
    assert_eq!(first_word(&node, "web", "disk2"), "----");
    floe_ends(&node, &["detach", "web", "late", "--force"], 0);
    assert_eq!(sh(&node, "web", "ls -d /sys/block/vd* | wc -l"), "18");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_machine_has_its_most_cpus_from_the_start_and_its_guest_uses_as_many_as_it_is_told() {
    let node = TestNode::start();
    node.import_tiny("tiny", None);
    let run = |cpus, most| {
        [
            "run",
            "tiny",
            "--name",
            "web",
            "--cpus",
            cpus,
            "--cpus-most",
            most,
        ]
    };
    floe_ends(&node, &run("3", "2"), 2);
    let started = floe_ends(&node, &run("1", "2"), 0);
    assert!(started.contains("web has 1 CPU and"), "{started}");
    let uses = || (sh(&node, "web", "nproc"), has(&node, "web").0);
    assert_eq!(uses(), ("1".to_owned(), 1));
    let present = "ls -d /sys/devices/system/cpu/cpu[0-9]* | wc -l";
    assert_eq!(sh(&node, "web", present), "2");
    floe_ends(&node, &["resize", "web", "--cpus", "2"], 0);
    assert_eq!(uses(), ("2".to_owned(), 2));
}
