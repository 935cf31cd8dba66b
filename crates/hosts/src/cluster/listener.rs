//! The port on which a node answers the members of its cluster: how much of it they and strangers have, and who is a member.

use super::{roster::Member, trust::Trust};
use axum::{
    Json,
    extract::Request,
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse, Response},
};
use floe_api::{ApiError, ErrorCode};
use floe_front::{Bounds, Party, Strangers, pace::Pace};
use floe_ground::caller::FromMember;
use std::{sync::Arc, time::Duration};

/// What members have of the port, and strangers: clients that have not sent a request with a member's certificate yet. Members
/// that connect are strangers for a moment, so there is room for many of them.
pub(super) const BOUNDS: Bounds = Bounds {
    // 20 for each host that reads a fork
    connections_max: 8192,
    connections_each_max: 2048,
    strangers: Some(Strangers {
        connections_max: 1024,
        connections_each_max: 256,
        // as long as a newcomer's request to join may take
        life: Duration::from_secs(30),
    }),
    handshake: Duration::from_secs(10),
    head: Duration::from_secs(30),
    idle: Duration::from_secs(30),
    pace: Pace {
        bytes_per_s_min: 256,
        stretch: Duration::from_secs(30),
    },
    drain: Duration::from_secs(1),
};

/// The member that sent a request; an extension of requests that passed [`members_only`].
#[derive(Clone, Debug)]
pub(super) struct Peer(pub Member);

/// Passes on requests of members only. Each request is checked, so a revoked member is refused even on an open connection.
pub(super) async fn members_only(trust: Arc<Trust>, mut request: Request, next: Next) -> Response {
    let client = request.extensions().get::<floe_front::Peer>();
    let member = client.and_then(|client| trust.member_of(client.certificate()?));
    match (member, client) {
        (Some(member), Some(client)) => {
            client.is(&Party::User(member.id.as_str().into()));
            request.extensions_mut().insert(FromMember {
                name: member.name.clone(),
                address: member.address,
            });
            request.extensions_mut().insert(Peer(member));
            next.run(request).await
        }
        _ => refusal(
            "this is for members of the cluster",
            "join it: floe cluster join",
        ),
    }
}

/// Returns an answer of 403.
pub(super) fn refusal(message: &str, fix: &str) -> Response {
    let error = ApiError {
        code: ErrorCode::Refused,
        message: message.into(),
        fix: fix.into(),
    };
    (StatusCode::FORBIDDEN, Json(error)).into_response()
}

#[cfg(test)]
mod tests {
    use super::super::{
        call::{Ask, ask},
        certificates::{Subject, make_ca, make_key, sign},
        roster::Roster,
    };
    use super::*;
    use axum::{Router, middleware::from_fn, routing::get};
    use floe_http::{Limits, Method, Server, Url};
    use rustls::ClientConfig;
    use std::net::{SocketAddr, TcpStream};
    use std::sync::mpsc::{self, RecvTimeoutError};
    use tokio::{runtime::Runtime, sync::watch};

    const ROOM: &str = "/v1/clones/room";
    /// More than one address may have, and than there once was room for.
    const SILENT: usize = 300;
    /// Longest time that a request of a member may take.
    const LIMIT: Duration = Duration::from_secs(30);

    /// Starts a port for two members of a cluster; returns what the second one asks with.
    fn port() -> (Runtime, SocketAddr, Arc<ClientConfig>) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0");
        let listener = runtime.block_on(listener).unwrap();
        let address = listener.local_addr().unwrap();
        let (ca, ca_key) = make_ca("00000000000000aa").unwrap();
        let ids = [1, 2].map(|n| format!("{n:016x}"));
        let members = ids.iter().map(|id| Member {
            id: id.clone(),
            name: format!("host-{id}"),
            address,
        });
        let roster = Roster {
            number: 1,
            members: members.collect(),
            ..Roster::default()
        };
        let [here, there] = ids.map(|id| {
            let (key, request) = make_key().unwrap();
            let subject = Subject {
                id: &id,
                name: "any",
                authority: false,
                lifetime: Duration::from_secs(3600),
            };
            let signed = sign(&ca_key, "00000000000000aa", &request, &subject);
            let (certificate, _) = signed.unwrap().unwrap();
            let node = key + &certificate;
            Arc::new(Trust::new(&ca, &node, &node, roster.clone()).unwrap())
        });
        // as while an invitation is open: strangers may say something
        here.invite_until(u64::MAX);
        let trust = here.clone();
        let checked =
            move |request: Request, next: Next| members_only(trust.clone(), request, next);
        let router = Router::new()
            .route(ROOM, get(async || "room"))
            .layer(from_fn(checked));
        let tls = here.server().unwrap();
        runtime.spawn(async move {
            let (_goes_on, stop) = watch::channel(false);
            floe_front::run(listener, Some(tls), router, BOUNDS, stop).await;
        });
        (runtime, address, there.client())
    }

    #[test]
    fn silent_strangers_behind_a_members_own_address_keep_no_member_out() {
        let (_runtime, address, tls) = port();
        let server = Url::parse(&format!("https://{address}")).unwrap();
        let server = Server::new(&server, Some(tls.clone())).unwrap();
        let mut open = server.connect(LIMIT).unwrap();
        let mut says = || {
            let request = server.request(Method::GET, ROOM).body(bytes::Bytes::new());
            let mut said = Vec::new();
            let head = open.exchange::<String>(
                request.unwrap(),
                &Limits::within(LIMIT, LIMIT),
                None,
                &mut |_, piece| {
                    said.extend_from_slice(piece);
                    Ok(())
                },
            );
            assert_eq!(head.unwrap().status, 200);
            assert_eq!(said, b"room");
        };
        says();
        // they are put out for each other, and come again and again
        let (goes_on, is_over) = mpsc::channel::<()>();
        let (came, all_came) = mpsc::channel();
        let silent = std::thread::spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = {
                let connect = |_| TcpStream::connect(address).ok();
                let _held: Vec<TcpStream> = (0..SILENT).filter_map(connect).collect();
                let _ = came.send(()); // it is waited for once
                is_over.recv_timeout(Duration::from_millis(20))
            } {}
        });
        all_came.recv().unwrap();
        let asks = || {
            let question = Ask {
                to: &address.to_string(),
                method: Method::GET,
                path: ROOM,
                body: Vec::new(),
                limit: LIMIT,
            };
            ask(tls.clone(), question)
        };
        for _ in 0..40 {
            // a client that is held up between connecting and its first byte is as silent as the others, and asks again
            let (status, body) = asks().or_else(|_| asks()).unwrap();
            assert_eq!((status, &body[..]), (200, &b"room"[..]));
        }
        // and a connection that a member had before is not the one that makes room
        says();
        drop(goes_on);
        silent.join().unwrap();
    }
}
