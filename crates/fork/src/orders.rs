//! What a member of the cluster may have of this node by an order: clones of what it forked itself, read from itself, and nothing
//! else. It sees and ends those that it has ordered; for everything else here it is told that there is no such machine.

use super::{Forks, serve};
use floe_api::{ErrorCode, Family, KillReport, KillRequest};
use floe_ground::{
    caller::FromMember,
    error::{NodeError, not_found, refused},
};
use floe_image::Hash;
use floe_inventory::inventory::record::{Origin, Record};
use std::{net::IpAddr, time::Duration};

/// How long a member may take to show an image that it has.
const SHOW_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether a machine is here on a member's order.
pub fn is_ordered_by(record: &Record, member: &FromMember) -> bool {
    record.ordered_by() == Some(member.address)
}

impl Forks {
    /// Checks from where a member's clone, or a machine that comes from it, is to be read: from that member, by unicast and by multicast. A
    /// member that only knows the id of an image that is here gets nothing of it.
    pub fn check_source(
        &self,
        member: &FromMember,
        image: &Hash,
        origin: &mut Origin,
    ) -> Result<(), NodeError> {
        let own = format!("floe://{}{}", member.address, serve::PATH);
        if origin.urls != [own.as_str()] {
            return Err(refused(
                format!(
                    "{} orders a clone that is read from elsewhere: {}",
                    member.name,
                    origin.urls.join(", ")
                ),
                format!("clones that it orders are read from {own}"),
            ));
        }
        let is_its = |server: IpAddr| server == member.address.ip();
        if origin
            .multicast
            .is_some_and(|group| !is_its((*group.server.ip()).into()))
        {
            tracing::warn!(
                member = member.name,
                "the multicast group that it names is another host's; its clones read by unicast"
            );
            origin.multicast = None;
        }
        if self.layers.get(image).is_some() || self.images.repo.contains(image)? {
            let there = self.images.sources.ask_one(&own, origin, SHOW_TIMEOUT)?;
            there.manifest(image)?;
        }
        Ok(())
    }

    /// Returns an error, as if there were no such machine, unless a machine or a clone of it is here on a member's order.
    fn check_ordered(&self, name: &str, member: &FromMember) -> Result<(), NodeError> {
        let absent = || not_found(format!("there is no machine {name}"), "");
        let found = match self.inventory.get(name) {
            Err(error) if error.code() != ErrorCode::NotFound => return Err(error),
            found => found,
        };
        let is_its = match found {
            Ok(entry) => is_ordered_by(&entry.record(), member),
            // it has ended, and its own clones go on
            Err(_) => self.inventory.all().iter().any(|entry| {
                let record = entry.record();
                let parent = record.family.as_ref().map(|family| &*family.parent);
                parent == Some(name) && is_ordered_by(&record, member)
            }),
        };
        is_its.then_some(()).ok_or_else(absent)
    }

    /// Returns a clone that a member has ordered, with its own clones.
    pub fn family_for(&self, name: &str, member: &FromMember) -> Result<Family, NodeError> {
        self.check_ordered(name, member)?;
        Ok(self.family_below(name))
    }

    /// Ends a clone that a member has ordered, or the clones of such a clone.
    pub fn kill_for(
        &self,
        name: &str,
        request: &KillRequest,
        member: &FromMember,
    ) -> Result<KillReport, NodeError> {
        self.check_ordered(name, member)?;
        self.kill(name, request)
    }
}
