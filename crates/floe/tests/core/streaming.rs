//! Traces, models and pauses with real guests, a real hub and a link that is too slow: the whole way round.

use crate::support::node::{self, TestNode, eventually, finish};
use crate::support::streaming::{WORK, request, slow_link, stop, world};
use floe_api::*;
use floe_image::{Access, Hash, TraceHeader, TraceWriter};
use floe_traces::{Method, learn};
use std::path::{Path, PathBuf};
use std::process::Command;

fn model_of(image: &Hash) -> Vec<u8> {
    let header = TraceHeader {
        image: *image,
        machine: String::new(),
        start_unix_us: 0,
    };
    let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
    let access = Access {
        region: 0,
        chunk: 1,
        t_us: 0,
        wait_us: 0,
    };
    writer.push(access).unwrap();
    learn(Method::Floe, image, &[writer.into_inner()]).unwrap()
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn what_one_machine_touched_is_fetched_ahead_for_the_next_and_a_slow_link_pauses_it() {
    let world = world();
    let there = TestNode::start();
    let client = there.client();
    there.run(&request(&world.hub.url(), "one"));
    there.type_and_wait("one", WORK, "worked-2");
    let info = client.stream_info("one").unwrap();
    assert!(
        info.touched > 100 && info.misses > 0 && !info.model,
        "{info:?}"
    );
    assert!(info.fetched_bytes > 0, "{info:?}");
    stop(&there, "one");

    // the trace is here, and the hub gets it and makes a model
    let here = client.traces(&TracesRequest {
        image: world.id.to_string(),
        ..Default::default()
    });
    let here = here.unwrap_or_else(|error| panic!("{error}\n{}", there.log()));
    assert_eq!(here.traces.len(), 1);
    eventually("the trace at the hub", || {
        client.traces(&world.of()).unwrap().traces.len() == 1
    });
    let list = client.traces(&world.of()).unwrap();
    assert_eq!(list.traces[0].summary, here.traces[0].summary);
    eventually("a model", || world.model_file().is_some());
    let show = TraceRequest {
        of: world.of(),
        trace: list.traces[0].summary.hash[..12].into(),
        path: Some(there.home().join("x.trace").display().to_string()),
        force: false,
    };
    let shown = client.trace(&show).unwrap();
    assert!(
        shown
            .regions
            .iter()
            .any(|r| r.region == "ram" && r.chunks > 100)
    );
    client.export_trace(&show).unwrap();
    let import = TraceImportRequest {
        to: world.of(),
        path: show.path.clone().unwrap(),
    };
    assert!(client.import_trace(&import).unwrap().known);
    // somebody else's traces are not for whoever may read the image
    let nobody = TracesRequest {
        token: None,
        ..world.of()
    };
    let error = client.traces(&nobody).unwrap_err().to_api();
    assert_eq!(error.code, ErrorCode::NotFound, "{error}");

    // a link too slow for the guest: it stands still until what comes next is here
    let mut slow = TestNode::start();
    let url = slow_link(world.hub.addr()).url;
    let untraced = RunRequest {
        no_trace: true,
        ..request(&url, "two")
    };
    slow.run(&untraced);
    eventually("a pause", || {
        slow.client().machine("two").unwrap().status == MachineStatus::Buffering
    });
    let info = slow.client().stream_info("two").unwrap();
    eprintln!("paused: {info:?}");
    assert!(info.model, "{info:?}");
    // a node that starts anew lets it go on, even if it may pause it again
    slow.end(node::Signal::KILL);
    slow.start_again();
    // its socket takes connections before it has looked after its machines
    eventually("the end of the old pause", || {
        slow.log()
            .contains("had been paused because what it needs next has not arrived")
    });
    // and so does a user
    let go_on = || {
        let client = slow.client();
        let status = client.machine("two").unwrap().status;
        if status == MachineStatus::Buffering
            && let Ok(events) = client.start("two", &StartRequest::default())
        {
            let _ = events.finish(|_| ());
        }
        client.machine("two").unwrap().status == MachineStatus::Running
    };
    eventually("the machine goes on", go_on);
    slow.type_and_wait("two", "echo alive-$((2+2))", "alive-4");
    let info = slow.client().stream_info("two").unwrap();
    eprintln!("after: {info:?}");
    stop(&slow, "two");
    // it left no trace
    assert_eq!(client.traces(&world.of()).unwrap().traces.len(), 1);
    assert!(
        !slow
            .home()
            .join("traces")
            .join(world.id.to_string())
            .exists()
    );

    // a model that is damaged, and one of another image, are as good as none
    for wrong in [
        b"FLOEMODL and nonsense".to_vec(),
        model_of(&Hash::of(b"other")),
    ] {
        there.client().remove_machine("one", true).unwrap();
        std::fs::write(world.model_file().unwrap(), wrong).unwrap();
        let warnings = |log: String| log.matches("it runs without its model").count();
        let before = warnings(there.log());
        there.run(&request(&world.hub.url(), "one"));
        eventually("a warning", || warnings(there.log()) > before);
        there.type_and_wait("one", "echo alive-$((3+3))", "alive-6");
        assert!(!there.client().stream_info("one").unwrap().model);
    }
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn a_local_images_traces_are_kept_and_learned_from_without_a_hub() {
    let node = TestNode::start();
    node.boot_tiny("one");
    let capture = CaptureRequest {
        name: Some("live".into()),
        rehearse_s: Some(0),
        ..Default::default()
    };
    finish(node.client().capture("one", &capture).unwrap());
    node.run_named("live", "two");
    node.type_and_wait("two", WORK, "worked-2");
    node.client().remove_machine("two", true).unwrap();
    let of = TracesRequest {
        image: "live".into(),
        ..Default::default()
    };
    let list = || node.client().traces(&of).unwrap();
    assert_eq!(list().traces.len(), 1);
    eventually("a model", || {
        list()
            .models
            .iter()
            .any(|m| m.method == "floe" && m.current)
    });
    // an image captured on it starts with what is known of its parent, until it is run itself
    node.run_named("live", "three");
    node.type_and_wait("three", "echo alive-$((1+1))", "alive-2");
    let capture = CaptureRequest {
        name: Some("child".into()),
        stop: true,
        ..capture
    };
    finish(node.client().capture("three", &capture).unwrap());
    node.run_named("child", "four");
    eventually("the parent's model", || {
        node.client().stream_info("four").unwrap().model
    });
    node.type_and_wait("four", "echo alive-$((2+2))", "alive-4");
    // the image goes, and with it what was learnt
    for machine in ["one", "three", "four"] {
        node.client().remove_machine(machine, true).unwrap();
    }
    node.client()
        .remove_image(&RemoveImageRequest {
            image: "child".into(),
            force: true,
        })
        .unwrap();
    let id = list().image;
    assert!(node.home().join("traces").join(&id).exists());
    let remove = RemoveImageRequest {
        image: "live".into(),
        force: true,
    };
    eventually("the image's removal", || {
        node.client().remove_image(&remove).is_ok()
    });
    assert!(!node.home().join("traces").join(&id).exists());
}

/// A disk of pages that are all different, and a trace of an image with it: two bursts of scattered accesses.
fn scattered_disk(dir: &Path) -> PathBuf {
    let disk = dir.join("disk.raw");
    // nothing that compresses: a scattered read costs what it seems to
    let word = |n: u64| Hash::of(&n.to_le_bytes()).0;
    let bytes: Vec<u8> = (0..2000 * 4096 / 32).flat_map(word).collect();
    std::fs::write(&disk, bytes).unwrap();
    disk
}

fn scattered_trace(image: Hash, to: &Path) {
    let header = TraceHeader {
        image,
        machine: String::new(),
        start_unix_us: 1,
    };
    let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
    for (burst, first) in [(0, 11), (30_000_000, 23)] {
        for (i, chunk) in (first..2000).step_by(50).enumerate() {
            let access = Access {
                region: 0,
                chunk,
                t_us: burst + i as u64 * 1000,
                wait_us: 0,
            };
            writer.push(access).unwrap();
        }
    }
    std::fs::write(to, writer.into_inner()).unwrap();
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn an_image_is_laid_out_by_its_traces_where_it_is_and_in_a_directory() {
    let node = TestNode::start();
    let dir = tempfile::tempdir().unwrap();
    let disk = scattered_disk(dir.path());
    let trace = dir.path().join("one.trace");
    let floe = |args: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_floe"))
            .args(args)
            .env("FLOE_HOME", node.home())
            .env_remove("FLOE_SOCKET")
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (out.status.success(), text(&out.stdout), text(&out.stderr))
    };
    let path = |path: &Path| path.display().to_string();
    let import = floe(&[
        "image",
        "import",
        &path(&disk),
        "--format",
        "raw",
        "--name",
        "scattered",
    ]);
    assert!(import.0, "{}", import.2);
    let (_, _, error) = floe(&["image", "optimize", "scattered"]);
    assert!(
        error.contains("nothing is known") && error.contains("floe trace ls scattered"),
        "{error}"
    );
    let www = path(&dir.path().join("www"));
    let push = floe(&["push", "scattered", &www]);
    assert!(push.0, "{}", push.2);

    let id: Hash = node
        .client()
        .image("scattered")
        .unwrap()
        .summary
        .id
        .parse()
        .unwrap();
    scattered_trace(Hash::of(b"another image"), &trace);
    let (done, _, error) = floe(&["image", "optimize", "scattered", "--traces", &path(&trace)]);
    assert!(
        !done && error.contains("one.trace") && error.contains("floe trace export"),
        "{error}"
    );
    scattered_trace(id, &trace);
    let (done, text, error) = floe(&["image", "optimize", "scattered", "--traces", &path(&trace)]);
    assert!(done, "{error}");
    // workers store side by side, so that two of the chunks may be neighbours by chance
    let before = text.split_once("2 groups of 80 chunks: ");
    let before: Option<u32> = before.and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
    assert!(before.is_some_and(|reads| reads > 60), "{text}");
    assert!(text.contains("2 range reads of"), "{text}");

    // nothing but the layout has changed
    assert_eq!(
        node.client().image("scattered").unwrap().summary.id,
        id.to_string()
    );
    assert!(floe(&["image", "verify", "scattered"]).0);
    let back = dir.path().join("back.raw");
    assert!(floe(&["image", "export", "scattered", "disk0", &path(&back)]).0);
    assert!(std::fs::read(back).unwrap() == std::fs::read(&disk).unwrap());
    let layout = |dir: &Path| std::fs::read(dir.join(format!("images/{id}.layout"))).unwrap();
    let repo = node.home().join("repo");
    let new = path(&dir.path().join("new"));
    let push = floe(&["push", "scattered", &new]);
    assert!(push.0, "{}", push.2);
    assert_eq!(layout(Path::new(&new)), layout(&repo));

    // in the directory where it was published before, by the traces that are kept here
    let import = floe(&["trace", "import", "scattered", &path(&trace)]);
    assert!(import.0, "{}", import.2);
    let there = floe(&["push", "scattered", &www]);
    assert!(there.2.contains("floe image optimize"), "{}", there.2);
    assert_ne!(layout(Path::new(&www)), layout(&repo));
    let (done, text, error) = floe(&["image", "optimize", &format!("{www}/scattered"), "--json"]);
    assert!(done, "{error}");
    let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let report = &last["optimized"];
    assert_eq!(report["by"], "traces");
    assert_eq!(
        (&report["traces"], &report["reads_after"]),
        (&1.into(), &2.into())
    );
    assert_eq!(report["freed_bytes"], report["bytes_before"]);
    assert_eq!(layout(Path::new(&www)), layout(&repo));
    let (done, _, error) = floe(&["image", "optimize", "https://hub.invalid/scattered"]);
    assert!(!done && error.contains("before a push"), "{error}");
}
