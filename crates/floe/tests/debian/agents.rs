//! floe's agent, put into strangers' disks while they are imported.

use crate::support::command::{ends, floe, said};
use crate::support::exec::Echo;
use crate::support::importing::Rig;
use crate::support::node::{finish, guest};
use floe_api::*;
use std::{
    fs::{self, Permissions},
    os::unix::fs::{FileExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

const PROGRAM: &str = "/usr/local/bin/floe-guest";

const WANTED: &str = "/etc/systemd/system/multi-user.target.wants/floe-guest.service";

/// Long enough for a Debian that boots emulated on a busy host.
const BOOT_PATIENCE: Duration = Duration::from_secs(900);

/// Where the partition of the disks here begins.
const FIRST: u64 = 1 << 20;

const DISK_BYTES: u64 = 24 << 20;

const INITTAB: &str = "::sysinit:/bin/true\n::askfirst:-/bin/sh";

impl Rig {
    /// The tree of a system that busybox's init starts.
    fn tree(&self) -> PathBuf {
        let tree = self.path("tree");
        for dir in ["bin", "sbin", "etc", "usr/local"] {
            fs::create_dir_all(tree.join(dir)).unwrap();
        }
        fs::write(tree.join("bin/busybox"), "").unwrap();
        symlink("../bin/busybox", tree.join("sbin/init")).unwrap();
        fs::write(tree.join("etc/inittab"), INITTAB).unwrap();
        fs::write(tree.join("etc/it's \"\n rm inittab\n"), "").unwrap();
        tree
    }

    /// Makes a disk of a tree, in the first partition if `first` is not 0.
    fn disk(&self, name: &str, kind: &str, tree: Option<&Path>, first: u64) -> PathBuf {
        let path = self.path(name);
        let disk = fs::File::create(&path).unwrap();
        disk.set_len(DISK_BYTES).unwrap();
        let offset = format!("offset={first}");
        let mut command = Command::new("/sbin/mkfs.ext4");
        command.args(["-q", "-F", "-t", kind, "-E", &offset]);
        if let Some(tree) = tree {
            command.arg("-d").arg(tree);
        }
        let done = command
            .arg(&path)
            .arg(format!("{}k", (DISK_BYTES - first) >> 10))
            .output();
        let done = done.unwrap();
        assert!(done.status.success(), "{done:?}");
        if first > 0 {
            disk.write_all_at(&partitioned(0x83), 0).unwrap();
        }
        path
    }

    fn import_with_agent(
        &self,
        disk: &Path,
        format: Option<ImportFormat>,
    ) -> Result<Outcome, String> {
        let request = ImportRequest {
            format,
            agent: Some(guest("stock/floe-guest")),
            ..Default::default()
        };
        self.import_disk(disk, request)
    }

    fn floe(&self, args: &[&str]) -> String {
        let done = ends(floe(&self.node, args));
        let log = || self.node.log();
        assert!(
            done.status.success(),
            "{args:?}: {}\n{}",
            said(&done),
            log()
        );
        said(&done)
    }

    /// Waits until the agent in a machine that boots starts programs.
    fn await_agent(&self, machine: &str) {
        let until = Instant::now() + BOOT_PATIENCE;
        let asked = ["exec", machine, "--", "true"];
        while !ends(floe(&self.node, &asked)).status.success() {
            let console = || self.node.console(machine);
            assert!(Instant::now() < until, "{}\n{}", console(), self.node.log());
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    /// Puts another agent, the same program with a mark, in the place of the one in a machine; waits until nothing is left of that.
    fn replace_agent(&self, machine: &str) {
        let other = self.path("other-agent");
        let mut program = fs::read(guest("stock/floe-guest")).unwrap();
        program.extend(b"another");
        fs::write(&other, &program).unwrap();
        let other = other.to_str().unwrap();
        let text = self.floe(&["agent", "install", machine, "--agent", other]);
        assert!(text.contains("is replaced"), "{text}");
        let runs = "[ $(tail -c 7 /proc/$PPID/exe) = another ]";
        self.floe(&["exec", machine, "--", "sh", "-c", runs]);
        let left = "ls /usr/local/bin/*.floe-* 2>/dev/null";
        let until = Instant::now() + BOOT_PATIENCE;
        while ends(floe(&self.node, &["exec", machine, "--", "sh", "-c", left]))
            .status
            .success()
        {
            assert!(Instant::now() < until, "the old agent's program is left");
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    /// A command takes all of a machine's memory: it is ended, and the agent and another command are not.
    fn outlives_a_shortage(&self, machine: &str) {
        let mut other = Echo::start(&self.node, machine);
        other.says("before");
        let done = ends(floe(
            &self.node,
            &["exec", machine, "--", "tail", "/dev/zero"],
        ));
        assert_eq!(done.status.code(), Some(128 + 9), "{}", said(&done));
        other.says("after");
        other.ends();
    }

    /// Makes the tree one that boots: a shell's programs, and an init that this inittab is for. `init`: a tar with that and its libraries.
    fn bootable(&self, inittab: &str, init: Option<&str>) -> PathBuf {
        let tree = self.path(init.map_or("busybox-tree", |_| "sysvinit-tree"));
        for dir in [
            "bin",
            "sbin",
            "etc",
            "usr/local",
            "proc",
            "sys",
            "dev",
            "run",
            "tmp",
        ] {
            fs::create_dir_all(tree.join(dir)).unwrap();
        }
        fs::copy("/bin/busybox", tree.join("bin/busybox")).unwrap();
        symlink("busybox", tree.join("bin/sh")).unwrap();
        match init {
            None => symlink("../bin/busybox", tree.join("sbin/init")).unwrap(),
            Some(tar) => {
                let done = Command::new("tar")
                    .args(["-xf", tar, "-C"])
                    .arg(&tree)
                    .status();
                assert!(done.unwrap().success());
            }
        }
        let start = "#!/bin/busybox sh\n/bin/busybox --install -s /bin\nmount -t proc proc /proc\nmount -t sysfs sys /sys\n";
        fs::write(tree.join("etc/start"), start).unwrap();
        fs::set_permissions(tree.join("etc/start"), Permissions::from_mode(0o755)).unwrap();
        fs::write(tree.join("etc/inittab"), inittab).unwrap();
        fs::write(tree.join("etc/passwd"), "root::0:0:root:/:/bin/sh\n").unwrap();
        fs::write(tree.join("etc/group"), "root:x:0:\n").unwrap();
        tree
    }

    /// The disk of an image, in a file.
    fn exported(&self, image: &str) -> PathBuf {
        let path = self.path(&format!("{image}-out.raw"));
        let request = ExportRequest {
            image: image.into(),
            region: "disk0".into(),
            path: path.display().to_string(),
            format: ExportFormat::Raw,
            force: true,
        };
        finish(self.node.client().export(&request).unwrap());
        path
    }
}

/// A boot record with one partition.
fn partitioned(kind: u8) -> [u8; 512] {
    let mut record = [0; 512];
    record[450] = kind;
    record[454..458].copy_from_slice(&((FIRST >> 9) as u32).to_le_bytes());
    record[458..462].copy_from_slice(&(((DISK_BYTES - FIRST) >> 9) as u32).to_le_bytes());
    record[510..].copy_from_slice(b"\x55\xaa");
    record
}

fn debugfs(disk: &Path, first: u64, command: &str) -> Vec<u8> {
    let device = format!("{}?offset={first}", disk.display());
    let done = Command::new("/sbin/debugfs")
        .args(["-w", "-R", command, &device])
        .output();
    done.unwrap().stdout
}

fn assert_clean(disk: &Path, first: u64) {
    let device = format!("{}?offset={first}", disk.display());
    let done = Command::new("/sbin/e2fsck")
        .args(["-fn", &device])
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
}

#[test]
#[ignore = "needs root, FUSE and the guest stock: make test-all"]
fn the_agent_comes_into_a_system_wherever_it_is_and_the_users_file_stays_as_it_is() {
    let rig = Rig::new();
    let tree = rig.tree();
    let agent = fs::read(guest("stock/floe-guest")).unwrap();
    for (name, kind, first) in [("part.raw", "ext2", FIRST), ("whole.raw", "ext4", 0)] {
        let disk = rig.disk(name, kind, Some(&tree), first);
        if kind == "ext4" {
            // what a machine leaves that was switched off
            debugfs(&disk, first, "feature needs_recovery");
        }
        let before = fs::read(&disk).unwrap();
        let outcome = rig
            .import_with_agent(&disk, None)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let report = outcome.agent.unwrap();
        assert_eq!(report.partition, (first > 0).then_some(1), "{name}");
        assert_eq!(
            (report.started_by, report.already_there),
            (AgentStarter::Busybox, false)
        );
        assert!(fs::read(&disk).unwrap() == before, "{name} was changed");
        let out = rig.exported(&name.replace('.', "-"));
        assert_clean(&out, first);
        assert!(
            debugfs(&out, first, &format!("cat {PROGRAM}")) == agent,
            "{name}"
        );
        let stat = debugfs(&out, first, &format!("stat {PROGRAM}"));
        assert!(
            String::from_utf8_lossy(&stat).contains("Mode:  0755"),
            "{name}"
        );
        let inittab = String::from_utf8(debugfs(&out, first, "cat /etc/inittab")).unwrap();
        assert_eq!(
            inittab,
            format!("{INITTAB}\n::respawn:{PROGRAM} serve\n"),
            "{name}"
        );
        // whoever has it gets nothing: the same bytes are the same disk
        let again = rig.import_with_agent(&out, None).unwrap();
        assert!(again.agent.unwrap().already_there, "{name}");
        assert_eq!(again.stored.unwrap().new_chunks, 0, "{name}");
    }
    rig.assert_nothing_is_left();
}

#[test]
#[ignore = "needs root, FUSE and the guest stock: make test-all"]
fn a_disk_that_gets_no_agent_is_refused_with_the_other_way_to_get_one() {
    let rig = Rig::new();
    let tree = rig.tree();
    let refused = |disk: &Path, why: &str| {
        let error = rig
            .import_with_agent(disk, Some(ImportFormat::Raw))
            .unwrap_err();
        assert!(error.contains(why), "{}: {error}", disk.display());
        assert!(error.contains("floe agent install"), "{error}");
    };
    refused(
        &rig.disk("empty.raw", "ext4", None, 0),
        "ext4 without a system",
    );
    let journal = rig.disk("journal.raw", "ext4", Some(&tree), FIRST);
    debugfs(&journal, FIRST, "feature needs_recovery");
    refused(&journal, "was not shut down");
    let other = rig.path("xfs.raw");
    let mut bytes = vec![0; DISK_BYTES as usize];
    bytes[..512].copy_from_slice(&partitioned(0x83));
    bytes[FIRST as usize..][..4].copy_from_slice(b"XFSB");
    fs::write(&other, &bytes).unwrap();
    refused(&other, "partition 1 has XFS");
    // a link of the system's leads to nothing of this host
    let outside = rig.path("outside");
    fs::create_dir_all(outside.join("bin")).unwrap();
    fs::remove_dir(tree.join("usr/local")).unwrap();
    symlink(&outside, tree.join("usr/local")).unwrap();
    refused(
        &rig.disk("link.raw", "ext4", Some(&tree), 0),
        "/usr/local is not",
    );
    assert_eq!(fs::read_dir(outside.join("bin")).unwrap().count(), 0);
    fs::remove_file(tree.join("usr/local")).unwrap();
    fs::write(tree.join("etc/inittab"), "nothing").unwrap();
    refused(
        &rig.disk("init.raw", "ext4", Some(&tree), FIRST),
        "neither systemd nor",
    );
    fs::write(tree.join("etc/inittab"), INITTAB).unwrap();
    // what is damaged is mended without a loss, or refused; nothing hangs, and the node lives
    for seed in 0..4u64 {
        let disk = rig.disk(&format!("damaged-{seed}.raw"), "ext4", Some(&tree), 0);
        let file = fs::File::options().write(true).open(&disk).unwrap();
        let mut state = seed;
        for _ in 0..200 {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            // behind the superblock: descriptors, bitmaps, inodes, directories
            let at = 2048 + (state >> 33) % (1 << 20);
            file.write_all_at(&[(state >> 24) as u8], at).unwrap();
        }
        match rig.import_with_agent(&disk, Some(ImportFormat::Raw)) {
            Ok(outcome) => {
                assert!(!outcome.agent.unwrap().already_there);
                assert_clean(&rig.exported(&format!("damaged-{seed}-raw")), 0);
            }
            Err(error) => assert!(error.contains("damaged-"), "{error}"),
        }
    }
    rig.assert_nothing_is_left();
}

#[test]
#[ignore = "needs root, FUSE, QEMU and the guest stock: make test-all"]
fn an_imported_debian_answers_exec_at_its_first_boot() {
    let rig = Rig::new();
    let disk = rig.path("debian.raw");
    let copied = Command::new("cp")
        .args([
            "--sparse=always",
            "--reflink=auto",
            &guest("stock/disk.raw"),
        ])
        .arg(&disk)
        .status();
    assert!(copied.unwrap().success());
    for name in [PROGRAM, "/etc/systemd/system/floe-guest.service", WANTED] {
        debugfs(&disk, 0, &format!("rm {name}"));
    }
    let run = |args: &[&str]| rig.floe(args);
    let cmdline = fs::read_to_string(guest("stock/cmdline")).unwrap();
    let (kernel, initrd) = (guest("stock/vmlinuz"), guest("stock/initrd"));
    let agent = format!("--agent={}", guest("stock/floe-guest"));
    let path = disk.display().to_string();
    let import = [
        "image",
        "import",
        &path,
        &agent,
        "--name",
        "debian",
        "--memory",
        "512M",
        "--kernel",
        &kernel,
        "--initrd",
        &initrd,
        "--cmdline",
        cmdline.trim(),
    ];
    let text = run(&import);
    assert!(
        text.contains("agent is in the first disk; systemd starts it"),
        "{text}"
    );
    rig.node.run_named("debian", "web");
    rig.await_agent("web");
    let is_active = ["exec", "web", "--", "systemctl", "is-active", "floe-guest"];
    assert_eq!(run(&is_active), "active\n");
    rig.outlives_a_shortage("web");
    // its successor is started by systemd as well, and lives as long with a unit from before
    let old = "sed -i /OOM/d /etc/systemd/system/floe-guest.service && systemctl daemon-reload";
    run(&["exec", "web", "--", "sh", "-c", old]);
    rig.replace_agent("web");
    assert_eq!(run(&is_active), "active\n");
    rig.outlives_a_shortage("web");
}

#[test]
#[ignore = "needs root, FUSE, QEMU and the guests tiny and stock: make test-all"]
fn each_init_starts_the_agent_that_an_import_has_put_in_and_its_successor() {
    let rig = Rig::new();
    let sysvinit = guest("tiny/sysvinit.tar");
    let systems = [
        (
            "busy",
            "::sysinit:/etc/start\n",
            None,
            AgentStarter::Busybox,
        ),
        (
            "sysv",
            "id:2:initdefault:\nsi::sysinit:/etc/start\n",
            Some(&*sysvinit),
            AgentStarter::Sysvinit,
        ),
    ];
    for (name, inittab, init, starter) in systems {
        let tree = rig.bootable(inittab, init);
        let disk = rig.disk(name, "ext4", Some(&tree), 0);
        let request = ImportRequest {
            kernel: Some(guest("stock/vmlinuz")),
            initrd: Some(guest("stock/initrd")),
            cmdline: Some("root=/dev/vda rw console=ttyS0 quiet".into()),
            memory_bytes: Some(256 << 20),
            agent: Some(guest("stock/floe-guest")),
            ..Default::default()
        };
        let outcome = rig.import_disk(&disk, request).unwrap();
        assert_eq!(outcome.agent.unwrap().started_by, starter);
        rig.node.run_named(name, name);
    }
    for (name, ..) in systems {
        rig.await_agent(name);
        // init itself has started it, and starts the next one
        let is_inits = "[ $(awk '{print $4}' /proc/$PPID/stat) = 1 ] && cat /proc/1/comm";
        let exec = ["exec", name, "--", "sh", "-c", is_inits];
        assert_eq!(rig.floe(&exec), "init\n", "{name}");
        rig.replace_agent(name);
        assert_eq!(rig.floe(&exec), "init\n", "{name}");
    }
}
