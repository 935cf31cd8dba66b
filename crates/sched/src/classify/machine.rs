//! What is known of a machine: its inputs, its programs, its streams.

use super::counts::{Counts, Found, Gap};
use super::limits::{
    EPISODE_US, EVIDENCE_MIN, LAUNCH_US, PERIOD_US, PROGRAMS_MAX, STATUS_PROGRAMS_MAX,
    STRANGERS_EVIDENCE_MIN, TAUGHT_EACH_MAX, TAUGHT_MAX,
};
use super::list::{Hand, Known, List, Said};
use super::pace::{Pace, Step};
use super::status::{ProgramStatus, Rule, Status};
use super::streams::{Flow, Streams};
use super::{Op, Owned, Program, Seen};
use crate::Class;
use std::collections::BTreeMap;

/// What is known of a program in a machine.
#[derive(Clone, Debug)]
struct Asker {
    counts: Counts,
    pace: Pace,
    /// Whether it has asked since the last input.
    is_touched: bool,
    requests: u64,
    class: Class,
    rule: Rule,
}

impl Default for Asker {
    fn default() -> Asker {
        Asker {
            counts: Counts::default(),
            pace: Pace::default(),
            is_touched: false,
            requests: 0,
            class: Class::Normal,
            rule: Rule::Unknown,
        }
    }
}

/// A machine, from its start to its end.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub of: Owned,
    /// What its user says of programs in this machine alone.
    pub said: Said,
    /// When the last input came, or the machine began.
    since_us: u64,
    inputs: u64,
    askers: BTreeMap<Program, Asker>,
    /// Those that have asked since the last input.
    touched: Vec<Program>,
    /// All those together of which too little is known by themselves.
    strangers: Counts,
    streams: Streams,
    /// What it has taught its image, and how often.
    taught: BTreeMap<Known, u8>,
    /// Requests by class.
    requests: [u64; 3],
}

impl Machine {
    pub fn new(now_us: u64, of: Owned) -> Machine {
        Machine {
            of,
            said: Said::default(),
            since_us: now_us,
            inputs: 0,
            askers: BTreeMap::new(),
            touched: Vec::new(),
            strangers: Counts::default(),
            streams: Streams::default(),
            taught: BTreeMap::new(),
            requests: [0; 3],
        }
    }

    /// Notes an input, which shows of each request since the last one whether it came after that or before this. What this says of
    /// programs is added to the image's list.
    pub fn input(&mut self, now_us: u64, mut list: Option<&mut List>) {
        let gap = self.gap(now_us);
        self.strangers.settle(now_us, gap);
        for program in std::mem::take(&mut self.touched) {
            let Some(asker) = self.askers.get_mut(&program) else {
                continue;
            };
            asker.is_touched = false;
            let found = asker.counts.settle(now_us, gap);
            if let Some(list) = &mut list {
                self.teach(&program, found, list);
            }
        }
        self.since_us = self.since_us.max(now_us);
        self.inputs = self.inputs.saturating_add(1);
    }

    /// Notes a request, and returns how urgent it is.
    pub fn request(&mut self, now_us: u64, seen: &Seen, list: Option<&List>) -> Class {
        let gap = self.gap(now_us);
        let step = Step {
            now_us,
            bytes: seen.bytes.min(u64::from(u32::MAX)),
            is_sequential: false,
            is_answer: gap.has_input && gap.us < PERIOD_US,
        };
        let place = seen.place.filter(|_| seen.op != Op::Flush);
        let flow = place.map_or(Flow::default(), |place| self.streams.note(place, step));
        let (class, rule) = match seen.program {
            Some(program) => self.known(program, seen.op, gap, step, flow, list),
            None => {
                if seen.op != Op::Write && !flow.is_bulk {
                    self.strangers.add(gap);
                }
                self.unnamed(step, flow)
            }
        };
        self.requests[class as usize] += 1;
        if let Some(asker) = seen
            .program
            .and_then(|program| self.askers.get_mut(program))
        {
            (asker.class, asker.rule) = (class, rule);
        }
        class
    }

    /// Notes a request of a known program, and judges it.
    fn known(
        &mut self,
        program: &Program,
        op: Op,
        gap: Gap,
        step: Step,
        flow: Flow,
        list: Option<&List>,
    ) -> (Class, Rule) {
        if self.askers.len() >= PROGRAMS_MAX && !self.askers.contains_key(program) {
            self.forget_least();
        }
        let said = self.listed(program, list);
        let asker = self.askers.entry(*program).or_default();
        asker.requests += 1;
        asker.pace.note(Step {
            is_sequential: flow.is_sequential,
            ..step
        });
        if !std::mem::replace(&mut asker.is_touched, true) {
            self.touched.push(*program);
        }
        // When a write comes is the guest's affair: it is stored there for half a minute first. Nothing follows from it.
        if op != Op::Write {
            asker.counts.add(gap);
            if !asker.counts.is_settled() && !flow.is_bulk {
                self.strangers.add(gap);
            }
        }
        let asker = &*asker;
        let strangers = self.strangers.settled();
        judge(step, asker, flow, said, strangers)
    }

    /// Judges a request of which nobody knows whose it is.
    fn unnamed(&self, step: Step, flow: Flow) -> (Class, Rule) {
        if flow.is_player {
            (Class::Interactive, Rule::Player)
        } else if flow.is_bulk {
            (Class::Bulk, Rule::Stream)
        } else if step.is_answer && may_answer(self.strangers.settled()) {
            (Class::Interactive, Rule::SoonAfter)
        } else {
            (Class::Normal, Rule::Unknown)
        }
    }

    /// Returns what the lists say of a program: the machine's own first, then what was said of the image, then what was learned.
    fn listed(&self, program: &Program, list: Option<&List>) -> Option<Rule> {
        if let Program::Task(name) = program {
            let of_image = || list.and_then(|list| list.said.of(name));
            match self.said.of(name).or_else(of_image) {
                Some(Hand::Allowed) => return Some(Rule::Allowed),
                Some(Hand::Forbidden) => return Some(Rule::Forbidden),
                None => {}
            }
        }
        let known = self.nameable(program)?;
        list?.is_learned(&known).then_some(Rule::Learned)
    }

    /// Returns by what other machines of the image know a program.
    fn nameable(&self, program: &Program) -> Option<Known> {
        match program {
            Program::Task(name) => Some(Known::Name(*name)),
            Program::File { image, inode } if *image == self.of.image => Some(Known::File(*inode)),
            Program::File { .. } | Program::Space(_) => None,
        }
    }

    /// Adds to the image's list whether a program was interactive in the gap that has ended. A machine does so a few times for each
    /// program and for a few programs: one that lies can't fill the list, nor decide anything alone.
    fn teach(&mut self, program: &Program, found: Found, list: &mut List) {
        let Some(known) = self.nameable(program) else {
            return;
        };
        // A file is read a few times at most, and is in the guest's memory then.
        let enough = match known {
            Known::Name(_) => EVIDENCE_MIN,
            Known::File(_) => 1,
        };
        if found.compared() < enough {
            return;
        }
        if self.taught.len() >= TAUGHT_MAX && !self.taught.contains_key(&known) {
            return;
        }
        let times = self.taught.entry(known).or_default();
        if *times < TAUGHT_EACH_MAX {
            list.learn(known, *times == 0, found.is_interactive());
            *times += 1;
        }
    }

    /// Makes room by forgetting an eighth of the programs: first those of which little is known, then those that asked longest ago.
    fn forget_least(&mut self) {
        let mut worth: Vec<_> = self
            .askers
            .iter()
            .map(|(program, asker)| (asker.counts.is_settled(), asker.pace.last_us(), *program))
            .collect();
        worth.sort_unstable();
        for (_, _, program) in worth.iter().take(PROGRAMS_MAX / 8) {
            self.askers.remove(program);
        }
        self.touched
            .retain(|program| self.askers.contains_key(program));
    }

    pub fn status(&self) -> Status {
        let mut programs: Vec<ProgramStatus> = self
            .askers
            .iter()
            .map(|(program, asker)| ProgramStatus {
                program: *program,
                class: asker.class,
                rule: asker.rule,
                after_inputs: asker.counts.settled().post,
                before_inputs: asker.counts.settled().pre,
                requests: asker.requests,
                last_us: asker.pace.last_us(),
            })
            .collect();
        programs.sort_by_key(|program| (std::cmp::Reverse(program.last_us), program.program));
        programs.truncate(STATUS_PROGRAMS_MAX);
        let strangers = self.strangers.settled();
        Status {
            of: self.of,
            inputs: self.inputs,
            last_input_us: (self.inputs > 0).then_some(self.since_us),
            programs_known: self.askers.len(),
            programs,
            strangers_after_inputs: strangers.post,
            strangers_before_inputs: strangers.pre,
            requests: self.requests,
        }
    }

    fn gap(&self, now_us: u64) -> Gap {
        Gap {
            us: now_us.saturating_sub(self.since_us),
            has_input: self.inputs > 0,
        }
    }
}

/// Returns whether those of whom nothing is known may be answering an input: unless, all together, they go on without regard to
/// inputs.
fn may_answer(strangers: Found) -> bool {
    strangers.compared() < STRANGERS_EVIDENCE_MIN || strangers.is_interactive()
}

/// Judges a request of a known program: the first rule that fits.
fn judge(
    step: Step,
    asker: &Asker,
    flow: Flow,
    listed: Option<Rule>,
    strangers: Found,
) -> (Class, Rule) {
    let pace = &asker.pace;
    let run_us = pace.run_us(step.now_us);
    // what somebody waits for no longer, or never did
    let rest = if pace.is_bulk() || flow.is_bulk {
        Class::Bulk
    } else {
        Class::Normal
    };
    match listed {
        Some(Rule::Forbidden) => return (rest, Rule::Forbidden),
        Some(rule) => return (Class::Interactive, rule),
        None => {}
    }
    if pace.is_player() {
        return (Class::Interactive, Rule::Player);
    }
    if asker.counts.is_settled() {
        let is_interactive = asker.counts.settled().is_interactive();
        return match (is_interactive, run_us <= EPISODE_US || step.is_answer) {
            (true, true) => (Class::Interactive, Rule::Counts),
            (true, false) => (rest, Rule::GoesOn),
            (false, _) => (rest, Rule::Counts),
        };
    }
    if flow.is_bulk {
        (Class::Bulk, Rule::Stream)
    } else if !pace.is_answer() || !may_answer(strangers) {
        (rest, Rule::Unknown)
    } else if run_us > LAUNCH_US {
        (rest, Rule::GoesOn)
    } else {
        (Class::Interactive, Rule::Launch)
    }
}
