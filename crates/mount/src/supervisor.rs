//! The process that holds copies of a mount's descriptors, so that the connection outlives the node, and any others given to
//! it.
//!
//! While any process holds a `/dev/fuse` descriptor, the kernel keeps the requests in its queue; when the last copy is closed
//! they fail, and a VMM that waits for memory dies of SIGBUS. So a small process does nothing but hold copies of all of them.
//! Nothing that ends the node may end it: start it in a session and a cgroup of its own. Whoever can connect can take the
//! descriptors, so the socket is made with mode 0600.
//!
//! Protocol (SOCK_SEQPACKET, one packet each way, at most [`PACKET_BYTES_MAX`]). Requests: `put NAME` with a descriptor, `get
//! NAME`, `list`, `drop NAME`, `quit`. Answers: `ok`, `ok` with a descriptor, `ok` and the names one a line, `none`, or
//! `refused: ` with a reason.

use crate::MountError;
use floe_threads::Address;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recvmsg, sendmsg, shutdown, socket_with,
};
use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of the longest packet: a list of all names.
pub const PACKET_BYTES_MAX: usize = 64 << 10;
/// Bytes of the longest name.
pub const NAME_BYTES_MAX: usize = 64;
/// Most descriptors held: a few of the mount, and one for each fork that isn't stored yet. Below the usual limit of open files.
pub const HELD_MAX: usize = 800;
/// Length of the queue of clients to be accepted; one node needs one.
const CLIENTS_MAX: usize = 16;
/// How long a supervisor may take to answer before it counts as gone: it does nothing that takes long.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait before clients are accepted again after a failure.
const ACCEPT_AGAIN: Duration = Duration::from_millis(20);

/// Sends one packet, with a descriptor if there is one.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = fd.map(|fd| [fd]);
    if let Some(fds) = &fds {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// Receives one packet; returns its length (0 when the other side hung up) and the descriptor that came with it.
pub(crate) fn receive(socket: impl AsFd, buf: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(
        socket,
        &mut [IoSliceMut::new(buf)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut fd = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            fd = fds.last().or(fd);
        }
    }
    Ok((got.bytes, fd))
}

/// Returns a new socket and the address of `socket`, which is of use while the third value is there.
fn seqpacket(socket: &Path) -> io::Result<(OwnedFd, SocketAddrUnix, Address)> {
    let fd = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let address = Address::of(socket)?;
    Ok((fd, SocketAddrUnix::new(address.path())?, address))
}

/// Descriptors by name.
type Descriptors = BTreeMap<String, Arc<OwnedFd>>;

/// What is held; `None` once a client has sent `quit`: who asks later hears nothing more, so that it doesn't take a supervisor that is
/// just ending for one that stays.
type Held = parking_lot::Mutex<Option<Descriptors>>;

/// Serves `socket` until a client sends `quit`. Replaces a socket file that nobody serves; fails if another supervisor does.
/// Run this in a process of its own. `listening` is called once clients can connect.
pub fn run(socket: &Path, listening: impl FnOnce()) -> Result<(), MountError> {
    let failed = |reason: String| MountError::Supervisor {
        path: socket.to_owned(),
        reason,
    };
    let io = |e: io::Error| failed(e.to_string());
    let (listener, address, _there) = seqpacket(socket).map_err(io)?;
    match connect(seqpacket(socket).map_err(io)?.0, &address) {
        Ok(()) => return Err(failed("another one is running".into())),
        // Nobody listens, or there is no socket. After any other error there may be one who does.
        Err(rustix::io::Errno::CONNREFUSED | rustix::io::Errno::NOENT) => {}
        Err(e) => return Err(io(e.into())),
    }
    match std::fs::remove_file(socket) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(io(e)),
        _ => {}
    }
    // Nobody can connect before listen(), so the mode is set in time.
    bind(&listener, &address).map_err(|e| io(e.into()))?;
    rustix::fs::chmod(socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
        .map_err(|e| io(e.into()))?;
    listen(&listener, CLIENTS_MAX as i32).map_err(|e| io(e.into()))?;
    listening();
    let held = Arc::new(Held::new(Some(Descriptors::new())));
    let (quit, quits) = crossbeam_channel::bounded(CLIENTS_MAX);
    let accept = move || {
        loop {
            let client = match accept_with(&listener, SocketFlags::CLOEXEC) {
                Ok(client) => client,
                // Memory or descriptors are short, or the client is gone already. Never give up: machines depend on what is
                // held here.
                Err(_) => {
                    // nothing tells when there is memory again
                    std::thread::sleep(ACCEPT_AGAIN);
                    continue;
                }
            };
            let (held, quit) = (held.clone(), quit.clone());
            // Clients are few; one that misbehaves blocks only its own thread.
            let client = move || {
                if serve(&client, &held) {
                    let _ = quit.try_send(());
                }
            };
            let _ = floe_threads::spawn("floe-client", client);
        }
    };
    floe_threads::spawn("floe-accept", accept).map_err(|e| io(e.into()))?;
    // Returns when a client has sent `quit`.
    let _ = quits.recv();
    let _ = std::fs::remove_file(socket);
    Ok(())
}

/// Serves one client, if it is of this user or root; returns whether it sent `quit`.
fn serve(client: &OwnedFd, held: &Held) -> bool {
    let ours = socket_peercred(client)
        .is_ok_and(|peer| peer.uid == rustix::process::geteuid() || peer.uid.is_root());
    if !ours {
        return false;
    }
    let mut buf = [0; NAME_BYTES_MAX + 16];
    loop {
        let Ok((n, fd)) = receive(client, &mut buf) else {
            return false;
        };
        let Ok(text) = std::str::from_utf8(&buf[..n]) else {
            return false;
        };
        let (verb, name) = text.split_once(' ').unwrap_or((text, ""));
        let is_end = verb == "quit";
        let Some((text, fd)) = answer(&mut held.lock(), verb, name, fd) else {
            return false;
        };
        // not under the lock: a client that reads no answers blocks its own thread only
        let sent = send(client, text.as_bytes(), fd.as_ref().map(|fd| fd.as_fd()));
        if is_end || sent.is_err() {
            return is_end;
        }
    }
}

/// Does what a request asks for, and returns the answer, with a descriptor if one goes with it. `None` if the client is hung up on: the
/// request is none, or came after a `quit`.
fn answer(
    held: &mut Option<Descriptors>,
    verb: &str,
    name: &str,
    fd: Option<OwnedFd>,
) -> Option<(String, Option<Arc<OwnedFd>>)> {
    let known = held.as_mut()?;
    let text = match (verb, fd) {
        ("put", Some(fd)) => put(known, name, fd),
        ("get", None) => match known.get(name) {
            Some(fd) => return Some(("ok".into(), Some(fd.clone()))),
            None => "none",
        },
        ("list", None) => {
            let names: Vec<&str> = known.keys().map(String::as_str).collect();
            return Some((format!("ok\n{}", names.join("\n")), None));
        }
        ("drop", None) => match known.remove(name) {
            Some(_) => "ok",
            None => "none",
        },
        ("quit", None) => {
            *held = None;
            "ok"
        }
        _ => return None,
    };
    Some((text.into(), None))
}

fn put(held: &mut Descriptors, name: &str, fd: OwnedFd) -> &'static str {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains('\n') {
        return "refused: a name has 1 to 64 bytes";
    }
    if held.len() >= HELD_MAX && !held.contains_key(name) {
        return "refused: too many descriptors are held";
    }
    held.insert(name.to_owned(), Arc::new(fd));
    "ok"
}

/// A connection to the supervisor.
pub struct Client {
    path: PathBuf,
    socket: OwnedFd,
}

impl Client {
    /// Connects to the supervisor that serves `socket`.
    pub fn connect(socket: &Path) -> Result<Self, MountError> {
        let failed = |e: io::Error| MountError::Supervisor {
            path: socket.to_owned(),
            reason: e.to_string(),
        };
        let (fd, address, _there) = seqpacket(socket).map_err(failed)?;
        connect(&fd, &address).map_err(|e| failed(e.into()))?;
        for timeout in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&fd, timeout, Some(ANSWER_TIMEOUT)).map_err(|e| failed(e.into()))?;
        }
        Ok(Self {
            path: socket.to_owned(),
            socket: fd,
        })
    }

    /// Returns another handle of the same connection.
    pub(crate) fn another(&self) -> Result<Self, MountError> {
        let socket = self.socket.try_clone();
        Ok(Self {
            path: self.path.clone(),
            socket: socket.map_err(|e| self.failed(e.to_string()))?,
        })
    }

    /// Blocks until the supervisor, or anybody who shares this connection, ends it.
    pub(crate) fn wait_end(&self) -> io::Result<()> {
        set_socket_timeout(&self.socket, Timeout::Recv, None)?;
        while receive(&self.socket, &mut [0; 1])?.0 > 0 {}
        Ok(())
    }

    /// Ends the connection for everybody who shares it.
    pub(crate) fn hang_up(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    fn failed(&self, reason: impl Into<String>) -> MountError {
        MountError::Supervisor {
            path: self.path.clone(),
            reason: reason.into(),
        }
    }

    fn ask(
        &mut self,
        request: &str,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(String, Option<OwnedFd>), MountError> {
        let failed = |e: io::Error| self.failed(e.to_string());
        send(&self.socket, request.as_bytes(), fd).map_err(failed)?;
        let mut buf = vec![0; PACKET_BYTES_MAX];
        let (n, fd) = receive(&self.socket, &mut buf).map_err(failed)?;
        if n == 0 {
            return Err(self.failed("it hung up"));
        }
        let answer = String::from_utf8_lossy(&buf[..n]).into_owned();
        Ok((answer, fd))
    }

    /// Has the supervisor hold a copy of a descriptor under `name`, replacing the one that is there.
    pub fn put(&mut self, name: &str, fd: impl AsFd) -> Result<(), MountError> {
        match self.ask(&format!("put {name}"), Some(fd.as_fd()))? {
            (answer, _) if answer == "ok" => Ok(()),
            (answer, _) => Err(MountError::Refused {
                path: self.path.clone(),
                reason: answer,
            }),
        }
    }

    /// Returns a copy of the descriptor held under `name`; `None` if there is none.
    pub fn get(&mut self, name: &str) -> Result<Option<OwnedFd>, MountError> {
        Ok(self.ask(&format!("get {name}"), None)?.1)
    }

    /// Returns the names of all descriptors held.
    pub fn list(&mut self) -> Result<Vec<String>, MountError> {
        let (answer, _) = self.ask("list", None)?;
        Ok(answer
            .lines()
            .skip(1)
            .filter(|l| !l.is_empty())
            .map(str::to_owned)
            .collect())
    }

    /// Closes the descriptor held under `name`; returns whether there was one.
    pub fn drop_fd(&mut self, name: &str) -> Result<bool, MountError> {
        Ok(self.ask(&format!("drop {name}"), None)?.0 == "ok")
    }

    /// Ends the supervisor, which closes what it held.
    pub fn quit(mut self) -> Result<(), MountError> {
        self.ask("quit", None).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_reads_no_answers_keeps_nobody_else_waiting() {
        let dir = tempfile::tempdir().unwrap();
        // longer than an address has room for
        let deep = dir.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let socket = deep.join("sock");
        let serving = socket.clone();
        let (listening, listens) = crossbeam_channel::bounded(1);
        let thread =
            std::thread::spawn(move || run(&serving, || listening.send(()).unwrap()).unwrap());
        listens.recv().unwrap();
        let (silent, address, _there) = seqpacket(&socket).unwrap();
        connect(&silent, &address).unwrap();
        rustix::io::ioctl_fionbio(&silent, true).unwrap();
        // once nothing more is taken for a while, the supervisor has stopped at an answer that nobody reads
        let mut refused = 0;
        while refused < 20 {
            match send(&silent, b"list", None) {
                Ok(()) => refused = 0,
                Err(_) => {
                    refused += 1;
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            }
        }
        let mut client = Client::connect(&socket).unwrap();
        assert_eq!(client.list().unwrap(), Vec::<String>::new());
        client.quit().unwrap();
        thread.join().unwrap();
    }
}
