//! What is known of a machine: its inputs, its programs, its streams.

use super::counts::{Counts, Gap};
use super::limits::{
    EPISODE_US, EVIDENCE_MIN, LAUNCH_US, PERIOD_US, PROGRAMS_MAX, PROMPT_PAUSE_US, PROMPT_US,
    RUN_WEIGHT, STATUS_PROGRAMS_MAX, TAUGHT_EACH_MAX, TAUGHT_MAX, THRESHOLD_PERCENT, VOTES_MIN,
};
use super::list::{Hand, List, Said};
use super::pace::{Pace, Step};
use super::runs::{Chance, Runs, soon};
use super::status::{ProgramStatus, Rule, Status, Unnamed};
use super::streams::{Flow, Streams};
use super::told::{Asked, Heard, Told as Word};
use super::{Name, Owned, Program, Seen, Source, Verdict};
use crate::Class;
use crate::Op;
use std::collections::{BTreeMap, HashMap};

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

/// The strangers, counted together: all of whom too little is known by themselves, which are programs that have just appeared, files that
/// are read for the first time, and requests of which nobody knows who asks. Who they are changes all the time, so they are judged by the
/// last input alone.
#[derive(Clone, Debug, Default)]
struct Strangers {
    counts: Counts,
    /// Their requests before the last input,
    before: u32,
    /// and in how long a time.
    before_us: u64,
    /// Whether what they ask for without a pause began promptly after an input.
    is_prompt: bool,
    last_us: u64,
}

impl Strangers {
    fn add(&mut self, now_us: u64, gap: Gap) {
        self.counts.add(gap);
        if now_us.saturating_sub(self.last_us) > PROMPT_PAUSE_US || self.last_us == 0 {
            self.is_prompt = gap.has_input && gap.us < PROMPT_US;
        }
        self.last_us = now_us;
    }

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
    /// Looked for with each request, so not in an order. Whatever goes through them puts them in one, so that the same calls have the same
    /// answers.
    askers: HashMap<Program, Asker>,
    /// Those that have asked since the last input.
    touched: Vec<Program>,
    strangers: Strangers,
    /// The reads of nobody that is known.
    nobodys: Option<Unnamed>,
    chance: Chance,
    streams: Streams,
    /// What its agent has told.
    heard: Heard,
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
            askers: HashMap::new(),
            touched: Vec::new(),
            strangers: Strangers::default(),
            nobodys: None,
            chance: Chance::default(),
            streams: Streams::default(),
            heard: Heard::default(),
            taught: BTreeMap::new(),
            requests: [0; 3],
        }
    }

    /// Notes an input, which shows of each request since the last one whether it came after that or before this. What this says of
    /// programs is added to the image's list.
    pub fn input(&mut self, now_us: u64, mut list: Option<&mut List>) {
        let gap = self.gap(now_us);
        self.strangers.input(now_us, gap);
        self.chance.note(gap);
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

    /// Notes what its agent tells: whose the requests of the last moments were.
    pub fn told(&mut self, now_us: u64, told: &[Word]) {
        for (name, asked) in self.heard.told(now_us, told) {
            // what came before the last input can't be compared any more
            let gap = (asked.step.now_us >= self.since_us).then(|| self.gap(asked.step.now_us));
            self.note(&Program::Task(name), asked.op, gap, asked.step);
        }
    }

    /// Notes a request, and returns how urgent it is.
    pub fn request(&mut self, now_us: u64, seen: &Seen, list: Option<&List>) -> Verdict {
        let gap = self.gap(now_us);
        let step = Step {
            now_us,
            bytes: seen.bytes.min(u64::from(u32::MAX)),
            is_sequential: false,
            soon: soon(gap),
        };
        let place = seen.place.filter(|_| seen.op != Op::Flush);
        let file = seen.program.copied().filter(is_file);
        let folder = seen.folder.copied().filter(|_| file.is_some());
        let flow = place.map_or(Flow::default(), |place| {
            self.streams.note(place, file, step)
        });
        let step = Step {
            is_sequential: flow.is_sequential,
            ..step
        };
        let named = place.and_then(|place| {
            let asked = Asked {
                step,
                op: seen.op,
                offset: place.offset,
                file,
                folder,
            };
            self.heard.who(asked)
        });
        let folder = folder.map(|folder| self.folder(&folder, seen.op, gap, step));
        let source = match (named, seen.program) {
            (Some(_), _) => Source::Agent,
            (None, Some(_)) => Source::Caller,
            (None, None) => Source::Nothing,
        };
        let program = named.map(Program::Task).or(seen.program.copied());
        let (class, rule) = match &program {
            Some(program) => {
                // whether it is the agent's word for it comes later, and only then does anything follow from it
                let guess = named.map(|_| self.asker_with(program, step));
                if guess.is_none() {
                    self.note(program, seen.op, Some(gap), step);
                }
                let folder = folder.filter(|_| named.is_none());
                self.known((program, folder, guess), seen.op, gap, step, flow, list)
            }
            None => {
                if seen.op == Op::Read && !flow.is_bulk {
                    self.strangers.add(now_us, gap);
                }
                let (class, rule) = self.unnamed(gap, step, flow);
                if seen.op == Op::Read {
                    self.nobodys = Some(Unnamed {
                        reads: self.nobodys.map_or(0, |before| before.reads) + 1,
                        class,
                        rule,
                        last_us: now_us,
                    });
                }
                (class, rule)
            }
        };
        self.requests[class as usize] += 1;
        let asker = program.and_then(|program| self.askers.get_mut(&program));
        if let Some(asker) = asker {
            (asker.class, asker.rule) = (class, rule);
        }
        Verdict {
            class,
            rule,
            source,
            program,
        }
    }

    /// Notes a request of a file's directory, and returns what that says of the file.
    fn folder(&mut self, folder: &Program, op: Op, gap: Gap, step: Step) -> Folder {
        let asker = self.note(folder, op, Some(gap), step);
        let is_known = asker.counts.is_settled() && asker.counts.votes() >= VOTES_MIN;
        Folder {
            is_answer: is_known.then(|| asker.is_interactive() && asker.pace.is_answer()),
            is_prompt: asker.pace.is_prompt(),
        }
    }

    /// Returns what would be known of a program after this request, without noting it.
    fn asker_with(&self, program: &Program, step: Step) -> Asker {
        let mut asker = self.askers.get(program).cloned().unwrap_or_default();
        asker.pace.note(step);
        asker
    }

    /// Notes a request of somebody. `gap` is `None` if it has ended since.
    fn note(&mut self, program: &Program, op: Op, gap: Option<Gap>, step: Step) -> &mut Asker {
        if self.askers.len() >= PROGRAMS_MAX && !self.askers.contains_key(program) {
            self.forget_least();
        }
        let asker = self.askers.entry(*program).or_default();
        asker.requests += 1;
        asker.pace.note(step);
        if !std::mem::replace(&mut asker.is_touched, true) {
            self.touched.push(*program);
        }
        // When a write or a flush comes is the guest's affair: it is stored there for half a minute first. Nothing follows from it.
        if op == Op::Read {
            if let Some(gap) = gap {
                asker.counts.add(gap);
            }
            if asker.pace.requests() <= RUN_WEIGHT {
                asker.runs.add(asker.pace.soon(), self.chance);
            }
        }
        asker
    }

    /// Judges a request of a known program; `folder` is what is known of the directory of a file. `guess` is what would be known of it
    /// with this request, if that isn't noted yet.
    fn known(
        &mut self,
        (program, folder, guess): (&Program, Option<Folder>, Option<Asker>),
        op: Op,
        gap: Gap,
        step: Step,
        flow: Flow,
        list: Option<&List>,
    ) -> (Class, Rule) {
        // it is there: a request is noted before it is judged
        let Some(asker) = guess.as_ref().or_else(|| self.askers.get(program)) else {
            return self.unnamed(gap, step, flow);
        };
        let is_launch = self.strangers.may_answer(gap);
        let is_known =
            asker.counts.is_settled() || folder.is_some_and(|folder| folder.is_answer.is_some());
        if op == Op::Read && !is_known && !flow.is_bulk {
            self.strangers.add(step.now_us, gap);
        }
        let told = Told {
            by_hand: self.said(program, list),
            learned: name(program).and_then(|name| list?.belief(name)),
            is_file: is_file(program),
            folder: folder.and_then(|folder| folder.is_answer),
            is_launch,
            is_prompt: self.strangers.is_prompt || folder.is_some_and(|folder| folder.is_prompt),
        };
        judge(step, asker, flow, told)
    }

    /// Judges a request of which nobody knows whose it is.
    fn unnamed(&self, gap: Gap, step: Step, flow: Flow) -> (Class, Rule) {
        if flow.is_player {
            (Class::Interactive, Rule::Player)
        } else if flow.is_bulk {
            (Class::Bulk, Rule::Stream)
        } else if step.is_answer() && self.strangers.may_answer(gap) {
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
            unnamed: self.nobodys,
            strangers_after_input: self.strangers.counts.after(),
            strangers_before_input: self.strangers.before,
            words: self.heard.words(),
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

/// Returns the name by which other machines of the image know a program; `None` for a file, of which nothing is learned.
fn name(program: &Program) -> Option<&Name> {
    match program {
        Program::Task(name) => Some(name),
        // An application's files are not learned: a launch is found without that, and a scan reads the same files.
        Program::File { .. } | Program::Folder { .. } => None,
    }
}

fn is_file(program: &Program) -> bool {
    matches!(program, Program::File { .. })
}

/// What is known of the directory of a file.
#[derive(Clone, Copy, Debug)]
struct Folder {
    /// Whether it was read on inputs until now, and begins to be read on one now, if enough is known of it.
    is_answer: Option<bool>,
    /// Whether it begins to be read promptly after an input, after a pause.
    is_prompt: bool,
}

/// What is known of a program from elsewhere.
#[derive(Clone, Copy, Debug)]
struct Told {
    by_hand: Option<Hand>,
    learned: Option<bool>,
    /// Whether it is no program but a file,
    is_file: bool,
    /// and whether the other files of its directory are read on inputs, as this one is, if that is known.
    folder: Option<bool>,
    /// Whether something may have been launched, because strangers ask for more than before the last input.
    is_launch: bool,
    /// Whether it would have begun promptly after the input: all strangers, or its directory.
    is_prompt: bool,
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
            // what it does by itself isn't waited for either
            asker.runs.may_be_answer(pace.soon())
                && (told.is_launch || asker.counts.votes() >= VOTES_MIN || pace.is_prompt())
        };
        let is_waited_for = run_us <= EPISODE_US || step.is_answer();
        return match (asker.is_interactive() && is_sure, is_waited_for) {
            (true, true) => (Class::Interactive, Rule::Counts),
            (true, false) => (rest, Rule::GoesOn),
            (false, _) => (rest, Rule::Counts),
        };
    }
    let began = !told.is_file || told.is_prompt || told.folder == Some(true);
    if told.learned == Some(false) {
        (rest, Rule::Learned)
    } else if told.folder == Some(false) {
        (rest, Rule::Counts)
    } else if !(began && pace.is_answer() && asker.runs.may_answer() && told.is_launch) {
        (rest, Rule::Unknown)
    } else if run_us > LAUNCH_US {
        (rest, Rule::GoesOn)
    } else {
        (Class::Interactive, Rule::Launch)
    }
}
