//! Starts a process as a request wants it: its user, directory, environment, streams, and its terminal if it has one.

use super::user::{self, User};
use super::walk;
use crate::agent::{spawn, sys};
use crate::exec::mux::WINDOW_BYTES;
use crate::exec::request::{Request, What};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Command;

/// Where commands are looked for, unless the request says otherwise.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// What shells return for a command that does not exist.
const NOT_FOUND: u8 = 127;
/// The same for one that can't be executed.
const NOT_EXECUTABLE: u8 = 126;

/// A process with the other ends of its streams, none of which blocks.
pub(super) struct Started {
    pub pid: u32,
    pub input: Option<File>,
    /// Its output, and what it writes about errors; with a terminal, the former is all.
    pub outputs: [Option<File>; 2],
}

/// Why a process did not start: a shell's code, and the reason.
pub(super) type Refused = (u8, String);

fn refused(what: &str, error: &io::Error) -> Refused {
    let code = match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    };
    (code, format!("{what}: {error}"))
}

/// Starts the process. With `mark`, its environment has the [variable](walk::MARK) by which what it starts is found.
pub(super) fn start(request: &Request, mark: Option<&str>) -> Result<Started, Refused> {
    let user = user::find(&request.user).map_err(|why| (NOT_EXECUTABLE, why))?;
    let (name, rest) = match (request.what, request.arguments.split_first()) {
        // the program that runs, whatever stands in its place by now
        (What::Tool, _) => ("/proc/self/exe", &request.arguments[..]),
        (What::Command, Some((name, rest))) => (name.as_str(), rest),
        (What::Command, None) => return Err((NOT_FOUND, "no command was given".into())),
    };
    let mut command = Command::new(name);
    command
        .args(rest)
        .env_clear()
        .envs(environment(request, &user))
        .envs(mark.map(|mark| (walk::MARK, mark)));
    command.current_dir(directory(request, &user)?);
    let is_tool = request.what == What::Tool;
    let started = match request.terminal {
        Some(size) => with_terminal(command, &user, size),
        None if request.detached => with_nothing(command, &user),
        None => with_pipes(command, &user, is_tool),
    };
    started.map_err(|error| refused(name, &error))
}

fn environment(request: &Request, user: &User) -> Vec<(OsString, OsString)> {
    let known = [
        ("PATH", PATH.into()),
        ("HOME", user.home.clone().into_os_string()),
        ("USER", user.name.clone().into()),
        ("LOGNAME", user.name.clone().into()),
        ("SHELL", user.shell.clone().into_os_string()),
    ];
    let mut all: Vec<(OsString, OsString)> = known
        .into_iter()
        .map(|(name, value)| (name.into(), value))
        .collect();
    for variable in &request.environment {
        let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
        if !name.is_empty() {
            all.push((name.into(), value.into()));
        }
    }
    all
}

fn directory<'a>(request: &'a Request, user: &'a User) -> Result<&'a Path, Refused> {
    if !request.directory.is_empty() {
        let wanted = Path::new(&request.directory);
        return match std::fs::metadata(wanted) {
            Ok(found) if found.is_dir() => Ok(wanted),
            Ok(_) => Err((
                NOT_EXECUTABLE,
                format!("{} is no directory", wanted.display()),
            )),
            Err(error) => Err(refused(&request.directory, &error)),
        };
    }
    Ok(
        match std::fs::metadata(&user.home).is_ok_and(|found| found.is_dir()) {
            true => &user.home,
            false => Path::new("/"),
        },
    )
}

/// Starts a command without a terminal.
fn launch(mut command: Command, user: &User, streams: [OwnedFd; 3]) -> io::Result<u32> {
    if user::is_own(user) {
        let [input, output, errors] = &streams;
        // what that can't start, the other way can, or says why not
        if let Ok(pid) = spawn::start(&command, [input.as_fd(), output.as_fd(), errors.as_fd()]) {
            return Ok(pid);
        }
    }
    let [input, output, errors] = streams;
    command.stdin(input).stdout(output).stderr(errors);
    sys::begin_session(&mut command, user.uid, user.gid, user.groups.clone(), false);
    Ok(command.spawn()?.id())
}

fn with_nothing(command: Command, user: &User) -> io::Result<Started> {
    let mut null = File::options();
    let null = OwnedFd::from(null.read(true).write(true).open("/dev/null")?);
    let streams = [null.try_clone()?, null.try_clone()?, null];
    Ok(Started {
        pid: launch(command, user, streams)?,
        input: None,
        outputs: [None, None],
    })
}

/// With `wide`, its input and output hold as much as may be under way, so that few calls carry a copy.
fn with_pipes(command: Command, user: &User, wide: bool) -> io::Result<Started> {
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
    let (input, ours) = pipe()?;
    let ((output, their_output), (errors, their_errors)) = (pipe()?, pipe()?);
    let pid = launch(command, user, [input, their_output, their_errors])?;
    let file = |fd: OwnedFd| {
        sys::set_nonblocking(fd.as_fd())?;
        if wide {
            sys::widen(fd.as_fd(), WINDOW_BYTES);
        }
        Ok::<_, io::Error>(Some(File::from(fd)))
    };
    Ok(Started {
        pid,
        input: file(ours)?,
        outputs: [file(output)?, file(errors)?],
    })
}

fn with_terminal(mut command: Command, user: &User, size: (u16, u16)) -> io::Result<Started> {
    let (master, slave) = sys::terminal()?;
    sys::set_size(master.as_fd(), size.0, size.1)?;
    // its user may open it again by its name, as programs that ask for passwords do
    let _ = rustix::fs::fchown(&slave, Some(rustix::fs::Uid::from_raw(user.uid)), None);
    command.stdin(slave.try_clone()?);
    command.stdout(slave.try_clone()?);
    command.stderr(slave);
    sys::begin_session(&mut command, user.uid, user.gid, user.groups.clone(), true);
    let pid = command.spawn()?.id();
    sys::set_nonblocking(master.as_fd())?;
    Ok(Started {
        pid,
        input: Some(File::from(master.try_clone()?)),
        outputs: [Some(File::from(master)), None],
    })
}
