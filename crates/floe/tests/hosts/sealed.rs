//! Machines that are synced sealed: `floe sync --sealed`.

use super::offload::{marks, nodes, remembers, runs, web};
use crate::support::command::{code, ok, run, said};
use crate::support::hosts::Hosts;
use crate::support::node::{Signal, TestNode, cluster, eventually};
use floe_store::Repository;

/// How many images a node has that it can read as machines, and how many others.
fn readable(node: &TestNode) -> (usize, usize) {
    let repo = Repository::open(&node.home().join("repo")).unwrap();
    let ids = repo.image_ids().unwrap();
    // one may just be removed
    let images = ids.iter().filter_map(|id| repo.manifest(id).ok());
    let (open, others): (Vec<_>, Vec<_>) = images.partition(|image| image.region("ram").is_some());
    (open.len(), others.len())
}

fn sends(node: &TestNode, args: &[&str]) {
    let args = [&["sync", "web", "--to", "node-1"][..], args].concat();
    let synced = ok(node, &args);
    assert!(synced.contains("web is synced with node-1"), "{synced}");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn what_is_synced_sealed_can_be_read_there_only_while_the_machine_runs_there() {
    let hosts = Hosts::new();
    let mut nodes = nodes(&hosts);
    cluster(&[&nodes[0], &nodes[1]]);
    nodes[0].boot_tiny("web");
    marks(&nodes[0], "before", 1);
    sends(&nodes[0], &["--sealed"]);
    marks(&nodes[0], "later", 2);
    // as it was said once
    sends(&nodes[0], &[]);
    eventually("the first one has gone", || readable(&nodes[1]) == (0, 1));

    ok(&nodes[0], &["offload", "web", "--to", "node-1"]);
    assert!(readable(&nodes[1]).0 > 0);
    let words = remembers(&nodes[1], 3);
    assert!(
        words.contains("before-42") && words.contains("later-42"),
        "{words}"
    );
    let lent = said(&code(&nodes[0], 5, &["sync", "web", "--readable"]));
    assert!(lent.contains("is lent"), "{lent}");
    ok(&nodes[0], &["sync", "web"]);

    ok(&nodes[0], &["recall", "web"]);
    assert!(remembers(&nodes[0], 4).contains("later-42"));
    eventually("only what is sealed is left there", || {
        web(&nodes[1]).is_none() && readable(&nodes[1]) == (0, 1)
    });
    assert!(nodes[0].home().join("seal.key").exists());
    assert!(!nodes[1].home().join("seal.key").exists());

    // it opens again; and a node that forgets all that is not on its disk does not forget that it is to keep nothing
    eventually("it is lent again", || {
        let args = ["offload", "web", "--to", "node-1"];
        run(&nodes[0], &args).status.success()
    });
    nodes[1].end(Signal::KILL);
    nodes[1].start_again();
    eventually("it runs there", || runs(&nodes[1]));
    marks(&nodes[1], "there", 5);
    ok(&nodes[0], &["recall", "web"]);
    assert!(remembers(&nodes[0], 6).contains("there-42"));
    eventually("nothing is left there", || {
        web(&nodes[1]).is_none() && readable(&nodes[1]) == (0, 0)
    });

    eventually("it is synced as others are", || {
        let args = ["sync", "web", "--to", "node-1", "--readable"];
        run(&nodes[0], &args).status.success()
    });
    assert_eq!(readable(&nodes[1]), (1, 0));
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn what_does_not_open_there_is_sent_whole() {
    let hosts = Hosts::new();
    let nodes = nodes(&hosts);
    cluster(&[&nodes[0], &nodes[1]]);
    nodes[0].boot_tiny("web");
    marks(&nodes[0], "before", 1);
    sends(&nodes[0], &["--sealed"]);
    // another key than it was sealed with, and nothing is told of it anew
    let key = nodes[0].home().join("seal.key");
    std::fs::write(&key, "x".repeat(64)).unwrap();
    ok(&nodes[0], &["move", "web", "--to", "node-1", "--still"]);
    assert!(remembers(&nodes[1], 2).contains("before-42"));
    assert!(
        nodes[1].log().contains("does not open"),
        "{}",
        nodes[1].log()
    );

    // and without one it does not leave
    std::fs::write(nodes[1].home().join("seal.key"), "short").unwrap();
    eventually("the damaged key is refused", || {
        let refused = run(&nodes[1], &["move", "web", "--to", "node-0"]);
        assert!(!refused.status.success(), "{}", said(&refused));
        said(&refused).contains("is no key")
    });
    assert!(runs(&nodes[1]));
}
