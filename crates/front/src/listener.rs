//! Accepts connections, gives them a seat, does TLS, passes them to hyper, and closes them in an orderly way.
//!
//! `axum::serve` is not used, because it limits neither connections nor the time that they take. Every socket gets
//! TCP_NODELAY (an answer of one chunk must not wait for an acknowledgement), and the kernel buffers little unsent data,
//! so that a client that does not read costs only some kilobytes.

use super::connection::{Connection, Peer};
use super::seats::Seats;
use super::stream::{Coming, Going, OverTcp, Stream};
use super::table::Table;
use super::{Bounds, Party, Strangers};
use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt;
use std::convert::Infallible;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

/// Pause after a failed accept (out of descriptors), so that retrying does not waste the processor.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// Most bytes of a request's head, and of what hyper reads ahead of a body.
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// Most fields of a request's head.
const FIELDS_MAX: usize = 64;
/// Most bytes that the kernel buffers for a connection and has not sent yet.
const UNSENT_BYTES_MAX: u32 = 128 << 10;
/// How long nothing may come over a connection until the client's kernel is asked whether it still knows it, and until it is asked again: a
/// client whose host is gone says nothing, and one that only waits for what is sent to it (a console, a screen) would stay for ever.
const PROBE_EVERY: Duration = Duration::from_secs(30);
/// How many such questions in a row may stay unanswered.
const PROBES_MAX: u32 = 4;
/// Descriptors that are reserved for files, the catalogue and floe's own sockets.
const DESCRIPTORS_LEFT: u64 = 512;

/// Raises the process's limit of descriptors as far as it may, and returns it; `u64::MAX` if there is none.
pub fn raise_descriptors() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // what can't be raised is counted as it is
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns how many connections the process has descriptors for, at most `wanted`. Raises the process's limit as far as
/// allowed.
pub fn affordable(wanted: usize) -> usize {
    let now = raise_descriptors();
    let room = now.saturating_sub(DESCRIPTORS_LEFT).max(now / 2);
    wanted
        .min(usize::try_from(room).unwrap_or(usize::MAX))
        .max(1)
}

/// Serves `router` until `stop` turns true, then drains for at most `bounds.drain`.
pub async fn run(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    router: Router,
    bounds: Bounds,
    mut stop: watch::Receiver<bool>,
) {
    let acceptor = tls.map(TlsAcceptor::from);
    let table = Table::new(seats(&bounds));
    let bounds = Arc::new(bounds);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = ended(&mut stop) => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let leave = Arc::new(Notify::new());
        let notify = leave.clone();
        let Some(seat) = table.sit(Party::at(address.ip()), move || notify.notify_one()) else {
            continue;
        };
        let instead = seat.instead;
        let local = stream.local_addr().ok();
        let connection = Arc::new(Connection::new(address, local, bounds.clone(), seat));
        prepare(&stream);
        let (acceptor, router, stop) = (acceptor.clone(), router.clone(), stop.clone());
        let overdue = overdue(connection.clone());
        connections.spawn(async move {
            tokio::select! {
                () = serve(stream, connection, acceptor, router, stop) => {}
                () = leave.notified() => {
                    tracing::debug!(%address, "a connection makes room for another");
                }
                () = overdue => {
                    tracing::debug!(%address, "a client has not said who it is");
                }
            }
        });
        if instead {
            // whoever speaks is heard before the next one comes, or it would be put out as silent
            tokio::task::yield_now().await;
        }
    }
    drop(listener);
    let drained = tokio::time::timeout(bounds.drain, async {
        while connections.join_next().await.is_some() {}
    });
    if drained.await.is_err() {
        tracing::warn!(
            left = connections.len(),
            "requests were still running when the drain time was over"
        );
    }
}

/// Returns the seats that there are descriptors for.
fn seats(bounds: &Bounds) -> Seats {
    let Some(strangers) = &bounds.strangers else {
        let max = affordable(bounds.connections_max);
        return Seats::new(max, bounds.connections_each_max);
    };
    let all = affordable(bounds.connections_max + strangers.connections_max);
    let strangers = Strangers {
        connections_max: strangers.connections_max.min(all / 2),
        ..*strangers
    };
    let max = all - strangers.connections_max;
    Seats::new(max, bounds.connections_each_max).with_strangers(&strangers)
}

/// Ends once a client has been a stranger for longer than it may be one.
async fn overdue(connection: Arc<Connection>) {
    if let Some(strangers) = &connection.bounds.strangers {
        tokio::time::sleep(strangers.life).await;
        if connection.is_strangers() {
            return;
        }
    }
    drop(connection);
    std::future::pending().await
}

fn prepare(stream: &TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let bytes = UNSENT_BYTES_MAX;
    let size = size_of_val(&bytes) as libc::socklen_t;
    // SAFETY: the option takes an unsigned int, whose address and size are given; the descriptor is that of a live socket.
    let set = unsafe {
        use std::os::fd::AsRawFd;
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw const bytes).cast(),
            size,
        )
    };
    if set != 0 {
        tracing::debug!("no TCP_NOTSENT_LOWAT");
    }
    if let Err(error) = probe(stream) {
        tracing::debug!(%error, "a client whose host is gone is not noticed");
    }
}

/// Has the kernel end a connection whose client's host is gone.
fn probe(stream: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE_EVERY)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, PROBES_MAX)
}

/// Waits for the signal to stop, or for its sender to be dropped. It is a separate function because the guard that
/// `wait_for` returns must not live across an await.
async fn ended(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

/// Gives the seat back if the connection ends before it has a stream, which does this otherwise.
struct Closes(Option<Arc<Connection>>);

impl Drop for Closes {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            connection.closed();
        }
    }
}

async fn serve(
    stream: TcpStream,
    connection: Arc<Connection>,
    acceptor: Option<TlsAcceptor>,
    router: Router,
    stop: watch::Receiver<bool>,
) {
    let Some(acceptor) = acceptor else {
        return http(
            Stream::new(stream, connection.clone()),
            connection,
            router,
            stop,
        )
        .await;
    };
    let mut closes = Closes(Some(connection.clone()));
    let address = connection.address;
    let handshake = async {
        // the end of what a client sends is readable too, and says nothing
        if stream.peek(&mut [0]).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        connection.speaks();
        acceptor.accept(stream).await
    };
    match tokio::time::timeout(connection.bounds.handshake, handshake).await {
        Ok(Ok(stream)) => {
            closes.0 = None;
            let shown = stream.get_ref().1.peer_certificates();
            if let Some(certificate) = shown.and_then(|chain| chain.first()) {
                connection.shows(certificate.clone());
            }
            http(
                Stream::new(stream, connection.clone()),
                connection,
                router,
                stop,
            )
            .await;
        }
        Ok(Err(error)) => tracing::debug!(%address, %error, "TLS handshake failed"),
        Err(_) => tracing::debug!(%address, "TLS handshake timed out"),
    }
}

async fn http<S: OverTcp>(
    stream: Stream<S>,
    connection: Arc<Connection>,
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    let (address, idle) = (connection.address, connection.bounds.idle);
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        answer(router.clone(), connection.clone(), request)
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(idle)
        .max_buf_size(BUFFER_BYTES_MAX)
        .max_headers(FIELDS_MAX);
    let served = builder
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut served = std::pin::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = ended(&mut stop) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%address, %error, "connection ended early");
    }
}

async fn answer(
    router: Router,
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    connection.asked();
    let pace = connection.bounds.pace;
    let mut request = request.map(|body| Body::new(Coming::new(body, pace)));
    request
        .extensions_mut()
        .insert(Peer::of(connection.clone()));
    // If the request is dropped before there is an answer, the connection is closed.
    let response = router.oneshot(request).await?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        connection.upgraded();
    }
    Ok(response.map(|body| Body::new(Going::new(body, connection))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_whose_host_is_gone_is_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        prepare(&accepted);
        assert!(sockopt::socket_keepalive(&accepted).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&accepted).unwrap(), PROBE_EVERY);
        assert_eq!(sockopt::tcp_keepcnt(&accepted).unwrap(), PROBES_MAX);
    }
}
