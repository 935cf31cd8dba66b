//! Substrates: docked from machines that notice nothing, kept in memory within a budget and on the disk for good, activated again, and
//! seen by those who may see them.

use crate::support::command::{code, ends, floe, said};
use crate::support::node::{self, Setup, Signal, TestNode, eventually, finish};
use floe_api::client::Client;
use floe_api::credentials::OwnHub;
use floe_api::*;
use rustix::fs::{Gid, Uid};
use serde_json::json;
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A user that nothing on this host belongs to, and his group.
const STRANGER: u32 = 64_322;

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
#[ignore = "needs root, FUSE and QEMU: make test-all"]
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

    let exported = code(&node, 0, &["pool", "export", "shop", "-"]).stdout;

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
    // what is damaged is not exported, and leaves nothing
    let file = node.home().join("shop.floe").display().to_string();
    code(&node, 1, &["pool", "export", "shop", &file]);
    assert!(!Path::new(&file).exists());
    let gone = code(&node, 0, &["pool", "rm", "shop"]);
    assert!(said(&gone).contains("removed shop"), "{}", said(&gone));
    goes_to_another_host(&exported);
    let none = code(&node, 3, &["pool", "show", "shop"]);
    assert!(
        said(&none).contains("there is no substrate shop"),
        "{}",
        said(&none)
    );
}

/// Imports a substrate at a node that has nothing, damaged in several ways first.
fn goes_to_another_host(exported: &[u8]) {
    let there = TestNode::with(Setup {
        hub: true,
        web: Some(node::free_address()),
        ..Default::default()
    });
    let file = there.home().join("shop.floe");
    let import = ["pool", "import", file.to_str().unwrap(), "--as", "moved"];
    let mut changed = exported.to_vec();
    let middle = exported.len() / 2;
    changed[middle..middle + 64].fill(0x55);
    for bad in [
        &exported[..exported.len() / 3],
        &changed,
        b"no archive at all",
    ] {
        std::fs::write(&file, bad).unwrap();
        let refused = ends(floe(&there, &import));
        assert!(!refused.status.success(), "{}", said(&refused));
        assert_eq!(there.client().substrates().unwrap().substrates, []);
        assert_eq!(there.client().images().unwrap().images, []);
        let left = std::fs::read_dir(there.home().join("tmp"))
            .unwrap()
            .flatten();
        let left: Vec<PathBuf> = left.map(|file| file.path()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
    std::fs::write(&file, exported).unwrap();
    // its machines would keep the keys of the one that was docked
    let shared = code(&there, 5, &[&import[..], &["--public"]].concat());
    assert!(said(&shared).contains("do not forget"), "{}", said(&shared));
    code(&there, 0, &import);
    let moved = there.client().substrate("moved").unwrap();
    assert!(moved.in_memory && moved.machine == "web", "{moved:?}");
    assert_eq!(moved.visibility, Visibility::Private);
    activate(&there, "moved", "again");
    there.type_and_wait("again", "echo moved-$((mark+3))", "moved-45");
    // a hub keeps it for any host
    let hub = OwnHub::load(&there.home().join("hub.token")).unwrap().hub;
    let hub = hub.to_string();
    let hub = hub.trim_end_matches('/');
    code(&there, 0, &["dock", "again", "--as", "far", "--pool", hub]);
    code(&there, 3, &["pool", "show", "far"]);
    let far = format!("{hub}/far");
    code(&there, 0, &["run", &far, "--name", "back"]);
    there.type_and_wait("back", "echo back-$((mark+4))", "back-46");
    code(&there, 0, &["pool", "import", &far, "--as", "near"]);
    assert_eq!(there.client().substrate("near").unwrap().machine, "again");
    let unwritable = ["dock", "back", "--as", "kept", "--pool", "/proc/nowhere"];
    let kept = ends(floe(&there, &unwritable));
    assert!(
        said(&kept).contains("is in this node's pool"),
        "{}",
        said(&kept)
    );
    code(&there, 0, &["pool", "show", "kept"]);
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

/// What a user is told by each call that takes an image, with `X` for what he calls it.
fn told_of(client: &Client, image: &str) -> Vec<String> {
    fn asks<T: serde::de::DeserializeOwned>(request: serde_json::Value) -> T {
        serde_json::from_value(request).unwrap()
    }
    let done = |events: Result<client::Events, client::ClientError>| {
        events.and_then(|events| events.finish(|_| ())).map(drop)
    };
    let place = tempfile::tempdir().unwrap();
    let to = |name: &str| place.path().join(name).display().to_string();
    let answers = [
        client.image(image).map(drop),
        client.tag(image, "stolen"),
        done(client.verify_image(image)),
        done(client.optimize(&asks(json!({"image": image})))),
        done(client.export(&asks(
            json!({"image": image, "region": "ram", "path": to("ram")}),
        ))),
        done(client.push(&asks(json!({"image": image, "to": to("pushed")})))),
        done(client.copy_image(&asks(json!({"from": image, "to": to("copied")})))),
        client
            .mount(&asks(json!({"image": image, "path": place.path()})))
            .map(drop),
        client
            .remove_image(&asks(json!({"image": image, "force": true})))
            .map(drop),
        client.traces(&asks(json!({"image": image}))).map(drop),
        client.swarm_seed(&asks(json!({"image": image}))).map(drop),
        done(client.run(&asks(json!({"image": image, "name": "stolen"})))),
        done(client.fork(image, &asks(json!({"clones": 1})))),
    ];
    let told = answers.into_iter().map(|answer| {
        let error = answer.unwrap_err().to_api();
        format!("{error:?}").replace(image, "X")
    });
    told.collect()
}

/// Whether an image exists for a user: by its id, by the beginning of that, and by the place where the node has it.
fn is_no_image(client: &Client, id: &str, home: &Path) {
    let nobodys = blake(id);
    for length in [64, 12] {
        let (told, expected) = (
            told_of(client, &id[..length]),
            told_of(client, &nobodys[..length]),
        );
        assert_eq!(told, expected);
        assert!(
            told.iter().all(|told| told.contains("NotFound")),
            "{told:?}"
        );
    }
    let pull = PullRequest {
        from: home.join("repo").join(id).display().to_string(),
        name: Some("stolen".into()),
        token: None,
        ca: None,
        trust: false,
    };
    let refused = client.pull(&pull).unwrap().finish(|_| ()).unwrap_err();
    assert_eq!(refused.to_api().code, ErrorCode::NotFound);
    let listed = client.images().unwrap().images;
    assert!(listed.iter().all(|image| image.id != id), "{listed:?}");
}

/// An id that no image has.
fn blake(id: &str) -> String {
    let turned = id
        .chars()
        .map(|c| char::from_digit(15 - c.to_digit(16).unwrap(), 16));
    turned.map(Option::unwrap).collect()
}

/// Of two machines that are docked under one name at once, one gets it.
fn one_name_for_two(node: &TestNode, machines: [&str; 2]) {
    let request = DockRequest {
        name: "both".into(),
        ..Default::default()
    };
    let dock = |machine: &str| {
        let docked = node.client().dock(machine, &request).unwrap();
        docked.finish(|_| ()).map_err(|error| error.to_api())
    };
    let dock = &dock;
    let results: Vec<_> = std::thread::scope(|scope| {
        let docks = machines.map(|machine| scope.spawn(move || dock(machine)));
        docks.map(|dock| dock.join().unwrap()).into()
    });
    let refused: Vec<&ApiError> = results.iter().filter_map(|r| r.as_ref().err()).collect();
    assert_eq!(refused.len(), 1, "{results:?}");
    assert_eq!(refused[0].code, ErrorCode::Busy, "{refused:?}");
    code(node, 0, &["pool", "rm", "both"]);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
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
    let image = |name: &str| node.client().substrate(name).unwrap().image;
    let (hidden_id, seen_id) = (image("mine"), image("ours"));
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
            is_no_image(&client, &hidden_id, node.home());
            assert_eq!(client.image(&seen_id[..12]).unwrap().summary.id, seen_id);
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
    one_name_for_two(&node, ["blue.1", "blue.2"]);
    code(&node, 0, &["kill", "blue.1", "blue.2"]);

    let held = |name: &str| node.client().substrate(name).unwrap().in_memory;
    let much = code(&node, 5, &["pool", "resize", "1000T"]);
    assert!(said(&much).contains("--overcommit"), "{}", said(&much));
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

/// Kills the node after each step of a dock: the machine goes on, and the substrate is there whole or not at all.
fn killed_after_each_step(node: &mut TestNode) {
    for (round, step) in ["capture", "store", "rebase", "memory"]
        .into_iter()
        .enumerate()
    {
        let name = format!("cut-{step}");
        let request = DockRequest {
            name: name.clone(),
            ..Default::default()
        };
        let mut events = node.client().dock("web", &request).unwrap();
        let reached =
            events.find(|event| matches!(event, Ok(Event::Stage { name, .. }) if name == step));
        assert!(reached.is_some(), "{step}");
        node.end(Signal::KILL);
        node.start_again();
        let line = format!("echo on-{round}-$((40+2))");
        node.type_and_wait("web", &line, &format!("on-{round}-42"));
        match node.client().substrate(&name) {
            Ok(_) => drop(code(node, 0, &["pool", "verify", &name])),
            Err(error) => assert_eq!(error.to_api().code, ErrorCode::NotFound),
        }
        if step == "memory" {
            code(node, 0, &["pool", "show", &name]);
        }
        let unused = PruneRequest {
            what: Prune::Images,
            dry_run: false,
        };
        node.client().prune(&unused).unwrap();
        let kept = node.client().substrates().unwrap().substrates;
        let kept = kept.iter().map(|substrate| substrate.image.clone());
        let images = node.client().images().unwrap().images;
        let left: BTreeSet<String> = images
            .into_iter()
            .filter(|image| image.labels.contains_key("floe.substrate"))
            .map(|image| image.id)
            .collect();
        assert_eq!(left, kept.collect(), "{step}");
    }
}

/// Whether a substrate's image says what a rehearsal touched.
fn is_rehearsed(node: &TestNode, name: &str) -> bool {
    let image = node.client().substrate(name).unwrap().image;
    let bytes = std::fs::read(node.home().join("repo/images").join(&image)).unwrap();
    let manifest = floe_image::Manifest::decode(&bytes).unwrap();
    manifest.region("trace").is_some_and(|trace| trace.size > 0)
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_substrate_is_rehearsed_if_that_is_asked_for_and_leaves_nothing_if_nobody_waits() {
    let node = TestNode::start();
    node.boot_tiny("web");
    let before = node.images_stored();
    let too_long = code(&node, 2, &["dock", "web", "--rehearse", "601"]);
    assert!(said(&too_long).contains("600 s"), "{}", said(&too_long));
    code(&node, 0, &["dock", "web", "--as", "plain"]);
    code(
        &node,
        0,
        &["dock", "web", "--as", "ready", "--rehearse", "2"],
    );
    assert!(!is_rehearsed(&node, "plain") && is_rehearsed(&node, "ready"));
    assert_eq!(node.images_stored(), before + 2);
    let machine = activate(&node, "ready", "again").machines.remove(0);
    assert_eq!(machine.name, "again");
    let info = node.client().machine("again").unwrap();
    assert_eq!(info.status, MachineStatus::Running);

    // a caller that goes while the copy runs leaves no image
    let request = DockRequest {
        name: "never".into(),
        rehearse_s: Some(REHEARSE_S_MAX),
        ..Default::default()
    };
    let mut events = node.client().dock("web", &request).unwrap();
    let stored =
        events.find(|event| matches!(event, Ok(Event::Stage { name, .. }) if name == "store"));
    assert!(stored.is_some());
    drop(events);
    eventually("its image goes", || node.images_stored() == before + 2);
    assert!(node.client().substrate("never").is_err());
    eventually("it can be docked again", || {
        let docked = ends(floe(&node, &["dock", "web", "--as", "never"]));
        docked.status.success()
    });
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_dock_that_fails_leaves_nothing_and_a_second_one_at_once_is_refused() {
    let mut node = TestNode::with(Setup {
        disk_bytes: Some(192 << 20),
        // a machine of 256 MiB, and 32 MiB for the pool
        args: ["--memory", "336M", "--standby", "0"]
            .map(str::to_owned)
            .into(),
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

    // a machine that needs memory gets that of the pool before it is refused, and the pool comes back
    let full = status(&node);
    assert!(full.in_memory > 0 && full.gave_way == 0, "{full:?}");
    assert!(full.host_bytes.unwrap() <= 32 << 20, "{full:?}");
    let refused = code(&node, 5, &["run", "tiny", "--name", "other"]);
    assert!(
        said(&refused).contains("web 304.0 MiB"),
        "{}",
        said(&refused)
    );
    let empty = status(&node);
    assert_eq!((empty.in_memory, empty.used_bytes), (0, 0), "{empty:?}");
    assert_eq!(empty.gave_way, full.in_memory);
    let much = code(&node, 5, &["pool", "resize", "1000T"]);
    assert!(said(&much).contains("32.0 MiB for it"), "{}", said(&much));
    code(&node, 0, &["pool", "resize", "1000T", "--overcommit"]);
    eventually("they are in memory again", || {
        status(&node).in_memory == full.in_memory
    });

    killed_after_each_step(&mut node);
}
