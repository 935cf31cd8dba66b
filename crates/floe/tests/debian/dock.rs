//! Machines that are made small and docked, and machines that forget whom they were docked from: `floe dock --convert`, `--public`.

use crate::support::command::{ok, run};
use crate::support::dock::{boot, fails, is_whole, note_free, sh, sh_within};
use crate::support::node::{self, Signal, TestNode};
use floe_api::{DockRequest, Event};
use std::time::Duration;

/// Long enough for a Debian that boots emulated on a busy host.
const BOOT_PATIENCE: Duration = Duration::from_secs(900);

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
    let docked = run(&node, &["dock", "web", "--as", "shop", "--convert"]);
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
