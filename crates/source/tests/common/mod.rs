//! A small image, and real servers for it: a web server with ranges, a hub, an S3 server, and a proxy that breaks answers.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod odd;
pub mod proxy;
pub mod script;

use std::collections::HashMap;
use std::io::Write;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path as UrlPath, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use floe_image::{
    CHUNK_SIZE, CHUNKS_PER_SEGMENT, Encoding, Hash, ImageName, Kind, Layout, MachineConfig,
    Manifest, PackWriter, ReadRequest, Region, ResponseEncoder, Segment, compress_frame,
};
use floe_source::{Options, Origin, Registry, Source, SourceError};
use floe_store::Repository;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

pub const TOKEN: &str = "a token of the test";
pub const LIMIT: Duration = Duration::from_secs(20);

/// An image of one region in three packs.
pub struct Fixture {
    pub dir: tempfile::TempDir,
    pub repository: Repository,
    pub image: Hash,
    pub chunks: Vec<(Hash, Vec<u8>)>,
    pub segment: (Hash, Vec<u8>),
}

pub const CHUNKS: usize = 300;

/// Returns a chunk's content, which `seed` determines; half of it compresses.
pub fn content(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut out = vec![0u8; CHUNK_SIZE];
    for byte in &mut out[..CHUNK_SIZE / 2] {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = (state >> 32) as u8;
    }
    out[CHUNK_SIZE / 2..].fill(seed as u8 | 1);
    out
}

impl Fixture {
    pub fn new() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::create(dir.path()).unwrap();
        let chunks: Vec<(Hash, Vec<u8>)> = (0..CHUNKS as u64)
            .map(|i| {
                let data = content(i);
                (Hash::of(&data), data)
            })
            .collect();
        let mut segment = Segment::new();
        for (i, (hash, _)) in chunks.iter().enumerate() {
            segment.set(i, *hash);
        }
        let segment = (segment.id(), segment.encode());
        let mut packs = Vec::new();
        for part in chunks.chunks(CHUNKS / 3) {
            let mut writer = PackWriter::new(Vec::new()).unwrap();
            for frame in part.chunks(16) {
                let hashes: Vec<Hash> = frame.iter().map(|(hash, _)| *hash).collect();
                let items: Vec<&[u8]> = frame.iter().map(|(_, data)| &data[..]).collect();
                writer
                    .push_frame(
                        Kind::Chunk,
                        &hashes,
                        &compress_frame(Kind::Chunk, &items, 3),
                    )
                    .unwrap();
            }
            if packs.is_empty() {
                let packed = compress_frame(Kind::Segment, &[&segment.1], 3);
                writer
                    .push_frame(Kind::Segment, &[segment.0], &packed)
                    .unwrap();
            }
            let (bytes, _) = writer.finish().unwrap();
            packs.push(
                repository
                    .adopt_pack_from(&mut &bytes[..], 64 << 20)
                    .unwrap(),
            );
        }
        let manifest = Manifest {
            parent: None,
            created_unix_s: 1_700_000_000,
            config: MachineConfig::default(),
            regions: vec![Region {
                name: "disk0".into(),
                size: (CHUNKS_PER_SEGMENT * CHUNK_SIZE) as u64,
                segments: vec![segment.0],
                ..Default::default()
            }],
        };
        let image = repository.publish(&manifest, &Layout { packs }).unwrap();
        repository
            .tag(&ImageName::parse("team/web:v2").unwrap(), &image)
            .unwrap();
        Fixture {
            dir,
            repository,
            image,
            chunks,
            segment,
        }
    }

    pub fn want(&self, i: usize) -> (Kind, Hash) {
        (Kind::Chunk, self.chunks[i].0)
    }
}

/// What a test server was asked for.
#[derive(Default)]
pub struct Seen {
    /// Method, path and range of each request, in order of arrival.
    pub requests: Mutex<Vec<String>>,
    /// The wants of each hub read, in order of arrival.
    pub reads: Mutex<Vec<Vec<Hash>>>,
    /// The `authorization` headers.
    pub tokens: Mutex<Vec<Option<String>>>,
    /// The encodings that were asked for.
    pub encodings: Mutex<Vec<String>>,
}

/// A server on its own thread.
pub struct Server {
    pub addr: SocketAddr,
    pub seen: Arc<Seen>,
    runtime: Option<Runtime>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

fn serve(router: impl FnOnce(Arc<Seen>) -> Router) -> Server {
    let runtime = runtime();
    let seen = Arc::new(Seen::default());
    let router = router(seen.clone());
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let addr = listener.local_addr().unwrap();
    runtime.spawn(async move {
        let listener =
            axum::serve::ListenerExt::tap_io(listener, |tcp| tcp.set_nodelay(true).unwrap());
        axum::serve(listener, router).await.unwrap();
    });
    Server {
        addr,
        seen,
        runtime: Some(runtime),
    }
}

/// Starts a web server of files that answers range requests.
pub fn web_server(dir: &Path) -> Server {
    let dir = dir.to_path_buf();
    serve(|seen| {
        Router::new().fallback(
            move |method: axum::http::Method, uri: axum::http::Uri, headers: HeaderMap| {
                let (dir, seen) = (dir.clone(), seen.clone());
                async move {
                    let range = headers
                        .get(header::RANGE)
                        .map(|v| v.to_str().unwrap().to_string());
                    seen.requests.lock().push(format!(
                        "{method} {} {}",
                        uri.path(),
                        range.clone().unwrap_or_default()
                    ));
                    seen.tokens.lock().push(
                        headers
                            .get("authorization")
                            .map(|v| v.to_str().unwrap().to_string()),
                    );
                    let Ok(bytes) = std::fs::read(dir.join(uri.path().trim_start_matches('/')))
                    else {
                        return (StatusCode::NOT_FOUND, "<html>no such file</html>")
                            .into_response();
                    };
                    let Some(range) = range else {
                        return bytes.into_response();
                    };
                    let (start, end) = range
                        .strip_prefix("bytes=")
                        .unwrap()
                        .split_once('-')
                        .unwrap();
                    let (start, end): (usize, usize) =
                        (start.parse().unwrap(), end.parse().unwrap());
                    let told = format!("bytes {start}-{end}/{}", bytes.len());
                    (
                        StatusCode::PARTIAL_CONTENT,
                        [(header::CONTENT_RANGE, told)],
                        bytes[start..=end].to_vec(),
                    )
                        .into_response()
                }
            },
        )
    })
}

/// Starts a hub that speaks the batch protocol over a real repository, and requires [`TOKEN`].
pub fn hub_server(repository: &Repository) -> Server {
    let repository = repository.clone();
    serve(|seen| {
        Router::new()
            .route("/v1/resolve", get(hub_resolve))
            .route("/v1/images/{id}/manifest", get(hub_manifest))
            .route("/v1/images/{id}/layout", get(hub_layout))
            .route("/v1/images/{id}/read", post(hub_read))
            .with_state((repository, seen))
    })
}

type Hub = State<(Repository, Arc<Seen>)>;

fn denied(seen: &Seen, headers: &HeaderMap) -> bool {
    let token = headers
        .get("authorization")
        .map(|v| v.to_str().unwrap().to_string());
    let good = token.as_deref() == Some(&format!("Bearer {TOKEN}"));
    seen.tokens.lock().push(token);
    !good
}

fn json_error(status: StatusCode) -> Response {
    (
        status,
        [(header::CONTENT_TYPE, "application/json")],
        r#"{"error":"no"}"#,
    )
        .into_response()
}

async fn hub_resolve(
    State((repository, seen)): Hub,
    headers: HeaderMap,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    if denied(&seen, &headers) {
        return json_error(StatusCode::UNAUTHORIZED);
    }
    match repository.resolve(&query["name"]) {
        Ok(id) => (
            [(header::CONTENT_TYPE, "application/json")],
            format!(r#"{{"id":"{id}"}}"#),
        )
            .into_response(),
        Err(_) => json_error(StatusCode::NOT_FOUND),
    }
}

async fn hub_manifest(State((repository, _)): Hub, UrlPath(id): UrlPath<String>) -> Response {
    match repository.manifest_bytes(&id.parse().unwrap()) {
        Ok(bytes) => bytes.into_response(),
        Err(_) => json_error(StatusCode::NOT_FOUND),
    }
}

async fn hub_layout(State((repository, _)): Hub, UrlPath(id): UrlPath<String>) -> Response {
    match repository.layout(&id.parse().unwrap()) {
        Ok(layout) => layout.encode().into_response(),
        Err(_) => json_error(StatusCode::NOT_FOUND),
    }
}

async fn hub_read(
    State((repository, seen)): Hub,
    UrlPath(id): UrlPath<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if denied(&seen, &headers) {
        return json_error(StatusCode::UNAUTHORIZED);
    }
    let encoding = headers["x-floe-encoding"].to_str().unwrap().to_string();
    let wants = ReadRequest::decode(&body).unwrap().wants;
    seen.reads
        .lock()
        .push(wants.iter().map(|(_, hash)| *hash).collect());
    seen.encodings.lock().push(encoding.clone());
    let mut out = ResponseEncoder::new(Vec::new()).unwrap();
    let Ok(missing) =
        repository.read_items(&id.parse().unwrap(), &wants, &mut |kind, hash, bytes| {
            match &*encoding {
                "raw" => out.frame(kind, &[hash], Encoding::Raw, bytes).unwrap(),
                _ => out
                    .frame(
                        kind,
                        &[hash],
                        Encoding::Zstd,
                        &compress_frame(kind, &[bytes], 1),
                    )
                    .unwrap(),
            }
        })
    else {
        return json_error(StatusCode::NOT_FOUND);
    };
    for (kind, hash) in missing {
        out.missing(kind, &hash).unwrap();
    }
    Body::from(out.finish().unwrap()).into_response()
}

/// A real S3 server over a directory in which each folder is a bucket; the bucket `images` holds the files of `repository`.
pub struct S3Server {
    pub addr: SocketAddr,
    _root: tempfile::TempDir,
    runtime: Option<Runtime>,
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

pub const S3_KEYS: (&str, &str) = ("AKEXAMPLES3S", "SKEXAMPLES3S");

pub fn s3_server(repository: &Path) -> S3Server {
    let root = tempfile::tempdir().unwrap();
    copy_tree(repository, &root.path().join("images/some/where"));
    let files = s3s_fs::FileSystem::new(root.path()).unwrap();
    let mut builder = s3s::service::S3ServiceBuilder::new(files);
    builder.set_auth(s3s::auth::SimpleAuth::from_single(S3_KEYS.0, S3_KEYS.1));
    let service = builder.build();
    let runtime = runtime();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let addr = listener.local_addr().unwrap();
    runtime.spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let service = service.clone();
            tokio::spawn(async move {
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(hyper_util::rt::TokioIo::new(tcp), service)
                    .await;
            });
        }
    });
    S3Server {
        addr,
        _root: root,
        runtime: Some(runtime),
    }
}

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Returns an address at which nothing listens.
pub fn nobody() -> SocketAddr {
    StdListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

pub fn options() -> Options {
    Options {
        timeout: LIMIT,
        ..Options::default()
    }
}

/// Returns the origin at an address, with the token that the test servers require.
pub fn origin(address: &str) -> Origin {
    let origin = Registry::default().origin(address).unwrap();
    origin.with_token(Some(TOKEN.into()))
}

pub fn s3_options(server: SocketAddr) -> Options {
    Options {
        environment: Some(
            [
                ("AWS_ENDPOINT_URL", &*format!("http://{server}")),
                ("AWS_REGION", "us-east-1"),
                ("AWS_ACCESS_KEY_ID", S3_KEYS.0),
                ("AWS_SECRET_ACCESS_KEY", S3_KEYS.1),
            ]
            .map(|(name, value)| (name.into(), value.into()))
            .into(),
        ),
        ..options()
    }
}

/// Returns the outcome of a read, and everything that it delivered.
pub fn read_all(
    source: &dyn Source,
    image: &Hash,
    wants: &[(Kind, Hash)],
    limit: Duration,
) -> (Result<(), SourceError>, HashMap<Hash, Vec<u8>>) {
    let mut got = HashMap::new();
    let request = floe_source::Request::demand(limit);
    let outcome = source.read(image, wants, &request, &mut |kind, hash, bytes| {
        kind.verify(&hash, bytes)
            .expect("a source delivered unverified bytes");
        assert!(
            got.insert(hash, bytes.to_vec()).is_none(),
            "{hash} was delivered twice"
        );
    });
    (outcome, got)
}

/// Makes a PEM file that contains `text`.
pub fn pem_file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// A server that speaks TLS in front of `server`.
pub struct TlsFront {
    addr: SocketAddr,
    _server: Server,
    runtime: Option<Runtime>,
}

impl TlsFront {
    pub fn port(&self) -> u16 {
        self.addr.port()
    }
}

impl Drop for TlsFront {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

pub fn tls_front(cert: &rcgen::CertifiedKey<rcgen::KeyPair>, server: Server) -> TlsFront {
    use rustls::pki_types::PrivateKeyDer;
    let key = PrivateKeyDer::try_from(cert.signing_key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ))
    .with_safe_default_protocol_versions()
    .unwrap()
    .with_no_client_auth()
    .with_single_cert(vec![cert.cert.der().clone()], key)
    .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let runtime = runtime();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let addr = listener.local_addr().unwrap();
    let behind = server.addr;
    runtime.spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut tls) = acceptor.accept(tcp).await else {
                    return;
                };
                let mut plain = TcpStream::connect(behind).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut tls, &mut plain).await;
            });
        }
    });
    TlsFront {
        addr,
        _server: server,
        runtime: Some(runtime),
    }
}
