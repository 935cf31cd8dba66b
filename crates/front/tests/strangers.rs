//! A port for users: who does not say who it is has few connections, for a limited time, and takes none of the users'.

use axum::Router;
use axum::extract::Extension;
use axum::http::HeaderMap;
use axum::routing::get;
use floe_front::{Bounds, Party, Peer, Strangers, pace::Pace};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// How long strangers' connections last where that is tested.
const SHORT: Duration = Duration::from_secs(2);
/// And where it is not.
const LONG: Duration = Duration::from_secs(600);

/// Starts a port for two connections of users and two of strangers, where `user: NAME` is believed.
async fn port(life: Duration) -> SocketAddr {
    let who = async |Extension(peer): Extension<Peer>, headers: HeaderMap| {
        if let Some(name) = headers.get("user") {
            peer.is(&Party::User(name.to_str().unwrap().into()));
        }
        "ok"
    };
    let bounds = Bounds {
        connections_max: 2,
        connections_each_max: 2,
        strangers: Some(Strangers {
            connections_max: 2,
            connections_each_max: 2,
            life,
        }),
        handshake: LONG,
        head: LONG,
        idle: LONG,
        pace: Pace {
            bytes_per_s_min: 1,
            stretch: LONG,
        },
        drain: Duration::from_secs(1),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().route("/", get(who));
    tokio::spawn(async move {
        let (_goes_on, stop) = tokio::sync::watch::channel(false);
        floe_front::run(listener, None, app, bounds, stop).await;
    });
    address
}

/// Sends a request; returns whether it was answered.
async fn is_answered(stream: &mut TcpStream, header: &str) -> bool {
    let request = format!("GET / HTTP/1.1\r\nhost: x\r\n{header}\r\n");
    if stream.write_all(request.as_bytes()).await.is_err() {
        return false;
    }
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nok") {
        match stream.read_u8().await {
            Ok(byte) => answer.push(byte),
            Err(_) => return false,
        }
    }
    answer.starts_with(b"HTTP/1.1 200 ")
}

/// Waits until the port has closed a connection.
async fn closed(mut stream: TcpStream) {
    let _ = stream.read_to_end(&mut Vec::new()).await; // a reset also counts
}

#[tokio::test]
async fn strangers_are_closed_in_time_and_users_are_not() {
    let address = port(SHORT).await;
    let mut user = TcpStream::connect(address).await.unwrap();
    assert!(is_answered(&mut user, "user: ann\r\n").await);
    // one that says nothing, and one that says everything but who it is
    let silent = TcpStream::connect(address).await.unwrap();
    let mut talker = TcpStream::connect(address).await.unwrap();
    closed(silent).await;
    while is_answered(&mut talker, "").await {
        tokio::time::sleep(SHORT / 20).await;
    }
    assert!(is_answered(&mut user, "").await, "it has said who it is");
}

#[tokio::test]
async fn any_number_of_strangers_takes_no_users_connection_and_lets_users_in() {
    let address = port(LONG).await;
    let mut first = TcpStream::connect(address).await.unwrap();
    assert!(is_answered(&mut first, "user: ann\r\n").await);
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let mut second = TcpStream::connect(address).await.unwrap();
    assert!(is_answered(&mut second, "user: bob\r\n").await);
    assert!(is_answered(&mut first, "").await);
}
