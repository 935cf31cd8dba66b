//! Who asks: the kernel says which user has opened a connection to the socket, and a certificate which member of the cluster one to the
//! port for members. And what was asked for by somebody who may see it: whatever does something with an image for a caller takes its
//! request as [`Visible`], which nobody has without the check.

use crate::error::NodeError;
use axum::{
    extract::{ConnectInfo, FromRequestParts, connect_info::Connected},
    http::request::Parts,
    serve::IncomingStream,
};
use floe_api::{
    CopyRequest, ExportRequest, ImageQuery, MountRequest, OptimizeRequest, PullRequest,
    PushRequest, RemoveImageRequest, RollbackRequest, RunRequest, SubstrateImportRequest,
    SwarmSeed, TagRequest, TraceImportRequest, TraceRequest, TracesRequest,
};
use std::{convert::Infallible, net::SocketAddr, ops::Deref};
use tokio::net::UnixListener;

/// The host's list of users.
const PASSWD: &str = "/etc/passwd";

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
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
pub struct FromMember {
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

    /// Returns a request of this caller as one about an image that he may see. For everybody but the node's own user, who sees all,
    /// `asked_for` checks that: it returns the reference of the image that he has named, or an error.
    pub fn visible<R: NamesImage>(
        &self,
        mut request: R,
        asked_for: impl FnOnce(&str) -> Result<String, NodeError>,
    ) -> Result<Visible<R>, NodeError> {
        if *self != Caller::Node {
            let image = request.image();
            *image = asked_for(image.as_str())?;
        }
        Ok(Visible(request))
    }
}

/// A request about an image that its caller may see, or that image's name alone. Only a caller's check makes one.
#[derive(Debug)]
pub struct Visible<R>(R);

impl<R> Deref for Visible<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.0
    }
}

/// A request that names an image.
pub trait NamesImage {
    /// Returns the name: that, an id or an address.
    fn image(&mut self) -> &mut String;
}

macro_rules! names_image {
    ($($request:ty => $($field:ident).+),* $(,)?) => {$(
        impl NamesImage for $request {
            fn image(&mut self) -> &mut String {
                &mut self.$($field).+
            }
        }
    )*};
}

names_image! {
    CopyRequest => from,
    ExportRequest => image,
    ImageQuery => image,
    MountRequest => image,
    OptimizeRequest => image,
    PullRequest => from,
    PushRequest => image,
    RemoveImageRequest => image,
    RollbackRequest => image,
    RunRequest => image,
    SubstrateImportRequest => from,
    SwarmSeed => image,
    TagRequest => image,
    TraceImportRequest => to.image,
    TraceRequest => of.image,
    TracesRequest => image,
}

impl NamesImage for String {
    fn image(&mut self) -> &mut String {
        self
    }
}

/// The user at the other end of a connection to the socket.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
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
    use crate::error::not_found;
    use floe_api::ErrorCode;

    #[test]
    fn everybody_but_the_nodes_own_user_gets_an_image_by_a_check_alone() {
        let request = || PullRequest {
            from: "web".into(),
            name: None,
            token: None,
            ca: None,
            trust: false,
        };
        let hidden = |name: &str| Err(not_found(format!("there is no image {name}"), ""));
        let own = Caller::Node.visible(request(), hidden).unwrap();
        assert_eq!(own.from, "web");
        let user = of_user(u32::MAX - 1);
        let refused = user.visible(request(), hidden).unwrap_err().to_api();
        assert_eq!(refused.code, ErrorCode::NotFound);
        assert_eq!(refused.message, "there is no image web");
        let shown = user.visible(request(), |name| Ok(format!("{name}:latest")));
        assert_eq!(shown.unwrap().from, "web:latest");
    }

    #[test]
    fn a_users_name_is_found_by_his_number() {
        let list = "root:x:0:0:root:/root:/bin/sh\nbroken\nanna:x:1001:1001::/home/anna:/bin/sh\n";
        assert_eq!(user_name(list, 1001).as_deref(), Some("anna"));
        assert_eq!(user_name(list, 7), None);
    }
}
