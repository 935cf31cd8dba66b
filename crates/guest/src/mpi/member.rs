//! floe-mpirun in a clone: it waits for commands, runs them, and ends its machine when the parent is gone.

use super::wire::{self, Frame, PAYLOAD_BYTES_MAX, SECRET_BYTES};
use super::{RUN_NAME, SILENCE, own_address, say, sys};
use crate::client;
use crate::message::{Answer, Call};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Longest time of one attempt to reach the parent.
const DIAL: Duration = Duration::from_secs(5);
/// Pause between two attempts.
const DIAL_AGAIN: Duration = Duration::from_millis(50);
/// Longest time of one request to end the machine.
const EXIT: Duration = Duration::from_secs(180);
/// Most requests to end it; the node may be restarted meanwhile.
const EXITS_MAX: u32 = 20;

/// What a clone knows about its parent.
pub(super) struct Home {
    /// Where the parent's floe-mpirun listens.
    pub parent: SocketAddr,
    /// The secret that the parent has drawn.
    pub secret: [u8; SECRET_BYTES],
    /// This clone's number.
    pub id: u32,
    /// Longest time to reach the parent.
    pub timeout: Duration,
    /// The agent's socket.
    pub socket: PathBuf,
}

/// Serves commands, then ends the machine. Returns only if that is impossible.
pub(super) fn serve(home: &Home) -> String {
    if let Err(why) = work(home) {
        say(RUN_NAME, &format!("clone {}: {why}", home.id));
    }
    let mut why = String::new();
    for _ in 0..EXITS_MAX {
        match client::call(&home.socket, &Call::Exit, Some(EXIT)) {
            Ok(Answer::Refused(refusal)) => why = refusal.to_string(),
            Ok(_) => {}
            Err(error) => why = error.to_string(),
        }
        thread::sleep(Duration::from_secs(1));
    }
    format!("clone {} cannot end its machine: {why}", home.id)
}

/// Makes one connection after the other: each gets one command, and there is always one more connection that waits.
fn work(home: &Home) -> Result<(), String> {
    let lost = |error: io::Error| format!("the parent at {} is gone: {error}", home.parent);
    let own = own_address(home.parent).map_err(lost)?;
    if own == home.parent.ip() {
        return Err(
            "this clone has its parent's address: there is no network of the family".into(),
        );
    }
    loop {
        let mut stream = dial(home).map_err(lost)?;
        match wire::read(&mut stream) {
            Ok(Some(Frame::Run { command, .. })) => {
                thread::spawn(move || run(&command, &stream));
            }
            // the run is over, so the machine ends
            _ => return Ok(()),
        }
    }
}

fn dial(home: &Home) -> io::Result<TcpStream> {
    let until = Instant::now() + home.timeout;
    loop {
        let dialled = TcpStream::connect_timeout(&home.parent, DIAL).and_then(|mut stream| {
            stream.set_nodelay(true)?;
            sys::break_after(&stream, SILENCE)?;
            let (secret, id) = (home.secret, home.id);
            wire::write(&mut stream, &Frame::Hello { secret, id })?;
            Ok(stream)
        });
        match dialled {
            // the parent listened before there was a clone
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Err(error),
            Err(_) if Instant::now() < until => thread::sleep(DIAL_AGAIN),
            dialled => return dialled,
        }
    }
}

fn run(command: &str, stream: &TcpStream) {
    let status = carry_out(command, stream).unwrap_or_else(|error| {
        let text = format!("{RUN_NAME}: sh: {error}\n");
        let _ = wire::write(&mut &*stream, &Frame::Err(text.into_bytes()));
        127
    });
    // if this can't be sent, the parent is gone
    let _ = wire::write(&mut &*stream, &Frame::Ended { status });
    let _ = stream.shutdown(Shutdown::Both);
}

fn carry_out(command: &str, stream: &TcpStream) -> io::Result<i32> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let leader = child.id();
    let ended = Arc::new(AtomicBool::new(false));
    let to = Mutex::new(stream);
    // a closed connection means that the command is no longer wanted
    let watched = stream.try_clone()?;
    let has_ended = ended.clone();
    thread::spawn(move || {
        let _ = (&watched).read(&mut [0]);
        if !has_ended.load(Ordering::Acquire) {
            sys::end_group(leader);
        }
    });
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let status = thread::scope(|scope| {
        if let Some(out) = out {
            scope.spawn(|| pump(out, &to, Frame::Out));
        }
        if let Some(err) = err {
            scope.spawn(|| pump(err, &to, Frame::Err));
        }
        let status = child.wait();
        ended.store(true, Ordering::Release);
        status
    })?;
    Ok(code(status))
}

/// Returns the exit status in the form that shells use.
pub(super) fn code(status: ExitStatus) -> i32 {
    let killed = status.signal().map(|signal| 128 + signal);
    status.code().or(killed).unwrap_or(255)
}

fn pump(mut from: impl Read, to: &Mutex<&TcpStream>, frame: fn(Vec<u8>) -> Frame) {
    let mut buffer = vec![0; PAYLOAD_BYTES_MAX];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => {
                let bytes = frame(buffer[..count].to_vec()).encode();
                let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
                // the command's output is drained even if nobody receives it
                let _ = to.write_all(&bytes);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
