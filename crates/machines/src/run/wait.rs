//! Decides when the guest has given a sign of life.
//!
//! On the console, it has once the log holds something new; floe's agent has when it has answered the node. On a port it is
//! harder: QEMU's user network accepts every connection to a forwarded port at once, whether the guest listens or not. So a
//! connection counts when the *guest* has sent something on it: a banner (SSH, SMTP), or any answer to a line of HTTP. If the
//! guest does not listen, QEMU closes the connection, and another is tried.

use floe_api::PortForward;
use floe_ground::error::{NodeError, at};
use floe_machine::console::{ConsoleLog, ConsoleWatch};
use floe_threads::{Pulse, ready};
use floe_transfer::Cancel;
use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    os::fd::AsFd,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long a server has to send something after the connection, and again after our question.
const BANNER_WAIT: Duration = Duration::from_millis(150);
/// How long one attempt may last: on a slow link the guest's pages for the answer must arrive first.
const ATTEMPT: Duration = Duration::from_secs(20);
/// The time between two questions to a port.
const SIGN_POLL: Duration = Duration::from_millis(20);
/// How often it is checked whether the machine is alive while its console or agent is waited for.
const ALIVE_EVERY: Duration = Duration::from_millis(200);
/// What is sent to a server that waits for its client.
const QUESTION: &[u8] = b"GET / HTTP/1.0\r\n\r\n";

/// What is waited for.
pub enum Sign<'a> {
    /// The console's log, in this directory, is longer than it was or is another one.
    Console {
        /// The directory.
        dir: PathBuf,
        /// The log's position before.
        before: (u64, u64),
    },
    /// floe's agent has answered.
    Agent {
        /// Whether it has.
        answered: &'a dyn Fn() -> bool,
        /// Beats when it has.
        changed: &'a Arc<Pulse>,
    },
    /// The guest's end of this forward answers.
    Port(PortForward),
}

/// Waits for a sign of life, at most for `timeout`; returns when it came, or `None` if it did not. `alive` is called now and then;
/// its error ends the wait.
pub fn wait(
    sign: &Sign<'_>,
    timeout: Duration,
    cancel: &Cancel,
    mut alive: impl FnMut() -> Result<(), NodeError>,
) -> Result<Option<Instant>, NodeError> {
    let until = floe_threads::from_now(timeout);
    let watch = match sign {
        Sign::Console { dir, .. } => ConsoleWatch::new(dir).ok(),
        _ => None,
    };
    while Instant::now() < until {
        if cancel.is_cancelled() {
            return Err(NodeError::Cancelled);
        }
        alive()?;
        let answered = match sign {
            Sign::Console { dir, before } => {
                (ConsoleLog::position(dir) != *before).then(Instant::now)
            }
            Sign::Agent { answered, .. } => answered().then(Instant::now),
            Sign::Port(forward) => ask(forward, until, cancel),
        };
        if answered.is_some() {
            return Ok(answered);
        }
        match sign {
            Sign::Console { .. } => {
                // who cannot watch the log looks at it as often as at the machine
                let watched = watch.iter().map(AsFd::as_fd).collect::<Vec<_>>();
                let until = until.min(Instant::now() + ALIVE_EVERY);
                ready(&watched, Some(until), Some(cancel)).map_err(at("cannot wait"))?;
                watch.iter().for_each(ConsoleWatch::clear);
            }
            Sign::Agent { answered, changed } => {
                let until = until.min(Instant::now() + ALIVE_EVERY);
                changed.wait_for(Some(until), Some(cancel), || answered().then_some(()));
            }
            // nothing tells when a program in the guest begins to listen
            Sign::Port(_) => {
                cancel.sleep(SIGN_POLL);
            }
        }
    }
    Ok(None)
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
    use std::sync::atomic::{AtomicBool, Ordering};

    fn wait_port(listener: &TcpListener, ms: u64) -> bool {
        let port = listener.local_addr().unwrap().port();
        let sign = Sign::Port(format!("{port}:80").parse().unwrap());
        waits(&sign, ms)
    }

    fn waits(sign: &Sign<'_>, ms: u64) -> bool {
        let timeout = Duration::from_millis(ms);
        let waited = wait(sign, timeout, &Cancel::default(), || Ok(()));
        waited.unwrap().is_some()
    }

    #[test]
    fn a_port_that_accepts_but_says_nothing_is_not_an_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let accepting = listener.try_clone().unwrap();
        // what QEMU does for a guest that doesn't listen: accept, then close
        std::thread::spawn(move || accepting.incoming().for_each(drop));
        assert!(!wait_port(&listener, 200));
    }

    #[test]
    fn a_banner_or_an_answer_to_a_question_is_one() {
        for speaks_first in [true, false] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let accepting = listener.try_clone().unwrap();
            std::thread::spawn(move || {
                let (mut stream, _) = accepting.accept().unwrap();
                if !speaks_first {
                    let _ = stream.read(&mut [0; 64]);
                }
                stream.write_all(b"hello").unwrap();
            });
            assert!(wait_port(&listener, 60_000));
        }
    }

    #[test]
    fn only_new_bytes_on_the_console_are_an_answer() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("console.log");
        std::fs::write(&log, b"before").unwrap();
        let sign = Sign::Console {
            dir: dir.path().to_owned(),
            before: ConsoleLog::position(dir.path()),
        };
        assert!(!waits(&sign, 30));
        std::fs::write(&log, b"before and after").unwrap();
        assert!(waits(&sign, 60_000));
    }

    #[test]
    fn a_wait_that_no_clock_can_count_ends_with_its_sign() {
        let (answered, changed) = (|| true, Arc::new(Pulse::new()));
        let sign = Sign::Agent {
            answered: &answered,
            changed: &changed,
        };
        for limit in [Duration::from_secs(u64::MAX), Duration::MAX] {
            let waited = wait(&sign, limit, &Cancel::default(), || Ok(()));
            assert!(waited.unwrap().is_some());
        }
    }

    #[test]
    fn an_agent_that_answers_later_is_waited_for() {
        let has = Arc::new(AtomicBool::new(false));
        let changed = Arc::new(Pulse::new());
        let answered = || has.load(Ordering::Relaxed);
        let sign = Sign::Agent {
            answered: &answered,
            changed: &changed,
        };
        assert!(!waits(&sign, 30));
        let (answers, beats) = (has.clone(), changed.clone());
        let agent = std::thread::spawn(move || {
            answers.store(true, Ordering::Relaxed);
            beats.beat();
        });
        assert!(waits(&sign, 60_000));
        agent.join().unwrap();
    }

    #[test]
    fn a_client_that_hangs_up_ends_the_wait() {
        let cancel = Cancel::default();
        cancel.cancel();
        let sign = Sign::Agent {
            answered: &|| false,
            changed: &Arc::default(),
        };
        let waited = wait(&sign, Duration::from_secs(60), &cancel, || Ok(()));
        assert!(matches!(waited, Err(NodeError::Cancelled)));
    }
}
