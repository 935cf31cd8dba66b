//! What holds of every machine that is made small, whatever its guest answers.

use super::decide::{Expand, Heard, Memory, Shrink, Step};
use floe_inventory::inventory::small::Small;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// More steps than any way in and out has.
const STEPS_MAX: usize = 600;

/// A guest whose balloon follows at once, and which uses so much memory.
struct Guest {
    full: u64,
    used: u64,
    balloon: u64,
    kills: u64,
    cpus: u32,
    cables: bool,
    stopped: bool,
}

impl Guest {
    fn new(full: u64, used: u64) -> Guest {
        Guest {
            full,
            used,
            balloon: full,
            kills: 0,
            cpus: 4,
            cables: true,
            stopped: false,
        }
    }

    fn answer(&mut self, step: Step) -> Heard {
        match step {
            Step::Account => Heard::Memory(Memory {
                total: self.full - 20 * MIB,
                available: self
                    .balloon
                    .saturating_sub(self.used)
                    .min(self.full - 20 * MIB),
                kills: self.kills,
            }),
            Step::Hooks { stop } => {
                self.stopped = stop;
                Heard::Hooks(Vec::new())
            }
            Step::Settle => Heard::Done,
            Step::Balloon { bytes } => {
                // a guest gives no memory away that it uses
                self.balloon = bytes.max(self.used);
                Heard::Done
            }
            Step::Look => Heard::Balloon(self.balloon),
            Step::Cpus(count) => {
                self.cpus = count;
                Heard::Done
            }
            Step::Cables { up } => {
                self.cables = up;
                Heard::Done
            }
        }
    }

    fn is_whole(&self) -> bool {
        self.balloon == self.full && self.cpus == 4 && self.cables && !self.stopped
    }
}

/// Goes on until there is no further step, a second each.
fn drive(shrink: &mut Shrink, mut answer: impl FnMut(usize, Step) -> Heard) {
    for at in 0..STEPS_MAX {
        let Some(step) = shrink.step() else {
            return;
        };
        let heard = answer(at, step);
        shrink.heard(at as u64 * 1000, heard);
    }
    panic!("it does not end: {shrink:?}");
}

fn expand(mut back: Expand, guest: &mut Guest) -> Expand {
    for at in 0..STEPS_MAX {
        let Some(step) = back.step() else {
            return back;
        };
        let heard = guest.answer(step);
        back.heard(at as u64 * 1000, heard);
    }
    panic!("it does not end: {back:?}");
}

#[test]
fn a_guest_keeps_what_it_uses_and_a_margin_and_comes_back_whole() {
    let mut guest = Guest::new(GIB, 150 * MIB);
    let mut shrink = Shrink::new(GIB, GIB, 4, true, Small::default());
    drive(&mut shrink, |_, step| guest.answer(step));
    assert_eq!((shrink.why(), shrink.notes().count()), (None, 0));
    assert!(guest.balloon > guest.used && guest.balloon < guest.used + 20 * MIB);
    assert!((guest.cpus, guest.cables, guest.stopped) == (1, false, true));
    let small = shrink.small().clone();
    let all = Small {
        hooks: true,
        memory: Some(GIB),
        cables: true,
        cpus: Some(4),
    };
    assert_eq!(small, all);
    // the other half, in the machine that was activated, or under the next node
    let back = expand(Expand::new(small), &mut guest);
    assert!(guest.is_whole() && back.small().is_nothing());
}

#[test]
fn what_is_still_owed_to_a_machine_that_is_made_small_again_is_not_forgotten() {
    let mut guest = Guest::new(GIB, 150 * MIB);
    let mut first = Shrink::new(GIB, GIB, 4, true, Small::default());
    drive(&mut first, |_, step| guest.answer(step));
    let owed = first.small().clone();
    // no agent has answered since, and what its programs need has become less
    guest.used = 100 * MIB;
    let given = guest.balloon;
    let mut second = Shrink::new(GIB, given, 4, true, owed.clone());
    drive(&mut second, |_, step| guest.answer(step));
    assert!(second.why().is_none() && guest.balloon < given);
    assert_eq!(second.small(), &owed);
    second.give_up("the pool is full".into());
    drive(&mut second, |_, step| guest.answer(step));
    assert!(guest.is_whole() && second.small().is_nothing());
}

#[test]
fn a_guest_that_lies_about_what_it_uses_keeps_what_it_needs() {
    let mut guest = Guest::new(GIB, 700 * MIB);
    let mut shrink = Shrink::new(GIB, GIB, 4, true, Small::default());
    drive(&mut shrink, |_, step| match step {
        Step::Account => Heard::Memory(Memory {
            total: GIB,
            available: GIB,
            kills: 0,
        }),
        step => guest.answer(step),
    });
    assert_eq!(shrink.why(), None);
    assert!(guest.balloon >= guest.used + 16 * MIB, "{}", guest.balloon);
    assert!(shrink.notes().any(|note| note.contains("needs more")));
}

#[test]
fn an_account_that_cannot_be_true_leaves_the_machine_as_it_was() {
    for (total, available) in [(2 * GIB, GIB), (0, 0), (GIB, GIB + 1)] {
        let mut guest = Guest::new(GIB, 100 * MIB);
        let mut shrink = Shrink::new(GIB, GIB, 4, true, Small::default());
        drive(&mut shrink, |_, step| match step {
            Step::Account => Heard::Memory(Memory {
                total,
                available,
                kills: 0,
            }),
            step => guest.answer(step),
        });
        assert!(shrink.why().unwrap().contains("can't be true"));
        assert!(guest.is_whole() && shrink.small().is_nothing());
    }
}

#[test]
fn a_guest_that_begins_to_use_more_meanwhile_gets_some_back() {
    let mut guest = Guest::new(GIB, 100 * MIB);
    let mut shrink = Shrink::new(GIB, GIB, 4, true, Small::default());
    drive(&mut shrink, |_, step| {
        if guest.balloon < 400 * MIB && guest.used == 100 * MIB {
            guest.used = 250 * MIB;
            guest.balloon = guest.balloon.max(guest.used);
        }
        guest.answer(step)
    });
    assert_eq!(shrink.why(), None);
    assert!(guest.balloon > guest.used + 8 * MIB);
    assert!(shrink.notes().any(|note| note.contains("needs more")));
}

#[test]
fn a_guest_whose_kernel_ends_programs_is_brought_back() {
    let mut guest = Guest::new(GIB, 100 * MIB);
    let mut shrink = Shrink::new(GIB, GIB, 4, true, Small::default());
    drive(&mut shrink, |_, step| {
        guest.kills = u64::from(guest.balloon < 500 * MIB);
        guest.answer(step)
    });
    assert!(shrink.why().unwrap().contains("ran out"));
    assert!(guest.is_whole() && shrink.small().is_nothing());
}

#[test]
fn a_hook_that_fails_ends_it_and_all_hooks_are_told_to_start() {
    let mut guest = Guest::new(GIB, 100 * MIB);
    let mut shrink = Shrink::new(GIB, GIB, 4, true, Small::default());
    let mut steps = Vec::new();
    drive(&mut shrink, |_, step| {
        steps.push(step);
        match step {
            Step::Hooks { stop: true } => Heard::Hooks(vec!["10-web: busy".into()]),
            step => guest.answer(step),
        }
    });
    assert_eq!(shrink.why(), Some("10-web: busy"));
    assert_eq!(
        steps,
        [
            Step::Account,
            Step::Hooks { stop: true },
            Step::Hooks { stop: false }
        ]
    );
}

#[test]
fn what_cannot_be_given_back_stays_written_down_and_the_rest_is_given_back() {
    let mut guest = Guest::new(GIB, 100 * MIB);
    let mut shrink = Shrink::new(GIB, GIB, 4, true, Small::default());
    drive(&mut shrink, |_, step| guest.answer(step));
    shrink.give_up("the pool is full".into());
    drive(&mut shrink, |_, step| match step {
        Step::Cpus(_) => Heard::Failed("its agent says nothing".into()),
        step => guest.answer(step),
    });
    assert_eq!(shrink.why(), Some("the pool is full"));
    let left = Small {
        cpus: Some(4),
        ..Small::default()
    };
    assert_eq!(shrink.small(), &left);
    assert!(guest.cables && !guest.stopped && guest.balloon == GIB);
    assert!(shrink.notes().any(|note| note.contains("says nothing")));
}

fn heard() -> impl Strategy<Value = Heard> {
    prop_oneof![
        Just(Heard::Done),
        (0..2 * GIB, 0..2 * GIB, 0..3_u64).prop_map(|(total, available, kills)| {
            Heard::Memory(Memory {
                total,
                available,
                kills,
            })
        }),
        prop_oneof![Just(Vec::new()), Just(vec!["10-web: no".to_owned()])].prop_map(Heard::Hooks),
        (0..2 * GIB).prop_map(Heard::Balloon),
        Just(Heard::Failed("it took too long".into())),
    ]
}

proptest! {
    #[test]
    fn whatever_is_answered_it_ends_and_gives_back_what_it_took(
        odd in prop::collection::vec(prop::option::weighted(0.15, heard()), STEPS_MAX),
        used in 0..GIB,
        cpus in 1..5_u32,
        cables in any::<bool>(),
    ) {
        let mut guest = Guest::new(GIB, used);
        guest.cpus = cpus;
        guest.cables = cables;
        let mut shrink = Shrink::new(GIB, GIB, cpus, cables, Small::default());
        let mut taken = Small::default();
        for (at, odd) in odd.into_iter().enumerate() {
            let before_back = shrink.why().is_none();
            let Some(step) = shrink.step() else { break };
            // written down before it is done
            let small = shrink.small().clone();
            match step {
                Step::Hooks { stop: true } => prop_assert!(small.hooks),
                Step::Balloon { bytes } => {
                    prop_assert!(small.memory == Some(GIB) && (48 * MIB..=GIB).contains(&bytes));
                }
                Step::Cpus(count) => prop_assert!(small.cpus == Some(cpus) && count <= cpus),
                Step::Cables { .. } => prop_assert!(small.cables && cables),
                Step::Account | Step::Settle | Step::Look | Step::Hooks { .. } => {}
            }
            if before_back {
                taken = small;
            }
            let real = guest.answer(step);
            shrink.heard(at as u64 * 1000, odd.unwrap_or(real));
        }
        prop_assert!(shrink.step().is_none(), "it ends: {:?}", shrink);
        if shrink.why().is_some() {
            // what was taken was given back, or is still written down
            let left = shrink.small();
            prop_assert!(left.cables || guest.cables == cables);
            prop_assert!(left.cpus.is_some() || guest.cpus == cpus);
            prop_assert!(left.hooks || !guest.stopped);
            prop_assert!(guest.balloon == GIB || left.memory.is_some());
        } else {
            prop_assert_eq!(shrink.small(), &taken);
            prop_assert!(guest.balloon >= used);
        }
    }
}
