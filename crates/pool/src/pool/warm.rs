//! Takes substrates into memory: one that was docked or activated, and after a start all that fit, in the background.

use super::{
    Pool,
    made_of::{Own, own_part},
    record::SubstrateRecord,
};
use floe_ground::{
    error::{NodeError, failed},
    news::News,
    report::millis,
};
use floe_image::{Hash, Kind};
use floe_source::READ_ITEMS_MAX;
use floe_store::PoolItem;
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// How often taking a substrate into memory is tried anew, because chunks that it has in common with others left meanwhile.
const TRIES_MAX: usize = 4;

/// How far substrates are back in memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Warmth {
    /// How many threads bring substrates back.
    under_way: u32,
    took: Option<Duration>,
}

impl Warmth {
    pub fn is_under_way(&self) -> bool {
        self.under_way > 0
    }

    pub fn took_ms(&self) -> Option<f64> {
        self.took.map(millis)
    }
}

/// A thread that brings substrates back, until this is dropped: also by a panic.
struct UnderWay<'a>(&'a Pool);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let under_way = &mut self.0.warmth.lock().under_way;
        *under_way = under_way.saturating_sub(1);
    }
}

/// Returns which substrates to bring back, the one used least recently first: those used last that fit `budget_bytes` together.
fn to_warm(mut records: Vec<SubstrateRecord>, budget_bytes: u64) -> Vec<SubstrateRecord> {
    records.sort_by_key(|record| std::cmp::Reverse((record.used_unix_s(), record.name.clone())));
    let mut room = budget_bytes;
    records.retain(|record| match room.checked_sub(record.pool_bytes) {
        Some(left) => {
            room = left;
            true
        }
        None => false,
    });
    records.reverse();
    records
}

impl Pool {
    /// Brings the substrates that were used last back into memory, on a thread of its own.
    pub fn start_warming(self: &Arc<Self>) {
        self.warmth.lock().under_way += 1;
        let pool = Arc::downgrade(self);
        let work = move || {
            let Some(pool) = pool.upgrade() else { return };
            let under_way = UnderWay(&pool);
            let (began, count) = (Instant::now(), pool.warm());
            let took = began.elapsed();
            pool.warmth.lock().took = Some(took);
            drop(under_way);
            if count > 0 {
                pool.core.tell("", &News::Warm { count, took });
            }
        };
        if let Err(error) = self.core.threads.start("pool-warm", work) {
            self.warmth.lock().under_way -= 1;
            tracing::warn!(%error, "substrates stay on the disk until they are activated");
        }
    }

    /// Returns how many were brought back. One that cannot be is told, and the others have their turn.
    fn warm(&self) -> usize {
        let records: Vec<SubstrateRecord> = self.records.read().values().cloned().collect();
        let budget_bytes = self.stock.with(|stock| stock.budget_bytes());
        let room = self.stock.host_bytes().unwrap_or(u64::MAX);
        let mut count = 0;
        for record in to_warm(records, budget_bytes.min(room)) {
            if self.core.threads.over().is_cancelled() {
                break;
            }
            if self.stock.with(|stock| stock.holds(&record.image)) {
                continue;
            }
            let own = own_part(&self.images.repo, &record.image, record.base.as_ref());
            match own.and_then(|own| self.take_in(&record.name, &record.image, own)) {
                Ok(()) => count += 1,
                Err(error) => {
                    let (name, why) = (record.name.clone(), error.to_string());
                    let news = News::Damaged { name, why };
                    self.core.tell(&record.name, &news);
                }
            }
        }
        count
    }

    /// Brings one substrate back on a thread of its own, because it is used.
    pub(super) fn take_in_later(self: &Arc<Self>, record: SubstrateRecord) {
        let pool = Arc::downgrade(self);
        let work = move || {
            let Some(pool) = pool.upgrade() else { return };
            let own = own_part(&pool.images.repo, &record.image, record.base.as_ref());
            if let Err(error) = own.and_then(|own| pool.take_in(&record.name, &record.image, own)) {
                tracing::warn!(substrate = record.name, %error, "it stays on the disk");
            }
        };
        if let Err(error) = self.core.threads.start("pool-admit", work) {
            tracing::warn!(%error, "a substrate stays on the disk");
        }
    }

    /// Takes the own part of a substrate with this image into memory, from its backup, unless it is too large.
    pub(super) fn take_in(&self, name: &str, image: &Hash, own: Own) -> Result<(), NodeError> {
        let _admitting = self.admitting.lock();
        let record = self.records.read().get(name).cloned();
        let Some(record) = record.filter(|record| record.image == *image) else {
            return Ok(()); // it was removed meanwhile, and another one may have its name
        };
        let bytes_max = self.stock.bytes_max();
        for _ in 0..TRIES_MAX {
            let (lacking, mut packing) = self.stock.with(|stock| stock.plan(&own.items));
            if !self.read(&record.image, &lacking, &mut packing, bytes_max)? {
                let bytes = packing.packed_bytes();
                self.change(name, |record| record.pool_bytes = bytes);
                return Ok(());
            }
            let packed = packing
                .finish()
                .map_err(floe_ground::error::at("cannot compress a substrate"))?;
            let admitted = self.stock.admit(record.image, &own.items, packed);
            // others that went meanwhile took along what this one has in common with them
            let Ok(admitted) = admitted else { continue };
            if admitted.added_bytes > 0 {
                self.change(name, |record| record.pool_bytes = admitted.added_bytes);
            }
            for gone in admitted.evicted {
                tracing::info!(
                    image = gone.short(),
                    for_substrate = name,
                    "a substrate left the memory"
                );
            }
            return Ok(());
        }
        Err(failed(
            "chunks that it has in common with others left the memory again and again",
            "make the budget larger with floe pool resize",
        ))
    }

    /// Reads and compresses items. Returns whether all of them are in `bytes_max`; the rest is not read then.
    fn read(
        &self,
        image: &Hash,
        items: &[PoolItem],
        packing: &mut floe_store::Packing,
        bytes_max: u64,
    ) -> Result<bool, NodeError> {
        for items in items.chunks(READ_ITEMS_MAX) {
            if packing.packed_bytes() > bytes_max {
                return Ok(false);
            }
            let wanted: HashMap<Hash, &PoolItem> =
                items.iter().map(|item| (item.hash, item)).collect();
            let wants: Vec<(Kind, Hash)> =
                items.iter().map(|item| (item.kind, item.hash)).collect();
            let mut refused = None;
            let missing = self
                .images
                .repo
                .read_items(image, &wants, &mut |_, hash, bytes| {
                    if let Some(item) = wanted.get(&hash)
                        && let Err(error) = packing.push(item, bytes)
                    {
                        refused.get_or_insert(error);
                    }
                })?;
            if let Some(error) = refused {
                return Err(floe_ground::error::at("cannot compress a substrate")(error));
            }
            if let Some((kind, hash)) = missing.first() {
                return Err(failed(
                    format!("{} {hash} is in none of its packs", kind.name()),
                    "floe pool verify tells what else is missing",
                ));
            }
        }
        Ok(packing.packed_bytes() <= bytes_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_were_used_last_come_back_and_the_last_of_them_last() {
        let record = |name: &str, used: u64, bytes: u64| SubstrateRecord {
            version: 1,
            name: name.into(),
            visibility: Default::default(),
            users: Vec::new(),
            owner_uid: 0,
            docked_unix_s: 1,
            activated_unix_s: Some(used),
            machine: "web".into(),
            cpus: 1,
            memory_bytes: 1,
            image: Hash::of(name.as_bytes()),
            base: None,
            made_of: Default::default(),
            reset: Vec::new(),
            pool_bytes: bytes,
        };
        let records = vec![
            record("old", 10, 40),
            record("new", 30, 40),
            record("large", 20, 500),
            record("older", 5, 40),
        ];
        let names: Vec<String> = to_warm(records, 100).into_iter().map(|r| r.name).collect();
        assert_eq!(names, ["old", "new"]);
    }
}
