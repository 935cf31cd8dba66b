//! Machines that become larger and smaller: CPUs and memory, while they run or for their next start; network cards (`cards`) and
//! disks (`disks`).
//!
//! `balloon` decides how far a guest is pressed for memory; `size` does the steps. A node that is killed between two steps leaves a
//! machine that the next one finds as it is: the hardware by QEMU's word, the balloon by the guest's (`settle_size`), CPUs by that of its
//! agent (`guest/size.rs`). What it had before is in its record meanwhile, so that its limits follow whatever was reached.
//!
//! Locks: none of its own. A machine has one operation at a time.

mod balloon;
mod cards;
mod disks;
mod size;
mod sparse;

pub use disks::NewDisk;

use crate::{
    agents::Agents,
    machines::{Machines, size_words},
};
use floe_api::{Outcome, ResizeReport, Size, SizeRequest, size_text};
use floe_ground::{
    error::{NodeError, busy, refused, usage},
    news::News,
    plan,
    report::Report,
};
use floe_inventory::{
    core::Core,
    inventory::{
        Inventory, Operation,
        lifecycle::{Phase, Task},
        record::Resizing,
    },
};
use floe_library::images::Images;
use floe_machine::{Machine, Status};
use size::{Short, block_of};
use std::{sync::Arc, time::Duration};

/// Least memory in bytes that a guest is brought to: less holds no kernel with its tables.
const MEMORY_LEAST_BYTES: u64 = 32 << 20;

/// How long a guest may take to notice hardware that it was given, and to set it up: one that is emulated on a loaded host takes
/// seconds.
const RECEPTION_LIMIT: Duration = Duration::from_secs(30);

/// The service that changes what machines have.
pub struct Resizes {
    /// What all services share.
    pub core: Arc<Core>,
    /// The machines of this node.
    pub inventory: Arc<Inventory>,
    /// The images of this node.
    pub images: Arc<Images>,
    /// What the agents in guests do.
    pub agents: Arc<Agents>,
    /// What is done with machines.
    pub machines: Arc<Machines>,
}

impl Resizes {
    /// Brings a machine to another size.
    pub fn resize(
        &self,
        name: &str,
        request: &SizeRequest,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let entry = self.inventory.get(name)?;
        let operation = entry.begin(Task::Size)?;
        let resized = match operation.phase() {
            Phase::Stopped => self.resize_stopped(&operation, request),
            Phase::Running => self.resize_running(&operation, request, report),
            Phase::Parked => Err(refused(
                format!("machine {name} is parked"),
                format!("floe wake {name}, and resize it then"),
            )),
            _ => Err(busy(
                format!("machine {name} neither runs nor is stopped at the moment"),
                format!("floe wait {name} --for running, and resize it then"),
            )),
        }?;
        let (before, after) = (resized.before, resized.after);
        if before != after {
            let (has, had) = (size_words(after), size_words(before));
            self.core.tell(name, &News::Resized { has, had });
        }
        Ok(Outcome {
            machine: Some(self.machines.info_of(&operation)),
            resized: Some(resized),
            ..Default::default()
        })
    }

    /// Changes what a stopped machine's next start gives it.
    fn resize_stopped(
        &self,
        operation: &Operation,
        request: &SizeRequest,
    ) -> Result<ResizeReport, NodeError> {
        let before = operation.record().size();
        let wanted = wanted_of(before, request);
        plan::check_size(wanted.cpus, wanted.memory_bytes)?;
        operation.update(|record| {
            floe_machine::set_size(&mut record.config, request.cpus, request.memory_bytes);
            record.given = Default::default();
        })?;
        Ok(ResizeReport {
            before,
            wanted,
            after: operation.record().size(),
            short: Vec::new(),
        })
    }

    /// Brings a running machine to another size.
    pub(crate) fn resize_running(
        &self,
        operation: &Operation,
        request: &SizeRequest,
        report: &mut Report,
    ) -> Result<ResizeReport, NodeError> {
        let vm = operation.vm()?;
        self.check_executes(operation, &vm)?;
        // what a guest has done since by itself counts
        self.machines.settle_size(operation, None)?;
        let mut short = Short::new();
        if request.memory_bytes.is_some() && operation.record().given.unused_bytes() > 0 {
            self.use_all(operation, &vm, &mut short)?;
        }
        let before = operation.record().size();
        let wanted = wanted_of(before, request);
        self.check_running(operation, &vm, before, wanted)?;
        let largest = Size {
            cpus: wanted.cpus.max(before.cpus),
            memory_bytes: wanted.memory_bytes.max(before.memory_bytes),
        };
        let _more = match largest == before {
            true => None,
            false => {
                Some(
                    self.machines
                        .reserve_more(operation, before, largest, request.overcommit)?,
                )
            }
        };
        let base = Resizing {
            limits: operation.record().limits,
            size: before,
        };
        self.machines
            .limits_follow(operation, base, largest, true)?;
        let done = self.bring(operation, &vm, (before, wanted), report, &mut short);
        // whatever was done is written down
        let cpus = *done.as_ref().unwrap_or(&None);
        let settled = self.machines.settle_size(operation, cpus);
        let after = operation.record().size();
        let followed = self.machines.limits_follow(operation, base, after, false);
        settled.and(followed)?;
        done?;
        Ok(ResizeReport {
            before,
            wanted,
            after,
            short,
        })
    }

    fn bring(
        &self,
        operation: &Operation,
        vm: &Machine,
        (before, wanted): (Size, Size),
        report: &mut Report,
        short: &mut Short,
    ) -> Result<Option<u32>, NodeError> {
        let mut online = None;
        if wanted.cpus != before.cpus {
            online = self.bring_cpus(operation, vm, (before.cpus, wanted.cpus), short)?;
            report.stage_at("cpus", std::time::Instant::now());
        }
        if wanted.memory_bytes != before.memory_bytes {
            let memory = (before.memory_bytes, wanted.memory_bytes);
            self.bring_memory(operation, vm, memory, report, short)?;
            report.stage_at("memory", std::time::Instant::now());
        }
        Ok(online)
    }

    /// Returns an error if the guest does not execute, and so could not react.
    fn check_executes(&self, operation: &Operation, vm: &Machine) -> Result<(), NodeError> {
        let name = &operation.name;
        let reasons = operation.reasons();
        if reasons.is_empty() && vm.status()? == Status::Running {
            return Ok(());
        }
        let words: Vec<String> = reasons.iter().map(ToString::to_string).collect();
        let why = match words.is_empty() {
            true => String::new(),
            false => format!(" because {}", words.join(" and ")),
        };
        Err(refused(
            format!("machine {name} stands still{why}: its guest can't take or give anything"),
            format!("floe start {name} lets it go on; or floe stop {name}, and do it then"),
        ))
    }

    /// Returns an error if the machine can never have this size, or its guest not now. Nothing has been changed then.
    fn check_running(
        &self,
        operation: &Operation,
        vm: &Machine,
        before: Size,
        wanted: Size,
    ) -> Result<(), NodeError> {
        let (name, room) = (operation.name.as_str(), vm.room());
        plan::check_size(wanted.cpus, wanted.memory_bytes)?;
        let stop_first = || {
            format!(
                "floe stop {name}, resize it, and floe start {name}: its next start gives it any size, and room to grow from there"
            )
        };
        if wanted.cpus > room.cpus_max {
            return Err(refused(
                format!(
                    "machine {name} can have {} CPUs while it runs: {} are too many",
                    room.cpus_max, wanted.cpus
                ),
                stop_first(),
            ));
        }
        let (there, most) = (room.memory_bytes, room.memory_bytes_max);
        if wanted.memory_bytes > there {
            let all = there.saturating_add(block_of(there, wanted.memory_bytes));
            if all > most {
                return Err(refused(
                    format!(
                        "machine {name} can have {} of memory while it runs: {} are too many",
                        size_text(most),
                        size_text(wanted.memory_bytes)
                    ),
                    stop_first(),
                ));
            }
            if room.memory_slots_free == 0 {
                return Err(refused(
                    format!("machine {name} has no free slot for more memory"),
                    stop_first(),
                ));
            }
        }
        if wanted.memory_bytes < MEMORY_LEAST_BYTES {
            return Err(usage(
                format!("{} of memory hold no guest", size_text(wanted.memory_bytes)),
                format!("give it {} or more", size_text(MEMORY_LEAST_BYTES)),
            ));
        }
        if wanted.memory_bytes < before.memory_bytes
            || block_of(there, wanted.memory_bytes) > wanted.memory_bytes.saturating_sub(there)
        {
            self.check_balloon(name, vm)?;
        }
        if wanted.cpus < before.cpus {
            self.agents.check(operation)?;
        }
        Ok(())
    }
}

fn wanted_of(before: Size, request: &SizeRequest) -> Size {
    Size {
        cpus: request.cpus.unwrap_or(before.cpus),
        memory_bytes: request.memory_bytes.unwrap_or(before.memory_bytes),
    }
}
