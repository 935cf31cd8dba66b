//! Which programs of an image a person waits for: the lists that machines of the image have taught, and what its owner says by hand.
//!
//! A list is stored beside the image's traces and models, for this node's user alone: it tells what was done in the machines. What is
//! said by hand is stored at once; what was learned, each minute and when the node ends.

use super::{LOCAL, Traces};
use crate::error::{NodeError, at, not_found, usage};
use floe_api::{IoLearned, IoList, IoSaying};
use floe_image::Hash;
use floe_mount::IoSaid;
use floe_sched::classify::{List, Name};
use std::collections::BTreeSet;

impl Traces {
    /// Gives the mount the lists that an earlier node has stored. One that can't be read is left where it is.
    pub(super) fn load_programs(&self) {
        let stored = self.kept.store.images().unwrap_or_default();
        for (image, _) in stored.iter().filter(|(_, owner)| owner == LOCAL) {
            let list = match self.kept.store.programs(image, LOCAL) {
                Ok(None) => continue,
                Ok(Some(bytes)) => List::parse(&bytes).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            let taken = list.and_then(|list| {
                let import = self.images.with_mount(|mount| {
                    mount.import_io_list(*image, list);
                    Ok(())
                });
                import.map_err(|error| error.to_string())
            });
            if let Err(why) = taken {
                tracing::warn!(
                    image = image.short(),
                    why,
                    "the list of its interactive programs is not used"
                );
            }
        }
    }

    /// Stores what machines have taught since the last time.
    pub(super) fn keep_programs(&self) {
        if !self.core.options.traces {
            return;
        }
        let images: BTreeSet<Hash> = self.inventory.images().into_iter().collect();
        for image in images {
            if let Err(error) = self.keep_programs_of(&image) {
                tracing::warn!(image = image.short(), %error, "what was learned of its programs is not stored");
            }
        }
    }

    fn keep_programs_of(&self, image: &Hash) -> Result<List, NodeError> {
        let list = self.images.with_mount(|mount| Ok(mount.io_list(*image)))?;
        let text = list.encode();
        let stored = self.kept.store.programs(image, LOCAL).unwrap_or_default();
        let is_new = match &stored {
            None => list != List::default(),
            Some(stored) => stored != text.as_bytes(),
        };
        if is_new {
            let kept = self.kept.store.set_programs(image, LOCAL, text.as_bytes());
            kept.map_err(at("cannot store the list of an image's programs"))?;
        }
        Ok(list)
    }

    /// Returns which programs of an image are interactive.
    pub fn list_programs(&self, image: &str) -> Result<IoList, NodeError> {
        let id = self.image_named(image)?;
        let list = self.images.with_mount(|mount| Ok(mount.io_list(id)))?;
        Ok(shown(&id, &list))
    }

    /// Says by hand whether a program of an image is interactive; this is durable when it returns.
    pub fn say_of_program(
        &self,
        image: &str,
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
        let changed = self
            .images
            .with_mount(|mount| Ok(mount.say_of_io(id, name, said)))?;
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
        Ok(shown(&id, &self.keep_programs_of(&id)?))
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

fn shown(image: &Hash, list: &List) -> IoList {
    let names = |name: &Name| name.to_string();
    IoList {
        image: image.to_string(),
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
