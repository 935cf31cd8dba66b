//! Why a machine's CPUs stand still, and what is to be done about it. No I/O and no clock: events go in, and
//! [`Standing::next`] returns the next action until disk, QEMU and reasons agree.
//!
//! Reasons are a set: the machine goes on when the last one is over, whatever their order. Two rules hold at every moment, so
//! that a killed node leaves no machine standing still for a reason that the next node does not know:
//!
//! - a reason is on the disk before QEMU is told to stop for it;
//! - it is removed from the disk after QEMU was told to go on. (Telling a guest that runs to go on changes nothing.)

use crate::inventory::record::PauseReason;
use std::collections::BTreeSet;

/// The reasons of one machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    reasons: BTreeSet<PauseReason>,
    /// Reasons whose work stops the CPUs by itself and lets them go on.
    itself: BTreeSet<PauseReason>,
    /// The reasons as they are on the disk.
    recorded: BTreeSet<PauseReason>,
    /// Whether floe has told QEMU to stop and not yet to go on.
    still: bool,
    /// Whether the user let the machine go on: it does not buffer again until the planner's episode is over.
    spared: bool,
}

/// What can happen to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A reason to stand still begins.
    Begins(PauseReason),
    /// A reason begins whose work stops the CPUs by itself.
    BeginsItself(PauseReason),
    /// A reason is over. If its work has stopped the CPUs by itself, it has also let them go on.
    Ends(PauseReason),
    /// Such a reason is over, but its work has left the CPUs stopped.
    EndsStill(PauseReason),
    /// The user lets the machine go on, whatever the reasons.
    UserContinues,
    /// The planner's wish to buffer is over.
    EpisodeEnds,
    /// This node took the machine over. `still` is whether its CPUs stand still.
    Adopted { still: bool },
    /// Its QEMU has ended, and its record has no reasons any more.
    Ended,
}

/// What the caller is to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Write these reasons to the disk.
    Record(BTreeSet<PauseReason>),
    /// Tell QEMU to stop the CPUs.
    Stop,
    /// Tell it to let them go on.
    Continue,
}

impl Standing {
    /// Returns the state of a machine whose record has these reasons.
    pub fn recorded(reasons: BTreeSet<PauseReason>) -> Standing {
        Standing {
            reasons: reasons.clone(),
            recorded: reasons,
            ..Default::default()
        }
    }

    /// Whether this is one of the machine's reasons.
    pub fn is(&self, reason: PauseReason) -> bool {
        self.reasons.contains(&reason)
    }

    /// Whether the machine may begin to buffer: not if it buffers already, nor if the user has let it go on in this episode.
    pub fn may_buffer(&self) -> bool {
        !self.spared && !self.is(PauseReason::Buffering)
    }

    /// Takes an event in. [`Standing::next`] then returns what is to be done.
    pub fn handle(&mut self, event: Event) {
        match event {
            Event::Begins(reason) => {
                self.reasons.insert(reason);
                self.itself.remove(&reason);
            }
            Event::BeginsItself(reason) => {
                self.reasons.insert(reason);
                self.itself.insert(reason);
            }
            Event::Ends(reason) => self.ends(reason),
            Event::EndsStill(reason) => {
                self.still = true;
                self.ends(reason);
            }
            Event::UserContinues => {
                self.spared |= self.is(PauseReason::Buffering);
                self.reasons.clear();
                self.itself.clear();
            }
            Event::EpisodeEnds => {
                self.spared = false;
                self.ends(PauseReason::Buffering);
            }
            Event::Adopted { still } => {
                self.reasons.retain(|reason| !reason.ends_with_its_node());
                self.itself.clear();
                self.still = still;
            }
            Event::Ended => *self = Standing::default(),
        }
    }

    fn ends(&mut self, reason: PauseReason) {
        self.reasons.remove(&reason);
        self.itself.remove(&reason);
    }

    /// Returns the next action, or `None` if disk, QEMU and reasons agree.
    pub fn next(&self) -> Option<Action> {
        let stop = self
            .reasons
            .iter()
            .any(|reason| !self.itself.contains(reason));
        let record = || {
            let differs = self.recorded != self.reasons;
            differs.then(|| Action::Record(self.reasons.clone()))
        };
        match (stop, self.still) {
            (true, false) => record().or(Some(Action::Stop)),
            (false, true) if self.reasons.is_empty() => Some(Action::Continue),
            _ => record(),
        }
    }

    /// Notes that the action was carried out.
    pub fn done(&mut self, action: &Action) {
        match action {
            Action::Record(reasons) => self.recorded = reasons.clone(),
            Action::Stop => self.still = true,
            Action::Continue => self.still = false,
        }
    }

    /// Takes back an event that could not be carried out: if it began a reason, that reason is removed.
    pub fn withdraw(&mut self, event: Event) {
        if let Event::Begins(reason) | Event::BeginsItself(reason) = event {
            self.ends(reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REASONS: [PauseReason; 5] = [
        PauseReason::User,
        PauseReason::Buffering,
        PauseReason::Orphaned,
        PauseReason::Capture,
        PauseReason::DiskFull,
    ];

    /// A machine with its disk and its QEMU, for the tests.
    #[derive(Default)]
    struct World {
        standing: Standing,
        disk: BTreeSet<PauseReason>,
        still: bool,
    }

    impl World {
        fn event(&mut self, event: Event) {
            self.standing.handle(event);
            // each action may be the last one before the node is killed
            for _ in 0..10 {
                let Some(action) = self.standing.next() else {
                    return;
                };
                match &action {
                    Action::Record(reasons) => {
                        assert!(!self.still || !reasons.is_empty(), "{reasons:?}");
                        self.disk = reasons.clone();
                    }
                    Action::Stop => {
                        assert!(!self.disk.is_empty(), "nobody would know why");
                        self.still = true;
                    }
                    Action::Continue => self.still = false,
                }
                self.standing.done(&action);
            }
            panic!("it never ends: {:?}", self.standing);
        }
    }

    #[test]
    fn a_parent_that_is_back_does_not_end_what_it_did_not_begin() {
        let mut world = World::default();
        world.event(Event::Begins(PauseReason::Buffering));
        world.event(Event::Begins(PauseReason::Orphaned));
        world.event(Event::Ends(PauseReason::Orphaned));
        assert!(world.still && world.standing.is(PauseReason::Buffering));
        world.event(Event::EpisodeEnds);
        assert!(!world.still && world.disk.is_empty());
    }

    #[test]
    fn a_user_who_lets_it_go_on_is_not_overruled_in_the_same_episode() {
        let mut world = World::default();
        world.event(Event::Begins(PauseReason::Buffering));
        world.event(Event::UserContinues);
        assert!(!world.still && !world.standing.may_buffer());
        world.event(Event::EpisodeEnds);
        assert!(world.standing.may_buffer());
    }

    #[test]
    fn a_capture_stops_and_lets_go_on_by_itself_and_is_only_written_down() {
        let mut standing = Standing::default();
        standing.handle(Event::BeginsItself(PauseReason::Capture));
        let capture: BTreeSet<_> = [PauseReason::Capture].into();
        assert_eq!(standing.next(), Some(Action::Record(capture.clone())));
        standing.done(&Action::Record(capture));
        assert_eq!(standing.next(), None);
        let mut left = standing.clone();
        standing.handle(Event::Ends(PauseReason::Capture));
        assert_eq!(standing.next(), Some(Action::Record(BTreeSet::new())));
        left.handle(Event::EndsStill(PauseReason::Capture));
        assert_eq!(left.next(), Some(Action::Continue));
    }

    fn event() -> impl Strategy<Value = Event> {
        let reason = prop::sample::select(REASONS.to_vec());
        prop_oneof![
            4 => reason.clone().prop_map(Event::Begins),
            4 => reason.prop_map(Event::Ends),
            1 => Just(Event::UserContinues),
            1 => Just(Event::EpisodeEnds),
            1 => any::<bool>().prop_map(|_| Event::Ended),
        ]
    }

    proptest! {
        /// Whatever happens in whatever order, the machine stands still exactly while there is a reason, and disk and QEMU
        /// agree.
        #[test]
        fn it_stands_still_while_there_is_a_reason_and_not_longer(
            events in prop::collection::vec(event(), 0..60), killed_after in 0..60usize,
        ) {
            let mut world = World::default();
            for (at, event) in events.into_iter().enumerate() {
                if event == Event::Ended {
                    // another QEMU is started, and its record has no reasons
                    (world.still, world.disk) = (false, BTreeSet::new());
                }
                world.event(event);
                prop_assert_eq!(world.still, !world.standing.reasons.is_empty());
                prop_assert_eq!(&world.disk, &world.standing.reasons);
                if at == killed_after {
                    world.standing = Standing::recorded(world.disk.clone());
                    let still = world.still;
                    world.event(Event::Adopted { still });
                    let node = |reason: &PauseReason| reason.ends_with_its_node();
                    prop_assert!(!world.disk.iter().any(node));
                    prop_assert_eq!(world.still, still && !world.disk.is_empty());
                }
            }
        }

        /// If a node is killed between any two actions, the next node can let the machine go on.
        #[test]
        fn a_node_killed_between_two_actions_leaves_nothing_standing(
            events in prop::collection::vec(event(), 1..20), after in 0..40usize,
        ) {
            let (mut standing, mut disk, mut still, mut left) = (Standing::default(), BTreeSet::new(), false, after);
            'life: for event in events {
                if event == Event::Ended {
                    (still, disk) = (false, BTreeSet::new());
                }
                standing.handle(event);
                while let Some(action) = standing.next() {
                    if left == 0 {
                        break 'life;
                    }
                    left -= 1;
                    match &action {
                        Action::Record(reasons) => disk = reasons.clone(),
                        Action::Stop => still = true,
                        Action::Continue => still = false,
                    }
                    standing.done(&action);
                }
            }
            prop_assert!(!still || !disk.is_empty(), "it stands still, and nobody knows why");
            let mut world = World { standing: Standing::recorded(disk.clone()), disk, still };
            world.event(Event::Adopted { still });
            for reason in REASONS {
                world.event(Event::Ends(reason));
            }
            prop_assert!(!world.still && world.disk.is_empty());
        }
    }
}
