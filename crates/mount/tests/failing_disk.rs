//! Tests with a real kernel, a real file system, and a disk under it that stops taking writes: ext4 on a loop device, whose
//! file lies on a tmpfs without room for some of the blocks.

mod common;

use common::Place;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

const LEN: usize = 4 << 20;

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {said}");
}

/// An ext4 that can be made to fail.
struct Frail {
    tmpfs: PathBuf,
    ext4: PathBuf,
    mounted: Vec<PathBuf>,
}

impl Frail {
    fn make(root: &Path) -> Self {
        let (tmpfs, ext4) = (root.join("tmpfs"), root.join("ext4"));
        std::fs::create_dir(&tmpfs).unwrap();
        std::fs::create_dir(&ext4).unwrap();
        let mut this = Self {
            mounted: Vec::new(),
            tmpfs,
            ext4,
        };
        let at = this.tmpfs.to_str().unwrap().to_owned();
        run("mount", &["-t", "tmpfs", "-o", "size=80m", "none", &at]);
        this.mounted.push(this.tmpfs.clone());
        let image = this.image();
        File::create(&image).unwrap().set_len(48 << 20).unwrap();
        let image = image.to_str().unwrap();
        let options = "lazy_itable_init=0,nodiscard";
        run(
            "mkfs.ext4",
            &["-F", "-q", "-b", "4096", "-E", options, image],
        );
        run("mount", &["-o", "loop", image, this.ext4.to_str().unwrap()]);
        this.mounted.push(this.ext4.clone());
        this
    }

    fn image(&self) -> PathBuf {
        self.tmpfs.join("image")
    }

    /// Makes it impossible to write blocks that are full of `byte`; returns how many those are.
    fn break_blocks_of(&self, byte: u8) -> usize {
        let mut options = OpenOptions::new();
        let image = options.read(true).write(true).open(self.image()).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let mut block = [0; 4096];
        let mut broken = 0;
        for at in (0..image.metadata().unwrap().len()).step_by(4096) {
            image.read_exact_at(&mut block, at).unwrap();
            if block == [byte; 4096] {
                fallocate(&image, punch, at, 4096).unwrap();
                broken += 1;
            }
        }
        let space = rustix::fs::statvfs(&self.tmpfs).unwrap();
        let filler = File::create(self.tmpfs.join("filler")).unwrap();
        let free = space.f_bavail * space.f_frsize;
        fallocate(&filler, FallocateFlags::empty(), 0, free).unwrap();
        broken
    }

    fn mend(&self) {
        std::fs::remove_file(self.tmpfs.join("filler")).unwrap();
    }
}

impl Drop for Frail {
    fn drop(&mut self) {
        for path in self.mounted.iter().rev() {
            let _ = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

#[test]
#[ignore = "needs root and /dev/fuse: make system"]
fn no_flush_succeeds_after_a_failed_one_before_the_data_is_on_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let frail = Frail::make(dir.path());
    let place = Place::make(dir.path());
    let node = place.start(place.options());
    let machine = place.machine_in(&node, "a", &frail.ext4.join("a"));
    let disk = OpenOptions::new()
        .read(true)
        .write(true)
        .open(machine.disk_path("disk0").unwrap())
        .unwrap();
    disk.write_all_at(&[0x5A; LEN], 0).unwrap();
    disk.sync_data().unwrap();
    run("sync", &["-f", frail.ext4.to_str().unwrap()]);
    assert!(frail.break_blocks_of(0x5A) >= LEN / 4096);

    disk.write_all_at(&[0xC3; LEN], 0).unwrap();
    disk.sync_data().unwrap_err();
    disk.sync_data()
        .expect_err("the second flush knows nothing of the first one's error");
    let failed = machine.failed_disks();
    assert_eq!((failed.len(), failed[0].disk.as_str()), (1, "disk0"));

    frail.mend();
    disk.sync_data().unwrap();
    assert!(machine.failed_disks().is_empty());
    // Reads what is on the disk, not what is in the page cache.
    let layer = frail.ext4.join("a/disks/disk0/layer-1.data");
    let mut options = OpenOptions::new();
    let layer = options.read(true).custom_flags(libc::O_DIRECT).open(layer);
    let mut there = memmap2::MmapMut::map_anon(LEN).unwrap();
    layer.unwrap().read_exact_at(&mut there, 0).unwrap();
    assert!(there.iter().all(|byte| *byte == 0xC3));
    drop(disk);
    node.mount.unmount().unwrap();
}
