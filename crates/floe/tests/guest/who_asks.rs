//! Who in a guest asks for a block, on real guests: what the agent tells, what the disk's files tell, what is learned of an image, and
//! what becomes of it when an agent dies or lies, a file system is none, or the node is killed.

use crate::support::command::{code, said};
use crate::support::node::{Setup, Signal, TestNode, eventually, forget};
use floe_api::{IoMachine, IoSource, RunRequest, Wait};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Where a hostile program in the tiny guest finds the agent's port.
const PORT: &str =
    "p=$(dirname $(grep -l org.floe.0 /sys/class/virtio-ports/*/name)); p=/dev/${p##*/}";

/// Between a person's inputs: longer than reads are taken for answers to an input.
const PAUSE: Duration = Duration::from_secs(5);

/// Bytes of each of the files that are read.
const FILE_BYTES: usize = 2 << 20;

/// A disk with an ext4 that has the files `editor` and `tables`; where each begins, in blocks of 4 KiB.
struct Disk {
    path: PathBuf,
    editor: u64,
    tables: u64,
}

fn disk(dir: &Path) -> Disk {
    let files = dir.join("files");
    std::fs::create_dir_all(&files).unwrap();
    for (name, salt) in [("editor", 1u64), ("tables", 2)] {
        let number = |n: usize| (n as u64 + salt).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let bytes: Vec<u8> = (0..FILE_BYTES / 8)
            .flat_map(|n| number(n).to_le_bytes())
            .collect();
        std::fs::write(files.join(name), bytes).unwrap();
    }
    let path = dir.join("disk.raw");
    let mut make = Command::new("mke2fs");
    make.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-d"]);
    let made = make.arg(&files).arg(&path).arg("16M").output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let first = |name: &str| {
        let mut look = Command::new("debugfs");
        look.args(["-R", &format!("bmap {name} 0")]).arg(&path);
        let found = String::from_utf8(look.output().unwrap().stdout).unwrap();
        found.trim().parse().unwrap()
    };
    Disk {
        editor: first("editor"),
        tables: first("tables"),
        path,
    }
}

fn run(node: &TestNode, image: &str, name: &str) {
    node.run(&RunRequest {
        image: image.into(),
        name: Some(name.into()),
        wait: Wait::Console,
        ..Default::default()
    });
}

fn known(node: &TestNode, name: &str) -> Option<IoMachine> {
    let report = node.client().io().unwrap();
    report.machines.into_iter().find(|m| m.name == name)
}

/// Has a guest's `dd` read a file's blocks, which the host has on its own disk only.
fn read(node: &TestNode, name: &str, first: u64, mark: u32) {
    forget(node.home());
    let blocks = FILE_BYTES / 4096;
    let line = format!(
        "echo 3 > /proc/sys/vm/drop_caches; dd if=/dev/vda of=/dev/null bs=4k skip={first} count={blocks}; echo read-$(({mark}+1))"
    );
    node.type_and_wait(name, &line, &format!("read-{}", mark + 1));
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_guest_is_known_by_its_files_and_better_by_its_agent_and_one_that_lies_harms_nobody() {
    let kept = tempfile::tempdir().unwrap();
    let trace = kept.path().join("verdicts");
    let node = TestNode::with(Setup {
        args: vec!["--io-trace".into(), trace.display().to_string()],
        ..Default::default()
    });
    let disk = disk(node.home());
    node.import_tiny("disk", Some(&disk.path));
    run(&node, "disk", "web");
    // brings all of it from the repository into the cache, without that the guest reads anything
    let shown = walk(&node.home().join("mnt/machines"));
    for file in shown.filter(|path| path.to_string_lossy().contains("disk")) {
        std::fs::read(&file).unwrap();
    }
    assert!(known(&node, "web").is_none_or(|web| web.inputs == 0 && web.files.is_none()));

    // without an agent, by the files; which are looked for as soon as somebody types
    let kill = "kill $(pidof floe-guest); echo killed-$((1+1))";
    node.type_and_wait("web", kill, "killed-2");
    node.client().has_input("web").unwrap();
    read(&node, "web", disk.tables, 10);
    eventually("its files are known", || {
        known(&node, "web").is_some_and(|web| web.files.is_some())
    });
    // which is kept for all machines of the image
    let kept = |path: &PathBuf| path.extension().is_some_and(|end| end == "files");
    assert_eq!(walk(&node.home().join("traces")).filter(kept).count(), 1);
    let recorded = || -> String {
        let files = std::fs::read_dir(&trace).unwrap().flatten();
        let rows = files.map(|file| std::fs::read_to_string(file.path()).unwrap());
        rows.collect()
    };
    // on a busy host a guest may begin too late for an answer
    let mut inputs = 1u32;
    eventually("a read of a file is taken for an answer", || {
        inputs += 1;
        // who types without a pause can't be told from who waits for nothing
        std::thread::sleep(PAUSE);
        node.client().has_input("web").unwrap();
        read(&node, "web", disk.editor, 100 + inputs);
        known(&node, "web").unwrap().interactive.served > 0
            && recorded().contains(",interactive,file,")
    });
    let web = known(&node, "web").unwrap();
    let editor = web.programs.iter().find(|who| who.name == "/editor");
    let editor = editor.unwrap_or_else(|| panic!("{web:?}"));
    assert_eq!(editor.source, IoSource::File);
    assert_eq!(web.inputs, u64::from(inputs), "{web:?}");

    // with one, by the program
    let serve = "(floe-guest serve 2>/dev/null &); until floe-guest whoami 2>/dev/null; do sleep 1; done; echo serves-$((1+1))";
    node.type_and_wait("web", serve, "serves-2");
    let told = || known(&node, "web").unwrap().agent_words;
    let before = told();
    read(&node, "web", disk.editor, 30);
    eventually("the agent has told who read", || told() > before);
    read(&node, "web", disk.editor, 40);
    let web = known(&node, "web").unwrap();
    let dd = web.programs.iter().find(|who| who.name == "dd");
    let dd = dd.unwrap_or_else(|| panic!("{web:?}"));
    assert!(dd.source == IoSource::Agent && dd.requests > 0, "{web:?}");
    let show = said(&code(&node, 0, &["io", "show", "web"]));
    for part in ["dd", "/editor", "agent", "file", "are known"] {
        assert!(show.contains(part), "{part}: {show}");
    }
    // and each verdict was recorded
    let rows = recorded();
    for part in [",agent,", ",/editor", ",dd\n"] {
        assert!(rows.contains(part), "{part}: {rows}");
    }

    // an agent that lies and floods is ignored for a while; nobody else is concerned
    let lies = format!(
        "{PORT}; kill $(pidof floe-guest); until (: <>$p) 2>/dev/null; do sleep 1; done; exec 3<>$p; echo wake version=1 >&3; while read -r l <&3; do case $l in hello*) s=${{l#*session=}}; s=${{s%% *}}; break;; esac; done; echo ready session=$s version=1 >&3; w=\"asked session=$s by=liar at=0+8192 bytes=9\"; for i in 1 2 3 4 5 6; do w=$(printf '%s\\n%s' \"$w\" \"$w\"); done; (while :; do echo \"$w\" >&3; done) & sleep 2; kill $!; exec 3>&-; echo lied-$((3+3))"
    );
    node.type_and_wait("web", &lies, "lied-6");
    eventually("the flood is noticed", || {
        node.log().contains("it is ignored for a while")
    });
    // its own requests are named as it says, and that is all
    read(&node, "web", disk.tables, 50);
    let web = known(&node, "web").unwrap();
    assert!(
        web.programs.len() <= 64 && web.agent_words < 10_000,
        "{web:?}"
    );
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_disk_without_a_file_system_or_with_a_damaged_one_is_read_like_any_other() {
    let node = TestNode::start();
    let disk = disk(node.home());
    let whole = std::fs::read(&disk.path).unwrap();
    let mut damaged = whole.clone();
    // the descriptors of its groups, and the first inodes
    damaged[4096..12 << 10].fill(0xa5);
    let mut none = whole;
    none[..1 << 20].fill(0); // as an empty disk begins: anything else would be taken for no disk
    for (image, bytes) in [("damaged", damaged), ("none", none)] {
        let path = node.home().join(format!("{image}.raw"));
        std::fs::write(&path, &bytes).unwrap();
        node.import_tiny(image, Some(&path));
        run(&node, image, image);
        let sum = || {
            said(&code(
                &node,
                0,
                &["exec", image, "--", "md5sum", "/dev/vda"],
            ))
        };
        let first = sum();
        node.client().has_input(image).unwrap();
        read(&node, image, disk.editor, 10);
        eventually("it was looked for files", || {
            known(&node, image).is_some_and(|m| m.files.is_some() || m.files_unknown.is_some())
        });
        assert_eq!(sum(), first, "{image}");
        let machine = known(&node, image).unwrap();
        assert!(
            machine
                .programs
                .iter()
                .all(|who| who.source == IoSource::Agent),
            "{machine:?}"
        );
    }
    let why = known(&node, "none").unwrap().files_unknown.unwrap();
    assert!(why.contains("no file system"), "{why}");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn what_is_said_of_an_images_programs_outlives_a_killed_node_and_can_be_taken_back() {
    let mut node = TestNode::start();
    node.import_tiny("desk", None);
    let none = said(&code(&node, 0, &["io", "learned", "desk"]));
    assert!(none.contains("Nothing was learned yet"), "{none}");
    let allowed = said(&code(&node, 0, &["io", "allow", "desk", "mplayer"]));
    assert!(allowed.contains("mplayer"), "{allowed}");
    code(&node, 0, &["io", "forbid", "desk", "updatedb"]);
    node.end(Signal::KILL);
    node.start_again();
    let list = said(&code(&node, 0, &["io", "learned", "desk", "--json"]));
    let list: floe_api::IoList = serde_json::from_str(&list).unwrap();
    assert_eq!(list.allowed, ["mplayer"]);
    assert_eq!(list.forbidden, ["updatedb"]);
    code(&node, 0, &["io", "forget", "desk", "mplayer"]);
    let again = said(&code(&node, 3, &["io", "forget", "desk", "mplayer"]));
    assert!(again.contains("floe io learned"), "{again}");
    code(&node, 3, &["io", "learned", "nosuch"]);
    let long = "x".repeat(49);
    code(&node, 2, &["io", "allow", "desk", &long]);

    // nor does a node write over it that has put none of the image's machines on its mount
    code(&node, 0, &["io", "allow", "desk", "vlc"]);
    run(&node, "desk", "off");
    code(&node, 0, &["stop", "--now", "off"]);
    for _ in 0..2 {
        node.end(Signal::TERM);
        node.start_again();
    }
    assert_eq!(learned(&node, "desk").allowed, ["vlc"]);
    code(&node, 0, &["rm", "off"]);

    // a list that was damaged is left alone: its machines start without it, and nothing is written over it
    node.end(Signal::KILL);
    let stored = lists(&node);
    let damaged = "{\"version\":1,\"allowed\":[\"a\",\"a\"]}";
    std::fs::write(&stored[0], damaged).unwrap();
    node.start_again();
    let told = said(&code(&node, 1, &["io", "learned", "desk"]));
    assert!(told.contains(stored[0].to_str().unwrap()), "{told}");
    code(&node, 1, &["io", "allow", "desk", "mplayer"]);
    run(&node, "desk", "web");
    assert!(node.log().contains("interactive programs is not used"));
    node.end(Signal::TERM);
    assert_eq!(std::fs::read_to_string(&stored[0]).unwrap(), damaged);
}

/// The stored lists of interactive programs.
fn lists(node: &TestNode) -> Vec<PathBuf> {
    let all = walk(&node.home().join("traces"));
    let is_list = |path: &PathBuf| path.to_string_lossy().ends_with("programs.json");
    all.filter(is_list).collect()
}

fn learned(node: &TestNode, image: &str) -> floe_api::IoList {
    let list = said(&code(node, 0, &["io", "learned", image, "--json"]));
    serde_json::from_str(&list).unwrap()
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_list_belongs_to_a_disk_and_captures_inherit_it_and_one_of_an_earlier_version_is_taken_over() {
    let mut node = TestNode::start();
    let first = disk(node.home());
    node.import_tiny("desk", Some(&first.path));
    let desk = learned(&node, "desk");
    // the list that an earlier version has stored for the image
    node.end(Signal::TERM);
    let old = node.home().join("traces").join(&desk.image).join("local");
    std::fs::create_dir_all(&old).unwrap();
    let text = "{\"version\":1,\"allowed\":[\"old\"],\"learned\":[{\"name\":\"dd\",\"machines\":3,\"seen\":9,\"interactive\":9}]}";
    std::fs::write(old.join("programs.json"), text).unwrap();
    node.start_again();
    assert_eq!(learned(&node, "desk").allowed, ["old"]);
    assert_eq!(lists(&node).len(), 1, "{:?}", lists(&node));
    assert!(std::fs::metadata(old.join("programs.json")).is_err());

    // what is said of an image, is said of what is captured of its machines, and the other way round
    run(&node, "desk", "web");
    code(
        &node,
        0,
        &["capture", "web", "--name", "child", "--rehearse", "0"],
    );
    code(&node, 0, &["io", "allow", "desk", "mplayer"]);
    code(&node, 0, &["io", "forbid", "child", "updatedb"]);
    let child = learned(&node, "child");
    assert_ne!(child.image, desk.image);
    assert_eq!(child.disk, desk.disk);
    assert_eq!((child.allowed.len(), child.learned.len()), (2, 1));
    assert_eq!(learned(&node, "desk").forbidden, ["updatedb"]);
    // as it is of the same disk, however often it is imported, and not of another one
    node.import_tiny("again", Some(&first.path));
    assert_eq!(learned(&node, "again").allowed, ["mplayer", "old"]);
    let mut bytes = std::fs::read(&first.path).unwrap();
    bytes[1 << 20] ^= 1;
    let other = node.home().join("other.raw");
    std::fs::write(&other, bytes).unwrap();
    node.import_tiny("other", Some(&other));
    assert_eq!(learned(&node, "other").allowed, [""; 0]);

    // it is known to belong to the captured image when the others are gone, also to a node that never saw them
    for args in [
        &["rm", "--force", "web"][..],
        &["image", "rm", "--force", "desk"],
        &["image", "rm", "--force", "again"],
    ] {
        code(&node, 0, args);
    }
    node.end(Signal::KILL);
    node.start_again();
    assert_eq!(learned(&node, "child").disk, desk.disk);
    assert_eq!(learned(&node, "child").allowed, ["mplayer", "old"]);
    // and goes with the last of them, as it tells what was done there
    code(&node, 0, &["image", "rm", "--force", "child"]);
    assert_eq!(lists(&node), [""; 0].map(PathBuf::from));
}

fn walk(dir: &Path) -> Box<dyn Iterator<Item = PathBuf>> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    Box::new(
        entries.flat_map(|entry| -> Box<dyn Iterator<Item = PathBuf>> {
            match entry.path() {
                path if path.is_dir() => walk(&path),
                path => Box::new(std::iter::once(path)),
            }
        }),
    )
}
