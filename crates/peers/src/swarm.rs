//! An image's swarm as its host sees it.
use crate::members::{Key, Member};
use crate::shelf::Shelf;
use floe_swarm::policy::{Config, Fault, PieceId, Speed};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tokio::sync::{mpsc, oneshot};

/// How a host takes part in a swarm.
#[derive(Clone, Debug)]
pub struct Options {
    /// The policy: who is asked for which piece.
    pub config: Config,
    /// Name of what is brought, by which members find each other. They need not know the same packs of it.
    pub image: [u8; 32],
    /// The secret that all members of this swarm have, and nobody else. A member of the list that does not show it is refused.
    pub token: [u8; 32],
    /// Who takes part; this host may be among them. Whoever is not listed is refused.
    pub members: Vec<Member>,
}

/// What went to a host and came from it, in bytes of pieces on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// To it.
    pub sent: u64,
    /// From it.
    pub received: u64,
}

/// A member of the swarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The host.
    pub key: Key,
    /// Whether there is a connection.
    pub connected: bool,
    /// Pieces that it has, as it says; 0 of one that tells this host nothing.
    pub pieces: u32,
    /// Since it was first listed.
    pub traffic: Traffic,
}

/// The state of a swarm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// All members but this host.
    pub peers: Vec<Peer>,
    /// Bytes that the seeds sent.
    pub seed_bytes: u64,
    /// Pieces that they sent with wrong bytes, which were not kept.
    pub seed_wrong: u64,
    /// Pieces that are here.
    pub pieces_here: u32,
    /// Pieces that there are.
    pub pieces: u32,
    /// Pieces that machines wait for.
    pub needed: usize,
    /// Pieces that are waited for without a machine that stands still ([`Swarm::want`], [`Swarm::copy`]).
    pub wanted: usize,
    /// Among how many missing pieces of the prediction the next prefetch is picked.
    pub window: usize,
    /// Hosts that have said that they have all pieces, by their keys, also those that are gone by now; as many as a swarm has members are
    /// remembered.
    pub complete: Vec<Key>,
    /// Hosts that were dropped and why, the latest last; some fifty are remembered.
    pub dropped: Vec<(Key, Fault)>,
}

/// Why a call has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwarmError {
    /// The host was closed.
    #[error("this host has left the swarm")]
    Gone,
    /// A need of far too many pieces at a time: 65536 are waited for.
    #[error("too many pieces are waited for; need fewer at a time")]
    TooMany,
}

/// Figures of a swarm that can be read at any time without asking its task.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    /// Connections.
    pub(crate) connected: AtomicUsize,
    /// Bytes that came, of hosts and the seed.
    pub(crate) received: AtomicU64,
    /// What the policy has measured ([`Speed`]); 0 before that.
    bytes_per_s: AtomicU64,
    piece_us: AtomicU64,
}

impl Gauges {
    pub(crate) fn set_speed(&self, speed: Speed) {
        self.piece_us.store(speed.piece_us, Ordering::Relaxed);
        self.bytes_per_s.store(speed.bytes_per_s, Ordering::Relaxed);
    }
}

pub(crate) enum Command {
    Need(Vec<PieceId>, oneshot::Sender<Result<(), SwarmError>>),
    Want(Vec<PieceId>, oneshot::Sender<Result<(), SwarmError>>),
    Copy(Vec<PieceId>, oneshot::Sender<Result<(), SwarmError>>),
    Rarest(Vec<Range<PieceId>>, oneshot::Sender<usize>),
    Predict(Vec<PieceId>, Vec<u32>),
    Lost(Vec<PieceId>, oneshot::Sender<()>),
    Members(Vec<Member>, [u8; 32]),
    Status(oneshot::Sender<Status>),
    Leave(oneshot::Sender<()>),
}

/// A host's part in the swarm of one image. If it is dropped without [`Swarm::leave`], others are not told and find out by themselves.
#[derive(Debug)]
pub struct Swarm {
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) gauges: Arc<Gauges>,
}

impl Swarm {
    /// Returns the shelf that pieces come to.
    pub fn shelf(&self) -> &Arc<Shelf> {
        &self.shelf
    }

    /// Returns to how many others there is a connection now.
    pub fn connected(&self) -> usize {
        self.gauges.connected.load(Ordering::Relaxed)
    }

    /// Returns how many bytes of pieces have come, of others and the seed.
    pub fn received(&self) -> u64 {
        self.gauges.received.load(Ordering::Relaxed)
    }

    /// Returns how pieces come of late, as the policy measures it to bound what is under way ahead of need; `None` before that.
    pub fn speed(&self) -> Option<Speed> {
        let bytes_per_s = self.gauges.bytes_per_s.load(Ordering::Relaxed);
        (bytes_per_s > 0).then(|| Speed {
            bytes_per_s,
            piece_us: self.gauges.piece_us.load(Ordering::Relaxed),
        })
    }

    /// Waits until all of these pieces are here, for a machine that stands still meanwhile. Numbers of no piece are passed over. If the
    /// caller gives up, the pieces come nevertheless, unless nobody gives them for half a minute. The wait never ends if nobody has them
    /// and there is no seed.
    pub async fn need(&self, pieces: &[PieceId]) -> Result<(), SwarmError> {
        let (done, here) = oneshot::channel();
        self.tell(Command::Need(pieces.to_vec(), done)).await?;
        here.await.unwrap_or(Err(SwarmError::Gone))
    }

    /// Waits until all of these pieces are here, while no machine stands still for one of them. They are fetched like predicted pieces, and
    /// before those ([`Swarm::predict`]); a caller that [`need`](Swarm::need)s one of them meanwhile hurries it. Earlier calls go first,
    /// and within a call the first pieces. Numbers of no piece are passed over. If the caller gives up, pieces that were not asked for yet
    /// and that nobody else wants don't come. The wait never ends if nobody has them and there is no seed, or if the configuration fetches
    /// nothing ahead.
    pub async fn want(&self, pieces: &[PieceId]) -> Result<(), SwarmError> {
        let (done, here) = oneshot::channel();
        self.tell(Command::Want(pieces.to_vec(), done)).await?;
        here.await.unwrap_or(Err(SwarmError::Gone))
    }

    /// Waits until all of these pieces are here, which no machine is known to need. They come after all else that this host brings, those
    /// first that the fewest others have. Otherwise as [`want`](Swarm::want).
    pub async fn copy(&self, pieces: &[PieceId]) -> Result<(), SwarmError> {
        let (done, here) = oneshot::channel();
        self.tell(Command::Copy(pieces.to_vec(), done)).await?;
        here.await.unwrap_or(Err(SwarmError::Gone))
    }

    /// Returns which of these ranges of pieces is the best to copy next, by its place: one of which few others have what is not here.
    pub async fn rarest(&self, ranges: Vec<Range<PieceId>>) -> Result<usize, SwarmError> {
        let (done, rarest) = oneshot::channel();
        self.tell(Command::Rarest(ranges, done)).await?;
        rarest.await.map_err(|_| SwarmError::Gone)
    }

    /// Says what machines will need next, in order, and when: in milliseconds since the start of a run; no times if nobody knows. Replaces
    /// what was said before.
    pub async fn predict(&self, pieces: &[PieceId], due_ms: &[u32]) -> Result<(), SwarmError> {
        let command = Command::Predict(pieces.to_vec(), due_ms.to_vec());
        self.tell(command).await
    }

    /// Takes pieces off the shelf and gives their room back; others are told.
    pub async fn lost(&self, pieces: &[PieceId]) -> Result<(), SwarmError> {
        let (done, gone) = oneshot::channel();
        self.tell(Command::Lost(pieces.to_vec(), done)).await?;
        gone.await.map_err(|_| SwarmError::Gone)
    }

    /// Replaces the list of members and what they show each other ([`Options::token`]), which the hub changes with the list of those who
    /// may read the image. Connections to those who are no members any more end; the others go on.
    pub async fn members(&self, members: Vec<Member>, token: [u8; 32]) -> Result<(), SwarmError> {
        self.tell(Command::Members(members, token)).await
    }

    /// Returns the state of the swarm.
    pub async fn status(&self) -> Result<Status, SwarmError> {
        let (done, status) = oneshot::channel();
        self.tell(Command::Status(done)).await?;
        status.await.map_err(|_| SwarmError::Gone)
    }

    /// Leaves: what is here is synced to the disk, and the others are told so that they ask this host for nothing more.
    pub async fn leave(&self) {
        let (done, left) = oneshot::channel();
        if self.tell(Command::Leave(done)).await.is_ok() {
            let _ = left.await;
        }
    }

    async fn tell(&self, command: Command) -> Result<(), SwarmError> {
        let told = self.commands.send(command).await;
        told.map_err(|_| SwarmError::Gone)
    }
}
