//! Pieces over a connection, each on a stream of its own.
use super::expected::Expected;
use super::{Ended, Note, Shared, Wire};
use crate::closed::CLOSED_RUDELY;
use crate::seed::Seed;
use crate::tree::WrongBytes;
use crate::wire::{number, put_number};
use bytes::Bytes;
use floe_swarm::policy::{PieceId, Purpose};
use quinn::{Connection, ReadExactError, RecvStream, SendStream};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::timeout;

/// After this time both ends give a piece up: it has come at less than 3 KB/s.
const SENDING: Duration = Duration::from_secs(20);
/// After this time the next piece is sent although the receiver has not acknowledged this one, so that others need not wait for a slow
/// receiver.
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
    /// It was here, and could not be read now: nothing of it was sent.
    Unread,
    /// The connection failed, or the disk to which it was to be written.
    Failed,
}

/// Verifies a piece and puts it on the shelf. What comes from a seed has to fit for it too; hosts pass on what has done so.
pub(crate) async fn shelve(
    piece: PieceId,
    proven: Bytes,
    seed: Option<Arc<dyn Seed>>,
    shared: &Shared,
) -> Outcome {
    let Ok(turn) = shared.work.clone().acquire_owned().await else {
        return Outcome::Failed;
    };
    let shelf = shared.shelf.clone();
    let done = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let Some((pack, range)) = shelf.content().place(piece) else {
            return Outcome::Failed;
        };
        let fits = |bytes: &[u8]| {
            seed.as_ref()
                .is_none_or(|seed| seed.fits(pack, &range, bytes))
        };
        match shelf.content().packs()[pack].check(&range, &proven) {
            Err(WrongBytes) => Outcome::Wrong,
            Ok(verified) if !fits(&verified.bytes) => Outcome::Wrong,
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
    number: u64,
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
                        let _ = shared.notes.send(Note::Wire(number, wire)).await;
                    }
                });
            }
            Err(error) => break Ended::from(error),
        }
    };
    let _ = shared
        .notes
        .send(Note::Wire(number, Wire::Closed(ended)))
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
    Some(match shelve(piece, proven.into(), None, shared).await {
        Outcome::Done(bytes) => {
            lock().came();
            Wire::Got(piece, bytes)
        }
        Outcome::Wrong => Wire::Wrong(piece),
        Outcome::NotHere | Outcome::Unread | Outcome::Failed => Wire::Broke(piece),
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
    number: u64,
    connection: &Connection,
    (piece, called): (PieceId, PieceId),
    purpose: Purpose,
    shared: &Shared,
) -> Outcome {
    let sent = timeout(SENDING, carry(connection, (piece, called), purpose, shared));
    tokio::pin!(sent);
    let quick = timeout(PASSING, &mut sent).await;
    let _ = shared.notes.send(Note::Passed(number, piece)).await;
    let sent = match quick {
        Ok(sent) => sent,
        Err(_) => sent.await,
    };
    match sent {
        Ok(Ok(bytes)) => Outcome::Done(bytes),
        Ok(Err(Unsent::Unread(error))) if error.kind() == io::ErrorKind::NotFound => {
            Outcome::NotHere
        }
        Ok(Err(Unsent::Unread(error))) if error.kind() == io::ErrorKind::InvalidData => {
            tracing::warn!(piece, "the disk has changed a piece");
            Outcome::Wrong
        }
        Ok(Err(Unsent::Unread(error))) => {
            tracing::warn!(piece, %error, "a piece can't be read");
            Outcome::Unread
        }
        Ok(Err(Unsent::Cut)) | Err(_) => Outcome::Failed,
    }
}

/// Why a piece is not with its receiver.
enum Unsent {
    /// It could not be read, and the receiver knows nothing of that.
    Unread(io::Error),
    /// The connection ended, or its receiver does not want it.
    Cut,
}

async fn carry(
    connection: &Connection,
    (piece, called): (PieceId, PieceId),
    purpose: Purpose,
    shared: &Shared,
) -> Result<u64, Unsent> {
    let turn = shared.work.clone().acquire_owned().await;
    let turn = turn.map_err(|_| Unsent::Cut)?; // the host is gone
    let shelf = shared.shelf.clone();
    let proven = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        shelf.prove(piece)
    });
    let proven = proven
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)));
    let proven = proven.map_err(Unsent::Unread)?;
    let bytes = proven.len() as u64;
    let mut guard = Abandoned(connection.open_uni().await.map_err(|_| Unsent::Cut)?);
    let stream = &mut guard.0;
    let _ = stream.set_priority(priority(purpose, stream.id().index()));
    let mut head = Vec::new();
    put_number(called, &mut head);
    stream.write_all(&head).await.map_err(|_| Unsent::Cut)?;
    let sent = stream.write_chunk(proven).await;
    sent.map_err(|_| Unsent::Cut)?;
    stream.finish().map_err(|_| Unsent::Cut)?;
    // with the receiver, and not only in buffers on the way: what is sent next goes after it
    match stream.stopped().await {
        Ok(None) => Ok(bytes),
        _ => Err(Unsent::Cut),
    }
}

/// Returns the priority of a piece's stream, which is so many after the first of its connection: a demand goes before what only may be needed,
/// also before the rest of a piece that has begun, and otherwise one piece goes after the other. So the first is there sooner, and the last no
/// later.
fn priority(purpose: Purpose, stream: u64) -> i32 {
    const TURNS: i32 = 1 << 28;
    let turn = stream % TURNS as u64;
    (purpose as i32 + 1) * TURNS - turn as i32
}

/// A QUIC stream that is reset when it is dropped before its end. An ordinary one would end in good order, and the receiver would take what
/// it has for the whole.
struct Abandoned(SendStream);

impl Drop for Abandoned {
    fn drop(&mut self) {
        let _ = self.0.reset(CLOSED_RUDELY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demands_go_first_and_else_one_piece_goes_after_the_other() {
        let in_turn = [
            (Purpose::Demand, 7),
            (Purpose::Demand, 9),
            (Purpose::Prefetch, 0),
            (Purpose::Prefetch, 1),
            (Purpose::Prefetch, (1 << 28) - 1),
            (Purpose::Copy, 3),
        ];
        let priorities = in_turn.map(|(purpose, stream)| priority(purpose, stream));
        assert!(priorities.is_sorted_by(|first, second| first > second));
        assert!(
            priorities
                .iter()
                .all(|priority| *priority < super::super::MESSAGES_FIRST)
        );
    }
}
