//! Runs a program on a stranger's file: confined as [`floe_machine::tool`] says, bounded in its time, and killed when the client
//! has gone or the caller says that it must not go on. The node reads what it says.

use floe_ground::error::{NodeError, at};
use floe_machine::{Programs, tool::Tool};
use floe_threads::{Cancel, Waited};
use std::{
    io::{self, Read},
    path::Path,
    process::{Child, ChildStderr, ExitStatus},
    time::{Duration, Instant},
};

/// How long a program may take at least, whatever its input: time to read tables on a busy host.
const TIME_LEAST: Duration = Duration::from_secs(600);
/// It may take one more second for each such number of input bytes; any disk reads ten times as fast.
const BYTES_PER_S_LEAST: u64 = 1 << 20;
/// How often the caller is asked whether it may go on.
const LOOK_EVERY: Duration = Duration::from_secs(1);

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

/// Runs a program to its end; `hear` gets what it says on either of its outputs, piece by piece. Once `may_go_on` returns an error, it is
/// killed, and that is the result.
pub fn run(
    programs: &Programs,
    tool: Tool,
    limit: Duration,
    cancel: &Cancel,
    hear: impl FnMut(&[u8]) + Send,
    may_go_on: &dyn Fn() -> Result<(), NodeError>,
) -> Result<Ended, NodeError> {
    let name = Path::new(&tool.program).file_name().unwrap_or_default();
    let name = name.to_string_lossy().into_owned();
    let started = tool.start(programs);
    let mut child = started.map_err(at(format!("cannot start {name}")))?;
    let pipe = child.stderr.take();
    let until = Instant::now().checked_add(limit);
    let wait = || at(format!("cannot wait for {name}"));
    let (waited, status, heard) = floe_threads::scope(|scope| {
        let listener = scope.try_spawn("tool", || pipe.map(|pipe| listen(pipe, hear)));
        let waited = match &listener {
            Ok(_) => watch(&child, until, cancel, wait, may_go_on),
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
    match waited? {
        Waited::Come(()) => status.map(Ended::Itself).map_err(wait()),
        Waited::Cancelled => Err(NodeError::Cancelled),
        Waited::TimedOut => Ok(Ended::TimedOut),
    }
}

/// Waits for the end of a program; `failed` makes the error of a wait that fails.
fn watch<F: FnOnce(io::Error) -> NodeError>(
    child: &Child,
    until: Option<Instant>,
    cancel: &Cancel,
    failed: impl Fn() -> F,
    may_go_on: &dyn Fn() -> Result<(), NodeError>,
) -> Result<Waited<()>, NodeError> {
    loop {
        let next = Instant::now() + LOOK_EVERY;
        let next = until.map_or(next, |until| until.min(next));
        match floe_threads::ended(child, Some(next), Some(cancel)).map_err(failed())? {
            Waited::TimedOut if until.is_none_or(|until| Instant::now() < until) => may_go_on()?,
            waited => return Ok(waited),
        }
    }
}

fn listen(mut pipe: ChildStderr, mut hear: impl FnMut(&[u8])) {
    let mut buffer = [0; 4096];
    while let Ok(len @ 1..) = pipe.read(&mut buffer) {
        hear(&buffer[..len]);
    }
}
