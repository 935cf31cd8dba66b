//! `floe cp`: files and directories between this host and a guest.

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use clap::Args;

use super::error::CliError;
use super::session::{Input, Output, Session, is_over};
use super::{Context, interrupt};
use floe_api::client::Client;
use floe_api::{ErrorCode, ExecRequest, Program};
use floe_guest::copy::{self, Form, Place, pieces};

/// How long removing what is half done may take after an interrupt.
const PUT_AWAY_WAIT: Duration = Duration::from_secs(30);

/// Copy files between this host and a machine's guest
#[derive(Debug, Args)]
#[command(after_help = "\
Example: out of the guest, and into it
  floe cp web:/etc/nginx/nginx.conf .
  floe cp site/ web:/srv/
Example: without a file here
  floe cp web:/var/log/syslog - | grep nginx
  generate | floe cp - web:/tmp/data

Directories are copied whole; modes, times and symbolic links are kept, owners are not: in the guest everything belongs to
root, or to --user. What has the target's name is replaced if it is a file; a directory never is. A file has its name only once
it is complete. The guest needs floe's agent: floe agent install.")]
pub struct Cp {
    /// A path, MACHINE:PATH in a guest, or - for standard input
    from: String,
    /// A path, MACHINE:PATH in a guest, or - for standard output
    to: String,
    /// Read and write in the guest as this user; by default root
    #[arg(long, short, default_value = "", hide_default_value = true)]
    user: String,
}

/// One side of a copy.
#[derive(Debug, PartialEq, Eq)]
enum End<'a> {
    Guest { machine: &'a str, path: &'a str },
    Here(&'a str),
}

/// A colon before the first slash divides a machine from a path in its guest.
fn end(text: &str) -> End<'_> {
    match text.split_once(':') {
        Some((machine, path)) if !machine.is_empty() && !machine.contains('/') => {
            End::Guest { machine, path }
        }
        _ => End::Here(text),
    }
}

impl Cp {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        match (end(&self.from), end(&self.to)) {
            (End::Guest { machine, path }, End::Here(to)) => {
                out_of(cx, machine, path, to, &self.user)
            }
            (End::Here(from), End::Guest { machine, path }) => {
                into(cx, from, machine, path, &self.user)
            }
            (End::Here(_), End::Here(_)) => Err(CliError::usage(
                "neither is in a guest",
                "write MACHINE:PATH for the one that is: floe cp file web:/tmp/",
            )),
            (End::Guest { .. }, End::Guest { .. }) => Err(CliError::usage(
                "both are in guests",
                "copy through here: floe cp one:/file - | floe cp - two:/file",
            )),
        }
    }
}

fn request(program: Program, user: &str) -> ExecRequest {
    ExecRequest {
        user: user.into(),
        ..ExecRequest::new(program)
    }
}

/// Returns a path in a guest; relative ones begin in the user's own directory there.
fn there(path: &str) -> String {
    if path.is_empty() {
        ".".into()
    } else {
        path.into()
    }
}

/// The last part of a path, for a target that is a directory.
fn name_of(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy());
    name.unwrap_or_default().into_owned()
}

fn out_of(cx: &Context, machine: &str, path: &str, to: &str, user: &str) -> Result<(), CliError> {
    let bytes = to == "-";
    let path = there(path);
    let program = Program::Send {
        path: path.clone(),
        bytes,
    };
    let client = cx.client()?;
    let mut session = Session::start(&client, machine, &request(program, user))?;
    let halves = match bytes {
        true => None,
        false => Some(PutsAway::at_an_interrupt(session.line()?)),
    };
    let mut output = Output::new(&mut session);
    let read = match bytes {
        true => {
            let mut out = io::stdout().lock();
            let mut read = pieces::Reader::new(&mut output);
            io::copy(&mut read, &mut out).and_then(|_| out.flush())
        }
        false => {
            let place = Place {
                target: Path::new(to),
                name: &name_of(Path::new(&path)),
                special_bits: false,
            };
            copy::receive(&mut output, Form::Archive, &place).map(drop)
        }
    };
    // a write that failed here is no reason to wait for the guest
    let cut = |e: &io::Error| e.kind() == io::ErrorKind::UnexpectedEof;
    let read = match read {
        Ok(()) => output.finish(),
        Err(e) if cut(&e) => output.finish().and(Err(e)),
        Err(e) => Err(e),
    };
    let done = output.conclude(read, &format!("cannot copy to {to}"));
    match halves {
        Some(halves) => halves.judge(done),
        None => done,
    }
}

/// Ctrl-C in the middle of a copy: the connection is cut, whoever reads from it removes what is half done, and then the command ends.
struct PutsAway {
    interrupted: Arc<AtomicBool>,
    /// Dropped once nothing is half done any more.
    _done: mpsc::Sender<()>,
}

impl PutsAway {
    fn at_an_interrupt(line: UnixStream) -> PutsAway {
        let (done, wait) = mpsc::channel::<()>();
        let interrupted = Arc::new(AtomicBool::new(false));
        let thrown = interrupted.clone();
        interrupt::ends_with(move || {
            thrown.store(true, Ordering::SeqCst);
            let _ = line.shutdown(Shutdown::Both); // it may have ended by itself
            let _ = wait.recv_timeout(PUT_AWAY_WAIT); // it ends by an error, or by the time
            ErrorCode::Cancelled.exit_code().into()
        });
        PutsAway {
            interrupted,
            _done: done,
        }
    }

    /// Returns the result of the copy, or that it was interrupted.
    fn judge(self, done: Result<(), CliError>) -> Result<(), CliError> {
        done.map_err(|error| match self.interrupted.load(Ordering::SeqCst) {
            true => CliError::new(
                ErrorCode::Cancelled,
                "interrupted; nothing of the copy is left",
                "",
            ),
            false => error,
        })
    }
}

/// Copies a file of this host to a path in a guest, as root.
pub(super) fn put(client: &Client, machine: &str, from: &Path, to: &str) -> Result<(), CliError> {
    let program = Program::Receive {
        path: to.into(),
        name: String::new(),
        bytes: false,
    };
    let mut session = Session::start(client, machine, &request(program, ""))?;
    let sent = archive(&mut session, from);
    conclude(session, sent, &from.display().to_string())
}

/// Sends a file or directory as the input of a process that receives it.
fn archive(session: &mut Session, from: &Path) -> io::Result<()> {
    let mut input = Input { session };
    copy::send(from, Form::Archive, &mut input, &mut |path| {
        let path = super::visible::line(&path.display().to_string()).to_string();
        eprintln!("{path} is no file, directory or symbolic link, and is left out");
    })?;
    input.finish()
}

fn conclude(session: Session, sent: io::Result<()>, from: &str) -> Result<(), CliError> {
    match sent {
        // the guest took no more, and says why
        Err(error) if !is_over(&error) => {
            Err(CliError::failed(&format!("cannot copy {from}"), error))
        }
        _ => session.conclude(Vec::new()),
    }
}

fn into(cx: &Context, from: &str, machine: &str, path: &str, user: &str) -> Result<(), CliError> {
    let bytes = from == "-";
    let source = PathBuf::from(from);
    let named = match bytes {
        true => String::new(),
        false => name_of(&std::path::absolute(&source).unwrap_or_else(|_| source.clone())),
    };
    if !bytes {
        // before anything happens in the guest
        std::fs::metadata(&source).map_err(|e| CliError::file("read", &source, e))?;
    }
    let program = Program::Receive {
        path: there(path),
        name: named,
        bytes,
    };
    let client = cx.client()?;
    let mut session = Session::start(&client, machine, &request(program, user))?;
    let sent = match bytes {
        true => {
            let mut input = Input {
                session: &mut session,
            };
            let mut out = pieces::Writer::new(&mut input);
            let sent = io::copy(&mut io::stdin().lock(), &mut out);
            sent.and_then(|_| out.finish())
                .and_then(|()| input.finish())
        }
        false => archive(&mut session, &source),
    };
    conclude(session, sent, from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_told_from_a_path() {
        let guest = |machine, path| End::Guest { machine, path };
        assert_eq!(end("web:/etc/passwd"), guest("web", "/etc/passwd"));
        assert_eq!(end("web.3:"), guest("web.3", ""));
        for here in ["file", "-", "./a:b", "/a:b", "dir/a:b", ":x"] {
            assert_eq!(end(here), End::Here(here));
        }
    }
}
