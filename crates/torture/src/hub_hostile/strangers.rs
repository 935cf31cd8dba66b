//! The strangers: slow ones and greedy ones, in a separate process that runs until its input ends.
use super::client::{Client, connect_from, request};
use floe_image::{Hash, Kind, ReadRequest, chunk_hash};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

/// Number of addresses that strangers come from: 127.0.0.2 and so on. The first one is also an honest user's.
pub const ADDRESSES: u8 = 8;
/// Connections that a greedy stranger keeps busy at the same time.
const GREEDY_CONNECTIONS: usize = 4;
/// Time between two bytes of a slow stranger.
const DRIP: Duration = Duration::from_secs(1);
/// Stack size of each of some hundred threads, in bytes.
const STACK_BYTES: usize = 128 << 10;

/// The process's arguments.
#[derive(clap::Args)]
pub struct Arguments {
    /// The hub
    hub: SocketAddr,
    /// A public image
    image: Hash,
    /// A pack of it
    pack: Hash,
    /// Slow strangers
    slow: usize,
    /// Greedy strangers
    greedy: usize,
}

/// Returns the address of stranger number `n`.
fn address(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, 2 + (n % usize::from(ADDRESSES)) as u8)
}

impl Arguments {
    /// Runs the strangers until the input ends.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let thread = |work: Box<dyn Fn() + Send>| {
            std::thread::Builder::new()
                .stack_size(STACK_BYTES)
                .spawn(move || {
                    loop {
                        work();
                    }
                })
        };
        for n in 0..self.slow {
            let (hub, image) = (self.hub, self.image);
            thread(Box::new(move || slow(n, hub, image)))?;
        }
        for n in 0..self.greedy {
            let (hub, image, pack) = (self.hub, self.image, self.pack);
            thread(Box::new(move || greedy(n, hub, image, pack)))?;
        }
        println!("ready");
        std::io::stdout().flush()?;
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns a batch read of these chunks of an image of generated pages, which the hub is to answer in raw encoding.
pub fn read_request(image: &Hash, chunks: std::ops::Range<u64>, token: Option<&str>) -> Vec<u8> {
    let wants = chunks.map(|n| (Kind::Chunk, chunk_hash(&super::page(n))));
    let body = ReadRequest {
        wants: wants.collect(),
    }
    .encode();
    let path = format!("/v1/images/{image}/read");
    request("POST", &path, token, &[("x-floe-encoding", "raw")], &body)
}

/// Simulates one slow stranger, until the hub closes the connection.
fn slow(n: usize, hub: SocketAddr, image: Hash) {
    let Ok(mut stream) = connect_from(address(n), hub) else {
        return std::thread::sleep(DRIP);
    };
    let announced = |path: &str| {
        format!(
            "POST /v1/images/{image}/{path} HTTP/1.1\r\nhost: hub\r\ncontent-length: 100000\r\n\r\n"
        )
    };
    let begun = match n % 4 {
        0 => stream.write_all(b"GET /v1/images HTTP/1.1\r\nx: "),
        1 => stream.write_all(announced("read").as_bytes()),
        2 => stream.write_all(announced("traces").as_bytes()),
        _ => stream.write_all(&read_request(&image, 1..2000, None)),
    };
    let reads = n % 4 == 3;
    let drop_by_drop = |stream: &mut TcpStream| match reads {
        true => matches!(stream.read(&mut [0]), Ok(1)),
        false => stream.write_all(b"x").is_ok(),
    };
    while begun.is_ok() && drop_by_drop(&mut stream) {
        std::thread::sleep(DRIP);
    }
    // a stranger that was cut off connects again
    std::thread::sleep(DRIP);
}

/// Simulates one round of a greedy stranger: a request on each of its connections at once, then their answers as fast as
/// they come.
fn greedy(n: usize, hub: SocketAddr, image: Hash, pack: Hash) {
    let requests = [
        read_request(&image, 1..64, None),
        request("GET", &format!("/v1/packs/{pack}"), None, &[], b""),
        request("GET", "/v1/images", None, &[], b""),
        request("GET", "/v1/images", Some("floe_wrong"), &[], b""),
        request("GET", "/healthz", None, &[], b""),
        request("GET", "/v1/nothing", None, &[], b""),
        read_request(&image, 1..1000, None),
    ];
    let mut clients: Vec<Client> = (0..GREEDY_CONNECTIONS)
        .map(|_| Client::new(address(n), hub))
        .collect();
    for round in 0.. {
        let mut asked = Vec::new();
        for (k, client) in clients.iter_mut().enumerate() {
            let wish = &requests[(n + round + k) % requests.len()];
            asked.push(client.ask(wish).is_ok());
        }
        let mut failed = false;
        for (client, asked) in clients.iter_mut().zip(asked) {
            failed |= !asked || client.answer().is_err();
        }
        // a refused connection is retried soon, but not in a loop that only wastes this host's processors
        if failed {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
