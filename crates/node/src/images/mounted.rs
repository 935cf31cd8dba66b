//! Images on the mount, and who keeps them there.

use super::Images;
use crate::error::{NodeError, failed};
use floe_image::{Hash, Manifest};
use floe_mount::{Buffering, ImageHandle, ImageSpec, Mount, MountError};
use floe_source::Fetcher;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

/// A service that uses images. Each is asked before an image goes from the mount or the repository.
pub(crate) trait ImageUser: Send + Sync {
    /// What uses an image, in words; `None` if nothing of this service does.
    fn user_of(&self, image: &Hash) -> Option<String>;

    /// Images that garbage collection must keep.
    fn images(&self) -> Vec<Hash> {
        Vec::new()
    }

    /// Whether an image is to stay on the mount although nothing uses it now.
    fn keeps_shown(&self, _image: &Hash) -> bool {
        false
    }

    /// A machine has let go of an image: one that was made for machines only may be removed now.
    fn released(&self, _image: &Hash) {}

    /// An image that nothing uses has been removed: what is kept for it goes.
    fn removed(&self, _image: &Hash) {}
}

/// What the planner says of an image: that its machines stand still while it is fetched, or go on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wish {
    /// The image.
    pub image: Hash,
    /// Stand still, or go on.
    pub pause: bool,
    /// What for.
    pub buffering: floe_api::Buffering,
}

impl Wish {
    /// What the mount said of an image.
    fn of(image: Hash, said: &Buffering) -> Wish {
        Wish {
            image,
            pause: said.pause,
            buffering: floe_api::Buffering {
                missing_bytes: said.missing_bytes,
                eta_s: said.eta_us as f64 / 1e6,
            },
        }
    }

    /// Nobody waits for this image any more.
    fn over(image: Hash) -> Wish {
        Wish {
            image,
            pause: false,
            buffering: floe_api::Buffering::default(),
        }
    }
}

impl Images {
    /// Enters a service that is asked about images from now on, for as long as it lives.
    pub fn ask_too(&self, user: Weak<dyn ImageUser>) {
        self.users.write().push(user);
    }

    fn users(&self) -> Vec<Arc<dyn ImageUser>> {
        self.users.read().iter().filter_map(Weak::upgrade).collect()
    }

    /// Where regions appear as files.
    pub fn mountpoint(&self) -> PathBuf {
        self.core.options.mountpoint.clone()
    }

    /// Does something with the mount; an error once the node is on its way out.
    pub fn with_mount<T>(
        &self,
        call: impl FnOnce(&Mount) -> Result<T, MountError>,
    ) -> Result<T, NodeError> {
        match &*self.mount.read() {
            Some(mount) => Ok(call(mount)?),
            None => Err(failed("the node is stopping", "start it again")),
        }
    }

    /// Takes the mount away, for the end of the node.
    pub fn take_mount(&self) -> Option<Mount> {
        self.mount.write().take()
    }

    /// Shows an image on the mount.
    pub fn show_image(
        &self,
        id: Hash,
        manifest: Manifest,
        fetcher: Arc<Fetcher>,
    ) -> Result<ImageHandle, NodeError> {
        let cache = self.cache.clone();
        let image = self.with_mount(|mount| {
            mount.add_image(ImageSpec {
                id,
                manifest,
                fetcher,
                cache,
            })
        })?;
        let wishes = self.wishes.clone();
        image.on_buffering(move |said| {
            // the node is on its way out if nobody listens
            let _ = wishes.send(Wish::of(id, &said));
        });
        Ok(image)
    }

    /// Takes an image off the mount if nothing uses it any more, a QEMU that waits for its next run included.
    pub fn forget_image(&self, id: &Hash) {
        let users = self.users();
        let stays = |user: &Arc<dyn ImageUser>| user.user_of(id).is_some() || user.keeps_shown(id);
        if !users.iter().any(stays) {
            let _ = self.wishes.send(Wish::over(*id));
            // an image that was never shown is no error
            let _ = self.with_mount(|mount| mount.remove_image(id));
        }
    }

    /// What uses an image (a machine, a view, a fork), in words.
    pub fn user_of(&self, id: &Hash) -> Option<String> {
        self.users().iter().find_map(|user| user.user_of(id))
    }

    /// Images that garbage collection must keep.
    pub(super) fn images_in_use(&self) -> Vec<Hash> {
        self.users().iter().flat_map(|user| user.images()).collect()
    }

    /// A machine uses an image no more: whoever made it for machines only may remove it.
    pub fn released(&self, id: &Hash) {
        self.users().iter().for_each(|user| user.released(id));
    }

    /// Removes what is kept for an image that has been removed.
    pub(super) fn drop_kept(&self, id: &Hash) {
        self.users().iter().for_each(|user| user.removed(id));
    }

    /// An image's manifest from `beside`, a machine's directory, or from the repository.
    pub fn manifest_of(&self, beside: &Path, id: &Hash) -> Result<Manifest, NodeError> {
        crate::files::load_manifest(beside, id).or_else(|_| Ok(self.repo.manifest(id)?))
    }
}
