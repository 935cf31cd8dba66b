//! The helper processes, which run this program with another subcommand, and how they are started.
//!
//! The supervisor must outlive the node, so it gets a session of its own and none of the node's descriptors.

use crate::error::{NodeError, at, failed};
use floe_mount::supervisor;
use std::{
    ffi::OsString,
    io::Write,
    path::Path,
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

/// How long a supervisor may take until it listens: it only binds a socket.
const SUPERVISOR_START: Duration = Duration::from_secs(10);
/// How often its socket is tried in that time.
const SUPERVISOR_POLL: Duration = Duration::from_millis(5);

/// Runs a hidden subcommand if the arguments (without the program's name) name one, and returns its exit code.
pub fn dispatch(args: &[OsString]) -> Option<ExitCode> {
    let (command, rest) = args.split_first()?;
    match (command.to_str()?, rest) {
        ("supervisor", [socket]) => Some(supervise(Path::new(socket))),
        ("exec-qemu", rest) => Some(ExitCode::from(
            floe_machine::exec::run(rest.iter().cloned()) as u8,
        )),
        _ => None,
    }
}

fn supervise(socket: &Path) -> ExitCode {
    // fails only for the leader of a process group, which is detached enough
    let _ = rustix::process::setsid();
    floe_store::private::set_umask();
    match supervisor::run(socket) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "floe supervisor: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts a supervisor unless one listens on the socket, and waits until it does.
pub fn ensure_supervisor(command: &[OsString], socket: &Path) -> Result<(), NodeError> {
    if supervisor::Client::connect(socket).is_ok() {
        return Ok(());
    }
    let (program, args) = command
        .split_first()
        .ok_or_else(|| failed("no command for the supervisor", "report this"))?;
    let mut child = Command::new(program)
        .args(args)
        .arg(socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .spawn()
        .map_err(at(format!(
            "cannot start {} as the mount's supervisor",
            program.display()
        )))?;
    let until = Instant::now() + SUPERVISOR_START;
    loop {
        if supervisor::Client::connect(socket).is_ok() {
            // this thread reaps the supervisor if that ends first
            std::thread::Builder::new()
                .name("supervisor-wait".into())
                .spawn(move || child.wait())
                .map_err(at("cannot watch the supervisor"))?;
            return Ok(());
        }
        if let Some(status) = child
            .try_wait()
            .map_err(at("cannot watch the supervisor"))?
        {
            return Err(failed(
                format!("the mount's supervisor ended at once: {status}"),
                "run it by hand: floe supervisor SOCKET",
            ));
        }
        if Instant::now() > until {
            let _ = child.kill();
            return Err(failed(
                "the mount's supervisor does not answer",
                "look for a hung `floe supervisor`",
            ));
        }
        std::thread::sleep(SUPERVISOR_POLL);
    }
}
