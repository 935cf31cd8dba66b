//! Calls the agent, with one call per connection. The C and Python libraries have their own implementations.

use crate::line::LINE_BYTES_MAX;
use crate::message::{Answer, Call};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Sends a call and waits for the answer, at most for `limit`.
pub fn call(socket: &Path, call: &Call, limit: Option<Duration>) -> io::Result<Answer> {
    // without an end if no clock can count that
    let until = limit.and_then(|limit| Instant::now().checked_add(limit));
    let mut stream = UnixStream::connect(socket).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("{}: {error}; does floe-guest run?", socket.display()),
        )
    })?;
    stream.write_all(&call.encode())?;
    let mut line = Vec::new();
    let mut buffer = [0; 512];
    loop {
        if let Some(until) = until {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "no answer in that time",
                ));
            }
            stream.set_read_timeout(Some(left))?;
        }
        match stream.read(&mut buffer) {
            Ok(0) => return Err(io::Error::other("the agent hung up")),
            Ok(count) => line.extend_from_slice(&buffer[..count]),
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(e) => return Err(e),
        }
        if let Some(end) = line.iter().position(|&b| b == b'\n') {
            return Answer::decode(&line[..end]).map_err(io::Error::other);
        }
        if line.len() > LINE_BYTES_MAX {
            return Err(io::Error::other("the agent's answer is too long"));
        }
    }
}
