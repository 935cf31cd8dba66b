//! The errors of the node, ordered by what the user can do about them. The crates below say what happened; here an error gets
//! its kind ([`ErrorCode`]) and a way out for the user.

use floe_api::{ApiError, ErrorCode};
use floe_source::SourceError;
use floe_store::StoreError;
use floe_transfer::TransferError;

/// Why an operation of the node failed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// An error that already has the interface's form.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The client hung up.
    #[error("stopped on request; everything that was begun has been undone")]
    Cancelled,
    /// The local disk failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A source of images failed.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The mount failed.
    #[error(transparent)]
    Mount(#[from] floe_mount::MountError),
    /// QEMU failed.
    #[error(transparent)]
    Machine(#[from] floe_machine::MachineError),
    /// A transfer failed.
    #[error(transparent)]
    Transfer(#[from] floe_transfer::TransferError),
    /// The host has as many threads as it may have.
    #[error(transparent)]
    Thread(#[from] floe_threads::StartError),
    /// The operating system failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with the path.
        what: String,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// What to do about a full disk.
pub const MAKE_ROOM: &str =
    "make room there (floe cache gc, floe image rm, floe rm), or move FLOE_HOME to a larger disk";

/// Returns an error for a request that is wrong in itself.
pub fn usage(message: impl Into<String>, fix: impl Into<String>) -> NodeError {
    api(ErrorCode::Usage, message, fix)
}

/// Returns an error for something that can't be done here.
pub fn refused(message: impl Into<String>, fix: impl Into<String>) -> NodeError {
    api(ErrorCode::Refused, message, fix)
}

/// Returns an error for something that doesn't exist.
pub fn not_found(message: impl Into<String>, fix: impl Into<String>) -> NodeError {
    api(ErrorCode::NotFound, message, fix)
}

/// Returns an error for something that is in use by another operation.
pub fn busy(message: impl Into<String>, fix: impl Into<String>) -> NodeError {
    api(ErrorCode::Busy, message, fix)
}

/// Returns an error of any other kind.
pub fn failed(message: impl Into<String>, fix: impl Into<String>) -> NodeError {
    api(ErrorCode::Failed, message, fix)
}

fn api(code: ErrorCode, message: impl Into<String>, fix: impl Into<String>) -> NodeError {
    NodeError::Api(ApiError {
        code,
        message: message.into(),
        fix: fix.into(),
    })
}

/// Returns a function that adds to an I/O error what was being done, with the path.
pub fn at(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> NodeError {
    let what = what.into();
    move |source| NodeError::Io { what, source }
}

/// Does the same for a path that the caller named: one that can't be used as it is is the caller's mistake, not the node's.
pub fn at_named(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> NodeError {
    use std::io::ErrorKind as Kind;
    let what = what.into();
    move |source| {
        let message = format!("{what}: {source}");
        match source.kind() {
            Kind::NotFound => not_found(message, "check the path, as the node's host sees it"),
            Kind::PermissionDenied | Kind::ReadOnlyFilesystem => refused(
                message,
                "give the node's user access to it, or name another path",
            ),
            Kind::NotADirectory
            | Kind::IsADirectory
            | Kind::InvalidInput
            | Kind::InvalidFilename
            | Kind::AlreadyExists => usage(message, "name another path"),
            _ if source.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
                usage(message, "name another path")
            }
            _ => NodeError::Io { what, source },
        }
    }
}

impl NodeError {
    /// Returns the error's kind.
    pub fn code(&self) -> ErrorCode {
        match self {
            NodeError::Api(error) => error.code,
            NodeError::Cancelled | NodeError::Store(StoreError::Cancelled) => ErrorCode::Cancelled,
            NodeError::Store(error) => match error {
                StoreError::NotFound { .. } => ErrorCode::NotFound,
                StoreError::Ambiguous { .. } | StoreError::Invalid { .. } => ErrorCode::Usage,
                StoreError::Busy { .. } => ErrorCode::Busy,
                _ => ErrorCode::Failed,
            },
            NodeError::Source(error) => source_code(error),
            NodeError::Mount(floe_mount::MountError::Source { source, .. }) => {
                match source_code(source) {
                    // what was asked for is there: it lacks a chunk
                    ErrorCode::NotFound => ErrorCode::Failed,
                    code => code,
                }
            }
            NodeError::Machine(error) => machine_code(error),
            NodeError::Transfer(error) => transfer_code(error),
            NodeError::Mount(_) | NodeError::Thread(_) | NodeError::Io { .. } => ErrorCode::Failed,
        }
    }

    /// Converts the error for the interface.
    pub fn to_api(&self) -> ApiError {
        let fix = match self {
            NodeError::Api(error) => return error.clone(),
            NodeError::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
                MAKE_ROOM
            }
            _ => "", // the text of these errors says what to do
        };
        ApiError {
            code: self.code(),
            message: self.to_string(),
            fix: fix.into(),
        }
    }
}

fn source_code(error: &SourceError) -> ErrorCode {
    match error {
        SourceError::Missing { .. } => ErrorCode::NotFound,
        SourceError::Unreachable { .. }
        | SourceError::Unanswered { .. }
        | SourceError::Timeout { .. } => ErrorCode::Unreachable,
        SourceError::Denied { .. } => ErrorCode::Refused,
        SourceError::Unsupported { .. } => ErrorCode::Usage,
        SourceError::Stopped { .. } => ErrorCode::Cancelled,
        _ => ErrorCode::Failed,
    }
}

fn transfer_code(error: &TransferError) -> ErrorCode {
    match error {
        TransferError::Cancelled => ErrorCode::Cancelled,
        TransferError::Unreachable { .. } => ErrorCode::Unreachable,
        TransferError::Refused { status: 404, .. } => ErrorCode::NotFound,
        TransferError::Refused { .. } => ErrorCode::Refused,
        TransferError::Options(_) => ErrorCode::Usage,
        TransferError::Source(error) => source_code(error),
        _ => ErrorCode::Failed,
    }
}

fn machine_code(error: &floe_machine::MachineError) -> ErrorCode {
    use floe_machine::MachineError;
    match error {
        MachineError::Incompatible(_)
        | MachineError::Grow(_)
        | MachineError::Untrusted { .. }
        | MachineError::Unsavable { .. }
        | MachineError::QemuMissing { .. } => ErrorCode::Refused,
        MachineError::CaptureRunning { .. } => ErrorCode::Busy,
        _ => ErrorCode::Failed,
    }
}
