//! From a record to a running QEMU: puts images and disks onto the mount, builds a spec, and starts it.

use crate::machines::Machines;
use floe_ground::files::PASSABLE_MODE;
use floe_ground::{
    error::{NodeError, at, busy, failed, usage},
    plan,
};
use floe_image::{Hash, MachineConfig, Manifest};
use floe_inventory::{
    inventory::{
        self, Entry, Inventory, Operation,
        given::Given,
        lifecycle::Event,
        record::{Origin, Record},
    },
    network::Networks,
};
use floe_machine::{Boot, HostAccess, Machine, PortForward, Protocol, Spec, User};
use floe_mount::{DiskSpec, ImageHandle, MachineHandle, MachineSpec, Mount};
use floe_store::private;
use std::{
    collections::BTreeSet,
    fs, io,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A disk's size as QEMU sees it is a multiple of this, padded with zeros: QEMU refuses to write to a file whose size is not
/// a multiple of what its file system reads at once.
const DISK_BLOCK: u64 = floe_image::CHUNK_SIZE as u64;
/// The directory of a machine's QEMU, within the machine's.
pub const VM_DIR: &str = "vm";
/// The directory of its disks' layers, there too,
pub(crate) const DISKS_DIR: &str = "disks";
/// and that of the kernel that it boots.
pub(crate) const BOOT_DIR: &str = "boot";
/// QEMU's own directory within the machine's, as `floe-machine` names it.
pub(crate) const RUN_DIR: &str = "run";
/// The file with the guest's latest console output.
pub(crate) const CONSOLE_LOG: &str = "run/console.log";
/// The console's socket in that directory.
pub(crate) const CONSOLE_SOCKET: &str = "run/console.sock";
/// The screen's socket of QEMU in that directory,
pub(crate) const VNC_SOCKET: &str = "run/vnc.sock";
/// and the node's, which leads there: not in the directory of the machine's user.
pub(crate) const SCREEN_SOCKET: &str = "screen.sock";

/// A machine's images and disks on the mount.
pub struct Attached {
    /// The image that it starts from, and those under its disks.
    pub images: Vec<ImageHandle>,
    /// Its disks and memory files.
    pub disks: MachineHandle,
}

impl Machines {
    /// Returns a machine's directory for QEMU.
    pub fn vm_dir(&self, record: &Record) -> PathBuf {
        self.core.home.root().join(&record.place).join(VM_DIR)
    }

    /// Returns a machine's directory for its disks' layers.
    pub fn disk_dir(&self, record: &Record) -> PathBuf {
        self.core.home.root().join(&record.place).join(DISKS_DIR)
    }

    /// Returns the directory with the guest's console output.
    pub fn console_dir(&self, record: &Record) -> PathBuf {
        self.vm_dir(record).join(RUN_DIR)
    }

    /// Returns what the disks of all machines stand on, whatever the records say: a node may have been killed before it wrote that down, or
    /// had no room for it.
    pub fn under_disks(&self) -> Result<BTreeSet<Hash>, NodeError> {
        let mut under = BTreeSet::new();
        for entry in self.inventory.all() {
            under.extend(Mount::recorded_bases(&self.disk_dir(&entry.record()))?);
        }
        Ok(under)
    }

    /// Puts a machine and its images onto the mount.
    pub fn attach(&self, entry: &Entry) -> Result<(), NodeError> {
        if let Err(error) = self.drop_lost_disks(entry) {
            tracing::warn!(machine = %entry.name, %error, "a disk that it no longer has is not removed");
        }
        let record = entry.record();
        let manifest = self.images.manifest_of(&entry.dir, &record.image)?;
        let fetcher = self.images.sources.fetcher(&record.origin)?;
        let recorded = Mount::recorded_bases(&self.disk_dir(&record))?;
        // a node that was killed in between had put the disks onto another image, and not written that down
        match recorded[..] {
            [base] if base != record.disk_base => {
                entry.update(|record| record.disk_base = base)?;
            }
            // or only some of them: an independent machine's are merged again, after which all stand on one
            [_, _, ..] => entry.merges_again()?,
            _ => {}
        }
        let mut bases = Vec::new();
        for base in recorded {
            if base != record.image {
                bases.push((base, self.images.manifest_of(&entry.dir, &base)?));
            }
        }
        let attached = self.attach_record(&record, manifest, fetcher.clone(), bases)?;
        entry.is_attached(attached.disks, attached.images, fetcher);
        Ok(())
    }

    /// Does the same for a record that is not in the list of machines.
    pub(crate) fn attach_record(
        &self,
        record: &Record,
        manifest: Manifest,
        fetcher: Arc<floe_source::Fetcher>,
        bases: Vec<(Hash, Manifest)>,
    ) -> Result<Attached, NodeError> {
        let mut disks = disk_specs(record, &manifest);
        // a disk may have been grown since
        let recorded = Mount::recorded_sizes(&self.disk_dir(record))?;
        for disk in &mut disks {
            let recorded = recorded.get(&disk.name).copied();
            disk.size = disk.size.max(recorded.unwrap_or_default());
        }
        let base = self.traces.base_for(&record.image, &manifest);
        let image = self.images.show_image(record.image, manifest, fetcher)?;
        let mut images = vec![image.clone()];
        for (id, manifest) in bases {
            images.push(self.images.show_image(
                id,
                manifest,
                self.images.sources.fetcher(&Origin::default())?,
            )?);
        }
        for image in &images {
            self.traces.shows(image);
        }
        let mut spec = self.mount_spec(record, image, disks)?;
        spec.base = Some(base);
        let disks = self.images.with_mount(|mount| mount.add_machine(spec))?;
        Ok(Attached { images, disks })
    }

    /// Returns what the mount is to show of a machine, and makes the directory for its disks.
    pub(super) fn mount_spec(
        &self,
        record: &Record,
        image: ImageHandle,
        disks: Vec<DiskSpec>,
    ) -> Result<MachineSpec, NodeError> {
        let dir = self.disk_dir(record);
        private::make_dirs(&dir).map_err(floe_ground::error::at(format!(
            "cannot make {}",
            dir.display()
        )))?;
        let own = User {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        };
        let user = user_of(record).unwrap_or(own);
        Ok(MachineSpec {
            name: record.mount_name.clone(),
            uid: user.uid,
            gid: user.gid,
            image,
            dir,
            disks,
            base: None,
        })
    }

    /// Takes a machine off the mount; after that its disks' content is durable.
    pub fn detach(&self, entry: &Entry) -> Result<(), NodeError> {
        self.detach_as(entry, &entry.record())
    }

    /// Does the same for a machine whose record said this when it was put onto the mount.
    pub fn detach_as(&self, entry: &Entry, record: &Record) -> Result<(), NodeError> {
        let disks = entry.state().disks.clone();
        if let Some(disks) = disks {
            self.tell_given_up(entry, &disks);
        }
        let attached = entry.is_detached();
        self.screens.close(&self.vm_dir(record).join(SCREEN_SOCKET));
        self.networks.close_inbound(&record.name, None);
        self.resources.ended(record);
        match attached {
            true => self
                .images
                .with_mount(|mount| mount.remove_machine(&record.mount_name))?,
            false => self.end_takeover()?,
        }
        Ok(())
    }

    /// Lets the mount forget what is left of an earlier node and needed by no machine: requests for it fail. What a machine may still
    /// need that could not be put onto the mount yet, or that is left alone, stays, and its guest waits.
    pub fn end_takeover(&self) -> Result<(), NodeError> {
        let alone = self.inventory.any_left_alone();
        let entries = self.inventory.all().into_iter();
        let waiting = entries.filter(|entry| entry.waits_for_adoption());
        let waiting: Vec<_> = waiting.map(|entry| entry.record()).collect();
        let awaited = |name: &str| waiting.iter().any(|waits| waits.mount_name == name);
        self.images.with_mount(|mount| {
            mount.takeover_done(|name| alone || awaited(name));
            Ok(())
        })
    }

    /// Returns how QEMU is to be started. `image` is given for cold starts only: its kernel is booted.
    pub(crate) fn spec(
        &self,
        record: &Record,
        disks: &MachineHandle,
        image: Option<&ImageHandle>,
    ) -> Result<Spec, NodeError> {
        let mut spec = Spec::new(
            record.mount_name.clone(),
            self.vm_dir(record),
            self.core.accel.clone(),
            self.core.options.programs.clone(),
        );
        spec.emulator_cache_mib = Some(self.core.options.emulator_cache_mib).filter(|&mib| mib > 0);
        spec.config = record.config.clone();
        spec.disks = record
            .config
            .disks
            .iter()
            .filter_map(|disk| disks.disk_path(disk))
            .collect();
        spec.cgroup = self.resources.group_of(record)?;
        spec.user = user_of(record);
        spec.network_down = inventory::is_pending(record);
        spec.tap = self.tap_of(record)?;
        spec.host_access = machine_access(&record.host_access)?;
        for forward in &record.forwards {
            // it is opened by QEMU, whose words for a failure help nobody, or once the machine runs
            free_port(&self.inventory, forward)?;
            match spec.tap {
                None => spec.forwards.push(machine_forward(forward)?),
                Some(_) => Networks::check_inbound(forward)?,
            }
        }
        if let Some(image) = image {
            spec.boot = self.boot_files(record, image)?;
        }
        Ok(spec)
    }

    /// Copies kernel and initial ramdisk to where the machine's own user can read them. Only the node can read the image's
    /// files on the mount, since one machine's user must not read another's image. QEMU reads both files whole anyway.
    fn boot_files(&self, record: &Record, image: &ImageHandle) -> Result<Option<Boot>, NodeError> {
        let dir = self.core.home.root().join(&record.place).join(BOOT_DIR);
        let copy = |region: &str| -> Result<Option<PathBuf>, NodeError> {
            let Some(from) = image.region_path(region) else {
                return Ok(None);
            };
            let to = dir.join(region);
            copy_for(&from, &to, record.uid)
                .and_then(|()| let_pass(&dir, self.core.home.root(), record.uid))
                .map_err(at(format!("cannot copy {region} to {}", to.display())))?;
            Ok(Some(to))
        };
        let Some(kernel) = copy("kernel")? else {
            return Ok(None);
        };
        Ok(Some(Boot {
            kernel,
            initrd: copy("initrd")?,
        }))
    }

    /// Starts a machine cold: with its disks as they are, and with the image's kernel if it has one. `from` is what is published as
    /// its origin; `change` changes its record once it runs.
    pub(crate) fn boot(
        &self,
        entry: &Operation,
        from: &str,
        change: impl FnOnce(&mut Record),
    ) -> Result<(), NodeError> {
        let record = entry.record();
        let spec = {
            let (disks, image) = {
                let state = entry.state();
                (state.disks.clone(), state.images.first().cloned())
            };
            let (Some(disks), Some(image)) = (disks, image) else {
                return Err(failed(
                    format!("machine {} is not on the mount", entry.name),
                    "report this",
                ));
            };
            // for a guest that starts anew, data that the host's disk failed to keep was lost as in a power cut
            disks.accept_losses();
            self.spec(&record, &disks, Some(&image))?
        };
        self.core.reserve.make_room();
        self.resources.starts_cold(&record);
        let machine = Arc::new(Machine::start(spec)?);
        self.started(entry, &machine, Event::Runs(from.to_owned()), |record| {
            // a guest that starts anew begins with all that the machine has
            record.small = Default::default();
            // a guest that boots has all, and may leave unused what was added to the machine
            record.given = Given::of_a_boot(&record.config);
            record.resizing = None;
            change(record);
        })
    }

    /// Enters the QEMU that now runs a machine, tells the machine's life of it, and changes the machine's record.
    pub fn started(
        &self,
        entry: &Operation,
        machine: &Arc<Machine>,
        event: Event,
        change: impl FnOnce(&mut Record),
    ) -> Result<(), NodeError> {
        self.resources.started(&entry.record(), machine.pid());
        entry.has_qemu(machine);
        self.guard_lease(entry);
        if let Err(error) = self.ends.watch(machine) {
            tracing::error!(machine = %entry.name, %error, "its end will not be noticed");
        }
        let screen = self.vm_dir(&entry.record()).join(SCREEN_SOCKET);
        if let Err(error) = self.screens.open(&screen, &entry.entry) {
            tracing::error!(machine = %entry.name, %error, "what VNC clients send is not counted");
        }
        self.open_ports(entry);
        let config = machine.config();
        let same = matches!(event, Event::Adopted { .. });
        entry.drive_with(event, |record| {
            if !same {
                record.given = Given::in_labels(&config);
            }
            record.config = config;
            record.afterwards = record.afterwards.runs();
            change(record);
        })?;
        self.attend(&entry.entry);
        Ok(())
    }
}

/// Creates the directory of a new machine.
pub(crate) fn make_machine_dir(dir: &std::path::Path) -> Result<(), NodeError> {
    use std::os::unix::fs::DirBuilderExt;
    match std::fs::DirBuilder::new()
        .mode(private::DIR_MODE)
        .create(dir)
    {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Err(busy(
            format!(
                "{} exists, although no machine of this name is known",
                dir.display()
            ),
            "look into its machine.json; remove the directory if nothing in it is needed",
        )),
        made => made.map_err(at(format!("cannot make {}", dir.display()))),
    }
}

/// Copies a file and makes the copy readable for this group only.
fn copy_for(from: &Path, to: &Path, gid: Option<u32>) -> io::Result<()> {
    private::make_dirs(to.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
    // a copy left by an earlier start is reused: on a full disk there would be no room for another
    if fs::read(to).is_ok_and(|copy| fs::read(from).is_ok_and(|bytes| bytes == copy)) {
        return std::os::unix::fs::chown(to, None, gid);
    }
    // the existing file may be read-only, and the copy must not be readable by others even for a moment
    match fs::remove_file(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut copy = private::options().write(true).open(to)?;
    io::copy(&mut fs::File::open(from)?, &mut copy)?;
    std::os::unix::fs::fchown(&copy, None, gid)?;
    copy.set_permissions(fs::Permissions::from_mode(0o440))
}

/// Lets a machine's own user pass to a directory of its machine, `root/KIND/NAME/...`. Other users can pass `root` and
/// `root/KIND` but not list them, and nothing below.
fn let_pass(dir: &Path, root: &Path, gid: Option<u32>) -> io::Result<()> {
    let Some(gid) = gid else {
        return Ok(()); // QEMU runs as the node's own user
    };
    let mut dir = dir.to_owned();
    while let Some(above) = dir.parent().map(Path::to_owned) {
        if above == *root {
            return fs::set_permissions(&dir, fs::Permissions::from_mode(PASSABLE_MODE));
        }
        std::os::unix::fs::chown(&dir, None, Some(gid))?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o710))?;
        dir = above;
    }
    Err(io::ErrorKind::InvalidInput.into())
}

/// Returns the user that a machine's QEMU runs as; `None` is the node's own.
fn user_of(record: &Record) -> Option<User> {
    record.uid.map(|uid| User { uid, gid: uid })
}

/// Returns the disks that a machine has on the mount: regions of its image, and those of its own.
pub(super) fn disk_specs(record: &Record, manifest: &Manifest) -> Vec<DiskSpec> {
    let regions = plan::disk_regions(manifest);
    // an image may come from anyone: only names of disks become files
    let spec = |name: &String| {
        if let Some(own) = record.own_disks.iter().find(|own| own.name == *name) {
            return Some(DiskSpec {
                name: name.clone(),
                base: None,
                size: own.bytes,
            });
        }
        let region = manifest.region(name).filter(|_| regions.contains(name))?;
        let size = region.size.next_multiple_of(DISK_BLOCK);
        Some(DiskSpec::of_region(name, size))
    };
    record.config.disks.iter().filter_map(spec).collect()
}

/// Returns the configuration for a cold start: what belongs to the image, without what belongs to the host that captured it.
pub(crate) fn cold_config(image: &MachineConfig, plan: &plan::Plan) -> MachineConfig {
    MachineConfig {
        cpus: Some(plan.cpus),
        memory_bytes: Some(plan.memory_bytes),
        cmdline: plan.cmdline.clone().filter(|_| plan.kernel),
        disks: plan.disks.clone(),
        cpu_model: image.cpu_model.clone(),
        labels: image.labels.clone(),
        ..plan.hardware.clone()
    }
}

/// Replaces each host port 0 by a free port. An error names a port that cannot be opened, and the machine in `inventory` that
/// has it, if one has.
pub fn choose_ports(
    inventory: &Inventory,
    forwards: &[floe_api::PortForward],
) -> Result<Vec<floe_api::PortForward>, NodeError> {
    let choose = |forward: &floe_api::PortForward| {
        let mut chosen = forward.clone();
        chosen.host_port = free_port(inventory, forward)?;
        Ok(chosen)
    };
    forwards.iter().map(choose).collect()
}

/// Opens a host port for a moment and returns its number, which the system chooses if none is named.
fn free_port(inventory: &Inventory, forward: &floe_api::PortForward) -> Result<u16, NodeError> {
    let address = (forward.host_address.as_str(), forward.host_port);
    let opened = match forward.protocol {
        floe_api::Protocol::Tcp => {
            TcpListener::bind(address).and_then(|socket| socket.local_addr())
        }
        floe_api::Protocol::Udp => {
            std::net::UdpSocket::bind(address).and_then(|socket| socket.local_addr())
        }
    };
    opened.map(|address| address.port()).map_err(|error| {
        let holder = inventory.all().into_iter().find(|entry| {
            let has = |other: &floe_api::PortForward| {
                other.host_port == forward.host_port && other.protocol == forward.protocol
            };
            let has_them = entry.vm().is_ok() || entry.is_parked();
            has_them && entry.state().record.forwards.iter().any(has)
        });
        let fix = match (error.kind(), holder) {
            (io::ErrorKind::AddrInUse, Some(entry)) => format!(
                "machine {} has it: choose another port, or 0 for any that is free",
                entry.name
            ),
            (io::ErrorKind::AddrInUse, None) => {
                "choose another port, or 0 for any that is free, or end what listens there".into()
            }
            (io::ErrorKind::PermissionDenied, _) => {
                "choose a port above 1023, or run the node as root".into()
            }
            _ => "choose an address that this host has, such as 127.0.0.1, and a free port"
                .to_owned(),
        };
        failed(
            format!("cannot open the port of {forward} on this host: {error}"),
            fix,
        )
    })
}

/// Converts what a guest may reach of the host to `floe-machine`'s type.
pub(crate) fn machine_access(access: &floe_api::HostAccess) -> Result<HostAccess, NodeError> {
    let text = match access {
        floe_api::HostAccess::None => return Ok(HostAccess::None),
        floe_api::HostAccess::All => return Ok(HostAccess::All),
        floe_api::HostAccess::Ports(ports) => {
            let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
            ports.join(",")
        }
    };
    text.parse().map_err(|why: String| usage(why, ""))
}

/// Converts a port forward to `floe-machine`'s type.
pub fn machine_forward(forward: &floe_api::PortForward) -> Result<PortForward, NodeError> {
    forward
        .check()
        .map_err(|error| usage(error.to_string(), ""))?;
    Ok(PortForward {
        protocol: match forward.protocol {
            floe_api::Protocol::Tcp => Protocol::Tcp,
            floe_api::Protocol::Udp => Protocol::Udp,
        },
        host_address: forward
            .host_address
            .parse()
            .map_err(|_| usage(forward.to_string(), "use an IP address"))?,
        host_port: forward.host_port,
        guest_port: forward.guest_port,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_chosen_where_none_was_named() {
        let inventory = Inventory::new(Arc::default(), Default::default(), Arc::new(|_, _| ()));
        let chosen = choose_ports(&inventory, &["0:80".parse().unwrap()]).unwrap();
        assert_ne!(chosen[0].host_port, 0);

        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let wanted = [format!("{port}:80").parse().unwrap()];
        let error = choose_ports(&inventory, &wanted).unwrap_err().to_api();
        assert!(
            error.message.contains(&format!("127.0.0.1:{port}")),
            "{error:?}"
        );
        assert!(error.fix.contains("choose another port"), "{error:?}");
    }

    #[test]
    fn a_cold_start_forgets_the_host_that_captured() {
        let image = MachineConfig {
            machine_type: Some("pc-q35-99.0".into()),
            devices: vec!["vga".into()],
            nic_mac: Some("52:54:00:00:00:01".into()),
            cpu_model: Some("Nehalem".into()),
            ..Default::default()
        };
        let plan = plan::Plan {
            kind: plan::Kind::Boot,
            memory_bytes: 1 << 30,
            cpus: 2,
            disks: vec!["disk0".into()],
            own: Vec::new(),
            hardware: MachineConfig {
                disk_model: Some("sata".into()),
                ..Default::default()
            },
            cmdline: Some("quiet".into()),
            kernel: false,
            initrd: false,
        };
        let config = cold_config(&image, &plan);
        assert_eq!(
            (config.machine_type, config.nic_mac, config.cmdline),
            (None, None, None)
        );
        assert_eq!(config.disk_model.as_deref(), Some("sata"));
        assert_eq!(
            (config.cpus, config.cpu_model.as_deref()),
            (Some(2), Some("Nehalem"))
        );
    }

    #[test]
    fn a_disk_is_a_whole_number_of_blocks() {
        let region = |name: &str, size| floe_image::Region {
            name: name.into(),
            size,
            segments: vec![Hash::ZERO],
            ..Default::default()
        };
        let manifest = Manifest {
            regions: vec![region("disk0", 1000), region("ram", 4096)],
            ..Default::default()
        };
        let mut record = floe_inventory::inventory::sample_record();
        record.config.disks = ["disk0", "ram", "seed", "disk1"].map(Into::into).into();
        record.own_disks = vec![floe_inventory::inventory::record::OwnDisk {
            name: "seed".into(),
            bytes: 8192,
            alias: None,
        }];
        let seed = DiskSpec {
            name: "seed".into(),
            base: None,
            size: 8192,
        };
        assert_eq!(
            disk_specs(&record, &manifest),
            [DiskSpec::of_region("disk0", 4096), seed]
        );
    }
}
