//! The hub: a catalogue of images, their packs, batch reads for page faults, and uploads, over HTTP.
//!
//! A request passes `front` (connection, TLS, fair shares) -> `routes` -> `access` (who sends it) -> `seen` (may they see the
//! image) -> one of `batch` (many chunks at once, the hot path), `files` (immutable files by range), `uploads` -> `publish` (packs
//! become an image), `traces` (what machines touched, and the models made of it), `swarm` (hosts that bring an image to each other).
//! These use the `catalogue` (SQLite: who may read what, and what `names` mean) and `packs` (on disk, their frames in memory); a
//! hub that is a pool has substrates in memory (`pool`). [`serve`] starts all of it on its own threads.
//!
//! `state` is in the middle: what all requests share stands below it and does not know it (the catalogue and what is entered there,
//! `visible`, `quota`, `packs`, `tokens`, `pool`, `swarm`), what answers requests stands above it (`access`, `wire`, `seen`, `allowed`,
//! and all that have routes).
//!
//! Nothing that clients send is trusted. Packs are checked item by item as they arrive, and an image's whole tree before
//! the image becomes visible; no text of a request becomes part of a path.

mod access;
mod allowed;
mod batch;
mod bearer;
mod catalogue;
mod disk;
mod error;
mod files;
mod lock;
mod login;
mod names;
mod options;
mod packs;
mod pool;
mod proofs;
mod publication;
mod publish;
mod quota;
mod readers;
mod replaced;
mod routes;
mod schema;
mod seen;
mod state;
mod substrates;
mod swarm;
mod swarm_routes;
mod thumbnail;
mod tls;
mod tokens;
mod traces;
mod upkeep;
mod uploads;
mod visible;
mod wire;

pub use error::HubError;
pub use options::*;
pub use packs::verify_pack;
pub use quota::{Used, UserQuota};
pub use routes::openapi_json;
pub use uploads::{ApiErrorText, decode_questions};

use catalogue::Catalogue;
use floe_api::hub::ErrorBody;
use floe_image::Hash;
use floe_threads::Task;
use state::Hub;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use tokio::sync::watch;

/// How long a shutdown waits for blocking work (such as the walk of a commit) after the connections are closed.
const BLOCKING_DRAIN: std::time::Duration = std::time::Duration::from_secs(10);

/// A running hub. Dropping it stops the hub without waiting.
pub struct HubHandle {
    addr: SocketAddr,
    ca_file: Option<PathBuf>,
    fingerprint: Option<String>,
    /// Its state, for as long as it runs.
    hub: Weak<Hub>,
    stop: watch::Sender<bool>,
    thread: Option<Task<()>>,
}

impl HubHandle {
    /// Returns the address that the hub listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the base URL for clients on this host, such as `http://127.0.0.1:4500`.
    pub fn url(&self) -> String {
        let scheme = if self.fingerprint.is_some() {
            "https"
        } else {
            "http"
        };
        let mut addr = self.addr;
        if addr.ip().is_unspecified() {
            let loopback = if addr.is_ipv4() {
                [127, 0, 0, 1].into()
            } else {
                std::net::Ipv6Addr::LOCALHOST.into()
            };
            addr.set_ip(loopback);
        }
        format!("{scheme}://{addr}")
    }

    /// Returns the CA file that clients need, if the hub made its own certificate.
    pub fn ca_file(&self) -> Option<&Path> {
        self.ca_file.as_deref()
    }

    /// Returns the certificate's SHA-256 fingerprint, as `openssl x509 -fingerprint -sha256` prints it.
    pub fn fingerprint(&self) -> Option<&str> {
        self.fingerprint.as_deref()
    }

    /// Returns `kept` if it is a token of this user, otherwise a new one.
    pub fn ensure_token(&self, user: &str, kept: Option<String>) -> Result<String, HubError> {
        let hub = self.hub.upgrade();
        let hub = hub.ok_or_else(|| HubError::Options("the hub has stopped".into()))?;
        if let Some(kept) = kept
            && hub
                .catalogue
                .token_user(&Hash::of(kept.as_bytes()))
                .map_err(hub.catalogue.failed())?
                .as_deref()
                == Some(user)
        {
            return Ok(kept);
        }
        hub.catalogue.create_token(user)
    }

    /// Asks the hub to stop, and returns at once.
    pub fn stop(&self) {
        // send_replace works without receivers: the hub may already have stopped.
        self.stop.send_replace(true);
    }

    /// Stops accepting, finishes requests in flight (at most `drain_timeout`), and returns when all is closed.
    /// Blocks: from async code, call it through `spawn_blocking`.
    pub fn shutdown(self) {
        self.stop();
        self.wait();
    }

    /// Blocks until the hub has stopped, because another thread called [`stop`](Self::stop).
    pub fn wait(mut self) {
        if let Some(thread) = self.thread.take()
            && thread.wait().is_err()
        {
            tracing::error!("the hub's thread panicked");
        }
    }
}

impl Drop for HubHandle {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Starts a hub on its own threads and returns once it accepts connections. Can be called from any thread, with or
/// without a tokio runtime.
pub fn serve(options: HubOptions) -> Result<HubHandle, HubError> {
    floe_front::telemetry::metrics();
    // Before anything is changed: files that another hub has just written would look like garbage.
    let mut lock = lock::Lock::take(&options.dir)?;
    let tls = tls::prepare(&options.tls, &options.dir, options.listen)?;
    let cannot_listen = |source| HubError::Listen {
        addr: options.listen,
        source,
    };
    let listener = std::net::TcpListener::bind(options.listen).map_err(cannot_listen)?;
    listener.set_nonblocking(true).map_err(cannot_listen)?;
    let addr = listener.local_addr().map_err(cannot_listen)?;
    lock.tell(addr)?;
    let hub = Arc::new(Hub::open(&options)?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("floe-hub")
        .enable_all()
        .build()
        .map_err(|e| HubError::Options(format!("cannot start the hub's threads: {e}")))?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener).map_err(cannot_listen)?
    };
    let (stop, stopped) = watch::channel(false);
    let (config, ca_file, fingerprint) = match tls {
        Some(tls) => (Some(tls.config), tls.ca_file, Some(tls.fingerprint)),
        None => (None, None, None),
    };
    let bounds = bounds(&options.limits);
    let running = Arc::downgrade(&hub);
    let serve = move || {
        runtime.spawn(state::housekeeping(hub.clone()));
        runtime.spawn(substrates::keep(hub.clone()));
        runtime.block_on(async {
            // On a worker thread, not on this one: `block_on` takes longer to wake up.
            let served = tokio::spawn(floe_front::run(
                listener,
                config,
                routes::router(hub),
                bounds,
                stopped,
            ));
            if let Err(error) = served.await {
                tracing::error!(%error, "the hub ended with a panic");
            }
        });
        runtime.shutdown_timeout(BLOCKING_DRAIN);
        drop(lock);
    };
    let thread = floe_threads::spawn("floe-hub-main", serve)
        .map_err(|error| HubError::Options(error.to_string()))?;
    tracing::info!(%addr, dir = %options.dir.display(), "hub started");
    Ok(HubHandle {
        addr,
        ca_file,
        fingerprint,
        hub: running,
        stop,
        thread: Some(thread),
    })
}

fn bounds(limits: &Limits) -> floe_front::Bounds {
    floe_front::Bounds {
        connections_max: limits.connections_max,
        connections_each_max: limits.connections_each_max,
        strangers: None,
        handshake: limits.handshake_timeout,
        head: limits.head_timeout,
        idle: limits.idle_timeout,
        pace: floe_front::pace::Pace {
            bytes_per_s_min: limits.slow_bytes_per_s,
            stretch: limits.slow_stretch,
        },
        drain: limits.drain_timeout,
    }
}

fn open_catalogue(dir: &Path) -> Result<Catalogue, HubError> {
    floe_store::private::make_dirs(dir).map_err(HubError::file("cannot create", dir))?;
    Catalogue::open(dir)
}

/// Creates a token in the catalogue of the hub in `dir` (running or not) for a user, who is created if necessary.
/// The token is returned once; only its hash is stored.
pub fn create_token(dir: &Path, user: &str) -> Result<String, HubError> {
    open_catalogue(dir)?.create_token(user)
}

/// Revokes all tokens of a user of the hub in `dir`. Returns how many there were. A running hub accepts a revoked token for
/// up to a second longer.
pub fn revoke_tokens(dir: &Path, user: &str) -> Result<usize, HubError> {
    open_catalogue(dir)?.revoke_tokens(user)
}

/// Returns the users of the hub in `dir`, each with the number of its tokens.
pub fn users(dir: &Path) -> Result<Vec<(String, u64)>, HubError> {
    open_catalogue(dir)?.users()
}

/// Sets those parts of a user's quota that `wish` names, at the hub in `dir` (running or not). A running hub applies
/// it at once.
pub fn set_quota(dir: &Path, user: &str, wish: &QuotaWish) -> Result<(), HubError> {
    open_catalogue(dir)?.set_quota(user, wish)
}

/// Returns what each user of the hub in `dir` uses and may use.
pub fn quotas(dir: &Path) -> Result<Vec<UserQuota>, HubError> {
    let catalogue = open_catalogue(dir)?;
    let folder = dir.join("traces");
    let traces =
        floe_traces::count_authors(&folder).map_err(HubError::file("cannot list", &folder))?;
    let default = Quota::default();
    let users = catalogue.users()?.into_iter().map(|(user, _)| {
        let wish = catalogue.quota(&user).map_err(catalogue.failed())?;
        Ok(UserQuota {
            used: catalogue.used(&user).map_err(catalogue.failed())?,
            traces: traces.get(&user).copied().unwrap_or(0),
            quota: wish.or(&default),
            wish,
            user,
        })
    });
    users.collect()
}
