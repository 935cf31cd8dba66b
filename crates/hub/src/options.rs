//! A hub's options and the limits that it enforces, each with its unit and its reason.

use floe_api::hub::PACK_BYTES_MAX;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The options of [`serve`](super::serve).
#[derive(Clone, Debug)]
pub struct HubOptions {
    /// The hub's folder: `hub.db` (catalogue), `repo/` (published images), `staging/` (unfinished uploads),
    /// `traces/` (what machines touched, and models), `tls/` (the certificate that the hub made for itself).
    pub dir: PathBuf,
    /// The address to listen on; port 0 picks a free one (see [`HubHandle::addr`](super::HubHandle::addr)).
    pub listen: SocketAddr,
    /// Whether connections use TLS, and with whose certificate.
    pub tls: Tls,
    /// What a request without a token may do.
    pub anonymous: Anonymous,
    /// Whether a trace of a public image is accepted without a token.
    pub anonymous_traces: bool,
    /// Memory for substrates, in bytes, if the hub is a pool (`floe pool serve`).
    pub pool_bytes: Option<u64>,
    /// Sizes, counts and times that the hub enforces.
    pub limits: Limits,
}

impl HubOptions {
    /// Returns the options of a hub in `dir` on `listen`, without TLS, where anybody may read public images.
    pub fn new(dir: impl Into<PathBuf>, listen: SocketAddr) -> Self {
        HubOptions {
            dir: dir.into(),
            listen,
            tls: Tls::Off,
            anonymous: Anonymous::ReadPublic,
            anonymous_traces: false,
            pool_bytes: None,
            limits: Limits::default(),
        }
    }
}

/// How the hub's connections are protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    /// Plain TCP: for loopback, or behind a proxy that terminates TLS.
    Off,
    /// A certificate authority and a certificate that the hub makes at its first start and keeps in `tls/`.
    SelfSigned {
        /// Names and addresses that the certificate is for besides `localhost`, the host's name and the listen
        /// address.
        names: Vec<String>,
    },
    /// PEM files that the operator provides.
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
    /// Only `/healthz`; everything else is answered 401.
    Denied,
    /// Public images may be read.
    ReadPublic,
}

/// The hub's limits and timeouts. The defaults suit a hub for a few hundred hosts on one machine.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Memory for frames that were read lately, in bytes: with it, a demand read takes microseconds.
    pub cache_bytes: u64,
    /// Most items, of about 64 bytes each, in the indices of images that are being read.
    pub index_items_max: usize,
    /// Largest body of a pack upload, in bytes.
    pub pack_bytes_max: u64,
    /// Largest non-zero content of one image, in bytes. It bounds the memory of a commit.
    pub image_bytes_max: u64,
    /// Most bytes that one user may have sent and not yet published.
    pub staged_bytes_max: u64,
    /// Most items that one user may ask about at once: whether the hub has them.
    pub have_items_burst: u64,
    /// Items about which one user may ask in a second beyond that. Each is 4 KiB of an image.
    pub have_items_per_s: u64,
    /// Most open uploads of one user.
    pub uploads_max: usize,
    /// An upload that was not used for this long is dropped.
    pub upload_expiry: Duration,
    /// Free space that uploads leave on the disk, in bytes, so that the catalogue can still be written.
    pub disk_reserve_bytes: u64,
    /// How long after the last new trace of an image its model is trained anew.
    pub training_quiet: Duration,
    /// The quota of a user for whom `floe hub quota` set nothing else.
    pub quota: Quota,
    /// Most connections in all. When all are taken, a newcomer replaces one of the address or user that has most.
    pub connections_max: usize,
    /// Most connections of one user, or of all strangers at one address. Beyond it, the longest idle one is closed,
    /// else the oldest.
    pub connections_each_max: usize,
    /// Memory for bodies being received and answers that wait for their readers, in bytes. A user or address gets at
    /// most a quarter.
    pub transfer_bytes_max: u64,
    /// Wrong tokens that one address may send in a minute; further ones are answered 429. A right token always works.
    pub wrong_tokens_per_minute: u32,
    /// Time for a TLS handshake.
    pub handshake_timeout: Duration,
    /// Time for a request's head, from its first to its last byte.
    pub head_timeout: Duration,
    /// How long an idle connection is kept open for the next request.
    pub idle_timeout: Duration,
    /// Least rate, in bytes per second over each `slow_stretch`, at which a client must send a body and take an answer.
    /// Twenty connections over a link of 100 kbit/s have 600 each.
    pub slow_bytes_per_s: u64,
    /// Length of the stretches, in time spent waiting for the client, over which that rate is measured.
    pub slow_stretch: Duration,
    /// How long a shutdown waits for requests that are being answered.
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
            have_items_burst: 4 << 20,
            have_items_per_s: 256 << 10,
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

/// How much a user may store on a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Bytes that the files of the user's images and unfinished uploads take on the disk: each pack once for all images, and
    /// everything of each upload.
    pub bytes: u64,
    /// Images, unfinished uploads included.
    pub images: u64,
    /// Traces that the user has sent and that are kept, whoever owns the images.
    pub traces: u64,
}

impl Quota {
    /// A quota that refuses nothing.
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

/// The parts of a user's [`Quota`] that an operator has set; the hub's defaults hold for the others.
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
/// Most raw bytes that one batch read returns, so that one request cannot use up the hub's memory.
pub const READ_BYTES_MAX: usize = 16 << 20;
/// Largest JSON body, in bytes.
pub const JSON_BYTES_MAX: usize = 64 << 10;
/// Most items of other images' packs that are searched for what an upload need not send.
pub const HAVE_INDEX_ITEMS_MAX: usize = 8 << 20;
