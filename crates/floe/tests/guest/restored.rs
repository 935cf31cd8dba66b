//! What a user is told of a machine that goes on from a captured moment: whose identity it has, and what its clock shows; and what its
//! guest is told.

use crate::support::dock::sh;
use crate::support::machines::capture;
use crate::support::node::{TestNode, eventually, finish};
use floe_api::{CaptureRequest, Event, RunRequest};
use std::os::unix::fs::FileExt;
use std::time::{SystemTime, UNIX_EPOCH};

/// How old a state is at least whose clock is told of, in seconds.
const BEHIND_S: u64 = 5;
/// Where a page that holds a generation id has it.
const GENERATION_OFFSET: u64 = 40;
const PAGE: u64 = 4096;

fn now_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap().as_secs()
}

/// Runs a machine; what its user is told.
fn notes(node: &TestNode, image: &str, name: &str, own_identity: bool) -> Vec<String> {
    let request = RunRequest {
        image: image.into(),
        name: Some(name.into()),
        own_identity,
        ..Default::default()
    };
    let mut notes = Vec::new();
    let outcome = node.client().run(&request).unwrap().finish(|event| {
        if let Event::Note { message } = event {
            notes.push(message.clone());
        }
    });
    outcome.unwrap_or_else(|error| panic!("{error}\n{}", node.log()));
    notes
}

/// Captures a machine, and removes it.
fn captured(node: &TestNode, machine: &str, image: &str) {
    let request = CaptureRequest {
        rehearse_s: Some(0),
        ..capture(image)
    };
    finish(node.client().capture(machine, &request).unwrap());
    node.client().remove_machine(machine, true).unwrap();
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn who_runs_one_captured_machine_twice_is_told_what_both_share_and_can_have_two_machines() {
    let node = TestNode::start();
    node.boot_tiny("one");
    let files =
        "mkdir -p /etc && echo 0123456789abcdef0123456789abcdef > /etc/machine-id && echo written";
    sh(&node, "one", files);
    finish(node.client().capture("one", &capture("live")).unwrap());
    let who = "grep -qx 1 /sys/class/net/eth0/carrier && hostname && cat /etc/machine-id /sys/class/net/eth0/address";
    let identity = |machine: &str| -> Vec<String> {
        let said = sh(&node, machine, who);
        said.lines().map(|line| line.trim().to_owned()).collect()
    };
    let one = identity("one");
    assert_eq!(one.len(), 3, "{one:?}");

    // the machine that was captured runs on
    let second = notes(&node, "live", "two", false);
    let told = second.iter().find(|note| note.contains("the same machine"));
    let told = told.unwrap_or_else(|| panic!("{second:?}"));
    for part in [
        "two goes on as",
        "machine as one: ",
        &one[2],
        "--own-identity",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(identity("two"), one);

    let third = notes(&node, "live", "three", true);
    assert!(
        third.iter().any(|note| note.contains("no network until")),
        "{third:?}"
    );
    assert!(
        !third.iter().any(|note| note.contains("the same machine")),
        "{third:?}"
    );
    let three = identity("three");
    assert_eq!(three[0], "three", "{three:?}");
    assert_eq!(three[1].len(), 32, "{three:?}");
    assert!(three.iter().all(|part| !one.contains(part)), "{three:?}");
    eventually("its identity is in place", || {
        node.client().machine("three").unwrap().detail.is_empty()
    });

    // one that is another machine is not named
    let fourth = notes(&node, "live", "four", false);
    assert!(
        fourth.iter().any(|note| note.contains("as one, two: ")),
        "{fourth:?}"
    );
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn run_and_ps_say_how_far_a_clock_is_behind_until_an_agent_sets_it() {
    let node = TestNode::start();
    node.boot_tiny("one");
    node.type_and_wait(
        "one",
        "kill $(pidof floe-guest); echo gone-$((1+1))",
        "gone-2",
    );
    captured(&node, "one", "quiet");
    // nobody answers in this one, so that its image says that no agent was there
    node.run_named("quiet", "bare");
    captured(&node, "bare", "without");
    let captured_s = now_s();
    eventually("a state that is old enough", || {
        now_s() > captured_s + BEHIND_S
    });
    let told = notes(&node, "without", "web", false);
    let clock = told.iter().find(|note| note.contains("its clock shows"));
    let clock = clock.unwrap_or_else(|| panic!("{told:?}"));
    for part in ["the time of the capture", "s ago", "hwclock --hctosys"] {
        assert!(clock.contains(part), "{part}: {clock}");
    }
    let detail = || node.client().machine("web").unwrap().detail;
    assert!(detail().contains("its clock shows"), "{}", detail());

    // nobody in it could give it an identity
    let own = RunRequest {
        image: "without".into(),
        own_identity: true,
        ..Default::default()
    };
    let refused = node.client().run(&own).unwrap().finish(|_| ());
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("no agent of floe's ran"), "{refused}");

    node.type_and_wait(
        "web",
        "(floe-guest serve 2>/dev/null &); echo serves-$((2+2))",
        "serves-4",
    );
    eventually("its clock is set", || detail().is_empty());
}

/// QEMU's word for the generation of a machine.
fn generation(node: &TestNode, machine: &str) -> u128 {
    let answer = node
        .qmp(machine, "query-vm-generation-id", serde_json::json!({}))
        .unwrap();
    let guid = answer["guid"].as_str().unwrap_or_default();
    u128::from_str_radix(&guid.replace('-', ""), 16).unwrap_or_else(|_| panic!("{answer}"))
}

/// How many pages of a restored guest's memory have a generation id where a guest looks for it.
fn pages_with(node: &TestNode, machine: &str, generation: u128) -> usize {
    // the first three parts are numbers of a little-endian machine
    let mut wanted = generation.to_be_bytes();
    wanted[..4].reverse();
    wanted[4..6].reverse();
    wanted[6..8].reverse();
    let pid = node.client().machine(machine).unwrap().pid.unwrap();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut found = 0;
    let mut looked = 0;
    for line in maps.lines().filter(|line| line.ends_with("/ram")) {
        let (from, rest) = line.split_once('-').unwrap();
        let (to, _) = rest.split_once(' ').unwrap();
        let [from, to] = [from, to].map(|at| u64::from_str_radix(at, 16).unwrap());
        for page in (from..to).step_by(PAGE as usize) {
            let mut bytes = [0; 16];
            let read = memory.read_exact_at(&mut bytes, page + GENERATION_OFFSET);
            looked += usize::from(read.is_ok());
            found += usize::from(bytes == wanted);
        }
    }
    assert!(looked > 0, "{maps}");
    found
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn every_run_of_a_captured_machine_has_a_generation_of_its_own_in_its_memory() {
    let node = TestNode::start();
    node.boot_tiny("one");
    finish(node.client().capture("one", &capture("live")).unwrap());
    let before = generation(&node, "one");
    let mut all = vec![before];
    for name in ["two", "three"] {
        node.run_named("live", name);
        let now = generation(&node, name);
        assert!(!all.contains(&now), "{name} has {now:032x} of {all:x?}");
        assert_eq!(pages_with(&node, name, now), 1, "{name}");
        assert_eq!(pages_with(&node, name, before), 0, "{name}");
        all.push(now);
    }
}
