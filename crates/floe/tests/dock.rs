//! Machines that are made small and docked, and machines that forget whom they were docked from: `floe dock --convert`, `--public`.

mod node;

use floe_api::{DockRequest, Event, RunRequest, Wait};
use node::{PATIENCE, Signal, TestNode};
use std::{
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

/// Long enough for a Debian that boots emulated on a busy host.
const BOOT_PATIENCE: Duration = Duration::from_secs(900);

/// A hook that notes each call, and fails to stop if `/busy` is there.
const HOOK: &str = r#"mkdir -p /etc/floe/dock.d; cat > /etc/floe/dock.d/10-web <<'END'
#!/bin/sh
echo $1 >> /hooks
[ $1 = start ] || [ ! -e /busy ] || { echo users are there; exit 3; }
END
chmod 755 /etc/floe/dock.d/10-web"#;

fn floe(node: &TestNode, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command
        .args(args)
        .env("FLOE_HOME", node.home())
        .env_remove("FLOE_SOCKET")
        .env("TERM", "dumb")
        .stdin(Stdio::null());
    command.output().unwrap()
}

fn ok(node: &TestNode, args: &[&str]) -> String {
    let done = floe(node, args);
    assert!(done.status.success(), "{args:?}: {done:?}\n{}", node.log());
    String::from_utf8(done.stdout).unwrap()
}

/// What floe says about a failure.
fn fails(node: &TestNode, args: &[&str]) -> String {
    let done = floe(node, args);
    assert!(!done.status.success(), "{args:?}: {done:?}\n{}", node.log());
    String::from_utf8(done.stderr).unwrap()
}

/// Runs a shell's line in a guest, until it succeeds and says something; the agent of a machine that has just begun to run may not
/// answer yet.
fn sh(node: &TestNode, machine: &str, line: &str) -> String {
    sh_within(PATIENCE, node, machine, line)
}

fn sh_within(patience: Duration, node: &TestNode, machine: &str, line: &str) -> String {
    let until = Instant::now() + patience;
    loop {
        let done = floe(node, &["exec", machine, "--", "sh", "-c", line]);
        if done.status.success() {
            return String::from_utf8(done.stdout).unwrap().trim().to_owned();
        }
        let log = node.log();
        assert!(Instant::now() < until, "{line}: {done:?}\n{log}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Boots the tiny guest with two CPUs and the hook.
fn boot(node: &TestNode) {
    node.import_tiny("tiny", None);
    node.run(&RunRequest {
        image: "tiny".into(),
        name: Some("web".into()),
        cpus: Some(2),
        wait: Wait::None,
        ..Default::default()
    });
    node.wait_console("web", "floe-guest ready");
    sh(node, "web", HOOK);
}

/// Waits until a machine has everything: its memory, its CPUs, its cable, and what its hooks have stopped.
fn is_whole(node: &TestNode, machine: &str, hooks: &str) {
    let online = "cat /sys/devices/system/cpu/online | grep -qx 0-1";
    let cable = "grep -qx 1 /sys/class/net/eth0/carrier";
    // of 256 MiB: the balloon is out
    let memory = "[ $(awk '/MemFree/ {print $2}' /proc/meminfo) -gt $(cat /www/free) ]";
    let hooks = format!("[ \"$(echo $(cat /hooks))\" = \"{hooks}\" ]");
    for line in [online, cable, memory, &hooks] {
        sh(node, machine, line);
    }
}

/// Notes how much memory is free at least in a machine that has everything: two thirds of what is free now.
fn note_free(node: &TestNode) {
    let line = "awk '/MemFree/ {print int($2 * 2 / 3)}' /proc/meminfo > /www/free";
    sh(node, "web", line);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_machine_is_made_small_docked_and_gone_and_is_whole_again_when_activated() {
    let node = TestNode::start();
    boot(&node);
    note_free(&node);
    // memory that was used and is free again, and some that is used
    let line = "head -c 60000000 /dev/urandom > /dev/shm/gone; head -c 3000000 /dev/urandom > /dev/shm/kept; \
                rm /dev/shm/gone; md5sum < /dev/shm/kept";
    let kept = sh(&node, "web", line);
    let docked = ok(
        &node,
        &["dock", "web", "--as", "shop", "--convert", "--json"],
    );
    let gone = fails(&node, &["ps", "web"]);
    assert!(gone.contains("there is no machine web"), "{gone}");
    let shop: serde_json::Value =
        serde_json::from_str(&ok(&node, &["pool", "show", "shop", "--json"])).unwrap();
    let own = shop["made_of"]["own_memory_bytes"].as_u64().unwrap();
    assert!(own < 60_000_000, "{own} bytes of memory: {docked}\n{shop}");
    assert_eq!(shop["reset"], serde_json::Value::Null, "it is private");
    ok(&node, &["activate", "shop", "--name", "back"]);
    is_whole(&node, "back", "stop start");
    is_kept(&node, "back", &kept);
    assert_eq!(sh(&node, "back", "hostname"), "floe");
    // a machine of its own size that is docked live is not taken for a small one
    ok(&node, &["dock", "back", "--as", "again"]);
    ok(&node, &["activate", "again", "--name", "third"]);
    is_whole(&node, "third", "stop start");
    // and larger than it ever was
    let many = fails(&node, &["activate", "again", "--cpus", "99"]);
    assert!(many.contains("can have 8 CPUs"), "{many}");
    // each with disks of its own
    let file = node.home().join("db.raw");
    let file = file.to_str().unwrap();
    std::fs::write(file, [&b"file"[..], &[0; 4092]].concat()).unwrap();
    let disks = ["--disk", "data=64M", "--disk", file, "--format", "raw"];
    let clash = fails(
        &node,
        &[&["activate", "again", "--disk", "db=1M"][..], &disks].concat(),
    );
    assert!(clash.contains("two disks are called db"), "{clash}");
    let larger = ["--cpus", "3", "--memory", "384M", "--json"];
    let told = ok(
        &node,
        &[
            &["activate", "again", "-n", "2", "--name", "big"][..],
            &disks,
            &larger,
        ]
        .concat(),
    );
    assert_eq!(told.matches("\"size_ms\"").count(), 2, "{told}");
    for machine in ["big.1", "big.2"] {
        sh(&node, machine, "[ $(nproc) = 3 ]");
        let memory = "[ $(awk '/MemTotal/ {print $2}' /proc/meminfo) -gt 320000 ]";
        sh(&node, machine, memory);
        is_kept(&node, machine, &kept);
        let named = node.client().machine(machine).unwrap().disks;
        assert_eq!(named, ["data", "db"], "{told}");
        let db =
            "$(for d in /sys/block/*; do grep -qsx disk2 $d/serial && echo /dev/${d##*/}; done)";
        assert_eq!(sh(&node, machine, &format!("head -c 4 {db}")), "file");
        // which the next one does not see
        let write = format!("printf mine | dd of={db} conv=notrunc,fsync 2>/dev/null");
        sh(&node, machine, &write);
    }
}

/// Checks that a machine still has what was in the memory of the one that was docked.
fn is_kept(node: &TestNode, machine: &str, kept: &str) {
    assert_eq!(sh(node, machine, "md5sum < /dev/shm/kept"), kept);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_dock_that_fails_or_is_cut_off_leaves_the_machine_as_it_was() {
    let mut node = TestNode::start();
    boot(&node);
    note_free(&node);
    let convert = ["dock", "web", "--as", "shop", "--convert"];

    sh(&node, "web", "touch /busy");
    let why = fails(&node, &convert);
    assert!(
        why.contains("10-web") && why.contains("users are there"),
        "{why}"
    );
    assert!(why.contains("is as it was"), "{why}");
    is_whole(&node, "web", "stop start");

    // an agent whose words can't be true
    let lie = "rm /busy; echo 'MemTotal: 100000 kB\nMemAvailable: 200000 kB\nMemFree: 1 kB' > /lie; \
               mount -o bind /lie /proc/meminfo";
    sh(&node, "web", lie);
    let why = fails(&node, &convert);
    assert!(why.contains("can't be true"), "{why}");
    sh(&node, "web", "umount /proc/meminfo");
    is_whole(&node, "web", "stop start");

    // the node is killed while the balloon takes memory
    let request = DockRequest {
        name: "shop".into(),
        convert: true,
        ..Default::default()
    };
    let mut taken = false;
    for event in node.client().dock("web", &request).unwrap() {
        if let Ok(Event::Progress { name, done, .. }) = event
            && name == "shrink"
            && done > 0
        {
            taken = true;
            break;
        }
    }
    assert!(taken, "{}", node.log());
    node.end(Signal::KILL);
    node.start_again();
    is_whole(&node, "web", "stop start stop start");
    let none = fails(&node, &["pool", "show", "shop"]);
    assert!(none.contains("there is no substrate shop"), "{none}");

    // memory runs out in it meanwhile, and its kernel ends a program for that: what a hook starts takes more than there is
    let hog = "echo '#!/bin/sh\n[ $1 = start ] || { for i in 1 2 3; do dd if=/dev/zero of=/dev/null bs=120M count=1 & done; wait; true; }' \
               > /etc/floe/dock.d/20-hog; chmod 755 /etc/floe/dock.d/20-hog";
    sh(&node, "web", hog);
    let why = fails(&node, &convert);
    assert!(
        why.contains("ended a program because memory ran out"),
        "{why}"
    );
    sh(&node, "web", "rm /etc/floe/dock.d/20-hog");
    is_whole(&node, "web", "stop start stop start stop start");

    // one that says nothing, and none at all; the machine goes on and can be docked live
    node.type_and_wait(
        "web",
        "kill -STOP $(pidof floe-guest); echo st-$((1+1))",
        "st-2",
    );
    let why = fails(&node, &convert);
    assert!(why.contains("floe agent install web"), "{why}");
    assert!(why.contains("without --convert"), "{why}");
    node.type_and_wait(
        "web",
        "kill -KILL $(pidof floe-guest); echo ki-$((1+1))",
        "ki-2",
    );
    let why = fails(&node, &convert);
    assert!(why.contains("floe agent install web"), "{why}");
    node.type_and_wait("web", "wc -l < /hooks; echo ho-$((1+1))", "ho-2");
    ok(&node, &["dock", "web", "--as", "live"]);
    ok(&node, &["ps", "web"]);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_guest_that_says_it_needs_nothing_keeps_what_it_needs() {
    let node = TestNode::start();
    boot(&node);
    let line = "head -c 100000000 /dev/urandom > /dev/shm/kept; md5sum < /dev/shm/kept";
    let kept = sh(&node, "web", line);
    let all = "awk '/MemTotal/ {print $2}' /proc/meminfo";
    let lie = format!(
        "echo \"MemTotal: $({all}) kB\nMemAvailable: $({all}) kB\nMemFree: 1 kB\" > /lie; \
         mount -o bind /lie /proc/meminfo"
    );
    sh(&node, "web", &lie);
    let docked = floe(&node, &["dock", "web", "--as", "shop", "--convert"]);
    let said = String::from_utf8_lossy(&docked.stderr).into_owned();
    assert!(docked.status.success(), "{said}\n{}", node.log());
    assert!(said.contains("it needs more than it says"), "{said}");
    ok(&node, &["activate", "shop", "--name", "back"]);
    assert_eq!(sh(&node, "back", "md5sum < /dev/shm/kept"), kept);
    assert_eq!(
        sh(&node, "back", "grep oom_kill /proc/vmstat"),
        "oom_kill 0"
    );
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn two_machines_of_a_public_substrate_share_nothing_that_says_who_they_are() {
    let node = TestNode::start();
    boot(&node);
    // a key is made only once a file is there, so that nobody misses the time before
    let files = r#"mkdir -p /etc/ssh /usr/bin /var/lib/systemd /var/lib/dhcp /var/log
echo 0123456789abcdef0123456789abcdef > /etc/machine-id
echo old > /etc/ssh/ssh_host_ed25519_key
echo old > /var/lib/systemd/random-seed
echo old > /var/lib/dhcp/dhclient.leases
echo old > /var/log/wtmp
hostname web; echo web > /etc/hostname
cat > /usr/bin/ssh-keygen <<'END'
#!/bin/sh
while [ ! -e /go ]; do sleep 0.1; done
[ ! -e /no ] || exit 1
for key; do :; done
head -c 32 /dev/urandom | md5sum > $key
END
chmod 755 /usr/bin/ssh-keygen"#;
    sh(&node, "web", files);
    let who = "cat /sys/class/net/eth0/address /etc/machine-id /etc/ssh/ssh_host_ed25519_key; hostname; \
               md5sum < /var/lib/systemd/random-seed; head -c 16 /dev/urandom | md5sum";
    let lines = |text: String| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let parent = lines(sh(&node, "web", who));
    ok(&node, &["dock", "web", "--as", "pub", "--public"]);
    ok(&node, &["dock", "web", "--as", "own"]);
    assert_eq!(sh(&node, "web", "cat /etc/ssh/ssh_host_ed25519_key"), "old");
    let shown = ok(&node, &["pool", "show", "pub"]);
    assert!(
        shown.contains("SSH host keys") && shown.contains("machine id"),
        "{shown}"
    );

    ok(&node, &["activate", "pub", "-n", "3", "--answer", "0"]);
    let mut all = vec![parent.clone()];
    for machine in ["pub.1", "pub.2"] {
        sh(&node, machine, "[ $(hostname) != web ]");
        let no_cable = "! grep -qx 1 /sys/class/net/eth0/carrier";
        sh(&node, machine, no_cable);
        sh(&node, machine, "touch /go");
        sh(&node, machine, "grep -qx 1 /sys/class/net/eth0/carrier");
        sh(
            &node,
            machine,
            "[ ! -e /var/lib/dhcp/dhclient.leases ] && [ ! -s /var/log/wtmp ]",
        );
        all.push(lines(sh(&node, machine, who)));
    }
    for (at, one) in all.iter().enumerate() {
        for other in &all[..at] {
            let shared: Vec<_> = one.iter().filter(|line| other.contains(line)).collect();
            assert!(shared.is_empty(), "{shared:?} of {one:?} and {other:?}");
        }
    }

    // one that can't forget gets no network by another card either
    sh(&node, "pub.3", "touch /no /go");
    let card = fails(&node, &["attach", "pub.3", "--network"]);
    assert!(card.contains("identity of pub.3 is not in place"), "{card}");
    let no_network =
        "[ $(ls /sys/class/net | grep -c eth) = 1 ] && ! grep -qx 1 /sys/class/net/eth0/carrier";
    sh(&node, "pub.3", no_network);

    ok(&node, &["activate", "own", "--name", "mine"]);
    let mine = lines(sh(&node, "mine", who));
    // all but the random numbers, which nobody has twice
    assert_eq!(mine[..5], parent[..5]);
    assert_ne!(mine[5], parent[5]);
}

/// What makes a Debian that one: a host name that is nobody else's, keys of SSH of several kinds, a lease, journals.
const DEBIAN: &str = r#"set -e
hostname quetzal; echo quetzal > /etc/hostname; echo quetzal > /etc/mailname
sed -i 's/^127.0.1.1.*/127.0.1.1 quetzal.example quetzal/' /etc/hosts
rm -f /etc/ssh/ssh_host_*
for kind in ecdsa ed25519; do ssh-keygen -q -N '' -t $kind -f /etc/ssh/ssh_host_${kind}_key; done
systemd-creds setup
cat /etc/machine-id > /var/lib/dbus/machine-id.new; mv /var/lib/dbus/machine-id.new /var/lib/dbus/machine-id
systemctl restart systemd-networkd systemd-journald ssh
logger here is quetzal; journalctl --flush; journalctl --sync
echo "$(date) quetzal sshd: root logged in" | tee /var/log/auth.log /var/log/auth.log.1 > /dev/null
until [ -s /run/systemd/netif/leases/* ]; do sleep 1; done
[ -s /var/lib/systemd/random-seed ] && [ -s /var/lib/systemd/credential.secret ] && [ -s /var/log/wtmp ]"#;

/// What says who a Debian is: each line is one thing, which no other has.
const WHO: &str = r#"set -e
hostname; cat /etc/hostname /etc/mailname | sort -u | sed s/^/name-/; grep ^127.0.1.1 /etc/hosts
cat /sys/class/net/e*/address; ip -6 address show scope link | grep inet6 | head -1
cat /etc/machine-id; sed s/^/dbus-/ /var/lib/dbus/machine-id; ls -d /var/log/journal/*
for key in /etc/ssh/ssh_host_*_key.pub; do cut -d' ' -f1,2 $key; done
ssh-keyscan -t ecdsa,ed25519 127.0.0.1 2>/dev/null | sed s/^/shows-/ | sort
md5sum < /var/lib/systemd/random-seed; grep ^CLIENTID /run/systemd/netif/leases/*"#;

#[test]
#[ignore = "needs root, FUSE, QEMU and the guest stock: make test-all"]
fn two_debians_of_a_public_substrate_have_nothing_that_says_who_they_were() {
    let node = TestNode::start();
    let stock = |file: &str| node::guest(&format!("stock/{file}"));
    let cmdline = std::fs::read_to_string(stock("cmdline")).unwrap();
    let agent = format!("--agent={}", stock("floe-guest"));
    let (disk, kernel, initrd) = (stock("disk.raw"), stock("vmlinuz"), stock("initrd"));
    let import = ["image", "import", &disk, &agent, "--name", "debian"];
    let boots = ["--memory", "512M", "--kernel", &kernel, "--initrd", &initrd];
    ok(
        &node,
        &[&import[..], &boots, &["--cmdline", cmdline.trim()]].concat(),
    );
    node.run_named("debian", "first");
    let patiently = |machine: &str, line: &str| sh_within(BOOT_PATIENCE, &node, machine, line);
    patiently("first", "systemctl is-active ssh systemd-networkd");
    patiently("first", DEBIAN);
    let who = |machine: &str| -> Vec<String> {
        let text = patiently(machine, WHO);
        text.lines().map(str::to_owned).collect()
    };
    let parent = who("first");
    ok(&node, &["dock", "first", "--as", "pub", "--public"]);
    ok(&node, &["activate", "pub", "-n", "2", "--answer", "0"]);

    // what a machine has of the first one would be found in its files
    let id = patiently("first", "cat /etc/machine-id");
    let keys = patiently("first", "cut -d' ' -f2 /etc/ssh/ssh_host_*_key.pub");
    let marks = ["quetzal", id.as_str()].into_iter().chain(keys.lines());
    let marks: String = marks.map(|mark| format!(" -e {mark}")).collect();
    let finds = format!("grep -rlsaF{marks} /etc /var /run /root /home /tmp /boot || true");
    assert!(patiently("first", &finds).lines().count() > 4);
    let mut all = vec![parent];
    for machine in ["pub.1", "pub.2"] {
        // the cable is in, and its client has a lease
        patiently(machine, "[ -s /run/systemd/netif/leases/* ]");
        assert_eq!(patiently(machine, &finds), "", "{machine}");
        for gone in ["/var/lib/systemd/credential.secret", "/var/log/auth.log.1"] {
            patiently(machine, &format!("[ ! -e {gone} ]"));
        }
        patiently(
            machine,
            "journalctl -q -n 1 | grep -q . && systemctl is-active ssh",
        );
        all.push(who(machine));
    }
    for (at, one) in all.iter().enumerate() {
        assert!(one.len() > 12, "{one:?}");
        for other in &all[..at] {
            let shared: Vec<_> = one.iter().filter(|line| other.contains(line)).collect();
            assert!(shared.is_empty(), "{shared:?} of {one:?} and {other:?}");
        }
    }
}
