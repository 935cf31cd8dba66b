//! What a guest can have by cloning its machine onto other hosts: all hosts together allow no more than its user has.

use crate::support::command::{code, run, said as printed};
use crate::support::guests::{booted, names, said};
use crate::support::node::{Setup, Signal, TestNode, cluster, eventually};
use crate::support::resources::{household, needs_groups, pid, quota_of, said_by as file};
use floe_api::*;

/// The memory limit of a machine's household, as the kernel has it.
fn memory_of(node: &TestNode, name: &str) -> u64 {
    let group = household(pid(node, name), "memory");
    let bytes = file(&group, "memory.limit_in_bytes", "memory.max");
    bytes.parse().unwrap()
}

fn limit(node: &TestNode, request: LimitRequest) {
    node.client().limit("web", &request).unwrap();
}

#[test]
#[ignore = "needs root, FUSE, QEMU and control groups: make test-all"]
fn clones_on_other_hosts_take_their_part_of_the_limits_along() {
    let there = TestNode::on_the_network();
    let mut here = TestNode::with(Setup {
        args: vec!["--guest-hosts".into(), there.url()],
        ..Setup::on_the_network()
    });
    cluster(&[&here, &there]);
    needs_groups(&here);
    needs_groups(&there);
    booted(&here, 1);
    let request = LimitRequest {
        cpu_millicores: Some(900),
        memory_max_bytes: Some(3 << 30),
        io_weight: Some(10),
        clones: Some(2),
        ..Default::default()
    };
    limit(&here, request);
    let fork = |number: u32, clones: u32| {
        let command = format!(
            "t=$(floe-guest ticket {clones} | cut -d' ' -f1); id=$(floe-guest clone $t 2>&1); if [ \"$id\" = 1 ] || [ \"$id\" = 2 ]; then sleep 100000; fi; echo $id"
        );
        said(&here, number, &command)
    };
    fork(1, 2);
    assert_eq!(names(&there), ["web.1", "web.2"]);

    // a third of all for each
    for name in ["web.1", "web.2"] {
        let its = there.client().machine(name).unwrap().limits;
        let expected = Limits {
            cpu_millicores: Some(300),
            memory_max_bytes: Some(1 << 30),
            io_weight: Some(10),
            ..Default::default()
        };
        assert_eq!(its, expected);
        assert_eq!(quota_of(pid(&there, name)), Some(300));
        assert_eq!(memory_of(&there, name), 1 << 30);
    }
    // a host's disk is another's
    let io = there.client().io().unwrap().machines;
    assert!(
        io.iter().all(|its| (its.weight, its.among) == (10, 2)),
        "{io:?}"
    );
    assert_eq!(quota_of(pid(&here, "web")), Some(300));
    assert_eq!(memory_of(&here, "web"), 1 << 30);
    assert_eq!(
        here.client().machine("web").unwrap().limits.cpu_millicores,
        Some(900)
    );
    // they have no clones of their own
    eventually("the clone's agent answers", || {
        run(&there, &["exec", "web.1", "--", "true"])
            .status
            .success()
    });
    let asked = ["exec", "web.1", "--", "floe-guest", "ticket", "1"];
    let refused = printed(&run(&there, &asked));
    assert!(refused.contains("(not-allowed)"), "{refused}");
    let told = printed(&code(&here, 0, &["ps", "web"]));
    assert!(told.contains("0.9 cores"), "{told}");

    // what one had comes back with its end, whoever is the node
    here.client()
        .kill("web.2", &KillRequest::default())
        .unwrap();
    assert_eq!(quota_of(pid(&here, "web")), Some(600));
    here.end(Signal::KILL);
    here.start_again();
    eventually("it is taken over", || {
        here.client().machine("web").unwrap().pid.is_some()
    });
    assert_eq!(quota_of(pid(&here, "web")), Some(600));
    let too_little = LimitRequest {
        cpu_millicores: Some(300),
        ..Default::default()
    };
    let refused = here.client().limit("web", &too_little).unwrap_err();
    assert!(refused.to_string().contains("300 of the 300"), "{refused}");
    here.client()
        .kill("web.1", &KillRequest::default())
        .unwrap();
    assert_eq!(quota_of(pid(&here, "web")), Some(900));
    assert_eq!(memory_of(&here, "web"), 3 << 30);

    // what can't be divided is refused before anything is started
    let all = floe_api::CLONES_MAX;
    let request = LimitRequest {
        cpu_millicores: Some(0),
        clones: Some(all),
        ..Default::default()
    };
    limit(&here, request);
    let fork = "until floe-guest whoami >/dev/null 2>&1; do sleep 1; done; floe-guest clone $(floe-guest ticket 1 | cut -d' ' -f1) 2>&1";
    let refused = said(&here, 2, fork);
    assert!(refused.contains("QEMU alone needs"), "{refused}");
    assert_eq!(names(&there), Vec::<String>::new());
    assert_eq!(memory_of(&here, "web"), 3 << 30);
}
