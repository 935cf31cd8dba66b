//! Whose disk requests go first, on real guests: what users set and see, and what a restart of the node leaves of it.

use crate::support::command::{code, said};
use crate::support::node::{Setup, Signal, TestNode, eventually, forget};
use floe_api::{IoMachine, IoOrder, IoReport, Limits, RunRequest, Wait};

/// Bytes of the disk of a test's guests.
const DISK_BYTES: usize = 8 << 20;

/// Imports the tiny guest as `disk`, with a disk that holds something.
fn import(node: &TestNode) {
    let file = node.home().join("content.raw");
    let number = |n: usize| (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut bytes: Vec<u8> = (0..DISK_BYTES / 8)
        .flat_map(|n| number(n).to_le_bytes())
        .collect();
    bytes[..1 << 20].fill(0); // an empty disk's beginning: anything else would be taken for no disk
    std::fs::write(&file, bytes).unwrap();
    node.import_tiny("disk", Some(&file));
}

fn run(node: &TestNode, name: &str, limits: Limits) {
    node.run(&RunRequest {
        image: "disk".into(),
        name: Some(name.into()),
        wait: Wait::Console,
        limits,
        ..Default::default()
    });
}

fn known(node: &TestNode, name: &str) -> Option<IoMachine> {
    let report: IoReport = node.client().io().unwrap();
    report.machines.into_iter().find(|m| m.name == name)
}

fn served(machine: &IoMachine) -> u64 {
    [machine.interactive, machine.normal, machine.bulk]
        .iter()
        .map(|class| class.served)
        .sum()
}

/// Has a guest read all of its disk, which the host has on its own disk only; returns what its checksum is.
fn read_cold(node: &TestNode, name: &str) -> String {
    forget(node.home());
    let line = "echo 3 > /proc/sys/vm/drop_caches; md5sum /dev/vda";
    said(&code(node, 0, &["exec", name, "--", "sh", "-c", line]))
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn disk_requests_are_counted_by_machine_and_weights_change_at_once_and_outlive_the_node() {
    let mut node = TestNode::start();
    import(&node);
    let limits = Limits {
        io_weight: Some(10),
        ..Default::default()
    };
    run(&node, "web", limits);
    run(&node, "other", Limits::default());
    // the first read brings the chunks from the repository into the cache; what follows reads them there
    let sums = ["other", "web", "other"].map(|name| read_cold(&node, name));
    assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");

    let web = known(&node, "web").unwrap();
    assert_eq!((web.weight, web.cap_percent), (10, 100));
    assert!(served(&web) > 0, "{web:?}");
    let status = said(&code(&node, 0, &["io", "status"]));
    for part in ["what a person waits for", "web", "other", "INTERACTIVE"] {
        assert!(status.contains(part), "{part}: {status}");
    }
    let links = node.client().io().unwrap().links;
    let fetched = links.iter().flat_map(|link| &link.machines);
    let fetched = fetched.map(|one| one.interactive.served + one.normal.served + one.bulk.served);
    assert!(fetched.sum::<u64>() > 0, "{links:?}");
    assert!(status.contains("this host's repository"), "{status}");
    let show = said(&code(&node, 0, &["io", "show", "web"]));
    assert!(show.contains("weight") && show.contains("served"), "{show}");

    // changed while it runs
    let changed = ["limit", "web", "--io-weight", "20", "--io-cap", "50"];
    let text = said(&code(&node, 0, &changed));
    assert!(
        text.contains("weight 20 at the disk, 50 % of the disk"),
        "{text}"
    );
    let web = known(&node, "web").unwrap();
    assert_eq!((web.weight, web.cap_percent), (20, 50));

    // a killed node's successor has the limits, and the guests go on
    node.end(Signal::KILL);
    node.start_again();
    eventually("the machines are taken over", || {
        known(&node, "web").is_some_and(|web| (web.weight, web.cap_percent) == (20, 50))
    });
    assert_eq!(read_cold(&node, "web"), sums[0]);
    assert!(served(&known(&node, "web").unwrap()) > 0);

    // none is what it was before anything was said
    let none = ["limit", "web", "--io-weight", "none", "--io-cap", "none"];
    code(&node, 0, &none);
    let web = known(&node, "web").unwrap();
    assert_eq!((web.weight, web.cap_percent), (5, 100));

    // a machine that is gone is not known any more
    code(&node, 0, &["rm", "--force", "web"]);
    assert!(known(&node, "web").is_none());
    let missing = said(&code(&node, 3, &["io", "show", "web"]));
    assert!(missing.contains("floe ps"), "{missing}");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn without_an_order_guests_read_the_same_and_nothing_is_claimed() {
    let mut sums = Vec::new();
    for order in ["vsip", "fifo", "off"] {
        let node = TestNode::with(Setup {
            args: ["--io", order].map(String::from).into(),
            ..Default::default()
        });
        import(&node);
        run(&node, "web", Limits::default());
        sums.push(read_cold(&node, "web"));
        let report = node.client().io().unwrap();
        let expected = match order {
            "vsip" => IoOrder::Vsip,
            "fifo" => IoOrder::Fifo,
            _ => IoOrder::Off,
        };
        assert_eq!(report.order, expected);
        assert_eq!(report.machines.is_empty(), order != "vsip", "{report:?}");
    }
    assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn weights_and_caps_that_mean_nothing_are_refused_and_change_nothing() {
    let node = TestNode::start();
    node.boot_tiny("web");
    for (weight, cap) in [(Some(1001), None), (None, Some(101))] {
        let request = floe_api::LimitRequest {
            io_weight: weight,
            io_cap_percent: cap,
            ..Default::default()
        };
        let refused = node.client().limit("web", &request).unwrap_err();
        assert!(refused.to_string().contains("use 1 to"), "{refused}");
    }
    assert!(node.client().machine("web").unwrap().limits.is_none());
    for args in [["--io-weight", "0"], ["--io-cap", "many"]] {
        let text = said(&code(&node, 2, &["limit", "web", args[0], args[1]]));
        assert!(text.contains("whole number"), "{text}");
    }
}
