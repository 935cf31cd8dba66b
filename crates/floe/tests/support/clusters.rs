//! Promises of clusters: who gets in, who does not, and what can be read on the way.

use crate::support::node::{Setup, TestNode};
use floe_api::*;
use std::{
    net::SocketAddr,
    process::{Command, Stdio},
};

/// What somebody who is not in the cluster gets of a member's port: `openssl s_client` with these arguments asks for its room.
pub fn stranger(at: SocketAddr, args: &[&str]) -> String {
    ask_by_hand(at, args, "GET /v1/clones/room", "")
}

/// What a member's port answers `openssl s_client` with these arguments, which sends a request (method and path) with a body.
pub fn ask_by_hand(at: SocketAddr, args: &[&str], request: &str, body: &str) -> String {
    use std::io::Write;
    let mut client = Command::new("openssl")
        .args(["s_client", "-quiet", "-connect", &at.to_string()])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = client.stdin.take().unwrap();
    let length = body.len();
    let head = "host: a\r\nconnection: close\r\ncontent-type: application/json";
    let _ = write!(
        stdin,
        "{request} HTTP/1.1\r\n{head}\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    let out = client.wait_with_output().unwrap();
    drop(stdin);
    String::from_utf8_lossy(&out.stdout).into_owned()
}

pub fn init(node: &TestNode, certificate_s: Option<u64>) -> ClusterInfo {
    let request = ClusterInit {
        name: Some("first".into()),
        listen: node.member_address(),
        certificate_s,
    };
    node.client().cluster_init(&request).unwrap()
}

pub fn invite(node: &TestNode, expires_s: Option<u64>) -> ClusterInvited {
    let request = ClusterInvite { expires_s };
    node.client().cluster_invite(&request).unwrap()
}

pub fn join(
    node: &TestNode,
    name: &str,
    invited: &ClusterInvited,
) -> Result<ClusterInfo, ApiError> {
    let request = ClusterJoin {
        url: invited.url.clone(),
        invitation: invited.invitation.clone(),
        name: Some(name.into()),
        listen: node.member_address(),
    };
    let joined = node.client().cluster_join(&request);
    joined.map_err(|error| error.to_api())
}

pub fn names(node: &TestNode) -> Vec<String> {
    let members = node.client().cluster().unwrap().members;
    members.into_iter().map(|member| member.name).collect()
}

/// A node that can be in a cluster. Nothing runs on it, so it needs no rights.
pub fn quiet() -> TestNode {
    TestNode::with(Setup::on_the_network())
}
