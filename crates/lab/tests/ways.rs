//! Each way in which a machine comes to run, once, with a file system in the guest. The lab goes all pairs of them.
use floe_lab::harness::Report;
use std::process::Command;

/// As many as there are ways.
const WAYS: &str = "13";

#[test]
#[ignore = "needs root, FUSE, QEMU and the tiny guest: make test-all"]
fn a_disk_is_what_it_was_in_whatever_way_its_machine_comes_to_run() {
    let dir = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o711))
        .tempdir()
        .unwrap();
    let json = dir.path().join("ways.json");
    let output = Command::new(env!("CARGO_BIN_EXE_floe-lab"))
        .args(["ways", "--steps", WAYS, "--scratch"])
        .arg(dir.path())
        .arg("--json")
        .arg(&json)
        .output()
        .unwrap();
    let said = format!(
        "{}\n{}",
        String::from_utf8_lossy(&output.stderr),
        String::from_utf8_lossy(&output.stdout)
    );
    assert!(output.status.success(), "{said}");
    let report: Report = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    // the first way has none before it
    assert_eq!(report.figures["pairs"].value, 12.0, "{said}");
    for name in ["wrong_bytes", "lost_machines"] {
        assert_eq!(report.figures[name].value, 0.0, "{name}\n{said}");
    }
}
