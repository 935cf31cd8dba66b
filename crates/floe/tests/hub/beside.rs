//! The commands of `floe hub` beside a hub that runs and is pushed to: whatever was acknowledged is there after the hub was
//! killed, and its catalogue is whole.

use crate::node::{PATIENCE, Setup, Signal, TestNode};
use crate::support::*;
use floe_api::credentials::OwnHub;
use floe_store::Repository;
use floe_transfer::{PushOptions, push};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;

/// How often the hub is killed.
const ROUNDS: usize = 3;
/// How many pushes go on at once.
const PUSHERS: usize = 2;

/// A hub in a process of its own.
trait Serving {
    /// The state directory.
    fn home(&self) -> &Path;
    fn url(&self) -> String;
    fn end(&mut self, signal: Signal);
    fn start_again(&mut self);
}

/// That of `floe hub serve`.
struct Alone {
    home: tempfile::TempDir,
    process: Option<Child>,
    url: String,
}

impl Alone {
    fn start() -> Alone {
        let mut alone = Alone {
            home: tempfile::tempdir().unwrap(),
            process: None,
            url: String::new(),
        };
        alone.start_again();
        alone
    }
}

impl Serving for Alone {
    fn home(&self) -> &Path {
        self.home.path()
    }

    fn url(&self) -> String {
        self.url.clone()
    }

    fn end(&mut self, signal: Signal) {
        let mut process = self.process.take().unwrap();
        let pid = rustix::process::Pid::from_child(&process);
        rustix::process::kill_process(pid, signal).unwrap();
        process.wait().unwrap();
    }

    fn start_again(&mut self) {
        let args = ["hub", "serve", "--listen", "127.0.0.1:0"];
        let mut process = floe(self.home.path(), &args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = process.stdout.take().unwrap();
        self.process = Some(process);
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("hub answers on ");
        self.url = url.expect("the hub starts").to_owned();
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if self.process.is_some() {
            self.end(Signal::KILL);
        }
    }
}

/// That of `floe up`.
impl Serving for TestNode {
    fn home(&self) -> &Path {
        TestNode::home(self)
    }

    fn url(&self) -> String {
        own(self.home()).hub.to_string()
    }

    fn end(&mut self, signal: Signal) {
        TestNode::end(self, signal);
    }

    fn start_again(&mut self) {
        TestNode::start_again(self);
    }
}

/// What `floe up` knows of its own hub.
fn own(home: &Path) -> OwnHub {
    OwnHub::load(&home.join("hub.token")).unwrap()
}

fn floe(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command
        .args(args)
        .env("FLOE_HOME", home)
        .env_remove("FLOE_SOCKET")
        .stdin(Stdio::null());
    command
}

fn run(home: &Path, args: &[&str]) -> Output {
    floe(home, args).output().unwrap()
}

/// Runs a command that must succeed; what it printed.
fn ok(home: &Path, args: &[&str]) -> String {
    let done = run(home, args);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "floe {}: {said}", args.join(" "));
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

fn json(home: &Path, args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&ok(home, &[args, &["--json"]].concat())).unwrap()
}

/// The commands that a command's help lists.
fn commands(home: &Path, of: &[&str]) -> Vec<String> {
    let help = ok(home, &[of, &["--help"]].concat());
    let (_, list) = help.split_once("\nCommands:\n").unwrap();
    let lines = list.lines().take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.map(|line| line.split_whitespace().next().unwrap().to_owned());
    names.filter(|name| name != "help").collect()
}

/// What was acknowledged.
#[derive(Default)]
struct Acknowledged {
    /// Names of ann's images.
    images: Vec<String>,
    /// Tokens of bob.
    tokens: Vec<String>,
    /// Tokens of carol that were revoked.
    revoked: Vec<String>,
    /// How many images dan may have.
    quota: u64,
}

/// Pushes one small image after the other and tells the name of each that was acknowledged, until the hub ends.
fn push_on(
    repository: &Repository,
    (url, token): (&str, &str),
    (number, ending): (&AtomicU64, &AtomicBool),
    tell: &mpsc::Sender<Result<String, String>>,
) {
    loop {
        let n = number.fetch_add(2, Ordering::SeqCst);
        let name = format!("image-{n}");
        let options = PushOptions {
            name: Some(name.clone()),
            connections: 1,
            ..PushOptions::default()
        };
        let id = image(repository, &[n, n + 1]);
        let pushed = push(repository, &id, url, Some(token), &options, &|_| ());
        if pushed.is_err() && ending.load(Ordering::SeqCst) {
            return;
        }
        let told = pushed.map(|_| name).map_err(|error| error.to_string());
        let failed = told.is_err();
        if tell.send(told).is_err() || failed {
            return;
        }
    }
}

/// Runs every command of `floe hub` once; `pause` after each lets pushes be acknowledged.
fn run_each_command(home: &Path, known: &mut Acknowledged, pause: &mut dyn FnMut(&str)) {
    assert_eq!(commands(home, &["hub"]), ["serve", "token", "quota"]);
    let of_token = commands(home, &["hub", "token"]);
    assert_eq!(of_token, ["create", "ls", "revoke"], "one that is not run");
    pause("nothing");
    json(home, &["hub", "token", "ls"]);
    pause("token ls");
    known
        .tokens
        .push(ok(home, &["hub", "token", "create", "bob"]));
    pause("token create");
    let carol = ok(home, &["hub", "token", "create", "carol"]);
    ok(home, &["hub", "token", "revoke", "carol"]);
    known.revoked.push(carol);
    pause("token revoke");
    json(home, &["hub", "quota"]);
    pause("quota");
    known.quota += 1;
    let images = known.quota.to_string();
    ok(home, &["hub", "quota", "dan", "--images", &images]);
    pause("quota dan");
    let second = run(home, &["hub", "serve", "--listen", "127.0.0.1:0"]);
    assert!(!second.status.success(), "two hubs on one directory");
    pause("serve");
}

/// Asserts that everything is there that was acknowledged, and that the catalogue is whole.
fn check(hub: &dyn Serving, ann: &str, known: &Acknowledged) {
    let url = hub.url();
    let get = |token: &str| ask(&url, "GET", "/v1/images", Some(token), &[], None);
    let list = get(ann);
    assert_eq!(list.status, 200, "ann's token: {}", list.text());
    let shown = list.text();
    let lost = |name: &&String| !shown.contains(&format!("\"{name}:latest\""));
    let lost: Vec<_> = known.images.iter().filter(lost).collect();
    assert!(
        lost.is_empty(),
        "of {} pushes that were acknowledged these are lost: {lost:?}",
        known.images.len()
    );
    for (tokens, status) in [(&known.tokens, 200), (&known.revoked, 401)] {
        for token in tokens {
            assert_eq!(get(token).status, status);
        }
    }
    let users = json(hub.home(), &["hub", "token", "ls"]);
    let bob = serde_json::json!({"user": "bob", "tokens": known.tokens.len()});
    let users = users["users"].as_array().unwrap();
    assert!(users.contains(&bob), "{users:?}");
    let dan = json(hub.home(), &["hub", "quota", "dan"]);
    assert_eq!(dan["users"][0]["images"]["quota"], known.quota);
    check_integrity(hub.home());
}

/// Has SQLite read the catalogue, as one more process beside the hub.
fn check_integrity(home: &Path) {
    let db = rusqlite::Connection::open(home.join("hub").join("hub.db")).unwrap();
    db.busy_timeout(PATIENCE).unwrap();
    let found: String = db
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(found, "ok");
}

/// Pushes to a hub and runs the commands beside it, kills it under the pushes, starts it again and counts; several times.
fn nothing_acknowledged_is_lost(hub: &mut dyn Serving) {
    let dir = tempfile::tempdir().unwrap();
    let repository = Repository::create(&dir.path().join("repo")).unwrap();
    let ann = ok(hub.home(), &["hub", "token", "create", "ann"]);
    let mut known = Acknowledged::default();
    let number = AtomicU64::new(1);
    for _ in 0..ROUNDS {
        let (url, ending) = (hub.url(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            // of this scope: pushers end when nobody listens, as after a panic
            let (tell, told) = mpsc::channel();
            for _ in 0..PUSHERS {
                let (to, until) = ((&*url, &*ann), (&number, &ending));
                let (repository, tell) = (&repository, tell.clone());
                scope.spawn(move || push_on(repository, to, until, &tell));
            }
            drop(tell);
            let mut images = Vec::new();
            run_each_command(hub.home(), &mut known, &mut |after| {
                // the first may have been acknowledged before the command ended
                for _ in 0..PUSHERS + 1 {
                    let name = told.recv_timeout(PATIENCE).unwrap();
                    images.push(name.unwrap_or_else(|error| panic!("after {after}: {error}")));
                }
            });
            ending.store(true, Ordering::SeqCst);
            hub.end(Signal::KILL);
            images.extend(told.iter().map(Result::unwrap));
            known.images.extend(images);
        });
        hub.start_again();
        check(hub, &ann, &known);
    }
    hub.end(Signal::TERM);
    check_integrity(hub.home());
    hub.start_again();
    check(hub, &ann, &known);
}

#[test]
fn commands_that_come_first_at_once_make_one_catalogue() {
    for _ in 0..10 {
        let home = tempfile::tempdir().unwrap();
        let create = &|n: usize| ok(home.path(), &["hub", "token", "create", &format!("u{n}")]);
        std::thread::scope(|scope| {
            for n in 0..8 {
                scope.spawn(move || create(n));
            }
        });
        let users = json(home.path(), &["hub", "token", "ls"]);
        assert_eq!(users["users"].as_array().unwrap().len(), 8);
        check_integrity(home.path());
        let files = walk(home.path()).len();
        assert_eq!(files, 1, "what was made under another name is gone");
    }
}

#[test]
fn a_killed_hub_has_all_that_it_and_commands_beside_it_acknowledged() {
    nothing_acknowledged_is_lost(&mut Alone::start());
}

#[test]
#[ignore = "needs root and FUSE: make test"]
fn a_killed_floe_up_has_all_that_its_hub_and_commands_beside_it_acknowledged() {
    let mut up = TestNode::with(Setup {
        hub: true,
        ..Default::default()
    });
    let token = own(up.home()).token;
    nothing_acknowledged_is_lost(&mut up);
    assert_eq!(own(up.home()).token, token, "its hub has forgotten it");
}
