//! Screens: an image's at its capture, and a machine's current one (VNC in a WebSocket).

use super::answer::{Failure, Path, blocking};
use crate::Node;
use axum::{
    extract::{
        State,
        ws::{Message, WebSocket, WebSocketUpgrade, rejection::WebSocketUpgradeRejection},
    },
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use floe_api::ApiError;
use floe_front::page::thumbnail::{self, Keep};
use floe_ground::{
    caller::Caller,
    error::at,
    typist::{Typist, carry_out, held_every, keep},
    vnc::Client,
};
use futures::{SinkExt, StreamExt};
use std::{sync::Arc, time::Duration};
use tokio::{io::AsyncReadExt, net::UnixStream, time::timeout};

type Floe = State<Arc<Node>>;

/// How many characters an image's id has.
const ID_CHARACTERS: usize = 64;
/// How many bytes of the screen are sent at a time, and so wait in the node for a slow browser.
const FROM_QEMU_BYTES: usize = 64 << 10;
/// Largest message of a browser in bytes: keys and pointer events take tens, a pasted text some thousand.
const FROM_BROWSER_BYTES: usize = 256 << 10;
/// A browser that takes no data for this long is considered gone.
pub(super) const STALLED: Duration = Duration::from_secs(30);
/// How often a quiet connection is pinged.
pub(super) const PING_EVERY: Duration = Duration::from_secs(20);

/// The screen at the capture, as PNG.
#[utoipa::path(get, path = "/v1/images/{name}/thumbnail", tag = "images",
    params(("name" = String, Path, description = "name, id or a unique prefix of one")),
    responses((status = 200, body = Vec<u8>, content_type = "image/png"), (status = 304),
              (status = 404, body = ApiError)))]
pub async fn picture(
    State(node): Floe,
    caller: Caller,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let keep = if name.len() == ID_CHARACTERS {
        Keep::Private
    } else {
        Keep::Ask
    };
    let thumbnail = move || {
        let name = node.pool.visible_image(name, &caller)?;
        node.images.thumbnail(&name)
    };
    let (id, png) = blocking(thumbnail).await?;
    Ok(thumbnail::answer(&id, png, keep, &headers))
}

/// The machine's screen, keyboard and pointer: the VNC protocol (RFB) in binary messages of a WebSocket. Several browsers may show one
/// machine. Keys and buttons that go down or up while it stands still are kept until its guest has got them, if the guest's agent takes
/// inputs; otherwise, and for what the pointer does beside that, they wait here until it goes on, as long as the connection stands. Of a
/// machine that is lent to another node it is the screen there.
#[utoipa::path(get, path = "/v1/machines/{name}/vnc", tag = "machines", params(("name" = String, Path)),
    responses((status = 101, description = "a WebSocket"), (status = 404, body = ApiError),
              (status = 426, description = "not a WebSocket")))]
pub async fn vnc(
    State(node): Floe,
    Path(name): Path<String>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Failure> {
    let machine = name.clone();
    let look = move || {
        let user = node.inputs.user(&node.inventory.get(&machine)?);
        Ok((user.screen()?, user))
    };
    let (qemu, user) = blocking(look).await?;
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => return Ok(rejection.into_response()),
    };
    let qemu = qemu.set_nonblocking(true).map(|()| qemu);
    let qemu = qemu
        .and_then(UnixStream::from_std)
        .map_err(at(format!("the screen of {name} does not answer")))?;
    Ok(bounded(upgrade)
        .protocols(["binary"])
        .on_upgrade(async move |browser| {
            tracing::debug!(machine = name, "a browser looks");
            relay(browser, qemu, user).await;
            tracing::debug!(machine = name, "a browser left");
        }))
}

/// Bounds both: a frame's length is checked when its head has arrived, a message's only when all of it is here.
pub(super) fn bounded(upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
    upgrade
        .max_message_size(FROM_BROWSER_BYTES)
        .max_frame_size(FROM_BROWSER_BYTES)
}

/// Carries bytes both ways until either side ends. Each direction has at most one piece under way, so a slow side slows the other.
async fn relay(browser: WebSocket, qemu: UnixStream, user: Arc<dyn Typist>) {
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
        let _ = timeout(STALLED, to_browser.close()).await; // the browser may be gone
    };
    let mut said = Client::default();
    // not a sleep that begins anew with each message: whoever moves the pointer on and on would wait for what is held
    let mut again = held_every();
    let up = async {
        loop {
            let step = tokio::select! {
                message = from_browser.next() => match message {
                    Some(Ok(Message::Binary(bytes))) => said.takes(&bytes, user.stand()),
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                    // RFB is binary: a client that sends anything else does not speak it
                    _ => return,
                },
                _ = again.tick(), if said.is_holding() => match user.stand().still {
                    true => continue,
                    false => said.goes_on(),
                },
            };
            if !carry_out(step, &mut to_qemu, &user).await {
                return;
            }
        }
    };
    tokio::select! { () = down => (), () = up => () }
    keep(&user, said.leaves()).await;
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use axum::{Router, routing::get};
    use floe_ground::{
        typist::Tried,
        vnc::{Done, Stand},
    };
    use floe_guest::input::Input;
    use std::net::SocketAddr;
    use tokio::{
        io::AsyncWriteExt,
        net::{TcpListener, TcpStream, UnixListener},
    };

    const HELLO: &[u8] = b"RFB 003.008\n\x01\x01";

    /// Starts a server that serves WebSockets in this way.
    pub async fn listen<F, S>(serve: S) -> SocketAddr
    where
        F: Future<Output = ()> + Send + 'static,
        S: Fn(WebSocket) -> F + Clone + Send + Sync + 'static,
    {
        let upgrade = async move |upgrade: WebSocketUpgrade| bounded(upgrade).on_upgrade(serve);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new().route("/socket", get(upgrade));
        tokio::spawn(async move { axum::serve(listener, app).await });
        address
    }

    /// Starts a server whose WebSocket leads to a unix socket, both of this test.
    async fn serve(dir: &std::path::Path, user: &Arc<Tried>) -> (SocketAddr, UnixListener) {
        let path = dir.join("vnc.sock");
        let qemu = UnixListener::bind(&path).unwrap();
        let user = user.clone();
        let address = listen(move |browser| {
            let (path, user) = (path.clone(), user.clone());
            async move {
                let qemu = UnixStream::connect(&path).await.unwrap();
                relay(browser, qemu, user).await
            }
        });
        (address.await, qemu)
    }

    /// Sends a browser's handshake, byte for byte.
    pub async fn browse(address: SocketAddr) -> TcpStream {
        let mut browser = TcpStream::connect(address).await.unwrap();
        let request = format!(
            "GET /socket HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
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

    /// Returns a frame as browsers send it, masked with zeroes.
    pub fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
        assert!(payload.len() < 126);
        let mut bytes = vec![0x80 | opcode, 0x80 | payload.len() as u8, 0, 0, 0, 0];
        bytes.extend(payload);
        bytes
    }

    #[tokio::test]
    async fn a_screen_travels_in_binary_messages_both_ways() {
        let dir = tempfile::tempdir().unwrap();
        let (address, listener) = serve(dir.path(), &Arc::default()).await;
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
        // QEMU ends: the browser receives a close frame
        drop(qemu);
        assert_eq!(browser.read_u8().await.unwrap(), 0x88);
    }

    #[tokio::test]
    async fn what_is_typed_while_a_machine_stands_still_reaches_it_when_it_goes_on() {
        let user = Arc::new(Tried::default());
        let still = |kept| Stand {
            still: true,
            kept,
            pointer: kept,
        };
        *user.stand.lock() = still(false);
        let dir = tempfile::tempdir().unwrap();
        let (address, listener) = serve(dir.path(), &user).await;
        let mut browser = browse(address).await;
        let (mut qemu, _) = listener.accept().await.unwrap();
        let key = |down| [4, down, 0, 0, 0, 0, 0, b'a'];
        let look: &[u8] = b"\x03\x01\0\0\0\0\x04\0\x03\0";
        for message in [HELLO, &key(1), look, &key(0)] {
            browser.write_all(&frame(2, message)).await.unwrap();
        }
        let mut got = vec![0; HELLO.len() + look.len()];
        qemu.read_exact(&mut got).await.unwrap();
        assert_eq!(got, [HELLO, look].concat(), "the screen is for all time");
        *user.stand.lock() = Stand::default();
        let mut got = [0; 16];
        qemu.read_exact(&mut got).await.unwrap();
        assert_eq!(got[..], [key(1), key(0)].concat());
        // a guest whose agent takes them gets them even if this connection breaks
        *user.stand.lock() = still(true);
        browser.write_all(&frame(2, &key(1))).await.unwrap();
        browser.write_all(&frame(2, look)).await.unwrap();
        let mut got = [0; 10];
        qemu.read_exact(&mut got).await.unwrap();
        assert_eq!(got, look);
        let a = Done::Input(Input::Key {
            code: 30,
            down: true,
        });
        assert_eq!(*user.kept.lock(), [a]);
    }

    #[tokio::test]
    async fn a_browser_that_goes_or_speaks_otherwise_is_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let (address, listener) = serve(dir.path(), &Arc::default()).await;
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
