//! Nothing is left standing: what a node, its supervisor or a disk that ends or fills up at the worst moment leaves behind goes on.

use crate::support::node::{self, Signal, TestNode, eventually};
use floe_api::*;
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
};

/// A second QMP connection to a machine's QEMU, which tells what the guest does while its node does not.
struct Qmp {
    lines: BufReader<UnixStream>,
}

impl Qmp {
    fn connect(node: &TestNode, machine: &str) -> Qmp {
        let socket = node
            .home()
            .join(format!("machines/{machine}/vm/run/qmp-spare.sock"));
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(node::PATIENCE)).unwrap();
        let mut qmp = Qmp {
            lines: BufReader::new(stream),
        };
        qmp.read(|line| !line["QMP"].is_null());
        qmp.ask("qmp_capabilities");
        qmp
    }

    /// Reads up to a line that is wanted.
    fn read(&mut self, wanted: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "QEMU ended");
            let line = serde_json::from_str(&line).unwrap();
            if wanted(&line) {
                return line;
            }
        }
    }

    fn ask(&mut self, command: &str) -> serde_json::Value {
        let line = format!("{{\"execute\":\"{command}\"}}\n");
        self.lines.get_mut().write_all(line.as_bytes()).unwrap();
        self.read(|line| !line["return"].is_null())["return"].clone()
    }

    fn status(&mut self) -> String {
        self.ask("query-status")["status"].as_str().unwrap().into()
    }

    /// Waits until the guest has been stopped.
    fn wait_stop(&mut self) {
        self.read(|line| line["event"] == "STOP");
    }
}

/// Asks for a capture or a fork of `web`, and kills the node while QEMU says that the guest is paused.
fn kill_in_pause(node: &mut TestNode, forks: bool) {
    loop {
        let mut qmp = Qmp::connect(node, "web");
        let client = node.client();
        let call = std::thread::spawn(move || {
            let events = match forks {
                true => client.fork(
                    "web",
                    &ForkRequest {
                        clones: 1,
                        ..Default::default()
                    },
                ),
                false => client.capture("web", &CaptureRequest::default()),
            };
            // the node ends in the middle of this
            let _ = events.map(|events| events.finish(|_| ()));
        });
        qmp.wait_stop();
        node.signal(Signal::STOP);
        let caught = qmp.status() == "paused";
        if caught {
            return node.end(Signal::KILL);
        }
        // it was over already; a call that comes before this one has ended is refused, and pauses nothing
        node.signal(Signal::CONT);
        call.join().unwrap();
        for machine in node.client().machines().unwrap().machines {
            if machine.cloned.is_some() {
                let _ = node.client().remove_machine(&machine.name, true);
            }
        }
    }
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn a_node_killed_in_the_pause_of_a_capture_or_fork_leaves_no_machine_paused() {
    let mut node = TestNode::start();
    node.boot_tiny("web");
    node.type_and_wait(
        "web",
        "dd if=/dev/urandom of=/dev/shm/x bs=1M count=48 2>/dev/null; echo filled-$((1+1))",
        "filled-2",
    );
    for round in 0..6 {
        kill_in_pause(&mut node, round % 2 == 0);
        node.start_again();
        eventually("the guest goes on", || {
            let machine = node.client().machine("web").unwrap();
            machine.status == MachineStatus::Running && machine.detail.is_empty()
        });
        assert_eq!(Qmp::connect(&node, "web").status(), "running");
        let record = node.home().join("machines/web/machine.json");
        let record = std::fs::read_to_string(record).unwrap();
        assert!(!record.contains("pauses"), "{record}");
        let answer = format!("alive-{}", 100 + round);
        node.type_and_wait("web", &format!("echo alive-$((100+{round}))"), &answer);
    }
}
