//! A member that speaks the protocol by hand, and need not keep to it.
#[path = "../../src/tls.rs"]
mod tls;

use super::{Image, TOKEN, soon};
use bytes::Bytes;
use floe_peers::{Key, Member, Pack};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::rustls::server::{ServerSessionMemoryCache, StoresServerSessions};
use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, RecvStream, SendStream, ServerConfig,
    TransportConfig, VarInt,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tls::Identity;
use tokio::net::UdpSocket;
use tokio::sync::watch;

const ALPN: &[u8] = b"floe/pieces/3";
/// A name that TLS wants to have.
const NAME: &str = "rogue";

/// What a host says; the numbers are the protocol's.
pub const HAS: u8 = 1;
pub const ASK: u8 = 3;
pub const REFUSE: u8 = 5;
pub const PACKS: u8 = 6;

pub fn number(mut n: u32) -> Vec<u8> {
    let mut out = Vec::new();
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
    out
}

pub fn frame(body: &[u8]) -> Vec<u8> {
    [&number(body.len() as u32), body].concat()
}

pub fn hello(image: [u8; 32], content: [u8; 32], token: [u8; 32]) -> Vec<u8> {
    frame(&[&[0][..], &image, &content, &token, &[9; 8], &[8]].concat())
}

/// Names packs, each by its root and length.
pub fn packs(named: &[Pack]) -> Vec<u8> {
    let mut body = vec![PACKS];
    for pack in named {
        body.extend_from_slice(&pack.root);
        body.extend_from_slice(&pack.bytes.to_le_bytes());
    }
    frame(&body)
}

pub fn has_all(pieces: u32) -> Vec<u8> {
    has(0, pieces)
}

/// Says that it has so many pieces from one on.
pub fn has(first: u32, pieces: u32) -> Vec<u8> {
    frame(&[vec![HAS], number(first), number(pieces - 1)].concat())
}

pub fn ask(piece: u32) -> Vec<u8> {
    frame(&[vec![ASK], number(piece), vec![1]].concat())
}

pub fn refuse(piece: u32) -> Vec<u8> {
    frame(&[vec![REFUSE], number(piece)].concat())
}

pub struct Rogue {
    pub endpoint: Endpoint,
    pub sessions: Arc<Sessions>,
    key: Key,
}

/// TLS sessions that a rogue offers to resume, which no honest host does.
#[derive(Debug)]
pub struct Sessions {
    kept: Arc<ServerSessionMemoryCache>,
    /// How many were offered.
    pub offered: AtomicUsize,
    /// How many another host came back to.
    pub resumed: AtomicUsize,
}

impl StoresServerSessions for Sessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.offered.fetch_add(1, Ordering::Relaxed);
        self.kept.put(key, value)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.resumed.fetch_add(1, Ordering::Relaxed);
        self.kept.get(key)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.resumed.fetch_add(1, Ordering::Relaxed);
        self.kept.take(key)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

/// A conversation with a host.
pub struct Talk {
    pub connection: Connection,
    pub send: SendStream,
    recv: RecvStream,
    bytes: Vec<u8>,
}

impl Rogue {
    pub async fn new(number: u8) -> Rogue {
        let identity = Identity::new(&[number; 32]).unwrap();
        let sessions = Arc::new(Sessions {
            kept: ServerSessionMemoryCache::new(16),
            offered: AtomicUsize::new(0),
            resumed: AtomicUsize::new(0),
        });
        // whatever it asks for, it takes nothing
        let mut transport = TransportConfig::default();
        transport.max_concurrent_uni_streams(VarInt::from_u32(0));
        let transport = Arc::new(transport);
        let mut accepts = identity.server(ALPN).unwrap();
        accepts.session_storage = sessions.clone();
        accepts.send_tls13_tickets = 1;
        let accepts = QuicServerConfig::try_from(accepts).unwrap();
        let mut server = ServerConfig::with_crypto(Arc::new(accepts));
        server.transport_config(transport.clone());
        let dials = QuicClientConfig::try_from(identity.client(ALPN).unwrap()).unwrap();
        let mut client = ClientConfig::new(Arc::new(dials));
        client.transport_config(transport);
        let mut endpoint = Endpoint::server(server, "127.0.0.1:0".parse().unwrap()).unwrap();
        endpoint.set_default_client_config(client);
        Rogue {
            endpoint,
            sessions,
            key: Key(identity.key),
        }
    }

    /// Who it is, without an address, as somebody who can only dial.
    pub fn member(&self) -> Member {
        Member {
            key: self.key,
            addresses: Vec::new(),
        }
    }

    /// Takes the next host in that dials, and does not hang up before it is in.
    pub async fn accept(&self) -> Connection {
        loop {
            let incoming = soon(self.endpoint.accept()).await.unwrap();
            if let Ok(connection) = soon(incoming.into_future()).await {
                return connection;
            }
        }
    }

    /// Takes the next host in that dials, and answers its hello.
    pub async fn welcome(&self, image: [u8; 32], token: [u8; 32]) -> Talk {
        let connection = self.accept().await;
        let (send, recv) = soon(connection.accept_bi()).await.unwrap();
        let mut talk = Talk {
            connection,
            send,
            recv,
            bytes: Vec::new(),
        };
        assert_eq!(soon(talk.hear()).await.unwrap()[0], 0);
        talk.say(&hello(image, image, token)).await;
        talk
    }

    /// Dials a host and says hello, as one that knows the image as it was first laid out. An error is what the host closed the connection with.
    pub async fn dial(&self, host: &Member, image: [u8; 32], token: [u8; 32]) -> Result<Talk, u64> {
        self.dial_as(host, image, image, token).await
    }

    /// The same, as one that knows some packs of the image.
    pub async fn dial_as(
        &self,
        host: &Member,
        image: [u8; 32],
        content: [u8; 32],
        token: [u8; 32],
    ) -> Result<Talk, u64> {
        let connecting = self.endpoint.connect(host.addresses[0], NAME).unwrap();
        let connection = soon(connecting).await.unwrap();
        assert_eq!(tls::key_of(&connection), Some(host.key.0));
        let Ok((mut send, recv)) = connection.open_bi().await else {
            return Err(code(&connection).await);
        };
        let _ = send.write_all(&hello(image, content, token)).await;
        let mut talk = Talk {
            connection,
            send,
            recv,
            bytes: Vec::new(),
        };
        match soon(talk.hear()).await {
            Some(theirs) if theirs[0] == 0 => Ok(talk),
            Some(other) => panic!("{other:?} is no hello"),
            None => Err(code(&talk.connection).await),
        }
    }

    /// Begins a handshake at an address from which no answer comes.
    pub fn knock(&self, at: SocketAddr) -> impl Future<Output = ()> + Send + use<> {
        let connecting = self.endpoint.connect(at, NAME).unwrap();
        async move {
            let _ = connecting.await;
        }
    }

    /// Dials a host as a member and says that it has all of the image. A host refuses those whom it was not told of yet.
    pub async fn boast(&self, host: &Member, image: &Image) -> Talk {
        let mut talk = self.dial(host, image.content.id(), TOKEN).await.unwrap();
        talk.say(&has_all(image.content.pieces())).await;
        talk
    }
}

/// Returns an address from which everything reaches a host, and to which nothing comes back; and how many datagrams went that way.
pub async fn hole(host: SocketAddr) -> (SocketAddr, watch::Receiver<usize>) {
    let from = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let to = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = from.local_addr().unwrap();
    let (count, counted) = watch::channel(0);
    tokio::spawn(async move {
        let mut datagram = [0; 2048];
        while let Ok(length) = from.recv(&mut datagram).await {
            let _ = to.send_to(&datagram[..length], host).await;
            count.send_modify(|count| *count += 1);
        }
    });
    (address, counted)
}

/// Returns the code with which a host has closed a connection.
pub async fn code(connection: &Connection) -> u64 {
    heard(connection).await.expect("it said why")
}

/// The same; `None` from a host that knows the connection no more: who floods may be too busy to hear the code in time (RFC 9000, section
/// 10.3).
pub async fn heard(connection: &Connection) -> Option<u64> {
    match soon(connection.closed()).await {
        ConnectionError::ApplicationClosed(close) => Some(close.error_code.into_inner()),
        ConnectionError::Reset => None,
        other => panic!("{other}"),
    }
}

impl Talk {
    pub async fn say(&mut self, frames: &[u8]) {
        let _ = self.send.write_all(frames).await;
    }

    /// Returns the next message's body.
    pub async fn hear(&mut self) -> Option<Vec<u8>> {
        loop {
            let mut length = 0;
            for (at, byte) in self.bytes.iter().enumerate() {
                length |= usize::from(byte & 0x7F) << (7 * at);
                if byte & 0x80 == 0 {
                    let end = at + 1 + length;
                    if self.bytes.len() < end {
                        break;
                    }
                    let body = self.bytes[at + 1..end].to_vec();
                    self.bytes.drain(..end);
                    return Some(body);
                }
            }
            let mut buffer = [0; 4096];
            let read = self.recv.read(&mut buffer).await.ok()??;
            self.bytes.extend_from_slice(&buffer[..read]);
        }
    }

    /// Returns the next piece that it is asked for; `None` once the connection has ended.
    pub async fn asked(&mut self) -> Option<u32> {
        loop {
            let body = self.hear().await?;
            if body[0] == ASK {
                let digits = &body[1..body.len() - 1];
                let digit = |(at, byte): (usize, &u8)| u32::from(byte & 0x7F) << (7 * at);
                return Some(digits.iter().enumerate().map(digit).sum());
            }
        }
    }

    /// Sends bytes as a piece.
    pub async fn send(&self, piece: u32, bytes: Bytes) {
        if let Ok(mut stream) = self.connection.open_uni().await {
            let _ = stream.write_all(&number(piece)).await;
            let _ = stream.write_chunk(bytes).await;
            let _ = stream.finish();
        }
    }
}

/// Returns a piece as it should be sent.
pub fn right(image: &Arc<Image>, piece: u32) -> Bytes {
    let (pack, range) = image.content.place(piece).unwrap();
    image.prove(pack, range)
}
