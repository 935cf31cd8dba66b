//! How the machines' disk requests fare: what the mount's scheduler knows, by the machines' names.

use crate::images::Images;
use floe_api::{IoClass, IoMachine, IoProgram, IoReport, IoSource, IoUnknown, IoUrgency};
use floe_ground::error::NodeError;
use floe_inventory::{core::Core, inventory::Inventory};
use floe_mount::IoStatus;
use floe_sched::{Class, ClassStatus, classify::Program};
use std::collections::HashMap;

/// Returns what the scheduler knows of the disk and of the machines.
pub fn report(core: &Core, images: &Images, inventory: &Inventory) -> Result<IoReport, NodeError> {
    let order = core.options.io;
    let status = images.with_mount(|mount| Ok(mount.io_status()))?;
    let Some(IoStatus { disk, machines }) = status else {
        return Ok(IoReport {
            order,
            ..IoReport::default()
        });
    };
    let names: HashMap<String, String> = inventory
        .all()
        .iter()
        .map(|entry| entry.record())
        .map(|record| (record.mount_name, record.name))
        .collect();
    let mut machines: Vec<IoMachine> = machines
        .into_iter()
        .filter_map(|known| Some(machine(names.get(&known.name)?.clone(), &known)))
        .collect();
    machines.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(IoReport {
        order,
        capacity_per_s: disk.capacity_per_s,
        depth: disk.depth as u32,
        in_flight: disk.in_flight as u32,
        guarded: disk.guarded,
        held_us: disk.held_us,
        machines,
    })
}

fn machine(name: String, known: &floe_mount::IoMachine) -> IoMachine {
    let status = &known.status;
    let [interactive, normal, bulk] = status.classes.map(class);
    IoMachine {
        name,
        weight: status.limit.weight,
        cap_percent: status.limit.cap_percent,
        among: status.limit.among,
        capped: status.capped,
        queued: status.queued as u32,
        in_flight: status.in_flight as u32,
        requests_per_s: status.requests_per_s,
        bytes_per_s: status.bytes_per_s,
        predicted_per_s: status.predicted_per_s,
        ahead: status.ahead,
        inputs: known.inputs,
        since_input_ms: known.since_input.map(|since| since.as_millis() as u64),
        agent_words: known.words,
        files: match &known.files {
            Some(Ok(files)) => Some(*files as u64),
            _ => None,
        },
        files_unknown: match &known.files {
            Some(Err(why)) => Some(why.clone()),
            _ => None,
        },
        programs: known.programs.iter().map(program).collect(),
        unknown: known.unknown.as_ref().map(|unknown| IoUnknown {
            reads: unknown.status.reads,
            class: urgency(unknown.status.class),
            why: unknown.status.rule.to_string(),
            since_ms: unknown.since.as_millis() as u64,
            after_input: unknown.after_input,
            before_input: unknown.before_input,
        }),
        interactive,
        normal,
        bulk,
    }
}

fn program(known: &floe_mount::IoProgram) -> IoProgram {
    let status = &known.status;
    IoProgram {
        name: known.name.clone(),
        source: match status.program {
            Program::Task(_) => IoSource::Agent,
            Program::File { .. } | Program::Folder { .. } => IoSource::File,
        },
        class: urgency(status.class),
        why: status.rule.to_string(),
        after_inputs: status.after_inputs,
        before_inputs: status.before_inputs,
        requests: status.requests,
        since_ms: known.since.as_millis() as u64,
    }
}

fn urgency(class: Class) -> IoUrgency {
    match class {
        Class::Interactive => IoUrgency::Interactive,
        Class::Normal => IoUrgency::Normal,
        Class::Bulk => IoUrgency::Bulk,
    }
}

fn class(status: ClassStatus) -> IoClass {
    IoClass {
        served: status.served,
        wait_mean_us: status.wait_mean_us,
        wait_p50_us: status.wait_p50_us,
        wait_p99_us: status.wait_p99_us,
    }
}
