//! A hub as a source: one request for many items, whose answer is verified item by item as it arrives.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use floe_http::{Method, escape};
use floe_image::{
    Encoding, FRAME_BYTES_MAX, Hash, Kind, LAYOUT_BYTES_MAX, Layout, MANIFEST_BYTES_MAX, Manifest,
    ReadRequest, Record, ResponseDecoder,
};
use serde::Deserialize;

use crate::environment::Environment;
use crate::http::{Ask, Http};
use crate::packed::{check_count, item_name, missing_items};
use crate::{LinkEstimate, Options, Origin, Purpose, Request, Sink, Source, SourceError};

/// Bandwidth in bytes per second above which unpacking takes longer than sending raw bytes: 300 Mbit/s.
const RAW_BYTES_PER_S_MIN: u64 = 37_500_000;

/// The same for a whole image: nobody waits for a single item of it, and several threads unpack, so that the link is what is
/// short up to the speed of one that does nothing else, 8 Gbit/s.
const RAW_WHOLE_BYTES_PER_S_MIN: u64 = 1_000_000_000;

/// While the bandwidth is unknown, a link with a shorter round trip than this (in the same building) counts as fast.
const RAW_RTT_US_MAX: u64 = 2_000;

/// Most bytes of a JSON answer.
const JSON_BYTES_MAX: u64 = 64 << 10;

/// Most bytes of a record beside its data: its head and 16 hashes, rounded up.
const RECORD_OVERHEAD: u64 = 1024;

/// A hub, read over its batch interface.
///
/// Cost: reading one chunk over loopback takes some 60 us, of which HTTP takes 40.
pub struct Hub {
    http: Http,
    timeout: Duration,
    /// Whether it is asked as one of its users.
    as_user: bool,
}

#[derive(Deserialize)]
struct Resolved {
    id: Hash,
    /// Hubs of older versions don't say it.
    #[serde(default)]
    own: bool,
}

impl Hub {
    /// Makes a source of the hub at `origin`, an http, https, `floe://` or `floe+http://` URL. Doesn't connect yet.
    pub fn new(origin: &Origin, options: &Options) -> Result<Hub, SourceError> {
        Ok(Hub {
            http: Http::new(origin, Environment::of(options).proxies())?,
            timeout: options.timeout,
            as_user: origin.token().is_some(),
        })
    }

    /// As [`Hub::new`], with this TLS configuration instead of the one that follows from the origin's CA: for servers that ask
    /// for a client certificate.
    pub fn over_tls(
        origin: &Origin,
        tls: Arc<rustls::ClientConfig>,
        options: &Options,
    ) -> Result<Hub, SourceError> {
        Ok(Hub {
            http: Http::of_host(origin, tls)?,
            timeout: options.timeout,
            as_user: origin.token().is_some(),
        })
    }

    /// Returns whether the server is a hub: a hub answers requests to its interface in JSON, even refusals.
    pub(crate) fn answers(&self) -> Result<bool, SourceError> {
        let request = Request::demand(self.timeout);
        let ask = Ask {
            any_status: true,
            ..Ask::get("/v1/resolve?name=floe", "its interface", JSON_BYTES_MAX)
        };
        let (parts, _) = self.http.fetch(&ask, &request)?;
        let media = parts
            .headers
            .get("content-type")
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default();
        let json =
            media.starts_with("application/json") || media.starts_with("application/problem+json");
        if parts.status.is_server_error() && !json {
            let reason = format!("it answered {}", parts.status);
            return Err(self.http.unanswered(ask.what, reason));
        }
        Ok(json)
    }

    fn resolved(&self, name: &str) -> Result<Resolved, SourceError> {
        let what = format!("image {name}");
        let path = format!("/v1/resolve?name={}", escape(name));
        let (_, body) = self.http.fetch(
            &Ask::get(&path, &what, JSON_BYTES_MAX),
            &Request::demand(self.timeout),
        )?;
        serde_json::from_slice(&body).map_err(|e| self.invalid(&what, &e))
    }

    fn invalid(&self, what: &str, reason: &dyn std::fmt::Display) -> SourceError {
        SourceError::Invalid {
            at: self.describe(),
            what: what.into(),
            reason: reason.to_string(),
        }
    }
}

impl Source for Hub {
    fn describe(&self) -> String {
        self.http.shown().to_string()
    }

    fn resolve(&self, name: &str) -> Result<Hash, SourceError> {
        Ok(self.resolved(name)?.id)
    }

    fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError> {
        let what = format!("the manifest of image {}", id.short());
        let path = format!("/v1/images/{id}/manifest");
        let ask = Ask::get(&path, &what, MANIFEST_BYTES_MAX as u64);
        let (_, body) = self.http.fetch(&ask, &Request::demand(self.timeout))?;
        Manifest::decode_verified(&body, id).map_err(|e| self.invalid(&what, &e))
    }

    fn layout(&self, id: &Hash) -> Result<Option<Layout>, SourceError> {
        let what = format!("the layout of image {}", id.short());
        let path = format!("/v1/images/{id}/layout");
        let ask = Ask::get(&path, &what, LAYOUT_BYTES_MAX as u64);
        let (_, body) = self.http.fetch(&ask, &Request::demand(self.timeout))?;
        Layout::decode(&body)
            .map(Some)
            .map_err(|e| self.invalid(&what, &e))
    }

    /// The hub says it, and is believed by those alone who have a user there: any server may say so to a stranger.
    fn is_own(&self, id: &Hash) -> Result<bool, SourceError> {
        Ok(self.as_user && self.resolved(&id.to_string())?.own)
    }

    fn read(
        &self,
        image: &Hash,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        check_count(self.http.shown(), wants)?;
        let Some(first) = wants.first() else {
            return Ok(());
        };
        let what = match wants.len() {
            1 => item_name(first),
            n => format!("{n} items from {}", item_name(first)),
        };
        let path = format!("/v1/images/{image}/read");
        let headers = [(
            "x-floe-encoding",
            encoding_for(&self.http.link(), request.who.purpose)
                .name()
                .to_string(),
        )];
        let records = wants.len() as u64 + 1;
        let ask = Ask {
            method: Method::POST,
            path: &path,
            headers: &headers,
            body: Bytes::from(
                ReadRequest {
                    wants: wants.to_vec(),
                }
                .encode(),
            ),
            limit: records * (u64::from(FRAME_BYTES_MAX) + RECORD_OVERHEAD),
            what: &what,
            any_status: false,
        };
        let mut open: HashSet<Hash> = wants.iter().map(|(_, hash)| *hash).collect();
        let mut given = HashSet::new();
        let mut missing = Vec::new();
        let mut wrong = None;
        let mut decoder = ResponseDecoder::new(wants.len());
        self.http.call(&ask, request, &mut |_, data| {
            decoder.feed(data);
            while let Some(record) = decoder.next_record().map_err(|e| self.invalid(&what, &e))? {
                if let Record::Missing { kind, hash } = &record {
                    missing.push((*kind, *hash));
                    open.remove(hash);
                }
                for (kind, hash, item) in record.items() {
                    if let Err(error) = kind.verify(&hash, item) {
                        wrong = Some(self.invalid(&item_name(&(kind, hash)), &error));
                    } else if given.insert(hash) {
                        open.remove(&hash);
                        sink(kind, hash, item);
                    }
                }
            }
            Ok(())
        })?;
        if !decoder.is_complete() {
            return Err(self.invalid(&what, &decoder.cut_off()));
        }
        match (wrong, open.is_empty(), missing.first()) {
            (Some(error), ..) => Err(error),
            (None, false, _) => Err(self.invalid(
                &what,
                &format!(
                    "{} items are neither there nor said to be missing",
                    open.len()
                ),
            )),
            (None, true, Some(first)) => {
                Err(missing_items(self.http.shown(), missing.len(), first))
            }
            (None, true, None) => Ok(()),
        }
    }

    fn link(&self) -> LinkEstimate {
        self.http.link()
    }
}

/// Returns the encoding to ask for: raw bytes if unpacking would take longer than sending them.
fn encoding_for(link: &LinkEstimate, purpose: Purpose) -> Encoding {
    let whole = purpose == Purpose::Settle;
    let fast = match (link.bytes_per_s, link.rtt_us) {
        (Some(rate), _) if whole => rate >= RAW_WHOLE_BYTES_PER_S_MIN,
        (Some(rate), _) => rate >= RAW_BYTES_PER_S_MIN,
        (None, Some(rtt)) => !whole && rtt < RAW_RTT_US_MAX,
        (None, None) => false,
    };
    if fast { Encoding::Raw } else { Encoding::Zstd }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_bytes_are_asked_for_on_fast_links_only() {
        let table = [
            (None, None, Encoding::Zstd, Encoding::Zstd),
            (None, Some(100), Encoding::Raw, Encoding::Zstd),
            (None, Some(20_000), Encoding::Zstd, Encoding::Zstd),
            (Some(900_000), Some(100), Encoding::Zstd, Encoding::Zstd),
            (Some(12_500_000), Some(100), Encoding::Zstd, Encoding::Zstd),
            (
                Some(125_000_000),
                Some(20_000),
                Encoding::Raw,
                Encoding::Zstd,
            ),
            (Some(2_000_000_000), Some(50), Encoding::Raw, Encoding::Raw),
        ];
        for (bytes_per_s, rtt_us, waited_for, whole) in table {
            let link = LinkEstimate {
                bytes_per_s,
                rtt_us,
                ..LinkEstimate::default()
            };
            let expected = [waited_for, whole];
            let asked = [Purpose::Demand, Purpose::Settle].map(|p| encoding_for(&link, p));
            assert_eq!(asked, expected, "{link:?}");
        }
    }
}
