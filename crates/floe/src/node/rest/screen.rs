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
    Ok(upgrade
        .protocols(["binary"])
        .max_message_size(FROM_BROWSER_BYTES)
        .max_frame_size(FROM_BROWSER_BYTES)
        .on_upgrade(async move |browser| {
            tracing::debug!(machine = name, "a browser looks");
            relay(browser, qemu).await;
            tracing::debug!(machine = name, "a browser left");
        }))
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
