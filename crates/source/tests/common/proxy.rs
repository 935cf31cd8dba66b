//! A proxy in front of any server, which breaks answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

use super::runtime;

/// What the proxy does with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Closes the connection after this many bytes of the body.
    Cut(usize),
    /// Takes the request and never answers.
    Hang,
    /// Answers 500 without asking the server.
    Error,
    /// Flips a bit at this offset of the body.
    Flip(usize),
    /// Answers with a body without end.
    Endless,
    /// Closes each connection at once.
    Refuse,
}

/// A proxy in front of a server; a fault concerns all connections.
pub struct Proxy {
    pub addr: SocketAddr,
    fault: Arc<Mutex<(Fault, usize)>>,
    pub faults: Arc<AtomicUsize>,
    runtime: Option<Runtime>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

impl Proxy {
    pub fn new(server: SocketAddr) -> Proxy {
        let runtime = runtime();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let addr = listener.local_addr().unwrap();
        let fault = Arc::new(Mutex::new((Fault::None, 0)));
        let faults = Arc::new(AtomicUsize::new(0));
        let (state, count) = (fault.clone(), faults.clone());
        runtime.spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(relay(client, server, state.clone(), count.clone()));
            }
        });
        Proxy {
            addr,
            fault,
            faults,
            runtime: Some(runtime),
        }
    }

    /// Applies a fault to the next `times` requests.
    pub fn inject(&self, fault: Fault, times: usize) {
        *self.fault.lock() = (fault, times);
    }
}

/// Relays one request after the other; each gets its own connection to the server, so that its end is the answer's end.
async fn relay(
    mut client: TcpStream,
    server: SocketAddr,
    state: Arc<Mutex<(Fault, usize)>>,
    count: Arc<AtomicUsize>,
) {
    loop {
        let Some(request) = read_request(&mut client).await else {
            return;
        };
        let fault = {
            let mut state = state.lock();
            if state.1 == 0 {
                Fault::None
            } else {
                state.1 -= 1;
                count.fetch_add(1, SeqCst);
                state.0
            }
        };
        match fault {
            Fault::Hang => return std::future::pending().await,
            Fault::Refuse => return,
            Fault::Error => {
                let answer =
                    b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 7\r\n\r\ntrouble";
                client.write_all(answer).await.unwrap();
                continue;
            }
            Fault::Endless => {
                let range = String::from_utf8_lossy(&request)
                    .lines()
                    .find_map(|l| l.strip_prefix("range: bytes=").map(String::from));
                let head = match range {
                    Some(r) => format!("HTTP/1.1 206 Partial Content\r\ncontent-range: bytes {r}/999999999\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"),
                    None => "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n".into(),
                };
                let _ = client.write_all(head.as_bytes()).await;
                let chunk = [b"10000\r\n".to_vec(), vec![7; 65536], b"\r\n".to_vec()].concat();
                while client.write_all(&chunk).await.is_ok() {}
                return;
            }
            _ => {}
        }
        let Some((head, mut body)) = ask(server, &request).await else {
            return;
        };
        if let Fault::Flip(at) = fault {
            let at = at.min(body.len().saturating_sub(1));
            body[at] ^= 4;
        }
        if client.write_all(&head).await.is_err() {
            return;
        }
        if let Fault::Cut(at) = fault {
            let _ = client
                .write_all(&body[..at.min(body.len().saturating_sub(1))])
                .await;
            return;
        }
        if client.write_all(&body).await.is_err() {
            return;
        }
    }
}

async fn read_request(client: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 65536];
    loop {
        if let Some(head) = find_head(&bytes) {
            let text = String::from_utf8_lossy(&bytes[..head]).to_lowercase();
            let length = text
                .lines()
                .find_map(|l| l.strip_prefix("content-length:"))
                .map_or(0, |v| v.trim().parse().unwrap());
            if bytes.len() >= head + length {
                return Some(bytes);
            }
        }
        match client.read(&mut buffer).await {
            Ok(0) | Err(_) => return None,
            Ok(n) => bytes.extend_from_slice(&buffer[..n]),
        }
    }
}

async fn ask(server: SocketAddr, request: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut tcp = TcpStream::connect(server).await.ok()?;
    let head = find_head(request)?;
    let mut closing = request[..head - 2].to_vec();
    closing.extend_from_slice(b"connection: close\r\n\r\n");
    closing.extend_from_slice(&request[head..]);
    tcp.write_all(&closing).await.ok()?;
    let mut answer = Vec::new();
    tcp.read_to_end(&mut answer).await.ok()?;
    let at = find_head(&answer)?;
    // Removes the header, because the client's connection stays open.
    let text = String::from_utf8_lossy(&answer[..at]);
    let kept: Vec<&str> = text
        .split("\r\n")
        .filter(|line| !line.to_lowercase().starts_with("connection:"))
        .collect();
    Some((kept.join("\r\n").into_bytes(), answer[at..].to_vec()))
}

fn find_head(bytes: &[u8]) -> Option<usize> {
    bytes
        .windows(4)
        .position(|w| w == b"\r\n\r\n")
        .map(|at| at + 4)
}
