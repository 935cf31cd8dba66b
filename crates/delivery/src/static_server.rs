//! A web server of plain files that counts its requests. It supports only the HTTP that `floe-source` needs of any web
//! server (GET, ranges, connections that stay open).
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Longest request line or header, in bytes.
const LINE_MAX: u64 = 8192;

/// A request that was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Path below the served directory.
    pub path: String,
    /// First byte of the range, if there was one.
    pub start: Option<u64>,
    /// Bytes of the answer's body.
    pub bytes: u64,
}

/// A running server. Dropping it ends it.
pub struct StaticServer {
    /// Its address.
    pub url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    stop: Arc<AtomicBool>,
    address: std::net::SocketAddr,
}

impl StaticServer {
    /// Serves `dir` on a listener, which may belong to another namespace.
    pub fn start(dir: &Path, listener: TcpListener) -> io::Result<StaticServer> {
        let address = listener.local_addr()?;
        let (asked, stop) = (Arc::default(), Arc::<AtomicBool>::default());
        let server = StaticServer {
            url: format!("http://{address}"),
            asked: Arc::clone(&asked),
            stop: stop.clone(),
            address,
        };
        let dir = dir.to_path_buf();
        std::thread::Builder::new()
            .name("static-server".into())
            .spawn(move || {
                for connection in listener.incoming().flatten() {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let (dir, asked) = (dir.clone(), asked.clone());
                    std::thread::spawn(move || {
                        // A client that disconnects early does not matter to the server.
                        let _ = serve(&dir, connection, &asked);
                    });
                }
            })?;
        Ok(server)
    }

    /// Returns the requests since the last call, in the order of their answers.
    pub fn take(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock())
    }
}

impl Drop for StaticServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the thread up. A thread of another namespace ends with the process.
        let _ = TcpStream::connect(self.address);
    }
}

/// A request line and its range.
struct Wanted {
    path: PathBuf,
    shown: String,
    /// First and last byte.
    range: Option<(u64, u64)>,
}

fn line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    reader.by_ref().take(LINE_MAX).read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

fn read_request(dir: &Path, reader: &mut impl BufRead) -> io::Result<Option<Wanted>> {
    let first = line(reader)?;
    let Some(shown) = first
        .strip_prefix("GET /")
        .and_then(|rest| rest.split(' ').next())
    else {
        return Ok(None);
    };
    let mut range = None;
    loop {
        let header = line(reader)?;
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(':').unwrap_or_default();
        if name.eq_ignore_ascii_case("range") {
            range = value.trim().strip_prefix("bytes=").and_then(|range| {
                let (from, to) = range.split_once('-')?;
                Some((from.parse().ok()?, to.parse().ok()?))
            });
        }
    }
    let inside = !shown.split('/').any(|part| part == "..");
    Ok(inside.then(|| Wanted {
        path: dir.join(shown),
        shown: shown.to_owned(),
        range,
    }))
}

fn serve(dir: &Path, connection: TcpStream, asked: &Mutex<Vec<Asked>>) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let mut out = connection.try_clone()?;
    let mut reader = BufReader::new(connection);
    while let Some(wanted) = read_request(dir, &mut reader)? {
        let found = File::open(&wanted.path).and_then(|file| Ok((file.metadata()?, file)));
        let Some((about, file)) = found.ok().filter(|(about, _)| about.is_file()) else {
            out.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
            continue;
        };
        let (status, start, len) = match wanted.range {
            Some((from, to)) if from <= to && to < about.len() => (206, from, to - from + 1),
            Some(_) => {
                out.write_all(b"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n")?;
                continue;
            }
            None => (200, 0, about.len()),
        };
        let mut body = vec![0; len as usize];
        file.read_exact_at(&mut body, start)?;
        let mut head = format!("HTTP/1.1 {status} OK\r\nContent-Length: {len}\r\n");
        if status == 206 {
            let total = about.len();
            head += &format!(
                "Content-Range: bytes {start}-{}/{total}\r\n",
                start + len - 1
            );
        }
        head += "\r\n";
        asked.lock().push(Asked {
            path: wanted.shown,
            start: wanted.range.map(|(from, _)| from),
            bytes: len,
        });
        out.write_all(head.as_bytes())?;
        out.write_all(&body)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_files_and_ranges_are_served_on_one_connection_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), b"0123456789").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = StaticServer::start(dir.path(), listener).unwrap();
        let mut connection = TcpStream::connect(server.address).unwrap();
        connection
            .write_all(
                b"GET /a HTTP/1.1\r\n\r\nGET /a HTTP/1.1\r\nrange: bytes=3-5\r\n\r\n\
                GET /../a HTTP/1.1\r\n\r\n",
            )
            .unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\r\n\r\n0123456789"));
        assert!(
            answer.ends_with("Content-Range: bytes 3-5/10\r\n\r\n345"),
            "{answer}"
        );
        let bytes: Vec<_> = server.take().iter().map(|a| (a.start, a.bytes)).collect();
        assert_eq!(bytes, [(None, 10), (Some(3), 3)]);
    }
}
