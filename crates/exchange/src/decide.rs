//! Decides when a hub is asked who takes part in a swarm, when pieces are exchanged, and when that ends. No I/O, no clock.
//!
//! An image that somebody here wants is announced to its hub at once, and again whenever the hub said so: only then can others find
//! this node. Pieces are exchanged as soon as another node is listed, or at once if that was asked for. A hub that does not answer is
//! asked again; meanwhile those who know each other go on. A hub that refuses ends it: it has the last word on who may read an image.

use floe_api::credentials::HubAddress;
use floe_image::Hash;
use std::collections::BTreeMap;

/// Wait after the first request that got no answer; twice as long after each further one.
const SILENCE_US: u64 = 1_000_000;
/// The longest such wait: a hub that is back finds its members again within half a minute.
const SILENCE_US_MAX: u64 = 30_000_000;
/// Wait after a refusal, of a hub without swarms or of one that gives this image to others only; twice as long after each further one.
const REFUSED_US: u64 = 60_000_000;
/// The longest such wait.
const REFUSED_US_MAX: u64 = 900_000_000;
/// Wait before pieces are exchanged again after that went wrong; twice as long after each further time.
const BROKEN_US: u64 = 5_000_000;
/// The longest such wait.
const BROKEN_US_MAX: u64 = 300_000_000;
/// The shortest time until a hub is asked again, whatever it says.
const ASK_AGAIN_US_MIN: u64 = 100_000;
/// The longest such time.
const ASK_AGAIN_US_MAX: u64 = 600_000_000;

/// An image, and the hub that lists who has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    pub hub: HubAddress,
    pub image: Hash,
}

/// What is wanted of an image's swarm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wish {
    /// Whether pieces come and go this way although no other node is listed.
    pub always: bool,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// What is wanted, all of it.
    Wanted(BTreeMap<Key, Wish>),
    /// The hub has listed this node.
    Listed {
        key: Key,
        /// Whether others are listed, too.
        others: bool,
        /// The packs that are meant.
        content: String,
        ask_again_us: u64,
    },
    /// The hub refuses.
    Refused(Key),
    /// The hub did not answer.
    Silent(Key),
    /// Pieces are exchanged from now on.
    Entered(Key),
    /// They can't be, or can't be any more.
    Broken(Key),
    /// It is over.
    Left(Key),
}

/// What is to be done. Each ends with an event: [`Action::Ask`] with `Listed`, `Refused` or `Silent`, [`Action::Enter`] with `Entered` or
/// `Broken`, [`Action::Leave`] with `Left`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Ask the hub to list this node, and who is listed.
    Ask(Key),
    /// Exchange pieces of what the hub listed last. If others are exchanged, those end first.
    Enter(Key),
    /// Exchange none any more, and tell the hub and the others.
    Leave(Key),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Out,
    Entering,
    In,
    Leaving,
}

#[derive(Debug)]
struct Duty {
    /// `None` once nobody wants it any more.
    wish: Option<Wish>,
    stage: Stage,
    asking: bool,
    ask_at_us: u64,
    /// Whether the hub may have listed this node.
    told: bool,
    others: bool,
    /// What the hub meant last, and what is exchanged.
    listed: Option<String>,
    exchanged: Option<String>,
    /// Questions in a row without an answer, refusals in a row, and times in a row that it broke.
    silent: u32,
    refused: u32,
    broken: u32,
    enter_at_us: u64,
}

/// What this node has to do for all swarms.
#[derive(Debug, Default)]
pub(super) struct Duties(BTreeMap<Key, Duty>);

impl Duties {
    /// Takes what has happened, if anything has, and returns what is to be done now.
    pub fn step(&mut self, now_us: u64, event: Option<Event>) -> Vec<Action> {
        if let Some(event) = event {
            self.learn(now_us, event);
        }
        let mut actions = Vec::new();
        self.0
            .retain(|key, duty| duty.act(now_us, key, &mut actions));
        actions
    }

    /// Returns when there is something to do again without an event.
    pub fn next_us(&self) -> Option<u64> {
        let waits = self.0.values().filter(|duty| duty.wish.is_some());
        let asks = waits.filter(|duty| !duty.asking && duty.stage != Stage::Leaving);
        asks.map(|duty| duty.ask_at_us).min()
    }

    fn learn(&mut self, now_us: u64, event: Event) {
        let key = match event {
            Event::Wanted(wanted) => return self.want(now_us, wanted),
            Event::Listed { ref key, .. } => key,
            Event::Refused(ref key) | Event::Silent(ref key) => key,
            Event::Entered(ref key) | Event::Broken(ref key) | Event::Left(ref key) => key,
        };
        let Some(duty) = self.0.get_mut(key) else {
            return;
        };
        match event {
            Event::Wanted(_) => {}
            Event::Listed {
                others,
                content,
                ask_again_us,
                ..
            } => {
                (duty.asking, duty.silent, duty.refused) = (false, 0, 0);
                (duty.others, duty.listed) = (others, Some(content));
                duty.ask_at_us = now_us + ask_again_us.clamp(ASK_AGAIN_US_MIN, ASK_AGAIN_US_MAX);
            }
            Event::Silent(_) => {
                duty.asking = false;
                duty.ask_at_us = now_us + longer(SILENCE_US, &mut duty.silent, SILENCE_US_MAX);
            }
            Event::Refused(_) => {
                duty.asking = false;
                (duty.told, duty.listed) = (false, None);
                duty.ask_at_us = now_us + longer(REFUSED_US, &mut duty.refused, REFUSED_US_MAX);
            }
            Event::Entered(_) => (duty.stage, duty.broken) = (Stage::In, 0),
            Event::Broken(_) => {
                (duty.stage, duty.exchanged) = (Stage::Out, None);
                duty.enter_at_us = now_us + longer(BROKEN_US, &mut duty.broken, BROKEN_US_MAX);
            }
            Event::Left(_) => {
                (duty.stage, duty.exchanged) = (Stage::Out, None);
                (duty.told, duty.listed) = (false, None);
            }
        }
    }

    fn want(&mut self, now_us: u64, mut wanted: BTreeMap<Key, Wish>) {
        for (key, duty) in &mut self.0 {
            duty.wish = wanted.remove(key);
        }
        for (key, wish) in wanted {
            let duty = Duty {
                wish: Some(wish),
                stage: Stage::Out,
                asking: false,
                ask_at_us: now_us,
                told: false,
                others: false,
                listed: None,
                exchanged: None,
                silent: 0,
                refused: 0,
                broken: 0,
                enter_at_us: now_us,
            };
            self.0.insert(key, duty);
        }
    }
}

/// Returns a wait that doubles with each time in a row.
fn longer(first_us: u64, times: &mut u32, longest_us: u64) -> u64 {
    let wait = first_us.saturating_mul(1 << (*times).min(20));
    *times = times.saturating_add(1);
    wait.min(longest_us)
}

impl Duty {
    /// Adds what is to be done now; returns whether there is anything more to come.
    fn act(&mut self, now_us: u64, key: &Key, actions: &mut Vec<Action>) -> bool {
        // nothing ends in the middle of something else: a question that is under way may yet list this node
        let busy = self.asking || matches!(self.stage, Stage::Entering | Stage::Leaving);
        let is_in = self.stage == Stage::In;
        let Some(wish) = self.wish else {
            let over = !is_in && !self.told;
            if !busy && !over {
                self.stage = Stage::Leaving;
                actions.push(Action::Leave(key.clone()));
            }
            return busy || !over;
        };
        if !busy && is_in && self.listed.is_none() && self.refused > 0 {
            self.stage = Stage::Leaving;
            actions.push(Action::Leave(key.clone()));
            return true;
        }
        let idle = matches!(self.stage, Stage::Out | Stage::In);
        let another = self.listed.is_some() && self.listed != self.exchanged;
        let wanted = is_in || wish.always || self.others;
        if idle && another && wanted && now_us >= self.enter_at_us {
            self.stage = Stage::Entering;
            self.exchanged = self.listed.clone();
            actions.push(Action::Enter(key.clone()));
        }
        if !self.asking && self.stage != Stage::Leaving && now_us >= self.ask_at_us {
            (self.asking, self.told) = (true, true);
            actions.push(Action::Ask(key.clone()));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;

    fn key() -> Key {
        Key {
            hub: HubAddress::of("https://hub").unwrap(),
            image: Hash::of(b"image"),
        }
    }

    fn wanted(always: bool) -> Option<Event> {
        Some(Event::Wanted([(key(), Wish { always })].into()))
    }

    fn unwanted() -> Option<Event> {
        Some(Event::Wanted(BTreeMap::new()))
    }

    fn listed(others: bool, content: &str) -> Option<Event> {
        Some(Event::Listed {
            key: key(),
            others,
            content: content.into(),
            ask_again_us: 10 * S,
        })
    }

    fn ask() -> Vec<Action> {
        vec![Action::Ask(key())]
    }

    fn enter() -> Vec<Action> {
        vec![Action::Enter(key())]
    }

    fn leave() -> Vec<Action> {
        vec![Action::Leave(key())]
    }

    #[test]
    fn pieces_are_exchanged_as_soon_as_somebody_else_is_there_and_until_nobody_wants_them() {
        let mut duties = Duties::default();
        assert_eq!(duties.step(0, wanted(false)), ask());
        assert_eq!(duties.step(S, wanted(false)), [], "one question at a time");
        assert_eq!(duties.step(2 * S, listed(false, "a")), [], "alone");
        assert_eq!(duties.next_us(), Some(12 * S));
        assert_eq!(duties.step(12 * S, None), ask());
        assert_eq!(duties.step(13 * S, listed(true, "a")), enter());
        assert_eq!(duties.step(13 * S, Some(Event::Entered(key()))), []);
        // the other one leaves, and comes again: this goes on
        assert_eq!(duties.step(23 * S, None), ask());
        assert_eq!(duties.step(23 * S, listed(false, "a")), []);
        assert_eq!(duties.step(24 * S, unwanted()), leave());
        assert_eq!(duties.step(24 * S, unwanted()), []);
        assert_eq!(duties.step(25 * S, Some(Event::Left(key()))), []);
        assert!(duties.0.is_empty());
        assert_eq!(duties.next_us(), None);
    }

    #[test]
    fn who_wants_it_always_does_not_wait_for_others() {
        let mut duties = Duties::default();
        assert_eq!(duties.step(0, wanted(true)), ask());
        assert_eq!(duties.step(0, listed(false, "a")), enter());
        // a machine that was content to wait now wants it always
        let mut duties = Duties::default();
        duties.step(0, wanted(false));
        assert_eq!(duties.step(0, listed(false, "a")), []);
        assert_eq!(duties.step(S, wanted(true)), enter());
    }

    #[test]
    fn a_hub_that_is_gone_is_asked_again_and_meanwhile_it_goes_on() {
        let mut duties = Duties::default();
        duties.step(0, wanted(true));
        duties.step(0, listed(true, "a"));
        duties.step(0, Some(Event::Entered(key())));
        let mut now = 10 * S;
        let mut waits = Vec::new();
        for _ in 0..8 {
            assert_eq!(duties.step(now, None), ask());
            assert_eq!(duties.step(now, Some(Event::Silent(key()))), []);
            let next = duties.next_us().unwrap();
            waits.push((next - now) / S);
            now = next;
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(duties.step(now, None), ask());
        assert_eq!(duties.step(now, listed(true, "a")), []);
        assert_eq!(duties.next_us(), Some(now + 10 * S));
    }

    #[test]
    fn a_hub_that_refuses_has_the_last_word() {
        let mut duties = Duties::default();
        duties.step(0, wanted(true));
        assert_eq!(duties.step(0, Some(Event::Refused(key()))), []);
        assert_eq!(duties.next_us(), Some(60 * S));
        assert_eq!(duties.step(60 * S, None), ask());
        duties.step(60 * S, listed(true, "a"));
        duties.step(60 * S, Some(Event::Entered(key())));
        // the image was made private meanwhile
        assert_eq!(duties.step(70 * S, None), ask());
        assert_eq!(duties.step(70 * S, Some(Event::Refused(key()))), leave());
        assert_eq!(duties.step(70 * S, Some(Event::Left(key()))), []);
        assert_eq!(duties.next_us(), Some(130 * S));
    }

    #[test]
    fn packs_that_were_laid_out_anew_are_exchanged_instead() {
        let mut duties = Duties::default();
        duties.step(0, wanted(true));
        assert_eq!(duties.step(0, listed(true, "a")), enter());
        assert_eq!(duties.step(10 * S, None), ask());
        // the first are still being brought in
        assert_eq!(duties.step(10 * S, listed(true, "b")), []);
        let entered = Some(Event::Entered(key()));
        assert_eq!(duties.step(11 * S, entered.clone()), enter());
        assert_eq!(duties.step(12 * S, entered), []);
    }

    #[test]
    fn what_went_wrong_is_tried_again_later_and_later() {
        let mut duties = Duties::default();
        duties.step(0, wanted(true));
        assert_eq!(duties.step(0, listed(true, "a")), enter());
        assert_eq!(duties.step(0, Some(Event::Broken(key()))), []);
        assert_eq!(duties.step(4 * S, None), []);
        assert_eq!(duties.step(5 * S, None), enter());
        assert_eq!(duties.step(5 * S, Some(Event::Broken(key()))), []);
        assert_eq!(duties.step(14 * S, None), ask());
        assert_eq!(duties.step(15 * S, None), enter());
    }

    #[test]
    fn nobody_is_left_on_a_list_by_a_question_that_was_under_way() {
        let mut duties = Duties::default();
        assert_eq!(duties.step(0, wanted(false)), ask());
        assert_eq!(duties.step(S, unwanted()), []);
        assert_eq!(duties.step(2 * S, listed(true, "a")), leave());
        // wanted again while it is being left: asked anew afterwards
        assert_eq!(duties.step(3 * S, wanted(false)), []);
        assert_eq!(duties.step(3 * S, Some(Event::Left(key()))), []);
        assert_eq!(duties.next_us(), Some(12 * S));
        // one that was refused has nothing to leave
        let mut duties = Duties::default();
        duties.step(0, wanted(false));
        duties.step(S, unwanted());
        assert_eq!(duties.step(2 * S, Some(Event::Refused(key()))), []);
        assert!(duties.0.is_empty());
    }
}
