//! An update of QEMU that could not load what is here is told before it, and a machine that it left without its memory has a cold way.

use crate::support::command::{ends, floe, said};
use crate::support::node::{Signal, finish};
use crate::support::park::{machine, node_with_kept_words, refused, succeeds};
use floe_api::*;

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn states_that_another_qemu_could_not_load_are_named_and_have_a_cold_way() {
    let mut node = node_with_kept_words();
    let capture = CaptureRequest {
        name: Some("web-live".into()),
        rehearse_s: Some(0),
        ..Default::default()
    };
    finish(node.client().capture("web", &capture).unwrap());
    succeeds(&node, &["dock", "web", "--as", "shop"]);
    succeeds(&node, &["park", "web"]);

    let states = |report: DoctorReport| {
        let mut checks = report.checks.into_iter();
        checks.find(|check| check.name == STATES_CHECK).unwrap()
    };
    let now = states(node.client().doctor().unwrap());
    assert_eq!(now.status, CheckStatus::Ok, "{now:?}");
    assert!(now.detail.contains("can load all 3"), "{now:?}");
    let lost = ends(floe(&node, &["doctor", "--qemu", "99.0"]));
    assert_eq!(lost.status.code(), Some(1), "{}", said(&lost));
    for part in [
        "can't load 3 of 3",
        "image web-live",
        "substrate shop",
        "parked machine web",
        "floe run --cold",
    ] {
        assert!(said(&lost).contains(part), "{part}: {}", said(&lost));
    }
    let strange = ends(floe(&node, &["doctor", "--qemu", "new"]));
    assert_eq!(strange.status.code(), Some(2), "{}", said(&strange));

    // its memory was made by a QEMU that is here no more
    node.end(Signal::TERM);
    let path = node.home().join("machines/web/machine.json");
    let text = std::fs::read(&path).unwrap();
    let mut record: serde_json::Value = serde_json::from_slice(&text).unwrap();
    record["config"]["qemu_version"] = "1.0.0".into();
    std::fs::write(&path, serde_json::to_vec(&record).unwrap()).unwrap();
    node.start_again();
    assert_eq!(machine(&node, "web").status, MachineStatus::Parked);
    let now = states(node.client().doctor().unwrap());
    assert_eq!(now.status, CheckStatus::Warn, "{now:?}");
    assert!(now.detail.contains("1 of 3: parked machine web"), "{now:?}");
    let words = ["QEMU 1.0.0", "floe stop --now web", "floe start web"];
    refused(&node, &["wake", "web"], &words);
    assert_eq!(machine(&node, "web").status, MachineStatus::Parked);
    succeeds(&node, &["stop", "--now", "web"]);
    succeeds(&node, &["start", "web", "--wait", "agent"]);
    node.type_and_wait(
        "web",
        "echo cold-[$X]-$(head -c 12 /dev/vda)",
        "cold-[]-kept-on-disk",
    );
}
