//! How long runs of an image take; the catalogue shows it as the typical start.

use floe_api::paths::Home;
use floe_ground::{
    error::NodeError,
    files::{load_one, replace_file_soon},
};
use floe_image::Hash;
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
};

/// How many of an image's last runs count.
const RUNS_MAX: usize = 9;
/// How many images are remembered; beyond that, those whose id sorts first are forgotten.
const IMAGES_MAX: usize = 4096;
/// Largest file that is read.
const BYTES_MAX: u64 = 4 << 20;

/// Times of the last runs by image. They are kept over restarts; a damaged file counts as empty.
pub struct Starts {
    file: PathBuf,
    times_ms: Mutex<BTreeMap<String, VecDeque<f64>>>,
}

impl Starts {
    /// Reads what is known from this state directory. A file that can't be read now is an error.
    pub fn open(home: &Home) -> Result<Starts, NodeError> {
        let file = home.root().join("starts.json");
        let parse = |bytes: &[u8]| serde_json::from_slice(bytes).map_err(|why| why.to_string());
        let times_ms = load_one(&file, BYTES_MAX, parse, "holds no start times")?;
        Ok(Starts {
            file,
            times_ms: Mutex::new(times_ms.unwrap_or_default()),
        })
    }

    /// Adds the time of a run, in milliseconds.
    pub fn add(&self, image: &Hash, ms: f64) {
        let mut times = self.times_ms.lock();
        let of_image = times.entry(image.to_string()).or_default();
        of_image.push_back(ms);
        while of_image.len() > RUNS_MAX {
            of_image.pop_front();
        }
        while times.len() > IMAGES_MAX {
            times.pop_first();
        }
        // no fsync: a run waits for this, and after a power failure an empty list does no harm
        let bytes = serde_json::to_vec(&*times).unwrap_or_default();
        if let Err(error) = replace_file_soon(&self.file, &bytes) {
            tracing::warn!(%error, "start times are not kept");
        }
    }

    /// Returns the median of the last runs, in milliseconds.
    pub fn typical_ms(&self, image: &Hash) -> Option<f64> {
        let times = self.times_ms.lock();
        let mut sorted: Vec<f64> = times.get(&image.to_string())?.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_typical_start_is_the_median_of_the_last_runs_and_outlives_the_node() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let (image, other) = (Hash::of(b"a"), Hash::of(b"b"));
        let starts = Starts::open(&home).unwrap();
        assert_eq!(starts.typical_ms(&image), None);
        for ms in [9000.0, 100.0, 120.0] {
            starts.add(&image, ms);
        }
        let again = Starts::open(&home).unwrap();
        assert_eq!(
            (again.typical_ms(&image), again.typical_ms(&other)),
            (Some(120.0), None)
        );
        for _ in 0..RUNS_MAX {
            again.add(&image, 50.0);
        }
        assert_eq!(again.typical_ms(&image), Some(50.0));
        std::fs::write(dir.path().join("starts.json"), "{").unwrap();
        assert_eq!(Starts::open(&home).unwrap().typical_ms(&image), None);
    }
}
