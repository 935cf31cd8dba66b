//! The files of the page, as built from `web/`, with headers that make them safe.

use axum::{
    Router,
    body::Body,
    extract::Path,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use rust_embed::{Embed, EmbeddedFile};
use std::borrow::Cow;

#[derive(Embed)]
#[folder = "../../web/dist"]
struct Files;

/// The page that is shown at `/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// The node's page: images and machines of this host.
    Node,
    /// The hub's page: its catalogue, read-only.
    Hub,
}

impl Page {
    fn file(self) -> &'static str {
        match self {
            Page::Node => "index.html",
            Page::Hub => "hub.html",
        }
    }
}

/// The page may run and load only its own files. It may also show pictures that it makes itself (`data:` is the guest's
/// mouse pointer, `blob:` its screen).
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Files with a hash in their name, which never change.
const HASHED: &str = "assets/";
const IMMUTABLE: &str = "public, max-age=31536000, immutable";
const MUTABLE: &str = "no-cache";

/// Returns routes for the page at `/` and its files.
pub fn router<S: Clone + Send + Sync + 'static>(page: Page) -> Router<S> {
    let file =
        |name: &'static str| get(move |headers: HeaderMap| async move { serve(name, &headers) });
    Router::new()
        .route("/", file(page.file()))
        .route("/favicon.svg", file("favicon.svg"))
        .route("/licences.txt", file("licences.txt"))
        .route("/assets/{name}", get(asset))
}

async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    serve(&format!("{HASHED}{name}"), &headers)
}

/// Returns one file, compressed if the browser accepts that.
fn serve(name: &str, request: &HeaderMap) -> Response {
    let wants_gzip = request
        .get(header::ACCEPT_ENCODING)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|list| list.split(',').any(|one| one.trim().starts_with("gzip")));
    // a name with `.gz` is only another form of the file beside it, and can't be requested itself
    let Some(plain) = Files::get(name).filter(|_| !name.ends_with(".gz")) else {
        return (StatusCode::NOT_FOUND, "the page has no such file\n").into_response();
    };
    let packed = wants_gzip
        .then(|| Files::get(&format!("{name}.gz")))
        .flatten();
    let etag = etag(&plain);
    let cache = if name.starts_with(HASHED) {
        IMMUTABLE
    } else {
        MUTABLE
    };
    let unchanged = request.get(header::IF_NONE_MATCH) == Some(&etag);
    let mut response = Response::new(Body::empty());
    if unchanged {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    } else {
        *response.body_mut() = match packed.as_ref().unwrap_or(&plain).data {
            Cow::Borrowed(bytes) => Body::from(bytes),
            Cow::Owned(ref bytes) => Body::from(bytes.clone()),
        };
    }
    let headers = response.headers_mut();
    headers.insert(header::ETAG, etag);
    let fixed = [
        (header::CONTENT_TYPE, content_type(name)),
        (header::CACHE_CONTROL, cache),
        (header::VARY, "accept-encoding"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    for (name, value) in [
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if packed.is_some() && !unchanged {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

fn etag(file: &EmbeddedFile) -> HeaderValue {
    let hash = file.metadata.sha256_hash();
    let text: String = hash[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    HeaderValue::from_str(&format!("\"{text}\"")).expect("hexadecimal digits are a header's")
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;
    use tower::ServiceExt;

    async fn get(page: Page, path: &str, gzip: bool) -> Response {
        let mut request = Request::get(path);
        if gzip {
            request = request.header(header::ACCEPT_ENCODING, "gzip, br");
        }
        router::<()>(page)
            .oneshot(request.body(Body::empty()).unwrap())
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn the_page_runs_nothing_but_its_own_files() {
        for page in [Page::Node, Page::Hub] {
            let answer = get(page, "/", false).await;
            assert_eq!(answer.status(), StatusCode::OK);
            let policy = answer.headers()[header::CONTENT_SECURITY_POLICY]
                .to_str()
                .unwrap();
            assert!(
                policy.contains("default-src 'none'") && !policy.contains("unsafe"),
                "{policy}"
            );
            assert_eq!(answer.headers()[header::CACHE_CONTROL], MUTABLE);
            let html = axum::body::to_bytes(answer.into_body(), 1 << 20)
                .await
                .unwrap();
            let html = String::from_utf8(html.to_vec()).unwrap();
            assert!(
                !html.contains("<style") && !html.contains(" style="),
                "inline style"
            );
            assert!(!html.contains("<script>"), "inline script");
        }
    }

    #[tokio::test]
    async fn hashed_files_are_kept_and_come_compressed() {
        let script = Files::iter()
            .find(|name| name.starts_with(HASHED) && name.ends_with(".js"))
            .expect("the page has a script");
        let path = format!("/{script}");
        let plain = get(Page::Node, &path, false).await;
        assert_eq!(plain.headers()[header::CACHE_CONTROL], IMMUTABLE);
        assert!(!plain.headers().contains_key(header::CONTENT_ENCODING));
        let packed = get(Page::Node, &path, true).await;
        assert_eq!(packed.headers()[header::CONTENT_ENCODING], "gzip");
        assert_eq!(
            packed.headers()[header::ETAG],
            plain.headers()[header::ETAG]
        );
        assert_eq!(
            get(Page::Node, &format!("{path}.gz"), false).await.status(),
            StatusCode::NOT_FOUND
        );
    }

    #[tokio::test]
    async fn what_a_browser_has_is_not_sent_again() {
        let first = get(Page::Hub, "/", true).await;
        let request = Request::get("/")
            .header(header::IF_NONE_MATCH, &first.headers()[header::ETAG])
            .body(Body::empty())
            .unwrap();
        let again = router::<()>(Page::Hub).oneshot(request).await.unwrap();
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
    }

    #[tokio::test]
    async fn no_path_leads_out_of_the_page() {
        for path in [
            "/assets/..%2findex.html",
            "/assets/%2e%2e%2findex.html",
            "/assets/",
            "/index.html",
        ] {
            assert_eq!(
                get(Page::Node, path, false).await.status(),
                StatusCode::NOT_FOUND,
                "{path}"
            );
        }
    }
}
