//! Inputs that the agent of a guest gives to it: one message at a time for each source, and its answer.
//!
//! Who keeps the inputs, and for how long, is decided elsewhere (`inputs`); here they are said once and waited for.

use super::{Agents, is_of};
use floe_guest::input::Inputs;
use floe_machine::Machine;
use parking_lot::{Condvar, Mutex};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long an agent has to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// Says something to an agent; returns whether it was sent.
pub type Say = dyn Fn(&Inputs) -> bool + Send + Sync;

/// What is known of a guest's agent.
#[derive(Clone, Default)]
enum Agent {
    /// It has not answered, or is not ready yet.
    #[default]
    Silent,
    /// It takes no inputs.
    Old,
    Ready(Arc<Say>),
}

#[derive(Default)]
struct Inner {
    agent: Agent,
    /// The session with it.
    session: u64,
    /// The sources of which something was said and is not answered, with the answer once it has come.
    asked: BTreeMap<u64, Option<(u64, Option<String>)>>,
}

/// The inputs of one machine.
#[derive(Default)]
pub struct Typed {
    inner: Mutex<Inner>,
    /// Wakes those who wait for an answer.
    changed: Condvar,
}

/// What became of inputs.
#[derive(Debug)]
pub enum Given {
    /// The guest has got those up to this number, and perhaps why it can't get the next one.
    Taken(u64, Option<String>),
    /// Nobody was told of them: no agent answers.
    Silent,
    /// Nobody was told of them: the agent is one that takes none.
    Old,
    /// They were said, and there is no answer.
    Unheard,
}

impl Typed {
    /// An agent is ready in this session, and takes inputs if `say` is how it is told of them.
    pub fn begin(&self, session: u64, say: Option<Arc<Say>>) {
        let mut inner = self.inner.lock();
        // one that has set its clock anew is still there, and what it was told is under way
        if inner.session != session {
            inner.asked.clear();
        }
        inner.session = session;
        inner.agent = say.map_or(Agent::Old, Agent::Ready);
        self.changed.notify_all();
    }

    /// The conversation is over.
    pub fn lose(&self) {
        *self.inner.lock() = Inner::default();
        self.changed.notify_all();
    }

    /// An agent has answered. Returns whether somebody has waited for that.
    pub fn took(&self, from: u64, number: u64, why: &Option<String>) -> bool {
        let mut inner = self.inner.lock();
        match inner.asked.get_mut(&from) {
            Some(answer) if answer.is_none() => *answer = Some((number, why.clone())),
            _ => return false,
        }
        self.changed.notify_all();
        true
    }

    fn takes_inputs(&self) -> Option<bool> {
        match self.inner.lock().agent {
            Agent::Silent => None,
            Agent::Old => Some(false),
            Agent::Ready(_) => Some(true),
        }
    }

    fn give(&self, inputs: &Inputs) -> Given {
        let mut inner = self.inner.lock();
        let say = match &inner.agent {
            Agent::Silent => return Given::Silent,
            Agent::Old => return Given::Old,
            Agent::Ready(say) => say.clone(),
        };
        let session = inner.session;
        inner.asked.insert(inputs.from, None);
        drop(inner);
        let was_said = say(inputs);
        let until = Instant::now() + ANSWER_WAIT;
        let mut inner = self.inner.lock();
        loop {
            if !was_said || inner.session != session {
                return Given::Unheard;
            }
            match inner.asked.get(&inputs.from) {
                Some(None) => {}
                Some(Some(_)) => break,
                None => return Given::Unheard,
            }
            if self.changed.wait_until(&mut inner, until).timed_out() {
                inner.asked.remove(&inputs.from);
                return Given::Unheard;
            }
        }
        match inner.asked.remove(&inputs.from).flatten() {
            Some((number, why)) => Given::Taken(number, why),
            None => Given::Unheard,
        }
    }
}

impl Agents {
    /// Returns what inputs of a QEMU's guest are given through.
    pub fn typed_of(&self, vm: &Arc<Machine>) -> Arc<Typed> {
        let mut known = self.typed.lock();
        if let Some((_, typed)) = known.iter().find(|(of, _)| is_of(of, vm)) {
            return typed.clone();
        }
        known.retain(|(of, _)| of.strong_count() > 0);
        let typed = Arc::<Typed>::default();
        known.push((Arc::downgrade(vm), typed.clone()));
        typed
    }

    /// Whether a guest's agent takes inputs; `None` while no agent answers.
    pub fn takes_inputs(&self, vm: &Arc<Machine>) -> Option<bool> {
        self.typed_of(vm).takes_inputs()
    }

    /// Has a guest's agent give these inputs to it, and waits for its answer for some seconds.
    pub fn give(&self, vm: &Arc<Machine>, inputs: &Inputs) -> Given {
        self.typed_of(vm).give(inputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_guest::input::Input;
    use std::sync::Weak;

    fn inputs(first: u64) -> Inputs {
        Inputs {
            from: 7,
            first,
            events: vec![Input::Text(vec![b'a'])],
        }
    }

    #[test]
    fn what_is_said_is_answered_and_what_nobody_waits_for_is_not() {
        let typed = Arc::new(Typed::default());
        assert!(matches!(typed.give(&inputs(1)), Given::Silent));
        typed.begin(1, None);
        assert!(matches!(typed.give(&inputs(1)), Given::Old));
        assert!(!typed.took(7, 1, &None));
        // an agent that answers at once, but for one input
        let agent: Weak<Typed> = Arc::downgrade(&typed);
        let say = move |inputs: &Inputs| {
            let typed = agent.upgrade().unwrap();
            match inputs.first {
                3 => typed.lose(),
                first => assert!(typed.took(7, first, &None)),
            }
            inputs.first != 4
        };
        let say: Arc<Say> = Arc::new(say);
        typed.begin(2, Some(say.clone()));
        assert!(matches!(typed.give(&inputs(2)), Given::Taken(2, None)));
        assert!(!typed.took(7, 2, &None), "it was answered before");
        assert!(matches!(typed.give(&inputs(3)), Given::Unheard));
        assert!(matches!(typed.give(&inputs(3)), Given::Silent));
        typed.begin(3, Some(say));
        assert!(matches!(typed.give(&inputs(4)), Given::Unheard));
    }
}
