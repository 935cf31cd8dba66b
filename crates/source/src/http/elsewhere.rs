//! The places that a server sends us to.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use floe_http::header::HeaderMap;
use floe_http::{Builder, Connections, Method, Position, Proxies, Server, Url, redirected};
use parking_lot::Mutex;

/// Most connections to one place.
const CONNECTIONS_MAX: usize = 16;

/// Most servers whose connections are kept: a bucket behind a hub is one, and a network of caches has a few.
const SERVERS_MAX: usize = 8;

/// Makes servers of the places that one server sends us to, and keeps connections to them.
pub(super) struct Elsewhere {
    /// The server that was named.
    base: Url,
    /// How it is spoken to.
    tls: Option<Arc<rustls::ClientConfig>>,
    ca: Option<PathBuf>,
    proxies: Proxies,
    known: Mutex<HashMap<String, Known>>,
}

#[derive(Clone)]
struct Known {
    server: Arc<Server>,
    kept: Arc<Connections>,
}

/// Where a request goes that was sent elsewhere.
pub(super) struct Place {
    url: Url,
    known: Known,
    same_server: bool,
}

impl Place {
    /// Returns its connections.
    pub fn kept(&self) -> &Connections {
        &self.known.kept
    }

    /// Returns whether it is on the server that was named, which may have the token.
    pub fn is_same_server(&self) -> bool {
        self.same_server
    }

    /// Begins a request for it.
    pub fn request(&self, method: Method) -> Builder {
        let path = &self.url[Position::BeforePath..Position::AfterQuery];
        self.known.server.request(method, path)
    }

    /// Returns the server for messages: not the whole address, which may be secret.
    pub fn shown(&self) -> &str {
        self.known.server.shown()
    }
}

impl Elsewhere {
    /// Remembers the server that was named, how it is spoken to, and which authorities and proxies there are.
    pub fn new(
        base: Url,
        tls: Option<Arc<rustls::ClientConfig>>,
        ca: Option<&Path>,
        proxies: Proxies,
    ) -> Elsewhere {
        Elsewhere {
            base,
            tls,
            ca: ca.map(Path::to_owned),
            proxies,
            known: Mutex::default(),
        }
    }

    /// Returns where an answer sends us: one to a request for `path` of the server that was named, or for the place before. The error
    /// says why nobody goes there.
    pub fn next(
        &self,
        before: Option<&Place>,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Place, String> {
        let from = match before {
            Some(place) => place.url.clone(),
            None => self.asked(path)?,
        };
        let url = redirected(&from, headers)?;
        Ok(Place {
            known: self.server_of(&url)?,
            same_server: url.origin() == self.base.origin(),
            url,
        })
    }

    /// Returns the URL of a path below the server that was named.
    fn asked(&self, path: &str) -> Result<Url, String> {
        let base = self.base.as_str().trim_end_matches('/');
        Url::parse(&format!("{base}{path}")).map_err(|e| format!("{path:?} is no path ({e})"))
    }

    fn server_of(&self, url: &Url) -> Result<Known, String> {
        let mut root = url.clone();
        root.set_path("/");
        root.set_query(None);
        let mut all = self.known.lock();
        if let Some(known) = all.get(root.as_str()) {
            return Ok(known.clone());
        }
        // an authority that was given for one server vouches for that one; elsewhere this system's do as well
        let tls = match url.scheme() {
            "https" if url.host() == self.base.host() && self.tls.is_some() => self.tls.clone(),
            "https" => Some(floe_http::trusting_also(self.ca.as_deref())?),
            _ => None,
        };
        let server = Server::new(&root, tls)?.through(self.proxies.before(&root)?);
        let server = Arc::new(server);
        let known = Known {
            kept: Arc::new(Connections::new(server.clone(), CONNECTIONS_MAX)),
            server,
        };
        if all.len() >= SERVERS_MAX {
            all.clear();
        }
        all.insert(root.into(), known.clone());
        Ok(known)
    }
}
