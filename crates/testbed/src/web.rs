//! Web servers in guests, asked through a port of this host.
use anyhow::bail;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Longest time for a guest to boot and answer, under emulation on a busy host.
const ANSWER_MAX: Duration = Duration::from_secs(300);
/// How often it is asked meanwhile.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// Asks the web server that a port of this host leads to until it answers.
pub fn until_it_answers(port: u16) -> anyhow::Result<()> {
    let until = Instant::now() + ANSWER_MAX;
    while !matches!(first_byte(port), Ok(Some(_))) {
        if Instant::now() > until {
            bail!("its web server did not answer within {ANSWER_MAX:?}");
        }
        std::thread::sleep(ASK_EVERY);
    }
    Ok(())
}

/// Asks for a page; returns the first byte of the answer, or `None` if the connection was ended.
pub fn first_byte(port: u16) -> std::io::Result<Option<u8>> {
    let mut server = TcpStream::connect(("127.0.0.1", port))?;
    server.set_read_timeout(Some(ANSWER_MAX))?;
    server.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut first = [0];
    Ok((server.read(&mut first)? == 1).then_some(first[0]))
}
