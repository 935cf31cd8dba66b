//! What a hub keeps of tokens in memory: whose they are, and how many wrong ones came from where.

use floe_image::Hash;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most addresses whose wrong tokens are counted.
const REMEMBERED_MAX: usize = 16 * 1024;
/// The window in which wrong tokens are counted.
const WRONG_TOKEN_WINDOW: Duration = Duration::from_secs(60);

/// All tokens, and counts of wrong ones. Tokens are kept in memory, by hash, so that a wrong one costs only a lookup,
/// however many are tried.
#[derive(Default)]
pub(crate) struct Tokens {
    /// Users by their token's hash, so that neither timing nor a memory dump reveals tokens.
    pub(super) known: RwLock<HashMap<Hash, Arc<str>>>,
    /// When the catalogue was last asked for changes, and its version at that time.
    pub(super) checked: tokio::sync::Mutex<Option<(Instant, i64)>>,
    wrong: Mutex<HashMap<IpAddr, (u32, Instant)>>,
}

impl Tokens {
    /// Returns the user of a token that is known.
    pub fn user(&self, hashed: &Hash) -> Option<Arc<str>> {
        self.known.read().get(hashed).cloned()
    }

    /// Counts a wrong token. Returns whether the address has sent more than `max` of them in the window.
    pub fn count_wrong(&self, address: IpAddr, max: u32) -> bool {
        let mut wrong = self.wrong.lock();
        if wrong.len() >= REMEMBERED_MAX {
            wrong.retain(|_, (_, since)| since.elapsed() < WRONG_TOKEN_WINDOW);
        }
        if wrong.len() >= REMEMBERED_MAX {
            wrong.clear();
        }
        let (count, since) = wrong.entry(address).or_insert((0, Instant::now()));
        if since.elapsed() >= WRONG_TOKEN_WINDOW {
            (*count, *since) = (0, Instant::now());
        }
        *count += 1;
        *count > max
    }
}
