//! How far a copy is.

use super::{BUFFER_BYTES, Told};

/// Counts the bytes of data that were copied, and reports them.
pub(super) struct Flow<'a> {
    /// The buffer through which the bytes go.
    pub buffer: Vec<u8>,
    done: u64,
    /// The other side's word, or a count of what may change meanwhile. 0: not known.
    pub total: u64,
    told: Told<'a>,
}

impl<'a> Flow<'a> {
    /// Begins with nothing.
    pub fn new(told: Told<'a>) -> Flow<'a> {
        Flow {
            buffer: vec![0; BUFFER_BYTES],
            done: 0,
            total: 0,
            told,
        }
    }

    /// Notes that so many more bytes were copied.
    pub fn went(&mut self, bytes: usize) {
        self.done = self.done.saturating_add(bytes as u64);
        let total = match self.total {
            0 => 0,
            total => total.max(self.done),
        };
        (self.told)(self.done, total);
    }
}
