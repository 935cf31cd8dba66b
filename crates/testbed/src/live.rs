//! Real nodes and hubs as separate processes, in a network namespace or not, for the experiments with guests. They run
//! the product's own code, `floe_node` and `floe_hub`, under hidden subcommands of this program, so that no other binary
//! has to be found.
use crate::guest::{Guest, READY};
use crate::link::Namespace;
use anyhow::{Context as _, bail, ensure};
use floe_api::client::Client;
use floe_api::paths::Home;
use floe_api::{
    CaptureRequest, CpuSched, Event, ImportRequest, MachineInfo, Outcome, PullRequest, PushRequest,
    RunRequest, Wait,
};
use floe_node::{SwarmPolicy, WebOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Longest time for a node or hub to answer.
const START_MAX: Duration = Duration::from_secs(20);
/// Longest time for a guest to boot under emulation on a busy machine.
const BOOT_MAX: Duration = Duration::from_secs(300);
/// How often awaited conditions are checked.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Number of standby QEMUs for each image, on a node with standby.
const STANDBY_EACH: usize = 1;

/// Token of the pages of nodes that talk to each other.
const PAGE_TOKEN: &str = "lab-token-of-the-pages";

/// `floe-lab serve-node HOME`: a node until its input ends.
#[derive(clap::Args)]
pub struct NodeArguments {
    home: PathBuf,
    /// Keep QEMUs waiting
    #[arg(long)]
    standby: bool,
    /// Fetch nothing before it is touched
    #[arg(long)]
    demand_only: bool,
    /// MiB of translated code of each machine
    #[arg(long, default_value_t = floe_node::EMULATOR_CACHE_MIB_DEFAULT)]
    emulator_cache: u32,
    /// By which policy images' pieces are asked of other nodes
    #[arg(long, default_value = "ours", value_parser = swarm_policy)]
    swarm_policy: SwarmPolicy,
    /// Address of its page, at which other nodes of the experiment reach it
    #[arg(long)]
    web: Option<SocketAddr>,
    /// Directory in which the class of each disk request is recorded
    #[arg(long)]
    io_trace: Option<PathBuf>,
    /// What is done for machines' vCPUs
    #[arg(long, default_value = "off", value_parser = cpu_sched)]
    cpu_sched: CpuSched,
    /// Hosts of the clones that guests make, as in floe node
    #[arg(long, value_delimiter = ',')]
    guest_hosts: Vec<String>,
}

fn cpu_sched(name: &str) -> Result<CpuSched, String> {
    match name {
        "off" => Ok(CpuSched::Off),
        "balance" => Ok(CpuSched::Balance),
        "sbco" => Ok(CpuSched::Sbco),
        _ => Err("off, balance or sbco".into()),
    }
}

fn swarm_policy(name: &str) -> Result<SwarmPolicy, String> {
    match name {
        "ours" => Ok(SwarmPolicy::Ours),
        "p2p_p" => Ok(SwarmPolicy::P2pP),
        "p2p_d" => Ok(SwarmPolicy::P2pD),
        "cs_p" => Ok(SwarmPolicy::CsP),
        "cs_d" => Ok(SwarmPolicy::CsD),
        _ => Err("ours, p2p_p, p2p_d, cs_p or cs_d".into()),
    }
}

/// `floe-lab serve-hub DIR ADDRESS`: a hub until its input ends.
#[derive(clap::Args)]
pub struct HubArguments {
    dir: PathBuf,
    listen: SocketAddr,
    /// Seconds after which an upload that nobody goes on with is dropped
    #[arg(long)]
    upload_expiry: Option<u64>,
}

/// Returns the path of the node's own socket, which differs from that of another node on this host.
fn socket_of(home: &Path) -> PathBuf {
    home.join("node.sock")
}

impl NodeArguments {
    /// Serves until the input ends.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut options = floe_node::NodeOptions::new(Home::at(&self.home))?;
        options.socket = socket_of(&self.home);
        options.standby.each = if self.standby { STANDBY_EACH } else { 0 };
        options.read_ahead = !self.demand_only;
        options.emulator_cache_mib = self.emulator_cache;
        options.swarm.policy = self.swarm_policy;
        options.io_trace = self.io_trace;
        options.cpu_sched = self.cpu_sched;
        options.guest_hosts = self.guest_hosts;
        options.web = self.web.map(|listen| WebOptions {
            listen,
            any_port: false,
            token: Some(PAGE_TOKEN.into()),
        });
        let node = floe_node::serve(options)?;
        println!("ready");
        wait_for_end_of_input()?;
        node.shutdown(true);
        Ok(ExitCode::SUCCESS)
    }
}

impl HubArguments {
    /// Serves until the input ends.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let token = self.token()?;
        let mut options = floe_hub::HubOptions::new(&self.dir, self.listen);
        if let Some(seconds) = self.upload_expiry {
            options.limits.upload_expiry = Duration::from_secs(seconds);
        }
        let hub = floe_hub::serve(options)?;
        println!("ready {token}");
        wait_for_end_of_input()?;
        hub.shutdown();
        Ok(ExitCode::SUCCESS)
    }
}

impl HubArguments {
    /// Returns the token of an earlier hub in this folder, or a new one.
    fn token(&self) -> anyhow::Result<String> {
        let kept = self.dir.join("lab.token");
        match std::fs::read_to_string(&kept) {
            Ok(token) if !token.is_empty() => return Ok(token),
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot read {}", kept.display()));
            }
            _ => {}
        }
        let token = floe_hub::create_token(&self.dir, "lab")?;
        // the hub accepts it forever, so it is kept
        let mut file = std::fs::File::create(&kept)?;
        file.write_all(token.as_bytes())?;
        file.sync_all()?;
        std::fs::File::open(&self.dir)?.sync_all()?;
        Ok(token)
    }
}

/// Returns the path of the floe command, which is built beside this program.
pub fn floe() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name("floe");
    ensure!(
        program.try_exists()?,
        "{} is missing: make build",
        program.display()
    );
    Ok(program)
}

/// Waits until the parent process ends, for whatever reason: its end of the pipe is closed then.
fn wait_for_end_of_input() -> anyhow::Result<()> {
    std::io::stdout().flush()?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}

/// A process of this program that serves until it is dropped.
pub struct Server {
    child: Child,
    input: Option<ChildStdin>,
}

impl Server {
    /// Starts the process, inside `namespace` if there is one. Returns the rest of its first line.
    pub fn start(
        namespace: Option<&Namespace>,
        arguments: &[&std::ffi::OsStr],
    ) -> anyhow::Result<(Server, String)> {
        Server::start_in(namespace, arguments, &[])
    }

    /// Does the same with more variables in its environment.
    fn start_in(
        namespace: Option<&Namespace>,
        arguments: &[&std::ffi::OsStr],
        environment: &[(String, String)],
    ) -> anyhow::Result<(Server, String)> {
        let program = std::env::current_exe()?;
        let mut command = match namespace {
            Some(namespace) => namespace.command(program)?,
            None => Command::new(program),
        };
        let mut child = command
            .args(arguments)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let server = Server { child, input };
        let mut line = String::new();
        BufReader::new(output.context("it was started with a pipe")?).read_line(&mut line)?;
        match line.trim().strip_prefix("ready") {
            Some(rest) => Ok((server, rest.trim().to_string())),
            None => bail!("{} did not start", arguments[0].display()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.input.take());
        let until = Instant::now() + START_MAX;
        while Instant::now() < until {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running hub.
pub struct Hub {
    /// Its address.
    pub url: String,
    /// A token with all permissions.
    pub token: String,
    _server: Server,
}

impl Hub {
    /// Starts a hub with its data in `dir`.
    pub fn start(
        namespace: Option<&Namespace>,
        dir: &Path,
        address: Ipv4Addr,
        port: u16,
    ) -> anyhow::Result<Hub> {
        std::fs::create_dir_all(dir)?;
        let listen = SocketAddr::from((address, port)).to_string();
        let (server, token) = Server::start(
            namespace,
            &["serve-hub".as_ref(), dir.as_os_str(), listen.as_ref()],
        )?;
        Ok(Hub {
            url: format!("http://{listen}"),
            token,
            _server: server,
        })
    }

    /// Returns the address of an image.
    pub fn address(&self, image: &str) -> String {
        format!("{}/{image}", self.url)
    }
}

/// A running node.
pub struct Node {
    /// Client of its interface.
    pub client: Client,
    /// Its state directory.
    pub home: PathBuf,
    server: Option<Server>,
}

impl Node {
    /// Starts a node with its state in `home`.
    pub fn start(
        namespace: Option<&Namespace>,
        home: &Path,
        standby: bool,
    ) -> anyhow::Result<Node> {
        let flags: &[&str] = if standby { &["--standby"] } else { &[] };
        Node::start_with(namespace, home, flags)
    }

    /// Starts a node that fetches nothing before it is touched, for traces that show only the machine's own accesses.
    pub fn demand_only(home: &Path) -> anyhow::Result<Node> {
        Node::start_with(None, home, &["--demand-only"])
    }

    /// Starts a node that has these variables in its environment as well.
    pub fn start_in(home: &Path, environment: &[(String, String)]) -> anyhow::Result<Node> {
        std::fs::create_dir_all(home)?;
        let arguments = ["serve-node".as_ref(), home.as_os_str()];
        let (server, _) = Server::start_in(None, &arguments, environment)?;
        Ok(Node {
            client: Client::connect(socket_of(home))?,
            home: home.to_path_buf(),
            server: Some(server),
        })
    }

    /// Starts a node with these flags of `serve-node`.
    pub fn start_with(
        namespace: Option<&Namespace>,
        home: &Path,
        flags: &[&str],
    ) -> anyhow::Result<Node> {
        std::fs::create_dir_all(home)?;
        let server = serve_node(namespace, home, flags)?;
        let client = Client::connect(socket_of(home))?;
        Ok(Node {
            client,
            home: home.to_path_buf(),
            server: Some(server),
        })
    }

    /// Ends it by SIGKILL, and starts it again in the same state directory with these flags: it takes its machines over.
    pub fn kill_and_start_again(&mut self, flags: &[&str]) -> anyhow::Result<()> {
        self.kill_and_start_again_in(None, flags)
    }

    /// The same for a node on a host of its own.
    pub fn kill_and_start_again_in(
        &mut self,
        namespace: Option<&Namespace>,
        flags: &[&str],
    ) -> anyhow::Result<()> {
        self.kill()?;
        self.start_again_in(namespace, flags)
    }

    /// Ends it by SIGKILL. Its machines stay.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        let mut server = self.server.take().context("the node has ended")?;
        server.child.kill()?;
        server.child.wait()?;
        Ok(())
    }

    /// Starts one that was killed again, in the same state directory: it takes its machines over.
    pub fn start_again_in(
        &mut self,
        namespace: Option<&Namespace>,
        flags: &[&str],
    ) -> anyhow::Result<()> {
        self.server = Some(serve_node(namespace, &self.home, flags)?);
        Ok(())
    }

    /// Returns the number of its process.
    pub fn process(&self) -> anyhow::Result<u32> {
        let server = self.server.as_ref().context("the node has ended")?;
        Ok(server.child.id())
    }

    /// Runs a machine and passes every event to `each`.
    pub fn run(&self, request: &RunRequest, each: impl FnMut(&Event)) -> anyhow::Result<Outcome> {
        Ok(self.client.run(request)?.finish(each)?)
    }

    /// Imports a guest under this name, with `memory` bytes of RAM and two CPUs.
    pub fn import(&self, guest: &Guest, name: &str, memory: u64) -> anyhow::Result<Outcome> {
        self.import_with(guest, name, memory, 2)
    }

    /// The same with another number of CPUs.
    pub fn import_with(
        &self,
        guest: &Guest,
        name: &str,
        memory: u64,
        cpus: u32,
    ) -> anyhow::Result<Outcome> {
        let request = ImportRequest {
            memory_bytes: Some(memory),
            cpus: Some(cpus),
            ..import_request(guest, name, guest.cmdline()?)
        };
        Ok(self.client.import(&request)?.finish(|_| {})?)
    }

    /// Like [`Node::import`], with another kernel command line.
    pub fn import_booting(
        &self,
        guest: &Guest,
        name: &str,
        memory: u64,
        cmdline: &str,
    ) -> anyhow::Result<Outcome> {
        let request = ImportRequest {
            memory_bytes: Some(memory),
            ..import_request(guest, name, cmdline.into())
        };
        Ok(self.client.import(&request)?.finish(|_| {})?)
    }

    /// Boots an imported image and waits for its shell.
    pub fn boot(&self, image: &str, machine: &str) -> anyhow::Result<()> {
        let request = RunRequest {
            image: image.into(),
            name: Some(machine.into()),
            cold: true,
            wait: Wait::None,
            ..RunRequest::default()
        };
        self.run(&request, |_| {})?;
        let log = PathBuf::from(self.client.console(machine)?.log);
        let until = Instant::now() + BOOT_MAX;
        while !std::fs::read(&log).is_ok_and(|text| String::from_utf8_lossy(&text).contains(READY))
        {
            if Instant::now() > until {
                bail!(
                    "{machine} did not boot within {BOOT_MAX:?}; its console is {}",
                    log.display()
                );
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Captures a machine as an image. For `rehearse_s` seconds a copy runs, to learn what a resumed machine touches.
    pub fn capture(
        &self,
        machine: &str,
        name: &str,
        stop: bool,
        rehearse_s: u32,
    ) -> anyhow::Result<Outcome> {
        let request = CaptureRequest {
            name: Some(name.into()),
            stop,
            rehearse_s: Some(rehearse_s),
            ..CaptureRequest::default()
        };
        Ok(self.client.capture(machine, &request)?.finish(|_| {})?)
    }

    /// Publishes an image on a hub for everybody.
    pub fn publish(&self, image: &str, hub: &Hub) -> anyhow::Result<()> {
        let push = PushRequest {
            image: image.into(),
            to: hub.url.clone(),
            name: None,
            token: Some(hub.token.clone()),
            ca: None,
            public: true,
            seed: false,
            seed_until: None,
        };
        self.client.push(&push)?.finish(|_| {})?;
        Ok(())
    }

    /// Copies a whole image from a hub. Returns how long it took.
    pub fn download(&self, image: &str, hub: &Hub) -> anyhow::Result<Duration> {
        let start = Instant::now();
        let pull = PullRequest {
            from: hub.address(image),
            name: None,
            token: Some(hub.token.clone()),
            ca: None,
            trust: false,
        };
        self.client.pull(&pull)?.finish(|_| {})?;
        Ok(start.elapsed())
    }

    /// Returns a machine's current state.
    pub fn machine(&self, name: &str) -> anyhow::Result<MachineInfo> {
        Ok(self.client.machine(name)?)
    }

    /// Returns the trace files of its machines.
    pub fn traces(&self) -> anyhow::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        let mut dirs = vec![self.home.join("machines")];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(&dir)
                .with_context(|| format!("cannot list {}", dir.display()))?
                .flatten()
            {
                let path = entry.path();
                if entry.file_type()?.is_dir() {
                    dirs.push(path);
                } else if path
                    .file_name()
                    .is_some_and(|name| name.to_string_lossy().contains("trace"))
                {
                    found.push(path);
                }
            }
        }
        Ok(found)
    }

    /// Ends a machine and forgets it.
    pub fn remove(&self, name: &str) -> anyhow::Result<()> {
        Ok(self.client.remove_machine(name, true)?)
    }

    /// Lets the guest's shell run a command, and waits until it has.
    pub fn tell(
        &self,
        machine: &str,
        command: &str,
        patience: Duration,
    ) -> anyhow::Result<Duration> {
        tell_console(self.client.attach(machine)?, command, patience)
            .with_context(|| format!("{machine} does not answer"))
    }

    /// The same, and returns what its console says until then.
    pub fn said(&self, machine: &str, command: &str, patience: Duration) -> anyhow::Result<String> {
        said_console(self.client.attach(machine)?, command, patience)
            .with_context(|| format!("{machine} does not answer"))
    }

    /// Asks the guest's shell a question, and waits for its answer.
    pub fn ask(&self, machine: &str, patience: Duration) -> anyhow::Result<Duration> {
        ask_console(self.client.attach(machine)?, patience)
            .with_context(|| format!("{machine} does not answer"))
    }
}

fn serve_node(
    namespace: Option<&Namespace>,
    home: &Path,
    flags: &[&str],
) -> anyhow::Result<Server> {
    let mut arguments = vec!["serve-node".as_ref(), home.as_os_str()];
    arguments.extend(flags.iter().map(AsRef::<std::ffi::OsStr>::as_ref));
    Ok(Server::start(namespace, &arguments)?.0)
}

/// Returns the request that imports a guest as it was built.
pub fn import_request(guest: &Guest, name: &str, cmdline: String) -> ImportRequest {
    let text = |path: PathBuf| path.display().to_string();
    let disk = guest.disk();
    ImportRequest {
        disks: disk.exists().then(|| text(disk)).into_iter().collect(),
        kernel: Some(text(guest.kernel())),
        initrd: Some(text(guest.initrd())),
        cmdline: Some(cmdline),
        name: Some(name.into()),
        ..ImportRequest::default()
    }
}

/// Returns a shell command that writes this many MB (16 at a time) to a file in `/dev/shm`, no two pages alike. An
/// emulated guest generates random bytes slowly, so the same ones are written repeatedly, shifted by one more byte each
/// time.
pub fn write_distinct(megabytes: u64, file: &str) -> String {
    let rounds = megabytes.div_ceil(16);
    format!(
        "mount -o remount,size=90% /dev/shm; head -c 16m /dev/urandom > {file}.seed; n=0; while [ $n -lt {rounds} ]; do n=$((n+1)); head -c $n /dev/zero; \
         cat {file}.seed; done > {file}; rm {file}.seed"
    )
}

/// Does something so many times at once, each time on a thread of its own with its number, and returns what came of all of them.
pub fn at_once<T: Send>(
    count: usize,
    one: impl Fn(usize) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let one = &one;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|number| scope.spawn(move || one(number)))
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                let done = thread.join();
                done.map_err(|_| anyhow::anyhow!("a thread of several at once died"))?
            })
            .collect()
    })
}

/// Has the kernel forget what it holds in memory of files, all of them.
pub fn drop_caches() -> anyhow::Result<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3")
        .context("the kernel's caches can be dropped by root alone")
}

/// Asks a guest's shell a question over its serial line, and waits for its answer.
pub fn ask_console(console: UnixStream, patience: Duration) -> anyhow::Result<Duration> {
    tell_console(console, "", patience)
}

/// The same after a command that must succeed.
pub fn tell_console(
    console: UnixStream,
    command: &str,
    patience: Duration,
) -> anyhow::Result<Duration> {
    let start = Instant::now();
    said_console(console, command, patience)?;
    Ok(start.elapsed())
}

/// The same, and returns all that the console has said meanwhile.
pub fn said_console(
    mut console: UnixStream,
    command: &str,
    patience: Duration,
) -> anyhow::Result<String> {
    let start = Instant::now();
    // The shell calculates the answer, so the terminal's echo of the question does not contain it.
    let (a, b) = (std::process::id() % 1000, 123_456);
    write!(
        console,
        "\n{command}\necho lab-$(({a} + {b}))-answers-$?.\n"
    )?;
    let answer = format!("lab-{}-answers-", a + b);
    console.set_read_timeout(Some(LOOK_EVERY))?;
    let (mut seen, mut buffer) = (String::new(), [0; 4096]);
    while start.elapsed() < patience {
        match console.read(&mut buffer) {
            Ok(0) => bail!("the console was closed"),
            Ok(bytes) => seen += &String::from_utf8_lossy(&buffer[..bytes]),
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                ) => {}
            Err(error) => return Err(error.into()),
        }
        let status = seen
            .split_once(&answer)
            .and_then(|(_, rest)| rest.split_once('.'));
        match status {
            Some(("0", _)) => return Ok(seen),
            Some(_) => bail!("{command} failed; the console said {seen:?}"),
            None => {}
        }
    }
    bail!("nothing within {patience:?}; the console said {seen:?}")
}

impl Drop for Node {
    fn drop(&mut self) {
        // A node's machines outlive it by design, so end them first.
        if let Ok(list) = self.client.machines() {
            for machine in list.machines {
                let _ = self.client.remove_machine(&machine.name, true);
            }
        }
        drop(self.server.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn what_is_done_at_once_overlaps_and_comes_back_in_order_and_an_error_is_told() {
        let all_there = Barrier::new(4);
        let squares = at_once(4, |number| {
            all_there.wait();
            Ok(number * number)
        });
        assert_eq!(squares.unwrap(), [0, 1, 4, 9]);
        let failed = at_once(3, |number| {
            ensure!(number != 1, "number {number} failed");
            Ok(number)
        });
        assert_eq!(failed.unwrap_err().to_string(), "number 1 failed");
    }
}
