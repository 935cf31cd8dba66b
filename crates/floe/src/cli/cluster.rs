//! Commands about the cluster that the node is in.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};

use super::error::CliError;
use super::output::{fields, table};
use super::{Context, args};

/// Nodes that know each other by certificates: forks between their hosts are encrypted
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example: two hosts
  alpha$ floe cluster init
  alpha$ floe cluster invite
  floe cluster join https://10.0.0.1:7071 floe1.6b0c...
  beta$  floe cluster join https://10.0.0.1:7071 floe1.6b0c...
  alpha$ floe fork web -n 8 --hosts here,beta

What crosses the network between members is encrypted and authenticated: TLS on TCP port 7071,
frames of families' networks on UDP port 7071, and multicast. No token is asked of a member, and
no page needs to be on the network.")]
pub enum Cluster {
    Init(Init),
    Invite(Invite),
    Join(Join),
    Status(Status),
    Members(Members),
    Revoke(Revoke),
    Leave(Leave),
}

/// Make a cluster: this node becomes its first member, and the authority that admits others
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe cluster init
Example: on one of several networks, by another name
  floe cluster init --name alpha --listen 10.0.0.1:7071

It takes effect at once. The authority's key is made here and never leaves: back up cluster/ of
floe's state directory. While this node is away members go on as they are, but nobody can join,
and certificates are not renewed.")]
pub struct Init {
    /// This node's name in the cluster; by default its host name
    #[arg(long)]
    name: Option<String>,
    /// Address and port on which it answers the other members; by default port 7071 of the address that leads to the
    /// network
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// How long members' certificates are valid, such as 30d. They are renewed when a third of that is over
    #[arg(long, value_name = "TIME", value_parser = args::time_s)]
    certificates: Option<u64>,
}

/// Let one more node join: print the line to be typed on its host
#[derive(Debug, Args)]
#[command(after_help = "\
Example: over ssh, in one go
  ssh beta sudo $(floe cluster invite)

The invitation is a secret: the first who uses it is in. It is good once and for a while, and
says by which certificate the new node can tell this cluster from an impostor.")]
pub struct Invite {
    /// How long the invitation is valid, such as 10m or 1d; by default 1h
    #[arg(long, value_name = "TIME", value_parser = args::time_s)]
    expires: Option<u64>,
}

/// Join a cluster with an invitation
#[derive(Debug, Args)]
#[command(after_help = "\
Example: as floe cluster invite printed it on the cluster's first host
  floe cluster join https://10.0.0.1:7071 floe1.6b0c...

It takes effect at once. This node makes its own key; only the request to sign it is sent.")]
pub struct Join {
    /// Address of the cluster's first host
    url: String,
    /// The invitation
    invitation: String,
    /// This node's name in the cluster; by default its host name
    #[arg(long)]
    name: Option<String>,
    /// Address and port on which it answers the other members; by default port 7071 of the address that leads to the
    /// first host
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
}

/// Show what this node is in a cluster
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  floe cluster status\n  floe cluster status --json | jq -r .url"
)]
pub struct Status {}

/// Show the members of the cluster: floe fork --hosts takes their names
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  floe cluster members")]
pub struct Members {}

/// Remove a node from the cluster, on the cluster's first host: all members refuse it from then on
#[derive(Debug, Args)]
#[command(after_help = "\
Example: a host that was lost or broken into
  floe cluster revoke beta

Members that are away now are named; they refuse it within half a minute of being back. Its
clones, and clones that read from it, stand still: floe kill ends them.")]
pub struct Revoke {
    /// The member's name
    name: String,
}

/// Leave the cluster, and remove its keys from this host
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  floe cluster leave")]
pub struct Leave {
    /// Leave even if clones need other members, or others need this node as the authority
    #[arg(long)]
    force: bool,
}

impl Cluster {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let client = cx.client()?;
        match self {
            Cluster::Init(init) => {
                let request = floe_api::ClusterInit {
                    name: init.name,
                    listen: init.listen,
                    certificate_s: init.certificates,
                };
                let info = client.cluster_init(&request)?;
                cx.out.value(&info, |info| {
                    let next = "floe cluster invite lets another node in\n";
                    format!("{}{next}", told(info))
                })
            }
            Cluster::Invite(invite) => {
                let request = floe_api::ClusterInvite {
                    expires_s: invite.expires,
                };
                let invited = client.cluster_invite(&request)?;
                cx.out
                    .value(&invited, |invited| format!("{}\n", invited.command))
            }
            Cluster::Join(join) => {
                let request = floe_api::ClusterJoin {
                    url: join.url,
                    invitation: join.invitation,
                    name: join.name,
                    listen: join.listen,
                };
                cx.out.value(&client.cluster_join(&request)?, told)
            }
            Cluster::Status(_) => cx.out.value(&client.cluster()?, told),
            Cluster::Members(_) => cx.out.value(&client.cluster()?.members, |members| {
                let row = |member: &floe_api::ClusterMember| {
                    let what = match (member.this, member.authority) {
                        (true, true) => "this node, the authority",
                        (true, false) => "this node",
                        (false, true) => "the authority",
                        (false, false) => "",
                    };
                    vec![member.name.clone(), member.url.clone(), what.to_owned()]
                };
                table(&["NAME", "ADDRESS", ""], members.iter().map(row))
            }),
            Cluster::Revoke(revoke) => {
                let request = floe_api::ClusterRevoke { name: revoke.name };
                let change = client.cluster_revoke(&request)?;
                cx.out.value(&change, |change| {
                    let mut text = format!("{} is a member no longer\n", change.name);
                    if !change.untold.is_empty() {
                        let untold = change.untold.join(", ");
                        text += &format!("not reached, and told when they ask: {untold}\n");
                    }
                    text
                })
            }
            Cluster::Leave(leave) => {
                let request = floe_api::ClusterLeave { force: leave.force };
                let change = client.cluster_leave(&request)?;
                cx.out.value(&change, |change| {
                    let mut text = format!("{} has left\n", change.name);
                    for first in &change.untold {
                        text += &format!(
                            "{first} was not told: floe cluster revoke {} there takes it off the list\n",
                            change.name
                        );
                    }
                    text
                })
            }
        }
    }
}

/// Tells what a node is in its cluster.
pub(super) fn told(info: &floe_api::ClusterInfo) -> String {
    if !info.joined {
        return "this node is in no cluster: floe cluster init makes one, floe cluster join enters one\n".into();
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let left_s = info.certified_until_unix_s.saturating_sub(now.as_secs());
    let certificate = match left_s {
        0 => "has ended: join again".to_owned(),
        s => format!("for {} more, renewed by itself", span(s)),
    };
    fields(&[
        ("name", info.name.clone()),
        ("address", info.url.clone()),
        (
            "role",
            if info.authority {
                "authority"
            } else {
                "member"
            }
            .into(),
        ),
        ("members", info.members.len().to_string()),
        ("certificate", certificate),
        ("cluster", info.cluster.clone()),
        ("CA (SHA-256)", info.fingerprint.clone()),
        ("trouble", info.detail.clone()),
    ])
}

fn span(s: u64) -> String {
    match s {
        0..=7199 => format!("{} min", s.div_ceil(60)),
        7200..=172_799 => format!("{} h", s / 3600),
        _ => format!("{} d", s / 86400),
    }
}
