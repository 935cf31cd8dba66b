//! Finds out who takes part in a swarm: from the image's hub, the node's cluster, or a list of the user's.
//!
//! Nodes that know each other without the hub number the pieces by the image's layout, which is read from the hub, and whose roots prove
//! what comes. The hub gives the pieces that none of them has, and is told nothing.

use super::{
    Swarms,
    decide::{Event, Key},
    member::{Answer, Place, digits, key_text, members},
    pieces::wait_for,
};
use floe_api::{SwarmJoin, SwarmMember, SwarmMembers, SwarmMembership, SwarmPack};
use floe_image::{Hash, Layout, PackRef};
use floe_peers::{Content, Pack};
use floe_source::SourceError;
use std::{collections::HashMap, sync::atomic::Ordering::Relaxed, time::Duration};

/// How long members may take to hear of each other.
pub(super) const TELL_TIMEOUT: Duration = Duration::from_secs(2);
/// When it is looked again whether the hub has laid an image's packs out anew.
const LAYOUT_AGAIN_MS: u64 = 60_000;
/// When a cluster of few members is asked again.
const CLUSTER_AGAIN_MS: u64 = 5_000;
/// How much later for each member: all of them ask all others, and of 512 each hears within a minute.
const CLUSTER_AGAIN_EACH_MS: u64 = 100;

impl Swarms {
    /// Asks who takes part in a swarm, and makes this node known if a hub says it.
    pub(super) fn ask(&self, key: &Key) {
        let event = match self.asked(key) {
            Ok(event) => event,
            Err(why) => {
                self.trouble(key, why);
                Event::Silent(key.clone())
            }
        };
        let listed = matches!(event, Event::Listed { .. });
        self.tell(event);
        if listed {
            self.predict_if_new(key);
        }
    }

    fn asked(&self, key: &Key) -> Result<Event, String> {
        let host = self.host()?;
        let known = self.known.lock().get(key).map(|known| {
            let packs = !known.membership.packs.is_empty();
            let content = packs.then(|| known.membership.content.clone());
            // while there is one layout, the content says it
            let layout = known.layout.clone();
            let layout = layout.filter(|layout| content.as_ref() != Some(layout));
            let members = known.members.clone();
            (known.place.clone(), members, known.open, content, layout)
        });
        let Some((place, who, open, content, layout)) = known else {
            return Ok(Event::Silent(key.clone()));
        };
        let me = SwarmJoin {
            key: key_text(&host.key()),
            addresses: host.addresses().iter().map(ToString::to_string).collect(),
            content,
            layout,
            open,
        };
        let answer = match who {
            SwarmMembers::Hub => place.ask(key, &me),
            SwarmMembers::Cluster => self.of_cluster(key, &place, me.content.as_deref()),
            SwarmMembers::List(members) => {
                let told = Told {
                    members,
                    token: token_of_list(&key.image),
                    packs: Vec::new(),
                    ask_again_ms: LAYOUT_AGAIN_MS,
                };
                self.without_hub(key, &place, me.content.as_deref(), told)
            }
        };
        match answer {
            Answer::Listed(membership) => self.listed(key, &me.key, membership),
            Answer::Refused(why) => {
                self.trouble(key, why);
                self.unlist_if_out(key);
                Ok(Event::Refused(key.clone()))
            }
            Answer::Silent(why) => Err(why),
        }
    }

    /// Forgets who takes part in a swarm that this node has not entered, or it would go on telling others that it takes part itself. One
    /// that it has entered is left as it is.
    fn unlist_if_out(&self, key: &Key) {
        if self.active.part(key).is_none()
            && let Some(known) = self.known.lock().get_mut(key)
        {
            known.unlist();
        }
    }

    /// Takes an answer.
    fn listed(
        &self,
        key: &Key,
        me: &str,
        mut membership: SwarmMembership,
    ) -> Result<Event, String> {
        if !self.core.options.swarm.policy.config().peers {
            membership.members.clear(); // the hub alone is asked
        }
        let others = membership.members.iter().any(|member| member.key != me);
        let content = membership.content.clone();
        let ask_again_us = membership.ask_again_ms.saturating_mul(1000);
        let token = digits(&membership.token).ok_or("the hub's token is not 64 digits")?;
        let now = members(&membership.members);
        let part = self.active.part(key);
        if let Some(known) = self.known.lock().get_mut(key) {
            let same = known.membership.content == content;
            if membership.packs.is_empty() && same {
                membership.packs = std::mem::take(&mut known.membership.packs);
            }
            if membership.packs.is_empty() {
                return Err("the hub names no packs of the image".into());
            }
            known.membership = membership;
            if part.is_some() {
                known.trouble.clear();
            }
        }
        // also one that knows other packs than are listed now: it is of the same swarm
        if let Some(part) = part {
            part.others.store(others, Relaxed);
            part.listed.store(now.len(), Relaxed);
            let swarm = part.swarm.clone();
            wait_for(&self.runtime, TELL_TIMEOUT, async move {
                let _ = swarm.members(now, token).await; // it may be ending
            });
        }
        Ok(Event::Listed {
            key: key.clone(),
            others,
            content,
            ask_again_us,
        })
    }

    /// Asks the other members of the cluster which of them take part.
    fn of_cluster(&self, key: &Key, place: &Place, known: Option<&str>) -> Answer {
        let Some(ca) = self.cluster.fingerprint() else {
            return Answer::Refused("this node is in no cluster: floe cluster join".into());
        };
        let (members, mut packs) = self.offers(key, known.is_none());
        if self.hub_does_not_fit(key) {
            // a member may have told roots that are wrong: the hub names all of them
            packs.clear();
        } else if let Some(known) = self.known.lock().get(key) {
            packs.extend_from_slice(&known.membership.packs);
        }
        let each = CLUSTER_AGAIN_EACH_MS * self.cluster.others().len() as u64;
        let told = Told {
            members,
            token: token_of_cluster(&ca, &key.image),
            packs,
            ask_again_ms: CLUSTER_AGAIN_MS + each,
        };
        self.without_hub(key, place, known, told)
    }

    /// Whether the hub has sent pieces that their roots do not prove.
    fn hub_does_not_fit(&self, key: &Key) -> bool {
        let status = self.active.part(key).and_then(|part| self.status_of(&part));
        status.is_some_and(|status| status.seed_wrong > 0)
    }

    /// Describes a swarm whose members are known without the hub. `known` is what its packs are called here, if they are.
    fn without_hub(&self, key: &Key, place: &Place, known: Option<&str>, told: Told) -> Answer {
        match self.packs(key, place, known, &told.packs) {
            Ok(Named { content, packs }) => Answer::Listed(SwarmMembership {
                content,
                token: told.token.to_string(),
                packs,
                members: told.members,
                ask_again_ms: told.ask_again_ms,
                expires_after_s: 0,
            }),
            Err(failed) => failed,
        }
    }

    /// Returns an image's packs as its hub has laid them out; none if they are called as is known. Roots that the hub does not name may be
    /// `told`: if one is wrong, what the hub sends does not fit, upon which it names the right one.
    fn packs(
        &self,
        key: &Key,
        place: &Place,
        known: Option<&str>,
        told: &[SwarmPack],
    ) -> Result<Named, Answer> {
        let layout = self.layout_now(key, place, told)?;
        if let Some(Named { content, .. }) = named(&layout)?
            && known == Some(&*content)
        {
            let packs = Vec::new();
            return Ok(Named { content, packs });
        }
        // who gives no pieces is no hub; and with the first piece of a pack a hub finds out its root
        let (first, all) = (layout.packs.first(), layout.packs.iter());
        let mut asked: Vec<&PackRef> = all.filter(|pack| pack.root.is_none()).collect();
        if asked.is_empty() {
            asked.extend(first);
        }
        let over = self.core.threads.over();
        place.show(&key.image, &asked, || !over.is_cancelled())?;
        let no_roots = "the hub does not say what proves the image's packs";
        let layout = self.layout_now(key, place, told)?;
        named(&layout)?.ok_or_else(|| Answer::Silent(no_roots.into()))
    }

    fn layout_now(&self, key: &Key, place: &Place, told: &[SwarmPack]) -> Result<Layout, Answer> {
        match self.layout_at(key, place) {
            Ok(Some(mut layout)) => {
                add_roots(&mut layout, told);
                Ok(layout)
            }
            Ok(None) => Err(Answer::Refused(super::enter::NO_PACKS.into())),
            Err(error @ (SourceError::Missing { .. } | SourceError::Denied { .. })) => {
                Err(Answer::Refused(error.to_string()))
            }
            Err(error) => Err(Answer::Silent(error.to_string())),
        }
    }
}

/// A swarm whose members are known without the hub.
struct Told {
    members: Vec<SwarmMember>,
    /// What they show each other.
    token: Hash,
    /// Packs of which somebody has told the roots.
    packs: Vec<SwarmPack>,
    ask_again_ms: u64,
}

/// Adds roots that a layout lacks. Of a pack that is told with several, the first one counts.
fn add_roots(layout: &mut Layout, told: &[SwarmPack]) {
    let told = told.iter().rev();
    let told = told.filter_map(|pack| Some((digits(&pack.id)?, pack)));
    let told: HashMap<[u8; 32], &SwarmPack> = told.collect();
    for pack in layout.packs.iter_mut().filter(|pack| pack.root.is_none()) {
        let known = told.get(pack.id.as_bytes());
        let same = known.filter(|known| known.bytes == pack.file_bytes);
        pack.root = same.and_then(|known| digits(&known.root)).map(Hash);
    }
}

/// Packs with their roots, and what they are called in their order.
#[derive(Debug, PartialEq, Eq)]
struct Named {
    content: String,
    packs: Vec<SwarmPack>,
}

/// Names the packs of a layout as a hub does; `None` while it lacks the root of one.
fn named(layout: &Layout) -> Result<Option<Named>, Answer> {
    let of = |pack: &PackRef| {
        let (root, bytes) = (pack.root?.0, pack.file_bytes);
        Some(Pack { root, bytes })
    };
    let known: Option<Vec<Pack>> = layout.packs.iter().map(of).collect();
    let Some(known) = known else {
        return Ok(None);
    };
    let both = layout.packs.iter().zip(&known);
    let packs = both.map(|(pack, known)| SwarmPack {
        id: pack.id.to_string(),
        root: Hash(known.root).to_string(),
        bytes: known.bytes,
    });
    let packs: Vec<SwarmPack> = packs.collect();
    let content = Content::new(known)
        .map_err(|error| Answer::Refused(format!("this image makes no swarm: {error}")))?;
    Ok(Some(Named {
        content: Hash(content.id()).to_string(),
        packs,
    }))
}

/// Returns what the members of a list show each other in a secret's place. Each is known by its key, so it need not be secret.
fn token_of_list(image: &Hash) -> Hash {
    Hash::of(&[&b"floe 2026 swarm of a list"[..], image.as_bytes()].concat())
}

/// Returns the secret by which members of a cluster who exchange an image know each other. Who is no member can't ask for their keys
/// either.
fn token_of_cluster(ca: &[u8; 32], image: &Hash) -> Hash {
    let context = &b"floe 2026 swarm of a cluster"[..];
    Hash::of(&[context, ca, image.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cluster_and_image_has_a_token_of_its_own_and_so_have_lists() {
        let (one, two) = (Hash::of(b"one"), Hash::of(b"two"));
        let tokens = [
            token_of_cluster(&[1; 32], &one),
            token_of_cluster(&[1; 32], &two),
            token_of_cluster(&[2; 32], &one),
            token_of_list(&one),
            token_of_list(&two),
        ];
        let all: std::collections::BTreeSet<String> = tokens.iter().map(Hash::to_string).collect();
        assert_eq!(all.len(), tokens.len());
    }

    #[test]
    fn roots_that_a_hub_does_not_name_are_those_that_were_told_first_of_the_same_pack() {
        let told = |name: &[u8], root: &Hash, bytes: u64| SwarmPack {
            id: Hash::of(name).to_string(),
            root: root.to_string(),
            bytes,
        };
        let (a, b, c) = (
            Hash::of(b"root a"),
            Hash::of(b"root b"),
            Hash::of(b"root c"),
        );
        let mut layout = Layout {
            packs: vec![pack(b"a", Some(a)), pack(b"b", None), pack(b"c", None)],
        };
        let mut odd = told(b"c", &c, 100_000);
        odd.root = "no digits".into();
        let all = [
            told(b"a", &c, 100_000),
            told(b"b", &b, 100_000),
            told(b"b", &c, 100_000),
            odd,
            told(b"d", &c, 100_000),
        ];
        add_roots(&mut layout, &all);
        let roots: Vec<Option<Hash>> = layout.packs.iter().map(|pack| pack.root).collect();
        assert_eq!(roots, [Some(a), Some(b), None]);
        add_roots(&mut layout, &[told(b"c", &c, 99_999)]);
        assert_eq!(layout.packs[2].root, None, "another length");
        add_roots(&mut layout, &[told(b"c", &c, 100_000)]);
        assert_eq!(layout.packs[2].root, Some(c));
    }

    fn pack(name: &[u8], root: Option<Hash>) -> PackRef {
        PackRef {
            id: Hash::of(name),
            file_bytes: 100_000,
            index_offset: 50,
            index_bytes: 10,
            root,
        }
    }

    #[test]
    fn packs_are_named_by_the_roots_of_a_layout_or_not_at_all() {
        let (a, b) = (Hash::of(b"root a"), Hash::of(b"root b"));
        let layout = |packs: Vec<PackRef>| Layout { packs };
        let both = layout(vec![pack(b"a", Some(a)), pack(b"b", Some(b))]);
        let Ok(Some(found)) = named(&both) else {
            panic!("all roots are known");
        };
        let packs = [a, b].map(|root| Pack {
            root: root.0,
            bytes: 100_000,
        });
        let content = Content::new(packs.to_vec()).unwrap();
        assert_eq!(found.content, Hash(content.id()).to_string());
        let roots = found.packs.iter().map(|pack| pack.root.clone());
        assert!(roots.eq([a.to_string(), b.to_string()]));
        let one = layout(vec![pack(b"a", Some(a)), pack(b"b", None)]);
        assert!(matches!(named(&one), Ok(None)));
        let twice = layout(vec![pack(b"a", Some(a)), pack(b"b", Some(a))]);
        assert!(matches!(named(&twice), Err(Answer::Refused(_))));
    }
}
