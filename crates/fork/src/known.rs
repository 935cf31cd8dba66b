//! The hosts that are known by name: what they report about themselves, and a thread that reports who joins and who leaves.

use super::Forks;
use floe_api::{HERE, HostInfo, HostList};
use floe_ground::{error::NodeError, news::News};
use floe_hosts::placement::{Change, Roll, known_hosts};
use std::{sync::Arc, time::Duration};

/// How often hosts are asked whether they are there.
const ASK_EVERY: Duration = Duration::from_secs(5);

impl Forks {
    /// Returns the known hosts with what they report about themselves.
    pub fn hosts_info(&self) -> Result<HostList, NodeError> {
        let known = known_hosts(&self.core.home)?;
        let rooms = self.rooms_of(&known);
        let hosts = known.into_iter().zip(rooms).map(|(host, room)| {
            let (room, detail) = match room {
                Ok(room) => (Some(room), String::new()),
                Err(why) => (None, why),
            };
            HostInfo {
                name: host.name,
                address: host.address,
                room,
                detail,
            }
        });
        Ok(HostList {
            hosts: hosts.collect(),
        })
    }

    /// Starts the thread that reports which hosts join and leave.
    pub fn start_watching_hosts(self: &Arc<Self>) -> Result<(), NodeError> {
        let mut roll = Roll::default();
        let threads = &self.core.threads;
        Ok(threads.keep("host-watch", self, ASK_EVERY, move |forks| {
            forks.look_at_hosts(&mut roll);
        })?)
    }

    fn look_at_hosts(&self, roll: &mut Roll) {
        // an unreadable file is reported to the next caller who forks
        let mut known = known_hosts(&self.core.home).unwrap_or_default();
        known.retain(|host| host.address != HERE);
        let answers = self.rooms_of(&known);
        let now: Vec<_> = known
            .into_iter()
            .zip(answers)
            .map(|(host, answer)| (host.name, answer.map(drop)))
            .collect();
        for change in roll.learn(&now) {
            match change {
                Change::Joined(name) => self.core.tell(&name, &News::HostJoined),
                Change::Left(name, why) => self.core.tell(&name, &News::HostLeft(why)),
            }
        }
    }
}
