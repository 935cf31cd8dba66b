//! The control groups of this host: how they are found, and what they bound.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use floe_machine::cgroup::{Group, Groups, Limits};
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
    let find = floe_threads::spawn("finds", || Groups::of_node("none").all()).unwrap();
    let found = find.wait_until(Instant::now().checked_add(PATIENCE), None);
    let still_hangs = look.wait_until(Some(Instant::now()), None);
    drop(hung);
    assert_eq!(found.come(), Some(Ok(Vec::new())));
    assert_eq!(still_hangs.come(), None, "the mount did not hang");
    assert_eq!(look.wait(), Ok(true));
}

/// The groups of a node that there is not, which are removed at the end.
struct Made {
    groups: Groups,
    group: Group,
}

impl Made {
    fn new(id: &str) -> Made {
        let groups = Groups::open(id).unwrap();
        let group = groups.make("00ff", "web").unwrap();
        Made { groups, group }
    }

    /// What a file of the first directory that has it says.
    fn said(group: &Group, files: &[&str]) -> Option<String> {
        let dirs = group.entrances().into_iter();
        let mut paths = dirs.flat_map(|dir| files.iter().map(move |file| dir.with_file_name(file)));
        let text = paths.find_map(|path| std::fs::read_to_string(path).ok());
        text.map(|text| text.trim().to_owned())
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let until = Instant::now() + PATIENCE;
        while self.group.remove().is_err() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.groups.close();
    }
}

#[test]
#[ignore = "needs root and control groups: make test-all"]
fn a_machine_has_no_more_processes_and_threads_than_qemu_needs() {
    let made = Made::new("tasks-test");
    made.group.bound(1 << 30).unwrap();
    assert_eq!(
        Made::said(&made.group, &["pids.max"]).as_deref(),
        Some("512")
    );
    // a program in the group that makes as many as it can
    let entrances = made.group.entrances();
    let script = "import os, signal, sys\n\
        for file in sys.argv[1:]: open(file, 'w').write('0')\n\
        made = []\n\
        try:\n\
        \x20while len(made) < 2000:\n\
        \x20 pid = os.fork()\n\
        \x20 if pid == 0: signal.pause()\n\
        \x20 made.append(pid)\n\
        except OSError as error: print(len(made), error.errno)\n\
        for pid in made: os.kill(pid, signal.SIGKILL)\n\
        for pid in made: os.waitpid(pid, 0)\n";
    let out = std::process::Command::new("python3")
        .args(["-c", script])
        .args(&entrances)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    // itself and its children; EAGAIN is 11
    assert_eq!(said.trim(), "511 11", "{out:?}");
}

#[test]
#[ignore = "needs root and control groups: make test-all"]
fn a_household_with_a_limit_of_memory_has_no_swap_beside_it() {
    let made = Made::new("swap-test");
    let household = made.group.limited();
    assert_ne!(household, made.group);
    let of_swap = ["memory.swap.max", "memory.memsw.limit_in_bytes"];
    let swap = || Made::said(&household, &of_swap);
    // a kernel without swap has none of these
    let Some(before) = swap() else { return };
    let limit = |max: Option<u64>| {
        household
            .apply(&Limits {
                cpu_millicores: None,
                memory_max_bytes: max,
            })
            .unwrap();
        swap().unwrap()
    };
    for max in [1 << 30, 2 << 30, 512 << 20] {
        // in version 1 what there is of both together, which is a megabyte more
        let both = max + (1 << 20);
        assert!(["0".to_owned(), both.to_string()].contains(&limit(Some(max))));
    }
    assert_eq!(limit(None), before);
}
