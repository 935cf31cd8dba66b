//! Turns what a machine's record says into a reservation of this host's resources.

use crate::machines::Machines;
use floe_api::Size;
use floe_ground::error::NodeError;
use floe_inventory::{
    inventory::{Entry, Operation, record::Record},
    resources::More,
};

impl Machines {
    /// Reserves what a machine needs for its start, and sees to it that its user is its own. While there is too little memory, QEMUs that
    /// wait for runs are ended.
    pub fn reserve_resources(&self, entry: &Operation, overcommit: bool) -> Result<(), NodeError> {
        self.inventory.settle_user(entry)?;
        self.reserve_for(&entry.record(), overcommit)
    }

    /// Does the same for a cold start from its disks, even if the machine was last restored.
    pub(crate) fn reserve_resources_cold(
        &self,
        entry: &Operation,
        overcommit: bool,
    ) -> Result<(), NodeError> {
        self.inventory.settle_user(entry)?;
        let record = Record {
            restored: false,
            ..Record::clone(&entry.record())
        };
        self.reserve_for(&record, overcommit)
    }

    fn reserve_for(&self, record: &Record, overcommit: bool) -> Result<(), NodeError> {
        let network = self.network_bytes_per_s(record);
        let give_way = || self.end_a_standby(&record.image);
        self.resources
            .reserve(record, network, overcommit, give_way)
    }

    /// Counts a machine that an earlier node left running.
    pub fn resources_found(&self, entry: &Entry) {
        let record = entry.record();
        let network = self.network_bytes_per_s(&record);
        self.resources.found(&record, network);
    }

    /// Reserves what a running machine is to be given beside what it has.
    pub(crate) fn reserve_more(
        &self,
        entry: &Operation,
        has: Size,
        largest: Size,
        overcommit: bool,
    ) -> Result<More, NodeError> {
        let record = entry.record();
        let give_way = || self.end_a_standby(&record.image);
        self.resources
            .reserve_more(&record, has, largest, overcommit, give_way)
    }

    pub(super) fn network_bytes_per_s(&self, record: &Record) -> u64 {
        let place = record.network.as_ref();
        place.map_or(0, |place| self.networks.way_out_bytes_per_s(place))
    }
}
