//! Where the vCPUs of real machines run, who sees it, and what a node that ends leaves of it, however it ends.

use crate::support::command::ok;
use crate::support::node::{Setup, Signal, TestNode, eventually};
use crate::support::resources::{limit, needs_groups, now, pid, quota_of};
use floe_api::{CpuSched, RunRequest, SchedActing, SchedMachine, Wait};
use std::{collections::BTreeMap, fs};

/// The cores that each thread of a machine's vCPUs may use, as the kernel writes them.
fn places(node: &TestNode, name: &str) -> BTreeMap<u32, String> {
    let dir = format!("/proc/{}/task", pid(node, name));
    let mut places = BTreeMap::new();
    for thread in fs::read_dir(&dir).unwrap() {
        let path = thread.unwrap().path();
        let read = |file: &str| fs::read_to_string(path.join(file)).unwrap_or_default();
        if !read("comm").starts_with("CPU ") {
            continue;
        }
        let status = read("status");
        let allowed = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let tid = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
        places.insert(tid, allowed.unwrap().trim().to_owned());
    }
    places
}

fn are_apart(places: &BTreeMap<u32, String>) -> bool {
    let mut lists: Vec<&String> = places.values().collect();
    lists.sort();
    lists.dedup();
    places.len() > 1 && lists.len() == places.len()
}

fn with(how: &str) -> TestNode {
    let node = TestNode::with(Setup {
        args: ["--cpu-sched", how].map(String::from).into(),
        ..Default::default()
    });
    node.import_tiny("tiny", None);
    node
}

fn run(node: &TestNode, name: &str, cpus: u32) {
    node.run(&RunRequest {
        image: "tiny".into(),
        name: Some(name.into()),
        cpus: Some(cpus),
        cold: true,
        wait: Wait::Console,
        ..Default::default()
    });
}

fn known(node: &TestNode, name: &str) -> Option<SchedMachine> {
    let machines = node.client().sched().unwrap().machines;
    machines.into_iter().find(|one| one.name == name)
}

fn apart(node: &TestNode, name: &str) {
    eventually("its vCPUs are apart", || are_apart(&places(node, name)));
}

fn kept(node: &TestNode) -> String {
    fs::read_to_string(node.home().join("run/vcpus.json")).unwrap()
}

#[test]
#[ignore = "needs root, FUSE, QEMU and two cores: make test-all"]
fn vcpus_of_one_machine_are_on_different_cores_and_as_before_after_the_node_however_it_ends() {
    let mut node = with("off");
    needs_groups(&node);
    run(&node, "web", 2);
    let before = places(&node, "web");
    assert_eq!(before.len(), 2, "{before:?}");
    assert!(!are_apart(&before), "{before:?}");

    // told so, a node keeps them apart, and shows it
    node.end(Signal::TERM);
    node.start_as(&["--cpu-sched", "balance"]);
    apart(&node, "web");
    eventually("it is shown", || {
        known(&node, "web").is_some_and(|web| web.apart)
    });
    let json: serde_json::Value =
        serde_json::from_str(&ok(&node, &["sched", "status", "--json"])).unwrap();
    assert_eq!(json["order"], "balance");
    assert_eq!(json["acting"], "acts");
    let web = &json["machines"][0];
    assert_eq!((&web["name"], &web["vcpus"]), (&"web".into(), &2.into()));
    assert_eq!(web["apart"], true);
    assert!(web.get("distance").is_none(), "nobody could tell: {web}");
    assert!(json["own_cpu_pct"].is_number() && json["moves"].as_u64() >= Some(2));
    let text = ok(&node, &["sched", "status"]);
    for part in ["apart (balance)", "web", "STACKED", "STEAL"] {
        assert!(text.contains(part), "{part}: {text}");
    }

    // quotas are of the control groups, and hold
    limit(&node, "web", 700);
    assert_eq!(quota_of(pid(&node, "web")), Some(700));
    assert!(are_apart(&places(&node, "web")));

    // a node that ends leaves them as they were
    node.end(Signal::TERM);
    let left = all_places(&before);
    assert_eq!(left, before);
    node.start_again();
    apart(&node, "web");
    assert_eq!(quota_of(pid(&node, "web")), Some(700));

    // one that is killed can't, and the next one does, whatever it is told to do itself
    node.end(Signal::KILL);
    assert!(are_apart(&all_places(&before)));
    node.start_as(&["--cpu-sched", "off"]);
    eventually("they are as before", || all_places(&before) == before);
    eventually("it is taken over", || {
        known(&node, "web").is_some_and(|web| web.vcpus == 2)
    });
    assert_eq!(places(&node, "web"), before);
    assert_eq!(kept(&node), "[]");
}

/// The places of threads whose numbers are known, also while no node can be asked for their process.
fn all_places(of: &BTreeMap<u32, String>) -> BTreeMap<u32, String> {
    let place = |tid: &u32| {
        let status = fs::read_to_string(format!("/proc/{tid}/status")).unwrap();
        let mut lines = status.lines();
        let allowed = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        (*tid, allowed.unwrap().trim().to_owned())
    };
    of.keys().map(place).collect()
}

#[test]
#[ignore = "needs root, FUSE, QEMU and two cores: make test-all"]
fn machines_that_come_and_go_are_looked_after_and_one_without_siblings_is_left_alone() {
    let node = with("sbco");
    run(&node, "web", 2);
    run(&node, "one", 1);
    apart(&node, "web");
    eventually("both are known", || {
        known(&node, "one").is_some_and(|one| !one.why.is_empty())
            && known(&node, "web").is_some_and(|web| web.apart)
    });
    let one = known(&node, "one").unwrap();
    assert!(!one.apart && one.vcpus == 1, "{one:?}");
    let report = node.client().sched().unwrap();
    assert_eq!(report.order, CpuSched::Sbco);
    assert!(report.lends, "root may lower nice values: {report:?}");
    assert_ne!(report.acting, SchedActing::Refused);

    // what somebody else sets stays
    let theirs = *places(&node, "web").keys().next().unwrap();
    let core = rustix::process::Pid::from_raw(theirs as i32);
    let all = rustix::thread::sched_getaffinity(None).unwrap();
    rustix::thread::sched_setaffinity(core, &all).unwrap();
    eventually("it is left alone", || {
        known(&node, "web").is_some_and(|web| web.why.contains("somebody else"))
    });
    eventually("its sibling is as before", || {
        let places = places(&node, "web");
        places.values().all(|place| *place == places[&theirs])
    });

    // one that is stopped and started again is another, and its debts are gone with it
    node.client().stop("web", &now()).unwrap();
    eventually("it is not known any more", || {
        known(&node, "web").is_none() && kept(&node) == "[]"
    });
    let started = node.client().start("web", &Default::default());
    started.unwrap().finish(|_| ()).unwrap();
    apart(&node, "web");

    let top = ok(&node, &["top", "--once"]);
    assert!(top.contains("STACKED") && top.contains("web"), "{top}");
    let checks = node.client().doctor().unwrap().checks;
    let detail = |name: &str| {
        let check = checks.iter().find(|check| check.name == name);
        check.map(|check| check.detail.clone()).unwrap_or_default()
    };
    assert!(detail("vCPUs").contains("sched_ext"), "{checks:?}");
    assert!(!detail("--cpu-sched").is_empty(), "{checks:?}");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_node_that_is_told_nothing_touches_no_vcpu_and_shows_figures_when_it_is_asked() {
    let node = TestNode::start();
    node.import_tiny("tiny", None);
    run(&node, "web", 2);
    let before = places(&node, "web");
    let report = node.client().sched().unwrap();
    assert_eq!(
        (report.order, report.acting),
        (CpuSched::Off, SchedActing::Off)
    );
    assert_eq!((report.moves, report.loans), (0, 0));
    let web = known(&node, "web").unwrap();
    assert_eq!((web.vcpus, web.apart), (2, false));
    assert_eq!(places(&node, "web"), before);
    let text = ok(&node, &["sched", "status"]);
    assert!(text.contains("where the kernel places them"), "{text}");
}
