//! What guests and images of strangers can do to the host that runs them: reach it, have its files read, steer the terminal
//! of whoever looks at them.

use crate::support::node::TestNode;
use floe_api::*;
use std::{path::Path, process::Command};

pub fn run(node: &TestNode, image: &str, name: &str, allow_host: HostAccess) {
    node.run(&RunRequest {
        image: image.into(),
        name: Some(name.into()),
        allow_host,
        ..Default::default()
    });
}

/// Runs the command as a user would.
pub fn floe(home: &Path, args: &[&str]) -> (String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_floe"))
        .args(args)
        .env("FLOE_HOME", home)
        .env_remove("FLOE_SOCKET")
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("what is printed is UTF-8");
    (text(out.stdout), text(out.stderr))
}
