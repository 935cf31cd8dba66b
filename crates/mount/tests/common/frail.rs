//! An ext4 on a loop device, whose file lies on a tmpfs: it can be made to fail, and to stand still.

use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Runs a program that must succeed.
pub fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {said}");
}

/// An ext4 that can be made to fail.
pub struct Frail {
    tmpfs: PathBuf,
    pub ext4: PathBuf,
    mounted: Vec<PathBuf>,
}

impl Frail {
    pub fn make(root: &Path) -> Self {
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
    pub fn break_blocks_of(&self, byte: u8) -> usize {
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

    pub fn mend(&self) {
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

/// A file system in which all writes wait until this is dropped.
pub struct Frozen<'a>(&'a Path);

impl<'a> Frozen<'a> {
    pub fn freeze(path: &'a Path) -> Frozen<'a> {
        run("fsfreeze", &["--freeze", path.to_str().unwrap()]);
        Frozen(path)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        run("fsfreeze", &["--unfreeze", self.0.to_str().unwrap()]);
    }
}

/// Waits until `is` holds; what it waits for may take long on a busy host.
pub fn eventually(what: &str, is: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(120);
    while !is() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
