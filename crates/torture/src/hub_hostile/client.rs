//! A client of a hub that connects from a given address: one HTTP/1.1 connection, blocking. floe's own clients are not
//! used, because strangers don't have them and they can't be bound to an address.
use anyhow::{Context as _, bail};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// Time limit for an answer, after which the request counts as failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Connects from `from` to `to`.
pub fn connect_from(from: Ipv4Addr, to: SocketAddr) -> anyhow::Result<TcpStream> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddr::from((from, 0)))?;
    connect(&socket, &to)?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Returns a request's bytes.
pub fn request(
    method: &str,
    path: &str,
    token: Option<&str>,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: hub\r\n");
    if let Some(token) = token {
        head += &format!("authorization: Bearer {token}\r\n");
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("content-length: {}\r\n\r\n", body.len());
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// An answer.
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its body.
    pub body: Vec<u8>,
}

/// A client; it connects again when its connection is closed.
pub struct Client {
    from: Ipv4Addr,
    to: SocketAddr,
    connection: Option<BufReader<TcpStream>>,
}

impl Client {
    /// Makes a client that is not connected yet.
    pub fn new(from: Ipv4Addr, to: SocketAddr) -> Client {
        Client {
            from,
            to,
            connection: None,
        }
    }

    /// Sends a request and waits for the answer; connects again if the kept connection was closed meanwhile.
    pub fn call(&mut self, request: &[u8]) -> anyhow::Result<Answer> {
        if let Some(mut connection) = self.connection.take()
            && let Ok(answer) = exchange(&mut connection, request)
        {
            self.connection = Some(connection);
            return Ok(answer);
        }
        let mut connection = BufReader::new(connect_from(self.from, self.to)?);
        let answer = exchange(&mut connection, request)?;
        self.connection = Some(connection);
        Ok(answer)
    }

    /// Sends a request without waiting; [`Client::answer`] waits.
    pub fn ask(&mut self, request: &[u8]) -> anyhow::Result<()> {
        if self.connection.is_none() {
            self.connection = Some(BufReader::new(connect_from(self.from, self.to)?));
        }
        let connection = self.connection.as_mut().context("it is connected")?;
        let sent = connection.get_mut().write_all(request);
        if sent.is_err() {
            self.connection = None;
        }
        Ok(sent?)
    }

    /// Waits for the answer to the request that was sent.
    pub fn answer(&mut self) -> anyhow::Result<Answer> {
        let mut connection = self.connection.take().context("nothing was asked")?;
        let answer = read_answer(&mut connection)?;
        self.connection = Some(connection);
        Ok(answer)
    }
}

fn exchange(connection: &mut BufReader<TcpStream>, request: &[u8]) -> anyhow::Result<Answer> {
    connection.get_mut().write_all(request)?;
    read_answer(connection)
}

fn read_answer(connection: &mut BufReader<TcpStream>) -> anyhow::Result<Answer> {
    let mut line = String::new();
    connection.read_line(&mut line)?;
    let status = line.split(' ').nth(1).context("no answer")?.parse()?;
    let (mut length, mut chunked) = (0u64, false);
    loop {
        line.clear();
        connection.read_line(&mut line)?;
        let header = line.trim_end().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
        chunked |= header.starts_with("transfer-encoding:") && header.ends_with("chunked");
    }
    let mut body = Vec::new();
    if !chunked {
        connection.take(length).read_to_end(&mut body)?;
        if body.len() as u64 != length {
            bail!("the answer was cut off");
        }
        return Ok(Answer { status, body });
    }
    loop {
        line.clear();
        connection.read_line(&mut line)?;
        let length = u64::from_str_radix(line.trim_end(), 16)?;
        let before = body.len() as u64;
        connection.take(length).read_to_end(&mut body)?;
        line.clear();
        connection.read_line(&mut line)?;
        if body.len() as u64 - before != length {
            bail!("the answer was cut off");
        }
        if length == 0 {
            return Ok(Answer { status, body });
        }
    }
}
