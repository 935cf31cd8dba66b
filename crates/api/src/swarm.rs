//! Swarms: hosts that bring one image to each other. What a node and its hub say of them, and what a node tells its users.

use serde::{Deserialize, Serialize};
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};
use utoipa::ToSchema;

/// Most addresses that a member may give.
pub const SWARM_ADDRESSES_MAX: usize = 8;
/// Most members of an image's swarm; the hub lists no further ones.
pub const SWARM_MEMBERS_MAX: usize = 4096;
/// Most members in each list of a [`SwarmOverview`].
pub const SWARM_SHOWN_MAX: usize = 256;
/// Most nodes that a user's list of members has.
pub const SWARM_LIST_MAX: usize = 512;
/// Most bytes of such a list's file: each node with long addresses and a remark.
pub const SWARM_LIST_BYTES_MAX: usize = 512 << 10;
/// Most packs that a member of a cluster names to another: 128 GiB of an image.
pub const SWARM_OFFER_PACKS_MAX: usize = 16 << 10;
/// Digits of a node's key.
const KEY_DIGITS: usize = 64;
/// So much of what can't be read is repeated in an error, in characters.
const SHOWN_CHARS_MAX: usize = 80;

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
    /// Open: nodes of other users that are open too are told of this one, and it of them. Otherwise it meets only nodes whose token belongs
    /// to the same user.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
}

/// A hub's answer to a node that takes part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SwarmMembership {
    /// Name of the packs in their order, 64 hex digits: it changes when the image's packs are laid out anew, and when nobody reads by an
    /// earlier layout any more.
    pub content: String,
    /// The secret by which members know each other, 64 hex digits. Only those who may read the image get it.
    pub token: String,
    /// The packs that hold the image, and those of earlier layouts that members still read by, in the order that numbers their pieces; empty if
    /// the request named this content.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packs: Vec<SwarmPack>,
    /// The members that the asking node may meet: those of its own user, itself included, and if it is open, all others that are.
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

/// What the owner of an image is told of its swarm: the answer of `GET /v1/images/{id}/swarm` of a hub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SwarmOverview {
    /// The owner's nodes that take part; at most [`SWARM_SHOWN_MAX`].
    pub own: Vec<SwarmMember>,
    /// Others that are open ([`SwarmJoin::open`]); as many at most. Of all others nobody is told.
    pub others: Vec<SwarmMember>,
    /// How many there are of both.
    pub count: u32,
    /// Bytes of pieces, with their proofs, that the hub gave to whoever reads the owner's copy, also to members that are not shown.
    pub hub_bytes: u64,
    /// Over how many seconds that was counted: since the hub started.
    pub counted_s: u64,
}

impl SwarmMember {
    /// Reads a user's list of members: on each line a key, then the addresses at which its node can be reached. What follows a `#` is a
    /// remark. The error says what is wrong in which line.
    pub fn parse_list(text: &str) -> Result<Vec<SwarmMember>, String> {
        let mut list: Vec<SwarmMember> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let wrong = |why: String| format!("line {}: {why}", number + 1);
            let said = line.split('#').next().unwrap_or_default();
            let Some(member) = SwarmMember::parse(said).map_err(wrong)? else {
                continue;
            };
            if list.iter().any(|other| other.key == member.key) {
                return Err(wrong(format!("{} is listed before", member.key)));
            }
            if list.len() == SWARM_LIST_MAX {
                let most = format!("a list has at most {SWARM_LIST_MAX} nodes");
                return Err(wrong(most));
            }
            list.push(member);
        }
        match list.is_empty() {
            true => Err("it names no node".into()),
            false => Ok(list),
        }
    }

    /// Reads a line without its remark; an empty one names nobody.
    fn parse(line: &str) -> Result<Option<SwarmMember>, String> {
        let mut words = line.split_whitespace();
        let Some(key) = words.next() else {
            return Ok(None);
        };
        let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if key.len() != KEY_DIGITS || !key.bytes().all(is_digit) {
            let digits = "a key has 64 hexadecimal digits (0-9, a-f)";
            return Err(format!("{:?} is no node's key: {digits}", shown(key)));
        }
        let addresses = words
            .map(address)
            .collect::<Result<Vec<String>, String>>()?;
        match addresses.len() {
            0 => Err("an address is missing after the key, such as 10.0.0.2:4433".into()),
            1..=SWARM_ADDRESSES_MAX => Ok(Some(SwarmMember {
                key: key.into(),
                addresses,
            })),
            many => Err(format!(
                "{many} addresses; a node has at most {SWARM_ADDRESSES_MAX}"
            )),
        }
    }
}

/// As a line of a list.
impl fmt::Display for SwarmMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.key, self.addresses.join(" "))
    }
}

/// Reads where a node can be reached, and writes it in its one form.
fn address(word: &str) -> Result<String, String> {
    let shown = shown(word);
    let at: SocketAddr = word
        .parse()
        .map_err(|_| format!("{shown:?} is no address and port, such as 10.0.0.2:4433"))?;
    match at.ip().to_canonical().is_unspecified() || at.port() == 0 {
        true => Err(format!(
            "nobody can be reached at {shown}: write the host's own address, and the port at which its node listens"
        )),
        false => Ok(at.to_string()),
    }
}

/// The beginning of what can't be read.
fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}

/// Where the list of the nodes in a machine's swarm comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SwarmMembers {
    /// The image's hub: nodes that run the image and may read it there.
    #[default]
    Hub,
    /// The node's cluster: its members that run the image and were told the same. No hub is told of any of them.
    Cluster,
    /// The user: these nodes, at most [`SWARM_LIST_MAX`], and no others. No hub is told of any of them.
    List(Vec<SwarmMember>),
}

impl SwarmMembers {
    /// Whether the list comes from the hub.
    pub fn is_hub(&self) -> bool {
        *self == SwarmMembers::Hub
    }

    /// Returns an error for a list that [`SwarmMember::parse_list`] would not have made.
    pub fn check(&self) -> Result<(), String> {
        let SwarmMembers::List(list) = self else {
            return Ok(());
        };
        let lines: String = list.iter().map(|member| format!("{member}\n")).collect();
        match SwarmMember::parse_list(&lines) {
            Ok(read) if read == *list => Ok(()),
            Ok(_) => Err("the list of its swarm's members has words that are no addresses".into()),
            Err(why) => Err(format!("the list of its swarm's members: {why}")),
        }
    }
}

/// What a member of a cluster tells another of its part in an image's swarm: at the port for members, the answer of `GET
/// /v1/swarm/{image}`, and of `GET /v1/swarm/{image}/packs`, which has the packs, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SwarmOffer {
    /// Who it is and where it can be reached. An unspecified address (`0.0.0.0:port`, `[::]:port`) stands for the one at which it answers
    /// members.
    pub member: SwarmMember,
    /// The image's packs as it knows them; none if it does not know them, or more than [`SWARM_OFFER_PACKS_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packs: Vec<SwarmPack>,
}

impl SwarmOffer {
    /// Reads what the member at `ip` says; the error says what is wrong with it. An unspecified address becomes `ip`. Addresses that do not
    /// mean this one host to everybody (multicast, loopback of another host) are left out, so that nobody is sent there.
    pub fn read(bytes: &[u8], ip: IpAddr) -> Result<SwarmOffer, String> {
        let mut offer: SwarmOffer =
            serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if offer.packs.len() > SWARM_OFFER_PACKS_MAX {
            return Err(format!("it names {} packs", offer.packs.len()));
        }
        let texts = std::mem::take(&mut offer.member.addresses);
        let addresses = &mut offer.member.addresses;
        for text in texts.iter().take(SWARM_ADDRESSES_MAX) {
            let at = text.parse::<SocketAddr>();
            let mut at = at.map_err(|_| format!("{:?} is no address", shown(text)))?;
            let named = at.ip().to_canonical();
            if named.is_unspecified() {
                at = SocketAddr::new(ip, at.port());
            } else if named.is_multicast() || named.is_loopback() && !ip.is_loopback() {
                continue;
            }
            let at = at.to_string();
            if !addresses.contains(&at) {
                addresses.push(at);
            }
        }
        match SwarmMember::parse(&offer.member.to_string())? {
            Some(read) if read == offer.member => Ok(offer),
            _ => Err("it names no node".into()),
        }
    }
}

/// What a hub has found of a pack that somebody doubted: the answer of `POST /v1/packs/{id}/damaged`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PackCheck {
    /// Whether the pack is damaged on the hub's disk: the list of images says so until an image with it is pushed again.
    pub damaged: bool,
}

/// Whether a node's machines take part in swarms.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum,
)]
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
    /// Whether machines take part if nothing was said when they were started.
    pub usage: SwarmUse,
    /// This node's public key, 64 hex digits; absent before its first swarm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Where it listens over UDP; empty before its first swarm.
    pub addresses: Vec<String>,
    /// The swarms that it takes part in, by image, and after them the forks whose clones here have a multicast group.
    pub swarms: Vec<SwarmInfo>,
}

/// How a node brings an image here now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SwarmWay {
    /// From the hub alone: no other host takes part, or none of them can be reached.
    #[default]
    Hub,
    /// From the other hosts, and from the hub what none of them has.
    Swarm,
    /// From a fork's multicast group on this network segment, and what is missed of it from the parent's host.
    Multicast,
    /// From the host of a fork's parent alone: its multicast does not pass.
    Parent,
}

/// A node's part in the swarm of one image, or how it reads a fork.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SwarmInfo {
    /// The image's id, 64 hex digits.
    pub image: String,
    /// The hub that the image is on; of a fork the address at its parent's host.
    pub hub: String,
    /// The machines here that run it.
    pub machines: Vec<String>,
    /// Whether this node gives pieces although no machine of its own needs them.
    pub seeding: bool,
    /// How many other nodes must have had all of it before that ends; absent if it ends with [`SwarmLeave`] alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed_until: Option<u32>,
    /// Other nodes that have said since this one takes part that they have all of it, also those that are gone by now. In a large swarm a
    /// node is told by some fifty others what they have.
    #[serde(default)]
    pub complete: u32,
    /// The way by which its pieces come here now.
    pub way: SwarmWay,
    /// Why they come that way, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// Pieces that are here, and how many there are.
    pub pieces_here: u32,
    /// All pieces.
    pub pieces: u32,
    /// Pieces that machines wait for now.
    pub needed: u32,
    /// Among how many missing pieces of the prediction the next prefetch is picked (the paper's k).
    pub window: u32,
    /// How many bytes of pieces come in a second while as many as may be are under way ahead of need; absent before that was measured.
    /// This and [`SwarmInfo::piece_us`] bound what is fetched ahead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<u64>,
    /// How long the quickest piece of late took, in microseconds; absent before that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub piece_us: Option<u64>,
    /// Bytes that came from the hub.
    pub hub_bytes: u64,
    /// Bytes that came from other hosts.
    pub received_bytes: u64,
    /// Bytes that went to other hosts.
    pub sent_bytes: u64,
    /// Of a fork: what its clones here read out of swarms of the images that it has in common with machines of this host; absent if nothing
    /// can be read so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lent: Option<SwarmLent>,
    /// The other hosts.
    pub peers: Vec<SwarmPeer>,
    /// What is wrong, such as why the swarm is not used; empty if nothing is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trouble: String,
}

/// Where clones of a parent on another host got what they lacked, and why. What is in pieces on this host is read from there; for the rest
/// that a swarm has is taken whatever takes less time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SwarmLent {
    /// Bytes of chunks that were in pieces on this host.
    pub shelf_bytes: u64,
    /// Bytes of chunks in pieces that a swarm has brought for it.
    pub swarm_bytes: u64,
    /// Bytes of chunks that came from the parent's host, by multicast or not.
    pub parent_bytes: u64,
    /// How long a chunk of the last read that a swarm could bring would take that way, in microseconds; absent while one of the two ways was
    /// not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swarm_us: Option<u64>,
    /// The same from the parent's host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_us: Option<u64>,
}

/// Another host of a swarm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SwarmPeer {
    /// Its public key, 64 hex digits.
    pub key: String,
    /// Where it can be reached over UDP.
    pub addresses: Vec<String>,
    /// Whether this node has a connection to it.
    pub linked: bool,
    /// Pieces that it has, as it says; 0 also of one that has said nothing.
    #[serde(default)]
    pub pieces: u32,
    /// Bytes that came from it.
    pub received_bytes: u64,
    /// Bytes that went to it.
    pub sent_bytes: u64,
    /// Why it was dropped, if it was: wrong bytes, a stall, a lie, a flood.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<String>,
}

/// Body of `POST /v1/swarm/seeds`: this node is to have all of an image and to give it to others, also after a restart, until
/// [`SwarmLeave`] or until enough others have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SwarmSeed {
    /// Address of the image on a hub.
    pub image: String,
    /// Until so many other nodes have had all of it, 1 to [`SWARM_MEMBERS_MAX`]; by default until [`SwarmLeave`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u32>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_nodes_by_keys_and_addresses() {
        let (a, b) = ("0a".repeat(32), "0b".repeat(32));
        let text =
            format!("# lab\n\n{a} 10.0.0.1:4433   # one\n  {b}\t[fd00:0::2]:4433 10.0.0.2:1\r\n");
        let list = SwarmMember::parse_list(&text).unwrap();
        assert_eq!(list[0].to_string(), format!("{a} 10.0.0.1:4433"));
        assert_eq!(
            list[1].to_string(),
            format!("{b} [fd00::2]:4433 10.0.0.2:1")
        );
        assert_eq!(SwarmMembers::List(list).check(), Ok(()));
    }

    #[test]
    fn what_is_wrong_with_a_list_is_told_with_its_line() {
        let key = "0a".repeat(32);
        let many = " 10.0.0.1:1".repeat(SWARM_ADDRESSES_MAX + 1);
        let good = format!("{key} 10.0.0.1:1");
        for (line, why) in [
            ("web 10.0.0.1:1".to_owned(), "\"web\" is no node's key"),
            (key.to_uppercase() + " 10.0.0.1:1", "is no node's key"),
            (key.clone(), "an address is missing"),
            (format!("{key} host:1"), "\"host:1\" is no address"),
            (format!("{key} 10.0.0.1"), "is no address and port"),
            (format!("{key} 0.0.0.0:4433"), "nobody can be reached at"),
            (format!("{key} [::]:4433"), "nobody can be reached at"),
            (format!("{key} 10.0.0.1:0"), "nobody can be reached at"),
            (format!("{key}{many}"), "at most 8"),
            (format!("{good}\n{good}"), "is listed before"),
            ("x".repeat(1 << 20), "is no node's key"),
        ] {
            let error = SwarmMember::parse_list(&format!("#\n{line}\n")).unwrap_err();
            let number = if line.contains('\n') { 3 } else { 2 };
            assert!(error.starts_with(&format!("line {number}: ")), "{error}");
            assert!(error.contains(why) && error.len() < 300, "{error}");
        }
        assert_eq!(
            SwarmMember::parse_list("# none\n"),
            Err("it names no node".into())
        );
        let line = |number: usize| format!("{number:064x} 10.0.0.1:1\n");
        let most: String = (0..SWARM_LIST_MAX).map(line).collect();
        assert!(SwarmMember::parse_list(&most).is_ok() && most.len() < SWARM_LIST_BYTES_MAX);
        let error = SwarmMember::parse_list(&(most + &line(SWARM_LIST_MAX))).unwrap_err();
        assert!(error.starts_with("line 513: a list has at most"), "{error}");
    }

    #[test]
    fn a_member_of_a_cluster_points_the_others_at_itself() {
        let key = "0a".repeat(32);
        let read = |ip: &str, addresses: &[&str]| {
            let said = serde_json::json!({"member": {"key": key, "addresses": addresses}});
            let offer = SwarmOffer::read(said.to_string().as_bytes(), ip.parse().unwrap());
            offer.map(|offer| offer.member.addresses)
        };
        let own = ["10.0.0.1:4433".to_owned()];
        let any = ["0.0.0.0:4433", "[::]:4433", "[::ffff:0.0.0.0]:4433"];
        assert_eq!(read("10.0.0.1", &any).unwrap(), own);
        let odd = ["127.0.0.1:22", "239.0.0.1:1", "[::1]:22", "10.0.0.1:4433"];
        assert_eq!(read("10.0.0.1", &odd).unwrap(), own);
        assert_eq!(read("127.0.0.1", &odd).unwrap().len(), 3);
        for bad in [&["10.0.0.1"][..], &["10.0.0.1:0"], &["127.0.0.1:22"], &[]] {
            assert!(read("10.0.0.1", bad).is_err(), "{bad:?}");
        }
        let ip = [10, 0, 0, 1].into();
        for bad in [
            "{}",
            "[",
            r#"{"member":{"key":"web","addresses":["10.0.0.1:1"]}}"#,
            r#"{"member":{"key":"","addresses":[]}}"#,
        ] {
            assert!(SwarmOffer::read(bad.as_bytes(), ip).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_list_that_came_by_the_interface_is_looked_at_too() {
        let list = |key: String, addresses: &[&str]| {
            let addresses = addresses.iter().map(|&at| at.to_owned()).collect();
            SwarmMembers::List(vec![SwarmMember { key, addresses }])
        };
        let key = "0a".repeat(32);
        assert_eq!(SwarmMembers::Hub.check(), Ok(()));
        assert_eq!(list(key.clone(), &["10.0.0.1:1"]).check(), Ok(()));
        for bad in [
            SwarmMembers::List(Vec::new()),
            list(key.clone(), &[]),
            list(key.clone(), &["10.0.0.1:1 10.0.0.2:1"]),
            list(key.clone(), &["10.0.0.1:1\n#"]),
            list(format!("{key} 10.0.0.1:1\n{key}"), &["10.0.0.1:1"]),
            list("#".into(), &[]),
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
