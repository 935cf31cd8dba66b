//! A connection that was upgraded to a WebSocket stays open for as long as both sides want.

use axum::Router;
use axum::extract::ws::WebSocketUpgrade;
use axum::routing::get;
use floe_front::{Bounds, pace::Pace};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Time limit for heads in this test.
const HEAD: Duration = Duration::from_millis(200);

/// Starts a port that returns every message of a WebSocket.
async fn echo() -> std::net::SocketAddr {
    let upgrade = |upgrade: WebSocketUpgrade| async move {
        upgrade.on_upgrade(async |mut socket| {
            while let Some(Ok(message)) = socket.recv().await {
                if socket.send(message).await.is_err() {
                    break;
                }
            }
        })
    };
    let app = Router::new().route("/echo", get(upgrade));
    let bounds = Bounds {
        connections_max: 8,
        connections_each_max: 8,
        strangers: None,
        handshake: Duration::from_secs(10),
        head: HEAD,
        idle: Duration::from_secs(60),
        pace: Pace {
            bytes_per_s_min: 256,
            stretch: Duration::from_secs(30),
        },
        drain: Duration::from_secs(1),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (_goes_on, stop) = tokio::sync::watch::channel(false);
        floe_front::run(listener, None, app, bounds, stop).await;
    });
    address
}

#[tokio::test]
async fn a_quiet_websocket_stays_and_a_head_that_does_not_end_does_not() {
    let address = echo().await;
    let mut browser = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "GET /echo HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    );
    browser.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(browser.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{head:?}");

    for word in [b"once", b"then"] {
        // one message, masked with zeros
        let mut frame = vec![0x82, 0x84, 0, 0, 0, 0];
        frame.extend(word);
        browser.write_all(&frame).await.unwrap();
        let mut back = [0; 6];
        browser.read_exact(&mut back).await.unwrap();
        assert_eq!((&back[..2], &back[2..]), (&[0x82, 4][..], &word[..]));

        // a head that does not end is given up within the same time
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET / HT").await.unwrap();
        let mut answer = Vec::new();
        let _ = slow.read_to_end(&mut answer).await; // a connection reset also counts as closed
    }
}
