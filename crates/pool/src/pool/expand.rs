//! Brings machines that were activated to the size that was asked for, and gives them disks. They run meanwhile.

use super::Pool;
use floe_api::{
    ACTIVATE_DISKS_MAX, ActivateRequest, ActivatedInfo, NamedDisk, SizeRequest, size_text,
};
use floe_ground::{
    error::{NodeError, refused, usage},
    plan,
    report::{Report, millis},
};
use floe_image::Manifest;
use floe_machine::Room;
use floe_machines::resize::NewDisk;
use floe_threads::Cancel;
use parking_lot::Mutex;
use std::{collections::BTreeSet, time::Instant};

/// How many machines are brought to their size at the same time. Each spends most of the time waiting for its guest.
const AT_ONCE: usize = 8;

/// What machines are to get once their guests answer.
#[derive(Default)]
pub(super) struct Gains {
    size: Option<SizeRequest>,
    disks: Vec<NewDisk>,
}

impl Gains {
    /// Whether there is nothing to be done.
    pub fn are_none(&self) -> bool {
        self.size.is_none() && self.disks.is_empty()
    }
}

impl Pool {
    /// Returns what machines are to get. Names and sizes of disks are checked, and what is to be on them is opened and converted, before
    /// any machine runs. `may_read` tells whether files of this host may be read for it.
    pub(super) fn gains(
        &self,
        size: Option<SizeRequest>,
        disks: &[NamedDisk],
        may_read: bool,
        report: &mut Report,
    ) -> Result<Gains, NodeError> {
        if disks.len() > ACTIVATE_DISKS_MAX {
            return Err(usage(
                format!("{} disks for each machine", disks.len()),
                format!("activate with at most {ACTIVATE_DISKS_MAX}, and attach the others then"),
            ));
        }
        let mut names = BTreeSet::new();
        let mut new = Vec::new();
        for disk in disks {
            if !names.insert(&disk.name) {
                return Err(usage(
                    format!("two disks are called {}", disk.name),
                    "give them different names, such as data=20G and logs=1G",
                ));
            }
            if disk.content.path.is_some() && !may_read {
                return Err(usage(
                    format!(
                        "the disk {} has what is in a file, which other hosts do not have",
                        disk.name
                    ),
                    "give machines on other hosts empty disks (data=20G); or attach it there with floe attach",
                ));
            }
            new.push(self.resizes.new_disk(&disk.name, &disk.content, report)?);
        }
        Ok(Gains { size, disks: new })
    }

    /// Returns the size that is asked for, if one is. Fails if no machine of this substrate can have it.
    pub(super) fn wanted_size(
        &self,
        name: &str,
        manifest: &Manifest,
        request: &ActivateRequest,
    ) -> Result<Option<SizeRequest>, NodeError> {
        let size = SizeRequest {
            cpus: request.cpus,
            memory_bytes: request.memory_bytes,
            overcommit: request.overcommit,
        };
        if size.cpus.is_none() && size.memory_bytes.is_none() {
            return Ok(None);
        }
        let room = Room::of(&manifest.config);
        let (cpus, memory) = (
            size.cpus.unwrap_or(room.cpus),
            size.memory_bytes.unwrap_or(room.memory_bytes),
        );
        plan::check_size(cpus, memory)?;
        if cpus > room.cpus_max || memory > room.memory_bytes_max {
            return Err(refused(
                format!(
                    "machines of substrate {name} can have {} CPUs and {} of memory at most",
                    room.cpus_max,
                    size_text(room.memory_bytes_max)
                ),
                "ask for less, or dock a machine that was started with more",
            ));
        }
        Ok(Some(size))
    }

    /// Gives each machine what it is to get, and notes what it has and when, or why not.
    pub(super) fn bring_gains(
        &self,
        machines: &mut [&mut ActivatedInfo],
        gains: &Gains,
        began: Instant,
        cancel: &Cancel,
    ) {
        let threads = machines.len().min(AT_ONCE);
        let next = Mutex::new(machines.iter_mut());
        floe_threads::scope(|scope| {
            scope.spawn_some("gains", threads, || {
                loop {
                    let Some(machine) = next.lock().next() else {
                        return;
                    };
                    if cancel.is_cancelled() {
                        return;
                    }
                    self.bring_one(machine, gains, began, cancel);
                }
            });
        });
    }

    fn bring_one(
        &self,
        machine: &mut ActivatedInfo,
        gains: &Gains,
        began: Instant,
        cancel: &Cancel,
    ) {
        // the stages of several machines at once would be one sum of no meaning
        let (mut alone, _) = Report::new();
        let ends = alone.cancel();
        let _hook = cancel.on_cancel(move || ends.cancel());
        if let Some(size) = &gains.size {
            match self.resizes.resize(&machine.name, size, &mut alone) {
                Ok(outcome) => machine.short = outcome.resized.unwrap_or_default().short,
                Err(error) => machine.short.push(error.to_api()),
            }
            if machine.short.is_empty() {
                machine.size_ms = Some(millis(began.elapsed()));
            }
        }
        for disk in &gains.disks {
            match self.resizes.attach_new(&machine.name, disk, &mut alone) {
                Ok(attached) => machine.disks.push(attached),
                Err(error) => machine.short.push(error.to_api()),
            }
        }
    }
}
