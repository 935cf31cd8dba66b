//! Another node, a member of the cluster or one whose page is asked in clear text: what it is asked, and what it means if it does not
//! answer.

use super::ask_server;
use floe_api::{
    ApiError, CloneRequest, EXPAND_ANSWER_S_MAX, ErrorCode, ExpandReport, ExpandRequest, Family,
    KillReport, KillRequest, MachineInfo, NetworkHosts, Room,
};
use floe_ground::error::{NodeError, failed, usage};
use floe_http::{Method, Server, Url};
use rustls::ClientConfig;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

/// How long a simple question may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a clone may take to start: its device state touches pages that must first cross a link.
const START_TIMEOUT: Duration = Duration::from_secs(130);

/// How long a host may take to bring its machines to their size once their guests have answered, and to tell it.
const EXPAND_TIMEOUT: Duration = Duration::from_secs(300);

/// Whether there was something to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It has been ended.
    Ended,
    /// There was no such machine.
    Absent,
}

/// Another node.
#[derive(Clone)]
pub struct Remote {
    server: Arc<Server>,
    /// For a node that is not a member of the cluster: the header that its page expects.
    authorization: Option<String>,
    /// `https://10.0.0.2:7071` for a member, `http://10.0.0.2:7070` for a page.
    address: Url,
    /// The same as text, without a trailing slash.
    url: String,
}

/// Why a call has no result.
#[derive(Debug)]
pub enum Failed {
    /// The node was never asked.
    NotAsked(String),
    /// The node refused.
    Refused(ApiError),
    /// The node was asked, but nobody knows what it did.
    Unknown(String),
}

impl Failed {
    fn text(&self) -> String {
        match self {
            Failed::NotAsked(why) | Failed::Unknown(why) => why.clone(),
            Failed::Refused(error) => error.to_string(),
        }
    }
}

impl Remote {
    /// Returns a member of the cluster, at `https://ADDRESS:PORT`. Does not connect yet.
    pub fn member(address: Url, tls: Arc<ClientConfig>) -> Result<Remote, NodeError> {
        let bad = |why: String| usage(format!("host {address}: {why}"), "see floe cluster members");
        if floe_http::socket_address(&address).is_none() {
            return Err(bad("it is no address with a port".into()));
        }
        let server = Server::new(&address, Some(tls)).map_err(bad)?;
        Ok(Remote::new(server, None, address))
    }

    /// Returns the node whose page is at `url`. Does not connect yet.
    pub fn in_clear_text(url: &str, token: &str) -> Result<Remote, NodeError> {
        let bad = |why: &str| {
            usage(
                format!("host {url:?}: {why}"),
                "write http://ADDRESS:PORT of its page, or here for this node",
            )
        };
        let address = Url::parse(url).map_err(|e| bad(&e.to_string()))?;
        if address.scheme() != "http" {
            return Err(bad("it is no http address"));
        }
        if address.path() != "/" || address.fragment().is_some() {
            return Err(bad("it is not a host and a port alone"));
        }
        let server = Server::new(&address, None).map_err(|why| bad(&why))?;
        Ok(Remote::new(
            server,
            Some(format!("Bearer {token}")),
            address,
        ))
    }

    fn new(server: Server, authorization: Option<String>, address: Url) -> Remote {
        Remote {
            url: server.shown().to_owned(),
            server: Arc::new(server),
            authorization,
            address,
        }
    }

    /// Whether it is a member of the cluster; all other nodes are asked in clear text.
    pub fn is_member(&self) -> bool {
        self.authorization.is_none()
    }

    /// Returns its address in the cluster, if it is a member.
    pub fn member_address(&self) -> Option<SocketAddr> {
        floe_http::socket_address(&self.address).filter(|_| self.is_member())
    }

    /// Returns its address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns this host's address as that node sees it.
    pub fn own_address(&self) -> Result<IpAddr, NodeError> {
        Ok(self.addresses()?.0)
    }

    /// Returns this host's address as that node sees it, and that node's address.
    pub fn addresses(&self) -> Result<(IpAddr, IpAddr), NodeError> {
        let unreachable = |why: String| {
            failed(
                format!("host {}: {why}", self.url),
                "check its address, and the way to it",
            )
        };
        let found = self
            .address
            .socket_addrs(|| None)
            .map_err(|error| unreachable(error.to_string()))?;
        let there = found
            .first()
            .copied()
            .ok_or_else(|| unreachable("it has no address".into()))?;
        let any: IpAddr = match there.ip() {
            IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        // connecting a UDP socket sends nothing: it only asks the kernel for the route
        let own = UdpSocket::bind((any, 0))
            .and_then(|socket| {
                socket.connect(there)?;
                socket.local_addr()
            })
            .map_err(|error| unreachable(error.to_string()))?;
        Ok((own.ip(), there.ip()))
    }

    /// Asks how many clones it has room for.
    pub fn room(&self) -> Result<Room, String> {
        let room: Result<Room, Failed> =
            self.call(Method::GET, "/v1/clones/room", None::<&()>, ASK_TIMEOUT);
        room.map_err(|failed| format!("{}: {}", self.url, failed.text()))
    }

    /// Tells it a family network's hosts. Succeeds also if that node is no longer in the network.
    pub fn meet_hosts(&self, network: &str, hosts: &NetworkHosts) -> Result<(), String> {
        let path = format!("/v1/networks/{network}/hosts");
        let told: Result<serde_json::Value, Failed> =
            self.call(Method::POST, &path, Some(hosts), ASK_TIMEOUT);
        match told {
            Ok(_) => Ok(()),
            Err(Failed::Refused(error)) if error.code == ErrorCode::NotFound => Ok(()),
            Err(failed) => Err(format!("{}: {}", self.url, failed.text())),
        }
    }

    /// Starts a clone there.
    pub fn start(&self, request: &CloneRequest) -> Result<(), Failed> {
        let started: Result<MachineInfo, Failed> =
            self.call(Method::POST, "/v1/clones", Some(request), START_TIMEOUT);
        started.map(drop)
    }

    /// Has it wait for clones of a fork and bring them to their size.
    pub fn expand(&self, request: &ExpandRequest) -> Result<ExpandReport, String> {
        let limit = EXPAND_TIMEOUT + Duration::from_secs(request.answer_s.min(EXPAND_ANSWER_S_MAX));
        self.call(Method::POST, "/v1/clones/expand", Some(request), limit)
            .map_err(|failed: Failed| failed.text())
    }

    /// Ends a clone there. Succeeds also if the clone no longer exists.
    pub fn end(&self, name: &str) -> Result<(), String> {
        self.end_told(name).map(drop)
    }

    /// Does the same, and returns whether there was one.
    pub fn end_told(&self, name: &str) -> Result<End, String> {
        self.kill(name, false)
    }

    /// Ends all clones of a clone there.
    pub fn end_clones(&self, name: &str) -> Result<(), String> {
        self.kill(name, true).map(drop)
    }

    fn kill(&self, name: &str, all: bool) -> Result<End, String> {
        let path = format!("/v1/machines/{name}/kill");
        let request = KillRequest { all };
        let ended: Result<KillReport, Failed> =
            self.call(Method::POST, &path, Some(&request), START_TIMEOUT);
        match ended {
            Ok(report) if report.failed.is_empty() => Ok(End::Ended),
            Ok(report) => Err(format!("{}: {}", self.url, report.failed.join("; "))),
            Err(Failed::Refused(error)) if error.code == ErrorCode::NotFound => Ok(End::Absent),
            Err(failed) => Err(format!("{}: {}", self.url, failed.text())),
        }
    }

    /// Returns a clone there with its own clones; `None` if it no longer exists there.
    pub fn family(&self, name: &str) -> Result<Option<Family>, String> {
        let path = format!("/v1/machines/{name}/family");
        match self.call(Method::GET, &path, None::<&()>, ASK_TIMEOUT) {
            Ok(family) => Ok(Some(family)),
            Err(Failed::Refused(error)) if error.code == ErrorCode::NotFound => Ok(None),
            Err(failed) => Err(format!("{}: {}", self.url, failed.text())),
        }
    }

    fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        limit: Duration,
    ) -> Result<T, Failed> {
        let body = body
            .map(serde_json::to_vec)
            .transpose()
            .map_err(|error| Failed::NotAsked(error.to_string()))?;
        let asked = ask_server(
            &self.server,
            self.authorization.as_deref(),
            method,
            path,
            body.unwrap_or_default(),
            limit,
        );
        let (status, bytes) = asked.map_err(|silence| match silence.was_asked() {
            true => Failed::Unknown(silence.to_string()),
            false => Failed::NotAsked(silence.to_string()),
        })?;
        if (200..300).contains(&status) {
            return serde_json::from_slice(&bytes)
                .map_err(|error| Failed::Unknown(format!("its answer makes no sense: {error}")));
        }
        let said = serde_json::from_slice(&bytes).unwrap_or_else(|_| ApiError {
            code: ErrorCode::Refused,
            message: format!("it answered {status}"),
            fix: "check that this is a floe node of the same version".into(),
        });
        Err(Failed::Refused(match status {
            401 => ApiError {
                code: ErrorCode::Refused,
                message: "it does not take this token".into(),
                fix: "give the token of its page by FLOE_HOSTS_TOKEN".into(),
            },
            _ => said,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn order() -> CloneRequest {
        CloneRequest {
            name: "web.1".into(),
            ..Default::default()
        }
    }

    /// Returns a host that gives this answer to one request.
    fn host(answer: &'static str) -> Remote {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let mut seen = Vec::new();
            let mut buffer = [0; 4096];
            while !seen.windows(7).any(|w| w == b"\"web.1\"") {
                let n = client.read(&mut buffer).unwrap();
                assert_ne!(n, 0);
                seen.extend_from_slice(&buffer[..n]);
            }
            client.write_all(answer.as_bytes()).unwrap();
        });
        Remote::in_clear_text(&url, "token").unwrap()
    }

    #[test]
    fn an_address_that_is_none_of_a_node_is_refused() {
        for url in ["https://a", "a:1", "http://", "http://a/b", "http://t@a:1"] {
            assert!(Remote::in_clear_text(url, "t").is_err(), "{url}");
        }
        let remote = Remote::in_clear_text("http://127.0.0.1:7070/", "t").unwrap();
        assert_eq!(remote.url(), "http://127.0.0.1:7070");
        assert!(remote.own_address().unwrap().is_loopback());
    }

    #[test]
    fn a_host_that_was_never_asked_is_out_and_one_that_falls_silent_is_not_asked_again() {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", nobody.local_addr().unwrap());
        drop(nobody);
        let failed = Remote::in_clear_text(&url, "t").unwrap().start(&order());
        assert!(matches!(failed, Err(Failed::NotAsked(_))), "{failed:?}");
        let failed = host("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{").start(&order());
        assert!(matches!(failed, Err(Failed::Unknown(_))), "{failed:?}");
    }

    #[test]
    fn what_a_host_says_is_told_and_so_is_what_a_stranger_needs() {
        let full = "HTTP/1.1 409 Conflict\r\nconnection: close\r\n\r\n{\"code\":\"busy\",\"message\":\"there is a machine web.1 already\"}";
        let Err(Failed::Refused(error)) = host(full).start(&order()) else {
            panic!("it has refused");
        };
        assert_eq!(error.code, ErrorCode::Busy);
        assert!(error.message.contains("already"), "{error}");
        let stranger = "HTTP/1.1 401 Unauthorized\r\nconnection: close\r\n\r\n{}";
        let Err(Failed::Refused(error)) = host(stranger).start(&order()) else {
            panic!("it has refused");
        };
        assert!(error.to_string().contains("FLOE_HOSTS_TOKEN"), "{error}");
    }
}
