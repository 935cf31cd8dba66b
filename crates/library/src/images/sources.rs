//! Finds the sources of an image by its addresses, and shares one fetcher among all machines that read the same sources.

use crate::images::{
    address::{Reference, is_address, references},
    named::named,
};
use floe_api::credentials::{HubAddress, OwnHub, Tokens, check_token};
use floe_ground::{
    error::{NodeError, usage},
    patience::{Step, impatient, patiently},
};
use floe_image::{Hash, Manifest};
use floe_inventory::inventory::record::Origin;
use floe_source::{
    Bucket, Failover, FetchOptions, Fetcher, Registry, Retry, RetryOptions, Scheme, Source,
    SourceError, Striped,
};
use floe_store::{Cache, Repository};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

mod small;

/// How long a further source may take to say whether it has an image.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// Binds a request's token to the first hub that the request names; it is sent to no other.
pub fn bind_token<'a>(
    token: Option<&str>,
    addresses: impl IntoIterator<Item = &'a str>,
) -> Result<Tokens, NodeError> {
    let Some(token) = token else {
        return Ok(Tokens::default());
    };
    check_token(token).map_err(|why| usage(why, "leave the token out, or give the hub's"))?;
    let hub = addresses.into_iter().find_map(HubAddress::of);
    Ok(hub.map(|hub| (hub, token.to_owned())).into_iter().collect())
}

/// An image that was found.
#[derive(Clone)]
pub struct Found {
    /// Its id.
    pub id: Hash,
    /// What it says about itself, verified.
    pub manifest: Manifest,
    /// Where it comes from.
    pub origin: Origin,
    /// The fetcher for that origin.
    pub fetcher: Arc<Fetcher>,
    /// What QEMU loads, once it has been read. It is shared, since many machines may start from one image at the same time.
    pub loads: Arc<OnceLock<Loads>>,
}

/// What QEMU loads of an image before its guest goes on.
#[derive(Clone)]
pub struct Loads {
    /// The device state.
    pub device: Vec<u8>,
    /// Chunks of graphics memory that are not zero.
    pub vram: Vec<(u32, Box<[u8; floe_image::CHUNK_SIZE]>)>,
}

impl Found {
    /// Returns another value for the same image, which shares fetcher and loads.
    pub fn copy(&self) -> Found {
        Found {
            id: self.id,
            manifest: self.manifest.clone(),
            origin: self.origin.clone(),
            fetcher: self.fetcher.clone(),
            loads: self.loads.clone(),
        }
    }
}

/// An additional way in which images come to this node, beside directories, hubs and buckets: the memory of forks, for one.
pub trait Provide: Send + Sync {
    /// The addresses at which others provide in this way, and how one is opened; `None` if nobody else does. Asked once.
    fn scheme(&self) -> Option<Scheme>;

    /// Returns a source for what is on this host: what this way provides here, then `repository`.
    fn here(&self, repository: Arc<dyn Source>) -> Arc<dyn Source>;

    /// Returns a source for what another node provides, from its opened address.
    fn elsewhere(&self, source: Arc<dyn Source>, origin: &Origin) -> Arc<dyn Source>;

    /// Returns a source for a place of the standard kinds that also reads in this way what can be had so; the place itself if this way
    /// adds nothing to it.
    fn beside(&self, source: Arc<dyn Source>, place: &floe_source::Origin) -> Arc<dyn Source> {
        let _ = place;
        source
    }

    /// Returns a source for what another node provides that first reads in this way what can be had so; `source` itself if nothing can.
    fn before(&self, source: Arc<dyn Source>) -> Arc<dyn Source> {
        source
    }
}

/// Finds images and keeps one fetcher for each set of sources, so that machines of one image share connections.
pub struct Sources {
    repo: Repository,
    cache: Arc<Cache>,
    /// How each fetcher is made.
    fetch: FetchOptions,
    registry: Registry,
    own_hub: Option<OwnHub>,
    /// By the kind of their schemes, if they have one.
    providers: Vec<(Option<&'static str>, Box<dyn Provide>)>,
    /// Fetchers in use, by the addresses asked and by the token and CA used for each.
    fetchers: Mutex<HashMap<Vec<floe_source::Origin>, Weak<Fetcher>>>,
}

impl Sources {
    /// `fetch`: in which order guests' requests for chunks go, and how long they wait for a source that doesn't answer. `own_hub`: the
    /// hub in this process, which knows the node's user. `providers`: ways in which images come here beside the standard ones.
    pub fn new(
        repo: Repository,
        cache: Arc<Cache>,
        fetch: FetchOptions,
        index_dir: PathBuf,
        own_hub: Option<OwnHub>,
        providers: Vec<Box<dyn Provide>>,
    ) -> Sources {
        let mut registry = Registry::standard(floe_source::Options {
            index_dir: Some(index_dir),
            ..Default::default()
        });
        let enter = |provider: Box<dyn Provide>| {
            let scheme = provider.scheme();
            let kind = scheme.as_ref().map(|scheme| scheme.kind);
            if let Some(scheme) = scheme {
                registry = registry.clone().with(scheme);
            }
            (kind, provider)
        };
        let providers = providers.into_iter().map(enter).collect();
        Sources {
            repo,
            cache,
            fetch,
            registry,
            own_hub,
            providers,
            fetchers: Mutex::default(),
        }
    }

    /// Finds the id that a name or address points to, and a source that has it. `token` is for that address. `tell` is called after each
    /// step with the step's name; where a source was reached and gives nothing usable, it is called to wait before the next try.
    pub fn find(
        &self,
        image: &str,
        token: Option<&str>,
        ca: Option<&str>,
        tell: impl FnMut(Step<'_>) -> Result<(), NodeError>,
    ) -> Result<Found, NodeError> {
        let access = Origin {
            tokens: bind_token(token, [image])?,
            ca: ca.map(str::to_owned),
            ..Default::default()
        };
        self.find_in(image, &[], access, tell)
    }

    /// The same with more sources, which are read together with the first. `access` has the tokens and certificate authorities for
    /// all of them; its addresses are not looked at.
    pub fn find_in(
        &self,
        image: &str,
        more: &[String],
        access: Origin,
        mut tell: impl FnMut(Step<'_>) -> Result<(), NodeError>,
    ) -> Result<Found, NodeError> {
        if !is_address(image) && more.is_empty() {
            let id = named(&self.repo, image)?;
            tell(Step::Done("resolve"))?;
            let manifest = self.repo.manifest(&id)?;
            tell(Step::Done("manifest"))?;
            let origin = Origin::default();
            let fetcher = self.fetcher(&origin)?;
            return Ok(Found {
                id,
                manifest,
                origin,
                fetcher,
                loads: Arc::default(),
            });
        }
        let mut origin = Origin {
            urls: Vec::new(),
            ..access
        };
        let mut found: Option<Hash> = None;
        let mut trouble: Option<NodeError> = None;
        for text in std::iter::once(image).chain(more.iter().map(String::as_str)) {
            // once the id is known, further sources may even be down
            if let Some(id) = found {
                origin.urls.push(self.base_of(text, &id, &origin)?);
                continue;
            }
            // the only source is waited for; of several the next one may know it
            let resolved = match more.is_empty() {
                true => self.resolve(text, &origin, &mut tell),
                false => self.resolve(text, &origin, &mut impatient),
            };
            match resolved {
                Ok((base, id)) => {
                    origin.urls.push(base);
                    found = Some(id);
                }
                Err(error) => {
                    trouble.get_or_insert(error);
                }
            }
        }
        let Some(id) = found else {
            return Err(trouble.unwrap_or_else(|| usage("no image was named", "name one")));
        };
        tell(Step::Done("resolve"))?;
        let fetcher = self.fetcher(&origin)?;
        let asked = || fetcher.source().manifest(&id);
        let passes = |error: &SourceError| {
            was_reached(error) || matches!(error, SourceError::Unreachable { .. })
        };
        let manifest = patiently(asked, passes, &mut tell)?;
        tell(Step::Done("manifest"))?;
        Ok(Found {
            id,
            manifest,
            origin,
            fetcher,
            loads: Arc::default(),
        })
    }

    /// An image whose id and place are known.
    pub fn find_at(&self, id: Hash, origin: Origin) -> Result<Found, NodeError> {
        let fetcher = self.fetcher(&origin)?;
        let manifest = fetcher.source().manifest(&id)?;
        Ok(Found {
            id,
            manifest,
            origin,
            fetcher,
            loads: Arc::default(),
        })
    }

    fn resolve(
        &self,
        text: &str,
        origin: &Origin,
        tell: &mut dyn FnMut(Step<'_>) -> Result<(), NodeError>,
    ) -> Result<(String, Hash), NodeError> {
        let ways = references(text)?;
        let open = |base: &str| self.registry.open(&self.place(base, origin)?);
        let asked = || {
            first_that_has(&ways, open).map_err(|error| {
                error.unwrap_or_else(|| SourceError::Unsupported {
                    at: floe_http::shown(text),
                    reason: "names no image".into(),
                })
            })
        };
        patiently(asked, was_reached, tell)
    }

    /// Returns the address of the source that `text` names, one more of an image whose id is known. Where the text can be read
    /// in several ways (`https://two/team/web`: the image `team/web` of a hub, the image `web` of a static server's directory
    /// `team`, or a directory `team/web` of one), it is the way in which the image is found, or the likeliest if nothing answers.
    fn base_of(&self, text: &str, id: &Hash, origin: &Origin) -> Result<String, NodeError> {
        let ways = references(text);
        if text.contains('#') {
            return Ok(ways?.swap_remove(0).base);
        }
        let bases = ways.into_iter().flatten().map(|way| way.base);
        let bases = bases.chain([text.trim_end_matches('/').to_owned()]);
        let ways: Vec<Reference> = bases
            .map(|base| Reference {
                base,
                name: id.to_string(),
            })
            .collect();
        let likeliest = ways[0].base.clone();
        if ways.len() == 1 {
            return Ok(likeliest);
        }
        let open = |base: &str| self.ask_one(base, origin, ASK_TIMEOUT);
        Ok(first_that_has(&ways, open).map_or(likeliest, |(base, _)| base))
    }

    /// One address of an image's, with the token and the certificate authorities for it.
    fn place(&self, address: &str, of: &Origin) -> Result<floe_source::Origin, SourceError> {
        let token = self.token_for(address, of.token_for(address));
        let place = self.registry.origin(address)?.with_token(token);
        Ok(place.with_ca(of.ca_for(address).map(PathBuf::from)))
    }

    /// Whether a hub may be at an address: it is neither a directory nor a bucket, nor what another way brings.
    pub fn may_be_hub(&self, address: &str) -> bool {
        let place = self.registry.origin(address);
        place.is_ok_and(|place| matches!(place.kind(), "hub" | "web"))
    }

    /// The bucket at an address, to write to.
    pub(crate) fn bucket(&self, address: &str, ca: Option<&str>) -> Result<Bucket, SourceError> {
        let access = Origin {
            ca: ca.map(str::to_owned),
            ..Default::default()
        };
        self.registry.bucket(&self.place(address, &access)?)
    }

    /// A source for one of an image's addresses alone, which answers within `timeout` or not at all.
    pub fn ask_one(
        &self,
        address: &str,
        of: &Origin,
        timeout: Duration,
    ) -> Result<Arc<dyn Source>, SourceError> {
        let registry = self.registry.clone().within(timeout);
        registry.open(&self.place(address, of)?)
    }

    /// The token for an address: the one that was given for it, or that of this process's own hub.
    pub fn token_for(&self, address: &str, given: Option<&str>) -> Option<String> {
        let own = || self.own_hub.as_ref()?.token_for(address);
        given.or_else(own).map(str::to_owned)
    }

    /// The fetcher for these sources, shared while anybody uses it.
    pub fn fetcher(&self, origin: &Origin) -> Result<Arc<Fetcher>, NodeError> {
        let places = origin.urls.iter().map(|url| self.place(url, origin));
        let places = places.collect::<Result<Vec<_>, _>>()?;
        let mut fetchers = self.fetchers.lock();
        if let Some(fetcher) = fetchers.get(&places).and_then(Weak::upgrade) {
            return Ok(fetcher);
        }
        // this host is asked first, because a look into the repository takes microseconds
        let repository = floe_source::Directory::new(self.repo.clone());
        let here = self.providers.iter();
        let here = here.fold(
            Arc::new(repository) as Arc<dyn Source>,
            |here, (_, provider)| provider.here(here),
        );
        let mut opened = vec![here];
        let mut whole: Vec<Arc<dyn Source>> = Vec::new();
        for place in &places {
            let source = Retry::new(self.registry.open(place)?, RetryOptions::default());
            let mut providers = self.providers.iter();
            match providers.find(|(kind, _)| *kind == Some(place.kind())) {
                Some((_, provider)) => {
                    let there = provider.elsewhere(Arc::new(source), origin);
                    let all = self.providers.iter();
                    opened.push(all.fold(there, |source, (_, one)| one.before(source)));
                }
                None => {
                    let plain = Arc::new(source) as Arc<dyn Source>;
                    let all = self.providers.iter();
                    whole.push(all.fold(plain, |source, (_, one)| one.beside(source, place)));
                }
            }
        }
        // each of the others has the whole image: together they have more bandwidth than one
        match whole.len() {
            0 | 1 => opened.append(&mut whole),
            _ => opened.push(Arc::new(Striped::new(whole))),
        }
        let source: Arc<dyn Source> = match opened.len() {
            1 => opened.remove(0),
            _ => Arc::new(Failover::new(opened)),
        };
        let options = self.fetch.clone();
        let fetcher = Arc::new(Fetcher::new(source, self.cache.clone(), options));
        fetchers.retain(|_, fetcher| fetcher.strong_count() > 0);
        fetchers.insert(places, Arc::downgrade(&fetcher));
        Ok(fetcher)
    }

    /// The fetchers in use, each with the addresses that it asks, as they may be shown; none are those of the repository alone.
    pub fn links(&self) -> Vec<(Vec<String>, Arc<Fetcher>)> {
        let fetchers = self.fetchers.lock();
        let in_use = fetchers.iter().filter_map(|(places, fetcher)| {
            let places = places.iter().map(floe_source::Origin::shown).collect();
            Some((places, fetcher.upgrade()?))
        });
        in_use.collect()
    }

    /// The fetcher for these sources, if anybody uses it.
    pub fn fetcher_in_use(&self, origin: &Origin) -> Option<Arc<Fetcher>> {
        let places = origin.urls.iter().map(|url| self.place(url, origin));
        let places = places.collect::<Result<Vec<_>, _>>().ok()?;
        self.fetchers.lock().get(&places).and_then(Weak::upgrade)
    }
}

/// Returns whether the error is of a source that was reached and may give a usable answer later.
fn was_reached(error: &SourceError) -> bool {
    matches!(error, SourceError::Unanswered { .. })
}

/// Tries one way of reading the address after the other, until one has the image or fails. Returns that way's address and the image's id.
/// The error is the failure, or else what the first way said that denies or lacks the image; `None` if there are no ways.
fn first_that_has(
    ways: &[Reference],
    open: impl Fn(&str) -> Result<Arc<dyn Source>, SourceError>,
) -> Result<(String, Hash), Option<SourceError>> {
    let (mut denied, mut lacks) = (None, None);
    for way in ways {
        match open(&way.base).and_then(|source| source.resolve(&way.name)) {
            Ok(id) => return Ok((way.base.clone(), id)),
            Err(error @ SourceError::Missing { .. }) => {
                lacks.get_or_insert(error);
            }
            // a bucket behind the web that nobody may list says so of each name that it does not have
            Err(error @ SourceError::Denied { .. }) => {
                denied.get_or_insert(error);
            }
            Err(error) => return Err(Some(denied.unwrap_or(error))),
        }
    }
    Err(denied.or(lacks))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A server that answers every request with `answer` and keeps what it was asked.
    pub fn server(answer: String) -> (String, Arc<Mutex<Vec<String>>>) {
        use std::io::{Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let keep = heard.clone();
        let served = floe_threads::spawn("a-server", move || {
            for mut stream in listener.incoming().flatten() {
                let mut head = Vec::new();
                let mut piece = [0; 4096];
                while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                    match stream.read(&mut piece) {
                        Ok(n) if n > 0 => head.extend_from_slice(&piece[..n]),
                        _ => break,
                    }
                }
                keep.lock()
                    .push(String::from_utf8_lossy(&head).into_owned());
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        served.unwrap();
        (url, heard)
    }

    pub(crate) fn sources_in(dir: &std::path::Path, own_hub: Option<OwnHub>) -> Sources {
        Sources::new(
            Repository::create(&dir.join("repo")).unwrap(),
            Arc::new(Cache::open(&dir.join("cache"), 1 << 20).unwrap()),
            FetchOptions::default(),
            dir.join("index"),
            own_hub,
            Vec::new(),
        )
    }

    #[test]
    fn a_further_source_is_what_its_address_says_also_while_it_is_down() {
        let dir = tempfile::tempdir().unwrap();
        let sources = sources_in(dir.path(), None);
        // a port that refuses connections
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let base = |text: &str| {
            let found = sources.base_of(text, &Hash::of(b"web"), &Origin::default());
            found.unwrap()
        };
        assert_eq!(base(&at), at);
        assert_eq!(base(&format!("{at}/web")), at, "an image of a hub");
        assert_eq!(base(&format!("{at}/team/web:12")), at);
        assert_eq!(
            base(&format!("{at}/any/path#web")),
            format!("{at}/any/path")
        );
        assert_eq!(base("s3://bucket/prefix/web"), "s3://bucket/prefix");
    }

    #[test]
    fn a_way_that_is_denied_hides_no_other_and_is_what_the_user_is_told() {
        let ways = ["denies", "lacks", "fails", "other"].map(|base| Reference {
            base: base.into(),
            name: "web".into(),
        });
        let (at, what) = ("there", "image web");
        let ask = |range: std::ops::Range<usize>| {
            let asked = Mutex::new(0);
            let open = |base: &str| {
                *asked.lock() += 1;
                let (at, what) = (at.to_owned(), what.to_owned());
                let reason = "no".to_owned();
                Err(match base {
                    "denies" => SourceError::Denied {
                        at,
                        what,
                        fix: reason,
                    },
                    "lacks" => SourceError::Missing { at, what },
                    _ => SourceError::Unanswered { at, what, reason },
                })
            };
            let error = first_that_has(&ways[range], open).unwrap_err();
            (error, asked.into_inner())
        };
        for (range, asked) in [(0..2, 2), (0..4, 3)] {
            let (error, count) = ask(range);
            assert!(matches!(error, Some(SourceError::Denied { .. })));
            assert_eq!(count, asked);
        }
        assert!(matches!(
            ask(1..4),
            (Some(SourceError::Unanswered { .. }), 2)
        ));
        assert!(matches!(ask(1..2).0, Some(SourceError::Missing { .. })));
        assert!(ask(0..0).0.is_none());
    }

    #[test]
    fn a_fetcher_is_shared_by_those_who_ask_the_same_as_the_same_and_believe_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let sources = sources_in(dir.path(), None);
        let ca = |name: &str| {
            let key = rcgen::generate_simple_self_signed(vec![name.into()]).unwrap();
            let file = dir.path().join(name);
            std::fs::write(&file, key.cert.pem()).unwrap();
            Some(file.to_str().unwrap().to_owned())
        };
        let origin = |ca: &Option<String>, token: &str| Origin {
            urls: vec!["https://hub/team".into()],
            token: Some(token.into()),
            ca: ca.clone(),
            ..Default::default()
        };
        let (one, two) = (ca("one"), ca("two"));
        let first = sources.fetcher(&origin(&one, "a")).unwrap();
        let again = sources.fetcher(&origin(&one, "a")).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        for other in [origin(&two, "a"), origin(&one, "b"), origin(&None, "a")] {
            // a system without certificate authorities gives an error, and nothing is shared
            if let Ok(other) = sources.fetcher(&other) {
                assert!(!Arc::ptr_eq(&first, &other));
            }
        }
    }

    #[test]
    fn each_source_is_believed_by_its_own_authority_and_the_others_by_the_common_one() {
        let dir = tempfile::tempdir().unwrap();
        let sources = sources_in(dir.path(), None);
        let ca = |name: &str| {
            let key = rcgen::generate_simple_self_signed(vec![name.into()]).unwrap();
            let file = dir.path().join(name);
            std::fs::write(&file, key.cert.pem()).unwrap();
            file.to_str().unwrap().to_owned()
        };
        let (one, two, common) = (ca("one"), ca("two"), ca("common"));
        let of = |first: &str, second: &str| Origin {
            urls: vec!["https://one/team".into(), "floe://two".into()],
            ca: Some(common.clone()),
            cas: [("https://one", first), ("https://two", second)]
                .map(|(hub, ca)| (HubAddress::of(hub).unwrap(), ca.to_owned()))
                .into(),
            ..Default::default()
        };
        let origin = of(&one, &two);
        let trusted = |address: &str| {
            let place = sources.place(address, &origin).unwrap();
            place.ca().unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(trusted("https://one/team"), one);
        assert_eq!(trusted("floe://two"), two);
        assert_eq!(trusted("https://one:4500/team"), common, "another server");
        assert_eq!(trusted("s3://two/team"), common);
        let first = sources.fetcher(&origin).unwrap();
        assert!(Arc::ptr_eq(
            &first,
            &sources.fetcher(&of(&one, &two)).unwrap()
        ));
        for other in [of(&two, &one), of(&one, &one), of(&one, &common)] {
            assert!(!Arc::ptr_eq(&first, &sources.fetcher(&other).unwrap()));
        }
    }

    #[test]
    fn a_token_reaches_the_hub_that_it_is_for_and_no_other_server() {
        let dir = tempfile::tempdir().unwrap();
        let none = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        let (elsewhere, led) = server(none.into());
        let away = format!(
            "HTTP/1.1 307 Temporary Redirect\r\nlocation: {elsewhere}/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
        let (hub, asked) = server(away);
        let (other, also) = server(none.into());
        let (own, mine) = server(none.into());
        let own_hub = OwnHub {
            hub: HubAddress::of(&own).unwrap(),
            token: "floe_own".into(),
        };
        let sources = sources_in(dir.path(), Some(own_hub));
        let more = [format!("{other}/web"), format!("{own}/web")];
        let image = format!("{hub}/web");
        let tokens = bind_token(Some("floe_given"), [&*image]).unwrap();
        let access = Origin {
            tokens,
            ..Default::default()
        };
        let found = sources.find_in(&image, &more, access, impatient);
        assert!(found.is_err());
        let carried = |heard: &Mutex<Vec<String>>, token: &str| {
            let heard = heard.lock();
            assert!(!heard.is_empty(), "it was asked");
            let with = |head: &&String| head.to_lowercase().contains(&format!("bearer {token}"));
            (
                heard.iter().filter(with).count() == heard.len(),
                heard.iter().any(|head| head.contains("floe_")),
            )
        };
        assert_eq!(carried(&asked, "floe_given"), (true, true));
        assert_eq!(
            carried(&also, "floe_given"),
            (false, false),
            "another server"
        );
        assert_eq!(carried(&mine, "floe_own"), (true, true));
        assert_eq!(
            carried(&led, "floe_given"),
            (false, false),
            "where a redirect leads"
        );
        assert!(
            bind_token(Some(""), [&*image]).is_err(),
            "an empty token is not none"
        );
    }

    #[test]
    fn a_record_of_an_older_version_keeps_its_token_for_its_first_hub() {
        let origin = Origin {
            urls: vec!["https://hub/team".into(), "https://other".into()],
            token: Some("floe_t".into()),
            ..Default::default()
        };
        assert_eq!(origin.token_for("https://hub"), Some("floe_t"));
        for other in [
            "https://other",
            "http://hub",
            "https://hub:4500",
            "/srv/images",
        ] {
            assert_eq!(origin.token_for(other), None, "{other}");
        }
    }
}
