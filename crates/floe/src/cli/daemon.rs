//! `floe up`, `floe node` and `floe down`: the processes that do the work.

use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, pidfd_open};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::CliError;
use super::hub::{Answers, LISTEN_DEFAULT};
use super::{Context, args};
use crate::up::{self, UpError};
use floe_api::credentials::OwnHub;
use floe_api::{CpuSched, ErrorCode, IoOrder, NodeInfo, PageInfo, ShutdownRequest};
use floe_front::telemetry::{LogOptions, init_logs};
use floe_hub::{Anonymous, HubOptions, Quota};
use floe_node::{NodeHandle, NodeOptions, WebOptions};

/// Options of a node.
#[derive(Debug, Args)]
struct NodeArgs {
    /// Most disk space of the chunk cache, such as 16G
    #[arg(long, value_parser = args::size, value_name = "SIZE")]
    cache: Option<u64>,
    /// Where images and machines appear as files; mnt/ in floe's state directory if not given
    #[arg(long, value_name = "DIR")]
    mountpoint: Option<PathBuf>,
    /// Give a guest an I/O error when no source answered for this many seconds; without it the guest waits. floe run and floe limit
    /// have the same for one machine
    #[arg(long, value_name = "SECONDS")]
    io_timeout: Option<u64>,
    /// Pause a machine whose guest has waited this many seconds for a page of its memory that no source sends; it goes on by itself once
    /// the page has come. 0 for never: the guest then sees a CPU that is stuck
    #[arg(long, default_value_t = floe_node::IO_PAUSE_S_DEFAULT, value_name = "SECONDS")]
    io_pause: u64,
    /// Number of the group that may use the node's socket; its members have the node's rights
    #[arg(long, value_name = "GID")]
    socket_group: Option<u32>,
    /// Most memory that machines are promised in all, such as 16G; by default the host's
    #[arg(long, value_parser = args::memory, value_name = "SIZE")]
    memory: Option<u64>,
    /// QEMUs that are started in advance for each of the images that were run last; 0 for none
    #[arg(long, value_name = "N")]
    standby: Option<usize>,
    /// Most memory for the translated code of each emulated machine, 128M by default; 0 leaves it to QEMU, which takes up
    /// to 1G. 8M is for hosts without KVM that are full of machines that mostly wait: a light clone takes 43 MB instead
    /// of 62. A busy one translates repeatedly: at 32M it was some 30 % slower; how much slower at 8M was not measured
    #[arg(long, value_parser = args::size, value_name = "SIZE")]
    emulator_cache: Option<u64>,
    /// Address and port of the page for browsers, or off; `floe open` shows it. By default 127.0.0.1:7070 (or a free
    /// port) for `floe up`, off for `floe node`
    #[arg(long, value_name = "ADDRESS", value_parser = web)]
    web: Option<Web>,
    /// Token that lets browsers in; needed if the page is on an address other than loopback
    #[arg(
        long,
        env = "FLOE_WEB_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    web_token: Option<String>,
    /// Most clones at a time that a machine's guest and its clones' guests may have made together, whatever the machine's own --clones
    /// says; 0 forbids guests to make any
    #[arg(long, default_value_t = floe_node::GUEST_CLONES_DEFAULT, value_name = "N")]
    guest_clones: u32,
    /// Let programs in guests have their machines go on on other nodes of the cluster, and come back (floe_offload, floe_recall)
    #[arg(long)]
    guest_moves: bool,
    /// Nodes on which the clones that guests make run: members of this node's cluster by name or address, or here
    #[arg(long, value_delimiter = ',', value_name = "HOST")]
    guest_hosts: Vec<String>,
    /// Let --guest-hosts and the known hosts (floe hosts) name nodes by the addresses of their pages too. They are asked in clear
    /// text and with this page's token: only on a network that nobody else is in
    #[arg(long)]
    insecure_hosts: bool,
    /// Who decides where the clones run that guests make: simple, slurm or a program of yours, as with floe fork --placement;
    /// it chooses among all known hosts, unless --guest-hosts names some
    #[arg(long, value_name = "PLUG-IN")]
    guest_placement: Option<String>,
    /// Whose disk requests go first: what a person waits for, and each machine within its share (vsip); first come, first
    /// served (fifo); or as the kernel sees them (off)
    #[arg(long, value_parser = one_of::<IoOrder>(["vsip", "fifo", "off"]), default_value = "vsip", value_name = "ORDER")]
    io: IoOrder,
    /// Record each disk request and its class in DIR/MACHINE.csv, up to 256 MiB each: for measurements, since every line costs time
    /// on the way of a request
    #[arg(long, value_name = "DIR")]
    io_trace: Option<PathBuf>,
    /// Where the vCPUs of one machine run: on different cores, and close together in time (sbco); on different cores (balance); or where
    /// the kernel places them (off). Where the kernel lets root replace its scheduler (sched_ext) and floe's is installed, that does it;
    /// elsewhere the node does, compares, and stops where nothing is gained. floe doctor says what this host can, floe sched status shows it
    #[arg(long, value_parser = one_of::<CpuSched>(["sbco", "balance", "off"]), default_value = "off", value_name = "HOW")]
    cpu_sched: CpuSched,
    /// Don't ask guests once a day to give back what they do not use of their disks; floe disk trim does
    #[arg(long)]
    no_trim: bool,
    /// Keep and send no traces of what machines touch
    #[arg(long)]
    no_traces: bool,
    #[command(flatten)]
    swarm: super::swarm::SwarmNodeArgs,
    /// Write the log as JSON lines
    #[arg(long)]
    log_json: bool,
}

/// Takes one of the words that the API has for a type's values.
fn one_of<T: DeserializeOwned + Clone + Send + Sync + 'static>(
    words: [&'static str; 3],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(words).try_map(|word| serde_json::from_value::<T>(word.into()))
}

/// The value of `--web`.
#[derive(Clone, Copy, Debug)]
enum Web {
    Off,
    At(SocketAddr),
}

fn web(text: &str) -> Result<Web, String> {
    if text == "off" {
        return Ok(Web::Off);
    }
    let help = "write ADDRESS:PORT such as 127.0.0.1:7070, or off";
    text.parse()
        .map(Web::At)
        .map_err(|error| format!("{error}; {help}"))
}

impl NodeArgs {
    fn options(
        self,
        cx: &Context,
        web_default: Option<SocketAddr>,
    ) -> Result<NodeOptions, CliError> {
        init_logs(&LogOptions {
            json: self.log_json,
            verbosity: cx.verbose,
        });
        floe_store::private::set_umask();
        let mut options = NodeOptions::new(cx.home.clone())
            .map_err(|e| CliError::failed("cannot find this program's own file", e))?;
        options.socket = cx.socket.clone();
        options.socket_group = self.socket_group;
        options.traces = !self.no_traces;
        options.trim = !self.no_trim;
        options.swarm = self.swarm.options();
        options.io = self.io;
        options.io_trace = self.io_trace;
        options.cpu_sched = self.cpu_sched;
        options.guest_clones = self.guest_clones;
        options.guest_moves = self.guest_moves;
        options.guest_hosts = self.guest_hosts;
        options.insecure_hosts = self.insecure_hosts;
        options.guest_placement = self.guest_placement;
        options.io_timeout = self.io_timeout.map(Duration::from_secs);
        options.io_pause = (self.io_pause > 0).then(|| Duration::from_secs(self.io_pause));
        if let Some(mountpoint) = self.mountpoint {
            options.mountpoint = args::absolute(&mountpoint)?.into();
        }
        if let Some(cache) = self.cache {
            options.cache_budget = cache;
        }
        options.memory_bytes_max = self.memory;
        if let Some(standby) = self.standby {
            options.standby.each = standby;
        }
        if let Some(bytes) = self.emulator_cache {
            let mib = u32::try_from(bytes >> 20).ok();
            let mib = mib.filter(|&mib| mib > 0 || bytes == 0);
            options.emulator_cache_mib = mib.ok_or_else(|| {
                CliError::usage(
                    format!("--emulator-cache {bytes} is not between 1M and 4095T"),
                    "give a size such as 8M, or 0 for QEMU's own choice",
                )
            })?;
        }
        let listen = match self.web {
            Some(Web::Off) => None,
            Some(Web::At(address)) => Some(address),
            None => web_default,
        };
        options.web = listen.map(|listen| WebOptions {
            listen,
            any_port: self.web.is_none(),
            token: self.web_token,
        });
        Ok(options)
    }
}

/// Run hub and node in one process, everything embedded, until Ctrl-C
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe up &
  floe run debian --name web
  floe push debian http://127.0.0.1:4500

The node knows the hub's token and sends it along, so that its user needs none; other users of this host see what was pushed
with --public. floe open --hub shows the hub in a browser.

Machines outlive it: the next floe up takes them over. floe down --machines ends them too.")]
pub struct Up {
    /// Address and port of the hub
    #[arg(long, default_value = LISTEN_DEFAULT)]
    listen: SocketAddr,
    /// Let the hub refuse everything without a token, public images too
    #[arg(long)]
    private: bool,
    #[command(flatten)]
    node: NodeArgs,
}

/// Run the node, which runs this host's machines, until Ctrl-C or SIGTERM
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe node --cache 32G
  systemctl start floe-node

Machines outlive it: the next node takes them over. floe down --machines ends them too.")]
pub struct Node {
    #[command(flatten)]
    node: NodeArgs,
}

/// End the node and wait until it has ended; machines keep running and the next node takes them over
#[derive(Debug, Args)]
#[command(after_help = "\
Example: update floe under running machines
  floe down && apt upgrade floe && floe up
Example: before the host is switched off
  floe down --machines")]
pub struct Down {
    /// Power the machines down too, also those that a node which is gone has left
    #[arg(long)]
    machines: bool,
}

/// Open the node's page in a browser: images to click on, and machines' screens
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe up &
  floe open
Example: for a browser elsewhere, through a tunnel
  ssh -L 7070:127.0.0.1:7070 HOST
  floe open --print

The address carries the page's token: who has it has the node's rights.")]
pub struct Open {
    /// Print the address instead
    #[arg(long)]
    print: bool,
    /// The page of floe up's hub, which shows what is on it
    #[arg(long)]
    hub: bool,
}

/// What `up` and `node` print once they answer.
#[derive(Serialize)]
struct Ready {
    #[serde(skip_serializing_if = "Option::is_none")]
    hub: Option<Answers>,
    node: NodeInfo,
    socket: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    page: Option<String>,
}

/// Says where the node answers. That nobody can read it (a log on a full disk, a pipe that was closed) does not end the node.
fn announce(cx: &Context, hub: Option<Answers>, node: &NodeHandle) -> Result<(), CliError> {
    let ready = Ready {
        hub,
        node: node.node().info().map_err(|e| CliError(e.to_api()))?,
        socket: node.socket().to_owned(),
        page: node.node().page().ok().map(|page| page.url),
    };
    cx.out.announcement(&ready, |ready| {
        let hub = ready.hub.as_ref().map(Answers::text).unwrap_or_default();
        let took_over = if ready.node.took_over {
            ", took machines over"
        } else {
            ""
        };
        let page = ready
            .page
            .as_ref()
            .map(|url| format!("page at {url} (floe open)\n"));
        format!(
            "{hub}node answers on {}{took_over}\n  files appear under {}\n{}",
            ready.socket.display(),
            ready.node.mountpoint,
            page.unwrap_or_default()
        )
    });
    if let Some(reason) = &ready.node.accel_reason {
        // nobody may be reading it, and its disk may be full
        let _ = writeln!(
            std::io::stderr(),
            "note: {reason}; guests run under TCG, 10 to 50 times slower"
        );
    }
    Ok(())
}

impl Up {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let node = self.node.options(cx, Some(floe_node::WEB_LISTEN_DEFAULT))?;
        let mut hub = HubOptions::new(cx.home.hub(), self.listen);
        if self.private {
            hub.anonymous = Anonymous::Denied;
        }
        // this hub uses the user's own disk
        hub.limits.quota = Quota::UNLIMITED;
        let up = up::serve(hub, node).map_err(|error| match error {
            UpError::Hub(error) => CliError::from(error),
            UpError::Node(error) => CliError(error.to_api()),
        })?;
        announce(cx, Some(Answers::of(&up.hub)), &up.node)?;
        up.wait_or_signal();
        Ok(())
    }
}

impl Node {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let node =
            floe_node::serve(self.node.options(cx, None)?).map_err(|e| CliError(e.to_api()))?;
        announce(cx, None, &node)?;
        node.wait_or_signal();
        Ok(())
    }
}

impl Down {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let stop_machines = self.machines;
        // the node of another socket may have another state directory
        let is_home = cx.socket == cx.home.socket();
        let client = match cx.client() {
            Err(CliError(error))
                if stop_machines && is_home && error.code == ErrorCode::Unreachable =>
            {
                return end_left(cx);
            }
            client => client?,
        };
        let node = NodeProcess::behind(&cx.socket);
        client.shutdown(&ShutdownRequest { stop_machines })?;
        node.wait_end();
        if stop_machines && is_home {
            check_none_left(cx)?;
        }
        cx.out.acknowledge("the node has ended")
    }
}

/// Ends the machines that a node which is gone has left: a node in this process takes them over for that.
fn end_left(cx: &Context) -> Result<(), CliError> {
    let supervisor = cx.home.run().join("supervisor.sock");
    let left = floe_node::running_in(&cx.home).map_err(|e| CliError(e.to_api()))?;
    // a supervisor that ends takes its socket along
    if left.is_empty() && matches!(supervisor.try_exists(), Ok(false)) {
        return cx.out.acknowledge("no node and no machine runs here");
    }
    if cx.verbose > 0 {
        init_logs(&LogOptions {
            json: false,
            verbosity: cx.verbose,
        });
    }
    floe_store::private::set_umask();
    let mut options = NodeOptions::new(cx.home.clone())
        .map_err(|e| CliError::failed("cannot find this program's own file", e))?;
    options.socket = cx.socket.clone();
    options.standby.each = 0;
    let node = floe_node::serve(options).map_err(|e| CliError(e.to_api()))?;
    node.shutdown(true);
    check_none_left(cx)?;
    cx.out.acknowledge("what a node had left has ended")
}

/// Fails if a machine's QEMU has not ended.
fn check_none_left(cx: &Context) -> Result<(), CliError> {
    let left = floe_node::running_in(&cx.home).map_err(|e| CliError(e.to_api()))?;
    match left.is_empty() {
        true => Ok(()),
        false => {
            let left: Vec<String> = left.iter().map(|dir| dir.display().to_string()).collect();
            Err(CliError::new(
                ErrorCode::Failed,
                format!("these machines have not ended: {}", left.join(", ")),
                "try again; their qemu.log and the node's log say more",
            ))
        }
    }
}

/// The process that answers on a node's socket.
struct NodeProcess {
    socket: PathBuf,
    /// Its pidfd: readable once the process has ended. `None` if it is not visible from here (another container).
    process: Option<OwnedFd>,
}

impl NodeProcess {
    /// How often a socket is asked whether it still answers, if its process is not visible.
    const LOOK_EVERY: Duration = Duration::from_millis(50);

    fn behind(socket: &Path) -> NodeProcess {
        // the process that listens is the node's: it makes the socket itself
        let peer = floe_threads::connect(socket)
            .ok()
            .and_then(|stream| socket_peercred(&stream).ok());
        NodeProcess {
            socket: socket.to_owned(),
            process: peer.and_then(|peer| pidfd_open(peer.pid, PidfdFlags::empty()).ok()),
        }
    }

    /// Blocks until the process has ended, and with it all that it listened on.
    fn wait_end(self) {
        if let Some(process) = self.process {
            let ended = &mut [PollFd::new(&process, PollFlags::IN)];
            while poll(ended, None) == Err(Errno::INTR) {}
            return;
        }
        while floe_threads::connect(&self.socket).is_ok() {
            // a kernel without pidfds tells nobody of the end of a process that is not its child
            std::thread::sleep(NodeProcess::LOOK_EVERY);
        }
    }
}

/// Returns the page of the hub in the node's process. Its token is in the state directory, readable for the directory's
/// owner.
fn hub_page(cx: &Context) -> Result<PageInfo, CliError> {
    let file = cx.home.hub_token();
    let own = OwnHub::load(&file).ok_or_else(|| {
        CliError::new(
            ErrorCode::NotFound,
            format!("{} tells of no hub", file.display()),
            "start one with `floe up`, and ask as the user who did",
        )
    })?;
    Ok(PageInfo {
        url: format!("{}/", own.hub),
        login_url: own.login_url(),
    })
}

impl Open {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let page = match self.hub {
            false => cx.client()?.page()?,
            true => hub_page(cx)?,
        };
        if self.print || cx.out.json {
            return cx
                .out
                .value(&page, |page: &PageInfo| format!("{}\n", page.login_url));
        }
        let opened = std::process::Command::new("xdg-open")
            .arg(&page.login_url)
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status();
        if opened.is_ok_and(|status| status.success()) {
            return cx
                .out
                .value(&page, |page: &PageInfo| format!("{}\n", page.url));
        }
        eprintln!("note: no browser could be started here; open this address in yours");
        cx.out
            .value(&page, |page: &PageInfo| format!("{}\n", page.login_url))
    }
}
