//! A hub's errors: for the operator who starts it ([`HubError`]) and for clients ([`ApiError`], as JSON `{code,
//! message, fix}`).

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use floe_api::hub::ErrorBody;
use std::path::{Path, PathBuf};

/// Why a hub could not start, or its catalogue could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// An option that conflicts with others.
    #[error("{0}")]
    Options(String),
    /// The address is in use or does not belong to this host.
    #[error(
        "cannot listen on {addr}: {source}; choose another address with --listen, or stop what listens there"
    )]
    Listen {
        /// The address that was asked for.
        addr: std::net::SocketAddr,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// A file or folder of the hub could not be used.
    #[error("{what} {}: {source}", path.display())]
    File {
        /// What was attempted, such as "cannot create".
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The catalogue could not be read or written.
    #[error(
        "catalogue {}: {source}; if the disk is full, free some space; if the file is damaged, stop the hub, move hub.db, hub.db-wal and hub.db-shm away and copy hub.db.backup to hub.db: it is of the last day", path.display()
    )]
    Catalogue {
        /// Its file, which SQLite's errors do not name; the other two are beside it.
        path: PathBuf,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// Another hub serves this folder.
    #[error(
        "{} is served by another hub ({by}); stop that one, or give this one a folder of its own with --dir", dir.display()
    )]
    Served {
        /// The folder.
        dir: PathBuf,
        /// Process and address of the other hub.
        by: String,
    },
    /// The catalogue is missing. Continuing without it would remove all images.
    #[error(
        "{} is missing or empty, but there are images in {}: without it they would be removed as litter; \
         restore it from {}.backup or another copy, or move the whole folder away to begin anew",
        path.display(), repo.display(), path.display()
    )]
    CatalogueLost {
        /// Where the catalogue is expected.
        path: PathBuf,
        /// Where the images are.
        repo: PathBuf,
    },
    /// The catalogue was written by a newer floe.
    #[error("catalogue {}: its format {found} is newer than {known}, the newest that this floe knows; upgrade floe", path.display())]
    CatalogueVersion {
        /// The file.
        path: PathBuf,
        /// Its schema version.
        found: i64,
        /// The newest schema version that this floe knows.
        known: i64,
    },
    /// The certificate or its key cannot be used.
    #[error("TLS: {0}")]
    Tls(String),
    /// A user name that is not allowed.
    #[error("{0:?} is no user name: 1 to 64 of a-z 0-9 . _ -, beginning with a letter or digit")]
    UserName(String),
}

impl HubError {
    /// Returns a function that makes the error for `path`; `what` is the attempted operation, such as `cannot write`.
    pub fn file(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> HubError {
        let path = path.to_owned();
        move |source| HubError::File { what, path, source }
    }

    /// Returns a function that makes the error for the catalogue whose file is `path`.
    pub fn catalogue(path: &Path) -> impl FnOnce(rusqlite::Error) -> HubError {
        let path = path.to_owned();
        move |source| HubError::Catalogue { path, source }
    }
}

/// A refused request: HTTP status and body.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub status: StatusCode,
    pub body: Box<ErrorBody>,
}

pub(crate) type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    pub fn new(
        status: StatusCode,
        code: &str,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let body = ErrorBody {
            code: code.into(),
            message: message.into(),
            fix: fix.into(),
        };
        ApiError {
            status,
            body: Box::new(body),
        }
    }

    /// The same message whether the image does not exist or belongs to somebody else, so that it doesn't reveal
    /// private images.
    pub fn no_image(what: impl std::fmt::Display) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "not-found",
            format!("there is no image {what} here"),
            "list what you can read with GET /v1/images; a private image needs its owner's token",
        )
    }

    pub fn bad(message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", message, fix)
    }

    /// For bytes that do not match the hash or format that they claim: nothing of them is kept.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid-content",
            message,
            "check the image with `floe image verify` and push it again",
        )
    }

    pub fn too_large(what: &str, limit: u64) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too-large",
            format!("{what} is larger than {limit} bytes, this hub's limit"),
            "send it in smaller parts, or ask the hub's operator for a higher limit",
        )
    }

    pub fn disk_full() -> Self {
        Self::new(
            StatusCode::INSUFFICIENT_STORAGE,
            "disk-full",
            "the hub's disk is full; what it has already is kept",
            "free space on the hub, then push again: the upload goes on where it stopped",
        )
    }

    pub fn unauthorized(message: &str) -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            message,
            "keep a token for this hub with `floe login`; the hub's operator makes one with `floe hub token create NAME`",
        )
    }

    /// For a user or address that makes too many requests at the same time.
    pub fn busy(what: &str) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "busy",
            format!("{what}; others are served first"),
            "try again a little later, with fewer requests at a time",
        )
    }

    fn internal(what: &dyn std::fmt::Display) -> Self {
        tracing::error!(error = %what, "request failed");
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "the hub could not do this; its log says why",
            "try again; if it stays so, tell the hub's operator",
        )
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(*self.body)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// Returns whether a file could not be written because there is no room.
fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

/// Returns whether the catalogue could not be written because there is no room.
fn is_catalogue_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull)
}

impl From<std::io::Error> for ApiError {
    fn from(error: std::io::Error) -> Self {
        match is_full(&error) {
            true => ApiError::disk_full(),
            false => ApiError::internal(&error),
        }
    }
}

impl From<rusqlite::Error> for ApiError {
    fn from(error: rusqlite::Error) -> Self {
        match is_catalogue_full(&error) {
            true => ApiError::disk_full(),
            false => ApiError::internal(&error),
        }
    }
}

impl From<HubError> for ApiError {
    fn from(error: HubError) -> Self {
        match &error {
            HubError::Catalogue { source, .. } if is_catalogue_full(source) => {
                ApiError::disk_full()
            }
            HubError::File { source, .. } if is_full(source) => ApiError::disk_full(),
            // as a whole: it names the file, which the system's error does not
            _ => ApiError::internal(&error),
        }
    }
}

impl From<tokio::task::JoinError> for ApiError {
    fn from(error: tokio::task::JoinError) -> Self {
        ApiError::internal(&error)
    }
}
