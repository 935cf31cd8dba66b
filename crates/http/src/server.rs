//! A server that requests go to, and how a connection to it is made.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue, PROXY_AUTHORIZATION};
use hyper::http::request::Builder;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::time::timeout_at;
use url::Url;

use crate::address::shown;
use crate::connection::{Connection, Sending};
use crate::dial::{BUFFER_BYTES_MAX, NO_HOST, connected, names};
use crate::fault::{Fault, chain};
use crate::proxy::Proxy;
use crate::tls;

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
