//! What is known of a machine: its inputs, its programs, its streams.

use super::counts::{Counts, Gap};
use super::limits::{
    EPISODE_US, EVIDENCE_MIN, LAUNCH_US, PERIOD_US, PROGRAMS_MAX, RUN_WEIGHT, RUNS_WEIGHT_MAX,
    RUNS_WEIGHT_MIN, STATUS_PROGRAMS_MAX, TAUGHT_EACH_MAX, TAUGHT_MAX, THRESHOLD_PERCENT,
    VOTES_MIN,
};
use super::list::{Hand, List, Said};
use super::pace::{Pace, Step};
use super::status::{ProgramStatus, Rule, Status};
use super::streams::{Flow, Streams};
use super::{Name, Owned, Program, Seen};
use crate::Class;
use crate::Op;
use std::collections::BTreeMap;

/// What is known of a program in a machine.
#[derive(Clone, Debug)]
struct Asker {
    counts: Counts,
    pace: Pace,
    runs: Runs,
    /// Whether it has asked since the last input.
    is_touched: bool,
    requests: u64,
    class: Class,
    rule: Rule,
}

impl Asker {
    fn is_interactive(&self) -> bool {
        self.counts.is_interactive() && self.runs.may_answer()
    }
}

impl Default for Asker {
    fn default() -> Asker {
        Asker {
            counts: Counts::default(),
            pace: Pace::default(),
            runs: Runs::default(),
            is_touched: false,
            requests: 0,
            class: Class::Normal,
            rule: Rule::Unknown,
        }
    }
}

/// How a program's runs begin. What looks for updates now and then comes just after an input or just before one by chance, and the
/// paper's counts alone take long to show that neither means anything; but then most of its runs begin at other times.
#[derive(Clone, Copy, Debug, Default)]
struct Runs {
    /// The weight of all of them: their requests, up to [`RUN_WEIGHT`] of each.
    weight: u32,
    /// The weight of those that began soon after an input.
    answers: u32,
}

impl Runs {
    fn add(&mut self, is_answer: bool) {
        self.weight += 1;
        self.answers += u32::from(is_answer);
        if self.weight > RUNS_WEIGHT_MAX {
            self.weight /= 2;
            self.answers /= 2;
        }
    }

    /// Returns whether they may be answers to inputs.
    fn may_answer(self) -> bool {
        let (weight, answers) = (u64::from(self.weight), u64::from(self.answers));
        self.weight < RUNS_WEIGHT_MIN || answers * 100 > weight * THRESHOLD_PERCENT
    }
}

/// All those together of whom too little is known by themselves: programs that have just appeared, files that are read for the
/// first time, and requests without any name. Who they are changes all the time, so they are judged by the last input alone.
#[derive(Clone, Debug, Default)]
struct Strangers {
    counts: Counts,
    /// Their requests before the last input,
    before: u32,
    /// and in how long a time.
    before_us: u64,
}

impl Strangers {
    fn input(&mut self, now_us: u64, gap: Gap) {
        let found = self.counts.settle(now_us, gap);
        if gap.period_us() > 0 {
            self.before = found.pre;
            self.before_us = gap.period_us();
        }
    }

    /// Returns whether they may be answering the last input, because they ask for more than before it.
    fn may_answer(&self, gap: Gap) -> bool {
        let usual = u64::from(self.before) * gap.us.min(PERIOD_US) / self.before_us.max(1);
        let after = u64::from(self.counts.after());
        // two more, so that the first one isn't judged by a few milliseconds
        self.before < EVIDENCE_MIN || after * 100 > (after + usual + 2) * THRESHOLD_PERCENT
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
    strangers: Strangers,
    streams: Streams,
    /// What it has taught its image, and how often.
    taught: BTreeMap<Name, u8>,
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
            strangers: Strangers::default(),
            streams: Streams::default(),
            taught: BTreeMap::new(),
            requests: [0; 3],
        }
    }

    /// Notes an input, which shows of each request since the last one whether it came after that or before this. What this says of
    /// programs is added to the image's list.
    pub fn input(&mut self, now_us: u64, mut list: Option<&mut List>) {
        let gap = self.gap(now_us);
        self.strangers.input(now_us, gap);
        for program in std::mem::take(&mut self.touched) {
            let Some(asker) = self.askers.get_mut(&program) else {
                continue;
            };
            asker.is_touched = false;
            let found = asker.counts.settle(now_us, gap);
            let is_interactive = found.is_interactive() && asker.is_interactive();
            if let Some(list) = &mut list {
                self.teach(&program, found.compared(), is_interactive, list);
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
                    self.strangers.counts.add(gap);
                }
                self.unnamed(gap, step, flow)
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
        let told = Told {
            by_hand: self.said(program, list),
            learned: name(program).and_then(|name| list?.belief(name)),
            is_file: matches!(program, Program::File { .. }),
            is_launch: self.strangers.may_answer(gap),
        };
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
            if asker.pace.requests() <= RUN_WEIGHT {
                asker.runs.add(asker.pace.is_answer());
            }
            if !asker.counts.is_settled() && !flow.is_bulk {
                self.strangers.counts.add(gap);
            }
        }
        judge(step, asker, flow, told)
    }

    /// Judges a request of which nobody knows whose it is.
    fn unnamed(&self, gap: Gap, step: Step, flow: Flow) -> (Class, Rule) {
        if flow.is_player {
            (Class::Interactive, Rule::Player)
        } else if flow.is_bulk {
            (Class::Bulk, Rule::Stream)
        } else if step.is_answer && self.strangers.may_answer(gap) {
            (Class::Interactive, Rule::SoonAfter)
        } else {
            (Class::Normal, Rule::Unknown)
        }
    }

    /// Returns what somebody has said of a program by hand: in this machine, or else of the image.
    fn said(&self, program: &Program, list: Option<&List>) -> Option<Hand> {
        let name = name(program)?;
        let of_image = || list.and_then(|list| list.said.of(name));
        self.said.of(name).or_else(of_image)
    }

    /// Adds to the image's list whether a program was interactive in the gap that has ended. A machine does so a few times for each
    /// program and for a few programs: one that lies can't fill the list, nor decide anything alone.
    fn teach(&mut self, program: &Program, compared: u32, is_interactive: bool, list: &mut List) {
        let Some(name) = name(program) else {
            return;
        };
        if compared < EVIDENCE_MIN {
            return;
        }
        if self.taught.len() >= TAUGHT_MAX && !self.taught.contains_key(name) {
            return;
        }
        let times = self.taught.entry(*name).or_default();
        if *times < TAUGHT_EACH_MAX {
            list.learn(*name, *times == 0, is_interactive);
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
        Status {
            of: self.of,
            inputs: self.inputs,
            last_input_us: (self.inputs > 0).then_some(self.since_us),
            programs_known: self.askers.len(),
            programs,
            strangers_after_input: self.strangers.counts.after(),
            strangers_before_input: self.strangers.before,
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

/// Returns by what other machines of the image know a program.
fn name(program: &Program) -> Option<&Name> {
    match program {
        Program::Task(name) => Some(name),
        // An application's files are not learned: a launch is found without that, and a scan reads the same files.
        Program::File { .. } | Program::Space(_) => None,
    }
}

/// What is known of a program from elsewhere.
#[derive(Clone, Copy, Debug)]
struct Told {
    by_hand: Option<Hand>,
    learned: Option<bool>,
    /// Whether it is no program but a file.
    is_file: bool,
    /// Whether something may have been launched, because strangers ask for more than before the last input.
    is_launch: bool,
}

/// Judges a request of a known program: the first rule that fits.
fn judge(step: Step, asker: &Asker, flow: Flow, told: Told) -> (Class, Rule) {
    let pace = &asker.pace;
    let run_us = pace.run_us(step.now_us);
    // what somebody waits for no longer, or never did
    let rest = if pace.is_bulk() || flow.is_bulk {
        Class::Bulk
    } else {
        Class::Normal
    };
    match told.by_hand {
        Some(Hand::Allowed) => return (Class::Interactive, Rule::Allowed),
        Some(Hand::Forbidden) => return (rest, Rule::Forbidden),
        None => {}
    }
    if pace.is_player() {
        return (Class::Interactive, Rule::Player);
    }
    if flow.is_bulk {
        return (Class::Bulk, Rule::Stream);
    }
    if told.learned == Some(true) {
        return (Class::Interactive, Rule::Learned);
    }
    if asker.counts.is_settled() {
        let is_sure = if told.is_file {
            // whoever reads it now may be another one than before
            told.is_launch && pace.is_answer()
        } else {
            told.is_launch || asker.counts.votes() >= VOTES_MIN
        };
        let is_waited_for = run_us <= EPISODE_US || step.is_answer;
        return match (asker.is_interactive() && is_sure, is_waited_for) {
            (true, true) => (Class::Interactive, Rule::Counts),
            (true, false) => (rest, Rule::GoesOn),
            (false, _) => (rest, Rule::Counts),
        };
    }
    if told.learned == Some(false) {
        (rest, Rule::Learned)
    } else if !pace.is_answer() || !asker.runs.may_answer() || !told.is_launch {
        (rest, Rule::Unknown)
    } else if run_us > LAUNCH_US {
        (rest, Rule::GoesOn)
    } else {
        (Class::Interactive, Rule::Launch)
    }
}
