//! Screens: an image's at its capture, and a machine's as it is (VNC in a WebSocket).

use super::answer::{Failure, blocking};
use crate::{
    api::ApiError,
    node::{Node, error::at},
    page::thumbnail::{self, Keep},
};
use axum::{
    extract::{
        Path, State,
        ws::{Message, WebSocket, WebSocketUpgrade, rejection::WebSocketUpgradeRejection},
    },
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use futures::{SinkExt, StreamExt};
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::timeout,
};

type Floe = State<Arc<Node>>;

/// Characters of an image's id.
const ID_CHARACTERS: usize = 64;
/// Bytes of the screen that are sent at a time: what waits in the node for a browser that is slow.
const FROM_QEMU_BYTES: usize = 64 << 10;
/// Largest message of a browser, bytes: keys and pointers take tens, a pasted text some thousand.
const FROM_BROWSER_BYTES: usize = 256 << 10;
/// A browser that takes nothing for so long has gone.
const STALLED: Duration = Duration::from_secs(30);
/// How often a quiet connection is tried.
const PING_EVERY: Duration = Duration::from_secs(20);

/// The screen at the capture, as PNG.
#[utoipa::path(get, path = "/v1/images/{name}/thumbnail", tag = "images",
    params(("name" = String, Path, description = "name, id or a unique prefix of one")),
    responses((status = 200, body = Vec<u8>, content_type = "image/png"), (status = 304),
              (status = 404, body = ApiError)))]
pub async fn picture(
    State(node): Floe,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let keep = if name.len() == ID_CHARACTERS {
        Keep::Private
    } else {
        Keep::Ask
    };
    let (id, png) = blocking(move || node.thumbnail(&name)).await?;
    Ok(thumbnail::answer(&id, png, keep, &headers))
}

/// The machine's screen, keyboard and pointer: the VNC protocol (RFB) in binary messages of a WebSocket. Several browsers
/// may look at one machine.
#[utoipa::path(get, path = "/v1/machines/{name}/vnc", tag = "machines", params(("name" = String, Path)),
    responses((status = 101, description = "a WebSocket"), (status = 404, body = ApiError),
              (status = 426, description = "not a WebSocket")))]
pub async fn vnc(
    State(node): Floe,
    Path(name): Path<String>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Failure> {
    let machine = name.clone();
    let socket = blocking(move || node.vnc_socket(&machine)).await?;
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => return Ok(rejection.into_response()),
    };
    let qemu = UnixStream::connect(&socket)
        .await
        .map_err(at(format!("the screen of {name} does not answer")))?;
    Ok(bounded(upgrade)
        .protocols(["binary"])
        .on_upgrade(async move |browser| {
            tracing::debug!(machine = name, "a browser looks");
            relay(browser, qemu).await;
            tracing::debug!(machine = name, "a browser left");
        }))
}

/// A frame's length is checked when its head has come, a message's only when all of it is here.
fn bounded(upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
    upgrade
        .max_message_size(FROM_BROWSER_BYTES)
        .max_frame_size(FROM_BROWSER_BYTES)
}

/// Carries bytes both ways until either side ends. Each direction holds at most one piece: who is slow slows the other.
async fn relay(browser: WebSocket, qemu: UnixStream) {
    let (mut to_browser, mut from_browser) = browser.split();
    let (mut from_qemu, mut to_qemu) = qemu.into_split();
    let down = async {
        let mut piece = vec![0; FROM_QEMU_BYTES];
        loop {
            let message = match timeout(PING_EVERY, from_qemu.read(&mut piece)).await {
                Err(_quiet) => Message::Ping(Default::default()),
                Ok(Ok(0) | Err(_)) => break,
                Ok(Ok(count)) => Message::Binary(piece[..count].to_vec().into()),
            };
            if !matches!(timeout(STALLED, to_browser.send(message)).await, Ok(Ok(()))) {
                return;
            }
        }
        let _ = timeout(STALLED, to_browser.close()).await; // it may have gone as well
    };
    let up = async {
        while let Some(Ok(message)) = from_browser.next().await {
            match message {
                Message::Binary(bytes) if to_qemu.write_all(&bytes).await.is_ok() => {}
                Message::Ping(_) | Message::Pong(_) => {}
                // RFB is binary; who sends anything else does not speak it
                Message::Binary(_) | Message::Text(_) | Message::Close(_) => break,
            }
        }
    };
    tokio::select! { () = down => (), () = up => () }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{Router, routing::get};
    use std::net::SocketAddr;
    use tokio::net::{TcpListener, TcpStream, UnixListener};

    /// A server whose WebSocket leads to a unix socket, both of this test.
    async fn serve(dir: &std::path::Path) -> (SocketAddr, UnixListener) {
        let path = dir.join("vnc.sock");
        let qemu = UnixListener::bind(&path).unwrap();
        let upgrade = move |upgrade: WebSocketUpgrade| async move {
            let qemu = UnixStream::connect(&path).await.unwrap();
            bounded(upgrade).on_upgrade(move |browser| relay(browser, qemu))
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new().route("/vnc", get(upgrade));
        tokio::spawn(async move { axum::serve(listener, app).await });
        (address, qemu)
    }

    /// A browser's handshake, byte for byte.
    async fn browse(address: SocketAddr) -> TcpStream {
        let mut browser = TcpStream::connect(address).await.unwrap();
        let request = format!(
            "GET /vnc HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        );
        browser.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(browser.read_u8().await.unwrap());
        }
        assert!(
            head.starts_with(b"HTTP/1.1 101 "),
            "{}",
            head.escape_ascii()
        );
        browser
    }

    /// A frame as browsers send it, masked with zeroes.
    fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
        assert!(payload.len() < 126);
        let mut bytes = vec![0x80 | opcode, 0x80 | payload.len() as u8, 0, 0, 0, 0];
        bytes.extend(payload);
        bytes
    }

    #[tokio::test]
    async fn a_screen_travels_in_binary_messages_both_ways() {
        let dir = tempfile::tempdir().unwrap();
        let (address, listener) = serve(dir.path()).await;
        let mut browser = browse(address).await;
        let (mut qemu, _) = listener.accept().await.unwrap();
        qemu.write_all(b"RFB 003.008\n").await.unwrap();
        let mut got = [0; 14];
        browser.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"\x82\x0cRFB 003.008\n");
        browser.write_all(&frame(2, b"key")).await.unwrap();
        let mut got = [0; 3];
        qemu.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"key");
        // QEMU ends: the browser is told by a close frame
        drop(qemu);
        assert_eq!(browser.read_u8().await.unwrap(), 0x88);
    }

    #[tokio::test]
    async fn a_browser_that_goes_or_speaks_otherwise_is_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let (address, listener) = serve(dir.path()).await;
        let mut large = vec![0x82, 0xff];
        large.extend((FROM_BROWSER_BYTES as u64 * 2).to_be_bytes());
        large.extend([0; 4]);
        for last_words in [frame(8, b""), frame(1, b"text"), large, Vec::new()] {
            let mut browser = browse(address).await;
            let (mut qemu, _) = listener.accept().await.unwrap();
            browser.write_all(&last_words).await.unwrap();
            if last_words.is_empty() {
                drop(browser);
            }
            let mut rest = Vec::new();
            qemu.read_to_end(&mut rest).await.unwrap();
            assert_eq!(rest, b"", "nothing of it reaches QEMU");
        }
    }
}
