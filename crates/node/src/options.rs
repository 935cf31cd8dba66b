//! What a node can be told, and its limits: one place, each with its unit and its reason.

use floe_api::credentials::OwnHub;
use floe_api::paths::Home;
use floe_machine::Programs;
use std::{ffi::OsString, net::SocketAddr, path::PathBuf, time::Duration};

/// Everything that [`serve`](fn@super::serve) needs to know.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// State directory.
    pub home: Home,
    /// Unix socket to answer on.
    pub socket: PathBuf,
    /// Group that may use the socket besides the node's user (mode 0660); `None` is nobody (0600). Whoever may use it
    /// has the node's rights.
    pub socket_group: Option<u32>,
    /// Where regions appear as files.
    pub mountpoint: PathBuf,
    /// Most bytes of the cache.
    pub cache_budget: u64,
    /// How long a guest's request waits when no source answers, before it gets an I/O error; `None` is for ever.
    pub io_timeout: Option<Duration>,
    /// Whether chunks are fetched before they are touched. Without it every first touch is a demand, so that a trace shows
    /// what the machine did and nothing that the node did.
    pub read_ahead: bool,
    /// Command that holds the mount's descriptors while a node is replaced: `floe supervisor`, followed by a socket.
    pub supervisor: Vec<OsString>,
    /// QEMU and the wrapper that it is started through.
    pub programs: Programs,
    /// Most memory that machines are promised in all; `None` is the host's.
    pub memory_bytes_max: Option<u64>,
    /// QEMUs that wait for the next run.
    pub standby: StandbyOptions,
    /// Most MiB of translated code of an emulated machine; QEMU's own choice if 0.
    pub emulator_cache_mib: u32,
    /// The page for browsers; `None` is none.
    pub web: Option<WebOptions>,
    /// Most clones that a family of machines may have at a time by its own programs' calls; 0 is none.
    pub guest_clones: u32,
    /// Where those run, as in [`ForkRequest::hosts`](floe_api::ForkRequest::hosts); empty is here.
    pub guest_hosts: Vec<String>,
    /// Let those hosts and the ones that are known by name be asked in clear text, by their pages' addresses and this page's token.
    pub insecure_hosts: bool,
    /// The plug-in that grants them, as in [`ForkRequest::placement`](floe_api::ForkRequest::placement).
    pub guest_placement: Option<String>,
    /// The hub in the same process, if there is one: its user is the node's.
    pub own_hub: Option<OwnHub>,
    /// Keep what machines touch, and send it to the hub that their image came from.
    pub traces: bool,
}

/// Where a node's page is.
#[derive(Clone, Debug)]
pub struct WebOptions {
    /// Address to listen on. Another than loopback needs a token of the operator's choice: its connections are not
    /// encrypted, so a proxy or a tunnel belongs in front of it.
    pub listen: SocketAddr,
    /// Take any free port if this one is taken.
    pub any_port: bool,
    /// The token that lets a browser in; `None` is the one in the state directory, made at the first start.
    pub token: Option<String>,
}

/// Where a page is unless told otherwise: this host only.
pub const WEB_LISTEN_DEFAULT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7070);

/// QEMUs that were started ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandbyOptions {
    /// For each image, how many.
    pub each: usize,
    /// For how many images, the most recently run first.
    pub images: usize,
    /// Most bytes of memory of all of them. One takes [`STANDBY_BYTES`] and what its device state touches.
    pub memory_bytes: u64,
}

/// Memory of a waiting QEMU, bytes: 30 to 45 MB of its own, mostly its code's data and one stack a thread.
pub const STANDBY_BYTES: u64 = 48 << 20;

impl Default for StandbyOptions {
    /// One for each of the last two images, within 128 MiB.
    fn default() -> Self {
        StandbyOptions {
            each: 1,
            images: 2,
            memory_bytes: 128 << 20,
        }
    }
}

/// Clones that a family may have by its own calls unless told otherwise: enough for any job on a few hosts, and a program
/// that runs wild fills no host's list of machines.
pub const GUEST_CLONES_DEFAULT: u32 = 64;

/// Most MiB of translated code of an emulated machine, unless told otherwise. QEMU itself would take up to 1024: a guest whose
/// programs come and go (each at another address, so that each is translated anew) fills them all. With 128 such a guest was as
/// fast.
pub const EMULATOR_CACHE_MIB_DEFAULT: u32 = 128;

/// Cache of a node that is told nothing, bytes: some 20 captured machines; a laptop's disk has it.
pub const CACHE_BUDGET_DEFAULT: u64 = 16 << 30;

impl NodeOptions {
    /// A node in this state directory with this very program as its helper.
    pub fn new(home: Home) -> std::io::Result<NodeOptions> {
        let program: OsString = std::env::current_exe()?.into();
        Ok(NodeOptions {
            socket: home.socket(),
            socket_group: None,
            mountpoint: home.mountpoint(),
            cache_budget: CACHE_BUDGET_DEFAULT,
            io_timeout: None,
            read_ahead: true,
            supervisor: vec![program, "supervisor".into()],
            programs: Programs::of_this_host()?,
            memory_bytes_max: None,
            standby: StandbyOptions::default(),
            emulator_cache_mib: EMULATOR_CACHE_MIB_DEFAULT,
            web: None,
            traces: true,
            guest_clones: GUEST_CLONES_DEFAULT,
            guest_hosts: Vec::new(),
            insecure_hosts: false,
            guest_placement: None,
            own_hub: None,
            home,
        })
    }
}
