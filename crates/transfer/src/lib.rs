//! Moving whole images: [`push`](fn@push) to a hub, [`send`] from any [`Stock`] to any [`Place`], [`pull`](fn@pull) from any source.
//!
//! Both move only what the other side does not have, several packs or batches at a time, and continue where they stopped when
//! they are called again. Both end soon after their [`Cancel`] switch is thrown, and leave what was moved so far for the next
//! call. On either side, nothing is visible before it is complete and verified.

mod bucket;
mod client;
mod copy;
mod hub;
mod place;
mod plan;
mod pull;
mod push;
mod stock;
mod unfinished;
mod upload;

pub use client::HubClient;
pub use copy::{Copied, copy_packs};
pub use place::Place;
pub use pull::{Destination, PullReport, pull};
pub use push::{PushOptions, PushReport, push, send};
pub use stock::Stock;

pub use floe_threads::Cancel;

use floe_source::SourceError;
use floe_store::StoreError;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::{Duration, Instant};

/// Returns an error if the switch was thrown.
fn check(cancel: &Cancel) -> Result<(), TransferError> {
    if cancel.is_cancelled() {
        Err(TransferError::Cancelled)
    } else {
        Ok(())
    }
}

/// Waits for `time` to pass, but not beyond a cancellation.
pub fn pause(cancel: &Cancel, time: Duration) -> Result<(), TransferError> {
    match cancel.sleep(time) {
        true => Ok(()),
        false => Err(TransferError::Cancelled),
    }
}

/// What a pull in the background asks before it takes more.
pub trait Gate: std::fmt::Debug + Send + Sync {
    /// Returns an error if so many bytes, the most that is still to be stored, have no room.
    fn room(&self, bytes: u64) -> Result<(), TransferError>;

    /// Waits until so many raw bytes may be taken. Returns an error if it is cancelled meanwhile, or if there is no room any more.
    fn pass(&self, bytes: u64, cancel: &Cancel) -> Result<(), TransferError>;
}

/// How to pull.
#[derive(Clone, Debug, Default)]
pub struct PullOptions {
    /// How many reads are under way at once; 0 means 4.
    pub connections: usize,
    /// Ends the pull.
    pub cancel: Cancel,
    /// Says whether there is room and when to go on, for a pull that leaves others the way; `None` goes on at once.
    pub gate: Option<Arc<dyn Gate>>,
    /// How long each request is repeated whose error may pass; it is a few times at least.
    pub patience: Duration,
    /// At how many bytes a pack of what arrives is closed and kept, whatever becomes of the pull; 0 means 7 MiB.
    pub pack_bytes: u64,
    /// Whether packs that the source brings whole may be taken into the repository as they are: they may hold more than the image.
    pub whole_packs: bool,
}

/// How far a transfer has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Raw bytes that are done: sent, fetched, or found to be there already.
    pub done_bytes: u64,
    /// Raw bytes of the image's non-zero content.
    pub total_bytes: u64,
    /// Bytes that crossed the network so far (for a push: those of its packs).
    pub wire_bytes: u64,
}

/// Called from a transfer's threads with its progress, a few times for each pack.
pub type OnProgress<'a> = &'a (dyn Fn(Progress) + Sync);

/// Counts what the threads of a transfer did, and reports it.
struct Meter<'a> {
    done: AtomicU64,
    wire: AtomicU64,
    total: u64,
    tell: OnProgress<'a>,
}

impl<'a> Meter<'a> {
    fn new(total: u64, done: u64, tell: OnProgress<'a>) -> Self {
        let meter = Meter {
            done: done.into(),
            wire: 0.into(),
            total,
            tell,
        };
        meter.add(0, 0);
        meter
    }

    fn add(&self, done: u64, wire: u64) {
        let done_bytes = self.done.fetch_add(done, Ordering::Relaxed) + done;
        let wire_bytes = self.wire.fetch_add(wire, Ordering::Relaxed) + wire;
        (self.tell)(Progress {
            done_bytes,
            total_bytes: self.total,
            wire_bytes,
        });
    }
}

/// Why a transfer ended early.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The [`Cancel`] switch was thrown.
    #[error("cancelled; run the same command again to go on where it stopped")]
    Cancelled,
    /// The hub gave no usable answer, after several tries.
    #[error(
        "{} {url} for {what}: {reason}; check that the hub runs, and what stands between, then repeat: the transfer goes on where it stopped",
        if *reached { "no usable answer from" } else { "cannot reach" }
    )]
    Unreachable {
        /// Whether it was reached at all.
        reached: bool,
        /// The hub.
        url: String,
        /// What was asked for.
        what: String,
        /// The connection's error.
        reason: String,
    },
    /// The hub refused, and said why.
    #[error("{url} refuses {what}: {message}; {fix}")]
    Refused {
        /// The hub.
        url: String,
        /// What was asked for.
        what: String,
        /// The HTTP status.
        status: u16,
        /// The hub's code for programs.
        code: String,
        /// What is wrong.
        message: String,
        /// What the user can do.
        fix: String,
    },
    /// An address, token or certificate cannot be used.
    #[error("{0}")]
    Options(String),
    /// The source of a pull failed.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The local disk failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is too little room for what would be stored.
    #[error(
        "{} free where images are kept, and up to {} are to come; it goes on once there is room (floe cache gc, floe image rm, floe rm)",
        floe_api::size_text(*.free), floe_api::size_text(*.needs)
    )]
    NoRoom {
        /// The most that is still to be stored, in bytes.
        needs: u64,
        /// What there is, in bytes.
        free: u64,
    },
    /// The answer of a hub or source makes no sense.
    #[error("{url} answered {what} wrongly: {reason}; it may be of another version, or not a hub")]
    Protocol {
        /// The other side.
        url: String,
        /// What was asked for.
        what: String,
        /// What is wrong with the answer.
        reason: String,
    },
}

impl TransferError {
    /// Whether the transfer may succeed if it is simply repeated later.
    pub fn is_resumable(&self) -> bool {
        match self {
            TransferError::Cancelled
            | TransferError::Unreachable { .. }
            | TransferError::NoRoom { .. } => true,
            // a 403 that is not a hub's comes from something in between and may pass; a hub's does not
            TransferError::Refused { status, code, .. } => {
                matches!(status, 408 | 429 | 500..) || (*status == 403 && code == NO_HUB)
            }
            TransferError::Source(error) => error.is_retryable(),
            TransferError::Store(error) => error.is_full(),
            TransferError::Options(_) | TransferError::Protocol { .. } => false,
        }
    }
}

/// The code for an answer that does not come from a hub.
const NO_HUB: &str = "no-hub";
/// How often one request is tried.
const TRIES: u32 = 6;
/// Longest wait between two tries, whatever the other side asks for.
const WAIT_MAX: Duration = Duration::from_secs(15);
/// Wait before the second try; doubled for each further one, and multiplied by a random 0.5 to 1, so that a hundred hosts do
/// not come back at the same time.
const FIRST_WAIT: Duration = Duration::from_millis(200);

/// Whether an error may pass by itself.
enum Passes {
    /// It does not.
    Never,
    /// Perhaps: one more try is worth it.
    Once,
    /// It usually does.
    Often,
}

/// Whether an error of a source may pass.
fn passes(error: &TransferError) -> Passes {
    match error {
        TransferError::Source(error) if error.is_retryable() => Passes::Often,
        TransferError::Source(error) if error.may_be_hearsay() => Passes::Once,
        _ => Passes::Never,
    }
}

/// Why an attempt failed, and how long to wait if the other side asked for that.
struct Failed {
    error: TransferError,
    after: Option<Duration>,
}

impl From<TransferError> for Failed {
    fn from(error: TransferError) -> Failed {
        Failed { error, after: None }
    }
}

impl From<SourceError> for Failed {
    fn from(error: SourceError) -> Failed {
        TransferError::from(error).into()
    }
}

/// Repeats `attempt` a few times while its error may pass.
fn retry<T>(
    cancel: &Cancel,
    passes: impl Fn(&TransferError) -> Passes,
    attempt: impl FnMut() -> Result<T, Failed>,
) -> Result<T, TransferError> {
    retry_for(Duration::ZERO, cancel, passes, attempt)
}

/// Repeats `attempt` while its error may pass: a few times, and for `patience` from its first error on.
fn retry_for<T>(
    patience: Duration,
    cancel: &Cancel,
    passes: impl Fn(&TransferError) -> Passes,
    mut attempt: impl FnMut() -> Result<T, Failed>,
) -> Result<T, TransferError> {
    let mut wait = FIRST_WAIT;
    let mut tries = 0;
    let mut first: Option<Instant> = None;
    loop {
        check(cancel)?;
        let failed = match attempt() {
            Ok(value) => return Ok(value),
            Err(_) if cancel.is_cancelled() => return Err(TransferError::Cancelled),
            Err(failed) => failed,
        };
        tries += 1;
        let is_early = first.get_or_insert_with(Instant::now).elapsed() < patience;
        let tries_max = match passes(&failed.error) {
            Passes::Never => 1,
            Passes::Once | Passes::Often if is_early => u32::MAX,
            Passes::Once => 2,
            Passes::Often => TRIES,
        };
        if tries >= tries_max {
            return Err(failed.error);
        }
        tracing::debug!(error = %failed.error, "trying again");
        let own = wait.mul_f64(rand::random_range(0.5..1.0));
        pause(
            cancel,
            own.max(failed.after.unwrap_or_default()).min(WAIT_MAX),
        )?;
        wait = (wait * 2).min(WAIT_MAX);
    }
}
