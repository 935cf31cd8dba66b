//! Swarms: hosts that bring one image to each other. What a node and its hub say of them, and what a node tells its users.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Most addresses that a member may give.
pub const SWARM_ADDRESSES_MAX: usize = 8;
/// Most members of an image's swarm; the hub lists no further ones.
pub const SWARM_MEMBERS_MAX: usize = 4096;

/// A node takes part in the swarm of an image, or goes on doing so: the body of `POST /v1/images/{id}/swarm` of a hub.
///
/// A member that doesn't repeat this within [`SwarmMembership::expires_after_s`] is taken off the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SwarmJoin {
    /// The node's public key (Ed25519), 64 hex digits.
    pub key: String,
    /// Where it can be reached over UDP, as `address:port`; at most [`SWARM_ADDRESSES_MAX`]. An unspecified address (`0.0.0.0:port`,
    /// `[::]:port`) stands for the one from which this request comes.
    pub addresses: Vec<String>,
    /// The [`SwarmMembership::content`] that the node knows already: its packs are left out of the answer if nothing has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Name of the packs of the layout by which the node reads the image, in their order, 64 hex digits, if that is not all of
    /// [`SwarmMembership::content`]: they are kept for a while after the image's packs were laid out anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<String>,
    /// Whether other users' nodes that are open, too, are told of this one, and it of them. Otherwise it meets those alone whose token is of
    /// the same user.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
}

/// A hub's answer to a node that takes part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SwarmMembership {
    /// Name of the packs in their order, 64 hex digits: it changes when the image's packs are laid out anew, and when nobody reads by an
    /// earlier layout any more.
    pub content: String,
    /// What members show each other, 64 hex digits. Only those who may read the image get it.
    pub token: String,
    /// The packs that hold the image, and those of earlier layouts that members still read by, in the order that numbers their pieces; empty if
    /// the request named this content.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packs: Vec<SwarmPack>,
    /// The members that the asking node may meet: those of its own user, itself among them, and others if it is open and they are.
    pub members: Vec<SwarmMember>,
    /// In how many milliseconds to ask again: soon while members come and go, seldom otherwise.
    pub ask_again_ms: u64,
    /// After how many seconds of silence the node is taken off the list.
    pub expires_after_s: u64,
}

/// A pack as a swarm knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SwarmPack {
    /// The pack's id in the image's layout, 64 hex digits.
    pub id: String,
    /// Root of the BLAKE3 tree over all of its bytes, 64 hex digits: it proves every piece.
    pub root: String,
    /// Its length in bytes.
    pub bytes: u64,
}

/// A member of a swarm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SwarmMember {
    /// Its public key (Ed25519), 64 hex digits.
    pub key: String,
    /// Where it can be reached over UDP, as `address:port`.
    pub addresses: Vec<String>,
}

/// What a hub has found of a pack that somebody doubted: the answer of `POST /v1/packs/{id}/damaged`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PackCheck {
    /// Whether the pack is damaged on the hub's disk: the list of images says so until an image with it is pushed again.
    pub damaged: bool,
}

/// Whether a node's machines take part in swarms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SwarmUse {
    /// As soon as another node with a token of the same user of the hub runs the same image.
    #[default]
    Auto,
    /// Always, and with the nodes of all who may read the image and take part like this.
    On,
    /// Never.
    Off,
}

/// Answer of `GET /v1/swarm` of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SwarmReport {
    /// What machines do of which nothing else was said.
    pub usage: SwarmUse,
    /// This node's public key, 64 hex digits; absent before its first swarm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Where it listens over UDP; empty before its first swarm.
    pub addresses: Vec<String>,
    /// The swarms that it takes part in, by image.
    pub swarms: Vec<SwarmInfo>,
}

/// How a node brings an image's pieces here, as it decided by what it measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SwarmWay {
    /// From the hub alone: no other host takes part, or none of them can be reached.
    #[default]
    Hub,
    /// From the other hosts, and from the hub what none of them has.
    Swarm,
    /// From a multicast group on this network segment, and what is missed from the others.
    Multicast,
}

/// A node's part in the swarm of one image.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SwarmInfo {
    /// The image's id, 64 hex digits.
    pub image: String,
    /// The hub that lists the members.
    pub hub: String,
    /// The machines here that run it.
    pub machines: Vec<String>,
    /// Whether this node gives pieces although no machine of its own needs them.
    pub seeding: bool,
    /// How its pieces come here now.
    pub way: SwarmWay,
    /// Pieces that are here, and how many there are.
    pub pieces_here: u32,
    /// All pieces.
    pub pieces: u32,
    /// Pieces that machines wait for now.
    pub needed: u32,
    /// Among how many missing pieces of the prediction the next prefetch is picked (the paper's k).
    pub window: u32,
    /// Bytes that came from the hub.
    pub hub_bytes: u64,
    /// Bytes that came from other hosts.
    pub received_bytes: u64,
    /// Bytes that went to other hosts.
    pub sent_bytes: u64,
    /// The other hosts.
    pub peers: Vec<SwarmPeer>,
    /// What is wrong, such as why the swarm is not used; empty if nothing is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trouble: String,
}

/// Another host of a swarm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SwarmPeer {
    /// Its public key, 64 hex digits.
    pub key: String,
    /// Where it can be reached over UDP.
    pub addresses: Vec<String>,
    /// Whether there is a connection.
    pub linked: bool,
    /// Bytes that came from it.
    pub received_bytes: u64,
    /// Bytes that went to it.
    pub sent_bytes: u64,
    /// Why it was dropped, if it was: wrong bytes, a stall, a lie, a flood.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<String>,
}

/// Body of `POST /v1/swarm/seeds`: this node is to have all of an image and to give it to others, also after a restart, until
/// [`SwarmLeave`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SwarmSeed {
    /// Address of the image on a hub.
    pub image: String,
    /// Token for the hub.
    #[serde(default)]
    pub token: Option<String>,
    /// File with the certificate authority of the hub.
    #[serde(default)]
    pub ca: Option<String>,
}

/// Body of `POST /v1/swarm/leave`: this node takes part in an image's swarm no more. Machines here that run it go on by the hub alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SwarmLeave {
    /// The image: its id or the beginning of it, or its address or name as it was given.
    pub image: String,
}
