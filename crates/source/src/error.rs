//! Errors of sources, grouped by what the caller can do about them.

use std::time::Duration;

use thiserror::Error;

/// Why a source did not give what it was asked for.
///
/// It is `Clone` because one failed fetch answers everybody who waited for the item.
#[derive(Clone, Debug, Error)]
pub enum SourceError {
    /// The source answered that it doesn't have it.
    #[error("{at} does not have {what}; check the name, or add a source that has it")]
    Missing {
        /// The source or URL.
        at: String,
        /// What was asked for.
        what: String,
    },
    /// The source sent bytes that are not what was asked for; they were dropped.
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
    /// There is no connection.
    #[error(
        "cannot reach {at} for {what}: {reason}; check that it runs and that this host can connect to it"
    )]
    Unreachable {
        /// The source or URL.
        at: String,
        /// What was asked for.
        what: String,
        /// What the connection reported.
        reason: String,
    },
    /// The source was reached, and gave no usable answer: the connection broke, or the server failed.
    #[error(
        "{at} was reached and did not give {what}: {reason}; try again, and if it stays so look at that server and at what stands between"
    )]
    Unanswered {
        /// The source or URL.
        at: String,
        /// What was asked for.
        what: String,
        /// What the connection or the server reported.
        reason: String,
    },
    /// There was no complete answer in the time allowed.
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
    /// The source refuses the token or key, or needs one.
    #[error("{at} denies access to {what}; {fix}")]
    Denied {
        /// The source or URL.
        at: String,
        /// What was asked for.
        what: String,
        /// What would be let in.
        fix: String,
    },
    /// The source can't serve this request or URL; trying again won't help.
    #[error("{at}: {reason}")]
    Unsupported {
        /// The source or URL.
        at: String,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// This host could not store what was fetched, or could not read it from its store.
    #[error("local storage failed for {what}: {reason}")]
    Local {
        /// What was to be stored or read.
        what: String,
        /// The error of the store.
        reason: String,
    },
    /// The fetcher was stopped before the item came.
    #[error("stopped before {what} was fetched")]
    Stopped {
        /// The item that the caller waited for.
        what: String,
    },
}

/// What is to be expected of a source after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// It may pass by itself: the network, the server or this host's own storage does not do what it should, for now.
    Passes,
    /// The source was reached and says no: it does not have it, does not give it to this host, or can't. Somebody has to change that.
    Refused,
    /// Nobody asks the source any more.
    Over,
}

impl SourceError {
    /// What to do about a hub or web server that denies access.
    pub const NO_TOKEN: &str = "give a token that may read it (`floe login`, or `--token`)";

    /// Returns what is to be expected of the source, for whoever waits until it gives what it was asked for.
    pub fn outlook(&self) -> Outlook {
        match self {
            SourceError::Invalid { .. }
            | SourceError::Unreachable { .. }
            | SourceError::Unanswered { .. }
            | SourceError::Timeout { .. }
            | SourceError::Local { .. } => Outlook::Passes,
            SourceError::Missing { .. }
            | SourceError::Denied { .. }
            | SourceError::Unsupported { .. } => Outlook::Refused,
            SourceError::Stopped { .. } => Outlook::Over,
        }
    }

    /// Returns whether the same request to the same source may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            SourceError::Invalid { .. }
                | SourceError::Unreachable { .. }
                | SourceError::Unanswered { .. }
                | SourceError::Timeout { .. }
        )
    }

    /// Returns whether something in between may have said so instead of the source: a cache, a proxy, a network that wants somebody to
    /// sign in.
    pub fn may_be_hearsay(&self) -> bool {
        matches!(
            self,
            SourceError::Missing { .. } | SourceError::Denied { .. }
        )
    }

    /// Returns whether another source should be asked for what this one did not give.
    pub fn falls_through(&self) -> bool {
        self.is_retryable() || matches!(self, SourceError::Missing { .. })
    }
}
