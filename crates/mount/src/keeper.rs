//! Keeps a node's descriptors with its supervisor, and hands them over again whenever the supervisor was replaced.
//!
//! Either process may be killed alone and nothing is lost: the node holds every descriptor as well. A thread blocks on a
//! connection to the supervisor that is used for nothing else; it ends when the supervisor does, so nobody has to poll. The
//! thread then has a new supervisor started and gives it everything again.

use crate::MountError;
use crate::supervisor::Client;
use floe_threads::Cancel;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long to wait before a supervisor that could not be started is started again; it doubles each time. It is short at first:
/// the supervisor that answered may have been one that was just ending.
const START_AGAIN_MIN: Duration = Duration::from_millis(10);
/// How often a node that starts tries to connect before it gives up.
const FIRST_TRIES: u32 = 8;
/// The longest wait between two tries.
const START_AGAIN_MAX: Duration = Duration::from_secs(1);

/// Starts a supervisor unless one serves the socket already.
type Ensure = Box<dyn Fn(&Path) -> Result<(), String> + Send + Sync>;

/// Descriptors that outlive this process, because the supervisor holds copies of them. Cheap to clone.
#[derive(Clone)]
pub struct Keeper(Arc<Inner>);

struct Inner {
    socket: PathBuf,
    ensure: Ensure,
    held: Mutex<Held>,
    /// A connection that ends when the supervisor does.
    watched: Mutex<Option<Client>>,
    ending: Cancel,
}

#[derive(Default)]
struct Held {
    /// `None` while there is no supervisor.
    client: Option<Client>,
    descriptors: BTreeMap<String, OwnedFd>,
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Keeper").field(&self.0.socket).finish()
    }
}

impl Keeper {
    /// Connects to the supervisor at `socket`. `ensure` starts one if none serves the socket; it is called now, and on another
    /// thread whenever the supervisor has ended.
    pub fn start(
        socket: &Path,
        ensure: impl Fn(&Path) -> Result<(), String> + Send + Sync + 'static,
    ) -> Result<Keeper, MountError> {
        let inner = Arc::new(Inner {
            socket: socket.to_owned(),
            ensure: Box::new(ensure),
            held: Mutex::default(),
            watched: Mutex::default(),
            ending: Cancel::default(),
        });
        let mut end = first_connection(&inner)?;
        let weak = Arc::downgrade(&inner);
        let keep = move || {
            loop {
                let _ = end.wait_end();
                match reconnect(&weak) {
                    Some(next) => end = next,
                    None => return,
                }
            }
        };
        floe_threads::keep_running("floe-keeper", keep)
            .map_err(|error| MountError::io("start a thread for", socket)(error.into()))?;
        Ok(Keeper(inner))
    }

    /// Returns the names of all descriptors that the supervisor holds, including those of an earlier node.
    pub fn list(&self) -> Result<Vec<String>, MountError> {
        self.0.ask(Client::list)
    }

    /// Returns a copy of a descriptor that an earlier node gave the supervisor, and holds it from now on; `None` if there is
    /// none.
    pub fn take(&self, name: &str) -> Result<Option<OwnedFd>, MountError> {
        let Some(fd) = self.0.ask(|client| client.get(name))? else {
            return Ok(None);
        };
        let ours = duplicate(&fd, name)?;
        self.0.held.lock().descriptors.insert(name.to_owned(), ours);
        Ok(Some(fd))
    }

    /// Has the supervisor hold a descriptor under a name, replacing the one that is there. While no supervisor runs, the next
    /// one gets it. Returns an error only if the supervisor refuses it.
    pub fn hold(&self, name: &str, fd: impl AsFd) -> Result<(), MountError> {
        let ours = duplicate(&fd, name)?;
        let mut held = self.0.held.lock();
        held.descriptors.insert(name.to_owned(), ours);
        let put = held.client.as_mut().map(|client| client.put(name, &fd));
        match put {
            Some(Err(error @ MountError::Refused { .. })) => {
                held.descriptors.remove(name);
                Err(error)
            }
            Some(Err(error)) => {
                tracing::warn!(name, %error, "it is handed over with the rest");
                self.0.lost(&mut held);
                Ok(())
            }
            Some(Ok(())) | None => Ok(()),
        }
    }

    /// Releases what is held under a name.
    pub fn release(&self, name: &str) {
        let mut held = self.0.held.lock();
        held.descriptors.remove(name);
        if let Some(Err(error)) = held.client.as_mut().map(|client| client.drop_fd(name)) {
            tracing::debug!(name, %error, "was not let go of");
            self.0.lost(&mut held);
        }
    }

    /// Ends the supervisor, for a node that wants nothing to outlive it.
    pub fn end(&self) {
        self.leave();
        let mut held = self.0.held.lock();
        held.descriptors.clear();
        if let Some(client) = held.client.take() {
            let _ = client.quit();
        }
    }

    /// Leaves everything with the supervisor and no longer replaces it: this process is about to end.
    pub fn leave(&self) {
        self.0.ending.cancel();
    }
}

/// Connects for the first time. The supervisor that answers may be an earlier node's that is just ending: then another is
/// started in its place.
fn first_connection(inner: &Inner) -> Result<Client, MountError> {
    let mut pause = START_AGAIN_MIN;
    for _ in 1..FIRST_TRIES {
        match inner.connect() {
            Ok(end) => return Ok(end),
            Err(error) => tracing::debug!(%error, "the supervisor is tried again"),
        }
        // its end is that of another node's child, of which this process hears nothing
        std::thread::sleep(pause);
        pause = START_AGAIN_MAX.min(2 * pause);
    }
    inner.connect()
}

impl Inner {
    /// Connects and hands everything over; returns the connection to wait on.
    fn connect(&self) -> Result<Client, MountError> {
        (self.ensure)(&self.socket).map_err(|reason| MountError::Supervisor {
            path: self.socket.clone(),
            reason,
        })?;
        let mut client = Client::connect(&self.socket)?;
        // one that is just ending still accepts who connects, and answers nobody
        client.list()?;
        let mut held = self.held.lock();
        for (name, fd) in &held.descriptors {
            match client.put(name, fd) {
                Err(error @ MountError::Refused { .. }) => {
                    tracing::error!(name, %error, "it ends with this process");
                }
                put => put?,
            }
        }
        held.client = Some(client);
        drop(held);
        let end = Client::connect(&self.socket)?;
        *self.watched.lock() = Some(end.another()?);
        Ok(end)
    }

    fn ask<T>(
        &self,
        question: impl FnOnce(&mut Client) -> Result<T, MountError>,
    ) -> Result<T, MountError> {
        let mut held = self.held.lock();
        let Some(client) = &mut held.client else {
            return Err(MountError::Supervisor {
                path: self.socket.clone(),
                reason: "it has ended and is being started again".into(),
            });
        };
        question(client).inspect_err(|_| self.lost(&mut held))
    }

    /// Gives up a supervisor that failed to answer: a later answer of it would be mistaken for another's. The thread
    /// reconnects.
    fn lost(&self, held: &mut Held) {
        held.client = None;
        if let Some(watched) = &*self.watched.lock() {
            watched.hang_up();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Wakes the thread, which then finds that nobody uses the keeper any more.
        if let Some(watched) = self.watched.lock().take() {
            watched.hang_up();
        }
    }
}

/// Has another supervisor take the place of one that has ended. Returns `None` if nobody needs one any more.
fn reconnect(inner: &Weak<Inner>) -> Option<Client> {
    let mut pause = START_AGAIN_MIN;
    loop {
        let ending = {
            let inner = inner.upgrade()?;
            if inner.ending.is_cancelled() {
                return None;
            }
            inner.held.lock().client = None;
            tracing::warn!(
                "the mount's supervisor has ended; another one is started if there is none"
            );
            match inner.connect() {
                Ok(end) => {
                    tracing::info!("a new supervisor holds the mount");
                    return Some(end);
                }
                Err(error) => {
                    tracing::error!(%error, "machines would not survive the end of this node now");
                }
            }
            inner.ending.clone()
        };
        if !ending.sleep(pause) {
            return None;
        }
        pause = START_AGAIN_MAX.min(2 * pause);
    }
}

fn duplicate(fd: impl AsFd, name: &str) -> Result<OwnedFd, MountError> {
    let copy = fd.as_fd().try_clone_to_owned();
    copy.map_err(MountError::io("copy the descriptor", name))
}
