//! Decides what a run will do before anything is started. Pure functions, so that every refusal has a test.

use crate::error::{NodeError, refused, usage};
use floe_api::{BootFirst, Firmware, Hardware, RunRequest};
use floe_image::{
    CDROM_REGION, FIRMWARE_REGION, MachineConfig, Manifest, NVRAM_REGION, SEED_REGION,
    SPECIAL_DISKS, is_special_disk,
};
use floe_machine::{DiskModel, Models, NetworkModel};

/// RAM of a machine in bytes if neither image nor user name a size: enough for a small Debian.
pub const MEMORY_DEFAULT: u64 = 1 << 30;
/// Least RAM in bytes: less does not hold a kernel and an initial ramdisk.
pub const MEMORY_MIN: u64 = 64 << 20;
/// Most RAM in bytes: what the manifest's tables are made for.
pub const MEMORY_MAX: u64 = 1 << 40;
/// Sizes of RAM are multiples of this: a machine's RAM is a whole number of huge pages.
pub const MEMORY_STEP: u64 = 2 << 20;
/// Most virtual CPUs: what QEMU's q35 machine takes without an IOMMU.
pub const CPUS_MAX: u32 = 255;
/// Most port forwards that a machine may have.
pub const FORWARDS_MAX: usize = 64;

/// What a run does with an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Whether to continue where the image was captured, or to boot.
    pub kind: Kind,
    /// RAM in bytes.
    pub memory_bytes: u64,
    /// Virtual CPUs.
    pub cpus: u32,
    /// The machine's disks, in order: regions of the image, and those of [`Plan::own`].
    pub disks: Vec<String>,
    /// Disks that the image does not have and this cold start makes: names of [`SPECIAL_DISKS`].
    pub own: Vec<&'static str>,
    /// Firmware, models and order of a cold start, as a configuration has them; its other fields are empty.
    pub hardware: MachineConfig,
    /// Kernel command line.
    pub cmdline: Option<String>,
    /// Whether to boot the image's kernel.
    pub kernel: bool,
    /// Whether to boot with its initial ramdisk.
    pub initrd: bool,
}

/// How a machine can be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Restored from the regions `device`, `ram` and `vram`.
    Restore,
    /// Booted from a kernel or from disks.
    Boot,
}

/// Whether an image holds a running machine's state.
pub fn is_live(manifest: &Manifest) -> bool {
    manifest.region("device").is_some() && manifest.region("ram").is_some()
}

/// Decides what `run` does with an image, or returns why it can't run it.
pub fn plan(request: &RunRequest, manifest: &Manifest) -> Result<Plan, NodeError> {
    let has = |name: &str| manifest.region(name).is_some();
    let live = is_live(manifest);
    if has("device") != has("ram") && !request.cold {
        return Err(refused(
            format!(
                "{} has half of a running state (a `device` region needs a `ram` region)",
                request.image
            ),
            "capture the machine again, or boot its disks with --cold",
        ));
    }
    let kind = if live && !request.cold {
        Kind::Restore
    } else {
        Kind::Boot
    };
    let config = &manifest.config;
    let hardware = hardware(request, config);
    let regions = disk_regions(manifest);
    let own = match kind {
        Kind::Restore => Vec::new(),
        Kind::Boot => own_disks(request, &hardware, &regions),
    };
    let disks = match kind {
        Kind::Restore => regions,
        Kind::Boot => cold_disks(regions, &own, &hardware),
    };
    let plan = Plan {
        kind,
        own,
        hardware,
        memory_bytes: request
            .memory_bytes
            .or(config.memory_bytes_now())
            .unwrap_or(MEMORY_DEFAULT),
        cpus: request.cpus.or(config.cpus_now()).unwrap_or(1),
        disks,
        cmdline: request.cmdline.clone().or_else(|| config.cmdline.clone()),
        kernel: has("kernel"),
        initrd: has("initrd"),
    };
    match kind {
        Kind::Restore => check_restore(request, manifest, &plan)?,
        Kind::Boot => check_boot(request, &plan)?,
    }
    Ok(plan)
}

/// Returns the regions `disk0`, `disk1`, ... of an image, in the order of their numbers.
pub fn disk_regions(manifest: &Manifest) -> Vec<String> {
    let mut disks: Vec<(u32, String)> = manifest
        .regions
        .iter()
        .filter_map(|region| {
            let number = region.name.strip_prefix("disk")?.parse().ok()?;
            Some((number, region.name.clone()))
        })
        .collect();
    disks.sort();
    let numbered = disks.into_iter().map(|(_, name)| name);
    let special = SPECIAL_DISKS.iter().map(|name| (*name).to_owned());
    let special = special.filter(|name| manifest.region(name).is_some());
    numbered.chain(special).collect()
}

/// Returns the hardware of a cold start: what the request says, or else the image.
fn hardware(request: &RunRequest, image: &MachineConfig) -> MachineConfig {
    let mut config = image.clone();
    choose(&mut config, &request.hardware);
    MachineConfig {
        firmware: config.firmware,
        disk_model: config.disk_model,
        disk_sectors: config.disk_sectors,
        network_model: config.network_model,
        boot: match request.boot {
            None => config.boot,
            Some(BootFirst::Disk) => None,
            Some(BootFirst::Cdrom) => Some("cdrom".into()),
        },
        ..Default::default()
    }
}

/// Writes the hardware that somebody has chosen into a configuration. The default is written by leaving it out.
pub fn choose(config: &mut MachineConfig, hardware: &Hardware) {
    if let Some(firmware) = hardware.firmware {
        config.firmware = match firmware {
            Firmware::Bios => None,
            Firmware::Uefi => Some("uefi".into()),
        };
    }
    if let Some(model) = hardware.disk_model {
        let name = match model {
            floe_api::DiskModel::Virtio => None,
            floe_api::DiskModel::Scsi => Some(DiskModel::Scsi),
            floe_api::DiskModel::Sata => Some(DiskModel::Sata),
            floe_api::DiskModel::Ide => Some(DiskModel::Ide),
            floe_api::DiskModel::Nvme => Some(DiskModel::Nvme),
        };
        config.disk_model = name.map(|model| model.name().into());
    }
    if let Some(model) = hardware.network_model {
        let name = match model {
            floe_api::NetworkModel::Virtio => None,
            floe_api::NetworkModel::E1000 => Some(NetworkModel::E1000),
            floe_api::NetworkModel::E1000e => Some(NetworkModel::E1000e),
            floe_api::NetworkModel::Rtl8139 => Some(NetworkModel::Rtl8139),
        };
        config.network_model = name.map(|model| model.name().into());
    }
}

/// Returns the hardware that a configuration chooses. What is the default, or unknown to this floe, is absent.
pub fn chosen(config: &MachineConfig) -> Hardware {
    fn known<T: serde::de::DeserializeOwned>(word: &Option<String>) -> Option<T> {
        serde_json::from_value(word.as_deref()?.into()).ok()
    }
    Hardware {
        firmware: known(&config.firmware),
        disk_model: known(&config.disk_model),
        network_model: known(&config.network_model),
    }
}

/// Returns the disks that a cold start has to make.
fn own_disks(
    request: &RunRequest,
    hardware: &MachineConfig,
    regions: &[String],
) -> Vec<&'static str> {
    let has = |name: &str| regions.iter().any(|region| region == name);
    // code and variables belong together
    let flash = hardware.firmware.is_some() && !(has(FIRMWARE_REGION) && has(NVRAM_REGION));
    SPECIAL_DISKS
        .into_iter()
        .filter(|name| match *name {
            CDROM_REGION => request.cdrom.is_some(),
            SEED_REGION => request.seed.is_some(),
            _ => flash,
        })
        .collect()
}

/// Returns all disks of a cold start, in order.
fn cold_disks(regions: Vec<String>, own: &[&str], hardware: &MachineConfig) -> Vec<String> {
    let (special, mut disks): (Vec<String>, Vec<String>) = regions
        .into_iter()
        .partition(|name: &String| is_special_disk(name));
    let is_flash = |name: &str| [FIRMWARE_REGION, NVRAM_REGION].contains(&name);
    disks.extend(SPECIAL_DISKS.into_iter().filter_map(|name| {
        let there = own.contains(&name) || special.iter().any(|region| region == name);
        let wanted = !is_flash(name) || hardware.firmware.is_some();
        (there && wanted).then(|| name.to_owned())
    }));
    disks
}

/// Refuses port forwards, and a port to wait for, that can't be meant.
pub fn check_forwards(request: &RunRequest) -> Result<(), NodeError> {
    if request.forwards.len() > FORWARDS_MAX {
        return Err(usage(
            format!("{} port forwards", request.forwards.len()),
            format!("use at most {FORWARDS_MAX}"),
        ));
    }
    for (index, forward) in request.forwards.iter().enumerate() {
        forward
            .check()
            .map_err(|error| usage(error.to_string(), ""))?;
        let same = |other: &floe_api::PortForward| {
            other.protocol == forward.protocol
                && other.host_port == forward.host_port
                && other.host_address == forward.host_address
        };
        if forward.host_port != 0 && request.forwards[..index].iter().any(same) {
            return Err(usage(
                format!("port {} is forwarded twice", forward.host_port),
                "give each forward its own host port",
            ));
        }
    }
    awaited_port(request.wait, request.wait_port, &request.forwards).map(drop)
}

/// Returns the forward whose port is waited for, if one is: the named guest's port's, or the first.
pub fn awaited_port(
    wait: floe_api::Wait,
    guest_port: Option<u16>,
    forwards: &[floe_api::PortForward],
) -> Result<Option<&floe_api::PortForward>, NodeError> {
    if wait != floe_api::Wait::Port {
        return Ok(None);
    }
    let mut tcp = forwards
        .iter()
        .filter(|forward| forward.protocol == floe_api::Protocol::Tcp);
    let found = tcp.find(|forward| guest_port.is_none_or(|port| forward.guest_port == port));
    found.map(Some).ok_or_else(|| {
        let what = match guest_port {
            Some(port) => format!("waiting for the guest's port {port}, which is not forwarded"),
            None => "waiting for a port, but none is forwarded".into(),
        };
        usage(what, "add -p HOST:GUEST, or wait for the console")
    })
}

fn check_restore(request: &RunRequest, manifest: &Manifest, plan: &Plan) -> Result<(), NodeError> {
    let cold = "leave the option away, or boot the image's disks afresh with --cold";
    let config = &manifest.config;
    let (Some(memory), Some(cpus)) = (config.memory_bytes_now(), config.cpus_now()) else {
        return Err(refused(
            format!(
                "{} does not say how much memory and how many CPUs it was captured with",
                request.image
            ),
            "capture the machine again, or boot its disks with --cold",
        ));
    };
    if plan.memory_bytes != memory {
        return Err(refused(
            format!(
                "{} was captured with {} MiB of memory and can't go on with {} MiB",
                request.image,
                memory >> 20,
                plan.memory_bytes >> 20
            ),
            cold,
        ));
    }
    if plan.cpus != cpus {
        return Err(refused(
            format!(
                "{} was captured with {cpus} CPUs and can't go on with {}",
                request.image, plan.cpus
            ),
            cold,
        ));
    }
    if let Some(option) = cold_option(request) {
        return Err(refused(
            format!(
                "{} is a running system with the hardware and the disks that it has, so {option} comes too late",
                request.image
            ),
            cold,
        ));
    }
    if request.cmdline.is_some() {
        return Err(refused(
            format!(
                "{} is a running system, its kernel command line is what it is",
                request.image
            ),
            cold,
        ));
    }
    Ok(())
}

/// Returns an option of the request that only a cold start can carry out, as the command line calls it.
fn cold_option(request: &RunRequest) -> Option<&'static str> {
    let hardware = &request.hardware;
    let seed = request.seed.as_ref();
    let options = [
        (hardware.firmware.is_some(), "--firmware"),
        (hardware.disk_model.is_some(), "--disk-model"),
        (hardware.network_model.is_some(), "--network-model"),
        (request.cdrom.is_some(), "--cdrom"),
        (request.boot.is_some(), "--boot"),
        (seed.is_some_and(|s| s.user_data.is_some()), "--user-data"),
        (seed.is_some_and(|s| s.meta_data.is_some()), "--meta-data"),
        (
            seed.is_some_and(|s| s.network_config.is_some()),
            "--network-config",
        ),
        (seed.is_some_and(|s| s.hostname.is_some()), "--hostname"),
        (seed.is_some(), "--ssh-key"),
    ];
    options
        .iter()
        .find(|(given, _)| *given)
        .map(|(_, name)| *name)
}

fn check_boot(request: &RunRequest, plan: &Plan) -> Result<(), NodeError> {
    let has_cdrom = plan.disks.iter().any(|disk| disk == CDROM_REGION);
    let is_bootable = |disk: &String| disk == CDROM_REGION || !is_special_disk(disk);
    if !plan.disks.iter().any(is_bootable) && !plan.kernel {
        return Err(refused(
            format!("{} has neither a disk nor a kernel to boot", request.image),
            "import a disk image, or a kernel with --kernel and --initrd",
        ));
    }
    if request.boot == Some(BootFirst::Cdrom) && !has_cdrom {
        return Err(usage(
            "there is no CD-ROM to boot from",
            "give one with --cdrom FILE.iso",
        ));
    }
    let models = Models::of(&plan.hardware)?;
    let numbered = plan
        .disks
        .iter()
        .filter(|disk| !is_special_disk(disk))
        .count();
    if let Some(most) = models.disk.disks_max().filter(|most| numbered > *most) {
        return Err(refused(
            format!(
                "{} has {numbered} disks, and at most {most} can be of the model {}",
                request.image, models.disk
            ),
            "use --disk-model virtio or scsi",
        ));
    }
    if request.cmdline.is_some() && !plan.kernel {
        return Err(refused(
            format!(
                "{} has no kernel of its own, so a command line has nobody to read it",
                request.image
            ),
            "import the kernel too (--kernel), or set the command line in the guest's boot loader",
        ));
    }
    check_size(plan.cpus, plan.memory_bytes)
}

/// Returns an error if no machine can have so many CPUs or so many bytes of memory.
pub fn check_size(cpus: u32, memory_bytes: u64) -> Result<(), NodeError> {
    if !(MEMORY_MIN..=MEMORY_MAX).contains(&memory_bytes)
        || !memory_bytes.is_multiple_of(MEMORY_STEP)
    {
        return Err(usage(
            format!("{} bytes of memory", memory_bytes),
            format!(
                "use {} MiB to {} GiB in steps of {} MiB",
                MEMORY_MIN >> 20,
                MEMORY_MAX >> 30,
                MEMORY_STEP >> 20
            ),
        ));
    }
    if !(1..=CPUS_MAX).contains(&cpus) {
        return Err(usage(
            format!("{} CPUs", cpus),
            format!("use 1 to {CPUS_MAX}"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_api::{ErrorCode, Wait};
    use floe_image::Region;

    fn manifest(regions: &[&str], memory_bytes: Option<u64>, cpus: Option<u32>) -> Manifest {
        Manifest {
            parent: None,
            created_unix_s: 0,
            config: MachineConfig {
                memory_bytes,
                cpus,
                ..Default::default()
            },
            regions: regions
                .iter()
                .map(|name| Region {
                    name: (*name).into(),
                    size: 4096,
                    segments: vec![floe_image::Hash::ZERO],
                    ..Default::default()
                })
                .collect(),
        }
    }

    fn request() -> RunRequest {
        RunRequest {
            image: "x".into(),
            ..Default::default()
        }
    }

    fn code<T: std::fmt::Debug>(result: Result<T, NodeError>) -> ErrorCode {
        let error = result.unwrap_err().to_api();
        assert!(!error.message.is_empty());
        error.code
    }

    #[test]
    fn hardware_that_was_chosen_is_told_and_a_default_is_not() {
        for disk_model in floe_machine::DiskModel::ALL {
            for network_model in floe_machine::NetworkModel::ALL {
                let word = |name: &str| Some(name.to_owned()).filter(|name| name != "virtio");
                let config = MachineConfig {
                    firmware: Some("uefi".into()),
                    disk_model: word(disk_model.name()),
                    network_model: word(network_model.name()),
                    ..Default::default()
                };
                let told = chosen(&config);
                assert_eq!(told.disk_model.is_none(), config.disk_model.is_none());
                let mut again = MachineConfig::default();
                choose(&mut again, &told);
                assert_eq!(again, config);
            }
        }
        let strange = MachineConfig {
            disk_model: Some("floppy".into()),
            ..Default::default()
        };
        assert!(chosen(&strange).is_none());
    }

    #[test]
    fn an_image_with_a_running_state_goes_on_and_another_boots() {
        let live = manifest(&["ram", "device", "disk0"], Some(1 << 30), Some(2));
        assert_eq!(plan(&request(), &live).unwrap().kind, Kind::Restore);
        let cold = RunRequest {
            cold: true,
            memory_bytes: Some(2 << 30),
            ..request()
        };
        let booted = plan(&cold, &live).unwrap();
        assert_eq!((booted.kind, booted.memory_bytes), (Kind::Boot, 2 << 30));
        let dead = plan(&request(), &manifest(&["kernel", "initrd"], None, None)).unwrap();
        assert_eq!(
            (dead.kind, dead.memory_bytes, dead.cpus),
            (Kind::Boot, MEMORY_DEFAULT, 1)
        );
    }

    #[test]
    fn a_captured_machine_keeps_its_memory_and_cpus() {
        let live = manifest(&["ram", "device"], Some(1 << 30), Some(2));
        let same = RunRequest {
            memory_bytes: Some(1 << 30),
            cpus: Some(2),
            ..request()
        };
        assert!(plan(&same, &live).is_ok());
        for other in [
            RunRequest {
                memory_bytes: Some(2 << 30),
                ..request()
            },
            RunRequest {
                cpus: Some(1),
                ..request()
            },
            RunRequest {
                cmdline: Some("quiet".into()),
                ..request()
            },
        ] {
            let error = plan(&other, &live).unwrap_err().to_api();
            assert_eq!(error.code, ErrorCode::Refused);
            assert!(error.fix.contains("--cold"), "{error}");
        }
    }

    #[test]
    fn a_cold_start_makes_the_disks_that_the_image_lacks() {
        let uefi = RunRequest {
            hardware: Hardware {
                firmware: Some(Firmware::Uefi),
                disk_model: Some(floe_api::DiskModel::Sata),
                ..Default::default()
            },
            cdrom: Some("/x.iso".into()),
            boot: Some(BootFirst::Cdrom),
            seed: Some(Default::default()),
            ..request()
        };
        let plain = manifest(&["disk0"], None, None);
        let first = plan(&uefi, &plain).unwrap();
        assert_eq!(first.own, SPECIAL_DISKS);
        assert_eq!(first.disks, ["disk0", "firmware", "nvram", "cdrom", "seed"]);
        let hardware = &first.hardware;
        assert_eq!(hardware.firmware.as_deref(), Some("uefi"));
        assert_eq!(hardware.disk_model.as_deref(), Some("sata"));
        assert_eq!(hardware.boot.as_deref(), Some("cdrom"));
        // what such a machine's capture has is used again, unless something new is given
        let regions = [
            "ram", "device", "seed", "nvram", "firmware", "cdrom", "disk0",
        ];
        let mut captured = manifest(&regions, Some(1 << 30), Some(1));
        captured.config.firmware = Some("uefi".into());
        let again = RunRequest {
            cold: true,
            seed: Some(Default::default()),
            ..request()
        };
        let again = plan(&again, &captured).unwrap();
        assert_eq!((again.own, again.disks), (vec!["seed"], first.disks));
        let bios = RunRequest {
            cold: true,
            hardware: Hardware {
                firmware: Some(Firmware::Bios),
                ..Default::default()
            },
            ..request()
        };
        let bios = plan(&bios, &captured).unwrap();
        assert_eq!((bios.own.len(), bios.hardware.firmware), (0, None));
        assert_eq!(bios.disks, ["disk0", "cdrom", "seed"]);
        // a running system takes none of it
        let late = [
            RunRequest {
                cold: false,
                ..uefi.clone()
            },
            RunRequest {
                cdrom: Some("/x.iso".into()),
                ..request()
            },
            RunRequest {
                seed: Some(Default::default()),
                ..request()
            },
        ];
        for late in late {
            let error = plan(&late, &captured).unwrap_err().to_api();
            assert_eq!(error.code, ErrorCode::Refused);
            assert!(error.message.contains("--") && error.fix.contains("--cold"));
        }
        let no_cdrom = RunRequest {
            boot: Some(BootFirst::Cdrom),
            ..request()
        };
        assert_eq!(code(plan(&no_cdrom, &plain)), ErrorCode::Usage);
        let many: Vec<String> = (0..5).map(|i| format!("disk{i}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let sata = RunRequest {
            cdrom: None,
            boot: None,
            ..uefi
        };
        assert_eq!(
            code(plan(&sata, &manifest(&many, None, None))),
            ErrorCode::Refused
        );
        // a seed is nothing to boot
        let seed = manifest(&["seed"], None, None);
        assert_eq!(code(plan(&request(), &seed)), ErrorCode::Refused);
    }

    #[test]
    fn what_cannot_boot_is_refused() {
        assert_eq!(
            code(plan(&request(), &manifest(&["ram"], None, None))),
            ErrorCode::Refused
        );
        assert_eq!(
            code(plan(&request(), &manifest(&["initrd"], None, None))),
            ErrorCode::Refused
        );
        let disk = manifest(&["disk0"], None, None);
        let cmdline = RunRequest {
            cmdline: Some("quiet".into()),
            ..request()
        };
        assert_eq!(code(plan(&cmdline, &disk)), ErrorCode::Refused);
        for memory in [0, 1 << 20, (64 << 20) + 4096, 2 << 40] {
            let small = RunRequest {
                memory_bytes: Some(memory),
                ..request()
            };
            assert_eq!(code(plan(&small, &disk)), ErrorCode::Usage);
        }
        let cpus = RunRequest {
            cpus: Some(0),
            ..request()
        };
        assert_eq!(code(plan(&cpus, &disk)), ErrorCode::Usage);
    }

    #[test]
    fn forwards_that_cannot_be_are_refused_before_anything_starts() {
        let twice = RunRequest {
            forwards: vec!["8080:80".parse().unwrap(), "8080:81".parse().unwrap()],
            ..request()
        };
        assert_eq!(code(check_forwards(&twice)), ErrorCode::Usage);
        let any = RunRequest {
            forwards: vec!["0:80".parse().unwrap(), "0:81".parse().unwrap()],
            ..request()
        };
        assert!(check_forwards(&any).is_ok());
        let wait = RunRequest {
            wait: Wait::Port,
            ..request()
        };
        assert_eq!(code(check_forwards(&wait)), ErrorCode::Usage);
        let named = |wait_port| RunRequest {
            wait: Wait::Port,
            wait_port,
            forwards: vec!["0:53/udp".parse().unwrap(), "0:80".parse().unwrap()],
            ..request()
        };
        assert!(check_forwards(&named(None)).is_ok());
        assert!(check_forwards(&named(Some(80))).is_ok());
        for port in [53, 81] {
            assert_eq!(code(check_forwards(&named(Some(port)))), ErrorCode::Usage);
        }
    }

    #[test]
    fn disks_are_in_the_order_of_their_numbers() {
        let many = manifest(&["disk10", "disk2", "ram", "disk0", "diskette"], None, None);
        assert_eq!(disk_regions(&many), ["disk0", "disk2", "disk10"]);
    }
}
