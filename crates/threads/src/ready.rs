//! Waiting for descriptors and for child processes.

use crate::{Cancel, Waited};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Child;
use std::time::Instant;

/// What a wait for descriptors ended with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    /// These can be read, or have failed or ended: their places in the list, in order.
    Those(Vec<usize>),
    /// The time was over first.
    TimedOut,
    /// The switch was thrown first; also if a descriptor is ready as well.
    Cancelled,
}

/// Waits until one of `descriptors` can be read (or has ended, which a read then says), at most until `until` and until `cancel`
/// is thrown.
pub fn ready(
    descriptors: &[BorrowedFd<'_>],
    until: Option<Instant>,
    cancel: Option<&Cancel>,
) -> io::Result<Ready> {
    let switch = cancel.map(Cancel::descriptor).transpose()?;
    let all = descriptors.iter().copied().chain(switch);
    let mut all: Vec<_> = all
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        // longer than the kernel can count is for ever
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut all, left.as_ref()) {
            Ok(0) => return Ok(Ready::TimedOut),
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if cancel.is_some_and(Cancel::is_cancelled) {
        return Ok(Ready::Cancelled);
    }
    let ready = all.iter().enumerate();
    let ready = ready.filter(|(_, fd)| !fd.revents().is_empty());
    Ok(Ready::Those(ready.map(|(place, _)| place).collect()))
}

/// Waits until a child process has ended, at most until `until` and until `cancel` is thrown. The child is not collected, so that
/// its number belongs to nobody else yet: its `wait` then returns at once with its status.
pub fn ended(
    child: &Child,
    until: Option<Instant>,
    cancel: Option<&Cancel>,
) -> io::Result<Waited<()>> {
    let pid = Pid::from_child(child);
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match waitid(WaitId::Pid(pid), look) {
        Ok(None) => {}
        // it was collected before
        Ok(Some(_)) | Err(Errno::CHILD) => return Ok(Waited::Come(())),
        Err(error) => return Err(error.into()),
    }
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    Ok(match ready(&[process.as_fd()], until, cancel)? {
        Ready::Those(_) => Waited::Come(()),
        Ready::TimedOut => Waited::TimedOut,
        Ready::Cancelled => Waited::Cancelled,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    #[test]
    fn the_descriptors_that_can_be_read_are_named() {
        let (one, _kept) = io::pipe().unwrap();
        let (two, mut writer) = io::pipe().unwrap();
        let (three, ended) = io::pipe().unwrap();
        let all = [one.as_fd(), two.as_fd(), three.as_fd()];
        let now = Some(Instant::now());
        assert_eq!(ready(&all, now, None).unwrap(), Ready::TimedOut);
        writer.write_all(b"x").unwrap();
        drop(ended);
        let both = Ready::Those(vec![1, 2]);
        assert_eq!(ready(&all, None, None).unwrap(), both);
    }

    #[test]
    fn the_end_of_a_child_is_noticed_and_its_status_kept() {
        let mut child = Command::new("sh")
            .args(["-c", "read line; exit 3"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let soon = Instant::now().checked_add(Duration::from_millis(1));
        let waited = super::ended(&child, soon, None).unwrap();
        assert_eq!(waited, Waited::TimedOut);
        let cancel = Cancel::default();
        cancel.cancel();
        let waited = super::ended(&child, None, Some(&cancel)).unwrap();
        assert_eq!(waited, Waited::Cancelled);
        drop(child.stdin.take());
        let waited = super::ended(&child, None, None).unwrap();
        assert_eq!(waited, Waited::Come(()));
        assert_eq!(child.wait().unwrap().code(), Some(3));
        // also once it was collected
        let waited = super::ended(&child, None, None).unwrap();
        assert_eq!(waited, Waited::Come(()));
    }
}
