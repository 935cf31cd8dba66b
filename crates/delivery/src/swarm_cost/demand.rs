//! How long a demand takes while pieces that nobody stands still for come over the same link: two hosts with all that a node has of swarms,
//! each in a network namespace of its own.
use super::goods::{Goods, PATIENCE, connected, member, options, stocked};
use anyhow::{Context as _, anyhow, ensure};
use floe_peers::{Host, Member, PIECE_BYTES, PieceId, Shelf, Swarm};
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::link::Segment;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// What each host sends and receives at most, in bits a second.
const LINK_BITS_PER_S: u64 = 100_000_000;
/// Pieces that are wanted ahead and have not come, all the time.
const AHEAD: usize = 32;
/// For how long nothing but these comes first, until the link is full.
const WARMING: Duration = Duration::from_secs(2);
/// Between two demands, in milliseconds: at random, since prefetch has a rhythm.
const PAUSE_MS: std::ops::Range<u64> = 50..150;
/// A round that takes longer has failed.
const ROUND_MAX: Duration = Duration::from_secs(300);

/// How much is done in a round.
#[derive(Clone, Copy)]
struct Plan {
    /// Demands while nothing else comes.
    alone: u32,
    /// Demands among prefetches.
    among: u32,
    seed: u64,
}

/// What a round has shown.
#[derive(Default)]
struct Told {
    alone_ms: Vec<f64>,
    among_ms: Vec<f64>,
    /// Of prefetched pieces, meanwhile.
    mb_per_s: f64,
}

/// What one of the two hosts has of the other: they tell each other who they are.
struct Ends {
    /// Its own address.
    here: Ipv4Addr,
    me: oneshot::Sender<Member>,
    other: oneshot::Receiver<Member>,
}

/// Adds the figures.
pub(super) fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let segment = Segment::new(2).context("hosts of our own need root")?;
    for host in [0, 1] {
        segment.limit(host, LINK_BITS_PER_S)?;
    }
    // what comes in a round at the link's full speed, and a third more
    let goods = Goods::new(1, context.pick(240, 72) << 20)?;
    let dir = context.scratch.join("demands");
    let (mut alone, mut among, mut rate) =
        (Samples::default(), Samples::default(), Samples::default());
    for round in 0..context.pick(5, 1) {
        let plan = Plan {
            alone: context.pick(20, 3),
            among: context.pick(100, 10),
            seed: round,
        };
        let told = measure(&segment, &dir, &goods, plan)?;
        told.alone_ms.into_iter().for_each(|ms| alone.push(ms));
        told.among_ms.into_iter().for_each(|ms| among.push(ms));
        rate.push(told.mb_per_s);
    }
    report
        .add("demand_under_prefetch_ms", "ms", &among)
        .against("without prefetches", "ms", alone.median());
    report.add_quantile("demand_under_prefetch_p99_ms", "ms", &among, 0.99);
    report.add("prefetch_beside_demands_mb_per_s", "MB/s", &rate);
    report.note(format!(
        "demand_under_prefetch_ms: one host takes from another over links of {} Mbit/s with up to 50 ms of queue; {AHEAD} pieces are wanted all \
         the time, of which the policy asks some at a time, and one is needed at random times",
        LINK_BITS_PER_S / 1_000_000
    ));
    Ok(())
}

/// Lets the second host of a segment take from the first.
fn measure(segment: &Segment, dir: &Path, goods: &Arc<Goods>, plan: Plan) -> anyhow::Result<Told> {
    let (giver, knows_giver) = oneshot::channel();
    let (taker, knows_taker) = oneshot::channel();
    let (over, ended) = oneshot::channel::<()>();
    let gives = Ends {
        here: segment.address(0),
        me: giver,
        other: knows_taker,
    };
    let takes = Ends {
        here: segment.address(1),
        me: taker,
        other: knows_giver,
    };
    let (from, to) = (dir.join("giver"), dir.join("taker"));
    let told = std::thread::scope(|scope| {
        let giver = scope.spawn(|| {
            segment
                .host(0)
                .run(|| drive(give(gives, &from, goods, ended)))
        });
        let told = segment.host(1).run(|| drive(take(takes, &to, goods, plan)));
        drop(over);
        let gave = giver.join().map_err(|_| anyhow!("the giver panicked"))??;
        match (told?, gave) {
            (Ok(told), Ok(())) => Ok(told),
            (Err(error), Ok(())) | (Ok(_), Err(error)) => Err(error),
            (Err(told), Err(gave)) => Err(anyhow!("{told:#}; the giver: {gave:#}")),
        }
    })?;
    std::fs::remove_dir_all(&to)?;
    Ok(told)
}

/// Drives one host; to be called on a thread in its namespace, where its sockets are made.
fn drive<T>(host: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let done = tokio::time::timeout(ROUND_MAX, host).await;
        done.map_err(|_| anyhow!("it took more than {ROUND_MAX:?}"))?
    })
}

/// Has all of it, and gives until the other is done.
async fn give(
    ends: Ends,
    dir: &Path,
    goods: &Arc<Goods>,
    ended: oneshot::Receiver<()>,
) -> anyhow::Result<()> {
    let host = Host::listen([1; 32], &[SocketAddr::from((ends.here, 0))]).await?;
    let shelf = stocked(&host, dir, goods, &[0]).await?;
    let swarm = meet(&host, shelf, ends.me, ends.other).await?;
    let _ = ended.await; // it is dropped in the end
    drop(swarm);
    host.close().await;
    Ok(())
}

/// Takes part together with the other host.
async fn meet(
    host: &Host,
    shelf: Arc<Shelf>,
    me: oneshot::Sender<Member>,
    other: oneshot::Receiver<Member>,
) -> anyhow::Result<Swarm> {
    let gone = || anyhow!("the other host has ended");
    me.send(member(host)).map_err(|_| gone())?;
    let other = other.await.map_err(|_| gone())?;
    Ok(host.join(shelf, None, options(&[member(host), other]))?)
}

/// Needs a piece from time to time, first alone and then among many that are wanted ahead.
async fn take(ends: Ends, dir: &Path, goods: &Arc<Goods>, plan: Plan) -> anyhow::Result<Told> {
    let host = Host::listen([2; 32], &[SocketAddr::from((ends.here, 0))]).await?;
    let shelf = Arc::new(Shelf::open(dir, goods.content.clone())?);
    let swarm = Arc::new(meet(&host, shelf, ends.me, ends.other).await?);
    connected(&swarm, 1).await?;
    let mut random = StdRng::seed_from_u64(plan.seed);
    // prefetch takes pieces from the first on, demands from the last
    let all = goods.content.pieces();
    let last = all.saturating_sub(plan.alone + plan.among);
    let mut needed = (last..all).rev();
    let mut told = Told::default();
    for piece in needed.by_ref().take(plan.alone as usize) {
        told.alone_ms
            .push(demand(&swarm, piece, &mut random).await?);
    }
    let (next, mut ahead) = (Arc::new(AtomicU32::new(0)), JoinSet::new());
    for _ in 0..AHEAD {
        let (swarm, next) = (swarm.clone(), next.clone());
        ahead.spawn(async move {
            let mut piece = next.fetch_add(1, Relaxed);
            while piece < last && swarm.want(&[piece]).await.is_ok() {
                piece = next.fetch_add(1, Relaxed);
            }
        });
    }
    tokio::time::sleep(WARMING).await;
    let (from, began) = (next.load(Relaxed), Instant::now());
    for piece in needed {
        told.among_ms
            .push(demand(&swarm, piece, &mut random).await?);
    }
    let came = next.load(Relaxed);
    ensure!(came < last, "all prefetches came before the last demand");
    let came_mb = f64::from(came - from) * PIECE_BYTES as f64 / 1e6;
    told.mb_per_s = came_mb / began.elapsed().as_secs_f64();
    drop(ahead);
    drop(swarm);
    host.close().await;
    Ok(told)
}

/// Returns how long a piece takes that is needed now, in milliseconds, after a pause.
async fn demand(swarm: &Swarm, piece: PieceId, random: &mut StdRng) -> anyhow::Result<f64> {
    let pause = Duration::from_millis(random.random_range(PAUSE_MS));
    tokio::time::sleep(pause).await;
    let began = Instant::now();
    let came = tokio::time::timeout(PATIENCE, swarm.need(&[piece])).await;
    came.context("a demand does not end")??;
    Ok(began.elapsed().as_secs_f64() * 1e3)
}
