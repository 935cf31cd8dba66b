//! The layers of a disk as they were at a freeze, for reading while the machine goes on.

use super::CHUNK;
use super::Chain;
use crate::MountError;
use floe_image::{CHUNK_SIZE, Hash};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// One disk as it was when it was frozen.
pub struct FrozenDisk {
    name: String,
    size: u64,
    chain: Arc<Chain>,
}

impl FrozenDisk {
    pub(crate) fn new(name: String, chain: Arc<Chain>) -> Self {
        // as large as it was at the freeze: it may have been grown since, which put a larger layer on top
        let size = chain.top().disk_bytes();
        Self { name, size, chain }
    }

    /// Returns the number of the highest layer that was frozen.
    pub fn last_layer(&self) -> u32 {
        self.chain.top().number
    }

    /// Returns whether a disk with these layers is the one that was frozen, and still has what was.
    pub(super) fn is_of(&self, chain: &Chain) -> bool {
        let last = self.chain.top();
        chain
            .layers
            .iter()
            .any(|layer| std::ptr::eq(&**layer, last))
    }

    /// The disk's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the image and the name of the region that the layers are based on; `None` for a disk without a base.
    pub fn base(&self) -> Option<(Hash, &str)> {
        let base = self.chain.base.as_ref()?;
        Some((base.image.id, &base.image.regions[base.region].name))
    }

    fn mask(&self, chunk: u64) -> u8 {
        self.chain
            .layers
            .iter()
            .fold(0, |mask, l| mask | l.mask(chunk))
    }

    /// Returns the chunks that differ from the base with their numbers, in order. A chunk that was written only in part is
    /// merged with the base's, which may have to be fetched: the iterator blocks then.
    pub fn chunks(
        &self,
    ) -> impl Iterator<Item = Result<(u64, [u8; CHUNK_SIZE]), MountError>> + Send + '_ {
        self.written().map(|chunk| Ok((chunk, self.chunk(chunk)?)))
    }

    /// Returns the numbers of the chunks that differ from the base, ascending.
    pub fn written(&self) -> impl Iterator<Item = u64> + Send + '_ {
        (0..self.size.div_ceil(CHUNK)).filter(|c| self.mask(*c) != 0)
    }

    /// Returns how many chunks differ from the base (an upper bound if there are several layers).
    pub fn count(&self) -> u64 {
        self.chain.layers.iter().map(|l| l.present()).sum()
    }

    /// Returns whether all of a chunk was written, so that reading it doesn't need the base.
    pub fn is_whole(&self, chunk: u64) -> bool {
        self.mask(chunk) == super::sectors(chunk, 0, self.size)
    }

    /// Returns the layer whose file has all of a chunk, at the chunk's own offset; `None` if it is in several, or partly in the
    /// base.
    pub fn layer_of(&self, chunk: u64) -> Option<u32> {
        let whole = super::sectors(chunk, 0, self.size);
        match self.chain.owner(chunk, whole) {
            super::Owner::Layer(at) => Some(self.chain.layers[at].number),
            super::Owner::Base | super::Owner::Mixed => None,
        }
    }

    /// Hard-links a layer's data file to `to` (on the same file system), so that the data stays when the disk drops the layer.
    pub fn link_layer(&self, number: u32, to: &Path) -> io::Result<()> {
        let mut layers = self.chain.layers.iter();
        let layer = layers.find(|layer| layer.number == number);
        layer.ok_or(io::ErrorKind::NotFound)?.link(to)
    }

    /// Returns one chunk as it was; blocks while a part of it is fetched from the base.
    pub fn chunk(&self, chunk: u64) -> Result<[u8; CHUNK_SIZE], MountError> {
        let mut out = [0; CHUNK_SIZE];
        let len = CHUNK.min(self.size - chunk * CHUNK) as usize;
        let what = || format!("chunk {chunk} of disk {}", self.name);
        if let Some(base) = &self.chain.base
            && !self.is_whole(chunk)
        {
            let read = base
                .image
                .read_waiting(base.region, chunk * CHUNK, &mut out[..len]);
            read.map_err(|source| MountError::Source {
                what: what(),
                source,
            })?;
        }
        let applied = self.chain.apply(
            chunk * CHUNK,
            &mut out[..len],
            &mut crate::image::Reading::default(),
        );
        applied.map_err(|e| MountError::Chunk {
            what: what(),
            reason: e.to_string(),
        })?;
        Ok(out)
    }
}
