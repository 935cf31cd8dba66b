//! The programs beside a machine: the QEMU that is asked what it can do, and QEMU's guest agent.
#![allow(
    clippy::disallowed_methods,
    reason = "a test may ask whether a file is there"
)]

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{PATIENCE, programs, scratch};
use floe_machine::qga::Agent;

/// A process of the test, killed with it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "needs QEMU: make test-all"]
fn a_qemu_that_is_asked_something_ends_with_who_asked() {
    let programs = programs();
    // a shell that starts the wrapper as the node does, says the number of the process that becomes QEMU, and waits
    let script = "\"$0\" --dir / --ends-with $$ --host-access none -- \"$1\" -nodefaults -display none -machine none \
                  -qmp stdio & echo $!; wait";
    let mut starter = Command::new("sh")
        .args(["-c", script])
        .arg(&programs.wrapper[0])
        .arg(&programs.qemu)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map(Running)
        .unwrap();
    let mut said = BufReader::new(starter.0.stdout.take().unwrap()).lines();
    let pid: u32 = said.next().unwrap().unwrap().parse().unwrap();
    let qemu = floe_machine::Process::hold(pid).unwrap();
    let greeting = said.next().unwrap().unwrap();
    assert!(greeting.contains("QMP"), "{greeting}");
    assert!(qemu.is_alive());
    starter.0.kill().unwrap();
    assert!(qemu.wait(PATIENCE), "QEMU lives on");
}

/// A real agent that refuses to set the clock, as one without `hwclock` does, runs a `date` that only writes down what it is
/// asked, and has no right to set this host's clock.
#[test]
#[ignore = "needs root and qemu-ga (package qemu-guest-agent): make test-all"]
fn a_guest_whose_agent_cannot_set_the_clock_gets_it_from_date() {
    const NOBODY: u32 = 65534;
    let dir = scratch();
    let dir = dir.path();
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    let (bin, asked) = (dir.join("bin"), dir.join("asked"));
    std::fs::create_dir(&bin).unwrap();
    let date = bin.join("date");
    let script = format!("#!/bin/sh\necho \"$@\" > {}\n", asked.display());
    std::fs::write(&date, script).unwrap();
    std::fs::set_permissions(&date, std::fs::Permissions::from_mode(0o755)).unwrap();
    let socket = dir.join("qga.sock");
    let mut running = Command::new("/usr/sbin/qemu-ga")
        .args(["--method", "unix-listen", "--path"])
        .arg(&socket)
        .args(["--blacklist", "guest-set-time", "--statedir"])
        .arg(dir)
        .arg("--pidfile")
        .arg(dir.join("pid"))
        .env_clear()
        .env("PATH", &bin)
        .uid(NOBODY)
        .gid(NOBODY)
        .stderr(Stdio::piped())
        .spawn()
        .map(Running)
        .unwrap();
    let until = Instant::now() + PATIENCE;
    while !socket.exists() {
        let ended = running.0.try_wait().unwrap();
        assert_eq!(ended, None, "the agent ended");
        assert!(Instant::now() < until, "the agent does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    let before = unix_s();
    let mut agent = Agent::connect(&socket, running.0.id(), PATIENCE).unwrap();
    agent.set_time().unwrap();
    let said = std::fs::read_to_string(&asked).unwrap();
    let time = said.trim().strip_prefix("-u -s @").expect(&said);
    let time: u64 = time.parse().unwrap();
    assert!((before..=unix_s() + 1).contains(&time), "{time}");
    // what it cannot run is said
    std::fs::remove_file(&date).unwrap();
    let error = agent.set_time().unwrap_err().to_string();
    assert!(error.contains("guest-exec"), "{error}");
}

fn unix_s() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap().as_secs()
}
