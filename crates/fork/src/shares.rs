//! The parts of a household's limits that its clones on other hosts have. This host's control group of the household is limited to that
//! much less, from before such a clone is started until it is gone. `resources::household` says how much a part is.

use super::{Asked, Forks, Start, decide::CloneId, record::ForkRecord};
use floe_api::Limits;
use floe_inventory::resources::household;
use std::collections::BTreeSet;

/// Notes in a fork's record whose limits its clones share: those of the guest that asks for it. (Clones that a user makes share nobody's:
/// each gets limits as large as its parent's.) Returns the part that each clone on another host gets, or why it can't have one. `most`: how
/// many clones the node lets a guest have.
pub(super) fn note(
    asked: &Asked<'_>,
    record: &mut ForkRecord,
    most: u32,
) -> Option<Result<Limits, String>> {
    let parent = asked
        .instant
        .parent
        .as_ref()
        .filter(|_| asked.purpose.ticket.is_some())?;
    let parent = parent.entry.record();
    let share = household::share(&Limits {
        clones: parent.limits.clones.map(|clones| clones.min(most)),
        ..parent.limits
    });
    record.household = Some(parent.household_id().to_owned());
    record.share = share.clone().unwrap_or_default();
    Some(share)
}

impl Forks {
    /// Notes that a clone is about to be started on another host. Returns why its part of the limits can't be spared here.
    pub(super) fn goes_away(
        &self,
        start: &Start<'_>,
        clone: CloneId,
        host: &str,
    ) -> Result<(), String> {
        if let Some(Err(why)) = start.share {
            return Err(why.clone());
        }
        let fork = start.record;
        let Some(household) = fork.shares_limits() else {
            return Ok(());
        };
        self.records.place(&fork.id, clone, Some(host));
        self.share(household).inspect_err(|_| {
            self.comes_back(fork, clone);
        })
    }

    /// Notes that a clone was not started on another host after all.
    pub(super) fn comes_back(&self, fork: &ForkRecord, clone: CloneId) {
        if fork.shares_limits().is_some() {
            self.records.place(&fork.id, clone, None);
            self.share_again(fork.shares_limits());
        }
    }

    /// Gives back to this host's group of a household what its clones on other hosts no longer have.
    pub(super) fn share_again(&self, household: Option<&str>) {
        if let Some(household) = household
            && let Err(why) = self.share(household)
        {
            tracing::warn!(household, why, "its limits on this host are as before");
        }
    }

    /// Does so for all households, after a start of the node.
    pub fn share_all_again(&self) {
        let forks = self.records.all();
        let households: BTreeSet<&str> =
            forks.iter().filter_map(ForkRecord::shares_limits).collect();
        for household in households {
            self.share_again(Some(household));
        }
    }

    fn share(&self, household: &str) -> Result<(), String> {
        let members = self.machines.household(household).into_iter();
        let members: Vec<_> = members.map(|entry| entry.record()).collect();
        let given = || self.records.given_away(household);
        let resources = &self.machines.resources;
        let shared = resources.given_away(household, &members, given);
        shared.map_err(|error| error.to_api().to_string())
    }

    /// Returns how many clones the guests of a household have, wherever those are. One that ended counts until it is removed.
    pub fn clones_of_household(&self, household: &str) -> u32 {
        let forks = self.records.all().into_iter();
        let of = forks.filter(|fork| fork.household.as_deref() == Some(household));
        of.map(|fork| (fork.clones.len() + fork.unended.len()) as u32)
            .sum()
    }
}
