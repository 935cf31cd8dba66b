//! A disk that is as slow as it is told to be, the same on every host: [`SlowDisk`].
//!
//! [`model`] decides how long a request takes; [`server`] shows one file that takes as long. A loop device with direct I/O over that
//! file is a disk for the host's kernel, with the kernel's I/O schedulers before it, and it carries a file system for whatever is
//! measured. Needs root, FUSE and loop devices.

pub mod model;
pub mod server;
mod sys;

use anyhow::{Context as _, ensure};
pub use model::{Kind, Model};
use rustix::mount::UnmountFlags;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// How long whoever uses the file system may take to end, and how often that is looked at.
const UNMOUNT_MAX: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A mounted file system on a modelled disk. Dropping it unmounts and ends all of it.
pub struct SlowDisk {
    server: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    dir: PathBuf,
    /// The file system's mountpoint.
    pub root: PathBuf,
    /// The block device, as in `/sys/block`.
    pub name: String,
}

impl SlowDisk {
    /// Makes a disk of so many bytes with an empty ext4 on it. It takes no time for anything until [`SlowDisk::behave`] says otherwise.
    pub fn new(dir: &Path, bytes: u64) -> anyhow::Result<SlowDisk> {
        SlowDisk::served_by(&std::env::current_exe()?, dir, bytes)
    }

    /// The same from another program than `floe-lab`, whose path this is.
    pub fn served_by(floe_lab: &Path, dir: &Path, bytes: u64) -> anyhow::Result<SlowDisk> {
        std::fs::create_dir_all(dir)?;
        let mut server = Command::new(floe_lab)
            .arg("slow-disk")
            .arg(dir)
            .arg(bytes.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = server.stdin.take();
        let output = server.stdout.take().context("it was started with a pipe")?;
        let mut disk = SlowDisk {
            server,
            input,
            output: BufReader::new(output),
            dir: dir.to_owned(),
            root: dir.join("root"),
            name: String::new(),
        };
        disk.hear("ready")?;
        std::fs::create_dir_all(&disk.root)?;
        let file = dir.join("mnt/disk");
        let device = output_of(
            Command::new("losetup")
                .args(["--find", "--show", "--direct-io=on"])
                .arg(&file),
        )?;
        let name = device
            .strip_prefix("/dev/")
            .context("losetup names a device")?;
        disk.name = name.to_owned();
        let made = output_of(
            // without a journal's and tables' writes in the background while something is measured
            Command::new("mkfs.ext4").args([
                "-q",
                "-E",
                "nodiscard,lazy_itable_init=0,lazy_journal_init=0",
                &device,
            ]),
        );
        let mounted = made.and_then(|_| {
            output_of(
                Command::new("mount")
                    .args(["-o", "noatime,nodiscard", &device])
                    .arg(&disk.root),
            )
        });
        // the device goes when nobody uses it any more
        output_of(Command::new("losetup").args(["--detach", &device]))?;
        mounted?;
        Ok(disk)
    }

    fn hear(&mut self, word: &str) -> anyhow::Result<u64> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let rest = line.trim().strip_prefix(word);
        let rest = rest.with_context(|| format!("the slow disk said {line:?}"))?;
        Ok(rest.trim().parse().unwrap_or(0))
    }

    fn tell(&mut self, word: &str) -> anyhow::Result<u64> {
        let input = self.input.as_mut().context("it has not ended")?;
        writeln!(input, "{word}")?;
        self.hear("ok")
    }

    /// From now on the disk is one of this kind. Returns how many requests it has served so far.
    pub fn behave(&mut self, kind: Kind) -> anyhow::Result<u64> {
        let rotates = if kind == Kind::HardDisk { "1" } else { "0" };
        self.set("rotational", rotates)?;
        self.tell(kind.name())
    }

    /// From now on nothing takes any time, to prepare what is measured. Returns how many requests it has served so far.
    pub fn hurry(&mut self) -> anyhow::Result<u64> {
        self.tell("fast")
    }

    fn set(&self, what: &str, value: &str) -> anyhow::Result<()> {
        let path = format!("/sys/block/{}/queue/{what}", self.name);
        std::fs::write(&path, value).with_context(|| format!("cannot write {value} to {path}"))
    }

    /// Returns the process that serves it.
    pub fn process(&self) -> u32 {
        self.server.id()
    }

    /// Returns the I/O schedulers that the kernel has for it.
    pub fn schedulers(&self) -> anyhow::Result<Vec<String>> {
        let path = format!("/sys/block/{}/queue/scheduler", self.name);
        let text = std::fs::read_to_string(path)?;
        let names = text
            .split_whitespace()
            .map(|name| name.trim_matches(['[', ']']).to_owned());
        Ok(names.collect())
    }

    /// Puts one of the kernel's I/O schedulers before it.
    pub fn schedule(&self, scheduler: &str) -> anyhow::Result<()> {
        self.set("scheduler", scheduler)
    }

    /// Returns whether the loop device reads and writes past the host's page cache; else nothing that it carries would be slow.
    pub fn is_direct(&self) -> bool {
        let path = format!("/sys/block/{}/loop/dio", self.name);
        std::fs::read_to_string(path).is_ok_and(|text| text.trim() == "1")
    }

    /// Returns the numbers of the block device, as control groups name it.
    pub fn numbers(&self) -> anyhow::Result<String> {
        let path = format!("/sys/block/{}/dev", self.name);
        Ok(std::fs::read_to_string(path)?.trim().to_owned())
    }

    /// Writes out what the host has in memory of this file system's files, and forgets it, so that it must be read again.
    pub fn forget(&self) -> anyhow::Result<()> {
        rustix::fs::syncfs(File::open(&self.root)?)?;
        forget_clean(&self.root)
    }
}

/// Has the host forget what it has read of the files below a directory, and of what it has written what has reached the disk.
pub fn forget_clean(root: &Path) -> anyhow::Result<()> {
    forget_below(root, std::fs::metadata(root)?.dev())
}

fn forget_below(dir: &Path, device: u64) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        // what is mounted there is not of this disk, and a file may have gone meanwhile
        let Ok(meta) = std::fs::symlink_metadata(&path) else {
            continue;
        };
        if meta.dev() != device {
            continue;
        }
        if meta.is_dir() {
            forget_below(&path, device)?;
        } else if meta.is_file() {
            let file = File::open(&path)?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
    }
    Ok(())
}

/// Runs a command; returns what it wrote.
pub fn output_of(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot run {}", name.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{} failed: {}",
        name.display(),
        said.trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        let _ = self.hurry();
        // threads of what stood on it may still be about to end
        let until = Instant::now() + UNMOUNT_MAX;
        let unmount = |flags| rustix::mount::unmount(&self.root, flags);
        while let Err(error) = unmount(UnmountFlags::empty()) {
            if Instant::now() > until {
                eprintln!("{} is still used: {error}", self.root.display());
                let _ = unmount(UnmountFlags::DETACH);
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        // it ends with its input, and with it whatever still waits for it
        drop(self.input.take());
        let _ = self.server.wait();
        let _ = std::fs::remove_file(self.dir.join("bytes"));
    }
}
