//! Machines' screens for VNC clients on this host: a socket for each running machine, which leads to its QEMU.
//!
//! A client could connect to QEMU's own socket, but then nobody would know that a person sits in front of the machine, and what its guest
//! reads would wait behind everybody's backups. So the node stands in between. It passes on all bytes as they are, and counts the keys and
//! buttons that go down ([`Presses`], which the page's screen uses too). Only root and the node's own user are answered: the others can't
//! pass the directories on the way, and are refused if they could.
//!
//! The sockets are gone while no node runs; clients connect again to the next one.
//!
//! Locks: the list of open sockets, for an instant.

use crate::inventory::Entry;
use floe_machine::Socket;
use floe_sched::Presses;
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    runtime::Handle,
    sync::Semaphore,
    task::{AbortHandle, spawn_blocking},
    time::{sleep, timeout},
};

/// VNC clients of one machine at a time; QEMU itself takes 32. Who is one too many is disconnected.
const CLIENTS_MAX: usize = 16;
/// How many bytes of the screen are sent at a time, and so wait in the node for a slow client.
const FROM_QEMU_BYTES: usize = 64 << 10;
/// The same of a client: keys and pointer events take some ten each.
const FROM_CLIENT_BYTES: usize = 4 << 10;
/// A client that takes no data for this long is considered gone.
const STALLED: Duration = Duration::from_secs(30);
/// How long nobody is answered after an error such as too many open files.
const AFTER_ERROR: Duration = Duration::from_millis(100);
/// Who may connect: the node's own user.
const MODE: u32 = 0o600;

/// The sockets of all running machines.
pub(crate) struct Screens {
    runtime: Handle,
    open: Mutex<HashMap<PathBuf, AbortHandle>>,
}

impl Screens {
    /// Returns an empty list, whose clients are served on these threads.
    pub fn new(runtime: Handle) -> Screens {
        Screens {
            runtime,
            open: Mutex::default(),
        }
    }

    /// Opens the socket of a machine's screen, in place of one that is there, or that an earlier node has left.
    pub fn open(&self, path: &Path, machine: &Arc<Entry>) -> io::Result<()> {
        let mut open = self.open.lock();
        if let Some(before) = open.remove(path) {
            before.abort();
        }
        let listener = bind(path)?;
        listener.set_nonblocking(true)?;
        let listener = {
            let _inside = self.runtime.enter();
            UnixListener::from_std(listener)?
        };
        let served = self.runtime.spawn(serve(listener, Arc::downgrade(machine)));
        open.insert(path.to_owned(), served.abort_handle());
        Ok(())
    }

    /// Returns whether the node answers there.
    pub fn is_open(&self, path: &Path) -> bool {
        self.open.lock().contains_key(path)
    }

    /// Closes a socket. Who is connected stays so until QEMU ends.
    pub fn close(&self, path: &Path) {
        if let Some(served) = self.open.lock().remove(path) {
            served.abort();
            let _ = fs::remove_file(path); // it may have gone with its directory
        }
    }
}

/// Makes a socket that only the node's user can connect to.
fn bind(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = floe_threads::listen(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(MODE))?;
    Ok(listener)
}

/// Answers a machine's clients for as long as the machine is known.
async fn serve(listener: UnixListener, machine: Weak<Entry>) {
    let seats = Arc::new(Semaphore::new(CLIENTS_MAX));
    loop {
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(error) => {
                tracing::warn!(%error, "VNC clients are not answered for a moment");
                sleep(AFTER_ERROR).await;
                continue;
            }
        };
        let Some(entry) = machine.upgrade() else {
            return;
        };
        let Ok(seat) = seats.clone().try_acquire_owned() else {
            tracing::warn!(machine = %entry.name, "too many VNC clients");
            continue;
        };
        if !is_own(&client) {
            tracing::warn!(machine = %entry.name, "a VNC client of another user was refused");
            continue;
        }
        let machine = machine.clone();
        tokio::spawn(async move {
            let _seat = seat;
            let connect = move || Ok::<_, crate::NodeError>(entry.vm()?.connect(Socket::Screen));
            match spawn_blocking(connect).await {
                Ok(Ok(Ok(qemu))) => {
                    let input = || {
                        if let Some(entry) = machine.upgrade() {
                            entry.has_input();
                        }
                    };
                    relay(client, qemu, input).await;
                }
                Ok(Ok(Err(error))) => tracing::warn!(%error, "a screen does not answer"),
                // a machine without a QEMU shows nothing
                Ok(Err(error)) => tracing::debug!(%error, "there is no screen"),
                Err(error) => tracing::error!(%error, "a VNC client was not served"),
            }
        });
    }
}

/// Whether a client is root's or the node's own user's, by what the kernel says.
fn is_own(client: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let peer = client.peer_cred().map(|peer| peer.uid());
    peer.is_ok_and(|uid| uid == 0 || uid == own)
}

/// Carries bytes both ways until either side ends. Each direction holds at most one piece, so a slow side slows the other. Calls `input` when
/// a key or a button goes down, before QEMU hears of it.
async fn relay(client: UnixStream, qemu: std::os::unix::net::UnixStream, input: impl Fn()) {
    let qemu = qemu.set_nonblocking(true).map(|()| qemu);
    let qemu = match qemu.and_then(UnixStream::from_std) {
        Ok(qemu) => qemu,
        Err(error) => {
            tracing::warn!(%error, "a screen can't be shown");
            return;
        }
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_qemu, mut to_qemu) = qemu.into_split();
    let down = async {
        let mut piece = vec![0; FROM_QEMU_BYTES];
        while let Ok(count @ 1..) = from_qemu.read(&mut piece).await {
            let sent = timeout(STALLED, to_client.write_all(&piece[..count])).await;
            if !matches!(sent, Ok(Ok(()))) {
                return;
            }
        }
    };
    let up = async {
        let mut presses = Presses::default();
        let mut piece = [0; FROM_CLIENT_BYTES];
        while let Ok(count @ 1..) = from_client.read(&mut piece).await {
            // first, so that what follows from it is already known to
            if presses.are_in(&piece[..count]) {
                input();
            }
            if to_qemu.write_all(&piece[..count]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! { () = down => (), () = up => () }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    const HELLO: &[u8] = b"RFB 003.008\n\x01\x01";
    const KEY: &[u8] = b"\x04\x01\0\0\0\0\0a";
    const MOVE: &[u8] = b"\x05\x00\0\x01\0\x01";

    #[tokio::test]
    async fn all_bytes_pass_both_ways_and_a_press_counts_before_it_arrives() {
        let (mut client, ours) = UnixStream::pair().unwrap();
        let (qemu, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        qemu.set_nonblocking(true).unwrap();
        let mut qemu = UnixStream::from_std(qemu).unwrap();
        let inputs = Arc::new(AtomicU32::new(0));
        let counted = inputs.clone();
        let served = tokio::spawn(relay(ours, theirs, move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        qemu.write_all(b"RFB 003.008\n").await.unwrap();
        let mut got = [0; 12];
        client.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"RFB 003.008\n");
        for (sent, number) in [(HELLO, 0), (MOVE, 0), (KEY, 1), (b"\xf0any", 1)] {
            client.write_all(sent).await.unwrap();
            let mut got = vec![0; sent.len()];
            qemu.read_exact(&mut got).await.unwrap();
            assert_eq!(got, sent);
            assert_eq!(inputs.load(Ordering::Relaxed), number, "{sent:?}");
        }
        // what is not known is passed on, and counts no more
        client.write_all(KEY).await.unwrap();
        let mut got = [0; KEY.len()];
        qemu.read_exact(&mut got).await.unwrap();
        assert_eq!((&got[..], inputs.load(Ordering::Relaxed)), (KEY, 1));
        // QEMU ends, and so does the client's connection
        drop(qemu);
        served.await.unwrap();
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    }

    #[test]
    fn a_socket_takes_the_place_of_one_that_was_left_and_is_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(120));
        fs::create_dir(&deep).unwrap();
        for path in [dir.path().join("s"), deep.join("s")] {
            drop(bind(&path).unwrap());
            let _listener = bind(&path).unwrap();
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, MODE);
        }
        assert!(bind(Path::new("/")).is_err());
    }
}
