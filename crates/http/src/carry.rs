//! Carries the bytes of two connections to each other.

use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::sync::Notify;
use tokio::time::sleep;

/// How long nothing may come from one side after the other has said all.
const QUIET_MAX: Duration = Duration::from_secs(600);
/// The same after the other was found to be gone, or to take nothing any more. A side that has said all and wants to hear no more still reads
/// for this long: a connection that is closed with something unread may lose what was said last.
pub const LAST_WORDS: Duration = Duration::from_secs(10);
/// How many bytes are read at a time.
const READ_BYTES: usize = 16 << 10;

/// Carries bytes both ways until both sides have said all. Who has said all, or hears nothing any more, may still have something to
/// hear, or to say: that is carried as long as something of it comes.
pub async fn carry(
    one: impl AsyncRead + AsyncWrite + Unpin,
    other: impl AsyncRead + AsyncWrite + Unpin,
) {
    let (from_one, to_one) = split(one);
    let (from_other, to_other) = split(other);
    let moved = Notify::new();
    let mut there = pin!(copy(from_one, to_other, &moved));
    let mut back = pin!(copy(from_other, to_one, &moved));
    tokio::select! {
        ended = &mut there => outlast(back, &ended, &moved).await,
        ended = &mut back => outlast(there, &ended, &moved).await,
    }
}

/// Carries one direction after the other has ended.
async fn outlast(
    mut rest: impl Future<Output = io::Result<()>> + Unpin,
    ended: &io::Result<()>,
    moved: &Notify,
) {
    let quiet = match ended {
        Ok(()) => QUIET_MAX,
        Err(_) => LAST_WORDS,
    };
    loop {
        tokio::select! {
            _ = &mut rest => return,
            () = moved.notified() => {}
            () = sleep(quiet) => return,
        }
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    moved: &Notify,
) -> io::Result<()> {
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..count]).await?;
        to.flush().await?;
        moved.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixStream;

    #[tokio::test]
    async fn bytes_are_carried_both_ways_until_both_sides_have_said_all() {
        let (mut user, ours) = tokio::io::duplex(1 << 10);
        let (mut there, theirs) = UnixStream::pair().unwrap();
        let carried = tokio::spawn(carry(ours, theirs));
        there.write_all(b"out, and over").await.unwrap();
        there.shutdown().await.unwrap();
        let mut heard = String::new();
        user.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "out, and over");
        user.write_all(b"in").await.unwrap();
        drop(user);
        heard.clear();
        there.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "in");
        carried.await.unwrap();
    }

    #[tokio::test]
    async fn who_takes_nothing_any_more_is_still_heard() {
        let (mut user, ours) = tokio::io::duplex(1 << 10);
        let (there, theirs) = UnixStream::pair().unwrap();
        let there = there.into_std().unwrap();
        there.shutdown(std::net::Shutdown::Read).unwrap();
        let mut there = UnixStream::from_std(there).unwrap();
        let carried = tokio::spawn(carry(ours, theirs));
        user.write_all(b"nobody hears this").await.unwrap();
        there.write_all(b"the last words").await.unwrap();
        there.shutdown().await.unwrap();
        let mut heard = String::new();
        user.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "the last words");
        drop(user);
        carried.await.unwrap();
    }
}
