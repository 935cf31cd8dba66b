//! Tests one image read from two servers at the same time, over links that are slower than the disk.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use common::*;
use floe_source::{Hub, Options, Source, Striped};
use parking_lot::Mutex;

/// A link to a server, with a bandwidth that all its connections share.
struct Link {
    addr: SocketAddr,
    carried: Arc<AtomicU64>,
}

/// Makes a link. `both` holds the first answers back until both links were used, so that other load doesn't decide which
/// begins.
fn link(server: SocketAddr, bytes_per_s: u64, both: Arc<Barrier>) -> Link {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let carried = Arc::new(AtomicU64::new(0));
    let count = carried.clone();
    std::thread::spawn(move || {
        let free_at = Arc::new(Mutex::new(Instant::now()));
        for (number, client) in listener.incoming().flatten().enumerate() {
            let (count, free_at, both) = (count.clone(), free_at.clone(), both.clone());
            std::thread::spawn(move || {
                if number == 0 {
                    both.wait();
                }
                let upstream = TcpStream::connect(server).unwrap();
                let (mut from, mut to) =
                    (client.try_clone().unwrap(), upstream.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                let _ = carry(upstream, client, bytes_per_s, &count, &free_at);
            });
        }
    });
    Link { addr, carried }
}

fn carry(
    mut from: TcpStream,
    mut to: TcpStream,
    bytes_per_s: u64,
    count: &AtomicU64,
    free_at: &Mutex<Instant>,
) -> std::io::Result<()> {
    let mut piece = [0; 4096];
    loop {
        let length = from.read(&mut piece)?;
        if length == 0 {
            return Ok(());
        }
        let at = {
            let mut free_at = free_at.lock();
            let took = Duration::from_secs_f64(length as f64 / bytes_per_s as f64);
            *free_at = (*free_at).max(Instant::now()) + took;
            *free_at
        };
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        count.fetch_add(length as u64, SeqCst);
        to.write_all(&piece[..length])?;
    }
}

#[test]
fn two_servers_over_limited_links_both_carry_bytes_and_none_twice() {
    let fixture = Fixture::new();
    let servers = [
        hub_server(&fixture.repository),
        hub_server(&fixture.repository),
    ];
    let both = Arc::new(Barrier::new(2));
    let links = [&servers[0], &servers[1]].map(|server| link(server.addr, 400_000, both.clone()));
    let sources = links.iter().map(|link| {
        let origin = origin(&format!("http://{}", link.addr));
        Arc::new(Hub::new(&origin, &Options::default()).unwrap()) as Arc<dyn Source>
    });
    let source = Striped::new(sources.collect());
    let wants: Vec<_> = (0..CHUNKS).map(|i| fixture.want(i)).collect();
    let (outcome, got) = read_all(&source, &fixture.image, &wants, Duration::from_secs(120));
    outcome.unwrap();
    assert_eq!(got.len(), CHUNKS);
    let carried = links.each_ref().map(|link| link.carried.load(SeqCst));
    // Half of each chunk compresses: a part of 32 chunks is 64 KiB.
    assert!(carried.iter().all(|bytes| *bytes > 64 << 10), "{carried:?}");
    let asked = servers
        .each_ref()
        .map(|server| server.seen.reads.lock().concat());
    assert_eq!(
        asked[0].len() + asked[1].len(),
        CHUNKS,
        "each chunk is asked for once"
    );
    let reads: usize = servers.iter().map(|s| s.seen.reads.lock().len()).sum();
    assert_eq!(source.link().requests as usize, reads);
}
