//! Decides when the guest has answered.
//!
//! On the console, it has once the log holds something new. On a port it is harder: QEMU's user network accepts every
//! connection to a forwarded port at once, whether the guest listens or not. So a connection counts when the *guest* has sent
//! something on it: a banner (SSH, SMTP), or any answer to a line of HTTP. If the guest does not listen, QEMU closes the
//! connection, and another is tried.

use crate::{
    error::{NodeError, at},
    transfer::Cancel,
};
use floe_api::{PortForward, Protocol, Wait};
use floe_machine::console::{ConsoleLog, ConsoleWatch};
use floe_threads::ready;
use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    os::fd::AsFd,
    path::Path,
    time::{Duration, Instant},
};

/// How long a server has to send something after the connection, and again after our question.
const BANNER_WAIT: Duration = Duration::from_millis(150);
/// How long one attempt may last: on a slow link the guest's pages for the answer must arrive first.
const ATTEMPT: Duration = Duration::from_secs(20);
/// The time between two attempts.
const PORT_POLL: Duration = Duration::from_millis(20);
/// How often it is checked whether the machine is alive while its console is waited for.
const ALIVE_EVERY: Duration = Duration::from_millis(200);
/// What is sent to a server that waits for its client.
const QUESTION: &[u8] = b"GET / HTTP/1.0\r\n\r\n";

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The guest answered at this time.
    Answered(Instant),
    /// It did not answer in time.
    TimedOut,
    /// There was nothing to wait for.
    Nothing,
}

/// Waits as requested, at most for `timeout`. `console` is the directory of the console's log; anything beyond its position
/// `console_before` is new. `alive` is called now and then; its error ends the wait.
pub fn wait(
    what: Wait,
    console: &Path,
    console_before: (u64, u64),
    forwards: &[PortForward],
    timeout: Duration,
    cancel: &Cancel,
    mut alive: impl FnMut() -> Result<(), NodeError>,
) -> Result<Waited, NodeError> {
    let until = Instant::now() + timeout;
    let port = forwards
        .iter()
        .find(|forward| forward.protocol == Protocol::Tcp);
    let watch = match what {
        Wait::Console => ConsoleWatch::new(console).ok(),
        _ => None,
    };
    while Instant::now() < until {
        if cancel.is_cancelled() {
            return Err(NodeError::Cancelled);
        }
        alive()?;
        match (what, port) {
            (Wait::None, _) | (Wait::Port, None) => return Ok(Waited::Nothing),
            (Wait::Console, _) => {
                if ConsoleLog::position(console) != console_before {
                    return Ok(Waited::Answered(Instant::now()));
                }
                // who cannot watch the log looks at it as often as at the machine
                let watched = watch.iter().map(AsFd::as_fd).collect::<Vec<_>>();
                let until = until.min(Instant::now() + ALIVE_EVERY);
                ready(&watched, Some(until), Some(cancel)).map_err(at("cannot wait"))?;
                watch.iter().for_each(ConsoleWatch::clear);
            }
            (Wait::Port, Some(forward)) => {
                if let Some(at) = ask(forward, until, cancel) {
                    return Ok(Waited::Answered(at));
                }
                // nothing tells when a program in the guest begins to listen
                cancel.sleep(PORT_POLL);
            }
        }
    }
    Ok(Waited::TimedOut)
}

/// Connects to the port; returns when the guest sent something, if it did.
fn ask(forward: &PortForward, until: Instant, cancel: &Cancel) -> Option<Instant> {
    let host: IpAddr = forward.host_address.parse().ok()?;
    let host = if host.is_unspecified() {
        IpAddr::V4(Ipv4Addr::LOCALHOST)
    } else {
        host
    };
    let until = until.min(Instant::now() + ATTEMPT);
    let mut stream =
        TcpStream::connect_timeout(&SocketAddr::new(host, forward.host_port), ATTEMPT).ok()?;
    stream.set_read_timeout(Some(BANNER_WAIT)).ok()?;
    let mut byte = [0];
    let mut asked = false;
    while Instant::now() < until && !cancel.is_cancelled() {
        match stream.read(&mut byte) {
            Ok(0) => return None,
            Ok(_) => return Some(Instant::now()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if !asked {
                    stream.write_all(QUESTION).ok()?;
                    asked = true;
                }
            }
            Err(_) => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn forward_to(listener: &TcpListener) -> Vec<PortForward> {
        vec![
            format!("{}:80", listener.local_addr().unwrap().port())
                .parse()
                .unwrap(),
        ]
    }

    fn wait_port(forwards: &[PortForward], ms: u64) -> Waited {
        let timeout = Duration::from_millis(ms);
        wait(
            Wait::Port,
            Path::new("/nowhere"),
            (0, 0),
            forwards,
            timeout,
            &Cancel::default(),
            || Ok(()),
        )
        .unwrap()
    }

    #[test]
    fn a_port_that_accepts_but_says_nothing_is_not_an_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let forwards = forward_to(&listener);
        // what QEMU does for a guest that doesn't listen: accept, then close
        std::thread::spawn(move || listener.incoming().for_each(drop));
        assert_eq!(wait_port(&forwards, 200), Waited::TimedOut);
    }

    #[test]
    fn a_banner_or_an_answer_to_a_question_is_one() {
        for speaks_first in [true, false] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let forwards = forward_to(&listener);
            std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                if !speaks_first {
                    let _ = stream.read(&mut [0; 64]);
                }
                stream.write_all(b"hello").unwrap();
            });
            assert!(matches!(wait_port(&forwards, 60_000), Waited::Answered(_)));
        }
    }

    #[test]
    fn only_new_bytes_on_the_console_are_an_answer() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("console.log");
        std::fs::write(&log, b"before").unwrap();
        let before = ConsoleLog::position(dir.path());
        let console = |before, ms| {
            wait(
                Wait::Console,
                dir.path(),
                before,
                &[],
                Duration::from_millis(ms),
                &Cancel::default(),
                || Ok(()),
            )
            .unwrap()
        };
        assert_eq!(console(before, 30), Waited::TimedOut);
        std::fs::write(&log, b"before and after").unwrap();
        assert!(matches!(console(before, 60_000), Waited::Answered(_)));
    }

    #[test]
    fn a_client_that_hangs_up_ends_the_wait() {
        let cancel = Cancel::default();
        cancel.cancel();
        let waited = wait(
            Wait::Console,
            Path::new("/nowhere"),
            (0, 0),
            &[],
            Duration::from_secs(60),
            &cancel,
            || Ok(()),
        );
        assert!(matches!(waited, Err(NodeError::Cancelled)));
    }
}
