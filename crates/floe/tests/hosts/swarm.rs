//! Nodes of one hub that bring one image to each other, with real guests: `floe run --swarm`, `floe swarm`, `floe push --seed`.

use crate::support::command::code;
use crate::support::node::{Setup, Signal, TestNode, eventually, finish};
use floe_api::hub::CommitRequest;
use floe_api::*;
use floe_hub::{HubHandle, HubOptions};
use floe_image::Hash;
use floe_node::transfer::{Cancel, HubClient};
use floe_store::Repository;
use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Seek, SeekFrom, Write},
    net::UdpSocket,
    os::unix::{fs::MetadataExt, net::UnixStream},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// Size of the guest's disk in MiB: after the first, random bytes, which nothing makes smaller.
pub const DISK_MIB: u64 = 16;

/// The MD5 sum of 4 MiB of zeros.
const ZEROS_4_MIB: &str = "b5cfa9d6c8febd618f91ac2843d50a1c";

/// A hub with a private image on it: the tiny guest, with a disk full of random bytes.
pub struct World {
    /// `None` once it has ended.
    hub: Option<HubHandle>,
    /// Its files.
    dir: tempfile::TempDir,
    url: String,
    pub token: String,
    /// Where the image was made.
    maker: TestNode,
}

impl World {
    pub fn new(seed: bool) -> World {
        let dir = tempfile::tempdir().unwrap();
        let mut options = HubOptions::new(dir.path(), "127.0.0.1:0".parse().unwrap());
        options.limits.training_quiet = Duration::from_millis(100);
        let token = floe_hub::create_token(dir.path(), "ann").unwrap();
        let hub = floe_hub::serve(options).unwrap();
        let maker = TestNode::start();
        let disk = maker.home().join("disk.raw");
        let random = fs::File::open("/dev/urandom").unwrap();
        let mut file = fs::File::create(&disk).unwrap();
        // it begins with zeros, as an empty disk does
        file.seek(SeekFrom::Start(1 << 20)).unwrap();
        std::io::copy(&mut random.take((DISK_MIB - 1) << 20), &mut file).unwrap();
        maker.import_tiny("web", Some(&disk));
        let world = World {
            url: hub.url(),
            hub: Some(hub),
            dir,
            token,
            maker,
        };
        world.push("web", seed);
        world
    }

    fn push(&self, image: &str, seed: bool) {
        let push = PushRequest {
            image: image.into(),
            to: self.url.clone(),
            name: None,
            token: Some(self.token.clone()),
            ca: None,
            public: false,
            seed,
            seed_until: None,
        };
        finish(self.maker.client().push(&push).unwrap());
    }

    /// Lays the image out anew where it was made, as if the beginning of each MiB of its disk were touched at once, and sends the packs to
    /// the hub in place of those that it has.
    fn lay_out_anew(&self, image: &Hash) {
        let disk = fs::read(self.maker.home().join("disk.raw")).unwrap();
        let touched = disk.chunks(1 << 20).skip(1);
        let touched = touched.map(|mib| Hash::of(&mib[..4096])).collect();
        let repository = Repository::open(&self.maker.home().join("repo")).unwrap();
        let ready = repository.rearrange(image, &[touched], &mut |_, _| true);
        ready.unwrap().publish().unwrap();
        let hub = self.client(Some(&self.token));
        let manifest = repository.manifest_bytes(image).unwrap();
        let upload = hub.open_upload(&manifest).unwrap().id;
        for pack in repository.layout(image).unwrap().packs {
            let bytes = fs::read(repository.pack_path(&pack.id)).unwrap();
            let sent = hub.put_pack(&upload, &pack.id, bytes.into(), &|_| ());
            sent.unwrap();
        }
        hub.commit(&upload, &CommitRequest::default()).unwrap();
    }

    fn without_hub(mut self) -> World {
        self.hub.take().unwrap().shutdown();
        self
    }

    pub fn client(&self, token: Option<&str>) -> HubClient {
        HubClient::new(&self.url, token, None, &Cancel::default()).unwrap()
    }

    pub fn address(&self) -> String {
        format!("{}/web", self.url)
    }

    pub fn request(&self, name: &str, swarm: Option<SwarmUse>) -> RunRequest {
        RunRequest {
            image: self.address(),
            name: Some(name.into()),
            token: Some(self.token.clone()),
            swarm,
            ..Default::default()
        }
    }

    /// Boots the image on a node, until its guest has a shell.
    fn boot(&self, node: &TestNode, name: &str, swarm: Option<SwarmUse>) {
        node.run(&self.request(name, swarm));
        node.wait_console(name, "floe-guest ready");
    }

    /// Asserts that the guest reads what is on the disk, from a MiB on and so many.
    pub fn reads(&self, node: &TestNode, name: &str, from: u64, count: u64) {
        let disk = self.maker.home().join("disk.raw");
        let dd = |path: &str| format!("dd if={path} bs=1048576 skip={from} count={count} | md5sum");
        let on_host = dd(disk.to_str().unwrap());
        let host = Command::new("sh").args(["-c", &on_host]).output().unwrap();
        let sum = String::from_utf8(host.stdout).unwrap();
        let sum = sum.split_whitespace().next().unwrap();
        node.type_and_wait(name, &dd("/dev/vda"), sum);
    }
}

/// Types a command that ends with a sum, and returns that.
fn sum_typed(node: &TestNode, name: &str, command: &str) -> String {
    let is_sum = |word: &&str| word.len() == 32 && word.bytes().all(|c| c.is_ascii_hexdigit());
    let _console = node.type_line(name, command);
    let mut found = None;
    eventually("a sum", || {
        let said = node.console(name);
        found = said.split_whitespace().find(is_sum).map(str::to_owned);
        found.is_some()
    });
    found.unwrap()
}

fn told(args: &[&str]) -> TestNode {
    TestNode::with(Setup {
        args: args.iter().map(|&arg| arg.into()).collect(),
        ..Default::default()
    })
}

/// What somebody says who asks a hub without a node.
pub fn by_hand(open: bool) -> SwarmJoin {
    SwarmJoin {
        key: "0b".repeat(32),
        addresses: vec!["127.0.0.1:9".into()],
        content: None,
        layout: None,
        open,
    }
}

/// The only swarm of a node.
pub fn swarm(node: &TestNode) -> Option<SwarmInfo> {
    let report = node.client().swarm().unwrap();
    assert!(report.swarms.len() <= 1, "{report:?}");
    report.swarms.into_iter().next()
}

pub fn key(node: &TestNode) -> Option<String> {
    node.client().swarm().unwrap().key
}

/// A line of a node's metrics: its number.
fn metric(node: &TestNode, name: &str) -> u64 {
    let mut socket = UnixStream::connect(node.home().join("node.sock")).unwrap();
    let ask = b"GET /metrics HTTP/1.1\r\nhost: floe\r\nconnection: close\r\n\r\n";
    socket.write_all(ask).unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("{name}: {text}"))
        .trim()
        .parse()
        .unwrap()
}

/// The keys of those that a node is connected to.
pub fn connected(node: &TestNode) -> Vec<String> {
    let peers = swarm(node).map(|swarm| swarm.peers).unwrap_or_default();
    let connected = peers.into_iter().filter(|peer| peer.linked);
    connected.map(|peer| peer.key).collect()
}

/// Waits until both are connected: one that was killed stands in the other's list for a while.
pub fn becomes_connected(one: &TestNode, other: &TestNode) {
    let knows = |node: &TestNode, with: &TestNode| {
        let key = key(with);
        key.is_some_and(|key| connected(node).contains(&key))
    };
    eventually("a connection", || knows(one, other) && knows(other, one));
}

fn shelves(home: &Path) -> usize {
    let entries = fs::read_dir(home.join("swarm")).unwrap();
    let dirs = entries.filter(|entry| entry.as_ref().unwrap().path().is_dir());
    dirs.count()
}

/// All files below directories.
fn files_below(dirs: &[PathBuf]) -> Vec<PathBuf> {
    let (mut dirs, mut files) = (dirs.to_vec(), Vec::new());
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => dirs.push(path),
                false => files.push(path),
            }
        }
    }
    files
}

/// What these directories of a node take on the disk, a file of several names once.
fn disk_bytes(node: &TestNode, dirs: &[&str]) -> u64 {
    let dirs: Vec<PathBuf> = dirs.iter().map(|dir| node.home().join(dir)).collect();
    let mut seen = BTreeSet::new();
    let files = files_below(&dirs).into_iter();
    let each = files.map(|file| file.metadata().unwrap());
    let once = each.filter(|file| seen.insert((file.dev(), file.ino())));
    once.map(|file| file.blocks() * 512).sum()
}

/// The names of the packs in a node's repository.
fn packs(node: &TestNode) -> BTreeSet<String> {
    let files = files_below(&[node.home().join("repo/packs")]);
    let name = |file: &PathBuf| file.file_name().unwrap().to_str().unwrap().to_owned();
    files.iter().map(name).collect()
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn an_image_that_came_by_a_swarm_or_is_given_to_one_lies_once_on_the_disk() {
    let world = World::new(true);
    let seeds = || {
        let info = swarm(&world.maker);
        info.is_some_and(|info| info.pieces > 0 && info.pieces_here == info.pieces)
    };
    eventually("all pieces", seeds);
    let image = disk_bytes(&world.maker, &["repo"]);
    let given = disk_bytes(&world.maker, &["repo", "swarm"]);
    assert!(given < image + image / 20, "{image} {given}");

    let node = told(&["--swarm"]);
    world.boot(&node, "one", None);
    becomes_connected(&node, &world.maker);
    let whole = ["independent", "one", "--rate", "100M", "--wait"];
    code(&node, 0, &whole);
    // the packs are those that came, and none was made here
    assert!(packs(&node).is_subset(&packs(&world.maker)));
    eventually("the end of it", || shelves(node.home()) == 0);
    let came = disk_bytes(&node, &["repo", "swarm"]);
    assert!(came < image + image / 20, "{image} {came}");
    let world = world.without_hub();
    world.reads(&node, "one", 0, DISK_MIB);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn what_one_node_has_the_next_gets_from_it_even_if_the_hub_is_gone() {
    let world = World::new(false);
    let first = TestNode::start();
    world.boot(&first, "one", Some(SwarmUse::On));
    world.reads(&first, "one", 0, DISK_MIB);
    // what its guest stood still for came as chunks; once it is quiet, it comes as pieces, for others
    eventually("pieces of all of it", || {
        swarm(&first).is_some_and(|swarm| swarm.hub_bytes > (DISK_MIB - 1) << 20)
    });
    let info = swarm(&first).unwrap();
    assert_eq!((info.received_bytes, info.way), (0, SwarmWay::Hub));
    // what its guest writes is its own: others get what the image has there
    let zeros = "dd if=/dev/zero of=/dev/vda bs=1048576 seek=4 count=4 && sync && ";
    let reads = "dd if=/dev/vda bs=1048576 skip=4 count=4 | md5sum";
    first.type_and_wait("one", &format!("{zeros}{reads}"), ZEROS_4_MIB);

    // a second one takes part by itself, and needs the hub for little but the beginning
    let second = TestNode::start();
    world.boot(&second, "two", None);
    becomes_connected(&second, &first);
    let before = swarm(&second).unwrap();
    world.reads(&second, "two", 0, DISK_MIB / 2);
    let after = swarm(&second).unwrap();
    let came = after.received_bytes;
    eprintln!("before {before:?}\nafter {after:?}");
    assert!(came > (DISK_MIB << 20) / 3, "{after:?}");
    assert!(after.hub_bytes - before.hub_bytes < came / 4, "{after:?}");
    assert_eq!(after.way, SwarmWay::Swarm);
    assert!(after.why.contains("connected to 1 of 1"), "{after:?}");
    assert!(info.why.contains("the hub lists no other node"), "{info:?}");
    assert!(swarm(&first).unwrap().sent_bytes >= came);
    let received = "floe_node_swarm_received_bytes_total{from=\"hosts\"}";
    assert!(metric(&second, received) >= came);
    assert!(metric(&first, "floe_node_swarm_sent_bytes_total") >= came);
    assert_eq!(metric(&first, "floe_node_swarm_hosts"), 1);
    let shown = code(&second, 0, &["swarm", "status"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("others and the hub"), "{shown}");
    let shown = code(&first, 0, &["swarm", "peers"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains("connected") && shown.contains("127.0.0.1:"),
        "{shown}"
    );

    // one that must not neither gives nor takes
    let third = told(&["--swarm", "off"]);
    world.boot(&third, "three", None);
    world.reads(&third, "three", 0, 2);
    assert_eq!(third.client().swarm().unwrap().key, None);
    assert_eq!(swarm(&third), None);
    assert_eq!(swarm(&first).unwrap().peers.len(), 1);
    drop(third);

    // what the others have still comes
    let world = world.without_hub();
    world.reads(&second, "two", DISK_MIB / 2, DISK_MIB / 2);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn nodes_come_and_go_rudely_and_politely_and_a_stranger_is_not_let_in() {
    let world = World::new(false);
    let one = TestNode::with(Setup {
        args: ["--swarm", "on"].map(Into::into).into(),
        disk_bytes: Some(512 << 20),
        ..Default::default()
    });
    let mut two = told(&["--swarm"]);
    world.boot(&one, "one", None);
    world.boot(&two, "two", None);
    becomes_connected(&one, &two);
    world.reads(&one, "one", 0, 4);
    world.reads(&two, "two", 4, 4);
    let before = swarm(&two).unwrap();

    // killed: the other's guest goes on
    let who = key(&two);
    two.end(Signal::KILL);
    world.reads(&one, "one", 4, 4);
    two.start_again();
    // it is who it was, its machine goes on, and it takes part with what it had
    becomes_connected(&one, &two);
    assert_eq!(key(&two), who);
    let again = swarm(&two).unwrap();
    assert!(again.pieces_here > 0, "{before:?} {again:?}");
    world.reads(&two, "two", 0, 4);

    // who may not read the image is told of no swarm
    let bob = floe_hub::create_token(world.dir.path(), "bob").unwrap();
    let me = by_hand(false);
    let image: Hash = again.image.parse().unwrap();
    let tokens = [Some(&bob), None, Some(&world.token)];
    let asked = tokens.map(|token| {
        let hub = world.client(token.map(String::as_str));
        hub.join_swarm(&image, &me)
    });
    let [strangers, nobodys, anns] = asked;
    for refused in [strangers, nobodys] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("there is no image"), "{error}");
    }
    let members = anns.unwrap().members;
    assert_eq!(members.len(), 3, "{members:?}");

    // left in order, it is forgotten at once, and what it kept goes
    two.client().remove_machine("two", true).unwrap();
    eventually("the end of it", || {
        two.client().swarm().unwrap().swarms.is_empty() && shelves(two.home()) == 0
    });
    eventually("the other hears of it", || {
        let peers = swarm(&one).unwrap().peers;
        peers.iter().all(|peer| Some(&peer.key) != who.as_ref())
    });

    // a full disk ends it for a while, and the guest goes on by the hub
    let filler = one.fill_disk(32 << 20);
    eventually("the end of it", || {
        let swarm = swarm(&one).unwrap();
        swarm.trouble.contains("disk is full") && swarm.pieces == 0 && shelves(one.home()) == 0
    });
    world.reads(&one, "one", 8, 2);
    let shown = code(&one, 0, &["swarm", "status"]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("disk is full"));
    fs::remove_file(filler).unwrap();
    eventually("pieces come again", || {
        let swarm = swarm(&one).unwrap();
        swarm.trouble.is_empty() && swarm.pieces > 0
    });
    world.reads(&one, "one", 10, 2);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn who_pushes_and_seeds_gives_the_image_also_after_a_restart() {
    let mut world = World::new(true);
    let seeds = || {
        let info = swarm(&world.maker);
        info.is_some_and(|info| info.seeding && info.pieces > 0 && info.pieces_here == info.pieces)
    };
    eventually("all pieces", seeds);
    world.maker.end(Signal::TERM);
    world.maker.start_again();
    let seeds = || {
        let info = swarm(&world.maker);
        info.is_some_and(|info| info.seeding && info.pieces > 0 && info.pieces_here == info.pieces)
    };
    eventually("all pieces again", seeds);
    assert_eq!(swarm(&world.maker).unwrap().hub_bytes, 0, "it had them");
    let node = told(&["--swarm"]);
    world.boot(&node, "one", None);
    becomes_connected(&node, &world.maker);
    let before = swarm(&node).unwrap();
    world.reads(&node, "one", 0, DISK_MIB);
    let after = swarm(&node).unwrap();
    let came = after.received_bytes;
    assert!(came > (DISK_MIB << 20) / 2, "{before:?} {after:?}");
    assert!(
        after.hub_bytes - before.hub_bytes < came / 4,
        "{before:?} {after:?}"
    );

    // what the guest touched makes a model, and the pieces of a machine that runs already are predicted by it
    node.run(&world.request("stays", None));
    assert!(!node.log().contains("predicted"));
    node.client().remove_machine("one", true).unwrap();
    let model = || world.dir.path().join(format!("traces/{}/ann", after.image));
    eventually("a model", || {
        let files = fs::read_dir(model()).into_iter().flatten().flatten();
        let mut paths = files.map(|file| file.path());
        paths.any(|path| path.extension().is_some_and(|e| e == "model"))
    });
    eventually("a prediction", || node.log().contains("predicted"));

    code(&world.maker, 0, &["swarm", "leave", "web"]);
    eventually("the end of it", || shelves(world.maker.home()) == 0);
    code(&world.maker, 3, &["swarm", "leave", "web"]);
    // only a hub knows who else wants an image
    let to = world.maker.home().join("static");
    code(
        &world.maker,
        2,
        &["push", "web", to.to_str().unwrap(), "--seed"],
    );
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn an_image_is_given_until_so_many_others_have_had_all_of_it_also_over_a_restart() {
    let mut world = World::new(false);
    let address = world.address();
    let token = world.token.clone();
    let push = ["push", "web", &world.url, "--seed=2", "--token", &token];
    code(&world.maker, 0, &push);
    let seed = ["swarm", "seed", &address, "--token", &token];
    code(&world.maker, 2, &[&seed[..], &["--until", "5000"]].concat());
    let had = |node: &TestNode| swarm(node).map(|info| (info.seed_until, info.complete));
    let one = TestNode::start();
    code(&one, 0, &seed);
    eventually("one that has all", || {
        had(&world.maker) == Some((Some(2), 1))
    });
    let shown = code(&world.maker, 0, &["swarm", "status"]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("1 of 2"));
    let (list, first) = (world.maker.home().join("swarm/seeds.json"), key(&one));
    eventually("it is kept", || {
        let list = fs::read_to_string(&list).unwrap();
        list.contains(first.as_ref().unwrap())
    });

    // who has had all counts also once it is gone
    code(&one, 0, &["swarm", "leave", &address]);
    world.maker.end(Signal::TERM);
    world.maker.start_again();
    eventually("it is given again", || {
        had(&world.maker) == Some((Some(2), 1))
    });
    let two = TestNode::start();
    code(&two, 0, &seed);
    eventually("the end of it", || {
        swarm(&world.maker).is_none() && shelves(world.maker.home()) == 0
    });
    code(&world.maker, 3, &["swarm", "leave", "web"]);
    let info = swarm(&two).unwrap();
    assert!(info.seeding && info.pieces_here == info.pieces && info.seed_until.is_none());
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_captured_machine_that_goes_on_elsewhere_takes_its_memory_from_others_too() {
    let world = World::new(false);
    world.maker.run_named("web", "made");
    world.maker.wait_console("made", "floe-guest ready");
    let fill = "dd if=/dev/urandom of=/kept bs=1048576 count=8; md5sum < /kept";
    let sum = sum_typed(&world.maker, "made", fill);
    let capture = CaptureRequest {
        name: Some("live".into()),
        rehearse_s: Some(0),
        ..Default::default()
    };
    finish(world.maker.client().capture("made", &capture).unwrap());
    world.push("live", false);
    let live = |name: &str| RunRequest {
        image: format!("{}/live", world.url),
        ..world.request(name, None)
    };
    let nodes = [(); 3].map(|()| told(&["--swarm"]));
    let mut from_hub = 0;
    for (number, node) in nodes.iter().enumerate() {
        node.run(&live("on"));
        if number > 0 {
            becomes_connected(node, &nodes[0]);
        }
        // until it knows the others it has the hub alone
        from_hub = swarm(node).map_or(0, |swarm| swarm.hub_bytes);
        node.type_and_wait("on", "md5sum < /kept", &sum);
    }
    let last = swarm(&nodes[2]).unwrap();
    from_hub = last.hub_bytes - from_hub;
    eprintln!("{from_hub} more from the hub, of {last:?}");
    assert!(
        last.received_bytes > 4 << 20 && last.received_bytes > from_hub,
        "{from_hub} {last:?}"
    );
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn an_image_that_is_laid_out_anew_while_two_nodes_run_it_stays_one_swarm() {
    let world = World::new(false);
    let nodes = [(); 2].map(|()| told(&["--swarm"]));
    for (node, name) in nodes.iter().zip(["one", "two"]) {
        world.boot(node, name, None);
        world.reads(node, name, 1, 6);
    }
    let [one, two] = &nodes;
    becomes_connected(one, two);
    let here = || nodes.each_ref().map(|node| swarm(node).unwrap());
    eventually("pieces", || here().iter().all(|info| info.pieces_here > 0));
    let before = here();
    let image: Hash = before[0].image.parse().unwrap();
    world.lay_out_anew(&image);
    // both learn of the new packs, keep what they have of the old ones, and go on by these
    eventually("the packs of both layouts", || {
        let now = here();
        let mut pairs = now.iter().zip(&before);
        pairs.all(|(now, before)| now.pieces > before.pieces)
    });
    becomes_connected(one, two);
    for (now, before) in here().iter().zip(&before) {
        assert!(now.pieces_here >= before.pieces_here, "{before:?} {now:?}");
    }
    // who comes now finds them
    let three = told(&["--swarm"]);
    world.boot(&three, "three", None);
    for node in &nodes {
        becomes_connected(&three, node);
    }
    world.reads(&three, "three", 1, 6);
    world.reads(one, "one", 8, 4);
    world.reads(two, "two", 8, 4);
    let both = swarm(&three).unwrap();
    for info in here().iter().chain([&both]) {
        assert_eq!((info.pieces, &*info.trouble), (both.pieces, ""));
        assert!(
            info.peers.iter().all(|peer| peer.dropped.is_none()),
            "{info:?}"
        );
    }
    // the old layout goes with those who use it
    one.client().remove_machine("one", true).unwrap();
    two.client().remove_machine("two", true).unwrap();
    eventually("the present layout alone", || {
        swarm(&three).is_some_and(|info| (1..both.pieces).contains(&info.pieces))
    });
    world.reads(&three, "three", 8, 4);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn who_may_read_no_longer_is_shown_out_and_who_comes_later_finds_the_others() {
    let world = World::new(false);
    let anns = told(&["--swarm"]);
    world.boot(&anns, "ann", None);
    eventually("a swarm", || swarm(&anns).is_some());
    let image: Hash = swarm(&anns).unwrap().image.parse().unwrap();
    let hub = world.client(Some(&world.token));
    hub.set_visibility(&image, true).unwrap();
    let bobs = told(&["--swarm"]);
    bobs.run(&RunRequest {
        image: format!("{}/ann/web", world.url),
        token: Some(floe_hub::create_token(world.dir.path(), "bob").unwrap()),
        ..world.request("bob", None)
    });
    becomes_connected(&anns, &bobs);

    hub.set_visibility(&image, false).unwrap();
    eventually("the end of the connection", || {
        connected(&anns).is_empty() && connected(&bobs).is_empty()
    });
    eventually("it is told why", || {
        let told = swarm(&bobs).map(|swarm| swarm.trouble);
        told.is_some_and(|why| why.contains("there is no image"))
    });
    // what members show each other is another thing by now
    let late = told(&["--swarm"]);
    world.boot(&late, "late", None);
    becomes_connected(&anns, &late);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn where_no_other_node_answers_the_hub_is_read_and_that_is_told() {
    let world = World::new(false);
    let node = told(&["--swarm"]);
    world.boot(&node, "one", None);
    eventually("a swarm", || swarm(&node).is_some());
    let image: Hash = swarm(&node).unwrap().image.parse().unwrap();
    // a member whose host's packets are dropped on the way
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let other = SwarmJoin {
        addresses: vec![silent.local_addr().unwrap().to_string()],
        ..by_hand(false)
    };
    let hub = world.client(Some(&world.token));
    let mut looks = 0;
    eventually("it is told", || {
        if looks % 200 == 0 {
            // or it is off the list
            hub.join_swarm(&image, &other).unwrap();
        }
        looks += 1;
        swarm(&node).is_some_and(|swarm| swarm.trouble.contains("answers over UDP"))
    });
    assert_eq!(swarm(&node).unwrap().way, SwarmWay::Hub);
    let shown = code(&node, 0, &["swarm", "status"]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("answers over UDP"));
    world.reads(&node, "one", 0, 4);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_node_that_was_not_told_to_meets_its_own_users_nodes_only() {
    let world = World::new(false);
    let anns = TestNode::start();
    world.boot(&anns, "ann", None);
    eventually("a swarm", || swarm(&anns).is_some());
    let image: Hash = swarm(&anns).unwrap().image.parse().unwrap();
    world
        .client(Some(&world.token))
        .set_visibility(&image, true)
        .unwrap();
    let ran = |node: &TestNode, name: &str, token: Option<&String>| {
        node.run(&RunRequest {
            image: format!("{}/ann/web", world.url),
            token: token.cloned(),
            ..world.request(name, None)
        });
    };
    let bob = floe_hub::create_token(world.dir.path(), "bob").unwrap();
    let (bobs, nobodys, other) = (TestNode::start(), TestNode::start(), TestNode::start());
    ran(&bobs, "bob", Some(&bob));
    ran(&nobodys, "nobody", None);
    // once those two have met, the hub has told all of them what it tells
    ran(&other, "other", Some(&world.token));
    becomes_connected(&anns, &other);
    eventually("an answer to bob", || {
        key(&bobs).is_some() && swarm(&bobs).is_some()
    });
    assert_eq!(swarm(&bobs).unwrap().peers, []);
    assert_eq!(swarm(&anns).unwrap().peers.len(), 1);
    // who shows no token is not known to be anybody's, and does not even ask
    assert_eq!((key(&nobodys), swarm(&nobodys)), (None, None));
    // bob says so, and ann does not
    let asks = told(&["--swarm"]);
    ran(&asks, "asks", Some(&bob));
    becomes_connected(&asks, &bobs);
    assert_eq!(swarm(&anns).unwrap().peers.len(), 1);
    assert_eq!(swarm(&asks).unwrap().peers.len(), 1);
}
