//! Errors of the node's interface.

use super::*;

/// An error: what went wrong, and what to do about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApiError {
    /// The kind of error, for programs.
    pub code: ErrorCode,
    /// What happened, including the offending value.
    pub message: String,
    /// What to do about it; empty if there is no advice.
    #[serde(default)]
    pub fix: String,
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)?;
        if !self.fix.is_empty() {
            write!(f, " ({})", self.fix)?;
        }
        Ok(())
    }
}

impl std::error::Error for ApiError {}

/// Kinds of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request itself is wrong.
    Usage,
    /// There is no such image or machine.
    NotFound,
    /// Another operation on the same thing is under way, or the name is taken.
    Busy,
    /// A source, hub or the node can't be reached.
    Unreachable,
    /// It can't be done on this host (CPU, version, permission).
    Refused,
    /// The client disconnected or asked to stop.
    Cancelled,
    /// Any other error.
    Failed,
}

impl ErrorCode {
    /// The exit code of a command that ends with this error.
    pub fn exit_code(self) -> u8 {
        match self {
            ErrorCode::Failed | ErrorCode::Busy => 1,
            ErrorCode::Usage => 2,
            ErrorCode::NotFound => 3,
            ErrorCode::Unreachable => 4,
            ErrorCode::Refused => 5,
            ErrorCode::Cancelled => 130,
        }
    }
}
