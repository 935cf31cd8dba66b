//! The promises about what a program inside of a guest can do, kept with real guests: floe-guest and libfloe's examples run in
//! them.

use crate::support::guests::{HOST, Reports, booted, names, said};
use crate::support::node::{TestNode, eventually};

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn a_program_clones_its_machine_and_each_clone_knows_which_one_it_is() {
    let node = TestNode::start();
    let reports = Reports::listen();
    booted(&node, 1);
    // every clone tells its number, names, address, and what it draws: the parent tells the same of itself
    let tell = format!(
        "tell() {{ echo $1 $(floe-guest whoami) $(hostname) $(cat /sys/class/net/eth0/address) $(head -c 16 /dev/urandom | md5sum | cut -c1-32) | nc {HOST} {}; }}",
        reports.port
    );
    node.type_and_wait(
        "web",
        &format!("{tell}; echo defined-$((1+1))"),
        "defined-2",
    );
    node.type_and_wait(
        "web",
        "echo old > /etc/machine-id; t=$(floe-guest ticket 3 | cut -d' ' -f1); id=$(floe-guest clone $t); tell $id; if [ $id != 0 ]; then cat /etc/machine-id /run/floe.identity; floe-guest exit; fi; echo cloned-$((3+4))",
        "cloned-7",
    );
    let told = reports.take(4, &node);
    eprintln!("{told:#?}");
    let fields: Vec<Vec<&str>> = told.iter().map(|line| line.split(' ').collect()).collect();
    for (n, words) in fields.iter().enumerate() {
        let number = n.to_string();
        let (machine, host) = match n {
            0 => ("web".to_owned(), "floe".to_owned()),
            n => (format!("web.{n}"), format!("web-{n}")),
        };
        let parent: &[&str] = if n == 0 { &[] } else { &["web"] };
        let expected = [
            &[number.as_str(), number.as_str(), machine.as_str()],
            parent,
            &[host.as_str()],
        ]
        .concat();
        assert_eq!(words[..expected.len()], expected, "{told:?}");
    }
    let different = |from_end: usize| {
        let mut all: Vec<_> = fields
            .iter()
            .map(|words| words[words.len() - from_end])
            .collect();
        all.sort_unstable();
        all.dedup();
        all.len()
    };
    assert_eq!(different(1), 4, "two draw the same: {told:?}");
    assert_eq!(different(2), 4, "two have one address: {told:?}");
    // all of them end by themselves, and nothing stays of them
    node.type_and_wait(
        "web",
        "floe-guest join $t; echo joined-$((4+5))",
        "joined-9",
    );
    assert!(
        node.console("web").contains("3 ended, 0 of them lost"),
        "{}",
        node.console("web")
    );
    assert_eq!(names(&node), ["web"]);

    // a ticket is good once, and its clones can't be waited for again
    let refused = [
        ("floe-guest clone $t", "unknown-ticket"),
        ("floe-guest clone 00ff00ff", "unknown-ticket"),
        ("floe-guest join $t", "unknown-ticket"),
        ("floe-guest exit", "not-a-clone"),
        ("floe-guest ticket 0", "usage"),
    ];
    for (number, (command, code)) in refused.into_iter().enumerate() {
        let said = said(&node, number as u32, &format!("{command} 2>&1"));
        assert!(said.contains(&format!("({code})")), "{command}: {said}");
    }
    // whoever asks for more than there is gets less
    let said_of = |number, command| said(&node, number, command);
    let all = said_of(10, "set -- $(floe-guest ticket 1000000000); echo got-$2");
    assert!(all.contains("got-64"), "{all}");
    let more = said_of(11, "floe-guest ticket 1 2>&1");
    assert!(more.contains("(no-room)"), "{more}");
    said_of(12, "floe-guest kill $1");

    // garbage on the port, and the agent is heard again after it
    let garbage = "kill $(pidof floe-guest); port=$(dirname $(grep -l org.floe.0 /sys/class/virtio-ports/*/name)); until head -c 30000 /dev/urandom > /dev/${port##*/}; do sleep 1; done; (floe-guest serve 2>/dev/null &); until floe-guest whoami 2>/dev/null; do sleep 1; done; echo threw-$((6+7))";
    node.type_and_wait("web", garbage, "threw-13");

    // two processes at once: each is a parent of its own clone, and none of two
    let both = "for n in 1 2; do (t=$(floe-guest ticket 1 | cut -d' ' -f1); id=$(floe-guest clone $t); echo pair-$n-$id | nc 10.0.2.2 PORT; [ $id != 0 ] || floe-guest kill $t) & done; wait; echo both-$((7+8))";
    let both = both.replace("PORT", &reports.port.to_string());
    node.type_and_wait("web", &both, "both-15");
    let mut pairs = reports.take(2, &node);
    while pairs.iter().filter(|pair| pair.ends_with("-0")).count() < 2 {
        pairs.extend(reports.take(1, &node));
    }
    for n in ["pair-1-0", "pair-2-0"] {
        assert!(pairs.iter().any(|pair| pair == n), "{pairs:?}");
    }
    eventually("only the parent is left", || names(&node) == ["web"]);
}
