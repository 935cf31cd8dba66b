//! `odd-sources`: images are pulled and machines are started from web servers and buckets that answer oddly for a minute, in every way
//! that users have met, and then as they should. Counted is what is wrong of what came, and which pulls and starts the minute has ended.
//!
//! The server is the one of the tests of `floe-source`. The same files stand behind it as a web server's, and as buckets in the wire forms
//! of S3, of Google's storage and of Azure's; each way of answering is a directory of the web server, or a bucket.
use anyhow::{Context as _, bail};
use floe_api::{PullRequest, PushRequest, RunRequest};
use floe_image::{CHUNK_SIZE, CHUNKS_PER_SEGMENT, Hash, ImageName, Kind, MachineConfig, Segment};
use floe_store::{Ingest, IngestOptions, Repository};
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report};
use floe_testbed::live::Node;
use floe_testbed::workload;
use odd::{Mode, OddServer};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../source/tests/common/odd.rs"]
mod odd;

/// How long a server answers oddly.
const FAULT: Duration = Duration::from_secs(60);
/// The same in the short version: longer than a few tries take.
const QUICK_FAULT: Duration = Duration::from_secs(12);
/// Bytes of an image that is pulled: more than one pack.
const IMAGE_BYTES: usize = 10 << 20;
const QUICK_IMAGE_BYTES: usize = 2 << 20;
/// How many machines are started at a time.
const STARTS_AT_ONCE: usize = 12;
/// Memory of a machine that is started.
const MEMORY_BYTES: u64 = 128 << 20;
/// Longest time for a started guest to answer once its server is right again.
const ANSWER_MAX: Duration = Duration::from_secs(300);
/// What the guest does before its capture: it keeps the checksum of a program that is in its memory.
const KEEP_SUM: &str = "md5sum < /bin/busybox > /sum";
/// The same in a machine that was started, whose memory comes from the server.
const SUM_AGAIN: &str = "md5sum < /bin/busybox > /again";
/// Fails if a byte of that program is another one now.
const COMPARE: &str = "cmp /sum /again";
/// The modes in which machines are started in the short version.
const QUICK_STARTS: [Mode; 4] = [
    Mode::Page,
    Mode::PageDeniedPacks,
    Mode::Whole,
    Mode::WrongPart,
];

/// A wire form: what its addresses begin with, what precedes a bucket in its paths, and the server.
struct Form {
    name: &'static str,
    scheme: &'static str,
    server: OddServer,
    /// Where the server sends requests.
    _elsewhere: OddServer,
}

/// What has gone wrong.
#[derive(Default)]
struct Faults {
    wrong_bytes: u64,
    kept_wrong: u64,
    ended: Vec<String>,
}

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("odd-sources", context.quick);
    let fault = context.pick(FAULT, QUICK_FAULT);
    let mut faults = Faults::default();
    let pulls = pull_all(context, fault, &mut faults)?;
    let modes: &[Mode] = context.pick(&Mode::ODD[..], &QUICK_STARTS[..]);
    let starts = start_all(context, fault, modes, &mut faults)?;
    report.add_value("wrong_bytes", "", faults.wrong_bytes as f64);
    report.add_value("kept_wrong", "", faults.kept_wrong as f64);
    report.add_value("ended_for_good", "", faults.ended.len() as f64);
    report.add_value("pulls", "", pulls as f64);
    report.add_value("starts", "", starts as f64);
    report.note(format!(
        "{} ways of answering for {} s each, from a web server and buckets of three kinds",
        Mode::ODD.len(),
        fault.as_secs()
    ));
    for ended in faults.ended {
        report.fail(ended);
    }
    if faults.wrong_bytes + faults.kept_wrong > 0 {
        report.fail("wrong bytes were taken for right ones");
    }
    Ok(report)
}

/// Returns the name of the site that answers in this way: a bucket's may have small letters only.
fn site(mode: Mode) -> String {
    format!("{mode:?}").to_ascii_lowercase()
}

/// Serves a directory in all wire forms.
fn forms(dir: &Path) -> anyhow::Result<Vec<Form>> {
    let all = [
        ("web", "http", ""),
        ("s3", "s3", ""),
        ("google", "gs", ""),
        ("azure", "az", "/ann"),
    ];
    let start = |(name, scheme, below)| {
        let elsewhere = OddServer::start(dir, below, None)?;
        Ok(Form {
            name,
            scheme,
            server: OddServer::start(dir, below, Some(&elsewhere))?,
            _elsewhere: elsewhere,
        })
    };
    all.into_iter().map(start).collect()
}

/// What a node needs in its environment to find the buckets.
fn environment(forms: &[Form]) -> anyhow::Result<Vec<(String, String)>> {
    let at = |name: &str| {
        let form = forms.iter().find(|form| form.name == name);
        form.map(|form| form.server.addr).context("no such form")
    };
    let azure = format!(
        "AccountName=ann;AccountKey=YW5u;BlobEndpoint=http://{}/ann",
        at("azure")?
    );
    let all = [
        ("AWS_ENDPOINT_URL", format!("http://{}", at("s3")?)),
        ("AWS_REGION", "us-east-1".into()),
        ("AWS_ACCESS_KEY_ID", "key".into()),
        ("AWS_SECRET_ACCESS_KEY", "secret".into()),
        ("STORAGE_EMULATOR_HOST", at("google")?.to_string()),
        ("AZURE_STORAGE_CONNECTION_STRING", azure),
    ];
    Ok(all.map(|(name, value)| (name.into(), value)).into())
}

impl Form {
    /// Returns the address of an image on the site that answers in this way.
    fn address(&self, mode: Mode, image: &str) -> String {
        let site = site(mode);
        match self.scheme {
            "http" => format!("http://{}/{site}#{image}", self.server.addr),
            scheme => format!("{scheme}://{site}/{image}"),
        }
    }
}

/// Pulls an image of its own in each form and mode, all at once. Returns how many.
fn pull_all(context: &Context, fault: Duration, faults: &mut Faults) -> anyhow::Result<usize> {
    let dir = context.scratch.join("served");
    let bytes = context.pick(IMAGE_BYTES, QUICK_IMAGE_BYTES);
    let there = Repository::create(&dir)?;
    let forms = forms(&dir)?;
    let home = context.scratch.join("puller");
    let node = Node::start_in(&home, &environment(&forms)?)?;
    let mut wanted = Vec::new();
    for form in &forms {
        for mode in Mode::ODD {
            let seed = wanted.len() as u64 + 1;
            let mut ingest = Ingest::new(&there, IngestOptions::default())?;
            ingest.region_bytes("disk0", &workload::noise(bytes, seed))?;
            let id = ingest.finish(MachineConfig::default())?;
            let name = format!("{}-{}", form.name, site(mode));
            let tag = ImageName::parse(&name).map_err(|e| anyhow::anyhow!("{name}: {e}"))?;
            there.tag(&tag, &id)?;
            form.server.set(&site(mode), mode);
            wanted.push((form.address(mode, &name), name, id, seed));
        }
    }
    let pull = |address: &str, name: &str| -> anyhow::Result<()> {
        let request = PullRequest {
            from: address.into(),
            name: Some(name.into()),
            token: None,
            ca: None,
            trust: true,
        };
        node.client.pull(&request)?.finish(|_| {})?;
        Ok(())
    };
    let done: Vec<_> = std::thread::scope(|scope| {
        let pull = &pull;
        let begun = wanted
            .iter()
            .map(|(address, name, ..)| (address, scope.spawn(move || pull(address, name))));
        let begun: Vec<_> = begun.collect();
        // the length of the fault is what is tried
        std::thread::sleep(fault);
        for form in &forms {
            for mode in Mode::ODD {
                form.server.set(&site(mode), Mode::Right);
            }
        }
        let end = |(address, pull): (&String, std::thread::ScopedJoinHandle<'_, _>)| {
            (address.clone(), pull.join())
        };
        begun.into_iter().map(end).collect()
    });
    drop(node);
    let here = Repository::open(&home.join("repo"))?;
    for ((address, pulled), (_, _, id, seed)) in done.into_iter().zip(&wanted) {
        match pulled {
            Ok(Ok(())) => {
                let disk = read_disk(&here, id, bytes)?;
                let right = workload::noise(bytes, *seed);
                let differ = disk.iter().zip(&right).filter(|(one, other)| one != other);
                faults.wrong_bytes += differ.count() as u64;
                faults.kept_wrong += here.verify(id, &|_, _| true)?.damage.len() as u64;
            }
            Ok(Err(error)) => faults
                .ended
                .push(format!("the pull of {address}: {error:#}")),
            Err(_) => bail!("the pull of {address} panicked"),
        }
    }
    Ok(wanted.len())
}

/// Reads an image's disk out of a repository.
fn read_disk(repository: &Repository, id: &Hash, bytes: usize) -> anyhow::Result<Vec<u8>> {
    let manifest = repository.manifest(id)?;
    let region = manifest.region("disk0").context("it has no disk")?;
    let segments: Vec<_> = region
        .segments
        .iter()
        .map(|id| (Kind::Segment, *id))
        .collect();
    let mut tables = HashMap::new();
    repository.read_items(id, &segments, &mut |_, hash, bytes| {
        tables.insert(hash, Segment::decode(bytes));
    })?;
    let mut places: HashMap<Hash, Vec<usize>> = HashMap::new();
    for (number, segment) in region.segments.iter().enumerate() {
        let Some(Ok(table)) = tables.get(segment) else {
            continue;
        };
        for (slot, hash) in table.hashes().iter().enumerate() {
            let place = number * CHUNKS_PER_SEGMENT + slot;
            places.entry(*hash).or_default().push(place);
        }
    }
    let chunks: Vec<_> = places.keys().filter(|hash| !hash.is_zero()).collect();
    let chunks: Vec<_> = chunks
        .into_iter()
        .map(|hash| (Kind::Chunk, *hash))
        .collect();
    let mut disk = vec![0; bytes.next_multiple_of(CHUNK_SIZE)];
    repository.read_items(id, &chunks, &mut |_, hash, bytes| {
        for place in places.get(&hash).into_iter().flatten() {
            let start = place * CHUNK_SIZE;
            if let Some(chunk) = disk.get_mut(start..start + CHUNK_SIZE) {
                chunk.copy_from_slice(bytes);
            }
        }
    })?;
    disk.truncate(bytes);
    Ok(disk)
}

/// Starts a captured guest in each form and mode, each on a node of its own, which has nothing of the image. Returns how many.
fn start_all(
    context: &Context,
    fault: Duration,
    modes: &[Mode],
    faults: &mut Faults,
) -> anyhow::Result<usize> {
    let dir = context.scratch.join("guests");
    Repository::create(&dir)?;
    let origin = Node::start(None, &context.scratch.join("origin"), false)?;
    origin.import(&Guest::tiny()?, "guest", MEMORY_BYTES)?;
    origin.boot("guest", "origin")?;
    origin.tell("origin", KEEP_SUM, ANSWER_MAX)?;
    origin.capture("origin", "booted", true, 0)?;
    let push = PushRequest {
        image: "booted".into(),
        to: dir.display().to_string(),
        ..Default::default()
    };
    origin.client.push(&push)?.finish(|_| {})?;
    drop(origin);
    let forms = forms(&dir)?;
    let environment = environment(&forms)?;
    let mut all = Vec::new();
    for form in &forms {
        all.extend(modes.iter().map(|mode| (form, *mode)));
    }
    for some in all.chunks(STARTS_AT_ONCE) {
        let home = |form: &Form, mode| format!("{}-{}", form.name, site(mode));
        let homes = some.iter().map(|(form, mode)| home(form, *mode));
        let homes: Vec<PathBuf> = homes.map(|home| context.scratch.join(home)).collect();
        let ended: Vec<_> = std::thread::scope(|scope| {
            let environment = &environment;
            let begun = some.iter().zip(&homes).map(|((form, mode), home)| {
                form.server.set(&site(*mode), *mode);
                let address = form.address(*mode, "booted");
                scope.spawn(move || start(home, &address, environment))
            });
            let begun: Vec<_> = begun.collect();
            std::thread::sleep(fault);
            for (form, mode) in some {
                form.server.set(&site(*mode), Mode::Right);
            }
            begun.into_iter().map(|start| start.join()).collect()
        });
        for (((form, mode), home), ended) in some.iter().zip(&homes).zip(ended) {
            let what = format!("the start with {mode:?} from {}", form.name);
            match ended {
                Ok(Ok(is_right)) => faults.wrong_bytes += u64::from(!is_right),
                Ok(Err(error)) => faults.ended.push(format!("{what}: {error:#}")),
                Err(_) => bail!("{what} panicked"),
            }
            std::fs::remove_dir_all(home)?;
        }
    }
    Ok(all.len())
}

/// Starts a machine on a new node, and has its guest answer. Returns whether a program in its memory is what it was.
fn start(home: &Path, address: &str, environment: &[(String, String)]) -> anyhow::Result<bool> {
    let node = Node::start_in(home, environment)?;
    let request = RunRequest {
        image: address.into(),
        name: Some("m".into()),
        trust: true,
        ..RunRequest::default()
    };
    node.run(&request, |_| {})?;
    let answered = node.ask("m", ANSWER_MAX);
    let said = node.machine("m")?.detail;
    answered.with_context(|| said)?;
    node.tell("m", SUM_AGAIN, ANSWER_MAX)?;
    let is_right = node.tell("m", COMPARE, ANSWER_MAX).is_ok();
    node.remove("m")?;
    Ok(is_right)
}
