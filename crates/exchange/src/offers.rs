//! The requests by which nodes of a cluster learn from each other, at the port for members, who takes part in a swarm.

use super::{
    Known, Swarms,
    ask::TELL_TIMEOUT,
    decide::Key,
    member::{digits, key_text, members},
    pieces::wait_for,
};
use floe_api::{SWARM_OFFER_PACKS_MAX, SwarmMember, SwarmMembers, SwarmOffer, SwarmPack};
use floe_ground::error::{NodeError, not_found, usage};
use floe_hosts::cluster::{Ask, Member, ask};
use floe_http::Method;
use floe_image::Hash;
use rustls::ClientConfig;
use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

/// How many members are asked at a time.
const ASKED_AT_A_TIME: usize = 32;
/// How long one may take to answer: it looks into its own memory.
const ASK_TIMEOUT: Duration = Duration::from_secs(3);
/// How many of those that take part are asked for the image's packs, one after the other.
const ASKED_FOR_PACKS_MAX: usize = 3;

/// What a member answered.
enum Heard {
    /// That it takes part.
    Offers(SwarmMember),
    /// That it does not.
    No,
    /// Nothing, or nothing of use.
    Nothing,
}

impl Swarms {
    /// What this node tells a member of its cluster of an image's swarm, if it takes part in it as one of the cluster.
    pub fn offer(&self, image: &str, packs: bool) -> Result<SwarmOffer, NodeError> {
        let image = image.parse::<Hash>();
        let image = image.map_err(|error| usage(error.to_string(), "name an image by its id"))?;
        let absent = || {
            not_found(
                "this node is in no swarm of the cluster's with this image",
                "",
            )
        };
        let host = self.endpoint.lock().clone().ok_or_else(absent)?;
        let known = self.known.lock();
        let mut all = known.iter();
        let found =
            all.find(|(key, known)| key.image == image && known.members == SwarmMembers::Cluster);
        let (_, known) = found.ok_or_else(absent)?;
        let named = &known.membership.packs;
        Ok(SwarmOffer {
            member: SwarmMember {
                key: key_text(&host.key()),
                addresses: host.addresses().iter().map(ToString::to_string).collect(),
            },
            packs: match packs && named.len() <= SWARM_OFFER_PACKS_MAX {
                true => named.clone(),
                false => Vec::new(),
            },
        })
    }

    /// Asks the other members of this node's cluster who takes part in a swarm. With `packs`, also one of those for the image's packs, as
    /// it knows them.
    pub(super) fn offers(&self, key: &Key, packs: bool) -> (Vec<SwarmMember>, Vec<SwarmPack>) {
        let others = self.cluster.others();
        let (mut heard, mut told) = (Vec::new(), Vec::new());
        if let Some(tls) = self.cluster.tls() {
            let path = format!("/v1/swarm/{}", key.image);
            heard = ask_all(&tls, &others, &path);
            let all = others.iter().zip(&heard);
            let part = all.filter(|(_, heard)| matches!(heard.1, Heard::Offers(_)));
            let asked = part.take(if packs { ASKED_FOR_PACKS_MAX } else { 0 });
            let path = format!("{path}/packs");
            let named = asked.map(|(member, _)| member).find_map(|member| {
                let offer = ask_one(&tls, member, &path).ok()??;
                (!offer.packs.is_empty()).then_some(offer.packs)
            });
            told = named.unwrap_or_default();
        }
        let mut known = self.known.lock();
        let Some(known) = known.get_mut(key) else {
            return (Vec::new(), told);
        };
        keep(&mut known.offered, heard);
        (known.offered.values().cloned().collect(), told)
    }

    /// Removes from the cluster's swarms those nodes that are no members of it any more, at once: asking all others again takes long where
    /// some of them are silent.
    pub(super) fn show_out_removed(&self) {
        let mut ids = None;
        for (key, part) in self.active.all() {
            let by_cluster = |known: &Known| known.members == SwarmMembers::Cluster;
            if !self.known.lock().get(&key).is_some_and(by_cluster) {
                continue;
            }
            let ids = ids.get_or_insert_with(|| {
                let others = self.cluster.others().into_iter();
                others.map(|member| member.id).collect::<HashSet<_>>()
            });
            let mut known = self.known.lock();
            let changed = known
                .get_mut(&key)
                .is_some_and(|known| drop_removed(known, ids));
            let told = known.get(&key).filter(|_| changed).and_then(|known| {
                let token = digits(&known.membership.token)?;
                Some((members(&known.membership.members), token))
            });
            drop(known);
            if let Some((now, token)) = told {
                let swarm = part.swarm.clone();
                wait_for(&self.runtime, TELL_TIMEOUT, async move {
                    let _ = swarm.members(now, token).await; // it may be ending
                });
            }
        }
    }
}

/// Takes those off a swarm's list that are not among the members of the cluster (`ids`). Returns whether there were any.
fn drop_removed(known: &mut Known, ids: &HashSet<String>) -> bool {
    let before = known.offered.len();
    known.offered.retain(|id, _| ids.contains(id));
    let changed = known.offered.len() < before;
    if changed {
        known.membership.members = known.offered.values().cloned().collect();
    }
    changed
}

/// Asks members, some at a time. Returns the id of each with what it answered, in their order.
fn ask_all(tls: &Arc<ClientConfig>, members: &[Member], path: &str) -> Vec<(String, Heard)> {
    let mut all = Vec::new();
    for some in members.chunks(ASKED_AT_A_TIME) {
        floe_threads::scope(|scope| {
            let ask = |member| scope.try_spawn("swarm-ask", move || heard_of(tls, member, path));
            let asked: Vec<_> = some.iter().map(ask).collect();
            for (member, asked) in some.iter().zip(asked) {
                let heard = asked.ok().and_then(|asked| asked.join().ok());
                all.push((member.id.clone(), heard.unwrap_or(Heard::Nothing)));
            }
        });
    }
    all
}

fn heard_of(tls: &Arc<ClientConfig>, member: &Member, path: &str) -> Heard {
    match ask_one(tls, member, path) {
        Ok(Some(offer)) => Heard::Offers(offer.member),
        Ok(None) => Heard::No,
        Err(why) => {
            tracing::debug!(member = member.name, why, "says nothing of a swarm");
            Heard::Nothing
        }
    }
}

/// Asks one member for its part in a swarm; `None` if it takes none.
fn ask_one(
    tls: &Arc<ClientConfig>,
    member: &Member,
    path: &str,
) -> Result<Option<SwarmOffer>, String> {
    let question = Ask {
        to: &member.address.to_string(),
        method: Method::GET,
        path,
        body: Vec::new(),
        limit: ASK_TIMEOUT,
    };
    match ask(tls.clone(), question) {
        Ok((200, body)) => SwarmOffer::read(&body, member.address.ip()).map(Some),
        Ok((404, _)) => Ok(None),
        Ok((status, _)) => Err(format!("it answered {status}")),
        Err(fault) => Err(fault.to_string()),
    }
}

/// Notes what members answered, by their ids. Who has said nothing this time is still there; who is no member any more is not.
fn keep(offered: &mut BTreeMap<String, SwarmMember>, heard: Vec<(String, Heard)>) {
    let mut before = std::mem::take(offered);
    for (id, heard) in heard {
        let member = match heard {
            Heard::Offers(member) => Some(member),
            Heard::No => None,
            Heard::Nothing => before.remove(&id),
        };
        offered.extend(member.map(|member| (id, member)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::member::Place;
    use super::*;
    use floe_api::SwarmMembership;

    #[test]
    fn who_says_nothing_once_stays_and_who_says_no_or_is_removed_does_not() {
        let member = |number: u8| SwarmMember {
            key: format!("{number:064x}"),
            addresses: vec!["10.0.0.1:1".into()],
        };
        let offers = |number: u8| (number.to_string(), Heard::Offers(member(number)));
        let nothing = |number: u8| (number.to_string(), Heard::Nothing);
        let keys = |offered: &BTreeMap<String, SwarmMember>| -> Vec<String> {
            offered.keys().cloned().collect()
        };
        let mut offered = BTreeMap::new();
        keep(
            &mut offered,
            vec![offers(1), offers(2), offers(3), nothing(4)],
        );
        assert_eq!(keys(&offered), ["1", "2", "3"]);
        // the second one has left the swarm, the third the cluster
        let no = ("2".to_owned(), Heard::No);
        keep(&mut offered, vec![nothing(1), no, nothing(4)]);
        assert_eq!(keys(&offered), ["1"]);
        assert_eq!(offered["1"], member(1));
        keep(&mut offered, Vec::new());
        assert!(offered.is_empty(), "this node is in no cluster any more");
    }

    #[test]
    fn who_is_removed_is_off_the_list_before_anybody_is_asked() {
        let member = |number: u8| SwarmMember {
            key: format!("{number:064x}"),
            addresses: vec!["10.0.0.1:1".into()],
        };
        let all = [1u8, 2].map(|number| (number.to_string(), member(number)));
        let mut known = Known {
            place: Place {
                url: "https://hub".into(),
                token: None,
                ca: None,
            },
            others: Vec::new(),
            members: SwarmMembers::Cluster,
            open: false,
            offered: all.into(),
            membership: SwarmMembership {
                members: vec![member(1), member(2)],
                ..SwarmMembership::default()
            },
            layout: None,
            trouble: String::new(),
            spoilt: (String::new(), 0),
        };
        let ids =
            |ids: &[&str]| -> HashSet<String> { ids.iter().map(|&id| id.to_owned()).collect() };
        assert!(!drop_removed(&mut known, &ids(&["2", "1", "3"])));
        assert_eq!(known.membership.members.len(), 2);
        assert!(drop_removed(&mut known, &ids(&["2", "3"])));
        assert_eq!(known.membership.members, [member(2)]);
    }
}
