//! The port on which a node answers the members of its cluster.

use super::{roster::Member, trust::Trust};
use axum::{
    Json, Router,
    extract::Request,
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse, Response},
};
use floe_api::{ApiError, ErrorCode};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rustls::{ServerConfig, pki_types::CertificateDer};
use std::{sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// Most connections of members at a time: 20 for each host that reads a fork.
const CONNECTIONS_MAX: usize = 8192;
/// Most connections at a time of clients that have not shown a certificate.
const STRANGERS_MAX: usize = 64;
/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection without a certificate may last.
const STRANGER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a request's head may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long to wait after a connection could not be accepted: this process may have too many open files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// The client's verified certificate; an extension of every request.
#[derive(Clone, Debug)]
pub(super) struct Shown(pub Option<CertificateDer<'static>>);

/// The member that sent a request; an extension of requests that passed [`members_only`].
#[derive(Clone, Debug)]
pub(crate) struct Peer(pub Member);

/// Serves until `stop` turns true.
pub(super) async fn run(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    let acceptor = TlsAcceptor::from(tls);
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let strangers = Arc::new(Semaphore::new(STRANGERS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return, // open connections are dropped
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            both = async {
                // beyond the limits, connections wait in the kernel's backlog
                let permits = (room.clone().acquire_owned().await, strangers.clone().acquire_owned().await);
                (permits, listener.accept().await)
            } => both,
        };
        let ((Ok(seat), Ok(stranger)), stream) = accepted else {
            return;
        };
        match stream {
            Ok((stream, _)) => {
                let (acceptor, router) = (acceptor.clone(), router.clone());
                connections.spawn(async move {
                    connection(stream, acceptor, router, stranger).await;
                    drop(seat);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection of a node was not accepted");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    router: Router,
    stranger: OwnedSemaphorePermit,
) {
    let _ = stream.set_nodelay(true); // it only matters for speed
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::info!(%error, "a node's handshake was refused"),
        Err(_) => return,
    };
    let certificates = stream.get_ref().1.peer_certificates();
    let shown = certificates.and_then(|chain| chain.first().cloned());
    let is_stranger = shown.is_none();
    let served = http(stream, router.layer(axum::Extension(Shown(shown))));
    if is_stranger {
        let _ = tokio::time::timeout(STRANGER_TIMEOUT, served).await;
        drop(stranger);
        return;
    }
    drop(stranger);
    served.await;
}

async fn http(stream: TlsStream<TcpStream>, router: Router) {
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = served.await {
        tracing::debug!(%error, "a node's connection ended early");
    }
}

/// Passes on requests of members only. Each request is checked, so a revoked member is refused even on an open connection.
pub(super) async fn members_only(trust: Arc<Trust>, mut request: Request, next: Next) -> Response {
    let shown = request.extensions().get::<Shown>();
    let shown = shown.and_then(|Shown(certificate)| certificate.clone());
    match shown.and_then(|certificate| trust.member_of(&certificate)) {
        Some(member) => {
            request.extensions_mut().insert(Peer(member));
            next.run(request).await
        }
        None => refusal(
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
