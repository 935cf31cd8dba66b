//! Finding the host's control groups beside a file system that hangs.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use floe_machine::cgroup::Groups;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// Longest time on a loaded host.
const PATIENCE: Duration = Duration::from_secs(60);

/// A FUSE mount whose server answers nothing: whoever looks up a file in it waits for as long as this lives.
struct Hung<'a> {
    mountpoint: &'a Path,
    server: Option<File>,
}

impl<'a> Hung<'a> {
    fn mount(mountpoint: &'a Path) -> Hung<'a> {
        let fuse = File::options().read(true).write(true).open("/dev/fuse");
        let server = fuse.unwrap();
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            server.as_raw_fd()
        );
        let options = std::ffi::CString::new(options).unwrap();
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("hung", mountpoint, "fuse", flags, &*options).unwrap();
        Hung {
            mountpoint,
            server: Some(server),
        }
    }
}

impl Drop for Hung<'_> {
    fn drop(&mut self) {
        // ends the connection, and with it all waits for an answer
        drop(self.server.take());
        let _ = unmount(self.mountpoint, UnmountFlags::DETACH);
    }
}

#[test]
#[ignore = "needs root and FUSE: make test-all"]
fn the_host_s_control_groups_are_found_beside_a_mount_that_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let hung = Hung::mount(dir.path());
    let inside = dir.path().join("cgroup.controllers");
    let look = floe_threads::spawn("looks", move || std::fs::read(inside).is_err()).unwrap();
    let find = floe_threads::spawn("finds", || Groups::of_node("none").machines()).unwrap();
    let found = find.wait_until(Instant::now().checked_add(PATIENCE), None);
    let still_hangs = look.wait_until(Some(Instant::now()), None);
    drop(hung);
    assert_eq!(found.come(), Some(Ok(Vec::new())));
    assert_eq!(still_hangs.come(), None, "the mount did not hang");
    assert_eq!(look.wait(), Ok(true));
}
