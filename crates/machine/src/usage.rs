//! Measures by which it is known whether anybody uses a machine: its processor time, how much its connections carry, and whether somebody
//! is at its screen or console.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::{socket_acceptconn, socket_cookie, socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use crate::machine::Machine;
use crate::process::Process;

/// The sockets at which users look at a screen and type on a console, by the names of their files.
const WATCHED: [&str; 2] = ["vnc.sock", "console.sock"];

/// Length of a tick in microseconds: Linux tells programs times in hundredths of a second, whatever its own ticks are.
const TICK_US: u64 = 10_000;

/// What a machine's QEMU has used, and who is with it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time of all of its threads since its start.
    pub cpu: Duration,
    /// How many bytes each of its TCP connections to the outside has carried in both directions, by a number that no other
    /// connection ever has.
    pub connections: HashMap<u64, u64>,
    /// Whether somebody is connected to its screen or its console.
    pub watched: bool,
}

impl Machine {
    /// Returns what this machine's QEMU has used so far, and who is with it.
    pub fn usage(&self) -> io::Result<Usage> {
        let mut usage = Usage {
            cpu: self.process().cpu_time()?,
            ..Usage::default()
        };
        self.process().each_socket(|socket| usage.add(&socket))?;
        Ok(usage)
    }
}

impl Usage {
    fn add(&mut self, socket: &OwnedFd) {
        if socket_acceptconn(socket) != Ok(false) {
            return;
        }
        match socket_domain(socket) {
            Ok(AddressFamily::UNIX) => self.watched |= is_watched(socket),
            Ok(AddressFamily::INET | AddressFamily::INET6)
                if socket_type(socket) == Ok(SocketType::STREAM) =>
            {
                if let (Ok(number), Some(bytes)) = (socket_cookie(socket), carried(socket)) {
                    self.connections.insert(number, bytes);
                }
            }
            _ => {}
        }
    }
}

/// Whether a connection was accepted at one of the sockets for users.
fn is_watched(socket: &OwnedFd) -> bool {
    let at = rustix::net::getsockname(socket);
    let at = at.ok().and_then(|at| SocketAddrUnix::try_from(at).ok());
    let path = at.as_ref().and_then(SocketAddrUnix::path_bytes);
    let name = path.and_then(|path| path.rsplit(|byte| *byte == b'/').next());
    name.is_some_and(|name| WATCHED.iter().any(|watched| watched.as_bytes() == name))
}

/// Returns how many bytes a TCP connection has carried: what the other side has acknowledged, and what came from it.
fn carried(socket: &OwnedFd) -> Option<u64> {
    // `struct tcp_info` of linux/tcp.h up to tcpi_bytes_received, which kernels have had since 4.1
    const SIZE: usize = 136;
    const BYTES_ACKED: usize = 120;
    const BYTES_RECEIVED: usize = 128;
    let mut info = [0u8; SIZE];
    let mut len = SIZE as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`.
    let got = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut len,
        )
    };
    if got != 0 || (len as usize) < SIZE {
        return None;
    }
    let number = |at: usize| {
        let bytes = info.get(at..)?.first_chunk()?;
        Some(u64::from_ne_bytes(*bytes))
    };
    Some(number(BYTES_ACKED)?.saturating_add(number(BYTES_RECEIVED)?))
}

impl Process {
    /// Returns the processor time that its threads have used, those that have ended among them.
    fn cpu_time(&self) -> io::Result<Duration> {
        let pid = self.id().pid;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let ticks = cpu_ticks(&stat)
            .ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat can't be understood")))?;
        Ok(Duration::from_micros(ticks.saturating_mul(TICK_US)))
    }
}

/// Returns fields 14 and 15 of proc(5)'s stat together: ticks in user and in kernel mode.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    next()?.checked_add(next()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn connections_are_counted_by_what_they_carry_and_users_are_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut served, _) = listener.accept().unwrap();
        let own = OwnedFd::from(client.try_clone().unwrap());
        let seen = |sockets: &[&OwnedFd]| {
            let mut usage = Usage::default();
            sockets.iter().for_each(|socket| usage.add(socket));
            usage
        };
        let listening = OwnedFd::from(listener);
        let quiet = seen(&[&own, &listening]);
        assert_eq!(quiet.connections.len(), 1, "{quiet:?}");
        let number = *quiet.connections.keys().next().unwrap();
        served.write_all(&[1; 1000]).unwrap();
        client.read_exact(&mut [0; 1000]).unwrap();
        let busy = seen(&[&own]);
        assert_eq!(busy.connections[&number] - quiet.connections[&number], 1000);
        assert!(!busy.watched);

        let dir = tempfile::tempdir().unwrap();
        for (name, watched) in [("vnc.sock", true), ("qmp.sock", false)] {
            let listener = UnixListener::bind(dir.path().join(name)).unwrap();
            let _client = UnixStream::connect(dir.path().join(name)).unwrap();
            let (served, _) = listener.accept().unwrap();
            assert!(!seen(&[&OwnedFd::from(listener)]).watched);
            assert_eq!(seen(&[&OwnedFd::from(served)]).watched, watched, "{name}");
        }
    }

    #[test]
    fn processor_time_is_read_whatever_the_process_is_called() {
        let stat = "7 (a) b) (c) S 1 7 7 0 -1 4194560 1 2 3 4 50 25 8 9 20 0 1 0 5";
        assert_eq!(cpu_ticks(stat), Some(75));
        assert_eq!(cpu_ticks("7 (x) S 1"), None);
        let own = Process::hold(std::process::id()).unwrap();
        let before = own.cpu_time().unwrap();
        assert!(own.cpu_time().unwrap() >= before);
    }
}
