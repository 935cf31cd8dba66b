//! What nodes of a cluster tell each other of their parts in swarms, at the port for members: nobody else can ask there.

use super::{Swarms, decide::Key, member::key_text};
use crate::{
    cluster::{Ask, Member, ask},
    error::{NodeError, not_found, usage},
};
use floe_api::{SWARM_OFFER_PACKS_MAX, SwarmMember, SwarmMembers, SwarmOffer, SwarmPack};
use floe_http::Method;
use floe_image::Hash;
use rustls::ClientConfig;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

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
    use super::*;

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
}
