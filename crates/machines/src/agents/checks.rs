//! Commands in a guest of which only the exit code counts.

use super::{Agents, exec::as_root};
use floe_guest::exec::{frame::Outcome, request::What};
use floe_inventory::inventory::Entry;
use floe_threads::Cancel;
use std::time::Duration;

/// How long after its limit a command's end is waited for: the agent ends what is late.
const LAST_WORD: Duration = Duration::from_secs(10);
/// How many bytes of what it wrote are kept.
const SAID_BYTES_MAX: usize = 4 << 10;
/// How many characters of that are told.
const TOLD_CHARS_MAX: usize = 200;

impl Agents {
    /// Runs a command in a machine's guest, as root; returns why it did not end with 0. `cancel`: nobody
    /// wants to know any more.
    pub fn check_command(
        &self,
        entry: &Entry,
        words: &[String],
        limit: Duration,
        cancel: &Cancel,
    ) -> Result<(), String> {
        let vm = entry.vm().map_err(|error| error.to_string())?;
        let request = as_root(What::Command, words.to_vec(), limit);
        let begun = self.begin(entry.name.as_str(), &vm, &request);
        let mut process = begun.map_err(|error| error.to_api().message)?;
        let said = process.outcome(limit + LAST_WORD, SAID_BYTES_MAX, cancel);
        let said = said.ok_or("nothing was heard of it")?;
        let errors = String::from_utf8_lossy(&said.errors);
        let errors: String = errors.trim().chars().take(TOLD_CHARS_MAX).collect();
        match said.outcome {
            Outcome::Exited(0) => Ok(()),
            Outcome::Exited(code) => Err(format!("it ends with {code}: {errors}")),
            Outcome::Signalled(signal) => Err(format!("it ends by signal {signal}")),
            Outcome::TimedOut => Err(format!("it takes more than {} s", limit.as_secs())),
            Outcome::NotStarted { why, .. } | Outcome::Lost { why } => Err(why),
        }
    }
}
