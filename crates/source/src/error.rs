//! What can go wrong with a source, by what the caller can do about it.

use std::time::Duration;

use thiserror::Error;

/// Why a source did not give what it was asked for.
///
/// It is `Clone` because one failed fetch answers everybody who waited for it.
#[derive(Clone, Debug, Error)]
pub enum SourceError {
    /// The source answered, and does not have it.
    #[error("{at} does not have {what}; check the name, or add a source that has it")]
    Missing {
        /// The source or URL.
        at: String,
        /// What was asked for.
        what: String,
    },
    /// The source sent bytes that are not what was asked for. They were dropped.
    #[error(
        "{at} sent wrong data for {what}: {reason}; the data was dropped. Run `floe image verify` there, or use another source"
    )]
    Invalid {
        /// The source or URL.
        at: String,
        /// What was asked for.
        what: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// No usable answer: no connection, a broken one, or a server in trouble.
    #[error(
        "cannot reach {at} for {what}: {reason}; check that it runs and that this host can connect to it"
    )]
    Unreachable {
        /// The source or URL.
        at: String,
        /// What was asked for.
        what: String,
        /// What the connection or server said.
        reason: String,
    },
    /// No complete answer in the time allowed.
    #[error(
        "{at} did not deliver {what} within {after:?}; the link may be slow or the server hung"
    )]
    Timeout {
        /// The source or URL.
        at: String,
        /// What was asked for.
        what: String,
        /// The time that was allowed.
        after: Duration,
    },
    /// The source refuses this token, or wants one.
    #[error(
        "{at} denies access to {what}; give a token that may read it (`floe login`, or `--token`)"
    )]
    Denied {
        /// The source or URL.
        at: String,
        /// What was asked for.
        what: String,
    },
    /// The request or URL makes no sense to this source; trying again will not help.
    #[error("{at}: {reason}")]
    Unsupported {
        /// The source or URL.
        at: String,
        /// What does not fit, and what would.
        reason: String,
    },
    /// This host could not store or read locally what was fetched.
    #[error("local storage failed for {what}: {reason}")]
    Local {
        /// What was to be stored or read.
        what: String,
        /// What the store said.
        reason: String,
    },
    /// The fetcher was stopped before the item came.
    #[error("stopped before {what} was fetched")]
    Stopped {
        /// What was waited for.
        what: String,
    },
}

impl SourceError {
    /// Whether the same request to the same source may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            SourceError::Invalid { .. }
                | SourceError::Unreachable { .. }
                | SourceError::Timeout { .. }
        )
    }

    /// Whether another source may have what this one did not give.
    pub fn falls_through(&self) -> bool {
        self.is_retryable() || matches!(self, SourceError::Missing { .. })
    }
}
