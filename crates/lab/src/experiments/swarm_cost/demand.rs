//! How long a machine waits for a piece while its host is busy with prefetch: two hosts of a swarm and a link of 100 Mbit/s between them, with
//! all that stands between a demand and its bytes but the mount. The alternative is the same demand with nothing else under way.
use crate::harness::{Context, Report, Samples};
use crate::link::Segment;
use anyhow::{Context as _, anyhow, ensure};
use floe_peers::{
    Config, Content, Host, Member, Options, PIECE_BYTES, PieceId, Shelf, Swarm, Tree,
};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::oneshot::{self, Receiver, Sender};

/// What each host sends and receives at most, in bits a second.
const LINK_BITS_PER_S: u64 = 100_000_000;
/// Prefetched pieces that are wanted and have not come, all the time.
const AHEAD: usize = 32;
/// For how long nothing but prefetch comes first, until the link is full.
const WARMING: Duration = Duration::from_secs(2);
/// Between one demand's answer and the next demand, in milliseconds: at random, since prefetch has a rhythm.
const PAUSE_MS: std::ops::Range<u64> = 50..150;
/// A run that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(120);
/// What the members of the swarm show each other.
const TOKEN: [u8; 32] = [7; 32];

/// The image: a pack that is prefetched, then one of which each piece is demanded once.
struct Image {
    content: Arc<Content>,
    packs: [Vec<u8>; 2],
}

/// The numbers of pieces that a run demands, first with nothing else under way.
struct Plan {
    prefetch: PieceId,
    idle: usize,
    demands: usize,
    warming: Duration,
    seed: u64,
}

/// What one run has shown.
struct Told {
    idle_ms: Vec<f64>,
    demands_ms: Vec<f64>,
    prefetch_mb_per_s: f64,
}

/// How a host hears of the other one, and is heard of.
struct Introduction {
    mine: Sender<Member>,
    theirs: Receiver<Member>,
}

/// Adds the figures.
pub(super) fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let segment = Segment::new(2).context("hosts of our own need root")?;
    for host in [0, 1] {
        segment.limit(host, LINK_BITS_PER_S)?;
    }
    let plan = |round| Plan {
        // more than the link carries meanwhile
        prefetch: context.pick(2400, 400),
        idle: context.pick(20, 3),
        demands: context.pick(60, 6),
        warming: context.pick(WARMING, WARMING / 8),
        seed: round,
    };
    let image = Image::new(&plan(0))?;
    let full = context.scratch.join("full");
    let full = image.shelf(&full)?;
    for (number, pack) in image.packs.iter().enumerate() {
        ensure!(full.fill(number, &pack[..])?, "a pack is not itself");
    }
    let (mut idle, mut busy, mut rate) =
        (Samples::default(), Samples::default(), Samples::default());
    for round in 0..context.pick(3, 1) {
        let dir = context.scratch.join(format!("empty{round}"));
        let told = measure(&segment, full.clone(), image.shelf(&dir)?, &plan(round))?;
        told.idle_ms.into_iter().for_each(|ms| idle.push(ms));
        told.demands_ms.into_iter().for_each(|ms| busy.push(ms));
        rate.push(told.prefetch_mb_per_s);
    }
    report.add("demand_under_prefetch_ms", "ms", &busy).against(
        "with nothing else under way",
        "ms",
        idle.median(),
    );
    report
        .add_quantile("demand_under_prefetch_p99_ms", "ms", &busy, 0.99)
        .against("with nothing else under way", "ms", idle.quantile(0.99));
    report.add("prefetch_beside_demands_mb_per_s", "MB/s", &rate);
    report.note(format!(
        "demand_under_prefetch: two hosts of a swarm, links of {} Mbit/s each way with up to 50 ms of queue; {AHEAD} pieces of 64 KiB are wanted \
         ahead all the time, and one is needed at random times; from the need until the piece is verified and on the disk",
        LINK_BITS_PER_S / 1_000_000
    ));
    Ok(())
}

impl Image {
    fn new(plan: &Plan) -> anyhow::Result<Image> {
        let mut random = StdRng::seed_from_u64(1);
        // one demand more, which comes before all others
        let sizes = [plan.prefetch as usize, 1 + plan.idle + plan.demands];
        let packs = sizes.map(|pieces| {
            let mut bytes = vec![0; pieces * PIECE_BYTES as usize];
            random.fill_bytes(&mut bytes);
            bytes
        });
        let mut known = Vec::new();
        for pack in &packs {
            known.push(Tree::of(&pack[..], pack.len() as u64)?.pack());
        }
        let content = Arc::new(Content::new(known)?);
        Ok(Image { content, packs })
    }

    fn shelf(&self, dir: &Path) -> anyhow::Result<Arc<Shelf>> {
        std::fs::create_dir_all(dir)?;
        Ok(Arc::new(Shelf::open(dir, self.content.clone())?))
    }
}

/// Lets one host of the segment take from the other.
fn measure(
    segment: &Segment,
    full: Arc<Shelf>,
    empty: Arc<Shelf>,
    plan: &Plan,
) -> anyhow::Result<Told> {
    let at = |host| SocketAddr::from((segment.address(host), 0));
    let (giver, takers_giver) = oneshot::channel();
    let (taker, givers_taker) = oneshot::channel();
    let gives = Introduction {
        mine: giver,
        theirs: givers_taker,
    };
    let takes = Introduction {
        mine: taker,
        theirs: takers_giver,
    };
    let (done, until) = oneshot::channel::<()>();
    std::thread::scope(|scope| {
        let gives = scope.spawn(move || {
            segment
                .host(0)
                .run(move || drive(give(at(0), full, gives, until)))
        });
        let told = segment.host(1).run(move || {
            let told = drive(take(at(1), empty, takes, plan));
            drop(done);
            told
        })?;
        let gave = gives.join().map_err(|_| anyhow!("the giver panicked"))?;
        match (told, gave?) {
            (Ok(told), Ok(())) => Ok(told),
            (Err(error), Ok(())) | (Ok(_), Err(error)) => Err(error),
            (Err(told), Err(gave)) => Err(anyhow!("{told:#}; the giver: {gave:#}")),
        }
    })
}

/// Drives one host; to be called on a thread in its namespace.
fn drive<T>(host: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build()?;
    runtime.block_on(async {
        let done = tokio::time::timeout(LIMIT, host).await;
        done.map_err(|_| anyhow!("it took more than {LIMIT:?}"))?
    })
}

/// Listens, and joins the swarm of the two.
async fn meet(
    secret: [u8; 32],
    at: SocketAddr,
    shelf: Arc<Shelf>,
    introduction: Introduction,
) -> anyhow::Result<(Host, Swarm)> {
    let host = Host::listen(secret, &[at]).await?;
    let member = Member {
        key: host.key(),
        addresses: host.addresses(),
    };
    let told = introduction.mine.send(member);
    told.map_err(|_| anyhow!("the other host is gone"))?;
    let options = Options {
        config: Config::ours(),
        token: TOKEN,
        members: vec![introduction.theirs.await?],
    };
    let swarm = host.join(shelf, None, options)?;
    Ok((host, swarm))
}

async fn give(
    at: SocketAddr,
    shelf: Arc<Shelf>,
    introduction: Introduction,
    until: Receiver<()>,
) -> anyhow::Result<()> {
    let (host, swarm) = meet([1; 32], at, shelf, introduction).await?;
    let _ = until.await; // an error is that the other side is done, too
    swarm.leave().await;
    host.close().await;
    Ok(())
}

async fn take(
    at: SocketAddr,
    shelf: Arc<Shelf>,
    introduction: Introduction,
    plan: &Plan,
) -> anyhow::Result<Told> {
    let (host, swarm) = meet([2; 32], at, shelf, introduction).await?;
    let swarm = Arc::new(swarm);
    let mut random = StdRng::seed_from_u64(plan.seed);
    let mut demands = plan.prefetch..;
    // once this is here the two are linked
    need(&swarm, demands.next()).await?;
    let mut idle_ms = Vec::new();
    for _ in 0..plan.idle {
        pause(&mut random).await;
        idle_ms.push(need(&swarm, demands.next()).await?);
    }
    let (next, started) = (Arc::new(AtomicU32::new(0)), Instant::now());
    let mut ahead = tokio::task::JoinSet::new();
    for _ in 0..AHEAD {
        let (swarm, next, end) = (swarm.clone(), next.clone(), plan.prefetch);
        ahead.spawn(async move {
            loop {
                let piece = next.fetch_add(1, Ordering::Relaxed);
                if piece >= end || swarm.want(&[piece]).await.is_err() {
                    return;
                }
            }
        });
    }
    tokio::time::sleep(plan.warming).await;
    let mut demands_ms = Vec::new();
    for _ in 0..plan.demands {
        pause(&mut random).await;
        demands_ms.push(need(&swarm, demands.next()).await?);
    }
    let (asked, took) = (next.load(Ordering::Relaxed), started.elapsed());
    ensure!(asked < plan.prefetch, "there was too little to prefetch");
    let bytes = f64::from(asked - AHEAD as u32) * PIECE_BYTES as f64;
    drop(ahead);
    swarm.leave().await;
    host.close().await;
    Ok(Told {
        idle_ms,
        demands_ms,
        prefetch_mb_per_s: bytes / 1e6 / took.as_secs_f64(),
    })
}

async fn pause(random: &mut StdRng) {
    let pause_ms = random.random_range(PAUSE_MS);
    tokio::time::sleep(Duration::from_millis(pause_ms)).await;
}

/// Waits for a piece and returns how long that took, in milliseconds.
async fn need(swarm: &Swarm, piece: Option<PieceId>) -> anyhow::Result<f64> {
    let since = Instant::now();
    swarm.need(piece.as_slice()).await?;
    Ok(since.elapsed().as_secs_f64() * 1e3)
}
