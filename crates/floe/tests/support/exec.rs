//! Commands, copies and connections in real guests: `floe exec`, `floe cp`, `floe dial`.

use crate::support::{
    command::{floe, run},
    node::{PATIENCE, TestNode},
};
use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Stdio},
    time::Instant,
};

/// Runs a shell's line in the guest; it must succeed. Returns its output.
pub fn sh(node: &TestNode, line: &str) -> String {
    let done = run(node, &["exec", "web", "--", "sh", "-c", line]);
    assert!(done.status.success(), "{line}: {done:?}\n{}", node.log());
    String::from_utf8(done.stdout).unwrap()
}

/// Waits until a shell's line in the guest succeeds.
pub fn wait_for(node: &TestNode, machine: &str, line: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        let done = run(node, &["exec", machine, "--", "sh", "-c", line]);
        if done.status.success() {
            return;
        }
        assert!(Instant::now() < until, "{line}: {done:?}\n{}", node.log());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A command in a guest that says what it is told.
pub struct Echo {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Echo {
    pub fn start(node: &TestNode, machine: &str) -> Echo {
        let mut command = floe(node, &["exec", "-i", machine, "--", "cat"]);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let from = BufReader::new(from);
        Echo { child, to, from }
    }

    /// It must say this.
    pub fn says(&mut self, word: &str) {
        writeln!(self.to, "{word}").unwrap();
        let mut said = String::new();
        self.from.read_line(&mut said).unwrap();
        assert_eq!(said, format!("{word}\n"));
    }

    /// It must end well.
    pub fn ends(mut self) {
        drop(self.to);
        assert!(self.child.wait().unwrap().success());
    }
}
