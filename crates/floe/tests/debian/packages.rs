//! The Debian that `floe image build` makes, floe's own package in it, under a real systemd, and the tarball for other hosts.

use crate::support::command::run;
use crate::support::node::{self, PATIENCE, TestNode};
use floe_api::RunRequest;
use rustix::process::{Pid, Signal, kill_process_group};
use std::{
    fs,
    net::TcpListener,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

/// Long enough for a Debian that boots, or a package that is unpacked, under emulation on a busy host.
const DEBIAN_PATIENCE: Duration = Duration::from_secs(300);

/// Runs a shell's lines in the guest, each of which must succeed. Returns their output.
fn sh(node: &TestNode, lines: &str) -> String {
    let done = run(node, &["exec", "web", "--", "sh", "-ec", lines]);
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    if !done.status.success() {
        let errors = String::from_utf8_lossy(&done.stderr);
        let journal = run(
            node,
            &[
                "exec",
                "web",
                "--",
                "journalctl",
                "-b",
                "--no-pager",
                "-n",
                "60",
            ],
        );
        let journal = String::from_utf8_lossy(&journal.stdout);
        panic!("{lines}: {:?}\n{said}\n{errors}\n{journal}", done.status);
    }
    said
}

fn wait_for(node: &TestNode, line: &str) {
    let until = Instant::now() + DEBIAN_PATIENCE;
    loop {
        let done = run(node, &["exec", "web", "--", "sh", "-c", line]);
        if done.status.success() {
            return;
        }
        assert!(Instant::now() < until, "{line}: {done:?}\n{}", node.log());
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Packs a program, and the scheduler for kernels with sched_ext if there is one.
fn package(kind: &str, program: &Path, dir: &Path, scheduler: Option<&Path>) -> Output {
    Command::new(script("package"))
        .arg(kind)
        .arg(program)
        .arg(node::guest("stock/floe-guest"))
        .arg(dir)
        .args(scheduler)
        .env("FLOE_DEB_COMPRESSION", "gzip") // an emulated guest unpacks that sooner
        .output()
        .unwrap()
}

/// Compiles the scheduler for kernels with sched_ext.
fn scheduler(dir: &Path) -> PathBuf {
    let file = dir.join("floe.bpf.o");
    let made = Command::new("make")
        .args(["-s", "scx"])
        .arg(format!("SCX={}", file.display()))
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    file
}

/// Returns the file that a script has made and named.
fn named(made: &Output) -> PathBuf {
    assert!(made.status.success(), "{made:?}");
    PathBuf::from(String::from_utf8_lossy(&made.stdout).trim())
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../scripts")
        .join(name)
}

#[test]
#[ignore = "needs root, QEMU, clang and the guest stock"]
fn a_debian_that_floe_built_runs_floes_package_under_its_systemd_and_loses_it_again() {
    let dir = tempfile::tempdir().unwrap();
    let deb = named(&package(
        "deb",
        Path::new(env!("CARGO_BIN_EXE_floe")),
        dir.path(),
        Some(&scheduler(dir.path())),
    ));
    let listed = Command::new("dpkg-deb")
        .arg("-c")
        .arg(&deb)
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    for file in [
        "/usr/bin/floe",
        "/usr/lib/floe/floe-guest",
        "/usr/lib/floe/floe.bpf.o",
        "/usr/lib/systemd/system/floe-node.service",
        "/usr/share/man/man1/floe-run.1.gz",
        "/usr/share/bash-completion/completions/floe",
        "/usr/share/doc/floe/copyright",
        "/usr/share/doc/floe/LICENSES.gz",
    ] {
        assert!(listed.contains(&format!(".{file}\n")), "{file}: {listed}");
    }

    let node = TestNode::start();
    let disk = PathBuf::from(node::guest("stock/disk.raw"));
    node.import_guest("stock", "stock", Some(&disk));
    node.run(&RunRequest {
        image: "stock".into(),
        name: Some("web".into()),
        memory_bytes: Some(768 << 20),
        cpus: Some(2),
        ..Default::default()
    });
    the_system_is_as_promised(&node);
    the_package_is_installed(&node, &deb);
    node_and_hub_work_in_their_units(&node);
    nothing_is_left(&node);
}

/// What the help of `floe image build debian` says of it.
fn the_system_is_as_promised(node: &TestNode) {
    wait_for(node, "systemctl is-system-running --wait | grep -x running");
    let said = sh(
        node,
        "hostname; systemctl is-active floe-guest ssh systemd-networkd; \
         ip -4 -o addr show scope global | grep -c 10.0.2.15; \
         ls /etc/ssh/*_key | wc -l; wc -c < /etc/machine-id; \
         passwd -S root | cut -d' ' -f2; cloud-init status; \
         pgrep -af 'agetty.*autologin root' | wc -l; ps -t ttyS0 -o comm= | grep -c bash",
    );
    let expected = "debian\nactive\nactive\nactive\n1\n1\n33\nL\nstatus: disabled\n";
    assert!(said.starts_with(expected), "{said}");
}

/// The packages that it depends on are not in the guest, which has no network to fetch them: nothing here starts a machine.
fn the_package_is_installed(node: &TestNode, deb: &Path) {
    let deb = deb.display().to_string();
    let copied = run(node, &["cp", &deb, "web:/root/floe.deb"]);
    assert!(copied.status.success(), "{copied:?}");
    sh(
        node,
        "dpkg --force-depends -i /root/floe.deb && rm /root/floe.deb",
    );
    let said = sh(
        node,
        "floe --version >/dev/null; systemctl is-enabled floe-node; \
         systemctl is-enabled floe-hub || true; systemctl is-active floe-node; test -s /usr/share/bash-completion/completions/floe",
    );
    assert_eq!(said, "enabled\ndisabled\nactive\n");
}

fn node_and_hub_work_in_their_units(node: &TestNode) {
    sh(node, "systemctl start floe-hub");
    wait_for(node, "floe ps && bash -c 'exec 3<>/dev/tcp/127.0.0.1/4500'");
    let said = sh(
        node,
        "systemctl is-active floe-node floe-hub; systemctl show -P NRestarts floe-node floe-hub; \
         grep -c ' /var/lib/floe/mnt ' /proc/self/mountinfo; \
         stat -c %a /var/lib/floe; \
         floe doctor --json | grep -o '\"name\":\"[a-z -]*\",\"status\":\"fail\"' || true",
    );
    // QEMU is all that is missing, as it is not installed here
    let expected = "active\nactive\n0\n\n0\n1\n711\n\"name\":\"qemu\",\"status\":\"fail\"\n";
    assert_eq!(said, expected);
    // an image, on the disk of the guest's guest, to the hub and seen through the mount
    let said = sh(
        node,
        "cd /root; truncate -s 8M d.raw; mkfs.ext4 -q d.raw; floe image import d.raw --name small >/dev/null; rm d.raw; \
         token=$(FLOE_HOME=/var/lib/floe-hub floe hub token create me | grep -o 'floe_[0-9a-f]*'); \
         echo \"$token\" | floe login http://127.0.0.1:4500 >/dev/null; \
         floe push small http://127.0.0.1:4500 >/dev/null; \
         mkdir -p /mnt/view; floe mount small /mnt/view >/dev/null; \
         dd if=/mnt/view/disk0 bs=1024 skip=1 count=1 status=none | od -An -tx1 -j56 -N2; floe unmount /mnt/view >/dev/null; \
         systemctl restart floe-node floe-hub; floe image ls | grep -c small",
    );
    assert_eq!(said, " 53 ef\n1\n");
    // floe down ends the node for good, and systemd agrees
    sh(node, "floe down");
    wait_for(node, "systemctl is-active floe-node | grep -x inactive");
    sh(
        node,
        "systemctl start floe-node; systemctl is-active floe-node",
    );
    wait_for(node, "floe ps");
}

fn nothing_is_left(node: &TestNode) {
    // as after a crash: no node runs, and what one has left for the next does
    sh(
        node,
        "systemctl kill --kill-whom=main -s KILL floe-node; systemctl stop floe-node; systemctl reset-failed floe-node || true; \
         pgrep -f 'floe supervisor' && grep -q ' /var/lib/floe/mnt ' /proc/self/mountinfo",
    );
    let said = sh(node, "dpkg --purge floe 2>&1");
    assert!(said.contains("Ending the machines"), "{said}");
    let said = sh(
        node,
        "systemctl list-units --all --no-legend 'floe-node*' 'floe-hub*'; systemctl --failed --no-legend; \
         ls -d /var/lib/floe* /var/lib/private/floe* /run/floe /etc/systemd/system/*/floe-n* /usr/lib/floe 2>/dev/null || true; \
         find / -xdev -name '*floe*' -not -path '/usr/local/*' -not -path '/etc/*' -not -path '/root/*' -not -path '/proc/*' \
           -not -path '/sys/*' -not -path '/var/log/*' -not -path '/tmp/*'; \
         grep floe /proc/self/mountinfo || true; pgrep -a floe | grep -v floe-guest || true",
    );
    assert_eq!(said, "", "left behind");
}

#[test]
#[ignore = "needs root, /dev/fuse, clang, the guest stock and `make static`"]
fn the_tarball_works_in_a_directory_in_which_nothing_else_is() {
    let dir = tempfile::tempdir().unwrap();
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/static/debug/floe");
    assert!(
        program.exists(),
        "{} is missing: make static",
        program.display()
    );
    let scheduler = scheduler(dir.path());
    let made = package("tarball", &program, dir.path(), Some(&scheduler));
    let tarball = named(&made);
    let listed = Command::new("tar").arg("-tzf").arg(&tarball).output();
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    for file in [
        "INSTALL",
        "LICENSE-MIT",
        "LICENSES",
        "bin/floe",
        "lib/floe/floe-guest",
        "lib/floe/floe.bpf.o",
        "lib/systemd/system/floe-hub.service",
        "share/man/man1/floe-run.1",
        "share/zsh/site-functions/_floe",
    ] {
        let line = format!("-x86_64-linux/{file}\n");
        assert!(listed.contains(&line), "{file}: {listed}");
    }
    let proven = Command::new(script("standalone")).arg(&tarball).output();
    let proven = proven.unwrap();
    assert!(proven.status.success(), "{proven:?}");
    let said = String::from_utf8_lossy(&proven.stdout);
    assert!(said.contains("works where nothing else is"), "{said}");
}

#[test]
#[ignore = "needs the guest stock"]
fn no_tarball_is_made_of_a_program_that_needs_libraries() {
    let dir = tempfile::tempdir().unwrap();
    let dynamic = Path::new(env!("CARGO_BIN_EXE_floe"));
    let refused = package("tarball", dynamic, dir.path(), None);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{said}");
    assert!(said.contains("is linked dynamically"), "{said}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Returns the processes that a build in this directory has started: it names the directory in their environment.
fn processes_of(dir: &Path) -> Vec<String> {
    let dir = dir.to_str().unwrap();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let read = |file: &str| fs::read(entry.path().join(file)).unwrap_or_default();
        let environment = String::from_utf8_lossy(&read("environ")).into_owned();
        let beside = environment
            .split('\0')
            .any(|v| v.starts_with("FLOE_BESIDE=") && v.contains(dir));
        if beside {
            found.push(String::from_utf8_lossy(&read("cmdline")).replace('\0', " "));
        }
    }
    found
}

#[test]
#[ignore = "needs root, mmdebstrap and /dev/fuse"]
fn a_build_that_is_interrupted_leaves_no_process_no_mount_and_no_file() {
    let node = TestNode::start();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let into_files = ["--output", out.to_str().unwrap()];
    let into_node = ["--name", "never"];
    for (to, place) in [
        (into_files, dir.path().to_owned()),
        (into_node, node.home().join("tmp")),
    ] {
        // a mirror that takes a request and never answers it
        let mirror = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = mirror.local_addr().unwrap();
        let mut floe = Command::new(env!("CARGO_BIN_EXE_floe"))
            .args(["image", "build", "debian"])
            .args(["--mirror", &format!("http://{address}/debian")])
            .args(["--agent", "/bin/true"])
            .args(to)
            .env("FLOE_HOME", node.home())
            .env_remove("FLOE_SOCKET")
            .env_remove("http_proxy")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        mirror.set_nonblocking(true).unwrap();
        let until = Instant::now() + PATIENCE;
        let asked = loop {
            if let Ok(asked) = mirror.accept() {
                break asked;
            }
            let ended = floe.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < until,
                "nobody asked: {ended:?}"
            );
            std::thread::sleep(Duration::from_millis(50));
        };
        assert!(!processes_of(&place).is_empty(), "apt at least");
        // what a terminal does at Ctrl-C
        let group = Pid::from_child(&floe);
        kill_process_group(group, Signal::INT).unwrap();
        let ended = floe.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(130), "{ended:?}");
        drop(asked);
        let until = Instant::now() + PATIENCE;
        while !processes_of(&place).is_empty() {
            let left = processes_of(&place);
            assert!(Instant::now() < until, "still there: {left:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
        let left: Vec<_> = fs::read_dir(&place).unwrap().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(place.to_str().unwrap()), "{mounts}");
    }
    let images = node.client().images().unwrap().images;
    assert!(images.is_empty(), "{images:?}");
}
