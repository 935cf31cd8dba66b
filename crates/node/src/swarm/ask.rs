//! Asks who takes part in a swarm: the image's hub, or its user's list.
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
use std::{sync::atomic::Ordering::Relaxed, time::Duration};

/// How long members may take to hear of each other.
const TELL_TIMEOUT: Duration = Duration::from_secs(2);
/// When it is looked again whether the hub has laid an image's packs out anew.
const LAYOUT_AGAIN_MS: u64 = 60_000;

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
            let members = known.members.clone();
            (known.place.clone(), members, known.open, content)
        });
        let Some((place, who, open, content)) = known else {
            return Ok(Event::Silent(key.clone()));
        };
        let me = SwarmJoin {
            key: key_text(&host.key()),
            addresses: host.addresses().iter().map(ToString::to_string).collect(),
            content,
            open,
        };
        let answer = match who {
            SwarmMembers::Hub => place.ask(key, &me),
            SwarmMembers::List(list) => {
                let token = token_of_list(&key.image);
                self.without_hub(key, &place, me.content.as_deref(), list, token)
            }
        };
        match answer {
            Answer::Listed(membership) => self.listed(key, &me.key, membership),
            Answer::Refused(why) => {
                self.trouble(key, why);
                Ok(Event::Refused(key.clone()))
            }
            Answer::Silent(why) => Err(why),
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
        let token = digits(&membership.token).ok_or("the hub's token is no 64 digits")?;
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
        if let Some(part) = part.filter(|part| part.content == content) {
            part.others.store(others, Relaxed);
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

    /// Describes a swarm whose members are known without the hub. `known` is what its packs are called here, if they are.
    fn without_hub(
        &self,
        key: &Key,
        place: &Place,
        known: Option<&str>,
        members: Vec<SwarmMember>,
        token: Hash,
    ) -> Answer {
        match self.packs(key, place, known) {
            Ok(Named { content, packs }) => Answer::Listed(SwarmMembership {
                content,
                token: token.to_string(),
                packs,
                members,
                ask_again_ms: LAYOUT_AGAIN_MS,
                expires_after_s: 0,
            }),
            Err(failed) => failed,
        }
    }

    /// Returns an image's packs as its hub has laid them out; none if they are called as is known.
    fn packs(&self, key: &Key, place: &Place, known: Option<&str>) -> Result<Named, Answer> {
        let layout = self.layout_now(key, place)?;
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
        place.show(&asked, || !over.is_cancelled())?;
        let no_roots = "the hub does not say what proves the image's packs";
        let layout = self.layout_now(key, place)?;
        named(&layout)?.ok_or_else(|| Answer::Silent(no_roots.into()))
    }

    fn layout_now(&self, key: &Key, place: &Place) -> Result<Layout, Answer> {
        match self.layout_at(key, place) {
            Ok(Some(layout)) => Ok(layout),
            Ok(None) => Err(Answer::Refused(super::enter::NO_PACKS.into())),
            Err(error @ (SourceError::Missing { .. } | SourceError::Denied { .. })) => {
                Err(Answer::Refused(error.to_string()))
            }
            Err(error) => Err(Answer::Silent(error.to_string())),
        }
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

/// What the members of a list show each other. Each is known by its key, so that this need be no secret.
fn token_of_list(image: &Hash) -> Hash {
    Hash::of(&[&b"floe 2026 swarm of a list"[..], image.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

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
