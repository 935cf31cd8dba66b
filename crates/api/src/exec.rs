//! Processes in guests: the request to start one. Its streams follow on the same connection.

use super::*;

/// The protocol that a connection is switched to for a process's streams: frames as between node and agent (docs/guest.md), without
/// credit, of one stream with the number 1.
pub const EXEC_PROTOCOL: &str = "floe-exec";

/// What is to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// A command of the guest with its arguments.
    Command(Vec<String>),
    /// Write a file or directory of the guest to standard output.
    Send {
        /// Its path.
        path: String,
        /// Only a file's bytes, not an archive.
        bytes: bool,
        /// An archive that lacks files' holes; not known to agents that are older than this.
        #[serde(default)]
        sparse: bool,
    },
    /// Make a file or directory of the guest from standard input.
    Receive {
        /// A directory that exists, or a name in one.
        path: String,
        /// The name in a directory that exists.
        name: String,
        /// Only a file's bytes, not an archive.
        bytes: bool,
        /// An archive that lacks files' holes; not known to agents that are older than this.
        #[serde(default)]
        sparse: bool,
    },
    /// Connect standard input and output to a TCP port of the guest.
    Dial {
        /// The port.
        port: u16,
    },
    /// Let this user log in over SSH with this key.
    Authorize {
        /// The public key, one line.
        key: String,
    },
}

/// Size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TerminalSize {
    /// Columns.
    pub columns: u16,
    /// Rows.
    pub rows: u16,
}

/// Body of `POST /v1/machines/{name}/exec`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// What is to run.
    pub program: Program,
    /// The user whose rights it has, by name or number; by default root.
    #[serde(default)]
    pub user: String,
    /// The directory that it starts in; by default the user's own.
    #[serde(default)]
    pub directory: String,
    /// Variables of its environment, as `NAME=VALUE`.
    #[serde(default)]
    pub environment: Vec<String>,
    /// The size of its terminal; without one, it has pipes.
    #[serde(default)]
    pub terminal: Option<TerminalSize>,
    /// How long it may run, in milliseconds; by default for ever.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// Start it without input and output, and wait only until it runs.
    #[serde(default)]
    pub detach: bool,
}

impl ExecRequest {
    /// Returns a request to run it as root, without a terminal.
    pub fn new(program: Program) -> ExecRequest {
        ExecRequest {
            program,
            user: String::new(),
            directory: String::new(),
            environment: Vec::new(),
            terminal: None,
            timeout_ms: None,
            detach: false,
        }
    }
}
