//! Hardware profiles, which determine what can be added to a machine while it runs.
//!
//! A machine's device state includes its hardware, and can be loaded only into a machine with the same. So the room to
//! grow must be there from the start: a limit of vCPUs above the current number, slots and addresses for memory, a bus
//! with places for cards and disks. An image records its profile; the state of an older profile runs on with that
//! profile.
//!
//! | profile | vCPUs | memory | cards and disks |
//! | --- | --- | --- | --- |
//! | 1 | as started | as started | as started |
//! | 2 | up to 8, or twice as many as at the start | 8 slots, up to 8 times that of the start | 31 places behind one root port |
//!
//! Two costs fall on the guest. Linux reserves 256 KiB for each vCPU that may be added: 1.8 MB for seven. And as soon as
//! memory may appear above 4 GiB, Linux sets 64 MiB aside for devices that can't reach it, of which floe has none unless older
//! models were chosen: a kernel that floe loads gets `swiotlb=noforce`; a guest that boots from its own disk can't be configured so, and
//! therefore has no memory slots below [`SLOTS_FROM_BYTES`].

use floe_image::MachineConfig;

use crate::accel::Accel;
use crate::devices;
use crate::models::Models;
use crate::profile::Profile;
use crate::sectors;
use crate::spec::{CPUS_MAX, DISKS_MAX};

/// Number of memory blocks that can be added to a machine of profile 2.
pub const MEMORY_SLOTS: usize = 8;
/// Memory is added in multiples of this many bytes: the least that Linux on x86 accepts.
pub const MEMORY_STEP_BYTES: u64 = 128 << 20;
/// Number of vCPUs that every machine of profile 2 can have at least.
const CPUS_MAX_LEAST: u32 = 8;
/// Memory in bytes that every machine of profile 2 can have at least: address space costs nothing.
const MEMORY_MAX_LEAST_BYTES: u64 = 16 << 30;
/// Most memory in bytes of a machine that can grow: half of what the default CPU model can address, which leaves room for
/// devices.
const MEMORY_MAX_MOST_BYTES: u64 = 512 << 30;
/// Least memory in bytes of a machine with memory slots that boots from its own disk: its guest then loses at most a
/// sixteenth.
const SLOTS_FROM_BYTES: u64 = 1 << 30;
/// Kernel option that keeps Linux from setting memory aside for devices that address only 4 GiB.
const NO_BOUNCE_BUFFER: &str = "swiotlb=noforce";
/// Lets the kernel believe that its timer's interrupts arrive. Otherwise it counts them for some milliseconds at boot and gives up
/// ("IO-APIC + timer doesn't work!") if too few come, as on a host whose processors are busy with others while QEMU emulates one.
const NO_TIMER_CHECK: &str = "no_timer_check";

/// What a machine has and can still be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// vCPUs that it has now.
    pub cpus: u32,
    /// Most vCPUs that it can have.
    pub cpus_max: u32,
    /// Memory that it has now, in bytes.
    pub memory_bytes: u64,
    /// Most memory that it can have, in bytes.
    pub memory_bytes_max: u64,
    /// Free memory slots; each takes one block of any size.
    pub memory_slots_free: usize,
    /// Free places for cards and disks.
    pub places_free: usize,
}

impl Room {
    /// Returns the room of a machine with a complete configuration.
    pub fn of(config: &MachineConfig) -> Room {
        let cpus = config.cpus_now().unwrap_or_default();
        let memory_bytes = config.memory_bytes_now().unwrap_or_default();
        let slots = config.memory_bytes_max.map_or(0, |_| MEMORY_SLOTS);
        let taken = config.devices.iter().filter(|d| devices::is_placed(d));
        let places = match devices::has_places(&config.devices) {
            true => devices::PLACES as usize,
            false => 0,
        };
        Room {
            cpus,
            cpus_max: config.cpus_max.unwrap_or(cpus),
            memory_bytes,
            memory_bytes_max: config.memory_bytes_max.unwrap_or(memory_bytes),
            memory_slots_free: slots.saturating_sub(config.memory_blocks.len()),
            places_free: places.saturating_sub(taken.count()),
        }
    }
}

/// Gives a configuration another number of vCPUs and another size of memory in bytes, with which its next cold start begins. What was
/// added while it ran is no longer in it.
pub fn set_size(config: &mut MachineConfig, cpus: Option<u32>, memory_bytes: Option<u64>) {
    config.cpus = cpus.or(config.cpus_now());
    config.memory_bytes = memory_bytes.or(config.memory_bytes_now());
    config.memory_blocks.clear();
    config.devices.retain(|device| {
        let driver = device.split(',').next().unwrap_or_default();
        driver != "pc-dimm" && !driver.ends_with(floe_image::CPU_DRIVER_SUFFIX)
    });
}

/// Gives a configuration another disk, which has a number (`disk1`), where one would be added while the machine runs: its next cold start
/// has it, and it can be taken away again later. `sector` is the size in bytes of its sectors, if that is not the usual one. An error says
/// why there is no room.
pub fn give_disk(
    config: &mut MachineConfig,
    disk: &str,
    sector: Option<u32>,
) -> Result<(), String> {
    let Some(number) = floe_image::disk_number(disk) else {
        return Err(format!("{disk:?} is no name of a disk"));
    };
    if config.disks.len() >= DISKS_MAX {
        return Err(format!(
            "it has {DISKS_MAX} disks already, which is the most"
        ));
    }
    // one without a device gets a place of its own at the start
    let device = devices::added_disk(&config.devices, number);
    let device = device.map(|device| sectors::with_sector(device, sector));
    config.devices.extend(device);
    config.disks.push(disk.to_owned());
    let sector = sector.map(|sector| (disk.to_owned(), sector));
    config.disk_sectors.extend(sector);
    Ok(())
}

/// Takes a disk out of a configuration; its next cold start is without it.
pub fn take_disk(config: &mut MachineConfig, disk: &str) {
    config.disks.retain(|other| other != disk);
    config.disk_sectors.remove(disk);
    let of_it = |device: &String| devices::property(device, "drive") == Some(disk);
    config.devices.retain(|device| !of_it(device));
}

/// Returns whether a machine with this configuration can lose the disk while it runs: it got it while it ran.
pub fn is_removable_disk(config: &MachineConfig, disk: &str) -> bool {
    devices::removable_disk(&config.devices, disk).is_some()
}

/// Returns what of these devices keeps the machine's state from being saved, in words; `None` if nothing does.
pub(crate) fn unsavable(devices: &[String]) -> Option<&'static str> {
    devices::has(devices, "nvme").then_some(
        "QEMU cannot save the state of NVMe disks; start it with another --disk-model, such as virtio or sata",
    )
}

/// Makes what was added to a machine part of its start configuration, and gives it the room of its profile. `own_kernel`:
/// QEMU loads the guest's kernel, so floe controls its command line.
pub(crate) fn settle(config: &mut MachineConfig, profile: Profile, own_kernel: bool) {
    config.cpus = config.cpus_now();
    config.memory_bytes = config.memory_bytes_now();
    config.memory_blocks.clear();
    (config.profile, config.cpus_max, config.memory_bytes_max) = (None, None, None);
    if profile == Profile::Fixed {
        return;
    }
    config.profile = Some(Profile::NEWEST);
    let cpus = config.cpus.unwrap_or(1);
    config.cpus_max = Some(
        cpus.saturating_mul(2)
            .clamp(CPUS_MAX_LEAST, CPUS_MAX.max(cpus)),
    );
    let memory = config.memory_bytes.unwrap_or_default();
    let most = memory
        .saturating_mul(8)
        .clamp(MEMORY_MAX_LEAST_BYTES, MEMORY_MAX_MOST_BYTES);
    // a machine with unknown models is refused later
    let reach = Models::of(config).is_ok_and(Models::reach_all_memory);
    let affordable = own_kernel && reach || memory >= SLOTS_FROM_BYTES;
    config.memory_bytes_max = Some(most).filter(|most| affordable && *most > memory);
}

/// Returns the kernel's command line: the configured one, and the options that the machine's hardware and an emulated processor
/// need.
pub(crate) fn cmdline(config: &MachineConfig, accel: &Accel) -> Option<String> {
    let own = config.cmdline.as_deref();
    // a user who mentions an option knows why
    let told = |option: &str| {
        let mut words = own.unwrap_or_default().split(' ');
        words.any(|word| word.starts_with(option))
    };
    let mut words: Vec<&str> = own.into_iter().filter(|line| !line.is_empty()).collect();
    let reach = Models::of(config).is_ok_and(Models::reach_all_memory);
    if config.memory_bytes_max.is_some() && reach && !told("swiotlb") {
        words.push(NO_BOUNCE_BUFFER);
    }
    if matches!(accel, Accel::Tcg { .. }) && !told(NO_TIMER_CHECK) {
        words.push(NO_TIMER_CHECK);
    }
    match words.is_empty() {
        true => own.map(str::to_owned),
        false => Some(words.join(" ")),
    }
}

/// Checks the hardware of a configuration from an image; otherwise returns what is wrong.
pub(crate) fn check(config: &MachineConfig) -> Result<(), String> {
    let room = Room::of(config);
    if config.cpus.is_some() && !(room.cpus..=CPUS_MAX.max(room.cpus)).contains(&room.cpus_max) {
        return Err(format!(
            "{} vCPUs of at most {}: the limit must be between that and {CPUS_MAX}",
            room.cpus, room.cpus_max
        ));
    }
    let most = crate::spec::MEMORY_BYTES_MAX;
    if config.memory_bytes.is_some()
        && (room.memory_bytes > room.memory_bytes_max
            || room.memory_bytes_max > most
            || !room.memory_bytes_max.is_multiple_of(1 << 20))
    {
        return Err(format!(
            "{} bytes of memory of at most {}: the limit must be whole MiB between that and {most}",
            room.memory_bytes, room.memory_bytes_max
        ));
    }
    let known = [sectors::SECTOR_BYTES, sectors::SECTOR_BYTES_LARGE];
    let odd = config
        .disk_sectors
        .iter()
        .find(|(_, bytes)| !known.contains(bytes));
    if let Some((disk, bytes)) = odd {
        return Err(format!(
            "{disk} has sectors of {bytes} bytes: there are those of 512 and of 4096"
        ));
    }
    let blocks = &config.memory_blocks;
    if blocks.len() > MEMORY_SLOTS {
        return Err(format!(
            "{} memory blocks: at most {MEMORY_SLOTS}",
            blocks.len()
        ));
    }
    let odd = |bytes: &&u64| **bytes == 0 || !bytes.is_multiple_of(MEMORY_STEP_BYTES);
    if let Some(bytes) = blocks.iter().find(odd) {
        return Err(format!(
            "a memory block of {bytes} bytes: must be a multiple of {MEMORY_STEP_BYTES}"
        ));
    }
    let modules = config.devices.iter().filter(|d| d.starts_with("pc-dimm,"));
    if modules.count() != blocks.len() {
        return Err(format!(
            "its devices do not name each of the {} memory blocks once",
            blocks.len()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(cpus: u32, mib: u64, own_kernel: bool) -> MachineConfig {
        let mut config = MachineConfig {
            cpus: Some(cpus),
            memory_bytes: Some(mib << 20),
            ..Default::default()
        };
        settle(&mut config, Profile::Growable, own_kernel);
        check(&config).unwrap();
        config
    }

    #[test]
    fn the_room_to_grow_follows_the_size_at_the_start() {
        let limits = |config: &MachineConfig| {
            let gib = config.memory_bytes_max.map(|bytes| bytes >> 30);
            (config.cpus_max.unwrap(), gib)
        };
        assert_eq!(limits(&settled(1, 128, true)), (8, Some(16)));
        assert_eq!(limits(&settled(6, 4096, true)), (12, Some(32)));
        assert_eq!(limits(&settled(200, 900 << 10, true)), (CPUS_MAX, None));
        assert_eq!(
            limits(&settled(CPUS_MAX, 1024, false)),
            (CPUS_MAX, Some(16))
        );
        // a small guest that boots from its disk would lose half of its memory to a buffer
        assert_eq!(limits(&settled(1, 512, false)), (8, None));
    }

    #[test]
    fn what_was_added_belongs_to_the_machine_from_its_next_start() {
        let mut config = settled(1, 256, true);
        config.devices.push(devices::cpu("Nehalem", 1));
        config.devices.push(devices::placed_memory(1, 1 << 32));
        config.memory_blocks.push(MEMORY_STEP_BYTES);
        check(&config).unwrap();
        let room = Room::of(&config);
        assert_eq!((room.cpus, room.memory_bytes >> 20), (2, 384));
        assert_eq!((room.memory_slots_free, room.places_free), (7, 0));
        settle(&mut config, Profile::Fixed, true);
        assert_eq!(
            (config.cpus, config.memory_bytes),
            (Some(2), Some(384 << 20))
        );
        assert!(config.memory_blocks.is_empty() && config.profile.is_none());
    }

    #[test]
    fn an_unknown_profile_is_refused_with_the_way_out() {
        let mut config = MachineConfig::default();
        assert_eq!(Profile::of(&config), Ok(Profile::Fixed));
        config.profile = Some(2);
        assert_eq!(Profile::of(&config), Ok(Profile::Growable));
        config.profile = Some(3);
        let error = Profile::of(&config).unwrap_err().to_string();
        assert!(
            error.contains("profile 3") && error.contains("update floe"),
            "{error}"
        );
    }

    #[test]
    fn the_kernel_keeps_no_buffer_that_no_device_needs() {
        let cmdline = |config: &MachineConfig| cmdline(config, &Accel::Kvm);
        let mut config = settled(1, 256, true);
        assert_eq!(cmdline(&config).unwrap(), "swiotlb=noforce");
        config.cmdline = Some("quiet".into());
        assert_eq!(cmdline(&config).unwrap(), "quiet swiotlb=noforce");
        config.cmdline = Some("swiotlb=1024 quiet".into());
        assert_eq!(cmdline(&config).unwrap(), "swiotlb=1024 quiet");
        settle(&mut config, Profile::Fixed, true);
        config.cmdline = None;
        assert_eq!(cmdline(&config), None);
    }

    #[test]
    fn an_emulated_kernel_does_not_give_up_on_its_timer() {
        let emulated = Accel::Tcg {
            reason: "no /dev/kvm".into(),
        };
        let mut config = MachineConfig::default();
        assert_eq!(cmdline(&config, &emulated).unwrap(), "no_timer_check");
        config.cmdline = Some("quiet".into());
        assert_eq!(cmdline(&config, &emulated).unwrap(), "quiet no_timer_check");
        assert_eq!(cmdline(&config, &Accel::Kvm).unwrap(), "quiet");
        config.cmdline = Some("no_timer_check quiet".into());
        assert_eq!(cmdline(&config, &emulated).unwrap(), "no_timer_check quiet");
    }

    #[test]
    fn a_foreign_image_cannot_claim_more_than_floe_gives() {
        let change = |change: &dyn Fn(&mut MachineConfig)| {
            let mut config = settled(2, 256, true);
            change(&mut config);
            check(&config).unwrap_err()
        };
        assert!(change(&|c| c.cpus_max = Some(1)).contains("vCPUs"));
        assert!(change(&|c| c.cpus_max = Some(4000)).contains("vCPUs"));
        assert!(change(&|c| c.memory_bytes_max = Some(u64::MAX)).contains("memory"));
        assert!(change(&|c| c.memory_bytes_max = Some(1 << 20)).contains("memory"));
        assert!(change(&|c| c.memory_blocks = vec![1 << 20]).contains("multiple"));
        let odd = |c: &mut MachineConfig| {
            c.disk_sectors.insert("disk0".into(), 513);
        };
        assert!(change(&odd).contains("sectors of 513 bytes"));
        assert!(change(&|c| c.memory_blocks = vec![1 << 27]).contains("each"));
        assert!(change(&|c| c.memory_blocks = vec![1 << 27; 9]).contains("at most 8"));
    }
}
