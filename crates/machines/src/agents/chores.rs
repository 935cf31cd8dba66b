//! What the node itself has a guest's agent do: a process of the agent's own program, which answers with one line of JSON.
//!
//! The answer is a guest's word: bounded, of a known form, and otherwise not to be believed.

use super::{
    Agents,
    exec::{as_root, check_port},
    why_silent,
};
use floe_ground::error::{NodeError, failed, refused};
use floe_guest::{
    chores::{ANSWER_BYTES_MAX, FAILED, WORD},
    exec::{frame::Outcome, request::What},
};
use floe_inventory::inventory::Entry;
use floe_threads::Cancel;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// How long the node waits for the end of a chore beyond the chore's own limit (the agent ends a chore that is late). At most as long as
/// that limit itself, so that a question to many machines at once does not wait long for one that hangs.
const LAST_WORD: Duration = Duration::from_secs(30);

/// Why a chore was not done.
#[derive(Debug, thiserror::Error)]
pub enum ChoreError {
    /// There is no agent that can do it, or it does not answer; the error says what to do.
    #[error(transparent)]
    Agent(NodeError),
    /// It took too long or was ended early, or its agent went away: a part of it may have been done, and the guest may still be doing more.
    #[error("{0}")]
    Unfinished(String),
    /// The guest could not do it; this is its reason.
    #[error("{0}")]
    Failed(String),
}

impl ChoreError {
    /// Returns the error for the interface. `name`: the machine's.
    pub fn of(self, name: &str) -> NodeError {
        match self {
            ChoreError::Agent(error) => error,
            ChoreError::Unfinished(why) => failed(
                format!("the agent in {name} did not finish: {why}"),
                format!("look at what the guest does (floe console {name}), and try again"),
            ),
            ChoreError::Failed(why) => {
                refused(format!("the guest of {name} can't do it: {why}"), "")
            }
        }
    }
}

impl Agents {
    /// Returns an error if no agent in a machine's guest can do chores; the error says what helps.
    pub fn check(&self, entry: &Entry) -> Result<(), NodeError> {
        let vm = entry.vm()?;
        let name = entry.name.as_str();
        check_port(name, &vm)?;
        let (streams, waited) = (self.streams_of(&vm), entry.waits());
        let ready = streams.ready(name).map(drop);
        ready.map_err(|error| match streams.is_silent() {
            true => why_silent(entry, waited, error),
            false => error,
        })
    }

    /// Has the agent in a machine's guest do a chore ([`floe_guest::chores`]) and returns its answer. Waits up to `limit` for that, a
    /// little longer for an agent that still starts, and until the machine goes on if it stands still: the caller sees to that.
    pub fn chore<T: DeserializeOwned>(
        &self,
        entry: &Entry,
        chore: &str,
        arguments: &[&str],
        limit: Duration,
    ) -> Result<T, ChoreError> {
        self.chore_unless(entry, chore, arguments, limit, &Cancel::default())
    }

    /// Does the same, but gives up once `cancel` is thrown. The guest may go on with the chore then.
    pub fn chore_unless<T: DeserializeOwned>(
        &self,
        entry: &Entry,
        chore: &str,
        arguments: &[&str],
        limit: Duration,
        cancel: &Cancel,
    ) -> Result<T, ChoreError> {
        let vm = entry.vm().map_err(ChoreError::Agent)?;
        let words = [&[WORD, chore], arguments].concat();
        let words = words.into_iter().map(str::to_owned).collect();
        let request = as_root(What::Tool, words, limit);
        let mut process = self
            .begin(entry.name.as_str(), &vm, &request)
            .map_err(ChoreError::Agent)?;
        let waits = limit + LAST_WORD.min(limit);
        let Some(said) = process.outcome(waits, ANSWER_BYTES_MAX, cancel) else {
            if cancel.is_cancelled() {
                return Err(ChoreError::Unfinished(
                    "nobody waits for it any more".into(),
                ));
            }
            let waited = waits.as_secs();
            let why = format!("nothing was heard of {chore:?} for {waited} s");
            return Err(ChoreError::Unfinished(why));
        };
        let errors = || String::from_utf8_lossy(&said.errors).trim().to_owned();
        match said.outcome {
            Outcome::Exited(0) => serde_json::from_slice(&said.output).map_err(|error| {
                let why = format!("its agent's answer about {chore:?} is not understood: {error}");
                ChoreError::Failed(why)
            }),
            Outcome::Exited(FAILED) => Err(ChoreError::Failed(errors())),
            Outcome::Exited(_) | Outcome::NotStarted { .. } => {
                let name = &entry.name;
                Err(ChoreError::Agent(refused(
                    format!("the agent in {name} can't do {chore:?}: it is older than this node"),
                    format!("replace it: floe agent install {name}"),
                )))
            }
            Outcome::Signalled(signal) => {
                let why = format!("its agent's {chore:?} was ended by signal {signal}");
                Err(ChoreError::Unfinished(why))
            }
            Outcome::TimedOut => {
                let why = format!("{chore:?} took more than {} s", limit.as_secs());
                Err(ChoreError::Unfinished(why))
            }
            Outcome::Lost { why } => Err(ChoreError::Unfinished(why)),
        }
    }
}
