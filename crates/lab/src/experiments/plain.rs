//! The alternative without floe: QEMU alone, whose state is saved and loaded by its own migration stream through a file.
use crate::guest::{Guest, READY};
use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time for a guest to boot, or for QEMU to save or load it.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often awaited conditions are checked.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Name of a guest's disk in its directory.
const DISK: &str = "disk.qcow2";

/// A QEMU that was started without floe.
pub struct PlainQemu {
    child: Child,
    dir: PathBuf,
    monitor: BufReader<UnixStream>,
    /// Time from its start until the guest ran.
    pub started: Duration,
}

impl PlainQemu {
    /// Boots a guest and waits for its shell.
    pub fn boot(dir: &Path, guest: &Guest, memory: u64) -> anyhow::Result<PlainQemu> {
        let qemu = PlainQemu::start(dir, guest, memory, None)?;
        let (start, log) = (Instant::now(), dir.join("console"));
        while !std::fs::read(&log).is_ok_and(|text| String::from_utf8_lossy(&text).contains(READY))
        {
            if start.elapsed() > PATIENCE {
                bail!(
                    "the guest did not boot under plain QEMU; its console is {}",
                    log.display()
                );
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(qemu)
    }

    /// Starts a QEMU from a state file and waits until the guest runs.
    pub fn load(dir: &Path, guest: &Guest, memory: u64, state: &Path) -> anyhow::Result<PlainQemu> {
        let start = Instant::now();
        let from = format!("exec:cat '{}'", state.display());
        let mut qemu = PlainQemu::start(dir, guest, memory, Some(&from))?;
        qemu.wait_until_it_runs(start)?;
        Ok(qemu)
    }

    /// Moves the running guest to another QEMU, which is started for that, and waits until it runs there.
    pub fn migrate(mut self, dir: &Path, guest: &Guest, memory: u64) -> anyhow::Result<PlainQemu> {
        let disk = self.dir.join(DISK);
        std::fs::create_dir_all(dir)?;
        if disk.exists() {
            std::os::unix::fs::symlink(disk.canonicalize()?, dir.join(DISK))?;
        }
        let start = Instant::now();
        let at = format!("unix:{}", dir.join("incoming").display());
        let mut qemu = PlainQemu::start(dir, guest, memory, Some(&at))?;
        self.unbound_bandwidth()?;
        self.ask("migrate", json!({ "uri": at }))?;
        qemu.wait_until_it_runs(start)?;
        Ok(qemu)
    }

    /// Waits until a QEMU that loads a state has done so and runs its guest.
    fn wait_until_it_runs(&mut self, start: Instant) -> anyhow::Result<()> {
        loop {
            let status = self.ask("query-status", json!({}))?;
            // a guest that was paused when it was saved is paused after loading
            if status["status"] == "paused" {
                self.ask("cont", json!({}))?;
            } else if status["status"] == "running" {
                self.started = start.elapsed();
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                bail!("QEMU did not load a state: it is {}", status["status"]);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// By default, QEMU sends its state at 32 MB/s, as if it had to share a network.
    fn unbound_bandwidth(&mut self) -> anyhow::Result<()> {
        let bandwidth = json!({ "max-bandwidth": 1u64 << 40 });
        self.ask("migrate-set-parameters", bandwidth).map(drop)
    }

    /// Pauses the guest, writes its whole state to a file, and resumes it. Returns how long it was paused.
    pub fn save(&mut self, to: &Path) -> anyhow::Result<Duration> {
        let start = Instant::now();
        self.ask("stop", json!({}))?;
        self.unbound_bandwidth()?;
        self.ask(
            "migrate",
            json!({ "uri": format!("exec:cat > '{}'", to.display()) }),
        )?;
        loop {
            let status = self.ask("query-migrate", json!({}))?;
            match status["status"].as_str() {
                Some("completed") => break,
                Some("failed") => bail!("QEMU could not save its state: {status}"),
                _ if start.elapsed() > PATIENCE => bail!("QEMU is still saving: {status}"),
                _ => std::thread::sleep(LOOK_EVERY),
            }
        }
        self.ask("cont", json!({}))?;
        Ok(start.elapsed())
    }

    fn start(
        dir: &Path,
        guest: &Guest,
        memory: u64,
        incoming: Option<&str>,
    ) -> anyhow::Result<PlainQemu> {
        std::fs::create_dir_all(dir)?;
        let socket = dir.join("qmp");
        let _ = std::fs::remove_file(&socket);
        let accel = if crate::guest::accelerator().starts_with("kvm") {
            "kvm"
        } else {
            "tcg"
        };
        let mut command = Command::new("qemu-system-x86_64");
        command.args([
            "-nodefaults",
            "-display",
            "none",
            "-machine",
            "pc-q35-7.2",
            "-cpu",
            "Nehalem",
            "-smp",
            "2",
            "-accel",
            accel,
        ]);
        command.args(["-m".into(), format!("{}M", memory >> 20)]);
        command.args([
            "-qmp".into(),
            format!("unix:{},server=on,wait=off", socket.display()),
        ]);
        command.args([
            "-serial".into(),
            format!("file:{}", dir.join("console").display()),
        ]);
        command
            .arg("-kernel")
            .arg(guest.kernel())
            .arg("-initrd")
            .arg(guest.initrd())
            .args(["-append", &guest.cmdline()?]);
        command.args(["-netdev", "user,id=n", "-device", "virtio-net-pci,netdev=n"]);
        if guest.disk().exists() {
            let disk = overlay(dir, &guest.disk())?;
            command.args([
                "-drive".into(),
                format!(
                    "file={},format=qcow2,if=virtio,file.locking=off",
                    disk.display()
                ),
            ]);
        }
        if let Some(incoming) = incoming {
            command.args(["-incoming", incoming]);
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let mut child = child
            .context("qemu-system-x86_64 is missing; install the Debian package qemu-system-x86")?;
        let start = Instant::now();
        let monitor = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break BufReader::new(stream),
                Err(_) if start.elapsed() < PATIENCE && child.try_wait()?.is_none() => {
                    std::thread::sleep(LOOK_EVERY)
                }
                Err(error) => bail!("QEMU gives no monitor on {}: {error}", socket.display()),
            }
        };
        let mut qemu = PlainQemu {
            child,
            dir: dir.to_owned(),
            monitor,
            started: Duration::ZERO,
        };
        qemu.read()?;
        qemu.ask("qmp_capabilities", json!({}))?;
        Ok(qemu)
    }

    fn ask(&mut self, command: &str, arguments: Value) -> anyhow::Result<Value> {
        let question = json!({ "execute": command, "arguments": arguments });
        writeln!(self.monitor.get_mut(), "{question}")?;
        loop {
            let mut answer = self.read()?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU refused {command}: {error}");
            }
            if answer.get("return").is_some() {
                return Ok(answer["return"].take());
            }
        }
    }

    fn read(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        if self.monitor.read_line(&mut line)? == 0 {
            bail!("QEMU ended: {}", self.child.wait()?);
        }
        Ok(serde_json::from_str(&line)?)
    }
}

/// Makes a disk on top of the guest's own, which stays unchanged.
fn overlay(dir: &Path, disk: &Path) -> anyhow::Result<PathBuf> {
    let path = dir.join(DISK);
    if !path.exists() {
        let status = Command::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
            .arg(disk)
            .arg(&path)
            .status();
        let status =
            status.context("qemu-img is missing; install the Debian package qemu-utils")?;
        anyhow::ensure!(status.success(), "qemu-img create: {status}");
    }
    Ok(path)
}

impl Drop for PlainQemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
