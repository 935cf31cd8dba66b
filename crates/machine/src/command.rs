//! QEMU's command line.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use floe_image::{CDROM_REGION, FIRMWARE_REGION, MachineConfig, NVRAM_REGION, SEED_REGION};
use rand::Rng;
use serde::{Deserialize, Serialize};

use crate::devices::{self, NETDEV};
use crate::error::MachineError;
use crate::files;
use crate::hardware;
use crate::host::Host;
use crate::incompatible::CPU_MODEL_DEFAULT;
use crate::models::{DiskModel, Models};
use crate::profile::Profile;
use crate::sectors;
use crate::spec::{
    CMDLINE_BYTES_MAX, CPUS_MAX, DISKS_MAX, MEMORY_BYTES_DEFAULT, MEMORY_BYTES_MAX,
    MEMORY_BYTES_MIN, Spec,
};

/// Disks that a machine only reads.
const READ_ONLY_DISKS: [&str; 3] = [FIRMWARE_REGION, CDROM_REGION, SEED_REGION];

/// What QEMU's sandbox forbids: obsolete system calls, gaining privileges, starting processes, changing its own priority.
pub const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// QEMU's descriptor of its tap device: standard input, which QEMU does not use otherwise, and which needs no special
/// care to keep other processes from inheriting it.
pub(crate) const TAP_FD: u32 = 0;

/// What holds the guest's RAM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RamBacking {
    /// A memfd that is zero at first, and that a capture maps and scans in place (60 ms per GiB on one core; copying
    /// anonymous memory out of another process takes three times as long).
    Anonymous,
    /// Like `Anonymous`, for a memory block that was added while the machine ran: QEMU's memfd with this inode number.
    Added {
        /// The inode number, which distinguishes QEMU's memfds: they all have the same name.
        inode: u64,
    },
    /// A private mapping of this file: an image's `ram` (or `ram1`, ...) region on the mount.
    File(PathBuf),
}

impl RamBacking {
    /// Returns the mapped file, if a file is mapped.
    pub(crate) fn file(&self) -> Option<&PathBuf> {
        match self {
            RamBacking::File(path) => Some(path),
            RamBacking::Anonymous | RamBacking::Added { .. } => None,
        }
    }
}

/// Fills every open field of the configuration for a cold start on this host. `own_kernel`: QEMU loads the guest's
/// kernel.
pub fn complete(
    config: &MachineConfig,
    profile: Profile,
    own_kernel: bool,
    host: &Host,
) -> Result<MachineConfig, MachineError> {
    let mut config = config.clone();
    if config.machine_type.is_none() {
        config.machine_type = host.newest_machine_type().map(str::to_string);
    }
    config
        .cpu_model
        .get_or_insert_with(|| CPU_MODEL_DEFAULT.into());
    config.cpus.get_or_insert(1);
    config.memory_bytes.get_or_insert(MEMORY_BYTES_DEFAULT);
    config.nic_mac.get_or_insert_with(random_mac);
    config.qemu_version = Some(host.qemu_version.clone());
    config.accel = Some(host.accel.name().into());
    config.cpu_flags = host.cpu.1.iter().cloned().collect();
    hardware::settle(&mut config, profile, own_kernel);
    let added = match profile {
        Profile::Fixed => Vec::new(),
        Profile::Growable => {
            let mut added = devices::added_disks(&config);
            added.extend(devices::added_cards(&config.devices));
            added
        }
    };
    let models = Models::of(&config)?;
    check_disks(&config, models)?;
    let is_added = |disk: &&String| devices::values(&added, "drive").any(|drive| drive == *disk);
    let started: Vec<String> = config
        .disks
        .iter()
        .filter(|disk| !is_added(disk))
        .cloned()
        .collect();
    config.devices = devices::canonical(
        &started,
        config.nic_mac.as_deref().unwrap_or_default(),
        profile,
        models,
    );
    for device in &mut config.devices {
        let disk = devices::property(device, "drive").unwrap_or_default();
        let sector = config.disk_sectors.get(disk).copied();
        *device = sectors::with_sector(std::mem::take(device), sector);
    }
    config.devices.extend(added);
    Ok(config)
}

/// Refuses disks that this hardware cannot have.
fn check_disks(config: &MachineConfig, models: Models) -> Result<(), MachineError> {
    let disks = &config.disks;
    let large = disks
        .iter()
        .find(|disk| config.disk_sectors.contains_key(*disk));
    if let (DiskModel::Sata | DiskModel::Ide, Some(disk)) = (models.disk, large) {
        let what = format!(
            "{disk} has sectors of {} bytes, which no disk of the model {} has; use virtio, scsi or nvme",
            sectors::SECTOR_BYTES_LARGE,
            models.disk
        );
        return Err(MachineError::Spec { what });
    }
    let numbered = disks
        .iter()
        .filter(|disk| !floe_image::is_special_disk(disk));
    let (count, most) = (numbered.count(), models.disk.disks_max());
    if let Some(most) = most.filter(|most| count > *most) {
        let what = format!(
            "{count} disks of the model {}: it allows {most}; use virtio or scsi",
            models.disk
        );
        return Err(MachineError::Spec { what });
    }
    let has = |name: &str| disks.iter().any(|disk| disk == name);
    if models.uefi != has(FIRMWARE_REGION) || models.uefi != has(NVRAM_REGION) {
        let what = "a UEFI firmware, its code and its variables belong together".into();
        return Err(MachineError::Spec { what });
    }
    Ok(())
}

/// Gives the copy of a machine new network addresses. The running guest keeps the old ones, which are in its memory, and
/// uses the new ones from its next cold start on.
pub fn renew_mac(config: &mut MachineConfig) {
    give_mac(config, &random_mac());
}

/// Sets the address of a machine's first network card, and gives the added cards new addresses.
pub fn give_mac(config: &mut MachineConfig, mac: &str) {
    for device in &mut config.devices {
        if device.starts_with("virtio-net-pci,")
            && devices::is_removable(device)
            && let Some(old) = devices::property(device, "mac")
        {
            *device = device.replace(&format!(",mac={old},"), &format!(",mac={},", random_mac()));
        }
    }
    let Some(old) = config.nic_mac.replace(mac.to_owned()) else {
        config.nic_mac = None; // it has no card
        return;
    };
    let (from, to) = (format!(",mac={old},"), format!(",mac={mac},"));
    for device in &mut config.devices {
        *device = device.replace(&from, &to);
    }
}

/// Returns what of a configuration decides how QEMU is started for a restore, without the addresses of network cards.
pub fn hardware_of(config: &MachineConfig) -> MachineConfig {
    let without_mac = |device: &String| match devices::property(device, "mac") {
        Some(mac) => device.replace(&format!(",mac={mac}"), ",mac="),
        None => device.clone(),
    };
    MachineConfig {
        devices: config.devices.iter().map(without_mac).collect(),
        nic_mac: None,
        cmdline: None,
        labels: Default::default(),
        ..config.clone()
    }
}

/// Returns a random, locally administered address with QEMU's prefix.
pub(crate) fn random_mac() -> String {
    let [a, b, c]: [u8; 3] = rand::rng().random();
    format!("52:54:00:{a:02x}:{b:02x}:{c:02x}")
}

/// Refuses a configuration that floe would not have written: it may come from anyone's image, and becomes a command line.
pub fn check(config: &MachineConfig) -> Result<(), MachineError> {
    let untrusted = |what: String| Err(MachineError::Untrusted { what });
    if let Some(name) = &config.machine_type
        && !(name.starts_with("pc-q35-")
            && name[7..].bytes().all(|b| b.is_ascii_digit() || b == b'.'))
    {
        return untrusted(format!(
            "machine type {name:?} is not of the form pc-q35-7.2"
        ));
    }
    if let Some(model) = &config.cpu_model {
        if !model
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
        {
            return untrusted(format!("CPU model {model:?} is not a plain name"));
        }
        if model == "host" || model == "max" {
            return untrusted(format!(
                "CPU model {model:?} is another one on every host; use a named model such as {CPU_MODEL_DEFAULT}"
            ));
        }
    }
    if let Some(mac) = &config.nic_mac
        && !is_mac(mac)
    {
        return untrusted(format!(
            "network address {mac:?} is not of the form 52:54:00:12:34:56"
        ));
    }
    if let Some(bytes) = config.memory_bytes
        && (!(MEMORY_BYTES_MIN..=MEMORY_BYTES_MAX).contains(&bytes) || bytes % (1 << 20) != 0)
    {
        return untrusted(format!(
            "{bytes} bytes of memory: must be whole MiB from {MEMORY_BYTES_MIN} to {MEMORY_BYTES_MAX}"
        ));
    }
    if let Some(cpus) = config.cpus
        && !(1..=CPUS_MAX).contains(&cpus)
    {
        return untrusted(format!("{cpus} vCPUs: must be 1 to {CPUS_MAX}"));
    }
    if config.disks.len() > DISKS_MAX {
        return untrusted(format!("{} disks: at most {DISKS_MAX}", config.disks.len()));
    }
    if let Some(cmdline) = &config.cmdline
        && (cmdline.len() > CMDLINE_BYTES_MAX || cmdline.contains('\0'))
    {
        return untrusted(format!(
            "the kernel's command line is longer than {CMDLINE_BYTES_MAX} bytes or has a zero byte"
        ));
    }
    hardware::check(config).or_else(untrusted)?;
    Models::of(config)?;
    let model = config.cpu_model.as_deref().unwrap_or(CPU_MODEL_DEFAULT);
    devices::check(&config.devices, model)
}

/// Returns whether a text is a network address in the form that QEMU accepts.
pub(crate) fn is_mac(mac: &str) -> bool {
    let is_byte = |part: &str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
    mac.split(':').count() == 6 && mac.split(':').all(is_byte)
}

/// Returns the subnet of an added card's user network. Each card has its own so that the guest's routes don't
/// conflict: 10.0.3.0/24 for the first.
pub(crate) fn added_subnet(netdev: &str) -> String {
    let number: u8 = netdev
        .strip_prefix("net")
        .and_then(|number| number.parse().ok())
        .unwrap_or_default();
    format!("10.0.{}.0/24", number.saturating_add(2))
}

/// Returns the values of `-smp` and `-m`: what the machine starts with, and the most that it can have.
fn sizes(config: &MachineConfig) -> (String, String) {
    let mib = config.memory_bytes.unwrap_or(MEMORY_BYTES_DEFAULT) >> 20;
    let cpus = config.cpus.unwrap_or(1);
    let smp = match config.cpus_max {
        None => cpus.to_string(),
        // in full, because machine types differ in whether additional vCPUs are cores or sockets
        Some(most) => format!("{cpus},maxcpus={most},sockets=1,cores={most},threads=1"),
    };
    let memory = match config.memory_bytes_max {
        None => format!("{mib}M"),
        Some(most) => {
            let slots = hardware::MEMORY_SLOTS;
            format!("{mib}M,slots={slots},maxmem={}M", most >> 20)
        }
    };
    (smp, memory)
}

/// Returns a memory backend: `ram0` is the memory of the start, `ram1` the first block that was added.
fn memory_backend(number: usize, bytes: u64, backing: &RamBacking) -> OsString {
    match backing {
        RamBacking::Anonymous | RamBacking::Added { .. } => {
            format!("memory-backend-memfd,id=ram{number},size={bytes},share=on").into()
        }
        RamBacking::File(path) => {
            let mut value = OsString::from(format!(
                "memory-backend-file,id=ram{number},size={bytes},share=off,mem-path="
            ));
            value.push(escape(path));
            value
        }
    }
}

/// Returns the arguments for a complete configuration. `blocks` says what holds the memory that was added to the captured
/// machine. With `incoming`, QEMU starts paused and waits for a state.
// Long: one list, in the order of QEMU's command line.
pub fn arguments(
    spec: &Spec,
    config: &MachineConfig,
    ram: &RamBacking,
    blocks: &[RamBacking],
    incoming: bool,
) -> Vec<OsString> {
    let mut args: Vec<OsString> = Vec::new();
    let mut arg = |name: &str, value: OsString| args.extend([OsString::from(name), value]);
    let bytes = config.memory_bytes.unwrap_or(MEMORY_BYTES_DEFAULT);
    let machine_type = config.machine_type.as_deref().unwrap_or("q35");
    arg(
        "-name",
        format!("guest={},debug-threads=on", spec.name).into(),
    );
    let has_disk = |name: &str| config.disks.iter().any(|disk| disk == name);
    let flash = match has_disk(FIRMWARE_REGION) && has_disk(NVRAM_REGION) {
        true => format!(",pflash0={FIRMWARE_REGION},pflash1={NVRAM_REGION}"),
        false => String::new(),
    };
    arg(
        "-machine",
        format!("{machine_type},memory-backend=ram0,suppress-vmdesc=on,dump-guest-core=off{flash}")
            .into(),
    );
    arg(
        "-accel",
        match (spec.accel.name(), spec.emulator_cache_mib) {
            ("tcg", None) => "tcg,thread=multi".into(),
            ("tcg", Some(mib)) => format!("tcg,thread=multi,tb-size={mib}").into(),
            (other, _) => other.into(),
        },
    );
    arg(
        "-cpu",
        format!(
            "{},enforce",
            config.cpu_model.as_deref().unwrap_or(CPU_MODEL_DEFAULT)
        )
        .into(),
    );
    let (smp, memory) = sizes(config);
    arg("-smp", smp.into());
    arg("-m", memory.into());
    arg("-object", memory_backend(0, bytes, ram));
    for (index, (backing, bytes)) in blocks.iter().zip(&config.memory_blocks).enumerate() {
        arg("-object", memory_backend(index + 1, *bytes, backing));
    }
    // The mainboard's clock follows the host's clock rather than the guest's, so that it is right immediately after a
    // restore, however old the state is (see `clock`).
    arg("-rtc", "base=utc,clock=host".into());
    arg("-sandbox", SANDBOX.into());
    arg("-display", "none".into());
    arg(
        "-vnc",
        format!("unix:{},share=force-shared", files::VNC).into(),
    );
    for (id, file) in [("qmp0", files::QMP), ("qmp1", files::QMP_SPARE)] {
        arg(
            "-chardev",
            format!("socket,id={id},path={file},server=on,wait=off").into(),
        );
        arg("-mon", format!("chardev={id},mode=control").into());
    }
    let log = files::CONSOLE_LOG;
    arg(
        "-chardev",
        format!(
            "socket,id=console0,path={},server=on,wait=off,logfile={log},logappend=on",
            files::CONSOLE
        )
        .into(),
    );
    arg("-serial", "chardev:console0".into());
    arg(
        "-chardev",
        format!("socket,id=qga0,path={},server=on,wait=off", files::AGENT).into(),
    );
    if devices::has_floe_port(&config.devices) {
        let (id, path) = (devices::FLOE_CHARDEV, files::FLOE);
        arg(
            "-chardev",
            format!("socket,id={id},path={path},server=on,wait=off").into(),
        );
    }
    if devices::has(&config.devices, "virtio-rng-pci") {
        arg("-object", "rng-builtin,id=entropy0".into());
    }
    if devices::has_network_card(&config.devices) {
        let forwards: String = spec
            .forwards
            .iter()
            .map(|f| format!(",hostfwd={f}"))
            .collect();
        let restricted = |on: bool| if on { ",restrict=on" } else { "" };
        let netdev = match &spec.tap {
            Some(_) => format!("tap,id={NETDEV},fd={TAP_FD},vhost=off"),
            None => format!("user,id={NETDEV}{}{forwards}", restricted(spec.isolated)),
        };
        arg("-netdev", netdev.into());
        if spec.tap.is_some() && incoming {
            // a state that was saved on the user network contains data of that network; this unused network receives it
            arg("-netdev", "user,id=unused0,restrict=on".into());
        }
        // a machine whose first card is on a network of its own reaches what that one reaches, and nothing by its other cards
        let restrict = restricted(spec.isolated || spec.tap.is_some());
        for netdev in netdevs(config).filter(|netdev| *netdev != NETDEV) {
            let subnet = added_subnet(netdev);
            arg(
                "-netdev",
                format!("user,id={netdev},net={subnet}{restrict}").into(),
            );
        }
    }
    for (node, path) in disk_nodes(config).iter().zip(&spec.disks) {
        let access = match READ_ONLY_DISKS.contains(&node.as_str()) {
            true => "read-only=on,file.read-only=on",
            false => "discard=unmap,file.discard=unmap",
        };
        let mut value = OsString::from(format!(
            "driver=raw,node-name={node},{access},detect-zeroes=off,cache.direct=on,\
             file.driver=file,file.cache.direct=on,file.aio=threads,file.filename="
        ));
        value.push(escape(path));
        arg("-blockdev", value);
    }
    for device in &config.devices {
        arg("-device", device.into());
    }
    if let Some(boot) = &spec.boot
        && !incoming
    {
        arg("-kernel", boot.kernel.clone().into());
        if let Some(initrd) = &boot.initrd {
            arg("-initrd", initrd.clone().into());
        }
        if let Some(cmdline) = hardware::cmdline(config, &spec.accel) {
            arg("-append", cmdline.into());
        }
    }
    if incoming {
        arg("-global", "migration.send-configuration=off".into());
        arg("-incoming", "defer".into());
        // A reset needs firmware, ROMs and kernel as in a cold start: so QEMU ends, and the caller starts the machine
        // cold with the same disks.
        arg("-action", "reboot=shutdown".into());
        args.push("-S".into());
    }
    args.extend([
        "-nodefaults".into(),
        "-no-user-config".into(),
        "-msg".into(),
        "timestamp=on".into(),
    ]);
    args
}

/// Returns QEMU's names for the host's ends of the machine's network cards.
pub(crate) fn netdevs(config: &MachineConfig) -> impl Iterator<Item = &str> {
    devices::values(&config.devices, "netdev")
}

/// Returns QEMU's names for the machine's disks, in the order of `config.disks`.
pub(crate) fn disk_nodes(config: &MachineConfig) -> Vec<String> {
    // after a removal, the numbers have gaps
    let mut drives =
        devices::values(&config.devices, "drive").filter(|d| !floe_image::is_special_disk(d));
    let node = |disk: &String| match floe_image::is_special_disk(disk) {
        true => disk.clone(),
        false => drives.next().unwrap_or(disk).to_owned(),
    };
    config.disks.iter().map(node).collect()
}

/// Doubles each comma, as QEMU requires in a value.
fn escape(path: &Path) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let bytes = path.as_os_str().as_bytes().iter();
    OsString::from_vec(
        bytes
            .flat_map(|&b| std::iter::repeat_n(b, if b == b',' { 2 } else { 1 }))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_gets_an_address_of_its_own_everywhere() {
        let old = "52:54:00:00:00:01";
        let mut config = MachineConfig {
            nic_mac: Some(old.into()),
            devices: devices::canonical(
                &["disk0".into()],
                old,
                Profile::Growable,
                Models::default(),
            ),
            ..Default::default()
        };
        config.devices.push(devices::card(1, old, 1));
        renew_mac(&mut config);
        let new = config.nic_mac.clone().unwrap();
        assert_ne!(new, old);
        let added = config.devices.pop().unwrap();
        let its = devices::property(&added, "mac").unwrap();
        assert!(is_mac(its) && its != old && its != new, "{added}");
        assert_eq!(
            config.devices,
            devices::canonical(
                &["disk0".into()],
                &new,
                Profile::Growable,
                Models::default()
            )
        );
        let mut without = MachineConfig::default();
        renew_mac(&mut without);
        assert_eq!(without, MachineConfig::default());
    }

    #[test]
    fn a_qemu_that_waits_fits_what_differs_in_addresses_and_labels_only() {
        let mut config = MachineConfig {
            nic_mac: Some("52:54:00:00:00:01".into()),
            cmdline: Some("quiet".into()),
            devices: devices::canonical(
                &["disk0".into()],
                "52:54:00:00:00:01",
                Profile::Growable,
                Models::default(),
            ),
            ..Default::default()
        };
        let card = devices::card(1, "52:54:00:00:00:02", 1);
        config.devices.push(card);
        let mut other = config.clone();
        renew_mac(&mut other);
        other.labels.insert("made".into(), "later".into());
        other.cmdline = None;
        assert_ne!(other.devices, config.devices);
        assert_eq!(hardware_of(&other), hardware_of(&config));
        other.devices.pop();
        assert_ne!(hardware_of(&other), hardware_of(&config));
        let more = MachineConfig {
            cpus: Some(2),
            ..config.clone()
        };
        assert_ne!(hardware_of(&more), hardware_of(&config));
    }

    #[test]
    fn a_foreign_configuration_cannot_add_arguments() {
        let bad = [
            MachineConfig {
                machine_type: Some("pc-q35-7.2,dumpdtb=/etc/x".into()),
                ..Default::default()
            },
            MachineConfig {
                machine_type: Some("pc-q35-7.2\u{e9}".into()),
                ..Default::default()
            },
            MachineConfig {
                machine_type: Some("microvm".into()),
                ..Default::default()
            },
            MachineConfig {
                cpu_model: Some("host".into()),
                ..Default::default()
            },
            MachineConfig {
                cpu_model: Some("Nehalem,-nx".into()),
                ..Default::default()
            },
            MachineConfig {
                nic_mac: Some("52:54:00:12:34:5,".into()),
                ..Default::default()
            },
            MachineConfig {
                memory_bytes: Some(u64::MAX),
                ..Default::default()
            },
            MachineConfig {
                memory_bytes: Some((64 << 20) + 1),
                ..Default::default()
            },
            MachineConfig {
                cpus: Some(0),
                ..Default::default()
            },
            MachineConfig {
                disks: vec![String::new(); DISKS_MAX + 1],
                ..Default::default()
            },
            MachineConfig {
                cmdline: Some("a\0b".into()),
                ..Default::default()
            },
            MachineConfig {
                devices: vec!["loader,file=/etc/shadow".into()],
                ..Default::default()
            },
        ];
        for config in bad {
            assert!(
                matches!(check(&config), Err(MachineError::Untrusted { .. })),
                "{config:?}"
            );
        }
        check(&MachineConfig::default()).unwrap();
    }

    /// The networks of a machine with an added card, as QEMU is told of them.
    fn networks(spec: &Spec, incoming: bool) -> Vec<String> {
        let mac = "52:54:00:00:00:01";
        let mut devices = devices::canonical(&[], mac, Profile::Growable, Models::default());
        devices.push(devices::card(1, mac, 1));
        let config = MachineConfig {
            devices,
            ..Default::default()
        };
        check(&config).unwrap();
        let arguments = arguments(spec, &config, &RamBacking::Anonymous, &[], incoming);
        let pairs = arguments.windows(2).filter(|pair| pair[0] == "-netdev");
        pairs
            .map(|pair| pair[1].to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn a_card_beside_that_of_a_family_leads_nowhere() {
        let accel = crate::Accel::Tcg {
            reason: String::new(),
        };
        let programs = crate::Programs {
            qemu: "qemu".into(),
            wrapper: Vec::new(),
        };
        let mut spec = Spec::new("web", "/web", accel, programs);
        let added = "user,id=net1,net=10.0.3.0/24";
        assert_eq!(networks(&spec, true), ["user,id=net0", added]);
        let (device, _) = std::io::pipe().unwrap();
        spec.tap = Some(crate::Tap::new(device.into()));
        let tap = "tap,id=net0,fd=0,vhost=off";
        let added = format!("{added},restrict=on");
        assert_eq!(networks(&spec, false), [tap, &added]);
        let unused = "user,id=unused0,restrict=on";
        assert_eq!(networks(&spec, true), [tap, unused, &added]);
        spec.tap = None;
        spec.isolated = true;
        assert_eq!(
            networks(&spec, true),
            ["user,id=net0,restrict=on", added.as_str()]
        );
    }

    #[test]
    fn a_comma_in_a_path_stays_in_the_path() {
        assert_eq!(escape(Path::new("/a,b=c")), OsString::from("/a,,b=c"));
    }
}
