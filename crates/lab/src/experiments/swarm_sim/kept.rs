//! What was simulated already: a file of one line for each swarm, so that a run that was cut goes on where it stood.
use super::plan::Key;
use crate::harness::{Samples, code_here};
use crate::swarm_sim::Outcome;
use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Mutex;

/// What is told of a swarm.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Told {
    /// The hosts' slowdowns: their mean, their median, and that which 1 % of the hosts exceed.
    pub mean: f64,
    /// See `mean`.
    pub p50: f64,
    /// See `mean`.
    pub p99: f64,
    /// Bytes that the seed sent.
    pub seed_bytes: u64,
    /// Honest hosts that were dropped.
    pub dropped: u64,
    /// Processor time of the simulation, in seconds.
    pub cpu_s: f64,
    /// What is drawn of some: pieces received in each second, and when the first machine had each access.
    pub received: Vec<u32>,
    /// See `received`.
    pub played_us: Vec<u64>,
}

impl Told {
    /// Makes it of an outcome.
    pub fn new(outcome: Outcome, cpu_s: f64, drawn: bool) -> Told {
        let slowdowns: Samples = outcome.slowdowns.iter().copied().collect();
        let mut told = Told {
            mean: outcome.mean(),
            p50: slowdowns.quantile(0.5),
            p99: slowdowns.quantile(0.99),
            seed_bytes: outcome.seed_bytes,
            dropped: outcome.dropped,
            cpu_s,
            ..Told::default()
        };
        if drawn {
            (told.received, told.played_us) = (outcome.received, outcome.played_us);
        }
        told
    }
}

/// A line of the file.
#[derive(Serialize, Deserialize)]
struct Line {
    /// The code that simulated it.
    code: String,
    key: Key,
    told: Told,
}

/// The file, and what stood in it.
pub struct Kept {
    /// What an earlier run of this very code has simulated.
    pub told: BTreeMap<Key, Told>,
    code: String,
    file: Option<Mutex<File>>,
}

impl Kept {
    /// Reads a file, if there is to be one, and leaves in it what is of this code.
    pub fn open(path: Option<&Path>) -> anyhow::Result<Kept> {
        let code = code_here();
        match path {
            None => Ok(Kept {
                told: BTreeMap::new(),
                code,
                file: None,
            }),
            Some(path) if code.is_empty() => anyhow::bail!(
                "the code is not as it was committed, so that nobody could say what {} is of: commit your changes, or leave --kept out",
                path.display()
            ),
            Some(path) => Kept::of_code(path, code),
        }
    }

    fn of_code(path: &Path, code: String) -> anyhow::Result<Kept> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read.with_context(|| format!("cannot read {}", path.display()))?,
        };
        // a line that was cut off is simulated again
        let lines = text.lines();
        let lines = lines.filter_map(|line| serde_json::from_str::<Line>(line).ok());
        let of_this_code = lines.filter(|line| line.code == code);
        let told = of_this_code.map(|line| (line.key, line.told)).collect();
        let cannot = || format!("cannot write {}", path.display());
        let new = path.with_extension("new");
        let file = File::create(&new).with_context(cannot)?;
        let kept = Kept {
            told,
            code,
            file: Some(Mutex::new(file)),
        };
        for (key, told) in &kept.told {
            kept.put(key, told)?;
        }
        fs::rename(&new, path).with_context(cannot)?;
        Ok(kept)
    }

    /// Adds a swarm to the file.
    pub fn put(&self, key: &Key, told: &Told) -> anyhow::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let line = Line {
            code: self.code.clone(),
            key: *key,
            told: told.clone(),
        };
        let line = serde_json::to_string(&line)? + "\n";
        let mut file = file.lock().map_err(|_| anyhow::anyhow!("a run panicked"))?;
        file.write_all(line.as_bytes())
            .context("cannot keep what was simulated")
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{CS_D, MAIN, OURS};
    use super::*;

    fn key(hosts: usize) -> Key {
        Key {
            setting: MAIN,
            hosts,
            row: OURS,
            workload: 1,
        }
    }

    #[test]
    fn a_run_that_was_cut_goes_on_with_what_its_own_code_has_simulated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sim.lines");
        let open = |code: &str| Kept::of_code(&path, code.into()).unwrap();
        let told = Told {
            mean: 1.5,
            received: vec![3, 4],
            ..Told::default()
        };
        let first = open("crates 1");
        first.put(&key(2), &told).unwrap();
        first
            .put(
                &Key {
                    row: CS_D,
                    ..key(2)
                },
                &told,
            )
            .unwrap();
        drop(first);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() - 9]).unwrap();
        let again = open("crates 1");
        assert_eq!(again.told.len(), 1);
        let kept = &again.told[&key(2)];
        assert_eq!((kept.mean, &kept.received), (1.5, &told.received));
        again.put(&key(4), &told).unwrap();
        assert_eq!(open("crates 1").told.len(), 2);
        assert!(open("crates 2").told.is_empty());
    }
}
