//! Brings machines that were activated to the size that was asked for. They run meanwhile.

use super::{Pool, record::SubstrateRecord};
use crate::{
    error::{NodeError, refused, usage},
    plan,
    report::{Report, millis},
};
use floe_api::{ActivateRequest, ActivatedInfo, ApiError, SizeRequest, size_text};
use floe_machine::Room;
use floe_threads::Cancel;
use parking_lot::Mutex;
use std::time::Instant;

/// How many machines are brought to their size at the same time. Each spends most of the time waiting for its guest.
const AT_ONCE: usize = 8;

impl Pool {
    /// Returns the size that is asked for, if one is. Fails if no machine of this substrate can have it.
    pub(super) fn wanted_size(
        &self,
        record: &SubstrateRecord,
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
        if request.answer_s == Some(0) {
            return Err(usage(
                "a size, and no wait for the guest's answer",
                "leave out --answer 0: a guest takes what it is given only once it answers",
            ));
        }
        let room = Room::of(&self.images.repo.manifest(&record.image)?.config);
        let (cpus, memory) = (
            size.cpus.unwrap_or(room.cpus),
            size.memory_bytes.unwrap_or(room.memory_bytes),
        );
        plan::check_size(cpus, memory)?;
        if cpus > room.cpus_max || memory > room.memory_bytes_max {
            return Err(refused(
                format!(
                    "machines of substrate {} can have {} CPUs and {} of memory at most",
                    record.name,
                    room.cpus_max,
                    size_text(room.memory_bytes_max)
                ),
                "ask for less, or dock a machine that was started with more",
            ));
        }
        Ok(Some(size))
    }

    /// Brings each machine to this size, and notes when it had it, or why not.
    pub(super) fn bring_to_size(
        &self,
        machines: &mut [&mut ActivatedInfo],
        size: &SizeRequest,
        began: Instant,
        cancel: &Cancel,
    ) {
        let threads = machines.len().min(AT_ONCE);
        let next = Mutex::new(machines.iter_mut());
        floe_threads::scope(|scope| {
            scope.spawn_some("size", threads, || {
                loop {
                    let Some(machine) = next.lock().next() else {
                        return;
                    };
                    if cancel.is_cancelled() {
                        return;
                    }
                    machine.short = self.bring_one(&machine.name, size);
                    if machine.short.is_empty() {
                        machine.size_ms = Some(millis(began.elapsed()));
                    }
                }
            });
        });
    }

    /// Returns what kept a machine from this size.
    fn bring_one(&self, name: &str, size: &SizeRequest) -> Vec<ApiError> {
        // the stages of several machines at once would be one sum of no meaning
        let (mut alone, _) = Report::new();
        match self.resizes.resize(name, size, &mut alone) {
            Ok(outcome) => outcome.resized.unwrap_or_default().short,
            Err(error) => vec![error.to_api()],
        }
    }
}
