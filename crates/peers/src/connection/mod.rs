//! A connection to one host for one image, and the tasks that read and write it. Nothing is decided here: what arrives is told to the
//! swarm's task (`owner`) as a [`Note`], and what that wants is sent.
mod ear;
mod expected;
mod meet;
mod pieces;

pub(crate) use meet::{MEETING, Meeting, Unmet, dial, hear};
pub(crate) use pieces::{Outcome, shelve};

use crate::cap::Cap;
use crate::closed::{CLOSED_LEAVING, CLOSED_RESTING, CLOSED_RUDELY};
use crate::members::Key;
use crate::sharers::Sharers;
use crate::shelf::Shelf;
use crate::wire::{Budget, Frames, Hello, Message, PACKS_MAX, frames_of};
use ear::{Ear, Heard, Theirs, names_of};
use expected::Expected;
use floe_swarm::policy::{PieceId, Purpose};
use quinn::{ConnectionError, RecvStream, SendStream, VarInt};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::{Semaphore, mpsc, oneshot};

/// Most messages that wait to be written to a host. One that reads so slowly that there are more is given up.
const OUT_MAX: usize = 1024;
/// Most pieces that are being sent to a host, so that a slow one takes no more of this host's memory.
const SENDING_MAX: usize = 16;
/// Messages go before all pieces.
const MESSAGES_FIRST: i32 = i32::MAX;

/// What a connection tells.
#[derive(Debug)]
pub(crate) enum Wire {
    /// The other says something.
    Said(Message),
    /// A piece has come and is on the shelf; so many bytes were on the wire.
    Got(PieceId, u64),
    /// A piece's bytes were wrong.
    Wrong(PieceId),
    /// A piece has come in part, or could not be written.
    Broke(PieceId),
    /// The other says or sends far too much, or what makes no sense.
    Flood,
    /// The connection has ended.
    Closed(Ended),
}

/// How a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Politely,
    Resting,
    Lost,
}

/// What happens outside of the one task that decides.
pub(crate) enum Note {
    /// A dial to a host is over.
    Dialled(Key, Result<Meeting, Unmet>),
    /// A member has dialled.
    Entered(Meeting),
    /// From the connection of this number.
    Wire(u64, Wire),
    /// A piece need not be waited for before the next is sent.
    Passed(u64, PieceId),
    /// What became of a piece that was to be sent.
    Sent(u64, PieceId, Outcome),
    /// What became of a piece that the seed was asked for.
    Seeded(usize, PieceId, Outcome),
    /// Pieces were taken off the shelf, and who waits for that.
    Removed(Vec<PieceId>, Option<oneshot::Sender<()>>),
    /// The shelf was synced.
    Synced,
}

/// What all connections of a swarm share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) notes: mpsc::Sender<Note>,
    /// Turns for those who hash and use the disk.
    pub(crate) work: Arc<Semaphore>,
    /// What the host gives at most.
    pub(crate) cap: Arc<Cap>,
    /// Which of the host's swarms fetch ahead.
    pub(crate) sharers: Arc<Sharers>,
}

/// A connection in use. It ends with this.
pub(crate) struct Connection {
    pub(crate) number: u64,
    pub(crate) session: u64,
    pub(crate) dialled: bool,
    connection: quinn::Connection,
    /// As the other understands them.
    out: mpsc::Sender<Message>,
    theirs: Theirs,
    expected: Arc<Mutex<Expected>>,
    sending: Arc<AtomicUsize>,
}

impl Connection {
    /// Takes a connection into use. `hello` is said first if this host was dialled, and then which packs it knows, if the other knows others.
    pub(crate) fn start(
        number: u64,
        meeting: Meeting,
        hello: Hello,
        shared: &Shared,
    ) -> Connection {
        let (out, messages) = mpsc::channel(OUT_MAX);
        let expected = Arc::new(Mutex::new(Expected::default()));
        let Meeting {
            connection,
            send,
            recv,
            frames,
            session,
            content,
            dialled,
            ..
        } = meeting;
        let same = content == hello.content;
        let theirs = Theirs::new(same);
        let mut first = Vec::new();
        if !dialled {
            first.push(Message::Hello(hello));
        }
        if !same {
            first.push(Message::Packs(names_of(shared.shelf.content())));
        }
        tokio::spawn(write(send, first, messages, connection.clone()));
        let says = read(
            number,
            recv,
            frames,
            theirs.clone(),
            out.clone(),
            shared.clone(),
        );
        tokio::spawn(says);
        let incoming =
            pieces::receive(number, connection.clone(), expected.clone(), shared.clone());
        tokio::spawn(incoming);
        Connection {
            number,
            session,
            dialled,
            connection,
            out,
            theirs,
            expected,
            sending: Arc::default(),
        }
    }

    /// Sends a message. Returns false if the other host does not read.
    pub(crate) fn say(&self, message: Message) -> bool {
        let message = match message {
            Message::Refuse(piece) => match self.theirs.called(piece) {
                Some(piece) => Message::Refuse(piece),
                None => return true, // it can't have asked
            },
            message => message,
        };
        match message {
            Message::Ask(piece, _) => self.expected().ask(piece),
            Message::Withdraw(piece) => self.expected().withdraw(piece),
            _ => {}
        }
        self.out.try_send(message).is_ok()
    }

    /// The other won't send a piece that it was asked for.
    pub(crate) fn refused(&self, piece: PieceId) {
        self.expected().take(piece);
    }

    /// Sends a piece; two notes tell of it. Returns whether it is begun: a host that is slow already gets no more.
    pub(crate) fn send(&self, piece: PieceId, purpose: Purpose, shared: &Shared) -> bool {
        let Some(called) = self.theirs.called(piece) else {
            return false;
        };
        let before = self.sending.fetch_add(1, Ordering::Relaxed);
        if before >= SENDING_MAX {
            self.sending.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        let (connection, shared) = (self.connection.clone(), shared.clone());
        let (sending, number) = (self.sending.clone(), self.number);
        tokio::spawn(async move {
            let sent = pieces::send(number, &connection, (piece, called), purpose, &shared);
            let outcome = sent.await;
            sending.fetch_sub(1, Ordering::Relaxed);
            let _ = shared.notes.send(Note::Sent(number, piece, outcome)).await;
        });
        true
    }

    /// Ends the connection and says why.
    pub(crate) fn close(self, why: VarInt) {
        self.connection.close(why, &[]);
    }

    fn expected(&self) -> std::sync::MutexGuard<'_, Expected> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // one that was closed before stays closed as it was
        self.connection.close(CLOSED_RUDELY, &[]);
    }
}

async fn write(
    mut send: SendStream,
    first: Vec<Message>,
    mut messages: mpsc::Receiver<Message>,
    connection: quinn::Connection,
) {
    let _ = send.set_priority(MESSAGES_FIRST);
    let mut first = first.into_iter();
    loop {
        let message = match first.next() {
            Some(message) => message,
            None => tokio::select! {
                message = messages.recv() => match message {
                    Some(message) => message,
                    None => return,
                },
                _ = connection.closed() => return,
            },
        };
        for frame in frames_of(&message) {
            if send.write_all(&frame).await.is_err() {
                return;
            }
        }
    }
}

/// Reads messages. From a host that says too much nothing is read any more, until it is dropped. `out`: where answers go that need no
/// decision.
async fn read(
    number: u64,
    mut recv: RecvStream,
    mut frames: Frames,
    theirs: Theirs,
    out: mpsc::Sender<Message>,
    shared: Shared,
) {
    let since = Instant::now();
    let mine = shared.shelf.content().clone();
    // packs are told once, and looked at whenever pieces of them are
    let mut budget = Budget::new(mine.pieces() + PACKS_MAX as u32, 0);
    let mut ear = Ear::new(theirs);
    let mut buffer = [0; meet::READ_BYTES];
    loop {
        loop {
            let heard = match frames.next() {
                Ok(None) => break,
                Ok(Some(message)) => ear.hear(message, &mine),
                Err(malformed) => Err(malformed),
            };
            let now_us = since.elapsed().as_micros() as u64;
            let heard = heard.ok().filter(|(_, work)| budget.pay(*work, now_us));
            let wire = match heard {
                Some((Heard::Said(message), _)) => Wire::Said(message),
                Some((Heard::Nothing, _)) => continue,
                Some((Heard::Unknown(piece), _)) => match out.try_send(Message::Refuse(piece)) {
                    Ok(()) => continue,
                    Err(_) => Wire::Flood, // it does not read
                },
                None => Wire::Flood,
            };
            let over = matches!(wire, Wire::Flood);
            let told = shared.notes.send(Note::Wire(number, wire)).await;
            if over || told.is_err() {
                return;
            }
        }
        match recv.read(&mut buffer).await {
            Ok(Some(read)) => frames.put(&buffer[..read]),
            // the end of the connection is told by those who wait for pieces
            _ => return,
        }
    }
}

impl From<ConnectionError> for Ended {
    fn from(error: ConnectionError) -> Ended {
        match error {
            ConnectionError::ApplicationClosed(close) => match close.error_code {
                CLOSED_LEAVING => Ended::Politely,
                CLOSED_RESTING => Ended::Resting,
                _ => Ended::Lost,
            },
            _ => Ended::Lost,
        }
    }
}
