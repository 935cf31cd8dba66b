//! Cuts, kills and full disks: what was acknowledged stays, what was not can be sent again.

use crate::support::*;
use floe_hub::HubOptions;
use floe_store::Repository;
use floe_transfer::{PushOptions, TransferError, push};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const CHILD_DIR: &str = "FLOE_TEST_HUB_DIR";
const CHILD_ADDR: &str = "FLOE_TEST_HUB_ADDR";

/// Not a test of its own: the process that others kill.
#[test]
fn hub_process() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else {
        return;
    };
    let addr: SocketAddr = std::env::var(CHILD_ADDR).unwrap().parse().unwrap();
    let hub = floe_hub::serve(HubOptions::new(dir, addr)).unwrap();
    println!("\nlistening on {}", hub.addr());
    hub.wait();
}

/// A hub in a process of its own, killed with SIGKILL at the latest when it is dropped.
struct Process(Child, SocketAddr);

impl Process {
    fn start(dir: &Path, addr: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["faults::hub_process", "--exact", "--nocapture"])
            .env(CHILD_DIR, dir)
            .env(CHILD_ADDR, addr)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let addr = lines
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("listening on ").map(str::to_owned));
        Process(child, addr.expect("the hub starts").parse().unwrap())
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn a_killed_hub_loses_neither_images_nor_what_was_staged() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("hub");
    let repository = Repository::create(&dir.path().join("repo")).unwrap();
    let token = floe_hub::create_token(&at, "ann").unwrap();
    let mut process = Process::start(&at, "127.0.0.1:0");
    let url = format!("http://{}", process.1);
    let first = image(&repository, &(1..600).collect::<Vec<_>>());
    let options = |name: &str| PushOptions {
        name: Some(name.into()),
        public: Some(true),
        connections: 1,
        ..PushOptions::default()
    };
    push(
        &repository,
        &first,
        &url,
        Some(&token),
        &options("first"),
        &|_| (),
    )
    .unwrap();

    // Killed in the middle of the second push: from inside its progress, so that some packs are staged for sure.
    let second = image(&repository, &(5000..8000).collect::<Vec<_>>());
    let wish = options("second");
    let pid = process.0.id();
    let killed = AtomicBool::new(false);
    let ended = push(&repository, &second, &url, Some(&token), &wish, &|p| {
        if p.done_bytes > p.total_bytes / 2 && !killed.swap(true, Ordering::SeqCst) {
            let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
    });
    assert!(killed.load(Ordering::SeqCst));
    assert!(
        matches!(&ended, Err(error @ TransferError::Unreachable { .. }) if error.is_resumable()),
        "{ended:?}"
    );
    process.kill();

    let again = Process::start(&at, "127.0.0.1:0");
    let url = format!("http://{}", again.1);
    let list = ask(&url, "GET", "/v1/images", None, &[], None).json();
    assert_eq!(
        list["images"].as_array().unwrap().len(),
        1,
        "only what was whole is shown"
    );
    assert_eq!(list["images"][0]["names"][0], "first:latest");
    let report = push(
        &repository,
        &second,
        &url,
        Some(&token),
        &options("second"),
        &|_| (),
    )
    .unwrap();
    assert!(
        report.chunks_sent > 0 && report.chunks_reused > 1000,
        "{report:?}"
    );
    let list = ask(&url, "GET", "/v1/images", None, &[], None).json();
    assert_eq!(list["images"].as_array().unwrap().len(), 2);
}

/// Passes bytes on, but cuts each of the first connections after some of them.
fn cutting_proxy(
    to: SocketAddr,
    cuts: usize,
    after_bytes: usize,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let made = Arc::new(AtomicUsize::new(0));
    let counted = made.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(client) = client else { return };
            let Ok(server) = TcpStream::connect(to) else {
                return;
            };
            let left = if counted.fetch_add(1, Ordering::SeqCst) < cuts {
                after_bytes
            } else {
                usize::MAX
            };
            let copy = |mut from: TcpStream, mut to: TcpStream, mut left: usize| {
                std::thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while let Ok(n) = from.read(&mut buffer) {
                        if n == 0 || n > left || to.write_all(&buffer[..n]).is_err() {
                            break;
                        }
                        left -= n;
                    }
                    let _ = from.shutdown(std::net::Shutdown::Both);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            };
            copy(
                client.try_clone().unwrap(),
                server.try_clone().unwrap(),
                left,
            );
            copy(server, client, usize::MAX);
        }
    });
    (addr, made)
}

#[test]
fn a_push_survives_cut_connections() {
    let world = world();
    let id = image(&world.repository, &(1..2500).collect::<Vec<_>>());
    let (proxy, connections) = cutting_proxy(world.hub.addr(), 4, 300_000);
    let options = PushOptions {
        name: Some("a".into()),
        public: Some(true),
        connections: 2,
        ..PushOptions::default()
    };
    push(
        &world.repository,
        &id,
        &format!("http://{proxy}"),
        Some(&world.ann),
        &options,
        &|_| (),
    )
    .unwrap();
    assert!(connections.load(Ordering::SeqCst) > 4);
    assert_eq!(world.visible(None), 1);
}

#[test]
fn an_orderly_shutdown_finishes_what_is_in_flight() {
    let world = world();
    let parts = image_parts(&[1, 2, 3], &[]);
    let opened = world.ask(
        "POST",
        "/v1/uploads",
        Some(&world.ann),
        Some(&parts.manifest.encode()),
    );
    let key = opened.json()["id"].as_str().unwrap().to_owned();
    let (reference, bytes) = &parts.packs[0];
    let mut stream = TcpStream::connect(world.hub.addr()).unwrap();
    write!(
        stream,
        "PUT /v1/uploads/{key}/packs/{} HTTP/1.1\r\nhost: hub\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n",
        reference.id,
        world.ann,
        bytes.len()
    )
    .unwrap();
    let (half, rest) = bytes.split_at(bytes.len() / 2);
    stream.write_all(half).unwrap();
    // The head has certainly been read once another request on a new connection was answered after it.
    assert_eq!(world.get("/healthz", None).status, 200);
    std::thread::sleep(std::time::Duration::from_millis(100));
    let addr = world.hub.addr();
    world.hub.stop();
    while TcpStream::connect(addr).is_ok() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    stream.write_all(rest).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    let (dir, ann) = (world.hub_dir(), world.ann.clone());
    world.hub.shutdown();

    let hub = floe_hub::serve(options(&dir)).unwrap();
    let committed = ask(
        &hub.url(),
        "POST",
        &format!("/v1/uploads/{key}/commit"),
        Some(&ann),
        &[],
        Some(b"{}"),
    );
    assert_eq!(committed.status, 200, "{}", committed.text());
}

#[test]
fn an_upload_that_nobody_goes_on_with_is_dropped() {
    let world = world();
    let parts = image_parts(&(1..300).collect::<Vec<_>>(), &[]);
    let key = world.stage(&parts, &world.ann);
    let (dir, ann) = (world.hub_dir(), world.ann.clone());
    world.hub.shutdown();
    std::fs::create_dir_all(dir.join("repo/packs/ab")).unwrap();
    std::fs::write(dir.join("repo/packs/ab/litter.pack"), b"x").unwrap();
    std::fs::create_dir_all(dir.join("staging/unknown")).unwrap();
    // Not stale yet: a restart keeps it, and clears away only what belongs to nothing.
    let hub = floe_hub::serve(options(&dir)).unwrap();
    assert!(dir.join("staging").join(&key).exists());
    assert!(
        !dir.join("staging/unknown").exists() && !dir.join("repo/packs/ab/litter.pack").exists()
    );
    hub.shutdown();
    std::thread::sleep(std::time::Duration::from_millis(2100));
    let mut hasty = options(&dir);
    hasty.limits.upload_expiry = std::time::Duration::from_secs(1);
    let hub = floe_hub::serve(hasty).unwrap();
    while dir.join("staging").join(&key).exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let gone = ask(
        &hub.url(),
        "POST",
        &format!("/v1/uploads/{key}/commit"),
        Some(&ann),
        &[],
        Some(b"{}"),
    );
    assert_eq!(gone.code(), "no-upload");
}

#[test]
fn removing_an_image_keeps_the_packs_that_another_needs() {
    let world = world();
    let a = image(&world.repository, &(1..600).collect::<Vec<_>>());
    let b = image(&world.repository, &(1..601).collect::<Vec<_>>());
    world.push(&a, "a", true).unwrap();
    world.push(&b, "b", true).unwrap();
    assert_eq!(
        world
            .ask("DELETE", &format!("/v1/images/{a}"), Some(&world.ann), None)
            .status,
        204
    );
    let there = Repository::create(&world.dir.path().join("there")).unwrap();
    let source = floe_source::Registry::default()
        .open_at(&world.hub.url(), None, None)
        .unwrap();
    let to = floe_transfer::Destination::Repository(&there, None);
    floe_transfer::pull(&*source, &b, to, &Default::default(), &|_| ()).unwrap();
    assert_eq!(pages_of(&there, &b), pages_of(&world.repository, &b));
    assert_eq!(
        world
            .ask("DELETE", &format!("/v1/images/{b}"), Some(&world.ann), None)
            .status,
        204
    );
    let left = |dir: &Path| {
        walk(dir)
            .into_iter()
            .filter(|path| path.extension().is_some_and(|e| e == "pack"))
            .count()
    };
    assert_eq!(left(&world.hub_dir()), 0);
}

#[test]
fn a_hub_that_must_keep_room_says_that_its_disk_is_full() {
    let world = world_with(|o| o.limits.disk_reserve_bytes = u64::MAX / 2);
    let id = image(&world.repository, &[1, 2, 3]);
    match world.push(&id, "a", true) {
        Err(error @ TransferError::Refused { status: 507, .. }) => {
            assert!(
                error.is_resumable() && error.to_string().contains("disk is full"),
                "{error}"
            );
        }
        other => panic!("{other:?}"),
    }
}

/// A file system of a size of its own, unmounted at the end.
struct Tmpfs(std::path::PathBuf);

impl Tmpfs {
    fn mount(at: &Path, size: &str) -> Tmpfs {
        std::fs::create_dir_all(at).unwrap();
        let options = std::ffi::CString::new(format!("size={size}")).unwrap();
        rustix::mount::mount(
            "tmpfs",
            at,
            "tmpfs",
            rustix::mount::MountFlags::empty(),
            Some(&*options),
        )
        .unwrap();
        Tmpfs(at.to_owned())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
#[ignore = "needs root to mount a small file system: make test-all"]
fn a_full_disk_is_told_and_the_push_goes_on_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("hub");
    let _small = Tmpfs::mount(&at, "12m");
    let repository = Repository::create(&dir.path().join("repo")).unwrap();
    let token = floe_hub::create_token(&at, "ann").unwrap();
    // No reserve: the file system itself says no, in the middle of a write.
    let mut options = options(&at);
    options.limits.disk_reserve_bytes = 0;
    let hub = floe_hub::serve(options).unwrap();
    let filler = at.join("filler");
    std::fs::write(&filler, vec![1; 7 << 20]).unwrap();
    let id = image(&repository, &(1..3000).collect::<Vec<_>>());
    let wish = PushOptions {
        name: Some("a".into()),
        public: Some(true),
        connections: 1,
        ..PushOptions::default()
    };
    match push(&repository, &id, &hub.url(), Some(&token), &wish, &|_| ()) {
        Err(error @ TransferError::Refused { status: 507, .. }) => {
            assert!(error.is_resumable(), "{error}")
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        ask(&hub.url(), "GET", "/v1/images", None, &[], None).json()["images"]
            .as_array()
            .unwrap()
            .len(),
        0
    );
    std::fs::remove_file(&filler).unwrap();
    let report = push(&repository, &id, &hub.url(), Some(&token), &wish, &|_| ()).unwrap();
    assert!(
        report.chunks_reused > 0 && report.chunks_sent > 0,
        "{report:?}"
    );
    assert_eq!(
        ask(&hub.url(), "GET", "/v1/images", None, &[], None).json()["images"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

/// A proxy that answers some requests itself: `refuse` says how, by the request's number and first line. `after` bytes of a
/// request's body are read before that.
fn refusing_proxy(
    to: SocketAddr,
    refuse: impl Fn(usize, &str) -> Option<&'static str> + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let (refuse, number) = (Arc::new(refuse), Arc::new(AtomicUsize::new(0)));
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(mut client) = client else { return };
            let (refuse, number) = (refuse.clone(), number.clone());
            std::thread::spawn(move || -> std::io::Result<()> {
                let mut from = BufReader::new(client.try_clone()?);
                loop {
                    let (mut head, mut length) = (String::new(), 0);
                    loop {
                        let before = head.len();
                        if from.read_line(&mut head)? == 0 {
                            return Ok(());
                        }
                        let line = head[before..].to_ascii_lowercase();
                        if let Some(value) = line.strip_prefix("content-length:") {
                            length = value.trim().parse().unwrap();
                        }
                        if line == "\r\n" {
                            break;
                        }
                    }
                    let mut body = vec![0; length];
                    from.read_exact(&mut body)?;
                    if let Some(answer) = refuse(number.fetch_add(1, Ordering::SeqCst), &head) {
                        client.write_all(answer.as_bytes())?;
                        continue;
                    }
                    let mut server = TcpStream::connect(to)?;
                    let head = head.replacen("\r\n", "\r\nconnection: close\r\n", 1);
                    server.write_all(head.as_bytes())?;
                    server.write_all(&body)?;
                    std::io::copy(&mut server, &mut client)?;
                    return Ok(());
                }
            });
        }
    });
    addr
}

const FORBIDDEN: &str = "HTTP/1.1 403 Forbidden\r\ncontent-length: 9\r\n\r\nforbidden";
const TOO_MANY: &str =
    "HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n";
const BAD_GATEWAY: &str = "HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n";

#[test]
fn a_push_survives_a_proxy_that_refuses_now_and_then() {
    let world = world();
    let id = image(&world.repository, &(1..2500).collect::<Vec<_>>());
    // each request is refused three times, in three ways, but only one pack in four
    let refused = Arc::new(AtomicUsize::new(0));
    let (counted, seen) = (
        refused.clone(),
        std::sync::Mutex::new(std::collections::HashMap::new()),
    );
    let proxy = refusing_proxy(world.hub.addr(), move |_, head| {
        let line = head.lines().next()?.to_owned();
        let last = line.split(' ').nth(1)?.chars().last()?;
        if line.starts_with("PUT") && !"0123".contains(last) {
            return None;
        }
        let mut seen = seen.lock().unwrap();
        let tries = seen.entry(line).or_insert(0);
        *tries += 1;
        let answer = [FORBIDDEN, TOO_MANY, BAD_GATEWAY].get(*tries - 1).copied();
        counted.fetch_add(usize::from(answer.is_some()), Ordering::SeqCst);
        answer
    });
    let options = PushOptions {
        name: Some("a".into()),
        public: Some(true),
        ..PushOptions::default()
    };
    let url = format!("http://{proxy}");
    push(
        &world.repository,
        &id,
        &url,
        Some(&world.ann),
        &options,
        &|_| (),
    )
    .unwrap();
    assert!(refused.load(Ordering::SeqCst) > 3);
    assert_eq!(world.visible(None), 1);
}

#[test]
fn a_push_that_a_proxy_refuses_for_good_ends_and_goes_on_later() {
    let world = world();
    let id = image(&world.repository, &(1..2500).collect::<Vec<_>>());
    // some packs pass, then none
    let passed = AtomicUsize::new(0);
    let proxy = refusing_proxy(world.hub.addr(), move |_, head| {
        let pack = head.starts_with("PUT") && passed.fetch_add(1, Ordering::SeqCst) >= 8;
        pack.then_some(FORBIDDEN)
    });
    let options = PushOptions {
        public: Some(true),
        connections: 1,
        ..PushOptions::default()
    };
    let url = format!("http://{proxy}");
    let ended = push(
        &world.repository,
        &id,
        &url,
        Some(&world.ann),
        &options,
        &|_| (),
    );
    assert!(
        matches!(&ended, Err(error @ TransferError::Refused { status: 403, .. }) if error.is_resumable()),
        "{ended:?}"
    );
    let report = world.push(&id, "a", true).unwrap();
    assert!(
        report.chunks_sent > 0 && report.chunks_reused > 100,
        "{report:?}"
    );
}
