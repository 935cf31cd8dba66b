//! Tests that need root and the kernel's own devices: the emulated link with real packets, and experiments run by their
//! commands.
#![allow(
    clippy::disallowed_methods,
    reason = "a test may ask whether a file is there"
)]

mod common;
#[path = "system/io.rs"]
mod io;

use floe_image::{Access, TraceReader};
use floe_testbed::content::Content;
use floe_testbed::guest::Guest;
use floe_testbed::harness::Report;
use floe_testbed::link::{Bridge, Rate, Shape, measure};
use floe_testbed::workloads::Meta;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
#[ignore = "needs root, /dev/net/tun and iproute2: make test-all"]
fn the_emulated_link_keeps_rate_and_delay_within_3_percent() {
    let (bits, delay_ms) = (7_200_000, 60);
    let shape = Shape {
        rate: Rate::BitsPerSecond(bits),
        delay_ns: delay_ms * 1_000_000,
        ..Shape::default()
    };
    let bridge = Bridge::new(shape.clone(), shape).unwrap();
    let promised =
        (delay_ms * 1_000_000) as f64 + (measure::PROBE_BYTES * 8) as f64 * 1e9 / bits as f64;
    let delay = measure::delay(&bridge, 300).unwrap();
    assert!(
        delay.len() > 280,
        "only {} of 300 packets arrived",
        delay.len()
    );
    let ratio = delay.median() / promised;
    assert!(
        (ratio - 1.0).abs() < 0.03,
        "the delay is {ratio:.3} of the promised one"
    );
    let ratio = measure::rate(&bridge, bits as f64, Duration::from_secs(5)).unwrap() / bits as f64;
    assert!(
        (ratio - 1.0).abs() < 0.03,
        "the rate is {ratio:.3} of the promised one"
    );
    let traffic = bridge.up.read();
    assert!(
        traffic.no_room > 0,
        "more was offered than fits, so some of it must have been dropped"
    );
    assert_eq!(traffic.lost, 0, "a link without loss loses nothing");
}

#[test]
#[ignore = "needs root, /dev/net/tun and iproute2: make test-all"]
fn an_ended_link_leaves_no_namespace_behind() {
    let name = format!("floe-test-{}", std::process::id());
    let mut link = Command::new(env!("CARGO_BIN_EXE_floe-lab"))
        .args([
            "link", "--rate", "7.2mbit", "--delay", "1ms", "--name", &name,
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(link.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
    let near = Path::new("/run/netns").join(format!("{name}-near"));
    assert!(near.exists());
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&link),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    assert_eq!(link.wait().unwrap().code(), Some(130));
    assert!(!near.exists());
}

#[test]
#[ignore = "needs zstd: make test-all"]
fn the_import_experiment_writes_its_figures() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("import.json");
    let output = Command::new(env!("CARGO_BIN_EXE_floe-lab"))
        .args(["import", "--quick", "--scratch"])
        .arg(dir.path())
        .arg("--json")
        .arg(&json)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: Report = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert!(report.quick);
    for name in [
        "import_vs_zstd",
        "import_mb_per_s",
        "import_data_vs_zstd",
        "stored_mb",
    ] {
        assert!(report.figures[name].value > 0.0, "{name}");
    }
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(
        table.contains("import_vs_zstd") && table.contains("zstd -3 -T0"),
        "{table}"
    );
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        1,
        "the scratch directory was left behind"
    );
}

#[test]
#[ignore = "needs root, FUSE, QEMU and the tiny guest: make test-all"]
fn a_collected_trace_is_in_order_and_has_no_zero_chunk() {
    let dir = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o711))
        .tempdir()
        .unwrap();
    let guest = Guest::tiny().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_floe-lab"))
        .args(["collect", "--workload", "shell", "--count", "2", "--guest"])
        .arg(guest.kernel().parent().unwrap())
        .arg("--out")
        .arg(dir.path().join("traces"))
        .arg("--work")
        .arg(dir.path().join("work"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let traces = dir.path().join("traces/shell");
    let meta: Meta =
        serde_json::from_slice(&std::fs::read(traces.join("meta.json")).unwrap()).unwrap();
    assert_eq!((meta.run_s.len(), meta.accesses.len()), (2, 2));
    assert!((100.0..4096.0).contains(&meta.wire_bytes_per_chunk));
    let mut lengths = Vec::new();
    for number in 0..2 {
        let file = std::fs::read(traces.join(format!("{number:02}.trace.zst"))).unwrap();
        let bytes = zstd::decode_all(&file[..]).unwrap();
        let reader = TraceReader::new(&bytes).unwrap();
        let home = dir.path().join("work/node");
        let image = Content::open(&home, &reader.header().image.to_string()).unwrap();
        let accesses: Vec<Access> = reader.collect();
        assert!(accesses.is_sorted_by_key(|access| access.t_us));
        for access in &accesses {
            assert!(image.hash(access.region, access.chunk).is_some());
        }
        let last_s = accesses.last().unwrap().t_us as f64 / 1e6;
        assert!(last_s <= meta.run_s[number] + 0.001);
        assert_eq!(accesses.len() as u64, meta.accesses[number]);
        lengths.push(accesses.len());
    }
    assert!(
        lengths[1] * 2 > lengths[0] && lengths[0] > 100,
        "the second run must not find the pages of the first: {lengths:?}"
    );
}
