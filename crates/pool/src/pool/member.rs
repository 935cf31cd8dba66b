//! Activation of machines whose names, places and sizes are decided already: those of an ensemble.

use super::{Pool, activate::has_agent, record::SubstrateRecord};
use floe_api::{ActivateRequest, ApiError, CloneInfo, ForkRequest, SizeRequest};
use floe_fork::{Planned, Purpose};
use floe_ground::{
    caller::Caller,
    error::{NodeError, refused},
    news::News,
    report::Report,
    time::unix_now,
};
use floe_threads::Cancel;
use std::sync::Arc;

/// What machines are activated from, and the size that they are to have.
pub(crate) struct Basis {
    record: SubstrateRecord,
    size: Option<SizeRequest>,
}

impl Pool {
    /// Returns what a member's machines are activated from. Fails if there is no such substrate for this caller, if its guest has no
    /// agent, which would have to take the machine's address, or if no machine of it can have this size.
    pub(crate) fn basis(
        &self,
        name: &str,
        request: &ActivateRequest,
        caller: &Caller,
    ) -> Result<Basis, NodeError> {
        let record = self.visible(name, caller)?;
        let manifest = self.images.repo.manifest(&record.image)?;
        if !has_agent(&manifest) {
            return Err(refused(
                format!(
                    "no agent ran in the guest of substrate {name}: its machines could not take their own addresses"
                ),
                "install it (floe agent install MACHINE), and dock the machine again",
            ));
        }
        let size = self.wanted_size(name, &manifest, request)?;
        Ok(Basis { record, size })
    }

    /// Starts machines. Returns what became of each, in this order.
    pub(crate) fn start_planned(
        self: &Arc<Self>,
        basis: &Basis,
        planned: &[Planned],
        overcommit: bool,
        report: &mut Report,
    ) -> Result<Vec<CloneInfo>, NodeError> {
        let record = &basis.record;
        let from_memory = self.stock.with(|stock| stock.touch(&record.image));
        let fork = ForkRequest {
            clones: planned.len() as u32,
            overcommit,
            ..Default::default()
        };
        let purpose = Purpose {
            called: record.name.parse().ok(),
            planned,
            ..Default::default()
        };
        let image = record.image.to_string();
        let outcome = self.forks.fork_for(&image, &fork, purpose, report)?;
        self.shrinks.look_now();
        self.change(&record.name, |record| {
            record.activated_unix_s = Some(unix_now());
        });
        if !from_memory {
            self.take_in_later(record.clone());
        }
        let news = News::Activated(planned.len());
        self.core.tell(&record.name, &news);
        Ok(outcome.fork.map_or(Vec::new(), |fork| fork.clones))
    }

    /// Brings a machine to the size that was asked for, if one was. Ends soon after the switch is thrown.
    pub(crate) fn bring_planned(
        &self,
        basis: &Basis,
        name: &str,
        over: &Cancel,
    ) -> Result<(), ApiError> {
        let Some(size) = &basis.size else {
            return Ok(());
        };
        let (mut alone, _) = Report::new();
        let ends = alone.cancel();
        let _hook = over.on_cancel(move || ends.cancel());
        let resized = self.resizes.resize(name, size, &mut alone);
        let short = resized.map_err(|error| error.to_api())?.resized;
        match short.and_then(|resized| resized.short.into_iter().next()) {
            Some(short) => Err(short),
            None => Ok(()),
        }
    }
}
