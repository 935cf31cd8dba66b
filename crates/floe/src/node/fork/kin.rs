//! Looking at a family, and ending clones.

use super::{
    family::{CloneRecord, ForkRecord},
    remote::Remote,
};
use crate::{
    api::{CLONE_ENDED, ErrorCode, Family, KillReport, KillRequest, MachineStatus},
    node::{
        Node,
        error::{NodeError, not_found, refused},
        record::Wanted,
    },
};

/// Generations that are followed: names of clones of clones end before that.
const GENERATIONS_MAX: usize = 20;

impl Node {
    /// A machine with its parents and all clones, from the eldest one that is known here.
    pub fn family(&self, name: &str) -> Result<Family, NodeError> {
        let mut root = name.to_owned();
        for _ in 0..GENERATIONS_MAX {
            let record = self.machines.get(&root).ok().map(|entry| entry.record());
            let parent = record.and_then(|record| Some(record.family?.parent));
            match parent.filter(|parent| self.is_known(parent)) {
                Some(parent) => root = parent,
                None => break,
            }
        }
        if !self.is_known(&root) {
            return Err(not_found(
                format!("there is no machine {name} and no fork of one"),
                "see `floe ps --all`",
            ));
        }
        Ok(self.branch(&root, None, GENERATIONS_MAX))
    }

    fn is_known(&self, name: &str) -> bool {
        self.machines.get(name).is_ok() || !self.forks.of(name).is_empty()
    }

    /// One member with its clones. `clone`: what the fork's record says of it.
    fn branch(
        &self,
        name: &str,
        clone: Option<(&str, &CloneRecord)>,
        generations: usize,
    ) -> Family {
        let mut member = Family {
            name: name.to_owned(),
            fork: clone.map(|(fork, _)| fork.to_owned()),
            number: clone.map(|(_, clone)| clone.number),
            settled: true,
            ..Default::default()
        };
        if let Ok(entry) = self.machines.get(name) {
            let info = self.info_of(&entry);
            member.status = Some(info.status);
            member.detail = info.detail;
            if let Some(cloned) = info.cloned {
                member.settled = cloned.settled;
                member.fork = Some(cloned.fork);
                member.number = Some(cloned.number);
            }
        }
        if generations == 0 {
            return member;
        }
        for fork in self.forks.of(name) {
            for clone in &fork.clones {
                let of = Some((fork.id.as_str(), clone));
                member.clones.push(match &clone.host {
                    None => self.branch(&clone.name, of, generations - 1),
                    Some(host) => away(&fork, clone, host),
                });
            }
        }
        member
    }

    /// How a clone on another host is: `None` if it is there no more, `Some(None)` if its host does not answer.
    pub(crate) fn away_status(&self, name: &str) -> Option<Option<MachineStatus>> {
        let (fork, host) = self.forks.away(name)?;
        let token = fork.hosts_token.as_deref().unwrap_or_default();
        match Remote::new(&host, token).map(|remote| remote.family(name)) {
            Ok(Ok(member)) => member.map(|member| member.status),
            _ => Some(None),
        }
    }

    /// Ends a clone of this node's wherever it is; of one that is away, its clones too if `all` is set.
    fn kill_one(&self, name: &str, all: bool) -> Result<(), NodeError> {
        let Some((fork, host)) = self.forks.away(name) else {
            return self.remove_machine(name, true);
        };
        let remote = Remote::new(&host, fork.hosts_token.as_deref().unwrap_or_default())?;
        let clones = match all {
            true => remote.end_clones(name),
            false => Ok(()),
        };
        clones.and_then(|()| remote.end(name)).map_err(|why| {
            NodeError::Api(crate::api::ApiError {
                code: ErrorCode::Unreachable,
                message: format!("{name} was not ended: {why}"),
                fix: "repeat it when its host answers".into(),
            })
        })?;
        self.forks.strike(name)?;
        self.networks.leave_any(name);
        self.tickets.look();
        self.drop_fork_image(&fork.image);
        Ok(())
    }

    /// Names of the clones that a fork has still.
    pub(crate) fn clones_of_fork(&self, fork: &str) -> Vec<String> {
        let record = self.forks.get(fork);
        let clones = record.map(|record| record.clones).unwrap_or_default();
        clones.into_iter().map(|clone| clone.name).collect()
    }

    /// Ends a clone wherever it is, with the clones that it has there.
    pub(crate) fn end_a_clone(&self, name: &str) -> Result<(), NodeError> {
        self.kill_one(name, true)
    }

    /// A fork has no clones any more, whatever its record says: the last ones are just going.
    pub(crate) fn strike_all(&self, fork: &str) {
        if let Some(fork) = self.forks.get(fork) {
            for clone in &fork.clones {
                self.strike_ended(&fork, &clone.name);
            }
        }
    }

    /// How a fork's clones are. Those on other hosts are asked for only if `ask` is set, and count as alive otherwise.
    pub(crate) fn clones_left(&self, fork: &str, ask: bool) -> Left {
        let mut left = Left::default();
        let Some(fork) = self.forks.get(fork) else {
            return left;
        };
        for clone in &fork.clones {
            let Some(host) = &clone.host else {
                // it has ended, and its record is about to go; or it is about to be made
                let Ok(entry) = self.machines.get(&clone.name) else {
                    continue;
                };
                let removing = entry.record().wanted == Wanted::Removing;
                match self.info_of(&entry).status {
                    MachineStatus::Stopped | MachineStatus::Failed if !removing => {
                        left.dead.push(clone.name.clone());
                    }
                    _ => left.alive += 1,
                }
                continue;
            };
            if !ask {
                left.alive += 1;
                continue;
            }
            let member = away(&fork, clone, host);
            match member.status {
                Some(MachineStatus::Stopped | MachineStatus::Failed) => {
                    left.dead.push(clone.name.clone());
                }
                None if member.detail == CLONE_ENDED => self.strike_ended(&fork, &clone.name),
                _ => left.alive += 1,
            }
        }
        left
    }

    /// A clone on another host is not there any more.
    fn strike_ended(&self, fork: &ForkRecord, name: &str) {
        if let Err(error) = self.forks.strike(name) {
            tracing::warn!(machine = name, %error, "it has ended and stays in its fork's record");
        }
        self.drop_fork_image(&fork.image);
    }

    /// Ends a clone, or all clones of a machine.
    pub fn kill(&self, name: &str, request: &KillRequest) -> Result<KillReport, NodeError> {
        let mut report = KillReport::default();
        if !request.all {
            let away = self.forks.away(name).is_some();
            if !away && self.machines.get(name)?.record().family.is_none() {
                return Err(refused(
                    format!("machine {name} is no clone"),
                    format!("floe rm --force {name}, or floe kill --all {name} for its clones"),
                ));
            }
            self.kill_one(name, false)?;
            report.ended.push(name.to_owned());
            return Ok(report);
        }
        if !self.is_known(name) {
            return Err(not_found(
                format!("there is no machine {name} and no fork of one"),
                "see `floe ps --all`",
            ));
        }
        let tree = self.branch(name, None, GENERATIONS_MAX);
        let mut names = Vec::new();
        collect(&tree, &mut names);
        for name in names {
            match self.kill_one(&name, true) {
                Ok(()) => report.ended.push(name),
                Err(error) => report.failed.push(format!("{name}: {}", error.to_api())),
            }
        }
        Ok(report)
    }
}

/// What is left of a fork's clones.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// Those that may still do something; so may one whose host does not answer.
    pub alive: u32,
    /// Those that crashed or were switched off.
    pub dead: Vec<String>,
}

/// A clone on another host, as that tells it.
fn away(fork: &ForkRecord, clone: &CloneRecord, host: &str) -> Family {
    let token = fork.hosts_token.as_deref().unwrap_or_default();
    let told = Remote::new(host, token)
        .map_err(|error| error.to_string())
        .and_then(|remote| remote.family(&clone.name));
    let (mut member, detail) = match told {
        Ok(Some(member)) => (member, None),
        Ok(None) => (Family::default(), Some(CLONE_ENDED.to_owned())),
        Err(why) => (Family::default(), Some(why)),
    };
    member.name = clone.name.clone();
    member.fork = Some(fork.id.clone());
    member.number = Some(clone.number);
    if let Some(detail) = detail {
        member.detail = detail;
    }
    on(&mut member, host);
    member
}

/// A member and all below are on this host, unless they say another.
fn on(member: &mut Family, host: &str) {
    member.host.get_or_insert_with(|| host.to_owned());
    member.clones.iter_mut().for_each(|clone| on(clone, host));
}

/// All clones below a member, the youngest generation first.
fn collect(member: &Family, names: &mut Vec<String>) {
    for clone in &member.clones {
        // clones of a clone that is away are its host's to end
        if clone.host.is_none() {
            collect(clone, names);
        }
        names.push(clone.name.clone());
    }
}
