//! `rollback`: a machine goes back in place to an image that was captured from it, whatever it does meanwhile. That is a park whose stored
//! state is the image, with new disks over it in a directory of their own, so that one write of its record is the whole change:
//!
//! ```text
//! record: parked at the image, its files elsewhere -> the former QEMU ends -> woken -> the former files go
//! ```
//! A node that is killed before that write leaves the machine as it was, and after it one that is parked where the image was captured. What
//! is left of the former machine then is ended and set aside by the next node, or by this one if the machine can't go on at the image.

use super::{Parks, store::QUIT_WAIT};
use floe_api::{Limits, Outcome, RollbackRequest, RunRequest, SUBSTRATE_LABEL};
use floe_ground::{
    caller::Visible,
    error::{NodeError, busy, refused, usage},
    files::save_manifest,
    plan::{Kind, awaited_port, plan},
    report::Report,
};
use floe_image::{Hash, ImageName, MachineConfig, Manifest};
use floe_inventory::inventory::{
    Operation,
    given::Given,
    lifecycle::{Event, Phase, Task},
    record::{Origin, Record, Resizing},
    small::Small,
};
use floe_library::images::{FORK_LABEL, PARK_LABEL, parse_name};
use floe_machine::Machine;
use floe_machines::{
    capture::Taking,
    machines::{NewPlace, end_vm},
};
use std::{collections::BTreeMap, sync::Arc};

/// An image that a machine goes back to.
struct Back<'a> {
    id: Hash,
    /// As its user named it.
    name: &'a str,
    manifest: Manifest,
}

impl Parks {
    /// Has a machine go back to an image that was captured from it, and go on there. What it has done since is lost, unless the request has
    /// it captured before.
    pub fn rollback(
        self: &Arc<Self>,
        name: &str,
        request: &Visible<RollbackRequest>,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let keep = request.keep.as_deref().map(parse_name).transpose()?;
        if keep.is_some() && keep == parse_name(&request.image).ok() {
            return Err(usage(
                format!(
                    "{name} is to go back to {}, and to be kept by that name",
                    request.image
                ),
                "keep it by another name: this one would be taken from the image that it goes back to",
            ));
        }
        let entry = self.inventory.get(name)?;
        let start = &request.start;
        awaited_port(start.wait, start.wait_port, &entry.record().forwards)?;
        if entry.state().vm.is_some() {
            entry.wait_for_identity()?;
        }
        let operation = entry.begin(Task::Rollback)?;
        self.check_goes_back(&operation)?;
        let to = self.find_own(&operation, &request.image, report)?;
        if let Some(keep) = &keep {
            self.keep(&operation, keep, report)?;
            self.images.repo.manifest(&to.id)?; // nothing is thrown away for one that was removed meanwhile
        }
        let former = operation.record();
        self.go_back(&operation, &former, &to, report)?;
        let woken = self.wake_machine(&operation, start.overcommit, report);
        let place = self.core.home.root().join(&former.place);
        self.machines
            .clear_former(&operation, &place, woken.is_err());
        if let Err(error) = woken {
            report.note(format!(
                "{name} is at {} now and does not go on there; floe start {name} tries again. What its disks had before is in set-aside/ \
                 of the state directory",
                to.name
            ));
            return Err(error);
        }
        drop(operation);
        self.runs.wait_for_woken(&entry, start, (0, 0), report)
    }

    /// Has a parked machine stand where it was when this image was made, which is another state of the same machine. Its user's name for the
    /// image that it was made from is left to the caller.
    pub fn goes_to(
        &self,
        operation: &Operation,
        image: &Hash,
        report: &mut Report,
    ) -> Result<(), NodeError> {
        let former = operation.record();
        let to = Back {
            id: *image,
            name: "what it was when it was last synced",
            manifest: self.images.repo.manifest(image)?,
        };
        self.go_back(operation, &former, &to, report)?;
        let place = self.core.home.root().join(&former.place);
        self.machines.clear_former(operation, &place, false);
        Ok(())
    }

    /// Refuses a machine that others still need, or that is about to change otherwise; the error says what to do.
    fn check_goes_back(&self, operation: &Operation) -> Result<(), NodeError> {
        let name = &operation.name;
        let calm = [Phase::Running, Phase::Stopped, Phase::Parked];
        if !calm.contains(&operation.phase()) {
            return Err(busy(
                format!(
                    "machine {name} is just starting or ending, or its QEMU does not answer this node yet"
                ),
                "try again in a moment",
            ));
        }
        let rests_here = operation.record().rests_on_this_node();
        if let Some(lost) = operation.life().orphaned().filter(|_| rests_here) {
            return Err(refused(
                format!("machine {name} cannot go back: {lost}"),
                format!(
                    "floe kill {name} ends it; floe run makes a machine of an image that was captured from it"
                ),
            ));
        }
        if rests_here || self.forks.any_unstored_of(name.as_str()) {
            return Err(refused(
                format!(
                    "the memory of a fork of {name}, or that it was cloned from, is not stored yet"
                ),
                format!(
                    "floe park --wait {name} has it stored, and waits for that; then floe rollback {name}"
                ),
            ));
        }
        Ok(())
    }

    /// Finds an image of this node that was captured from the machine, and whose state can be loaded here: nothing is thrown away for one
    /// that can't.
    fn find_own<'a>(
        &self,
        operation: &Operation,
        image: &'a str,
        report: &mut Report,
    ) -> Result<Back<'a>, NodeError> {
        let name = &operation.name;
        let found = self
            .images
            .sources
            .find_in(image, &[], Origin::default(), |step| report.step(step))?;
        if !found.origin.urls.is_empty() {
            return Err(refused(
                format!("image {image} is not on this node"),
                "bring it here with floe pull, and name it as it is called here",
            ));
        }
        let (id, manifest) = (found.id, found.manifest);
        if !is_captured(&manifest.config) || !operation.is_captured_in(&manifest.config) {
            return Err(refused(
                format!(
                    "image {image} was not captured from {name}, which would be another machine in it"
                ),
                format!(
                    "floe run {image} makes a machine of it; an image of an earlier floe does not say what it was captured from"
                ),
            ));
        }
        let asked = RunRequest {
            image: image.to_owned(),
            ..Default::default()
        };
        if plan(&asked, &manifest)?.kind != Kind::Restore {
            return Err(refused(
                format!("image {image} has disks and no running machine"),
                format!("floe run {image} makes a machine of it"),
            ));
        }
        self.machines.check_loads(&manifest.config, None)?;
        Ok(Back {
            id,
            name: image,
            manifest,
        })
    }

    /// Keeps the machine as it is, as an image.
    fn keep(
        &self,
        operation: &Operation,
        name: &ImageName,
        report: &mut Report,
    ) -> Result<(), NodeError> {
        operation.answers()?;
        let labels = BTreeMap::new();
        let taking = Taking {
            stop: false,
            rehearse_s: 0,
            hooks_s: None,
            picture: true,
            labels: &labels,
            keep: &|id, _| Ok(self.images.repo.tag(name, id)?),
        };
        self.captures.take(operation, &taking, report).map(drop)
    }

    /// Makes the machine a parked one whose state is the image's, and ends its QEMU. After an error it goes on as it was.
    fn go_back(
        &self,
        operation: &Operation,
        former: &Record,
        to: &Back<'_>,
        report: &mut Report,
    ) -> Result<(), NodeError> {
        let vm = operation.state().vm.clone();
        if vm.is_some() {
            operation.stop_buffering()?;
            self.traces.take_trace(operation);
        }
        save_manifest(&operation.dir, &to.id, &to.manifest)?;
        let place = self.machines.new_place()?;
        // from here on who connects waits until it is there
        let held = match &vm {
            Some(vm) => self.take_ports(operation, vm),
            None => self.ports.take(&operation.entry),
        };
        let limits = self.limits_at(former, &to.manifest.config);
        let change = |record: &mut Record| goes_back(record, to, &place, limits);
        let parked = operation.is_parked();
        let written = match operation.drive_with(Event::RollsBack, change) {
            Ok(true) => Ok(()),
            Ok(false) => Err(busy(
                format!("machine {} has just ended", operation.name),
                "see `floe ps`",
            )),
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            match &vm {
                Some(vm) => self.give_back(operation, vm, held),
                None if parked => self.hold_ports(&operation.entry, held),
                None => {} // a stopped machine holds none
            }
            let _ = std::fs::remove_dir(&place.dir); // the next node does it, too
            return Err(error);
        }
        // from here on it is where the image was captured, whatever fails
        self.machines.drop_blanks(operation.name.as_str());
        if let Some(vm) = vm {
            self.end_former(operation, former, &vm);
        }
        if let Err(error) = operation.drive(Event::RolledBack(to.name.to_owned())) {
            tracing::warn!(machine = %operation.name, %error, "its record is behind");
        }
        self.leave_images(operation, former, &to.id);
        operation.was_woken(); // what is known of failures to wake it is of what it was
        self.hold_ports(&operation.entry, held);
        report.stage_at("back", std::time::Instant::now());
        Ok(())
    }

    /// Returns the limits of a machine that goes back to this configuration: they follow its size, as at a change of that.
    fn limits_at(&self, former: &Record, config: &MachineConfig) -> Limits {
        let before = former.resizing.unwrap_or(Resizing {
            limits: former.limits,
            size: former.size(),
        });
        let after = Given::in_labels(config).of(config);
        self.machines.limits_for(former, before, after)
    }

    /// Ends the QEMU of what the machine was, and takes that off the mount.
    fn end_former(&self, operation: &Operation, former: &Record, vm: &Machine) {
        if let Err(error) = vm.quit(QUIT_WAIT) {
            tracing::warn!(machine = %operation.name, %error, "its QEMU is killed");
            end_vm(&self.machines.vm_dir(former));
        }
        if let Err(error) = self.machines.detach_as(operation, former) {
            tracing::warn!(machine = %operation.name, %error, "what it was stays on the mount");
        }
    }

    /// Lets go of the images that it stood on and no longer does.
    pub(super) fn leave_images(&self, operation: &Operation, former: &Record, now: &Hash) {
        let images = former.images().into_iter();
        for image in images.filter(|image| image != now) {
            let kept = operation.dir.join(format!("{image}.manifest"));
            let _ = std::fs::remove_file(kept); // it is not there if the image was always here
            self.images.forget_image(&image);
            self.images.released(&image);
        }
    }
}

/// Whether an image was made by a capture: those that forks, parks and docks make go with what they were made for.
fn is_captured(config: &MachineConfig) -> bool {
    let made_for_else = [FORK_LABEL, PARK_LABEL, SUBSTRATE_LABEL];
    !made_for_else
        .iter()
        .any(|label| config.labels.contains_key(*label))
}

/// Changes the record of a machine that goes back to an image. What is of the machine stays: its name, its place in a network, its ports,
/// household, user and what becomes of it. What is of its state is the image's, and so is its size, which its `limits` fit.
fn goes_back(record: &mut Record, to: &Back<'_>, place: &NewPlace, limits: Limits) {
    record.next_disk = record.free_disk();
    record.own_disks.clear();
    (record.image, record.disk_base) = (to.id, to.id);
    record.image_name = to.name.to_owned();
    record.origin = Origin::default();
    record.config = to.manifest.config.clone();
    record.config.labels.remove(PARK_LABEL); // that is said of the image, not of the machine
    record.small = Small::of_image(&record.config);
    record.given = Default::default();
    record.resizing = None;
    record.restored = true;
    record.detail.clear();
    record.own_layers = 0;
    // a trace is of one way from an image on, and this machine has been on another
    record.traced = false;
    record.limits = limits;
    // that of a machine of an earlier floe has the name of its place
    record.household.id = record.household_id().to_owned();
    record.place = place.directory.clone();
    record.mount_name = place.mount_name.clone();
    if let Some(family) = &mut record.family {
        family.settled = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_inventory::inventory::{record::OwnDisk, sample_record as record};

    fn image(labels: &[&str]) -> Manifest {
        Manifest {
            parent: None,
            created_unix_s: 1_700_000_000,
            config: MachineConfig {
                nic_mac: Some("52:54:00:12:34:56".into()),
                disks: vec!["disk0".into()],
                labels: labels
                    .iter()
                    .map(|label| ((*label).to_owned(), "1".to_owned()))
                    .collect(),
                ..Default::default()
            },
            regions: Vec::new(),
        }
    }

    #[test]
    fn a_machine_that_goes_back_stays_itself_and_has_the_images_state() {
        let mut machine = record();
        machine.own_disks = vec![OwnDisk {
            name: "disk4".into(),
            bytes: 4096,
            alias: None,
        }];
        machine.own_layers = 3;
        machine.detail = "stopped on request".into();
        let before = machine.clone();
        let to = Back {
            id: Hash::of(b"captured"),
            name: "web-clean",
            manifest: image(&[]),
        };
        let place = NewPlace {
            dir: "/state/standby/0-1".into(),
            directory: "standby/0-1".into(),
            mount_name: "standby.0-1".into(),
        };
        machine.household.id.clear(); // of an earlier floe
        let household = machine.household_id().to_owned();
        let limits = Limits {
            memory_max_bytes: Some(1 << 30),
            ..before.limits
        };
        goes_back(&mut machine, &to, &place, limits);
        assert_eq!((machine.image, machine.disk_base), (to.id, to.id));
        assert_eq!(machine.shown_image(), to.id);
        assert_eq!(machine.image_name, "web-clean");
        assert_eq!(machine.config, to.manifest.config);
        assert_eq!(
            (&*machine.place, &*machine.mount_name),
            ("standby/0-1", "standby.0-1")
        );
        assert!(machine.own_disks.is_empty() && machine.detail.is_empty());
        assert_eq!(machine.next_disk, 5, "no number is used twice");
        assert_eq!(
            (&machine.name, &machine.forwards, machine.uid),
            (&before.name, &before.forwards, before.uid)
        );
        assert_eq!(machine.limits, limits);
        assert_eq!(machine.household_id(), household);
        assert_eq!(Record::parse(&machine.bytes()).unwrap(), machine);
    }

    #[test]
    fn what_forks_parks_and_docks_make_is_no_image_to_go_back_to() {
        assert!(is_captured(&image(&["floe.agent"]).config));
        for label in [FORK_LABEL, PARK_LABEL, SUBSTRATE_LABEL] {
            assert!(!is_captured(&image(&["floe.agent", label]).config));
        }
    }
}
