//! What an experiment has done already: a file of one line for each piece of its work, so that a run that was cut goes on where it stood, and
//! one in several sittings ends like one in a single one.
use super::{MachineInfo, code_here};
use anyhow::Context as _;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Mutex;

/// Of what a line is: nothing else may be told together with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Of {
    experiment: String,
    quick: bool,
    code: String,
    machine: MachineInfo,
}

/// A line of the file.
#[derive(Serialize, Deserialize)]
struct Line<K, V> {
    of: Of,
    key: K,
    told: V,
}

/// The file, and what stood in it.
pub struct Kept<K, V> {
    /// What an earlier run of this very code on this machine has done.
    pub told: BTreeMap<K, V>,
    file: Option<(Of, Mutex<File>)>,
}

impl<K, V> Kept<K, V>
where
    K: Copy + Ord + Serialize + DeserializeOwned,
    V: Clone + Serialize + DeserializeOwned,
{
    /// Reads a file of an experiment, if there is to be one, and leaves in it what is of this code on this machine.
    pub fn open(path: Option<&Path>, experiment: &str, quick: bool) -> anyhow::Result<Kept<K, V>> {
        let Some(path) = path else {
            return Ok(Kept {
                told: BTreeMap::new(),
                file: None,
            });
        };
        let of = Of {
            experiment: experiment.into(),
            quick,
            code: code_here(),
            machine: MachineInfo::here(),
        };
        anyhow::ensure!(
            !of.code.is_empty(),
            "the code is not as it was committed, so that nobody could say what {} is of: commit your changes, or leave --kept out",
            path.display()
        );
        Kept::read(path, of)
    }

    fn read(path: &Path, of: Of) -> anyhow::Result<Kept<K, V>> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read.with_context(|| format!("cannot read {}", path.display()))?,
        };
        // what a line that was cut off told is done again
        let lines = text.lines();
        let lines = lines.filter_map(|line| serde_json::from_str::<Line<K, V>>(line).ok());
        let of_these = lines.filter(|line| line.of == of);
        let told = of_these.map(|line| (line.key, line.told)).collect();
        let cannot = || format!("cannot write {}", path.display());
        let new = path.with_extension("new");
        let file = File::create(&new).with_context(cannot)?;
        let kept = Kept {
            told,
            file: Some((of, Mutex::new(file))),
        };
        for (key, told) in &kept.told {
            kept.put(key, told)?;
        }
        fs::rename(&new, path).with_context(cannot)?;
        Ok(kept)
    }

    /// Adds what came of a piece of work to the file.
    pub fn put(&self, key: &K, told: &V) -> anyhow::Result<()> {
        let Some((of, file)) = &self.file else {
            return Ok(());
        };
        let line = Line {
            of: of.clone(),
            key: *key,
            told: told.clone(),
        };
        let line = serde_json::to_string(&line)? + "\n";
        let mut file = file.lock().map_err(|_| anyhow::anyhow!("a run panicked"))?;
        file.write_all(line.as_bytes())
            .context("cannot keep what was done")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_was_cut_goes_on_with_what_was_done_of_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept.lines");
        let of = Of {
            experiment: "swarm-real".into(),
            quick: false,
            code: "crates 1".into(),
            machine: MachineInfo::here(),
        };
        let open = || Kept::<u32, Vec<f64>>::read(&path, of.clone()).unwrap();
        let first = open();
        first.put(&2, &vec![1.5, 3.0]).unwrap();
        first.put(&3, &vec![2.5]).unwrap();
        drop(first);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() - 9]).unwrap();
        let again = open();
        assert_eq!(again.told, BTreeMap::from([(2, vec![1.5, 3.0])]));
        again.put(&4, &vec![]).unwrap();
        assert_eq!(open().told.len(), 2);
        let changes: [fn(&mut Of); 4] = [
            |of| of.experiment = "swarm-sim".into(),
            |of| of.quick = true,
            |of| of.code = "crates 2".into(),
            |of| of.machine.cores += 1,
        ];
        let text = fs::read_to_string(&path).unwrap();
        for change in changes {
            let mut other = of.clone();
            change(&mut other);
            fs::write(&path, &text).unwrap();
            let found = Kept::<u32, Vec<f64>>::read(&path, other).unwrap();
            assert!(found.told.is_empty());
        }
    }
}
