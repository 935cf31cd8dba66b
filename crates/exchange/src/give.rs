//! Gives all of an image to others: who asks for that, and when enough of them have had it.

use super::{
    Swarms,
    member::{Place, key_text},
    seeds::Seeded,
};
use floe_api::{PushRequest, SWARM_MEMBERS_MAX, SwarmReport, SwarmSeed};
use floe_ground::{
    caller::Visible,
    error::{NodeError, usage},
};
use floe_image::Hash;
use floe_inventory::inventory::record::Origin;
use floe_library::images::sources::bind_token;
use std::collections::BTreeSet;

impl Swarms {
    /// Lets this node have all of an image and give it to others.
    pub fn seed(&self, request: &Visible<SwarmSeed>) -> Result<SwarmReport, NodeError> {
        check_until(request.until)?;
        let access = Origin {
            tokens: bind_token(request.token.as_deref(), [&*request.image])?,
            ca: request.ca.clone(),
            ..Default::default()
        };
        let found = self.images.sources.find_in(
            &request.image,
            &[],
            access,
            floe_ground::patience::impatient,
        )?;
        let place = self.places_of(&found.origin).into_iter().next();
        let place = place.ok_or_else(|| {
            usage(
                format!("{:?} is on no hub", request.image),
                "only a hub knows who else wants an image: name one on a hub, or push it there",
            )
        })?;
        self.seed_at(found.id, &request.image, place, request.until)
    }

    /// Returns an error if a push says something wrong of giving the image afterwards: there must be a hub where it goes.
    pub fn check_seed(&self, request: &PushRequest) -> Result<(), NodeError> {
        if !request.seed {
            return match request.seed_until {
                None => Ok(()),
                Some(_) => Err(usage(
                    "seed_until says for how long an image is given, and without seed it is not given at all",
                    "ask for both or for neither",
                )),
            };
        }
        if !self.images.sources.may_be_hub(&request.to) {
            let to = &request.to;
            return Err(usage(
                format!("{to} is no hub, and nobody asks there who else has an image"),
                "push to a hub, or leave --seed out",
            ));
        }
        check_until(request.seed_until)
    }

    /// Lets this node give an image that was just pushed to a hub.
    pub fn seed_pushed(
        &self,
        image: &str,
        request: &PushRequest,
    ) -> Result<SwarmReport, NodeError> {
        let id = image
            .parse::<Hash>()
            .map_err(|_| usage(format!("{image:?} is no image's id"), "push it again"))?;
        let given = bind_token(request.token.as_deref(), [&*request.to])?;
        let token = given.into_values().next();
        let place = Place {
            token: self.images.sources.token_for(&request.to, token.as_deref()),
            url: request.to.clone(),
            ca: request.ca.clone(),
        };
        self.seed_at(id, &request.image, place, request.seed_until)
    }

    fn seed_at(
        &self,
        image: Hash,
        name: &str,
        place: Place,
        until: Option<u32>,
    ) -> Result<SwarmReport, NodeError> {
        self.seeds.add(Seeded {
            image,
            name: name.into(),
            url: place.url,
            token: place.token,
            ca: place.ca,
            until,
            complete: BTreeSet::new(),
        })?;
        self.wake();
        Ok(self.report())
    }

    /// Notes who has had all of what is given until so many have, and gives it no longer where they are enough.
    pub(super) fn look_at_given(&self) {
        for seeded in self.seeds.all() {
            let Some(key) = seeded.key().filter(|_| seeded.until.is_some()) else {
                continue;
            };
            let part = self.active.part(&key);
            let Some(status) = part.and_then(|part| self.status_of(&part)) else {
                continue;
            };
            let complete: BTreeSet<String> = status.complete.iter().map(key_text).collect();
            let here = status.pieces_here == status.pieces;
            match self.seeds.saw(&key, &complete, here) {
                Ok(false) => {}
                Ok(true) => {
                    tracing::info!(
                        image = key.image.short(),
                        "enough other nodes have had all of an image; it is given no longer"
                    );
                    self.wake();
                }
                Err(error) => {
                    tracing::warn!(image = key.image.short(), %error, "who has all of an image is not kept");
                }
            }
        }
    }
}

/// Returns an error for a number of nodes that can't be waited for.
fn check_until(until: Option<u32>) -> Result<(), NodeError> {
    match until {
        Some(others) if others == 0 || others as usize > SWARM_MEMBERS_MAX => Err(usage(
            format!("an image can't be given until {others} other nodes have had all of it"),
            format!("name 1 to {SWARM_MEMBERS_MAX}, or none to give it until floe swarm leave"),
        )),
        _ => Ok(()),
    }
}
