//! `mcast`: how many bytes leave the parent's node when n hosts read the same 64 MB of its state, by multicast and by
//! unicast in the same run, and by multicast while each host loses 1 % of all packets; and how many when the same state is an image of the
//! parent's hub, which the hosts bring each other by a swarm.
//!
//! Each host is a network namespace at a switch, with its own cache, fetcher and sockets, like a node but without its
//! other parts. It reads in order with a prefetcher: chunk by chunk on demand, and some way ahead of that. How clones of a guest read, and
//! how long they take, is the part `mcast_clones`.
use anyhow::{Context as _, anyhow, ensure};
use floe_api::SwarmJoin;
use floe_delivery::swarm_storm::{FromHub, content_of, digits, members};
use floe_image::datagram::GroupKey;
use floe_image::{CHUNK_SIZE, Hash, Kind, Segment as Table, chunk_hash};
use floe_node::transfer::{Cancel, HubClient, PushOptions, push};
use floe_peers::{Config, Host, Options, PieceId, Seed, Shelf, Swarm};
use floe_source::multicast::{Group, Invitation, Multicast, MulticastServer, ServerOptions};
use floe_source::{
    Directory, FetchOptions, Fetcher, Purpose, Registry, Retry, RetryOptions, Source, Who,
};
use floe_store::{Cache, Repository};
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::link::{Namespace, Segment};
use floe_testbed::live::Hub;
use floe_testbed::local::LocalRam;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// The numbers of hosts that are measured.
const HOSTS: [usize; 5] = [1, 2, 4, 8, 16];
/// Number of chunks that are prefetched at a time, ahead of the one that is read.
const AHEAD: usize = 256;
/// Size of a host's cache, in bytes.
const CACHE_BYTES: u64 = 512 << 20;
/// Port of the parent's hub.
const PORT: u16 = 7070;
/// Pause after the last byte was read, in which sockets may still send.
const QUIET: Duration = Duration::from_millis(300);

/// The parent: its state, and how hosts read it.
struct Parent {
    image: Hash,
    /// The hashes of the memory's chunks, in order.
    chunks: Vec<Hash>,
    repository: Repository,
    hub: Hub,
}

/// The result of one host's reading.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    seconds: f64,
    by_unicast: u64,
    asked_again: u64,
}

/// The result of some hosts' reading at the same time.
struct Reading {
    uplink_bytes: u64,
    seconds: f64,
    by_unicast: u64,
    asked_again: u64,
}

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("mcast", context.quick);
    let hosts = context.pick(HOSTS.len(), 3);
    let most = HOSTS[hosts - 1];
    let segment = Segment::new(1 + most).context("hosts of our own need root")?;
    for host in 0..=most {
        segment.as_gigabit(host)?;
    }
    let bytes = context.pick(64 << 20, 4 << 20);
    let parent = Parent::new(context, &segment, bytes)?;
    let mut uplinks = vec![Samples::default(); hosts];
    let mut unicasts = vec![Samples::default(); hosts];
    let mut swarms = vec![Samples::default(); hosts];
    let (mut lossy, mut by_unicast, mut lossy_by_unicast) =
        (Samples::default(), Samples::default(), Samples::default());
    let (mut seconds, mut unicast_seconds) = (Samples::default(), Samples::default());
    let mut swarm_seconds = Samples::default();
    for _ in 0..context.pick(3, 1) {
        for (index, n) in HOSTS[..hosts].iter().enumerate() {
            let reading = parent.read(context, &segment, *n, true)?;
            uplinks[index].push(reading.uplink_bytes as f64 / 1e6);
            if *n == most {
                seconds.push(reading.seconds);
                by_unicast.push(reading.by_unicast as f64);
            }
            let reading = parent.read(context, &segment, *n, false)?;
            unicasts[index].push(reading.uplink_bytes as f64 / 1e6);
            if *n == most {
                unicast_seconds.push(reading.seconds);
            }
            let reading = parent.by_swarm(context, &segment, *n)?;
            swarms[index].push(reading.uplink_bytes as f64 / 1e6);
            if *n == most {
                swarm_seconds.push(reading.seconds);
            }
        }
        for host in 1..=most {
            segment.lose(host, 1)?;
        }
        let reading = parent.read(context, &segment, most, true)?;
        ensure!(reading.asked_again > 0, "nothing was lost");
        lossy.push(reading.uplink_bytes as f64 / 1e6);
        lossy_by_unicast.push(reading.by_unicast as f64);
        for host in 1..=most {
            segment.lose_nothing(host)?;
        }
    }
    for (index, n) in HOSTS[..hosts].iter().enumerate() {
        let unicast = unicasts[index].median();
        let figure = report.add(&format!("uplink_mb_n{n}"), "MB", &uplinks[index]);
        figure.against("the same by unicast", "MB", unicast);
        let multicast = uplinks[index].median();
        let figure = report.add(&format!("swarm_uplink_mb_n{n}"), "MB", &swarms[index]);
        figure.against("the same by multicast", "MB", multicast);
    }
    let first = &uplinks[0];
    let last = &uplinks[hosts - 1];
    let unicast = &unicasts[hosts - 1];
    report
        .add(&format!("uplink_n{most}_over_n1"), "x", &last.over(first))
        .against("unicast, the same ratio", "x", unicast.over(first).median());
    report.add(
        &format!("unicast_over_multicast_n{most}"),
        "x",
        &unicast.over(last),
    );
    report.add(
        &format!("loss1_uplink_n{most}_over_n1"),
        "x",
        &lossy.over(first),
    );
    report.add(&format!("by_unicast_chunks_n{most}"), "chunks", &by_unicast);
    report.add(
        &format!("loss1_by_unicast_chunks_n{most}"),
        "chunks",
        &lossy_by_unicast,
    );
    report
        .add(&format!("seconds_n{most}"), "s", &seconds)
        .against("the same by unicast", "s", unicast_seconds.median());
    let by_swarm = &swarms[hosts - 1];
    report.add(
        &format!("swarm_over_multicast_n{most}"),
        "x",
        &by_swarm.over(last),
    );
    report
        .add(&format!("swarm_seconds_n{most}"), "s", &swarm_seconds)
        .against("the same by multicast", "s", seconds.median());
    super::mcast_clones::add(context, &mut report)?;
    report.note(format!(
        "{} MB of noise; each host's link is limited to 1 Gbit/s; bytes are those of its device, headers included; every chunk \
         was checked by its hash, and the list of hashes against what was made",
        bytes / 1_000_000
    ));
    Ok(report)
}

impl Parent {
    /// Makes the state, and a hub in the parent's namespace that serves it.
    fn new(context: &Context, segment: &Segment, bytes: usize) -> anyhow::Result<Parent> {
        let dir = context.scratch.join("parent");
        std::fs::create_dir_all(&dir)?;
        let (repository, image) = LocalRam::image(&dir, bytes)?;
        let noise = floe_testbed::workload::noise(bytes, 1);
        let chunks = noise.chunks(CHUNK_SIZE).map(Hash::of).collect();
        let home = segment.host(0);
        let hub = Hub::start(Some(home), &dir.join("hub"), segment.address(0), PORT)?;
        let options = PushOptions {
            name: Some("parent".into()),
            ..PushOptions::default()
        };
        let pushed = home.run(|| {
            push(
                &repository,
                &image,
                &hub.url,
                Some(&hub.token),
                &options,
                &|_| (),
            )
        })?;
        pushed?;
        Ok(Parent {
            image,
            chunks,
            repository,
            hub,
        })
    }

    /// Lets the first `n` hosts read everything at the same time.
    fn read(
        &self,
        context: &Context,
        segment: &Segment,
        n: usize,
        multicast: bool,
    ) -> anyhow::Result<Reading> {
        let key = GroupKey::of(&self.hub.token);
        let open = || {
            let source = Arc::new(Directory::new(self.repository.clone()));
            let options = ServerOptions::new(segment.address(0), key);
            MulticastServer::open(self.image, source, &options)
        };
        let server = match multicast {
            true => Some(segment.host(0).run(open)??),
            false => None,
        };
        let invitation = server.as_ref().map(MulticastServer::invitation);
        let (ready, go) = (Barrier::new(n + 1), Barrier::new(n + 1));
        let (before, told, seconds) = std::thread::scope(|scope| {
            let hosts: Vec<_> = (1..=n)
                .map(|number| {
                    let (ready, go) = (&ready, &go);
                    let dir = context.scratch.join(format!("host{number}"));
                    let host = segment.host(number);
                    scope.spawn(move || self.host(host, &dir, invitation, ready, go))
                })
                .collect();
            // tables are loaded and connections are open
            ready.wait();
            let before = segment.sent_bytes(0);
            let started = Instant::now();
            go.wait();
            let told = of_all(hosts);
            (before, told, started.elapsed().as_secs_f64())
        });
        let told = told?;
        std::thread::sleep(QUIET);
        let stats = server.as_ref().map(MulticastServer::stats);
        tracing::info!(n, multicast, seconds, ?stats, ?told, "read");
        Ok(Reading {
            uplink_bytes: segment.sent_bytes(0)? - before?,
            seconds: told.iter().map(|told| told.seconds).fold(0.0, f64::max),
            by_unicast: told.iter().map(|told| told.by_unicast).sum(),
            asked_again: told.iter().map(|told| told.asked_again).sum(),
        })
    }

    /// Runs one host. If it fails, the others need not wait for it.
    fn host(
        &self,
        host: &Namespace,
        dir: &Path,
        invitation: Option<&Invitation>,
        ready: &Barrier,
        go: &Barrier,
    ) -> anyhow::Result<Told> {
        let result = host.run(|| {
            let reader = Reader::join(self, dir, invitation);
            ready.wait();
            go.wait();
            reader?.read(self)
        })?;
        std::fs::remove_dir_all(dir)?;
        result
    }
}

/// Waits for all hosts. Returns what each did, or the first error.
fn of_all<T>(hosts: Vec<ScopedJoinHandle<'_, anyhow::Result<T>>>) -> anyhow::Result<Vec<T>> {
    let ends = hosts.into_iter().map(|host| {
        host.join()
            .unwrap_or_else(|_| anyhow::bail!("a host panicked"))
    });
    ends.collect()
}

/// Where the hosts of a swarm wait for each other: until the hub lists all of them, until all are about to begin, and until all have
/// everything, so that none goes while it has something to give.
struct Meet {
    known: Barrier,
    ready: Barrier,
    go: Barrier,
    done: Barrier,
}

impl Parent {
    /// Lets the first `n` hosts bring the same state at the same time as an image of the hub's, by a swarm.
    fn by_swarm(&self, context: &Context, segment: &Segment, n: usize) -> anyhow::Result<Reading> {
        let meet = Meet {
            known: Barrier::new(n),
            ready: Barrier::new(n + 1),
            go: Barrier::new(n + 1),
            done: Barrier::new(n),
        };
        let (before, seconds) = std::thread::scope(|scope| {
            let hosts: Vec<_> = (1..=n)
                .map(|number| {
                    let (meet, host) = (&meet, segment.host(number));
                    let address = segment.address(number);
                    let dir = context.scratch.join(format!("swarm{number}"));
                    scope.spawn(move || self.in_swarm(host, address, &dir, meet))
                })
                .collect();
            meet.ready.wait();
            let before = segment.sent_bytes(0);
            meet.go.wait();
            let seconds = of_all(hosts);
            (before, seconds)
        });
        let seconds = seconds?;
        std::thread::sleep(QUIET);
        tracing::info!(n, ?seconds, "brought by a swarm");
        Ok(Reading {
            uplink_bytes: segment.sent_bytes(0)? - before?,
            seconds: seconds.iter().copied().fold(0.0, f64::max),
            by_unicast: 0,
            asked_again: 0,
        })
    }

    /// Runs one host of a swarm; returns the seconds until it had everything. If it fails, the others need not wait for it.
    fn in_swarm(
        &self,
        host: &Namespace,
        address: Ipv4Addr,
        dir: &Path,
        meet: &Meet,
    ) -> anyhow::Result<f64> {
        let seconds = host.run(|| {
            let known = Member::announce(self, address);
            meet.known.wait();
            let member = known.and_then(|member| member.enter(self, dir));
            meet.ready.wait();
            meet.go.wait();
            let brought = member.and_then(|member| Ok((member.bring()?, member)));
            meet.done.wait();
            let (seconds, member) = brought?;
            member.end(self)?;
            anyhow::Ok(seconds)
        })??;
        std::fs::remove_dir_all(dir)?;
        Ok(seconds)
    }
}

/// What a host of a swarm uses: dropped in this order.
struct Member {
    swarm: Option<Swarm>,
    host: Host,
    hub: HubClient,
    me: SwarmJoin,
    runtime: tokio::runtime::Runtime,
}

impl Member {
    /// Listens at this address, and lets the hub list it.
    fn announce(parent: &Parent, address: Ipv4Addr) -> anyhow::Result<Member> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let mut secret = [1; 32];
        secret[0] = address.octets()[3];
        let host = runtime.block_on(Host::listen(secret, &[SocketAddr::from((address, 0))]))?;
        let (url, token) = (&parent.hub.url, Some(&*parent.hub.token));
        let hub = HubClient::new(url, token, None, &Cancel::default())?;
        let me = SwarmJoin {
            key: Hash(host.key().0).to_string(),
            addresses: host.addresses().iter().map(ToString::to_string).collect(),
            content: None,
            layout: None,
            open: false,
        };
        hub.join_swarm(&parent.image, &me)?;
        Ok(Member {
            swarm: None,
            host,
            hub,
            me,
            runtime,
        })
    }

    /// Joins those whom the hub lists now.
    fn enter(mut self, parent: &Parent, dir: &Path) -> anyhow::Result<Member> {
        let listed = self.hub.join_swarm(&parent.image, &self.me)?;
        let (content, packs) = content_of(&listed)?;
        let shelf = Arc::new(Shelf::open(dir, content)?);
        let hub = self.hub.clone();
        let seed: Arc<dyn Seed> = Arc::new(FromHub {
            hub,
            image: parent.image,
            packs,
        });
        let options = Options {
            image: parent.image.0,
            config: Config::ours(),
            token: digits(&listed.token)?,
            members: members(&listed)?,
        };
        let within = self.runtime.enter();
        let swarm = self.host.join(shelf, Some(seed), options)?;
        drop(within);
        self.swarm = Some(swarm);
        Ok(self)
    }

    fn swarm(&self) -> anyhow::Result<&Swarm> {
        let swarm = self.swarm.as_ref();
        swarm.ok_or_else(|| anyhow!("it is in no swarm"))
    }

    /// Needs every piece in order, with all of them known beforehand; returns the seconds that takes.
    fn bring(&self) -> anyhow::Result<f64> {
        let (swarm, started) = (self.swarm()?, Instant::now());
        let order: Vec<PieceId> = (0..swarm.shelf().content().pieces()).collect();
        self.runtime.block_on(async {
            swarm.predict(&order, &[]).await?;
            for piece in &order {
                swarm.need(&[*piece]).await?;
            }
            anyhow::Ok(())
        })?;
        Ok(started.elapsed().as_secs_f64())
    }

    /// Holds what has come to the roots that the hub names, and goes.
    fn end(mut self, parent: &Parent) -> anyhow::Result<()> {
        let shelf = self.swarm()?.shelf().clone();
        for (number, pack) in shelf.content().packs().iter().enumerate() {
            let bytes = shelf.read(number, 0..pack.bytes)?;
            ensure!(Hash::of(&bytes).0 == pack.root, "pack {number} is wrong");
        }
        let swarm = self.swarm.take();
        let Member {
            host,
            hub,
            me,
            runtime,
            ..
        } = self;
        runtime.block_on(async move {
            if let Some(swarm) = swarm {
                swarm.leave().await;
            }
            host.close().await;
        });
        hub.leave_swarm(&parent.image, &me.key)?;
        Ok(())
    }
}

/// What a host uses to read.
struct Reader {
    fetcher: Fetcher,
    multicast: Option<(Arc<Group>, Arc<Multicast>)>,
    hashes: Vec<Hash>,
}

impl Reader {
    fn join(
        parent: &Parent,
        dir: &Path,
        invitation: Option<&Invitation>,
    ) -> anyhow::Result<Reader> {
        let cache = Arc::new(Cache::open(dir, CACHE_BYTES)?);
        let url = format!("floe+{}", parent.hub.url);
        let unicast: Arc<dyn Source> = Arc::new(Retry::new(
            Registry::default().open_at(&url, Some(&parent.hub.token), None)?,
            RetryOptions::default(),
        ));
        let mut multicast = None;
        let mut source = unicast.clone();
        if let Some(invitation) = invitation {
            let group = Arc::new(Group::join(invitation, cache.clone())?);
            let both = Arc::new(Multicast::new(group.clone(), unicast, cache.clone()));
            source = both.clone();
            multicast = Some((group, both));
        }
        let manifest = source.manifest(&parent.image)?;
        let fetcher = Fetcher::new(source, cache, FetchOptions::default());
        let region = manifest.region("ram").context("it was made with one")?;
        let mut hashes = Vec::new();
        for segment in &region.segments {
            let table = fetcher.demand_wait(&parent.image, Kind::Segment, segment)?;
            hashes.extend_from_slice(Table::decode(&table)?.hashes());
        }
        hashes.truncate(parent.chunks.len());
        Ok(Reader {
            fetcher,
            multicast,
            hashes,
        })
    }

    /// Reads everything in order, prefetching some way ahead.
    fn read(self, parent: &Parent) -> anyhow::Result<Told> {
        ensure!(self.hashes == parent.chunks, "this is not what was made");
        let started = Instant::now();
        let prefetch = |from: usize| {
            let ahead = self.hashes.iter().skip(from).take(AHEAD);
            let items = ahead.map(|hash| (Kind::Chunk, *hash)).collect();
            self.fetcher
                .prefetch(Who::node(Purpose::Prefetch), &parent.image, items);
        };
        prefetch(0);
        for (number, hash) in self.hashes.iter().enumerate() {
            if number.is_multiple_of(AHEAD) {
                prefetch(number + AHEAD);
            }
            let chunk = self.fetcher.demand_wait(&parent.image, Kind::Chunk, hash)?;
            ensure!(chunk_hash(&chunk) == *hash, "chunk {number} is wrong");
        }
        let mut told = Told {
            seconds: started.elapsed().as_secs_f64(),
            ..Told::default()
        };
        if let Some((group, source)) = &self.multicast {
            told.by_unicast = source.by_unicast();
            told.asked_again = group.stats().asked_again;
        }
        Ok(told)
    }
}
