//! Clones that live for a time: they are removed when it is over, also by the next node, and nobody else is.

use crate::support::command::{ends, floe, said};
use crate::support::forks::{clones, fork};
use crate::support::node::{Signal, TestNode, eventually};
use crate::support::park::{machine, succeeds};
use floe_api::*;

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn clones_are_removed_when_their_time_is_over_also_by_the_next_node() {
    let mut node = TestNode::start();
    node.boot_tiny("web");
    let for_a_time = |ttl_s| ForkRequest {
        ttl_s: Some(ttl_s),
        ..clones(2)
    };
    let (long, _) = fork(&node, "web", &for_a_time(86_400));
    assert_eq!(long.running, 2, "{long:?}");
    let when = long.clones[0].ends_unix_s;
    assert!(when.is_some());
    let cloned = machine(&node, "web.1").cloned.unwrap();
    assert_eq!(cloned.ends_unix_s, when);
    for shown in [&["ps"][..], &["ps", "web.1"]] {
        let text = succeeds(&node, shown);
        assert!(text.contains("removed in"), "{text}");
    }
    let (ever, _) = fork(&node, "web", &clones(1));
    assert_eq!(ever.clones[0].ends_unix_s, None);

    let (short, _) = fork(&node, "web", &for_a_time(10));
    assert_eq!(short.running, 2, "{short:?}");
    node.end(Signal::KILL);
    node.start_again();
    let names = || -> Vec<String> {
        let machines = node.client().machines().unwrap().machines;
        machines.into_iter().map(|machine| machine.name).collect()
    };
    eventually("their time is over", || {
        names() == ["web", "web.1", "web.2", "web.3"]
    });
    eventually("it is told", || {
        node.log().matches("machine.expired").count() == 2
    });
    let family = node.client().family("web").unwrap();
    assert_eq!(family.clones.len(), 3, "{family:?}");
    let times: Vec<_> = family.clones.iter().map(|one| one.ends_unix_s).collect();
    assert_eq!(times, [when, when, None]);
    for never in ["0", "3660d"] {
        let refused = ends(floe(&node, &["fork", "web", "--ttl", never]));
        assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
        assert!(
            said(&refused).contains("time to live"),
            "{}",
            said(&refused)
        );
    }
}
