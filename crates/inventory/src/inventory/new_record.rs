//! The one way to make a machine's record: it begins as that of a machine of which nothing was said but what no machine can do without.
//! Whoever makes a machine changes what was said. No I/O.

use super::{
    given::Given,
    record::{Afterwards, Household, Origin, RECORD_VERSION, Record, Wanted},
    small::Small,
};
use floe_api::{HostAccess, Limits};
use floe_image::{Hash, MachineConfig};
use std::collections::BTreeSet;

/// What no record can do without.
pub struct NewMachine<'a> {
    /// As in [`Record::name`].
    pub name: &'a str,
    /// As in [`Record::image_name`].
    pub image_name: &'a str,
    /// As in [`Record::image`]; its disks stand on it, too.
    pub image: Hash,
    /// As in [`Record::origin`].
    pub origin: Origin,
    /// As in [`Record::config`].
    pub config: MachineConfig,
    /// As in [`Record::restored`].
    pub restored: bool,
    /// As in [`Record::created_unix_s`].
    pub created_unix_s: u64,
    /// As in [`Record::uid`].
    pub uid: Option<u32>,
    /// As in [`Record::place`].
    pub place: String,
    /// As in [`Record::mount_name`].
    pub mount_name: String,
    /// As in [`Record::household`].
    pub household: Household,
}

impl Record {
    /// Returns the record of a machine that is about to be made.
    pub fn new(machine: NewMachine<'_>) -> Record {
        Record {
            version: RECORD_VERSION,
            name: machine.name.to_owned(),
            image_name: machine.image_name.to_owned(),
            image: machine.image,
            disk_base: machine.image,
            origin: machine.origin,
            config: machine.config,
            forwards: Vec::new(),
            restored: machine.restored,
            wanted: Wanted::Starting,
            detail: String::new(),
            created_unix_s: machine.created_unix_s,
            uid: machine.uid,
            place: machine.place,
            mount_name: machine.mount_name,
            traced: true,
            pauses: BTreeSet::new(),
            family: None,
            network: None,
            host_access: HostAccess::None,
            limits: Limits::default(),
            household: machine.household,
            afterwards: Afterwards::default(),
            own_disks: Vec::new(),
            next_disk: 0,
            own_layers: 0,
            park_after_s: None,
            no_trim: false,
            small: Small::default(),
            fresh: None,
            given: Given::default(),
            resizing: None,
            independence: None,
            ensemble: None,
            swarm: None,
            turn: None,
            syncing: None,
        }
    }
}

/// A record with something in each place, for tests of every crate that has machines.
#[doc(hidden)]
pub fn sample_record() -> Record {
    let machine = NewMachine {
        name: "web",
        image_name: "debian:12",
        image: Hash::of(b"a"),
        origin: Origin {
            urls: vec!["https://hub".into()],
            token: Some("t".into()),
            ..Default::default()
        },
        config: MachineConfig {
            cpus: Some(2),
            ..Default::default()
        },
        restored: true,
        created_unix_s: 7,
        uid: Some(1),
        place: "machines/web".into(),
        mount_name: "web".into(),
        household: Household::default(),
    };
    Record {
        disk_base: Hash::of(b"b"),
        forwards: vec!["8080:80".parse().unwrap()],
        wanted: Wanted::Running,
        ..Record::new(machine)
    }
}
