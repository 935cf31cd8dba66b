//! Makes a source from an address: one entry for each kind of source.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use floe_http::Url;
use floe_image::{Hash, Kind, Layout, Manifest};

use crate::bucket::BUCKET_SCHEMES;
use crate::{
    Bucket, Directory, Files, Hub, LinkEstimate, Options, Origin, Request, Sink, Source,
    SourceError,
};

/// Makes a source for an origin. It doesn't connect yet, so a server that is down now is no error.
pub type Opens = dyn Fn(&Origin, &Options) -> Result<Arc<dyn Source>, SourceError> + Send + Sync;

/// A kind of source: the addresses that belong to it, and how one is made.
#[derive(Clone)]
pub struct Scheme {
    /// Its name, such as `hub`.
    pub kind: &'static str,
    /// The schemes of its URLs: what is before the `://`.
    pub names: &'static [&'static str],
    /// Returns whether a URL with such a scheme belongs to this kind.
    pub claims: fn(&Url) -> bool,
    /// Makes a source of this kind.
    pub open: Arc<Opens>,
}

/// The known kinds of sources; makes a source from an address.
///
/// A new kind of source is one more [`Scheme`]; code that handles addresses (commands, records of machines) needn't know it.
#[derive(Clone)]
pub struct Registry {
    /// Searched from the last to the first.
    schemes: Vec<Scheme>,
    options: Options,
}

impl Registry {
    /// Makes a registry of the kinds that every node knows:
    ///
    /// | address | kind | source |
    /// | --- | --- | --- |
    /// | a path, or `file:///path` | `directory` | [`Directory`] |
    /// | `http://host/path`, `https://host/path` | `web` | [`Hub`] or [`Files`], found out at first use |
    /// | `floe://host`, `floe+http://host` | `hub` | [`Hub`] over https, http |
    /// | `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` | `bucket` | [`Bucket`] |
    pub fn standard(options: Options) -> Registry {
        let mut registry = Registry {
            schemes: Vec::new(),
            options,
        };
        registry.add("directory", &["file"], |origin, _| {
            let path = origin.url().to_file_path();
            let path = path.map_err(|()| unsupported(origin, "write file:///path"))?;
            Ok(Arc::new(Directory::open(&path)?))
        });
        registry.add("bucket", &BUCKET_SCHEMES, |origin, options| {
            Ok(Arc::new(Bucket::new(origin, options)?))
        });
        registry.add("hub", &["floe", "floe+http"], |origin, options| {
            Ok(Arc::new(Hub::new(origin, options)?))
        });
        registry.add("web", &["https", "http"], |origin, options| {
            Ok(Arc::new(Web {
                hub: Hub::new(origin, options)?,
                files: Files::new(origin, options)?,
                is_hub: OnceLock::new(),
            }))
        });
        registry
    }

    fn add(
        &mut self,
        kind: &'static str,
        names: &'static [&'static str],
        open: impl Fn(&Origin, &Options) -> Result<Arc<dyn Source>, SourceError> + Send + Sync + 'static,
    ) {
        self.schemes.push(Scheme {
            kind,
            names,
            claims: |_| true,
            open: Arc::new(open),
        });
    }

    /// Adds one more kind, which is searched before the others.
    pub fn with(mut self, scheme: Scheme) -> Registry {
        self.schemes.push(scheme);
        self
    }

    /// Sets the longest time for names, manifests and layouts.
    pub fn within(mut self, timeout: Duration) -> Registry {
        self.options.timeout = timeout;
        self
    }

    /// Returns the origin at `address`: a URL, or a path on this host.
    pub fn origin(&self, address: &str) -> Result<Origin, SourceError> {
        let bad = |reason: String| SourceError::Unsupported {
            at: floe_http::shown(address),
            reason,
        };
        let url = match address.contains("://") {
            true => Url::parse(address).map_err(|e| bad(format!("not a URL ({e})")))?,
            false => std::path::absolute(Path::new(address))
                .ok()
                .and_then(|path| Url::from_file_path(path).ok())
                .ok_or_else(|| bad("not a path on this host".into()))?,
        };
        let mine = |scheme: &&Scheme| scheme.names.contains(&url.scheme()) && (scheme.claims)(&url);
        match self.schemes.iter().rev().find(mine) {
            Some(scheme) => Ok(Origin::new(scheme.kind, url)),
            None => Err(bad(format!(
                "unknown scheme {:?}; use a path, {}",
                url.scheme(),
                self.names()
            ))),
        }
    }

    /// Makes the bucket of an `s3://`, `gs://` or `az://` address, to write to. It doesn't connect yet.
    pub fn bucket(&self, origin: &Origin) -> Result<Bucket, SourceError> {
        Bucket::new(origin, &self.options)
    }

    /// Makes a source for `origin`. It doesn't connect yet.
    pub fn open(&self, origin: &Origin) -> Result<Arc<dyn Source>, SourceError> {
        let known = |scheme: &&Scheme| scheme.kind == origin.kind();
        match self.schemes.iter().rev().find(known) {
            Some(scheme) => (scheme.open)(origin, &self.options),
            None => Err(unsupported(
                origin,
                &format!("this node knows no sources of kind {}", origin.kind()),
            )),
        }
    }

    /// Makes a source for `address` with this token and this file of certificate authorities.
    pub fn open_at(
        &self,
        address: &str,
        token: Option<&str>,
        ca: Option<&Path>,
    ) -> Result<Arc<dyn Source>, SourceError> {
        let origin = self.origin(address)?;
        let origin = origin.with_token(token.map(str::to_owned));
        self.open(&origin.with_ca(ca.map(Path::to_owned)))
    }

    /// Returns the known schemes of URLs, for a message.
    fn names(&self) -> String {
        let mut names: Vec<String> = Vec::new();
        for name in self.schemes.iter().flat_map(|scheme| scheme.names) {
            let name = format!("{name}://");
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let last = names.pop().unwrap_or_default();
        format!("{} or {last}", names.join(", "))
    }
}

impl Default for Registry {
    /// Returns the standard kinds with the default options.
    fn default() -> Registry {
        Registry::standard(Options::default())
    }
}

fn unsupported(origin: &Origin, reason: &str) -> SourceError {
    SourceError::Unsupported {
        at: origin.shown(),
        reason: reason.into(),
    }
}

/// A hub or a plain web server. Which one it is is found out when it is first needed, since it may be down when a node starts.
struct Web {
    hub: Hub,
    files: Files,
    is_hub: OnceLock<bool>,
}

impl Web {
    /// Asks the source that it is. That it is no hub is believed for good only once the files have answered: what a network's page for
    /// signing in answers for a while is no hub's either.
    fn ask<T>(
        &self,
        proves: bool,
        call: impl FnOnce(&dyn Source) -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        let is_hub = match self.is_hub.get() {
            Some(known) => *known,
            None => self.hub.answers()?,
        };
        let outcome = match is_hub {
            true => call(&self.hub),
            false => call(&self.files),
        };
        if is_hub || (proves && outcome.is_ok()) {
            let _ = self.is_hub.set(is_hub);
        }
        outcome
    }
}

impl Source for Web {
    fn describe(&self) -> String {
        self.hub.describe()
    }

    fn resolve(&self, name: &str) -> Result<Hash, SourceError> {
        // an id is its own answer
        let asked = name.parse::<Hash>().is_err();
        self.ask(asked, |source| source.resolve(name))
    }

    fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError> {
        self.ask(true, |source| source.manifest(id))
    }

    fn layout(&self, id: &Hash) -> Result<Option<Layout>, SourceError> {
        self.ask(true, |source| source.layout(id))
    }

    fn is_own(&self, id: &Hash) -> Result<bool, SourceError> {
        self.ask(false, |source| source.is_own(id))
    }

    fn read(
        &self,
        image: &Hash,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        let proves = !wants.is_empty();
        self.ask(proves, |source| source.read(image, wants, request, sink))
    }

    fn link(&self) -> LinkEstimate {
        // the traffic of both, which never shrinks: what it is may be found out in between
        let (hub, files) = (self.hub.link(), self.files.link());
        match self.is_hub.get() {
            Some(false) => files.with(hub),
            _ => hub.with(files),
        }
    }
}
