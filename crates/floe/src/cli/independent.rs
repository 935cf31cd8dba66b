//! Brings all of a machine's image to its host: `floe independent`.

use clap::Args;

use super::error::CliError;
use super::output::bytes;
use super::{Context, args, progress};
use floe_api::{Independence, IndependenceState, IndependentRequest};

/// Bring all of a machine's image to this host, so that it needs no hub, pool or parent any more
#[derive(Debug, Args)]
#[command(after_help = "\
Example: in the background, while it runs; then look how far it is
  floe independent web
  floe ps web
Example: slowly, and wait until it is done; Ctrl-C ends the wait only
  floe independent web --rate 5M --wait
Example: give it up
  floe independent web --stop

Once all is here, what the machine has written to its disks is merged into an image of its own while it goes on, and again
when that is much; given again, the command has it done now.

What the machine itself waits for goes first. A source that does not answer is asked again, and a full disk is waited for;
floe ps says so. It goes on where it was after a restart of the node, and when the command is given again.")]
pub struct Independent {
    /// The machine
    machine: String,
    /// At most this many bytes a second, before compression, such as 5M; 50M by default
    #[arg(long, value_parser = args::size, value_name = "SIZE")]
    rate: Option<u64>,
    /// Wait until all is here, and what the machine has written is merged
    #[arg(long)]
    wait: bool,
    /// Stop bringing it here; what has come is kept
    #[arg(long, conflicts_with_all = ["rate", "wait"])]
    stop: bool,
}

/// Options of `floe run` about independence.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// Bring all of its image to this host in the background, so that it needs no other place any more (floe independent)
    #[arg(long)]
    independent: bool,
    /// With --independent: at most this many bytes a second, before compression, such as 5M; 50M by default
    #[arg(long, value_parser = args::size, value_name = "SIZE", requires = "independent")]
    rate: Option<u64>,
}

impl RunArgs {
    /// Returns what was asked for; `None` if nothing was.
    pub fn wish(&self) -> Option<floe_api::Independent> {
        self.independent.then_some(floe_api::Independent {
            rate_bytes_s: self.rate,
        })
    }
}

impl Independent {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let request = IndependentRequest {
            rate_bytes_s: self.rate,
            stop: self.stop,
            wait: self.wait,
        };
        let events = cx.client()?.independent(&self.machine, &request)?;
        let done = progress::follow(cx.out, events)?;
        let machine = done.outcome.machine;
        let now = machine.and_then(|machine| machine.independence);
        cx.out.text(&told(&self.machine, now.as_ref()))
    }
}

fn told(machine: &str, now: Option<&Independence>) -> String {
    match now {
        None => format!("{machine} goes on reading from elsewhere what it lacks\n"),
        Some(now) if now.state == IndependenceState::Whole => {
            format!("{machine} is independent: all of its image is on this host\n")
        }
        Some(now) => format!(
            "{machine}: {}; floe ps {machine} shows how far it is\n",
            described(now)
        ),
    }
}

/// Describes how far a machine's image is on its host.
pub(super) fn described(now: &Independence) -> String {
    match now.state {
        IndependenceState::Whole if now.why.is_empty() => {
            "yes, all of its image is on this host".into()
        }
        IndependenceState::Whole => format!("yes, all of its image is on this host; {}", now.why),
        _ => {
            let left = match now.total_bytes {
                0 => String::new(),
                _ => format!(", {} to come", bytes(now.left_bytes)),
            };
            format!("{now}{left}, at most {} a second", bytes(now.rate_bytes_s))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_a_machine_is_is_told_in_words() {
        let mut now = Independence {
            state: IndependenceState::Copying,
            done_bytes: 43 << 20,
            total_bytes: 100 << 20,
            left_bytes: 57 << 20,
            rate_bytes_s: 5 << 20,
            why: String::new(),
        };
        assert_eq!(
            told("web", Some(&now)),
            "web: independent 43 %, 57.0 MiB to come, at most 5.0 MiB a second; floe ps web shows how far it is\n"
        );
        now.state = IndependenceState::Whole;
        assert_eq!(described(&now), "yes, all of its image is on this host");
        now.why = "what it has written still lies over its image: no room".into();
        assert!(described(&now).ends_with("over its image: no room"));
        assert!(told("web", Some(&now)).contains("is independent"));
        assert!(told("web", None).contains("from elsewhere"));
    }
}
