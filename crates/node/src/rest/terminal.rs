//! A machine's serial console in a browser's terminal.

use super::{
    answer::{Failure, Path, blocking},
    screen::{PING_EVERY, STALLED, bounded},
};
use crate::{
    Node,
    keyboard::Keyboard,
    logs,
    typist::{Typist, keep, texts},
};
use axum::{
    extract::{
        State,
        ws::{Message, WebSocket, WebSocketUpgrade, rejection::WebSocketUpgradeRejection},
    },
    response::{IntoResponse, Response},
};
use floe_api::ApiError;
use floe_machine::console::ConsoleLog;
use futures::{SinkExt, StreamExt, stream::SplitSink};
use std::{io::Read, sync::Arc};
use tokio::time::timeout;

/// How much of what the guest wrote earlier is sent first, in bytes: some thousand lines, to scroll back in.
const EARLIER_BYTES: u64 = 256 << 10;

/// The machine's serial console: what the guest writes in binary messages of a WebSocket, and what is typed in the other direction.
/// Any number of browsers may watch one machine, and all may type. What is typed while it stands still is kept until its guest has got it,
/// if the guest's agent takes inputs. Messages of text are the node's own, JSON: first
/// `{"earlier_bytes": N}`, the number of bytes that follow and were written before now; then `{"taken": true}` whenever nobody can
/// type because another program (`floe console`) has the line, and `{"taken": false}` when that is over.
#[utoipa::path(get, path = "/v1/machines/{name}/terminal", tag = "machines", params(("name" = String, Path)),
    responses((status = 101, description = "a WebSocket"), (status = 404, body = ApiError),
              (status = 426, description = "not a WebSocket")))]
pub async fn terminal(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Failure> {
    let machine = name.clone();
    let look = move || {
        let terminal = node.machines.terminal(&machine, EARLIER_BYTES)?;
        Ok((terminal, node.inputs.user(&node.inventory.get(&machine)?)))
    };
    let ((log, keyboard, work), user) = blocking(look).await?;
    if let Some(work) = work {
        tokio::spawn(work);
    }
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => return Ok(rejection.into_response()),
    };
    Ok(bounded(upgrade).on_upgrade(async move |browser| {
        tracing::debug!(machine = name, "a browser opens the console");
        relay(browser, log, keyboard, user).await;
        tracing::debug!(machine = name, "a browser left the console");
    }))
}

/// Reads what is there already. If that is not all, its first line may be incomplete and is left out.
fn earlier(log: &mut ConsoleLog) -> Vec<u8> {
    let mut bytes = Vec::new();
    // what can't be read now is reported by the reads that follow
    let _ = log.take(EARLIER_BYTES).read_to_end(&mut bytes);
    if bytes.len() as u64 == EARLIER_BYTES {
        let line = bytes.iter().position(|byte| *byte == b'\n');
        bytes.drain(..line.map_or(0, |at| at + 1));
    }
    bytes
}

type ToBrowser = SplitSink<WebSocket, Message>;

/// Sends one message; returns whether the browser took it.
async fn send(browser: &mut ToBrowser, message: Message) -> bool {
    matches!(timeout(STALLED, browser.send(message)).await, Ok(Ok(())))
}

/// Carries bytes both ways until the browser goes. One piece waits in each direction: a slow browser reads the log more slowly, and
/// whoever types for a guest that does not read waits.
async fn relay(browser: WebSocket, mut log: ConsoleLog, keyboard: Keyboard, user: Arc<dyn Typist>) {
    let (mut to_browser, mut from_browser) = browser.split();
    let Keyboard { keys, mut taken } = keyboard;
    let down = async {
        let before = earlier(&mut log);
        let head = format!("{{\"earlier_bytes\":{}}}", before.len());
        if !send(&mut to_browser, Message::Text(head.into())).await
            || !before.is_empty() && !send(&mut to_browser, Message::Binary(before.into())).await
        {
            return;
        }
        let mut pieces = Box::pin(logs::stream(log, true));
        loop {
            let message = tokio::select! {
                piece = timeout(PING_EVERY, pieces.next()) => match piece {
                    Err(_quiet) => Message::Ping(Default::default()),
                    Ok(Some(Ok(piece))) => Message::Binary(piece),
                    Ok(Some(Err(_)) | None) => break,
                },
                // its sender outlives this: it ends when nobody has keys any more
                Ok(()) = taken.changed() => {
                    let taken = *taken.borrow_and_update();
                    Message::Text(format!("{{\"taken\":{taken}}}").into())
                }
            };
            if !send(&mut to_browser, message).await {
                return;
            }
        }
        let _ = timeout(STALLED, to_browser.close()).await; // the browser may be gone
    };
    let up = async {
        while let Some(Ok(message)) = from_browser.next().await {
            let typed = match message {
                Message::Binary(typed) => typed,
                Message::Ping(_) | Message::Pong(_) => continue,
                // what is typed is binary: a client that sends anything else means something else
                Message::Text(_) | Message::Close(_) => break,
            };
            if user.stand().kept {
                keep(&user, texts(&typed)).await;
                continue;
            }
            user.has_done();
            if keys.send(typed).await.is_err() {
                break;
            }
        }
    };
    tokio::select! { () = down => (), () = up => () }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        rest::screen::tests::{browse, frame, listen},
        typist::tests::Tried,
        vnc::Stand,
    };
    use bytes::Bytes;
    use std::io::Write;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        sync::{mpsc, watch},
    };

    /// Reads a frame of the server: its opcode and content.
    async fn receive(browser: &mut TcpStream) -> (u8, Vec<u8>) {
        let opcode = browser.read_u8().await.unwrap() & 0x0f;
        let length = match browser.read_u8().await.unwrap() {
            126 => u64::from(browser.read_u16().await.unwrap()),
            127 => browser.read_u64().await.unwrap(),
            short => u64::from(short),
        };
        let mut content = vec![0; length as usize];
        browser.read_exact(&mut content).await.unwrap();
        (opcode, content)
    }

    #[tokio::test]
    async fn a_console_shows_what_was_written_and_goes_on_and_takes_keys() {
        let dir = tempfile::tempdir().unwrap();
        let mut guest = std::fs::File::create(dir.path().join("console.log")).unwrap();
        let mut long = vec![b'x'; EARLIER_BYTES as usize];
        long.extend(b"\nlogin: \xff\x1b[c");
        guest.write_all(&long).unwrap();
        let (keys, mut typed) = mpsc::channel(1);
        let (tell, taken) = watch::channel(false);
        let log = dir.path().to_owned();
        let user = Arc::new(Tried::default());
        let types = user.clone();
        let address = listen(move |browser| {
            let keyboard = Keyboard {
                keys: keys.clone(),
                taken: taken.clone(),
            };
            relay(
                browser,
                ConsoleLog::open(&log, Some(EARLIER_BYTES)),
                keyboard,
                types.clone(),
            )
        })
        .await;
        let mut browser = browse(address).await;
        // the line that is cut is left out; what a guest writes is passed on as bytes, whatever they are
        let earlier = b"login: \xff\x1b[c";
        let head = format!("{{\"earlier_bytes\":{}}}", earlier.len());
        assert_eq!(receive(&mut browser).await, (1, head.into_bytes()));
        assert_eq!(receive(&mut browser).await, (2, earlier.to_vec()));
        guest.write_all(b"root").unwrap();
        assert_eq!(receive(&mut browser).await, (2, b"root".to_vec()));
        browser.write_all(&frame(2, b"ls\r")).await.unwrap();
        assert_eq!(typed.recv().await, Some(Bytes::from_static(b"ls\r")));
        // what QEMU would lose does not go there
        *user.stand.lock() = Stand {
            still: true,
            kept: true,
        };
        browser.write_all(&frame(2, b"id\r")).await.unwrap();
        tell.send(true).unwrap();
        assert_eq!(
            receive(&mut browser).await,
            (1, b"{\"taken\":true}".to_vec())
        );
        // another one sees the same; one that means something else is let go
        let mut other = browse(address).await;
        assert_eq!(receive(&mut other).await.0, 1);
        assert!(receive(&mut other).await.1.ends_with(b"root"));
        other.write_all(&frame(1, b"ls")).await.unwrap();
        let mut rest = Vec::new();
        other.read_to_end(&mut rest).await.unwrap();
        assert!(typed.try_recv().is_err());
        user.has_kept.notified().await;
        assert_eq!(*user.kept.lock(), texts(b"id\r"));
        assert_eq!(*user.done.lock(), 1);
    }
}
