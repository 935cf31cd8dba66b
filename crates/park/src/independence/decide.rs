//! Decides whose image is brought here next, when that is tried again, and when it is given up. No I/O, no clock.
//!
//! An image is brought here for one machine at a time: for a second one of the same image there is nothing left to do afterwards. What
//! machines have written over their images is merged by the same rules.

use floe_image::Hash;
use std::collections::BTreeMap;

/// How many images are brought here at the same time, so that one source that does not answer keeps nobody else waiting.
pub(super) const COPIES_MAX: usize = 3;
/// How long until a source that failed is asked again; the time doubles with each failure in a row.
pub(super) const AGAIN_FIRST_US: u64 = 2_000_000;
/// The longest such time.
pub(super) const AGAIN_MAX_US: u64 = 60_000_000;
/// How long until a full disk is looked at again.
pub(super) const ROOM_AGAIN_US: u64 = 5_000_000;

/// How much has to lie over a machine's own image before it is merged again: the most that does for good, on a small disk.
pub(super) const MERGE_BYTES: u64 = 256 << 20;
/// On larger disks this part of them: what was overwritten meanwhile is never stored, and all of the difference is each time.
const MERGE_PART: u64 = 4;

/// Whether what lies over a machine's image is to be merged. `merged`: whether it was before.
pub(super) fn is_to_merge(merged: bool, over_bytes: u64, disk_bytes: u64) -> bool {
    !merged || over_bytes >= MERGE_BYTES.max(disk_bytes / MERGE_PART)
}

/// What is wanted for a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub image: Hash,
    pub rate_bytes_s: u64,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// All is here, and the machine's record says so.
    Whole,
    /// A source failed. The value says whether anything had come before that.
    Away { moved: bool },
    /// There is no room.
    Full,
    /// It was cancelled.
    Cancelled,
}

/// What has happened.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// These machines, and no others, are to be independent and are not yet.
    Wanted(BTreeMap<String, Wish>),
    /// A machine's attempt has ended.
    Ended(String, How),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Begin to bring a machine's image here. [`Event::Ended`] follows.
    Begin(String, Wish),
    /// Cancel a machine's attempt, whose end is still told.
    Cancel(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It waits for its turn, from a time on.
    Due(u64),
    Copying(Wish),
    /// Its attempt was cancelled and has not ended.
    Ending(Wish),
}

#[derive(Clone, Debug)]
struct Duty {
    /// What is wanted now; `None` once nobody wants it any more, but its attempt has not ended.
    wish: Option<Wish>,
    state: State,
    failures: u32,
    /// Its place in the queue.
    number: u64,
}

/// All machines that are to be independent and are not yet. Times are microseconds on any clock that does not go back.
#[derive(Debug, Default)]
pub(super) struct Duties {
    duties: BTreeMap<String, Duty>,
    next_number: u64,
}

impl Duties {
    /// Learns what has happened, if anything; returns what is to be done now.
    pub fn step(&mut self, now_us: u64, event: Option<Event>) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Some(Event::Wanted(wanted)) => self.wanted(now_us, wanted, &mut actions),
            Some(Event::Ended(machine, how)) => self.ended(now_us, &machine, how),
            None => {}
        }
        self.begin(now_us, &mut actions);
        actions
    }

    fn wanted(&mut self, now_us: u64, wanted: BTreeMap<String, Wish>, actions: &mut Vec<Action>) {
        self.duties.retain(|machine, duty| {
            duty.wish = wanted.get(machine).copied();
            if let State::Copying(under_way) = duty.state
                && duty.wish != Some(under_way)
            {
                duty.state = State::Ending(under_way);
                actions.push(Action::Cancel(machine.clone()));
            }
            duty.wish.is_some() || !matches!(duty.state, State::Due(_))
        });
        for (machine, wish) in wanted {
            let number = self.next_number;
            self.duties.entry(machine).or_insert_with(|| {
                self.next_number += 1;
                Duty {
                    wish: Some(wish),
                    state: State::Due(now_us),
                    failures: 0,
                    number,
                }
            });
        }
    }

    fn ended(&mut self, now_us: u64, machine: &str, how: How) {
        let Some(duty) = self.duties.get_mut(machine) else {
            return;
        };
        let was_wanted = matches!(duty.state, State::Copying(_));
        if duty.wish.is_none() || (how == How::Whole && was_wanted) {
            self.duties.remove(machine);
            return;
        }
        let wait_us = match how {
            How::Full => ROOM_AGAIN_US,
            How::Away { moved } => {
                duty.failures = if moved { 0 } else { duty.failures + 1 };
                let doubled = AGAIN_FIRST_US << duty.failures.saturating_sub(1).min(8);
                doubled.min(AGAIN_MAX_US)
            }
            How::Cancelled | How::Whole => 0,
        };
        duty.state = State::Due(now_us.saturating_add(wait_us));
        // who has had a turn goes behind those who wait
        duty.number = self.next_number;
        self.next_number += 1;
    }

    /// Returns the images that are being brought here.
    fn under_way(&self) -> Vec<Hash> {
        let duties = self.duties.values();
        duties
            .filter_map(|duty| match duty.state {
                State::Due(_) => None,
                State::Copying(wish) | State::Ending(wish) => Some(wish.image),
            })
            .collect()
    }

    fn begin(&mut self, now_us: u64, actions: &mut Vec<Action>) {
        let mut busy = self.under_way();
        let mut due: Vec<(&String, &mut Duty)> = self.duties.iter_mut().collect();
        due.sort_by_key(|(_, duty)| duty.number);
        for (machine, duty) in due {
            let (State::Due(at), Some(wish)) = (duty.state, duty.wish) else {
                continue;
            };
            if at > now_us || busy.len() >= COPIES_MAX || busy.contains(&wish.image) {
                continue;
            }
            busy.push(wish.image);
            duty.state = State::Copying(wish);
            actions.push(Action::Begin(machine.clone(), wish));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn wish(image: u8, rate_bytes_s: u64) -> Wish {
        Wish {
            image: Hash::of(&[image]),
            rate_bytes_s,
        }
    }

    fn wanted(list: &[(u8, u8)]) -> BTreeMap<String, Wish> {
        let one = |(machine, image): &(u8, u8)| (format!("m{machine}"), wish(*image, 1));
        list.iter().map(one).collect()
    }

    #[derive(Clone, Debug)]
    enum Deed {
        Want(Vec<(u8, u8)>),
        End(prop::sample::Index, How),
        Wait(u64),
    }

    fn deeds() -> impl Strategy<Value = Vec<Deed>> {
        let how = prop_oneof![
            Just(How::Whole),
            Just(How::Away { moved: true }),
            Just(How::Away { moved: false }),
            Just(How::Full),
            Just(How::Cancelled),
        ];
        let want = proptest::collection::vec((0u8..8, 0u8..5), 0..8);
        let deed = prop_oneof![
            2 => want.prop_map(Deed::Want),
            4 => (any::<prop::sample::Index>(), how).prop_map(|(which, how)| Deed::End(which, how)),
            2 => (0u64..70_000_000).prop_map(Deed::Wait),
        ];
        proptest::collection::vec(deed, 0..60)
    }

    /// The world around the machine: what runs, and what is wanted.
    #[derive(Default)]
    struct World {
        duties: Duties,
        now_us: u64,
        running: BTreeMap<String, Wish>,
        cancelled: BTreeSet<String>,
        wanted: BTreeMap<String, Wish>,
    }

    impl World {
        fn step(&mut self, event: Option<Event>) {
            for action in self.duties.step(self.now_us, event) {
                match action {
                    Action::Begin(machine, wish) => {
                        assert_eq!(self.wanted.get(&machine), Some(&wish), "nobody wants it");
                        let images = self.running.values().map(|wish| wish.image);
                        assert!(!images.collect::<Vec<_>>().contains(&wish.image), "twice");
                        assert_eq!(self.running.insert(machine, wish), None);
                        assert!(self.running.len() <= COPIES_MAX);
                    }
                    Action::Cancel(machine) => {
                        assert!(self.running.contains_key(&machine));
                        assert!(self.cancelled.insert(machine), "cancelled twice");
                    }
                }
            }
        }

        fn end(&mut self, machine: &str, how: How) {
            self.running.remove(machine).unwrap();
            let cancelled = self.cancelled.remove(machine);
            if how == How::Whole && !cancelled {
                self.wanted.remove(machine);
            }
            self.step(Some(Event::Ended(machine.to_owned(), how)));
        }
    }

    proptest! {
        #[test]
        fn what_is_wanted_is_done_in_the_end_and_nothing_else_goes_on(deeds in deeds()) {
            let mut world = World::default();
            for deed in deeds {
                match deed {
                    Deed::Want(list) => {
                        world.wanted = wanted(&list);
                        world.step(Some(Event::Wanted(world.wanted.clone())));
                        for (machine, wish) in &world.running {
                            let same = world.wanted.get(machine) == Some(wish);
                            prop_assert!(same || world.cancelled.contains(machine));
                        }
                    }
                    Deed::End(which, how) => {
                        let running: Vec<String> = world.running.keys().cloned().collect();
                        if !running.is_empty() {
                            world.end(&running[which.index(running.len())], how);
                        }
                    }
                    Deed::Wait(us) => {
                        world.now_us += us;
                        world.step(None);
                    }
                }
            }
            // every source and every disk is well from now on
            for _ in 0..100 {
                world.now_us += AGAIN_MAX_US;
                world.step(None);
                let running: Vec<String> = world.running.keys().cloned().collect();
                for machine in running {
                    world.end(&machine, How::Whole);
                }
            }
            prop_assert!(world.wanted.is_empty(), "{:?} were forgotten", world.wanted);
            prop_assert!(world.duties.duties.is_empty());
        }
    }

    #[test]
    fn a_source_that_stays_away_is_asked_less_and_less_often() {
        let mut duties = Duties::default();
        let mut now = 0;
        let mut waits = Vec::new();
        duties.step(now, Some(Event::Wanted(wanted(&[(1, 1)]))));
        for _ in 0..8 {
            let away = Event::Ended("m1".into(), How::Away { moved: false });
            assert_eq!(duties.step(now, Some(away)), []);
            let failed = now;
            while duties.step(now, None).is_empty() {
                now += 1_000_000;
            }
            waits.push((now - failed) / 1_000_000);
        }
        assert_eq!(waits, [2, 4, 8, 16, 32, 60, 60, 60]);
    }

    #[test]
    fn what_is_written_is_merged_once_and_again_when_it_is_much() {
        assert!(is_to_merge(false, 0, 1 << 30), "there may be nothing to do");
        assert!(!is_to_merge(true, MERGE_BYTES - 1, 0));
        assert!(is_to_merge(true, MERGE_BYTES, 4 * MERGE_BYTES));
        assert!(!is_to_merge(true, MERGE_BYTES, 40 * MERGE_BYTES));
        assert!(is_to_merge(true, 10 * MERGE_BYTES, 40 * MERGE_BYTES));
    }

    /// A machine writes at a rate that changes, and each merge takes as long as what lies over its image.
    #[test]
    fn what_merges_write_is_bounded_by_what_the_guest_wrote() {
        const DISK: u64 = 16 << 30;
        let mut duties = Duties::default();
        let (mut over, mut own, mut wrote, mut stored) = (1u64 << 30, 0u64, 1u64 << 30, 0u64);
        let (mut merged, mut ends_at) = (false, None);
        let web = || wanted(&[(1, 1)]);
        for second in 0..100_000u64 {
            let now = second * 1_000_000;
            let more = (second % 97) << 16;
            (over, wrote) = ((over + more).min(DISK), wrote + more);
            if ends_at == Some(second) {
                own = (own + over).min(DISK);
                (stored, over, merged, ends_at) = (stored + own, 0, true, None);
                duties.step(now, Some(Event::Ended("m1".into(), How::Whole)));
            }
            let list = match is_to_merge(merged, over, DISK) {
                true => web(),
                false => BTreeMap::new(),
            };
            for action in duties.step(now, Some(Event::Wanted(list))) {
                assert!(matches!(action, Action::Begin(..)), "{action:?}");
                ends_at = Some(second + 20);
            }
        }
        assert!(merged && over < DISK / MERGE_PART + (100 << 22));
        assert!(stored <= (MERGE_PART + 1) * wrote, "{stored} of {wrote}");
    }

    #[test]
    fn another_rate_begins_anew_once_the_old_attempt_has_ended() {
        let mut duties = Duties::default();
        let of = |rate| Some(Event::Wanted([("web".to_owned(), wish(1, rate))].into()));
        let begin = |rate| Action::Begin("web".into(), wish(1, rate));
        assert_eq!(duties.step(0, of(1)), [begin(1)]);
        assert_eq!(duties.step(0, of(1)), []);
        assert_eq!(duties.step(1, of(9)), [Action::Cancel("web".into())]);
        let ended = Event::Ended("web".into(), How::Cancelled);
        assert_eq!(duties.step(2, Some(ended)), [begin(9)]);
    }
}
