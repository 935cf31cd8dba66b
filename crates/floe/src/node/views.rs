//! Extra views: an image's regions as plain files in a directory of the user's choice, for any VMM or tool.
//!
//! A view is a bind mount of the image's directory on the node's mount, so it costs nothing and shares the page cache with
//! the machines. It ends with the node's mount. Without the right to bind-mount the user is told the path instead.

use crate::{
    api::{MountInfo, MountList, MountRequest},
    node::{
        Node,
        error::{NodeError, at, busy, not_found, refused, usage},
    },
};
use floe_image::Hash;
use floe_mount::ImageHandle;
use std::path::{Path, PathBuf};

/// One view.
pub(crate) struct View {
    /// Of this image.
    pub image: Hash,
    /// In this directory.
    pub path: PathBuf,
    /// Keeps the image on the mount.
    _handle: ImageHandle,
}

impl Node {
    /// Shows an image in a directory.
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
            .map_err(at(format!("cannot mount on {}", request.path)))?;
        if !path.is_dir() {
            return Err(usage(
                format!("{} is no directory", path.display()),
                "make one with mkdir",
            ));
        }
        let found = self.sources.find(
            &request.image,
            &[],
            request.token.as_deref(),
            request.ca.as_deref(),
            |_| Ok(()),
        )?;
        let handle = self.show_image(found.id, found.manifest, found.fetcher)?;
        let mut views = self.views.lock();
        if views.iter().any(|view| view.path == path) {
            return Err(busy(
                format!("{} has an image already", path.display()),
                "floe unmount it first",
            ));
        }
        let source = self.mountpoint().join("images").join(found.id.to_string());
        bind(&source, &path)?;
        let info = MountInfo {
            image: found.id.to_string(),
            path: path.display().to_string(),
        };
        views.push(View {
            image: found.id,
            path,
            _handle: handle,
        });
        Ok(info)
    }

    /// Ends a view.
    pub fn unmount_view(&self, path: &str) -> Result<(), NodeError> {
        let wanted = Path::new(path)
            .canonicalize()
            .unwrap_or_else(|_| path.into());
        let mut views = self.views.lock();
        let Some(index) = views.iter().position(|view| view.path == wanted) else {
            return Err(not_found(
                format!("no image is mounted on {path}"),
                "see `floe mount` for those that are",
            ));
        };
        unbind(&wanted)?;
        let view = views.remove(index);
        drop(views);
        self.forget_image(&view.image);
        Ok(())
    }

    /// The views that there are.
    pub fn views(&self) -> MountList {
        let info = |view: &View| MountInfo {
            image: view.image.to_string(),
            path: view.path.display().to_string(),
        };
        MountList {
            mounts: self.views.lock().iter().map(info).collect(),
        }
    }

    /// Ends all views: the mount behind them goes away.
    pub(crate) fn end_views(&self) {
        for view in self.views.lock().drain(..) {
            if let Err(error) = unbind(&view.path) {
                tracing::warn!(path = %view.path.display(), %error, "view stays mounted");
            }
        }
    }
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
