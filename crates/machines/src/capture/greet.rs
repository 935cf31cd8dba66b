//! Greets the agent in a guest as a session would, for a copy of a machine that no user sees.

use floe_guest::{
    line::Lines,
    message::{ENTROPY_BYTES, Identity, Place, ToGuest, ToHost, VERSION},
};
use floe_machine::Machine;
use std::{
    io::{self, ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Has the agent set the clock and mix in random numbers. Returns the connection: the guest sees the conversation end when it
/// is dropped. Fails if the machine has no port for an agent or the agent does not answer within `limit`.
pub fn greet(machine: &Machine, limit: Duration) -> io::Result<UnixStream> {
    let until = floe_threads::from_now(limit);
    let no_port = || io::Error::new(ErrorKind::NotFound, "it has no port for an agent");
    let mut stream = machine.connect_floe_port().ok_or_else(no_port)??;
    stream.set_write_timeout(Some(limit))?;
    let session = rand::random();
    let hello = ToGuest::Hello {
        session,
        version: VERSION,
        frames: false,
    };
    // ends the half line that the capture may have cut off
    stream.write_all(b"\n")?;
    stream.write_all(&hello.encode())?;
    let mut lines = Lines::default();
    let mut buffer = [0; 4096];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let count = match stream.read(&mut buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(e) if e.kind() == ErrorKind::WouldBlock => 0,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        for line in lines.feed(&buffer[..count]).into_iter().flatten() {
            match ToHost::decode(&line) {
                Ok(ToHost::Ready { session: of, .. }) if of == session => {
                    let generation = machine.generation_id().map_err(io::Error::other)?;
                    let place = Box::new(fresh_place(generation, None));
                    stream.write_all(&ToGuest::Place { session, place }.encode())?;
                }
                Ok(ToHost::Placed { session: of }) if of == session => return Ok(stream),
                _ => {}
            }
        }
    }
}

/// Returns the current time and fresh random numbers, with a machine's generation and the given identity.
pub fn fresh_place(generation: Option<String>, identity: Option<Identity>) -> Place {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let entropy: [u8; ENTROPY_BYTES] = rand::random();
    Place {
        time_ns: now.unwrap_or_default().as_nanos() as u64,
        entropy: entropy.to_vec(),
        generation,
        identity,
        node: None,
    }
}
