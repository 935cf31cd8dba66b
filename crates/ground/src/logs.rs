//! Streams a machine's console history.

use bytes::Bytes;
use floe_machine::console::{ConsoleLog, ConsoleWatch};
use futures::Stream;
use std::{io::Read, time::Duration};
use tokio::{
    io::{AsyncReadExt, Interest, unix::AsyncFd},
    net::UnixStream,
};

/// Size of one piece of the stream, in bytes.
const PIECE_BYTES: usize = 64 << 10;
/// How often a followed log is read again if the kernel has no watch left for it.
const FOLLOW_POLL: Duration = Duration::from_millis(50);

/// How much of what a guest wrote earlier is shown first on a console, in bytes: some thousand lines, to scroll back in.
pub const EARLIER_BYTES: u64 = 256 << 10;

/// Reads what is there already of a log that was opened at so much of its end. If that is not all, its first line may be incomplete and is
/// left out.
pub fn earlier(log: &mut ConsoleLog) -> Vec<u8> {
    let mut bytes = Vec::new();
    // what can't be read now is reported by the reads that follow
    let _ = log.take(EARLIER_BYTES).read_to_end(&mut bytes);
    if bytes.len() as u64 == EARLIER_BYTES {
        let line = bytes.iter().position(|byte| *byte == b'\n');
        bytes.drain(..line.map_or(0, |at| at + 1));
    }
    bytes
}

/// Streams what comes over a connection, up to its end.
pub fn carried(from: UnixStream) -> impl Stream<Item = Result<Bytes, std::io::Error>> + Send {
    futures::stream::unfold(Some(from), |state| async move {
        let mut from = state?;
        let mut piece = vec![0; PIECE_BYTES];
        match from.read(&mut piece).await {
            Ok(0) => None,
            Ok(len) => {
                piece.truncate(len);
                Some((Ok(Bytes::from(piece)), Some(from)))
            }
            Err(error) => Some((Err(error), None)),
        }
    })
}

/// Streams the log's bytes up to its end, or endlessly if `follow` is set.
pub fn stream(
    log: ConsoleLog,
    follow: bool,
) -> impl Stream<Item = Result<Bytes, std::io::Error>> + Send {
    let begin = Some((log, follow.then_some(Follow::Unwatched)));
    futures::stream::unfold(begin, move |state| async move {
        let (mut log, mut follow) = state?;
        loop {
            // reading 64 KiB from the page cache takes less time than switching to another thread
            let mut piece = vec![0; PIECE_BYTES];
            match log.read(&mut piece) {
                Ok(0) => follow.as_mut()?.wait(&log).await,
                Ok(len) => {
                    piece.truncate(len);
                    return Some((Ok(Bytes::from(piece)), Some((log, follow))));
                }
                Err(error) => return Some((Err(error), None)),
            }
        }
    })
}

/// How more of a log is waited for.
enum Follow {
    /// It has not been waited for yet.
    Unwatched,
    Watched(AsyncFd<ConsoleWatch>),
    Unwatchable,
}

impl Follow {
    /// Waits until there may be more to read.
    async fn wait(&mut self, log: &ConsoleLog) {
        match self {
            Follow::Unwatched => {
                let register = |watch| {
                    // SAFETY: a watch owns its descriptor, and neither closes nor replaces it while it lives
                    unsafe { AsyncFd::register_with_interest(watch, Interest::READABLE) }
                };
                let watched = log.watch().and_then(|watch| Ok(register(watch)?));
                *self = match watched {
                    Ok(watch) => Follow::Watched(watch),
                    Err(error) => {
                        tracing::debug!(%error, "a console is followed by reading again and again");
                        Follow::Unwatchable
                    }
                };
                // what came before the watch was there is read at once
            }
            Follow::Watched(watch) => match watch.readable().await {
                Ok(mut ready) => {
                    ready.get_inner().clear();
                    ready.clear_ready();
                }
                Err(_) => *self = Follow::Unwatchable,
            },
            Follow::Unwatchable => tokio::time::sleep(FOLLOW_POLL).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;
    use std::{fs::File, io::Write};

    #[tokio::test]
    async fn a_followed_log_goes_on_where_the_guest_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("console.log");
        let mut writer = File::create(&path).unwrap();
        writer.write_all(b"booting\nlogin: ").unwrap();
        let log = ConsoleLog::open(dir.path(), Some(7));
        let mut stream = Box::pin(stream(log, true));
        assert_eq!(stream.next().await.unwrap().unwrap(), "login: ");
        writer.write_all(b"root").unwrap();
        assert_eq!(stream.next().await.unwrap().unwrap(), "root");
    }

    #[tokio::test]
    async fn a_log_that_is_not_followed_ends() {
        let dir = tempfile::tempdir().unwrap();
        let all = async || {
            let log = ConsoleLog::open(dir.path(), None);
            stream(log, false).collect::<Vec<_>>().await
        };
        assert!(all().await.is_empty());
        std::fs::write(dir.path().join("console.log"), b"x").unwrap();
        assert_eq!(all().await.len(), 1);
    }
}
