//! A node that starts takes over what an earlier one left: machines that run go on, half-made ones go away.

use crate::node::{
    MachineName, Node,
    error::NodeError,
    machines::Operation,
    record::{Record, Wanted},
};
use floe_machine::Machine;
use std::{path::Path, sync::Arc, time::Duration};

/// What is said of a clone whose memory is gone.
const LOST: &str = "a part of its memory went with a node that ended before the fork was stored; end it with floe kill";
/// How long a QEMU that nobody wants may take to end.
const QUIT_WAIT: Duration = Duration::from_secs(5);

impl Node {
    /// Puts every machine that should run back onto the mount. No request of a guest is answered before that, so it asks
    /// nobody on the network.
    pub(crate) fn adopt_machines(&self) {
        self.end_leftovers(&self.home.root().join("standby"));
        let Ok(dirs) = std::fs::read_dir(self.home.machines()) else {
            return;
        };
        for dir in dirs.flatten() {
            let name = dir.file_name();
            let parsed = name
                .to_str()
                .and_then(|name| name.parse::<MachineName>().ok());
            let Some(name) = parsed else {
                tracing::warn!(?name, "is no machine's directory");
                continue;
            };
            match Record::load(&dir.path()) {
                Ok(record) => self.adopt(name, &dir.path(), record),
                // killed before the record was written: there is nothing in it yet
                Err(_) if !dir.path().join(super::files::RECORD_FILE).exists() => {
                    let _ = std::fs::remove_dir_all(dir.path());
                }
                Err(error) => tracing::error!(machine = %name, %error, "the machine is left alone"),
            }
        }
    }

    fn adopt(&self, name: MachineName, dir: &Path, record: Record) {
        let wanted = record.wanted;
        let entry = self.machines.insert(name, dir.to_owned(), record);
        let Ok(operation) = entry.begin("adopt") else {
            return;
        };
        match wanted {
            Wanted::Stopped => {}
            Wanted::Starting | Wanted::Removing => {
                end_vm(&self.vm_dir(&operation.record()));
                self.discard(&operation);
                if let Err(error) = self.forks.strike(operation.name.as_str()) {
                    tracing::warn!(machine = %operation.name, %error, "it stays in its fork's record");
                }
            }
            Wanted::Running => {
                if let Err(error) = self.adopt_running(&operation) {
                    tracing::warn!(machine = %operation.name, %error, "was not taken over");
                    let _ = self.detach(&operation);
                    operation.state.write().failed = true;
                    let _ = operation.update(|record| {
                        record.wanted = Wanted::Stopped;
                        record.detail = format!("it ended while no node was there: {error}");
                    });
                }
            }
        }
    }

    fn adopt_running(&self, operation: &Operation) -> Result<(), NodeError> {
        let lost = self.look_for_parent(operation)?;
        self.attach(operation)?;
        let machine = Machine::adopt(self.vm_dir(&operation.record()))?;
        self.started(operation, Arc::new(machine), |_| ())?;
        self.end_old_pause(operation)?;
        self.continue_stopped(operation)?;
        if lost {
            // One that waits for memory already can't be told; it stands still by itself.
            let _ = operation.vm()?.stop();
            operation.state.write().orphaned = Some(LOST.into());
            self.tell("machine.orphaned", operation.name.as_str(), LOST);
        }
        self.tell("machine.adopted", operation.name.as_str(), "");
        Ok(())
    }

    /// A clone's memory may have been in the earlier node's: whether it was and is lost. Whoever asks for it then waits.
    fn look_for_parent(&self, operation: &Operation) -> Result<bool, NodeError> {
        let record = operation.record();
        if !record.rests_on_this_node() {
            return Ok(false);
        }
        if self.layers.is_lost(&record.image) || self.repo.manifest(&record.image).is_err() {
            self.layers.mark_lost(record.image); // a crash may have come before the fork's own record
            return Ok(true);
        }
        operation.update(|record| {
            if let Some(family) = &mut record.family {
                family.settled = true;
            }
        })?;
        Ok(false)
    }

    /// Ends QEMUs that waited in the pool and belong to no machine.
    fn end_leftovers(&self, pool: &Path) {
        let taken: Vec<String> = std::fs::read_dir(self.home.machines())
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|dir| Record::load(&dir.path()).ok())
            .map(|record| record.place)
            .collect();
        for dir in std::fs::read_dir(pool).into_iter().flatten().flatten() {
            let place = format!("standby/{}", dir.file_name().to_string_lossy());
            if !taken.contains(&place) {
                end_vm(&dir.path().join("vm"));
                let _ = std::fs::remove_dir_all(dir.path());
            }
        }
    }
}

/// Ends the QEMU in a directory, if there is one.
fn end_vm(dir: &Path) {
    if let Ok(machine) = Machine::adopt(dir)
        && let Err(error) = machine.quit(QUIT_WAIT)
    {
        tracing::warn!(dir = %dir.display(), %error, "QEMU did not end");
    }
}
