//! Sends one request to another node, on the calling thread.

use bytes::Bytes;
use floe_http::{Ended, Fault, Limits, Method, Server, Url, header};
use rustls::ClientConfig;
use std::{sync::Arc, time::Duration};

/// How long connecting may take, including the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest answer that is read, in bytes: a family of all clones that a fork can have.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// A request to another node.
pub struct Ask<'a> {
    /// `ADDRESS:PORT` of the other node.
    pub to: &'a str,
    /// The HTTP method.
    pub method: Method,
    /// The path.
    pub path: &'a str,
    /// The body as JSON; may be empty.
    pub body: Vec<u8>,
    /// How long the whole request may take.
    pub limit: Duration,
}

/// Asks a member of a cluster; returns the answer's status and body. Must not be called on a thread of an async runtime.
pub fn ask(tls: Arc<ClientConfig>, ask: Ask<'_>) -> Result<(u16, Bytes), Fault> {
    let no_address = |why: String| Fault::NotAsked(format!("{}: {why}", ask.to));
    let base = Url::parse(&format!("https://{}", ask.to)).map_err(|e| no_address(e.to_string()))?;
    let server = Server::new(&base, Some(tls)).map_err(no_address)?;
    ask_server(&server, None, ask.method, ask.path, ask.body, ask.limit)
}

/// Asks any node. `authorization` is the header of that name.
pub fn ask_server(
    server: &Server,
    authorization: Option<&str>,
    method: Method,
    path: &str,
    body: Vec<u8>,
    limit: Duration,
) -> Result<(u16, Bytes), Fault> {
    let mut request = server
        .request(method, path)
        .header(header::CONTENT_TYPE, "application/json");
    if let Some(authorization) = authorization {
        request = request.header(header::AUTHORIZATION, authorization);
    }
    let request = request
        .body(Bytes::from(body))
        .map_err(|error| Fault::NotAsked(error.to_string()))?;
    let mut connection = server.connect(CONNECT_TIMEOUT.min(limit))?;
    let mut answer = Vec::new();
    let limits = Limits::within(limit, CONNECT_TIMEOUT);
    let asked = connection.exchange(request, &limits, None, &mut |_, piece| {
        answer.extend_from_slice(piece);
        match answer.len() > ANSWER_BYTES_MAX {
            true => Err(format!("it is longer than {ANSWER_BYTES_MAX} bytes")),
            false => Ok(()),
        }
    });
    match asked {
        Ok(head) => Ok((head.status.as_u16(), answer.into())),
        Err(Ended::Caller(why)) => Err(Fault::CutOff(why)),
        Err(Ended::Fault(Fault::Refused(why))) => Err(Fault::Refused(format!(
            "it does not take this node for a member: {why}"
        ))),
        Err(Ended::Fault(fault)) => Err(fault),
    }
}
