//! The inputs of users that wait for one machine, and which of them are said next. No I/O and no clock.
//!
//! ```text
//! typed -> sorted -> (durable) -> kept -> next -> said -> taken -> forgotten
//!                                   ^-------- no answer --'
//! ```
//! Each input is a source's, which numbers its own from 1. All wait in the order in which they came, and the next ones are said only once
//! the guest's agent has answered for those before, so they are in order. What has no answer is said again, and the agent knows which of
//! it the guest has got already ([`Taken`](floe_guest::input::Taken)): whatever is cut, no input is lost and none comes twice. Nothing
//! here is needed for that but the inputs themselves; what was known of a source's numbers may be forgotten.

use floe_guest::input::{INPUTS_MAX, Input, Inputs};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most inputs that wait for a machine.
pub const WAITING_MAX: usize = 16_384;
/// Most bytes of texts among them.
pub(crate) const WAITING_BYTES_MAX: usize = 1 << 20;
/// The longest time that is kept between two inputs, in ms: nobody waits for longer.
pub(crate) const GAP_MS_MAX: u64 = 60_000;
/// How many sources' last numbers are known.
const SOURCES_MAX: usize = 256;

/// An input that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its source.
    pub from: u64,
    /// Its number.
    pub number: u64,
    /// How long after the one before it is to be given, in ms; 0 if as soon as the guest takes it.
    pub gap_ms: u64,
    /// The input.
    pub input: Input,
}

/// Why inputs are not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unkept {
    /// Some before them are missing: the source goes on after this number.
    After(u64),
    /// So much waits already that there is no room.
    Full,
}

/// What is said next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing waits.
    Nothing,
    /// Nothing before this time, in ms.
    At(u64),
    /// These inputs.
    Say(Inputs),
}

/// What waits for one machine.
#[derive(Clone, Debug, Default)]
pub struct Waiting {
    all: VecDeque<Kept>,
    bytes: usize,
    /// The last number of each source that is kept, or was.
    last: BTreeMap<u64, u64>,
    /// When the guest got the last one, in ms.
    taken_ms: Option<u64>,
    /// Up to which of the first one's source's inputs were said without an answer: the guest may have got them.
    said: Option<(u64, u64)>,
    /// The same before the last ones were said.
    before: Option<(u64, u64)>,
}

fn bytes_of(input: &Input) -> usize {
    match input {
        Input::Text(bytes) => bytes.len(),
        _ => 0,
    }
}

impl Waiting {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How many inputs wait.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns all that waits, in order.
    pub fn all(&self) -> impl Iterator<Item = &Kept> {
        self.all.iter()
    }

    /// Returns those of one source's inputs, which follow on each other, that are new. They are written down, and then
    /// [kept](Waiting::keep).
    pub fn sort(&self, mut inputs: Vec<Kept>) -> Result<Vec<Kept>, Unkept> {
        if let Some(first) = inputs.first()
            && let Some(last) = self.last.get(&first.from)
        {
            if first.number > last.saturating_add(1) {
                return Err(Unkept::After(*last));
            }
            inputs.retain(|kept| kept.number > *last);
        }
        let bytes: usize = inputs.iter().map(|kept| bytes_of(&kept.input)).sum();
        match self.all.len() + inputs.len() > WAITING_MAX || self.bytes + bytes > WAITING_BYTES_MAX
        {
            true => Err(Unkept::Full),
            false => Ok(inputs),
        }
    }

    /// Keeps inputs after those that wait.
    pub fn keep(&mut self, inputs: Vec<Kept>) {
        for kept in inputs {
            self.bytes += bytes_of(&kept.input);
            self.last.insert(kept.from, kept.number);
            self.all.push_back(kept);
        }
        if self.last.len() > SOURCES_MAX {
            // what is sent again of a source that is not known here, the agent knows
            let waiting: BTreeSet<u64> = self.all.iter().map(|kept| kept.from).collect();
            self.last.retain(|from, _| waiting.contains(from));
        }
    }

    /// Returns what is said next. Those that are due together are said together, if they are one source's.
    pub fn next(&self, now_ms: u64) -> Next {
        let Some(first) = self.all.front() else {
            return Next::Nothing;
        };
        // what has waited for longer than its gap does not wait again, and the first of all has none before it
        let due_ms = self
            .taken_ms
            .map_or(0, |taken_ms| taken_ms.saturating_add(first.gap_ms));
        if due_ms > now_ms {
            return Next::At(due_ms);
        }
        let follows = |(at, kept): &(usize, &Kept)| {
            let number = first.number + *at as u64;
            kept.from == first.from && kept.number == number && (*at == 0 || kept.gap_ms == 0)
        };
        let together = self.all.iter().take(INPUTS_MAX).enumerate();
        let together: Vec<&Input> = together
            .take_while(follows)
            .map(|(_, kept)| &kept.input)
            .collect();
        let count = Inputs::fit(together.iter().copied());
        Next::Say(Inputs {
            from: first.from,
            first: first.number,
            events: together.into_iter().take(count).cloned().collect(),
        })
    }

    /// Notes that inputs are said now, after which nobody knows whether the guest has got them before it answers. Returns whether that is
    /// new.
    pub fn was_said(&mut self, inputs: &Inputs) -> bool {
        self.before = self.said;
        let is_known = self
            .said
            .is_some_and(|(from, last)| from == inputs.from && last >= inputs.last());
        if !is_known {
            self.said = Some((inputs.from, inputs.last()));
        }
        !is_known
    }

    /// Notes that the last ones were not said after all: nobody was there to hear of them.
    pub fn was_not_said(&mut self) {
        self.said = self.before;
    }

    /// Notes up to which of a source's inputs were said by an earlier node.
    pub fn were_said(&mut self, said: Option<(u64, u64)>) {
        self.said = said;
    }

    /// Notes which of each source's inputs an earlier node had kept at least: those are not kept again.
    pub fn were_kept(&mut self, last: &BTreeMap<u64, u64>) {
        for (from, number) in last {
            let known = self.last.entry(*from).or_default();
            *known = (*known).max(*number);
        }
    }

    /// Returns up to which of a source's inputs were said without an answer.
    pub fn said(&self) -> Option<(u64, u64)> {
        self.said
    }

    /// Whether the guest may have got some of these inputs: they must not come by another way.
    pub fn may_be_there(&self, inputs: &Inputs) -> bool {
        self.said
            .is_some_and(|(from, last)| from == inputs.from && last >= inputs.first)
    }

    /// The guest has got a source's inputs up to this number: forgets them. Returns how many that were.
    pub fn taken(&mut self, now_ms: u64, from: u64, number: u64) -> usize {
        let mut count = 0;
        while let Some(first) = self.all.front()
            && first.from == from
            && first.number <= number
        {
            self.bytes -= bytes_of(&first.input);
            self.all.pop_front();
            count += 1;
        }
        if count > 0 {
            self.taken_ms = Some(now_ms);
        }
        count
    }
}

/// Returns the one of these inputs that an agent cannot give: the first, or that after the last one that it has given. Of those before
/// these that came another way it knows nothing, and so it may name a number before them.
pub(crate) fn next_of(batch: &Inputs, number: u64) -> Option<Inputs> {
    let first = number.checked_add(1)?.max(batch.first);
    let at = first - batch.first;
    let next = batch.events.get(usize::try_from(at).ok()?)?;
    Some(Inputs {
        from: batch.from,
        first,
        events: vec![next.clone()],
    })
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
