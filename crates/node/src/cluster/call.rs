//! One request to another node over TLS, on the calling thread.

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Method, Request, client::conn::http1};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, pki_types::ServerName};
use std::{sync::Arc, time::Duration};
use tokio::net::TcpStream;

/// Time to connect, the handshake included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest answer that is read: a family of all clones that a fork can have.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// What is asked.
pub(crate) struct Ask<'a> {
    /// `ADDRESS:PORT` of the other node.
    pub to: &'a str,
    /// Verb.
    pub method: Method,
    /// Path.
    pub path: &'a str,
    /// JSON; empty is none.
    pub body: Vec<u8>,
    /// How long it may take in all.
    pub limit: Duration,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Silent {
    /// Nothing was asked.
    NotAsked(String),
    /// The same: the other side refuses our certificate, or that we have none.
    Refused(String),
    /// It was asked, and nobody knows what the other side did.
    Unknown(String),
}

impl Silent {
    /// The reason.
    pub fn text(&self) -> &str {
        match self {
            Silent::NotAsked(why) | Silent::Refused(why) | Silent::Unknown(why) => why,
        }
    }
}

/// The host of `ADDRESS:PORT`, as TLS names it.
fn name_of(to: &str) -> Result<ServerName<'static>, String> {
    let (host, _) = to.rsplit_once(':').ok_or("it has no port")?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())
}

/// Asks; the answer's status and body. The thread must not be one of an async runtime's.
pub(crate) fn ask(tls: Arc<ClientConfig>, ask: Ask<'_>) -> Result<(u16, Bytes), Silent> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Silent::NotAsked(error.to_string()))?;
    let limit = ask.limit;
    runtime.block_on(async {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT.min(limit), connect(tls, ask.to));
        let stream = match connected.await {
            Ok(connected) => connected.map_err(Silent::NotAsked)?,
            Err(_) => return Err(Silent::NotAsked("it does not answer".into())),
        };
        match tokio::time::timeout(limit, exchange(stream, ask)).await {
            Ok(answer) => answer,
            Err(_) => Err(Silent::Unknown(format!("no answer within {limit:?}"))),
        }
    })
}

type Stream = tokio_rustls::client::TlsStream<TcpStream>;

async fn connect(tls: Arc<ClientConfig>, to: &str) -> Result<Stream, String> {
    let name = name_of(to)?;
    let tcp = TcpStream::connect(to).await.map_err(|e| e.to_string())?;
    tcp.set_nodelay(true).map_err(|e| e.to_string())?;
    let connector = tokio_rustls::TlsConnector::from(tls);
    let stream = connector.connect(name, tcp).await;
    stream.map_err(|error| format!("TLS: {error}"))
}

async fn exchange(stream: Stream, ask: Ask<'_>) -> Result<(u16, Bytes), Silent> {
    let (mut send, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| Silent::NotAsked(error.to_string()))?;
    let driver = tokio::spawn(connection);
    let request = Request::builder()
        .method(ask.method)
        .uri(ask.path)
        .header("host", ask.to)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(ask.body)))
        .map_err(|error| Silent::NotAsked(error.to_string()))?;
    let answer = match send.send_request(request).await {
        Ok(answer) => answer,
        // a peer that refuses our certificate says so after the handshake: its alert is the connection's error
        Err(error) => {
            let ended = driver.await.ok().and_then(Result::err);
            let error = ended.unwrap_or(error);
            return Err(match is_alert(&error) {
                true => Silent::Refused(format!(
                    "it does not take this node for a member: {}",
                    chain(&error)
                )),
                false => Silent::Unknown(chain(&error)),
            });
        }
    };
    let status = answer.status().as_u16();
    let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect();
    let cut_off = |error| Silent::Unknown(format!("the answer was cut off: {error}"));
    let body = body.await.map_err(cut_off)?;
    Ok((status, body.to_bytes()))
}

/// Whether the other side has refused the connection before it read a request.
fn is_alert(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<std::io::Error>()
            && let Some(inner) = error.get_ref()
            && let Some(rustls::Error::AlertReceived(_)) = inner.downcast_ref()
        {
            return true;
        }
        cause = error.source();
    }
    false
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
