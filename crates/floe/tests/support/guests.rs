//! The promises about what a program inside of a guest can do, kept with real guests: floe-guest and libfloe's examples run in
//! them.

use crate::support::node::{self, TestNode};
use floe_api::*;
use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    sync::mpsc::{Receiver, channel},
};

/// As soon as the agent is there.
pub const WHOAMI: &str = "until floe-guest whoami 2>/dev/null; do sleep 1; done";

/// How a guest sees the host's own address.
pub const HOST: &str = "10.0.2.2";

/// What guests say over their network, line by line: a clone's console goes when it ends.
pub struct Reports {
    pub port: u16,
    pub lines: Receiver<String>,
}

impl Reports {
    pub fn listen() -> Reports {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if tell.send(line).is_err() {
                        return;
                    }
                }
            }
        });
        Reports { port, lines }
    }

    /// The next `count` lines, in order.
    pub fn take(&self, count: usize, node: &TestNode) -> Vec<String> {
        let next = |n| {
            let line = self.lines.recv_timeout(node::PATIENCE);
            line.unwrap_or_else(|_| panic!("only {n} of {count} reports\n{}", node.log()))
        };
        let mut lines: Vec<String> = (0..count).map(next).collect();
        lines.sort();
        lines
    }
}

/// The tiny guest as `web`; its agent has been heard.
pub fn booted(node: &TestNode, cpus: u32) {
    booted_of("tiny", node, cpus);
}

/// Another guest as `web`, which may clone itself as often as its node lets any.
pub fn booted_of(guest: &str, node: &TestNode, cpus: u32) {
    node.import_guest(guest, guest, None);
    node.run(&RunRequest {
        image: guest.into(),
        name: Some("web".into()),
        cpus: Some(cpus),
        allow_host: HostAccess::All, // to report there
        limits: Limits {
            clones: Some(CLONES_MAX),
            ..Default::default()
        },
        ..Default::default()
    });
    node.wait_console("web", "floe-guest ready");
    node.type_and_wait("web", WHOAMI, "0 web");
}

/// What a command prints in `web`.
pub fn said(node: &TestNode, number: u32, command: &str) -> String {
    said_by(node, "web", number, command)
}

/// The same in another machine.
pub fn said_by(node: &TestNode, name: &str, number: u32, command: &str) -> String {
    let done = format!("said-{}", 1000 + number);
    node.type_and_wait(
        name,
        &format!("{command}; echo said-$((1000+{number}))"),
        &done,
    );
    let console = node.console(name);
    let typed = format!("echo said-$((1000+{number}))");
    // the terminal breaks lines that are longer than it is wide
    let plain = console.replace("\r\n", "\n");
    let from = plain.rfind(&typed).map_or(0, |at| at + typed.len());
    plain[from..].to_owned()
}

pub fn names(node: &TestNode) -> Vec<String> {
    let machines = node.client().machines().unwrap().machines;
    machines.into_iter().map(|machine| machine.name).collect()
}
