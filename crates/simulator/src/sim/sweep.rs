//! Runs many replays: every workload, with each of its runs left out in turn, over every link, with every policy.
use super::{LinkSpec, Run, Setup, replay};
use floe_image::Hash;
use floe_planner::{Config, Method, Model, Policy, TrainOptions, ZeroTrace, train};
use floe_testbed::traces::Workload;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes of a Debian machine's manifest and device state on the wire, which are needed with any policy before it can
/// start.
pub const START_WIRE_BYTES: usize = 64 << 10;

/// The policies that are compared, with their names in figures.
pub const POLICIES: [(&str, Policy, Option<Method>); 4] = [
    ("demand", Policy::DemandOnly, None),
    ("vmtorrent", Policy::VmTorrent, Some(Method::VmTorrent)),
    ("vtube", Policy::VTube, Some(Method::VTube)),
    ("floe", Policy::Floe, Some(Method::Floe)),
];

/// Calls `job` for all numbers below `count` on all cores, and returns the results ordered by number.
pub fn parallel<T: Send>(count: usize, job: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let mut all: Vec<(usize, T)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut done = Vec::new();
                    loop {
                        let n = next.fetch_add(1, Relaxed);
                        if n >= count {
                            return done;
                        }
                        done.push((n, job(n)));
                    }
                })
            })
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().expect("a run panicked"))
            .collect()
    });
    all.sort_by_key(|(n, _)| *n);
    all.into_iter().map(|(_, answer)| answer).collect()
}

/// Trains a model on all traces except those for which `without` returns true.
pub fn learn(workload: &Workload, method: Method, without: impl Fn(usize) -> bool) -> Model {
    let traces: Vec<ZeroTrace> = workload
        .traces
        .iter()
        .enumerate()
        .filter(|(n, _)| !without(*n))
        .map(|(_, trace)| trace.clone())
        .collect();
    let image = Hash::of(workload.meta.workload.as_bytes());
    train(method, &image, &traces, &TrainOptions::default())
}

/// Replays the trace with this number, with a policy and what it has learnt.
pub fn run_one(
    workload: &Workload,
    trace: usize,
    link: &LinkSpec,
    policy: Policy,
    model: Option<&(Arc<Model>, usize)>,
) -> anyhow::Result<Run> {
    let config = Config {
        policy,
        ..Config::default()
    };
    let setup = Setup {
        image: &workload.image,
        trace: &workload.traces[trace],
        link,
        config,
        model: model.map(|(model, _)| model.clone()),
        preamble_bytes: START_WIRE_BYTES + model.map_or(0, |(_, bytes)| *bytes),
    };
    Ok(replay(&setup)?)
}

/// Identifies a run of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Index of the workload.
    pub workload: usize,
    /// Index of the link.
    pub link: usize,
    /// Index of the policy in [`POLICIES`].
    pub policy: usize,
    /// Index of the trace that was left out of training and replayed.
    pub trace: usize,
}

/// Replays all combinations.
pub fn sweep(workloads: &[Workload], links: &[LinkSpec]) -> anyhow::Result<BTreeMap<Key, Run>> {
    let left_out: Vec<(usize, usize)> = workloads
        .iter()
        .enumerate()
        .flat_map(|(w, workload)| (0..workload.traces.len()).map(move |t| (w, t)))
        .collect();
    let answers = parallel(left_out.len() * POLICIES.len(), |n| {
        let ((w, trace), p) = (left_out[n / POLICIES.len()], n % POLICIES.len());
        let (_, policy, method) = POLICIES[p];
        let workload = &workloads[w];
        let model = method.map(|method| {
            let model = learn(workload, method, |other| other == trace);
            let bytes = model.encode();
            // As transferred: the hub compresses its answers.
            let packed = zstd::bulk::compress(&bytes, 3).map_or(bytes.len(), |packed| packed.len());
            (Arc::new(model), packed)
        });
        let mut runs = Vec::new();
        for (l, link) in links.iter().enumerate() {
            let key = Key {
                workload: w,
                link: l,
                policy: p,
                trace,
            };
            let run = run_one(workload, trace, link, policy, model.as_ref()).map_err(|error| {
                let (name, link) = (&workload.meta.workload, &link.name);
                error.context(format!("{name}, run {trace}, {link}, {}", POLICIES[p].0))
            })?;
            runs.push((key, run));
        }
        anyhow::Ok(runs)
    });
    let mut all = BTreeMap::new();
    for answer in answers {
        all.extend(answer?);
    }
    Ok(all)
}
