//! A cluster: nodes that know each other by certificates. What they ask each other, and what forks read, is sent over TLS
//! with both sides authenticated.
//!
//! ```text
//! first host                        another host
//! init: a CA, which never leaves
//! invite ---- one line, by hand --> join: makes its key
//!        <--- TLS, CA by fingerprint: secret, signing request
//!        ---- certificate, CA, roster
//! ```
//! From then on both are *members*: each answers on a port of its own (`listener`), and only members. The *roster* (`roster`)
//! lists them; the first host distributes it and the others ask for it. A member takes none that is older than what it has seen, or that
//! has forgotten who was removed. A certificate alone says who somebody was when it was signed (`trust`). Certificates are renewed
//! automatically (`upkeep`).

mod call;
mod certificates;
mod files;
mod invitation;
mod listener;
mod membership;
mod record;
mod remote;
mod roster;
mod routes;
mod trust;
mod upkeep;

pub use call::{Ask, ask, ask_server};
pub use remote::{End, Failed, Remote};
pub use roster::{Member, check_name};
pub use routes::{Tell, router};

use axum::Router;
use files::{Files, Kept};
use floe_api::paths::Home;
use floe_ground::error::NodeError;
use floe_http::Url;
use parking_lot::{Mutex, RwLock};
use record::{Authority, Membership};
use std::{
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::{runtime::Handle, sync::watch};
use trust::Trust;

/// This node's place in a cluster, if it is in one.
pub struct Cluster {
    files: Files,
    place: RwLock<Option<Arc<Place>>>,
    /// Held while the node joins or leaves a cluster or changes its place.
    changing: Mutex<()>,
    service: Mutex<Service>,
}

/// A place in a cluster.
struct Place {
    membership: RwLock<Membership>,
    trust: Arc<Trust>,
    client: Arc<rustls::ClientConfig>,
    /// What the authority knows; `None` if another node is the authority.
    authority: Option<Mutex<Authority>>,
    /// Whether this node has asked the members for what it may have forgotten, if it is the authority: it may come from a backup, and
    /// answers nobody before it has.
    recalled: AtomicBool,
}

/// The port for members.
#[derive(Default)]
struct Service {
    /// The threads that serve it and its routes; `None` before the node serves.
    with: Option<(Handle, Router)>,
    /// Ends the present listener.
    stop: Option<watch::Sender<bool>>,
    /// Why there is no listener, if there should be one.
    trouble: String,
    /// Why the authority did not send the roster, if it did not.
    unheard: String,
}

impl Cluster {
    /// Reads whether this node is in a cluster. If its files cannot be read it has no place: it then trusts no member, and
    /// still sends nothing in clear text. That is logged.
    pub fn open(home: &Home) -> Result<Cluster, NodeError> {
        let files = Files::open(home)?;
        let place = Place::found(&files).unwrap_or_else(|error| {
            tracing::error!(%error, "this node has lost its place in its cluster; its files are read again now and then, or floe cluster leave, then join again");
            None
        });
        Ok(Cluster {
            files,
            place: RwLock::new(place.map(Arc::new)),
            changing: Mutex::default(),
            service: Mutex::default(),
        })
    }

    fn place(&self) -> Option<Arc<Place>> {
        self.place.read().clone()
    }

    /// Looks for the node's place again, if its files could not be read: the error may have passed.
    fn find_again(&self) {
        let _changing = self.changing.lock();
        if self.place().is_none()
            && self.files.has_place()
            && let Ok(Some(place)) = Place::found(&self.files)
        {
            tracing::info!("this node has found its place in its cluster again");
            *self.place.write() = Some(Arc::new(place));
        }
    }

    /// Returns the TLS configuration for asking members, if this node is one.
    pub fn tls(&self) -> Option<Arc<rustls::ClientConfig>> {
        self.place().map(|place| place.client.clone())
    }

    /// Returns the TLS configuration for reading from a parent at `floe://`, which is a member. If this node is not a member,
    /// it trusts nobody.
    pub fn tls_of_parents(&self) -> Arc<rustls::ClientConfig> {
        self.tls().unwrap_or_else(trust::nobody)
    }

    /// Returns the address at which the other members reach this node, if it is one.
    pub fn own_address(&self) -> Option<SocketAddr> {
        let place = self.place()?;
        let address = place.membership.read().address;
        Some(address)
    }

    /// Returns the address on which this node listens for members, if it is one.
    pub fn listens_at(&self) -> Option<SocketAddr> {
        let place = self.place()?;
        let listen = place.membership.read().listen;
        Some(listen)
    }

    /// Returns the other members, if this node is one.
    pub fn others(&self) -> Vec<Member> {
        let Some(place) = self.place() else {
            return Vec::new();
        };
        let own = place.membership.read().id.clone();
        let members = place.trust.roster().members.into_iter();
        members.filter(|member| member.id != own).collect()
    }

    /// Returns the SHA-256 of the certificate of the cluster's authority, if this node is a member.
    pub fn fingerprint(&self) -> Option<[u8; 32]> {
        Some(self.place()?.trust.fingerprint())
    }

    /// Finds a member by its name or by `https://ADDRESS:PORT`.
    pub fn find(&self, text: &str) -> Option<Member> {
        let roster = self.place()?.trust.roster();
        let url = Url::parse(text).ok().filter(|url| url.scheme() == "https");
        let address: Option<SocketAddr> = match url {
            Some(url) => floe_http::socket_address(&url),
            None => text.parse().ok(),
        };
        let found = match address {
            Some(address) => roster.at(address),
            None => roster.named(text),
        };
        found.cloned()
    }

    /// Answers members on threads of this runtime from now on, whenever the node is in a cluster.
    pub fn serve(&self, runtime: Handle, router: Router) {
        self.service.lock().with = Some((runtime, router));
        self.ensure_listening();
    }

    /// Listens for members if the node should and does not.
    fn ensure_listening(&self) {
        let _changing = self.changing.lock();
        let Some(place) = self.place() else { return };
        let may = place.authority.is_none() || place.recalled.load(Ordering::Relaxed);
        if !may || self.service.lock().stop.is_some() {
            return;
        }
        let listen = place.membership.read().listen;
        let started = TcpListener::bind(listen)
            .map_err(|error| error.to_string())
            .and_then(|listener| self.start(&place, listener));
        if let Err(why) = started {
            tracing::error!(%listen, why, "members of the cluster are not answered");
            self.service.lock().trouble = format!("cannot listen on {listen}: {why}");
        }
    }

    /// Starts answering on a port.
    fn start(&self, place: &Place, listener: TcpListener) -> Result<(), String> {
        let mut service = self.service.lock();
        let Some((runtime, router)) = service.with.clone() else {
            return Ok(());
        };
        let tls = place.trust.server()?;
        let listener = {
            let _inside = runtime.enter();
            listener
                .set_nonblocking(true)
                .and_then(|()| tokio::net::TcpListener::from_std(listener))
                .map_err(|error| error.to_string())?
        };
        let (stop, stopped) = watch::channel(false);
        let trust = place.trust.clone();
        let router = routes::guarded(router, trust);
        runtime.spawn(floe_front::run(
            listener,
            Some(tls),
            router,
            listener::BOUNDS,
            stopped,
        ));
        service.stop = Some(stop);
        service.trouble = String::new();
        Ok(())
    }

    /// Takes a place that is already on the disk, and answers members from now on.
    fn enter(&self, place: Place, listener: TcpListener) -> Result<(), String> {
        self.start(&place, listener)?;
        *self.place.write() = Some(Arc::new(place));
        Ok(())
    }

    /// Gives the place up; connections that still use it trust nobody any more.
    fn exit(&self) -> Result<(), NodeError> {
        self.files.clear()?;
        if let Some(place) = self.place.write().take() {
            place.trust.forget_all();
        }
        if let Some(stop) = self.service.lock().stop.take() {
            let _ = stop.send(true); // it may have ended already
        }
        Ok(())
    }
}

impl Place {
    /// Returns the place that is on the disk, if there is one.
    fn found(files: &Files) -> Result<Option<Place>, NodeError> {
        files.load()?.map(Place::of).transpose()
    }

    fn of(kept: Kept) -> Result<Place, NodeError> {
        let bad = |why: String| floe_ground::error::failed(why, "");
        let (mut roster, mut invites_until) = (kept.roster, 0);
        let mut authority = None;
        if let Some((mut known, ca_key)) = kept.authority {
            // of the two, one may come from a backup
            if known.roster.recall(&roster, &ca_key) {
                known.roster.seal(&ca_key);
            }
            roster = known.roster.clone();
            invites_until = known.invites_until();
            authority = Some(Mutex::new(known));
        }
        let trust = Arc::new(Trust::new(&kept.ca, &kept.node, &kept.node, roster).map_err(bad)?);
        trust.invite_until(invites_until);
        Ok(Place {
            membership: RwLock::new(kept.membership),
            client: trust.client(),
            trust,
            authority,
            recalled: AtomicBool::new(false),
        })
    }
}
