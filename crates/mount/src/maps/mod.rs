//! The maps of an image's disks: which file each block belongs to. Each is made once, by the first machine that needs it, and is what the
//! maps of all machines on that disk begin with ([`crate::files`]). It is kept in a file beside what else is known of the image, so that
//! neither the next node nor a machine after the last one reads the file system again.
//!
//! A file that can't be read, or is damaged, is made anew: it holds nothing that the image doesn't.

mod file;

use file::{FILE_BYTES_MAX, Recorded, Recorder};
use floe_extents::{Disk, Error, Limits, Map};
use floe_store::{Durability, private};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};

/// The maps of an image.
#[derive(Default)]
pub(crate) struct Maps {
    /// Where they are kept; nowhere as long as nobody has said.
    dir: OnceLock<PathBuf>,
    /// By the names of their regions, as long as any machine has them. Held while one is made or read, so that who needs it as well waits
    /// for that: only background threads need any.
    made: Mutex<HashMap<String, Weak<Map>>>,
}

impl Maps {
    /// Sets the directory in which they are kept. The first one stays.
    pub(crate) fn keep_in(&self, dir: PathBuf) {
        let _ = self.dir.set(dir);
    }

    /// Returns the map of the region of this name, whose bytes `disk` reads: that of another machine, or what was kept, or a new one.
    pub(crate) fn of(
        &self,
        region: &str,
        disk: &dyn Disk,
        limits: Limits,
    ) -> Result<Arc<Map>, Error> {
        let mut made = self.made.lock();
        if let Some(map) = made.get(region).and_then(Weak::upgrade) {
            return Ok(map);
        }
        let path = self
            .dir
            .get()
            .map(|dir| dir.join(format!("{region}.files")));
        let kept = path.as_deref().and_then(|path| kept(path, disk, limits));
        let map = match kept {
            Some(map) => map,
            None => make(path.as_deref(), disk, limits)?,
        };
        let map = Arc::new(map);
        made.insert(region.to_owned(), Arc::downgrade(&map));
        Ok(map)
    }
}

/// Returns the map that is kept in a file; `None` if there is none of that disk that can be used.
fn kept(path: &Path, disk: &dyn Disk, limits: Limits) -> Option<Map> {
    let read = || -> io::Result<Option<Vec<u8>>> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    };
    let bytes = read().map_err(|error| error.to_string());
    let map = bytes.and_then(|bytes| {
        let Some(bytes) = bytes else { return Ok(None) };
        let recorded = Recorded::decode(&bytes)?;
        if recorded.bytes() != disk.bytes() {
            return Err("it is of a disk of another size".into());
        }
        let map = Map::read(&recorded, limits).map_err(|error| error.to_string())?;
        Ok(Some(map))
    });
    map.unwrap_or_else(|reason| {
        tracing::warn!(path = %path.display(), reason, "the kept map of a disk's files is made anew");
        None
    })
}

/// Makes a map, and keeps it.
fn make(path: Option<&Path>, disk: &dyn Disk, limits: Limits) -> Result<Map, Error> {
    let recorder = Recorder::new(disk);
    let map = Map::read(&recorder, limits)?;
    let Some((path, dir)) = path.and_then(|path| Some((path, path.parent()?))) else {
        return Ok(map);
    };
    let Some(bytes) = recorder.encode() else {
        tracing::debug!(path = %path.display(), "a disk has too many files for its map to be kept");
        return Ok(map);
    };
    // what a power cut may leave of it has the wrong checksum, and the host's disk has better things to do than to wait for this
    let store = || {
        private::make_dirs(dir)?;
        floe_store::replace_file(path, &bytes, 0o600, Durability::Soon)
    };
    if let Err(error) = store() {
        tracing::warn!(path = %path.display(), %error, "the map of a disk's files is not kept");
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::process::Command;

    const LIMITS: Limits = Limits {
        inodes: 1000,
        extents: 1000,
        name_bytes: 1 << 20,
        read_bytes: 64 << 20,
    };

    /// A disk that counts how often it is read.
    struct Counted {
        bytes: Vec<u8>,
        reads: Cell<usize>,
    }

    impl Disk for Counted {
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
            self.reads.set(self.reads.get() + 1);
            self.bytes.read_at(offset, buffer)
        }

        fn bytes(&self) -> u64 {
            self.bytes.len() as u64
        }
    }

    /// An ext4 with a file.
    fn ext4(dir: &Path) -> Counted {
        let (files, path) = (dir.join("files"), dir.join("disk"));
        std::fs::create_dir_all(files.join("usr/bin")).unwrap();
        std::fs::write(files.join("usr/bin/editor"), [7; 9000]).unwrap();
        let mut make = Command::new("mke2fs");
        make.args(["-q", "-F", "-t", "ext4", "-b", "1024", "-d"]);
        let made = make.arg(&files).arg(&path).arg("8M").output().unwrap();
        assert!(made.status.success(), "{made:?}");
        Counted {
            bytes: std::fs::read(path).unwrap(),
            reads: Cell::new(0),
        }
    }

    fn names(map: &Map) -> Vec<String> {
        map.files().map(|file| map.path(file)).collect()
    }

    #[test]
    fn a_disk_is_read_once_however_many_need_its_map_and_whoever_comes_later() {
        let dir = tempfile::tempdir().unwrap();
        let disk = ext4(dir.path());
        let own = Map::read(&disk, LIMITS).unwrap();
        assert!(names(&own).contains(&"/usr/bin/editor".into()));
        disk.reads.set(0);

        let maps = Maps::default();
        maps.keep_in(dir.path().join("kept"));
        let first = maps.of("disk0", &disk, LIMITS).unwrap();
        let reads = disk.reads.get();
        assert!(reads > 0 && *first == own);
        let second = maps.of("disk0", &disk, LIMITS).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        drop((first, second));
        // when no machine has it, and by another node
        for maps in [maps, Maps::default()] {
            maps.keep_in(dir.path().join("kept"));
            assert!(*maps.of("disk0", &disk, LIMITS).unwrap() == own);
        }
        assert_eq!(disk.reads.get(), reads);
        // another region is another disk
        let maps = Maps::default();
        maps.keep_in(dir.path().join("kept"));
        let other = maps.of("disk1", &disk, LIMITS).unwrap();
        assert!(*other == own && disk.reads.get() > reads);
    }

    #[test]
    fn what_was_kept_and_is_damaged_or_of_another_disk_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let disk = ext4(dir.path());
        let own = Map::read(&disk, LIMITS).unwrap();
        let of = |disk: &Counted| {
            let maps = Maps::default();
            maps.keep_in(dir.path().to_owned());
            disk.reads.set(0);
            let map = maps.of("disk0", disk, LIMITS).unwrap();
            (map, disk.reads.get())
        };
        assert!(of(&disk).1 > 0);
        assert_eq!(of(&disk).1, 0);
        let path = dir.path().join("disk0.files");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[40] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let (map, reads) = of(&disk);
        assert!(*map == own && reads > 0);
        assert_eq!(of(&disk).1, 0, "it is whole again");
        let mut longer = disk.bytes.clone();
        longer.resize(9 << 20, 0);
        let longer = Counted {
            bytes: longer,
            reads: Cell::new(0),
        };
        assert!(of(&longer).1 > 0);
    }

    #[test]
    fn a_disk_without_a_file_system_has_no_map_and_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Counted {
            bytes: vec![0; 1 << 20],
            reads: Cell::new(0),
        };
        let maps = Maps::default();
        maps.keep_in(dir.path().to_owned());
        assert!(maps.of("disk0", &disk, LIMITS).is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
