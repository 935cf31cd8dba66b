//! The `floe` command of a test, against a node of its own.

use super::node::TestNode;
use std::process::{Command, Output, Stdio};

/// A `floe` command against a node.
pub fn floe(node: &TestNode, args: &[&str]) -> Command {
    floe_by(node, &[], args)
}

/// The same, run by another program.
pub fn floe_by(node: &TestNode, program: &[&str], args: &[&str]) -> Command {
    let all = [program, &[env!("CARGO_BIN_EXE_floe")], args].concat();
    let mut command = Command::new(all[0]);
    command
        .args(&all[1..])
        .env("FLOE_HOME", node.home())
        .env_remove("FLOE_SOCKET")
        .env("TERM", "dumb")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a `floe` command to its end.
pub fn run(node: &TestNode, args: &[&str]) -> Output {
    ends(floe(node, args))
}

/// Runs a `floe` command that must succeed; what it printed to its standard output.
pub fn ok(node: &TestNode, args: &[&str]) -> String {
    let done = run(node, args);
    assert!(
        done.status.success(),
        "floe {}: {}\n{}",
        args.join(" "),
        said(&done),
        node.log()
    );
    String::from_utf8(done.stdout).unwrap()
}

/// Runs it to its end.
pub fn ends(mut command: Command) -> Output {
    command.output().unwrap()
}

/// What a command printed, all of it.
pub fn said(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{out}{err}")
}

/// Runs a command that must end with this code; what it printed. A panic says that, and what the node logged.
#[allow(dead_code, reason = "not every test needs all of it")]
pub fn code(node: &TestNode, expected: i32, args: &[&str]) -> Output {
    let output = ends(floe(node, args));
    assert_eq!(
        output.status.code(),
        Some(expected),
        "floe {}: {}\n{}",
        args.join(" "),
        said(&output),
        node.log()
    );
    output
}
