//! What machines of an image will need next, in pieces: what the image's model says, where its chunks lie in the packs.

use super::pieces::Part;
use floe_image::{CHUNKS_PER_SEGMENT, Hash, Kind, Manifest, Segment};
use floe_peers::PieceId;
use floe_source::{Fetcher, READ_ITEMS_MAX, Request, SourceError};
use floe_traces::Model;
use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

/// How long one batch of tables or indices may take.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Most pieces of a prediction: 4 GiB of packs.
const PIECES_MAX: usize = 1 << 16;

/// Chunks whose times lie in one such span are due together, in milliseconds.
const TOGETHER_MS: u32 = 250;

/// What machines will need next.
#[derive(Debug, Default)]
pub(super) struct Prediction {
    /// Pieces, in the order of their need.
    pub pieces: Vec<PieceId>,
    /// When each is needed, in milliseconds since the start of a run; at least 1.
    pub due_ms: Vec<u32>,
}

/// Returns the pieces that a model's chunks lie in, in the model's order. The tables of the chunks' segments and the packs' indices are read
/// for it.
pub(super) fn order(
    part: &Part,
    model: &Model,
    manifest: &Manifest,
    fetcher: &Fetcher,
) -> Result<Prediction, SourceError> {
    let mut segments = Vec::new();
    let mut known = HashSet::new();
    for at in model.chunks() {
        let number = at.chunk as usize / CHUNKS_PER_SEGMENT;
        if known.insert((at.region, number)) {
            segments.push((at.region, number));
        }
    }
    let tables = tables(&segments, model.image(), manifest, fetcher)?;
    let hash_of = |(region, chunk): (u8, u32)| {
        let table = tables.get(&(region, chunk as usize / CHUNKS_PER_SEGMENT))?;
        let hash = table.hashes().get(chunk as usize % CHUNKS_PER_SEGMENT)?;
        (!hash.is_zero()).then_some((Kind::Chunk, *hash))
    };
    let timed = model.timed_chunks();
    let timed = timed.filter_map(|(at, ms)| Some((hash_of((at.region, at.chunk))?, ms)));
    let timed: Vec<((Kind, Hash), u32)> = timed.collect();
    let together = timed.chunk_by(|(_, a), (_, b)| a / TOGETHER_MS == b / TOGETHER_MS);
    let (mut found, mut listed) = (Prediction::default(), HashSet::new());
    for batch in together.flat_map(|due| due.chunks(READ_ITEMS_MAX)) {
        let wants: Vec<_> = batch.iter().map(|(want, _)| *want).collect();
        let request = Request::prefetch(READ_TIMEOUT);
        for (pack, range) in part.reader.places(&wants, &request)? {
            let of = part.reader.bytes().pieces_of(&pack, &range);
            let new = of.filter(|piece| listed.insert(*piece));
            found.pieces.extend(new);
        }
        // 0 would be now
        let due_ms = batch.first().map_or(1, |(_, ms)| (*ms).max(1));
        found.due_ms.resize(found.pieces.len(), due_ms);
        if found.pieces.len() >= PIECES_MAX {
            found.pieces.truncate(PIECES_MAX);
            found.due_ms.truncate(PIECES_MAX);
            break;
        }
    }
    Ok(found)
}

/// Reads the tables of segments, by region and number. Those that are all zero, or that the image doesn't have, are left out.
fn tables(
    segments: &[(u8, usize)],
    image: Hash,
    manifest: &Manifest,
    fetcher: &Fetcher,
) -> Result<HashMap<(u8, usize), Segment>, SourceError> {
    let hash_of = |(region, number): (u8, usize)| {
        let region = manifest.regions.get(usize::from(region))?;
        let hash = *region.segments.get(number)?;
        (!hash.is_zero()).then_some(hash)
    };
    let mut here: HashMap<Hash, Segment> = HashMap::new();
    let mut lacking = Vec::new();
    for hash in segments.iter().copied().filter_map(hash_of) {
        match fetcher.cache().get_segment(&hash, None) {
            Some(table) => drop(here.insert(hash, (*table).clone())),
            None => lacking.push((Kind::Segment, hash)),
        }
    }
    for batch in lacking.chunks(READ_ITEMS_MAX) {
        let request = Request::prefetch(READ_TIMEOUT);
        fetcher
            .source()
            .read(&image, batch, &request, &mut |kind, hash, bytes| {
                if kind == Kind::Segment
                    && let Ok(table) = Segment::decode(bytes)
                {
                    here.insert(hash, table);
                }
            })?;
    }
    let mut tables = HashMap::new();
    for (region, number) in segments.iter().copied() {
        let Some(of) = manifest.regions.get(usize::from(region)) else {
            continue;
        };
        let stored = hash_of((region, number)).and_then(|hash| here.get(&hash));
        let mut table = stored.cloned().unwrap_or_else(Segment::new);
        of.patch(number, &mut table);
        tables.insert((region, number), table);
    }
    Ok(tables)
}
