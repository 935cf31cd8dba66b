//! Who may see a substrate with its image, and remove it.

use super::{Pool, record::SubstrateRecord};
use floe_api::{Happened, ImageList, NodeEvent, SUBSTRATE_LABEL, Visibility};
use floe_fork::no_parent;
use floe_ground::{
    caller::{Caller, NamesImage, Visible},
    error::NodeError,
};
use floe_image::Hash;

impl Pool {
    /// Whether an image does not exist for this caller: it belongs only to substrates that he may not see, or is what is left of one.
    /// `is_left` tells whether the image was made for a substrate and has no name.
    fn hides(&self, id: &Hash, caller: &Caller, is_left: impl FnOnce() -> bool) -> bool {
        if *caller == Caller::Node {
            return false;
        }
        let records = self.records.read();
        let mut of_it = records.values().filter(|record| record.image == *id);
        match of_it.next() {
            Some(record) => {
                !record.is_seen_by(caller) && !of_it.any(|record| record.is_seen_by(caller))
            }
            None => {
                drop(records);
                is_left()
            }
        }
    }

    /// Returns a request as the calls about images take it. An image that the caller may not see gives the same error as one that does not
    /// exist.
    pub fn visible_image<R: NamesImage>(
        &self,
        request: R,
        caller: &Caller,
    ) -> Result<Visible<R>, NodeError> {
        caller.visible(request, |image| self.image_for(image, caller))
    }

    /// Returns the reference of the image that a caller has named.
    fn image_for(&self, image: &str, caller: &Caller) -> Result<String, NodeError> {
        if *caller == Caller::Node {
            return Ok(image.to_owned());
        }
        let is_left = |id: &Hash| {
            let found = self.images.repo.inspect(id);
            found.is_ok_and(|found| {
                let labels = &found.manifest.config.labels;
                labels.contains_key(SUBSTRATE_LABEL) && found.names.is_empty()
            })
        };
        let sees = |id: &Hash| !self.hides(id, caller, || is_left(id));
        self.images.asked_for(image, &sees)
    }

    /// Returns the name of the machine, or the reference of the image, that a caller wants to fork. An image that he may not see gives the
    /// same error as one that does not exist.
    pub fn parent_for(&self, name: String, caller: &Caller) -> Result<Visible<String>, NodeError> {
        caller.visible(name, |name| match self.inventory.get(name) {
            Ok(_) => Ok(name.to_owned()),
            Err(_) => self.image_for(name, caller).map_err(|_| no_parent(name)),
        })
    }

    /// Returns the images that exist for this caller, newest first.
    pub fn images_for(&self, caller: &Caller) -> Result<ImageList, NodeError> {
        let mut list = self.images.images()?;
        list.images.retain(|image| {
            let is_left = || image.labels.contains_key(SUBSTRATE_LABEL) && image.names.is_empty();
            let id = image.id.parse();
            id.is_ok_and(|id| !self.hides(&id, caller, is_left))
        });
        Ok(list)
    }

    /// Whether a caller is told of an event: one about a substrate that he may not see is none for him.
    pub fn tells(&self, event: &NodeEvent, caller: &Caller) -> bool {
        let about_one = matches!(
            event.kind,
            Happened::SubstrateDocked
                | Happened::SubstrateActivated
                | Happened::SubstrateRemoved
                | Happened::SubstrateDamaged
        );
        !about_one || *caller == Caller::Node || self.visible(&event.subject, caller).is_ok()
    }
}

impl SubstrateRecord {
    /// Whether the substrate exists for this caller.
    pub fn is_seen_by(&self, caller: &Caller) -> bool {
        let Caller::User { uid, name } = caller else {
            return true;
        };
        // digits are a number, whatever users are called
        let named = |user: &String| match user.parse::<u32>() {
            Ok(number) => number == *uid,
            Err(_) => Some(user) == name.as_ref(),
        };
        self.owner_uid == *uid
            || match self.visibility {
                Visibility::Public => true,
                Visibility::Restricted => self.users.iter().any(named),
                Visibility::Private => false,
            }
    }

    /// Whether this caller may remove it.
    pub fn is_of(&self, caller: &Caller) -> bool {
        match caller {
            Caller::Node => true,
            Caller::User { uid, .. } => self.owner_uid == *uid,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::record;
    use super::*;

    #[test]
    fn a_substrate_exists_for_those_who_may_see_it() {
        let user = |uid: u32, name: &str| Caller::User {
            uid,
            name: Some(name.into()),
        };
        let (owner, anna, berta) = (user(1000, "otto"), user(1001, "anna"), user(1002, "berta"));
        let private = record(Visibility::Private, &[]);
        let restricted = record(Visibility::Restricted, &["anna", "1003"]);
        let public = record(Visibility::Public, &[]);
        for (caller, sees) in [
            (&Caller::Node, [true, true, true]),
            (&owner, [true, true, true]),
            (&anna, [false, true, true]),
            (&berta, [false, false, true]),
            (&user(1003, "carl"), [false, true, true]),
            (&user(1004, "1003"), [false, false, true]),
        ] {
            let found = [&private, &restricted, &public].map(|record| record.is_seen_by(caller));
            assert_eq!(found, sees, "{caller:?}");
        }
        assert!(
            !restricted.is_of(&anna) && restricted.is_of(&owner) && private.is_of(&Caller::Node)
        );
    }
}
