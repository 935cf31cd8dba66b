//! Collects, within bounds, what programs have read and the node was not told of yet.

use crate::asked::{Asked, NAME_BYTES_MAX, PARTS_MAX, SECTOR_BYTES};
use std::collections::BTreeMap;

/// Programs that are remembered until they are told of. Further ones are left out.
const PROGRAMS_MAX: usize = 64;

/// What was read, by program.
#[derive(Debug, Default)]
pub struct Gathered(BTreeMap<String, Asked>);

impl Gathered {
    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a part of a disk: first sector and how many.
    pub fn part(&mut self, name: &str, first: u64, count: u64) {
        let Some(asked) = self.of(name) else { return };
        asked.bytes = asked
            .bytes
            .saturating_add(count.saturating_mul(SECTOR_BYTES));
        let is_full = asked.parts.len() >= PARTS_MAX;
        match asked.parts.last_mut() {
            Some((start, length)) if start.saturating_add(*length) == first => {
                *length = length.saturating_add(count);
            }
            // the latest parts say most of what comes next
            Some(last) if is_full => *last = (first, count),
            _ => asked.parts.push((first, count)),
        }
    }

    /// Adds an amount of which nobody knows where it was.
    pub fn amount(&mut self, name: &str, bytes: u64) {
        if let Some(asked) = self.of(name) {
            asked.bytes = asked.bytes.saturating_add(bytes);
        }
    }

    /// Takes the programs out that have read most, at most so many.
    pub fn take(&mut self, most: usize) -> Vec<Asked> {
        let mut names: Vec<(u64, String)> = self
            .0
            .iter()
            .map(|(name, asked)| (asked.bytes, name.clone()))
            .collect();
        names.sort_unstable_by(|a, b| b.cmp(a));
        names.truncate(most);
        let taken = names.into_iter();
        taken.filter_map(|(_, name)| self.0.remove(&name)).collect()
    }

    fn of(&mut self, name: &str) -> Option<&mut Asked> {
        let name = plain(name);
        if self.0.len() >= PROGRAMS_MAX && !self.0.contains_key(&name) {
            return None;
        }
        let asked = self.0.entry(name.clone()).or_default();
        asked.by = name;
        Some(asked)
    }
}

/// Returns a program's name as it is told: kernel threads of one kind (`kworker/3:1`) are one program.
fn plain(name: &str) -> String {
    let name = match name.split_once('/') {
        Some((kind, _)) if kind == "kworker" || kind == "jbd2" => kind,
        _ => name,
    };
    let mut plain: String = name.chars().filter(|c| !c.is_control()).collect();
    while plain.len() > NAME_BYTES_MAX {
        plain.pop();
    }
    match plain.is_empty() {
        true => "?".into(),
        false => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_parts_are_one_and_the_busiest_programs_are_told_first() {
        let mut gathered = Gathered::default();
        gathered.part("dd", 0, 8);
        gathered.part("dd", 8, 8);
        gathered.part("kworker/1:2", 100, 1);
        gathered.part("kworker/u4:0", 300, 1);
        gathered.amount("idle", 1);
        let told = gathered.take(2);
        assert_eq!(told[0].parts, [(0, 16)]);
        assert_eq!((told[0].by.as_str(), told[0].bytes), ("dd", 8192));
        assert_eq!(told[1].by, "kworker");
        assert_eq!(told[1].parts, [(100, 1), (300, 1)]);
        assert_eq!(gathered.take(9).len(), 1);
        assert!(gathered.is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut gathered = Gathered::default();
        for n in 0..10_000 {
            gathered.part(&format!("program {n}"), n * 100, 8);
            gathered.part("one", n * 100, 8);
        }
        let told = gathered.take(usize::MAX);
        assert_eq!(told.len(), PROGRAMS_MAX);
        assert!(told.iter().all(|asked| asked.parts.len() <= PARTS_MAX));
        gathered.part("\n", u64::MAX, u64::MAX);
        gathered.part("\n", u64::MAX - 8, 8);
        assert_eq!(gathered.take(1)[0].by, "?");
    }
}
