//! A member that speaks the protocol by hand, and need not keep to it.
use super::{Image, TOKEN, soon};
use bytes::Bytes;
use floe_peers::{Key, Member};
use iroh::endpoint::{
    Connection, ConnectionError, QuicTransportConfig, RecvStream, SendStream, VarInt, presets,
};
use iroh::{Endpoint, EndpointAddr, PublicKey, RelayMode, SecretKey, TransportAddr};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::UdpSocket;
use tokio::sync::watch;

const ALPN: &[u8] = b"floe/pieces/1";

/// What a host says; the numbers are the protocol's.
pub const HAS: u8 = 1;
pub const ASK: u8 = 3;
pub const REFUSE: u8 = 5;

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

pub fn hello(content: [u8; 32], token: [u8; 32]) -> Vec<u8> {
    frame(&[&[0][..], &content, &token, &[9; 8]].concat())
}

pub fn has_all(pieces: u32) -> Vec<u8> {
    frame(&[vec![HAS, 0], number(pieces - 1)].concat())
}

pub fn ask(piece: u32) -> Vec<u8> {
    frame(&[vec![ASK], number(piece), vec![0]].concat())
}

pub fn refuse(piece: u32) -> Vec<u8> {
    frame(&[vec![REFUSE], number(piece)].concat())
}

pub struct Rogue {
    pub endpoint: Endpoint,
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
        let endpoint = Endpoint::builder(presets::Minimal)
            .secret_key(SecretKey::from_bytes(&[number; 32]))
            .alpns(vec![ALPN.to_vec()])
            .relay_mode(RelayMode::Disabled)
            .clear_ip_transports()
            // whatever it asks for, it takes nothing
            .transport_config(
                QuicTransportConfig::builder()
                    .max_concurrent_uni_streams(VarInt::from_u32(0))
                    .build(),
            )
            .bind_addr("127.0.0.1:0")
            .unwrap()
            .bind()
            .await
            .unwrap();
        Rogue { endpoint }
    }

    /// Who it is, with an address or as somebody who can only dial.
    pub fn member(&self) -> Member {
        Member {
            key: Key(*self.endpoint.id().as_bytes()),
            addresses: Vec::new(),
        }
    }

    /// Dials a host and says hello. An error is what the host closed the connection with.
    pub async fn dial(
        &self,
        host: &Member,
        content: [u8; 32],
        token: [u8; 32],
    ) -> Result<Talk, u64> {
        let id = PublicKey::from_bytes(&host.key.0).unwrap();
        let addresses = host.addresses.iter().copied().map(TransportAddr::Ip);
        let address = EndpointAddr::from_parts(id, addresses);
        let connection = soon(self.endpoint.connect(address, ALPN)).await.unwrap();
        let Ok((mut send, recv)) = connection.open_bi().await else {
            return Err(code(&connection).await);
        };
        let _ = send.write_all(&hello(content, token)).await;
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

    /// Begins a handshake with a host, at an address from which no answer comes.
    pub fn knock(&self, host: &Member, at: SocketAddr) -> impl Future<Output = ()> + Send + use<> {
        let id = PublicKey::from_bytes(&host.key.0).unwrap();
        let address = EndpointAddr::from_parts(id, [TransportAddr::Ip(at)]);
        let endpoint = self.endpoint.clone();
        async move {
            let _ = endpoint.connect(address, ALPN).await;
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
    match soon(connection.closed()).await {
        ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
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
