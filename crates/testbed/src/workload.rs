//! Data to measure with.
use anyhow::Context;
use rustix::fs::SeekFrom;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes in each contiguous part of a synthetic disk's data; there are holes between the parts.
const RUN_BYTES: u64 = 1 << 20;

/// Makes a sparse disk of `size` bytes, of which `data` bytes are real files of this system (programs and libraries, as
/// on real disks), in contiguous parts with holes between them.
pub fn sparse_disk(path: &Path, size: u64, data: u64) -> anyhow::Result<()> {
    let disk = File::create_new(path).with_context(|| format!("cannot make {}", path.display()))?;
    disk.set_len(size)?;
    let runs = data / RUN_BYTES;
    let mut files = files_below(Path::new("/usr/lib"))?.into_iter().cycle();
    let mut pending: Vec<u8> = Vec::new();
    for run in 0..runs {
        while (pending.len() as u64) < RUN_BYTES {
            let file = files
                .next()
                .context("/usr/lib has no files to make a disk of")?;
            File::open(file)?.take(16 << 20).read_to_end(&mut pending)?;
            // File systems start each file on a new block.
            pending.resize(pending.len().next_multiple_of(4096), 0);
        }
        let rest = pending.split_off(RUN_BYTES as usize);
        disk.write_all_at(&pending, run * (size / runs) / 4096 * 4096)?;
        pending = rest;
    }
    disk.sync_all()?;
    Ok(())
}

/// Returns regular files up to a total size, sorted, so that two runs on one machine make the same disk.
fn files_below(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    const ENOUGH: usize = 2000;
    let (mut files, mut dirs) = (Vec::new(), vec![dir.to_path_buf()]);
    while let Some(dir) = dirs.pop() {
        let Ok(entries) = fs::read_dir(&dir) else {
            continue;
        };
        for entry in entries.flatten() {
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if kind.is_dir() {
                dirs.push(entry.path());
            } else if kind.is_file() && entry.metadata().is_ok_and(|meta| meta.len() > 16 << 10) {
                files.push(entry.path());
            }
        }
        if files.len() > ENOUGH {
            break;
        }
    }
    files.sort();
    Ok(files)
}

/// Copies the data of a sparse file without its holes. Returns the number of bytes.
pub fn without_holes(from: &Path, to: &Path) -> anyhow::Result<u64> {
    let mut source = File::open(from).with_context(|| format!("cannot read {}", from.display()))?;
    let mut dense = File::create(to)?;
    let (mut at, mut total) = (0, 0);
    loop {
        let data = match rustix::fs::seek(&source, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        at = rustix::fs::seek(&source, SeekFrom::Hole(data))?;
        source.seek(std::io::SeekFrom::Start(data))?;
        total += std::io::copy(&mut Read::by_ref(&mut source).take(at - data), &mut dense)?;
    }
    dense.flush()?;
    Ok(total)
}

/// Returns pages that no compressor and no deduplication can reduce, different for each `seed`: the cost of a page fault
/// must not depend on its content.
pub fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    use rand::{RngCore, SeedableRng};
    let mut data = vec![0; bytes];
    rand::rngs::StdRng::seed_from_u64(seed).fill_bytes(&mut data);
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_synthetic_disk_is_sparse_and_its_data_can_be_packed() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, dense) = (dir.path().join("disk"), dir.path().join("dense"));
        sparse_disk(&disk, 64 << 20, 4 << 20).unwrap();
        assert_eq!(fs::metadata(&disk).unwrap().len(), 64 << 20);
        assert_eq!(without_holes(&disk, &dense).unwrap(), 4 << 20);
        let (whole, packed) = (fs::read(&disk).unwrap(), fs::read(&dense).unwrap());
        assert_eq!(&whole[..1 << 20], &packed[..1 << 20]);
        assert_eq!(&whole[16 << 20..17 << 20], &packed[1 << 20..2 << 20]);
    }
}
