//! What a hub can be told, and the limits that it keeps: one place, each with its unit and its reason.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Everything that [`serve`](super::serve) needs to know.
#[derive(Clone, Debug)]
pub struct HubOptions {
    /// The hub's folder: `hub.db` (catalogue), `repo/` (published images), `staging/` (unfinished uploads),
    /// `traces/` (what machines touched, and models),
    /// `tls/` (the certificate that the hub made for itself).
    pub dir: PathBuf,
    /// The address to listen on; port 0 takes a free one (see [`HubHandle::addr`](super::HubHandle::addr)).
    pub listen: SocketAddr,
    /// Plain TCP, or TLS and whose certificate.
    pub tls: Tls,
    /// What a request without a token may do.
    pub anonymous: Anonymous,
    /// Sizes, counts and times that the hub enforces.
    pub limits: Limits,
}

impl HubOptions {
    /// A hub in `dir` on `listen`, without TLS, where anybody may read public images.
    pub fn new(dir: impl Into<PathBuf>, listen: SocketAddr) -> Self {
        HubOptions {
            dir: dir.into(),
            listen,
            tls: Tls::Off,
            anonymous: Anonymous::ReadPublic,
            limits: Limits::default(),
        }
    }
}

/// How the hub's connections are protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    /// Plain TCP: loopback, or behind a proxy that ends TLS.
    Off,
    /// A certificate authority and a certificate that the hub makes at its first start and keeps in `tls/`.
    SelfSigned {
        /// Names and addresses beyond `localhost`, the host's name and the listen address that the certificate is for.
        names: Vec<String>,
    },
    /// PEM files of the operator.
    Files {
        /// The certificate chain, leaf first.
        cert: PathBuf,
        /// Its private key (PKCS#8, PKCS#1 or SEC1).
        key: PathBuf,
    },
}

/// What a request without a token may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anonymous {
    /// Nothing but `/healthz`: 401.
    Denied,
    /// Read public images.
    ReadPublic,
}

/// What the hub refuses, and when it gives up. The defaults suit a hub for a few hundred hosts on one machine.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Memory for decompressed frames, in bytes: what makes a demand read cost microseconds.
    pub cache_bytes: u64,
    /// Memory for the indices of images that are being read, in items of about 64 bytes.
    pub index_items_max: usize,
    /// Largest body of a pack upload, in bytes.
    pub pack_bytes_max: u64,
    /// Largest non-zero content of one image, in bytes: bounds the memory of a commit.
    pub image_bytes_max: u64,
    /// Staged, unpublished bytes of one user.
    pub staged_bytes_max: u64,
    /// Open uploads of one user.
    pub uploads_max: usize,
    /// An upload that nobody touched for so long is dropped.
    pub upload_expiry: Duration,
    /// Free space that uploads leave on the disk, in bytes, so that the catalogue can still be written.
    pub disk_reserve_bytes: u64,
    /// How long no new trace of an image must have come before its model is made anew.
    pub training_quiet: Duration,
    /// Connections in all; more wait in the kernel's backlog.
    pub connections_max: usize,
    /// Connections from one address; more are closed at once.
    pub connections_per_address_max: usize,
    /// Wrong tokens from one address in a minute before it is answered 429.
    pub wrong_tokens_per_minute: u32,
    /// Time for a TLS handshake.
    pub handshake_timeout: Duration,
    /// Time for a request's head, and how long an idle connection is kept for the next one.
    pub head_timeout: Duration,
    /// Time without a byte of a request's body.
    pub body_idle_timeout: Duration,
    /// How long a shutdown waits for requests in flight.
    pub drain_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            cache_bytes: 256 << 20,
            index_items_max: 16 << 20,
            pack_bytes_max: PACK_BYTES_MAX,
            image_bytes_max: 64 << 30,
            staged_bytes_max: 64 << 30,
            uploads_max: 16,
            upload_expiry: Duration::from_secs(24 * 3600),
            disk_reserve_bytes: 64 << 20,
            training_quiet: Duration::from_secs(3),
            connections_max: 4096,
            connections_per_address_max: 512,
            wrong_tokens_per_minute: 30,
            handshake_timeout: Duration::from_secs(10),
            head_timeout: Duration::from_secs(120),
            body_idle_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(30),
        }
    }
}

/// Largest pack that is uploaded, in bytes: what a cut connection loses at most, and what the hub verifies in memory.
pub const PACK_BYTES_MAX: u64 = 8 << 20;
/// Largest encoded manifest, in bytes: 1 TiB of state needs 8 MiB of segment hashes.
pub const MANIFEST_BYTES_MAX: usize = 16 << 20;
/// Most hashes in one `have` question (33 bytes each).
pub const HAVE_ITEMS_MAX: usize = 32 * 1024;
/// Most raw bytes that one batch read answers, so that one request cannot take the hub's memory.
pub const READ_BYTES_MAX: usize = 16 << 20;
/// Largest JSON body, in bytes.
pub const JSON_BYTES_MAX: usize = 64 << 10;
/// Most items of other images' packs that are searched for what an upload need not send.
pub const HAVE_INDEX_ITEMS_MAX: usize = 8 << 20;
