//! The repository: a directory of images that any web server can publish.
//!
//! ```text
//! version             "floe repository 1"
//! images/<id>         a manifest; immutable. Renaming it to this name publishes the image
//! images/<id>.layout  which packs hold the image; replaced when the packs are rearranged
//! packs/<2 hex>/<id>.pack
//! tags/<name>         "<id> <unix seconds>\n"; see `tag_file_name`
//! tmp/                files being written
//! lock                shared by publishers, exclusive for gc; empty
//! ```
//!
//! Only its own user can read a node's repository. One that a user makes for a web server ([`Repository::create_public`]) can
//! be read by everybody, except `tmp/` and `lock`: whoever may open the lock could hold it.
//!
//! Every file is written under a temporary name, synced and renamed, so a kill at any moment leaves at worst files that nothing
//! refers to, which [`Repository::gc`] removes.

mod export;
mod gc;
mod inspect;
mod names;
mod optimize;
mod packer;
mod packs;
mod publish;
mod scope;
mod verify;

use std::collections::HashSet;
use std::fs::{File, Permissions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use floe_image::{Hash, Kind, LAYOUT_BYTES_MAX, Layout, MANIFEST_BYTES_MAX, Manifest};
use parking_lot::Mutex;
use rustix::fs::FlockOperation;

pub use export::ExportStats;
pub use gc::{GcOptions, GcReport, UNFINISHED_PULL};
pub use inspect::{ImageEntry, Inspection, RegionInfo};
pub(crate) use names::unix_now;
pub use names::{TagEntry, parse_tag_file, tag_file_name};
pub use optimize::{Optimized, Rearranged};
pub(crate) use packer::{LEVEL_DEFAULT, PACK_BYTES_MAX, Packer};
pub(crate) use scope::Walk;
pub use scope::{FramePlace, Scope};
pub use verify::{Damage, VerifyReport};

use crate::{StoreError, durable, private};

const VERSION_WORDS: &[u8] = b"floe repository ";
/// What the file `version` of a repository says.
pub const VERSION_TEXT: &str = "floe repository 1\n";
/// Modes of a public repository's directories and files, so that any web server may read them.
const PUBLIC_DIR_MODE: u32 = 0o755;
const PUBLIC_FILE_MODE: u32 = 0o644;
/// Permission bits that others need to list a directory.
const OTHERS_LIST: u32 = 0o005;
/// How many scopes are kept open: about as many images are read at the same time.
const SCOPES_MAX: usize = 16;

/// A directory of images, which can be published as static files. Cheap to clone; several processes may use one directory.
#[derive(Clone)]
pub struct Repository {
    inner: Arc<Inner>,
}

struct Inner {
    dir: PathBuf,
    /// Whether others may read it: new files then get modes that allow that.
    public: bool,
    indices: Mutex<packs::Indices>,
    /// Scopes by the hash of their layout (an image's layout may be replaced), the last used last.
    scopes: Mutex<Vec<(Hash, Scope)>>,
}

impl Repository {
    /// Creates a repository for this user only in `dir` (which may exist), or opens the one that is there.
    pub fn create(dir: &Path) -> Result<Repository, StoreError> {
        Repository::create_with(dir, private::DIR_MODE, private::FILE_MODE)
    }

    /// Creates a repository that any web server may read, or opens the one that is there, which stays public or private.
    pub fn create_public(dir: &Path) -> Result<Repository, StoreError> {
        Repository::create_with(dir, PUBLIC_DIR_MODE, PUBLIC_FILE_MODE)
    }

    fn create_with(dir: &Path, dirs: u32, files: u32) -> Result<Repository, StoreError> {
        private::make_dirs_with(dir, dirs).map_err(|e| StoreError::io("create", dir, e))?;
        for (part, mode) in [
            ("images", dirs),
            ("packs", dirs),
            ("tags", dirs),
            ("tmp", private::DIR_MODE),
        ] {
            durable::make_dir(&dir.join(part), mode)?;
        }
        let version = dir.join("version");
        // Every version begins with these words. A file that doesn't was damaged; the images themselves are unaffected.
        let is_one = match std::fs::read(&version) {
            Ok(text) => text.starts_with(VERSION_WORDS),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => false,
            Err(_) => true,
        };
        if !is_one {
            let text = VERSION_TEXT.as_bytes();
            durable::write_file(&dir.join("tmp"), &version, text, files)?;
        }
        Repository::open(dir)
    }

    /// Opens the repository in `dir`. Fails if there is none, or one of another version.
    pub fn open(dir: &Path) -> Result<Repository, StoreError> {
        let version = dir.join("version");
        let text = match std::fs::read(&version) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(StoreError::NotFound {
                    what: "a repository (its file `version`)".to_owned(),
                    path: dir.to_path_buf(),
                    fix: "check the path; `floe image import` makes one where it is told to"
                        .to_owned(),
                });
            }
            Err(e) => return Err(StoreError::io("read", version, e)),
        };
        if text != VERSION_TEXT.as_bytes() {
            let found: String = String::from_utf8_lossy(&text)
                .trim()
                .chars()
                .take(60)
                .collect();
            return Err(StoreError::Invalid {
                what: format!(
                    "{} says {found:?}, this floe knows {:?}; use the floe that made the repository, or pull its images into a new one",
                    version.display(),
                    VERSION_TEXT.trim()
                ),
            });
        }
        let images = dir.join("images");
        let public = match std::fs::metadata(&images) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => false,
            Err(e) => return Err(StoreError::io("look at", images, e)),
            Ok(meta) => meta.permissions().mode() & OTHERS_LIST == OTHERS_LIST,
        };
        let inner = Inner {
            dir: dir.to_path_buf(),
            public,
            indices: Mutex::default(),
            scopes: Mutex::default(),
        };
        Ok(Repository {
            inner: Arc::new(inner),
        })
    }

    /// Returns its directory.
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// Returns the directory, on the same file system, where files are written before they get their names.
    pub fn tmp_dir(&self) -> PathBuf {
        self.inner.dir.join("tmp")
    }

    /// Returns the mode of a new directory here.
    fn dir_mode(&self) -> u32 {
        match self.inner.public {
            true => PUBLIC_DIR_MODE,
            false => private::DIR_MODE,
        }
    }

    /// Returns the mode of a new file here.
    pub(crate) fn file_mode(&self) -> u32 {
        match self.inner.public {
            true => PUBLIC_FILE_MODE,
            false => private::FILE_MODE,
        }
    }

    /// Writes one of the repository's files durably.
    fn write_file(&self, to: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        durable::write_file(&self.tmp_dir(), to, bytes, self.file_mode())
    }

    /// Returns the path that a pack has (or would have).
    pub fn pack_path(&self, id: &Hash) -> PathBuf {
        let name = id.to_string();
        self.inner
            .dir
            .join("packs")
            .join(&name[..2])
            .join(format!("{name}.pack"))
    }

    fn manifest_path(&self, id: &Hash) -> PathBuf {
        self.inner.dir.join("images").join(id.to_string())
    }

    fn layout_path(&self, id: &Hash) -> PathBuf {
        self.inner.dir.join("images").join(format!("{id}.layout"))
    }

    fn no_image(&self, what: String) -> StoreError {
        StoreError::NotFound {
            what,
            path: self.inner.dir.clone(),
            fix: "`floe image ls` lists what is here".to_owned(),
        }
    }

    /// Returns whether the image is here. An error says nothing about that.
    pub fn contains(&self, id: &Hash) -> Result<bool, StoreError> {
        let path = self.manifest_path(id);
        path.try_exists()
            .map_err(|e| StoreError::io("look for", path, e))
    }

    /// Returns an image's manifest as bytes, checked against its id.
    pub fn manifest_bytes(&self, id: &Hash) -> Result<Vec<u8>, StoreError> {
        let path = self.manifest_path(id);
        let bytes = match read_bounded(&path, MANIFEST_BYTES_MAX as u64) {
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(self.no_image(format!("image {id}")));
            }
            other => other?,
        };
        let found = Hash::of(&bytes);
        if found != *id {
            return Err(StoreError::Corrupt {
                what: path.display().to_string(),
                expected: *id,
                found,
            });
        }
        Ok(bytes)
    }

    /// Returns an image's manifest, checked against its id.
    pub fn manifest(&self, id: &Hash) -> Result<Manifest, StoreError> {
        let bytes = self.manifest_bytes(id)?;
        Manifest::decode(&bytes).map_err(|source| StoreError::Format {
            path: self.manifest_path(id),
            source,
        })
    }

    /// Returns which packs hold the image.
    pub fn layout(&self, id: &Hash) -> Result<Layout, StoreError> {
        let path = self.layout_path(id);
        let bytes = match read_bounded(&path, LAYOUT_BYTES_MAX as u64) {
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(self.no_image(format!("the layout of image {id}")));
            }
            other => other?,
        };
        Layout::decode(&bytes).map_err(|source| StoreError::Format { path, source })
    }

    /// Returns the ids of all images, in no particular order.
    pub fn image_ids(&self) -> Result<Vec<Hash>, StoreError> {
        let dir = self.inner.dir.join("images");
        let mut ids = Vec::new();
        for entry in std::fs::read_dir(&dir).map_err(|e| StoreError::io("list", &dir, e))? {
            let entry = entry.map_err(|e| StoreError::io("list", &dir, e))?;
            if let Some(id) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            {
                ids.push(id);
            }
        }
        Ok(ids)
    }

    /// Opens the image's packs for reading by hash; the scope is kept for the next caller.
    pub fn scope(&self, id: &Hash) -> Result<Scope, StoreError> {
        self.scope_of(&self.layout(id)?)
    }

    /// Opens a scope over any list of packs that are here (staged uploads, a layout that isn't published yet).
    pub fn scope_of(&self, layout: &Layout) -> Result<Scope, StoreError> {
        let key = Hash::of(&layout.encode());
        {
            let mut scopes = self.inner.scopes.lock();
            if let Some(at) = scopes
                .iter()
                .position(|(k, scope)| *k == key && scope.is_sound())
            {
                let found = scopes.remove(at);
                let scope = found.1.clone();
                scopes.push(found);
                return Ok(scope);
            }
        }
        let scope = Scope::new(self.clone(), layout)?;
        let mut scopes = self.inner.scopes.lock();
        scopes.retain(|(k, _)| *k != key);
        if scopes.len() >= SCOPES_MAX {
            scopes.remove(0);
        }
        scopes.push((key, scope.clone()));
        Ok(scope)
    }

    fn forget_scope(&self, layout: &Layout) {
        let key = Hash::of(&layout.encode());
        self.inner.scopes.lock().retain(|(k, _)| *k != key);
    }

    /// Calls `act` with an image's packs, and again if it failed because the packs were rearranged meanwhile.
    pub(crate) fn with_scope<T>(
        &self,
        id: &Hash,
        mut act: impl FnMut(&Scope) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        loop {
            let layout = self.layout(id)?;
            match act(&self.scope_of(&layout)?) {
                Err(_) if self.layout(id).is_ok_and(|now| now != layout) => {}
                other => return other,
            }
        }
    }

    /// Reads items of one image; see [`Scope::read`]. It doesn't matter if the packs are rearranged meanwhile.
    pub fn read_items(
        &self,
        id: &Hash,
        wants: &[(Kind, Hash)],
        sink: &mut dyn FnMut(Kind, Hash, &[u8]),
    ) -> Result<Vec<(Kind, Hash)>, StoreError> {
        let mut given = HashSet::new();
        self.with_scope(id, |scope| {
            let rest = wants.iter().filter(|want| !given.contains(*want));
            let rest: Vec<_> = rest.copied().collect();
            scope.read(&rest, &mut |kind, hash, bytes| {
                given.insert((kind, hash));
                sink(kind, hash, bytes);
            })
        })
    }

    /// Returns for each item whether the packs of `layout` hold it.
    pub fn has(&self, layout: &Layout, items: &[(Kind, Hash)]) -> Result<Vec<bool>, StoreError> {
        self.scope_of(layout)?.has(items)
    }

    /// Takes the lock. Publishers share it and gc holds it exclusively, so no pack can vanish between the check and the rename.
    fn lock(&self, operation: FlockOperation) -> Result<File, StoreError> {
        let path = self.inner.dir.join("lock");
        let open = || {
            let file = private::options().write(true).open(&path)?;
            let meta = file.metadata()?;
            // Older versions let others open the lock, and so hold it.
            let open_to_others = meta.mode() & 0o077 != 0;
            if open_to_others && meta.uid() == rustix::process::geteuid().as_raw() {
                file.set_permissions(Permissions::from_mode(private::FILE_MODE))?;
            }
            Ok(file)
        };
        let file: File = open().map_err(|e| StoreError::io("open", &path, e))?;
        rustix::fs::flock(&file, operation).map_err(|e| StoreError::io("lock", &path, e.into()))?;
        Ok(file)
    }
}

/// Reads a file of at most `max` bytes; a larger one can't be one of floe's, and is an error.
fn read_bounded(path: &Path, max: u64) -> Result<Vec<u8>, StoreError> {
    let file = File::open(path).map_err(|e| StoreError::io("read", path, e))?;
    let mut bytes = Vec::new();
    file.take(max + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| StoreError::io("read", path, e))?;
    if bytes.len() as u64 > max {
        return Err(StoreError::Invalid {
            what: format!(
                "{} has more than {max} bytes, which no file of its kind has; remove it",
                path.display()
            ),
        });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
