//! A request as it was read from the kernel.

use crate::image::First;

/// A request that is handled later than it was read.
pub(crate) struct Raw {
    /// The index of the descriptor that it was read from.
    pub device: usize,
    pub bytes: Vec<u8>,
    /// What it touched for the first time when it was tried before.
    pub firsts: Vec<First>,
    /// How often it has waited for its disk's write-back.
    pub rounds: u8,
}
