//! The world that is hit: a node with its supervisor on a small disk of its own, a hub in its own network namespace, the
//! link between them, and a second node that reads from the hub.
use super::faults::{Counts, Fault};
use super::watch::{Met, Pending};
use anyhow::{Context as _, bail};
use floe_api::ImportRequest;
use floe_api::client::Client;
use floe_testbed::guest::compile;
use floe_testbed::link::Namespace;
use rustix::process::{Pid, Signal, kill_process};
use std::fmt::{self, Display};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Size of the disk with the node's state, in bytes: several times what two machines with their captures and clones take.
const DISK_BYTES: u64 = 1536 << 20;
/// Longest time for a node or hub to answer: a debug build on a busy host.
const START_MAX: Duration = Duration::from_secs(120);
/// Longest time for a node to replace its supervisor.
const SUPERVISOR_MAX: Duration = Duration::from_secs(10);
/// How long an interrupted push is kept. It expires before leaks are counted.
pub const UPLOAD_EXPIRY: Duration = Duration::from_secs(30);
/// The addresses of the two ends of the link.
const NODE_ADDRESS: &str = "10.79.0.1/30";
const HUB_ADDRESS: &str = "10.79.0.2/30";
/// The address on which the hub listens.
const HUB_LISTEN: &str = "10.79.0.2:7071";
/// The image that machines are started from.
pub const IMAGE: &str = "guest";
/// Memory of each machine, in bytes.
const GUEST_MEMORY_BYTES: u64 = 96 << 20;
/// Disk of each machine, in bytes.
const GUEST_DISK_BYTES: u64 = 8 << 20;

/// A process of this program that serves until it is killed or its input ends.
struct Served {
    child: Child,
    input: Option<ChildStdin>,
    ready: mpsc::Receiver<String>,
}

impl Served {
    fn start(mut command: Command, log: &Path) -> anyhow::Result<Served> {
        let log = File::options().create(true).append(true).open(log)?;
        let mut child = command
            .env("RUST_LOG", "info")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = output.context("it was started with a pipe")?;
        let (sender, ready) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(output).read_line(&mut line);
            let _ = sender.send(line);
        });
        Ok(Served {
            child,
            input,
            ready,
        })
    }

    /// Waits until the process answers. Returns the rest of the line with which it does.
    fn ready(&self) -> anyhow::Result<String> {
        let line = self.ready.recv_timeout(START_MAX);
        let line = line.with_context(|| format!("not ready within {START_MAX:?}"))?;
        match line.trim().strip_prefix("ready") {
            Some(rest) => Ok(rest.trim().to_owned()),
            None => bail!("it ended before it was ready"),
        }
    }

    /// Kills the process and waits for its end.
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ends the process by closing its input.
    fn end(&mut self) {
        drop(self.input.take());
        let until = Instant::now() + START_MAX;
        while Instant::now() < until {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.kill();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A program that is started with errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// The node that is hit.
    Node,
    /// The hub.
    Hub,
}

impl Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match self {
            Program::Node => "node",
            Program::Hub => "hub",
        })
    }
}

/// What came of a start that was watched.
pub struct Tried {
    /// How often each kind of access came.
    pub counts: Counts,
    /// What failed, if that access came at all.
    pub met: Option<Met>,
    /// What the program said last if it ended; otherwise it answers.
    pub refused: Option<String>,
}

/// The two hosts.
pub struct World {
    /// State directory of the node that is hit.
    pub home: PathBuf,
    /// State directory of the node that reads from the hub.
    pub far_home: PathBuf,
    /// The hub's folder.
    pub hub_dir: PathBuf,
    /// Mount point of the small disk.
    disk: PathBuf,
    logs: PathBuf,
    /// The node's namespace: a process there reaches the hub like the node.
    pub near: Arc<Namespace>,
    far: Namespace,
    node: Option<Served>,
    far_node: Option<Served>,
    hub: Option<Served>,
    /// Token for the hub.
    pub token: String,
}

impl World {
    /// Makes the disk and the link, and starts everything.
    pub fn start(scratch: &Path) -> anyhow::Result<World> {
        let disk = scratch.join("disk");
        let logs = scratch.join("logs");
        for dir in [&disk, &logs] {
            fs::create_dir_all(dir)?;
        }
        let size = std::ffi::CString::new(format!("size={DISK_BYTES},mode=711"))?;
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("floe-hammer", &disk, "tmpfs", flags, size.as_c_str())
            .context("cannot mount a small disk; run as root")?;
        let (near, far) = (Arc::new(Namespace::new()?), Namespace::new()?);
        near.join_by_veth(&far, NODE_ADDRESS, HUB_ADDRESS)?;
        let mut world = World {
            home: disk.join("node"),
            far_home: scratch.join("far"),
            hub_dir: scratch.join("hub"),
            disk,
            logs,
            near,
            far,
            node: None,
            far_node: None,
            hub: None,
            token: String::new(),
        };
        for dir in [&world.home, &world.far_home, &world.hub_dir] {
            fs::create_dir_all(dir)?;
            fs::set_permissions(dir, fs::Permissions::from_mode(0o711))?;
        }
        world.start_all()?;
        Ok(world)
    }

    /// Starts whatever does not run and waits until everything answers.
    pub fn start_all(&mut self) -> anyhow::Result<()> {
        self.spawn_hub()?;
        self.spawn_node()?;
        if self.far_node.is_none() {
            let mut command = self.near.command(std::env::current_exe()?)?;
            command.arg("serve-node").arg(&self.far_home);
            self.far_node = Some(Served::start(command, &self.logs.join("far.log"))?);
        }
        self.node_ready()?;
        self.hub_ready()?;
        let far = self.far_node.as_ref().context("it was just started")?;
        if Client::connect(self.far_home.join("node.sock")).is_err() {
            far.ready().context("the far node")?;
        }
        Ok(())
    }

    /// Returns the command that becomes a program, and its state directory.
    fn command(&self, program: Program) -> anyhow::Result<(Command, &Path)> {
        let (namespace, state) = match program {
            Program::Node => (&*self.near, self.home.as_path()),
            Program::Hub => (&self.far, self.hub_dir.as_path()),
        };
        let mut command = namespace.command(std::env::current_exe()?)?;
        match program {
            Program::Node => command.arg("serve-node").arg(state),
            Program::Hub => command
                .arg("serve-hub")
                .arg(state)
                .arg(HUB_LISTEN)
                .args(["--upload-expiry", &UPLOAD_EXPIRY.as_secs().to_string()]),
        };
        Ok((command, state))
    }

    fn log(&self, program: Program) -> PathBuf {
        self.logs.join(format!("{program}.log"))
    }

    /// Starts a program that was killed, lets one access of its start fail, and waits until it answers or has ended.
    pub fn try_start(&mut self, program: Program, fault: Option<Fault>) -> anyhow::Result<Tried> {
        let log = self.logs.join("try.log");
        File::create(&log)?;
        let (mut command, state) = self.command(program)?;
        let pending = Pending::new(&mut command, state, fault)?;
        let served = Served::start(command, &log)?;
        let watch = pending.spawned(served.child.id())?;
        let ready = served.ready();
        let (counts, met) = watch.end();
        let said = fs::read(&log)?;
        File::options()
            .create(true)
            .append(true)
            .open(self.log(program))?
            .write_all(&said)?;
        let refused = match ready {
            Ok(token) => {
                match program {
                    Program::Node => self.node = Some(served),
                    Program::Hub => (self.token, self.hub) = (token, Some(served)),
                }
                None
            }
            Err(error) => Some(format!("{error:#}: {}", last_words(&said))),
        };
        Ok(Tried {
            counts,
            met,
            refused,
        })
    }

    /// Kills a program.
    pub fn kill(&mut self, program: Program) {
        match program {
            Program::Node => self.kill_node(),
            Program::Hub => self.kill_hub(),
        }
    }

    /// Starts the node unless it runs; does not wait.
    pub fn spawn_node(&mut self) -> anyhow::Result<()> {
        if self.node.is_none() {
            let (command, _) = self.command(Program::Node)?;
            self.node = Some(Served::start(command, &self.log(Program::Node))?);
        }
        Ok(())
    }

    /// Waits until the node answers. If it has ended instead, forgets it, so that it can be started again.
    pub fn node_ready(&mut self) -> anyhow::Result<()> {
        let node = self.node.as_ref().context("no node was started")?;
        if Client::connect(self.home.join("node.sock")).is_ok() {
            return Ok(());
        }
        let ready = node.ready();
        if ready.is_err() {
            self.node = None;
        }
        ready.map(drop).with_context(|| {
            format!(
                "the node; its log ends with:\n{}",
                self.log_tail("node.log", 15)
            )
        })
    }

    /// Starts the hub unless it runs; does not wait.
    pub fn spawn_hub(&mut self) -> anyhow::Result<()> {
        if self.hub.is_none() {
            let (command, _) = self.command(Program::Hub)?;
            self.hub = Some(Served::start(command, &self.log(Program::Hub))?);
        }
        Ok(())
    }

    /// Waits until the hub answers, if it was just started.
    pub fn hub_ready(&mut self) -> anyhow::Result<()> {
        let hub = self.hub.as_ref().context("no hub was started")?;
        match hub.ready() {
            Ok(token) => self.token = token,
            // the hub has reported its readiness before
            Err(_)
                if !self.token.is_empty()
                    && self
                        .far
                        .run(|| std::net::TcpStream::connect(HUB_LISTEN).is_ok())? => {}
            Err(error) => {
                self.hub = None;
                return Err(error.context(format!(
                    "the hub; its log ends with:\n{}",
                    self.log_tail("hub.log", 15)
                )));
            }
        }
        Ok(())
    }

    /// Returns the hub's address.
    pub fn hub_url(&self) -> String {
        format!("http://{HUB_LISTEN}")
    }

    /// Kills the node.
    pub fn kill_node(&mut self) {
        if let Some(mut node) = self.node.take() {
            node.kill();
        }
    }

    /// Kills the hub.
    pub fn kill_hub(&mut self) {
        if let Some(mut hub) = self.hub.take() {
            hub.kill();
        }
    }

    /// Kills the supervisor. Returns whether there was one.
    pub fn kill_supervisor(&self) -> bool {
        kill_supervisor_of(&self.home)
    }

    /// Cuts the link: packets are lost silently, as on a broken line.
    pub fn cut(&self) -> anyhow::Result<()> {
        Ok(self.far.ip("link set floe1 down")?)
    }

    /// Restores the link.
    pub fn mend(&self) -> anyhow::Result<()> {
        Ok(self.far.ip("link set floe1 up")?)
    }

    /// Fills the disk completely.
    pub fn fill(&self) -> anyhow::Result<()> {
        let file = File::create(self.filler())?;
        let disk = rustix::fs::statvfs(&self.disk)?;
        let (mut at, mut step) = (0, disk.f_bavail * disk.f_frsize);
        // the node and its machines write and free space meanwhile
        while step >= disk.f_frsize {
            match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), at, step) {
                Ok(()) => at += step,
                Err(_) => step /= 2,
            }
        }
        Ok(())
    }

    /// Makes room again.
    pub fn free(&self) -> anyhow::Result<()> {
        match fs::remove_file(self.filler()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn filler(&self) -> PathBuf {
        self.disk.join("filler")
    }

    /// Returns a client of the node.
    pub fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(self.home.join("node.sock"))?)
    }

    /// Ends everything in the way an operator would.
    pub fn end_all(&mut self) {
        for served in [&mut self.node, &mut self.far_node, &mut self.hub] {
            if let Some(mut served) = served.take() {
                served.end();
            }
        }
    }

    /// Returns the last lines of a log.
    pub fn log_tail(&self, name: &str, lines: usize) -> String {
        let text = fs::read(self.logs.join(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Returns the directory of the logs.
    pub fn logs(&self) -> &Path {
        &self.logs
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.free();
        for home in [&self.home, &self.far_home] {
            if let Ok(client) = Client::connect(home.join("node.sock")) {
                for machine in client
                    .machines()
                    .map(|list| list.machines)
                    .unwrap_or_default()
                {
                    let _ = client.remove_machine(&machine.name, true);
                }
            }
        }
        self.end_all();
        // remove what a failed run left behind
        for home in [&self.home, &self.far_home] {
            for (pid, _) in processes_with(home) {
                kill(pid);
            }
        }
        let under = self.disk.parent().unwrap_or(&self.disk).to_owned();
        for mount in mounts_under(&under).into_iter().rev() {
            let _ = rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Returns what a program said when it ended: its error, which is the last thing that it prints, or else its last lines.
fn last_words(log: &[u8]) -> String {
    const LINES: usize = 15;
    let text = String::from_utf8_lossy(log);
    if let Some(at) = text.rfind("floe-lab serve-") {
        return text[at..].trim().to_owned();
    }
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// Returns processes other than this one whose command line contains the path, with their ids and command lines.
pub fn processes_with(path: &Path) -> Vec<(u32, String)> {
    let wanted = path.display().to_string();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        if pid != std::process::id() && line.contains(&wanted) {
            found.push((pid, line));
        }
    }
    found
}

/// Returns the mount points at or under a directory.
pub fn mounts_under(dir: &Path) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    points
        .map(PathBuf::from)
        .filter(|point| point.starts_with(dir))
        .collect()
}

/// Kills a process. Returns whether there was one.
pub fn kill(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok())
}

/// Kills the supervisor of the node with this state directory. Returns whether there was one; the node may just be replacing one that
/// was killed before.
pub fn kill_supervisor_of(home: &Path) -> bool {
    let socket = home.join("run/supervisor.sock");
    let until = Instant::now() + SUPERVISOR_MAX;
    loop {
        let found = processes_with(&socket)
            .into_iter()
            .find(|(_, line)| line.contains("supervisor\0"));
        match found {
            Some((pid, _)) => return kill(pid),
            None if Instant::now() > until => return false,
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Compiles the guests' program and adds it to the tiny guest's initial RAM disk as its first program.
pub fn make_initrd(guest: &floe_testbed::guest::Guest, scratch: &Path) -> anyhow::Result<PathBuf> {
    const PROGRAM: &str = include_str!("../../../lab/guests/hammer.rs");
    const INIT: &str = include_str!("../../../lab/guests/hammer-init");
    let (source, root) = (scratch.join("hammer.rs"), scratch.join("initrd"));
    fs::create_dir_all(root.join("bin"))?;
    fs::write(&source, PROGRAM)?;
    compile(&source, &root.join("bin/floe-hammer"))?;
    fs::write(root.join("init"), INIT)?;
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755))?;
    guest.add_to_initrd(&root, &scratch.join("hammer.initrd"))
}

/// Imports the guest with the program that writes and verifies, and an empty disk for it.
pub fn import_guest(
    client: &Client,
    guest: &floe_testbed::guest::Guest,
    initrd: &Path,
) -> anyhow::Result<()> {
    let disk = initrd.with_file_name("disk.raw");
    File::create(&disk)?.set_len(GUEST_DISK_BYTES)?;
    let text = |path: PathBuf| path.display().to_string();
    let request = ImportRequest {
        disks: vec![text(disk)],
        kernel: Some(text(guest.kernel())),
        initrd: Some(text(initrd.to_owned())),
        cmdline: Some(format!(
            "{} mitigations=off nokaslr tsc=unstable",
            guest.cmdline()?
        )),
        name: Some(IMAGE.into()),
        memory_bytes: Some(GUEST_MEMORY_BYTES),
        cpus: Some(1),
        ..ImportRequest::default()
    };
    client.import(&request)?.finish(|_| {})?;
    Ok(())
}
