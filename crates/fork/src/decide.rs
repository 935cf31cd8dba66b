//! Decides which clone runs where, and keeps what became of each. No I/O and no clock.
//!
//! ```text
//! granted -> starting -> loaded -> going -> running
//!    ^          |-> (another host) -> starting
//!    '-- asked  '-> failed
//! ```
//! A clone whose state is loaded stands still until its host starts no further one: guests that run would take the CPUs from
//! the clones still starting, and the last one would be ready much later. Other hosts handle that themselves.
//!
//! As in SnowFlock, a fork may be granted fewer clones than were asked for: hosts report how many they have room for. If a
//! host could not start a clone, others are tried, each at most once. If nobody knows whether a clone started, it is *not*
//! started elsewhere: two clones with one number would both do that number's part of the work.

use std::collections::BTreeSet;

/// Index of a host in the list that the fork was given.
pub type HostId = usize;
/// Number of a clone, 1 to n; 0 is the parent (SnowFlock, table 1).
pub type CloneId = u32;

/// What state a clone is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// There is room for it; it waits until its parent's state can be read.
    Granted,
    /// A host is starting it.
    Starting(HostId),
    /// Its state is loaded; it waits for its siblings on that host.
    Loaded(HostId),
    /// It was told to run its guest.
    Going(HostId),
    /// Its guest runs.
    Running(HostId),
    /// It does not exist, for this reason.
    Failed(String),
}

/// Why a host did not start a clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The host could not start this clone.
    Clone(String),
    /// The host takes no more clones at all.
    Host(String),
    /// The clone may run: the host's answer was lost.
    Unknown(String),
}

/// What can happen in a fork.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A host reported how many clones it has room for, or why it takes none.
    Room(HostId, Result<u32, String>),
    /// The parent's state can be read, so clones may start.
    Ready,
    /// A clone has loaded its state and stands still.
    Loaded(CloneId),
    /// A clone's guest runs.
    Started(CloneId),
    /// A clone did not start.
    NotStarted(CloneId, Fault),
    /// The caller that asked for the fork has gone.
    Cancelled,
}

/// What the caller is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start a clone on a host.
    Start(CloneId, HostId),
    /// Let a clone run that has loaded its state.
    Go(CloneId, HostId),
    /// End a clone if it runs.
    End(CloneId, HostId),
    /// Every clone runs or has failed; no further action follows.
    Over,
}

struct Host {
    /// How many clones it has room for; `None` until it has answered.
    room: Option<u32>,
    /// Why it takes no more clones, if it does not.
    out: Option<String>,
    /// How many clones start or run there.
    taken: u32,
}

struct Clone {
    state: State,
    tried: BTreeSet<HostId>,
    /// The last host's reason for not starting it.
    why: String,
}

/// The state of a fork.
pub struct Fork {
    hosts: Vec<Host>,
    clones: Vec<Clone>,
    asked: u32,
    ready: bool,
    placed: bool,
    cancelled: bool,
    over: bool,
}

impl Fork {
    /// Returns a fork of `asked` clones on `hosts` hosts.
    pub fn new(asked: u32, hosts: usize) -> Fork {
        let host = || Host {
            room: None,
            out: None,
            taken: 0,
        };
        Fork {
            hosts: (0..hosts).map(|_| host()).collect(),
            clones: Vec::new(),
            asked,
            ready: false,
            placed: false,
            cancelled: false,
            over: false,
        }
    }

    /// Returns how many clones were granted; 0 until all hosts have answered.
    pub fn granted(&self) -> u32 {
        self.clones.len() as u32
    }

    /// Returns a clone's state; `None` for a clone that was not granted.
    pub fn state(&self, clone: CloneId) -> Option<&State> {
        let index = (clone as usize).checked_sub(1)?;
        Some(&self.clones.get(index)?.state)
    }

    /// Returns the hosts that take no clones, with their reasons.
    pub fn refusals(&self) -> Vec<(HostId, &str)> {
        let hosts = self.hosts.iter().enumerate();
        hosts
            .filter_map(|(id, host)| Some((id, host.out.as_deref()?)))
            .collect()
    }

    /// Notes what happened; returns what is to be done.
    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Room(id, room) => {
                let Some(host) = self.hosts.get_mut(id).filter(|host| host.room.is_none()) else {
                    return actions;
                };
                match room {
                    Ok(room) => host.room = Some(room),
                    Err(why) => (host.room, host.out) = (Some(0), Some(why)),
                }
            }
            Event::Ready => self.ready = true,
            Event::Loaded(clone) => self.loaded(clone, &mut actions),
            Event::Started(clone) => self.started(clone, &mut actions),
            Event::NotStarted(clone, fault) => self.not_started(clone, fault, &mut actions),
            Event::Cancelled => self.cancel(&mut actions),
        }
        self.place(&mut actions);
        self.let_go(&mut actions);
        self.end(&mut actions);
        actions
    }

    /// Grants clones once every host has answered, and starts them once the parent's state can be read.
    fn place(&mut self, actions: &mut Vec<Action>) {
        if self.hosts.iter().any(|host| host.room.is_none()) || self.placed {
            return;
        }
        if self.clones.is_empty() {
            let room: u64 = self
                .hosts
                .iter()
                .filter_map(|host| host.room)
                .map(u64::from)
                .sum();
            let granted = u64::from(self.asked).min(room);
            let clone = || Clone {
                state: State::Granted,
                tried: BTreeSet::new(),
                why: String::new(),
            };
            self.clones = (0..granted).map(|_| clone()).collect();
        }
        if self.cancelled {
            for clone in &mut self.clones {
                clone.state = State::Failed("the fork was cancelled".into());
            }
            self.placed = true;
            return;
        }
        if self.ready {
            self.placed = true;
            for clone in 1..=self.granted() {
                self.try_on_a_host(clone, actions);
            }
        }
    }

    /// Starts a clone on the least loaded host that has room and was not tried yet. If there is none, the clone fails.
    fn try_on_a_host(&mut self, id: CloneId, actions: &mut Vec<Action>) {
        let Some(clone) = self.clones.get_mut(id as usize - 1) else {
            return;
        };
        let hosts = self.hosts.iter().enumerate();
        let may = hosts.filter(|(number, host)| {
            host.out.is_none()
                && host.taken < host.room.unwrap_or(0)
                && !clone.tried.contains(number)
        });
        match may.min_by_key(|(number, host)| (host.taken, *number)) {
            Some((number, _)) => {
                clone.tried.insert(number);
                clone.state = State::Starting(number);
                self.hosts[number].taken += 1;
                actions.push(Action::Start(id, number));
            }
            None => {
                let why = match clone.why.is_empty() {
                    true => "no host has room for it".to_owned(),
                    false => clone.why.clone(),
                };
                clone.state = State::Failed(why);
            }
        }
    }

    fn starting(&self, clone: CloneId) -> Option<HostId> {
        match self.state(clone) {
            Some(State::Starting(host) | State::Going(host)) => Some(*host),
            _ => None,
        }
    }

    fn loaded(&mut self, clone: CloneId, actions: &mut Vec<Action>) {
        if let Some(State::Starting(host)) = self.state(clone).cloned() {
            self.advance(clone, host, State::Loaded(host), actions);
        }
    }

    /// Moves a clone to its next state; after a cancellation it is ended instead.
    fn advance(&mut self, id: CloneId, host: HostId, to: State, actions: &mut Vec<Action>) {
        let state = &mut self.clones[id as usize - 1].state;
        if self.cancelled {
            *state = State::Failed("the fork was cancelled".into());
            self.hosts[host].taken -= 1;
            actions.push(Action::End(id, host));
        } else {
            *state = to;
        }
    }

    /// Lets loaded clones run on those hosts where no clone is still starting.
    fn let_go(&mut self, actions: &mut Vec<Action>) {
        let starting = |clone: &Clone| match clone.state {
            State::Starting(host) => Some(host),
            _ => None,
        };
        let busy: BTreeSet<HostId> = self.clones.iter().filter_map(starting).collect();
        for (index, clone) in self.clones.iter_mut().enumerate() {
            if let State::Loaded(host) = clone.state
                && !busy.contains(&host)
            {
                clone.state = State::Going(host);
                actions.push(Action::Go(index as CloneId + 1, host));
            }
        }
    }

    fn started(&mut self, clone: CloneId, actions: &mut Vec<Action>) {
        if let Some(host) = self.starting(clone) {
            self.advance(clone, host, State::Running(host), actions);
        }
    }

    fn not_started(&mut self, id: CloneId, fault: Fault, actions: &mut Vec<Action>) {
        let Some(host) = self.starting(id) else {
            return;
        };
        let clone = &mut self.clones[id as usize - 1];
        let why = match fault {
            Fault::Unknown(why) => {
                // its room stays taken, because it may run there until it is ended
                clone.state = State::Failed(why);
                actions.push(Action::End(id, host));
                return;
            }
            Fault::Clone(why) => why,
            Fault::Host(why) => {
                self.hosts[host].out = Some(why.clone());
                why
            }
        };
        self.hosts[host].taken -= 1;
        clone.why = why;
        if self.cancelled {
            clone.state = State::Failed("the fork was cancelled".into());
        } else {
            self.try_on_a_host(id, actions);
        }
    }

    /// Ends all clones, since the caller has gone.
    fn cancel(&mut self, actions: &mut Vec<Action>) {
        if self.over {
            return;
        }
        self.cancelled = true;
        for (index, clone) in self.clones.iter_mut().enumerate() {
            let why = || State::Failed("the fork was cancelled".into());
            match clone.state {
                State::Granted => clone.state = why(),
                State::Running(host) | State::Loaded(host) => {
                    clone.state = why();
                    self.hosts[host].taken -= 1;
                    actions.push(Action::End(index as CloneId + 1, host));
                }
                State::Starting(_) | State::Going(_) | State::Failed(_) => {}
            }
        }
    }

    fn end(&mut self, actions: &mut Vec<Action>) {
        let done = |clone: &Clone| matches!(clone.state, State::Running(_) | State::Failed(_));
        if !self.over && self.placed && self.clones.iter().all(done) {
            self.over = true;
            actions.push(Action::Over);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn started(actions: &[Action]) -> Vec<(CloneId, HostId)> {
        let start = |action: &Action| match action {
            Action::Start(clone, host) => Some((*clone, *host)),
            _ => None,
        };
        actions.iter().filter_map(start).collect()
    }

    #[test]
    fn clones_are_spread_evenly_as_far_as_there_is_room() {
        let mut fork = Fork::new(5, 3);
        assert!(fork.handle(Event::Ready).is_empty());
        assert!(fork.handle(Event::Room(0, Ok(9))).is_empty());
        assert!(
            fork.handle(Event::Room(1, Err("it is full".into())))
                .is_empty()
        );
        let actions = fork.handle(Event::Room(2, Ok(1)));
        assert_eq!(started(&actions), [(1, 0), (2, 2), (3, 0), (4, 0), (5, 0)]);
        assert_eq!(fork.refusals(), [(1, "it is full")]);
    }

    #[test]
    fn fewer_are_granted_than_were_asked_for_where_there_is_no_room() {
        let mut fork = Fork::new(5, 1);
        fork.handle(Event::Room(0, Ok(2)));
        assert_eq!(fork.granted(), 2);
        assert_eq!(started(&fork.handle(Event::Ready)).len(), 2);
        let mut none = Fork::new(5, 1);
        none.handle(Event::Ready);
        assert_eq!(none.handle(Event::Room(0, Ok(0))), [Action::Over]);
    }

    #[test]
    fn a_clone_that_a_host_cannot_start_goes_to_another_one() {
        let mut fork = Fork::new(1, 2);
        fork.handle(Event::Room(0, Ok(1)));
        fork.handle(Event::Room(1, Ok(1)));
        assert_eq!(fork.handle(Event::Ready), [Action::Start(1, 0)]);
        let actions = fork.handle(Event::NotStarted(1, Fault::Clone("no disk".into())));
        assert_eq!(actions, [Action::Start(1, 1)]);
        let actions = fork.handle(Event::NotStarted(1, Fault::Host("old QEMU".into())));
        assert_eq!(actions, [Action::Over]);
        assert_eq!(fork.state(1), Some(&State::Failed("old QEMU".into())));
    }

    #[test]
    fn a_clone_of_which_nobody_knows_is_not_started_a_second_time() {
        let mut fork = Fork::new(1, 2);
        fork.handle(Event::Room(0, Ok(1)));
        fork.handle(Event::Room(1, Ok(1)));
        fork.handle(Event::Ready);
        let actions = fork.handle(Event::NotStarted(1, Fault::Unknown("timeout".into())));
        assert_eq!(actions, [Action::End(1, 0), Action::Over]);
    }

    #[test]
    fn clones_go_together_once_their_host_has_loaded_the_last_one() {
        let mut fork = Fork::new(3, 2);
        fork.handle(Event::Room(0, Ok(2)));
        fork.handle(Event::Room(1, Ok(1)));
        assert_eq!(started(&fork.handle(Event::Ready)).len(), 3);
        assert!(fork.handle(Event::Loaded(1)).is_empty());
        assert_eq!(fork.handle(Event::Loaded(2)), [Action::Go(2, 1)]);
        assert_eq!(
            fork.handle(Event::NotStarted(3, Fault::Clone("no disk".into()))),
            [Action::Go(1, 0)],
            "nobody waits for a clone that will not come"
        );
        fork.handle(Event::Started(1));
        assert_eq!(fork.handle(Event::Started(2)), [Action::Over]);
    }

    #[test]
    fn nothing_stays_of_a_fork_whose_caller_has_gone() {
        let mut fork = Fork::new(2, 1);
        fork.handle(Event::Room(0, Ok(2)));
        fork.handle(Event::Ready);
        fork.handle(Event::Started(1));
        assert_eq!(fork.handle(Event::Cancelled), [Action::End(1, 0)]);
        let actions = fork.handle(Event::Started(2));
        assert_eq!(actions, [Action::End(2, 0), Action::Over]);
        assert!(fork.handle(Event::Started(2)).is_empty());
    }

    /// What happens next in a test, where there is a choice; the rest follows from what the fork asked for.
    #[derive(Clone, Debug)]
    enum Choice {
        Room(u8, Option<u8>),
        Ready,
        Cancel,
        /// One of the starts under way ends in this way.
        Answer(u8, u8),
    }

    fn choices() -> impl Strategy<Value = Vec<Choice>> {
        let one = prop_oneof![
            3 => (any::<u8>(), prop::option::of(0u8..6)).prop_map(|(h, r)| Choice::Room(h, r)),
            1 => Just(Choice::Ready),
            1 => Just(Choice::Cancel),
            6 => (any::<u8>(), 0u8..5).prop_map(|(c, how)| Choice::Answer(c, how)),
        ];
        prop::collection::vec(one, 0..60)
    }

    /// Simulated hosts that carry out each action; every step is checked.
    struct World {
        fork: Fork,
        rooms: HashMap<HostId, u32>,
        starting: Vec<(CloneId, HostId)>,
        /// Clones with their state loaded, standing still.
        loaded: Vec<(CloneId, HostId)>,
        running: Vec<(CloneId, HostId)>,
        /// Clones that were started, but whose host's answer was lost.
        lost: Vec<(CloneId, HostId)>,
        tried: BTreeSet<(CloneId, HostId)>,
        over: u32,
    }

    impl World {
        fn tell(&mut self, event: Event) {
            for action in self.fork.handle(event) {
                assert_eq!(self.over, 0, "{action:?} after the end");
                match action {
                    Action::Start(clone, host) => {
                        let alive = self.starting.iter().chain(&self.loaded);
                        let alive = alive.chain(&self.running).chain(&self.lost);
                        assert!(alive.clone().all(|(other, _)| *other != clone), "twice");
                        let there = alive.filter(|(_, at)| *at == host).count() as u32;
                        assert!(there < self.rooms[&host], "more than there is room for");
                        assert!(self.tried.insert((clone, host)), "on one host again");
                        self.starting.push((clone, host));
                    }
                    Action::Go(clone, host) => {
                        let waits = |at: &(CloneId, HostId)| *at == (clone, host);
                        assert!(self.loaded.iter().any(waits), "{clone} is not loaded");
                        self.loaded.retain(|at| !waits(at));
                        self.starting.push((clone, host));
                    }
                    Action::End(clone, host) => {
                        self.loaded.retain(|at| *at != (clone, host));
                        self.running.retain(|at| *at != (clone, host));
                        self.lost.retain(|at| *at != (clone, host));
                    }
                    Action::Over => self.over += 1,
                }
            }
        }

        fn answer(&mut self, which: u8, how: u8) {
            if self.starting.is_empty() {
                return;
            }
            let index = usize::from(which) % self.starting.len();
            let (clone, host) = self.starting.remove(index);
            match how {
                0 => {
                    self.running.push((clone, host));
                    self.tell(Event::Started(clone));
                }
                1 => self.tell(Event::NotStarted(clone, Fault::Clone("clone".into()))),
                2 => self.tell(Event::NotStarted(clone, Fault::Host("host".into()))),
                3 if self.fork.state(clone) == Some(&State::Starting(host)) => {
                    self.loaded.push((clone, host));
                    self.tell(Event::Loaded(clone));
                }
                _ => {
                    self.lost.push((clone, host));
                    self.tell(Event::NotStarted(clone, Fault::Unknown("lost".into())));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn a_fork_ends_once_and_no_clone_exists_twice(
            asked in 0u32..12,
            hosts in 1usize..4,
            choices in choices(),
        ) {
            let mut world = World {
                fork: Fork::new(asked, hosts),
                rooms: HashMap::new(),
                starting: Vec::new(),
                loaded: Vec::new(),
                running: Vec::new(),
                lost: Vec::new(),
                tried: BTreeSet::new(),
                over: 0,
            };
            let room = |world: &mut World, host: HostId, room: Option<u8>| {
                world.rooms.entry(host).or_insert(u32::from(room.unwrap_or(0)));
                let room = room.map(u32::from).ok_or_else(|| "down".to_owned());
                world.tell(Event::Room(host, room));
            };
            let mut cancelled = false;
            for choice in choices {
                match choice {
                    Choice::Room(host, r) => room(&mut world, usize::from(host) % hosts, r),
                    Choice::Ready => world.tell(Event::Ready),
                    Choice::Cancel => {
                        cancelled |= world.over == 0;
                        world.tell(Event::Cancelled);
                    }
                    Choice::Answer(which, how) => world.answer(which, how),
                }
            }
            // once everybody has answered, the fork is over exactly once, whatever happened before
            for host in 0..hosts {
                room(&mut world, host, Some(1));
            }
            world.tell(Event::Ready);
            while !world.starting.is_empty() {
                world.answer(0, 0);
            }
            prop_assert_eq!(world.over, 1);
            prop_assert!(world.fork.granted() <= asked);
            prop_assert!(world.lost.is_empty() && world.loaded.is_empty());
            prop_assert!(!cancelled || world.running.is_empty());
            for clone in 1..=world.fork.granted() {
                let runs = world.running.iter().find(|(id, _)| *id == clone);
                match world.fork.state(clone) {
                    Some(State::Running(host)) => prop_assert_eq!(runs, Some(&(clone, *host))),
                    Some(State::Failed(_)) => prop_assert_eq!(runs, None),
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
    }
}
