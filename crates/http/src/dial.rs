//! The way to another host: what a URL says of it, and a TCP connection to the first of its addresses that answers.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use rustix::net::sockopt;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use url::{Host, Url};

/// How long nothing may come until the other host's kernel is asked whether it still knows the connection, and until it is asked again.
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// How many such questions in a row may stay unanswered: a host that is gone is noticed after 35 s, a link that is down for less is not.
const PROBES_MAX: u32 = 6;
/// How long an address may say nothing before the next one of the same name is tried beside it (RFC 8305, section 8).
const HEAD_START: Duration = Duration::from_millis(250);
/// Largest buffer of a connection in bytes, and so the largest head of an answer. Heads from floe have some 200 bytes.
pub(crate) const BUFFER_BYTES_MAX: usize = 256 << 10;

/// What is said of a URL without a host.
pub(crate) const NO_HOST: &str = "has no host; write http(s)://host[:port][/path]";

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

/// Has the kernel end the connection if the other host is gone, which otherwise nobody would notice before the request's limit.
fn watch(tcp: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(tcp, true)?;
    sockopt::set_tcp_keepidle(tcp, PROBE_EVERY)?;
    sockopt::set_tcp_keepintvl(tcp, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(tcp, PROBES_MAX)
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
