//! Traces on their way to the hubs that their images came from.
//!
//! A trace waits here in a file of its own until its hub has it: a machine that stops or is removed waits for no network, and a
//! node that ends forgets nothing. A longer trace of the same machine takes the place of a shorter one that still waits. What a
//! hub refuses, or what could not be sent in [`TRIES_MAX`] tries, is dropped: a trace is worth no more.

use floe_api::credentials::{HubAddress, OwnHub};
use floe_ground::{
    error::NodeError,
    files::{make_private_dir, oldest_first, replace_file},
};
use floe_image::Hash;
use floe_inventory::inventory::record::Origin;
use floe_transfer::{Cancel, HubClient, TransferError};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Traces that wait; more push the oldest out.
const WAITING_MAX: usize = 256;
/// Tries to send one trace in the life of a node.
const TRIES_MAX: u32 = 5;
/// Wait after the first try; four times as long after each further one (5 s to 5 min).
const FIRST_WAIT: Duration = Duration::from_secs(5);
/// How long one sending may take: the longest trace (5 MB) over a line of 1 Mbit/s.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest description before a trace in a file.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// What such a file ends with.
const EXTENSION: &str = "out";

/// Where a trace goes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Destination {
    /// The image.
    pub image: Hash,
    /// The hub.
    pub url: String,
    /// Token for it.
    pub token: Option<String>,
    /// File with its certificate authority.
    pub ca: Option<String>,
}

impl Destination {
    /// The hub among an image's sources, if its address could be a hub's. `own` is the one in this process.
    pub fn of(image: Hash, origin: &Origin, own: Option<&OwnHub>) -> Option<Destination> {
        let url = origin
            .urls
            .iter()
            .find(|url| HubAddress::of(url).is_some())?;
        let token = origin.token_for(url);
        let token = token.or_else(|| own.and_then(|own| own.token_for(url)));
        Some(Destination {
            image,
            url: url.clone(),
            token: token.map(str::to_owned),
            ca: origin.ca_for(url).map(str::to_owned),
        })
    }

    /// The same hub, asked about another image.
    pub fn about(&self, image: Hash) -> Destination {
        Destination {
            image,
            ..self.clone()
        }
    }

    /// A client that asks once and does not wait long.
    pub fn client(&self, timeout: Duration, cancel: &Cancel) -> Result<HubClient, TransferError> {
        let ca = self.ca.as_deref().map(Path::new);
        HubClient::impatient(&self.url, self.token.as_deref(), ca, cancel, timeout)
    }
}

/// The files of waiting traces, and a signal for the thread that sends them.
pub struct Outbox {
    dir: PathBuf,
    /// Set when something was put in.
    filled: Mutex<bool>,
    changed: Condvar,
    cancel: Cancel,
}

/// Tries so far, and when the next one is due.
type Tries = HashMap<PathBuf, (u32, Instant)>;

impl Outbox {
    /// The outbox in a folder, which is made.
    pub fn open(dir: PathBuf) -> Result<Outbox, NodeError> {
        make_private_dir(&dir)?;
        Ok(Outbox {
            dir,
            filled: Mutex::new(true),
            changed: Condvar::new(),
            cancel: Cancel::default(),
        })
    }

    /// Puts in a machine's trace. `run` names the run of the machine: of one run only the last trace is sent.
    pub fn put(&self, to: &Destination, run: &str, trace: &[u8]) -> Result<(), NodeError> {
        let mut bytes = serde_json::to_vec(to).expect("a destination has only strings");
        bytes.push(b'\n');
        bytes.extend_from_slice(trace);
        let name = Hash::of(format!("{}\n{}\n{run}", to.url, to.image).as_bytes());
        replace_file(&self.dir.join(format!("{name}.{EXTENSION}")), &bytes)?;
        let mut waiting = self.waiting();
        if waiting.len() > WAITING_MAX {
            waiting
                .drain(WAITING_MAX..)
                .for_each(|oldest| drop(std::fs::remove_file(oldest)));
        }
        *self.filled.lock() = true;
        self.changed.notify_all();
        Ok(())
    }

    /// What waits, newest first.
    fn waiting(&self) -> Vec<PathBuf> {
        let mut files = oldest_first(&self.dir);
        files.retain(|path| path.extension().is_some_and(|e| e == EXTENSION));
        files.reverse();
        files
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.waiting().is_empty()
    }

    /// Ends [`Outbox::run`], also in the middle of a sending.
    pub fn close(&self) {
        self.cancel.cancel();
        *self.filled.lock() = true;
        self.changed.notify_all();
    }

    /// Sends what is put in, until [`Outbox::close`].
    pub fn run(&self) {
        let mut tries = Tries::new();
        while !self.cancel.is_cancelled() {
            let waiting = self.waiting();
            tries.retain(|path, _| waiting.contains(path));
            for path in &waiting {
                let due = tries.get(path).is_none_or(|(_, at)| *at <= Instant::now());
                if due && !self.cancel.is_cancelled() {
                    self.send_file(path, &mut tries);
                }
            }
            let next = tries.values().map(|(_, at)| *at).min();
            let mut filled = self.filled.lock();
            if !std::mem::take(&mut *filled) && !self.cancel.is_cancelled() {
                match next {
                    Some(next) => drop(self.changed.wait_until(&mut filled, next)),
                    None => self.changed.wait(&mut filled),
                }
                *filled = false;
            }
        }
    }

    fn send_file(&self, path: &Path, tries: &mut Tries) {
        let Ok(bytes) = std::fs::read(path) else {
            return;
        };
        let done = match parse(&bytes) {
            Some((to, trace)) => match self.send(&to, trace) {
                Ok(()) => true,
                Err(TransferError::Cancelled) => false,
                Err(error) if error.is_resumable() => {
                    let count = tries.get(path).map_or(0, |(count, _)| *count) + 1;
                    let at = Instant::now() + FIRST_WAIT * 4u32.pow(count - 1);
                    tries.insert(path.to_owned(), (count, at));
                    tracing::info!(hub = to.url, count, %error, "a trace could not be sent");
                    count >= TRIES_MAX
                }
                // a static web server takes no traces, and a hub may not want this one
                Err(error) => {
                    tracing::info!(hub = to.url, %error, "a trace was not taken");
                    true
                }
            },
            None => {
                tracing::warn!(path = %path.display(), "is no trace to be sent");
                true
            }
        };
        // a longer one may have come meanwhile
        let same = std::fs::read(path).is_ok_and(|now| now == bytes);
        if done && same {
            let _ = std::fs::remove_file(path);
            tries.remove(path);
        }
    }

    fn send(&self, to: &Destination, trace: &[u8]) -> Result<(), TransferError> {
        let taken = to
            .client(SEND_TIMEOUT, &self.cancel)?
            .send_trace(&to.image, trace)?;
        tracing::info!(
            hub = to.url,
            image = to.image.short(),
            kept = taken.kept,
            "trace sent"
        );
        Ok(())
    }
}

fn parse(bytes: &[u8]) -> Option<(Destination, &[u8])> {
    let head = &bytes[..bytes.len().min(HEAD_BYTES_MAX)];
    let end = head.iter().position(|byte| *byte == b'\n')?;
    let to = serde_json::from_slice(&bytes[..end]).ok()?;
    Some((to, &bytes[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn to(url: &str) -> Destination {
        Destination {
            image: Hash::of(b"image"),
            url: url.into(),
            token: Some("t".into()),
            ca: None,
        }
    }

    fn outbox(dir: &tempfile::TempDir) -> Outbox {
        Outbox::open(dir.path().join("outbox")).unwrap()
    }

    #[test]
    fn only_a_hubs_address_gets_traces() {
        let of = |urls: &[&str]| {
            let origin = Origin {
                urls: urls.iter().map(|url| (*url).to_owned()).collect(),
                ..Default::default()
            };
            Destination::of(Hash::ZERO, &origin, None).map(|to| to.url)
        };
        assert_eq!(of(&["/srv/images"]), None);
        assert_eq!(of(&[]), None);
        assert_eq!(
            of(&["s3://bucket/a", "https://hub"]),
            Some("https://hub".into())
        );
    }

    #[test]
    fn a_traces_hub_is_believed_by_the_authority_that_was_given_for_it() {
        let origin = Origin {
            urls: vec!["s3://bucket/a".into(), "https://hub:4500".into()],
            ca: Some("/all.pem".into()),
            cas: [
                ("https://hub:4500", "/hub.pem"),
                ("https://hub", "/other.pem"),
            ]
            .map(|(hub, ca)| (HubAddress::of(hub).unwrap(), ca.to_owned()))
            .into(),
            ..Default::default()
        };
        let to = Destination::of(Hash::ZERO, &origin, None).unwrap();
        assert_eq!(to.ca.as_deref(), Some("/hub.pem"));
        let common = Origin {
            cas: Default::default(),
            ..origin
        };
        let to = Destination::of(Hash::ZERO, &common, None).unwrap();
        assert_eq!(to.ca.as_deref(), Some("/all.pem"));
    }

    #[test]
    fn of_one_run_the_last_trace_waits_and_outlives_the_node() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let first = outbox(&dir);
        first.put(&to("http://hub"), "web 1", b"short").unwrap();
        first.put(&to("http://hub"), "web 1", b"longer").unwrap();
        first.put(&to("http://hub"), "web 2", b"other").unwrap();
        drop(first);
        let again = outbox(&dir);
        let mut found: Vec<_> = again
            .waiting()
            .iter()
            .map(|path| {
                let mode = std::fs::metadata(path).unwrap().permissions().mode();
                assert_eq!(mode & 0o777, 0o600, "the token is for nobody else");
                let bytes = std::fs::read(path).unwrap();
                let (at, trace) = parse(&bytes).unwrap();
                (at, trace.to_vec())
            })
            .collect();
        found.sort_by_key(|(_, trace)| trace.clone());
        let expected = [b"longer".to_vec(), b"other".to_vec()].map(|t| (to("http://hub"), t));
        assert_eq!(found, expected);
    }

    #[test]
    fn too_many_push_the_oldest_out() {
        let dir = tempfile::tempdir().unwrap();
        let outbox = outbox(&dir);
        for run in 0..WAITING_MAX + 5 {
            outbox
                .put(&to("http://hub"), &run.to_string(), b"x")
                .unwrap();
        }
        assert_eq!(outbox.waiting().len(), WAITING_MAX);
    }

    #[test]
    fn a_server_that_takes_no_traces_is_not_asked_again() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            use std::io::{Read, Write};
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            let mut part = [0; 1024];
            // whoever closes with bytes unread resets the connection
            while !request.ends_with(b"trace") {
                let read = stream.read(&mut part).unwrap();
                request.extend_from_slice(&part[..read]);
            }
            stream
                .write_all(b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                .unwrap();
            String::from_utf8_lossy(&request).into_owned()
        });
        let dir = tempfile::tempdir().unwrap();
        let outbox = Arc::new(outbox(&dir));
        outbox.put(&to(&url), "web", b"trace").unwrap();
        let sending = outbox.clone();
        let thread = std::thread::spawn(move || sending.run());
        let until = Instant::now() + Duration::from_secs(60);
        while !outbox.is_empty() {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(5));
        }
        outbox.close();
        thread.join().unwrap();
        let asked = server.join().unwrap();
        assert!(asked.starts_with("POST /v1/images/"), "{asked}");
        assert!(asked.contains("Bearer t"), "{asked}");
    }

    #[test]
    fn a_hub_that_is_away_is_tried_again_later_and_the_trace_stays() {
        let dir = tempfile::tempdir().unwrap();
        let outbox = outbox(&dir);
        // a port that nobody listens on
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        outbox
            .put(&to(&format!("http://{port}")), "web", b"trace")
            .unwrap();
        let path = outbox.waiting()[0].clone();
        let mut tries = Tries::new();
        for count in 1..TRIES_MAX {
            outbox.send_file(&path, &mut tries);
            assert_eq!(tries[&path].0, count);
            assert!(path.exists());
        }
        outbox.send_file(&path, &mut tries);
        assert!(!path.exists(), "a trace is not worth more tries");
    }
}
