//! Everything that crosses a network device, as a stranger on the wire would see it.

use std::{
    fs::File,
    net::SocketAddrV4,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
};

/// Kernel's buffer: what comes while this thread waits for its turn.
const BUFFER_BYTES: usize = 64 << 20;

/// A raw socket on a device, until it is stopped.
pub struct Sniffer {
    over: Arc<AtomicBool>,
    packets: Arc<Mutex<Vec<Vec<u8>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Sniffer {
    /// Listens on a device of a namespace.
    pub fn on(namespace: &str, device: &str) -> Sniffer {
        let socket = std::thread::scope(|scope| {
            let open = scope.spawn(|| {
                let space = File::open(format!("/run/netns/{namespace}")).unwrap();
                let kind = rustix::thread::LinkNameSpaceType::Network;
                rustix::thread::move_into_link_name_space(space.as_fd(), Some(kind)).unwrap();
                raw_socket(device)
            });
            open.join().unwrap()
        });
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES).unwrap();
        let second = Some(std::time::Duration::from_millis(200));
        let timeout = rustix::net::sockopt::Timeout::Recv;
        rustix::net::sockopt::set_socket_timeout(&socket, timeout, second).unwrap();
        let (over, packets) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (ends, keeps): (_, Arc<Mutex<Vec<Vec<u8>>>>) = (over.clone(), Arc::clone(&packets));
        let thread = std::thread::spawn(move || {
            let mut buffer = vec![0; 128 << 10];
            loop {
                match rustix::io::read(&socket, &mut buffer) {
                    Ok(length) => keeps.lock().unwrap().push(buffer[..length].to_vec()),
                    Err(_) if ends.load(Relaxed) => return,
                    Err(_) => {}
                }
            }
        });
        Sniffer {
            over,
            packets,
            thread: Mutex::new(Some(thread)),
        }
    }

    /// Listens no longer, once all that has come was taken.
    pub fn stop(&self) {
        self.over.store(true, Relaxed);
        if let Some(thread) = self.thread.lock().unwrap().take() {
            thread.join().unwrap();
        }
    }

    /// Whether some packet has this text in it.
    pub fn saw(&self, text: &str) -> bool {
        let text = text.as_bytes();
        let packets = self.packets.lock().unwrap();
        let has = |packet: &Vec<u8>| packet.windows(text.len()).any(|window| window == text);
        packets.iter().any(has)
    }

    /// Bytes in all.
    pub fn bytes(&self) -> usize {
        self.packets.lock().unwrap().iter().map(Vec::len).sum()
    }

    /// Whether some packet of a protocol came from or went to a port.
    pub fn has_port(&self, protocol: u8, port: u16) -> bool {
        let packets = self.packets.lock().unwrap();
        let ports = |packet: &Vec<u8>| {
            let ip = packet.get(14..)?;
            (ip.get(9) == Some(&protocol)).then_some(())?;
            let at = usize::from(ip.first()? & 0xf) * 4;
            let number = |at: usize| Some(u16::from_be_bytes([*ip.get(at)?, *ip.get(at + 1)?]));
            Some([number(at)?, number(at + 2)?])
        };
        let found = packets.iter().filter_map(ports);
        found.into_iter().any(|ports| ports.contains(&port))
    }

    /// Whether some packet went to an address.
    pub fn has_packets_to(&self, to: SocketAddrV4) -> bool {
        let packets = self.packets.lock().unwrap();
        let octets = to.ip().octets();
        packets
            .iter()
            .any(|packet| packet.get(30..34) == Some(&octets[..]))
    }
}

fn raw_socket(device: &str) -> OwnedFd {
    let all = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: no pointers; the descriptor is checked and owned by nobody else.
    let socket = unsafe {
        let fd = libc::socket(
            libc::AF_PACKET,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            all.into(),
        );
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    };
    let name = std::ffi::CString::new(device).unwrap();
    // SAFETY: the name ends with a zero byte.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    assert_ne!(index, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: all zeros is an address of no family.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = all;
    address.sll_ifindex = index as i32;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address lives until the call returns and has this length.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
    socket
}
