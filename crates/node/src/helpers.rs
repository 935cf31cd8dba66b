//! The helper processes, which run this program with another subcommand, and how they are started.
//!
//! The supervisor must outlive the node, so it gets a session of its own and none of the node's descriptors, and so does the guard of a lease.

use floe_ground::{
    error::{NodeError, at, failed},
    guard,
};
use floe_mount::supervisor;
use floe_threads::Ready;
use std::{
    ffi::OsString,
    io::Write,
    os::fd::AsFd,
    path::Path,
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

/// How long a supervisor may take until it listens: it only binds a socket.
const SUPERVISOR_START: Duration = Duration::from_secs(10);

/// Runs a hidden subcommand if the arguments (without the program's name) name one, and returns its exit code.
pub fn dispatch(args: &[OsString]) -> Option<ExitCode> {
    let (command, rest) = args.split_first()?;
    match (command.to_str()?, rest) {
        ("supervisor", [socket]) => Some(supervise(Path::new(socket))),
        ("exec-qemu", rest) => Some(ExitCode::from(
            floe_machine::exec::run(rest.iter().cloned()) as u8,
        )),
        ("lease-guard", [file, qemu]) => Some(keep_lease(Path::new(file), qemu.to_str()?)),
        _ => None,
    }
}

fn keep_lease(file: &Path, qemu: &str) -> ExitCode {
    // fails only for the leader of a process group, which is detached enough
    let _ = rustix::process::setsid();
    let kept = match qemu.parse() {
        Ok(qemu) => guard::run(file, qemu),
        Err(_) => Err(std::io::ErrorKind::InvalidInput.into()),
    };
    match kept {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE, // nobody reads what it would say
    }
}

fn supervise(socket: &Path) -> ExitCode {
    // fails only for the leader of a process group, which is detached enough
    let _ = rustix::process::setsid();
    floe_store::private::set_umask();
    // the node waits for this line; nobody reads what comes after it
    let listening = || {
        let _ = writeln!(std::io::stdout(), "listening");
    };
    match supervisor::run(socket, listening) {
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
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .current_dir("/")
        .spawn()
        .map_err(at(format!(
            "cannot start {} as the mount's supervisor",
            program.display()
        )))?;
    // it says when it listens; if it ends, so does what can be read from it
    let said = child.stdout.take();
    let said = said.ok_or_else(|| failed("the supervisor has no output", "report this"))?;
    let until = Instant::now().checked_add(SUPERVISOR_START);
    let watched = at("cannot watch the supervisor");
    let waited = floe_threads::ready(&[said.as_fd()], until, None).map_err(watched)?;
    if supervisor::Client::connect(socket).is_ok() {
        // this thread reaps the supervisor if that ends first
        floe_threads::spawn("supervisor-wait", move || child.wait())?;
        return Ok(());
    }
    let _ = child.kill(); // it may have ended already
    let status = child.wait().map_err(at("cannot watch the supervisor"))?;
    Err(match waited {
        Ready::Those(_) => failed(
            format!("the mount's supervisor ended at once: {status}"),
            "run it by hand: floe supervisor SOCKET",
        ),
        Ready::TimedOut | Ready::Cancelled => failed(
            "the mount's supervisor does not answer",
            "look for a hung `floe supervisor`",
        ),
    })
}
