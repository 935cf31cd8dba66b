//! Where every piece can be had: a hub, or any web server.
use bytes::Bytes;
use std::io;
use std::ops::Range;
use std::pin::Pin;

/// An answer of a [`Seed`] that is on its way.
pub type Fetching<'a> = Pin<Box<dyn Future<Output = io::Result<Bytes>> + Send + 'a>>;

/// A place that has all pieces of a content. It is asked last (several seeds one after the other), and its bytes are verified like
/// everybody's.
///
/// At most eight requests are under way at a time. One that takes longer than half a minute is given up.
pub trait Seed: Send + Sync + 'static {
    /// Brings a range of a pack in its proven form, as [`Tree::prove`](crate::Tree::prove) makes it: either a server does that, or this
    /// does after it has read the bytes of the range, with hashes that it has of the whole pack.
    ///
    /// # Errors
    ///
    /// Any: the piece is asked for again if it is still wanted, of the hosts first.
    fn fetch(&self, pack: usize, range: Range<u64>) -> Fetching<'_>;

    /// Whether a range of a pack, whose bytes fit the pack's root, is what the pack is taken for: who names the roots may have made them of
    /// wrong bytes. What is not is wrong like any other, so that it is not kept, and nobody is told of it. The call may compute for as long
    /// as it takes to unpack the range.
    fn fits(&self, pack: usize, range: &Range<u64>, bytes: &[u8]) -> bool {
        let _ = (pack, range, bytes);
        true
    }

    /// Called each time that bytes of this pack were wrong. They are not kept, and are asked for again a little later, or from another
    /// seed. The call may pass that on, and must not block.
    fn was_wrong(&self, pack: usize) {
        let _ = pack;
    }
}
