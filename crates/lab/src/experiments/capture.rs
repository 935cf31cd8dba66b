//! `capture`: how long a running guest is paused for a capture, and what a second capture a minute later stores. Compared
//! with QEMU's own way to a file, `stop` and `migrate`, on a guest of the same size.
use anyhow::Context as _;
use floe_image::{CHUNK_SIZE, Hash, Manifest, Region, Segment};
use floe_store::Repository;
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::live::Node;
use floe_testbed::plain::{Hardware, PlainQemu};
use floe_testbed::wan;
use std::time::Duration;

/// Time between two captures whose pause is measured.
const BETWEEN: Duration = Duration::from_secs(3);
/// Bytes of a patch in a manifest: a chunk's number and its hash.
const PATCH_BYTES: u64 = 36;
/// The time after which the second capture is made.
const LATER: Duration = Duration::from_secs(60);

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("capture", context.quick);
    let (guest, memory) = wan::guest(context)?;
    let home = context.scratch.join("node");
    let node = Node::start(None, &home, false)?;
    node.import(&guest, "guest", memory)?;
    node.boot("guest", "m")?;
    let hardware = Hardware::new(&guest, memory, 2);
    let mut plain = PlainQemu::boot(&context.scratch.join("plain"), hardware)?;

    let (mut pauses, mut totals, mut migrations) =
        (Samples::default(), Samples::default(), Samples::default());
    for round in 0..context.pick(7, 2) {
        std::thread::sleep(BETWEEN);
        let outcome = node.capture("m", &format!("c{round}"), false, 0)?;
        pauses.push(outcome.pause_ms.context("a capture tells its pause")?);
        totals.push(outcome.total_ms);
        migrations.push(plain.save(&context.scratch.join("state"))?.as_secs_f64() * 1000.0);
    }
    drop(plain);
    report.add("pause_ms_p50", "ms", &pauses).against(
        "QEMU's stop and migrate to a file",
        "ms",
        migrations.median(),
    );
    report.add("capture_ms_p50", "ms", &totals);

    let mut ratios = Samples::default();
    let (mut new_mb, mut changed_mb) = (Samples::default(), Samples::default());
    let mut before = node
        .capture("m", "base", false, 0)?
        .image
        .context("a capture makes an image")?
        .id;
    for round in 0..context.pick(3, 1) {
        std::thread::sleep(context.pick(LATER, BETWEEN));
        let outcome = node.capture("m", &format!("later{round}"), false, 0)?;
        let after = outcome.image.context("a capture makes an image")?.id;
        let (changed, stored) = difference(&home.join("repo"), &before, &after)?;
        anyhow::ensure!(
            changed > 0,
            "nothing changed in the guest between two captures"
        );
        ratios.push(stored as f64 / changed as f64);
        new_mb.push(stored as f64 / 1e6);
        changed_mb.push(changed as f64 / 1e6);
        before = after;
    }
    report.add("incremental_ratio", "x", &ratios).against(
        "bytes of the chunks that changed",
        "MB",
        changed_mb.median(),
    );
    report.add("incremental_mb", "MB", &new_mb);
    report.note("the guest is idle at its prompt; incremental: what a capture stores beyond the one before it");
    Ok(report)
}

/// Returns the bytes of the chunks in which one image differs from the other (zero ones not counted), and the bytes of
/// the pack files that only it has and of the patches in its manifest.
fn difference(
    repository: &std::path::Path,
    before: &str,
    after: &str,
) -> anyhow::Result<(u64, u64)> {
    let repository = Repository::open(repository)?;
    let (before, after): (Hash, Hash) = (before.parse()?, after.parse()?);
    let old: Manifest = repository.manifest(&before)?;
    let new: Manifest = repository.manifest(&after)?;
    let (old_scope, new_scope) = (repository.scope(&before)?, repository.scope(&after)?);
    let mut changed = 0;
    for region in &new.regions {
        let base = old.region(&region.name);
        for index in 0..region.segments.len() {
            let same = |base: &&Region| {
                base.segments.get(index) == region.segments.get(index)
                    && base.patches_of(index) == region.patches_of(index)
            };
            if base.as_ref().is_some_and(same) {
                continue;
            }
            let now = new_scope.table(region, index)?;
            let was = match base.filter(|base| index < base.segments.len()) {
                Some(base) => old_scope.table(base, index)?,
                None => Segment::new(),
            };
            let pairs = now.hashes().iter().zip(was.hashes());
            changed += pairs
                .filter(|(now, was)| now != was && !now.is_zero())
                .count() as u64;
        }
    }
    let patches = |manifest: &Manifest| -> u64 {
        let count = manifest.regions.iter().map(|region| region.patches.len());
        count.sum::<usize>() as u64 * PATCH_BYTES
    };
    let known = repository.layout(&before)?;
    let new_packs = repository.layout(&after)?;
    let stored: u64 = new_packs
        .packs
        .iter()
        .filter(|pack| known.packs.iter().all(|old| old.id != pack.id))
        .map(|pack| pack.file_bytes)
        .sum();
    Ok((changed * CHUNK_SIZE as u64, stored + patches(&new)))
}
