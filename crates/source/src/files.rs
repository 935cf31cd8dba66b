//! A repository's files behind any web server, CDN or object store that answers range requests.

use std::ops::Range;

use floe_http::StatusCode;
use floe_image::{Hash, Kind, Layout, Manifest};

use crate::http::{Ask, Http};
use crate::packed::{Objects, PackBytes, Packed, pack_path};
use crate::{LinkEstimate, Options, Origin, Request, Sink, Source, SourceError};

/// A repository's files behind a web server, as a source.
///
/// Cost: one range request for each run of neighbouring frames, after one request for the layout and one for each pack's index.
pub struct Files(Packed<Web>);

impl Files {
    /// Makes a source of the repository whose files are below `origin`, an http or https URL. Doesn't connect yet.
    pub fn new(origin: &Origin, options: &Options) -> Result<Files, SourceError> {
        let web = Web(Http::new(origin, None)?);
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
        let path = format!("/{}", floe_http::escape_path(&pack_path(pack)));
        let end = start + len.max(1) - 1;
        let headers = [("range", format!("bytes={start}-{end}"))];
        let ask = Ask {
            headers: &headers,
            ..Ask::get(&path, what, len)
        };
        let mut body = Vec::with_capacity(len as usize);
        self.0.call(&ask, request, &mut |parts, data| {
            let told = parts
                .headers
                .get("content-range")
                .and_then(|v| v.to_str().ok())
                .unwrap_or_default();
            if parts.status != StatusCode::PARTIAL_CONTENT {
                let reason = format!(
                    "ignored a range request for {what} ({}); use a server that supports ranges",
                    parts.status
                );
                return Err(SourceError::Unsupported {
                    at: self.at().into(),
                    reason,
                });
            }
            if !told.starts_with(&format!("bytes {start}-{end}/")) {
                let reason = format!("bytes {start}-{end} were asked for, the answer is {told:?}");
                return Err(SourceError::Invalid {
                    at: self.at().into(),
                    what: what.into(),
                    reason,
                });
            }
            body.extend_from_slice(data);
            Ok(())
        })?;
        Ok(body)
    }
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
