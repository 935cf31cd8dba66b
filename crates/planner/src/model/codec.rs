//! Encodes a model as bytes (`docs/format.md`, "Model") and decodes it: bounded, checked, and one encoding only for each model.

use super::{Body, ChunkAt, Cluster, Method, Model, Row, Seen};
use floe_image::wire::{Cursor, limit, put_varint, unzigzag, zigzag};
use floe_image::{FormatError, Hash, REGIONS_MAX};
use std::collections::HashSet;

/// Why bytes are no usable model.
pub type ModelError = FormatError;

const MAGIC: &[u8; 8] = b"FLOEMODL";
const VERSION: u32 = 1;
const WHAT: &str = "model";
/// Bytes of the checksum at the end.
const CHECKSUM_BYTES: usize = 32;
/// Most traces of a model.
pub const TRACES_MAX: usize = 64;
/// Most chunks of a model, and most accesses that it is made from: 16 GiB of chunks.
pub const MODEL_CHUNKS_MAX: usize = 1 << 22;
/// Most occurrences of clusters in traces.
pub const MODEL_SEEN_MAX: usize = 1 << 22;
/// Most bytes of an encoded model.
pub const MODEL_BYTES_MAX: usize = 128 << 20;
/// Fewest bytes of a chunk, an occurrence, a row and a cluster: the input's length bounds what may be allocated.
const CHUNK_BYTES_MIN: u64 = 1;
const SEEN_BYTES_MIN: u64 = 3;
const ROW_BYTES_MIN: u64 = 3;
const CLUSTER_BYTES_MIN: u64 = 6;

fn invalid(why: impl Into<String>) -> FormatError {
    FormatError::Invalid {
        what: WHAT,
        why: why.into(),
    }
}

/// Encodes chunks as differences: a chunk that follows the last one of the same region takes one byte.
#[derive(Default)]
struct Delta {
    region: u8,
    next: i64,
}

impl Delta {
    fn put(&mut self, out: &mut Vec<u8>, at: ChunkAt) {
        let other = at.region != self.region;
        let delta = zigzag(i64::from(at.chunk) - self.next);
        put_varint(out, delta << 1 | u64::from(other));
        if other {
            out.push(at.region);
        }
        self.region = at.region;
        self.next = i64::from(at.chunk) + 1;
    }

    fn get(&mut self, c: &mut Cursor<'_>) -> Result<ChunkAt, FormatError> {
        let token = c.varint()?;
        if token & 1 == 1 {
            let region = c.u8()?;
            if usize::from(region) >= REGIONS_MAX || region == self.region {
                return Err(invalid(format!(
                    "region number {region} at offset {}",
                    c.at()
                )));
            }
            self.region = region;
        }
        let chunk = self.next.checked_add(unzigzag(token >> 1));
        let chunk = chunk
            .and_then(|n| u32::try_from(n).ok())
            .ok_or_else(|| invalid(format!("a chunk's number before offset {}", c.at())))?;
        self.next = i64::from(chunk) + 1;
        Ok(ChunkAt {
            region: self.region,
            chunk,
        })
    }
}

fn small(c: &mut Cursor<'_>, field: &str) -> Result<u32, FormatError> {
    let n = c.varint()?;
    u32::try_from(n).map_err(|_| invalid(format!("{field} is {n}")))
}

fn count(
    c: &mut Cursor<'_>,
    what: &'static str,
    max: usize,
    bytes: u64,
) -> Result<usize, FormatError> {
    let n = c.varint()?;
    limit(what, n, max as u64)?;
    c.expect_items(n, bytes)?;
    Ok(n as usize)
}

impl Model {
    /// Returns the model as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        let method = Method::ALL.iter().position(|m| *m == self.method);
        out.extend_from_slice(&(method.unwrap_or_default() as u32).to_le_bytes());
        out.extend_from_slice(&self.image.0);
        out.extend_from_slice(&self.traces.to_le_bytes());
        let mut delta = Delta::default();
        match &self.body {
            Body::Profile(rows) => {
                put_varint(&mut out, rows.len() as u64);
                let mut last = 0;
                for row in rows {
                    delta.put(&mut out, row.at);
                    put_varint(&mut out, u64::from(row.mean_ms - last));
                    put_varint(&mut out, u64::from(row.seen));
                    last = row.mean_ms;
                }
            }
            Body::Clusters(clusters) => {
                put_varint(&mut out, clusters.len() as u64);
                for cluster in clusters {
                    put_varint(&mut out, cluster.chunks.len() as u64);
                    put_varint(&mut out, cluster.seen.len() as u64);
                    for at in &cluster.chunks {
                        delta.put(&mut out, *at);
                    }
                    let mut trace = 0;
                    for seen in &cluster.seen {
                        put_varint(&mut out, u64::from(seen.trace - trace));
                        put_varint(&mut out, u64::from(seen.first_ms));
                        put_varint(&mut out, u64::from(seen.last_ms - seen.first_ms));
                        trace = seen.trace + 1;
                    }
                }
            }
        }
        let checksum = Hash::of(&out);
        out.extend_from_slice(&checksum.0);
        out
    }

    /// Decodes a model; the bytes needn't be trusted.
    pub fn decode(bytes: &[u8]) -> Result<Model, ModelError> {
        limit(
            "bytes of a model",
            bytes.len() as u64,
            MODEL_BYTES_MAX as u64,
        )?;
        let mut c = Cursor::new(WHAT, bytes);
        c.magic(MAGIC)?;
        c.version(VERSION)?;
        let body = bytes.len().saturating_sub(CHECKSUM_BYTES).max(c.at());
        let (body, checksum) = bytes.split_at(body);
        let found = Hash::of(body);
        if checksum != found.0 {
            return Err(invalid(
                "its checksum is wrong: it was cut off or damaged, fetch it again",
            ));
        }
        let mut c = Cursor::new(WHAT, body);
        c.take(MAGIC.len() + size_of_val(&VERSION))?;
        let number = c.u32()?;
        let method = Method::ALL.get(number as usize).copied();
        let method = method.ok_or_else(|| invalid(format!("method {number}")))?;
        let image = c.hash()?;
        let traces = c.u32()?;
        limit("traces of a model", traces.into(), TRACES_MAX as u64)?;
        let body = match method {
            Method::VmTorrent => Body::Profile(rows(&mut c, traces)?),
            Method::VTube | Method::Floe => Body::Clusters(clusters(&mut c, traces)?),
        };
        c.end()?;
        Ok(Model {
            method,
            image,
            traces,
            body,
        })
    }
}

fn rows(c: &mut Cursor<'_>, traces: u32) -> Result<Vec<Row>, FormatError> {
    let n = count(c, "chunks of a model", MODEL_CHUNKS_MAX, ROW_BYTES_MIN)?;
    let (mut rows, mut known) = (Vec::with_capacity(n), HashSet::with_capacity(n));
    let (mut delta, mut last) = (Delta::default(), 0u32);
    for _ in 0..n {
        let at = delta.get(c)?;
        let mean_ms = last.checked_add(small(c, "a mean time")?);
        let seen = small(c, "a number of traces")?;
        let mean_ms = mean_ms.ok_or_else(|| invalid("a time beyond 49 days"))?;
        if !known.insert(at) || seen == 0 || seen > traces {
            return Err(invalid(format!(
                "the row of chunk {} of region {}",
                at.chunk, at.region
            )));
        }
        last = mean_ms;
        rows.push(Row { at, mean_ms, seen });
    }
    Ok(rows)
}

fn clusters(c: &mut Cursor<'_>, traces: u32) -> Result<Vec<Cluster>, FormatError> {
    let n = count(
        c,
        "clusters of a model",
        MODEL_CHUNKS_MAX,
        CLUSTER_BYTES_MIN,
    )?;
    let (mut clusters, mut known) = (Vec::with_capacity(n), HashSet::new());
    let mut delta = Delta::default();
    let mut left = (MODEL_CHUNKS_MAX, MODEL_SEEN_MAX);
    for i in 0..n {
        let chunks = count(c, "chunks of a model", left.0, CHUNK_BYTES_MIN)?;
        let times = count(c, "occurrences of clusters", left.1, SEEN_BYTES_MIN)?;
        left = (left.0 - chunks, left.1 - times);
        let mut cluster = Cluster::default();
        for _ in 0..chunks {
            let at = delta.get(c)?;
            if !known.insert(at) {
                return Err(invalid(format!(
                    "chunk {} of region {} twice",
                    at.chunk, at.region
                )));
            }
            cluster.chunks.push(at);
        }
        let mut next = 0u32;
        for _ in 0..times {
            let trace = next.checked_add(small(c, "a trace's number")?);
            let trace = trace.filter(|t| *t < traces);
            let trace = trace.ok_or_else(|| invalid(format!("a trace of cluster {i}")))?;
            let first_ms = small(c, "a time")?;
            let last_ms = first_ms.checked_add(small(c, "a time")?);
            let last_ms = last_ms.ok_or_else(|| invalid("a time beyond 49 days"))?;
            cluster.seen.push(Seen {
                trace,
                first_ms,
                last_ms,
            });
            next = trace + 1;
        }
        if cluster.chunks.is_empty() || cluster.seen.is_empty() {
            return Err(invalid(format!("cluster {i} is empty")));
        }
        clusters.push(cluster);
    }
    Ok(clusters)
}
