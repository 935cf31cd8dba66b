//! The two hosts, their link, and the machine that is lent: a device and a strong host, each with a node and a supervisor of its own.
use super::blows::{Blow, Hit};
use super::heard::{Heard, Said};
use crate::hammer::world::{IMAGE, import_guest, kill_supervisor_of, make_initrd};
use anyhow::{Context as _, ensure};
use floe_api::client::{Client, ClientError};
use floe_api::{
    ErrorCode, MachineInfo, MachineStatus, MoveRequest, MoveStanding, RecallRequest, RunRequest,
    SyncRequest,
};
use floe_testbed::cluster::{host_name, join};
use floe_testbed::guest::Guest;
use floe_testbed::link::Segment;
use floe_testbed::live::Node;
use parking_lot::Mutex;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The machine.
const MACHINE: &str = "lent";
/// Number of the device among the hosts; the strong host is the other one.
const DEVICE: usize = 0;
const CLOUD: usize = 1;
/// Bits a second of each host's link: a way takes long enough to be hit in every part of it.
const LINK_BITS_S: u64 = 100_000_000;
/// Longest time until a node has forgotten the way before.
const CALM_MAX: Duration = Duration::from_secs(120);
/// Longest time for a machine to settle on one host, or to make its steps there, under emulation on a busy host.
const STEP_MAX: Duration = Duration::from_secs(300);
/// How often consoles are read, and awaited conditions are checked.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often a node is asked where its machine's console is, in rounds of reading it.
const ASK_EVERY: u32 = 10;

/// What the threads share that read the consoles.
struct Shared {
    start: Instant,
    heard: Mutex<Heard>,
    over: AtomicBool,
}

/// Both hosts.
pub struct Site {
    shared: Arc<Shared>,
    readers: Vec<JoinHandle<()>>,
    nodes: Vec<Node>,
    /// Dropped last, because the nodes use it.
    segment: Segment,
}

impl Site {
    /// Starts both hosts, puts them into a cluster, and boots the machine on the device.
    pub fn start(scratch: &Path) -> anyhow::Result<Site> {
        fs::create_dir_all(scratch)?;
        let guest = Guest::tiny()?;
        let initrd = make_initrd(&guest, scratch)?;
        let segment = Segment::new(2).context("hosts of our own need root")?;
        let mut nodes = Vec::new();
        for number in [DEVICE, CLOUD] {
            segment.limit(number, LINK_BITS_S)?;
            let home = scratch.join(host_name(number));
            let node = Node::start(Some(segment.host(number)), &home, false)?;
            import_guest(&node.client, &guest, &initrd)?;
            nodes.push(node);
        }
        join(&segment, &nodes)?;
        let run = RunRequest {
            image: IMAGE.into(),
            name: Some(MACHINE.into()),
            cold: true,
            ..RunRequest::default()
        };
        nodes[DEVICE].run(&run, |_| {})?;
        let shared = Arc::new(Shared {
            start: Instant::now(),
            heard: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let reader = |number: usize| {
            let (client, shared) = (nodes[number].client.clone(), shared.clone());
            std::thread::spawn(move || listen(&client, number, &shared))
        };
        let readers = [DEVICE, CLOUD].map(reader).into();
        Ok(Site {
            shared,
            readers,
            nodes,
            segment,
        })
    }

    /// Does something with what was heard.
    pub fn heard<T>(&self, act: impl FnOnce(&mut Heard) -> T) -> T {
        act(&mut self.shared.heard.lock())
    }

    /// Has the strong host know what the machine is, or the device if the machine is lent.
    pub fn sync(&self) -> anyhow::Result<()> {
        let request = SyncRequest {
            to: Some(host_name(CLOUD)),
            ..SyncRequest::default()
        };
        let client = &self.nodes[DEVICE].client;
        let synced = settled(|| client.sync(MACHINE, &request)?.finish(|_| {}).map(drop));
        Ok(synced?)
    }

    /// Has the machine go to the other host, on a thread of its own.
    pub fn sets_out(&self, from: usize) -> JoinHandle<Result<(), ClientError>> {
        let client = self.nodes[DEVICE].client.clone();
        std::thread::spawn(move || match from {
            DEVICE => settled(|| {
                let moved = client.move_machine(MACHINE, &lends())?;
                moved.finish(|_| {}).map(drop)
            }),
            _ => settled(|| {
                let request = RecallRequest {
                    from: Some(host_name(CLOUD)),
                    ..RecallRequest::default()
                };
                client.recall(MACHINE, &request)?.finish(|_| {}).map(drop)
            }),
        })
    }

    /// Hits, and starts and mends all of it once it was away for long enough. Returns what of it was there to be hit.
    pub fn hit(&mut self, blow: &Blow) -> anyhow::Result<Vec<Hit>> {
        let mut hits = Vec::new();
        for hit in &blow.hits {
            let there = match hit {
                Hit::Device | Hit::Cloud => {
                    self.nodes[hit.host().unwrap_or(DEVICE)].kill()?;
                    true
                }
                Hit::DeviceSupervisor | Hit::CloudSupervisor => {
                    kill_supervisor_of(&self.nodes[hit.host().unwrap_or(DEVICE)].home)
                }
                Hit::Link => {
                    self.segment.cut(CLOUD)?;
                    true
                }
            };
            if there {
                hits.push(*hit);
            }
        }
        std::thread::sleep(blow.hold);
        if blow.hits.contains(&Hit::Link) {
            self.segment.mend(CLOUD)?;
        }
        for (number, node) in [(DEVICE, Hit::Device), (CLOUD, Hit::Cloud)] {
            if blow.hits.contains(&node) {
                let namespace = self.segment.host(number);
                self.nodes[number]
                    .start_again_in(Some(namespace), &[])
                    .with_context(|| format!("{node} was killed and does not start"))?;
            }
        }
        Ok(hits)
    }

    /// Waits until the machine runs on one host, and the other one has nothing of it, or knows that it has lent it. Returns the one.
    fn settles(&self) -> anyhow::Result<usize> {
        let until = Instant::now() + STEP_MAX;
        loop {
            let both = self.both();
            match runs_on(&both) {
                Some(host) => return Ok(host),
                None => ensure!(
                    Instant::now() < until,
                    "it does not settle on one host within {STEP_MAX:?}: {}",
                    both.map(|seen| stands(&seen)).join("; ")
                ),
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// What a host's node says of the machine: nothing if it has none, an error if the node does not answer.
    fn machine(&self, number: usize) -> anyhow::Result<Option<MachineInfo>> {
        let mut all = self.nodes[number].client.machines()?.machines.into_iter();
        Ok(all.find(|machine| machine.name == MACHINE))
    }

    /// Waits until the machine has settled and made so many steps where it is. Returns that host. A recall that was interrupted may go on once
    /// both nodes are there again: it is followed then.
    pub fn gets_on(&self, steps: u64) -> anyhow::Result<usize> {
        let until = Instant::now() + STEP_MAX;
        let mut host = self.settles()?;
        let mut wanted = self.wants(host, steps);
        while self.heard(|heard| heard.steps_on(host)) < wanted {
            ensure!(
                Instant::now() < until,
                "its guest does not make {steps} steps on {} within {STEP_MAX:?}",
                host_name(host)
            );
            std::thread::sleep(LOOK_EVERY);
            if self.is_elsewhere(host) {
                host = self.settles()?;
                wanted = self.wants(host, steps);
            }
        }
        Ok(host)
    }

    /// Returns how many steps will have been heard of a host once the machine, which has settled there, has made so many more.
    fn wants(&self, host: usize, steps: u64) -> u64 {
        self.heard(|heard| {
            heard.runs_on(host);
            heard.steps_on(host) + steps
        })
    }

    /// Whether the machine has settled on the other host.
    fn is_elsewhere(&self, host: usize) -> bool {
        runs_on(&self.both()).is_some_and(|other| other != host)
    }

    fn both(&self) -> [anyhow::Result<Option<MachineInfo>>; 2] {
        [DEVICE, CLOUD].map(|number| self.machine(number))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.shared.over.store(true, Relaxed);
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }
}

/// The request that lends the machine.
fn lends() -> MoveRequest {
    MoveRequest {
        to: Some(host_name(CLOUD)),
        lend: true,
        ..MoveRequest::default()
    }
}

/// Does something as soon as nothing else is under way with the machine.
fn settled(act: impl Fn() -> Result<(), ClientError>) -> Result<(), ClientError> {
    let until = Instant::now() + CALM_MAX;
    loop {
        match act() {
            Err(error) if error.to_api().code == ErrorCode::Busy && Instant::now() < until => {
                std::thread::sleep(LOOK_EVERY);
            }
            done => return done,
        }
    }
}

/// Returns the host on which the machine runs, if it stands as it should on both.
fn runs_on(both: &[anyhow::Result<Option<MachineInfo>>; 2]) -> Option<usize> {
    let [Ok(device), Ok(cloud)] = both else {
        return None;
    };
    let runs =
        |machine: &MachineInfo| machine.status == MachineStatus::Running && machine.moves.is_none();
    match (device, cloud) {
        (Some(device), None) if runs(device) => Some(DEVICE),
        (Some(device), Some(cloud)) if runs(cloud) => {
            let standing = device.moves.as_ref().map(|moves| moves.standing);
            (standing == Some(MoveStanding::Lent)).then_some(CLOUD)
        }
        _ => None,
    }
}

/// Says how the machine stands on a host.
fn stands(seen: &anyhow::Result<Option<MachineInfo>>) -> String {
    match seen {
        Ok(Some(machine)) => format!(
            "{:?}, {:?}, {}",
            machine.status, machine.moves, machine.detail
        ),
        Ok(None) => "not there".into(),
        Err(error) => format!("no answer: {error:#}"),
    }
}

/// Reads what the machine says on a host, until the run is over. The file with its output outlives node and QEMU, so nothing is missed
/// while nobody listens.
fn listen(client: &Client, host: usize, shared: &Shared) {
    let mut log = Log::default();
    let mut path: Option<PathBuf> = None;
    let mut answering: Option<UnixStream> = None;
    let mut round = 0u32;
    while !shared.over.load(Relaxed) {
        if round.is_multiple_of(ASK_EVERY)
            && let Ok(console) = client.console(MACHINE)
        {
            path = Some(console.log.into());
        }
        round = round.wrapping_add(1);
        for line in log.lines(path.as_deref()) {
            let mut heard = shared.heard.lock();
            let said = heard.hear(shared.start.elapsed(), host, &line);
            let acknowledged = heard.acknowledged();
            drop(heard);
            match said {
                Some(Said::Hello) => answer(client, &mut answering, acknowledged),
                // it has had its answer
                Some(Said::Step) => answering = None,
                None => {}
            }
        }
        // what nobody reads stops the guest in the end
        if let Some(console) = &mut answering {
            let mut seen = [0; 4096];
            while console.read(&mut seen).is_ok_and(|bytes| bytes > 0) {}
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Tells a guest what it has acknowledged. The connection stays until the guest has read that; one that hears nothing asks again.
fn answer(client: &Client, answering: &mut Option<UnixStream>, acknowledged: u64) {
    if answering.is_none() {
        let console = client.attach(MACHINE).ok();
        *answering = console.filter(|console| console.set_nonblocking(true).is_ok());
    }
    let text = format!("F {acknowledged} 1\n");
    if let Some(console) = answering
        && console.write_all(text.as_bytes()).is_err()
    {
        *answering = None;
    }
}

/// A file that a guest's output is appended to. It is held open, so that its end is read even if it was removed or replaced.
#[derive(Default)]
struct Log {
    file: Option<File>,
    pending: Vec<u8>,
}

impl Log {
    /// Returns the lines that were written since the last call, and goes over to the file that is at `path` now.
    fn lines(&mut self, path: Option<&Path>) -> Vec<String> {
        let mut lines = self.rest();
        if let Some(path) = path
            && self.is_other(path)
        {
            lines.extend(self.rest());
            self.pending.clear();
            self.file = File::open(path).ok();
        }
        lines
    }

    fn is_other(&self, path: &Path) -> bool {
        let Ok(there) = fs::metadata(path) else {
            return false;
        };
        let held = self.file.as_ref().map(File::metadata);
        let same = |held: fs::Metadata| held.dev() == there.dev() && held.ino() == there.ino();
        !held.is_some_and(|held| held.is_ok_and(same))
    }

    fn rest(&mut self) -> Vec<String> {
        let Some(file) = &mut self.file else {
            return Vec::new();
        };
        // one that was emptied is read from its beginning
        let at = file.stream_position().unwrap_or(0);
        if file.metadata().is_ok_and(|now| now.len() < at) {
            let _ = file.rewind();
        }
        let _ = file.read_to_end(&mut self.pending);
        let mut lines = Vec::new();
        while let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            lines.push(String::from_utf8_lossy(&line).into_owned());
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_to_its_end_when_it_is_appended_to_removed_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("console.log");
        let mut log = Log::default();
        assert!(log.lines(Some(&path)).is_empty());
        let mut file = File::create(&path).unwrap();
        file.write_all(b"one\ntw").unwrap();
        assert!(log.lines(Some(&path)).is_empty(), "it was just found");
        assert_eq!(log.lines(Some(&path)), ["one\n"]);
        file.write_all(b"o\n").unwrap();
        assert_eq!(log.lines(None), ["two\n"]);
        file.write_all(b"three\nfo").unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"five\n").unwrap();
        assert_eq!(log.lines(Some(&path)), ["three\n"]);
        assert_eq!(log.lines(Some(&path)), ["five\n"]);
        File::create(&path).unwrap();
        assert!(log.lines(Some(&path)).is_empty());
        fs::write(&path, b"6\n").unwrap();
        assert_eq!(log.lines(Some(&path)), ["6\n"]);
    }
}
