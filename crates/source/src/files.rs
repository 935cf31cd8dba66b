//! A repository's files behind any web server, CDN or object store that answers range requests.

use std::ops::Range;

use floe_http::header::{CONTENT_LENGTH, CONTENT_RANGE};
use floe_http::{HeaderName, Parts, StatusCode};
use floe_image::{Hash, Kind, Layout, Manifest};

use crate::environment::Environment;
use crate::http::{Ask, Http};
use crate::packed::{Objects, PackBytes, Packed, pack_path};
use crate::{LinkEstimate, Options, Origin, Request, Sink, Source, SourceError};

/// Largest file that is read whole where only a part was asked for, because a server or a cache ignores ranges: a pack of usual size.
const WHOLE_BYTES_MAX: u64 = 16 << 20;

/// A repository's files behind a web server, as a source.
///
/// Cost: one range request for each run of neighbouring frames, after one request for the layout and one for each pack's index.
pub struct Files(Packed<Web>);

impl Files {
    /// Makes a source of the repository whose files are below `origin`, an http or https URL. Doesn't connect yet.
    pub fn new(origin: &Origin, options: &Options) -> Result<Files, SourceError> {
        let proxies = Environment::of(options).proxies();
        let web = Web(Http::new(origin, proxies)?);
        Ok(Files(Packed::new(
            web,
            options.timeout,
            options.index_dir.clone(),
        )))
    }
}

impl Source for Files {
    fn describe(&self) -> String {
        self.0.objects().at().to_string()
    }

    fn resolve(&self, name: &str) -> Result<Hash, SourceError> {
        self.0.resolve(name)
    }

    fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError> {
        self.0.manifest(id)
    }

    fn layout(&self, id: &Hash) -> Result<Option<Layout>, SourceError> {
        self.0.layout(id).map(|layout| Some((*layout).clone()))
    }

    fn read(
        &self,
        image: &Hash,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        self.0.read(image, wants, request, sink)
    }

    fn link(&self) -> LinkEstimate {
        self.0.objects().link()
    }
}

struct Web(Http);

impl PackBytes for Web {
    fn at(&self) -> &str {
        self.0.shown()
    }

    fn pack_range(
        &self,
        pack: &Hash,
        range: Range<u64>,
        what: &str,
        request: &Request,
    ) -> Result<Vec<u8>, SourceError> {
        let (start, len) = (range.start, range.end.saturating_sub(range.start));
        let range = start..start + len;
        let path = format!("/{}", floe_http::escape_path(&pack_path(pack)));
        let end = start + len.max(1) - 1;
        let headers = [("range", format!("bytes={start}-{end}"))];
        let ask = Ask {
            headers: &headers,
            ..Ask::get(&path, what, len.max(WHOLE_BYTES_MAX))
        };
        let mut slice = Slice {
            body: Vec::with_capacity(len as usize),
            range,
            seen: 0,
        };
        self.0.call(&ask, request, &mut |parts, data| {
            let wrong = match parts.status {
                StatusCode::PARTIAL_CONTENT => slice.part(parts, data),
                _ => {
                    return slice
                        .whole(parts, data)
                        .map_err(|reason| SourceError::Unanswered {
                            at: self.at().into(),
                            what: what.into(),
                            reason,
                        });
                }
            };
            wrong.map_err(|reason| SourceError::Invalid {
                at: self.at().into(),
                what: what.into(),
                reason,
            })
        })?;
        Ok(slice.body)
    }
}

/// A part of a file as it arrives, alone or with the rest of the file.
struct Slice {
    range: Range<u64>,
    body: Vec<u8>,
    /// Bytes of the answer so far.
    seen: u64,
}

impl Slice {
    /// Takes a piece of an answer that is the part. The error says why it is not.
    fn part(&mut self, parts: &Parts, data: &[u8]) -> Result<(), String> {
        let (start, end) = (
            self.range.start,
            self.range.end.max(self.range.start + 1) - 1,
        );
        let told = header(parts, CONTENT_RANGE);
        if !told.starts_with(&format!("bytes {start}-{end}/")) {
            return Err(format!(
                "bytes {start}-{end} were asked for, the answer is {told:?}"
            ));
        }
        let len = self.range.end - start;
        self.seen += data.len() as u64;
        if self.seen > len {
            return Err(format!("the answer is longer than {len} bytes"));
        }
        self.body.extend_from_slice(data);
        Ok(())
    }

    /// Takes a piece of an answer that is the whole file. The error says that the file is too large for that.
    fn whole(&mut self, parts: &Parts, data: &[u8]) -> Result<(), String> {
        let told = header(parts, CONTENT_LENGTH).parse::<u64>().unwrap_or(0);
        let start = self.seen;
        self.seen += data.len() as u64;
        let bytes = told.max(self.seen);
        if bytes > WHOLE_BYTES_MAX {
            return Err(format!(
                "it ignored a request for a part of the file ({}) and sends {bytes} bytes; use a server that supports ranges",
                parts.status
            ));
        }
        let in_data = |at: u64| at.clamp(start, self.seen) - start;
        let wanted = in_data(self.range.start) as usize..in_data(self.range.end) as usize;
        self.body.extend_from_slice(&data[wanted]);
        Ok(())
    }
}

/// Returns a header, or nothing.
fn header(parts: &Parts, name: HeaderName) -> &str {
    let value = parts.headers.get(name);
    value.and_then(|v| v.to_str().ok()).unwrap_or_default()
}

impl Objects for Web {
    fn get(
        &self,
        path: &str,
        limit: u64,
        what: &str,
        request: &Request,
    ) -> Result<Vec<u8>, SourceError> {
        let path = format!("/{}", floe_http::escape_path(path));
        Ok(self.0.fetch(&Ask::get(&path, what, limit), request)?.1)
    }

    fn link(&self) -> LinkEstimate {
        self.0.link()
    }
}
