//! A machine's life against a model of its disk and its QEMU: random events, actions that fail, and nodes that are killed between
//! any two actions.

use super::{Event, Gone, Life, OnDisk, Phase, Task, decide::Action, state::ends_with_its_node};
use crate::inventory::record::Wanted;
use floe_api::PauseReason;
use floe_ground::news::News;
use proptest::prelude::*;
use std::collections::VecDeque;

/// How an action goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Luck {
    Good,
    /// It fails and has no effect.
    Fails,
    /// It fails, and takes effect later nevertheless.
    Late,
    /// The node is killed before it.
    KilledBefore,
    /// The node is killed after it.
    KilledAfter,
}

/// The node was killed.
#[derive(Debug)]
struct Killed;

/// A QEMU.
#[derive(Clone, Debug, Default)]
struct Qemu {
    still: bool,
    /// Whether it stands because of a disk, which it knows itself.
    at_disk: bool,
    /// Commands that it did not answer and still has to obey, the last of them.
    late: Option<bool>,
}

/// A machine with its disk and its QEMU.
struct World {
    life: Life,
    disk: OnDisk,
    qemu: Option<Qemu>,
    /// Whether its memory is stored as it is: its guest has not executed since.
    stored: bool,
    luck: VecDeque<Luck>,
    published: Vec<News>,
}

fn on_disk(wanted: Wanted, pauses: &[PauseReason]) -> OnDisk {
    OnDisk {
        wanted,
        pauses: pauses.iter().copied().collect(),
    }
}

impl World {
    /// A machine that runs.
    fn running() -> World {
        let disk = on_disk(Wanted::Starting, &[]);
        let mut world = World {
            life: Life::recorded(disk.clone()),
            disk,
            qemu: Some(Qemu::default()),
            stored: false,
            luck: VecDeque::new(),
            published: Vec::new(),
        };
        assert!(world.event(Event::Runs("test".into())).unwrap());
        world
    }

    /// Does what `Entry::drive` does.
    fn event(&mut self, event: Event) -> Result<bool, Killed> {
        let before = self.life.clone();
        let wish = event.is_wish();
        if !self.life.handle(event) {
            assert_eq!(format!("{:?}", self.life), format!("{before:?}"));
            return Ok(false);
        }
        let done = self.carry_out()?;
        if wish && !done {
            self.life.withdraw(before);
            self.carry_out()?;
        }
        Ok(done)
    }

    /// Carries out what is due; false if an action failed.
    fn carry_out(&mut self) -> Result<bool, Killed> {
        for _ in 0..20 {
            let Some(action) = self.life.next() else {
                return Ok(true);
            };
            let luck = match action {
                // nothing can fail in that
                Action::Publish(_) => Luck::Good,
                _ => self.luck.pop_front().unwrap_or(Luck::Good),
            };
            match luck {
                Luck::KilledBefore => return Err(Killed),
                Luck::Fails | Luck::Late => {
                    if let (Luck::Late, Some(qemu)) = (luck, &mut self.qemu) {
                        match action {
                            Action::Stop => qemu.late = Some(true),
                            Action::Continue => qemu.late = Some(false),
                            _ => {}
                        }
                    }
                    self.life.failed(&action);
                    return Ok(false);
                }
                Luck::Good | Luck::KilledAfter => self.effect(&action),
            }
            if luck == Luck::KilledAfter {
                return Err(Killed);
            }
            self.life.done(&action);
        }
        panic!("it never ends: {:?}", self.life);
    }

    fn effect(&mut self, action: &Action) {
        match action {
            Action::Record(record) => {
                let stands = self
                    .qemu
                    .as_ref()
                    .is_some_and(|qemu| qemu.still && !qemu.at_disk);
                let unknown = record.wanted == Wanted::Running && record.pauses.is_empty();
                // a QEMU that has loaded what was stored is let go on by whoever finds it
                let woken = self.life.phase() == Phase::Woken;
                assert!(
                    !stands || !unknown || woken,
                    "nobody would know why it stands"
                );
                if record.wanted == Wanted::Parked {
                    assert!(self.stored, "its memory would be lost");
                }
                self.disk = record.clone();
            }
            Action::Stop => {
                assert!(!self.disk.pauses.is_empty(), "nobody would know why");
                self.obeys(true);
            }
            Action::Continue => self.obeys(false),
            Action::Publish(news) => {
                let durable = match news {
                    News::Started(_) | News::Reset | News::Adopted | News::Woken => {
                        self.disk.wanted == Wanted::Running
                    }
                    News::Parked | News::RolledBack(_) | News::NotWoken(_) => {
                        self.disk.wanted == Wanted::Parked
                    }
                    News::Gone(_) => self.disk.wanted == Wanted::Stopped,
                    News::Paused => self.disk.pauses.contains(&PauseReason::User),
                    _ => true,
                };
                assert!(durable, "{news:?} is published and not on the disk");
                self.published.push(news.clone());
            }
        }
    }

    /// A QEMU does what it is told, after what it was told before.
    fn obeys(&mut self, still: bool) {
        if !still {
            let parked = self.disk.wanted == Wanted::Parked;
            assert!(!parked, "it would run, and be parked for the next node");
            self.stored = false;
        }
        let qemu = self.qemu.as_mut().expect("there is one to tell");
        *qemu = Qemu {
            still,
            at_disk: still && qemu.at_disk,
            late: None,
        };
    }

    fn is_still(&self) -> bool {
        self.qemu.as_ref().is_some_and(|qemu| qemu.still)
    }

    /// Time passes and nothing goes wrong: what was late takes effect, what was left is caught up with.
    fn settle(&mut self) {
        self.luck.clear();
        if let Some(qemu) = &mut self.qemu
            && let Some(still) = qemu.late.take()
        {
            qemu.still = still;
        }
        assert!(self.carry_out().unwrap());
    }

    /// What holds whenever nothing is due.
    fn check(&self) {
        assert_eq!(self.life.next(), None);
        assert_eq!(self.disk.wanted, self.life.phase().wanted());
        let kept = self.life.reasons();
        let kept: Vec<_> = kept
            .into_iter()
            .filter(|r| *r != PauseReason::Disk)
            .collect();
        assert_eq!(self.disk, on_disk(self.disk.wanted, &kept));
        if self.life.phase() == Phase::Running && !self.life.is_deaf() {
            let reasons = self.life.reasons();
            assert_eq!(self.is_still(), !reasons.is_empty(), "{reasons:?}");
        }
    }

    /// Another node finds what a killed one has left.
    fn next_node(&mut self) {
        self.life = Life::recorded(self.disk.clone());
        self.luck.clear();
        match self.life.phase() {
            Phase::Left if self.qemu.is_some() => {
                let at_disk = self.qemu.as_ref().is_some_and(|qemu| qemu.at_disk);
                // QEMU answers in order: what was late has had its effect
                self.settle();
                let still = self.is_still() && !at_disk;
                assert!(self.event(Event::Adopted { still }).unwrap());
                if at_disk && self.is_still() {
                    self.event(Event::StoppedAtDisk("disk0".into())).unwrap();
                }
            }
            Phase::Left => {
                let gone = Gone::NotTakenOver("it ended".into());
                self.event(Event::Gone(gone)).unwrap();
            }
            Phase::Parked => {
                assert!(self.stored, "its memory is lost");
                self.qemu = None;
            }
            // its QEMU, if there is one, is ended
            _ => self.qemu = None,
        }
        self.settle();
        for reason in self.life.reasons() {
            assert!(!ends_with_its_node(reason), "{reason:?}");
        }
    }
}

/// Something that happens.
#[derive(Clone, Debug)]
enum Step {
    Start,
    Stop { captured: bool },
    EndsByItself,
    Resets,
    Begins(PauseReason),
    Ends(PauseReason),
    Resumes,
    Orphaned { deaf: bool },
    Back,
    Waits,
    Served,
    Capture { left_still: bool },
    DiskFull,
    Room,
    UserStarts,
    EpisodeEnds,
    Park,
    Wake { loads: bool },
    GoesBack,
    Killed,
}

impl World {
    fn step(&mut self, step: Step) -> Result<(), Killed> {
        match step {
            Step::Start => {
                if self.event(Event::Starts)? && self.life.phase() == Phase::Starting {
                    self.qemu = Some(Qemu::default());
                    self.event(Event::Runs(String::new()))?;
                }
            }
            Step::Stop { captured } => {
                if !captured {
                    self.event(Event::Wakes)?;
                }
                if self.event(Event::Stops)? {
                    self.qemu = None;
                    self.event(Event::Gone(Gone::Asked))?;
                }
            }
            Step::EndsByItself if self.qemu.take().is_some() => {
                let why = "it ended".to_owned();
                self.event(Event::Gone(Gone::ByItself { bad: true, why }))?;
            }
            Step::Resets if self.qemu.take().is_some() => {
                self.event(Event::Resets)?;
                self.qemu = Some(Qemu::default());
                self.event(Event::Runs(String::new()))?;
            }
            Step::Capture { left_still } if self.qemu.is_some() && !self.is_still() => {
                if self.event(Event::BeginsItself(PauseReason::Capture))? {
                    self.obeys(true);
                    if self.luck.pop_front() == Some(Luck::KilledAfter) {
                        return Err(Killed);
                    }
                    self.obeys(left_still);
                    let over = match left_still {
                        true => Event::EndsStill(PauseReason::Capture),
                        false => Event::Ends(PauseReason::Capture),
                    };
                    self.event(over)?;
                }
            }
            Step::DiskFull if self.qemu.is_some() && !self.is_still() => {
                self.qemu = Some(Qemu {
                    still: true,
                    at_disk: true,
                    late: None,
                });
                self.event(Event::StoppedAtDisk("disk0".into()))?;
            }
            Step::UserStarts => {
                let still = self.is_still();
                self.event(Event::UserContinues { still })?;
            }
            Step::Park if self.qemu.is_some() && !self.is_still() => self.park()?,
            Step::Wake { loads } => self.wake(loads)?,
            Step::GoesBack => self.go_back()?,
            Step::Park => {}
            Step::Killed => return Err(Killed),
            step => {
                let event = match step {
                    Step::Begins(reason) => Event::Begins(reason),
                    Step::Ends(reason) => Event::Ends(reason),
                    Step::Resumes => Event::Over(PauseReason::User, "resumed".into()),
                    Step::Orphaned { deaf } => Event::Orphaned {
                        why: "no answer".into(),
                        deaf,
                    },
                    Step::Waits => Event::Waits("no answer".into()),
                    Step::Served => Event::Served("it came".into()),
                    Step::Back => Event::Over(PauseReason::Orphaned, "it answers".into()),
                    Step::Room => Event::Over(PauseReason::Disk, "room".into()),
                    _ => Event::EpisodeEnds,
                };
                self.event(event)?;
            }
        }
        Ok(())
    }
}

impl World {
    /// A node that may be killed between two steps of its work.
    fn may_be_killed(&mut self) -> Result<(), Killed> {
        match self.luck.pop_front() {
            Some(Luck::KilledBefore | Luck::KilledAfter) => Err(Killed),
            _ => Ok(()),
        }
    }

    fn park(&mut self) -> Result<(), Killed> {
        if self.life.phase() != Phase::Running
            || !self.event(Event::BeginsItself(PauseReason::Capture))?
        {
            return Ok(());
        }
        self.obeys(true);
        self.may_be_killed()?;
        self.stored = true;
        if !self.event(Event::Parks)? {
            self.event(Event::EndsStill(PauseReason::Capture))?;
            return Ok(());
        }
        self.may_be_killed()?;
        self.qemu = None;
        self.may_be_killed()?;
        self.event(Event::Parked)?;
        Ok(())
    }

    fn go_back(&mut self) -> Result<(), Killed> {
        let before = std::mem::replace(&mut self.stored, true); // the image is there
        let goes = self.event(Event::RollsBack);
        self.stored = before || self.disk.wanted == Wanted::Parked;
        if !goes? {
            return Ok(());
        }
        self.may_be_killed()?;
        self.qemu = None;
        self.may_be_killed()?;
        self.event(Event::RolledBack("before".into()))?;
        Ok(())
    }

    fn wake(&mut self, loads: bool) -> Result<(), Killed> {
        if !self.event(Event::Loads)? {
            return Ok(());
        }
        self.qemu = Some(Qemu {
            still: true,
            ..Default::default()
        });
        self.may_be_killed()?;
        if !loads || !self.event(Event::Woken)? {
            self.qemu = None;
            self.event(Event::NotWoken("it could not".into()))?;
            return Ok(());
        }
        self.may_be_killed()?;
        self.obeys(false);
        self.may_be_killed()?;
        self.event(Event::Runs(String::new()))?;
        Ok(())
    }
}

fn step() -> impl Strategy<Value = Step> {
    let reason = prop::sample::select(vec![PauseReason::User, PauseReason::Buffering]);
    prop_oneof![
        2 => Just(Step::Start),
        1 => any::<bool>().prop_map(|captured| Step::Stop { captured }),
        1 => Just(Step::EndsByItself),
        1 => Just(Step::Resets),
        4 => reason.clone().prop_map(Step::Begins),
        3 => reason.prop_map(Step::Ends),
        2 => Just(Step::Resumes),
        3 => any::<bool>().prop_map(|deaf| Step::Orphaned { deaf }),
        2 => Just(Step::Back),
        3 => Just(Step::Waits),
        2 => Just(Step::Served),
        3 => any::<bool>().prop_map(|left_still| Step::Capture { left_still }),
        2 => Just(Step::DiskFull),
        2 => Just(Step::Room),
        1 => Just(Step::UserStarts),
        1 => Just(Step::EpisodeEnds),
        3 => Just(Step::Park),
        2 => Just(Step::GoesBack),
        4 => any::<bool>().prop_map(|loads| Step::Wake { loads }),
        1 => Just(Step::Killed),
    ]
}

fn luck() -> impl Strategy<Value = Luck> {
    prop_oneof![
        12 => Just(Luck::Good),
        1 => Just(Luck::Fails),
        1 => Just(Luck::Late),
        1 => Just(Luck::KilledBefore),
        1 => Just(Luck::KilledAfter),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever happens in whatever order, whatever fails, and wherever a node is killed: once nothing is due, the machine
    /// stands still exactly while there is a reason, disk and life agree, and when all reasons are over it runs.
    #[test]
    fn it_stands_still_while_there_is_a_reason_and_not_longer(
        steps in prop::collection::vec((step(), prop::collection::vec(luck(), 0..6)), 0..40),
    ) {
        let mut world = World::running();
        for (step, luck) in steps {
            world.luck = luck.into();
            if world.step(step).is_err() {
                world.next_node();
            }
            world.settle();
            world.check();
        }
        for reason in world.life.reasons() {
            world.event(Event::Over(reason, "over".into())).unwrap();
        }
        world.settle();
        prop_assert!(world.life.phase() != Phase::Running || !world.is_still());
        prop_assert!(world.disk.pauses.is_empty());
    }

    /// A machine has one operation at a time, and one that has ended leaves room for the next, whatever happened meanwhile.
    #[test]
    fn no_operation_begins_beside_another_and_none_lasts(
        steps in prop::collection::vec((step(), any::<bool>()), 0..40),
    ) {
        let mut world = World::running();
        let mut under_way = false;
        for (step, begins) in steps {
            if begins {
                prop_assert_eq!(world.life.begin(Task::Forward).is_ok(), !under_way);
                under_way = true;
            } else {
                world.life.finish();
                under_way = false;
            }
            if world.step(step).is_err() {
                // an operation ends with its node
                world.next_node();
                under_way = false;
            }
            prop_assert_eq!(world.life.task().is_some(), under_way);
        }
    }
}

#[test]
fn a_parent_that_is_back_does_not_end_what_it_did_not_begin() {
    let mut world = World::running();
    world.step(Step::Begins(PauseReason::Buffering)).unwrap();
    world.step(Step::Orphaned { deaf: false }).unwrap();
    world.step(Step::Back).unwrap();
    assert!(world.is_still() && world.life.is(PauseReason::Buffering));
    assert!(
        !world
            .published
            .iter()
            .any(|news| matches!(news, News::Continued(_)))
    );
    world.step(Step::EpisodeEnds).unwrap();
    assert!(!world.is_still());
}

#[test]
fn a_user_who_lets_it_go_on_is_not_overruled_in_the_same_episode() {
    let mut world = World::running();
    world.step(Step::Begins(PauseReason::Buffering)).unwrap();
    world.step(Step::UserStarts).unwrap();
    assert!(!world.is_still() && world.life.needs_no_buffering());
    assert!(!world.event(Event::Begins(PauseReason::Buffering)).unwrap());
    world.step(Step::EpisodeEnds).unwrap();
    assert!(world.event(Event::Begins(PauseReason::Buffering)).unwrap());
}

#[test]
fn a_pause_right_after_a_start_is_that_of_the_new_qemu_and_is_not_forgotten() {
    let mut world = World::running();
    world.step(Step::Stop { captured: false }).unwrap();
    world.life.begin(Task::Start).unwrap();
    assert!(world.event(Event::Starts).unwrap());
    // the planner wishes a pause while QEMU is being started: not yet
    assert!(!world.event(Event::Begins(PauseReason::Buffering)).unwrap());
    world.qemu = Some(Qemu::default());
    assert!(world.event(Event::Runs("its disks".into())).unwrap());
    assert!(world.event(Event::Begins(PauseReason::Buffering)).unwrap());
    world.check();
    assert!(world.is_still() && world.disk.pauses.contains(&PauseReason::Buffering));
}

#[test]
fn an_orphan_that_was_stopped_can_be_started() {
    let mut world = World::running();
    world.step(Step::Orphaned { deaf: true }).unwrap();
    assert!(world.life.orphaned().is_some() && !world.is_still());
    world.step(Step::Stop { captured: false }).unwrap();
    assert_eq!(world.life.orphaned(), None);
    world.step(Step::Start).unwrap();
    assert_eq!(world.life.phase(), Phase::Running);
}

#[test]
fn an_orphan_that_waits_for_a_page_is_stopped_as_soon_as_it_answers() {
    let mut world = World::running();
    world.step(Step::Orphaned { deaf: true }).unwrap();
    assert!(
        !world.is_still(),
        "a QEMU that does not answer is not asked"
    );
    assert!(world.disk.pauses.contains(&PauseReason::Orphaned));
    world.step(Step::Orphaned { deaf: false }).unwrap();
    assert!(world.is_still());
    let told = world
        .published
        .iter()
        .filter(|news| matches!(news, News::Orphaned(_)));
    assert_eq!(told.count(), 1);
}

#[test]
fn each_stop_at_a_disk_is_reported() {
    let mut world = World::running();
    for round in 1..4 {
        world.step(Step::DiskFull).unwrap();
        // a second look at the same stop
        assert!(!world.event(Event::StoppedAtDisk("disk0".into())).unwrap());
        let told = world
            .published
            .iter()
            .filter(|news| matches!(news, News::StoppedAtDisk(_)));
        assert_eq!(told.count(), round);
        world.step(Step::Room).unwrap();
        assert!(!world.is_still());
    }
}

#[test]
fn what_the_user_paused_stays_so_under_the_next_node_and_what_a_node_paused_does_not() {
    for reason in [PauseReason::User, PauseReason::Buffering] {
        let mut world = World::running();
        world.step(Step::Begins(reason)).unwrap();
        world.next_node();
        world.check();
        assert_eq!(world.is_still(), reason == PauseReason::User);
        let continued = |news: &News| matches!(news, News::ContinuedAfter(_));
        assert_eq!(
            world.published.iter().any(continued),
            reason != PauseReason::User
        );
    }
}

#[test]
fn a_machine_that_lost_memory_never_goes_on() {
    let mut world = World::running();
    world.life = Life::recorded(world.disk.clone());
    world.event(Event::Loses("lost".into())).unwrap();
    assert!(world.event(Event::Adopted { still: false }).unwrap());
    assert!(world.is_still());
    world.step(Step::Back).unwrap();
    world.step(Step::UserStarts).unwrap();
    assert!(world.is_still() && world.life.orphaned() == Some("lost"));
}

#[test]
fn a_machine_that_ends_badly_is_shown_as_failed_until_it_is_started() {
    let mut world = World::running();
    world.step(Step::EndsByItself).unwrap();
    assert!(world.life.gone().is_some_and(Gone::is_bad));
    world.step(Step::Start).unwrap();
    assert_eq!(world.life.gone(), None);
    world.step(Step::Stop { captured: false }).unwrap();
    assert_eq!(world.life.gone(), Some(&Gone::Asked));
}

#[test]
fn a_node_killed_at_any_step_of_parking_or_waking_leaves_it_parked_or_running() {
    for (step, kills) in [(Step::Park, 12), (Step::Wake { loads: true }, 12)] {
        let mut found = Vec::new();
        for kill in 0..kills {
            let mut world = World::running();
            if matches!(step, Step::Wake { .. }) {
                world.step(Step::Park).unwrap();
                assert_eq!(world.life.phase(), Phase::Parked);
            }
            world.luck = vec![Luck::Good; kill].into();
            world.luck.push_back(Luck::KilledBefore);
            if world.step(step.clone()).is_err() {
                world.next_node();
                found.push(world.life.phase());
            }
            world.luck.clear();
            world.check();
            match world.life.phase() {
                Phase::Parked => assert!(world.stored && world.qemu.is_none()),
                Phase::Running => assert!(world.qemu.is_some() && !world.is_still()),
                phase => panic!("{phase:?}"),
            }
            // and whichever it is, it can be the other
            let other = match world.life.phase() {
                Phase::Parked => Step::Wake { loads: true },
                _ => Step::Park,
            };
            let before = world.life.phase();
            world.step(other).unwrap();
            assert_ne!(world.life.phase(), before);
        }
        for phase in [Phase::Parked, Phase::Running] {
            assert!(found.contains(&phase), "{step:?} {found:?}");
        }
    }
}

#[test]
fn a_machine_goes_back_whatever_it_does_and_no_end_of_it_is_told() {
    for way in [None, Some(Step::Park), Some(Step::EndsByItself)] {
        let mut world = World::running();
        world.step(way.unwrap_or(Step::UserStarts)).unwrap();
        world.step(Step::GoesBack).unwrap();
        assert_eq!(world.life.phase(), Phase::Parked);
        assert_eq!(world.life.gone(), None);
        world.step(Step::Wake { loads: true }).unwrap();
        assert!(world.qemu.is_some() && !world.is_still());
    }
}

#[test]
fn what_cannot_be_woken_stays_parked_and_is_told() {
    let mut world = World::running();
    world.step(Step::Park).unwrap();
    world.step(Step::Wake { loads: false }).unwrap();
    assert_eq!(world.life.phase(), Phase::Parked);
    assert!(
        world
            .published
            .contains(&News::NotWoken("it could not".into()))
    );
    // a record that can't be written
    world.luck = [Luck::Good, Luck::Fails].into();
    world.step(Step::Wake { loads: true }).unwrap();
    assert_eq!(world.life.phase(), Phase::Parked);
    assert!(world.stored && world.qemu.is_none());
    world.step(Step::Wake { loads: true }).unwrap();
    assert_eq!(world.published.last(), Some(&News::Woken));
    assert!(!world.is_still());
}
