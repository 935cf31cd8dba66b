//! What an answer is: what was asked for, a refusal, or something that somebody in between has made of it.

use floe_http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use floe_http::{Parts, StatusCode};

use super::elsewhere::Place;
use super::{Ask, Http, OnData};
use crate::SourceError;

/// How many bytes of an error answer are quoted.
const ERROR_TEXT_MAX: usize = 300;

/// How many bytes beside a redirect are read, so that the connection can be used again.
const REDIRECT_BYTES_MAX: u64 = 64 << 10;

/// How the body of a page begins, and one that is compressed: nothing of floe's does.
const PAGES: [&[u8]; 2] = [b"<!doctype html", b"<html"];
const GZIP: &[u8] = &[0x1f, 0x8b, 8];
/// How many bytes are looked at for that.
const START_BYTES: usize = 16;

/// Returns what came in place of data, by how it begins; `None` if it may be data.
pub(crate) fn in_place_of_data(body: &[u8]) -> Option<String> {
    let start = body[..body.len().min(START_BYTES)].to_ascii_lowercase();
    if PAGES.iter().any(|page| start.starts_with(page)) {
        return Some(A_PAGE.into());
    }
    body.starts_with(GZIP).then(|| compressed("gzip"))
}

/// Says that an answer was compressed.
fn compressed(encoding: &str) -> String {
    let shown = encoding.chars().filter(|c| !c.is_control()).take(32);
    let shown: String = shown.collect();
    format!(
        "the answer was compressed on the way ({shown}), though that was asked not to be; switch it off for these files"
    )
}

/// What is said of a page in place of data.
const A_PAGE: &str = "a web page came instead of it, from a network that wants somebody to sign in or from a proxy; open the address in a \
browser";

/// An answer's body as it arrives: passed on if the answer is good, quoted in the error if it is a refusal.
pub(super) struct Body<'a> {
    http: &'a Http,
    ask: &'a Ask<'a>,
    place: Option<&'a Place>,
    total: u64,
    error_text: Vec<u8>,
}

impl<'a> Body<'a> {
    /// Makes the body of an answer to `ask`, from the server or from the place that it has sent us to.
    pub fn new(http: &'a Http, ask: &'a Ask<'a>, place: Option<&'a Place>) -> Body<'a> {
        Body {
            http,
            ask,
            place,
            total: 0,
            error_text: Vec::new(),
        }
    }

    /// Looks at an answer's head.
    pub fn begin(&self, parts: &Parts) -> Result<(), SourceError> {
        if self.ask.any_status || !parts.status.is_success() {
            return Ok(());
        }
        let header = |name| {
            let value = parts.headers.get(name);
            value.map_or_else(String::new, |value| {
                String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase()
            })
        };
        match (header(CONTENT_ENCODING), header(CONTENT_TYPE)) {
            (encoding, _) if !matches!(&*encoding, "" | "identity") => {
                Err(self.unanswered(compressed(&encoding)))
            }
            (_, media) if is_page(&media) => Err(self.unanswered(A_PAGE.into())),
            _ => Ok(()),
        }
    }

    /// Takes the next piece.
    pub fn take(
        &mut self,
        parts: &Parts,
        data: &[u8],
        on_data: &mut OnData<'_>,
    ) -> Result<(), SourceError> {
        let is_first = self.total == 0;
        self.total += data.len() as u64;
        if !self.ask.any_status && !parts.status.is_success() {
            let room = ERROR_TEXT_MAX - self.error_text.len();
            self.error_text
                .extend_from_slice(&data[..data.len().min(room)]);
            let most = match parts.status.is_redirection() {
                true => REDIRECT_BYTES_MAX,
                false => ERROR_TEXT_MAX as u64,
            };
            return match self.total >= most {
                true => Err(self.refused(parts)),
                false => Ok(()),
            };
        }
        if is_first
            && !self.ask.any_status
            && let Some(instead) = in_place_of_data(data)
        {
            return Err(self.unanswered(instead));
        }
        if self.total > self.ask.limit {
            return Err(SourceError::Invalid {
                at: self.http.shown().into(),
                what: self.ask.what.into(),
                reason: format!("the answer is longer than {} bytes", self.ask.limit),
            });
        }
        on_data(parts, data)
    }

    /// Returns the error of an answer that is not a success.
    pub fn refused(&self, parts: &Parts) -> SourceError {
        self.http.keep_retry_after(parts);
        let status = parts.status;
        let (at, what) = (self.http.shown().to_owned(), self.ask.what.to_owned());
        if let Some(place) = self.place
            && status != StatusCode::NOT_FOUND
        {
            // a signed address may have expired, and the next request gets another one
            let to = place.shown();
            return self.unanswered(format!("it sent us to {to}, which answered {status}"));
        }
        match status {
            StatusCode::NOT_FOUND | StatusCode::GONE => SourceError::Missing { at, what },
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => SourceError::Denied {
                at,
                what,
                fix: SourceError::NO_TOKEN.into(),
            },
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
                self.unanswered(format!("it answered {status}"))
            }
            // where a POST can't be followed to; networks that want somebody to sign in answer everything so, until somebody has
            StatusCode::FOUND | StatusCode::SEE_OTHER => self.unanswered(format!(
                "it answered {status}, as a network does that wants somebody to sign in; open the address in a browser"
            )),
            // only parts that an index names are asked for: the file there has lost its end
            StatusCode::RANGE_NOT_SATISFIABLE => SourceError::Invalid {
                at,
                what,
                reason: format!("the file there is too short for it ({status})"),
            },
            status if status.is_server_error() => {
                self.unanswered(self.quoted(format!("it answered {status}"), parts))
            }
            // as with a proxy that opens connections: what it says is said of the way, and nothing of the server
            StatusCode::PROXY_AUTHENTICATION_REQUIRED => self.unanswered(format!(
                "it answered {status}; write the proxy with a user and a password, http://USER:PASSWORD@HOST:PORT"
            )),
            status => SourceError::Unsupported {
                at,
                reason: self.quoted(format!("refused {what}: {status}"), parts),
            },
        }
    }

    /// Adds what the answer says, which is nothing if it says that to a browser.
    fn quoted(&self, said: String, parts: &Parts) -> String {
        let media = parts.headers.get(CONTENT_TYPE);
        let media = media.and_then(|value| value.to_str().ok());
        if media.is_some_and(is_page) {
            return format!("{said} with a web page");
        }
        let text = String::from_utf8_lossy(&self.error_text);
        let text = text.replace(|c: char| c.is_control(), " ");
        format!("{said} {text}").trim_end().to_owned()
    }

    fn unanswered(&self, reason: String) -> SourceError {
        self.http.unanswered(self.ask.what, reason)
    }
}

/// Returns whether a media type is that of a web page.
fn is_page(media: &str) -> bool {
    let kind = media.split(';').next().unwrap_or_default().trim();
    let pages = ["text/html", "application/xhtml+xml"];
    pages.iter().any(|page| kind.eq_ignore_ascii_case(page))
}
