//! Ensembles: several substrates activated together in one network, told of each other, and what is said and left when that does not
//! work.

use crate::support::command::{code, ends, floe, said};
use crate::support::node::{PATIENCE, Signal, TestNode, eventually};
use floe_api::*;
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

/// A hook that notes each call, and fails to join where `/www/bad` is.
const HOOK: &str = r#"mkdir -p /etc/floe/dock.d /www; cat > /etc/floe/dock.d/10-note <<'END'
#!/bin/sh
[ $1 = joined ] || exit 0
[ ! -e /www/bad ] || { echo the disk is full; exit 3; }
grep -c ^10 /etc/hosts > /www/joined
END
chmod 755 /etc/floe/dock.d/10-note"#;

/// Runs a shell's line in a guest until it succeeds; returns what it says.
fn sh(node: &TestNode, machine: &str, line: &str) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let done = ends(floe(node, &["exec", machine, "--", "sh", "-c", line]));
        if done.status.success() {
            return String::from_utf8(done.stdout).unwrap().trim().to_owned();
        }
        assert!(Instant::now() < until, "{line}: {done:?}\n{}", node.log());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Writes a file that describes an ensemble.
fn file(node: &TestNode, name: &str, text: &str) -> String {
    let path: PathBuf = node.home().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Activates an ensemble with this exit code; returns what became of it.
fn activate(node: &TestNode, expected: i32, file: &str, more: &[&str]) -> EnsembleReport {
    let args = [&["activate", "--json", "--ensemble", file], more].concat();
    let output = code(node, expected, &args);
    let text = String::from_utf8(output.stdout).unwrap();
    let last = text.lines().last().unwrap_or_default();
    match serde_json::from_str(last).unwrap() {
        Event::Done(outcome) => outcome.ensemble.unwrap(),
        other => panic!("{other:?}"),
    }
}

fn free_port() -> u16 {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().port()
}

/// The names of the machines that there are.
fn there(node: &TestNode) -> Vec<String> {
    let machines = node.client().machines().unwrap().machines;
    let mut names: Vec<String> = machines.into_iter().map(|machine| machine.name).collect();
    names.sort();
    names
}

/// How many networks the node has.
fn networks(node: &TestNode) -> usize {
    let dir = std::fs::read_dir(node.home().join("networks")).unwrap();
    dir.flatten().count()
}

/// Boots the tiny guest with its hook and a port that echoes.
fn boot(node: &TestNode) {
    node.boot_tiny("web");
    sh(node, "web", HOOK);
    let echo = "(while true; do nc -l -p 7 -e /bin/cat; done) & echo serves-$((1+1))";
    node.type_and_wait("web", echo, "serves-2");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn machines_of_several_substrates_reach_each_other_by_name_in_the_order_of_the_file() {
    let mut node = TestNode::start();
    boot(&node);
    code(&node, 0, &["dock", "web", "--as", "kept"]);
    code(&node, 0, &["dock", "web", "--as", "open", "--public"]);
    let port = free_port();
    let shop = file(
        &node,
        "shop.toml",
        &format!(
            r#"
name = "shop"
[member.web]
substrate = "open"
address = "10.0.2.40"
ports = ["{port}:7"]
after = ["app"]
[member.app]
substrate = "kept"
count = 2
after = ["db"]
ready = ["test", "-s", "/www/joined"]
[member.db]
substrate = "open"
ready = "port 7"
"#
        ),
    );
    let report = activate(&node, 0, &shop, &["--ready", "300"]);
    let names: Vec<&str> = report.machines.iter().map(|m| m.name.as_str()).collect();
    assert_eq!(names, ["shop-web", "shop-app.1", "shop-app.2", "shop-db"]);
    let [web, app, second, db] = &report.machines[..] else {
        panic!("{report:?}")
    };
    assert_eq!(
        (web.address.as_str(), web.host.as_str()),
        ("10.0.2.40", "web")
    );
    assert!(
        db.ready_ms <= app.ready_ms && db.ready_ms <= second.ready_ms,
        "{report:?}"
    );
    assert!(
        app.ready_ms <= web.ready_ms && second.ready_ms <= web.ready_ms,
        "{report:?}"
    );
    for (machine, host) in [
        ("shop-web", "web"),
        ("shop-app.2", "app-2"),
        ("shop-db", "db"),
    ] {
        assert_eq!(sh(&node, machine, "hostname"), host);
        // all of them, and both machines of app under one name too
        assert_eq!(sh(&node, machine, "cat /www/joined"), "6");
    }
    // through the network, by name
    for (from, to) in [
        ("shop-web", "db"),
        ("shop-app.1", "web"),
        ("shop-db", "app-2"),
    ] {
        let line = format!("[ \"$(echo hello | nc -w 60 {to} 7)\" = hello ] && echo yes");
        assert_eq!(sh(&node, from, &line), "yes", "{from} to {to}");
    }
    let asked = || -> bool {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", port))?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            stream.write_all(b"anybody?")?;
            let mut answer = [0; 8];
            stream.read_exact(&mut answer)?;
            Ok(String::from_utf8_lossy(&answer).into_owned())
        };
        ask().is_ok_and(|answer| answer == "anybody?")
    };
    eventually("the forwarded port leads to web", asked);
    let list = code(&node, 0, &["ps"]);
    assert!(said(&list).contains("db of shop"), "{}", said(&list));
    let shown = code(&node, 0, &["ps", "shop-app.2"]);
    assert!(said(&shown).contains("app-2 of shop"), "{}", said(&shown));

    // it is there, also for the next node
    node.end(Signal::KILL);
    node.start_again();
    code(&node, 0, &["rm", "--force", "shop-db"]);
    let again = code(&node, 1, &["activate", "--ensemble", &shop]);
    let told = said(&again);
    assert!(
        told.contains("ensemble shop is there: shop-app.1 ") && told.contains("missing: shop-db"),
        "{told}"
    );
    code(&node, 3, &["stop", "--ensemble", "shopp"]);
    code(&node, 0, &["rm", "--force", "--ensemble", "shop"]);
    assert_eq!((there(&node), networks(&node)), (vec!["web".to_owned()], 0));
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn half_an_ensemble_is_told_and_taken_back_and_what_cannot_be_is_refused_with_its_line() {
    let mut node = TestNode::start();
    boot(&node);
    code(&node, 0, &["dock", "web", "--as", "good"]);
    sh(&node, "web", "touch /www/bad");
    code(&node, 0, &["dock", "web", "--as", "bad"]);
    // an agent that says nothing any more
    let line = "rm /www/bad; (sleep 1; kill -STOP $(pidof floe-guest); echo deaf-$((1+1))) > /dev/console 2>&1 &";
    sh(&node, "web", line);
    node.wait_console("web", "deaf-2");
    code(&node, 0, &["dock", "web", "--as", "deaf"]);
    code(&node, 0, &["rm", "--force", "web"]);

    let with = |name: &str, db: &str| {
        let text = format!(
            "name = \"{name}\"\n[member.db]\nsubstrate = \"{db}\"\n[member.web]\nsubstrate = \"good\"\nafter = [\"db\"]\n\
             [member.other]\nsubstrate = \"good\"\n"
        );
        file(&node, &format!("{name}.toml"), &text)
    };
    // what cannot be is refused before anything starts
    let misspelt = with("a", "goood");
    let told = said(&code(&node, 3, &["activate", "--ensemble", &misspelt]));
    assert!(
        told.contains("a.toml, line 3, db: there is no substrate goood")
            && told.contains("did you mean good?"),
        "{told}"
    );
    let large = file(
        &node,
        "b.toml",
        "name = \"b\"\n[member.db]\nsubstrate = \"good\"\nmemory = \"512G\"\n",
    );
    let told = said(&code(&node, 5, &["activate", "--ensemble", &large]));
    assert!(told.contains("b.toml, line 4, db"), "{told}");
    let circle = file(
        &node,
        "c.toml",
        "name = \"c\"\n[member.a]\nsubstrate = \"good\"\nafter = [\"b\"]\n[member.b]\nsubstrate = \"good\"\nafter = [\"a\"]\n",
    );
    let told = said(&code(&node, 2, &["activate", "--ensemble", &circle]));
    assert!(
        told.contains("each of these comes after the next"),
        "{told}"
    );
    assert_eq!((there(&node), networks(&node)), (Vec::new(), 0));

    // a hook that fails: those that come after it are not told, the others are
    let bad = with("half", "bad");
    let report = activate(&node, 7, &bad, &["--ready", "300"]);
    let [db, web, other] = &report.machines[..] else {
        panic!("{report:?}")
    };
    let why = |machine: &EnsembleMachine| machine.failed.clone().unwrap().message;
    assert!(
        why(db).contains("10-note failed") && why(db).contains("the disk is full"),
        "{db:?}"
    );
    assert!(
        why(web).contains("half-db, which it comes after, is not ready"),
        "{web:?}"
    );
    assert!(
        other.ready_ms.is_some() && report.machines.iter().all(|m| m.runs),
        "{report:?}"
    );
    assert_eq!(sh(&node, "half-other", "cat /www/joined"), "3");
    sh(&node, "half-web", "[ ! -e /www/joined ]");
    code(&node, 0, &["rm", "--force", "--ensemble", "half"]);
    let nothing = activate(&node, 1, &bad, &["--ready", "300", "--all-or-nothing"]);
    assert!(nothing.taken_back && !nothing.is_whole(), "{nothing:?}");
    assert_eq!((there(&node), networks(&node)), (Vec::new(), 0));

    // a guest that never answers
    let deaf = with("deaf", "deaf");
    let report = activate(&node, 7, &deaf, &["--ready", "30"]);
    assert!(
        why(&report.machines[0]).contains("did not answer in time"),
        "{report:?}"
    );
    assert!(report.machines[0].runs, "{report:?}");
    code(&node, 0, &["rm", "--force", "--ensemble", "deaf"]);

    // nobody waits any more
    let begin = || {
        let mut command = floe(&node, &["activate", "--ensemble", &deaf, "--ready", "600"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        eventually("all machines run", || {
            let machines = node.client().machines().unwrap().machines;
            let runs = |m: &&MachineInfo| m.status == MachineStatus::Running;
            machines.iter().filter(runs).count() == 3
        });
        child
    };
    let mut child = begin();
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    eventually("nothing is left", || {
        there(&node).is_empty() && networks(&node) == 0
    });

    // the node is killed: what runs is told as what it is
    let mut child = begin();
    node.end(Signal::KILL);
    assert!(!child.wait().unwrap().success());
    node.start_again();
    let told = said(&code(&node, 1, &["activate", "--ensemble", &deaf]));
    assert!(told.contains("ensemble deaf is there: deaf-db "), "{told}");
    code(&node, 0, &["rm", "--force", "--ensemble", "deaf"]);
    assert_eq!((there(&node), networks(&node)), (Vec::new(), 0));
}
