//! What another user of the host gets of a node: nothing. A real node with real machines, and threads of this test that become
//! other users and try everything that there is: every file, directory and socket, the mount, and the processes.

mod node;

use floe_api::credentials::OwnHub;
use floe_api::*;
use node::{PATIENCE, Setup, Signal, TestNode, WEB_TOKEN, finish};
use rustix::fs::{Gid, Uid};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// A user that nothing on this host belongs to.
const STRANGER: u32 = 64_321;

/// Does something as another user: credentials are a thread's own until a C library spreads them.
fn as_user<T: Send>(uid: u32, act: impl FnOnce() -> T + Send) -> T {
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
fn everything(dir: &Path) -> Vec<PathBuf> {
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
fn possible(path: &Path, root: &fs::Metadata) -> Vec<String> {
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
fn open_to(uid: u32, home: &Path) -> Vec<String> {
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
fn processes(home: &Path) -> BTreeMap<u32, String> {
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

/// What a user can see of a process that is nobody else's business.
fn open_of_process(uid: u32, pid: u32) -> Vec<String> {
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
fn status(url: &str, method: &str, path: &str) -> (u16, String) {
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

/// The user that a process runs as.
fn user_of(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    uid.unwrap()
        .split_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

fn run(node: &TestNode, image: &str, name: &str) {
    node.run(&RunRequest {
        image: image.into(),
        name: Some(name.into()),
        wait: Wait::None,
        ..Default::default()
    });
}

/// As a node of an older version left these, under an umask of 022.
fn open_as_before(home: &Path, paths: &[PathBuf]) {
    let mountpoint = home.join("mnt");
    // the mount of a node that is gone answers nobody
    for path in paths.iter().filter(|path| !path.starts_with(&mountpoint)) {
        let Ok(meta) = fs::symlink_metadata(path) else {
            continue;
        };
        if meta.uid() != 0 || meta.is_symlink() {
            continue;
        }
        let name = path.file_name().unwrap_or_default();
        let private = ["page.token", "hub.token", "machine.json"];
        let mode = match meta.is_dir() {
            true => 0o755,
            false if private.iter().any(|file| name == *file) => 0o600,
            false if meta.file_type().is_socket() => 0o600,
            false => 0o644,
        };
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let _ = fs::remove_file(home.join(".private"));
}

/// A node with a page, a hub and three machines: one booted, two from its captured state.
fn node_with_machines() -> TestNode {
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

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn another_user_gets_nothing_of_a_node_its_machines_and_its_hub() {
    let mut node = node_with_machines();
    let home = node.home().to_owned();
    let hub = OwnHub::load(&home.join("hub.token")).unwrap();
    let url = hub.hub.to_string();
    let socket = node.client().socket().to_owned();

    // the owner of the state directory needs no token
    let push = PushRequest {
        image: "live".into(),
        to: url.clone(),
        name: None,
        token: None,
        ca: None,
        public: false,
        seed: false,
    };
    finish(node.client().push(&push).unwrap());
    run(&node, &format!("{url}/live"), "four");
    node.client().remove_machine("four", true).unwrap();
    // on the hub everybody else is a stranger
    let (code, list) = status(&url, "GET", "/v1/images");
    assert!(code == 200 && list.contains("\"images\":[]"), "{list}");
    let id = node.client().image("live").unwrap().summary.id;
    assert_eq!(status(&url, "DELETE", &format!("/v1/images/{id}")).0, 401);
    assert_eq!(
        status(&url, "GET", &format!("/v1/images/{id}/manifest")).0,
        404
    );
    assert_eq!(status(&node.page_url(), "GET", "/v1/node").0, 401);

    let can = open_to(STRANGER, &home);
    assert!(can.is_empty(), "another user can\n{}", can.join("\n"));
    let error = as_user(STRANGER, || client::Client::connect(&socket).err());
    assert!(
        matches!(&error, Some(client::ClientError::Denied { .. })),
        "who may not use the socket is told so: {error:?}"
    );
    let processes = processes(&home);
    assert!(
        processes.len() >= 5,
        "node, supervisor, three QEMUs: {processes:?}"
    );
    for (pid, line) in &processes {
        let can = open_of_process(STRANGER, *pid);
        assert!(can.is_empty(), "{line}\n{}", can.join("\n"));
        // anybody may read command lines
        for secret in [WEB_TOKEN, &hub.token] {
            assert!(!line.contains(secret), "{line}");
        }
        let sockets = fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap();
        let own = |inode: &str| {
            let wanted = format!("socket:[{inode}]");
            let fds = fs::read_dir(format!("/proc/{pid}/fd"))
                .into_iter()
                .flatten();
            fds.flatten()
                .any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == Path::new(&wanted)))
        };
        for socket in sockets.lines().filter(|line| line.contains(" @")) {
            let inode = socket.split_whitespace().nth(6).unwrap_or_default();
            assert!(!own(inode), "an abstract socket has no owner: {socket}");
        }
    }

    // what an older version left open is closed by the next start, under machines that run
    let paths = everything(&home);
    node.end(Signal::KILL);
    open_as_before(&home, &paths);
    node.start_again();
    let can = open_to(STRANGER, &home);
    assert!(
        can.is_empty(),
        "after an update another user can\n{}",
        can.join("\n")
    );
    assert!(node.log().contains("open to other users"), "{}", node.log());
    run(&node, "tiny", "five");
    node.wait_console("five", "floe-guest ready");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn the_user_of_a_machine_gets_its_own_files_and_nothing_of_another_machine() {
    let node = node_with_machines();
    let home = node.home().to_owned();
    let qemus: BTreeMap<String, (u32, u32)> = node
        .client()
        .machines()
        .unwrap()
        .machines
        .into_iter()
        .map(|machine| {
            let pid = machine.pid.unwrap();
            (machine.name, (pid, user_of(pid)))
        })
        .collect();
    let (_, user) = qemus["two"];
    assert!(qemus.values().filter(|(_, uid)| *uid == user).count() == 1 && user != 0);
    let shown = home.join("mnt/machines");
    let mine = [shown.join("two"), home.join("machines/two/boot")];
    let own = |can: &str| mine.iter().any(|dir| can.contains(&*dir.to_string_lossy()));
    let can = open_to(user, &home);
    let foreign: Vec<&String> = can.iter().filter(|can| !own(can)).collect();
    assert!(foreign.is_empty(), "{foreign:#?}");
    // it is the machine's own files that are found open, so the others were tried in the right way
    let ram = shown.join("two/ram").display().to_string();
    assert!(
        can.iter()
            .any(|can| can.starts_with("read") && can.contains(&ram)),
        "{can:#?}"
    );
    for (name, (pid, _)) in qemus.iter().filter(|(name, _)| *name != "two") {
        let can = open_of_process(user, *pid);
        assert!(can.is_empty(), "{name}: {}", can.join("\n"));
    }
    let node_pids = processes(&home);
    for (pid, line) in node_pids
        .iter()
        .filter(|(_, line)| !line.contains("qemu-system"))
    {
        let can = open_of_process(user, *pid);
        assert!(can.is_empty(), "{line}: {}", can.join("\n"));
    }
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_directory_that_a_user_names_can_be_served_but_its_lock_is_nobody_elses() {
    let node = TestNode::start();
    node.import_tiny("tiny", None);
    let www = tempfile::tempdir().unwrap();
    fs::set_permissions(www.path(), Permissions::from_mode(0o755)).unwrap();
    let images = www.path().join("srv/images");
    let push = PushRequest {
        image: "tiny".into(),
        to: images.display().to_string(),
        name: None,
        token: None,
        ca: None,
        public: false,
        seed: false,
    };
    finish(node.client().push(&push).unwrap());
    let (lock, tmp) = (images.join("lock"), images.join("tmp"));
    let paths = everything(www.path());
    as_user(STRANGER, || {
        for path in paths.iter().filter(|path| !path.starts_with(&tmp)) {
            let meta = fs::symlink_metadata(path).unwrap();
            let read = match meta.is_dir() {
                true => fs::read_dir(path).is_ok(),
                false => File::open(path).is_ok(),
            };
            assert_eq!(read, *path != lock, "{}", path.display());
        }
        assert!(fs::read_dir(&tmp).is_err());
    });
}
