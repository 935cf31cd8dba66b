//! Which programs a person waits for, by the base disk of the images that have them, and which disk that is for each image.
//!
//! Where these files are, the store's documentation says ([`super::store`]).

use super::store::{TraceStore, at, folders, if_there, name_of, remove, write};
use floe_image::Hash;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The file with the base disk of an image, and its most bytes.
const BASE: &str = "base";
const BASE_BYTES_MAX: u64 = 128;
/// The folder of what belongs to base disks. It is no image's id.
const DISKS: &str = "disks";
/// The list of the interactive programs on a base disk after its owner's name, and its most bytes. Earlier versions had one for each image,
/// in a file that had this name alone.
const PROGRAMS: &str = "programs.json";
const PROGRAMS_BYTES_MAX: u64 = 1 << 20;

impl TraceStore {
    /// Returns the base disk of an image, if it was stored.
    pub fn base(&self, image: &Hash, owner: &str) -> io::Result<Option<Hash>> {
        let path = self.folder(image, owner).join(BASE);
        let Some(bytes) = read(&path, BASE_BYTES_MAX)? else {
            return Ok(None);
        };
        let hash = std::str::from_utf8(&bytes).ok();
        match hash.and_then(|hash| hash.trim_end().parse().ok()) {
            Some(base) => Ok(Some(base)),
            None => Err(at(&path)(io::Error::new(
                io::ErrorKind::InvalidData,
                "it holds no hash; remove it, and it is found again",
            ))),
        }
    }

    /// Stores the base disk of an image. It is durable when this returns.
    pub fn set_base(&self, image: &Hash, owner: &str, base: &Hash) -> io::Result<()> {
        let _changing = self.changing.lock();
        let folder = self.folder(image, owner);
        self.make_folder(&folder)?;
        write(&folder, BASE, format!("{base}\n").as_bytes())
    }

    fn programs_file(&self, base: &Hash, owner: &str) -> (PathBuf, String) {
        let folder = self.root.join(DISKS).join(base.to_string());
        (folder, format!("{owner}.{PROGRAMS}"))
    }

    /// Returns where the list of the interactive programs on a base disk is, or would be.
    pub fn programs_path(&self, base: &Hash, owner: &str) -> PathBuf {
        let (folder, name) = self.programs_file(base, owner);
        folder.join(name)
    }

    /// Returns that list, if one is stored: not longer than a list may be, and not checked further.
    pub fn programs(&self, base: &Hash, owner: &str) -> io::Result<Option<Vec<u8>>> {
        read(&self.programs_path(base, owner), PROGRAMS_BYTES_MAX)
    }

    /// Stores that list in place of an earlier one. It is durable when this returns.
    pub fn set_programs(&self, base: &Hash, owner: &str, bytes: &[u8]) -> io::Result<()> {
        let _changing = self.changing.lock();
        let (folder, name) = self.programs_file(base, owner);
        self.make_folder(&folder)?;
        write(&folder, &name, bytes)
    }

    /// Removes that list, if one is stored.
    pub fn remove_programs(&self, base: &Hash, owner: &str) -> io::Result<()> {
        let _changing = self.changing.lock();
        remove(&self.programs_path(base, owner))?;
        // Removes the disk's folder if this was the last owner; it stays if it isn't empty.
        let _ = fs::remove_dir(self.root.join(DISKS).join(base.to_string()));
        Ok(())
    }

    /// Returns the base disks for which an owner has stored a list.
    pub fn bases_with_programs(&self, owner: &str) -> io::Result<Vec<Hash>> {
        let mut bases = Vec::new();
        for folder in folders(&self.root.join(DISKS))? {
            let Some(base) = name_of(&folder).and_then(|name| name.parse().ok()) else {
                continue;
            };
            if if_there(&self.programs_path(&base, owner), fs::metadata)?.is_some() {
                bases.push(base);
            }
        }
        Ok(bases)
    }

    /// Returns the list that an earlier version has stored for an image, if there is one.
    pub fn old_programs(&self, image: &Hash, owner: &str) -> io::Result<Option<Vec<u8>>> {
        read(
            &self.folder(image, owner).join(PROGRAMS),
            PROGRAMS_BYTES_MAX,
        )
    }

    /// Removes that list, once it was taken over.
    pub fn remove_old_programs(&self, image: &Hash, owner: &str) -> io::Result<()> {
        let _changing = self.changing.lock();
        remove(&self.folder(image, owner).join(PROGRAMS))
    }
}

/// Reads a file of at most so many bytes; `None` if it is not there.
fn read(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = if_there(path, File::open)? else {
        return Ok(None);
    };
    let mut bytes = Vec::new();
    file.take(bytes_max + 1)
        .read_to_end(&mut bytes)
        .map_err(at(path))?;
    match bytes.len() as u64 > bytes_max {
        true => Err(at(path)(io::ErrorKind::FileTooLarge.into())),
        false => Ok(Some(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_belongs_to_a_disk_and_an_owner_and_an_image_remembers_its_disk() {
        let dir = tempfile::tempdir().unwrap();
        let open = || TraceStore::open(dir.path()).unwrap();
        let (image, disk) = (Hash::of(b"image"), Hash::of(b"disk"));
        let store = open();
        assert_eq!(store.base(&image, "ann").unwrap(), None);
        assert_eq!(store.programs(&disk, "ann").unwrap(), None);
        assert_eq!(store.bases_with_programs("ann").unwrap(), []);
        store.set_base(&image, "ann", &disk).unwrap();
        store.set_programs(&disk, "ann", b"list").unwrap();
        store.set_programs(&disk, "bob", b"another").unwrap();
        let again = open();
        assert_eq!(again.base(&image, "ann").unwrap(), Some(disk));
        assert_eq!(again.base(&image, "bob").unwrap(), None);
        assert_eq!(again.programs(&disk, "ann").unwrap().unwrap(), b"list");
        assert_eq!(again.bases_with_programs("ann").unwrap(), [disk]);
        // it is no image's, and outlives each of them
        assert_eq!(again.images().unwrap(), [(image, "ann".to_owned())]);
        again.remove(&image, "ann").unwrap();
        assert_eq!(again.base(&image, "ann").unwrap(), None);
        assert!(again.programs(&disk, "ann").unwrap().is_some());
        again.remove_programs(&disk, "ann").unwrap();
        again.remove_programs(&disk, "ann").unwrap();
        assert_eq!(again.programs(&disk, "ann").unwrap(), None);
        assert_eq!(again.bases_with_programs("bob").unwrap(), [disk]);
        again.remove_programs(&disk, "bob").unwrap();
        assert_eq!(
            folders(&dir.path().join(DISKS)).unwrap(),
            [""; 0].map(PathBuf::from)
        );
    }

    #[test]
    fn what_is_too_long_or_no_hash_is_an_error_and_no_absence() {
        let dir = tempfile::tempdir().unwrap();
        let store = TraceStore::open(dir.path()).unwrap();
        let (image, disk) = (Hash::of(b"image"), Hash::of(b"disk"));
        store.set_base(&image, "ann", &disk).unwrap();
        fs::write(store.folder(&image, "ann").join(BASE), "no hash").unwrap();
        let told = store.base(&image, "ann").unwrap_err().to_string();
        assert!(told.contains("holds no hash"), "{told}");
        let long = vec![b' '; PROGRAMS_BYTES_MAX as usize + 1];
        store.set_programs(&disk, "ann", &long).unwrap();
        store.programs(&disk, "ann").unwrap_err();
        // the list of an earlier version
        assert_eq!(store.old_programs(&image, "ann").unwrap(), None);
        fs::write(store.folder(&image, "ann").join(PROGRAMS), "old").unwrap();
        assert_eq!(store.old_programs(&image, "ann").unwrap().unwrap(), b"old");
        store.remove_old_programs(&image, "ann").unwrap();
        assert_eq!(store.old_programs(&image, "ann").unwrap(), None);
    }
}
