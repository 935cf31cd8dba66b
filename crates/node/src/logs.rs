//! Streams a machine's console history.

use bytes::Bytes;
use floe_machine::console::ConsoleLog;
use futures::Stream;
use std::{io::Read, time::Duration};

/// Size of one piece of the stream, in bytes.
const PIECE_BYTES: usize = 64 << 10;
/// How often a followed log is checked: a human notices no delay, and a check costs some microseconds.
const FOLLOW_POLL: Duration = Duration::from_millis(50);

/// Streams the log's bytes up to its end, or endlessly if `follow` is set.
pub fn stream(
    log: ConsoleLog,
    follow: bool,
) -> impl Stream<Item = Result<Bytes, std::io::Error>> + Send {
    futures::stream::unfold(Some(log), move |log| async move {
        let mut log = log?;
        loop {
            // reading 64 KiB from the page cache takes less time than switching to another thread
            let mut piece = vec![0; PIECE_BYTES];
            match log.read(&mut piece) {
                Ok(0) if follow => tokio::time::sleep(FOLLOW_POLL).await,
                Ok(0) => return None,
                Ok(len) => {
                    piece.truncate(len);
                    return Some((Ok(Bytes::from(piece)), Some(log)));
                }
                Err(error) => return Some((Err(error), None)),
            }
        }
    })
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
