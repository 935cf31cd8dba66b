//! Traces, models and pauses with real guests, a real hub and a link that is too slow: the whole way round.

use crate::support::node::{TestNode, finish};
use floe_api::*;
use floe_hub::{HubHandle, HubOptions};
use floe_image::Hash;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What the guest does so that there is something to learn.
pub const WORK: &str =
    "find / -xdev >/dev/null 2>&1; md5sum /bin/busybox >/dev/null; echo worked-$((1+1))";

/// A link on which a guest would crawl: 2 Mbit/s and 80 ms there and back.
pub const SLOW_BYTES_S: u64 = 250_000;

pub const SLOW_DELAY: Duration = Duration::from_millis(40);

/// A hub with a captured tiny guest on it, which everybody may read.
pub struct World {
    pub hub: HubHandle,
    pub dir: tempfile::TempDir,
    pub token: String,
    pub id: Hash,
}

pub fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    let mut options = HubOptions::new(dir.path(), "127.0.0.1:0".parse().unwrap());
    options.limits.training_quiet = Duration::from_millis(100);
    options.anonymous_traces = true;
    let token = floe_hub::create_token(dir.path(), "ann").unwrap();
    let hub = floe_hub::serve(options).unwrap();
    let here = TestNode::start();
    here.boot_tiny("one");
    let capture = CaptureRequest {
        name: Some("live".into()),
        rehearse_s: Some(0),
        ..Default::default()
    };
    let outcome = finish(here.client().capture("one", &capture).unwrap());
    let push = PushRequest {
        image: "live".into(),
        to: hub.url(),
        name: None,
        token: Some(token.clone()),
        ca: None,
        public: true,
        seed: false,
        seed_until: None,
    };
    finish(here.client().push(&push).unwrap());
    World {
        hub,
        dir,
        token,
        id: outcome.image.unwrap().id.parse().unwrap(),
    }
}

impl World {
    pub fn of(&self) -> TracesRequest {
        TracesRequest {
            image: format!("{}/live", self.hub.url()),
            token: Some(self.token.clone()),
            ca: None,
        }
    }

    /// The file of the hub's model.
    pub fn model_file(&self) -> Option<PathBuf> {
        let folder = self.dir.path().join(format!("traces/{}/ann", self.id));
        let files = std::fs::read_dir(folder).ok()?.flatten();
        let mut files = files.map(|file| file.path());
        files.find(|path| path.extension().is_some_and(|e| e == "model"))
    }
}

pub fn request(hub: &str, name: &str) -> RunRequest {
    RunRequest {
        image: format!("{hub}/live"),
        name: Some(name.into()),
        ..Default::default()
    }
}

pub fn stop(node: &TestNode, name: &str) {
    let now = StopRequest {
        now: true,
        timeout_s: None,
    };
    node.client().stop(name, &now).unwrap();
}

/// A link whose speed is set, and that counts what it has carried.
pub struct SlowLink {
    pub url: String,
    pub bytes_s: Arc<AtomicU64>,
    /// Bytes that came from the hub.
    pub carried: Arc<AtomicU64>,
}

/// Copies what comes from the hub at a slow link's pace; what goes there costs only the delay.
pub fn slow_link(to: SocketAddr) -> SlowLink {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let link = SlowLink {
        url: format!("http://{}", listener.local_addr().unwrap()),
        bytes_s: Arc::new(AtomicU64::new(SLOW_BYTES_S)),
        carried: Arc::default(),
    };
    let (bytes_s, carried) = (link.bytes_s.clone(), link.carried.clone());
    // one pace for all connections: when the link is free again
    let free = Arc::new(std::sync::Mutex::new(Instant::now()));
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(to) else {
                return; // the test is over
            };
            let _ = (near.set_nodelay(true), far.set_nodelay(true));
            let (near2, far2) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let free = free.clone();
            let (bytes_s, carried) = (bytes_s.clone(), carried.clone());
            std::thread::spawn(move || copy(near2, far2, |_| SLOW_DELAY));
            std::thread::spawn(move || {
                copy(far, near, |bytes| {
                    let mut free = free.lock().unwrap();
                    carried.fetch_add(bytes as u64, Relaxed);
                    let time = bytes as f64 / bytes_s.load(Relaxed) as f64;
                    let time = Duration::from_secs_f64(time);
                    *free = (*free).max(Instant::now()) + time;
                    (*free + SLOW_DELAY).saturating_duration_since(Instant::now())
                })
            });
        }
    });
    link
}

pub fn copy(mut from: TcpStream, mut to: TcpStream, pause: impl Fn(usize) -> Duration) {
    let mut buffer = [0; 4096];
    while let Ok(read) = from.read(&mut buffer) {
        std::thread::sleep(pause(read));
        if read == 0 || to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}
