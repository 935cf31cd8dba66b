//! Which programs of an image a person waits for: the lists that machines have taught, and what their owner says by hand.
//!
//! A list belongs to a base disk (`bases`), so that clones, and images that are captured of machines, inherit what was learned. It is stored
//! beside the traces and models of images, for this node's user alone: it tells what was done in the machines. What is said by hand is
//! stored at once; what was learned, each minute and when the node ends. It goes with the last image that stands on the disk.

use super::{LOCAL, Traces};
use floe_api::{IoLearned, IoList, IoSaying};
use floe_ground::{
    caller::Visible,
    error::{NodeError, at, failed, not_found, usage},
};
use floe_image::{Hash, Manifest};
use floe_mount::IoSaid;
use floe_sched::classify::{List, Name};
use std::collections::BTreeSet;

impl Traces {
    /// Returns the base disk whose list the machines of an image have and teach, after the mount was given what is stored of that. Without
    /// it a machine starts as well: then its image has a list of its own.
    pub fn base_for(&self, image: &Hash, manifest: &Manifest) -> Hash {
        let base = self.base_of(image, Some(manifest)).unwrap_or_else(|error| {
            tracing::warn!(image = image.short(), %error, "its machines do not share what was learned of others");
            *image
        });
        if let Err(error) = self.load_programs(&base) {
            tracing::warn!(image = image.short(), %error, "the list of its interactive programs is not used");
        }
        base
    }

    /// Gives the mount the list that is stored for a base disk, unless it has one.
    fn load_programs(&self, base: &Hash) -> Result<(), NodeError> {
        let list = self.images.with_mount(|mount| Ok(mount.io_list(*base)))?;
        if list == List::default()
            && let Some(stored) = self.stored_programs(base)?
        {
            self.images.with_mount(|mount| {
                mount.import_io_list(*base, stored);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Returns the list that is stored for a base disk. One that can't be read is left where it is.
    fn stored_programs(&self, base: &Hash) -> Result<Option<List>, NodeError> {
        let stored = self.kept.store.programs(base, LOCAL);
        let stored = stored.map_err(at("cannot read the list of interactive programs"))?;
        let parsed = stored.map(|bytes| List::parse(&bytes)).transpose();
        parsed.map_err(|error| {
            let path = self.kept.store.programs_path(base, LOCAL);
            failed(
                format!("{}: {error}", path.display()),
                "mend the file, or move it away to begin anew",
            )
        })
    }

    /// Takes over the lists that an earlier version has stored for each image. One that can't be taken over is left where it is.
    pub(super) fn take_over_programs(&self) {
        let images = match self.kept.store.images() {
            Ok(images) => images,
            Err(error) => {
                tracing::warn!(%error, "it is not known which lists of interactive programs there are");
                return;
            }
        };
        for (image, _) in images.iter().filter(|(_, owner)| owner == LOCAL) {
            match self.take_over_programs_of(image) {
                Ok(None) => {}
                Ok(Some(base)) => {
                    tracing::info!(
                        image = image.short(),
                        disk = base.short(),
                        "its list of interactive programs is that of its base disk now"
                    );
                }
                Err(error) => {
                    tracing::warn!(image = image.short(), %error, "the list of its interactive programs is not used, and stays");
                }
            }
        }
    }

    fn take_over_programs_of(&self, image: &Hash) -> Result<Option<Hash>, NodeError> {
        let old = self.kept.store.old_programs(image, LOCAL);
        let old = old.map_err(at("cannot read the list of an image's programs"))?;
        let Some(old) = old else { return Ok(None) };
        let old = List::parse(&old)
            .map_err(|error| failed(error.to_string(), "mend the file, or remove it"))?;
        let base = self.base_of(image, None)?;
        self.load_programs(&base)?;
        self.images.with_mount(|mount| {
            mount.import_io_list(base, old);
            Ok(())
        })?;
        self.keep_programs_of(&base)?;
        let removed = self.kept.store.remove_old_programs(image, LOCAL);
        removed.map_err(at("cannot remove the list of an image's programs"))?;
        Ok(Some(base))
    }

    /// Stores what machines have taught since the last time, and on which disk images stand.
    pub(super) fn keep_programs(&self) {
        let mut taught = BTreeSet::new();
        for image in self.inventory.images() {
            if !self.core.options.traces {
                break;
            }
            let kept = self.base_of(&image, None).and_then(|base| {
                // the mount knows nothing of a disk none of whose machines was on it since the node started
                self.load_programs(&base)?;
                self.keep_programs_of(&base)
            });
            match kept {
                Ok(list) if list == List::default() => {}
                Ok(_) => {
                    taught.insert(image);
                }
                Err(error) => {
                    tracing::warn!(image = image.short(), %error, "what was learned of its programs is not stored");
                }
            }
        }
        if let Err(error) = self.keep_bases(&taught) {
            tracing::warn!(%error, "it is not stored on which disks images stand");
        }
    }

    /// Removes the lists of those base disks on which no image stands any more.
    pub(super) fn drop_unused_programs(&self) {
        let drop_unused = || -> Result<(), NodeError> {
            let stored = self.kept.store.bases_with_programs(LOCAL);
            let stored = stored.map_err(at("cannot list the lists of interactive programs"))?;
            // machines that are left alone may need any
            if stored.is_empty() || self.inventory.any_left_alone() {
                return Ok(());
            }
            let used = self.bases_in_use()?;
            for base in stored.iter().filter(|base| !used.contains(*base)) {
                let removed = self.kept.store.remove_programs(base, LOCAL);
                removed.map_err(at("cannot remove a list of interactive programs"))?;
            }
            Ok(())
        };
        if let Err(error) = drop_unused() {
            tracing::warn!(%error, "lists of interactive programs of images that are gone stay");
        }
    }

    fn keep_programs_of(&self, base: &Hash) -> Result<List, NodeError> {
        let _one = self.storing_programs.lock();
        let list = self.images.with_mount(|mount| Ok(mount.io_list(*base)))?;
        // one that can't be read isn't written over
        let stored = self.stored_programs(base)?;
        if stored.unwrap_or_default() != list {
            let text = list.encode();
            let kept = self.kept.store.set_programs(base, LOCAL, text.as_bytes());
            kept.map_err(at("cannot store the list of interactive programs"))?;
        }
        Ok(list)
    }

    /// Returns which programs of an image are interactive.
    pub fn list_programs(&self, image: &Visible<String>) -> Result<IoList, NodeError> {
        let id = self.image_named(image)?;
        let base = self.base_of(&id, None)?;
        self.load_programs(&base)?;
        let list = self.images.with_mount(|mount| Ok(mount.io_list(base)))?;
        Ok(shown(&id, &base, &list))
    }

    /// Says by hand whether a program of an image, and of all that stand on its base disk, is interactive; this is durable when it returns.
    pub fn say_of_program(
        &self,
        image: &Visible<String>,
        program: &str,
        say: IoSaying,
    ) -> Result<IoList, NodeError> {
        let id = self.image_named(image)?;
        let name = Name::new(program).map_err(|error| {
            usage(
                error.to_string(),
                "give the name that the guest has for it, such as firefox: floe io show MACHINE lists some",
            )
        })?;
        let said = match say {
            IoSaying::Allow => IoSaid::Allowed,
            IoSaying::Forbid => IoSaid::Forbidden,
            IoSaying::Forget => IoSaid::Nothing,
        };
        let base = self.base_of(&id, None)?;
        self.load_programs(&base)?;
        // what couldn't be stored isn't said
        self.stored_programs(&base)?;
        let changed = self
            .images
            .with_mount(|mount| Ok(mount.say_of_io(base, name, said)))?;
        let changed = changed.map_err(|error| {
            usage(
                error.to_string(),
                "see floe io learned, and forget some of them",
            )
        })?;
        if !changed && say == IoSaying::Forget {
            return Err(not_found(
                format!("nothing is known of a program {program} of this image"),
                "list what is known with floe io learned",
            ));
        }
        Ok(shown(&id, &base, &self.keep_programs_of(&base)?))
    }

    fn image_named(&self, name: &str) -> Result<Hash, NodeError> {
        let resolved = self.images.repo.resolve(name);
        let found = resolved.or_else(|error| {
            // one that machines run here, and that was not pulled
            let mut images = self.inventory.images().into_iter();
            images
                .find(|id| name.len() >= 6 && id.to_string().starts_with(name))
                .ok_or(error)
        })?;
        Ok(found)
    }
}

fn shown(image: &Hash, base: &Hash, list: &List) -> IoList {
    let names = |name: &Name| name.to_string();
    IoList {
        image: image.to_string(),
        disk: base.to_string(),
        allowed: list.allowed().map(names).collect(),
        forbidden: list.forbidden().map(names).collect(),
        learned: list
            .learned()
            .map(|(name, tally)| IoLearned {
                program: name.to_string(),
                machines: tally.machines,
                seen: tally.seen,
                interactive: tally.interactive,
                believed: tally.belief(),
            })
            .collect(),
    }
}
