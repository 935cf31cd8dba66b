//! A machine's serial console in a browser's terminal.

use super::{
    answer::{Failure, Path, blocking},
    screen::{PING_EVERY, STALLED, bounded},
};
use crate::Node;
use axum::{
    extract::{
        State,
        ws::{Message, WebSocket, WebSocketUpgrade, rejection::WebSocketUpgradeRejection},
    },
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use floe_api::ApiError;
use floe_ground::{
    keyboard::Keyboard,
    logs::{self, EARLIER_BYTES},
    typist::{Typist, keep, texts},
};
use floe_inputs::Look;
use floe_machine::console::ConsoleLog;
use futures::{
    SinkExt, StreamExt,
    stream::{BoxStream, SplitSink},
};
use std::{future::pending, io, sync::Arc, time::Duration};
use tokio::{io::AsyncReadExt, net::UnixStream, sync::watch, time::timeout};

/// How long a borrower may take to send what was written earlier.
const EARLIER_LIMIT: Duration = Duration::from_secs(30);

/// The machine's serial console: what the guest writes in binary messages of a WebSocket, and what is typed in the other direction. Any
/// number of browsers may watch one machine, and all may type. What is typed while it stands still is kept until its guest has got it, if
/// the guest's agent takes inputs. Of a machine that is lent to another node it is the console there, and all that is typed is kept.
/// Messages of text are the node's own, JSON: first `{"earlier_bytes": N}`, the number of bytes that follow and were written before now;
/// then `{"taken": true}` whenever nobody can type because another program (`floe console`) has the line, and `{"taken": false}` when
/// that is over.
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
        let entry = node.inventory.get(&machine)?;
        let user = node.inputs.user(&entry);
        if let Some(there) = node.inputs.look(&entry, Look::Console)? {
            return Ok((Shown::There(there), None, user));
        }
        let (log, keyboard, work) = node.machines.terminal(&machine, EARLIER_BYTES)?;
        Ok((Shown::Here(log, keyboard), work, user))
    };
    let (shown, work, user) = blocking(look).await?;
    if let Some(work) = work {
        tokio::spawn(work);
    }
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => return Ok(rejection.into_response()),
    };
    Ok(bounded(upgrade).on_upgrade(async move |browser| {
        tracing::debug!(machine = name, "a browser opens the console");
        let opened = match shown {
            Shown::Here(log, keyboard) => Ok((Writes::here(log), Some(keyboard))),
            Shown::There(shown) => Writes::there(shown).await.map(|writes| (writes, None)),
        };
        match opened {
            Ok((writes, keyboard)) => relay(browser, writes, keyboard, user).await,
            Err(error) => tracing::warn!(machine = name, %error, "its console is not shown"),
        }
        tracing::debug!(machine = name, "a browser left the console");
    }))
}

/// Where a console is.
enum Shown {
    Here(ConsoleLog, Keyboard),
    /// With the machine's borrower: what comes of it.
    There(std::os::unix::net::UnixStream),
}

/// What a guest writes.
struct Writes {
    earlier: Vec<u8>,
    more: BoxStream<'static, io::Result<Bytes>>,
}

impl Writes {
    /// Of a machine that runs here.
    fn here(mut log: ConsoleLog) -> Writes {
        Writes {
            earlier: logs::earlier(&mut log),
            more: logs::stream(log, true).boxed(),
        }
    }

    /// Of one that another node has borrowed ([`Look::Console`]).
    async fn there(shown: std::os::unix::net::UnixStream) -> io::Result<Writes> {
        shown.set_nonblocking(true)?;
        let mut shown = UnixStream::from_std(shown)?;
        let read = async {
            let count = shown.read_u64().await?;
            if count > EARLIER_BYTES {
                return Err(io::Error::other(
                    "the borrower says more than was asked for",
                ));
            }
            let mut earlier = vec![0; count as usize];
            shown.read_exact(&mut earlier).await?;
            Ok(earlier)
        };
        let earlier = timeout(EARLIER_LIMIT, read).await??;
        Ok(Writes {
            earlier,
            more: logs::carried(shown).boxed(),
        })
    }
}

type ToBrowser = SplitSink<WebSocket, Message>;

/// Sends one message; returns whether the browser took it.
async fn send(browser: &mut ToBrowser, message: Message) -> bool {
    matches!(timeout(STALLED, browser.send(message)).await, Ok(Ok(())))
}

/// Carries bytes both ways until the browser goes. One piece waits in each direction: a slow browser reads the log more slowly, and
/// whoever types for a guest that does not read waits.
async fn relay(
    browser: WebSocket,
    writes: Writes,
    keyboard: Option<Keyboard>,
    user: Arc<dyn Typist>,
) {
    let (mut to_browser, mut from_browser) = browser.split();
    let (keys, mut taken) = keyboard.map(|of| (of.keys, of.taken)).unzip();
    let down = async {
        let Writes {
            earlier: before,
            more: mut pieces,
        } = writes;
        let head = format!("{{\"earlier_bytes\":{}}}", before.len());
        if !send(&mut to_browser, Message::Text(head.into())).await
            || !before.is_empty() && !send(&mut to_browser, Message::Binary(before.into())).await
        {
            return;
        }
        loop {
            let message = tokio::select! {
                piece = timeout(PING_EVERY, pieces.next()) => match piece {
                    Err(_quiet) => Message::Ping(Default::default()),
                    Ok(Some(Ok(piece))) => Message::Binary(piece),
                    Ok(Some(Err(_)) | None) => break,
                },
                taken = changed(&mut taken) => {
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
            match &keys {
                Some(keys) if !user.stand().kept => {
                    user.has_done();
                    if keys.send(typed).await.is_err() {
                        break;
                    }
                }
                _ => keep(&user, texts(&typed)).await,
            }
        }
    };
    tokio::select! { () = down => (), () = up => () }
}

/// Waits until another program takes the line, or lets it go. Returns whether it has the line.
async fn changed(taken: &mut Option<watch::Receiver<bool>>) -> bool {
    // its sender outlives this: it ends when nobody has keys any more
    if let Some(taken) = taken
        && taken.changed().await.is_ok()
    {
        return *taken.borrow_and_update();
    }
    pending().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::screen::tests::{browse, frame, listen};
    use floe_ground::{typist::Tried, vnc::Stand};
    use std::io::Write;
    use tokio::{io::AsyncWriteExt, net::TcpStream, sync::mpsc};

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
            let log = ConsoleLog::open(&log, Some(EARLIER_BYTES));
            relay(browser, Writes::here(log), Some(keyboard), types.clone())
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
            pointer: true,
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

    #[tokio::test]
    async fn of_a_lent_machine_the_borrowers_console_is_shown() {
        let (shown, there) = std::os::unix::net::UnixStream::pair().unwrap();
        there.set_nonblocking(true).unwrap();
        let mut there = UnixStream::from_std(there).unwrap();
        there.write_all(b"\0\0\0\0\0\0\0\x07login: ").await.unwrap();
        let mut writes = Writes::there(shown).await.unwrap();
        assert_eq!(writes.earlier, b"login: ");
        there.write_all(b"root").await.unwrap();
        assert_eq!(writes.more.next().await.unwrap().unwrap(), "root");
        drop(there);
        assert!(writes.more.next().await.is_none());
        // more than was asked for is not waited for
        let (shown, there) = std::os::unix::net::UnixStream::pair().unwrap();
        there.set_nonblocking(true).unwrap();
        let mut there = UnixStream::from_std(there).unwrap();
        there.write_all(&[0xff; 8]).await.unwrap();
        assert!(Writes::there(shown).await.is_err());
    }
}
