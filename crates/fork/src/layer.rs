//! A live layer: a machine's state at its fork, hashed but not packed, and read from where it is.
//!
//! A capture compresses what it keeps before anybody can start from it; a fork cannot wait for that. Here the pages that were
//! copied in the pause are hashed on all cores (1 GB/s each), named by a manifest over the images that the machine stands on,
//! and served at once: pages from the memory file into which they were copied, written chunks of disks from the frozen
//! layers' files, which get a second name for that. An ordinary pull of this source into the node's own repository makes it
//! durable later, under the same id; then the layer is removed. Until then the supervisor holds the memory file, with
//! everything that a node needs to find the layer again (`kept`). `build` makes a layer.

use floe_ground::{
    error::{NodeError, at},
    files::make_private_dir,
};
use floe_image::{
    CHUNK_SIZE, FRAME_MAX_CHUNKS, Hash, Kind, Manifest, Segment, compress_frame, is_zero,
};
use floe_inventory::inventory::record::Origin;
use floe_machine::MemoryFile;
use floe_mount::FrozenDisk;
use floe_source::{Fetcher, Request, Sink, SourceError};
use floe_threads::Cancel;
use serde::{Deserialize, Serialize};
use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// zstd level for measuring a descriptor's size: that of a batch read.
const LEVEL: i32 = 1;
/// Beginning of the names of memory files and directories.
pub(super) const PREFIX: &str = "layer-";

/// Bytes of one chunk.
pub(super) type Chunk = [u8; CHUNK_SIZE];

/// Where a chunk's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// At this offset of the memory file.
    Memory(u64),
    /// The chunk with this number in one of the files of disks' layers.
    File(u16, u64),
}

/// Where a chunk is while a layer is built.
#[derive(Clone, Copy)]
pub(super) enum Whereabouts {
    Known(Place),
    /// Among the chunks that are kept by themselves, at this index.
    Own(u32),
}

/// The machine that was forked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Parent {
    /// Its name.
    pub name: String,
    /// When that machine was created: another machine may have its name by now.
    pub created_unix_s: u64,
    /// The highest frozen layer of each of its disks.
    pub last_layers: Vec<u32>,
}

/// Names under which a layer is kept.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// Its name at the supervisor, and of its directory.
    pub held: String,
    /// That directory.
    pub dir: PathBuf,
    /// Names of the files in that directory.
    pub files: Vec<String>,
}

impl Names {
    /// Returns new names, for files in a directory of their own below `dir`.
    pub fn new(dir: &Path) -> Names {
        let held = format!("{PREFIX}{:016x}", rand::random::<u64>());
        Names {
            dir: dir.join(&held),
            held,
            files: Vec::new(),
        }
    }

    /// Gives the file of a disk's layer a second name, which stays, and opens it.
    pub fn link(&mut self, disk: &FrozenDisk, layer: u32) -> Result<File, NodeError> {
        if self.files.is_empty() {
            make_private_dir(&self.dir)?;
        }
        let name = format!("{}-{layer}", disk.name());
        let path = self.dir.join(&name);
        let linked = disk
            .link_layer(layer, &path)
            .and_then(|()| File::open(&path));
        let file = linked.map_err(at(format!("cannot keep {}", path.display())))?;
        self.files.push(name);
        Ok(file)
    }

    /// Removes the directory and the files' names in it.
    pub fn remove(&self) {
        if let Err(error) = fs::remove_dir_all(&self.dir)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(dir = %self.dir.display(), %error, "was not removed");
        }
    }
}

/// What a fork keeps of its parent's state.
pub struct Layer {
    /// The image's id, which it also has once it is stored.
    pub id: Hash,
    /// The image's manifest.
    pub manifest: Manifest,
    /// How many chunks of memory the parent had written.
    pub ram_chunks: u64,
    /// The machine that was forked.
    pub(super) parent: Parent,
    /// The names under which it is kept.
    pub(super) names: Names,
    pub(super) device: Vec<u8>,
    pub(super) tables: HashMap<Hash, Arc<Segment>>,
    pub(super) chunks: HashMap<Hash, Place>,
    pub(super) memory: MemoryFile,
    /// Files with data of disks' layers, each chunk at its own offset.
    pub(super) files: Vec<File>,
    /// The images that have everything else.
    pub(super) bases: Vec<(Hash, Origin, Arc<Fetcher>)>,
    /// Thrown when it is to be stored soon, whatever else the host has to do.
    pub(super) hurry: Cancel,
}

impl Layer {
    /// Returns how many bytes a clone's node receives before the clone's guest runs: manifest and device state, as they are
    /// sent. Graphics memory, if there is a picture in it, is not counted.
    pub fn descriptor_bytes(&self) -> u64 {
        let chunks: Vec<&[u8]> = self
            .device
            .chunks_exact(CHUNK_SIZE)
            .filter(|chunk| !is_zero(chunk))
            .collect();
        let frames = chunks.chunks(FRAME_MAX_CHUNKS);
        let device: usize = frames
            .map(|frame| compress_frame(Kind::Chunk, frame, LEVEL).len())
            .sum();
        let last = self.device.len() % CHUNK_SIZE;
        (self.manifest.encode().len() + device + last) as u64
    }

    /// Returns the images without which the layer cannot be read.
    pub fn bases(&self) -> impl Iterator<Item = &Hash> {
        self.bases.iter().map(|(base, ..)| base)
    }

    /// Passes one item to `sink`; returns whether this layer has it.
    fn give(&self, kind: Kind, hash: &Hash, sink: &mut Sink<'_>) -> Result<bool, SourceError> {
        let failed = |reason: String| SourceError::Local {
            what: format!("chunk {} of fork {}", hash.short(), self.id.short()),
            reason,
        };
        match kind {
            Kind::Segment => {
                let Some(table) = self.tables.get(hash) else {
                    return Ok(false);
                };
                sink(kind, *hash, &table.encode());
            }
            Kind::Chunk => match self.chunks.get(hash) {
                None => return Ok(false),
                Some(Place::Memory(offset)) => {
                    let chunk = self.memory.chunk(*offset);
                    let chunk = chunk.ok_or_else(|| failed("it is not in memory".into()))?;
                    sink(kind, *hash, chunk);
                }
                Some(Place::File(file, chunk)) => {
                    let file = self.files.get(usize::from(*file));
                    let file = file.ok_or_else(|| failed("it has no file".into()))?;
                    let bytes = read_chunk(file, *chunk).map_err(|e| failed(e.to_string()))?;
                    sink(kind, *hash, &bytes[..]);
                }
            },
        }
        Ok(true)
    }

    pub(super) fn read(
        &self,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        let mut rest = Vec::new();
        for (kind, hash) in wants {
            if !self.give(*kind, hash, sink)? {
                rest.push((*kind, *hash));
            }
        }
        let mut given: HashSet<Hash> = HashSet::new();
        for (base, _, fetcher) in &self.bases {
            if rest.is_empty() {
                break;
            }
            let read = fetcher
                .source()
                .read(base, &rest, request, &mut |kind, hash, bytes| {
                    // an additional item from the base may be one that this layer has delivered already
                    if !self.chunks.contains_key(&hash) && given.insert(hash) {
                        sink(kind, hash, bytes);
                    }
                });
            match read {
                Ok(()) | Err(SourceError::Missing { .. }) => {
                    rest.retain(|(_, hash)| !given.contains(hash))
                }
                Err(error) => return Err(error),
            }
        }
        match rest.first() {
            None => Ok(()),
            Some((_, hash)) => Err(SourceError::Missing {
                at: format!("fork {}", self.id.short()),
                what: format!("{} items from {}", rest.len(), hash.short()),
            }),
        }
    }
}

/// Reads a chunk of a layer's data; bytes behind the file's end are zero.
fn read_chunk(file: &File, chunk: u64) -> io::Result<Box<Chunk>> {
    let mut bytes = Box::new([0; CHUNK_SIZE]);
    let mut done = 0;
    while done < CHUNK_SIZE {
        let at = chunk * CHUNK_SIZE as u64 + done as u64;
        match file.read_at(&mut bytes[done..], at)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(bytes)
}
