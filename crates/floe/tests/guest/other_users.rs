//! What another user of the host gets of a node: nothing. A real node with real machines, and threads of this test that become
//! other users and try everything that there is: every file, directory and socket, the mount, and the processes.

use crate::support::node::{Signal, TestNode, WEB_TOKEN, finish};
use crate::support::other_users::{
    as_user, everything, node_with_machines, open_of_process, open_to, processes, run, status,
};
use floe_api::credentials::OwnHub;
use floe_api::*;
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A user that nothing on this host belongs to.
const STRANGER: u32 = 64_321;

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
        ..Default::default()
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
fn a_directory_that_a_user_names_can_be_served_but_its_lock_is_nobody_elses() {
    let node = TestNode::start();
    node.import_tiny("tiny", None);
    let www = tempfile::tempdir().unwrap();
    fs::set_permissions(www.path(), Permissions::from_mode(0o755)).unwrap();
    let images = www.path().join("srv/images");
    let push = PushRequest {
        image: "tiny".into(),
        to: images.display().to_string(),
        ..Default::default()
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

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn who_puts_a_socket_in_qemus_place_hears_nothing_of_a_machines_users() {
    let node = TestNode::start();
    node.boot_tiny("web");
    let console = node.client().console("web").unwrap();
    let run = Path::new(&console.socket).parent().unwrap();
    // as a QEMU that its guest has taken over could do: the directory is its user's
    let others = ["console.sock", "vnc.sock"].map(|name| {
        fs::remove_file(run.join(name)).unwrap();
        UnixListener::bind(run.join(name)).unwrap()
    });
    let told = node.client().attach("web").unwrap_err().to_string();
    assert!(told.contains("not QEMU's process"), "{told}");
    let mut browser = UnixStream::connect(node.client().socket()).unwrap();
    browser
        .write_all(
            b"GET /v1/machines/web/vnc HTTP/1.1\r\nHost: floe\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
              Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        )
        .unwrap();
    let mut answer = String::new();
    BufReader::new(browser).read_line(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 5"), "{answer}");
    // a VNC client's way leads through the node, whose socket is not in that directory
    let screen = console.vnc.unwrap();
    assert!(!Path::new(&screen).starts_with(run), "{screen}");
    let mut viewer = UnixStream::connect(&screen).unwrap();
    let mut shown = Vec::new();
    viewer.read_to_end(&mut shown).unwrap();
    assert_eq!(shown, b"");
    for other in others {
        let mut heard = Vec::new();
        let (mut stream, _) = other.accept().unwrap();
        stream.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"");
    }
}
