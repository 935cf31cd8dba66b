//! The tour of the README, word by word: its commands are taken from there and typed as they stand, in a terminal, on a
//! node of its own. What a test can't have (the hub of somebody else, a disk to import) is put in their place by
//! [`Tour::stand_in`]; nothing else is changed, and a command that fails ends the test.

use crate::support::node::{PATIENCE, Setup, TestNode, free_address, guest};
use std::{
    fs::{self, File},
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

const README: &str = include_str!("../../../../README.md");

const HEADING: &str = "## A tour in two minutes";

/// Returns the commands of the tour, without what is explained beside them.
fn commands() -> Vec<String> {
    let (_, after) = README.split_once(HEADING).expect("README has a tour");
    let block = after.split("```").nth(1).expect("the tour has commands");
    let command = |line: &str| {
        let line = line.split("  # ").next().unwrap_or_default().trim();
        (!line.is_empty() && !line.starts_with('#')).then(|| line.to_owned())
    };
    block.lines().filter_map(command).collect()
}

/// What a user types into a command that goes on until he ends it, and after which output.
fn keys(command: &str) -> Option<(&'static str, &'static str)> {
    const CTRL_C: &str = "\x03";
    const CTRL_RIGHT_BRACKET: &str = "\x1d";
    let is = |start: &str| command.starts_with(start);
    if is("floe console") {
        return Some(("", CTRL_RIGHT_BRACKET));
    }
    if is("floe exec -it") {
        return Some(("#", "exit\r"));
    }
    if is("floe run -it") {
        // on a host so loaded that the agent does not answer in time it is the serial console, which Ctrl-] leaves
        return Some(("#", "exit\r\x1d"));
    }
    if is("floe rollback") {
        return Some(("[y/N]", "y\r"));
    }
    if is("floe top") {
        return Some(("", CTRL_C));
    }
    if command.contains("--link-report") {
        return Some(("total", CTRL_C));
    }
    None
}

/// A hub of somebody else, and the directory in which the commands are typed.
struct Tour {
    node: TestNode,
    hub: Child,
    hub_url: String,
    token: String,
    dir: tempfile::TempDir,
}

impl Drop for Tour {
    fn drop(&mut self) {
        let _ = self.hub.kill();
        let _ = self.hub.wait();
    }
}

impl Tour {
    fn begin() -> Tour {
        let node = TestNode::with(Setup {
            hub: true,
            web: Some(free_address()),
            ..Default::default()
        });
        let dir = tempfile::tempdir().unwrap();
        let (hub_home, at) = (dir.path().join("hub"), free_address());
        fs::create_dir(&hub_home).unwrap();
        let floe = |args: &[&str]| {
            let mut floe = Command::new(env!("CARGO_BIN_EXE_floe"));
            floe.args(args).env("FLOE_HOME", &hub_home);
            floe
        };
        let log = File::create(dir.path().join("hub.log")).unwrap();
        let mut hub = floe(&["hub", "serve", "--listen", &at])
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let hub_url = format!("http://{at}");
        let until = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(&at).is_err() {
            let ended = hub.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < until,
                "no hub: {ended:?}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        let made = floe(&["hub", "token", "create", "me"]).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let printed = String::from_utf8(made.stdout).unwrap();
        let token = printed.split_whitespace().max_by_key(|word| word.len());
        let token = token.expect("a token is printed").to_owned();
        let disk = Command::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2"])
            .arg(dir.path().join("disk.qcow2"))
            .arg("64M")
            .status();
        assert!(disk.unwrap().success());
        fs::create_dir(dir.path().join("mnt")).unwrap();
        Tour {
            node,
            hub,
            hub_url,
            token,
            dir,
        }
    }

    /// Returns what is typed instead of a command of the tour, or nothing if it was done before.
    fn stand_in(&self, command: &str) -> Option<String> {
        // this build is tested, and its node runs
        if command.starts_with("make ") || command == "floe up &" {
            return None;
        }
        // what this command makes of Debian's packages was made before the tests, by this command
        if command.starts_with("floe image build debian") {
            let stock = |file: &str| guest(&format!("stock/{file}"));
            let cmdline = fs::read_to_string(stock("cmdline")).unwrap();
            return Some(format!(
                "floe image import {} --kernel {} --initrd {} --cmdline '{}' --name debian",
                stock("disk.raw"),
                stock("vmlinuz"),
                stock("initrd"),
                cmdline.trim()
            ));
        }
        // `make build` puts the agent beside floe, where the test's build has none
        if command.starts_with("floe agent install") {
            return Some(format!("{command} --agent {}", guest("stock/floe-guest")));
        }
        let port = free_address().rsplit_once(':').unwrap().1.to_owned();
        let command = command
            .replace("https://hub.example", &self.hub_url)
            .replace("8080:", &format!("{port}:"))
            .replace(" /mnt", " mnt");
        Some(match command.starts_with("floe login") {
            true => format!("echo {} | {command}", self.token),
            false => command,
        })
    }

    /// Types a command into a terminal, and returns what it printed. It must end well.
    fn type_in(&self, command: &str) -> String {
        let mut terminal = Command::new("script")
            .args(["--quiet", "--return", "--echo", "never", "--command"])
            .args([command, "/dev/null"])
            .current_dir(self.dir.path())
            .env("PATH", self.path())
            .env("FLOE_HOME", self.node.home())
            .env("XDG_CONFIG_HOME", self.dir.path().join("config"))
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("script is a part of bsdutils");
        let mut stdin = terminal.stdin.take().unwrap();
        let printed = follow(terminal.stdout.take().unwrap());
        let mut shown = String::new();
        let mut keys = keys(command);
        let until = Instant::now() + 2 * PATIENCE;
        let status = loop {
            match printed.recv_timeout(Duration::from_millis(200)) {
                Ok(bytes) => shown.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => {
                    if let Some(status) = terminal.try_wait().unwrap() {
                        break status;
                    }
                }
            }
            if let Some((after, typed)) = keys
                && !shown.is_empty()
                && shown.contains(after)
            {
                stdin.write_all(typed.as_bytes()).unwrap();
                keys = None;
            }
            if Instant::now() > until {
                terminal.kill().unwrap();
                panic!("{command}: does not end\n{shown}\n{}", self.node.log());
            }
        };
        while let Ok(bytes) = printed.try_recv() {
            shown.push_str(&String::from_utf8_lossy(&bytes));
        }
        // who ends a command by Ctrl-C is told so by its exit code
        let good = status.success()
            || (command.starts_with("floe top") || command.contains("--link-report"))
                && status.code() == Some(130);
        assert!(good, "{command}: {status}\n{shown}\n{}", self.node.log());
        shown
    }

    fn path(&self) -> String {
        let floe = PathBuf::from(env!("CARGO_BIN_EXE_floe"));
        let dir = floe.parent().map(Path::display).unwrap();
        format!("{dir}:{}", std::env::var("PATH").unwrap_or_default())
    }
}

/// Sends on what is read until the end.
fn follow(mut from: impl Read + Send + 'static) -> mpsc::Receiver<Vec<u8>> {
    let (to, received) = mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            if to.send(buffer[..read].to_vec()).is_err() {
                break;
            }
        }
    });
    received
}

#[test]
fn the_tour_has_commands() {
    let commands = commands();
    assert!(commands.len() > 20, "{commands:#?}");
    assert!(
        commands
            .iter()
            .any(|command| command.starts_with("floe run debian "))
    );
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn every_command_of_the_tour_does_what_it_says() {
    let tour = Tour::begin();
    for command in commands() {
        let Some(typed) = tour.stand_in(&command) else {
            continue;
        };
        let start = Instant::now();
        let shown = tour.type_in(&typed);
        println!(
            "\n$ {command}\n{shown}({:.1} s)",
            start.elapsed().as_secs_f64()
        );
    }
    let hostname = fs::read_to_string(tour.dir.path().join("hostname")).unwrap();
    assert_eq!(hostname.trim(), "debian");
    assert!(
        fs::metadata(tour.dir.path().join("screen.png"))
            .unwrap()
            .len()
            > 0
    );
    // the tour's machines that it does not remove itself
    for machine in tour.node.client().machines().unwrap().machines {
        tour.node
            .client()
            .remove_machine(&machine.name, true)
            .unwrap();
    }
}
