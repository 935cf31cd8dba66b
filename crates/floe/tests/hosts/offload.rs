//! A device and a strong host, which lends it its CPUs: `floe pair`, `floe offload`, `floe sync`, `floe recall`, and hosts that are made
//! empty: `floe drain`.

use crate::support::clusters::ask_by_hand;
use crate::support::command::{code, ends, floe, ok, run, said};
use crate::support::hosts::Hosts;
use crate::support::node::{PATIENCE, Signal, TestNode, cluster, eventually};
use crate::support::sockets::{read_until, web_socket};
use floe_api::*;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::{fs, process::Command};

/// Two nodes on hosts of their own.
pub(super) fn nodes(hosts: &Hosts) -> [TestNode; 2] {
    let at = |n: usize| {
        let address = format!("10.90.0.{}:7070", n + 1);
        TestNode::in_namespace(&hosts.names[n], &address)
    };
    [at(0), at(1)]
}

/// Has a device and a strong host know each other, as `phone` and `cloud`.
fn pair(phone: &TestNode, cloud: &TestNode) {
    let listen = |node: &TestNode| node.member_address().unwrap().to_string();
    let line = ok(
        cloud,
        &["pair", "--name", "cloud", "--listen", &listen(cloud)],
    );
    let words: Vec<&str> = line.split_whitespace().collect();
    let [floe, pair, url, invitation] = words[..] else {
        panic!("{line}");
    };
    assert_eq!((floe, pair), ("floe", "pair"));
    let listens = listen(phone);
    let args = [
        "pair",
        url,
        invitation,
        "--name",
        "phone",
        "--listen",
        listens.as_str(),
    ];
    let joined = ok(phone, &args);
    assert!(joined.contains("phone"), "{joined}");
    // it is good once
    assert!(!run(phone, &args).status.success());
    // and more can be paired with
    let again = ok(cloud, &["pair"]);
    assert!(again.starts_with("floe pair https://"), "{again}");
}

/// What a node has of the machine.
pub(super) fn web(node: &TestNode) -> Option<MachineInfo> {
    let machines = node.client().machines().unwrap().machines;
    machines.into_iter().find(|machine| machine.name == "web")
}

fn stands(node: &TestNode) -> Option<MoveStanding> {
    let moves = web(node).and_then(|web| web.moves);
    moves.map(|moves| moves.standing)
}

pub(super) fn runs(node: &TestNode) -> bool {
    web(node).is_some_and(|web| web.status == MachineStatus::Running)
}

/// Writes a word into a file in the guest's memory; `number` is that of no other word.
pub(super) fn marks(node: &TestNode, word: &str, number: usize) {
    let mark = format!("echo {word}-$((40+2)) >> /www/mark; echo wrote-$(({number}+0))");
    node.type_and_wait("web", &mark, &format!("wrote-{number}"));
}

/// Returns the words that are in that file; `number` is that of no other answer.
pub(super) fn remembers(node: &TestNode, number: usize) -> String {
    let look = format!("tr '\\n' ' ' < /www/mark; echo seen-$(({number}+0))");
    let seen = format!("seen-{number}");
    node.type_and_wait("web", &look, &seen);
    let console = node.console("web");
    let before = console.rsplit_once(&seen).unwrap().0;
    before.lines().last().unwrap_or_default().to_owned()
}

/// How many CPUs the guest has online; asked until its agent answers.
fn cpus(node: &TestNode) -> String {
    let mut said = String::new();
    eventually("its agent answers", || {
        let done = ends(floe(node, &["exec", "web", "--", "nproc"]));
        said = String::from_utf8_lossy(&done.stdout).trim().to_owned();
        done.status.success()
    });
    said
}

/// CPUs and MiB of memory that the machine is said to have.
fn has(node: &TestNode) -> (u32, u64) {
    let web = web(node).unwrap();
    (web.cpus, web.memory_bytes >> 20)
}

/// Two nodes, the first of which has lent a machine that remembers something to the second.
fn lent(hosts: &Hosts) -> [TestNode; 2] {
    lent_with(hosts, &[])
}

/// The same, for 30 s without a word.
fn leased(hosts: &Hosts) -> [TestNode; 2] {
    lent_with(hosts, &["--lease", "30s"])
}

fn lent_with(hosts: &Hosts, options: &[&str]) -> [TestNode; 2] {
    let nodes = nodes(hosts);
    cluster(&[&nodes[0], &nodes[1]]);
    nodes[0].boot_tiny("web");
    marks(&nodes[0], "before", 1);
    let args = [&["offload", "web", "--to", "node-1"][..], options].concat();
    ok(&nodes[0], &args);
    nodes
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_machine_is_lent_with_more_cpus_and_memory_and_comes_back_as_it_was() {
    let hosts = Hosts::new();
    let [phone, cloud] = &nodes(&hosts);
    pair(phone, cloud);
    phone.boot_tiny("web");
    marks(phone, "before", 1);

    // it does nothing, and so nothing would be gained
    let advised = ok(
        phone,
        &["advise", "web", "--to", "cloud", "--link", "7.2M", "--json"],
    );
    let advice: Advice = serde_json::from_str(&advised).unwrap();
    assert_eq!(advice.verdict, AdviceVerdict::Stay, "{advice:?}");
    assert!(advice.busy < 0.25 && advice.speedup > 0.0, "{advice:?}");
    // told of ahead of time, by a name that it must say
    let which = code(phone, 2, &["sync", "web"]);
    assert!(said(&which).contains("--to NODE"), "{}", said(&which));
    let synced = ok(phone, &["sync", "web", "--to", "cloud"]);
    assert!(synced.contains("web is synced with cloud"), "{synced}");
    assert!(runs(phone) && web(cloud).is_none());

    let args = [
        "offload", "web", "--to", "cloud", "--cpus", "2", "--memory", "400M",
    ];
    let gone = ok(phone, &args);
    assert!(gone.contains("web runs on cloud"), "{gone}");
    assert!(gone.contains("2 CPUs and 400.0 MiB"), "{gone}");
    assert_eq!(
        (cpus(cloud).as_str(), has(cloud), has(phone)),
        ("2", (2, 400), (1, 256))
    );
    assert!(remembers(cloud, 2).contains("before-42"));

    // here it is kept, and does not go on
    assert_eq!(stands(phone), Some(MoveStanding::Lent));
    let refused = said(&code(phone, 5, &["wake", "web"]));
    assert!(
        refused.contains("runs on cloud") && refused.contains("floe recall web"),
        "{refused}"
    );
    // and its guest is reached from here
    assert_eq!(cpus(phone), "2");
    eventually("it is lent no further", || {
        let refused = run(cloud, &["offload", "web", "--to", "phone"]);
        assert!(!refused.status.success(), "{}", said(&refused));
        // it may not have heard yet that the loan stands
        refused.status.code() == Some(5) && said(&refused).contains("has lent web")
    });
    marks(cloud, "there", 3);
    let synced = ok(phone, &["sync", "web"]);
    assert!(synced.contains("web is synced with cloud"), "{synced}");
    assert_eq!(stands(phone), Some(MoveStanding::Lent));
    marks(cloud, "later", 4);

    let back = ok(phone, &["recall", "web"]);
    assert!(back.contains("web is back"), "{back}");
    assert_eq!(has(phone), (1, 256));
    assert_eq!(cpus(phone), "1");
    let words = remembers(phone, 5);
    for word in ["before-42", "there-42", "later-42"] {
        assert!(words.contains(word), "{words}");
    }
    eventually("it is gone there", || web(cloud).is_none());
    assert!(runs(phone));

    // and again, with all that went to and fro before; by itself from now on
    eventually("the other node has forgotten it", || {
        run(phone, &["offload", "web", "--to", "cloud"])
            .status
            .success()
    });
    let synced = ok(
        phone,
        &["sync", "web", "--every", "10s", "--threshold", "1M"],
    );
    assert!(synced.contains("synced"), "{synced}");
    code(phone, 2, &["sync", "web", "--threshold", "1M"]);
    ok(phone, &["sync", "web", "--stop"]);
    ok(phone, &["recall", "web"]);
    assert!(remembers(phone, 6).contains("later-42"));
}

/// Lends the machine to the other node, once that has forgotten the loan before. Returns how many bytes crossed the network.
fn lend(node: &TestNode) -> u64 {
    let request = MoveRequest {
        to: Some("node-1".into()),
        lend: true,
        ..Default::default()
    };
    let mut wire_bytes = 0;
    eventually("it is lent", || {
        let events = node.client().move_machine("web", &request);
        let ended = events.and_then(|events| events.finish(|_| ()));
        match ended.map_err(|error| error.to_api()) {
            Ok(outcome) => {
                wire_bytes = outcome.moved.unwrap().wire_bytes;
                true
            }
            Err(error) => {
                assert_eq!(error.code, ErrorCode::Busy, "{error}");
                false
            }
        }
    });
    wire_bytes
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_second_loan_sends_a_small_part_of_what_the_first_did() {
    let hosts = Hosts::new();
    let nodes = nodes(&hosts);
    cluster(&[&nodes[0], &nodes[1]]);
    nodes[0].boot_tiny("web");
    // what no compression makes smaller
    let fill = "head -c 33554432 /dev/urandom > /www/much; echo filled-$((40+2))";
    nodes[0].type_and_wait("web", fill, "filled-42");
    let first = lend(&nodes[0]);
    assert!(first > 32 << 20, "{first}");
    marks(&nodes[1], "there", 1);
    ok(&nodes[0], &["recall", "web"]);
    marks(&nodes[0], "here", 2);
    let second = lend(&nodes[0]);
    eprintln!("{first} bytes, then {second}");
    assert!(second * 4 < first, "{first} bytes, then {second}");
    let words = remembers(&nodes[1], 3);
    assert!(
        words.contains("there-42") && words.contains("here-42"),
        "{words}"
    );
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_loan_goes_on_from_its_last_sync_if_the_borrower_is_gone_and_that_one_is_fenced_later() {
    let hosts = Hosts::new();
    let mut nodes = lent(&hosts);
    marks(&nodes[1], "synced", 2);
    ok(&nodes[0], &["sync", "web"]);
    marks(&nodes[1], "late", 3);

    // its node is gone, and its QEMU runs on
    nodes[1].end(Signal::KILL);
    let forced = code(&nodes[0], 0, &["recall", "web", "--force"]);
    assert!(said(&forced).contains("is lost"), "{}", said(&forced));
    assert!(runs(&nodes[0]));
    let words = remembers(&nodes[0], 4);
    assert!(
        words.contains("before-42") && words.contains("synced-42"),
        "{words}"
    );
    assert!(!words.contains("late-42"), "{words}");
    let shown = web(&nodes[0]).unwrap();
    assert_eq!((&*shown.image_name, shown.moves), ("tiny", None));

    // it moves nowhere before the other has heard of it
    let busy = code(&nodes[0], 1, &["move", "web", "--to", "node-1"]);
    assert!(said(&busy).contains("has not heard yet"), "{}", said(&busy));
    nodes[1].start_again();
    eventually("the borrower hears that it is too late", || {
        stands(&nodes[1]) == Some(MoveStanding::Fenced)
    });
    let kept = |image: &ImageSummary| image.names.iter().any(|name| name.contains("web-late-"));
    eventually("what it did is kept", || {
        nodes[1].client().images().unwrap().images.iter().any(kept)
    });
    assert!(!runs(&nodes[1]) && runs(&nodes[0]));
    code(&nodes[1], 0, &["rm", "web"]);

    // and is lent again
    eventually("it goes there again", || {
        run(&nodes[0], &["offload", "web", "--to", "node-1"])
            .status
            .success()
    });
    assert!(remembers(&nodes[1], 5).contains("synced-42"));
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_loan_stands_whatever_node_is_killed_meanwhile() {
    let hosts = Hosts::new();
    let mut nodes = lent(&hosts);
    // the lender, which keeps what it was, and the borrower, whose guest runs on
    for (round, victim) in [0, 1].into_iter().enumerate() {
        nodes[victim].end(Signal::KILL);
        nodes[victim].start_again();
        eventually("each has its side", || {
            runs(&nodes[1]) && stands(&nodes[0]) == Some(MoveStanding::Lent)
        });
        assert!(remembers(&nodes[1], 10 + round).contains("before-42"));
    }
    // in the midst of its way back: it is on one of the two, and comes in the end
    let request = RecallRequest::default();
    let recalled = nodes[0].client().recall("web", &request).unwrap();
    eventually("it is on its way", || {
        stands(&nodes[1]).is_some() || web(&nodes[1]).is_none()
    });
    nodes[0].end(Signal::KILL);
    drop(recalled);
    nodes[0].start_again();
    eventually("it runs on one of the two", || {
        runs(&nodes[0]) != runs(&nodes[1])
    });
    if runs(&nodes[1]) {
        eventually("it is recalled", || {
            let from = ["recall", "web", "--from", "node-1"];
            run(&nodes[0], &from).status.success()
        });
    }
    assert!(remembers(&nodes[0], 20).contains("before-42"));
    eventually("it is gone there", || web(&nodes[1]).is_none());
}

/// Cuts the link between the hosts, or mends it.
fn link(hosts: &Hosts, up: bool) {
    let state = if up { "up" } else { "down" };
    let args = ["-n", hosts.names[0].as_str(), "link", "set", "eth0", state];
    let status = Command::new("ip").args(args).status().unwrap();
    assert!(status.success());
}

/// Whether a process has been stopped by a signal.
fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    rest.starts_with('T')
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_lease_ends_on_a_cut_link_and_a_lender_that_is_forced_has_waited_for_that() {
    let hosts = Hosts::new();
    let mut nodes = nodes(&hosts);
    cluster(&[&nodes[0], &nodes[1]]);
    nodes[0].boot_tiny("web");
    marks(&nodes[0], "before", 1);
    code(
        &nodes[0],
        2,
        &["offload", "web", "--to", "node-1", "--lease", "1s"],
    );
    ok(
        &nodes[0],
        &["offload", "web", "--to", "node-1", "--lease", "30s"],
    );
    marks(&nodes[1], "there", 2);

    // nobody hears of the other: it is parked there, and goes on when it hears again
    link(&hosts, false);
    eventually("its lease ends", || {
        stands(&nodes[1]) == Some(MoveStanding::Lapsed)
    });
    let lapsed = web(&nodes[1]).unwrap();
    assert_eq!(lapsed.status, MachineStatus::Parked, "{lapsed:?}");
    assert!(lapsed.detail.contains("node-0"), "{lapsed:?}");
    code(&nodes[1], 5, &["wake", "web"]);
    link(&hosts, true);
    eventually("its lender answers", || runs(&nodes[1]));
    assert!(remembers(&nodes[1], 3).contains("there-42"));

    // and once more, without its node: its guard stops it before the lender goes on
    let pid = web(&nodes[1]).unwrap().pid.unwrap();
    link(&hosts, false);
    nodes[1].end(Signal::KILL);
    let forced = code(&nodes[0], 0, &["recall", "web", "--force"]);
    assert!(is_stopped(pid), "both run");
    assert!(
        said(&forced).contains("its lease lasts"),
        "{}",
        said(&forced)
    );
    assert!(runs(&nodes[0]));
    let words = remembers(&nodes[0], 4);
    assert!(
        words.contains("before-42") && !words.contains("there-42"),
        "{words}"
    );
    assert!(is_stopped(pid));
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn what_is_parked_there_when_its_lease_ends_stays_so_and_is_kept_once_its_lender_was_forced() {
    let hosts = Hosts::new();
    let nodes = leased(&hosts);
    marks(&nodes[1], "there", 2);
    ok(&nodes[1], &["park", "web"]);
    link(&hosts, false);
    code(&nodes[0], 0, &["recall", "web", "--force"]);
    let woken = code(&nodes[1], 5, &["wake", "web"]);
    assert!(said(&woken).contains("lease"), "{}", said(&woken));
    link(&hosts, true);
    eventually("it hears that it is too late", || {
        stands(&nodes[1]) == Some(MoveStanding::Fenced)
    });
    let images = ok(&nodes[1], &["image", "ls"]);
    assert!(images.contains("web-late-"), "{images}");
    assert!(runs(&nodes[0]));
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn what_its_lender_has_removed_needs_no_lease_any_more() {
    let hosts = Hosts::new();
    let nodes = leased(&hosts);
    ok(&nodes[0], &["rm", "web"]);
    let lease = nodes[1].home().join("machines/web/lease");
    eventually("it waits for nobody", || {
        let text = fs::read_to_string(&lease).unwrap();
        text.trim_end().ends_with(&u64::MAX.to_string())
    });
    assert!(runs(&nodes[1]));
    ok(&nodes[0], &["recall", "web", "--from", "node-1"]);
    assert!(remembers(&nodes[0], 3).contains("before-42"));
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn only_results_come_back_if_that_is_wished_and_the_rest_is_thrown_away() {
    let hosts = Hosts::new();
    let nodes = lent(&hosts);
    let job = "mkdir /www/out; echo made-$((40+2)) > /www/out/result; echo done-$((1+1))";
    nodes[1].type_and_wait("web", job, "done-2");
    marks(&nodes[1], "thrown", 3);

    let dir = nodes[0].home().join("results");
    fs::create_dir(&dir).unwrap();
    let into = dir.display().to_string();
    let recall = |path| ["recall", "web", "--results", path, "--into", into.as_str()];
    // what is no whole path, and what is not there: it stays where it is
    code(&nodes[0], 2, &recall("out"));
    let none = code(&nodes[0], 5, &recall("/www/none"));
    assert!(said(&none).contains("/www/none"), "{}", said(&none));
    assert_eq!(stands(&nodes[0]), Some(MoveStanding::Lent));
    assert!(runs(&nodes[1]));

    let back = ok(&nodes[0], &recall("/www/out"));
    assert!(back.contains("web is back"), "{back}");
    let result = fs::read_to_string(dir.join("out/result")).unwrap();
    assert_eq!(result, "made-42\n");
    assert!(runs(&nodes[0]) && web(&nodes[1]).is_none());
    let words = remembers(&nodes[0], 4);
    assert!(
        words.contains("before-42") && !words.contains("thrown-42"),
        "{words}"
    );
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_host_is_drained_onto_the_nodes_that_can_have_its_machines() {
    let hosts = Hosts::new();
    let nodes = nodes(&hosts);
    let nobody = run(&nodes[0], &["drain"]);
    assert!(nobody.status.success(), "{}", said(&nobody));
    cluster(&[&nodes[0], &nodes[1]]);
    nodes[0].boot_tiny("web");
    // a node that is none, and one that has room
    let none = code(&nodes[0], 5, &["drain", "--to", "nobody"]);
    assert!(said(&none).contains("web stays"), "{}", said(&none));
    let drained = ok(&nodes[0], &["drain", "--to", "nobody,node-1"]);
    assert!(drained.contains("web runs on node-1"), "{drained}");
    assert!(web(&nodes[0]).is_none() && runs(&nodes[1]));
    let nothing = ok(&nodes[0], &["drain"]);
    assert!(nothing.contains("anything to lose"), "{nothing}");
    // another of its name can't go there
    nodes[0].run_named("tiny", "web");
    let args = ["advise", "web", "--to", "node-1", "--link", "7.2M"];
    let stays = ok(&nodes[0], &args);
    assert!(stays.contains("it can't go to node-1"), "{stays}");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_lent_machines_screen_and_console_are_where_its_user_sits() {
    let hosts = Hosts::new();
    let mut nodes = lent(&hosts);
    // a console, on which what is typed is kept here until the guest there has got it
    let mut console = web_socket(&nodes[0], "/v1/machines/web/terminal");
    let line = b"echo typed-$((40+2))\r";
    let mut frame = vec![0x82, 0x80 | line.len() as u8, 0, 0, 0, 0];
    frame.extend(line);
    console.write_all(&frame).unwrap();
    read_until(&mut console, b"{\"earlier_bytes\":");
    // what it wrote there, its picture, and its screen
    nodes[0].wait_console("web", "typed-42");
    let picture = nodes[0].home().join("screen.png");
    let path = picture.display().to_string();
    ok(&nodes[0], &["screenshot", "web", path.as_str()]);
    assert!(fs::read(&picture).unwrap().starts_with(b"\x89PNG"));
    let mut screen = web_socket(&nodes[0], "/v1/machines/web/vnc");
    read_until(&mut screen, b"RFB 003.008\n");
    let socket = nodes[0].client().console("web").unwrap().vnc.unwrap();
    let mut viewer = UnixStream::connect(&socket).unwrap();
    viewer.set_read_timeout(Some(PATIENCE)).unwrap();
    read_until(&mut viewer, b"RFB 003.008\n");
    drop((console, screen, viewer));
    // a node that is gone is said to be
    nodes[1].end(Signal::KILL);
    let silent = code(&nodes[0], 4, &["logs", "web"]);
    assert!(said(&silent).contains("node-1"), "{}", said(&silent));
    nodes[1].start_again();
    eventually("it is shown again", || {
        run(&nodes[0], &["logs", "web"]).status.success()
    });
    eventually("it comes back", || {
        run(&nodes[0], &["recall", "web"]).status.success()
    });
    assert!(remembers(&nodes[0], 2).contains("before-42"));
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_lent_machine_is_shown_to_the_member_that_has_lent_it_and_to_no_other() {
    let (phone, cloud) = (TestNode::on_the_network(), TestNode::on_the_network());
    cluster(&[&phone, &cloud]);
    phone.boot_tiny("web");
    ok(&phone, &["offload", "web", "--to", "node-1"]);
    let record = fs::read(phone.home().join("machines/web/machine.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let key = record["turn"]["key"].as_str().unwrap();
    // the borrower's own certificate is a member's as well
    let pem = cloud.home().join("cluster/node.pem").display().to_string();
    let process = "{\"process\":{\"program\":{\"command\":[\"true\"]}}}";
    for what in ["\"screen\"", "\"console\"", "\"picture\"", process] {
        let asked = format!("{{\"key\":\"{key}\",\"what\":{what}}}");
        let told = ask_by_hand(
            cloud.member_address().unwrap(),
            &["-cert", &pem, "-key", &pem],
            "POST /v1/moves/look",
            &asked,
        );
        let is_refused = told.contains("422") && told.contains("not lent by");
        assert!(is_refused, "{told}");
    }
    // nor is it one of its clones
    let told = ask_by_hand(
        cloud.member_address().unwrap(),
        &["-cert", &pem, "-key", &pem],
        "POST /v1/moves/look",
        &format!("{{\"clone\":\"web\",\"what\":{process}}}"),
    );
    assert!(told.contains("404"), "{told}");
    let path = phone.home().join("screen.png").display().to_string();
    ok(&phone, &["screenshot", "web", path.as_str()]);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_lent_machines_guest_is_reached_from_where_its_user_sits() {
    let hosts = Hosts::new();
    let mut nodes = lent(&hosts);
    assert_eq!(cpus(&nodes[0]), "1");
    // output, input and exit code
    let words = ok(&nodes[0], &["exec", "web", "--", "cat", "/www/mark"]);
    assert_eq!(words, "before-42\n");
    let failed = ends(floe(
        &nodes[0],
        &["exec", "web", "--", "sh", "-c", "exit 7"],
    ));
    assert_eq!(failed.status.code(), Some(7));
    // also of one that ends before it has taken its input
    let input = nodes[0].home().join("input");
    fs::write(&input, vec![7; 4 << 20]).unwrap();
    let args = ["exec", "-i", "web", "--", "sh", "-c", "exit 7"];
    let mut untaken = floe(&nodes[0], &args);
    untaken.stdin(fs::File::open(&input).unwrap());
    let untaken = ends(untaken);
    assert_eq!(untaken.status.code(), Some(7), "{}", said(&untaken));
    // what can't be started there says so as it does here
    let none = ends(floe(&nodes[0], &["exec", "web", "--", "/no/such"]));
    assert_eq!(none.status.code(), Some(127), "{}", said(&none));
    // files, both ways, and more than one message of them
    let dir = nodes[0].home().join("copied");
    fs::create_dir(&dir).unwrap();
    let (file, back) = (dir.join("much"), dir.join("back"));
    let much: Vec<u8> = (0..1_000_003_u32).map(|n| (n % 251) as u8).collect();
    fs::write(&file, &much).unwrap();
    let (from, to) = (file.display().to_string(), back.display().to_string());
    ok(&nodes[0], &["cp", from.as_str(), "web:/www/much"]);
    ok(&nodes[0], &["cp", "web:/www/much", to.as_str()]);
    assert!(fs::read(&back).unwrap() == much, "it came as another file");
    let refused = run(&nodes[0], &["cp", "web:/no/such", to.as_str()]);
    assert!(!refused.status.success(), "{}", said(&refused));
    // a node that is gone is said to be, and when it is back its guest is reached again
    nodes[1].end(Signal::KILL);
    let silent = code(&nodes[0], 4, &["exec", "web", "--", "true"]);
    assert!(said(&silent).contains("node-1"), "{}", said(&silent));
    nodes[1].start_again();
    assert_eq!(cpus(&nodes[0]), "1");
    eventually("it comes back", || {
        run(&nodes[0], &["recall", "web"]).status.success()
    });
    assert_eq!(cpus(&nodes[0]), "1");
    let words = ok(&nodes[0], &["exec", "web", "--", "cat", "/www/mark"]);
    assert_eq!(words, "before-42\n");
}

/// The page of the guest's web server, as a program on a host gets it through the port that leads there.
fn page(host: &str) -> String {
    let ask =
        "exec 3<>/dev/tcp/127.0.0.1/18080 && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3";
    let args = ["netns", "exec", host, "timeout", "60", "bash", "-c", ask];
    let done = Command::new("ip").args(args).output().unwrap();
    String::from_utf8_lossy(&done.stdout).into_owned()
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_lent_machines_ports_are_open_where_its_user_sits() {
    let hosts = Hosts::new();
    let nodes = nodes(&hosts);
    cluster(&[&nodes[0], &nodes[1]]);
    nodes[0].import_tiny("tiny", None);
    nodes[0].run(&RunRequest {
        image: "tiny".into(),
        name: Some("web".into()),
        forwards: vec!["18080:80".parse().unwrap()],
        ..Default::default()
    });
    nodes[0].wait_console("web", "floe-guest ready");
    let answers = |host: usize| page(&hosts.names[host]).contains("floe tiny guest");
    eventually("it answers", || answers(0));
    ok(&nodes[0], &["offload", "web", "--to", "node-1"]);
    eventually("it is reached from here", || answers(0));
    assert!(answers(1) && runs(&nodes[1]));
    // who connects wakes it there
    ok(&nodes[1], &["park", "web"]);
    eventually("it is woken from here", || answers(0));
    assert!(runs(&nodes[1]));
    // and its QEMU here has its port again
    eventually("it comes back", || {
        run(&nodes[0], &["recall", "web"]).status.success()
    });
    eventually("it answers at home", || answers(0));
    assert!(runs(&nodes[0]));
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn each_of_several_jobs_there_gives_its_results_into_a_folder_here() {
    let hosts = Hosts::new();
    let nodes = nodes(&hosts);
    cluster(&[&nodes[0], &nodes[1]]);
    nodes[0].boot_tiny("web");
    ok(&nodes[0], &["offload", "web", "--to", "node-1", "-n", "2"]);
    let clones = ["web.1", "web.2"];
    for clone in clones {
        let job = format!("echo by-{clone} > /www/result");
        eventually("it does its job", || {
            let exec = ["exec", clone, "--", "sh", "-c", job.as_str()];
            run(&nodes[0], &exec).status.success()
        });
    }
    let into = nodes[0].home().join("jobs").display().to_string();
    fs::create_dir(&into).unwrap();
    let recall = |path| {
        let of = ["recall", "web", "--clones", "--results", path];
        run(&nodes[0], &[&of[..], &["--into", into.as_str()]].concat())
    };
    // what is not there yet: all of them stay
    assert!(!recall("/www/none").status.success());
    let left = || nodes[1].client().machines().unwrap().machines.len();
    assert_eq!(left(), 2);
    let done = recall("/www/result");
    assert!(done.status.success(), "{}", said(&done));
    for clone in clones {
        let result = fs::read_to_string(format!("{into}/{clone}/result")).unwrap();
        assert_eq!(result, format!("by-{clone}\n"));
    }
    eventually("they are gone there", || left() == 0);
    assert!(runs(&nodes[0]));
}
