//! The program that Hydra calls for each host in place of ssh: `floe-mpi-launcher [-OPTION]... HOST COMMAND...`.

use super::wire::{self, Frame};
use super::{LAUNCHER_NAME, OWN_FAILURE, say};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

/// Name of floe-mpirun's socket, in the directory from which the launcher is called.
pub(super) const SOCKET_NAME: &str = "socket";

/// Runs the command on its host, through the floe-mpirun that made `dir`.
pub(super) fn main(dir: &Path, args: &[String]) -> ExitCode {
    launch(dir, args).unwrap_or_else(|why| {
        say(LAUNCHER_NAME, &why);
        ExitCode::from(OWN_FAILURE)
    })
}

fn launch(dir: &Path, args: &[String]) -> Result<ExitCode, String> {
    // the ssh options that Hydra passes have no values
    let mut words = args.iter().skip_while(|arg| arg.starts_with('-'));
    let host = words.next().ok_or("a host is missing")?.clone();
    let words: Vec<&str> = words.map(String::as_str).collect();
    if words.is_empty() {
        return Err("a command is missing".into());
    }
    // join the words like ssh: quotes are for the shell at the other end
    let command = words.join(" ");
    let path = dir.join(SOCKET_NAME);
    let lost = |error: io::Error| format!("floe-mpirun is gone ({}: {error})", path.display());
    let mut stream = UnixStream::connect(&path).map_err(lost)?;
    wire::write(&mut stream, &Frame::Run { host, command }).map_err(lost)?;
    loop {
        match wire::read(&mut stream).map_err(lost)? {
            // nobody may be reading the output any more
            Some(Frame::Out(bytes)) => drop(
                io::stdout()
                    .write_all(&bytes)
                    .and_then(|()| io::stdout().flush()),
            ),
            Some(Frame::Err(bytes)) => drop(io::stderr().write_all(&bytes)),
            Some(Frame::Ended { status }) => return Ok(ExitCode::from(status as u8)),
            Some(_) => return Err("floe-mpirun speaks otherwise".into()),
            None => return Err("floe-mpirun has hung up".into()),
        }
    }
}
