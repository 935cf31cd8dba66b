//! What a hub is asked: to list this node, to take it off the list, and for pieces that no other host has.

use super::{decide::Key, hedge::Hedge, pieces::Part};
use floe_api::{
    SWARM_ADDRESSES_MAX, SWARM_MEMBERS_MAX, SwarmJoin, SwarmMember, SwarmMembers, SwarmMembership,
};
use floe_image::{Hash, PackRef};
use floe_peers::{Fetching, Key as PeerKey, Member, PIECE_BYTES, Seed};
use floe_transfer::{Cancel, HubClient, TransferError};
use parking_lot::Mutex;
use std::{
    io,
    net::SocketAddr,
    ops::Range,
    path::Path,
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};

/// How long a hub may take to say who takes part: at the first time it reads all of the image.
const ASK_TIMEOUT: Duration = Duration::from_secs(60);
/// How long it may take to forget this node: a machine that ends does not wait for it, but a node that ends does.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long it may take to send a piece; the swarm gives it up a little later.
const PIECE_TIMEOUT: Duration = Duration::from_secs(25);
/// After so many pieces with wrong bytes the hub is told: fewer may be an accident.
const WRONG_TOLD: u32 = 3;
/// How often it is told.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// How a hub is reached about an image: with the address, token and authority of the machine that runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub url: String,
    pub token: Option<String>,
    pub ca: Option<String>,
}

/// What a hub said.
pub(super) enum Answer {
    Listed(SwarmMembership),
    /// It knows no swarms, or gives this image to others only; in words.
    Refused(String),
    /// It did not answer, or not now; in words.
    Silent(String),
}

impl Place {
    fn client(&self, timeout: Duration) -> Result<HubClient, TransferError> {
        let ca = self.ca.as_deref().map(Path::new);
        let cancel = Cancel::default();
        HubClient::impatient(&self.url, self.token.as_deref(), ca, &cancel, timeout)
    }

    /// Asks to be listed.
    pub fn ask(&self, key: &Key, me: &SwarmJoin) -> Answer {
        let asked = self
            .client(ASK_TIMEOUT)
            .and_then(|hub| hub.join_swarm(&key.image, me));
        match asked {
            Ok(mut membership) => {
                membership.members.truncate(SWARM_MEMBERS_MAX);
                Answer::Listed(membership)
            }
            Err(error) => failed(&error),
        }
    }

    /// Asks for the first piece of an image's packs one by one, as long as `go_on` says so: a hub knows a pack's root once it has given one.
    pub fn show(
        &self,
        image: &Hash,
        packs: &[&PackRef],
        go_on: impl Fn() -> bool,
    ) -> Result<(), Answer> {
        let hub = self.client(ASK_TIMEOUT).map_err(|error| failed(&error))?;
        for pack in packs {
            if !go_on() {
                return Err(Answer::Silent("the node is ending".into()));
            }
            let first = 0..pack.file_bytes.min(PIECE_BYTES);
            let shown = hub.proven(image, &pack.id, &first);
            shown.map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    /// Asks to be forgotten.
    pub fn leave(&self, key: &Key, me: &str) {
        let left = self
            .client(LEAVE_TIMEOUT)
            .and_then(|hub| hub.leave_swarm(&key.image, me));
        if let Err(error) = left {
            tracing::debug!(image = key.image.short(), %error, "the hub forgets this node by itself");
        }
    }

    /// Tells the hub that what came of a pack was wrong.
    pub fn doubt(&self, pack: &Hash) {
        match self.client(ASK_TIMEOUT) {
            Ok(hub) => doubt(&hub, pack),
            Err(error) => tracing::debug!(%error, "the hub is not told"),
        }
    }

    /// Makes the seed of an image's packs.
    pub fn seed(
        &self,
        image: Hash,
        packs: Vec<Hash>,
        shared: Shared,
    ) -> Result<HubSeed, TransferError> {
        Ok(HubSeed {
            hub: self.client(PIECE_TIMEOUT)?,
            image,
            packs: packs.into(),
            shared,
            wrong: Mutex::default(),
        })
    }
}

/// What a hub's error means: that it has answered, or that it may yet.
fn failed(error: &TransferError) -> Answer {
    match error {
        TransferError::Refused {
            status: 400..=407 | 409..=428 | 501,
            ..
        } => Answer::Refused(error.to_string()),
        _ => Answer::Silent(error.to_string()),
    }
}

/// Adds the members that a further machine of the same image was given. A list of nodes, or a cluster, takes precedence over the hub, and
/// several lists become one.
pub(super) fn add_members(members: &mut SwarmMembers, more: &SwarmMembers) {
    if members.is_hub() {
        return members.clone_from(more);
    }
    if let (SwarmMembers::List(list), SwarmMembers::List(more)) = (members, more) {
        for member in more {
            let is_new = list.iter().all(|other| other.key != member.key);
            if is_new && list.len() < SWARM_MEMBERS_MAX {
                list.push(member.clone());
            }
        }
    }
}

/// Reads a list of members; what makes no sense is passed over.
pub(super) fn members(listed: &[SwarmMember]) -> Vec<Member> {
    let member = |one: &SwarmMember| {
        let addresses = one.addresses.iter().take(SWARM_ADDRESSES_MAX);
        let addresses: Vec<SocketAddr> = addresses.flat_map(|text| text.parse()).collect();
        Some(Member {
            key: PeerKey(digits(&one.key)?),
            addresses,
        })
    };
    listed.iter().filter_map(member).collect()
}

/// Reads 64 hexadecimal digits.
pub(super) fn digits(text: &str) -> Option<[u8; 32]> {
    let hash: Hash = text.parse().ok()?;
    Some(*hash.as_bytes())
}

/// Writes a public key as 64 hexadecimal digits.
pub(super) fn key_text(key: &PeerKey) -> String {
    Hash(key.0).to_string()
}

fn doubt(hub: &HubClient, pack: &Hash) {
    match hub.doubt_pack(pack) {
        Ok(found) => tracing::warn!(
            pack = pack.short(),
            damaged = found.damaged,
            "what came of a pack was wrong; the hub has looked"
        ),
        Err(error) => tracing::debug!(pack = pack.short(), %error, "the hub has not looked"),
    }
}

/// What an image's seeds have in common.
#[derive(Clone, Default)]
pub(super) struct Shared {
    /// It is told how long hubs take.
    pub hedge: Arc<Mutex<Hedge>>,
    /// This node's part in the swarm, once there is one: it knows what the packs hold.
    pub part: Arc<OnceLock<Weak<Part>>>,
}

/// The hub, as the seed of last resort.
pub(super) struct HubSeed {
    hub: HubClient,
    image: Hash,
    /// The packs' names, by their numbers in the content.
    packs: Arc<[Hash]>,
    shared: Shared,
    /// How many pieces came wrong since the hub was told, and when it was.
    wrong: Mutex<(u32, Option<Instant>)>,
}

impl Seed for HubSeed {
    fn fits(&self, pack: usize, range: &Range<u64>, bytes: &[u8]) -> bool {
        let part = self.shared.part.get().and_then(Weak::upgrade);
        let known = part.zip(self.packs.get(pack));
        known.is_none_or(|(part, id)| part.fits(id, range, bytes))
    }

    fn was_wrong(&self, pack: usize) {
        let Some(id) = self.packs.get(pack).copied() else {
            return;
        };
        let mut wrong = self.wrong.lock();
        wrong.0 += 1;
        let told = wrong.1.is_some_and(|told| told.elapsed() < TELL_EVERY);
        if wrong.0 < WRONG_TOLD || told {
            return;
        }
        *wrong = (0, Some(Instant::now()));
        let hub = self.hub.clone();
        // it takes as long as the hub reads, and nobody waits for that
        tokio::task::spawn_blocking(move || doubt(&hub, &id));
    }

    fn fetch(&self, pack: usize, range: Range<u64>) -> Fetching<'_> {
        Box::pin(async move {
            let id = *self.packs.get(pack).ok_or(io::ErrorKind::NotFound)?;
            let (hub, image) = (self.hub.clone(), self.image);
            // the client blocks, as all of floe's that a fault may wait for
            let began = Instant::now();
            let asked = tokio::task::spawn_blocking(move || hub.proven(&image, &id, &range));
            let proven = asked.await.map_err(io::Error::other)?;
            let proven = proven.map_err(io::Error::other)?;
            let took = began.elapsed();
            self.shared.hedge.lock().answered(proven.len() as u64, took);
            Ok(proven.into())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_several_machines_are_one_and_go_before_the_hub() {
        let list = |numbers: &[u8]| {
            let member = |number: &u8| SwarmMember {
                key: format!("{number:064x}"),
                addresses: vec!["10.0.0.1:1".into()],
            };
            SwarmMembers::List(numbers.iter().map(member).collect())
        };
        let mut members = SwarmMembers::Hub;
        for (more, then) in [
            (SwarmMembers::Hub, SwarmMembers::Hub),
            (list(&[1, 2]), list(&[1, 2])),
            (SwarmMembers::Hub, list(&[1, 2])),
            (list(&[2, 3]), list(&[1, 2, 3])),
        ] {
            add_members(&mut members, &more);
            assert_eq!(members, then);
        }
    }

    #[test]
    fn members_that_make_no_sense_are_passed_over() {
        let member = |key: &str, addresses: &[&str]| SwarmMember {
            key: key.into(),
            addresses: addresses.iter().map(|&at| at.into()).collect(),
        };
        let good = "0b".repeat(32);
        let many = ["10.0.0.1:1"; 100];
        let listed = [
            member(&good, &["10.0.0.1:4433", "nowhere", "[fd00::1]:4433"]),
            member("not a key", &["10.0.0.2:4433"]),
            member(&good[1..], &[]),
            member(&"cc".repeat(32), &many),
        ];
        let read = members(&listed);
        assert_eq!(read.len(), 2);
        assert_eq!(read[0].key, PeerKey([0x0b; 32]));
        assert_eq!(key_text(&read[0].key), good);
        assert_eq!(read[0].addresses.len(), 2);
        assert_eq!(read[1].addresses.len(), SWARM_ADDRESSES_MAX);
    }
}
