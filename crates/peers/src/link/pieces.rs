//! Pieces over a connection, each on a stream of its own.
use super::expected::Expected;
use super::{CLOSED_RUDELY, Ended, Note, Shared, Wire};
use crate::tree::WrongBytes;
use crate::wire::{number, put_number};
use bytes::Bytes;
use floe_swarm::policy::{PieceId, Purpose};
use quinn::{Connection, ReadExactError, RecvStream, SendStream};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::timeout;

/// A piece that takes longer to be sent is given up by both ends: that is 3 KB/s.
const SENDING: Duration = Duration::from_secs(20);
/// A receiver that is slower than this doesn't keep others waiting any more.
const PASSING: Duration = Duration::from_millis(500);

/// What became of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It has arrived; so many bytes were on the wire.
    Done(u64),
    /// Its bytes were wrong.
    Wrong,
    /// It was not here to be sent.
    NotHere,
    /// The disk or the connection failed.
    Failed,
}

/// Verifies a piece and puts it on the shelf.
pub(crate) async fn shelve(piece: PieceId, proven: Bytes, shared: &Shared) -> Outcome {
    let Ok(turn) = shared.work.clone().acquire_owned().await else {
        return Outcome::Failed;
    };
    let shelf = shared.shelf.clone();
    let done = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let Some((pack, range)) = shelf.content().place(piece) else {
            return Outcome::Failed;
        };
        match shelf.content().packs()[pack].check(&range, &proven) {
            Err(WrongBytes) => Outcome::Wrong,
            Ok(verified) => match shelf.put(piece, &verified) {
                Ok(()) => Outcome::Done(proven.len() as u64),
                Err(error) => {
                    tracing::warn!(piece, %error, "a piece could not be written");
                    Outcome::Failed
                }
            },
        }
    });
    done.await.unwrap_or(Outcome::Failed)
}

/// Takes what a host sends, until the connection ends.
pub(super) async fn receive(
    link: u64,
    connection: Connection,
    expected: Arc<Mutex<Expected>>,
    shared: Shared,
) {
    let ended = loop {
        match connection.accept_uni().await {
            Ok(stream) => {
                let (expected, shared) = (expected.clone(), shared.clone());
                // QUIC holds back streams beyond a number
                tokio::spawn(async move {
                    if let Some(wire) = take(stream, &expected, &shared).await {
                        let _ = shared.notes.send(Note::Link(link, wire)).await;
                    }
                });
            }
            Err(error) => break Ended::from(error),
        }
    };
    let _ = shared
        .notes
        .send(Note::Link(link, Wire::Closed(ended)))
        .await;
}

async fn take(mut stream: RecvStream, expected: &Mutex<Expected>, shared: &Shared) -> Option<Wire> {
    let lock = || expected.lock().unwrap_or_else(PoisonError::into_inner);
    let named = timeout(SENDING, name(&mut stream)).await;
    let asked = named.ok().flatten().filter(|piece| lock().take(*piece));
    let place = asked.and_then(|piece| shared.shelf.content().place(piece));
    let (Some(piece), Some((pack, range))) = (asked, place) else {
        let _ = stream.stop(CLOSED_RUDELY);
        return lock().strayed().then_some(Wire::Flood);
    };
    let length = shared.shelf.content().packs()[pack].proven_bytes(&range);
    let mut proven = vec![0; length as usize];
    let came = timeout(SENDING, async {
        stream.read_exact(&mut proven).await?;
        Ok::<_, ReadExactError>(stream.read(&mut [0]).await)
    });
    match came.await {
        Err(_) | Ok(Err(ReadExactError::ReadError(_))) => return Some(Wire::Broke(piece)),
        Ok(Err(ReadExactError::FinishedEarly(_))) | Ok(Ok(Ok(Some(_)))) => {
            return Some(Wire::Wrong(piece));
        }
        // if the end is cut off, all of it is here nevertheless, and will turn out to be right or wrong
        Ok(Ok(Ok(None) | Err(_))) => {}
    }
    Some(match shelve(piece, proven.into(), shared).await {
        Outcome::Done(bytes) => {
            lock().came();
            Wire::Got(piece, bytes)
        }
        Outcome::Wrong => Wire::Wrong(piece),
        Outcome::NotHere | Outcome::Failed => Wire::Broke(piece),
    })
}

/// Reads which piece a stream carries.
async fn name(stream: &mut RecvStream) -> Option<PieceId> {
    let mut bytes = Vec::new();
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte).await.ok()?;
        bytes.push(byte[0]);
        if let Some(piece) = number(&mut &bytes[..]).ok()? {
            return Some(piece);
        }
    }
}

/// Sends a piece, which the receiver calls by the second number. Tells when the next may be sent: once this one is with the receiver, or
/// takes so long that others need not wait.
pub(super) async fn send(
    link: u64,
    connection: &Connection,
    (piece, called): (PieceId, PieceId),
    purpose: Purpose,
    shared: &Shared,
) -> Outcome {
    let sent = timeout(SENDING, carry(connection, (piece, called), purpose, shared));
    tokio::pin!(sent);
    let quick = timeout(PASSING, &mut sent).await;
    let _ = shared.notes.send(Note::Passed(link, piece)).await;
    let sent = match quick {
        Ok(sent) => sent,
        Err(_) => sent.await,
    };
    match sent {
        Ok(Ok(bytes)) => Outcome::Done(bytes),
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Outcome::NotHere,
        Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
            tracing::warn!(piece, "the disk has changed a piece");
            Outcome::Wrong
        }
        _ => Outcome::Failed,
    }
}

async fn carry(
    connection: &Connection,
    (piece, called): (PieceId, PieceId),
    purpose: Purpose,
    shared: &Shared,
) -> io::Result<u64> {
    let turn = shared.work.clone().acquire_owned().await;
    let turn = turn.map_err(io::Error::other)?;
    let shelf = shared.shelf.clone();
    let proven = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        shelf.prove(piece)
    });
    let proven = proven.await.map_err(io::Error::other)??;
    let bytes = proven.len() as u64;
    let failed = |_| io::Error::from(io::ErrorKind::ConnectionAborted);
    let mut guard = Abandoned(connection.open_uni().await.map_err(failed)?);
    let stream = &mut guard.0;
    let _ = stream.set_priority(i32::from(purpose == Purpose::Demand));
    let mut head = Vec::new();
    put_number(called, &mut head);
    stream.write_all(&head).await?;
    stream.write_chunk(proven).await?;
    stream.finish()?;
    // with the receiver, and not only in buffers on the way: what is sent next goes after it
    match stream.stopped().await {
        Ok(None) => Ok(bytes),
        _ => Err(io::ErrorKind::ConnectionAborted.into()),
    }
}

/// A stream that is not whole unless all of it has arrived: dropped like others it would end in good order, and the receiver would take
/// what it has for all.
struct Abandoned(SendStream);

impl Drop for Abandoned {
    fn drop(&mut self) {
        let _ = self.0.reset(CLOSED_RUDELY);
    }
}
