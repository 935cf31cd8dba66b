//! `floe image optimize`: arranges an image's packs by what its machines touch, so that data that is used together arrives
//! with one range read from a directory, a web server or a bucket.
//!
//! The arrangement follows what is known of the image: traces that the user names, else those of this host's machines or the
//! model that a hub made from its users' (whichever is made from more traces), else the rehearsal of its capture. The model's
//! clusters determine the order ([`Model::lay_out`]), and the repository does the rest ([`Repository::rearrange`]).

use crate::{
    images::address::{is_address, references},
    traces::{
        LOCAL, Traces, models,
        rehearsed::{FOLLOWED_MAX, TRACE_REGION},
    },
};
use floe_api::*;
use floe_ground::{
    caller::Visible,
    error::{NodeError, at, at_named, refused, usage},
    files::read_bounded,
    news::News,
    report::Report,
};
use floe_image::{Hash, Kind, Manifest, TraceReader};
use floe_planner::{ChunkAt, TrainOptions, ZeroTrace, train};
use floe_source::{RangeReads, range_reads};
use floe_store::Repository;
use floe_traces::{Method, Model, Shape, TRACE_BYTES_MAX, TRACES_MAX, TraceStore};
use parking_lot::RwLockUpgradableReadGuard;
use std::{collections::HashMap, path::Path, time::Duration};

/// How often a wait for other operations checks whether the client is still there.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long training with new traces may take: several times what most take.
pub(super) const TRAIN_PATIENCE: Duration = Duration::from_secs(120);

/// A model and where it comes from.
struct Known {
    model: Model,
    by: LaidOutBy,
}

impl Traces {
    /// Arranges an image's packs anew. If the client hangs up, they stay as they were.
    pub fn optimize(
        &self,
        request: &Visible<OptimizeRequest>,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let (repo, id) = self.where_it_is(&request.image)?;
        let here = repo.dir() == self.images.repo.dir();
        let manifest = repo.manifest(&id)?;
        let known = self.known_of(&repo, &id, &manifest, request)?;
        if known.by == LaidOutBy::Rehearsal {
            report.note("no machine has run this image here: it is laid out by its rehearsal; do it again after some runs");
        }
        report.stage("learn")?;
        let clusters = clusters(&repo, &id, &known.model)?;
        let before = reads(&repo, &id, &clusters)?;
        // the wait is cut into pieces, because one for a lock hears of no client that hangs up;
        // meanwhile no garbage is collected, and no capture starts from packs that are about to be replaced
        let storing = loop {
            match self.images.storing.try_upgradable_read_for(LOOK_EVERY) {
                Some(storing) => break storing,
                None => report.check()?,
            }
        };
        let line = report.progress_line("lay out", "bytes");
        let ready = repo.rearrange(&id, &clusters, &mut |done, total| line.at(done, total))?;
        report.stage("lay out")?;
        let mut waiting = storing;
        let alone = loop {
            match RwLockUpgradableReadGuard::try_upgrade_for(waiting, LOOK_EVERY) {
                Ok(alone) => break alone,
                Err(back) => waiting = back,
            }
            report.check()?;
        };
        let done = ready.publish()?;
        drop(alone);
        report.stage("publish")?;
        let after = reads(&repo, &id, &clusters)?;
        let news = News::ImageOptimized(request.image.clone());
        self.core.tell(&id.short(), &news);
        let optimized = OptimizeReport {
            by: known.by,
            traces: known.model.traces().into(),
            clusters: done.clusters,
            chunks: done.chunks,
            reads_before: before.requests,
            read_bytes_before: before.bytes,
            reads_after: after.requests,
            read_bytes_after: after.bytes,
            packs_before: done.packs_before,
            packs_after: done.packs_after,
            bytes_before: done.bytes_before,
            bytes_after: done.bytes_after,
            written_bytes: done.written_bytes,
            freed_bytes: done.freed_bytes,
            shared_chunks: done.shared_chunks,
            shared_bytes: done.shared_bytes,
        };
        Ok(Outcome {
            image: here.then(|| self.images.summary(&id)).transpose()?,
            optimized: Some(optimized),
            ..Default::default()
        })
    }

    /// Finds the image that a user means: a local one, or one in a directory.
    fn where_it_is(&self, image: &str) -> Result<(Repository, Hash), NodeError> {
        if !is_address(image) {
            return Ok((self.images.repo.clone(), self.images.repo.resolve(image)?));
        }
        let found = references(image)?.into_iter().next();
        let Some(found) = found.filter(|found| found.base.starts_with('/')) else {
            return Err(usage(
                format!("{image} is on a server, whose packs can't be written from here"),
                "optimize the image where its packs are: by its local name before a push, or by its path in a directory",
            ));
        };
        let repo = Repository::open(Path::new(&found.base))?;
        let id = repo.resolve(&found.name)?;
        Ok((repo, id))
    }

    /// Returns what is known of how machines use an image.
    fn known_of(
        &self,
        repo: &Repository,
        id: &Hash,
        manifest: &Manifest,
        request: &OptimizeRequest,
    ) -> Result<Known, NodeError> {
        let shape = Shape::of(*id, manifest);
        if !request.traces.is_empty() {
            let model = learn_from(&request.traces, &shape)?;
            let by = LaidOutBy::Files;
            return Ok(Known { model, by });
        }
        let local = self.trained(id)?.map(|model| (model, LaidOutBy::Traces));
        let fetched = std::fs::read(self.model_file(id, Method::Floe)).ok();
        let fetched = fetched.and_then(|bytes| models::verified(&bytes, id).ok());
        let hubs = fetched.map(|model| (model, LaidOutBy::Hub));
        let rehearsed = || rehearsal(repo, id, manifest).map(|model| (model, LaidOutBy::Rehearsal));
        let best = local
            .into_iter()
            .chain(hubs)
            .max_by_key(|(model, _)| model.traces());
        match best.or_else(rehearsed) {
            Some((model, by)) => Ok(Known { model, by }),
            None => Err(refused(
                format!(
                    "nothing is known of what machines of image {} touch",
                    id.short()
                ),
                format!(
                    "run it once and stop the machine: that makes a trace (`floe trace ls {}` lists them); or name files of traces with --traces",
                    request.image
                ),
            )),
        }
    }

    /// Returns the model from this host's traces; trains it first if there are new ones.
    fn trained(&self, id: &Hash) -> Result<Option<Model>, NodeError> {
        let store = &self.kept.store;
        let kept = store
            .traces(id, LOCAL)
            .map_err(at("cannot list the traces"))?;
        if kept.is_empty() {
            return Ok(None);
        }
        let name = Method::Floe.name();
        let model = || {
            store
                .model(id, LOCAL, name)
                .map_err(at("cannot list the models"))
        };
        if model()?.is_none_or(|model| model.digest != TraceStore::digest(&kept)) {
            self.kept
                .trainer
                .train_now(id, LOCAL, Method::Floe, TRAIN_PATIENCE);
        }
        let bytes = self.local_model(id, Method::Floe).ok_or_else(|| {
            refused(
                format!(
                    "no model could be made of the {} traces of image {}",
                    kept.len(),
                    id.short()
                ),
                "the node's log says why (floe logs); or name files of traces with --traces",
            )
        })?;
        let model = models::verified(&bytes, id);
        model.map(Some).map_err(|why| {
            refused(
                format!("the model of image {} can't be read: {why}", id.short()),
                "run a machine of it once more: the next training writes a new one",
            )
        })
    }
}

/// Trains a model from traces in files.
fn learn_from(files: &[String], shape: &Shape) -> Result<Model, NodeError> {
    if files.len() > TRACES_MAX {
        return Err(usage(
            format!("{} files of traces", files.len()),
            format!("name at most {TRACES_MAX}"),
        ));
    }
    let mut taken = Vec::with_capacity(files.len());
    for path in files {
        if !Path::new(path).is_absolute() {
            return Err(usage(
                format!("{path} is no absolute path"),
                "give the whole path",
            ));
        }
        let bytes = read_bounded(Path::new(path), TRACE_BYTES_MAX as u64 + 1)
            .map_err(at_named(format!("cannot read {path}")))?;
        floe_traces::check(&bytes, shape).map_err(|error| {
            refused(
                format!("{path}: {error}"),
                "name traces that floe trace export wrote for this image",
            )
        })?;
        taken.push(bytes);
    }
    floe_traces::learn(Method::Floe, &shape.image, &taken)
        .and_then(|bytes| models::verified(&bytes, &shape.image))
        .map_err(|why| {
            refused(
                format!("the traces can't be learnt: {why}"),
                "take other ones",
            )
        })
}

/// Returns what the rehearsal of an image's capture shows. Its trace names the image as first captured, without the trace.
fn rehearsal(repo: &Repository, id: &Hash, manifest: &Manifest) -> Option<Model> {
    manifest.region(TRACE_REGION)?;
    let bytes = repo
        .read_region(id, TRACE_REGION, TRACE_BYTES_MAX as u64)
        .ok()?;
    let trace = ZeroTrace::from_accesses(TraceReader::new(&bytes).ok()?.take(FOLLOWED_MAX));
    (!trace.accesses.is_empty())
        .then(|| train(Method::Floe, id, &[trace], &TrainOptions::default()))
}

/// Returns the chunks of the model's clusters.
pub(crate) fn clusters(
    repo: &Repository,
    id: &Hash,
    model: &Model,
) -> Result<Vec<Vec<Hash>>, NodeError> {
    let chunks: Vec<(u8, u32)> = model.chunks().map(|at| (at.region, at.chunk)).collect();
    let hashes = repo.chunk_hashes(id, &chunks)?;
    let content: HashMap<(u8, u32), Hash> = chunks.into_iter().zip(hashes).collect();
    let hash_of = |at: ChunkAt| content.get(&(at.region, at.chunk)).copied();
    Ok(model.lay_out(|at| hash_of(at).unwrap_or(Hash::ZERO)))
}

/// Returns what it costs to fetch each cluster from a server of plain files.
fn reads(repo: &Repository, id: &Hash, clusters: &[Vec<Hash>]) -> Result<RangeReads, NodeError> {
    let scope = repo.scope(id)?;
    let mut all = RangeReads::default();
    for cluster in clusters {
        let items: Vec<(Kind, Hash)> = cluster.iter().map(|hash| (Kind::Chunk, *hash)).collect();
        let one = range_reads(&scope.frames_of(&items)?);
        all.requests += one.requests;
        all.bytes += one.bytes;
    }
    Ok(all)
}
