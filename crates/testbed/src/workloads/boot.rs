//! `boot`: from the disk to the login shell, and the first commands of a user who looks around.
use super::{Session, choose};
use crate::guest::READY;
use std::time::Duration;

/// Longest boot under emulation, on a machine that does other things too.
const BOOT_MAX: Duration = Duration::from_secs(300);
const COMMAND_MAX: Duration = Duration::from_secs(60);
/// Number of commands in one run.
const COMMANDS: usize = 3;

/// Commands that people type first.
const FIRST: &[&str] = &[
    "systemctl --no-pager status | head -30",
    "ps aux | head -20",
    "ip address",
    "ls -la /usr/bin | tail -50",
    "journalctl --no-pager -b | tail -40",
    "python3 -c 'import sys, os; print(sys.version, os.uname())'",
    "df -h; mount | head",
    "cat /etc/os-release /etc/passwd",
    "dpkg-query -l | tail -40",
    "find /etc -name '*.conf' | xargs cat | sha256sum",
    "perl -e 'use POSIX; print strftime(\"%c\\n\", localtime)'",
    "gcc --version; make --version",
];

pub(super) fn run(session: &mut Session) -> anyhow::Result<()> {
    session.expect(READY, BOOT_MAX)?;
    for _ in 0..COMMANDS {
        let command = choose(session, FIRST);
        session.shell(command, COMMAND_MAX)?;
    }
    Ok(())
}
