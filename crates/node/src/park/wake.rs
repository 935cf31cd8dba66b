//! Wakes a parked machine: a QEMU loads its memory, and its guest goes on.

use super::Parks;
use crate::{
    error::{NodeError, busy},
    images::sources::Found,
    inventory::{
        Entry, HeldPort, Operation,
        lifecycle::{Event, Gone, Phase, Task},
    },
    machines::restore::Loaded,
    plan::awaited_port,
    report::Report,
    traces::models::Coming,
};
use floe_api::{Outcome, StartRequest};
use floe_machine::console::ConsoleLog;
use std::sync::Arc;

impl Parks {
    /// Wakes a parked machine, and waits for a sign of its guest if that is wanted.
    pub fn wake(
        self: &Arc<Self>,
        name: &str,
        request: &StartRequest,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let entry = self.inventory.get(name)?;
        awaited_port(request.wait, request.wait_port, &entry.record().forwards)?;
        let console_before = ConsoleLog::position(&self.machines.console_dir(&entry.record()));
        if !self.wake_entry(&entry, request.overcommit, report)? {
            return Err(busy(
                format!("machine {name} is not parked"),
                "see `floe ps`",
            ));
        }
        self.runs
            .wait_for_woken(&entry, request, console_before, report)
    }

    /// Wakes a parked machine; returns false if it is not parked.
    pub(super) fn wake_entry(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        overcommit: bool,
        report: &mut Report,
    ) -> Result<bool, NodeError> {
        let operation = entry.begin(Task::Wake)?;
        if !operation.is_parked() {
            return Ok(false);
        }
        self.core.check_passable()?;
        // whatever comes of it, these sockets listen on: who has connected is served, or turned away by whoever wakes it
        self.let_ports_go(entry);
        let mut held = entry.take_ports();
        let woken = self.load(&operation, overcommit, &held, report);
        let loaded = woken.inspect_err(|error| {
            self.machines.end_quietly(&operation);
            let why = error.to_api().to_string();
            // false if not even the start of its QEMU could be noted
            if let Err(error) = operation.drive(Event::NotWoken(why)) {
                tracing::warn!(machine = %operation.name, %error, "its record is behind");
            }
            self.hold_ports(entry, std::mem::take(&mut held));
        })?;
        if operation.record().network.is_some() {
            entry.holds_ports(held); // the node goes on listening
        }
        let gone = self.machines.let_go(
            &operation,
            "where it was parked",
            loaded,
            &Coming::default(),
            report,
        );
        if let Err(error) = gone {
            // nobody knows whether its guest has executed, so what is stored must not be used again
            self.machines.end_quietly(&operation);
            let why = format!("it could not be woken: {}", error.to_api());
            let gone = Gone::ByItself { bad: true, why };
            if operation.life().phase() != Phase::Stopped
                && let Err(error) = operation.gone(gone, "")
            {
                tracing::warn!(machine = %operation.name, %error, "its record says that it runs");
            }
            return Err(error);
        }
        Ok(true)
    }

    /// Has a QEMU load the machine's memory, opens its ports, and writes down that it runs.
    fn load(
        self: &Arc<Self>,
        operation: &Operation,
        overcommit: bool,
        held: &[HeldPort],
        report: &mut Report,
    ) -> Result<Loaded, NodeError> {
        if !operation.drive(Event::Loads)? {
            return Err(busy(
                format!("machine {} is not parked", operation.name),
                "see `floe ps`",
            ));
        }
        // after that, so that a lack of memory is told to whoever follows the machine
        self.machines.reserve_resources(operation, overcommit)?;
        let record = operation.record();
        let found = Found {
            id: record.image,
            manifest: self.images.manifest_of(&operation.dir, &record.image)?,
            fetcher: self.images.sources.fetcher(&record.origin)?,
            origin: record.origin,
            loads: Arc::default(),
        };
        let mut loaded = self
            .machines
            .load_state(operation, &found, &Coming::default(), report)?;
        loaded.open_ports(held)?;
        operation.drive(Event::Woken)?;
        Ok(loaded)
    }
}
