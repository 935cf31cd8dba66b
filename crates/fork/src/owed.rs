//! Ends clones whose hosts fell silent while they started them: nobody waits for such a clone, and it may run nevertheless. Its name stays
//! in the fork's record until its host has answered that there is no such machine.

use super::{Forks, record::CloneRecord, record::ForkRecord};
use floe_ground::{error::NodeError, time::unix_now};
use floe_hosts::cluster::End;
use std::{sync::Arc, time::Duration};

/// How often the hosts of such clones are asked to end them.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// For how long after a fork a host may still be about to start one of its clones, in seconds: a machine that does not exist before
/// that may exist later. More than a request to start one may take.
const STARTS_S_MAX: u64 = 300;

impl Forks {
    /// Starts the thread that ends such clones.
    pub fn start_ending_owed(self: &Arc<Self>) -> Result<(), NodeError> {
        let threads = &self.core.threads;
        Ok(threads.keep("fork-owed", self, ASK_EVERY, |forks| forks.end_owed())?)
    }

    fn end_owed(&self) {
        for fork in self.records.all() {
            for clone in &fork.unended {
                self.end_one_owed(&fork, clone);
            }
        }
    }

    fn end_one_owed(&self, fork: &ForkRecord, clone: &CloneRecord) {
        let name = &clone.name;
        let host = clone.host.as_deref().unwrap_or_default();
        let over = match self.remote(host, fork.hosts_token.as_deref()) {
            Ok(remote) => match remote.end_told(name) {
                Ok(End::Ended) => {
                    tracing::info!(machine = name, host, "a clone that ran in vain has ended");
                    true
                }
                Ok(End::Absent) => unix_now() > fork.created_unix_s + STARTS_S_MAX,
                Err(why) => {
                    tracing::debug!(machine = name, why, "is still to be ended");
                    false
                }
            },
            // a host that is no member any more takes no orders of this one, nor state
            Err(error) => {
                tracing::warn!(machine = name, host, %error, "nobody can end it from here");
                true
            }
        };
        if !over {
            return;
        }
        if let Err(error) = self.records.is_ended(&fork.id, name) {
            tracing::warn!(machine = name, %error, "it has ended and stays in its fork's record");
        }
        self.share_again(fork.shares_limits());
    }
}
