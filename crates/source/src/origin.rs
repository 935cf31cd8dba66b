//! A place that has images: its address, and what it takes to get access.

use std::fmt;
use std::path::{Path, PathBuf};

use floe_http::Url;

/// A place that has images: which kind of source it is, its URL, its token and its certificate authority.
///
/// Two origins are equal if a source for one may serve the other's readers: if they agree in which server is asked, with which
/// token, and which certificates are trusted. A [`Registry`](crate::Registry) makes an origin from an address.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    kind: &'static str,
    url: Url,
    token: Option<String>,
    ca: Option<PathBuf>,
}

impl Origin {
    pub(crate) fn new(kind: &'static str, url: Url) -> Origin {
        Origin {
            kind,
            url,
            token: None,
            ca: None,
        }
    }

    /// Returns the same origin with a bearer token, which is sent to this origin's server and to no other.
    pub fn with_token(self, token: Option<String>) -> Origin {
        Origin { token, ..self }
    }

    /// Returns the same origin with a PEM file of the certificate authorities to trust instead of the system's; for a bucket beside those,
    /// since its credentials may come from another server.
    pub fn with_ca(self, ca: Option<PathBuf>) -> Origin {
        Origin { ca, ..self }
    }

    /// Returns which kind of source it is: a name in the [`Registry`](crate::Registry).
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Returns its URL; that of a directory is a `file://` URL.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Returns its token.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Returns the PEM file with its certificate authorities.
    pub fn ca(&self) -> Option<&Path> {
        self.ca.as_deref()
    }

    /// Returns its address for messages and logs, without secrets.
    pub fn shown(&self) -> String {
        match self.url.scheme() {
            "file" => self.url.path().to_owned(),
            _ => floe_http::shown(self.url.as_str()),
        }
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Origin")
            .field("kind", &self.kind)
            .field("url", &self.shown())
            .field("token", &self.token.as_ref().map(|_| "***"))
            .field("ca", &self.ca)
            .finish()
    }
}
