//! Screens: an image's at its capture, and a machine's current one (VNC in a WebSocket).

use super::answer::{Failure, Path, blocking};
use crate::{Node, caller::Caller, error::at};
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
use floe_sched::Presses;
use futures::{SinkExt, StreamExt};
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::{sleep, timeout},
};

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
/// RFB's message types (RFC 6143, 7.5) of keys, of the pointer, of a text to paste, and of what only QEMU knows.
const KEY: u8 = 4;
const POINTER: u8 = 5;
const TEXT: u8 = 6;
const QEMU: u8 = 255;
/// Those with which a browser's user does something. Browsers send each as a message of its own.
const INPUTS: [u8; 4] = [KEY, POINTER, TEXT, QEMU];
/// How many messages wait for a machine that is paused to buffer, and how many bytes; further input is dropped.
const HELD_MAX: usize = 1024;
/// See [`HELD_MAX`].
const HELD_BYTES_MAX: usize = 1 << 20;
/// How often a machine that is paused to buffer is checked while input waits for it, and the time between two messages when
/// it goes on: a PC's keyboard buffers eight keys.
const HELD_EVERY: Duration = Duration::from_millis(20);

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

/// The machine's screen, keyboard and pointer: the VNC protocol (RFB) in binary messages of a WebSocket. Several browsers may
/// show one machine. Keys that are typed while it is paused to buffer wait until it goes on.
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
        Ok((
            node.machines.vnc(&machine)?,
            node.machines.inputs(&machine)?,
        ))
    };
    let ((qemu, stands_still), input) = blocking(look).await?;
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
            relay(browser, qemu, stands_still, input).await;
            tracing::debug!(machine = name, "a browser left");
        }))
}

/// Bounds both: a frame's length is checked when its head has arrived, a message's only when all of it is here.
pub(super) fn bounded(upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
    upgrade
        .max_message_size(FROM_BROWSER_BYTES)
        .max_frame_size(FROM_BROWSER_BYTES)
}

/// Carries bytes both ways until either side ends. Each direction holds at most one piece, so a slow side slows the other.
/// QEMU drops the input of a machine that stands still, so that is held back until it goes on.
/// Calls `input` when a key or a button goes down.
async fn relay(
    browser: WebSocket,
    qemu: UnixStream,
    stands_still: impl Fn() -> bool,
    input: impl Fn(),
) {
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
    let up = async {
        let mut held = Held::default();
        let mut presses = Presses::default();
        loop {
            let message = tokio::select! {
                message = from_browser.next() => message,
                () = sleep(HELD_EVERY), if !held.messages.is_empty() => {
                    if !stands_still()
                        && let Some(bytes) = held.pop()
                    {
                        if presses.are_in(&bytes) {
                            input();
                        }
                        if to_qemu.write_all(&bytes).await.is_err() {
                            break;
                        }
                    }
                    continue;
                }
            };
            let Some(Ok(message)) = message else { break };
            match message {
                Message::Binary(bytes) if held.takes(&bytes, stands_still()) => {}
                Message::Binary(bytes) => {
                    // first, so that what follows from it is already known to
                    if presses.are_in(&bytes) {
                        input();
                    }
                    if to_qemu.write_all(&bytes).await.is_err() {
                        break;
                    }
                }
                Message::Ping(_) | Message::Pong(_) => {}
                // RFB is binary: a client that sends anything else does not speak it
                Message::Text(_) | Message::Close(_) => break,
            }
        }
    };
    tokio::select! { () = down => (), () = up => () }
}

/// What became of a message's beginning.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Begun {
    #[default]
    Passed,
    Held,
    Dropped,
}

/// Input for a machine that stands still, in the order in which it arrived.
#[derive(Default)]
struct Held {
    messages: VecDeque<Vec<u8>>,
    /// The length of all of them.
    bytes: usize,
    /// Where RFB's messages begin and end: a long text comes in several of the WebSocket's.
    arriving: Presses,
    /// What became of the latest one that has begun; its rest goes the same way.
    begun: Begun,
}

impl Held {
    /// Returns whether these bytes are kept back here, or dropped; otherwise they are to be passed on.
    fn takes(&mut self, bytes: &[u8], stands_still: bool) -> bool {
        let goes_on = self.arriving.is_within();
        self.arriving.are_in(bytes);
        if goes_on {
            if self.begun == Begun::Held {
                self.extend(bytes);
            }
        } else {
            let is_input = bytes.first().is_some_and(|kind| INPUTS.contains(kind));
            self.begun = match is_input && (stands_still || !self.messages.is_empty()) {
                true => self.push(bytes),
                false => Begun::Passed,
            };
        }
        self.begun != Begun::Passed
    }

    fn push(&mut self, input: &[u8]) -> Begun {
        // type and buttons are compared: while the pointer only moves, its last position is enough
        let moved = |last: &Vec<u8>| input[0] == POINTER && last.get(..2) == input.get(..2);
        let full = self.messages.len() >= HELD_MAX || self.bytes + input.len() > HELD_BYTES_MAX;
        if self.messages.back().is_some_and(moved) {
            self.bytes -= self.messages.pop_back().map_or(0, |last| last.len());
        } else if full {
            return Begun::Dropped;
        }
        self.bytes += input.len();
        self.messages.push_back(input.to_vec());
        Begun::Held
    }

    /// More of the last message. If it is too long, all of it is dropped.
    fn extend(&mut self, bytes: &[u8]) {
        let Some(last) = self.messages.back_mut() else {
            return;
        };
        if self.bytes + bytes.len() <= HELD_BYTES_MAX {
            self.bytes += bytes.len();
            last.extend_from_slice(bytes);
        } else {
            self.bytes -= last.len();
            self.messages.pop_back();
            self.begun = Begun::Dropped;
        }
    }

    /// Returns the next message, unless that would come in the middle of another one.
    fn pop(&mut self) -> Option<Vec<u8>> {
        let whole = match (self.arriving.is_within(), self.begun) {
            (true, Begun::Passed) => 0,
            (true, Begun::Held) => self.messages.len().saturating_sub(1),
            _ => self.messages.len(),
        };
        let next = (whole > 0).then(|| self.messages.pop_front())??;
        self.bytes -= next.len();
        Some(next)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use axum::{Router, routing::get};
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::net::{TcpListener, TcpStream, UnixListener};

    /// Always false, for a machine that runs.
    static RUNNING: AtomicBool = AtomicBool::new(false);

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
    async fn serve(
        dir: &std::path::Path,
        still: &'static AtomicBool,
    ) -> (SocketAddr, UnixListener) {
        let path = dir.join("vnc.sock");
        let qemu = UnixListener::bind(&path).unwrap();
        let address = listen(move |browser| {
            let path = path.clone();
            async move {
                let qemu = UnixStream::connect(&path).await.unwrap();
                relay(browser, qemu, || still.load(Ordering::Relaxed), || ()).await
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
        let (address, listener) = serve(dir.path(), &RUNNING).await;
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
        static STILL: AtomicBool = AtomicBool::new(true);
        let dir = tempfile::tempdir().unwrap();
        let (address, listener) = serve(dir.path(), &STILL).await;
        let mut browser = browse(address).await;
        let (mut qemu, _) = listener.accept().await.unwrap();
        for message in [b"\x04key-down", b"\x03look-at.", b"\x04key-up.."] {
            browser.write_all(&frame(2, message)).await.unwrap();
        }
        let mut got = [0; 9];
        qemu.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"\x03look-at.", "the screen is for all time");
        STILL.store(false, Ordering::Relaxed);
        let mut got = [0; 18];
        qemu.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"\x04key-down\x04key-up..");
        // a user who types on and on while the machine stands still does not fill the node's memory
        let mut held = Held::default();
        for _ in 0..2 * HELD_MAX {
            held.push(b"\x04key");
        }
        assert_eq!(held.messages.len(), HELD_MAX);
        // only the end of a pointer's movement is kept, but every click
        let mut held = Held::default();
        for pointer in [
            b"\x05\x00at-1",
            b"\x05\x00at-2",
            b"\x05\x01at-2",
            b"\x05\x00at-2",
        ] {
            held.push(pointer);
        }
        let way: Vec<&[u8]> = vec![b"\x05\x00at-2", b"\x05\x01at-2", b"\x05\x00at-2"];
        assert_eq!(held.messages, way);
    }

    #[test]
    fn a_text_in_several_pieces_goes_one_way_and_never_fills_memory() {
        let mut held = Held::default();
        for hello in [b"RFB 003.008\n".as_slice(), b"\x01", b"\x01"] {
            assert!(!held.takes(hello, true));
        }
        assert!(held.takes(b"\x06\0\0\0\0\0\0\x05he", true));
        assert_eq!(held.pop(), None, "its rest is still to come");
        assert!(held.takes(b"llo", false), "as its beginning");
        let text = b"\x06\0\0\0\0\0\0\x05hello".to_vec();
        assert_eq!((held.pop(), held.bytes), (Some(text), 0));
        // what has begun to be passed on is, though the machine stands still since then, and nothing comes between
        assert!(!held.takes(b"\x06\0\0\0\0\0\0\x05he", false));
        assert!(!held.takes(b"llo", true));
        // one that is too long is dropped, and others are not
        let length = 2 * HELD_BYTES_MAX as u32;
        let head = [&[6_u8, 0, 0, 0][..], &length.to_be_bytes()].concat();
        assert!(held.takes(&head, true));
        for _ in 0..32 {
            assert!(held.takes(&[0; HELD_BYTES_MAX / 16], true));
            assert!(held.bytes <= HELD_BYTES_MAX);
        }
        assert_eq!(held.bytes, 0);
        assert!(held.takes(b"\x04\x01\0\0\0\0\0a", true));
        assert_eq!(held.messages.len(), 1);
    }

    #[tokio::test]
    async fn a_browser_that_goes_or_speaks_otherwise_is_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let (address, listener) = serve(dir.path(), &RUNNING).await;
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
