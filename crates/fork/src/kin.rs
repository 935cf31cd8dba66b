//! Shows families of machines and ends clones.

use super::record::{CloneRecord, ForkRecord};
use crate::Forks;
use floe_api::{CLONE_ENDED, ErrorCode, Family, KillReport, KillRequest, MachineStatus};
use floe_ground::error::{NodeError, not_found, refused};
use floe_inventory::inventory::{record::Wanted, turn::Peer};

/// How many generations are followed: clones' names become too long before that.
const GENERATIONS_MAX: usize = 20;

impl Forks {
    /// Returns a machine with its parents and all clones, from the eldest one that is known here.
    pub fn family(&self, name: &str) -> Result<Family, NodeError> {
        let mut root = name.to_owned();
        for _ in 0..GENERATIONS_MAX {
            let record = self.inventory.get(&root).ok().map(|entry| entry.record());
            let parent = record.and_then(|record| Some(record.family.as_ref()?.parent.clone()));
            match parent.filter(|parent| self.is_known(parent)) {
                Some(parent) => root = parent,
                None => break,
            }
        }
        if !self.is_known(&root) {
            return Err(not_found(
                format!("there is no machine {name} and no fork of one"),
                "see `floe ps`",
            ));
        }
        Ok(self.family_below(&root))
    }

    /// Returns a machine with all clones of it.
    pub(super) fn family_below(&self, name: &str) -> Family {
        self.branch(name, None, GENERATIONS_MAX)
    }

    fn is_known(&self, name: &str) -> bool {
        self.inventory.get(name).is_ok()
            || !self.records.of(name).is_empty()
            || !self.records.missing(name).is_empty()
    }

    /// Returns one member with its clones. `clone` is the fork's id and what its record says of the member.
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
            missing: self.records.missing(name),
            ..Default::default()
        };
        if let Ok(entry) = self.inventory.get(name) {
            let info = self.machines.info_of(&entry);
            // one that is being removed is about to be gone, and has not ended by itself: who waits for it asks again
            let is_going = entry.record().wanted == Wanted::Removing;
            member.status = (!is_going).then_some(info.status);
            member.detail = info.detail;
            member.address = info.network.map(|network| network.address);
            member.forwards = info.forwards;
            if let Some(cloned) = info.cloned {
                member.ends_unix_s = cloned.ends_unix_s;
                member.settled = cloned.settled;
                member.fork = Some(cloned.fork);
                member.number = Some(cloned.number);
            }
        }
        if generations == 0 {
            return member;
        }
        for fork in self.records.of(name) {
            for clone in &fork.clones {
                let of = Some((fork.id.as_str(), clone));
                member.clones.push(match &clone.host {
                    None => self.branch(&clone.name, of, generations - 1),
                    Some(host) => away(self, &fork, clone, host),
                });
            }
        }
        member
    }

    /// Returns whether a clone is alive, on this host or on another, which is asked.
    fn life_of(&self, fork: &ForkRecord, clone: &CloneRecord) -> Life {
        let ended = |status| matches!(status, MachineStatus::Stopped | MachineStatus::Failed);
        match &clone.host {
            None => match self.inventory.get(&clone.name) {
                // nobody knows what it does
                Err(_) if self.inventory.left_alone(&clone.name).is_some() => Life::Alive,
                // it has ended and is about to be removed from the fork's record, or it is about to be created
                Err(_) => Life::Gone,
                Ok(entry) if entry.record().wanted == Wanted::Removing => Life::Alive,
                // its QEMU is not asked: callers poll often, and that would take CPU time from the clones
                Ok(entry) if entry.state().vm.is_some() => Life::Alive,
                Ok(entry) if ended(self.machines.info_of(&entry).status) => Life::Dead,
                Ok(_) => Life::Alive,
            },
            Some(host) => match told_by(self, host, fork, clone) {
                Ok(None) => Life::Gone,
                Ok(Some(member)) if member.status.is_some_and(ended) => Life::Dead,
                Ok(Some(_)) | Err(_) => Life::Alive,
            },
        }
    }

    /// Whether any clone of a fork may still do something; hosts are asked only until one is found that does.
    pub fn runs(&self, fork: &str) -> bool {
        let fork = self.records.get(fork);
        fork.is_some_and(|fork| {
            let mut clones = fork.clones.iter();
            clones.any(|clone| self.life_of(&fork, clone) == Life::Alive)
        })
    }

    /// Returns the member of the cluster that runs a clone of this node's; `None` if there is no such clone there.
    pub fn host_of(&self, name: &str) -> Option<Peer> {
        let (_, host) = self.records.away(name)?;
        let member = self.cluster.find(&host)?;
        Some(Peer {
            name: member.name,
            address: member.address,
        })
    }

    /// Ends a clone of this node's wherever it runs. If it runs on another host and `all` is set, its own clones are ended
    /// too.
    fn kill_one(&self, name: &str, all: bool) -> Result<(), NodeError> {
        let Some((fork, host)) = self.records.away(name) else {
            return match self.machines.remove_machine(name, true) {
                // it had ended by itself, and the node died before it removed the clone from the record
                Err(error)
                    if error.code() == ErrorCode::NotFound && self.records.strike(name)? =>
                {
                    Ok(())
                }
                done => done,
            };
        };
        let remote = self.remote(&host, fork.hosts_token.as_deref())?;
        let clones = match all {
            true => remote.end_clones(name),
            false => Ok(()),
        };
        clones.and_then(|()| remote.end(name)).map_err(|why| {
            NodeError::Api(floe_api::ApiError {
                code: ErrorCode::Unreachable,
                message: format!("{name} was not ended: {why}"),
                fix: "repeat it when its host answers".into(),
            })
        })?;
        self.strike_off(&fork, name)?;
        self.tickets.look();
        Ok(())
    }

    /// Returns the names of the clones that a fork still has.
    pub fn clones_of_fork(&self, fork: &str) -> Vec<String> {
        let record = self.records.get(fork);
        let clones = record.map(|record| record.clones).unwrap_or_default();
        clones.into_iter().map(|clone| clone.name).collect()
    }

    /// Ends a clone wherever it runs, with the clones that it has there.
    pub fn end_a_clone(&self, name: &str) -> Result<(), NodeError> {
        self.kill_one(name, true)
    }

    /// Removes all clones from a fork's record: the last ones are just ending.
    pub fn strike_all(&self, fork: &str) {
        if let Some(fork) = self.records.get(fork) {
            for clone in &fork.clones {
                self.strike_ended(&fork, &clone.name);
            }
        }
    }

    /// Returns which clones of a fork are left. Those on other hosts are asked for only if `ask` is set, and otherwise count
    /// as alive.
    pub fn clones_left(&self, fork: &str, ask: bool) -> Left {
        let mut left = Left::default();
        let Some(fork) = self.records.get(fork) else {
            return left;
        };
        for clone in &fork.clones {
            let life = match clone.host.is_none() || ask {
                true => self.life_of(&fork, clone),
                false => Life::Alive,
            };
            match life {
                Life::Alive => left.alive += 1,
                Life::Dead => left.dead.push(clone.name.clone()),
                Life::Gone if clone.host.is_some() => self.strike_ended(&fork, &clone.name),
                Life::Gone => {}
            }
        }
        left
    }

    /// Removes a clone that no longer exists from its fork and from its family's network.
    fn strike_off(&self, fork: &ForkRecord, name: &str) -> Result<(), NodeError> {
        // a clone on this host has left the network already
        self.networks.leave_any(name);
        let struck = self.records.strike(name);
        self.share_again(fork.shares_limits());
        self.drop_fork_image(&fork.image);
        struck.map(drop)
    }

    /// Does the same for a clone that ended by itself; an error is only logged.
    fn strike_ended(&self, fork: &ForkRecord, name: &str) {
        if let Err(error) = self.strike_off(fork, name) {
            tracing::warn!(machine = name, %error, "it has ended and stays in its fork's record");
        }
    }

    /// Ends a clone, or all clones of a machine.
    pub fn kill(&self, name: &str, request: &KillRequest) -> Result<KillReport, NodeError> {
        let mut report = KillReport::default();
        if !request.all {
            let away = self.records.away(name).is_some();
            if !away && self.inventory.get(name)?.record().family.is_none() {
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
                "see `floe ps`",
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

/// Which of a fork's clones are left.
#[derive(Debug, Default)]
pub struct Left {
    /// How many may still do something; one whose host does not answer counts too.
    pub alive: u32,
    /// Names of those that crashed or were switched off.
    pub dead: Vec<String>,
}

/// Whether a clone is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// It may still do something; so may one whose host does not answer, and one that is being removed.
    Alive,
    /// It crashed or was switched off.
    Dead,
    /// There is no such machine.
    Gone,
}

/// Asks another host about a clone: `None` if the clone no longer exists there.
fn told_by(
    forks: &Forks,
    host: &str,
    fork: &ForkRecord,
    clone: &CloneRecord,
) -> Result<Option<Family>, String> {
    let remote = forks.remote(host, fork.hosts_token.as_deref());
    let remote = remote.map_err(|error| error.to_api().to_string())?;
    remote.family(&clone.name)
}

/// Returns a clone on another host as a member of its family.
fn away(forks: &Forks, fork: &ForkRecord, clone: &CloneRecord, host: &str) -> Family {
    let (mut member, detail) = match told_by(forks, host, fork, clone) {
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

/// Sets the host of a member and of all below it, where none is set yet.
fn on(member: &mut Family, host: &str) {
    member.host.get_or_insert_with(|| host.to_owned());
    member.clones.iter_mut().for_each(|clone| on(clone, host));
}

/// Collects the names of all clones below a member, the youngest generation first.
fn collect(member: &Family, names: &mut Vec<String>) {
    for clone in &member.clones {
        // if a clone runs on another host, that host ends its clones
        if clone.host.is_none() {
            collect(clone, names);
        }
        names.push(clone.name.clone());
    }
}
