//! Nodes on hosts of their own, put into one cluster.
use crate::link::Segment;
use crate::live::Node;
use floe_api::{ClusterInit, ClusterInvite, ClusterJoin};
use std::net::SocketAddr;

/// Port at which members of the cluster answer each other.
const PORT: u16 = 7071;

/// Returns a host's name in its cluster, by its number.
pub fn host_name(number: usize) -> String {
    format!("host-{number}")
}

/// Puts the hosts' nodes into one cluster.
pub fn join(segment: &Segment, nodes: &[Node]) -> anyhow::Result<()> {
    let at = |number: usize| Some(SocketAddr::from((segment.address(number), PORT)));
    nodes[0].client.cluster_init(&ClusterInit {
        name: Some(host_name(0)),
        listen: at(0),
        ..ClusterInit::default()
    })?;
    for (number, node) in nodes.iter().enumerate().skip(1) {
        let invited = nodes[0].client.cluster_invite(&ClusterInvite::default())?;
        node.client.cluster_join(&ClusterJoin {
            url: invited.url,
            invitation: invited.invitation,
            name: Some(host_name(number)),
            listen: at(number),
        })?;
    }
    Ok(())
}
