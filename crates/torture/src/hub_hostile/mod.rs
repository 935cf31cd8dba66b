//! `hub-hostile`: honest reads and uploads at a hub, alone and beside 200 slow and 200 greedy strangers.
//!
//! The hub is a process of its own, the strangers are another. Honest users have tokens; one of them shares an address
//! with strangers. Strangers have no tokens: half of them are slow (heads, bodies and traces that are sent byte by byte,
//! readers that read a byte per second), half are greedy (four connections each, always busy, with whatever costs the hub
//! most or is cheapest to request).
//!
//! `cluster` does the same at the port at which a node answers the members of its cluster.
mod client;
mod cluster;
pub mod strangers;

use anyhow::{Context as _, ensure};
use client::{Client, request};
use floe_hub::create_token;
use floe_image::{
    CHUNK_SIZE, CHUNKS_PER_SEGMENT, Hash, Kind, MachineConfig, Manifest, PackRef, PackWriter,
    Region, Segment, chunk_hash, compress_frame,
};
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::live::{Hub, Server};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of strangers of each kind.
const STRANGERS: usize = 200;
/// Chunks of the image that everybody reads: 32 MiB.
const CHUNKS: u64 = 8192;
/// Chunks of an image that is uploaded: 2 MiB.
const UPLOADED_CHUNKS: u64 = 512;
/// Size in bytes at which a pack is closed.
const PACK_BYTES: u64 = 4 << 20;
/// How long a user waits between two reads; the next one, between two uploads.
const READ_PAUSE: Duration = Duration::from_millis(4);
const UPLOAD_PAUSE: Duration = Duration::from_millis(20);
/// How long strangers are active before anything is measured.
const WARM: Duration = Duration::from_secs(3);
/// The port of the hub.
const PORT: u16 = 7073;

/// Returns a page that compresses to about a half, different for each number.
pub(crate) fn page(number: u64) -> Vec<u8> {
    let mut state = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut page = vec![0; CHUNK_SIZE];
    for word in page[..CHUNK_SIZE / 2].chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    page
}

/// An image with its packs, ready to be uploaded.
struct Image {
    manifest: Manifest,
    packs: Vec<(PackRef, Vec<u8>)>,
}

impl Image {
    /// Makes an image of the pages with these numbers.
    fn new(numbers: std::ops::Range<u64>) -> anyhow::Result<Image> {
        let numbers: Vec<u64> = numbers.collect();
        let mut packs = Vec::new();
        let mut writer = PackWriter::new(Vec::new())?;
        let mut segments = Vec::new();
        for part in numbers.chunks(CHUNKS_PER_SEGMENT) {
            let pages: Vec<Vec<u8>> = part.iter().map(|number| page(*number)).collect();
            let mut segment = Segment::new();
            for (slot, page) in pages.iter().enumerate() {
                segment.set(slot, chunk_hash(page));
            }
            for frame in pages.chunks(16) {
                let hashes: Vec<Hash> = frame.iter().map(|page| chunk_hash(page)).collect();
                let bytes: Vec<&[u8]> = frame.iter().map(|page| &**page).collect();
                writer.push_frame(
                    Kind::Chunk,
                    &hashes,
                    &compress_frame(Kind::Chunk, &bytes, 1),
                )?;
            }
            let bytes = segment.encode();
            let packed = compress_frame(Kind::Segment, &[&bytes], 1);
            writer.push_frame(Kind::Segment, &[segment.id()], &packed)?;
            segments.push(segment.id());
            if writer.bytes_written() > PACK_BYTES {
                let full = std::mem::replace(&mut writer, PackWriter::new(Vec::new())?);
                let (bytes, reference) = full.finish()?;
                packs.push((reference, bytes));
            }
        }
        if writer.items() > 0 {
            let (bytes, reference) = writer.finish()?;
            packs.push((reference, bytes));
        }
        let region = Region {
            name: "ram".into(),
            size: (numbers.len() * CHUNK_SIZE) as u64,
            segments,
            ..Default::default()
        };
        let manifest = Manifest {
            parent: None,
            created_unix_s: 1_700_000_000,
            config: MachineConfig::default(),
            regions: vec![region],
        };
        Ok(Image { manifest, packs })
    }

    /// Uploads it as the owner of `token`, like a push that has asked what is missing.
    fn upload(&self, client: &mut Client, token: &str, public: bool) -> anyhow::Result<()> {
        let mut ask = |method: &str, path: &str, body: &[u8]| {
            let answer = client.call(&request(method, path, Some(token), &[], body))?;
            let said = String::from_utf8_lossy(&answer.body).into_owned();
            ensure!(
                answer.status < 300,
                "{method} {path}: {} {said}",
                answer.status
            );
            Ok(answer)
        };
        let opened = ask("POST", "/v1/uploads", &self.manifest.encode())?;
        let opened: serde_json::Value = serde_json::from_slice(&opened.body)?;
        let key = opened["id"].as_str().context("an upload has an id")?;
        for (reference, bytes) in &self.packs {
            ask(
                "PUT",
                &format!("/v1/uploads/{key}/packs/{}", reference.id),
                bytes,
            )?;
        }
        let wish = format!("{{\"public\":{public}}}");
        ask(
            "POST",
            &format!("/v1/uploads/{key}/commit"),
            wish.as_bytes(),
        )?;
        Ok(())
    }
}

/// The hub and users with which the measurements are made.
struct Bench {
    hub: SocketAddr,
    image: Image,
    tokens: Vec<String>,
}

/// Latencies in one phase, in milliseconds.
#[derive(Default)]
struct Phase {
    reads: Samples,
    uploads: Samples,
}

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("hub-hostile", context.quick);
    let dir = context.scratch.join("hub");
    let hub = Hub::start(None, &dir, Ipv4Addr::LOCALHOST, PORT)?;
    let bench = Bench {
        hub: SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)),
        image: Image::new(0..CHUNKS)?,
        tokens: users(&dir)?,
    };
    let mut owner = Client::new(Ipv4Addr::LOCALHOST, bench.hub);
    bench.image.upload(&mut owner, &bench.tokens[0], true)?;
    let length = Duration::from_secs(context.pick(12, 3));
    let rounds = context.pick(7, 1);
    // load the image into the hub's memory
    bench.phase(Duration::from_secs(2), 0)?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        // use the reverse order in every other round
        for step in 0..2 {
            let number = 2 * round + step + 1;
            if (step == 0) == (round % 2 == 0) {
                alone.push(bench.phase(length, number as u64)?);
            } else {
                let strangers = bench.strangers()?;
                std::thread::sleep(WARM);
                beside.push(bench.phase(length, number as u64)?);
                drop(strangers);
                std::thread::sleep(WARM);
            }
        }
    }
    drop(hub);
    tell(&mut report, &alone, &beside);
    cluster::add(context, &mut report)?;
    Ok(report)
}

/// Creates three users: two who read, one who publishes.
fn users(dir: &Path) -> anyhow::Result<Vec<String>> {
    let users = ["ann", "bob", "carol"];
    let tokens = users.iter().map(|user| create_token(dir, user));
    Ok(tokens.collect::<Result<_, _>>()?)
}

impl Bench {
    fn strangers(&self) -> anyhow::Result<Server> {
        let words = [
            "hub-strangers".to_owned(),
            self.hub.to_string(),
            self.image.manifest.id().to_string(),
            self.image.packs[0].0.id.to_string(),
            STRANGERS.to_string(),
            STRANGERS.to_string(),
        ];
        let words: Vec<&std::ffi::OsStr> = words.iter().map(AsRef::as_ref).collect();
        Ok(Server::start(None, &words)?.0)
    }

    /// Lets all honest users work for this long.
    fn phase(&self, length: Duration, number: u64) -> anyhow::Result<Phase> {
        let until = Instant::now() + length;
        std::thread::scope(|scope| {
            // bob shares his address with strangers
            let ann = scope.spawn(|| self.read([127, 0, 1, 1].into(), &self.tokens[0], until));
            let bob = scope.spawn(|| self.read([127, 0, 0, 2].into(), &self.tokens[1], until));
            let carol = scope.spawn(|| self.publish(number, until));
            let panicked = |_| anyhow::anyhow!("a user panicked");
            let mut phase = Phase::default();
            for reads in [ann, bob] {
                for ms in reads.join().map_err(panicked)?? {
                    phase.reads.push(ms);
                }
            }
            for ms in carol.join().map_err(panicked)?? {
                phase.uploads.push(ms);
            }
            Ok(phase)
        })
    }

    /// Simulates page faults: a chunk with its neighbours, at random places, and sometimes a range of a pack.
    fn read(&self, from: Ipv4Addr, token: &str, until: Instant) -> anyhow::Result<Vec<f64>> {
        let mut client = Client::new(from, self.hub);
        let id = self.image.manifest.id();
        let pack = format!("/v1/packs/{}", self.image.packs[0].0.id);
        let mut times = Vec::new();
        for n in 0u64.. {
            let at = n.wrapping_mul(0x9E37_79B9) % (CHUNKS - 16);
            let range = format!("bytes={}-{}", at * 256, at * 256 + 65_535);
            let asks = match n % 8 {
                7 => request("GET", &pack, Some(token), &[("range", &range)], b""),
                _ => strangers::read_request(&id, at..at + 16, Some(token)),
            };
            let began = Instant::now();
            let answer = client.call(&asks)?;
            times.push(began.elapsed().as_secs_f64() * 1e3);
            ensure!(
                answer.status / 100 == 2,
                "a read was answered {}: {}",
                answer.status,
                String::from_utf8_lossy(&answer.body)
            );
            if Instant::now() >= until {
                break;
            }
            std::thread::sleep(READ_PAUSE);
        }
        Ok(times)
    }

    /// Publishes images with different content, and removes them again.
    fn publish(&self, number: u64, until: Instant) -> anyhow::Result<Vec<f64>> {
        let token = &self.tokens[2];
        let mut client = Client::new([127, 0, 1, 3].into(), self.hub);
        let mut times = Vec::new();
        for n in 0u64.. {
            let first = (1 << 32) + (number << 24) + n * UPLOADED_CHUNKS;
            let image = Image::new(first..first + UPLOADED_CHUNKS)?;
            let began = Instant::now();
            image.upload(&mut client, token, false)?;
            times.push(began.elapsed().as_secs_f64() * 1e3);
            let path = format!("/v1/images/{}", image.manifest.id());
            client.call(&request("DELETE", &path, Some(token), &[], b""))?;
            if Instant::now() >= until {
                break;
            }
            std::thread::sleep(UPLOAD_PAUSE);
        }
        Ok(times)
    }
}

/// A function that returns the times of one kind of request.
type Times = fn(&Phase) -> &Samples;

fn tell(report: &mut Report, alone: &[Phase], beside: &[Phase]) {
    let p99 = |phases: &[Phase], of: Times| -> Samples {
        phases
            .iter()
            .map(|phase| of(phase).quantile(0.99))
            .collect()
    };
    let p50 = |phases: &[Phase], of: Times| -> Samples {
        phases.iter().map(|phase| of(phase).median()).collect()
    };
    let mut worse: Vec<f64> = vec![0.0; alone.len()];
    let kinds: [(&str, Times); 2] = [
        ("read", |phase| &phase.reads),
        ("upload", |phase| &phase.uploads),
    ];
    for (name, of) in kinds {
        let (calm, storm) = (p99(alone, of), p99(beside, of));
        let ratio = storm.over(&calm);
        for (worst, ratio) in worse.iter_mut().zip(ratio.values()) {
            *worst = worst.max(*ratio);
        }
        report.add(&format!("{name}_ms_p99"), "ms", &storm).against(
            "without strangers",
            "ms",
            calm.median(),
        );
        report
            .add(&format!("{name}_ms_p50"), "ms", &p50(beside, of))
            .against("without strangers", "ms", p50(alone, of).median());
        report
            .add(&format!("{name}_p99_ratio"), "x", &ratio)
            .against("without strangers", "ms", calm.median());
        let count: usize = beside.iter().map(|phase| of(phase).len()).sum();
        report.add_value(&format!("{name}s"), "", count as f64);
    }
    let worse: Samples = worse.into_iter().collect();
    report.add("honest_p99_ratio", "x", &worse);
    report.note(format!(
        "{STRANGERS} slow and {STRANGERS} greedy strangers (four connections each) from {} addresses, one of them an honest user's; \
         hub, users and strangers share this machine's processors",
        strangers::ADDRESSES
    ));
    report.note(
        "reads: 16 chunks at random places, and every eighth 64 KiB of a pack; uploads: whole images of 2 MiB, from the first \
         request to the publication; the ratio is the worse of the two kinds in each round",
    );
}
