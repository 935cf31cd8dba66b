//! Machines that are parked and woken: they go on where they were, under their names, whatever becomes of their node meanwhile.

use crate::support::command::{ends, floe, said};
use crate::support::node::{PATIENCE, TestNode, eventually, finish};
use floe_api::*;
use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering},
};

pub fn machine(node: &TestNode, name: &str) -> MachineInfo {
    node.client().machine(name).unwrap()
}

/// Runs a command that must succeed, and returns what it printed.
pub fn succeeds(node: &TestNode, arguments: &[&str]) -> String {
    let done = ends(floe(node, arguments));
    assert!(done.status.success(), "{arguments:?}: {}", said(&done));
    said(&done)
}

/// Runs a command that must be refused with a text that says why and what to do.
pub fn refused(node: &TestNode, arguments: &[&str], words: &[&str]) {
    let done = ends(floe(node, arguments));
    assert_eq!(
        done.status.code(),
        Some(5),
        "{arguments:?}: {}",
        said(&done)
    );
    for word in words {
        assert!(said(&done).contains(word), "{arguments:?}: {}", said(&done));
    }
}

/// Asks the guest's web server for its page, over a forwarded port.
pub fn page(port: u16) -> std::io::Result<String> {
    let mut server = TcpStream::connect(("127.0.0.1", port))?;
    server.set_read_timeout(Some(PATIENCE))?;
    server.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    server.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Tells a thread to end, also after a panic, when nobody else would.
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Parks a machine again and again while somebody connects to it all the time, who is never refused and wakes it. Who connects once
/// its memory is being stored is answered.
pub fn never_refused(node: &TestNode, name: &str, port: u16, rounds: usize) {
    let over = AtomicBool::new(false);
    let asked =
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                let mut asked = 0;
                while !over.load(Ordering::Relaxed) {
                    match page(port) {
                        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                            panic!("after {asked}: {error}")
                        }
                        // a connection that is open when it is parked is cut
                        _ => asked += 1,
                    }
                }
                asked
            });
            let ends = Ends(&over);
            for _ in 0..rounds {
                let mut later = Vec::new();
                let parked = node.client().park(name, &Default::default()).unwrap().finish(|event| {
                let kept = ["capture", "store", "qemu end"];
                if matches!(event, Event::Stage { name, .. } if kept.contains(&name.as_str())) {
                    later.push(scope.spawn(|| page(port)));
                }
            });
                parked.unwrap();
                assert_eq!(later.len(), 3);
                for client in later {
                    let answer = client.join().unwrap();
                    assert!(is_page(&answer), "{answer:?}\n{}", node.log());
                }
                let runs = || machine(node, name).status == MachineStatus::Running;
                eventually("it is woken", runs);
            }
            drop(ends);
            client.join().unwrap()
        });
    assert!(asked >= rounds, "{asked}");
}

pub fn is_page(answer: &std::io::Result<String>) -> bool {
    let answer = answer.as_ref();
    answer.is_ok_and(|answer| answer.contains("floe tiny guest"))
}

pub fn answers(port: u16) -> bool {
    is_page(&page(port))
}

/// A node with `web`, which has `kept-on-disk` on its disk, and whose shell has 41 as `X`.
pub fn node_with_kept_words() -> TestNode {
    let node = TestNode::start();
    node.import_tiny("tiny", Some(&node.blank_disk()));
    node.run_named("tiny", "web");
    node.wait_console("web", "floe-guest ready");
    node.type_and_wait(
        "web",
        "X=41; echo kept-on-disk | dd of=/dev/vda conv=fsync 2>/dev/null; echo ready-$((X+1))",
        "ready-42",
    );
    node
}

/// A node with `booted`, the captured state of a guest with a blank disk.
pub fn node_with_booted() -> TestNode {
    let node = TestNode::start();
    node.import_tiny("tiny", Some(&node.blank_disk()));
    node.run_named("tiny", "first");
    node.wait_console("first", "floe-guest ready");
    let capture = CaptureRequest {
        name: Some("booted".into()),
        stop: true,
        rehearse_s: Some(0),
        ..Default::default()
    };
    finish(node.client().capture("first", &capture).unwrap());
    node
}
