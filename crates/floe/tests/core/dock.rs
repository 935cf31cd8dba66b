//! Machines that are made small and docked, and machines that forget whom they were docked from: `floe dock --convert`, `--public`.

use crate::support::command::ok;
use crate::support::dock::{boot, fails, is_whole, note_free, sh};
use crate::support::node::TestNode;

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
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
#[ignore = "needs root, FUSE and QEMU: make test"]
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
