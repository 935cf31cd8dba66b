//! The command that types on a machine's console, wherever the machine is: type.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::BufRead;
use std::time::{Duration, Instant};

use clap::Args;

use super::Context;
use super::error::CliError;
use floe_api::client::{Client, ClientError};
use floe_api::{ErrorCode, TYPED_MAX, TypeReport, TypeRequest, TypedInput, UserInput};

/// Most bytes of text that are one input.
const TEXT_BYTES_MAX: usize = 256;
/// How long a node that does not answer is asked again: it may be restarted.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often.
const AGAIN: Duration = Duration::from_millis(500);

/// Type on a machine's console, also while it stands still, is parked or is on its way to another node
#[derive(Debug, Args)]
#[command(after_help = "\
Example: a line, and Enter
  floe type web 'uptime'
Example: what a program says, with its pauses
  ./script | floe type web
Example: while it moves
  floe move web --to beta & floe type web 'echo here I am'

What is typed is kept on this node's disk until the machine's guest has got it, and the command ends once it is there. A machine that
stands still gets it when it goes on; one that was moved from here gets it at its node. With the agent in the guest each piece comes
in order and once, whatever is killed or cut meanwhile; without it, or with one of an older floe, a piece may be lost, and none comes
twice. floe console shows what the guest says to it; what is typed there, on the page's screen and console, and by VNC, is kept in the
same way while the machine stands still or runs elsewhere.")]
pub struct Type {
    /// The machine
    machine: String,
    /// The text; Enter follows on it. Without it, what stands on standard input is typed as it is
    text: Option<String>,
    /// Type what stands on standard input as fast as the guest takes it, and not with the pauses with which it came
    #[arg(long, conflicts_with = "text")]
    fast: bool,
    /// Let no Enter follow on the text
    #[arg(long, short = 'n', requires = "text")]
    no_enter: bool,
}

impl Type {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let mut source = Source::new(cx.client()?, self.machine);
        match self.text {
            Some(text) => {
                let end = if self.no_enter { "" } else { "\n" };
                source.send(&format!("{text}{end}"), 0)?;
            }
            None => {
                let mut last: Option<Instant> = None;
                let mut lines = std::io::stdin().lock();
                loop {
                    let mut line = String::new();
                    let count = lines.read_line(&mut line);
                    let count = count.map_err(|error| {
                        CliError::usage(
                            format!("standard input can't be typed: {error}"),
                            "it must be text in UTF-8",
                        )
                    })?;
                    if count == 0 {
                        break;
                    }
                    let gap = last.replace(Instant::now()).map(|last| last.elapsed());
                    let gap = gap.filter(|_| !self.fast).unwrap_or_default();
                    source.send(&line, gap.as_millis() as u64)?;
                }
            }
        }
        cx.out.value(&source.last, told)
    }
}

fn told(report: &TypeReport) -> String {
    match (report.waiting, report.once) {
        (0, _) => "nothing was typed\n".into(),
        (count, true) => format!("{count} pieces are kept until the guest has got them\n"),
        (count, false) => format!(
            "{count} pieces are kept; unless an agent answers in the guest that takes them, each comes at most once\n"
        ),
    }
}

/// What types: its inputs are numbered, so that what is sent again comes once.
pub(super) struct Source {
    client: Client,
    machine: String,
    from: String,
    next: u64,
    last: TypeReport,
}

impl Source {
    pub(super) fn new(client: Client, machine: String) -> Source {
        // its keys are random, and so is what they make of nothing
        let number = RandomState::new().build_hasher().finish();
        Source {
            client,
            machine,
            from: format!("{number:016x}"),
            next: 1,
            last: TypeReport::default(),
        }
    }

    /// Has a text typed so many milliseconds after the one before it.
    pub(super) fn send(&mut self, text: &str, gap_ms: u64) -> Result<(), CliError> {
        for (at, inputs) in inputs(text).chunks(TYPED_MAX).enumerate() {
            let mut inputs = inputs.to_vec();
            if at == 0 {
                inputs[0].gap_ms = gap_ms;
            }
            let count = inputs.len() as u64;
            let request = TypeRequest {
                from: self.from.clone(),
                first: self.next,
                inputs,
            };
            self.last = self.said(&request)?;
            self.next += count;
        }
        Ok(())
    }

    fn said(&self, request: &TypeRequest) -> Result<TypeReport, CliError> {
        let began = Instant::now();
        loop {
            match self.client.type_on(&self.machine, request) {
                Err(error) if began.elapsed() < PATIENCE && passes(&error) => {}
                done => return Ok(done?),
            }
            // nothing tells of a node that begins, nor of room
            std::thread::sleep(AGAIN);
        }
    }
}

/// Whether the same may be answered in a moment.
fn passes(error: &ClientError) -> bool {
    let code = error.to_api().code;
    matches!(error, ClientError::Broken(_))
        || matches!(code, ErrorCode::Unreachable | ErrorCode::Busy)
}

/// Cuts a text into inputs.
fn inputs(text: &str) -> Vec<TypedInput> {
    let mut inputs = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let mut end = rest.len().min(TEXT_BYTES_MAX);
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (piece, after) = rest.split_at(end);
        rest = after;
        inputs.push(TypedInput {
            gap_ms: 0,
            input: UserInput::Text { text: piece.into() },
        });
    }
    inputs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_its_letters() {
        assert!(inputs("").is_empty());
        let long = "é".repeat(TEXT_BYTES_MAX);
        let cut = inputs(&format!("a{long}"));
        assert_eq!(cut.len(), 3);
        let all: String = cut
            .iter()
            .map(|typed| match &typed.input {
                UserInput::Text { text } => {
                    assert!(text.len() <= TEXT_BYTES_MAX);
                    text.as_str()
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(all, format!("a{long}"));
    }
}
