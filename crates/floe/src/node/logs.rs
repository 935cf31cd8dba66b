//! A machine's console history as a stream.

use crate::node::error::{NodeError, at};
use bytes::Bytes;
use futures::Stream;
use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::Path,
    time::Duration,
};

/// Bytes of one piece.
const PIECE_BYTES: usize = 64 << 10;
/// How often a followed log is looked at: a human sees no delay, and a stat costs 2 us.
const FOLLOW_POLL: Duration = Duration::from_millis(50);

/// The log, at its beginning or so many bytes before its end. A machine that never wrote has an empty one.
pub fn open(path: &Path, tail_bytes: Option<u64>) -> Result<Option<File>, NodeError> {
    let shown = path.display();
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(at(format!("cannot open {shown}"))(error)),
    };
    if let Some(tail) = tail_bytes {
        let len = file
            .metadata()
            .map_err(at(format!("cannot read {shown}")))?
            .len();
        file.seek(SeekFrom::Start(len.saturating_sub(tail)))
            .map_err(at(format!("cannot read {shown}")))?;
    }
    Ok(Some(file))
}

/// The log's bytes to its end, or on and on.
pub fn stream(
    file: Option<File>,
    follow: bool,
) -> impl Stream<Item = Result<Bytes, std::io::Error>> + Send {
    futures::stream::unfold(file, move |file| async move {
        let mut file = file?;
        loop {
            // a piece is 64 KiB from the page cache: shorter than a switch to another thread
            let mut piece = vec![0; PIECE_BYTES];
            match file.read(&mut piece) {
                Ok(0) if follow => tokio::time::sleep(FOLLOW_POLL).await,
                Ok(0) => return None,
                Ok(len) => {
                    piece.truncate(len);
                    return Some((Ok(Bytes::from(piece)), Some(file)));
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
    use std::io::Write;

    #[tokio::test]
    async fn a_followed_log_goes_on_where_the_guest_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("console.log");
        let mut writer = File::create(&path).unwrap();
        writer.write_all(b"booting\nlogin: ").unwrap();
        let mut stream = Box::pin(stream(open(&path, Some(7)).unwrap(), true));
        assert_eq!(stream.next().await.unwrap().unwrap(), "login: ");
        writer.write_all(b"root").unwrap();
        assert_eq!(stream.next().await.unwrap().unwrap(), "root");
    }

    #[tokio::test]
    async fn a_log_that_is_not_followed_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("console.log");
        std::fs::write(&path, b"x").unwrap();
        let all: Vec<_> = stream(open(&path, None).unwrap(), false).collect().await;
        assert_eq!(all.len(), 1);
        assert!(open(&dir.path().join("none"), None).unwrap().is_none());
    }
}
