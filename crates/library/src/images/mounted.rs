//! Images on the mount, and which services keep them there.

use super::Images;
use floe_ground::error::{NodeError, failed};
use floe_image::{Hash, Manifest};
use floe_mount::{Buffering, ImageHandle, ImageSpec, Mount, MountError};
use floe_source::Fetcher;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

/// A service that uses images. It is asked before an image is removed from the mount or the repository.
pub trait ImageUser: Send + Sync {
    /// Returns in words what uses an image; `None` if nothing of this service does.
    fn user_of(&self, _image: &Hash) -> Option<String> {
        None
    }

    /// Returns the images that garbage collection must keep.
    fn images(&self) -> Vec<Hash> {
        Vec::new()
    }

    /// Whether the user that [`ImageUser::user_of`] names needs the image on the mount, and not only in the repository.
    fn needs_shown(&self, image: &Hash) -> bool {
        self.user_of(image).is_some()
    }

    /// Whether an image is to stay on the mount although nothing uses it now.
    fn keeps_shown(&self, _image: &Hash) -> bool {
        false
    }

    /// Called when a machine has stopped using an image. A service removes the image now if it was made for machines alone.
    fn released(&self, _image: &Hash) {}

    /// Called when an unused image has been removed: the service drops what it kept for it.
    fn removed(&self, _image: &Hash) {}
}

/// The mount while this node serves it. A node that fails (while it starts, for instance) leaves the mount to the next node: unmounting it
/// would end all guests.
pub struct Serving(Option<Mount>);

impl Serving {
    /// Serves a mount until it is taken.
    pub fn new(mount: Mount) -> Serving {
        Serving(Some(mount))
    }

    /// Hands the mount over to who ends it.
    fn take(mut self) -> Option<Mount> {
        self.0.take()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let Some(mount) = self.0.take().filter(Mount::took_over) else {
            return; // of a new mount, which is unmounted, nobody has anything yet
        };
        match mount.detach() {
            Ok(()) => tracing::warn!("the mount is left to the next node"),
            Err(error) => tracing::error!(%error, "the mount was not left as it should"),
        }
    }
}

/// How many of the planner's wishes may wait for the thread that carries them out; then the threads that report them wait.
pub const WISHES_QUEUED_MAX: usize = 256;

/// The planner's wish for a machine: that it pauses while its image is fetched, or that it goes on.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    /// The machine's name on the mount.
    pub machine: String,
    /// Whether it is to pause (true) or to go on.
    pub pause: bool,
    /// What it waits for.
    pub buffering: floe_api::Buffering,
}

impl Wish {
    /// Converts what the mount reported about a machine.
    fn of(machine: &str, said: &Buffering) -> Wish {
        Wish {
            machine: machine.to_owned(),
            pause: said.pause,
            buffering: floe_api::Buffering {
                missing_bytes: said.missing_bytes,
                eta_s: said.eta_us as f64 / 1e6,
            },
        }
    }
}

impl Images {
    /// Adds a service that is asked about images from now on, for as long as it exists.
    pub fn ask_too(&self, user: Weak<dyn ImageUser>) {
        self.users.write().push(user);
    }

    fn users(&self) -> Vec<Arc<dyn ImageUser>> {
        self.users.read().iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns the directory where regions appear as files.
    pub fn mountpoint(&self) -> PathBuf {
        self.core.options.mountpoint.clone()
    }

    /// Calls a function with the mount; returns an error once the node is ending.
    pub fn with_mount<T>(
        &self,
        call: impl FnOnce(&Mount) -> Result<T, MountError>,
    ) -> Result<T, NodeError> {
        match self
            .mount
            .read()
            .as_ref()
            .and_then(|serving| serving.0.as_ref())
        {
            Some(mount) => Ok(call(mount)?),
            None => Err(failed("the node is stopping", "start it again")),
        }
    }

    /// Takes the mount out, so that the node can end it.
    pub fn take_mount(&self) -> Option<Mount> {
        self.mount.write().take().and_then(Serving::take)
    }

    /// Adds an image to the mount.
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
        image.on_buffering(move |machine, said| {
            // nobody receives while the node is ending
            let _ = wishes.send(Wish::of(machine, &said));
        });
        Ok(image)
    }

    /// Removes an image from the mount unless something uses it or a QEMU waits with it for the next run.
    pub fn forget_image(&self, id: &Hash) {
        let users = self.users();
        let stays = |user: &Arc<dyn ImageUser>| user.needs_shown(id) || user.keeps_shown(id);
        if !users.iter().any(stays) {
            // an image that was never on the mount is not an error
            let _ = self.with_mount(|mount| mount.remove_image(id));
        }
    }

    /// Returns in words what uses an image (a machine, a view, a fork), if anything does.
    pub fn user_of(&self, id: &Hash) -> Option<String> {
        self.users().iter().find_map(|user| user.user_of(id))
    }

    /// Whether an image has a name. True also while there is a name that can't be read: it may be this image's.
    pub fn may_have_name(&self, id: &Hash) -> bool {
        let tags = self.repo.all_tags();
        tags.map_or(true, |tags| tags.iter().any(|tag| tag.id == *id))
    }

    /// Returns the images that garbage collection must keep.
    pub(super) fn images_in_use(&self) -> Vec<Hash> {
        self.users().iter().flat_map(|user| user.images()).collect()
    }

    /// Tells all services that a machine has stopped using an image: whoever made it for machines only may remove it.
    pub fn released(&self, id: &Hash) {
        self.users().iter().for_each(|user| user.released(id));
    }

    /// Tells all services to drop what they keep for an image that has been removed.
    pub(super) fn drop_kept(&self, id: &Hash) {
        self.users().iter().for_each(|user| user.removed(id));
    }

    /// Reads an image's manifest from `beside`, a machine's directory, or else from the repository.
    pub fn manifest_of(&self, beside: &Path, id: &Hash) -> Result<Manifest, NodeError> {
        floe_ground::files::load_manifest(beside, id).or_else(|_| Ok(self.repo.manifest(id)?))
    }
}
