//! Machines' screens for VNC clients on this host: a socket for each running machine, which leads to its QEMU; and for one that is lent,
//! once somebody has asked for it, which leads to the node that runs it.
//!
//! A client could connect to QEMU's own socket, but then nobody would know that a person sits in front of the machine, and what its guest
//! reads would wait behind everybody's backups; and what QEMU drops, while the machine stands still, would be lost. So the node stands in
//! between. While the machine runs it passes on all bytes as they are, and counts the keys and buttons that go down; otherwise [`Client`]
//! says what is held, and what is kept for the guest ([`Typist`]; the page's screen uses both, too). Only root and the node's own user
//! are answered: the others can't pass the directories on the way, and are refused if they could.
//!
//! The sockets are gone while no node runs; clients connect again to the next one.
//!
//! Locks: the list of open sockets, for an instant.

use floe_ground::{
    typist::{Typist, carry_out, held_every, keep},
    vnc::Client,
};
use floe_inventory::inventory::Entry;
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, Weak},
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

/// Returns the user of a new connection to a machine's screen; `None` if the node ends.
pub type Users = dyn Fn(&Arc<Entry>) -> Option<Arc<dyn Typist>> + Send + Sync;

/// The sockets of all running machines.
pub struct Screens {
    runtime: Handle,
    open: Mutex<HashMap<PathBuf, AbortHandle>>,
    users: Arc<OnceLock<Box<Users>>>,
}

impl Screens {
    /// Returns an empty list, whose clients are served on these threads.
    pub fn new(runtime: Handle) -> Screens {
        Screens {
            runtime,
            open: Mutex::default(),
            users: Arc::default(),
        }
    }

    /// Says who the users of screens are; nobody is answered before that.
    pub fn have(&self, users: Box<Users>) {
        let _ = self.users.set(users); // it is said once
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
        let served =
            self.runtime
                .spawn(serve(listener, Arc::downgrade(machine), self.users.clone()));
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
async fn serve(listener: UnixListener, machine: Weak<Entry>, users: Arc<OnceLock<Box<Users>>>) {
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
        let Some(user) = users.get().and_then(|users| users(&entry)) else {
            continue;
        };
        tokio::spawn(async move {
            let _seat = seat;
            let shows = user.clone();
            match spawn_blocking(move || shows.screen()).await {
                Ok(Ok(qemu)) => relay(client, qemu, user).await,
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

/// Carries bytes both ways until either side ends. Each direction has at most one piece under way, so a slow side slows the other.
async fn relay(client: UnixStream, qemu: std::os::unix::net::UnixStream, user: Arc<dyn Typist>) {
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
    let mut said = Client::default();
    // not a sleep that begins anew with each message: whoever moves the pointer on and on would wait for what is held
    let mut again = held_every();
    let up = async {
        let mut piece = [0; FROM_CLIENT_BYTES];
        loop {
            let step = tokio::select! {
                read = from_client.read(&mut piece) => match read {
                    Ok(count @ 1..) => said.takes(&piece[..count], user.stand()),
                    _ => return,
                },
                _ = again.tick(), if said.is_holding() => match user.stand().still {
                    true => continue,
                    false => said.goes_on(),
                },
            };
            if !carry_out(step, &mut to_qemu, &user).await {
                return;
            }
        }
    };
    tokio::select! { () = down => (), () = up => () }
    keep(&user, said.leaves()).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_ground::{
        typist::Tried,
        vnc::{Done, Stand},
    };
    use floe_guest::input::Input;

    const HELLO: &[u8] = b"RFB 003.008\n\x01\x01";
    const KEY: &[u8] = b"\x04\x01\0\0\0\0\0a";
    const MOVE: &[u8] = b"\x05\x00\0\x01\0\x01";

    #[tokio::test]
    async fn all_bytes_pass_both_ways_and_a_press_counts_before_it_arrives() {
        let (mut client, ours) = UnixStream::pair().unwrap();
        let (qemu, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        qemu.set_nonblocking(true).unwrap();
        let mut qemu = UnixStream::from_std(qemu).unwrap();
        let user = Arc::new(Tried::default());
        let served = tokio::spawn(relay(ours, theirs, user.clone()));
        qemu.write_all(b"RFB 003.008\n").await.unwrap();
        let mut got = [0; 12];
        client.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"RFB 003.008\n");
        for (sent, number) in [(HELLO, 0), (MOVE, 0), (KEY, 1), (b"\xf0any", 1)] {
            client.write_all(sent).await.unwrap();
            let mut got = vec![0; sent.len()];
            qemu.read_exact(&mut got).await.unwrap();
            assert_eq!(got, sent);
            assert_eq!(*user.done.lock(), number, "{sent:?}");
        }
        // what is not known is passed on, and counts no more
        client.write_all(KEY).await.unwrap();
        let mut got = [0; KEY.len()];
        qemu.read_exact(&mut got).await.unwrap();
        assert_eq!((&got[..], *user.done.lock()), (KEY, 1));
        // QEMU ends, and so does the client's connection
        drop(qemu);
        served.await.unwrap();
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_key_is_kept_while_its_machine_stands_still_and_the_pointer_waits_for_that() {
        let (mut client, ours) = UnixStream::pair().unwrap();
        let (qemu, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        qemu.set_nonblocking(true).unwrap();
        let mut qemu = UnixStream::from_std(qemu).unwrap();
        let user = Arc::new(Tried::default());
        *user.stand.lock() = Stand {
            still: true,
            kept: true,
            pointer: true,
        };
        let served = tokio::spawn(relay(ours, theirs, user.clone()));
        let look: &[u8] = b"\x03\x01\0\0\0\0\x04\0\x03\0";
        client
            .write_all(&[HELLO, KEY, MOVE, look].concat())
            .await
            .unwrap();
        let mut got = vec![0; HELLO.len() + look.len()];
        qemu.read_exact(&mut got).await.unwrap();
        assert_eq!(got, [HELLO, look].concat());
        *user.stand.lock() = Stand::default();
        let mut got = [0; MOVE.len()];
        qemu.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, MOVE);
        // it leaves with its finger on the key
        drop(client);
        served.await.unwrap();
        let kept = [true, false].map(|down| Done::Input(Input::Key { code: 30, down }));
        assert_eq!(*user.kept.lock(), kept);
    }

    #[tokio::test]
    async fn what_was_held_arrives_while_its_client_goes_on_and_on() {
        let (mut client, ours) = UnixStream::pair().unwrap();
        let (qemu, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        qemu.set_nonblocking(true).unwrap();
        let mut qemu = UnixStream::from_std(qemu).unwrap();
        let user = Arc::new(Tried::default());
        user.stand.lock().still = true;
        tokio::spawn(relay(ours, theirs, user.clone()));
        let look: &[u8] = b"\x03\x01\0\0\0\0\x04\0\x03\0";
        client
            .write_all(&[HELLO, KEY, look].concat())
            .await
            .unwrap();
        let mut got = vec![0; HELLO.len() + look.len()];
        qemu.read_exact(&mut got).await.unwrap();
        *user.stand.lock() = Stand::default();
        // a client that asks for pictures faster than what is held is looked at
        let mut got = Vec::new();
        for _ in 0..10_000 {
            client.write_all(look).await.unwrap();
            let mut piece = [0; 64];
            let count = qemu.read(&mut piece).await.unwrap();
            got.extend_from_slice(&piece[..count]);
            if got.windows(KEY.len()).any(|part| part == KEY) {
                return;
            }
            sleep(Duration::from_millis(1)).await;
        }
        panic!("the key is still held");
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
