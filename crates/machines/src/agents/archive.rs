//! Files out of a guest, for the node itself.

use super::Agents;
use floe_api::{ExecRequest, Program, size_text};
use floe_ground::error::{NodeError, failed, refused};
use floe_guest::exec::frame::Outcome;
use floe_threads::Cancel;
use std::time::Duration;

/// How long the agent's last word is waited for beyond the copy's own limit.
const LAST_WORD: Duration = Duration::from_secs(10);

impl Agents {
    /// Returns an archive of a file or directory of a machine's guest, as [`floe_guest::copy`] reads it. It has at most `most` bytes, and is
    /// given up after `limit`, or once `cancel` is thrown.
    pub fn archive(
        &self,
        name: &str,
        path: &str,
        most: usize,
        limit: Duration,
        cancel: &Cancel,
    ) -> Result<Vec<u8>, NodeError> {
        let request = ExecRequest {
            timeout_ms: Some(limit.as_millis() as u64),
            ..ExecRequest::new(Program::Send {
                path: path.to_owned(),
                bytes: false,
                sparse: false,
            })
        };
        let mut process = self.exec(name, &request)?;
        let Some(said) = process.outcome(limit + LAST_WORD, most + 1, cancel) else {
            return Err(match cancel.is_cancelled() {
                true => NodeError::Cancelled,
                false => failed(
                    format!("the agent in {name} did not finish with {path}"),
                    format!("look at what the guest does (floe console {name}), and try again"),
                ),
            });
        };
        match said.outcome {
            Outcome::Exited(0) if said.output.len() <= most => Ok(said.output),
            Outcome::Exited(0) => Err(refused(
                format!("{path} of {name} has more than {}", size_text(most as u64)),
                "what is larger comes with the whole machine",
            )),
            outcome => {
                let errors = String::from_utf8_lossy(&said.errors);
                let why = match errors.trim() {
                    "" => format!("{outcome:?}"),
                    why => why.to_owned(),
                };
                Err(refused(
                    format!("the guest of {name} does not give {path}: {why}"),
                    "name files and directories that are there",
                ))
            }
        }
    }
}
