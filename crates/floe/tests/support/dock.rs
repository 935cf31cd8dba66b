//! Machines that are made small and docked, and machines that forget whom they were docked from: `floe dock --convert`, `--public`.

use crate::support::{
    command::run,
    node::{PATIENCE, TestNode},
};
use floe_api::{RunRequest, Wait};
use std::time::{Duration, Instant};

/// A hook that notes each call, and fails to stop if `/busy` is there.
pub const HOOK: &str = r#"mkdir -p /etc/floe/dock.d; cat > /etc/floe/dock.d/10-web <<'END'
#!/bin/sh
echo $1 >> /hooks
[ $1 = start ] || [ ! -e /busy ] || { echo users are there; exit 3; }
END
chmod 755 /etc/floe/dock.d/10-web"#;

/// What floe says about a failure.
pub fn fails(node: &TestNode, args: &[&str]) -> String {
    let done = run(node, args);
    assert!(!done.status.success(), "{args:?}: {done:?}\n{}", node.log());
    String::from_utf8(done.stderr).unwrap()
}

/// Runs a shell's line in a guest, until it succeeds and says something; the agent of a machine that has just begun to run may not
/// answer yet.
pub fn sh(node: &TestNode, machine: &str, line: &str) -> String {
    sh_within(PATIENCE, node, machine, line)
}

pub fn sh_within(patience: Duration, node: &TestNode, machine: &str, line: &str) -> String {
    let until = Instant::now() + patience;
    loop {
        let done = run(node, &["exec", machine, "--", "sh", "-c", line]);
        if done.status.success() {
            return String::from_utf8(done.stdout).unwrap().trim().to_owned();
        }
        let log = node.log();
        assert!(Instant::now() < until, "{line}: {done:?}\n{log}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Boots the tiny guest with two CPUs and the hook.
pub fn boot(node: &TestNode) {
    node.import_tiny("tiny", None);
    node.run(&RunRequest {
        image: "tiny".into(),
        name: Some("web".into()),
        cpus: Some(2),
        wait: Wait::None,
        ..Default::default()
    });
    node.wait_console("web", "floe-guest ready");
    sh(node, "web", HOOK);
}

/// Waits until a machine has everything: its memory, its CPUs, its cable, and what its hooks have stopped.
pub fn is_whole(node: &TestNode, machine: &str, hooks: &str) {
    let online = "cat /sys/devices/system/cpu/online | grep -qx 0-1";
    let cable = "grep -qx 1 /sys/class/net/eth0/carrier";
    // of 256 MiB: the balloon is out
    let memory = "[ $(awk '/MemFree/ {print $2}' /proc/meminfo) -gt $(cat /www/free) ]";
    let hooks = format!("[ \"$(echo $(cat /hooks))\" = \"{hooks}\" ]");
    for line in [online, cable, memory, &hooks] {
        sh(node, machine, line);
    }
}

/// Notes how much memory is free at least in a machine that has everything: two thirds of what is free now.
pub fn note_free(node: &TestNode) {
    let line = "awk '/MemFree/ {print int($2 * 2 / 3)}' /proc/meminfo > /www/free";
    sh(node, "web", line);
}
