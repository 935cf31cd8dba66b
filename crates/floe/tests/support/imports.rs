//! What people bring along to be imported: disks in every format and packing, cut off, of odd sizes, and things that are none.

use crate::support::importing::Rig;
use floe_api::*;
use floe_image::Region;
use floe_store::Repository;
use std::{fs, process::Command};

impl Rig {
    pub fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    pub fn import(&self, file: &str) -> Result<Outcome, String> {
        let request = ImportRequest {
            labels: [("from".to_owned(), file.to_owned())].into(), // no two are the same image
            ..Default::default()
        };
        self.import_disk(&self.path(file), request)
    }

    /// What the image consists of, by hashes.
    pub fn regions(&self, outcome: &Outcome) -> Vec<Region> {
        let repository = Repository::open(&self.node.home().join("repo")).unwrap();
        let id = outcome.image.as_ref().unwrap().id.parse().unwrap();
        repository.manifest(&id).unwrap().regions
    }
}

/// 8 MiB with a partition that fills it: noise in its first and last parts, a hole between.
pub fn disk() -> Vec<u8> {
    const BYTES: usize = 8 << 20;
    let mut state = 1u64;
    let mut noise = |len: usize| -> Vec<u8> {
        let mut next = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        (0..len).map(|_| next()).collect()
    };
    let mut disk = noise(3 << 20);
    disk.resize(BYTES - (2 << 20), 0);
    disk.extend(noise(2 << 20));
    disk[446..510].fill(0);
    disk[450] = 0x83;
    disk[454..458].copy_from_slice(&2048u32.to_le_bytes());
    disk[458..462].copy_from_slice(&((BYTES as u32 >> 9) - 2048).to_le_bytes());
    disk[510..512].copy_from_slice(b"\x55\xaa");
    disk
}

pub fn convert(rig: &Rig, name: &str, format: &str, options: &[&str]) {
    let (from, to) = (rig.path("disk.raw"), rig.path(name));
    let done = Command::new("qemu-img")
        .args(["convert", "-f", "raw", "-O", format])
        .args(options)
        .args([&from, &to])
        .output()
        .unwrap();
    assert!(done.status.success(), "{name}: {done:?}");
}
