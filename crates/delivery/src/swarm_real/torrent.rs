//! What a user would take instead: the whole image by BitTorrent, with a client of Debian's, before anything starts.
use anyhow::{Context as _, bail, ensure};
use floe_testbed::link::{Namespace, Segment};
use floe_testbed::local::need;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The tracker's port, at the seed.
const TRACKER_PORT: u16 = 6969;
/// Where all clients listen.
const CLIENT_PORT: u16 = 6881;
/// Pieces of 2^18 bytes, as clients choose them for a file of this size.
const PIECE_POWER: &str = "18";
/// Seconds after which a client asks for the list again.
const ASK_AGAIN_S: u32 = 5;
/// Longest time for a download.
const DOWNLOAD_MAX: Duration = Duration::from_secs(1200);
/// Longest time for a request to the tracker.
const REQUEST_MAX: Duration = Duration::from_secs(5);
/// Longest request to the tracker, in bytes.
const REQUEST_BYTES_MAX: u64 = 16 << 10;

/// A folder that is given by BitTorrent from the first host of a segment.
pub struct Torrent<'a> {
    segment: &'a Segment,
    folder: PathBuf,
    description: PathBuf,
    /// What `echo` says of a download that is complete: the number of its files, between its own number and the path of one of them.
    done: String,
    _tracker: Tracker,
}

impl Torrent<'_> {
    /// Describes a folder, for the first host and so many others.
    pub fn new<'a>(
        segment: &'a Segment,
        folder: &Path,
        hosts: usize,
    ) -> anyhow::Result<Torrent<'a>> {
        let mktorrent = need("mktorrent", "mktorrent")?;
        need("aria2c", "aria2")?;
        let description = folder.with_extension("torrent");
        let made = Command::new(mktorrent)
            .args(["-l", PIECE_POWER, "-a"])
            .arg(format!(
                "http://{}:{TRACKER_PORT}/announce",
                segment.address(0)
            ))
            .arg("-o")
            .arg(&description)
            .arg(folder)
            .output()?;
        ensure!(
            made.status.success(),
            "mktorrent: {}",
            String::from_utf8_lossy(&made.stderr)
        );
        let members: Vec<Ipv4Addr> = (0..=hosts).map(|n| segment.address(n)).collect();
        Ok(Torrent {
            segment,
            folder: folder.to_path_buf(),
            description,
            done: format!(" {} /", files_of(folder)?),
            _tracker: Tracker::start(segment.host(0), members[0], &members)?,
        })
    }

    /// Lets so many hosts beside the first download the folder at the same time, each into the folder that `into` tells of its number, from 0.
    /// Returns how long each took.
    pub fn download(
        &self,
        hosts: usize,
        into: impl Fn(usize) -> PathBuf,
    ) -> anyhow::Result<Vec<Duration>> {
        let beside = self.folder.parent().context("the folder is in another")?;
        let mut seed = self.client(0, beside)?;
        seed.until("IPv4 BitTorrent: listening")?;
        let began = Instant::now();
        let clients: anyhow::Result<Vec<Client>> = (0..hosts)
            .map(|host| {
                let folder = into(host);
                std::fs::create_dir_all(&folder)?;
                self.client(host + 1, &folder)
            })
            .collect();
        let mut clients = clients?;
        // those who are done go on giving until all are
        let took = std::thread::scope(|scope| {
            let waits: Vec<_> = clients
                .iter_mut()
                .map(|client| {
                    scope.spawn(move || -> anyhow::Result<Duration> {
                        client.until(&self.done)?;
                        Ok(began.elapsed())
                    })
                })
                .collect();
            let joined = waits
                .into_iter()
                .map(|wait| wait.join().unwrap_or_else(|_| bail!("a download panicked")));
            joined.collect::<anyhow::Result<Vec<Duration>>>()
        })?;
        Ok(took)
    }

    fn client(&self, host: usize, folder: &Path) -> anyhow::Result<Client> {
        let namespace = self.segment.host(host);
        let mut command = namespace.command_that_dies_with_us("aria2c")?;
        command
            .arg(&self.description)
            .arg("--dir")
            .arg(folder)
            .arg(format!("--listen-port={CLIENT_PORT}"))
            .arg(format!("--stop={}", DOWNLOAD_MAX.as_secs()))
            .args([
                "--enable-dht=false",
                "--bt-enable-lpd=false",
                "--enable-peer-exchange=false",
            ])
            .args([
                "--seed-ratio=0",
                "--check-integrity=true",
                "--allow-overwrite=true",
            ])
            .args([
                "--file-allocation=none",
                "--summary-interval=0",
                "--console-log-level=notice",
            ])
            .arg("--on-bt-download-complete=/bin/echo")
            .args([
                "--enable-color=false",
                "--show-console-readout=false",
                "--no-conf",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn()?;
        let output = child.stdout.take().context("it was started with a pipe")?;
        Ok(Client {
            child,
            output: BufReader::new(output),
        })
    }
}

/// Returns the number of files in a folder and those below it.
fn files_of(folder: &Path) -> std::io::Result<usize> {
    let mut files = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        files += match entry.file_type()?.is_dir() {
            true => files_of(&entry.path())?,
            false => 1,
        };
    }
    Ok(files)
}

/// A running client.
struct Client {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Client {
    /// Waits until it says this; an error if it ends before.
    fn until(&mut self, awaited: &str) -> anyhow::Result<()> {
        let mut said = String::new();
        loop {
            let from = said.len();
            if self.output.read_line(&mut said)? == 0 {
                bail!("aria2c ended: {said}");
            }
            if said[from..].contains(awaited) {
                return Ok(());
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Tells everybody who asks that all hosts take part.
struct Tracker {
    stop: Arc<AtomicBool>,
    at: SocketAddr,
}

impl Tracker {
    fn start(host: &Namespace, address: Ipv4Addr, members: &[Ipv4Addr]) -> anyhow::Result<Tracker> {
        let at = SocketAddr::from((address, TRACKER_PORT));
        let listener = host.run(|| TcpListener::bind(at))??;
        let answer = answer(members);
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();
        std::thread::Builder::new()
            .name("tracker".into())
            .spawn(move || {
                for connection in listener.incoming().flatten() {
                    if stopped.load(Relaxed) {
                        return;
                    }
                    // who ends early asks again
                    let _ = tell(&connection, &answer);
                }
            })?;
        Ok(Tracker { stop, at })
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        // Wakes the thread up. A thread of another namespace ends with the process.
        let _ = TcpStream::connect(self.at);
    }
}

/// Returns the list of members (BEP 3, and BEP 23 for the short form of addresses).
fn answer(members: &[Ipv4Addr]) -> Vec<u8> {
    let mut body = format!("d8:intervali{ASK_AGAIN_S}e5:peers{}:", 6 * members.len()).into_bytes();
    for member in members {
        body.extend(member.octets());
        body.extend(CLIENT_PORT.to_be_bytes());
    }
    body.push(b'e');
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    [head.into_bytes(), body].concat()
}

/// Reads a request to its end, and answers it.
fn tell(mut connection: &TcpStream, answer: &[u8]) -> std::io::Result<()> {
    connection.set_read_timeout(Some(REQUEST_MAX))?;
    let mut lines = BufReader::new(connection).take(REQUEST_BYTES_MAX);
    let mut line = String::new();
    while lines.read_line(&mut line)? > 2 {
        line.clear();
    }
    connection.write_all(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_members_is_told_in_short() {
        let told = answer(&[Ipv4Addr::new(10, 79, 0, 1), Ipv4Addr::new(10, 79, 0, 2)]);
        let end = b"d8:intervali5e5:peers12:\x0a\x4f\x00\x01\x1a\xe1\x0a\x4f\x00\x02\x1a\xe1e";
        assert!(told.ends_with(end), "{told:?}");
    }
}
