//! A real guest in QEMU that makes the requests of recorded launches, or noise, when it is told to (`guests/io.rs`).

use anyhow::{Context as _, bail, ensure};
use floe_machine::qmp::Qmp;
use floe_testbed::guest::{Guest, compile};
use floe_testbed::launch::Launch;
use serde_json::json;
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
const PROGRAM: &str = include_str!("../../../lab/guests/io.rs");
const FILES: &str = include_str!("../../../lab/guests/io_files.rs");
const SCRIPT: &str = include_str!("../../../lab/guests/io_script.rs");
const INIT: &str = include_str!("../../../lab/guests/io-init");
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
    qmp: Qmp,
}

/// What QEMU has counted of a guest's disk.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Read {
    /// How many reads were done.
    pub reads: u64,
    /// How long they took in all, from being given to QEMU until they were done, in seconds: without what the guest computes.
    pub reads_s: f64,
}

/// Reads QEMU's answer to `query-blockstats`: of its first disk.
fn first_disk(answer: &serde_json::Value) -> anyhow::Result<Read> {
    let stats = &answer[0]["stats"];
    let number = |name: &str| {
        stats[name]
            .as_u64()
            .with_context(|| format!("QEMU counts no {name} of a disk"))
    };
    Ok(Read {
        reads: number("rd_operations")?,
        reads_s: number("rd_total_time_ns")? as f64 / 1e9,
    })
}

impl Desk {
    /// Boots a guest with this disk.
    pub fn boot(guest: &Guest, initrd: &Path, place: Place) -> anyhow::Result<Desk> {
        std::fs::create_dir_all(place.dir)?;
        let (socket, monitor) = (place.dir.join("serial"), place.dir.join("qmp"));
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
            "-qmp".into(),
            format!("unix:{},server=on,wait=off", monitor.display()),
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
        let qmp = UnixStream::connect(&monitor)
            .map_err(anyhow::Error::from)
            .and_then(|stream| Ok(Qmp::over(stream, |_| {})?));
        let qmp = match qmp {
            Ok(qmp) => qmp,
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(error.context("QEMU has no monitor"));
            }
        };
        let mut desk = Desk { child, serial, qmp };
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

    /// Returns what QEMU has counted of its disk so far.
    pub fn read(&self) -> anyhow::Result<Read> {
        first_disk(&self.qmp.execute("query-blockstats", json!({}))?)
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

/// Compiles the guests' program and adds it, with the launches, to the tiny guest's initial RAM disk.
pub fn initrd(guest: &Guest, scratch: &Path, launches: &[Launch]) -> anyhow::Result<PathBuf> {
    let (source, root) = (scratch.join("io.rs"), scratch.join("initrd"));
    std::fs::create_dir_all(root.join("bin"))?;
    std::fs::write(&source, PROGRAM)?;
    std::fs::write(scratch.join("io_files.rs"), FILES)?;
    std::fs::write(scratch.join("io_script.rs"), SCRIPT)?;
    std::fs::create_dir_all(root.join("launches"))?;
    for launch in launches {
        let path = root.join("launches").join(&launch.name);
        std::fs::write(path, launch.script().text())?;
    }
    compile(&source, &root.join("bin/floe-io"))?;
    std::fs::write(root.join("init"), INIT)?;
    std::fs::set_permissions(root.join("init"), std::fs::Permissions::from_mode(0o755))?;
    guest.add_to_initrd(&root, &scratch.join("io.initrd"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_qemu_counts_of_a_disk_is_its_reads_and_their_time() {
        let answer = json!([{"device": "virtio0", "stats": {"rd_operations": 60, "rd_total_time_ns": 1_500_000_000u64}}]);
        let read = Read {
            reads: 60,
            reads_s: 1.5,
        };
        assert_eq!(first_disk(&answer).unwrap(), read);
        assert!(first_disk(&json!([])).is_err());
    }
}
