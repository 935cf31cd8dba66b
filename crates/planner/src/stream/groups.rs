//! The chunks of a model, and the state of each.

use crate::model::{ChunkAt, Model};

/// The state of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nobody has asked for it.
    New,
    /// Asked for and on its way.
    Flight,
    /// Fetched ahead, not touched yet.
    Here,
    /// Never to be fetched: zero, in the store already, or outside the region.
    Never,
    /// Touched.
    Touched,
}

impl State {
    /// Returns whether a machine that touches it now has to wait.
    fn is_missing(self) -> bool {
        matches!(self, State::New | State::Flight)
    }
}

/// All chunks of a model by number, in groups: clusters, or single rows of a profile.
#[derive(Debug)]
pub(crate) struct Groups {
    at: Vec<ChunkAt>,
    state: Vec<State>,
    /// The group of each chunk.
    group: Vec<u32>,
    /// The first chunk of each group, and one more at the end.
    start: Vec<u32>,
    /// How many chunks of each group nobody has asked for.
    new: Vec<u32>,
    /// How many chunks of each group a machine would wait for.
    missing: Vec<u32>,
    /// No chunk of a group before this one is new.
    cursor: Vec<u32>,
    /// For each region (chunk, its number here), ordered.
    index: Vec<Vec<(u32, u32)>>,
    /// How many chunks are here and not touched, and how many are on their way.
    pub here: u64,
    pub flight: u64,
}

impl Groups {
    /// Makes the groups of a model. `chunks_of` has the size in chunks of each region of the manifest.
    pub(crate) fn new(model: &Model, chunks_of: &[u64]) -> Self {
        let at: Vec<ChunkAt> = model.chunks().collect();
        let sizes: Vec<u32> = if model.clusters().is_empty() {
            vec![1; at.len()]
        } else {
            model
                .clusters()
                .iter()
                .map(|c| c.chunks.len() as u32)
                .collect()
        };
        let mut start = vec![0u32];
        let mut group = Vec::with_capacity(at.len());
        for (g, size) in sizes.iter().enumerate() {
            group.extend(std::iter::repeat_n(g as u32, *size as usize));
            start.push(group.len() as u32);
        }
        let mut index: Vec<Vec<(u32, u32)>> = vec![Vec::new(); chunks_of.len()];
        let mut outside = Vec::new();
        for (id, a) in at.iter().enumerate() {
            match index.get_mut(usize::from(a.region)) {
                Some(list) if u64::from(a.chunk) < chunks_of[usize::from(a.region)] => {
                    list.push((a.chunk, id as u32));
                }
                _ => outside.push(id as u32),
            }
        }
        index.iter_mut().for_each(|list| list.sort_unstable());
        let mut groups = Self {
            state: vec![State::New; at.len()],
            at,
            group,
            new: sizes.clone(),
            missing: sizes,
            cursor: start[..start.len() - 1].to_vec(),
            start,
            index,
            here: 0,
            flight: 0,
        };
        outside
            .into_iter()
            .for_each(|id| groups.set(id, State::Never));
        groups
    }

    pub(crate) fn find(&self, region: usize, chunk: u64) -> Option<u32> {
        let chunk = u32::try_from(chunk).ok()?;
        let list = self.index.get(region)?;
        let i = list.binary_search_by_key(&chunk, |(c, _)| *c).ok()?;
        Some(list[i].1)
    }

    /// Returns the chunks of a block of 64 as (bit, number).
    pub(crate) fn block(&self, region: usize, block: u64) -> impl Iterator<Item = (u32, u32)> + '_ {
        let list = self.index.get(region).map_or(&[][..], Vec::as_slice);
        let (first, last) = (block * 64, block * 64 + 63);
        let from = list.partition_point(|(c, _)| u64::from(*c) < first);
        let rest = list[from..]
            .iter()
            .take_while(move |(c, _)| u64::from(*c) <= last);
        rest.map(|(c, id)| (c % 64, *id))
    }

    pub(crate) fn at(&self, id: u32) -> ChunkAt {
        self.at[id as usize]
    }

    pub(crate) fn state(&self, id: u32) -> State {
        self.state[id as usize]
    }

    pub(crate) fn group_of(&self, id: u32) -> u32 {
        self.group[id as usize]
    }

    /// Returns how many chunks of a group may be asked for.
    pub(crate) fn new_chunks(&self, group: u32) -> u32 {
        self.new[group as usize]
    }

    /// Returns how many chunks of a group a machine would wait for.
    pub(crate) fn missing_chunks(&self, group: u32) -> u32 {
        self.missing[group as usize]
    }

    /// Returns the next chunk of a group that may be asked for, from number `from` on.
    pub(crate) fn next_new(&mut self, group: u32, from: u32) -> Option<u32> {
        let g = group as usize;
        let end = self.start[g + 1];
        while self.cursor[g] < end && self.state[self.cursor[g] as usize] != State::New {
            self.cursor[g] += 1;
        }
        (self.cursor[g].max(from)..end).find(|id| self.state[*id as usize] == State::New)
    }

    pub(crate) fn set(&mut self, id: u32, state: State) {
        let old = std::mem::replace(&mut self.state[id as usize], state);
        if old == state {
            return;
        }
        let g = self.group[id as usize] as usize;
        if old == State::New {
            self.new[g] -= 1;
        }
        if state == State::New {
            self.new[g] += 1;
            self.cursor[g] = self.cursor[g].min(id);
        }
        match (old.is_missing(), state.is_missing()) {
            (true, false) => self.missing[g] -= 1,
            (false, true) => self.missing[g] += 1,
            _ => {}
        }
        self.here += u64::from(state == State::Here);
        self.here -= u64::from(old == State::Here);
        self.flight += u64::from(state == State::Flight);
        self.flight -= u64::from(old == State::Flight);
    }
}
