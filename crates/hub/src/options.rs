//! What a hub can be told, and the limits that it keeps: one place, each with its unit and its reason.

use floe_api::hub::PACK_BYTES_MAX;
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
    /// Whether a trace may come without a token, of an image that everybody may read.
    pub anonymous_traces: bool,
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
            anonymous_traces: false,
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
    /// What a user may have unless `floe hub quota` says otherwise.
    pub quota: Quota,
    /// Connections in all. When all are taken, a newcomer takes the place of one of the address or user that has most.
    pub connections_max: usize,
    /// Connections of one user, or of all strangers at one address. Beyond it, the oldest of them makes room.
    pub connections_each_max: usize,
    /// Memory for bodies that come and answers that wait for their readers, in bytes. A user or address has at most a quarter.
    pub transfer_bytes_max: u64,
    /// Wrong tokens from one address in a minute before wrong ones are answered 429. The right one is always good.
    pub wrong_tokens_per_minute: u32,
    /// Time for a TLS handshake.
    pub handshake_timeout: Duration,
    /// Time for a request's head, from its first byte to its last.
    pub head_timeout: Duration,
    /// How long an idle connection is kept for the next request.
    pub idle_timeout: Duration,
    /// What a client must send of a body, and take of an answer, on the average of each `slow_stretch`, in bytes a second.
    /// Twenty connections over a link of 100 kbit/s have 600 each.
    pub slow_bytes_per_s: u64,
    /// Over how much waiting for a client that is measured.
    pub slow_stretch: Duration,
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
            quota: Quota::default(),
            connections_max: 4096,
            connections_each_max: 512,
            transfer_bytes_max: 256 << 20,
            wrong_tokens_per_minute: 30,
            handshake_timeout: Duration::from_secs(10),
            head_timeout: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(120),
            slow_bytes_per_s: 256,
            slow_stretch: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(30),
        }
    }
}

/// What a user may have on a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Bytes of the packs of the user's images, each pack counted once, and of unfinished uploads.
    pub bytes: u64,
    /// Images, unfinished uploads included.
    pub images: u64,
    /// Traces of the user's that are kept, of whosever images.
    pub traces: u64,
}

impl Quota {
    /// As much as there is.
    pub const UNLIMITED: Quota = Quota {
        bytes: u64::MAX,
        images: u64::MAX,
        traces: u64::MAX,
    };
}

impl Default for Quota {
    fn default() -> Self {
        Quota {
            bytes: 1 << 40,
            images: 1000,
            traces: 1000,
        }
    }
}

/// What an operator set of a user's [`Quota`]; the rest is the hub's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaWish {
    /// See [`Quota::bytes`].
    pub bytes: Option<u64>,
    /// See [`Quota::images`].
    pub images: Option<u64>,
    /// See [`Quota::traces`].
    pub traces: Option<u64>,
}

/// Largest encoded manifest, in bytes: 1 TiB of state needs 8 MiB of segment hashes.
pub const MANIFEST_BYTES_MAX: usize = 16 << 20;
/// Most raw bytes that one batch read answers, so that one request cannot take the hub's memory.
pub const READ_BYTES_MAX: usize = 16 << 20;
/// Largest JSON body, in bytes.
pub const JSON_BYTES_MAX: usize = 64 << 10;
/// Most items of other images' packs that are searched for what an upload need not send.
pub const HAVE_INDEX_ITEMS_MAX: usize = 8 << 20;
