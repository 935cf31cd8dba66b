//! Views: an image's regions as plain files in a directory of the user's choice, for any VMM or tool.
//!
//! A view is a bind mount of the image's directory on the node's mount, so it costs nothing and shares the page cache with
//! the machines. It ends with the node's mount, and survives the node as that does: the next node reads in `views/` which
//! views there are. If the node may not bind-mount, the user is told the path on the mount instead.

use crate::{
    aside,
    core::Core,
    error::{NodeError, at, at_named, busy, failed, not_found, refused, usage},
    files::{load_manifest, make_private_dir, read_bounded, replace_file, save_manifest},
    images::{ImageUser, Images},
    inventory::record::Origin,
};
use floe_api::{MountInfo, MountList, MountRequest};
use floe_image::{Hash, Manifest};
use floe_mount::ImageHandle;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::{
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

/// A view of an image.
pub(crate) struct View {
    /// The image.
    pub image: Hash,
    /// The user's directory.
    pub path: PathBuf,
    /// The directory with what is kept of the view.
    dir: PathBuf,
    /// Keeps the image on the mount.
    _handle: ImageHandle,
}

/// What is kept of a view on the disk, beside the image's manifest.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    /// [`KEPT_VERSION`].
    version: u32,
    image: Hash,
    path: PathBuf,
    origin: Origin,
}

const KEPT_VERSION: u32 = 1;
const KEPT_FILE: &str = "view.json";
/// Largest such file that is read, in bytes: paths and addresses are short.
const KEPT_BYTES_MAX: u64 = 1 << 20;

impl Kept {
    fn load(dir: &Path) -> Result<Kept, NodeError> {
        let path = dir.join(KEPT_FILE);
        let shown = path.display();
        let bytes =
            read_bounded(&path, KEPT_BYTES_MAX).map_err(at(format!("cannot read {shown}")))?;
        let kept: Result<Kept, _> = serde_json::from_slice(&bytes);
        kept.ok()
            .filter(|kept| kept.version == KEPT_VERSION)
            .ok_or_else(|| {
                failed(
                    format!("{shown} is not what this floe keeps of a view"),
                    "unmount the directory and mount the image again",
                )
            })
    }

    /// Writes this with the image's manifest to a directory of its own below `views`.
    fn save(&self, views: &Path, manifest: &Manifest) -> Result<PathBuf, NodeError> {
        let dir = self.dir(views);
        make_private_dir(&dir)?;
        save_manifest(&dir, &self.image, manifest)?;
        let bytes = serde_json::to_vec_pretty(self).expect("strings and numbers");
        replace_file(&dir.join(KEPT_FILE), &bytes)?;
        Ok(dir)
    }

    fn dir(&self, views: &Path) -> PathBuf {
        let name = Hash::of(self.path.as_os_str().as_encoded_bytes());
        views.join(name.to_string())
    }
}

/// The service that mounts views. Locks: the list, while a view is created or ended.
pub(crate) struct Views {
    core: Arc<Core>,
    images: Arc<Images>,
    list: Mutex<Vec<View>>,
}

impl ImageUser for Views {
    fn user_of(&self, image: &Hash) -> Option<String> {
        let list = self.list.lock();
        let view = list.iter().find(|view| view.image == *image)?;
        Some(format!("the mount on {}", view.path.display()))
    }

    fn images(&self) -> Vec<Hash> {
        self.list.lock().iter().map(|view| view.image).collect()
    }
}

impl Views {
    /// Creates the service without views.
    pub fn new(core: Arc<Core>, images: Arc<Images>) -> Arc<Views> {
        let views = Arc::new(Views {
            core,
            images,
            list: Mutex::default(),
        });
        let user: Weak<Views> = Arc::downgrade(&views);
        views.images.ask_too(user);
        views
    }

    /// Mounts an image's view on a directory.
    pub fn mount_view(&self, request: &MountRequest) -> Result<MountInfo, NodeError> {
        let path = PathBuf::from(&request.path);
        if !path.is_absolute() {
            return Err(usage(
                format!("{} is no absolute path", request.path),
                "give the whole path",
            ));
        }
        let path = path
            .canonicalize()
            .map_err(at_named(format!("cannot mount on {}", request.path)))?;
        if !path.is_dir() {
            return Err(usage(
                format!("{} is no directory", path.display()),
                "make one with mkdir",
            ));
        }
        let found = self.images.sources.find(
            &request.image,
            request.token.as_deref(),
            request.ca.as_deref(),
            |_| Ok(()),
        )?;
        let manifest = found.manifest.clone();
        let handle = self
            .images
            .show_image(found.id, found.manifest, found.fetcher)?;
        let mut views = self.list.lock();
        if views.iter().any(|view| view.path == path) {
            return Err(busy(
                format!("{} has an image already", path.display()),
                "floe unmount it first",
            ));
        }
        let source = self
            .images
            .mountpoint()
            .join("images")
            .join(found.id.to_string());
        let kept = Kept {
            version: KEPT_VERSION,
            image: found.id,
            path: path.clone(),
            origin: found.origin,
        };
        // written first: a view that no node knows of could not be ended
        let views_dir = self.core.home.views();
        let was_there = kept.dir(&views_dir).try_exists().unwrap_or(true);
        let dir = kept.save(&views_dir, &manifest)?;
        if let Err(error) = bind(&source, &path) {
            if !was_there {
                let _ = std::fs::remove_dir_all(&dir);
            }
            return Err(error);
        }
        let info = MountInfo {
            image: found.id.to_string(),
            path: path.display().to_string(),
        };
        views.push(View {
            image: found.id,
            path,
            dir,
            _handle: handle,
        });
        Ok(info)
    }

    /// Takes over the views of an earlier node that are still mounted, and removes what is kept of the others.
    pub(crate) fn adopt_views(&self) {
        let mounted = match self.core.took_over {
            true => std::fs::read_to_string("/proc/self/mountinfo"),
            false => Ok(String::new()), // the views were on a mount that no longer exists
        };
        let mounted = mounted.map_err(at("cannot read /proc/self/mountinfo"));
        let found =
            mounted.and_then(|mounted| Ok((mounted, aside::list(&self.core.home.views())?)));
        let (mounted, dirs) = found.unwrap_or_else(|error| {
            tracing::error!(%error, "mounted images are left alone");
            Default::default()
        });
        for dir in dirs {
            let dir = dir.path();
            match self.adopt_view(&dir, &mounted) {
                Ok(Some(view)) => self.list.lock().push(view),
                Ok(None) => {
                    let _ = std::fs::remove_dir_all(&dir);
                }
                Err(error) => tracing::error!(%error, "a mounted image is left alone"),
            }
        }
    }

    /// Takes over one view; returns `None` if it is no longer mounted.
    fn adopt_view(&self, dir: &Path, mounted: &str) -> Result<Option<View>, NodeError> {
        let kept = Kept::load(dir)?;
        if !is_mounted(mounted, &kept.path) {
            return Ok(None);
        }
        let manifest = load_manifest(dir, &kept.image)?;
        let fetcher = self.images.sources.fetcher(&kept.origin)?;
        let handle = self.images.show_image(kept.image, manifest, fetcher)?;
        Ok(Some(View {
            image: kept.image,
            path: kept.path,
            dir: dir.to_owned(),
            _handle: handle,
        }))
    }

    /// Ends the view in a directory.
    pub fn unmount_view(&self, path: &str) -> Result<(), NodeError> {
        let wanted = Path::new(path)
            .canonicalize()
            .unwrap_or_else(|_| path.into());
        let mut views = self.list.lock();
        let Some(index) = views.iter().position(|view| view.path == wanted) else {
            return Err(not_found(
                format!("no image is mounted on {path}"),
                "see `floe mount` for those that are",
            ));
        };
        unbind(&wanted)?;
        let view = views.remove(index);
        drop(views);
        let _ = std::fs::remove_dir_all(&view.dir);
        self.images.forget_image(&view.image);
        Ok(())
    }

    /// Returns all views.
    pub fn views(&self) -> MountList {
        let info = |view: &View| MountInfo {
            image: view.image.to_string(),
            path: view.path.display().to_string(),
        };
        MountList {
            mounts: self.list.lock().iter().map(info).collect(),
        }
    }

    /// Ends all views, because the mount behind them is about to end.
    pub(crate) fn end_views(&self) {
        for view in self.list.lock().drain(..) {
            if let Err(error) = unbind(&view.path) {
                tracing::warn!(path = %view.path.display(), %error, "view stays mounted");
            }
            let _ = std::fs::remove_dir_all(&view.dir);
        }
    }
}

/// Whether `/proc/self/mountinfo` (proc(5)) lists a floe mount at this path. The mount itself is not accessed, since nobody
/// answers yet.
fn is_mounted(mountinfo: &str, path: &Path) -> bool {
    mountinfo.lines().any(|line| {
        let mut halves = line.split(" - ");
        let (Some(mount), Some(kind)) = (halves.next(), halves.next()) else {
            return false;
        };
        let there = mount.split(' ').nth(4).map(unescaped);
        kind.starts_with("fuse.floe ") && there.as_deref() == Some(path.as_os_str().as_bytes())
    })
}

/// Decodes a path of that file, in which blanks, tabs, line ends and backslashes are octal.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let octal = (*first == b'\\')
            .then(|| after.get(..3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

fn bind(source: &Path, target: &Path) -> Result<(), NodeError> {
    rustix::mount::mount_bind(source, target).map_err(|error| match error {
        rustix::io::Errno::PERM => refused(
            format!("only root may mount on {}", target.display()),
            format!(
                "run the node as root, or use the files where they are: {}",
                source.display()
            ),
        ),
        error => NodeError::Io {
            what: format!("cannot mount on {}", target.display()),
            source: error.into(),
        },
    })
}

fn unbind(target: &Path) -> Result<(), NodeError> {
    rustix::mount::unmount(target, rustix::mount::UnmountFlags::NOFOLLOW).map_err(|error| {
        match error {
            rustix::io::Errno::BUSY => busy(
                format!("files under {} are in use", target.display()),
                format!(
                    "end the programs that use them: fuser -vm {}",
                    target.display()
                ),
            ),
            error => NodeError::Io {
                what: format!("cannot unmount {}", target.display()),
                source: error.into(),
            },
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_is_known_again_by_the_kernels_list_of_mounts() {
        let list = "36 25 0:31 / /home/a\\040b\\134c rw,nosuid shared:1 - fuse.floe floe rw,user_id=0\n\
                    37 25 0:32 / /home/d rw - ext4 /dev/vda rw\nnonsense\n";
        assert!(is_mounted(list, Path::new("/home/a b\\c")));
        for other in ["/home/d", "/home/a", "", "/home/a\\040b\\134c"] {
            assert!(!is_mounted(list, Path::new(other)), "{other}");
        }
        assert_eq!(unescaped("a\\04"), b"a\\04");
        assert_eq!(unescaped("\\777"), b"\\777");
    }

    #[test]
    fn what_is_kept_of_a_view_is_read_again_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept {
            version: KEPT_VERSION,
            image: Hash::of(b"image"),
            path: "/somewhere".into(),
            origin: Origin::default(),
        };
        let at = kept.save(dir.path(), &Manifest::default()).unwrap();
        assert_eq!(Kept::load(&at).unwrap().path, kept.path);
        let text = std::fs::read_to_string(at.join(KEPT_FILE)).unwrap();
        for wrong in [
            &text[..text.len() / 2],
            &text.replace("\"version\": 1", "\"version\": 9"),
        ] {
            std::fs::write(at.join(KEPT_FILE), wrong).unwrap();
            assert!(Kept::load(&at).is_err(), "{wrong}");
        }
    }
}
