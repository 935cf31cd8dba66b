//! The `floe` command of a test, against a node of its own.

use super::node::TestNode;
use std::process::{Command, Output, Stdio};

/// A `floe` command against a node.
pub fn floe(node: &TestNode, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command
        .args(args)
        .env("FLOE_HOME", node.home())
        .env_remove("FLOE_SOCKET")
        .stdin(Stdio::null());
    command
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
