//! Where chunks should be in a static image: chunks that a model fetches together are side by side, in the order in which they
//! are needed, so that a cluster is one range read.

use super::{ChunkAt, Model};
use floe_image::Hash;
use std::collections::HashSet;

impl Model {
    /// Returns the contents of the model's clusters: clusters ordered by their mean first access, each with its chunks in the
    /// order in which they are needed. A profile, which has no clusters, is one cluster. `hash_of` returns a chunk's content;
    /// zeros, and chunks that the image doesn't have ([`Hash::ZERO`]), are left out. Each content is returned once, where it is
    /// needed first; no cluster is empty.
    pub fn lay_out(&self, hash_of: impl Fn(ChunkAt) -> Hash) -> Vec<Vec<Hash>> {
        let mut placed = HashSet::from([Hash::ZERO]);
        let mut of = |chunks: &mut dyn Iterator<Item = ChunkAt>| -> Vec<Hash> {
            chunks
                .map(&hash_of)
                .filter(|hash| placed.insert(*hash))
                .collect()
        };
        let profile = of(&mut self.rows().iter().map(|row| row.at));
        let clusters = self.clusters().iter();
        let clusters: Vec<_> = clusters
            .map(|c| of(&mut c.chunks.iter().copied()))
            .collect();
        let all = std::iter::once(profile).chain(clusters);
        all.filter(|cluster| !cluster.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Method, TrainOptions, ZeroTrace, train};
    use floe_image::Access;
    use proptest::prelude::*;

    fn trace(accesses: &[(u8, u32, u64)]) -> ZeroTrace {
        let access = |(region, chunk, t_ms): &(u8, u32, u64)| Access {
            region: *region,
            chunk: *chunk,
            t_us: t_ms * 1000,
            wait_us: 0,
        };
        let mut sorted: Vec<Access> = accesses.iter().map(access).collect();
        sorted.sort_by_key(|access| access.t_us);
        ZeroTrace::from_accesses(sorted)
    }

    fn model(method: Method, traces: &[ZeroTrace]) -> Model {
        train(
            method,
            &Hash::of(b"image"),
            traces,
            &TrainOptions::default(),
        )
    }

    fn hash(at: ChunkAt) -> Hash {
        Hash::of(&[at.region, at.chunk as u8])
    }

    #[test]
    fn clusters_come_in_the_order_of_their_first_access() {
        let early: Vec<_> = (0..4).map(|i| (0, 90 + i, u64::from(i) * 10)).collect();
        let late: Vec<_> = (0..4)
            .map(|i| (1, 7 * i, 60_000 + u64::from(i) * 10))
            .collect();
        let trace = trace(&[late.clone(), early.clone()].concat());
        let expected: Vec<Vec<Hash>> = [early, late]
            .iter()
            .map(|c| {
                c.iter()
                    .map(|(region, chunk, _)| {
                        hash(ChunkAt {
                            region: *region,
                            chunk: *chunk,
                        })
                    })
                    .collect()
            })
            .collect();
        for method in [Method::Floe, Method::VTube] {
            assert_eq!(
                model(method, std::slice::from_ref(&trace)).lay_out(hash),
                expected
            );
        }
        let profile = model(Method::VmTorrent, &[trace]).lay_out(hash);
        assert_eq!(profile, [expected.concat()]);
    }

    proptest! {
        #[test]
        fn each_content_lies_in_one_place_where_it_is_needed_first(
            runs in proptest::collection::vec(
                proptest::collection::vec((0u8..3, 0u32..60, 0u64..20_000), 1..80), 1..5),
        ) {
            let traces: Vec<ZeroTrace> = runs.iter().map(|run| trace(run)).collect();
            for method in Method::ALL {
                let model = model(method, &traces);
                // Chunks with equal contents, and zeros.
                let content = |at: ChunkAt| match at.chunk % 5 {
                    0 => Hash::ZERO,
                    1 => Hash::of(&[at.chunk as u8]),
                    _ => hash(at),
                };
                let laid = model.lay_out(content);
                prop_assert!(laid.iter().all(|cluster| !cluster.is_empty()));
                let mut seen = HashSet::from([Hash::ZERO]);
                let needed: Vec<Hash> =
                    model.chunks().map(content).filter(|hash| seen.insert(*hash)).collect();
                prop_assert_eq!(laid.concat(), needed);
                prop_assert!(laid.len() <= model.clusters().len().max(1));
            }
        }
    }
}
