//! Substrates: docked from machines that notice nothing, kept in memory within a budget and on the disk for good, activated again, and
//! seen by those who may see them.

mod command;
mod node;

use command::{ends, floe, said};
use floe_api::client::Client;
use floe_api::*;
use node::{Setup, Signal, TestNode, eventually, finish};
use rustix::fs::{Gid, Uid};
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Output;

/// A user that nothing on this host belongs to, and his group.
const STRANGER: u32 = 64_322;

/// Runs a command whose exit code is to be this.
fn code(node: &TestNode, expected: i32, args: &[&str]) -> Output {
    let output = ends(floe(node, args));
    assert_eq!(
        output.status.code(),
        Some(expected),
        "floe {}: {}\n{}",
        args.join(" "),
        said(&output),
        node.log()
    );
    output
}

fn status(node: &TestNode) -> PoolStatus {
    node.client().pool().unwrap()
}

/// The files of packs in the node's repository.
fn packs(node: &TestNode) -> BTreeSet<PathBuf> {
    let dirs = std::fs::read_dir(node.home().join("repo/packs")).unwrap();
    dirs.flatten()
        .flat_map(|dir| std::fs::read_dir(dir.path()).unwrap().flatten())
        .map(|file| file.path())
        .collect()
}

/// Overwrites what is in a pack, but not its head, index and end.
fn spoil(pack: &Path) {
    let file = std::fs::File::options().write(true).open(pack).unwrap();
    let bytes = file.metadata().unwrap().len();
    file.write_all_at(&vec![0x55; (bytes / 3) as usize], 16)
        .unwrap();
}

fn activate(node: &TestNode, name: &str, called: &str) -> ActivateReport {
    let request = ActivateRequest {
        name: Some(called.into()),
        ..Default::default()
    };
    let outcome = finish(node.client().activate(name, &request).unwrap());
    outcome.activated.unwrap()
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make system"]
fn a_substrate_lives_in_memory_while_its_backup_is_damaged_and_its_neighbours_outlive_the_node() {
    let mut node = TestNode::start();
    node.boot_tiny("web");
    code(&node, 0, &["dock", "web", "--as", "first"]);
    node.type_and_wait("web", "mark=$((6*7)); echo kept-$mark-here", "kept-42-here");
    let before = packs(&node);
    let docked = code(&node, 0, &["dock", "web", "--as", "shop"]);
    assert!(
        said(&docked).contains("docked web as shop"),
        "{}",
        said(&docked)
    );
    let own: Vec<PathBuf> = packs(&node).difference(&before).cloned().collect();
    assert!(!own.is_empty());
    let taken = code(&node, 1, &["dock", "web", "--as", "shop"]);
    assert!(
        said(&taken).contains("there is a substrate shop already"),
        "{}",
        said(&taken)
    );

    let shop = node.client().substrate("shop").unwrap();
    let made_of = shop.made_of;
    assert!(shop.in_memory && shop.pool_bytes > 0, "{shop:?}");
    // most of a guest's memory is free, and its kernel was in the image that it was booted from
    assert!(made_of.zero_bytes > shop.memory_bytes / 2, "{made_of:?}");
    let memory = made_of.zero_bytes
        + made_of.base_bytes
        + made_of.disk_cache_bytes
        + made_of.twice_bytes
        + made_of.own_memory_bytes;
    assert_eq!(memory, made_of.memory_bytes);
    // the second one has most in common with the first
    let first = node.client().substrate("first").unwrap();
    assert_eq!(first.base, shop.base);
    assert!(shop.pool_bytes < first.pool_bytes / 2, "{first:?} {shop:?}");

    for pack in &own {
        spoil(pack);
    }
    let bad = code(&node, 1, &["pool", "verify"]);
    assert!(
        said(&bad).contains("bad: shop: ") && !said(&bad).contains("bad: first"),
        "{}",
        said(&bad)
    );
    code(&node, 0, &["pool", "verify", "first"]);
    // all that is damaged comes from memory
    let report = activate(&node, "shop", "again");
    assert!(
        report.from_memory && report.machines[0].name == "again",
        "{report:?}"
    );
    node.type_and_wait("again", "echo and-$((mark+1))-more", "and-43-more");
    code(&node, 0, &["rm", "--force", "again"]);

    node.end(Signal::KILL);
    node.start_again();
    eventually("the pool is warm again", || {
        let status = status(&node);
        !status.warming && status.warm_ms.is_some()
    });
    assert_eq!((status(&node).substrates, status(&node).in_memory), (2, 1));
    assert!(node.client().substrate("first").unwrap().in_memory);
    assert!(node.log().contains("substrate.damaged"), "{}", node.log());
    let report = activate(&node, "first", "other");
    assert!(report.from_memory, "{report:?}");
    node.type_and_wait("other", "echo alive-$((40+2))", "alive-42");
    // the machine that was docked went on all the time
    node.type_and_wait("web", "echo web-$((mark+2))", "web-44");
    let gone = code(&node, 0, &["pool", "rm", "shop"]);
    assert!(said(&gone).contains("removed shop"), "{}", said(&gone));
    let none = code(&node, 3, &["pool", "show", "shop"]);
    assert!(
        said(&none).contains("there is no substrate shop"),
        "{}",
        said(&none)
    );
}

/// Asks the node as another user: a connection has the credentials of the thread that opened it.
fn as_stranger<T: Send>(act: impl FnOnce(Client) -> T + Send, socket: &Path) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let (user, group) = (Uid::from_raw(STRANGER), Gid::from_raw(STRANGER));
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(group, group, group).unwrap();
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            act(Client::connect(socket).unwrap())
        });
        thread.join().unwrap()
    })
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make system"]
fn who_may_not_see_a_substrate_has_none_and_a_budget_sends_the_oldest_to_the_disk() {
    let node = TestNode::with(Setup {
        args: vec!["--socket-group".into(), STRANGER.to_string()],
        ..Default::default()
    });
    node.boot_tiny("web");
    code(&node, 0, &["dock", "web", "--as", "mine"]);
    let number = STRANGER.to_string();
    code(
        &node,
        0,
        &["dock", "web", "--as", "ours", "--restricted", &number],
    );
    code(
        &node,
        0,
        &["dock", "web", "--as", "theirs", "--restricted", "nosuch"],
    );
    code(
        &node,
        2,
        &["dock", "web", "--as", "x", "--public", "--private"],
    );
    let socket = node.home().join("node.sock");
    let seen: Vec<String> = as_stranger(
        |client| {
            let seen = client.substrates().unwrap().substrates;
            for hidden in ["mine", "theirs", "nosuch"] {
                let refused = [
                    client.substrate(hidden).err().map(|e| e.to_api()),
                    client.remove_substrate(hidden).err().map(|e| e.to_api()),
                    client
                        .activate(hidden, &Default::default())
                        .unwrap()
                        .finish(|_| ())
                        .err()
                        .map(|e| e.to_api()),
                ];
                for error in refused {
                    let error = error.unwrap();
                    assert_eq!(error.code, ErrorCode::NotFound, "{error}");
                    assert_eq!(error.message, format!("there is no substrate {hidden}"));
                }
            }
            // who may activate it may not remove it
            let refused = client.remove_substrate("ours").unwrap_err().to_api();
            assert_eq!(refused.code, ErrorCode::Refused, "{refused}");
            seen.into_iter().map(|substrate| substrate.name).collect()
        },
        &socket,
    );
    assert_eq!(seen, ["ours"]);
    let clones = ["activate", "ours", "-n", "2", "--name", "blue"];
    let told = code(&node, 0, &clones);
    assert!(
        said(&told).contains("blue.1") && said(&told).contains("from memory"),
        "{}",
        said(&told)
    );
    for clone in ["blue.1", "blue.2"] {
        let info = node.client().machine(clone).unwrap();
        assert_eq!(info.status, MachineStatus::Running, "{info:?}");
    }
    code(&node, 0, &["kill", "blue.1", "blue.2"]);

    let held = |name: &str| node.client().substrate(name).unwrap().in_memory;
    let small = code(&node, 0, &["pool", "resize", "4K", "--json"]);
    let small: PoolStatus = serde_json::from_slice(&small.stdout).unwrap();
    assert_eq!(
        (small.in_memory, small.used_bytes, small.substrates),
        (0, 0, 3)
    );
    let report = activate(&node, "ours", "green");
    assert!(!report.from_memory, "{report:?}");
    node.type_and_wait("green.1", "echo alive-$((40+2))", "alive-42");
    // a budget below one substrate: told, and the substrate is there all the same
    let told = code(&node, 0, &["dock", "web", "--as", "fourth"]);
    assert!(
        said(&told).contains("fourth is not in memory"),
        "{}",
        said(&told)
    );
    assert!(!held("fourth"));
    code(&node, 0, &["pool", "resize", "1G"]);
    eventually("all are in memory again", || {
        ["mine", "ours", "theirs", "fourth"].into_iter().all(held)
    });
    let status = status(&node);
    assert!(
        status.used_bytes > 0 && status.used_bytes <= status.budget_bytes,
        "{status:?}"
    );
    assert!(status.referred_bytes > 2 * status.raw_bytes, "{status:?}");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make system"]
fn a_dock_that_fails_leaves_nothing_and_a_second_one_at_once_is_refused() {
    let node = TestNode::with(Setup {
        disk_bytes: Some(192 << 20),
        ..Default::default()
    });
    node.boot_tiny("web");
    let images = || node.client().images().unwrap().images.len();
    let (before, files) = (images(), packs(&node));
    let filler = node.fill_disk(256 << 10);
    let failed = code(&node, 1, &["dock", "web", "--as", "shop"]);
    assert!(said(&failed).contains("No space left"), "{}", said(&failed));
    std::fs::remove_file(filler).unwrap();
    assert_eq!((images(), packs(&node)), (before, files));
    assert_eq!(node.client().substrates().unwrap().substrates, []);
    assert_eq!(status(&node).used_bytes, 0);
    node.type_and_wait("web", "echo alive-$((40+2))", "alive-42");

    // a name is one dock's, and a machine has one at a time
    let dock = |name: &'static str| {
        let client = node.client();
        let request = DockRequest {
            name: name.into(),
            ..Default::default()
        };
        move || {
            let events = client.dock("web", &request).unwrap();
            events.finish(|_| ()).map_err(|error| error.to_api())
        }
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let docks = [dock("a"), dock("b"), dock("c"), dock("d")];
        let docks = docks.map(|dock| scope.spawn(dock));
        docks.map(|dock| dock.join().unwrap()).into()
    });
    let refused: Vec<&ApiError> = results.iter().filter_map(|r| r.as_ref().err()).collect();
    assert!(refused.len() < results.len());
    for error in &refused {
        assert_eq!(error.code, ErrorCode::Busy, "{error}");
        assert!(error.message.contains("dock is under way"), "{error}");
    }
    let docked = node.client().substrates().unwrap().substrates.len();
    assert_eq!(docked, results.len() - refused.len());
}
