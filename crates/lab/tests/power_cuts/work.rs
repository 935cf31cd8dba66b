//! What a node and a hub do while their writes are recorded, and what they have promised at which place in the log.
use super::device::Recorder;
use super::hosts::Hosts;
use floe_api::*;
use floe_node::transfer::{Cancel, Destination, HubClient, PullOptions, pull};
use floe_testbed::guest::Guest;
use floe_testbed::workload::noise;
use std::path::Path;

/// Something that was acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The node has an image with this name and id.
    Image(String, String),
    /// The node has no image with this name.
    NoImage(String),
    /// The hub has an image with this id, under this name.
    Published(String, String),
    /// The hub has no image with this name.
    Unpublished(String),
    /// The node has a machine with this name.
    Machine(String),
    /// The node has no machine with this name.
    NoMachine(String),
}

/// A fact that must hold from one place in the log to another.
#[derive(Clone, Debug)]
pub struct Promise {
    pub fact: Fact,
    pub from: usize,
    /// Where the call began that ended it.
    pub until: usize,
}

/// The promises so far.
pub struct Promises<'a> {
    recorder: &'a Recorder,
    pub all: Vec<Promise>,
}

impl Promises<'_> {
    /// Records that a fact was just acknowledged.
    fn holds(&mut self, fact: Fact) {
        let from = self.recorder.at();
        self.all.push(Promise {
            fact,
            from,
            until: usize::MAX,
        });
    }

    /// Records that a call which ends a fact is about to be made.
    fn ends(&mut self, fact: &Fact) {
        let now = self.recorder.at();
        let promise = self
            .all
            .iter_mut()
            .find(|promise| promise.fact == *fact && promise.until == usize::MAX);
        promise.expect("only what was promised ends").until = now;
    }
}

fn import(hosts: &Hosts, request: &ImportRequest) -> String {
    let outcome = hosts
        .client()
        .import(request)
        .unwrap()
        .finish(|_| {})
        .unwrap();
    outcome.image.unwrap().id
}

fn push(hosts: &Hosts, image: &str) {
    let request = PushRequest {
        image: image.into(),
        to: hosts.hub_url.clone(),
        name: None,
        token: Some(hosts.token.clone()),
        ca: None,
        public: true,
        seed: false,
        seed_until: None,
    };
    hosts
        .client()
        .push(&request)
        .unwrap()
        .finish(|_| {})
        .unwrap();
}

/// Returns the hub's name of a local image.
fn full(name: &str) -> String {
    format!("{name}:latest")
}

/// Does everything: images, names, a machine, a capture, and their removal.
pub fn run(recorder: &Recorder, scratch: &Path) -> Vec<Promise> {
    let hosts = Hosts::start(recorder.dir(), scratch).unwrap();
    let mut promises = Promises {
        recorder,
        all: Vec::new(),
    };
    let text = |path: &Path| path.display().to_string();
    let disk = scratch.join("disk.raw");
    std::fs::write(&disk, noise(2 << 20, 1)).unwrap();
    let small = ImportRequest {
        disks: vec![text(&disk)],
        format: Some(ImportFormat::Raw),
        name: Some("small".into()),
        ..ImportRequest::default()
    };
    let small_id = import(&hosts, &small);
    let small = Fact::Image("small".into(), small_id.clone());
    promises.holds(small.clone());
    push(&hosts, "small");
    let published = Fact::Published("small".into(), small_id.clone());
    promises.holds(published.clone());

    let guest = Guest::tiny().unwrap();
    std::fs::write(&disk, vec![0; 4 << 20]).unwrap();
    let tiny = ImportRequest {
        disks: vec![text(&disk)],
        kernel: Some(text(&guest.kernel())),
        initrd: Some(text(&guest.initrd())),
        cmdline: Some(guest.cmdline().unwrap()),
        memory_bytes: Some(96 << 20),
        cpus: Some(1),
        name: Some("tiny".into()),
        ..ImportRequest::default()
    };
    let tiny_id = import(&hosts, &tiny);
    promises.holds(Fact::Image("tiny".into(), tiny_id));
    let request = RunRequest {
        image: "tiny".into(),
        name: Some("one".into()),
        cold: true,
        ..RunRequest::default()
    };
    hosts
        .client()
        .run(&request)
        .unwrap()
        .finish(|_| {})
        .unwrap();
    let machine = Fact::Machine("one".into());
    promises.holds(machine.clone());
    let capture = CaptureRequest {
        name: Some("live".into()),
        rehearse_s: Some(0),
        ..CaptureRequest::default()
    };
    let captured = hosts
        .client()
        .capture("one", &capture)
        .unwrap()
        .finish(|_| {})
        .unwrap();
    let live_id = captured.image.unwrap().id;
    promises.holds(Fact::Image("live".into(), live_id.clone()));
    hosts.client().tag("live", "again").unwrap();
    promises.holds(Fact::Image("again".into(), live_id.clone()));
    push(&hosts, "live");
    promises.holds(Fact::Published("live".into(), live_id));

    promises.ends(&small);
    let remove = RemoveImageRequest {
        image: "small".into(),
        force: true,
    };
    hosts.client().remove_image(&remove).unwrap();
    promises.holds(Fact::NoImage("small".into()));
    let hub = HubClient::new(&hosts.hub_url, Some(&hosts.token), None, &Cancel::default()).unwrap();
    promises.ends(&published);
    hub.remove(&small_id.parse().unwrap()).unwrap();
    promises.holds(Fact::Unpublished(full("small")));
    promises.ends(&machine);
    hosts.client().remove_machine("one", true).unwrap();
    promises.holds(Fact::NoMachine("one".into()));
    promises.all
}

/// Starts node and hub on what a cut left. Returns what is wrong.
pub fn check(dir: &Path, logs: &Path, facts: &[&Fact]) -> Vec<String> {
    let hosts = match Hosts::start(dir, logs) {
        Ok(hosts) => hosts,
        Err(why) => return vec![why],
    };
    let mut wrong = Vec::new();
    let node = hosts.client();
    let images = node.images().unwrap().images;
    let machines = node.machines().unwrap().machines;
    let hub = HubClient::new(&hosts.hub_url, Some(&hosts.token), None, &Cancel::default()).unwrap();
    let published = hub.images().unwrap();
    let here = |name: &str| {
        let full = full(name);
        images.iter().find(|image| {
            image
                .names
                .iter()
                .any(|other| *other == full || other == name)
        })
    };
    for fact in facts {
        let holds = match fact {
            Fact::Image(name, id) => here(name).is_some_and(|image| image.id == *id),
            Fact::NoImage(name) => here(name).is_none(),
            Fact::Published(name, id) => published
                .iter()
                .any(|image| image.id == *id && image.names.contains(&full(name))),
            Fact::Unpublished(name) => !published.iter().any(|image| image.names.contains(name)),
            Fact::Machine(name) => machines.iter().any(|machine| machine.name == *name),
            Fact::NoMachine(name) => !machines.iter().any(|machine| machine.name == *name),
        };
        if !holds {
            wrong.push(format!("acknowledged, but not so: {fact:?}"));
        }
    }
    // nothing incomplete may be visible: everything that is listed is whole
    for image in &images {
        match node
            .verify_image(&image.id)
            .and_then(|events| events.finish(|_| {}))
        {
            Ok(outcome) => {
                let problems = outcome
                    .verify
                    .map(|report| report.problems)
                    .unwrap_or_default();
                wrong.extend(
                    problems
                        .into_iter()
                        .map(|problem| format!("image {:?}: {problem}", image.names)),
                );
            }
            Err(error) => wrong.push(format!(
                "image {:?} cannot be verified: {error}",
                image.names
            )),
        }
    }
    let registry = floe_source::Registry::default();
    let source = registry.open_at(&hosts.hub_url, Some(&hosts.token), None);
    let source = source.unwrap();
    let pulled = tempfile::tempdir_in(logs).unwrap();
    let repository = floe_store::Repository::create(pulled.path()).unwrap();
    for image in &published {
        let id = image.id.parse().unwrap();
        let to = Destination::Repository(&repository, None);
        // each chunk is checked against the image's id during the transfer
        if let Err(error) = pull(source.as_ref(), &id, to, &PullOptions::default(), &|_| ()) {
            wrong.push(format!(
                "the hub's {:?} cannot be pulled: {error}",
                image.names
            ));
        }
    }
    wrong
}
