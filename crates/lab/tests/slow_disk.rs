//! The modelled disk under the host's kernel: FUSE, a loop device, ext4.

use floe_testbed::slow_disk::{Kind, SlowDisk};
use std::path::Path;

#[test]
#[ignore = "needs root, FUSE and loop devices: make test-all"]
fn a_slow_disk_carries_files_serves_each_request_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_floe-lab"));
    let mut disk = SlowDisk::served_by(program, dir.path(), 64 << 20).unwrap();
    assert!(disk.is_direct());
    let file = disk.root.join("file");
    let bytes: Vec<u8> = (0..1u32 << 18).flat_map(u32::to_le_bytes).collect();
    std::fs::write(&file, &bytes).unwrap();
    disk.forget().unwrap();
    for kind in [Kind::HardDisk, Kind::Ssd] {
        let before = disk.behave(kind).unwrap();
        assert!(std::fs::read(&file).unwrap() == bytes, "{kind:?}");
        let after = disk.hurry().unwrap();
        assert!(after > before, "{kind:?} was asked for nothing");
        disk.forget().unwrap();
    }
    let schedulers = disk.schedulers().unwrap();
    disk.schedule(&schedulers[0]).unwrap();
    let name = disk.name.clone();
    drop(disk);
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(
        !mounts.contains(&dir.path().display().to_string()),
        "{mounts}"
    );
    let backing = format!("/sys/block/{name}/loop/backing_file");
    let still = std::fs::read_to_string(backing).unwrap_or_default();
    assert!(
        !still.contains(&dir.path().display().to_string()),
        "{still}"
    );
}
