//! Turns what a machine's record says into a reservation of this host's resources.

use crate::{
    error::NodeError,
    inventory::{Entry, Operation, given::Given, record::Record},
    machines::Machines,
    resources::More,
};
use floe_api::Size;

impl Machines {
    /// Reserves what a machine needs for its start. While there is too little, QEMUs that wait for runs are ended.
    pub(crate) fn reserve_resources(
        &self,
        entry: &Operation,
        overcommit: bool,
    ) -> Result<(), NodeError> {
        self.reserve_for(&entry.record(), overcommit)
    }

    /// Does the same for a cold start from its disks, even if the machine was last restored.
    pub(crate) fn reserve_resources_cold(
        &self,
        entry: &Operation,
        overcommit: bool,
    ) -> Result<(), NodeError> {
        let record = Record {
            restored: false,
            ..entry.record()
        };
        self.reserve_for(&record, overcommit)
    }

    fn reserve_for(&self, record: &Record, overcommit: bool) -> Result<(), NodeError> {
        let link = self.link_bytes_per_s(record);
        let give_way = || self.end_a_standby(&record.image);
        self.resources.reserve(record, link, overcommit, give_way)
    }

    /// Counts a machine that an earlier node left running.
    pub(crate) fn resources_found(&self, entry: &Entry) {
        let record = entry.record();
        let link = self.link_bytes_per_s(&record);
        self.resources.found(&record, link);
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

    /// Notes in a running machine's record, and in the ledger, what hardware it has and what its guest has of that. `cpus`: how many of
    /// them are online in it, if that is known.
    pub(crate) fn settle_size(&self, entry: &Entry, cpus: Option<u32>) -> Result<(), NodeError> {
        let vm = entry.vm()?;
        let (config, memory_bytes) = (vm.config(), vm.memory_given()?);
        let before = entry.record();
        let has = Size {
            cpus: cpus.or(before.given.cpus).unwrap_or(u32::MAX),
            memory_bytes,
        };
        let given = Given::new(&config, has);
        let settled = entry.update(|record| {
            record.config = config;
            record.given = given;
        });
        let record = entry.record();
        let link = self.link_bytes_per_s(&record);
        self.resources.resized(&record, vm.own_added_bytes(), link);
        settled?;
        // a guest may let a disk go long after it was asked to
        self.drop_lost_disks(entry)
    }

    fn link_bytes_per_s(&self, record: &Record) -> u64 {
        let place = record.network.as_ref();
        place.map_or(0, |place| self.networks.way_out_bytes_per_s(place))
    }
}
