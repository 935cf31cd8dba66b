//! The alternative without floe: QEMU alone, whose state is saved and loaded by its own migration stream through a file.
use crate::guest::{Guest, READY};
use crate::harness::Samples;
use crate::link::Namespace;
use crate::live::{at_once, tell_console};
use crate::web::until_it_answers;
use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time for a guest to boot, or for QEMU to save or load it.
const PATIENCE: Duration = Duration::from_secs(300);
/// Longest time for a copy among many to do what it is asked once it has answered.
const ASKED_MAX: Duration = Duration::from_secs(900);
/// How often awaited conditions are checked.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The program.
const QEMU: &str = "qemu-system-x86_64";
/// Name of a guest's disk in its directory.
const DISK: &str = "disk.qcow2";
/// Name of the socket of its serial line there.
const LINE: &str = "tty";
/// How often another free port is tried when somebody else has taken the one that was chosen.
const PORTS_TRIED: usize = 3;

/// Where a QEMU loads from that is told later.
const DEFER: &str = "defer";

/// What a guest runs on.
#[derive(Clone, Copy)]
pub struct Hardware<'a> {
    guest: &'a Guest,
    memory: u64,
    cpus: u32,
    balloon: bool,
    host: Option<&'a Namespace>,
}

impl<'a> Hardware<'a> {
    /// A guest with so many bytes of memory and so many virtual CPUs.
    pub fn new(guest: &'a Guest, memory: u64, cpus: u32) -> Hardware<'a> {
        Hardware {
            guest,
            memory,
            cpus,
            balloon: false,
            host: None,
        }
    }

    /// The same on a host of its own, as far as networks are concerned.
    pub fn on(self, host: &'a Namespace) -> Hardware<'a> {
        Hardware {
            host: Some(host),
            ..self
        }
    }

    /// The same with a balloon through which the guest gives back what is free, as floe's machines have one. A guest that zeroes free pages
    /// has written all of its memory once it has booted.
    pub fn with_balloon(self) -> Hardware<'a> {
        Hardware {
            balloon: true,
            ..self
        }
    }
}

/// When each of several copies of a guest was there, in milliseconds since they were asked for.
#[derive(Default)]
pub struct Copies {
    /// Their CPUs executed.
    pub running: Samples,
    /// Their web servers had answered.
    pub answered: Samples,
    /// Their shells had then run a command, if there is one.
    pub asked: Samples,
}

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
    pub fn boot(dir: &Path, hardware: Hardware) -> anyhow::Result<PlainQemu> {
        let qemu = PlainQemu::start(dir, hardware, None)?;
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

    /// Starts a QEMU that waits to be told from where a guest comes, which it then keeps paused.
    pub fn waiting(dir: &Path, hardware: Hardware) -> anyhow::Result<PlainQemu> {
        PlainQemu::start(dir, hardware, Some(DEFER))
    }

    /// Returns the number of its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Starts a QEMU from a state file and waits until the guest runs.
    pub fn load(dir: &Path, hardware: Hardware, state: &Path) -> anyhow::Result<PlainQemu> {
        let start = Instant::now();
        let from = format!("exec:cat '{}'", state.display());
        let mut qemu = PlainQemu::start(dir, hardware, Some(&from))?;
        qemu.wait_until_it_runs(start)?;
        Ok(qemu)
    }

    /// Moves the running guest to another QEMU, which is started for that, and waits until it runs there.
    pub fn migrate(mut self, dir: &Path, hardware: Hardware) -> anyhow::Result<PlainQemu> {
        let disk = self.dir.join(DISK);
        std::fs::create_dir_all(dir)?;
        if disk.exists() {
            std::os::unix::fs::symlink(disk.canonicalize()?, dir.join(DISK))?;
        }
        let start = Instant::now();
        let at = format!("unix:{}", dir.join("incoming").display());
        let mut qemu = PlainQemu::start(dir, hardware, Some(&at))?;
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
    pub fn unbound_bandwidth(&mut self) -> anyhow::Result<()> {
        let bandwidth = json!({ "max-bandwidth": 1u64 << 40 });
        self.ask("migrate-set-parameters", bandwidth).map(drop)
    }

    /// Lets the guest's shell run a command, and waits until it has.
    pub fn tell(&self, command: &str, patience: Duration) -> anyhow::Result<Duration> {
        tell_console(UnixStream::connect(self.dir.join(LINE))?, command, patience)
    }

    /// Leads a free port of this host to the guest's web server, and returns it.
    fn forward(&mut self) -> anyhow::Result<u16> {
        let mut said = String::new();
        for _ in 0..PORTS_TRIED {
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let port = free.local_addr()?.port();
            drop(free);
            let line = format!("hostfwd_add n tcp:127.0.0.1:{port}-:80");
            let answer = self.ask("human-monitor-command", json!({ "command-line": line }))?;
            said = answer.as_str().unwrap_or_default().trim().to_owned();
            if said.is_empty() {
                return Ok(port);
            }
        }
        bail!("QEMU forwards no port: {said}")
    }

    /// QEMU's own way to copies: stops the guest, writes its whole state to a file, and lets so many QEMUs load that at once, each with a
    /// disk on top of the guest's. They end when all have answered; then the guest goes on. `dir` is made for it, and removed.
    pub fn copies(
        &mut self,
        dir: &Path,
        hardware: Hardware,
        count: usize,
    ) -> anyhow::Result<Copies> {
        self.copies_of(dir, hardware, count, None, |_, state| Ok(state.to_owned()))
    }

    /// The same where each copy, by its number from 0, loads a file of its own, which `bring` makes of the one that was written. The shell of a
    /// copy that has answered runs `then`.
    pub fn copies_of(
        &mut self,
        dir: &Path,
        hardware: Hardware,
        count: usize,
        then: Option<&str>,
        bring: impl Fn(usize, &Path) -> anyhow::Result<PathBuf> + Sync,
    ) -> anyhow::Result<Copies> {
        std::fs::create_dir_all(dir)?;
        let disk = self.dir.join(DISK);
        let disk = disk.exists().then(|| disk.canonicalize()).transpose()?;
        let began = Instant::now();
        let ms = || began.elapsed().as_secs_f64() * 1000.0;
        let state = dir.join("state");
        self.stop_and_write(&state)?;
        let (each, free) = (std::fs::metadata(&state)?.len(), available_bytes()?);
        ensure!(
            each * count as u64 <= free,
            "{count} QEMUs that load {each} bytes each do not fit the {free} bytes of memory that this host has left"
        );
        let copies = at_once(count, |number| {
            let dir = dir.join(format!("c{number}"));
            std::fs::create_dir_all(&dir)?;
            if let Some(disk) = &disk {
                overlay(&dir, disk, "qcow2")?;
            }
            let mut copy = PlainQemu::load(&dir, hardware, &bring(number, &state)?)?;
            let running = ms();
            until_it_answers(copy.forward()?)?;
            let answered = ms();
            let Some(command) = then else {
                return Ok((copy, running, answered, None));
            };
            copy.tell(command, ASKED_MAX)?;
            Ok((copy, running, answered, Some(ms())))
        })?;
        let mut times = Copies::default();
        for (_, running, answered, asked) in &copies {
            times.running.push(*running);
            times.answered.push(*answered);
            if let Some(asked) = asked {
                times.asked.push(*asked);
            }
        }
        drop(copies);
        std::fs::remove_dir_all(dir)?;
        self.ask("cont", json!({}))?;
        Ok(times)
    }

    /// Pauses the guest, writes its whole state to a file, and resumes it. Returns how long it was paused.
    pub fn save(&mut self, to: &Path) -> anyhow::Result<Duration> {
        let start = Instant::now();
        self.stop_and_write(to)?;
        self.ask("cont", json!({}))?;
        Ok(start.elapsed())
    }

    /// Stops the guest and writes its whole state to a file.
    fn stop_and_write(&mut self, to: &Path) -> anyhow::Result<()> {
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
                Some("completed") => return Ok(()),
                Some("failed") => bail!("QEMU could not save its state: {status}"),
                _ if start.elapsed() > PATIENCE => bail!("QEMU is still saving: {status}"),
                _ => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    fn start(dir: &Path, hardware: Hardware, incoming: Option<&str>) -> anyhow::Result<PlainQemu> {
        let guest = hardware.guest;
        std::fs::create_dir_all(dir)?;
        let socket = dir.join("qmp");
        let _ = std::fs::remove_file(&socket);
        let accel = if crate::guest::accelerator().starts_with("kvm") {
            "kvm"
        } else {
            "tcg"
        };
        let mut command = match hardware.host {
            Some(host) => host.command(QEMU)?,
            None => Command::new(QEMU),
        };
        command.args([
            "-nodefaults",
            "-display",
            "none",
            "-machine",
            "pc-q35-7.2",
            "-cpu",
            "Nehalem",
            "-accel",
            accel,
        ]);
        command.args(["-smp".into(), hardware.cpus.to_string()]);
        command.args(["-m".into(), format!("{}M", hardware.memory >> 20)]);
        command.args([
            "-qmp".into(),
            format!("unix:{},server=on,wait=off", socket.display()),
        ]);
        command.args([
            "-chardev".into(),
            format!(
                "socket,id=line,path={},server=on,wait=off,logfile={}",
                dir.join(LINE).display(),
                dir.join("console").display()
            ),
        ]);
        command.args(["-serial", "chardev:line"]);
        command
            .arg("-kernel")
            .arg(guest.kernel())
            .arg("-initrd")
            .arg(guest.initrd())
            .args(["-append", &guest.cmdline()?]);
        command.args(["-netdev", "user,id=n", "-device", "virtio-net-pci,netdev=n"]);
        if hardware.balloon {
            command.args(["-device", "virtio-balloon-pci,free-page-reporting=on"]);
        }
        if guest.disk().exists() {
            let disk = overlay(dir, &guest.disk(), "raw")?;
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
            if incoming == DEFER {
                command.arg("-S");
            }
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

    /// Has its monitor do something. Returns the answer.
    pub fn ask(&mut self, command: &str, arguments: Value) -> anyhow::Result<Value> {
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

/// Returns how much memory this host has left, in bytes.
fn available_bytes() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    let kib: u64 = kib.context("no MemAvailable in /proc/meminfo")?.parse()?;
    Ok(kib * 1024)
}

/// Makes a disk on top of one of this format, which stays unchanged.
fn overlay(dir: &Path, disk: &Path, format: &str) -> anyhow::Result<PathBuf> {
    let path = dir.join(DISK);
    if !path.exists() {
        let status = Command::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2", "-F", format, "-b"])
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
