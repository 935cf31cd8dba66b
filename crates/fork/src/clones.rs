//! Starts a clone on this host: a machine like one of any image, except for its name, its address and what it knows of its
//! family. Its QEMU maps the same file as its siblings', so pages that one of them has touched are in memory for all.

use super::{
    Host, Planned,
    decide::{CloneId, Event, Fault, HostId},
    record::CloneRecord,
    start::{LoadedClone, Start},
};
use crate::{Forks, check_ttl};
use floe_api::{CloneRequest, ErrorCode, HostAccess, Identity, Limits, MachineInfo, Room};
use floe_ground::{
    caller::FromMember,
    error::{NodeError, refused, usage},
    files::save_manifest_soon,
    report::Report,
    time::unix_now,
};
use floe_hosts::cluster::Failed;
use floe_image::{Hash, MachineConfig};
use floe_inventory::{
    inventory::{
        AGENT_LABEL, NewMachine, Operation,
        lifecycle::Task,
        record::{Attachment, Family, Household, Origin, Record},
        small::{Fresh, Small},
    },
    resources::ForClone,
};
use floe_library::{
    images::{FORK_LABEL, sources::Found},
    traces::models::Coming,
};
use floe_machines::machines::{making::Making, restore::Loaded};
use std::sync::Arc;

/// Most bytes of the id of another node's household.
const HOUSEHOLD_BYTES_MAX: usize = 64;

/// What the user can do if there is no room for clones.
const END_SOME: &str = "end machines that are no longer needed (floe ps, floe stop, floe kill)";

/// What a clone on this host is made of, whoever orders it.
struct NewClone<'a> {
    found: &'a Found,
    name: &'a str,
    /// What it is a clone of, which is shown as its image.
    of: &'a str,
    family: Family,
    network: Option<Attachment>,
    host_access: HostAccess,
    limits: Limits,
    household: Household,
    room: ForClone,
    /// What it is to be, if another service has decided that.
    planned: Option<&'a Planned>,
}

impl Forks {
    /// Starts a clone of a fork; returns what came of it. A clone on this host stands still until it is let go.
    pub(super) fn try_clone(
        self: &Arc<Self>,
        start: &Start<'_>,
        clone: CloneId,
        host: HostId,
    ) -> Event {
        let (record, instant) = (start.record, start.asked.instant);
        let Some(place) = record.clones.iter().find(|known| known.number == clone) else {
            return Event::NotStarted(clone, Fault::Clone("it has no name".into()));
        };
        if let Host::There(remote, source) = &start.asked.hosts[host] {
            if let Err(why) = self.goes_away(start, clone, remote.url()) {
                return Event::NotStarted(clone, Fault::Host(why));
            }
            let mut order = start.order(clone, &place.name, source);
            if let Some(place) = start.network_of(clone) {
                match self.network_order(&place, remote) {
                    Ok(network) => order.network = Some(network),
                    Err(error) => {
                        self.comes_back(record, clone);
                        let why = error.to_api().to_string();
                        return Event::NotStarted(clone, Fault::Host(why));
                    }
                }
            }
            return match remote.start(&order) {
                Ok(()) => Event::Started(clone),
                Err(failed) => {
                    let fault = fault_there(remote.url(), failed);
                    // one that may run there has its part until it is ended
                    if !matches!(fault, Fault::Unknown(_)) {
                        self.comes_back(record, clone);
                    }
                    Event::NotStarted(clone, fault)
                }
            };
        }
        let parent = instant.parent.as_ref();
        let family = Family {
            by: parent.and_then(|parent| parent.entry.record().ordered_by()),
            ends_unix_s: start.ends_unix_s(),
            ..Forks::family_of(record, clone, instant.layer.is_none())
        };
        let network = start.network_of(clone);
        let host_access = parent.map(|parent| parent.entry.record().host_access.clone());
        let found = &instant.found;
        // for a clone that was meant for another host no room has been reserved here
        let room = start.asked.room.one().map_or_else(
            || self.room_for_one(&record.parent, &found.manifest.config),
            Ok,
        );
        let loaded = room.and_then(|room| {
            let household = record.household.as_deref();
            self.load_clone(NewClone {
                found,
                name: &place.name,
                of: &record.parent,
                family,
                network,
                host_access: host_access.unwrap_or_default(),
                limits: start.limits(),
                household: household.map_or_else(Household::begin, Household::join),
                room,
                planned: start.planned_of(clone),
            })
        });
        match loaded {
            Ok(loaded) => {
                start.loaded.lock().insert(clone, loaded);
                Event::Loaded(clone)
            }
            Err(error) => Event::NotStarted(clone, fault_here(&error)),
        }
    }

    /// Lets a clone on this host run its guest.
    pub(super) fn go(self: &Arc<Self>, start: &Start<'_>, clone: CloneId) -> Event {
        let loaded = start.loaded.lock().remove(&clone);
        match loaded.map(|loaded| self.let_clone_go(loaded)) {
            Some(Ok(_)) => Event::Started(clone),
            Some(Err(error)) => Event::NotStarted(clone, fault_here(&error)),
            None => Event::NotStarted(clone, Fault::Clone("it was not loaded".into())),
        }
    }

    /// Ends a clone that was started in vain.
    pub(super) fn end_clone(&self, start: &Start<'_>, clone: CloneId, host: HostId) {
        let (record, host) = (start.record, &start.asked.hosts[host]);
        let loaded = start.loaded.lock().remove(&clone);
        if loaded.is_some() {
            return; // dropping it undoes it
        }
        let Some(place) = record.clones.iter().find(|known| known.number == clone) else {
            return;
        };
        let ended = match host {
            Host::Here if !self.is_clone(&record.id, place) => Ok(()),
            Host::Here => match self.machines.remove_machine(&place.name, true) {
                Err(error) if error.code() == ErrorCode::NotFound => Ok(()),
                ended => ended.map_err(|error| error.to_api().to_string()),
            },
            Host::There(remote, _) => remote.end(&place.name),
        };
        if let Err(why) = ended {
            tracing::warn!(
                machine = place.name,
                why,
                "a clone that nobody waits for may run"
            );
            if let Some(host) = host.url() {
                let host = Some(host.to_owned());
                let clone = CloneRecord {
                    host,
                    ..place.clone()
                };
                self.records.owe(&record.id, clone);
            }
        }
    }

    /// Whether the machine that has a clone's name is that clone: another may have got the name before it.
    fn is_clone(&self, fork: &str, clone: &CloneRecord) -> bool {
        let is_it = |family: &Family| family.fork == fork && family.number == clone.number;
        let found = self.inventory.get(&clone.name);
        found.is_ok_and(|entry| entry.record().family.as_ref().is_some_and(is_it))
    }

    /// Returns how many clones of other nodes' machines there is room for.
    pub fn clone_room(&self) -> Result<Room, NodeError> {
        let room = self.machines.resources.room();
        room.map_err(|why| refused(why, END_SOME))
    }

    fn room_for_one(&self, parent: &str, config: &MachineConfig) -> Result<ForClone, NodeError> {
        let (room, why) = self.machines.resources.for_clones(parent, config, 1, false);
        room.one().ok_or_else(|| {
            let why = why.unwrap_or_default();
            refused(format!("there is no room for a clone: {why}"), END_SOME)
        })
    }

    /// Starts a clone of another node's machine. `by` is the member of the cluster that orders it; without one it is a user of this
    /// node.
    pub fn receive_clone(
        self: &Arc<Self>,
        request: &CloneRequest,
        by: Option<&FromMember>,
    ) -> Result<MachineInfo, NodeError> {
        self.core.check_passable()?;
        self.machines.resources.check_limits(&request.limits)?;
        check_ttl(request.ttl_s)?;
        let image = request.image.parse::<Hash>();
        let image = image.map_err(|error| usage(error.to_string(), "name an image by its id"))?;
        let mut origin = Origin {
            urls: vec![request.source.clone()],
            token: Some(request.token.clone()),
            multicast: request.multicast,
            ..Default::default()
        };
        match by {
            Some(member) => self.check_source(member, &image, &mut origin)?,
            None => Forks::check_parent_address(&request.source)?,
        }
        let found = self.images.sources.find_at(image, origin)?;
        let family = Family {
            fork: request.fork.clone(),
            parent: request.parent.clone(),
            number: request.number,
            settled: false,
            identity: Identity::default(),
            by: by.map(|member| member.address),
            ends_unix_s: request.ttl_s.map(|s| unix_now().saturating_add(s)),
        };
        if let Ok(name) = request.name.parse() {
            self.inventory.check_free(&name)?;
        }
        let from = request.household.clone();
        let is_id = |id: &String| id.len() <= HOUSEHOLD_BYTES_MAX;
        if let Some(id) = from.as_ref().filter(|id| !is_id(id)) {
            let what = format!("a household's id of {} bytes", id.len());
            return Err(usage(what, "it has 16"));
        }
        // its part of its parent's limits is its own here
        let household = Household {
            from,
            ..Household::begin()
        };
        let order = request.network.as_ref();
        let network = order.map(|order| self.networks.receive(order, &request.name));
        let network = network.transpose()?;
        let room = self.room_for_one(&request.parent, &found.manifest.config);
        let loaded = room.and_then(|room| {
            self.load_clone(NewClone {
                found: &found,
                name: &request.name,
                of: &request.parent,
                family,
                network: network.clone(),
                // what the parent's guest may reach of its host does not apply to this host
                host_access: HostAccess::None,
                limits: request.limits,
                household,
                room,
                planned: None,
            })
        });
        let started = loaded.and_then(|loaded| self.let_clone_go(loaded));
        let clone = started.inspect_err(|_| {
            if let Some(place) = &network {
                self.networks.leave(&place.network, &request.name);
            }
        })?;
        if request.settle {
            self.settle_later(&clone.entry);
        }
        Ok(self.machines.info_of(&clone))
    }

    /// Creates a machine from an image, up to its guest's next instruction. If that fails, everything is removed again.
    fn load_clone(self: &Arc<Self>, clone: NewClone<'_>) -> Result<LoadedClone, NodeError> {
        let NewClone {
            found,
            name,
            of: image_name,
            mut family,
            network,
            host_access,
            limits,
            household,
            room,
            planned,
        } = clone;
        let name = name
            .parse()
            .map_err(|error: floe_ground::names::NameError| usage(error.to_string(), ""))?;
        let mut config = found.manifest.config.clone();
        config.labels.remove(FORK_LABEL);
        let fresh = Fresh::of_image(&mut config);
        let small = Small::of_image(&config);
        if config.labels.contains_key(AGENT_LABEL) {
            family.identity = Identity::Pending;
        }
        match network.as_ref().and_then(|place| self.networks.mac(place)) {
            Some(mac) => floe_machine::give_mac(&mut config, &mac),
            None => floe_machine::renew_mac(&mut config),
        }
        let make = |name: &floe_ground::names::MachineName, place: &str, uid: Option<u32>| {
            // the ports and restarts that a user gave its parent stay with its parent
            let record = Record {
                forwards: planned.map_or_else(Vec::new, |planned| planned.forwards.clone()),
                // a trace would be incomplete, because siblings touch the same pages and find them in each other's page cache
                traced: false,
                family: Some(family),
                network,
                host_access,
                limits,
                small,
                fresh,
                ensemble: planned.map(|planned| planned.ensemble.clone()),
                ..Record::new(NewMachine {
                    name: name.as_str(),
                    image_name,
                    image: found.id,
                    origin: found.origin.clone(),
                    config,
                    restored: true,
                    created_unix_s: unix_now(),
                    uid,
                    place: format!("machines/{place}"),
                    mount_name: place.to_owned(),
                    household,
                })
            };
            (self.core.home.machine(place), record)
        };
        let operation = self
            .inventory
            .reserve(Some(name), image_name, make, Task::Fork)?;
        let mut making = self.machines.making(operation);
        self.machines.resources.give(&making.name, room);
        let loaded = self.prepare_clone(&mut making, found)?;
        Ok((loaded, making))
    }

    fn prepare_clone(
        self: &Arc<Self>,
        entry: &mut Making,
        found: &Found,
    ) -> Result<Loaded, NodeError> {
        self.machines.check_room()?;
        entry.make_dir()?;
        // a fork waits for all of its clones, so none of them waits for the disk here
        entry.record().save_soon(&entry.dir)?;
        save_manifest_soon(&entry.dir, &found.id, &found.manifest)?;
        let (mut report, _) = Report::new(); // the fork's own report covers the clones' stages
        self.machines
            .load_state(entry, found, &Coming::default(), &mut report)
    }

    /// Lets a clone run its guest. If that fails, everything of the clone is removed.
    fn let_clone_go(self: &Arc<Self>, clone: LoadedClone) -> Result<Operation, NodeError> {
        let (loaded, making) = clone;
        let (mut report, _) = Report::new();
        let family = &making.record().family;
        let from = family.as_ref().map_or_else(String::new, |family| {
            format!("clone {} of {}", family.number, family.parent)
        });
        let model = Coming::default();
        self.machines
            .let_go(&making, &from, loaded, &model, &mut report)?;
        Ok(making.complete())
    }
}

/// Converts an error of this host: after a refusal it takes no more clones, any other error concerns this clone only.
fn fault_here(error: &NodeError) -> Fault {
    let error = error.to_api();
    match error.code {
        ErrorCode::Refused => Fault::Host(error.to_string()),
        _ => Fault::Clone(error.to_string()),
    }
}

/// Returns what it means for a fork that the node at `url` did not start a clone.
fn fault_there(url: &str, failed: Failed) -> Fault {
    let at = |why: String| format!("{url}: {why}");
    match failed {
        Failed::NotAsked(why) => Fault::Host(at(why)),
        Failed::Unknown(why) => Fault::Unknown(at(why)),
        Failed::Refused(error) => match error.code {
            ErrorCode::Refused | ErrorCode::Usage | ErrorCode::Unreachable => {
                Fault::Host(at(error.to_string()))
            }
            _ => Fault::Clone(at(error.to_string())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_api::ApiError;

    #[test]
    fn what_a_host_says_decides_whether_it_gets_another_clone() {
        let fault = |failed| fault_there("http://a:1", failed);
        let refused = |code| {
            fault(Failed::Refused(ApiError {
                code,
                message: "no".into(),
                fix: String::new(),
            }))
        };
        let host = fault(Failed::NotAsked("it is down".into()));
        assert_eq!(host, Fault::Host("http://a:1: it is down".into()));
        let unknown = fault(Failed::Unknown("cut off".into()));
        assert_eq!(unknown, Fault::Unknown("http://a:1: cut off".into()));
        for code in [ErrorCode::Refused, ErrorCode::Usage, ErrorCode::Unreachable] {
            assert!(matches!(refused(code), Fault::Host(_)), "{code:?}");
        }
        for code in [ErrorCode::Busy, ErrorCode::Failed, ErrorCode::NotFound] {
            assert!(matches!(refused(code), Fault::Clone(_)), "{code:?}");
        }
    }
}
