//! Puts clusters into frames: which chunks are compressed together, and where a pack may end. No I/O.

use std::collections::HashSet;

use floe_image::{FRAME_MAX_CHUNKS, Hash};

/// A cluster begins a new frame, unless the frame before it has fewer chunks than this. A read of one cluster then gets at most
/// 7 chunks of the clusters before and 15 of those after it, and no frame but a pack's last is less than half full.
const FRAME_CHUNKS_MIN: usize = FRAME_MAX_CHUNKS / 2;

/// Chunks that are compressed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub hashes: Vec<Hash>,
    /// Whether its first chunk is a cluster's first: a pack that has no room for the whole cluster may end before this frame.
    pub begins_cluster: bool,
}

/// Returns the frames of clusters, in order. A chunk in several clusters counts for the first of them; zero chunks are left
/// out.
pub(super) fn frames<C: AsRef<[Hash]>>(clusters: impl IntoIterator<Item = C>) -> Vec<Frame> {
    let mut seen = HashSet::from([Hash::ZERO]);
    let mut frames: Vec<Frame> = Vec::new();
    for cluster in clusters {
        let mut begins_cluster = true;
        for hash in cluster.as_ref() {
            if !seen.insert(*hash) {
                continue;
            }
            let full = if begins_cluster {
                FRAME_CHUNKS_MIN
            } else {
                FRAME_MAX_CHUNKS
            };
            match frames.last_mut() {
                Some(open) if open.hashes.len() < full => open.hashes.push(*hash),
                _ => frames.push(Frame {
                    hashes: vec![*hash],
                    begins_cluster,
                }),
            }
            begins_cluster = false;
        }
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hash(n: u8) -> Hash {
        Hash::of(&[n])
    }

    fn sizes(clusters: &[usize]) -> Vec<(usize, bool)> {
        let mut next = 0;
        let made = clusters.iter().map(|size| {
            let from = next;
            next += size;
            (from..next).map(|n| Hash::of(&n.to_le_bytes())).collect()
        });
        let frames = frames(made.collect::<Vec<Vec<Hash>>>());
        frames
            .iter()
            .map(|f| (f.hashes.len(), f.begins_cluster))
            .collect()
    }

    #[test]
    fn a_large_cluster_has_frames_of_its_own_and_small_ones_share() {
        assert_eq!(
            sizes(&[40, 16]),
            [(16, true), (16, false), (8, false), (16, true)]
        );
        assert_eq!(sizes(&[3, 4, 2, 20]), [(9, true), (16, true), (4, false)]);
        assert_eq!(sizes(&[7, 30]), [(16, true), (16, false), (5, false)]);
        assert_eq!(sizes(&[]), []);
        assert_eq!(sizes(&[0, 1]), [(1, true)]);
    }

    proptest! {
        #[test]
        fn each_chunk_lies_in_one_frame_in_the_order_in_which_it_is_first_needed(
            clusters in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..20)
        ) {
            let named: Vec<Vec<Hash>> = clusters
                .iter()
                .map(|c| c.iter().map(|n| if *n == 0 { Hash::ZERO } else { hash(*n) }).collect())
                .collect();
            let frames = frames(&named);
            let laid: Vec<Hash> = frames.iter().flat_map(|f| f.hashes.clone()).collect();
            let mut seen = HashSet::from([Hash::ZERO]);
            let first_needed: Vec<Hash> =
                named.iter().flatten().copied().filter(|h| seen.insert(*h)).collect();
            prop_assert_eq!(laid, first_needed);
            for (i, frame) in frames.iter().enumerate() {
                let last = i + 1 == frames.len();
                let len = frame.hashes.len();
                prop_assert!(len <= FRAME_MAX_CHUNKS && (last || len >= FRAME_CHUNKS_MIN));
            }
            // What a read of one cluster gets besides the cluster.
            let mut own = HashSet::from([Hash::ZERO]);
            for cluster in &named {
                let cluster: HashSet<Hash> = cluster.iter().copied().filter(|h| own.insert(*h)).collect();
                let read: usize = frames
                    .iter()
                    .filter(|f| f.hashes.iter().any(|h| cluster.contains(h)))
                    .map(|f| f.hashes.len())
                    .sum();
                prop_assert!(read < cluster.len() + FRAME_CHUNKS_MIN - 1 + FRAME_MAX_CHUNKS);
            }
        }
    }
}
