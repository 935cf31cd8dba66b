//! A server that requests go to, and how a connection to it is made.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue, PROXY_AUTHORIZATION};
use hyper::http::request::Builder;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use rustix::net::sockopt;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout_at;
use url::{Host, Url};

use crate::address::shown;
use crate::connection::{Connection, Sending};
use crate::proxy::Proxy;
use crate::tls;

/// How long nothing may come until the other host's kernel is asked whether it still knows the connection, and until it is asked again.
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// How many such questions in a row may stay unanswered: a host that is gone is noticed after 35 s, a link that is down for less is not.
const PROBES_MAX: u32 = 6;
/// How long an address may say nothing before the next one of the same name is tried beside it (RFC 8305, section 8).
const HEAD_START: Duration = Duration::from_millis(250);
/// Largest buffer of a connection in bytes, and so the largest head of an answer. Heads from floe have some 200 bytes.
pub(crate) const BUFFER_BYTES_MAX: usize = 256 << 10;

/// Why there is no answer, or only a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There is no connection, so nothing was sent.
    NotAsked(String),
    /// The server doesn't accept the client's certificate, or requires one. It has not handled the request.
    Refused(String),
    /// The connection ended before an answer began; the server may have handled the request or not.
    NoAnswer(String),
    /// The answer ended too early.
    CutOff(String),
    /// The time was over.
    Late {
        /// Whether the server may have received the request.
        asked: bool,
    },
}

impl Fault {
    /// Returns whether the server may have received the request.
    pub fn was_asked(&self) -> bool {
        match self {
            Fault::NotAsked(_) | Fault::Refused(_) => false,
            Fault::NoAnswer(_) | Fault::CutOff(_) => true,
            Fault::Late { asked } => *asked,
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::NotAsked(why) | Fault::Refused(why) | Fault::NoAnswer(why) => f.write_str(why),
            Fault::CutOff(why) => write!(f, "answer broken off: {why}"),
            Fault::Late { asked: false } => f.write_str("no connection in time"),
            Fault::Late { asked: true } => f.write_str("no answer in time"),
        }
    }
}

/// A server that speaks HTTP.
#[derive(Clone, Debug)]
pub struct Server {
    place: Place,
    authority: HeaderValue,
    /// What is put before each request's path.
    prefix: String,
    shown: String,
}

#[derive(Clone, Debug)]
enum Place {
    Tcp {
        host: String,
        port: u16,
        tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
        proxy: Option<Arc<Proxy>>,
    },
    Unix(PathBuf),
}

impl Server {
    /// Makes the server at `base`, an http or https URL whose path is put before the path of each request. `tls` is the
    /// configuration for https; without it the system's authorities are trusted. The error says what is wrong with `base`.
    pub fn new(base: &Url, tls: Option<Arc<ClientConfig>>) -> Result<Server, String> {
        let https = match base.scheme() {
            "https" => true,
            "http" => false,
            other => return Err(format!("scheme {other:?} is not http or https")),
        };
        if !base.username().is_empty() || base.password().is_some() {
            return Err(
                "credentials in a URL end up in logs; give a token with --token instead".into(),
            );
        }
        if base.query().is_some() {
            return Err("a base URL has no query part; leave out everything from the `?`".into());
        }
        let (host, name) = names(base)?;
        let tls = match (https, tls) {
            (false, _) => None,
            (true, Some(config)) => Some((config, name?)),
            (true, None) => Some((tls::trusting(None)?, name?)),
        };
        let authority = match (base.host_str(), base.port()) {
            (Some(host), None) => host.to_owned(),
            (Some(host), Some(port)) => format!("{host}:{port}"),
            (None, _) => return Err(NO_HOST.into()),
        };
        Ok(Server {
            place: Place::Tcp {
                host,
                port: base.port_or_known_default().ok_or("has no port")?,
                tls,
                proxy: None,
            },
            authority: HeaderValue::from_str(&authority).map_err(|e| format!("bad host: {e}"))?,
            prefix: base.path().trim_end_matches('/').to_owned(),
            shown: shown(base.as_str()),
        })
    }

    /// Makes the server that listens on a unix socket.
    pub fn unix(socket: &Path) -> Server {
        Server {
            place: Place::Unix(socket.to_owned()),
            authority: HeaderValue::from_static("floe"),
            prefix: String::new(),
            shown: socket.display().to_string(),
        }
    }

    /// Returns the same server, which is asked through a proxy if one is given.
    pub fn through(mut self, before: Option<Proxy>) -> Server {
        if let Place::Tcp { proxy, .. } = &mut self.place {
            *proxy = before.map(Arc::new);
        }
        self
    }

    /// Returns the proxy through which it is asked.
    pub fn proxy(&self) -> Option<&Proxy> {
        match &self.place {
            Place::Tcp { proxy, .. } => proxy.as_deref(),
            Place::Unix(_) => None,
        }
    }

    /// Returns where it is, for messages.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Begins a request for `path`, which begins with a slash and is escaped.
    pub fn request(&self, method: Method, path: &str) -> Builder {
        let request = Request::builder()
            .method(method)
            .header(HOST, self.authority.clone());
        let path = format!("{}{path}", self.prefix);
        match &self.place {
            // a proxy that passes a request on is told the whole URL
            Place::Tcp {
                tls: None,
                proxy: Some(proxy),
                ..
            } => {
                let authority = String::from_utf8_lossy(self.authority.as_bytes());
                let request = request.uri(format!("http://{authority}{path}"));
                match proxy.authorization() {
                    Some(value) => request.header(PROXY_AUTHORIZATION, value.clone()),
                    None => request,
                }
            }
            _ => request.uri(path),
        }
    }

    /// Connects within `limit`; blocks until then.
    pub fn connect(&self, limit: Duration) -> Result<Connection, Fault> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Fault::NotAsked(format!("cannot start a connection: {e}")))?;
        let until = floe_threads::from_now(limit);
        let dialled = runtime.block_on(async { timeout_at(until.into(), self.dial()).await });
        let fault = match dialled {
            Ok(Ok((send, driver))) => return Ok(Connection::new(runtime, send, driver)),
            Ok(Err(reason)) => Fault::NotAsked(reason),
            Err(_) => Fault::Late { asked: false },
        };
        // A name is looked up on a thread of the runtime's, and one that is merely dropped would wait for it, whatever the limit: resolvers
        // that answer nothing take tens of seconds.
        runtime.shutdown_background();
        Err(fault)
    }

    async fn dial(&self) -> Result<Dialled, String> {
        match &self.place {
            Place::Unix(socket) => {
                let address = floe_threads::Address::of(socket).map_err(|e| e.to_string())?;
                let stream = UnixStream::connect(address.path()).await;
                speak(stream.map_err(|e| e.to_string())?).await
            }
            Place::Tcp {
                host,
                port,
                tls,
                proxy: None,
            } => secure(connected(host, *port).await?, tls.as_ref()).await,
            Place::Tcp {
                host,
                port,
                tls,
                proxy: Some(proxy),
            } => {
                let stream = proxy.connect().await?;
                let Some(tls) = tls else {
                    return speak(stream).await;
                };
                let at = match host.contains(':') {
                    true => format!("[{host}]:{port}"),
                    false => format!("{host}:{port}"),
                };
                secure(proxy.tunnel(stream, &at).await?, Some(tls)).await
            }
        }
    }
}

/// What is said of a URL without a host.
const NO_HOST: &str = "has no host; write http(s)://host[:port][/path]";

/// Returns the host of a URL as it is looked up, and as its certificate must name it.
pub(crate) fn names(url: &Url) -> Result<(String, Result<ServerName<'static>, String>), String> {
    Ok(match url.host().ok_or(NO_HOST)? {
        Host::Domain(name) => (
            name.to_owned(),
            ServerName::try_from(name.to_owned()).map_err(|e| format!("bad host name: {e}")),
        ),
        Host::Ipv4(ip) => (ip.to_string(), Ok(ServerName::IpAddress(ip.into()))),
        Host::Ipv6(ip) => (ip.to_string(), Ok(ServerName::IpAddress(ip.into()))),
    })
}

/// Connects over TCP.
pub(crate) async fn connected(host: &str, port: u16) -> Result<TcpStream, String> {
    let found = tokio::net::lookup_host((host, port)).await;
    let tcp = first_of(found.map_err(|e| e.to_string())?, TcpStream::connect).await;
    let tcp = tcp.map_err(|e| e.to_string())?;
    // A request is one small write: waiting to fill a packet would mean waiting for a delayed acknowledgement.
    tcp.set_nodelay(true).map_err(|e| e.to_string())?;
    watch(&tcp).map_err(|e| e.to_string())?;
    Ok(tcp)
}

/// Returns what comes first of the addresses of a name. They are tried in their order, each once the one before it has failed or has said
/// nothing for a while: an address to which no way leads (of version 6, mostly) would take all of the time.
async fn first_of<T, F: Future<Output = io::Result<T>>>(
    addresses: impl Iterator<Item = SocketAddr>,
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<T> {
    let mut left = addresses.peekable();
    let mut tries = FuturesUnordered::new();
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
    loop {
        match left.next() {
            Some(address) => tries.push(connect(address)),
            None if tries.is_empty() => return Err(failed),
            None => {}
        }
        let is_last = left.peek().is_none();
        tokio::select! {
            Some(done) = tries.next() => match done {
                Ok(connected) => return Ok(connected),
                Err(error) => failed = error,
            },
            () = tokio::time::sleep(HEAD_START), if !is_last => {}
        }
    }
}

/// Begins to speak HTTP on a stream, over TLS if there is a configuration.
async fn secure<S>(
    stream: S,
    tls: Option<&(Arc<ClientConfig>, ServerName<'static>)>,
) -> Result<Dialled, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    match tls {
        None => speak(stream).await,
        Some((config, name)) => {
            let connector = tokio_rustls::TlsConnector::from(config.clone());
            let stream = connector.connect(name.clone(), stream).await;
            speak(stream.map_err(|e| tls::reason(&e))?).await
        }
    }
}

/// Has the kernel end the connection if the other host is gone, which otherwise nobody would notice before the request's limit.
fn watch(tcp: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(tcp, true)?;
    sockopt::set_tcp_keepidle(tcp, PROBE_EVERY)?;
    sockopt::set_tcp_keepintvl(tcp, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(tcp, PROBES_MAX)
}

/// The two parts of a connection: one sends requests, the other is the task that moves the bytes.
type Dialled = (
    http1::SendRequest<Sending>,
    tokio::task::JoinHandle<hyper::Result<()>>,
);

async fn speak<S>(stream: S) -> Result<Dialled, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = http1::Builder::new();
    builder.max_buf_size(BUFFER_BYTES_MAX);
    let (send, connection) = builder
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|e| chain(&e))?;
    Ok((send, tokio::spawn(connection.with_upgrades())))
}

/// Returns an error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    /// Tries addresses whose ports say what becomes of them: 1 is silent, 2 fails, 3 answers. Returns which one answered, and which were
    /// tried.
    fn tried(ports: &[u16]) -> (io::Result<u16>, Vec<u16>) {
        let asked = Mutex::new(Vec::new());
        let connect = |address: SocketAddr| {
            let port = address.port();
            asked.lock().push(port);
            async move {
                match port {
                    1 => std::future::pending::<io::Result<u16>>().await,
                    2 => Err(io::Error::from(io::ErrorKind::ConnectionRefused)),
                    _ => Ok(port),
                }
            }
        };
        let addresses = ports
            .iter()
            .map(|port| SocketAddr::from(([127, 0, 0, 1], *port)));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let first = runtime.block_on(first_of(addresses, connect));
        (first, asked.into_inner())
    }

    #[test]
    fn an_address_that_fails_or_says_nothing_hides_no_other_of_its_name() {
        for (ports, all) in [
            (&[3, 4][..], &[3][..]),
            (&[2, 3, 4][..], &[2, 3][..]),
            (&[1, 3][..], &[1, 3][..]),
            (&[1, 2, 1, 3][..], &[1, 2, 1, 3][..]),
        ] {
            let (first, asked) = tried(ports);
            assert_eq!((first.unwrap(), &asked[..]), (3, all));
        }
        let (first, asked) = tried(&[2, 2]);
        let refused = io::ErrorKind::ConnectionRefused;
        assert_eq!((first.unwrap_err().kind(), asked.len()), (refused, 2));
        assert_eq!(tried(&[]).0.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
