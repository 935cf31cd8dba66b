//! Who asks: the kernel says which user has opened a connection to the socket, and a certificate which member of the cluster one to the
//! port for members.

use axum::{
    extract::{ConnectInfo, FromRequestParts, connect_info::Connected},
    http::request::Parts,
    serve::IncomingStream,
};
use std::{convert::Infallible, net::SocketAddr};
use tokio::net::UnixListener;

/// The host's list of users.
const PASSWD: &str = "/etc/passwd";

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// The node's own user, root, or who has the token of the node's page: they can read the node's files anyway.
    Node,
    /// Another user of this host, with the name that the host has for the number.
    User {
        /// The number.
        uid: u32,
        /// The name, if there is one.
        name: Option<String>,
    },
}

/// The member of the cluster that asks; an extension of every request over the port for members, and of no other.
#[derive(Clone, Debug)]
pub(crate) struct FromMember {
    /// Its name.
    pub name: String,
    /// The address at which the others reach it.
    pub address: SocketAddr,
}

impl Caller {
    /// The number of the user who owns what this caller makes.
    pub fn uid(&self) -> u32 {
        match self {
            Caller::Node => rustix::process::geteuid().as_raw(),
            Caller::User { uid, .. } => *uid,
        }
    }
}

/// The user at the other end of a connection to the socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// `None` if the kernel did not say.
    uid: Option<u32>,
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Peer {
        Peer {
            uid: stream.io().peer_cred().ok().map(|peer| peer.uid()),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    /// A request that did not come over the socket came through the page with its token, and so from the node's own user.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Caller, Infallible> {
        let Some(ConnectInfo(peer)) = parts.extensions.get::<ConnectInfo<Peer>>() else {
            return Ok(Caller::Node);
        };
        let own = rustix::process::geteuid().as_raw();
        Ok(match peer.uid {
            Some(uid) if uid == 0 || uid == own => Caller::Node,
            // nobody has this number: what is not public does not exist for such a caller
            uid => of_user(uid.unwrap_or(u32::MAX)),
        })
    }
}

fn of_user(uid: u32) -> Caller {
    // a host that has its users elsewhere is told their numbers
    let name = std::fs::read_to_string(PASSWD).ok();
    let name = name.and_then(|passwd| user_name(&passwd, uid));
    Caller::User { uid, name }
}

/// Returns the name that a list of users (`/etc/passwd`) has for a number.
fn user_name(passwd: &str, uid: u32) -> Option<String> {
    let mut lines = passwd.lines();
    lines.find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_name_is_found_by_his_number() {
        let list = "root:x:0:0:root:/root:/bin/sh\nbroken\nanna:x:1001:1001::/home/anna:/bin/sh\n";
        assert_eq!(user_name(list, 1001).as_deref(), Some("anna"));
        assert_eq!(user_name(list, 7), None);
    }
}
