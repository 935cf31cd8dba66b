//! The plug-in for Slurm. A ticket is an allocation: as many tasks as clones, each with a clone's CPUs and memory, on Slurm
//! nodes that run our nodes.
//!
//! Slurm is asked through its own tools (`scontrol`, `salloc`, `scancel`). The output that is used here has stayed the same
//! for fifteen years; the alternative, Slurm's REST daemon, is one more thing to run, with a version in each of its paths.
//! The tools find their cluster through `SLURM_CONF`, and apply `SALLOC_PARTITION`, `SALLOC_ACCOUNT` and the like, as for
//! everybody. Clones run in the node's processes and not in steps of the job: the allocation only reserves their room, and
//! when Slurm ends it, `holds` becomes false and the clones are ended.

use super::{
    Ask, Grant, Offer, Placement,
    command::{Answer, run},
    slurm_text::{SlurmNode, field, job_of, parse_layout, parse_nodes},
};
use floe_ground::error::{NodeError, failed};
use std::{process::Command, time::Duration};

/// How long a question may take: a controller that takes longer is in trouble.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait for an allocation. What is free now is granted at once; anything longer is a queue.
const GRANT_TIMEOUT: Duration = Duration::from_secs(5);
/// States of a job that has its nodes.
const HAS_NODES: [&str; 5] = ["RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING"];

#[derive(Default)]
pub(super) struct Slurm {}

/// Returns how many clones to ask for next: first as many as seem to fit, then half as many after each refusal.
fn next_ask(asked: u32, fits: u32, refused: Option<u32>) -> u32 {
    let limit = refused.map_or(asked, |last| last / 2);
    asked.min(fits).min(limit)
}

impl Placement for Slurm {
    fn request(&self, ask: &Ask, offers: &[Offer]) -> Result<Grant, NodeError> {
        let cpus = ask.cpus.max(1);
        let mib_per_cpu = (ask.memory_bytes >> 20).div_ceil(u64::from(cpus)).max(1);
        let mib = mib_per_cpu * u64::from(cpus);
        let mut why = Vec::new();
        let mut refused = None;
        loop {
            let nodes = nodes()?;
            let ours = |node: &&SlurmNode| offers.iter().any(|offer| offer.name == node.name);
            let may = |offer: &Offer| -> u32 {
                let room = offer.room.as_ref().map_or(0, |room| room.clones);
                let node = nodes.iter().find(|node| node.name == offer.name);
                room.min(node.map_or(0, |node| node.fits(cpus, mib)))
            };
            let fits: u32 = offers.iter().map(may).fold(0, u32::saturating_add);
            let count = next_ask(ask.clones, fits, refused);
            if count == 0 {
                let of = |offer: &Offer| Err(refusal(offer, &nodes, cpus, mib, &why));
                return Ok(Grant {
                    ticket: None,
                    clones: offers.iter().map(of).collect(),
                });
            }
            // a task on a Slurm node that none of ours runs on, or that has no room, would be useless
            let closed = |node: &&SlurmNode| {
                let offer = offers.iter().find(|offer| offer.name == node.name);
                !ours(node) || offer.is_none_or(|offer| may(offer) == 0)
            };
            let exclude: Vec<&str> = nodes
                .iter()
                .filter(closed)
                .map(|node| node.name.as_str())
                .collect();
            match allocate(&ask.parent, count, cpus, mib_per_cpu, &exclude)? {
                Ok(job) => {
                    return match layout(&job, cpus, mib) {
                        Ok(tasks) => Ok(grant(job, count, &tasks, offers)),
                        Err(why) => {
                            let _ = self.release(&job);
                            Err(failed(
                                format!("Slurm's job {job}: {why}"),
                                "look at it with scontrol show job -d",
                            ))
                        }
                    };
                }
                Err(reason) => {
                    why.push(reason);
                    refused = Some(count);
                }
            }
        }
    }

    fn holds(&self, ticket: &str) -> Result<bool, String> {
        let answer = ask("scontrol", &["show", "job", "-o", ticket])?;
        if answer.code == Some(0) {
            let state = field(&answer.out, "JobState").unwrap_or_default();
            return Ok(HAS_NODES.contains(&state));
        }
        match answer.err.contains("Invalid job id") {
            true => Ok(false),
            false => Err(answer.why()),
        }
    }

    fn release(&self, ticket: &str) -> Result<(), String> {
        let answer = ask("scancel", &["--quiet", ticket])?;
        match answer.code == Some(0) || answer.err.contains("Invalid job id") {
            true => Ok(()),
            false => Err(answer.why()),
        }
    }
}

fn ask(tool: &str, args: &[&str]) -> Result<Answer, String> {
    let mut command = Command::new(tool);
    command.args(args);
    run(command, b"", ASK_TIMEOUT).map_err(|why| format!("{why} (package slurm-client)"))
}

/// Returns all nodes of the cluster in their present state, including those that are down.
fn nodes() -> Result<Vec<SlurmNode>, NodeError> {
    let wrong = |why: String| failed(format!("Slurm: {why}"), "check that sinfo works here");
    let answer = ask("scontrol", &["show", "nodes", "-o"]).map_err(wrong)?;
    match answer.code {
        Some(0) => Ok(parse_nodes(&answer.out)),
        _ => Err(wrong(answer.why())),
    }
}

/// Returns why a host gets no clone.
fn refusal(offer: &Offer, nodes: &[SlurmNode], cpus: u32, mib: u64, why: &[String]) -> String {
    let name = &offer.name;
    if let Err(why) = &offer.room {
        return why.clone();
    }
    let Some(node) = nodes.iter().find(|node| node.name == *name) else {
        return format!("{name} is no node of Slurm's: list it under Slurm's name in floe's hosts");
    };
    if let Some(state) = &node.out {
        return format!("{name} takes no jobs of Slurm's: it is {state}");
    }
    if node.fits(cpus, mib) == 0 {
        return format!(
            "{name}: Slurm has {} CPUs and {} MiB free there, a clone takes {cpus} and {mib}",
            node.free_cpus, node.free_mib
        );
    }
    match why.last() {
        Some(why) => format!("Slurm grants nothing on {name}: {why}"),
        None => format!("{name} has no room"),
    }
}

/// Asks for an allocation: returns its job, or why there is none. Fails if Slurm could not be asked.
fn allocate(
    parent: &str,
    tasks: u32,
    cpus: u32,
    mib_per_cpu: u64,
    exclude: &[&str],
) -> Result<Result<String, String>, NodeError> {
    let mut command = Command::new("salloc");
    command.args(["--no-shell", "--no-kill", "--job-name"]);
    command.arg(format!("floe-{parent}"));
    command.arg(format!("--ntasks={tasks}"));
    command.arg(format!("--cpus-per-task={cpus}"));
    command.arg(format!("--mem-per-cpu={mib_per_cpu}"));
    if !exclude.is_empty() {
        command.arg(format!("--exclude={}", exclude.join(",")));
    }
    let answer = run(command, b"", GRANT_TIMEOUT);
    let answer =
        answer.map_err(|why| failed(why, "install Slurm's tools: package slurm-client"))?;
    let job = job_of(&answer.err);
    match (answer.code, job) {
        (Some(0), Some(job)) => Ok(Ok(job)),
        (Some(0), None) => Ok(Err("salloc told no job".into())),
        (_, job) => {
            if let Some(job) = job {
                // it may have been granted at the very moment at which the wait was given up
                let _ = ask("scancel", &["--quiet", &job]);
            }
            Ok(Err(match answer.code {
                None => format!(
                    "{tasks} tasks were not granted within {} s",
                    GRANT_TIMEOUT.as_secs()
                ),
                Some(_) => answer.why(),
            }))
        }
    }
}

/// Returns how many clones an allocation allows on which node.
fn layout(job: &str, cpus: u32, mib: u64) -> Result<Vec<(String, u32)>, String> {
    let answer = ask("scontrol", &["show", "job", "-d", "-o", job])?;
    match answer.code {
        Some(0) => parse_layout(&answer.out, cpus, mib),
        _ => Err(answer.why()),
    }
}

fn grant(job: String, count: u32, tasks: &[(String, u32)], offers: &[Offer]) -> Grant {
    // nodes allocate whole cores, so there may be CPUs for more tasks than were granted
    let mut left = count;
    let clones = offers.iter().map(|offer| {
        let here = tasks.iter().find(|(name, _)| *name == offer.name);
        let here = here.map_or(0, |(_, tasks)| *tasks).min(left);
        left -= here;
        match here {
            0 => Err(format!("{}: no part of Slurm's job {job}", offer.name)),
            here => Ok(here),
        }
    });
    let clones = clones.collect();
    Grant {
        ticket: Some(job),
        clones,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_each_refusal_less_is_asked_for_until_there_is_nothing_left() {
        assert_eq!(next_ask(8, 5, None), 5);
        let mut asked = vec![5];
        while *asked.last().unwrap() > 0 {
            asked.push(next_ask(8, 5, asked.last().copied()));
        }
        assert_eq!(asked, [5, 2, 1, 0]);
    }

    const NODES: &str = "\
NodeName=n1 Arch=x86_64 CPUAlloc=2 CPUEfctv=4 CPUTot=4 RealMemory=2000 AllocMem=200 FreeMem=5475 State=MIXED ThreadsPerCore=1
NodeName=n2 CPUAlloc=0 CPUTot=8 RealMemory=2000 AllocMem=0 State=IDLE+DRAIN Reason=broken
NodeName=n3 CPUAlloc=0 CPUTot=8 RealMemory=2000 AllocMem=0 State=DOWN*
";

    #[test]
    fn nodes_are_read_with_what_they_have_left_and_whether_they_take_jobs() {
        let nodes = parse_nodes(NODES);
        let of: Vec<_> = nodes
            .iter()
            .map(|n| (n.name.as_str(), n.fits(1, 600)))
            .collect();
        assert_eq!(of, [("n1", 2), ("n2", 0), ("n3", 0)]);
        assert_eq!(nodes[0].fits(1, 1000), 1);
        let offer = |name: &str| Offer {
            name: name.into(),
            room: Ok(floe_api::Room {
                clones: 9,
                ..Default::default()
            }),
        };
        let why = |name: &str, mib| refusal(&offer(name), &nodes, 1, mib, &[]);
        assert!(why("n2", 1).contains("IDLE+DRAIN"));
        assert!(why("n1", 5000).contains("1800 MiB free"));
        assert!(why("other", 1).contains("no node of Slurm's"));
    }
}
