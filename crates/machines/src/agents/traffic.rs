//! What the cards of guests have received and sent. QEMU counts no bytes of a card on its user network, so the guests' own kernels are
//! asked, by their agents.

use super::Agents;
use floe_api::{CardTraffic, MachineStatus, UsageList};
use floe_guest::chores::{Traffic, names};
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

/// How long an agent may take.
const LIMIT: Duration = Duration::from_secs(5);
/// How many agents are asked at once.
const AT_ONCE: usize = 8;

impl Agents {
    /// Asks the agents of all machines of the list.
    pub fn add_traffic(&self, list: &mut UsageList) {
        let next = AtomicUsize::new(0);
        let machines = &list.machines;
        let found = parking_lot::Mutex::new(vec![None; machines.len()]);
        floe_threads::scope(|scope| {
            scope.spawn_some("traffic", AT_ONCE.min(machines.len()), || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(machine) = machines.get(at) else {
                        return;
                    };
                    let traffic = self.traffic(&machine.name, machine.status);
                    found.lock()[at] = Some(traffic);
                }
            });
        });
        for (machine, traffic) in list.machines.iter_mut().zip(found.into_inner()) {
            machine.network = traffic;
        }
    }

    fn traffic(&self, name: &str, status: MachineStatus) -> CardTraffic {
        let asked = || {
            if status != MachineStatus::Running {
                return Err("the guest stands still, and can't be asked".to_owned());
            }
            let entry = self.inventory.get(name).map_err(|e| e.to_string())?;
            if !entry.state().guest.agent {
                let none = "no agent answers in the guest; floe agent install puts one there";
                let missing = entry.still_fetches(entry.waits());
                return Err(missing.unwrap_or_else(|| none.into()));
            }
            let asked = self.chore::<Traffic>(&entry, names::TRAFFIC, &[], LIMIT);
            asked.map_err(|e| e.of(name).to_string())
        };
        match asked() {
            Ok(traffic) => CardTraffic {
                received_bytes: Some(traffic.received_bytes),
                sent_bytes: Some(traffic.sent_bytes),
                unknown: None,
            },
            Err(why) => CardTraffic {
                unknown: Some(why),
                ..CardTraffic::default()
            },
        }
    }
}
