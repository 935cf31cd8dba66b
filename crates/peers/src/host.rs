//! A host's place in the network, and the swarms that it takes part in.
use crate::cap::{Cap, places};
use crate::closed::CLOSED_STRANGER;
use crate::connection::{MEETING, Meeting, Note, Shared, hear};
use crate::doors::Doors;
use crate::endpoints::Endpoints;
use crate::members::Key;
use crate::owner::Owner;
use crate::seed::Seed;
use crate::sharers::Sharers;
use crate::shelf::Shelf;
use crate::swarm::{Options, Swarm};
use crate::tls::{Identity, key_of};
use crate::wire::Hello;
use floe_front::{Party, Seat, Table, seats::Seats};
use quinn::{Connection, Endpoint, Incoming};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinSet;

/// Most hosts that introduce themselves at a time. One more takes the place of one that has taken long.
const HANDSHAKES_MAX: usize = 64;
/// Most of them from one address.
const HANDSHAKES_EACH_MAX: usize = 32;
/// As long as fewer than so many introduce themselves, none has to show first that it receives what is sent to its address, which takes a
/// round trip.
const UNSEEN_MAX: usize = 16;
/// Notes that wait for a swarm's task; those who have one wait then.
const NOTES_MAX: usize = 256;
/// Calls that wait for a swarm's task.
const COMMANDS_MAX: usize = 64;

/// Why a host can't take part.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// No address could be listened at.
    #[error("can't listen at {0:?}: {1}")]
    Listen(Vec<SocketAddr>, String),
    /// The host takes part in this image's swarm already.
    #[error("this host is in the swarm of this image already")]
    Twice,
}

/// A host that takes part in swarms: one for each node. Dropped, it takes nobody in any more; its swarms end with their own handles.
#[derive(Debug)]
pub struct Host {
    key: Key,
    endpoints: Endpoints,
    doors: Arc<Doors>,
    work: Arc<Semaphore>,
    cap: Arc<Cap>,
    sharers: Arc<Sharers>,
    /// The tasks that take others in; they end with this.
    _accepts: JoinSet<()>,
}

impl Host {
    /// Listens at these addresses; port 0 is a free one. `secret` is the host's private key (Ed25519), which it keeps for as long as
    /// members' lists name it. Nothing but these addresses is used: no name server, no relay. Called within a runtime, which it runs in.
    pub async fn listen(secret: [u8; 32], addresses: &[SocketAddr]) -> Result<Host, HostError> {
        let refused = |error: String| HostError::Listen(addresses.to_vec(), error);
        let identity = Identity::new(&secret).map_err(|error| refused(error.to_string()))?;
        let listens = Endpoints::listen(&identity, addresses);
        let endpoints = listens.map_err(|error| refused(error.to_string()))?;
        let doors = Arc::new(Doors::default());
        let table = Table::new(Seats::new(HANDSHAKES_MAX, HANDSHAKES_EACH_MAX));
        let mut accepts = JoinSet::new();
        for endpoint in endpoints.iter() {
            accepts.spawn(accept(endpoint.clone(), doors.clone(), table.clone()));
        }
        let turns = std::thread::available_parallelism().map_or(2, usize::from);
        Ok(Host {
            key: Key(identity.key),
            endpoints,
            doors,
            work: Arc::new(Semaphore::new(2 * turns)),
            cap: Arc::new(Cap::new()),
            sharers: Arc::default(),
            _accepts: accepts,
        })
    }

    /// Returns the public key.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Returns where this host listens.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.endpoints.addresses()
    }

    /// Caps what this host gives to others in all of its swarms together, in bytes of pieces a second; `None` for all that its link
    /// carries, as it is at first. A low cap makes this host responsible for fewer pieces. May be changed at any time.
    pub fn cap_uploads(&self, bytes_per_s: Option<u64>) {
        self.cap.set(bytes_per_s);
    }

    /// Takes part in the swarm of an image, of which the shelf's content has the packs that this host knows. Pieces come to the shelf, and
    /// the others get what is on it. Of several seeds the first is asked, and the next ones while that fails.
    pub fn join(
        &self,
        shelf: Arc<Shelf>,
        seeds: impl IntoIterator<Item = Arc<dyn Seed>>,
        options: Options,
    ) -> Result<Swarm, HostError> {
        let hello = Hello {
            image: options.image,
            content: shelf.content().id(),
            token: options.token,
            session: rand::random(),
            places: places(self.cap.rate()),
        };
        let (notes, noted) = mpsc::channel(NOTES_MAX);
        let (commands, commanded) = mpsc::channel(COMMANDS_MAX);
        let door = self.doors.open(hello, notes.clone());
        let door = door.ok_or(HostError::Twice)?;
        let shared = Shared {
            shelf: shelf.clone(),
            notes,
            work: self.work.clone(),
            cap: self.cap.clone(),
            sharers: self.sharers.clone(),
        };
        let endpoints = self.endpoints.clone();
        let owner = Owner::new(self.key, hello, endpoints, door, shared, seeds, options);
        let gauges = owner.gauges();
        tokio::spawn(owner.run(commanded, noted));
        Ok(Swarm {
            commands,
            shelf,
            gauges,
        })
    }

    /// Ends all connections, those of swarms that were not left too, and waits until the others were told.
    pub async fn close(self) {
        self.endpoints.close().await;
    }
}

/// Accepts connections at one of the host's sockets; all of them share a table of those that introduce themselves.
async fn accept(endpoint: Endpoint, doors: Arc<Doors>, table: Table) {
    while let Some(incoming) = endpoint.accept().await {
        if table.taken() >= UNSEEN_MAX && !incoming.remote_address_validated() {
            let _ = incoming.retry(); // fails only for those who have shown it
            continue;
        }
        let leave = Arc::new(Notify::new());
        let goes = leave.clone();
        let party = Party::at(incoming.remote_address().ip());
        let Some(seat) = table.sit(party, move || goes.notify_one()) else {
            incoming.refuse();
            continue;
        };
        let doors = doors.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = greet(incoming, &doors, &seat) => {}
                () = leave.notified() => {}
            }
        });
    }
}

/// Passes a host that has introduced itself to the swarm that it means, if it is a member.
async fn greet(incoming: Incoming, doors: &Doors, seat: &Seat) {
    let introduced = tokio::time::timeout(MEETING, introduce(incoming, doors, seat));
    if let Ok(Some((meeting, notes))) = introduced.await {
        let _ = notes.send(Note::Entered(meeting)).await;
    }
}

/// Hears a host that introduces itself. One that is no member is refused before it has said anything.
async fn introduce(
    incoming: Incoming,
    doors: &Doors,
    seat: &Seat,
) -> Option<(Meeting, mpsc::Sender<Note>)> {
    let connection: Connection = incoming.await.ok()?;
    let key = Key(key_of(&connection)?);
    if !doors.knows(key) {
        connection.close(CLOSED_STRANGER, &[]);
        return None;
    }
    // from now on no stranger takes its place
    seat.known(&Party::User(key.to_string().into()));
    let (hello, meeting) = hear(connection, key).await?;
    let notes = doors.let_in(key, &hello);
    if notes.is_none() {
        meeting.connection.close(CLOSED_STRANGER, &[]);
    }
    Some((meeting, notes?))
}
