//! Reads an image out of packs whose bytes somebody else brings.

use std::collections::HashSet;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use floe_image::{Hash, Kind, Layout, PackRef};

use crate::packed::{Deadline, PackBytes, Packed, check_count};
use crate::{Request, Sink, SourceError};

/// Reads an image's items out of its packs, wherever their bytes come from: a swarm of hosts, for one.
///
/// It keeps the packs' indices in memory, which are some 2 % of the packs. Whatever the bytes are, an item reaches the sink only if its
/// hash is right.
pub struct PackReader<B> {
    packed: Packed<B>,
    layout: Layout,
}

impl<B: PackBytes> PackReader<B> {
    /// Makes a reader of the packs of `layout`, which `bytes` brings. In `index_dir` verified indices of packs are kept, if it is given.
    pub fn new(bytes: B, layout: Layout, index_dir: Option<PathBuf>) -> PackReader<B> {
        PackReader {
            // no call here is without a deadline of its own
            packed: Packed::new(bytes, Duration::ZERO, index_dir),
            layout,
        }
    }

    /// Returns what brings the bytes.
    pub fn bytes(&self) -> &B {
        self.packed.objects()
    }

    /// Returns which packs are read.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Reads items, as [`Source::read`](crate::Source::read) does.
    pub fn read(
        &self,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        check_count(self.bytes().at(), wants)?;
        let clock = Deadline::new(request);
        let mut given = HashSet::new();
        self.packed
            .read_of(&self.layout, wants, &clock, &mut given, sink)
    }

    /// Returns what is in a pack, in the order of the file. It may read the pack's index.
    pub fn pack_items(
        &self,
        pack: &PackRef,
        request: &Request,
    ) -> Result<Vec<(Kind, Hash)>, SourceError> {
        self.packed.pack_items(pack, request)
    }

    /// Returns those of the items of which the indices in memory say where they lie: pack and range. Nothing is read for it.
    pub fn known(&self, wants: &[(Kind, Hash)]) -> Vec<((Kind, Hash), Hash, Range<u64>)> {
        self.packed.known(&self.layout, wants)
    }

    /// Whether all frames are right that lie wholly in a range of a pack, of which these are the bytes. Nothing is read for it: as long as
    /// the pack's index is not in memory nobody knows, and they count as right.
    pub fn fits(&self, pack: &Hash, range: &Range<u64>, bytes: &[u8]) -> bool {
        self.packed.fits(pack, range, bytes)
    }

    /// Returns where items lie: packs and ranges of them, in the order of the items, each range once. Items that are in no pack are left
    /// out. It may read indices.
    pub fn places(
        &self,
        wants: &[(Kind, Hash)],
        request: &Request,
    ) -> Result<Vec<(Hash, Range<u64>)>, SourceError> {
        self.packed
            .places(&self.layout, wants, &Deadline::new(request))
    }
}
