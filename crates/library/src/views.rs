//! Views: an image's regions as plain files in a directory of the user's choice, for any VMM or tool.
//!
//! A view is a bind mount of the image's directory on the node's mount, so it costs nothing and shares the page cache with
//! the machines. It ends with the node's mount, and survives the node as that does: the next node reads in `views/` which
//! views there are. If the node may not bind-mount, the user is told the path on the mount instead.
//!
//! The user's directory may be below one of somebody else, who can put another in its place at any moment. So it is opened once and
//! mounted on by its descriptor, and what is unmounted is the mount with the view's number, wherever that is by then.

use crate::images::{ImageUser, Images};
use floe_api::{MountInfo, MountList, MountRequest};
use floe_ground::{
    aside,
    caller::Visible,
    error::{NodeError, at, at_named, busy, failed, not_found, refused, usage},
    files::{load_manifest, make_private_dir, read_bounded, replace_file, save_manifest},
};
use floe_image::{Hash, Manifest};
use floe_inventory::{core::Core, inventory::record::Origin};
use floe_mount::ImageHandle;
use parking_lot::Mutex;
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, StatxFlags},
    io::Errno,
    mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree},
};
use serde::{Deserialize, Serialize};
use std::{
    ffi::OsString,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

/// A view of an image.
pub(crate) struct View {
    /// The image.
    pub image: Hash,
    /// The user's directory.
    pub path: PathBuf,
    /// The kernel's number of the mount.
    mount: u64,
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
pub struct Views {
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
    pub fn mount_view(&self, request: &Visible<MountRequest>) -> Result<MountInfo, NodeError> {
        let path = PathBuf::from(&request.path);
        if !path.is_absolute() {
            return Err(usage(
                format!("{} is no absolute path", request.path),
                "give the whole path",
            ));
        }
        let (place, path) = open_place(&path)?;
        let found = self.images.sources.find(
            &request.image,
            request.token.as_deref(),
            request.ca.as_deref(),
            floe_ground::patience::impatient,
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
        let mount = bind(&source, &place, &path).inspect_err(|_| {
            if !was_there {
                let _ = std::fs::remove_dir_all(&dir);
            }
        })?;
        let info = MountInfo {
            image: found.id.to_string(),
            path: path.display().to_string(),
        };
        views.push(View {
            image: found.id,
            path,
            mount,
            dir,
            _handle: handle,
        });
        Ok(info)
    }

    /// Takes over the views of an earlier node that are still mounted, and removes what is kept of the others.
    pub fn adopt_views(&self) {
        let mounted = match self.core.took_over {
            true => mounts(),
            false => Ok(Vec::new()), // the views were on a mount that no longer exists
        };
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
    fn adopt_view(&self, dir: &Path, mounted: &[Mounted]) -> Result<Option<View>, NodeError> {
        let kept = Kept::load(dir)?;
        // the last is the uppermost
        let found = mounted.iter().rfind(|mount| mount.path == kept.path);
        let Some(Mounted { id: mount, .. }) = found else {
            return Ok(None);
        };
        let manifest = load_manifest(dir, &kept.image)?;
        let fetcher = self.images.sources.fetcher(&kept.origin)?;
        let handle = self.images.show_image(kept.image, manifest, fetcher)?;
        Ok(Some(View {
            image: kept.image,
            path: kept.path,
            mount: *mount,
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
        // by its name too, which may lead elsewhere by now
        let is_it = |view: &View| view.path == wanted || view.path == Path::new(path);
        let Some(index) = views.iter().position(is_it) else {
            return Err(not_found(
                format!("no image is mounted on {path}"),
                "see `floe mount` for those that are",
            ));
        };
        unbind(&views[index])?;
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
    pub fn end_views(&self) {
        for view in self.list.lock().drain(..) {
            if let Err(error) = unbind(&view) {
                tracing::warn!(path = %view.path.display(), %error, "view stays mounted");
            }
            let _ = std::fs::remove_dir_all(&view.dir);
        }
    }
}

/// A floe mount that the kernel lists.
#[derive(Debug, PartialEq, Eq)]
struct Mounted {
    id: u64,
    path: PathBuf,
}

/// Returns all floe mounts. None of them is accessed: nobody may answer yet.
fn mounts() -> Result<Vec<Mounted>, NodeError> {
    let list = std::fs::read_to_string("/proc/self/mountinfo");
    Ok(listed(
        &list.map_err(at("cannot read /proc/self/mountinfo"))?,
    ))
}

/// Reads `/proc/self/mountinfo` (proc(5)).
fn listed(mountinfo: &str) -> Vec<Mounted> {
    let of_line = |line: &str| {
        let (mount, kind) = line.split_once(" - ")?;
        if !kind.starts_with("fuse.floe ") {
            return None;
        }
        let mut fields = mount.split(' ');
        Some(Mounted {
            id: fields.next()?.parse().ok()?,
            path: OsString::from_vec(unescaped(fields.nth(3)?)).into(),
        })
    };
    mountinfo.lines().filter_map(of_line).collect()
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

/// How a directory is opened to mount on it, or to unmount what is in it.
const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens a directory to mount on it. Returns the path that it has, without links.
fn open_place(path: &Path) -> Result<(OwnedFd, PathBuf), NodeError> {
    let place = rustix::fs::open(path, PLACE, Mode::empty()).map_err(|error| match error {
        Errno::NOTDIR => usage(
            format!("{} is no directory", path.display()),
            "make one with mkdir",
        ),
        error => at_named(format!("cannot mount on {}", path.display()))(error.into()),
    })?;
    let real = std::fs::read_link(by_descriptor(&place));
    let real = real.map_err(at(format!("cannot tell where {} is", path.display())))?;
    match real.file_name() {
        Some(_) => Ok((place, real)),
        None => Err(usage(
            "nothing is mounted on /",
            "make a directory with mkdir",
        )),
    }
}

fn by_descriptor(directory: &OwnedFd) -> PathBuf {
    Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string())
}

/// Mounts a directory on an opened one, whose path is for messages. Returns the kernel's number of the mount.
fn bind(source: &Path, place: &OwnedFd, path: &Path) -> Result<u64, NodeError> {
    let mount = || {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = open_tree(CWD, source, flags)?;
        let flags =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(&tree, "", place, "", flags)?;
        mount_at(&tree, Path::new(""), AtFlags::EMPTY_PATH)
    };
    mount().map_err(|error| match error {
        Errno::PERM => refused(
            format!("only root may mount on {}", path.display()),
            format!(
                "run the node as root, or use the files where they are: {}",
                source.display()
            ),
        ),
        error => NodeError::Io {
            what: format!("cannot mount on {}", path.display()),
            source: error.into(),
        },
    })
}

/// Returns the kernel's number of the mount that a path is on. Nobody who serves it is asked.
fn mount_at(directory: &OwnedFd, name: &Path, flags: AtFlags) -> rustix::io::Result<u64> {
    let flags = flags | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(directory, name, flags, StatxFlags::MNT_ID)?;
    Ok(found.stx_mnt_id)
}

/// Unmounts a view, and nothing else: where it is now is asked from the kernel, and checked in a directory that stays the same
/// meanwhile.
fn unbind(view: &View) -> Result<(), NodeError> {
    let Some(now) = mounts()?.into_iter().find(|mount| mount.id == view.mount) else {
        return Ok(()); // somebody has unmounted it
    };
    let unmount = || {
        let (above, name) = (now.path.parent(), now.path.file_name());
        let (above, name) = above.zip(name).ok_or(Errno::BUSY)?;
        let above = rustix::fs::open(above, PLACE, Mode::empty())?;
        let name = Path::new(name);
        if mount_at(&above, name, AtFlags::SYMLINK_NOFOLLOW)? != view.mount {
            return Err(Errno::BUSY); // covered by another mount, or just being moved
        }
        rustix::mount::unmount(by_descriptor(&above).join(name), UnmountFlags::NOFOLLOW)
    };
    let path = now.path.display();
    unmount().map_err(|error| match error {
        Errno::BUSY => busy(
            format!("files under {path} are in use"),
            format!("end the programs that use them: fuser -vm {path}"),
        ),
        error => NodeError::Io {
            what: format!("cannot unmount {path}"),
            source: error.into(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_is_known_again_by_the_kernels_list_of_mounts() {
        let list = "36 25 0:31 / /home/a\\040b\\134c rw,nosuid shared:1 - fuse.floe floe rw,user_id=0\n\
                    37 25 0:32 / /home/d rw - ext4 /dev/vda rw\nnonsense\n";
        let view = Mounted {
            id: 36,
            path: "/home/a b\\c".into(),
        };
        assert_eq!(listed(list), [view]);
        assert_eq!(unescaped("a\\04"), b"a\\04");
        assert_eq!(unescaped("\\777"), b"\\777");
    }

    #[test]
    #[ignore = "needs root: make test-all"]
    fn a_directory_that_is_swapped_once_it_was_opened_is_still_the_one_that_is_mounted_on() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["source", "meant", "other"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        std::fs::write(at("source/file"), "content").unwrap();
        let (place, path) = open_place(&at("meant")).unwrap();
        assert_eq!(path, at("meant"));
        // by its owner
        std::fs::rename(at("meant"), at("moved")).unwrap();
        std::os::unix::fs::symlink(at("other"), at("meant")).unwrap();
        bind(&at("source"), &place, &path).unwrap();
        drop(place);
        let shows = |name: &str| std::fs::read_dir(at(name)).unwrap().count();
        assert_eq!((shows("other"), shows("moved")), (0, 1));
        rustix::mount::unmount(at("moved"), UnmountFlags::NOFOLLOW).unwrap();
        assert_eq!(shows("moved"), 0);
        for (place, said) in [("source/file", "no directory"), ("nowhere", "nowhere")] {
            let error = open_place(&at(place)).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        assert!(open_place(Path::new("/")).is_err());
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
