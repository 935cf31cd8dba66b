//! `floe cp`: files and directories between this host and a guest.

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use clap::Args;

use super::error::CliError;
use super::progress::{self, View};
use super::session::{Input, Output, Session, is_over};
use super::{Context, interrupt};
use floe_api::client::Client;
use floe_api::{ErrorCode, ExecRequest, Program};
use floe_guest::copy::{self, Form, Place, pieces};

/// How long removing what is half done may take after an interrupt.
const PUT_AWAY_WAIT: Duration = Duration::from_secs(30);
/// How often it is shown how far a copy is.
const SHOW_EVERY: Duration = Duration::from_millis(200);

/// Copy files between this host and a machine's guest
#[derive(Debug, Args)]
#[command(after_help = "\
Example: out of the guest, and into it
  floe cp web:/etc/nginx/nginx.conf .
  floe cp site/ web:/srv/
Example: without a file here
  floe cp web:/var/log/syslog - | grep nginx
  generate | floe cp - web:/tmp/data

Directories are copied whole; modes, times, symbolic links and the holes in sparse files are kept, owners are not: in the guest
everything belongs to root, or to --user. A file with the target's name is replaced, a directory never is. A copy gets its name
only once it is complete. The guest needs floe's agent: floe agent install.")]
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

/// Copies a path of a guest to here; `-` is standard output.
pub(super) fn out_of(
    cx: &Context,
    machine: &str,
    path: &str,
    to: &str,
    user: &str,
) -> Result<(), CliError> {
    let path = there(path);
    let client = cx.client()?;
    let program = |sparse: bool| Program::Send {
        path: path.clone(),
        bytes: to == "-",
        sparse,
    };
    if to == "-" {
        let mut session = Session::start(&client, machine, &request(program(false), user))?;
        let mut output = Output::new(&mut session);
        let mut out = io::stdout().lock();
        let mut read = pieces::Reader::new(&mut output);
        let read = io::copy(&mut read, &mut out).and_then(|_| out.flush());
        return came(output, read, to);
    }
    let place = Place {
        target: Path::new(to),
        name: &name_of(Path::new(&path)),
        special_bits: false,
    };
    as_the_agent_knows(|form| {
        let program = program(form == Form::Sparse);
        let mut session = Session::start(&client, machine, &request(program, user))?;
        let halves = PutsAway::at_an_interrupt(session.line()?);
        let mut output = Output::new(&mut session);
        let mut shown = Shown::of(cx);
        let read = copy::receive(&mut output, form, &place, &mut |done, total| {
            shown.progress(done, total);
        });
        halves.judge(came(output, read.map(drop), to))
    })
}

/// Copies without holes. An agent that does not know that yet says so before anything is copied, and is asked for all bytes.
fn as_the_agent_knows(mut once: impl FnMut(Form) -> Result<(), CliError>) -> Result<(), CliError> {
    let done = once(Form::Sparse);
    progress::clear();
    match done {
        Err(error) if error.0.message.contains(copy::UNKNOWN_FORM) => {
            let done = once(Form::Archive);
            progress::clear();
            done
        }
        done => done,
    }
}

/// Returns how a copy to here ended. `read` is how reading its output went.
fn came(mut output: Output<'_>, read: io::Result<()>, to: &str) -> Result<(), CliError> {
    // a write that failed here is no reason to wait for the guest
    let cut = |e: &io::Error| e.kind() == io::ErrorKind::UnexpectedEof;
    let read = match read {
        Ok(()) => output.finish(),
        Err(e) if cut(&e) => output.finish().and(Err(e)),
        Err(e) => Err(e),
    };
    output.conclude(read, &format!("cannot copy to {to}"))
}

/// What shows how far a copy is: bytes of data, of which a hole has none.
struct Shown {
    view: Option<View>,
    last: Instant,
}

impl Shown {
    fn of(cx: &Context) -> Shown {
        Shown {
            view: (!cx.out.json).then(View::new),
            last: Instant::now(),
        }
    }

    /// Shows it from time to time: short copies show nothing.
    fn progress(&mut self, done: u64, total: u64) {
        if let Some(view) = &mut self.view
            && self.last.elapsed() >= SHOW_EVERY
        {
            self.last = Instant::now();
            view.progress("copy", done, total, "bytes");
        }
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

/// Copies a file of this host to a path in a guest, as root, in the form that all agents know.
pub(super) fn put(client: &Client, machine: &str, from: &Path, to: &str) -> Result<(), CliError> {
    let program = Program::Receive {
        path: to.into(),
        name: String::new(),
        bytes: false,
        sparse: false,
    };
    let mut session = Session::start(client, machine, &request(program, ""))?;
    let sent = archive(&mut session, from, Form::Archive, &mut |_, _| ());
    conclude(session, sent, &from.display().to_string())
}

/// Sends a file or directory as the input of a process that receives it.
fn archive(session: &mut Session, from: &Path, form: Form, told: copy::Told<'_>) -> io::Result<()> {
    let mut input = Input { session };
    let mut skipped = |path: &Path| {
        let path = super::visible::line(&path.display().to_string()).to_string();
        // not into the middle of a bar, which comes again
        progress::clear();
        eprintln!("{path} is no file, directory or symbolic link, and is left out");
    };
    copy::send(from, form, &mut input, &mut skipped, told)?;
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
    let program = |sparse: bool| Program::Receive {
        path: there(path),
        name: named.clone(),
        bytes,
        sparse,
    };
    let client = cx.client()?;
    if bytes {
        let mut session = Session::start(&client, machine, &request(program(false), user))?;
        let mut input = Input {
            session: &mut session,
        };
        let mut out = pieces::Writer::new(&mut input);
        let sent = io::copy(&mut io::stdin().lock(), &mut out);
        let sent = sent
            .and_then(|_| out.finish())
            .and_then(|()| input.finish());
        return conclude(session, sent, from);
    }
    as_the_agent_knows(|form| {
        let program = program(form == Form::Sparse);
        let mut session = Session::start(&client, machine, &request(program, user))?;
        let mut shown = Shown::of(cx);
        let sent = archive(&mut session, &source, form, &mut |done, total| {
            shown.progress(done, total);
        });
        conclude(session, sent, from)
    })
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
