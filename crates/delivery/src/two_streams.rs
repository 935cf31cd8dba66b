//! `two-streams`: two machines are started together on one host. Over one link, each should wait as if it had half of the
//! link; over two links, as if the other machine did not exist. Two machines of one image share what comes, so over one link
//! each should be done as soon as if it were alone. Real guests, real hubs, emulated links.
use super::stream_real::site::{model_traces, own_trace, wait_for_model};
use anyhow::Context as _;
use floe_api::{REHEARSE_S_DEFAULT, RunRequest, StopRequest, Wait};
use floe_image::Hash;
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::link::{Bridge, Rate, Shape};
use floe_testbed::live::{Hub, Node};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// The slow link, half of it, and the fast one; all have the round trip of [`Shape::wan`].
const SLOW_BITS_PER_S: u64 = 7_200_000;
const HALF_BITS_PER_S: u64 = SLOW_BITS_PER_S / 2;
const FAST_BITS_PER_S: u64 = 50_000_000;
/// The numbers of the links.
const SLOW: u8 = 0;
const FAST: u8 = 1;
const HALF: u8 = 2;
/// Ports of the two hubs, which can be reached over every link.
const PORTS: [u16; 2] = [7070, 7071];
/// Memory of a machine, in bytes.
const MEMORY: u64 = 128 << 20;
/// Number of earlier users of each image.
const TEACHERS: u32 = 2;
/// Longest time for anything that a guest is told to do.
const PATIENCE: Duration = Duration::from_secs(600);

/// The number of one of the two images.
type Which = usize;

/// An image on the hubs.
struct Published {
    name: String,
    id: Hash,
}

/// The hub and link from which an image is started.
#[derive(Clone, Copy)]
struct From {
    image: Which,
    hub: usize,
    link: u8,
}

/// Two hubs at the far end of several links, with the published images. Fields are dropped in this order, as the
/// processes use the links.
struct Site {
    hubs: Vec<Hub>,
    homes: PathBuf,
    images: Vec<Published>,
    work_mb: u64,
    bridges: Vec<Bridge>,
}

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("two-streams", context.quick);
    let teachers = context.pick(TEACHERS, 1);
    let site = Site::prepare(&context.scratch, context.pick(24, 6))?;
    site.teach(teachers)?;
    let of = |image, hub, link| From { image, hub, link };
    // Each case: its name, what is started together, and what each machine alone is compared with.
    let cases = [
        (
            "one_hub",
            [of(0, 0, SLOW), of(1, 0, SLOW)],
            [of(0, 0, HALF), of(1, 0, HALF)],
        ),
        (
            "two_hubs",
            [of(0, 0, SLOW), of(1, 1, FAST)],
            [of(0, 0, SLOW), of(1, 1, FAST)],
        ),
    ];
    let mut together = vec![[Samples::default(), Samples::default()]; cases.len()];
    let mut alone = together.clone();
    let mut shared = Shared::default();
    for round in 0..context.pick(3, 1) {
        shared.measure(&site, round)?;
        for (number, (name, both, single)) in cases.iter().enumerate() {
            let used = site.start(&format!("{name}-{round}"), both)?;
            for (image, used) in used.into_iter().enumerate() {
                together[number][image].push(used.waited_s);
            }
            for (image, from) in single.iter().enumerate() {
                let used = site.start(&format!("{name}-{round}-{image}"), &[*from])?;
                alone[number][image].push(used[0].waited_s);
                eprintln!(
                    "two-streams: {name}, machine {image}: waited {:.1} s together, {:.1} s alone",
                    together[number][image].values()[round],
                    used[0].waited_s
                );
            }
        }
    }
    let mut worst: Option<Samples> = None;
    for (number, (name, _, _)) in cases.iter().enumerate() {
        let than = match *name {
            "one_hub" => "waiting alone over half the link",
            _ => "waiting alone over its own link",
        };
        for image in 0..2 {
            let (ours, base) = (&together[number][image], &alone[number][image]);
            let ratio = ours.over(base);
            let key = format!("{name}.{}", ["first", "second"][image]);
            report
                .add(&format!("{key}.fair_ratio"), "x", &ratio)
                .against(than, "s", base.median());
            report
                .add(&format!("{key}.wait_s"), "s", ours)
                .against(than, "s", base.median());
            if worst.as_ref().is_none_or(|w| ratio.median() > w.median()) {
                worst = Some(ratio);
            }
        }
    }
    let worst = worst.context("there are two cases")?;
    report
        .add("fair_ratio_max", "x", &worst)
        .against("waiting alone over its part", "x", 1.0);
    shared.tell(&mut report);
    report.note(format!(
        "each machine reads {} MB of its memory after its start, which {teachers} earlier users' machines did too; waiting is the start, \
         the waits for chunks, and the pauses",
        site.work_mb
    ));
    Ok(report)
}

/// The case of two machines of one image.
#[derive(Default)]
struct Shared {
    /// Seconds from the start to the end of the work: of each machine together with the other, and alone.
    together_s: [Samples; 2],
    alone_s: Samples,
    /// Bytes over the link for both, for one, and the one by the other.
    both_bytes: Samples,
    one_bytes: Samples,
}

impl Shared {
    fn measure(&mut self, site: &Site, round: usize) -> anyhow::Result<()> {
        let from = From {
            image: 0,
            hub: 0,
            link: SLOW,
        };
        let alone = site.start_all(&format!("one_image-{round}-alone"), &[from], true)?;
        let both = site.start_all(&format!("one_image-{round}"), &[from, from], true)?;
        self.alone_s.push(alone[0].took_s);
        self.one_bytes.push(alone[0].bytes as f64);
        // Both come through one fetcher: who ends last has seen the bytes of both.
        let bytes = both.iter().map(|used| used.bytes).max().unwrap_or(0);
        self.both_bytes.push(bytes as f64);
        for (samples, used) in self.together_s.iter_mut().zip(&both) {
            samples.push(used.took_s);
        }
        eprintln!(
            "two-streams: one image: {:.1} and {:.1} s together, {:.1} s alone; {bytes} bytes for both, {} for one",
            both[0].took_s, both[1].took_s, alone[0].took_s, alone[0].bytes
        );
        Ok(())
    }

    fn tell(&self, report: &mut Report) {
        let than = "the same machine alone over the same link";
        for (name, samples) in ["first", "second"].iter().zip(&self.together_s) {
            report
                .add(
                    &format!("one_image.{name}.over_alone"),
                    "x",
                    &samples.over(&self.alone_s),
                )
                .against(than, "s", self.alone_s.median());
        }
        report
            .add(
                "one_image.bytes_over_one",
                "x",
                &self.both_bytes.over(&self.one_bytes),
            )
            .against(
                "the bytes of one machine alone",
                "bytes",
                self.one_bytes.median(),
            );
    }
}

/// What came of a machine's use.
struct Used {
    /// Seconds that it waited: at its start, for chunks, and paused.
    waited_s: f64,
    /// Seconds from its start to the end of its work.
    took_s: f64,
    /// Bytes that came over the link in that time, for whichever machine.
    bytes: u64,
}

impl Site {
    fn prepare(dir: &Path, work_mb: u64) -> anyhow::Result<Site> {
        let shape = |rate| Shape {
            rate: Rate::BitsPerSecond(rate),
            ..Shape::wan()
        };
        let first = Bridge::new(shape(SLOW_BITS_PER_S), shape(SLOW_BITS_PER_S))?;
        let fast = first.beside(FAST, shape(FAST_BITS_PER_S), shape(FAST_BITS_PER_S))?;
        let half = first.beside(HALF, shape(HALF_BITS_PER_S), shape(HALF_BITS_PER_S))?;
        let far = Some(&first.ends.far);
        let hubs = PORTS.iter().enumerate().map(|(number, port)| {
            Hub::start(far, &hub_dir(dir, number), Ipv4Addr::UNSPECIFIED, *port)
        });
        let hubs = hubs.collect::<anyhow::Result<Vec<Hub>>>()?;
        let origin = Node::start(far, &dir.join("origin"), false)?;
        let guest = Guest::tiny()?;
        origin.import_with(&guest, "guest", MEMORY, 1)?;
        let mut images = Vec::new();
        for number in 0..2 {
            let (machine, name) = (format!("origin{number}"), format!("lab-stream-{number}"));
            eprintln!("two-streams: making image {number}");
            origin.boot("guest", &machine)?;
            origin.tell(&machine, &write_work(work_mb), PATIENCE)?;
            origin.capture(&machine, &name, true, REHEARSE_S_DEFAULT)?;
            origin.remove(&machine)?;
            for hub in &hubs {
                origin.publish(&name, hub)?;
            }
            let id = origin.client.image(&name)?.summary.id.parse()?;
            images.push(Published { name, id });
        }
        Ok(Site {
            hubs,
            homes: dir.to_path_buf(),
            images,
            work_mb,
            bridges: vec![first, fast, half],
        })
    }

    /// Lets users of each image teach the hubs from which it will be started.
    fn teach(&self, teachers: u32) -> anyhow::Result<()> {
        for (image, hub) in [(0, 0), (1, 0), (1, 1)] {
            for teacher in 0..teachers {
                eprintln!("two-streams: image {image}, hub {hub}, earlier user {teacher}");
                let home = self.homes.join(format!("teacher-{image}-{hub}-{teacher}"));
                // A node that fetches nothing ahead sees every touch.
                let far = Some(&self.bridges[0].ends.far);
                let node = Node::start_with(far, &home, &["--demand-only"])?;
                let link = SLOW;
                let (hub_dir, id) = (hub_dir(&self.homes, hub), &self.images[image].id);
                let known = model_traces(&hub_dir, id)?;
                self.use_on(&node, From { image, hub, link }, None, &Barrier::new(1))?;
                wait_for_model(&hub_dir, id, known)?;
                drop(node);
                std::fs::remove_dir_all(&home)?;
            }
        }
        Ok(())
    }

    /// Starts these images together on a host that has nothing of them.
    fn start(&self, home: &str, all: &[From]) -> anyhow::Result<Vec<Used>> {
        self.start_all(home, all, false)
    }

    /// The same; with `shared` they are machines of one image.
    fn start_all(&self, home: &str, all: &[From], shared: bool) -> anyhow::Result<Vec<Used>> {
        let home = self.homes.join(home);
        let node = Node::start(Some(&self.bridges[0].ends.near), &home, false)?;
        let together = Barrier::new(all.len());
        let used = std::thread::scope(|scope| {
            let users = all.iter().enumerate().map(|(number, from)| {
                let (node, together) = (&node, &together);
                let number = shared.then_some(number);
                scope.spawn(move || self.use_on(node, *from, number, together))
            });
            let users: Vec<_> = users.collect();
            let ended = users.into_iter().map(|user| {
                user.join()
                    .map_err(|_| anyhow::anyhow!("a user's thread has panicked"))?
            });
            ended.collect::<anyhow::Result<Vec<Used>>>()
        })?;
        drop(node);
        std::fs::remove_dir_all(&home)?;
        Ok(used)
    }

    /// Lets a user start an image, use it and stop it. `number` is that of the machine if several may have the image: no trace
    /// is taken then, because the kernel shows only the first touch of a page on a host.
    fn use_on(
        &self,
        node: &Node,
        from: From,
        number: Option<usize>,
        together: &Barrier,
    ) -> anyhow::Result<Used> {
        let (image, hub) = (&self.images[from.image], &self.hubs[from.hub]);
        let machine = format!("user{}", number.unwrap_or(from.image));
        let (address, port) = (Bridge::far_of(from.link), PORTS[from.hub]);
        let request = RunRequest {
            image: format!("http://{address}:{port}/{}", image.name),
            name: Some(machine.clone()),
            token: Some(hub.token.clone()),
            wait: Wait::None,
            no_trace: number.is_some(),
            ..RunRequest::default()
        };
        together.wait();
        let began = Instant::now();
        let outcome = node.run(&request, |_| {})?;
        node.tell(&machine, &read_work(self.work_mb), PATIENCE)?;
        let took_s = began.elapsed().as_secs_f64();
        let stream = node.client.stream_info(&machine)?;
        let stop = StopRequest {
            now: true,
            timeout_s: None,
        };
        node.client.stop(&machine, &stop)?;
        let waited_s = match number {
            Some(_) => stream.waited_s,
            None => own_trace(node, &image.id)?.1.as_secs_f64(),
        };
        eprintln!(
            "two-streams: {machine}: started after {:.1} s, paused {} times for {:.1} s, waited {:.1} s for {} misses of {}",
            outcome.total_ms / 1000.0,
            stream.pauses,
            stream.paused_s,
            waited_s,
            stream.misses,
            stream.touched
        );
        node.remove(&machine)?;
        Ok(Used {
            waited_s: outcome.total_ms / 1000.0 + stream.paused_s + waited_s,
            took_s,
            bytes: stream.fetched_bytes,
        })
    }
}

fn hub_dir(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("hub{number}"))
}

/// Returns a command that fills a file with text of random numbers: like a guest's memory, it compresses to about 40 %,
/// and no two pages are alike.
fn write_work(megabytes: u64) -> String {
    format!(
        "mount -o remount,size=90% /dev/shm; od -An -v -tx1 /dev/urandom | head -c {megabytes}m > /dev/shm/work"
    )
}

/// Returns a command that reads the file, one MB at a time with a short pause between.
fn read_work(megabytes: u64) -> String {
    format!(
        "n=0; while [ $n -lt {megabytes} ]; do dd if=/dev/shm/work of=/dev/null bs=1M skip=$n count=1 2>/dev/null; n=$((n+1)); sleep 0.2; done"
    )
}
