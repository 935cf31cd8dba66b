//! The node's options and their limits, each with its unit and its reason.

use floe_api::SwarmUse;
use floe_api::credentials::OwnHub;
use floe_api::paths::Home;
use floe_machine::Programs;
use floe_peers::Config;
use std::{ffi::OsString, net::SocketAddr, path::PathBuf, time::Duration};

/// The options of `floe_node::serve`.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// State directory.
    pub home: Home,
    /// Unix socket to answer on.
    pub socket: PathBuf,
    /// Group that may use the socket besides the node's user (mode 0660); `None` is nobody (0600). Whoever may use it
    /// has the node's rights.
    pub socket_group: Option<u32>,
    /// Directory where regions appear as files.
    pub mountpoint: PathBuf,
    /// Largest size of the cache, in bytes.
    pub cache_budget: u64,
    /// How long a guest's request waits when no source answers, before it gets an I/O error; `None` is for ever. A machine's own
    /// [`floe_api::Limits::io_timeout_s`] goes before it.
    pub io_timeout: Option<Duration>,
    /// How long a guest waits for a page of its memory until its machine is paused, to go on once that has come; `None` is for ever.
    pub io_pause: Option<Duration>,
    /// How the requests that access the host's disk are ordered.
    pub io: floe_api::IoOrder,
    /// Directory in which the class of each disk request is recorded, for measurements.
    pub io_trace: Option<PathBuf>,
    /// What is done for machines' vCPUs.
    pub cpu_sched: floe_api::CpuSched,
    /// Whether chunks are fetched before they are touched. Without it every first touch is a demand, so that a trace shows
    /// what the machine did and nothing that the node did.
    pub read_ahead: bool,
    /// Command that holds the mount's descriptors while a node is replaced: `floe supervisor`, followed by a socket.
    pub supervisor: Vec<OsString>,
    /// Paths of QEMU and of the wrapper that it is started through.
    pub programs: Programs,
    /// Most memory that all machines together may be promised, in bytes; `None` means the host's memory.
    pub memory_bytes_max: Option<u64>,
    /// How many QEMUs are started ahead of the next run.
    pub standby: StandbyOptions,
    /// Most MiB of translated code that an emulated machine's QEMU keeps; 0 leaves the choice to QEMU.
    pub emulator_cache_mib: u32,
    /// The web page; `None` if there is none.
    pub web: Option<WebOptions>,
    /// Most clones that a machine may have at a time because its guest and its clones' asked for them, whatever its own limit
    /// ([`floe_api::Limits::clones`]) says; 0 forbids such clones.
    pub guest_clones: u32,
    /// Whether programs in guests may have their machines go on on other nodes of the cluster.
    pub guest_moves: bool,
    /// The hosts of those clones, as in [`ForkRequest::hosts`](floe_api::ForkRequest::hosts); empty means this one.
    pub guest_hosts: Vec<String>,
    /// Whether those hosts and the known hosts may be asked in clear text, at their pages' addresses and with this page's
    /// token.
    pub insecure_hosts: bool,
    /// The plug-in that grants room for those clones, as in [`ForkRequest::placement`](floe_api::ForkRequest::placement).
    pub guest_placement: Option<String>,
    /// The hub in the same process, if there is one; the node's user is its user.
    pub own_hub: Option<OwnHub>,
    /// Whether guests are asked now and then to give back what they do not use of their disks.
    pub trim: bool,
    /// Whether traces of what machines touch are kept, and sent to the hub that their image came from.
    pub traces: bool,
    /// How this node takes part in swarms.
    pub swarm: SwarmOptions,
}

/// The smallest cap of what goes to others, in bytes a second: a piece.
pub const SWARM_UPLOAD_MIN: u64 = floe_peers::PIECE_BYTES;

/// How a node takes part in swarms: hosts that bring one image to each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwarmOptions {
    /// Whether machines take part if nothing was said when they were started.
    pub usage: SwarmUse,
    /// Where to listen over UDP; `None` is all addresses of this host, at a free port that is kept.
    pub listen: Option<SocketAddr>,
    /// Most bytes a second that go to others, in all swarms together and at least [`SWARM_UPLOAD_MIN`]; `None` is all that the link carries.
    pub upload_bytes_per_s: Option<u64>,
    /// The policy that decides who is asked for which piece. Other policies than the default are for measurements.
    pub policy: SwarmPolicy,
}

/// By which policy pieces are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SwarmPolicy {
    /// floe's own: each piece has a host that is responsible for bringing it in (its warden), and the window adapts.
    #[default]
    Ours,
    /// VMTorrent's: a fixed window in which the next piece is chosen at random.
    P2pP,
    /// VMTorrent's without a profile: nothing is fetched ahead.
    P2pD,
    /// No other node is asked: all pieces come from the hub, those of the prediction ahead of need.
    CsP,
    /// The same without a profile.
    CsD,
}

impl SwarmPolicy {
    /// Returns the settings of the engine.
    pub fn config(self) -> Config {
        match self {
            SwarmPolicy::Ours => Config::ours(),
            SwarmPolicy::P2pP => Config::p2p_p(),
            SwarmPolicy::P2pD => Config::p2p_d(),
            SwarmPolicy::CsP => Config::cs_p(),
            SwarmPolicy::CsD => Config::cs_d(),
        }
    }

    /// Whether an image comes in pieces alone, however late they are. With a policy that is only measured, reads from the hub beside the
    /// swarm would blur what the policy does.
    pub fn only_pieces(self) -> bool {
        self != SwarmPolicy::Ours
    }
}

/// Options of a node's web page.
#[derive(Clone, Debug)]
pub struct WebOptions {
    /// Address to listen on. One other than loopback requires a token of the operator's choice, and should be behind a proxy
    /// or a tunnel, because connections are not encrypted.
    pub listen: SocketAddr,
    /// Whether any free port is taken if this one is in use.
    pub any_port: bool,
    /// The token that lets a browser in; `None` means the one in the state directory, created at the first start.
    pub token: Option<String>,
}

/// Default address of the page: this host only.
pub const WEB_LISTEN_DEFAULT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7070);

/// How many QEMUs are started ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandbyOptions {
    /// How many for each image.
    pub each: usize,
    /// For how many images; the most recently run first.
    pub images: usize,
    /// Most memory of all of them, in bytes. Each takes [`STANDBY_BYTES`] and what its device state touches.
    pub memory_bytes: u64,
    /// Most memory of those that are bound to no image yet, in bytes. Each takes [`BLANK_BYTES`].
    pub blank_bytes: u64,
}

/// Memory of a QEMU that waits and has loaded no state yet, in bytes.
pub const BLANK_BYTES: u64 = 16 << 20;

/// Memory of a waiting QEMU, in bytes: 30 to 45 MB of its own, mostly its code's data and one stack per thread.
pub const STANDBY_BYTES: u64 = 48 << 20;

impl Default for StandbyOptions {
    /// One QEMU for each of the last two images, within 128 MiB, and 32 for clones.
    fn default() -> Self {
        StandbyOptions {
            each: 1,
            images: 2,
            memory_bytes: 128 << 20,
            blank_bytes: 32 * BLANK_BYTES,
        }
    }
}

/// Default for the most clones that a machine may have by its own programs' calls: enough for any job on a few hosts, and few
/// enough that a runaway program does not fill a host's list of machines.
pub const GUEST_CLONES_DEFAULT: u32 = 64;

/// Default for the MiB of translated code of an emulated machine. QEMU itself would take up to 1024: a guest whose programs
/// come and go (each at another address, so that each is translated anew) fills all of that. With 128 such a guest was as
/// fast.
pub const EMULATOR_CACHE_MIB_DEFAULT: u32 = 128;

/// Default for how many seconds a guest waits for a page until its machine is paused: half of what Linux lets a CPU be silent before it
/// warns of it.
pub const IO_PAUSE_S_DEFAULT: u64 = 10;

/// Default size of the cache in bytes: some 20 captured machines, and small enough for a laptop's disk.
pub const CACHE_BUDGET_DEFAULT: u64 = 16 << 30;

impl NodeOptions {
    /// Returns the defaults for a node in this state directory, with this very program as its helper.
    pub fn new(home: Home) -> std::io::Result<NodeOptions> {
        let program: OsString = std::env::current_exe()?.into();
        Ok(NodeOptions {
            socket: home.socket(),
            socket_group: None,
            mountpoint: home.mountpoint(),
            cache_budget: CACHE_BUDGET_DEFAULT,
            io_timeout: None,
            io_pause: Some(Duration::from_secs(IO_PAUSE_S_DEFAULT)),
            io: floe_api::IoOrder::default(),
            io_trace: None,
            cpu_sched: floe_api::CpuSched::default(),
            read_ahead: true,
            supervisor: vec![program, "supervisor".into()],
            programs: Programs::of_this_host()?,
            memory_bytes_max: None,
            standby: StandbyOptions::default(),
            emulator_cache_mib: EMULATOR_CACHE_MIB_DEFAULT,
            web: None,
            trim: true,
            traces: true,
            swarm: SwarmOptions::default(),
            guest_clones: GUEST_CLONES_DEFAULT,
            guest_moves: false,
            guest_hosts: Vec::new(),
            insecure_hosts: false,
            guest_placement: None,
            own_hub: None,
            home,
        })
    }
}
