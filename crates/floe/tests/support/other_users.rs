//! What another user of the host gets of a node: nothing. A real node with real machines, and threads of this test that become
//! other users and try everything that there is: every file, directory and socket, the mount, and the processes.

use crate::support::node::{self, PATIENCE, Setup, TestNode, finish};
use floe_api::*;
use rustix::fs::{Gid, Uid};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Does something as another user: credentials are a thread's own until a C library spreads them.
pub fn as_user<T: Send>(uid: u32, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(group, group, group).unwrap();
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}

/// Everything below a directory, the mount included, as root sees it.
pub fn everything(dir: &Path) -> Vec<PathBuf> {
    let (mut found, mut open) = (vec![dir.to_owned()], vec![dir.to_owned()]);
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(path.clone());
            }
            found.push(path);
        }
    }
    found
}

/// What this thread's user can do with a path, in words; nothing if all is refused. `root` says what the path is.
pub fn possible(path: &Path, root: &fs::Metadata) -> Vec<String> {
    let mut can = Vec::new();
    let mut tried = |what: &str, done: bool| {
        if done {
            can.push(format!(
                "{what} {} (mode {:o})",
                path.display(),
                root.mode() & 0o7777
            ));
        }
    };
    if root.is_dir() {
        tried("list", fs::read_dir(path).is_ok());
        let new = path.join(".a-strangers");
        tried("put a file into", File::create(&new).is_ok());
        let _ = fs::remove_file(new);
    } else if root.file_type().is_socket() {
        tried("connect to", UnixStream::connect(path).is_ok());
        tried(
            "connect to",
            floe_mount::supervisor::Client::connect(path).is_ok(),
        );
    } else {
        let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
        let mut how = OpenOptions::new();
        tried(
            "read",
            how.read(true).custom_flags(flags).open(path).is_ok(),
        );
        let mut how = OpenOptions::new();
        tried(
            "write",
            how.append(true).custom_flags(flags).open(path).is_ok(),
        );
    }
    can
}

/// What a user can do with the node's state directory.
pub fn open_to(uid: u32, home: &Path) -> Vec<String> {
    let mut paths = everything(home);
    // disks' maps of root's nodes are there
    paths.extend(everything(Path::new("/dev/shm/floe-0")));
    let seen: Vec<(PathBuf, fs::Metadata)> = paths
        .into_iter()
        .filter_map(|path| Some((path.clone(), fs::symlink_metadata(path).ok()?)))
        .filter(|(_, meta)| !meta.is_symlink())
        .collect();
    assert!(
        seen.len() > 50,
        "a node keeps more than {} files",
        seen.len()
    );
    as_user(uid, || {
        let can = seen.iter().flat_map(|(path, meta)| possible(path, meta));
        can.collect()
    })
}

/// The node's processes: itself, supervisor and QEMUs, each by what it was started with.
pub fn processes(home: &Path) -> BTreeMap<u32, String> {
    let home = home.display().to_string();
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let about = |pid: &u32, file: &str| {
        let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\0', " ")
    };
    pids.filter(|&pid| pid != std::process::id())
        .map(|pid| (pid, about(&pid, "cmdline")))
        .filter(|(pid, line)| {
            line.contains(&home) || about(pid, "environ").contains(&format!("FLOE_HOME={home} "))
        })
        .collect()
}

/// A field of what the kernel says of a process, such as `Uid:`; `None` if it has ended.
pub fn status_field(pid: u32, field: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next().map(str::to_owned)
}

/// What a user can see of a process that is nobody else's business.
pub fn open_of_process(uid: u32, pid: u32) -> Vec<String> {
    let files = [
        "mem", "maps", "smaps", "pagemap", "environ", "auxv", "io", "stack", "syscall",
    ];
    as_user(uid, || {
        let mut can = Vec::new();
        for file in files {
            let path = format!("/proc/{pid}/{file}");
            // some are refused when they are read
            let read = File::open(&path).and_then(|mut file| file.read(&mut [0; 64]));
            // nothing is mapped at 0, so that even root gets an error there: opening is enough
            let opened = file == "mem" && File::open(&path).is_ok();
            if opened || read.is_ok_and(|bytes| bytes > 0) {
                can.push(format!("read {path}"));
            }
        }
        for dir in ["fd", "map_files", "fdinfo"] {
            let path = format!("/proc/{pid}/{dir}");
            if fs::read_dir(&path).is_ok() {
                can.push(format!("list {path}"));
            }
        }
        for link in ["cwd", "root", "fd/0", "fd/3"] {
            let path = format!("/proc/{pid}/{link}");
            if fs::read_link(&path).is_ok() {
                can.push(format!("follow {path}"));
            }
        }
        can
    })
}

/// The status of an HTTP request without any token.
pub fn status(url: &str, method: &str, path: &str) -> (u16, String) {
    let address = url.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer)
}

pub fn run(node: &TestNode, image: &str, name: &str) {
    node.run(&RunRequest {
        image: image.into(),
        name: Some(name.into()),
        wait: Wait::None,
        ..Default::default()
    });
}

/// A node with a page, a hub and three machines: one booted, two from its captured state.
pub fn node_with_machines() -> TestNode {
    let mut setup = Setup::on_the_network();
    setup.web = Some(node::free_address());
    setup.hub = true;
    setup.args = vec!["--standby".into(), "0".into()];
    let node = TestNode::with(setup);
    let disk = node.blank_disk();
    fs::set_permissions(&disk, Permissions::from_mode(0o600)).unwrap();
    node.import_tiny("tiny", Some(&disk));
    run(&node, "tiny", "one");
    node.wait_console("one", "floe-guest ready");
    let capture = CaptureRequest {
        name: Some("live".into()),
        rehearse_s: Some(0),
        ..Default::default()
    };
    finish(node.client().capture("one", &capture).unwrap());
    run(&node, "live", "two");
    run(&node, "live", "three");
    node
}
