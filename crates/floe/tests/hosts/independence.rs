//! Machines that come to need nothing from elsewhere, with real guests and a real hub: `floe independent`.

use crate::support::command::{ends, floe, said};
use crate::support::node::{PATIENCE, Setup, Signal, TestNode, cluster, eventually, finish};
use floe_api::*;
use floe_hub::{HubHandle, HubOptions};
use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Instant,
};

/// Random bytes that the captured guest has in its memory, and as many on its disk, in MiB.
const RANDOM_MIB: u64 = 20;

/// Fills both.
const FILL: &str = "dd if=/dev/urandom of=/kept bs=1M count=20 && dd if=/dev/urandom of=/dev/vda bs=1M count=20 && sync";

/// Sums up what is in the guest's memory and on all of its disk, which is read again.
const SUMS: &str =
    "sync; echo 3 > /proc/sys/vm/drop_caches; md5sum < /kept; md5sum < /dev/vda; wc -c < /dev/vda";

/// Runs floe, which must end with this exit code, and returns what it said.
fn floe_ends(node: &TestNode, args: &[&str], code: i32) -> String {
    let done = ends(floe(node, args));
    let said = said(&done);
    let log = node.log();
    assert_eq!(done.status.code(), Some(code), "{args:?}: {said}\n{log}");
    said
}

/// What a shell's line in a guest writes; it is tried until the guest's agent answers.
fn sh(node: &TestNode, name: &str, line: &str) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let done = ends(floe(node, &["exec", name, "--", "sh", "-c", line]));
        if done.status.success() {
            return String::from_utf8(done.stdout).unwrap().trim().to_owned();
        }
        let said = said(&done);
        assert!(Instant::now() < until, "{line}: {said}\n{}", node.log());
    }
}

/// How far a machine is.
fn stands(node: &TestNode, name: &str) -> Option<Independence> {
    node.client().machine(name).unwrap().independence
}

fn state(node: &TestNode, name: &str) -> Option<IndependenceState> {
    stands(node, name).map(|now| now.state)
}

fn becomes_whole(node: &TestNode, name: &str) {
    eventually("independence", || {
        state(node, name) == Some(IndependenceState::Whole)
    });
    let info = node.client().machine(name).unwrap();
    assert_eq!(info.independence.unwrap().left_bytes, 0);
    let own = node.home().join("repo").display().to_string();
    assert_eq!(info.sources, [own], "it names no other place");
}

/// A way to the hub that can be cut.
struct Way {
    url: String,
    open: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Way {
    fn to(hub: SocketAddr) -> Way {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let way = Way {
            url: format!("http://{}", listener.local_addr().unwrap()),
            open: Arc::new(AtomicBool::new(true)),
            streams: Arc::default(),
        };
        let (open, streams) = (way.open.clone(), way.streams.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(hub) else {
                    continue; // the hub has ended
                };
                let ends = [&near, &far].map(|end| end.try_clone().unwrap());
                streams.lock().unwrap().extend(ends);
                // looked at after they are in the list: a cut that came between ends them
                if !open.load(SeqCst) {
                    let _ = (
                        near.shutdown(std::net::Shutdown::Both),
                        far.shutdown(std::net::Shutdown::Both),
                    );
                    continue;
                }
                let (near2, far2) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                std::thread::spawn(move || copy(near2, far2));
                std::thread::spawn(move || copy(far, near));
            }
        });
        way
    }

    fn cut(&self) {
        self.open.store(false, SeqCst);
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both); // it may have ended
        }
    }

    fn mend(&self) {
        self.open.store(true, SeqCst);
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read) = from.read(&mut buffer) {
        if read == 0 || to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// Boots a guest whose memory and disk hold random bytes.
fn boot_with_random_bytes(node: &TestNode, name: &str) {
    let disk = node.blank_disk();
    node.import_tiny("tiny", Some(&disk));
    node.run_named("tiny", name);
    node.wait_console(name, "floe-guest ready");
    sh(node, name, FILL);
}

/// A hub that has `live`, a captured guest with random bytes, whose sums are returned.
fn world(dir: &std::path::Path) -> (HubHandle, String) {
    let token = floe_hub::create_token(dir, "ann").unwrap();
    let hub = floe_hub::serve(HubOptions::new(dir, "127.0.0.1:0".parse().unwrap())).unwrap();
    let here = TestNode::start();
    boot_with_random_bytes(&here, "one");
    let sums = sh(&here, "one", SUMS);
    let capture = CaptureRequest {
        name: Some("live".into()),
        rehearse_s: Some(0),
        ..Default::default()
    };
    finish(here.client().capture("one", &capture).unwrap());
    let push = PushRequest {
        image: "live".into(),
        to: hub.url(),
        name: None,
        token: Some(token),
        ca: None,
        public: true,
        seed: false,
        seed_until: None,
    };
    finish(here.client().push(&push).unwrap());
    (hub, sums)
}

/// Bytes of packs that an unfinished pull has noted.
fn noted_bytes(node: &TestNode) -> u64 {
    let files = fs::read_dir(node.home().join("repo/tmp"))
        .into_iter()
        .flatten();
    let journals = files.flatten().map(|file| file.path()).filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("pull-") && path.extension().is_none()
    });
    let layouts = journals.filter_map(|path| fs::read(path).ok());
    let layouts = layouts.filter_map(|bytes| floe_image::Layout::decode(&bytes).ok());
    layouts
        .flat_map(|layout| layout.packs)
        .map(|pack| pack.file_bytes)
        .sum()
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_machine_of_a_hub_becomes_independent_through_cuts_kills_and_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, sums) = world(dir.path());
    let way = Way::to(hub.addr());
    // the cache holds next to nothing: what is not in the repository comes again
    let mut node = TestNode::with(Setup {
        args: ["--cache".into(), "4M".into()].into(),
        disk_bytes: Some(600 << 20),
        ..Default::default()
    });
    let image = format!("{}/live", way.url);
    let run = [
        "run",
        &image,
        "--name",
        "web",
        "--no-trace",
        "--independent",
        "--rate",
        "64K",
    ];
    floe_ends(&node, &run, 0);
    eventually("the first progress", || {
        stands(&node, "web").is_some_and(|now| now.total_bytes > 0)
    });
    let now = stands(&node, "web").unwrap();
    assert!(now.total_bytes > (2 * RANDOM_MIB) << 20, "{now:?}");
    assert!(
        now.left_bytes > 0 && now.rate_bytes_s == 64 << 10,
        "{now:?}"
    );
    let shown = floe_ends(&node, &["ps"], 0);
    assert!(
        shown.contains("independent ") && shown.contains(" %"),
        "{shown}"
    );

    // Its guest writes meanwhile, over what is there and beside it.
    sh(
        &node,
        "web",
        "dd if=/dev/urandom of=/dev/vda bs=1M count=4 seek=3 conv=notrunc; dd if=/dev/urandom of=/dev/vda bs=1M count=2 seek=40; dd if=/dev/urandom of=/kept bs=1M count=1 conv=notrunc",
    );
    let sums = match sh(&node, "web", SUMS) {
        same if same == sums => panic!("the guest wrote nothing"),
        other => other,
    };

    // Half-way its node is killed: the next one goes on where that was.
    floe_ends(&node, &["independent", "web", "--rate", "2M"], 0);
    let half = 28 << 20;
    eventually("four packs", || noted_bytes(&node) >= half);
    // from now on as much as that would take longer than this test waits
    floe_ends(&node, &["independent", "web", "--rate", "64K"], 0);
    node.end(Signal::KILL);
    node.start_again();
    eventually("it goes on where it was", || {
        stands(&node, "web").is_some_and(|now| now.done_bytes >= half)
    });

    // Stored memory of another machine goes meanwhile, once that is parked anew.
    node.import_tiny("tiny", None);
    node.run_named("tiny", "other");
    node.wait_console("other", "floe-guest ready");
    let before = node.images_stored();
    for verb in ["park", "wake", "park"] {
        floe_ends(&node, &[verb, "other"], 0);
    }
    eventually("one memory is stored", || {
        node.images_stored() == before + 1
    });
    floe_ends(&node, &["rm", "other"], 0);
    eventually("none is stored", || node.images_stored() == before);
    assert_eq!(state(&node, "web"), Some(IndependenceState::Copying));

    // The way to the hub is cut: that is told, and it goes on by itself.
    way.cut();
    eventually("the source is missed", || {
        state(&node, "web") == Some(IndependenceState::SourceAway)
    });
    let shown = floe_ends(&node, &["ps", "web"], 0);
    assert!(shown.contains("waits: "), "{shown}");
    // A disk without room for the rest is known before anything more is taken.
    let filler = node.fill_disk(8 << 20);
    way.mend();
    eventually("the disk is found too small", || {
        state(&node, "web") == Some(IndependenceState::NoRoom)
    });
    let shown = floe_ends(&node, &["ps", "web"], 0);
    assert!(shown.contains("free where images are kept"), "{shown}");
    fs::remove_file(filler).unwrap();

    // It is given up, and asked for again.
    let said = floe_ends(&node, &["independent", "web", "--stop"], 0);
    assert!(said.contains("goes on reading from elsewhere"), "{said}");
    assert_eq!(stands(&node, "web"), None);
    let said = floe_ends(
        &node,
        &["independent", "web", "--rate", "100M", "--wait"],
        0,
    );
    assert!(said.contains("web is independent"), "{said}");
    becomes_whole(&node, "web");
    // a node that is killed may not have written yet what it told
    eventually("both are told", || {
        let log = node.log();
        let (told, waits) = ("machine.independent", "machine.independent-waits");
        log.contains(waits) && log.matches(told).count() > log.matches(waits).count()
    });

    // The hub goes, and the node with what it has in memory: every byte of disk and memory is here.
    way.cut();
    drop(hub);
    node.end(Signal::KILL);
    node.start_again();
    assert_eq!(sh(&node, "web", SUMS), sums);
    let info = node.client().machine("web").unwrap();
    let ram = node.home().join("mnt/images").join(&info.image).join("ram");
    let bytes = fs::read(&ram).unwrap_or_else(|error| panic!("{}: {error}", ram.display()));
    assert_eq!(bytes.len(), 256 << 20);

    // The image stays while its machine does; there is nothing to stop any more, and what makes no sense is refused.
    let said = floe_ends(&node, &["image", "rm", "--force", &info.image], 1);
    assert!(said.contains("machine web"), "{said}");
    let said = floe_ends(&node, &["independent", "web", "--stop"], 5);
    assert!(said.contains("independent already"), "{said}");
    let said = floe_ends(&node, &["independent", "web", "--rate", "10"], 2);
    assert!(said.contains("64.0 KiB"), "{said}");
    floe_ends(&node, &["independent", "nobody"], 3);
    let said = floe_ends(&node, &["independent", "web", "--wait", "--json"], 0);
    assert!(said.contains("\"state\":\"whole\""), "{said}");

    // From its disks it starts without the hub, too, and another machine of its image runs.
    floe_ends(&node, &["stop", "--now", "web"], 0);
    floe_ends(&node, &["start", "web"], 0);
    let disk = "md5sum < /dev/vda";
    let sum = sh(&node, "web", disk);
    assert!(sums.contains(&sum), "{sum} is not in {sums}");
}

/// How many bytes lie over a machine's image.
fn over_its_image(node: &TestNode, name: &str) -> u64 {
    node.client().machine(name).unwrap().stats.overlay_bytes
}

/// The most layers that any disk of the node's machines has.
fn layers(node: &TestNode) -> usize {
    fn most(dir: &std::path::Path) -> usize {
        let (mut here, mut below) = (0, 0);
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                below = below.max(most(&entry.path()));
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            here += usize::from(name.starts_with("layer-") && name.ends_with(".map"));
        }
        here.max(below)
    }
    let places = ["machines", "standby"].map(|place| most(&node.home().join(place)));
    places.into_iter().max().unwrap_or_default()
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn what_an_independent_machine_wrote_is_merged_through_kills_and_a_clone_of_before_sees_no_change()
{
    let mut node = TestNode::start();
    boot_with_random_bytes(&node, "web");
    assert!(over_its_image(&node, "web") >= RANDOM_MIB << 20);
    assert_eq!(layers(&node), 1);
    // all of its image is here, and the merge would take longer than this test waits
    floe_ends(&node, &["independent", "web", "--rate", "64K"], 0);
    becomes_whole(&node, "web");
    eventually("its disk is frozen", || layers(&node) == 2);
    // the guest writes meanwhile, over what is being merged and beside it
    let write = "dd if=/dev/urandom of=/dev/vda bs=1M count=3 seek=2 conv=notrunc; \
        dd if=/dev/urandom of=/dev/vda bs=512 count=5 seek=50001 conv=notrunc";
    sh(&node, "web", write);
    let sums = sh(&node, "web", SUMS);
    node.end(Signal::KILL);
    node.start_again();
    assert_eq!(sh(&node, "web", SUMS), sums);
    eventually("the next node begins anew", || layers(&node) == 3);

    // A clone stands on the layers that are merged next.
    let request = ForkRequest {
        clones: 1,
        ..Default::default()
    };
    let fork = finish(node.client().fork("web", &request).unwrap());
    let clone = fork.fork.unwrap().clones[0].name.clone();
    sh(&node, "web", write);
    let later = sh(&node, "web", SUMS);
    assert_ne!(later, sums);
    let merge = ["independent", "web", "--rate", "100M", "--wait"];
    floe_ends(&node, &merge, 0);
    assert_eq!(over_its_image(&node, "web"), 0, "{}", node.log());
    assert_eq!(sh(&node, "web", SUMS), later);
    assert_eq!(sh(&node, &clone, SUMS), sums);
    node.end(Signal::KILL);
    node.start_again();
    assert_eq!(sh(&node, "web", SUMS), later);
    assert_eq!(sh(&node, &clone, SUMS), sums);

    // The next merge takes the place of the first: no image is left behind.
    node.client().remove_machine(&clone, true).unwrap();
    eventually("the clone's image goes", || node.images_stored() == 2);
    sh(&node, "web", write);
    let last = sh(&node, "web", SUMS);
    assert!(over_its_image(&node, "web") > 0);
    floe_ends(&node, &merge, 0);
    assert_eq!(over_its_image(&node, "web"), 0, "{}", node.log());
    eventually("the first merge's image goes", || node.images_stored() == 2);
    assert_eq!(sh(&node, "web", SUMS), last);
    floe_ends(&node, &["stop", "--now", "web"], 0);
    floe_ends(&node, &["start", "web"], 0);
    let sum = sh(&node, "web", "md5sum < /dev/vda");
    assert!(last.contains(&sum), "{sum} is not in {last}");
    node.client().remove_machine("web", true).unwrap();
    eventually("its own image goes with it", || node.images_stored() == 1);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_clone_becomes_independent_of_its_parent_and_of_its_parents_node() {
    let mut here = TestNode::on_the_network();
    let there = TestNode::on_the_network();
    cluster(&[&here, &there]);
    boot_with_random_bytes(&here, "web");
    let sums = sh(&here, "web", SUMS);
    let request = ForkRequest {
        clones: 1,
        hosts: vec![there.url()],
        ..Default::default()
    };
    let fork = finish(here.client().fork("web", &request).unwrap());
    let name = fork.fork.unwrap().clones[0].name.clone();
    assert!(
        !there
            .client()
            .machine(&name)
            .unwrap()
            .cloned
            .unwrap()
            .settled
    );
    floe_ends(&there, &["independent", &name, "--wait"], 0);
    becomes_whole(&there, &name);
    assert!(
        there
            .client()
            .machine(&name)
            .unwrap()
            .cloned
            .unwrap()
            .settled
    );
    here.client().remove_machine("web", true).unwrap();
    here.end(Signal::KILL);
    assert_eq!(sh(&there, &name, SUMS), sums);

    // On one host: the clone of a fork that is in memory only, and then of nothing.
    let request = ForkRequest {
        clones: 1,
        ..Default::default()
    };
    let fork = finish(there.client().fork(&name, &request).unwrap());
    let second = fork.fork.unwrap().clones[0].name.clone();
    floe_ends(&there, &["independent", &second, "--wait"], 0);
    there.client().remove_machine(&name, true).unwrap();
    becomes_whole(&there, &second);
    assert_eq!(sh(&there, &second, SUMS), sums);

    // And a machine of the pool, whose substrate goes.
    floe_ends(&there, &["dock", &second, "--as", "kept"], 0);
    floe_ends(
        &there,
        &["activate", "kept", "--name", "third", "--independent"],
        0,
    );
    becomes_whole(&there, "third");
    floe_ends(&there, &["pool", "rm", "kept"], 0);
    there.client().remove_machine(&second, true).unwrap();
    assert_eq!(sh(&there, "third", SUMS), sums);
}
