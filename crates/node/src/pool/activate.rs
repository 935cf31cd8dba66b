//! Activates substrates: a private one runs as it was, of the others clones run, which get an identity of their own.

use super::{Pool, record::SubstrateRecord};
use crate::{
    MachineName,
    caller::Caller,
    error::{NodeError, usage},
    fork::Purpose,
    images::sources::Found,
    independence,
    inventory::{AGENT_LABEL, is_pending},
    report::{Report, millis},
    unix_now,
};
use floe_api::{
    ACTIVATE_ANSWER_S_DEFAULT, ActivateReport, ActivateRequest, ActivatedInfo, CLONES_MAX,
    CloneState, ForkRequest, Happened, Outcome, RunRequest, Visibility,
};
use floe_threads::Waited;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

impl Pool {
    /// Starts machines from a substrate. Its chunks come from memory while they run, or from its backup.
    pub fn activate(
        self: &Arc<Self>,
        name: &str,
        request: &ActivateRequest,
        caller: &Caller,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let began = Instant::now();
        let count = request.machines.max(1);
        if count > CLONES_MAX {
            return Err(usage(
                format!("{count} machines"),
                format!("activate at most {CLONES_MAX} at once"),
            ));
        }
        let called = request.name.as_deref().map(str::parse::<MachineName>);
        let called = called
            .transpose()
            .map_err(|error| usage(error.to_string(), ""))?;
        let independent = independence::asked(request.independent.as_ref())?;
        let record = self.visible(name, caller)?;
        let size = self.wanted_size(&record, request)?;
        let from_memory = self.stock.with(|stock| stock.touch(&record.image));
        if !from_memory {
            report.note("the substrate is not in memory; it comes from its backup on the disk");
        }
        let started = match (record.visibility, count) {
            (Visibility::Private, 1) => self.run_one(&record, called, request, report),
            _ => self.run_clones(&record, called, count, request, report),
        };
        let (mut outcome, mut machines) = started?;
        for machine in machines.iter().filter(|_| independent.is_some()) {
            let entry = self.inventory.get(&machine.name)?;
            entry.update(|record| record.independence = independent)?;
        }
        self.shrinks.look_now();
        self.change(name, |record| record.activated_unix_s = Some(unix_now()));
        if !from_memory {
            self.take_in_later(record.clone());
        }
        let count = machines.len();
        self.core.tell(
            Happened::SubstrateActivated,
            name,
            format!("{count} machines run"),
        );
        let limit_s = request.answer_s.unwrap_or(ACTIVATE_ANSWER_S_DEFAULT);
        if limit_s > 0 && self.has_agent(&record) {
            let until = began + Duration::from_secs(limit_s);
            self.wait_for_networks(&mut machines, began, until, report)?;
            report.stage("network")?;
        }
        if let Some(size) = size {
            self.bring_to_size(&mut machines, &size, began, &report.cancel());
            report.stage("size")?;
        }
        outcome.activated = Some(ActivateReport {
            substrate: name.to_owned(),
            from_memory,
            machines,
        });
        Ok(outcome)
    }

    pub(super) fn has_agent(&self, record: &SubstrateRecord) -> bool {
        let manifest = self.images.repo.manifest(&record.image);
        manifest.is_ok_and(|manifest| manifest.config.labels.contains_key(AGENT_LABEL))
    }

    /// Runs a substrate's machine as it was.
    fn run_one(
        self: &Arc<Self>,
        record: &SubstrateRecord,
        called: Option<MachineName>,
        request: &ActivateRequest,
        report: &mut Report,
    ) -> Result<(Outcome, Vec<ActivatedInfo>), NodeError> {
        self.core.check_passable()?;
        let origin = Default::default();
        let found = Found {
            id: record.image,
            manifest: self.images.repo.manifest(&record.image)?,
            fetcher: self.images.sources.fetcher(&origin)?,
            origin,
            loads: Arc::default(),
        };
        report.stage("manifest")?;
        let run = RunRequest {
            image: record.name.clone(),
            overcommit: request.overcommit,
            ..Default::default()
        };
        let outcome = self.runs.run_found(called, &run, found, report)?;
        let first_ms = report.elapsed_ms();
        let machines = outcome.machine.iter().map(|machine| ActivatedInfo {
            name: machine.name.clone(),
            first_ms,
            network_ms: None,
            size_ms: None,
            short: Vec::new(),
        });
        let machines = machines.collect();
        Ok((outcome, machines))
    }

    /// Runs clones of a substrate.
    fn run_clones(
        self: &Arc<Self>,
        record: &SubstrateRecord,
        called: Option<MachineName>,
        count: u32,
        request: &ActivateRequest,
        report: &mut Report,
    ) -> Result<(Outcome, Vec<ActivatedInfo>), NodeError> {
        let fork = ForkRequest {
            clones: count,
            overcommit: request.overcommit,
            ..Default::default()
        };
        let purpose = Purpose {
            called: called.or_else(|| record.name.parse().ok()),
            ..Default::default()
        };
        let image = record.image.to_string();
        let outcome = self.forks.fork_for(&image, &fork, purpose, report)?;
        let clones = outcome.fork.iter().flat_map(|fork| &fork.clones);
        let running = clones.filter(|clone| clone.state == CloneState::Running);
        let machines = running.map(|clone| ActivatedInfo {
            name: clone.name.clone(),
            first_ms: clone.running_ms.unwrap_or_default(),
            network_ms: None,
            size_ms: None,
            short: Vec::new(),
        });
        let machines = machines.collect();
        Ok((outcome, machines))
    }

    /// Notes when the agent in each machine's guest has answered and its network is there. Those that take longer go without.
    fn wait_for_networks(
        &self,
        machines: &mut [ActivatedInfo],
        began: Instant,
        until: Instant,
        report: &Report,
    ) -> Result<(), NodeError> {
        let look = || {
            let mut waits = false;
            for machine in machines.iter_mut().filter(|m| m.network_ms.is_none()) {
                let Ok(entry) = self.inventory.get(&machine.name) else {
                    continue; // it has ended meanwhile
                };
                let state = entry.state();
                let whole = state.record.small.is_nothing();
                match whole && state.guest.agent && !is_pending(&state.record) {
                    true => machine.network_ms = Some(millis(began.elapsed())),
                    false => waits |= state.vm.is_some(),
                }
            }
            (!waits).then_some(())
        };
        let cancel = report.cancel();
        match self
            .inventory
            .changed()
            .wait_for(Some(until), Some(&cancel), look)
        {
            Waited::Cancelled => Err(NodeError::Cancelled),
            Waited::Come(()) | Waited::TimedOut => Ok(()),
        }
    }
}
