//! Wakes a parked machine: a QEMU loads its memory, and its guest goes on.

use super::{Parks, ports::turn_away};
use floe_api::{Outcome, StartRequest};
use floe_ground::{
    error::{NodeError, busy, refused},
    plan::awaited_port,
    report::Report,
};
use floe_inventory::inventory::{
    Entry, HeldPort, Operation,
    lifecycle::{Event, Gone, Phase, Task},
};
use floe_library::{images::sources::Found, traces::models::Coming};
use floe_machine::{MachineError, console::ConsoleLog};
use floe_machines::machines::restore::Loaded;
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
        let operation = self.begin_wake(&entry)?;
        if !self.wake_machine(&operation, request.overcommit, report)? {
            return Err(busy(
                format!("machine {name} is not parked"),
                "see `floe ps`",
            ));
        }
        drop(operation);
        self.runs
            .wait_for_woken(&entry, request, console_before, report)
    }

    /// Begins to wake a machine. One that is just being parked is woken once it is: whoever asks for it saw it on its way there.
    fn begin_wake(&self, entry: &Arc<Entry>) -> Result<Operation, NodeError> {
        if !matches!(entry.task(), Some(Task::Park | Task::ParkIdle)) {
            return entry.begin(Task::Wake);
        }
        let begun = entry.begin_when_free(Task::Wake, self.core.threads.over());
        begun.ok_or_else(|| {
            busy(
                format!("the node ends while machine {} is parked", entry.name),
                "wake it with the next node",
            )
        })
    }

    /// Wakes the parked machine of an operation; returns false if it is not parked. If it can't be woken, those who have connected to
    /// it are turned away, and those who connect then wait for a while before it is tried for them.
    pub fn wake_machine(
        self: &Arc<Self>,
        operation: &Operation,
        overcommit: bool,
        report: &mut Report,
    ) -> Result<bool, NodeError> {
        if !operation.is_parked() {
            return Ok(false);
        }
        operation.is_here()?;
        // whatever comes of it, these sockets listen on
        let mut held = self.ports.take(&operation.entry);
        let woken = self.load(operation, overcommit, &held, report);
        let loaded = woken.inspect_err(|error| {
            self.machines.end_quietly(operation);
            let why = error.to_api().to_string();
            operation.was_not_woken(self.core.started.elapsed(), why.clone());
            // false if not even the start of its QEMU could be noted
            if let Err(error) = operation.drive(Event::NotWoken(why)) {
                tracing::warn!(machine = %operation.name, %error, "its record is behind");
            }
            held.iter().for_each(turn_away);
            self.hold_ports(&operation.entry, std::mem::take(&mut held));
        })?;
        operation.was_woken();
        if operation.record().network.is_some() {
            operation.holds_ports(held); // the node goes on listening
        }
        let gone = self.machines.let_go(
            operation,
            "where it was parked",
            loaded,
            &Coming::default(),
            report,
        );
        if let Err(error) = gone {
            // nobody knows whether its guest has executed, so what is stored must not be used again
            self.machines.end_quietly(operation);
            let why = format!("it could not be woken: {}", error.to_api());
            let gone = Gone::ByItself { bad: true, why };
            if operation.phase() != Phase::Stopped
                && let Err(error) = operation.gone(gone, "")
            {
                tracing::warn!(machine = %operation.name, %error, "its record still says that it runs");
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
        // who moves it has seen to that
        if operation.task().is_none_or(|task| !task.is_for_any_side()) {
            operation.lease_lasts()?;
        }
        self.core.check_passable()?;
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
            origin: record.origin.clone(),
            loads: Arc::default(),
        };
        let mut loaded = self
            .machines
            .load_state(operation, &found, &Coming::default(), report)
            .map_err(|error| cold_way(operation, error))?;
        loaded.open_ports(held)?;
        operation.drive(Event::Woken)?;
        Ok(loaded)
    }
}

/// Names the cold way where the host's QEMU can't load a machine's memory, which no trying again changes.
fn cold_way(operation: &Operation, error: NodeError) -> NodeError {
    let name = &operation.name;
    match error {
        NodeError::Machine(MachineError::Incompatible(why)) => refused(
            format!("the memory of {name} can't be loaded: {why}"),
            format!(
                "without its memory it starts from its disks, as after a power cut: floe stop --now {name}, then floe start {name}"
            ),
        ),
        error => error,
    }
}
