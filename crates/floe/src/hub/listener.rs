//! Connections: accept, limit, TLS, hand to hyper, and close in order.
//!
//! Ours rather than `axum::serve` because connections are counted by address, handshakes and heads have a timeout,
//! and every socket gets TCP_NODELAY: an answer of one chunk must not wait for an acknowledgement.

use super::Limits;
use crate::telemetry;
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Who is at the other end; put into every request's extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub SocketAddr);

/// Time between two tries when accept fails (out of descriptors): as fast would only burn the processor.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// Concurrent HTTP/2 streams of a connection.
const H2_STREAMS_MAX: u32 = 256;
/// Bytes of an HTTP/2 request's head; hyper bounds HTTP/1's.
const H2_HEAD_BYTES_MAX: u32 = 32 << 10;

/// Open connections by address.
#[derive(Default)]
struct Counts(Mutex<HashMap<IpAddr, usize>>);

/// One open connection's place in [`Counts`].
struct Seat {
    counts: Arc<Counts>,
    address: IpAddr,
}

impl Counts {
    fn seat(self: &Arc<Self>, address: IpAddr, max: usize) -> Option<Seat> {
        let mut counts = self.0.lock();
        let count = counts.entry(address).or_insert(0);
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(Seat {
            counts: self.clone(),
            address,
        })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock();
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

/// Serves `router` until `stop` turns true, then drains for at most `limits.drain_timeout`.
pub(crate) async fn run(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    router: Router,
    limits: Limits,
    mut stop: watch::Receiver<bool>,
) {
    let acceptor = tls.map(TlsAcceptor::from);
    let room = Arc::new(Semaphore::new(limits.connections_max));
    let counts = Arc::new(Counts::default());
    let mut connections = JoinSet::new();
    loop {
        // A permit first: beyond the limit, connections wait in the kernel's backlog instead of costing us memory.
        let (permit, accepted) = tokio::select! {
            () = ended(&mut stop) => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            both = async {
                let permit = room.clone().acquire_owned().await;
                (permit, listener.accept().await)
            } => both,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let Some(seat) = counts.seat(address.ip(), limits.connections_per_address_max) else {
            metrics::counter!(telemetry::HUB_REFUSED_CONNECTIONS).increment(1);
            continue;
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "no TCP_NODELAY");
        }
        let (acceptor, router, stop) = (acceptor.clone(), router.clone(), stop.clone());
        let limits = limits.clone();
        connections.spawn(async move {
            metrics::gauge!(telemetry::HUB_CONNECTIONS).increment(1);
            connection(stream, address, acceptor, router, limits, stop).await;
            metrics::gauge!(telemetry::HUB_CONNECTIONS).decrement(1);
            drop((permit, seat));
        });
    }
    drop(listener);
    let drained = tokio::time::timeout(limits.drain_timeout, async {
        while connections.join_next().await.is_some() {}
    });
    if drained.await.is_err() {
        tracing::warn!(
            left = connections.len(),
            "requests were still running when the drain time was over"
        );
    }
}

/// Waits for the signal to stop (or for its sender to be gone). On its own, as the guard that `wait_for` returns must
/// not live across an await.
async fn ended(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

async fn connection(
    stream: TcpStream,
    address: SocketAddr,
    acceptor: Option<TlsAcceptor>,
    router: Router,
    limits: Limits,
    stop: watch::Receiver<bool>,
) {
    let Some(acceptor) = acceptor else {
        return http(TokioIo::new(stream), false, address, router, &limits, stop).await;
    };
    match tokio::time::timeout(limits.handshake_timeout, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => {
            let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            http(TokioIo::new(stream), http2, address, router, &limits, stop).await;
        }
        Ok(Err(error)) => tracing::debug!(%address, %error, "TLS handshake failed"),
        Err(_) => tracing::debug!(%address, "TLS handshake timed out"),
    }
}

/// The protocol is known from ALPN (HTTP/1.1 without TLS), never guessed from the first bytes: a guess waits for ever
/// on a client that sends none.
async fn http<I>(
    io: I,
    http2: bool,
    address: SocketAddr,
    router: Router,
    limits: &Limits,
    mut stop: watch::Receiver<bool>,
) where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let router = router.layer(axum::Extension(Peer(address)));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(H2_STREAMS_MAX)
        .max_header_list_size(H2_HEAD_BYTES_MAX)
        .keep_alive_interval(Some(limits.head_timeout));
    let builder = if http2 {
        builder.http2_only()
    } else {
        builder.http1_only()
    };
    let connection = builder.serve_connection(io, TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = ended(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%address, %error, "connection ended early");
    }
}
