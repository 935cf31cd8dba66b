//! What a user is told: who is interactive in a machine, and why.

use super::{Owned, Program};
use crate::Class;
use std::fmt;

/// Why a request has its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Somebody has said by hand that the program is interactive.
    Allowed,
    /// Somebody has said by hand that the program is not.
    Forbidden,
    /// Other machines with the same base disk have shown whether the program is interactive.
    Learned,
    /// It started on an input, and reads on as steadily and modestly as a film is shown.
    Player,
    /// Its requests before and after inputs were compared.
    Counts,
    /// It started on an input a moment ago, and nothing else is known of it.
    Launch,
    /// It has gone on for longer than anybody waits.
    GoesOn,
    /// It belongs to a long and fast sequential stream.
    Stream,
    /// Nobody knows whose it is, but it came soon after an input.
    SoonAfter,
    /// Nothing speaks for any other class.
    Unknown,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rule::Allowed => "allowed by hand",
            Rule::Forbidden => "forbidden by hand",
            Rule::Learned => "learned from machines with its base disk",
            Rule::Player => "reads like a player",
            Rule::Counts => "requests after inputs against requests before",
            Rule::Launch => "started on an input just now",
            Rule::GoesOn => "goes on for longer than anybody waits",
            Rule::Stream => "a long sequential stream",
            Rule::SoonAfter => "soon after an input",
            Rule::Unknown => "nothing known",
        })
    }
}

/// What is known of a program in a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramStatus {
    /// The program.
    pub program: Program,
    /// The class of its last request.
    pub class: Class,
    /// The rule that gave it this class.
    pub rule: Rule,
    /// Its requests that came after inputs, of those that were compared and haven't aged away.
    pub after_inputs: u32,
    /// The same before inputs.
    pub before_inputs: u32,
    /// All of its requests.
    pub requests: u64,
    /// When it asked last.
    pub last_us: u64,
}

/// What is known of a machine's reads of which neither program nor file is known, those of its memory among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unnamed {
    /// All of them.
    pub reads: u64,
    /// The class of the last one.
    pub class: Class,
    /// The rule that gave it this class.
    pub rule: Rule,
    /// When that was.
    pub last_us: u64,
}

/// Who is interactive in a machine, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its base disk, and whose it is.
    pub of: Owned,
    /// Inputs so far.
    pub inputs: u64,
    /// When the last one came.
    pub last_input_us: Option<u64>,
    /// How many programs are known.
    pub programs_known: usize,
    /// The programs that asked last, up to 64, the last one first.
    pub programs: Vec<ProgramStatus>,
    /// The reads of nobody that is known, if there was one.
    pub unnamed: Option<Unnamed>,
    /// The requests after the last input of all programs together of which too little is known, and of those without a name.
    pub strangers_after_input: u32,
    /// The same before the last input.
    pub strangers_before_input: u32,
    /// How often the machine's agent has told who asks.
    pub words: u64,
    /// Requests so far that were interactive, normal and bulk.
    pub requests: [u64; 3],
}
