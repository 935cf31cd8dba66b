//! Machines that are activated on other hosts. There they are clones of the substrate's image: their nodes read it from this one, by
//! multicast if they are several (`fork`), while they run. What comes after that (their guests' answers, their size) each host does for
//! its own machines, asked once for all of them; this node waits for all hosts at the same time.

use super::Pool;
use floe_api::{
    ActivatedInfo, ApiError, CLONES_MAX, EXPAND_ANSWER_S_MAX, ErrorCode, ExpandReport,
    ExpandRequest,
};
use floe_fork::is_ordered_by;
use floe_ground::{
    caller::FromMember,
    error::{NodeError, usage},
    report::{Report, millis},
};
use floe_inventory::inventory::record::Independent;
use floe_threads::Cancel;
use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

/// What comes while other hosts are waited for.
enum Told {
    /// A host has answered at this moment, or why it did not.
    Host(String, Instant, Result<ExpandReport, String>),
    /// The caller has gone.
    Cancelled,
}

/// Other hosts that were asked for what remains to be done with their machines.
pub(super) struct Away {
    told: mpsc::Receiver<Told>,
    tell: mpsc::Sender<Told>,
    hosts: usize,
}

impl Away {
    /// Whether any host was asked.
    pub fn is_some(&self) -> bool {
        self.hosts > 0
    }
}

impl Pool {
    /// Does what another node has asked for about the machines that it has activated here; `by` is that node, if it is a member of the
    /// cluster.
    pub fn expand(
        &self,
        request: &ExpandRequest,
        by: Option<&FromMember>,
    ) -> Result<ExpandReport, NodeError> {
        let began = Instant::now();
        if request.machines.len() > CLONES_MAX as usize {
            return Err(usage(format!("{} machines", request.machines.len()), ""));
        }
        let independent = Independent::asked(request.independent.as_ref())?;
        let (mut alone, _) = Report::new();
        let gains = self.gains(request.size, &request.disks, false, &mut alone)?;
        let mut machines = Vec::new();
        for name in &request.machines {
            let Ok(entry) = self.inventory.get(name) else {
                continue;
            };
            let record = entry.record();
            let is_its = by.is_none_or(|member| is_ordered_by(&record, member));
            let family = record.family.as_ref();
            if !is_its || family.is_none_or(|family| family.fork != request.fork) {
                continue;
            }
            if independent.is_some() {
                entry.update(|record| record.independence = independent)?;
            }
            machines.push(ActivatedInfo {
                name: name.clone(),
                ..Default::default()
            });
        }
        self.shrinks.look_now();
        let mut all: Vec<&mut ActivatedInfo> = machines.iter_mut().collect();
        // whoever has asked and does not listen any more is waited for no longer than he wanted to
        let nobody_cancels = Cancel::default();
        if request.answer_s > 0 {
            let limit_s = request.answer_s.min(EXPAND_ANSWER_S_MAX);
            let until = began + Duration::from_secs(limit_s);
            self.wait_for_networks(&mut all, began, until, &nobody_cancels)?;
        }
        if !gains.are_none() {
            self.bring_gains(&mut all, &gains, began, &nobody_cancels);
        }
        Ok(ExpandReport {
            machines,
            took_ms: millis(began.elapsed()),
        })
    }

    /// Asks the hosts of machines for what remains to be done with them; `request` says what. Returns at once.
    pub(super) fn ask_hosts(
        self: &Arc<Self>,
        machines: &[ActivatedInfo],
        request: &ExpandRequest,
    ) -> Away {
        let mut hosts: BTreeMap<&String, Vec<String>> = BTreeMap::new();
        let away = machines.iter().filter_map(|m| Some((m.host.as_ref()?, m)));
        for (host, machine) in away {
            hosts.entry(host).or_default().push(machine.name.clone());
        }
        let (tell, told) = mpsc::channel();
        let count = hosts.len();
        for (host, machines) in hosts {
            let request = ExpandRequest {
                machines,
                ..request.clone()
            };
            let (pool, host, tells) = (self.clone(), host.clone(), tell.clone());
            let at = host.clone();
            // not waited for by name: it ends with its answer, which nobody may listen to any more
            let asked = self.core.threads.start("dispatch", move || {
                let answer = pool.forks.expand_away(&host, &request);
                let _ = tells.send(Told::Host(host, Instant::now(), answer));
            });
            if let Err(error) = asked {
                let _ = tell.send(Told::Host(at, Instant::now(), Err(error.to_string())));
            }
        }
        Away {
            told,
            tell,
            hosts: count,
        }
    }

    /// Waits until all hosts have answered, and notes what they say of each machine.
    pub(super) fn hear_hosts(
        &self,
        away: Away,
        machines: &mut [ActivatedInfo],
        began: Instant,
        cancel: &Cancel,
    ) -> Result<(), NodeError> {
        let Away { told, tell, hosts } = away;
        let _hook = cancel.on_cancel(move || {
            let _ = tell.send(Told::Cancelled);
        });
        for _ in 0..hosts {
            let Ok(Told::Host(host, at, answer)) = told.recv() else {
                return Err(NodeError::Cancelled);
            };
            let of_it = |machine: &&mut ActivatedInfo| machine.host.as_ref() == Some(&host);
            for machine in machines.iter_mut().filter(of_it) {
                note(machine, &host, millis(at - began), &answer);
            }
        }
        Ok(())
    }
}

/// Notes what a host says of a machine. `at_ms`: when it said that, from the request on.
fn note(
    machine: &mut ActivatedInfo,
    host: &str,
    at_ms: f64,
    answer: &Result<ExpandReport, String>,
) {
    let short = |message: String, fix: String| ApiError {
        code: ErrorCode::Unreachable,
        message,
        fix,
    };
    let name = &machine.name;
    match answer {
        Ok(report) => {
            let asked_ms = at_ms - report.took_ms;
            let told = report.machines.iter().find(|told| told.name == *name);
            match told {
                Some(told) => {
                    machine.network_ms = told.network_ms.map(|ms| asked_ms + ms);
                    machine.size_ms = told.size_ms.map(|ms| asked_ms + ms);
                    machine.short = told.short.clone();
                    machine.disks = told.disks.clone();
                }
                None => machine.short.push(short(
                    format!("machine {name} ran on {host} and is no more"),
                    "see that host's log".into(),
                )),
            }
        }
        Err(why) => machine.short.push(short(
            format!("machine {name} ran, and now {host} does not say how it is: {why}"),
            format!(
                "floe family {name} shows it when its host answers again; floe kill {name} ends it then"
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_host_measured_counts_from_the_request_and_its_silence_is_told_for_each_machine() {
        let ran = |name: &str| ActivatedInfo {
            name: name.into(),
            host: Some("https://b".into()),
            first_ms: 40.0,
            ..Default::default()
        };
        let report = ExpandReport {
            machines: vec![ActivatedInfo {
                name: "shop.1".into(),
                network_ms: Some(300.0),
                size_ms: Some(400.0),
                ..Default::default()
            }],
            took_ms: 450.0,
        };
        let (mut first, mut second) = (ran("shop.1"), ran("shop.2"));
        let answer = Ok(report);
        note(&mut first, "https://b", 500.0, &answer);
        assert_eq!(
            (first.first_ms, first.network_ms, first.size_ms),
            (40.0, Some(350.0), Some(450.0))
        );
        assert!(first.short.is_empty());
        note(&mut second, "https://b", 500.0, &answer);
        assert!(second.short[0].message.contains("is no more"), "{second:?}");
        let mut lost = ran("shop.3");
        note(&mut lost, "https://b", 500.0, &Err("reset".into()));
        assert_eq!(lost.short[0].code, ErrorCode::Unreachable);
        assert!(lost.short[0].message.contains("shop.3"), "{lost:?}");
        assert!(lost.short[0].message.contains("https://b"), "{lost:?}");
    }
}
