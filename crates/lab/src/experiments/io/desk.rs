//! A real guest in QEMU that launches programs, loads pages and plays films when it is told to (`guests/io.rs`).

use crate::guest::Guest;
use crate::slow_disk::output_of;
use anyhow::{Context as _, bail, ensure};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time for a guest to boot on a busy host, and to do what it is told.
const PATIENCE: Duration = Duration::from_secs(240);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The program in the guest, and its disk's size.
const PROGRAM: &str = include_str!("../../../guests/io.rs");
const FILES: &str = include_str!("../../../guests/io_files.rs");
const INIT: &str = include_str!("../../../guests/io-init");
pub const DISK_BYTES: u64 = 128 << 20;

/// Where a guest runs.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// A directory for its socket and log.
    pub dir: &'a Path,
    /// Its disk's file.
    pub disk: &'a Path,
    /// The only processor that it may use.
    pub cpu: usize,
}

/// A guest that has started and waits for commands.
pub struct Desk {
    child: Child,
    serial: BufReader<UnixStream>,
}

impl Desk {
    /// Boots a guest with this disk.
    pub fn boot(guest: &Guest, initrd: &Path, place: Place) -> anyhow::Result<Desk> {
        std::fs::create_dir_all(place.dir)?;
        let socket = place.dir.join("serial");
        let mut command = Command::new("taskset");
        command.args(["-c", &place.cpu.to_string(), "qemu-system-x86_64"]);
        command.args([
            "-nodefaults",
            "-display",
            "none",
            "-machine",
            "pc-q35-7.2",
            "-cpu",
            "Nehalem",
        ]);
        command.args(["-accel", "tcg", "-m", "128M", "-smp", "1"]);
        command
            .arg("-kernel")
            .arg(guest.kernel())
            .arg("-initrd")
            .arg(initrd);
        command.args(["-append", &guest.cmdline()?]);
        command.args([
            "-serial".into(),
            format!("unix:{},server=on,wait=off", socket.display()),
            "-drive".into(),
            // as floe's nodes open disks
            format!(
                "file={},if=virtio,format=raw,cache=none,aio=threads,file.locking=off",
                place.disk.display()
            ),
        ]);
        let log = std::fs::File::create(place.dir.join("log"))?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("taskset (util-linux) is missing")?;
        let start = Instant::now();
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(_) if start.elapsed() < PATIENCE && child.try_wait()?.is_none() => {
                    std::thread::sleep(LOOK_EVERY);
                }
                Err(error) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    bail!(
                        "QEMU gives no serial line ({error}); see {}",
                        place.dir.join("log").display()
                    );
                }
            }
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        let serial = BufReader::new(stream);
        let mut desk = Desk { child, serial };
        desk.answer("ready")?;
        Ok(desk)
    }

    /// Returns the process of its QEMU.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    fn answer(&mut self, word: &str) -> anyhow::Result<Vec<f64>> {
        loop {
            let mut line = String::new();
            let bytes = self.serial.read_line(&mut line);
            ensure!(
                bytes.context("a guest does not answer")? > 0,
                "a guest's QEMU ended"
            );
            // whatever the kernel says stands in lines of its own
            let Some((_, said)) = line.trim().split_once('@') else {
                continue;
            };
            let mut words = said.split_whitespace();
            match words.next() {
                Some(first) if first == word => {
                    return Ok(words.filter_map(|word| word.parse().ok()).collect());
                }
                _ => bail!("a guest said {said:?}, not {word}"),
            }
        }
    }

    /// Begins what a line says.
    pub fn begin(&mut self, line: &str) -> anyhow::Result<()> {
        writeln!(self.serial.get_mut(), "{line}")?;
        Ok(())
    }

    /// Returns the numbers that it answers once it is done.
    pub fn end(&mut self, line: &str) -> anyhow::Result<Vec<f64>> {
        let word = line.split(' ').next().unwrap_or_default();
        self.answer(word).with_context(|| format!("after {line:?}"))
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Compiles the guests' program and adds it to the tiny guest's initial RAM disk.
pub fn initrd(guest: &Guest, scratch: &Path) -> anyhow::Result<PathBuf> {
    let (source, root) = (scratch.join("io.rs"), scratch.join("initrd"));
    std::fs::create_dir_all(root.join("bin"))?;
    std::fs::write(&source, PROGRAM)?;
    std::fs::write(scratch.join("io_files.rs"), FILES)?;
    let mut rustc = Command::new("rustc");
    rustc.args([
        "--edition",
        "2024",
        "-O",
        "-C",
        "target-feature=+crt-static",
    ]);
    rustc.args(["-C", "strip=symbols", "-C", "panic=abort", "-o"]);
    output_of(rustc.arg(root.join("bin/floe-io")).arg(&source))?;
    std::fs::write(root.join("init"), INIT)?;
    std::fs::set_permissions(root.join("init"), std::fs::Permissions::from_mode(0o755))?;
    add_to_initrd(guest, &root, &scratch.join("io.initrd"))
}

/// Writes the tiny guest's initial RAM disk with the files below `root` in addition to `path`, which it returns.
pub fn add_to_initrd(guest: &Guest, root: &Path, path: &Path) -> anyhow::Result<PathBuf> {
    let archive = Command::new("sh")
        .args(["-c", "find . | cpio --quiet -o -H newc -R 0:0"])
        .current_dir(root)
        .output()?;
    ensure!(
        archive.status.success(),
        "cpio is missing; install the Debian package cpio"
    );
    // The kernel unpacks concatenated archives in order; a later file replaces an earlier one.
    let mut initrd = std::fs::read(guest.initrd())?;
    initrd.resize(initrd.len().next_multiple_of(4), 0);
    initrd.extend(archive.stdout);
    std::fs::write(path, initrd)?;
    Ok(path.to_owned())
}
