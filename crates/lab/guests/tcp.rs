//! The program of `floe-lab isolation`: a byte goes to another process over TCP and comes back, so many times, as lmbench has it.
//!
//! ```text
//! floe-tcp COUNT     ends with 0 if every byte came back
//! ```
//!
//! It needs no crate: `floe-lab isolation` compiles it with `rustc -C target-feature=+crt-static`.
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, ExitCode, Stdio};

/// The word with which this program is the other process.
const ECHO: &str = "echo";

/// Says at which port it listens, and sends back what comes, until nothing comes any more.
fn echo() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?.port());
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut byte = [0u8];
    while stream.read(&mut byte)? > 0 {
        stream.write_all(&byte)?;
    }
    Ok(())
}

fn round_trips(count: u64) -> io::Result<()> {
    let mut other = Command::new(std::env::current_exe()?)
        .arg(ECHO)
        .stdout(Stdio::piped())
        .spawn()?;
    let Some(said) = other.stdout.take() else {
        return Err(io::Error::other("it was started without a pipe"));
    };
    let mut port = String::new();
    BufReader::new(said).read_line(&mut port)?;
    let port: u16 = port.trim().parse().map_err(io::Error::other)?;
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    let mut byte = [0u8];
    for number in 0..count {
        let sent = number as u8;
        stream.write_all(&[sent])?;
        stream.read_exact(&mut byte)?;
        if byte[0] != sent {
            return Err(io::Error::other("another byte came back"));
        }
    }
    drop(stream);
    other.wait()?;
    Ok(())
}

fn main() -> ExitCode {
    let word = std::env::args().nth(1).unwrap_or_default();
    let done = match word.as_str() {
        ECHO => echo(),
        count => match count.parse() {
            Ok(count) => round_trips(count),
            Err(_) => Err(io::Error::other("floe-tcp COUNT")),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("floe-tcp: {error}");
            ExitCode::FAILURE
        }
    }
}
