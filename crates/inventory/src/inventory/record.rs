//! What a machine is, in a file: enough for a node that starts after a crash to take the machine over. No I/O: that is `kept`.
//!
//! `machines/NAME/machine.json` is replaced atomically (write, fsync, rename, fsync of the directory), so a reader finds
//! the old state or the new one. Unknown versions are refused: a node must not run a machine that it half understands.

use super::given::Given;
use super::small::{Fresh, Small};
use super::turn::{Syncing, Turn};
use floe_api::{
    HostAccess, Identity, InEnsemble, Limits, MulticastGroup, PauseReason, PortForward, Prefetch,
    RestartPolicy, Size, SwarmMembers, SwarmUse,
    credentials::{Authorities, HubAddress, Tokens},
};
use floe_ground::names::MachineName;
use floe_http::Url;
use floe_image::{Hash, MachineConfig};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::{Component, Path},
};

/// Version of the file. A field that an older node must not ignore raises it.
pub const RECORD_VERSION: u32 = 1;

/// What a machine is meant to be, and the state it was last in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`RECORD_VERSION`].
    pub version: u32,
    /// Its name.
    pub name: String,
    /// The image as the user named it.
    pub image_name: String,
    /// The image that it was started from: its `ram` is what QEMU maps.
    pub image: Hash,
    /// The image that its disks stand on: [`Record::image`], or the last capture.
    pub disk_base: Hash,
    /// Where the image's missing chunks come from.
    pub origin: Origin,
    /// What QEMU needs.
    pub config: MachineConfig,
    /// Ports.
    pub forwards: Vec<PortForward>,
    /// Whether the running QEMU was restored (false after a cold start).
    pub restored: bool,
    /// Whether a QEMU should be running. Only `lifecycle` changes this and `pauses`.
    pub wanted: Wanted,
    /// A remark for the user (`the guest was reset and started cold from its disks`).
    pub detail: String,
    /// When it was created, Unix time in seconds.
    pub created_unix_s: u64,
    /// User id that its QEMU runs as; `None` is the node's own.
    pub uid: Option<u32>,
    /// Directory of its QEMU and disks, relative to the state directory: `machines/NAME`, or `standby/N` for a machine
    /// whose QEMU waited before the run (its files can't move while QEMU has them open).
    pub place: String,
    /// Its directory's name on the mount.
    pub mount_name: String,
    /// Whether what the machine touches is recorded and sent to hubs.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub traced: bool,
    /// The reasons for which floe keeps its guest stopped. They are on the disk before QEMU is told to stop. An earlier
    /// version knew one reason and wrote `buffering: true`.
    #[serde(
        default,
        alias = "buffering",
        deserialize_with = "pauses",
        skip_serializing_if = "BTreeSet::is_empty"
    )]
    pub pauses: BTreeSet<PauseReason>,
    /// If it is a clone: the fork that created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<Family>,
    /// Its place in its family's network; `None` if it has QEMU's user network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Attachment>,
    /// What its guest can reach of this host.
    #[serde(default, skip_serializing_if = "HostAccess::is_none")]
    pub host_access: HostAccess,
    /// How much of this host's resources the QEMUs of its household may use together.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
    /// The machines with which it shares these limits.
    #[serde(default, skip_serializing_if = "Household::is_unknown")]
    pub household: Household,
    /// What becomes of it once it has ended.
    #[serde(default, skip_serializing_if = "Afterwards::is_nothing")]
    pub afterwards: Afterwards,
    /// Disks that [`Record::image`] does not have: CD-ROM, firmware and seed, made by its cold start, and disks that it was given later. One
    /// that [`Record::config`] does not name is not, or no longer, a disk of the machine: what is left of it goes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own_disks: Vec<OwnDisk>,
    /// The lowest number that its next disk may have. No number is used twice, so that what was kept of a disk (in a fork's frozen layers,
    /// in an image) is never taken for another disk's.
    #[serde(default, skip_serializing_if = "is_none_yet")]
    pub next_disk: usize,
    /// How many images of parked memory lie above [`Record::disk_base`]. 0: [`Record::image`] is an ordinary image. Otherwise it belongs to
    /// this machine alone, has its memory of when it was last parked and none of its disks, and is the last of a chain of so many images:
    /// the first is a layer over [`Record::disk_base`], each further one over the one before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub own_layers: u32,
    /// After how many seconds of idleness it is parked, if ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub park_after_s: Option<u64>,
    /// Whether the node leaves it alone with what its guest deletes: it is not asked by itself to give that back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_trim: bool,
    /// What was taken from it to make it small, or may have been. A node that has the machine gives that back.
    #[serde(default, skip_serializing_if = "Small::is_nothing")]
    pub small: Small,
    /// Its own identity, if it was started from an image whose machines forget whom it was captured from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fresh: Option<Fresh>,
    /// What its guest has of its hardware, where that is not all of it.
    #[serde(default, skip_serializing_if = "Given::is_all")]
    pub given: Given,
    /// What it had before a change of its size that is under way, or that a killed node has left unfinished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resizing: Option<Resizing>,
    /// Whether, and how fast, all of its image is to be brought to this host; `None` if nobody asked for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub independence: Option<Independent>,
    /// Its part in an ensemble, if it was activated as one of its machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ensemble: Option<InEnsemble>,
    /// Whether it takes part in its image's swarm; `None` means that the node's option decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swarm: Option<SwarmUse>,
    /// Where it stands between this node and another, if it moves or has moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Turn>,
    /// With which node, and how often, it is synced by itself; `None` if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub syncing: Option<Syncing>,
}

/// The machines that share their limits: one that a user made, and all clones that its guest, and the guests of those, have made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Household {
    /// Its id: 16 hex digits, or what the mount called its first machine, if an earlier floe made that; empty in a record of such a floe
    /// ([`Record::household_id`]).
    pub id: String,
    /// Whether a guest of this household made the machine, so that the household existed before it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub joined: bool,
    /// For a clone that a guest on another host made: the household there. Its clones on this host share one part of this host's disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

impl Household {
    /// Returns a new one, whose first machine a user makes.
    pub fn begin() -> Household {
        Household {
            id: format!("{:016x}", rand::random::<u64>()),
            ..Household::default()
        }
    }

    /// Returns the one with this id, for a machine that a guest of it makes.
    pub fn join(id: &str) -> Household {
        Household {
            id: id.to_owned(),
            joined: true,
            from: None,
        }
    }

    fn is_unknown(&self) -> bool {
        *self == Household::default()
    }
}

/// What a machine had before its size is changed: its limits follow from that and from the size that it reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resizing {
    /// Its limits.
    pub limits: Limits,
    /// What its guest had.
    pub size: Size,
}

/// What a machine's record says of its independence from other places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Independent {
    /// The most raw bytes a second that are brought here.
    pub rate_bytes_s: u64,
    /// Whether all is here: the machine reads nothing from elsewhere any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
    /// Whether what its disks had over that was merged into an image of its own since it was asked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub merged: bool,
}

/// What is to become of a machine, as its record says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Afterwards {
    /// Whether it is removed once it has ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remove: bool,
    /// When it is started again.
    #[serde(default, skip_serializing_if = "RestartPolicy::is_no")]
    pub restart: RestartPolicy,
    /// How often in a row it was, or is about to be, started again.
    #[serde(default)]
    pub in_a_row: u32,
    /// Whether it has ended and is about to be started again.
    #[serde(default)]
    pub due: bool,
}

impl Afterwards {
    /// Whether the record need not mention it.
    pub fn is_nothing(&self) -> bool {
        *self == Afterwards::default()
    }
}

/// A disk that a machine has beside those of its image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnDisk {
    /// Its name: one of [`floe_image::SPECIAL_DISKS`], or `disk` and a number.
    pub name: String,
    /// Its size in bytes when it was made.
    pub bytes: u64,
    /// What its user calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
}

/// A place in a family's network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attachment {
    /// The network's id.
    pub network: String,
    /// The member's number in it, from which its addresses follow; 0 is the parent.
    pub number: u32,
}

/// What a clone's record holds about its fork.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    /// The fork's id.
    pub fork: String,
    /// The machine or image that was forked, on its own node.
    pub parent: String,
    /// The clone's number in the fork, from 1.
    pub number: u32,
    /// Whether the clone no longer needs its parent's node: all of its state is stored on its own host.
    pub settled: bool,
    /// Whether its guest knows who it is.
    #[serde(default, skip_serializing_if = "Identity::is_foreign")]
    pub identity: Identity,
    /// The address of the cluster's member that ordered it, or that ordered the clone which it was cloned from; `None` if a user of this
    /// node made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<SocketAddr>,
    /// When it is removed with its disks, Unix time in seconds; `None` is never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_unix_s: Option<u64>,
}

impl Family {
    /// Whether the clone's time is over at this Unix time in seconds.
    pub fn is_over(&self, now_unix_s: u64) -> bool {
        self.ends_unix_s.is_some_and(|ends| now_unix_s >= ends)
    }
}

fn is_none_yet(number: &usize) -> bool {
    *number == 0
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn yes() -> bool {
    true
}

fn pauses<'de, D: serde::Deserializer<'de>>(from: D) -> Result<BTreeSet<PauseReason>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Buffering(bool),
        Reasons(BTreeSet<PauseReason>),
    }
    Ok(match Written::deserialize(from)? {
        Written::Buffering(true) => [PauseReason::Buffering].into(),
        Written::Buffering(false) => BTreeSet::new(),
        Written::Reasons(reasons) => reasons,
    })
}

/// What a node that starts is to do with a machine that it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// Being created: the next node removes the machine.
    Starting,
    /// There should be a QEMU.
    Running,
    /// There should be none.
    Stopped,
    /// There should be none, and its image has the memory with which it goes on.
    Parked,
    /// Being removed: the next node finishes that.
    Removing,
}

/// Where an image's chunks come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// Base addresses of sources, the preferred first. Empty: the node's own repository.
    pub urls: Vec<String>,
    /// Token for the first of them, and for no other server. The file is readable by the node's user only.
    pub token: Option<String>,
    /// Tokens for hubs, each sent to that hub only.
    #[serde(default, skip_serializing_if = "Tokens::is_empty")]
    pub tokens: Tokens,
    /// PEM file with the certificate authorities of those that [`Origin::cas`] does not name.
    pub ca: Option<String>,
    /// PEM files with certificate authorities, each for one hub or web server.
    #[serde(default, skip_serializing_if = "Authorities::is_empty")]
    pub cas: Authorities,
    /// Of a clone: where its parent's state comes by multicast, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multicast: Option<MulticastGroup>,
    /// Where the list of the other nodes that its pieces come from is kept.
    #[serde(default, skip_serializing_if = "SwarmMembers::is_hub")]
    pub swarm: SwarmMembers,
    /// By which rule they come before a machine touches them.
    #[serde(default, skip_serializing_if = "Prefetch::is_usual")]
    pub prefetch: Prefetch,
}

impl Origin {
    /// Returns the token that may be sent to one of its addresses, if there is one.
    pub fn token_for(&self, url: &str) -> Option<&str> {
        let hub = HubAddress::of(url)?;
        if let Some(token) = self.tokens.get(&hub) {
            return Some(token);
        }
        let first = HubAddress::of(self.urls.first().map_or(url, String::as_str));
        self.token.as_deref().filter(|_| first == Some(hub))
    }

    /// Returns the file with the certificate authorities that may vouch for one of its addresses; `None` means those of the system.
    pub fn ca_for(&self, url: &str) -> Option<&str> {
        let own = HubAddress::of(url).and_then(|hub| self.cas.get(&hub));
        own.or(self.ca.as_ref()).map(String::as_str)
    }
}

impl Record {
    /// Returns the address of the cluster's member on whose order it is here, if it is.
    pub fn ordered_by(&self) -> Option<SocketAddr> {
        let family = self.family.as_ref()?;
        // records of older versions say only where it is read from
        let source = || {
            let url = Url::parse(self.origin.urls.first()?).ok()?;
            floe_http::socket_address(&url).filter(|_| url.scheme() == "floe")
        };
        family.by.or_else(source)
    }

    /// Returns what its guest has.
    pub fn size(&self) -> Size {
        self.given.of(&self.config)
    }

    /// Returns the id of its household. A machine of an earlier floe is in one of its own.
    pub fn household_id(&self) -> &str {
        match self.household.id.as_str() {
            "" => &self.mount_name,
            id => id,
        }
    }

    /// Returns the name under which the machines that share one part of this host's disk are known to the disk's scheduler.
    pub fn shares_disk_as(&self) -> &str {
        let from = self.household.from.as_deref();
        from.unwrap_or_else(|| self.household_id())
    }

    /// Decodes a record, or returns why that is impossible.
    pub fn parse(bytes: &[u8]) -> Result<Record, String> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Version { version } = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        if version != RECORD_VERSION {
            return Err(format!(
                "it has version {version}, this floe knows version {RECORD_VERSION}"
            ));
        }
        let record: Record = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        record
            .name
            .parse::<MachineName>()
            .map_err(|e| e.to_string())?;
        let inside = |part: Component| matches!(part, Component::Normal(_));
        if record.place.is_empty() || !Path::new(&record.place).components().all(inside) {
            return Err(format!(
                "its place {:?} is not inside of the state directory",
                record.place
            ));
        }
        let known = |disk: &OwnDisk| {
            floe_image::is_special_disk(&disk.name) || floe_image::disk_number(&disk.name).is_some()
        };
        if let Some(disk) = record.own_disks.iter().find(|disk| !known(disk)) {
            return Err(format!("{:?} is no disk of a machine's own", disk.name));
        }
        let household = &record.household.id;
        // it names a control group; that of a machine of an earlier floe is what the mount calls it
        let named = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        if household.starts_with('.') || !household.bytes().all(named) {
            return Err(format!("{household:?} is no household"));
        }
        record.origin.swarm.check()?;
        record.turn.iter().try_for_each(Turn::check)?;
        Ok(record)
    }

    /// Whether it is a clone on its parent's host whose memory is not on any disk yet.
    pub fn rests_on_this_node(&self) -> bool {
        self.needs_parent() && self.origin.urls.is_empty()
    }

    /// Whether it is a clone that still needs its parent's node.
    pub fn needs_parent(&self) -> bool {
        let family = self.family.as_ref();
        family.is_some_and(|family| !family.settled)
    }

    /// Returns the images that it needs, each once: the one that it started from, and the one that its disks stand on.
    pub fn images(&self) -> Vec<Hash> {
        let mut images = vec![self.image, self.disk_base];
        images.dedup();
        images
    }

    /// The image that its user knows it by: the one that it started from, or that its disks stand on.
    pub fn shown_image(&self) -> Hash {
        match self.own_layers {
            0 => self.image,
            _ => self.disk_base,
        }
    }

    /// Forgets the memory of when it was parked: from now on it starts from its disks. Returns the image that had it.
    pub fn forget_memory(&mut self) -> Option<Hash> {
        let own = std::mem::take(&mut self.own_layers) > 0;
        own.then(|| std::mem::replace(&mut self.image, self.disk_base))
    }

    /// Encodes the record as the content of its file.
    pub fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("a record has only strings, numbers and lists")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::sample_record as record;

    #[test]
    fn a_clones_time_is_over_at_its_end_and_never_without_one() {
        let mut family = Family {
            fork: "00ff".into(),
            parent: "web".into(),
            number: 1,
            settled: true,
            identity: Identity::Placed,
            by: None,
            ends_unix_s: None,
        };
        assert!(!family.is_over(u64::MAX));
        let earlier = serde_json::to_string(&family).unwrap();
        assert!(!earlier.contains("ends"), "{earlier}");
        family.ends_unix_s = Some(600);
        let read: Family = serde_json::from_slice(&serde_json::to_vec(&family).unwrap()).unwrap();
        let over = [0, 599, 600, u64::MAX].map(|now| read.is_over(now));
        assert_eq!(over, [false, false, true, true]);
    }

    #[test]
    fn a_rule_that_was_chosen_is_in_the_record_and_the_usual_one_is_not() {
        let mut record = record();
        let text = serde_json::to_string(&record).unwrap();
        assert!(!text.contains("prefetch"), "{text}");
        record.origin.prefetch = Prefetch::Vtube;
        let bytes = serde_json::to_vec(&record).unwrap();
        let read = Record::parse(&bytes).unwrap();
        assert_eq!(read.origin.prefetch, Prefetch::Vtube);
    }

    #[test]
    fn a_record_of_a_node_that_knew_no_traces_is_read() {
        let text = serde_json::to_string(&record()).unwrap();
        assert!(!text.contains("traced") && !text.contains("pauses"));
        let odd = Record {
            traced: false,
            pauses: [PauseReason::User, PauseReason::Capture].into(),
            ..record()
        };
        let text = serde_json::to_string(&odd).unwrap();
        assert!(text.contains(r#""pauses":["user","capture"]"#), "{text}");
        assert_eq!(Record::parse(text.as_bytes()).unwrap(), odd);
    }

    #[test]
    fn a_machine_that_is_not_asked_for_what_it_deletes_says_so_and_all_others_say_nothing() {
        let text = serde_json::to_string(&record()).unwrap();
        assert!(
            !text.contains("trim"),
            "as an earlier node wrote it: {text}"
        );
        assert!(!Record::parse(text.as_bytes()).unwrap().no_trim);
        let mut alone = record();
        alone.no_trim = true;
        assert_eq!(Record::parse(&alone.bytes()).unwrap(), alone);
    }

    #[test]
    fn whom_a_machines_user_lists_for_its_swarm_is_in_its_record_and_is_looked_at() {
        let text = serde_json::to_string(&record()).unwrap();
        assert!(!text.contains("swarm"), "as a node without lists wrote it");
        let mut listed = record();
        let member = floe_api::SwarmMember {
            key: "0a".repeat(32),
            addresses: vec!["10.0.0.1:4433".into()],
        };
        listed.origin.swarm = SwarmMembers::List(vec![member.clone()]);
        assert_eq!(Record::parse(&listed.bytes()).unwrap(), listed);
        listed.origin.swarm = SwarmMembers::List(vec![member.clone(), member]);
        let error = Record::parse(&listed.bytes()).unwrap_err();
        assert!(error.contains("is listed before"), "{error}");
    }

    #[test]
    fn a_record_of_a_node_that_knew_one_reason_for_a_pause_is_read() {
        let mut value = serde_json::to_value(record()).unwrap();
        value["buffering"] = true.into();
        let read = Record::parse(value.to_string().as_bytes()).unwrap();
        assert_eq!(read.pauses, [PauseReason::Buffering].into());
        value["buffering"] = false.into();
        let read = Record::parse(value.to_string().as_bytes()).unwrap();
        assert_eq!(read, record());
    }

    #[test]
    fn a_machine_of_a_node_that_knew_no_households_is_in_one_of_its_own() {
        let old = record();
        let text = serde_json::to_string(&old).unwrap();
        assert!(!text.contains("household"), "as it wrote it: {text}");
        assert_eq!(
            Record::parse(text.as_bytes()).unwrap().household_id(),
            "web"
        );
        let joined = Record {
            household: Household::join(old.household_id()),
            mount_name: "web.1".into(),
            ..old
        };
        assert_eq!(joined.household_id(), "web");
        assert_eq!(Record::parse(&joined.bytes()).unwrap(), joined);
        let (one, other) = (Household::begin(), Household::begin());
        assert_ne!(one.id, other.id);
        let away = Record {
            household: Household {
                from: Some("00ff".into()),
                ..one
            },
            ..joined
        };
        let read = Record::parse(&away.bytes()).unwrap();
        assert_eq!(read, away);
        assert_eq!(read.shares_disk_as(), "00ff");
    }

    #[test]
    fn a_record_of_a_node_that_knew_one_authority_for_all_is_read() {
        let mut old = record();
        old.origin.ca = Some("/ca.pem".into());
        let text = serde_json::to_string(&old).unwrap();
        assert!(
            !text.contains("\"cas\""),
            "as an earlier node wrote it: {text}"
        );
        let read = Record::parse(text.as_bytes()).unwrap();
        assert_eq!(read.origin.ca_for("https://hub/x"), Some("/ca.pem"));
        let mut new = old;
        let hub = HubAddress::of("https://other").unwrap();
        new.origin.cas = [(hub, "/other.pem".into())].into();
        let read = Record::parse(&new.bytes()).unwrap();
        assert_eq!(read, new);
        for (address, ca) in [
            ("https://other/team", "/other.pem"),
            ("floe://other:443", "/other.pem"),
            ("https://other:4500", "/ca.pem"),
            ("https://hub", "/ca.pem"),
            ("s3://other", "/ca.pem"),
        ] {
            assert_eq!(read.origin.ca_for(address), Some(ca), "{address}");
        }
    }

    #[test]
    fn a_record_of_another_version_or_with_a_strange_name_is_refused_with_the_reason() {
        let text = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut value = serde_json::to_value(record()).unwrap();
            change(&mut value);
            Record::parse(value.to_string().as_bytes()).unwrap_err()
        };
        assert!(text(&|v| v["version"] = 2.into()).contains("version 2"));
        assert!(text(&|v| v["name"] = "../../etc".into()).contains("not allowed"));
        assert!(text(&|v| v["more"] = 1.into()).contains("more"));
        assert!(text(&|v| v["place"] = "../../etc".into()).contains("place"));
        let above = serde_json::json!({"id": "../../x"});
        assert!(text(&|v| v["household"] = above.clone()).contains("household"));
        for cut in [0, 1, 20] {
            assert!(Record::parse(&serde_json::to_vec(&record()).unwrap()[..cut]).is_err());
        }
    }
}
