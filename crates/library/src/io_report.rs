//! How the machines' disk requests fare: what the mount's scheduler knows, and that of each link, by the machines' names.

use crate::images::Images;
use floe_api::{
    IoClass, IoLink, IoLinkMachine, IoMachine, IoProgram, IoReport, IoSource, IoUnknown, IoUrgency,
};
use floe_ground::error::NodeError;
use floe_inventory::{core::Core, inventory::Inventory};
use floe_mount::IoStatus;
use floe_sched::{Class, ClassStatus, MachineId, Status, classify::Program};
use std::collections::HashMap;

/// Returns what the schedulers know of the disk, of the links, and of the machines.
pub fn report(core: &Core, images: &Images, inventory: &Inventory) -> Result<IoReport, NodeError> {
    let order = core.options.io;
    let (status, on_mount) =
        images.with_mount(|mount| Ok((mount.io_status(), mount.machine_names())))?;
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
        .map(|record| (record.mount_name.clone(), record.name.clone()))
        .collect();
    let mut machines: Vec<IoMachine> = machines
        .into_iter()
        .filter_map(|known| Some(machine(names.get(&known.name)?.clone(), &known)))
        .collect();
    machines.sort_by(|a, b| a.name.cmp(&b.name));
    let name = |machine: MachineId| names.get(on_mount.get(&machine)?).cloned();
    let links = images.sources.links().into_iter();
    let links = links.filter_map(|(sources, fetcher)| {
        let ahead = fetcher.stats().prefetch_queued;
        Some(link(sources, &fetcher.status()?, ahead, &name))
    });
    let mut links: Vec<IoLink> = links.collect();
    links.sort_by(|a, b| a.sources.cmp(&b.sources));
    Ok(IoReport {
        order,
        capacity_per_s: disk.capacity_per_s,
        depth: disk.depth as u32,
        in_flight: disk.in_flight as u32,
        guarded: disk.guarded,
        held_us: disk.held_us,
        machines,
        links,
    })
}

/// Returns what is told of a link; requests of the node itself, and of machines that are no longer here, are not.
fn link(
    sources: Vec<String>,
    status: &Status,
    ahead_queued: u64,
    name: &dyn Fn(MachineId) -> Option<String>,
) -> IoLink {
    let known = status.machines.iter().filter_map(|machine| {
        let [interactive, normal, bulk] = machine.classes.map(class);
        Some(IoLinkMachine {
            name: name(machine.machine)?,
            queued: machine.queued as u32,
            in_flight: machine.in_flight as u32,
            requests_per_s: machine.requests_per_s,
            bytes_per_s: machine.bytes_per_s,
            interactive,
            normal,
            bulk,
        })
    });
    let mut machines: Vec<IoLinkMachine> = known.collect();
    machines.sort_by(|a, b| a.name.cmp(&b.name));
    IoLink {
        sources,
        capacity_per_s: status.capacity_per_s,
        depth: status.depth as u32,
        in_flight: status.in_flight as u32,
        guarded: status.guarded,
        ahead_queued,
        machines,
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use floe_sched::{Op, Policy, Purpose, Vsip, VsipConfig, Who};

    #[test]
    fn a_link_tells_of_machines_by_name_what_is_queued_and_served_by_class() {
        let mut queue: Vsip<u32> = Vsip::new(VsipConfig::link(16, 4));
        let who = |machine, class| Who {
            machine: MachineId(machine),
            purpose: Purpose::Demand,
            class,
        };
        for (machine, class) in [
            (2, Class::Interactive),
            (2, Class::Normal),
            (1, Class::Bulk),
            (9, Class::Normal),
        ] {
            let queued = queue.submit(0, who(machine, class), Op::Read, 65_536, machine);
            assert!(queued.is_ok());
        }
        let (first, _) = queue.next(10, &mut |_, _| true).unwrap();
        assert_eq!(first, who(2, Class::Interactive));
        queue.served(500, first, Op::Read, 65_536);
        let status = queue.status(500).unwrap();
        let name = |machine: MachineId| match machine {
            MachineId(1) => Some("web".to_owned()),
            MachineId(2) => Some("desktop".to_owned()),
            _ => None,
        };
        let told = link(vec!["hub.example".into()], &status, 7, &name);
        let names: Vec<&str> = told.machines.iter().map(|one| &*one.name).collect();
        // the third is no longer here
        assert_eq!(names, ["desktop", "web"]);
        let [desktop, web] = &told.machines[..] else {
            panic!("two machines are known");
        };
        assert_eq!((desktop.interactive.served, desktop.normal.served), (1, 0));
        assert_eq!((desktop.queued, web.queued), (1, 1));
        assert_eq!((told.ahead_queued, told.in_flight), (7, 0));
    }
}
