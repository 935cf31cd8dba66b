//! Activates substrates. One machine of a private substrate runs as the machine that was docked; in all other cases clones run, each with
//! an identity of its own.

use super::{Pool, dispatch::Away, expand::Gains, record::SubstrateRecord};
use floe_api::{
    ACTIVATE_ANSWER_S_DEFAULT, ActivateReport, ActivateRequest, ActivatedInfo, CLONES_MAX,
    CloneInfo, CloneState, EXPAND_ANSWER_S_MAX, ErrorCode, ExpandRequest, ForkRequest, HERE,
    Outcome, RunRequest, SUBSTRATE_LABEL, SizeRequest, VISIBLE_LABEL, Visibility,
    visibility_of_label,
};
use floe_fork::Purpose;
use floe_ground::{
    caller::Caller,
    error::{NodeError, busy, not_found, refused, usage},
    names::MachineName,
    news::News,
    plan,
    report::{Report, millis},
    time::unix_now,
};
use floe_image::{Hash, Manifest};
use floe_inventory::inventory::{AGENT_LABEL, is_pending, record::Independent};
use floe_library::images::sources::Found;
use floe_threads::{Cancel, Waited};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// A hold on an image: nobody removes it while machines are started from it. Dropping this ends the hold.
struct Held<'a> {
    pool: &'a Pool,
    image: Hash,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut activating = self.pool.activating.lock();
        let left = activating.get_mut(&self.image).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left == 0 {
            activating.remove(&self.image);
        }
    }
}

/// What machines are activated from.
struct Basis<'a> {
    found: Found,
    visibility: Visibility,
    /// What this node knows of it, if it is in this node's pool.
    record: Option<(SubstrateRecord, Held<'a>)>,
}

/// Whether the agent of a machine's guest had answered when the machine was docked.
pub(super) fn has_agent(manifest: &Manifest) -> bool {
    manifest.config.labels.contains_key(AGENT_LABEL)
}

/// What came of starting machines: those that run, and those that do not.
type Started = (Outcome, Vec<ActivatedInfo>, Vec<CloneInfo>);

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
        let independent = Independent::asked(request.independent.as_ref())?;
        let basis = match &request.pool {
            Some(pool) => self.basis_elsewhere(pool, name, request, report)?,
            None => self.basis_here(name, caller)?,
        };
        let manifest = &basis.found.manifest;
        if request.hosts.iter().all(|host| host == HERE) {
            self.check_loads(name, &basis)?;
        }
        let size = self.wanted_size(name, manifest, request)?;
        let gains = self.wanted_gains(size, request, report)?;
        let from_memory = self.stock.with(|stock| stock.touch(&basis.found.id));
        if !from_memory && basis.record.is_some() {
            report.note("the substrate is not in memory; it comes from its backup on the disk");
        }
        let started = match (basis.visibility, count, request.hosts.is_empty()) {
            (Visibility::Private, 1, true) => self.run_one(name, &basis, called, request, report),
            _ => self.run_clones(name, &basis, called, count, request, report),
        };
        let (mut outcome, mut machines, failed) = started?;
        if independent.is_some() {
            let here = machines.iter_mut().filter(|machine| machine.host.is_none());
            here.for_each(|machine| self.note_independent(machine, independent));
        }
        self.shrinks.look_now();
        self.note_activated(name, &basis, from_memory, machines.len());
        let limit_s = request.answer_s.unwrap_or(ACTIVATE_ANSWER_S_DEFAULT);
        let limit_s = limit_s.min(EXPAND_ANSWER_S_MAX);
        let further = ExpandRequest {
            fork: outcome
                .fork
                .as_ref()
                .map_or_else(String::new, |fork| fork.id.clone()),
            machines: Vec::new(),
            answer_s: if has_agent(manifest) { limit_s } else { 0 },
            size,
            disks: request.disks.clone(),
            independent: request.independent,
        };
        self.go_on(&mut machines, &further, &gains, began, report)
            .inspect_err(|_| self.end_all(&machines))?;
        outcome.activated = Some(ActivateReport {
            substrate: name.to_owned(),
            from_memory,
            pool: request.pool.clone(),
            machines,
            failed,
        });
        Ok(outcome)
    }

    /// If this host's QEMU can't load the substrate's state, adds to the error how the machine can be booted from its disks instead: trying
    /// again would not help.
    fn check_loads(&self, name: &str, basis: &Basis<'_>) -> Result<(), NodeError> {
        let checked = self
            .machines
            .check_loads(&basis.found.manifest.config, None);
        checked.map_err(|error| match error.code() {
            ErrorCode::Refused if basis.record.is_some() => refused(
                error.to_api().message,
                format!(
                    "its disks start as after a power cut: floe run --cold {} --name {name}",
                    basis.found.id.short()
                ),
            ),
            _ => error,
        })
    }

    /// Returns what machines here are to get once they answer.
    fn wanted_gains(
        &self,
        size: Option<SizeRequest>,
        request: &ActivateRequest,
        report: &mut Report,
    ) -> Result<Gains, NodeError> {
        if request.answer_s == Some(0) && (size.is_some() || !request.disks.is_empty()) {
            return Err(usage(
                "a size or disks, and no wait for the guest's answer",
                "leave out --answer 0: a guest takes what it is given only once it answers",
            ));
        }
        let only_here = request.hosts.iter().all(|host| host == HERE);
        let gains = self.gains(size, &request.disks, only_here, report)?;
        if !request.disks.is_empty() {
            report.stage("disks")?;
        }
        Ok(gains)
    }

    /// Returns a substrate that exists for this caller, and keeps its image until what is returned is dropped.
    fn hold(&self, name: &str, caller: &Caller) -> Result<(SubstrateRecord, Held<'_>), NodeError> {
        let image = self.visible(name, caller)?.image;
        *self.activating.lock().entry(image).or_default() += 1;
        let held = Held { pool: self, image };
        // it may have been removed before it was held
        let record = self.visible(name, caller)?;
        match record.image == image {
            true => Ok((record, held)),
            false => Err(busy(
                format!("substrate {name} was replaced just now"),
                "activate it again",
            )),
        }
    }

    fn note_independent(&self, machine: &mut ActivatedInfo, wish: Option<Independent>) {
        let entry = self.inventory.get(&machine.name);
        let noted = entry.and_then(|entry| entry.update(|record| record.independence = wish));
        if let Err(error) = noted {
            machine.short.push(error.to_api());
        }
    }

    /// Ends machines that were activated for a caller who has gone.
    fn end_all(&self, machines: &[ActivatedInfo]) {
        for machine in machines {
            let ended = match self.inventory.get(&machine.name) {
                Ok(entry) if entry.record().family.is_none() => {
                    self.machines.remove_machine(&machine.name, true)
                }
                _ => self.forks.end_a_clone(&machine.name),
            };
            if let Err(error) = ended {
                tracing::warn!(machine = machine.name, %error, "it could not be ended though its caller has gone");
            }
        }
    }

    /// Waits for the guests of machines that run, here and on other hosts, and brings them to their size.
    fn go_on(
        self: &Arc<Self>,
        machines: &mut [ActivatedInfo],
        further: &ExpandRequest,
        gains: &Gains,
        began: Instant,
        report: &mut Report,
    ) -> Result<(), NodeError> {
        let is_something =
            further.answer_s > 0 || !gains.are_none() || further.independent.is_some();
        let away = is_something.then(|| self.ask_hosts(machines, further));
        let here = machines.iter_mut().filter(|machine| machine.host.is_none());
        let mut here: Vec<&mut ActivatedInfo> = here.collect();
        if further.answer_s > 0 && !here.is_empty() {
            let until = began + Duration::from_secs(further.answer_s);
            self.wait_for_networks(&mut here, began, until, &report.cancel())?;
            report.stage("network")?;
        }
        if !gains.are_none() && !here.is_empty() {
            self.bring_gains(&mut here, gains, began, &report.cancel());
            report.stage("size")?;
        }
        if let Some(away) = away.filter(Away::is_some) {
            self.hear_hosts(away, machines, began, &report.cancel())?;
            report.stage("other hosts")?;
        }
        Ok(())
    }

    /// Returns a substrate of this node's pool that exists for this caller.
    fn basis_here(&self, name: &str, caller: &Caller) -> Result<Basis<'_>, NodeError> {
        let (record, held) = self.hold(name, caller)?;
        let origin = Default::default();
        let found = Found {
            id: record.image,
            manifest: self.images.repo.manifest(&record.image)?,
            fetcher: self.images.sources.fetcher(&origin)?,
            origin,
            loads: Arc::default(),
        };
        Ok(Basis {
            found,
            visibility: record.visibility,
            record: Some((record, held)),
        })
    }

    /// Returns a substrate of a pool on another host. Its machines read it from there while they run.
    fn basis_elsewhere(
        &self,
        pool: &str,
        name: &str,
        request: &ActivateRequest,
        report: &mut Report,
    ) -> Result<Basis<'_>, NodeError> {
        if !request.hosts.is_empty() {
            return Err(usage(
                "--hosts does not go with a pool on another host",
                "activate it on those hosts, each from the pool; or bring it here first with floe pool import",
            ));
        }
        let at = format!("{}/{name}", pool.trim_end_matches('/'));
        let (token, ca) = (request.token.as_deref(), request.ca.as_deref());
        let found = self
            .images
            .sources
            .find(&at, token, ca, |step| report.step(step));
        let found = found.map_err(|error| match error.code() {
            ErrorCode::NotFound => not_found(
                format!("there is no substrate {name} in the pool {pool}"),
                format!("see `floe pool ls --pool {pool}`"),
            ),
            _ => error,
        })?;
        let labels = &found.manifest.config.labels;
        if !labels.contains_key(SUBSTRATE_LABEL) || !plan::is_live(&found.manifest) {
            return Err(refused(
                format!("{at} is no substrate"),
                "floe run starts machines of an image; floe dock makes a substrate of one",
            ));
        }
        self.images.check_trusted(&found, request.trust)?;
        // without a label that makes sense it is its owner's alone
        let label = labels
            .get(VISIBLE_LABEL)
            .map(|text| visibility_of_label(text));
        let visibility = label.and_then(Result::ok).unwrap_or_default().0;
        Ok(Basis {
            found,
            visibility,
            record: None,
        })
    }

    /// Notes that machines of a substrate run: it is used now, and comes back into memory.
    fn note_activated(
        self: &Arc<Self>,
        name: &str,
        basis: &Basis<'_>,
        from_memory: bool,
        count: usize,
    ) {
        let Some((record, _)) = &basis.record else {
            return;
        };
        self.change(name, |record| record.activated_unix_s = Some(unix_now()));
        if !from_memory {
            self.take_in_later(record.clone());
        }
        self.core.tell(name, &News::Activated(count));
    }

    /// Runs a substrate's machine as it was.
    fn run_one(
        self: &Arc<Self>,
        name: &str,
        basis: &Basis<'_>,
        called: Option<MachineName>,
        request: &ActivateRequest,
        report: &mut Report,
    ) -> Result<Started, NodeError> {
        let run = RunRequest {
            image: name.to_owned(),
            name: called.map(|called| called.to_string()),
            overcommit: request.overcommit,
            network: request.network.clone(),
            trust: true, // whoever made one that is not of this node's pool was asked for above
            ..Default::default()
        };
        let run = self.runs.checked(&run)?;
        report.stage("manifest")?;
        let found = basis.found.clone();
        let outcome = self.runs.run_found(&run, found, report)?;
        let first_ms = report.elapsed_ms();
        let machines = outcome.machine.iter().map(|machine| ActivatedInfo {
            name: machine.name.clone(),
            address: machine.network.as_ref().map(|place| place.address.clone()),
            first_ms,
            ..Default::default()
        });
        let machines = machines.collect();
        Ok((outcome, machines, Vec::new()))
    }

    /// Runs clones of a substrate.
    fn run_clones(
        self: &Arc<Self>,
        name: &str,
        basis: &Basis<'_>,
        called: Option<MachineName>,
        count: u32,
        request: &ActivateRequest,
        report: &mut Report,
    ) -> Result<Started, NodeError> {
        let fork = ForkRequest {
            clones: count,
            hosts: request.hosts.clone(),
            overcommit: request.overcommit,
            ..Default::default()
        };
        let purpose = Purpose {
            called: called.or_else(|| name.parse().ok()),
            network: request.network.as_ref(),
            found: basis.record.is_none().then_some(&basis.found),
            ..Default::default()
        };
        let image = basis.found.id.to_string();
        let outcome = self.forks.fork_for(&image, &fork, purpose, report)?;
        let clones = outcome.fork.iter().flat_map(|fork| &fork.clones);
        let (running, failed): (Vec<&CloneInfo>, Vec<&CloneInfo>) =
            clones.partition(|clone| clone.state == CloneState::Running);
        let machines = running.into_iter().map(|clone| ActivatedInfo {
            name: clone.name.clone(),
            host: clone.host.clone(),
            address: clone.address.clone(),
            first_ms: clone.running_ms.unwrap_or_default(),
            ..Default::default()
        });
        let machines = machines.collect();
        let failed = failed.into_iter().cloned().collect();
        Ok((outcome, machines, failed))
    }

    /// Notes when the agent in each machine's guest has answered and its network is there. Those that take longer go without.
    pub(super) fn wait_for_networks(
        &self,
        machines: &mut [&mut ActivatedInfo],
        began: Instant,
        until: Instant,
        cancel: &Cancel,
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
        match self
            .inventory
            .changed()
            .wait_for(Some(until), Some(cancel), look)
        {
            Waited::Cancelled => Err(NodeError::Cancelled),
            Waited::Come(()) | Waited::TimedOut => Ok(()),
        }
    }
}
