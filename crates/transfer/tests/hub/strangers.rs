//! Strangers who are slow or greedy: they get their share, and nobody else waits for them.

use crate::support::*;
use floe_image::{Encoding, Hash, Kind, ReadRequest, chunk_hash};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

/// Far beyond what anything here takes, on however busy a host: what is not done by then never is.
const PATIENCE: Duration = Duration::from_secs(100);

/// A connection from another of this host's addresses, `127.0.0.<host>`.
fn connect_from(host: u8, to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from(([127, 0, 0, host], 0))).unwrap();
    connect(&socket, &to).unwrap();
    TcpStream::from(socket)
}

/// Runs `work` on a thread of its own and fails if it does not come to its end.
fn in_time<T: Send>(what: &str, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let (done, is_done) = mpsc::channel();
        scope.spawn(move || done.send(work()));
        match is_done.recv_timeout(PATIENCE) {
            Ok(value) => value,
            // the scope would wait for the thread for ever
            Err(_) => {
                eprintln!("{what}: still waiting after {PATIENCE:?}");
                std::process::abort();
            }
        }
    })
}

/// A whole answer on a connection that is closed after it.
fn answer_on(mut stream: TcpStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

/// Waits until the hub closes the connection.
fn is_closed(mut stream: TcpStream) {
    in_time("a connection that the hub should close", || {
        let mut rest = [0; 1 << 16];
        while matches!(stream.read(&mut rest), Ok(n) if n > 0) {}
    });
}

const ALIVE: &str = "GET /v1/images HTTP/1.1\r\nhost: hub\r\nconnection: close\r\n\r\n";

#[test]
fn bodies_that_come_drop_by_drop_stop_nobodys_upload() {
    let world = world();
    let id = image(&world.repository, &(1..600).collect::<Vec<_>>());
    world.push(&id, "desktop", true).unwrap();
    let drop_by_drop: Vec<TcpStream> = (0..64)
        .map(|_| {
            let mut stream = connect_from(2, world.hub.addr());
            write!(
                stream,
                "POST /v1/images/{id}/traces HTTP/1.1\r\nhost: hub\r\nauthorization: Bearer {}\r\ncontent-length: 100000\r\n\r\nF",
                world.bob
            )
            .unwrap();
            stream
        })
        .collect();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // one more byte of each, again and again: never silent for long
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for mut stream in &drop_by_drop {
                    let _ = stream.write_all(b"F");
                }
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        let next = image(&world.repository, &(1000..1600).collect::<Vec<_>>());
        in_time("an upload beside slow ones", || {
            world.push(&next, "next", true).unwrap();
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(world.visible(None), 2);
}

/// A batch read of `count` chunks of pages 1, 2, ...; as many raw bytes travel back.
fn read_request(id: &Hash, count: u64, token: &str, close: bool) -> Vec<u8> {
    let wants = (1..=count).map(|n| (Kind::Chunk, chunk_hash(&page(n))));
    let body = ReadRequest {
        wants: wants.collect(),
    }
    .encode();
    let close = if close { "connection: close\r\n" } else { "" };
    let mut request = format!(
        "POST /v1/images/{id}/read HTTP/1.1\r\nhost: hub\r\nauthorization: Bearer {token}\r\nx-floe-encoding: {}\r\n{close}content-length: {}\r\n\r\n",
        Encoding::Raw.name(),
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(&body);
    request
}

#[test]
fn readers_who_take_nothing_stop_nobodys_reads() {
    let world = world();
    let id = image(&world.repository, &(1..4001).collect::<Vec<_>>());
    world.push(&id, "desktop", true).unwrap();
    let greedy = read_request(&id, 4000, &world.bob, false);
    let addr = world.hub.addr();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // 15 MB each, of which a byte a second is taken; who is cut off comes again
        for _ in 0..96 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let mut stream = connect_from(2, addr);
                    let _ = stream.write_all(&greedy);
                    while !stop.load(std::sync::atomic::Ordering::Relaxed)
                        && matches!(stream.read(&mut [0]), Ok(1))
                    {
                        std::thread::sleep(Duration::from_secs(1));
                    }
                }
            });
        }
        in_time("reads beside readers who take nothing", || {
            for _ in 0..100 {
                let mut stream = connect_from(3, addr);
                stream
                    .write_all(&read_request(&id, 500, &world.ann, true))
                    .unwrap();
                let mut answer = Vec::new();
                stream.read_to_end(&mut answer).unwrap();
                assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", answer.len());
                assert!(answer.len() > 500 * 4096, "{}", answer.len());
            }
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn an_address_that_holds_all_connections_makes_room_for_another() {
    let world = world_with(|o| o.limits.connections_max = 32);
    let addr = world.hub.addr();
    let mut held: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = connect_from(2, addr);
            stream.write_all(b"GET /v1/images HTT").unwrap();
            stream
        })
        .collect();
    in_time("a request beside an address that holds all", || {
        for _ in 0..10 {
            let answer = answer_on(connect_from(3, addr), ALIVE);
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            held.push(connect_from(2, addr));
        }
    });
}

#[test]
fn heads_bodies_and_answers_that_drip_are_cut_off_and_a_slow_link_is_not() {
    let world = world_with(|o| {
        o.limits.head_timeout = Duration::from_secs(3);
        o.limits.slow_stretch = Duration::from_secs(3);
    });
    let id = image(&world.repository, &(1..2001).collect::<Vec<_>>());
    world.push(&id, "desktop", true).unwrap();
    let addr = world.hub.addr();
    let drip = |mut stream: TcpStream| {
        in_time("a drip that the hub should end", || {
            while stream.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(200));
            }
        });
    };
    std::thread::scope(|scope| {
        scope.spawn(|| drip(connect_from(2, addr)));
        scope.spawn(|| {
            let mut body = connect_from(2, addr);
            write!(
                body,
                "POST /v1/images/{id}/traces HTTP/1.1\r\nhost: hub\r\nauthorization: Bearer {}\r\ncontent-length: 99999\r\n\r\n",
                world.bob
            )
            .unwrap();
            drip(body);
        });
        scope.spawn(|| {
            // takes nothing for some stretches: what the kernels keep is all that comes
            let mut reader = connect_from(2, addr);
            reader
                .write_all(&read_request(&id, 2000, &world.bob, false))
                .unwrap();
            std::thread::sleep(Duration::from_secs(12));
            let mut came = Vec::new();
            let _ = reader.read_to_end(&mut came);
            assert!(came.len() < 2000 * 4096, "{}", came.len());
        });
        // 100 kbit/s of a body that is wanted, and of an answer: both end well
        scope.spawn(|| {
            let mut slow = connect_from(4, addr);
            let request = read_request(&id, 4, &world.ann, true);
            for piece in request.chunks(50) {
                slow.write_all(piece).unwrap();
                std::thread::sleep(Duration::from_millis(100));
            }
            let (mut answer, mut piece) = (0, [0; 1250]);
            while let Ok(n @ 1..) = slow.read(&mut piece) {
                answer += n;
                std::thread::sleep(Duration::from_millis(100));
            }
            assert!(answer > 4 * 4096, "{answer}");
        });
    });
    is_closed({
        let mut idle = connect_from(2, addr);
        idle.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        idle
    });
}

#[test]
fn a_user_keeps_its_connection_though_strangers_behind_the_same_address_take_all() {
    let world = world_with(|o| {
        o.limits.connections_max = 64;
        o.limits.connections_each_max = 16;
    });
    let addr = world.hub.addr();
    let ask = format!(
        "GET /v1/images HTTP/1.1\r\nhost: hub\r\nauthorization: Bearer {}\r\n\r\n",
        world.ann
    );
    let mut ann = connect_from(2, addr);
    let mut turn = || {
        in_time("a user beside strangers", || {
            ann.write_all(ask.as_bytes()).unwrap();
            let mut answer = [0; 4096];
            let n = ann.read(&mut answer).unwrap();
            assert!(answer[..n].starts_with(b"HTTP/1.1 200"));
        });
    };
    turn();
    let mut held = Vec::new();
    for _ in 0..20 {
        held.extend((0..8).map(|_| connect_from(2, addr)));
        turn();
    }
}
