//! `swarm-storm`: 100 hosts want one image of one hub within the same second, and 24 of them copy all of it besides. None may fail.
//!
//! The hub is a process of its own. The hosts are in this one, without mounts and QEMUs: each asks the hub who takes part, and goes on asking;
//! brings what a start needs from the others and the hub, as a node does; and holds every byte of it to the image.
use anyhow::{Context as _, anyhow, ensure};
use floe_api::{SwarmJoin, SwarmMembership};
use floe_hub::create_token;
use floe_image::{Hash, MachineConfig};
use floe_node::transfer::{Cancel, Destination, HubClient, PullOptions, PushOptions, pull, push};
use floe_peers::{
    Config, Content, Fetching, Host, Key, Member, Options, Pack, PieceId, Seed, Shelf, Swarm,
};
use floe_source::Registry;
use floe_store::{Ingest, IngestOptions, Repository};
use floe_testbed::harness::{Context, HostTimes, Report, Samples};
use floe_testbed::live::Hub;
use floe_testbed::workload::noise;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, spawn_blocking};

/// How many hosts there are, each with a user of its own, and how many of them copy all of the image.
const HOSTS: usize = 100;
const COPYING: usize = 24;
/// The same of a short run.
const HOSTS_QUICK: usize = 12;
const COPYING_QUICK: usize = 3;
/// All of them begin within this time.
const SPREAD: Duration = Duration::from_secs(1);
/// A start needs one of so many pieces.
const SHARE: usize = 3;
/// Pieces that are needed at a time, one batch after the other: a machine stands still for each.
const BATCH: usize = 4;
/// A host that takes longer has failed.
const HOST_MAX: Duration = Duration::from_secs(300);
/// How long the hub may take for a piece, and to say who takes part, as in a node.
const PIECE_MAX: Duration = Duration::from_secs(25);
/// Threads that may wait for the hub or for disks: eight requests of each host's seed, one that asks who takes part, and copies.
const THREADS_MAX: usize = 2048;
/// Failures that are told in words.
const TOLD_MAX: usize = 5;

/// The image, and where it is.
struct Storm {
    url: String,
    image: Hash,
    /// The bytes of its packs.
    packs: HashMap<Hash, Vec<u8>>,
    /// Each host's token.
    tokens: Vec<String>,
    copying: usize,
    dir: PathBuf,
    /// How often the hub did not say who takes part when it was asked again.
    silent: AtomicU32,
}

/// A host that has all that it needs. It goes on giving until it is dropped.
struct Started {
    took: Duration,
    copied: Option<Duration>,
    swarm: Arc<Swarm>,
    _host: Host,
    _asks: Asks,
}

/// A task that ends when this is dropped.
struct Asks(JoinHandle<()>);

impl Drop for Asks {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("swarm-storm", context.quick);
    allow_files()?;
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = free.local_addr()?.port();
    drop(free);
    let hub_dir = context.scratch.join("hub");
    let hub = Hub::start(None, &hub_dir, Ipv4Addr::LOCALHOST, port)?;
    let hosts = context.pick(HOSTS, HOSTS_QUICK);
    let tokens = (0..hosts).map(|number| create_token(&hub_dir, &format!("host{number}")));
    let bytes = context.pick(30, 4) << 20;
    let (image, packs) = publish(&context.scratch, &hub, bytes)?;
    let storm = Arc::new(Storm {
        url: hub.url.clone(),
        image,
        packs,
        tokens: tokens.collect::<Result<_, _>>()?,
        copying: context.pick(COPYING, COPYING_QUICK),
        dir: context.scratch.clone(),
        silent: AtomicU32::new(0),
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(THREADS_MAX)
        .build()?;
    let (before, began) = (HostTimes::now()?, Instant::now());
    runtime.block_on(async {
        let ended = all(&storm).await;
        let idle = HostTimes::now()?.idle_since(&before);
        report.add_value("storm_s", "s", began.elapsed().as_secs_f64());
        report.add_value("cpu_left", "", idle);
        tell(&storm, ended, &mut report).await
    })?;
    Ok(report)
}

/// Lets this process open as many files as it may at most.
fn allow_files() -> anyhow::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile).maximum;
    let most = Rlimit {
        current: limit,
        maximum: limit,
    };
    setrlimit(Resource::Nofile, most).context("cannot open many files")
}

/// Publishes an image of so many bytes, none of which can be compressed. Returns its name, and its packs.
fn publish(dir: &Path, hub: &Hub, bytes: usize) -> anyhow::Result<(Hash, HashMap<Hash, Vec<u8>>)> {
    let disk = dir.join("disk.raw");
    std::fs::write(&disk, noise(bytes, 1))?;
    let repository = Repository::create(&dir.join("origin"))?;
    let mut ingest = Ingest::new(&repository, IngestOptions::default())?;
    ingest.region_from_file("disk0", &disk)?;
    let image = ingest.finish(MachineConfig::default())?;
    let options = PushOptions {
        name: Some("storm".into()),
        public: Some(true),
        ..PushOptions::default()
    };
    push(
        &repository,
        &image,
        &hub.url,
        Some(&hub.token),
        &options,
        &|_| (),
    )?;
    let mut packs = HashMap::new();
    for pack in repository.layout(&image)?.packs {
        packs.insert(pack.id, std::fs::read(repository.pack_path(&pack.id))?);
    }
    Ok((image, packs))
}

/// Starts all hosts within [`SPREAD`], and waits until each has ended well or not.
async fn all(storm: &Arc<Storm>) -> Vec<anyhow::Result<Started>> {
    let hosts = storm.tokens.len();
    let one = |number: usize| {
        let storm = storm.clone();
        tokio::spawn(async move {
            tokio::time::sleep(SPREAD * number as u32 / hosts as u32).await;
            let started = tokio::time::timeout(HOST_MAX, storm.start(number)).await;
            started.map_err(|_| anyhow!("it took more than {HOST_MAX:?}"))?
        })
    };
    let running: Vec<_> = (0..hosts).map(one).collect();
    let mut ended = Vec::new();
    for host in running {
        let host = host.await;
        ended.push(host.unwrap_or_else(|error| Err(anyhow!("its task ended: {error}"))));
    }
    ended
}

/// Adds the figures, and says why hosts have failed.
async fn tell(
    storm: &Storm,
    ended: Vec<anyhow::Result<Started>>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let (mut took, mut copied, mut failed) = (Samples::default(), Samples::default(), 0);
    let mut from_hub = 0;
    for (number, host) in ended.iter().enumerate() {
        match host {
            Ok(host) => {
                took.push(host.took.as_secs_f64());
                if let Some(time) = host.copied {
                    copied.push(time.as_secs_f64());
                }
                from_hub += host.swarm.status().await?.seed_bytes;
            }
            Err(error) => {
                failed += 1;
                if failed <= TOLD_MAX {
                    report.note(format!("host {number} failed: {error:#}"));
                }
            }
        }
    }
    report.add_value("storm_failed", "", failed as f64).against(
        "all hosts",
        "",
        ended.len() as f64,
    );
    if !took.is_empty() {
        report.add("start_s", "s", &took);
        report.add_quantile("start_s_p99", "s", &took, 0.99);
        let each = storm.needed_bytes() as f64;
        report.add_value("seed_upload_ratio", "x", from_hub as f64 / each);
    }
    if !copied.is_empty() {
        report.add("copy_s", "s", &copied);
    }
    let silent = f64::from(storm.silent.load(Relaxed));
    report.add_value("silent", "", silent);
    report.note(format!(
        "{} hosts begin within {SPREAD:?}, {} of them copy all of the image besides, {:.1} MB; a start needs {:.1} MB of it, {BATCH} pieces at a \
         time; the hub is a process, all hosts are another, over loopback, and both share this machine's processors",
        ended.len(),
        storm.copying,
        storm.packs.values().map(Vec::len).sum::<usize>() as f64 / 1e6,
        storm.needed_bytes() as f64 / 1e6
    ));
    Ok(())
}

impl Storm {
    /// One host: takes part, brings what a start needs, and copies all of it besides if it is one of those.
    async fn start(self: &Arc<Self>, number: usize) -> anyhow::Result<Started> {
        let began = Instant::now();
        let copies = (number < self.copying).then(|| {
            let storm = self.clone();
            spawn_blocking(move || storm.copy(number))
        });
        let mut secret = [1; 32];
        secret[0] = number as u8;
        // addresses of their own, as hosts have
        let address = SocketAddr::from(([127, 0, 1, 1 + number as u8], 0));
        let host = Host::listen(secret, &[address]).await?;
        let hub = HubClient::new(
            &self.url,
            Some(&self.tokens[number]),
            None,
            &Cancel::default(),
        )?;
        let mut me = SwarmJoin {
            key: Hash(host.key().0).to_string(),
            addresses: host.addresses().iter().map(ToString::to_string).collect(),
            content: None,
            layout: None,
            // each is another user's
            open: true,
        };
        let listed = ask(&hub, self.image, &me).await?;
        me.content = Some(listed.content.clone());
        let (content, ids) = content_of(&listed)?;
        let shelf = Arc::new(Shelf::open(
            &self.dir.join(format!("host{number}")),
            content,
        )?);
        let seed: Arc<dyn Seed> = Arc::new(FromHub {
            hub: self.patient_for(number)?,
            image: self.image,
            packs: ids.clone(),
        });
        let options = Options {
            config: Config::ours(),
            image: self.image.0,
            token: digits(&listed.token)?,
            members: members(&listed)?,
        };
        let swarm = Arc::new(host.join(shelf.clone(), Some(seed), options)?);
        let again = Duration::from_millis(listed.ask_again_ms);
        let asks = self.clone().go_on_asking(hub, me, swarm.clone(), again);
        let asks = Asks(tokio::spawn(asks));
        let order = needed(shelf.content().pieces());
        swarm.predict(&order, &[]).await?;
        for batch in order.chunks(BATCH) {
            swarm.need(batch).await?;
        }
        let took = began.elapsed();
        self.check(&shelf, &ids, &order)?;
        let copied = match copies {
            Some(copies) => Some(copies.await??),
            None => None,
        };
        Ok(Started {
            took,
            copied,
            swarm,
            _host: host,
            _asks: asks,
        })
    }

    /// Returns a client that is as patient with a piece as a node.
    fn patient_for(&self, number: usize) -> anyhow::Result<HubClient> {
        let token = Some(&*self.tokens[number]);
        let client = HubClient::impatient(&self.url, token, None, &Cancel::default(), PIECE_MAX);
        Ok(client?)
    }

    /// Asks who takes part as often as the hub wishes.
    async fn go_on_asking(
        self: Arc<Self>,
        hub: HubClient,
        me: SwarmJoin,
        swarm: Arc<Swarm>,
        mut again: Duration,
    ) {
        loop {
            tokio::time::sleep(again).await;
            let told = ask(&hub, self.image, &me).await;
            let told = told.and_then(|listed| {
                again = Duration::from_millis(listed.ask_again_ms);
                Ok((members(&listed)?, digits(&listed.token)?))
            });
            match told {
                Ok((members, token)) => {
                    let _ = swarm.members(members, token).await; // it may be ending
                }
                Err(_) => {
                    self.silent.fetch_add(1, Relaxed);
                }
            }
        }
    }

    /// Copies all of the image into a repository of the host's own.
    fn copy(&self, number: usize) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let repository = Repository::create(&self.dir.join(format!("copy{number}")))?;
        let token = Some(&*self.tokens[number]);
        let source = Registry::default().open_at(&self.url, token, None)?;
        let to = Destination::Repository(&repository, None);
        let pulled = pull(&*source, &self.image, to, &PullOptions::default(), &|_| ());
        pulled.context("the copy")?;
        ensure!(repository.contains(&self.image)?, "the copy is not there");
        Ok(began.elapsed())
    }

    /// Holds what is on a shelf to the image.
    fn check(&self, shelf: &Shelf, ids: &[Hash], pieces: &[PieceId]) -> anyhow::Result<()> {
        for piece in pieces.iter().copied() {
            let place = shelf.content().place(piece);
            let (number, range) = place.context("there is no such piece")?;
            let pack = ids.get(number).and_then(|id| self.packs.get(id));
            let pack = pack.context("the hub names a pack that was never sent there")?;
            let right = pack.get(range.start as usize..range.end as usize);
            let came = shelf.read(number, range)?;
            ensure!(right == Some(&came[..]), "piece {piece} has wrong bytes");
        }
        Ok(())
    }

    /// Returns the bytes of what a start needs, each piece counted in full.
    fn needed_bytes(&self) -> u64 {
        let sizes = self.packs.values().map(|pack| pack.len() as u64);
        let pieces: u64 = sizes
            .map(|bytes| bytes.div_ceil(floe_peers::PIECE_BYTES))
            .sum();
        pieces / SHARE as u64 * floe_peers::PIECE_BYTES
    }
}

/// Returns the pieces that a start needs, in the order that is the same for all: in no order of their places.
fn needed(pieces: u32) -> Vec<PieceId> {
    let mut order: Vec<PieceId> = (0..pieces).collect();
    order.shuffle(&mut StdRng::seed_from_u64(1));
    order.truncate(order.len() / SHARE);
    order
}

/// Asks the hub to be listed, and who else is.
async fn ask(hub: &HubClient, image: Hash, me: &SwarmJoin) -> anyhow::Result<SwarmMembership> {
    let (hub, me) = (hub.clone(), me.clone());
    let asked = spawn_blocking(move || hub.join_swarm(&image, &me));
    Ok(asked.await??)
}

/// Reads 64 hexadecimal digits.
pub fn digits(text: &str) -> anyhow::Result<[u8; 32]> {
    let hash: Hash = text.parse()?;
    Ok(*hash.as_bytes())
}

/// Returns the packs as the hosts of a swarm know them, and their names at the hub.
pub fn content_of(listed: &SwarmMembership) -> anyhow::Result<(Arc<Content>, Vec<Hash>)> {
    let (mut packs, mut ids) = (Vec::new(), Vec::new());
    for pack in &listed.packs {
        ids.push(Hash(digits(&pack.id)?));
        packs.push(Pack {
            root: digits(&pack.root)?,
            bytes: pack.bytes,
        });
    }
    Ok((Arc::new(Content::new(packs)?), ids))
}

/// Returns the hosts that a hub lists.
pub fn members(listed: &SwarmMembership) -> anyhow::Result<Vec<Member>> {
    let one = |member: &floe_api::SwarmMember| -> anyhow::Result<Member> {
        let addresses = member
            .addresses
            .iter()
            .map(|address| address.parse::<SocketAddr>());
        Ok(Member {
            key: Key(digits(&member.key)?),
            addresses: addresses.collect::<Result<_, _>>()?,
        })
    };
    listed.members.iter().map(one).collect()
}

/// The hub, as a node asks it for pieces.
pub struct FromHub {
    /// The hub.
    pub hub: HubClient,
    /// The image whose packs these are.
    pub image: Hash,
    /// Their names, in the order of the content.
    pub packs: Vec<Hash>,
}

impl Seed for FromHub {
    fn fetch(&self, pack: usize, range: Range<u64>) -> Fetching<'_> {
        Box::pin(async move {
            let id = *self.packs.get(pack).ok_or(io::ErrorKind::NotFound)?;
            let (hub, image) = (self.hub.clone(), self.image);
            let asked = spawn_blocking(move || hub.proven(&image, &id, &range)).await;
            let proven = asked.map_err(io::Error::other)?;
            Ok(proven.map_err(io::Error::other)?.into())
        })
    }
}
