//! What is done next for the machines of an ensemble, and when it is ready. No I/O and no clock.
//!
//! ```text
//! Starting --Started--> Waking --Answers--> Named --all before it are ready--> Joining --Ready--> Ready
//!     any of these --Failed, or one before it has failed, or Late--> Failed
//! ```
//! All are started at once: only what a machine is told is ordered. A machine that has failed may run nevertheless.

/// A machine's number, in the order of the file.
pub(super) type Index = usize;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Its CPUs run.
    Started(Index),
    /// Its guest answers, with its network and its size, and knows the names of the others.
    Answers(Index),
    /// Its hooks have run, and it shows the sign that it is ready.
    Ready(Index),
    /// It can't become ready.
    Failed(Index, String),
    /// The time is over.
    Late,
    /// Nobody waits any more.
    Cancelled,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Wait for its guest, and tell it the names.
    Greet(Index),
    /// Run its hooks, and wait for the sign that it is ready.
    Join(Index),
    /// Nothing more comes.
    Over(Verdict),
}

/// How an ensemble ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// All machines are ready.
    Whole,
    /// Some are not; those that run stay.
    Half,
    /// All that run are to be ended.
    TakeBack,
}

/// What is known of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Starting,
    Waking,
    Named,
    Joining,
    Ready,
    Failed(String),
}

/// The machines of an ensemble.
pub(super) struct Course {
    /// For each machine those that are ready before it joins.
    after: Vec<Vec<Index>>,
    names: Vec<String>,
    states: Vec<State>,
    all_or_nothing: bool,
    over: bool,
}

impl Course {
    /// Begins; all machines are being started. `after`: for each those that come before it.
    pub fn new(names: Vec<String>, after: Vec<Vec<Index>>, all_or_nothing: bool) -> Course {
        Course {
            states: vec![State::Starting; names.len()],
            after,
            names,
            all_or_nothing,
            over: false,
        }
    }

    /// Returns what is known of a machine.
    pub fn state(&self, machine: Index) -> &State {
        &self.states[machine]
    }

    /// Returns how many machines are ready.
    pub fn ready(&self) -> usize {
        let ready = |state: &&State| **state == State::Ready;
        self.states.iter().filter(ready).count()
    }

    /// Takes an event; returns what is to be done. An event that a machine's state does not expect changes nothing.
    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        if self.over {
            return Vec::new();
        }
        let mut actions = Vec::new();
        match event {
            Event::Started(machine) => {
                if self.step(machine, State::Starting, State::Waking) {
                    actions.push(Action::Greet(machine));
                }
            }
            Event::Answers(machine) => {
                self.step(machine, State::Waking, State::Named);
            }
            Event::Ready(machine) => {
                self.step(machine, State::Joining, State::Ready);
            }
            Event::Failed(machine, why) => self.fail(machine, why),
            Event::Late => {
                for machine in 0..self.states.len() {
                    let why = match &self.states[machine] {
                        State::Starting => "it did not start in time".into(),
                        State::Waking => "its guest did not answer in time".into(),
                        State::Named => self.waited_for(machine),
                        State::Joining => "it did not become ready in time".into(),
                        State::Ready | State::Failed(_) => continue,
                    };
                    self.fail(machine, why);
                }
            }
            Event::Cancelled => {
                self.over = true;
                return vec![Action::Over(Verdict::TakeBack)];
            }
        }
        self.settle(&mut actions);
        actions
    }

    fn step(&mut self, machine: Index, from: State, to: State) -> bool {
        let expected = self.states[machine] == from;
        if expected {
            self.states[machine] = to;
        }
        expected
    }

    fn fail(&mut self, machine: Index, why: String) {
        if !matches!(self.states[machine], State::Ready | State::Failed(_)) {
            self.states[machine] = State::Failed(why);
        }
    }

    fn waited_for(&self, machine: Index) -> String {
        let mut before = self.after[machine].iter();
        let late = before.find(|before| self.states[**before] != State::Ready);
        let late = late.map_or("another", |late| self.names[*late].as_str());
        format!("{late}, which it comes after, was not ready in time")
    }

    /// Does what follows from the machines' states.
    fn settle(&mut self, actions: &mut Vec<Action>) {
        loop {
            let before = self.states.clone();
            for machine in 0..self.states.len() {
                if self.states[machine] != State::Named {
                    continue;
                }
                let failed = |before: &&Index| matches!(self.states[**before], State::Failed(_));
                if let Some(failed) = self.after[machine].iter().find(failed) {
                    let name = &self.names[*failed];
                    let why = format!("{name}, which it comes after, is not ready");
                    self.states[machine] = State::Failed(why);
                } else if self.after[machine]
                    .iter()
                    .all(|before| self.states[*before] == State::Ready)
                {
                    self.states[machine] = State::Joining;
                    actions.push(Action::Join(machine));
                }
            }
            if self.states == before {
                break;
            }
        }
        let failed = |state: &State| matches!(state, State::Failed(_));
        let any_failed = self.states.iter().any(failed);
        let ended = |state: &State| *state == State::Ready || failed(state);
        let verdict = match (any_failed, self.states.iter().all(ended)) {
            (true, _) if self.all_or_nothing => Verdict::TakeBack,
            (true, true) => Verdict::Half,
            (false, true) => Verdict::Whole,
            (_, false) => return,
        };
        self.over = true;
        actions.push(Action::Over(verdict));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn course(after: &[&[Index]], all_or_nothing: bool) -> Course {
        let names = (0..after.len()).map(|n| format!("m{n}"));
        let after = after.iter().map(|before| before.to_vec());
        Course::new(names.collect(), after.collect(), all_or_nothing)
    }

    #[test]
    fn a_machine_joins_once_those_before_it_are_ready() {
        let mut course = course(&[&[], &[0], &[0, 1]], false);
        assert_eq!(course.handle(Event::Started(2)), [Action::Greet(2)]);
        assert!(course.handle(Event::Answers(2)).is_empty());
        assert_eq!(course.handle(Event::Started(0)), [Action::Greet(0)]);
        assert_eq!(course.handle(Event::Answers(0)), [Action::Join(0)]);
        assert_eq!(course.handle(Event::Started(1)), [Action::Greet(1)]);
        assert!(course.handle(Event::Ready(0)).is_empty());
        assert_eq!(course.handle(Event::Answers(1)), [Action::Join(1)]);
        assert_eq!(course.handle(Event::Ready(1)), [Action::Join(2)]);
        let over = course.handle(Event::Ready(2));
        assert_eq!(over, [Action::Over(Verdict::Whole)]);
        assert!(course.handle(Event::Late).is_empty());
    }

    #[test]
    fn half_an_ensemble_says_of_each_machine_why() {
        let mut half = course(&[&[], &[0], &[1], &[]], false);
        for machine in 0..4 {
            half.handle(Event::Started(machine));
            if machine < 3 {
                half.handle(Event::Answers(machine));
            }
        }
        assert!(half.handle(Event::Failed(0, "no disk".into())).is_empty());
        assert_eq!(half.state(0), &State::Failed("no disk".into()));
        let follows =
            |name: &str| State::Failed(format!("{name}, which it comes after, is not ready"));
        assert_eq!(half.state(1), &follows("m0"));
        assert_eq!(half.state(2), &follows("m1"));
        let over = half.handle(Event::Late);
        assert_eq!(over, [Action::Over(Verdict::Half)]);
        assert_eq!(
            half.state(3),
            &State::Failed("its guest did not answer in time".into())
        );
        let mut nothing = course(&[&[], &[]], true);
        nothing.handle(Event::Started(0));
        let over = nothing.handle(Event::Failed(1, "no".into()));
        assert_eq!(over, [Action::Over(Verdict::TakeBack)]);
    }

    fn event(machines: usize) -> impl Strategy<Value = Event> {
        (0..14u8, 0..machines).prop_map(|(kind, machine)| match kind {
            0..=3 => Event::Started(machine),
            4..=7 => Event::Answers(machine),
            8..=11 => Event::Ready(machine),
            12 => Event::Failed(machine, "x".into()),
            _ => Event::Started(machine),
        })
    }

    proptest! {
        /// Whatever comes in whatever order: nobody joins before those that come first are ready, nothing is done twice, and
        /// there is exactly one end, after which nothing is done.
        #[test]
        fn nothing_is_told_too_early_or_twice_and_there_is_one_end(
            seed in proptest::collection::vec(proptest::collection::vec(any::<bool>(), 7), 1..7),
            events in (1usize..7).prop_flat_map(|n| proptest::collection::vec(event(n), 0..80)),
            all_or_nothing: bool,
            cancels: bool,
        ) {
            let after: Vec<Vec<Index>> = seed.iter().enumerate()
                .map(|(at, row)| (0..at).filter(|before| row[*before]).collect()).collect();
            let refs: Vec<&[Index]> = after.iter().map(Vec::as_slice).collect();
            let mut course = course(&refs, all_or_nothing);
            let mut done = Vec::new();
            let known = |event: &Event| match event {
                Event::Started(m) | Event::Answers(m) | Event::Ready(m) | Event::Failed(m, _) => *m < after.len(),
                Event::Late | Event::Cancelled => true,
            };
            let last = if cancels { Event::Cancelled } else { Event::Late };
            for event in events.into_iter().filter(known).chain([last]) {
                let over = done.iter().any(|action| matches!(action, Action::Over(_)));
                for action in course.handle(event) {
                    prop_assert!(!over, "{action:?} after the end");
                    prop_assert!(!done.contains(&action), "{action:?} twice");
                    if let Action::Join(machine) = action {
                        for before in &after[machine] {
                            prop_assert_eq!(course.state(*before), &State::Ready);
                        }
                    }
                    done.push(action);
                }
            }
            let verdicts: Vec<_> = done.iter().filter_map(|action| match action {
                Action::Over(verdict) => Some(*verdict),
                _ => None,
            }).collect();
            prop_assert_eq!(verdicts.len(), 1);
            let whole = course.ready() == after.len();
            prop_assert!(whole == (verdicts[0] == Verdict::Whole) || cancels);
            prop_assert!(verdicts[0] != Verdict::Half || !all_or_nothing);
        }
    }
}
