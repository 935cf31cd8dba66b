//! The namespace of a family on this host: creates, enters and removes it. Uses `ip` and `nft`, which know the differences
//! between kernels better than we would; only what is done once for each clone is done by system calls.

use super::plan::{Network, Overlay, VXLAN_PORT};
use floe_ground::error::{NodeError, at, failed, refused};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{
    fs::File,
    io::{self, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

/// Where `ip netns` keeps namespaces.
const NAMESPACES: &str = "/run/netns";
/// How long connecting to a guest's port may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A family's namespace, whether it exists or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Namespace {
    /// Its name for `ip netns`.
    pub name: String,
    /// Name of the host's end of the way out.
    device: String,
    /// Name on the host of the device that leads to other hosts, until it is moved, and of the nftables table that guards it.
    tunnel: String,
}

impl Namespace {
    /// Returns the namespace of a network. Its name depends on the state directory, since two nodes on one host may share a
    /// family.
    pub fn of(home: &Path, network: &str) -> Namespace {
        let text = format!("{} {network}", home.display());
        let hash = floe_image::Hash::of(text.as_bytes()).to_string();
        let short = &hash[..8];
        Namespace {
            name: format!("floe-{short}"),
            device: format!("fl{short}"),
            tunnel: format!("vx{short}"),
        }
    }

    fn path(&self) -> PathBuf {
        Path::new(NAMESPACES).join(&self.name)
    }

    /// Whether it exists.
    pub fn exists(&self) -> Result<bool, NodeError> {
        let path = self.path();
        path.try_exists()
            .map_err(at(format!("cannot look for {}", path.display())))
    }

    /// Creates it. After an error, what was created is removed again.
    pub fn make(&self, network: &Network) -> Result<(), NodeError> {
        let made = self.try_make(network);
        if made.is_err() {
            self.remove();
        }
        made
    }

    fn try_make(&self, network: &Network) -> Result<(), NodeError> {
        if !rustix::process::geteuid().is_root() {
            return Err(refused(
                "a family network is made of devices that only root may make, and this node is not root's",
                "run the node as root, or leave --network out",
            ));
        }
        if network.allow.iter().any(|_| !forwards()) {
            return Err(refused(
                "this host forwards no packets, so that --allow would have no effect",
                "sysctl -w net.ipv4.ip_forward=1 (and look at the host's own firewall), or leave --allow out",
            ));
        }
        run(&["ip", "netns", "add", &self.name], "")?;
        self.inside_ip(&network.build())?;
        self.apply(&network.rules())?;
        if !network.allow.is_empty() {
            let (name, device) = (&self.name, &self.device);
            run(
                &[
                    "ip", "link", "add", device, "type", "veth", "peer", "name", "up0", "netns",
                    name,
                ],
                "",
            )?;
            run(&["ip", "-batch", "-"], &Network::downlink(name, device))?;
            self.inside_ip(&Network::uplink(name))?;
            run(
                &[
                    "ip",
                    "netns",
                    "exec",
                    name,
                    "sysctl",
                    "-qw",
                    "net.ipv4.ip_forward=1",
                ],
                "",
            )?;
            run(&["nft", "-f", "-"], &Network::host_rules(name, device))?;
        }
        if let Some(overlay) = &network.overlay {
            self.join_hosts(network, overlay)?;
        }
        Ok(())
    }

    fn inside_ip(&self, batch: &str) -> Result<(), NodeError> {
        run(&["ip", "-n", &self.name, "-batch", "-"], batch).map(drop)
    }

    /// Creates or changes the connection to the family's other hosts.
    pub fn join_hosts(&self, network: &Network, overlay: &Overlay) -> Result<(), NodeError> {
        let inside = |args: &[&str]| {
            let mut all = vec!["ip", "netns", "exec", self.name.as_str()];
            all.extend(args);
            run(&all, "")
        };
        run(
            &["nft", "-f", "-"],
            &network.overlay_rules(&self.tunnel, overlay),
        )?;
        if inside(&["ip", "link", "show", "vx0"]).is_err() {
            let (vni, local, port) = (
                network.vni().to_string(),
                overlay.local.to_string(),
                VXLAN_PORT.to_string(),
            );
            // a device made on the host keeps using the host's addresses, even after it is moved
            let device = &self.tunnel;
            run(
                &[
                    "ip", "link", "add", device, "mtu", "1500", "type", "vxlan", "id", &vni,
                    "local", &local, "dstport", &port,
                ],
                "",
            )?;
            let moved = run(
                &[
                    "ip", "link", "set", device, "netns", &self.name, "name", "vx0",
                ],
                "",
            );
            if moved.is_err() {
                let _ = run(&["ip", "link", "del", device], "");
            }
            moved?;
            self.inside_ip("link set vx0 mtu 1500 master br0\nlink set vx0 up\n")?;
        }
        let told = inside(&["bridge", "fdb", "show", "dev", "vx0"])?;
        let known: Vec<Ipv4Addr> = flooded(&told);
        let everyone = "00:00:00:00:00:00";
        for peer in overlay.peers.iter().filter(|peer| !known.contains(peer)) {
            let peer = peer.to_string();
            inside(&[
                "bridge", "fdb", "append", everyone, "dev", "vx0", "dst", &peer,
            ])?;
        }
        for peer in known.iter().filter(|peer| !overlay.peers.contains(peer)) {
            let peer = peer.to_string();
            inside(&["bridge", "fdb", "del", everyone, "dev", "vx0", "dst", &peer])?;
        }
        Ok(())
    }

    /// Removes it, with all devices in it.
    pub fn remove(&self) {
        let quietly = |args: &[&str]| {
            // what was never created need not be removed
            let _ = run(args, "");
        };
        if self.exists().unwrap_or(true) {
            quietly(&["nft", "delete", "table", "ip", &self.device]);
            quietly(&["nft", "delete", "table", "ip", &self.tunnel]);
            // removed at once together with its inner end: a namespace's own devices disappear only some time after it
            quietly(&["ip", "link", "del", &self.device]);
            // the family's next device on this host has the same number, and is refused while this one exists
            quietly(&["ip", "-n", &self.name, "link", "del", "vx0"]);
            quietly(&["ip", "netns", "del", &self.name]);
        }
    }

    /// Creates a member's port and returns its descriptor; the port exists as long as anybody has that open.
    pub fn open_port(&self, number: u32) -> Result<OwnedFd, NodeError> {
        let port = Network::port(number);
        let what = format!("cannot make port {port} of network {}", self.name);
        self.inside(move || open_tap(&port))
            .and_then(|made| made)
            .map_err(at(what))
    }

    /// Returns how many bytes a member's port has carried in both directions; `None` if there is no such port.
    pub fn carried(&self, number: u32) -> Option<u64> {
        let read = || std::fs::read_to_string("/proc/thread-self/net/dev");
        let table = self.inside(read).and_then(|read| read).ok()?;
        carried_by(&table, &Network::port(number))
    }

    /// Creates the port of the encrypted connection to other hosts.
    pub fn open_tunnel(&self) -> io::Result<OwnedFd> {
        self.inside(|| open_tap("vx0"))?
    }

    /// Applies nftables rules inside the namespace, which replace earlier ones.
    pub fn apply(&self, rules: &str) -> Result<(), NodeError> {
        let inside = ["ip", "netns", "exec", &self.name, "nft", "-f", "-"];
        run(&inside, rules).map(drop)
    }

    /// Connects to a guest's port from inside the namespace.
    pub fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.inside(move || TcpStream::connect_timeout(&to, CONNECT_TIMEOUT))?
    }

    /// Calls a function in the namespace, on a thread of its own that ends afterwards.
    fn inside<T: Send>(&self, call: impl FnOnce() -> T + Send) -> io::Result<T> {
        let namespace = File::open(self.path())?;
        floe_threads::scope(|scope| {
            let thread = scope.spawn("in-namespace", move || {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(call())
            });
            let died = || Err(io::Error::other("the thread in the namespace died"));
            thread.join().unwrap_or_else(|_| died())
        })
    }
}

/// Returns the sum of the bytes that a device has received and sent, of proc(5)'s net/dev.
fn carried_by(table: &str, device: &str) -> Option<u64> {
    let line = |line: &str| {
        let (name, counts) = line.split_once(':')?;
        (name.trim() == device).then(|| counts.to_owned())
    };
    let counts = table.lines().find_map(line)?;
    let count = |at| counts.split_ascii_whitespace().nth(at)?.parse::<u64>().ok();
    count(0)?.checked_add(count(8)?)
}

/// Whether this host forwards packets.
fn forwards() -> bool {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").is_ok_and(|text| text.trim() == "1")
}

/// Returns the hosts that broadcast frames are sent to: lines `00:00:00:00:00:00 dst 10.0.0.2 ...` of `bridge fdb`.
fn flooded(text: &str) -> Vec<Ipv4Addr> {
    let to = |line: &str| -> Option<Ipv4Addr> {
        let rest = line.strip_prefix("00:00:00:00:00:00 dst ")?;
        rest.split_whitespace().next()?.parse().ok()
    };
    text.lines().filter_map(to).collect()
}

/// Runs a command with this input, and returns its output.
fn run(args: &[&str], input: &str) -> Result<String, NodeError> {
    let (program, rest) = args.split_first().unwrap_or((&"", &[]));
    let package = match args.contains(&"nft") {
        true => "nftables",
        false => "iproute2",
    };
    let mut child = Command::new(program)
        .args(rest)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| {
            let fix = format!("install {program}: package {package}");
            failed(format!("{program} does not start: {error}"), fix)
        })?;
    if let Some(mut stdin) = child.stdin.take() {
        // a command that ends before it has read everything says why
        let _ = stdin.write_all(input.as_bytes());
    }
    let done = child
        .wait_with_output()
        .map_err(at(format!("cannot wait for {program}")))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let said = said.lines().next().unwrap_or("it does not say why").trim();
    let fix = match said.contains("not permitted") {
        true => "let the node have the capabilities CAP_NET_ADMIN and CAP_SYS_ADMIN".to_owned(),
        false => format!(
            "check that the kernel has bridge, tun, veth, vxlan and nf_tables, and that packages iproute2 and {package} are there"
        ),
    };
    Err(failed(format!("{}: {said}", args.join(" ")), fix))
}

/// Creates a tap device in this thread's namespace and adds it to the bridge.
fn open_tap(name: &str) -> io::Result<OwnedFd> {
    use std::os::unix::fs::OpenOptionsExt;
    let tun = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    let mut request = named(name)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as i16;
    // SAFETY: TUNSETIFF reads and writes an ifreq.
    unsafe { ioctl(&tun, libc::TUNSETIFF, &mut request) }?;
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    // SAFETY: SIOCGIFINDEX reads the name and writes the index of an ifreq.
    unsafe { ioctl(&socket, libc::SIOCGIFINDEX, &mut request) }?;
    let mut bridge = named("br0")?;
    // SAFETY: the call before has written the index.
    bridge.ifr_ifru.ifru_ifindex = unsafe { request.ifr_ifru.ifru_ifindex };
    // SAFETY: SIOCBRADDIF reads the bridge's name and the port's index of an ifreq.
    unsafe { ioctl(&socket, SIOCBRADDIF, &mut bridge) }?;
    let mut up = named(name)?;
    up.ifr_ifru.ifru_flags = libc::IFF_UP as i16;
    // SAFETY: SIOCSIFFLAGS reads the name and the flags of an ifreq.
    unsafe { ioctl(&socket, libc::SIOCSIFFLAGS, &mut up) }?;
    Ok(tun.into())
}

/// Adds a port to a bridge (linux/sockios.h; not in libc).
const SIOCBRADDIF: libc::Ioctl = 0x89a2;

fn named(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all zeros is an ifreq without a name.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// # Safety
///
/// The operation must read and write nothing but an ifreq.
unsafe fn ioctl(
    of: &impl AsFd,
    operation: libc::Ioctl,
    request: &mut libc::ifreq,
) -> io::Result<()> {
    let fd = of.as_fd().as_raw_fd();
    // SAFETY: the ifreq lives until the call returns; the caller has seen to the rest.
    match unsafe { libc::ioctl(fd, operation, std::ptr::from_mut(request)) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the address of a member's port.
pub(super) fn guest_address(number: u32, port: u16) -> SocketAddr {
    SocketAddr::new(Network::address(number).into(), port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_port_carried_is_the_sum_of_both_directions() {
        let table = "Inter-|   Receive  |  Transmit\n face |bytes    packets|bytes\n    lo: 1 2 3 4 5 6 7 8 9 0 0\n   p1: 100 2 0 0 0 0 0 0 11 3 0\n";
        assert_eq!(carried_by(table, "p1"), Some(111));
        assert_eq!(carried_by(table, "p"), None);
        assert_eq!(carried_by("p1: 5", "p1"), None);
    }

    #[test]
    fn namespaces_differ_by_home_and_network_and_their_devices_names_fit() {
        let of = |home: &str, id: &str| Namespace::of(Path::new(home), id);
        let one = of("/a", "1");
        assert_eq!(one, of("/a", "1"));
        assert_ne!(one.name, of("/b", "1").name);
        assert_ne!(one.name, of("/a", "2").name);
        assert!(one.device.len() < 16);
        assert!(!one.exists().unwrap());
    }

    #[test]
    fn hosts_that_get_everybodys_frames_are_read() {
        let text = "0a:e1:df:96:21:0d master br0 permanent\n00:00:00:00:00:00 dst 10.200.0.2 link-netnsid 0 self permanent\n";
        assert_eq!(flooded(text), [Ipv4Addr::new(10, 200, 0, 2)]);
        assert!(flooded("00:00:00:00:00:00 dst x").is_empty());
    }
}
