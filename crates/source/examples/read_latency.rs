//! Measures how long a demand read of one chunk from a hub takes over loopback: through a bare socket, through
//! [`floe_source::Hub`], and through a [`floe_source::Fetcher`] with its cache, on the caller's thread and on the fetcher's.
//!
//! `cargo run --release -p floe-source --example read_latency`

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use floe_image::{Encoding, Hash, Kind, ReadRequest, ResponseEncoder};
use floe_source::{FetchOptions, Fetcher, Hub, Options, Registry, Request, Source, Who};
use floe_store::Cache;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;

const READS: usize = 4000;
const IMAGE: Hash = Hash([1; 32]);

fn chunk(i: usize) -> Vec<u8> {
    let mut bytes = vec![0x5a; 4096];
    bytes[..8].copy_from_slice(&(i as u64 + 1).to_le_bytes());
    bytes
}

/// Starts a hub that has everything in memory and answers each read with raw bytes; returns its address.
fn hub(chunks: Vec<(Hash, Vec<u8>)>) -> SocketAddr {
    let chunks: Arc<std::collections::HashMap<_, _>> = Arc::new(chunks.into_iter().collect());
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
                .await
                .expect("a free port");
            tell.send(listener.local_addr().expect("an address"))
                .expect("main waits");
            loop {
                let (tcp, _) = listener.accept().await.expect("a connection");
                tcp.set_nodelay(true).expect("a socket option");
                let chunks = chunks.clone();
                tokio::spawn(async move {
                    let service = hyper::service::service_fn(
                        move |request: hyper::Request<hyper::body::Incoming>| {
                            let chunks = chunks.clone();
                            async move {
                                let body = request.into_body().collect().await?.to_bytes();
                                let wants =
                                    ReadRequest::decode(&body).expect("our own request").wants;
                                let mut out =
                                    ResponseEncoder::new(Vec::with_capacity(4400)).expect("memory");
                                for (kind, hash) in wants {
                                    out.frame(kind, &[hash], Encoding::Raw, &chunks[&hash])
                                        .expect("memory");
                                }
                                Ok::<_, hyper::Error>(hyper::Response::new(Full::new(Bytes::from(
                                    out.finish().expect("memory"),
                                ))))
                            }
                        },
                    );
                    let io = hyper_util::rt::TokioIo::new(tcp);
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(io, service)
                        .await;
                });
            }
        });
    });
    told.recv().expect("the server's address")
}

fn measure(name: &str, mut call: impl FnMut(usize)) {
    let mut times: Vec<f64> = (0..READS)
        .map(|i| {
            let start = Instant::now();
            call(i);
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!(
        "{name:44} p50 {:7.1}  p99 {:7.1} us  (n {READS})",
        times[READS / 2],
        times[READS * 99 / 100]
    );
}

fn main() {
    let chunks: Vec<(Hash, Vec<u8>)> = (0..READS * 3)
        .map(|i| (Hash::of(&chunk(i)), chunk(i)))
        .collect();
    let addr = hub(chunks.clone());
    let url = format!("http://{addr}");

    let mut tcp = TcpStream::connect(addr).expect("the server");
    tcp.set_nodelay(true).expect("a socket option");
    let mut buffer = vec![0; 65536];
    measure("bare socket, same bytes", |i| {
        let body = ReadRequest {
            wants: vec![(Kind::Chunk, chunks[i].0)],
        }
        .encode();
        let head = format!(
            "POST /v1/images/{IMAGE}/read HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        tcp.write_all(&[head.as_bytes(), &body].concat())
            .expect("the server reads");
        let mut got = 0;
        while got < 4096 + 64 {
            got += tcp.read(&mut buffer).expect("the server answers");
        }
    });

    let origin = Registry::default().origin(&url).expect("a good URL");
    let hub = Arc::new(Hub::new(&origin, &Options::default()).expect("a good URL"));
    let request = Request::demand(Duration::from_secs(10));
    measure("Hub::read, verified", |i| {
        let mut got = 0;
        hub.read(
            &IMAGE,
            &[(Kind::Chunk, chunks[i].0)],
            &request,
            &mut |_, _, bytes| got += bytes.len(),
        )
        .expect("the chunk");
        assert_eq!(got, 4096);
    });

    let dir = tempfile::tempdir().expect("a directory");
    let cache = Arc::new(Cache::open(dir.path(), 1 << 30).expect("a cache"));
    let fetcher = Fetcher::new(hub, cache, FetchOptions::default());
    measure("Fetcher::demand_here, into the cache", |i| {
        let (tell, told) = mpsc::sync_channel(1);
        fetcher.demand_here(
            Who::default(),
            &IMAGE,
            Kind::Chunk,
            &chunks[READS + i].0,
            move |outcome| {
                tell.send(outcome.map(<[u8]>::len)).expect("main waits");
            },
        );
        assert_eq!(told.recv().expect("an answer").expect("the chunk"), 4096);
    });
    measure("Fetcher::demand, into the cache", |i| {
        let (tell, told) = mpsc::sync_channel(1);
        fetcher.demand(
            Who::default(),
            &IMAGE,
            Kind::Chunk,
            &chunks[2 * READS + i].0,
            move |outcome| {
                tell.send(outcome.map(<[u8]>::len)).expect("main waits");
            },
        );
        assert_eq!(told.recv().expect("an answer").expect("the chunk"), 4096);
    });
}
