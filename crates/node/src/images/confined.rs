//! Runs a program on a stranger's file: confined as [`floe_machine::tool`] says, bounded in its time, and killed when the client
//! has gone. The node reads what it says.

use crate::error::{NodeError, at};
use floe_machine::{Programs, tool::Tool};
use floe_threads::{Cancel, Waited};
use std::{
    io::Read,
    path::Path,
    process::{ChildStderr, ExitStatus},
    time::{Duration, Instant},
};

/// How long a program may take at least, whatever its input: time to read tables on a busy host.
const TIME_LEAST: Duration = Duration::from_secs(600);
/// It may take one more second for each such number of input bytes; any disk reads ten times as fast.
const BYTES_PER_S_LEAST: u64 = 1 << 20;

/// How long a program may work on so many bytes.
pub fn time_limit(bytes: u64) -> Duration {
    TIME_LEAST + Duration::from_secs(bytes / BYTES_PER_S_LEAST)
}

/// How a program ended.
pub enum Ended {
    /// By itself, or by a signal that the node did not send.
    Itself(ExitStatus),
    /// Its time was over.
    TimedOut,
}

/// Runs a program to its end; `hear` gets what it says on either of its outputs, piece by piece.
pub fn run(
    programs: &Programs,
    tool: Tool,
    limit: Duration,
    cancel: &Cancel,
    hear: impl FnMut(&[u8]) + Send,
) -> Result<Ended, NodeError> {
    let name = Path::new(&tool.program).file_name().unwrap_or_default();
    let name = name.to_string_lossy().into_owned();
    let started = tool.start(programs);
    let mut child = started.map_err(at(format!("cannot start {name}")))?;
    let pipe = child.stderr.take();
    let until = Instant::now().checked_add(limit);
    let (waited, status, heard) = floe_threads::scope(|scope| {
        let listener = scope.try_spawn("tool", || pipe.map(|pipe| listen(pipe, hear)));
        let waited = match &listener {
            Ok(_) => floe_threads::ended(&child, until, Some(cancel)),
            Err(_) => Ok(Waited::TimedOut),
        };
        if !matches!(waited, Ok(Waited::Come(()))) {
            let _ = child.kill(); // it may have ended already
        }
        let status = child.wait();
        let heard = listener.map(|listener| drop(listener.join()));
        (waited, status, heard)
    });
    heard?;
    let wait = || at(format!("cannot wait for {name}"));
    match waited.map_err(wait())? {
        Waited::Come(()) => status.map(Ended::Itself).map_err(wait()),
        Waited::Cancelled => Err(NodeError::Cancelled),
        Waited::TimedOut => Ok(Ended::TimedOut),
    }
}

fn listen(mut pipe: ChildStderr, mut hear: impl FnMut(&[u8])) {
    let mut buffer = [0; 4096];
    while let Ok(len @ 1..) = pipe.read(&mut buffer) {
        hear(&buffer[..len]);
    }
}
