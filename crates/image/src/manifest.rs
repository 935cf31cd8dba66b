//! The manifest: the root of an image.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::wire::{Cursor, limit};
use crate::{CHUNK_SIZE, CHUNKS_PER_SEGMENT, FormatError, Hash, SEGMENT_SPAN, Segment};

const MAGIC: &[u8; 8] = b"FLOEIMAG";
/// No region has patches.
const VERSION_PLAIN: u32 = 1;
/// Each region ends with its patches; written only if there are any.
const VERSION_PATCHED: u32 = 2;
/// The machine has a hardware profile above 1. Each region ends with its patches, whether there are any or not.
const VERSION_PROFILED: u32 = 3;
const WHAT: &str = "image manifest";
const FLAG_PARENT: u32 = 1;

/// Most regions of an image: RAM, VRAM, device state, kernel, initrd and some fifty disks.
pub const REGIONS_MAX: usize = 64;
/// Most bytes of a region's name.
pub const REGION_NAME_MAX: usize = 32;
/// Most bytes of all regions together: 16 TiB, so that a chunk's number fits into 32 bits.
pub const IMAGE_BYTES_MAX: u64 = 1 << 44;
/// Most bytes of the configuration's JSON: a thousand times the largest known.
pub const CONFIG_BYTES_MAX: usize = 256 * 1024;
/// Most bytes of a string in the configuration.
pub const CONFIG_STRING_MAX: usize = 8192;
/// Most entries of a list in the configuration.
pub const CONFIG_LIST_MAX: usize = 512;
/// Most patches of an image (36 MiB): a hundred times what floe-store writes.
pub const PATCHES_MAX: usize = 1 << 20;
/// Encoded bytes of one patch.
const PATCH_BYTES: usize = 36;
/// Most bytes of a manifest: 16 TiB of segments (128 MiB), all patches, and the rest.
pub const MANIFEST_BYTES_MAX: usize = 166 << 20;

/// One range of bytes of a machine's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// `ram`, `ram1`, `vram`, `disk0`, `device`, `kernel`, `initrd`, `trace` ...: 1 to 32 of `a-z 0-9 -`.
    pub name: String,
    /// Its size in bytes. The last chunk is padded with zeros before it is hashed.
    pub size: u64,
    /// One hash for each 4 MiB or part of it; [`Hash::ZERO`] for a segment of zeros.
    pub segments: Vec<Hash>,
    /// Chunks that differ from what their segment says, ascending. A capture of a machine that changed only some scattered
    /// chunks lists them in its manifest and keeps the segments of the image before.
    pub patches: Vec<Patch>,
}

/// A chunk of a region that replaces the one in its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch {
    /// The chunk's number in the region.
    pub chunk: u32,
    /// The hash of its content; [`Hash::ZERO`] for zeros.
    pub hash: Hash,
}

impl Region {
    /// Returns the patches of one segment.
    pub fn patches_of(&self, segment: usize) -> &[Patch] {
        let place = |segment: usize| {
            let first = (segment * CHUNKS_PER_SEGMENT) as u64;
            self.patches
                .partition_point(|patch| u64::from(patch.chunk) < first)
        };
        &self.patches[place(segment)..place(segment + 1)]
    }

    /// Applies a segment's patches to its stored table.
    pub fn patch(&self, segment: usize, table: &mut Segment) {
        for patch in self.patches_of(segment) {
            table.set(patch.chunk as usize % CHUNKS_PER_SEGMENT, patch.hash);
        }
    }

    /// Returns the hashes in patches, without zeros.
    pub fn patched_chunks(&self) -> impl Iterator<Item = Hash> + '_ {
        let hashes = self.patches.iter().map(|patch| patch.hash);
        hashes.filter(|hash| !hash.is_zero())
    }

    /// Returns how many segments a region of `size` bytes has.
    pub fn segments_for(size: u64) -> u64 {
        size.div_ceil(SEGMENT_SPAN)
    }

    /// Returns how many chunks this region has; the last one may be partial.
    pub fn chunks(&self) -> u64 {
        self.size.div_ceil(CHUNK_SIZE as u64)
    }
}

/// An image: immutable, and named by the hash of its encoding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The image that this one was captured from. The manifest is complete in itself: a reader needs no parent; a store uses it
    /// to find the size of a layer and to share packs. No image can be its own parent: its encoding would have to contain its
    /// own hash.
    pub parent: Option<Hash>,
    /// When it was captured or imported, in seconds since 1970.
    pub created_unix_s: u64,
    /// What QEMU needs to start the machine in the same way.
    pub config: MachineConfig,
    /// The regions of the state; traces refer to them by their position here.
    pub regions: Vec<Region>,
}

/// How the machine was started, which a restore must repeat. JSON in the manifest; an absent field is unknown or the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MachineConfig {
    /// QEMU's machine type with its version, such as `pc-q35-7.2`: it determines the ROMs and ACPI tables that a restore
    /// creates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_type: Option<String>,
    /// The version of QEMU, such as `7.2.15`: only the same major.minor can load the device state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qemu_version: Option<String>,
    /// The name of a CPU model, never `host`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_model: Option<String>,
    /// CPUID flags that the guest saw; a host that lacks one refuses to restore.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpu_flags: Vec<String>,
    /// The accelerator at capture: `kvm` or `tcg`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accel: Option<String>,
    /// vCPUs that the machine was booted with; [`MachineConfig::cpus_now`] also counts those that were added later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Bytes of RAM that the machine was booted with, in the region `ram`; [`MachineConfig::memory_bytes_now`] is all RAM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The kernel's command line, for a direct boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cmdline: Option<String>,
    /// Canonical `-device` strings in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Names of the disks' regions, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<String>,
    /// Bytes of a sector, of each disk that has not the usual 512.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub disk_sectors: BTreeMap<String, u32>,
    /// The network card's MAC address, which the guest has in its memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nic_mac: Option<String>,
    /// The hardware profile: what can be added to the machine while it runs. Absent for profile 1, to which nothing can be
    /// added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<u32>,
    /// Most vCPUs that the machine can have while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus_max: Option<u32>,
    /// Most RAM in bytes that the machine can have while it runs; absent if it has no slots for more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes_max: Option<u64>,
    /// Bytes of each memory block that was added while the machine ran: the first one is the region `ram1`, the next one
    /// `ram2`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub memory_blocks: Vec<u64>,
    /// What starts a machine of this image: `uefi`; absent for a BIOS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// How a cold start connects the disks: `scsi`, `sata`, `ide` or `nvme`; absent for virtio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_model: Option<String>,
    /// The network card of a cold start: `e1000`, `e1000e` or `rtl8139`; absent for virtio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_model: Option<String>,
    /// What a cold start tries to boot before the disks: `cdrom`; absent if the disks come first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// Free text of users and tools.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// The region with a UEFI firmware's code, which its machine only reads. A running state fits only the firmware that it ran on.
pub const FIRMWARE_REGION: &str = "firmware";
/// The region with a UEFI firmware's variables, such as the order in which it tries to boot.
pub const NVRAM_REGION: &str = "nvram";
/// The region with a machine's CD-ROM.
pub const CDROM_REGION: &str = "cdrom";
/// The region with the disk from which cloud-init reads what it is to set up.
pub const SEED_REGION: &str = "seed";
/// Disks of a machine that are not numbered, in the order in which they follow those that are.
pub const SPECIAL_DISKS: [&str; 4] = [FIRMWARE_REGION, NVRAM_REGION, CDROM_REGION, SEED_REGION];

/// Returns the number of a disk that is called `disk` and a number.
pub fn disk_number(disk: &str) -> Option<usize> {
    let number: usize = disk.strip_prefix("disk")?.parse().ok()?;
    (disk == format!("disk{number}")).then_some(number)
}

/// Whether a disk of a machine is one that has a name, not a number.
pub fn is_special_disk(disk: &str) -> bool {
    SPECIAL_DISKS.contains(&disk)
}

/// How the name of a vCPU's driver ends, after the name of the CPU model.
pub const CPU_DRIVER_SUFFIX: &str = "-x86_64-cpu";

impl MachineConfig {
    /// Returns how many vCPUs the machine has: those that it booted with and those that were added. `None` if unknown.
    pub fn cpus_now(&self) -> Option<u32> {
        let driver = |device: &&String| {
            let driver = device.split(',').next().unwrap_or_default();
            driver.ends_with(CPU_DRIVER_SUFFIX)
        };
        let added = self.devices.iter().filter(driver).count();
        Some(self.cpus?.saturating_add(added as u32))
    }

    /// Returns how many bytes of RAM the machine has: those that it booted with and those that were added. `None` if unknown.
    pub fn memory_bytes_now(&self) -> Option<u64> {
        let added = self.memory_blocks.iter().copied();
        Some(added.fold(self.memory_bytes?, u64::saturating_add))
    }

    fn check(&self) -> Result<(), FormatError> {
        let grown = self.cpus_max.is_some()
            || self.memory_bytes_max.is_some()
            || !self.memory_blocks.is_empty();
        match self.profile {
            None if grown => {
                return Err(FormatError::invalid(
                    WHAT,
                    "it tells how the machine can grow and names no hardware profile",
                ));
            }
            Some(profile @ 0..=1) => {
                let why = format!("hardware profile {profile} is written by leaving it out");
                return Err(FormatError::invalid(WHAT, why));
            }
            _ => {}
        }
        if self.cpus == Some(0) {
            return Err(FormatError::invalid(WHAT, "its machine has no vCPU"));
        }
        limit(
            "number of memory blocks that were added",
            self.memory_blocks.len() as u64,
            REGIONS_MAX as u64,
        )?;
        let options = [
            &self.machine_type,
            &self.qemu_version,
            &self.cpu_model,
            &self.accel,
            &self.cmdline,
            &self.nic_mac,
            &self.firmware,
            &self.disk_model,
            &self.network_model,
            &self.boot,
        ];
        let lists = [&self.cpu_flags, &self.devices, &self.disks];
        for list in lists {
            limit(
                "length of a list in the machine's configuration",
                list.len() as u64,
                CONFIG_LIST_MAX as u64,
            )?;
        }
        limit(
            "number of disks with sectors of their own size",
            self.disk_sectors.len() as u64,
            CONFIG_LIST_MAX as u64,
        )?;
        limit(
            "number of labels",
            self.labels.len() as u64,
            CONFIG_LIST_MAX as u64,
        )?;
        let strings = options
            .into_iter()
            .flatten()
            .chain(lists.into_iter().flatten());
        for s in strings
            .chain(self.disk_sectors.keys())
            .chain(self.labels.keys())
            .chain(self.labels.values())
        {
            limit(
                "length of a string in the machine's configuration",
                s.len() as u64,
                CONFIG_STRING_MAX as u64,
            )?;
        }
        Ok(())
    }
}

/// Returns whether `name` may name a region: 1 to 32 of `a-z 0-9 -`, so it is never a path.
pub fn region_name_is_valid(name: &str) -> bool {
    (1..=REGION_NAME_MAX).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// Returns the region of the memory block with this number: `ram` for the RAM that the machine booted with (number 0), `ram1`
/// for the first block that was added.
pub fn memory_region(block: usize) -> String {
    match block {
        0 => "ram".into(),
        block => format!("ram{block}"),
    }
}

/// Returns the number of the memory block that the region `name` is; the inverse of [`memory_region`].
pub fn memory_block(name: &str) -> Option<usize> {
    let digits = name.strip_prefix("ram")?;
    let block = match digits {
        "" => 0,
        digits => digits.parse().ok()?,
    };
    // Each block has exactly one name, so `ram0` and `ram01` are none.
    (memory_region(block) == name).then_some(block)
}

impl Manifest {
    /// Returns a hash that identifies the content of the disk that the machine boots from, or of its first disk; `None` without any.
    /// Images that were made of the same disk have the same one, whenever and with whatever hardware they were made.
    pub fn boot_disk(&self) -> Option<Hash> {
        let region = self
            .config
            .disks
            .iter()
            .find_map(|name| self.region(name))?;
        let mut bytes = Vec::with_capacity(
            64 + region.segments.len() * 32 + region.patches.len() * PATCH_BYTES,
        );
        bytes.extend_from_slice(b"floe boot disk\0");
        bytes.extend_from_slice(&region.size.to_le_bytes());
        bytes.extend_from_slice(&(region.segments.len() as u64).to_le_bytes());
        for segment in &region.segments {
            bytes.extend_from_slice(&segment.0);
        }
        for patch in &region.patches {
            bytes.extend_from_slice(&patch.chunk.to_le_bytes());
            bytes.extend_from_slice(&patch.hash.0);
        }
        Some(Hash::of(&bytes))
    }

    /// Returns the bytes whose hash names the image. Call [`Manifest::check`] before, on a manifest that you made.
    ///
    /// # Panics
    /// If a region's name has more than 255 bytes or a count doesn't fit into 32 bits, both of which `check` refuses.
    pub fn encode(&self) -> Vec<u8> {
        let config = serde_json::to_vec(&self.config)
            .expect("strings, numbers and a map of strings are always JSON");
        let u32_of = |n: usize| u32::try_from(n).expect("check() bounds every count");
        let parts = |r: &Region| r.segments.len() * 32 + r.patches.len() * PATCH_BYTES;
        let parts: usize = self.regions.iter().map(parts).sum();
        let mut out = Vec::with_capacity(64 + config.len() + self.regions.len() * 64 + parts);
        let version = self.version();
        let patched = version != VERSION_PLAIN;
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&version.to_le_bytes());
        out.extend_from_slice(
            &if self.parent.is_some() {
                FLAG_PARENT
            } else {
                0
            }
            .to_le_bytes(),
        );
        out.extend_from_slice(&self.parent.unwrap_or(Hash::ZERO).0);
        out.extend_from_slice(&self.created_unix_s.to_le_bytes());
        out.extend_from_slice(&u32_of(config.len()).to_le_bytes());
        out.extend_from_slice(&u32_of(self.regions.len()).to_le_bytes());
        out.extend_from_slice(&config);
        for region in &self.regions {
            out.push(u8::try_from(region.name.len()).expect("check() bounds names"));
            out.extend_from_slice(region.name.as_bytes());
            out.extend_from_slice(&region.size.to_le_bytes());
            out.extend_from_slice(&u32_of(region.segments.len()).to_le_bytes());
            out.extend(region.segments.iter().flat_map(|h| h.0));
            if patched {
                out.extend_from_slice(&u32_of(region.patches.len()).to_le_bytes());
                for patch in &region.patches {
                    out.extend_from_slice(&patch.chunk.to_le_bytes());
                    out.extend_from_slice(&patch.hash.0);
                }
            }
        }
        out
    }

    /// Returns the only version in which it may be written.
    fn version(&self) -> u32 {
        if self.config.profile.is_some() {
            VERSION_PROFILED
        } else if self.regions.iter().any(|r| !r.patches.is_empty()) {
            VERSION_PATCHED
        } else {
            VERSION_PLAIN
        }
    }

    /// Decodes a manifest and checks all its invariants. Only its id tells whether it is the wanted one.
    pub fn decode(bytes: &[u8]) -> Result<Manifest, FormatError> {
        limit(
            "size of an image manifest",
            bytes.len() as u64,
            MANIFEST_BYTES_MAX as u64,
        )?;
        let mut c = Cursor::new(WHAT, bytes);
        c.magic(MAGIC)?;
        let version = c.version_of(&[VERSION_PLAIN, VERSION_PATCHED, VERSION_PROFILED])?;
        let patched = version != VERSION_PLAIN;
        let flags = c.u32()?;
        let parent = c.hash()?;
        let parent = match (flags, parent.is_zero()) {
            (0, true) => None,
            (FLAG_PARENT, false) => Some(parent),
            _ => {
                return Err(FormatError::invalid(
                    WHAT,
                    format!("flags {flags:#x} contradict its parent {parent}"),
                ));
            }
        };
        let created_unix_s = c.u64()?;
        let config_len = c.u32()?;
        limit(
            "size of the machine's configuration",
            config_len.into(),
            CONFIG_BYTES_MAX as u64,
        )?;
        let region_count = c.u32()?;
        limit("number of regions", region_count.into(), REGIONS_MAX as u64)?;
        let config = decode_config(c.take(config_len as usize)?)?;
        let mut regions = Vec::new();
        for _ in 0..region_count {
            regions.push(decode_region(&mut c, patched)?);
        }
        c.end()?;
        let manifest = Manifest {
            parent,
            created_unix_s,
            config,
            regions,
        };
        // Each value has one encoding only.
        let right = manifest.version();
        if version != right {
            let why = match (version, right) {
                (_, VERSION_PROFILED) => {
                    format!(
                        "it has version {version} and a hardware profile, which needs version 3"
                    )
                }
                (VERSION_PROFILED, _) => "it has version 3 and no hardware profile".into(),
                _ => "it has the version of patched manifests and no patch".into(),
            };
            return Err(FormatError::invalid(WHAT, why));
        }
        manifest.check()?;
        Ok(manifest)
    }

    /// Decodes the manifest of image `id`; wrong bytes are a [`FormatError::Mismatch`].
    pub fn decode_verified(bytes: &[u8], id: &Hash) -> Result<Manifest, FormatError> {
        let found = Hash::of(bytes);
        if found != *id {
            return Err(FormatError::Mismatch {
                what: WHAT,
                expected: *id,
                found,
            });
        }
        Manifest::decode(bytes)
    }

    /// Checks the invariants: names are valid and unique, there is one segment hash for each 4 MiB or part of it, and all
    /// limits are kept.
    pub fn check(&self) -> Result<(), FormatError> {
        self.config.check()?;
        if self.parent.is_some_and(|p| p.is_zero()) {
            return Err(FormatError::invalid(
                WHAT,
                "its parent is the zero hash; an image without parent has None",
            ));
        }
        limit(
            "number of regions",
            self.regions.len() as u64,
            REGIONS_MAX as u64,
        )?;
        let mut names = BTreeSet::new();
        let (mut total, mut patches) = (0u64, 0u64);
        for region in &self.regions {
            let name = &region.name;
            if !region_name_is_valid(name) {
                let shown: String = name.chars().take(40).collect();
                let why = format!(
                    "region name {shown:?} is not 1 to {REGION_NAME_MAX} of a-z, 0-9 and -"
                );
                return Err(FormatError::invalid(WHAT, why));
            }
            if !names.insert(name) {
                return Err(FormatError::invalid(
                    WHAT,
                    format!("two regions are called {name:?}"),
                ));
            }
            total = total.saturating_add(region.size);
            limit("size of all regions in bytes", total, IMAGE_BYTES_MAX)?;
            let want = Region::segments_for(region.size);
            if region.segments.len() as u64 != want {
                let have = region.segments.len();
                let why = format!(
                    "region {name:?} of {} bytes has {have} segments, {want} are needed",
                    region.size
                );
                return Err(FormatError::invalid(WHAT, why));
            }
            patches += region.patches.len() as u64;
            limit("number of patches", patches, PATCHES_MAX as u64)?;
            let ascending = region.patches.windows(2).all(|p| p[0].chunk < p[1].chunk);
            let within = |last: &Patch| u64::from(last.chunk) < region.chunks();
            if !ascending || !region.patches.last().is_none_or(within) {
                let why = format!(
                    "the patches of region {name:?} are not in ascending order within its {} chunks",
                    region.chunks()
                );
                return Err(FormatError::invalid(WHAT, why));
            }
        }
        self.check_memory_blocks()
    }

    /// Checks that a running state has all of its memory: otherwise nobody could continue it, and it must not be published.
    fn check_memory_blocks(&self) -> Result<(), FormatError> {
        if self.region("ram").is_none() {
            return Ok(());
        }
        for (index, bytes) in self.config.memory_blocks.iter().enumerate() {
            let name = memory_region(index + 1);
            if self
                .region(&name)
                .is_none_or(|region| region.size != *bytes)
            {
                let why = format!(
                    "the machine has a memory block of {bytes} bytes, and no region {name:?} of that size"
                );
                return Err(FormatError::invalid(WHAT, why));
            }
        }
        Ok(())
    }

    /// Returns the image's id: the BLAKE3 hash of its encoding.
    pub fn id(&self) -> Hash {
        Hash::of(&self.encode())
    }

    /// Returns the region called `name`.
    pub fn region(&self, name: &str) -> Option<&Region> {
        self.regions.iter().find(|r| r.name == name)
    }

    /// Returns the bytes of all regions together.
    pub fn total_bytes(&self) -> u64 {
        self.regions.iter().map(|r| r.size).sum()
    }
}

fn decode_config(json: &[u8]) -> Result<MachineConfig, FormatError> {
    const WHAT: &str = "machine configuration";
    let config: MachineConfig =
        serde_json::from_slice(json).map_err(|e| FormatError::invalid(WHAT, e.to_string()))?;
    // Each value has one encoding only: otherwise decoding and encoding it would change the image's id.
    if serde_json::to_vec(&config).map_err(|e| FormatError::invalid(WHAT, e.to_string()))? != json {
        return Err(FormatError::invalid(
            WHAT,
            "its JSON is not in the canonical form (order, spaces, empty fields)",
        ));
    }
    Ok(config)
}

fn decode_region(c: &mut Cursor<'_>, patched: bool) -> Result<Region, FormatError> {
    let name_len = c.u8()?;
    let name = std::str::from_utf8(c.take(name_len.into())?)
        .map_err(|_| FormatError::invalid(WHAT, "a region's name is not text"))?
        .to_owned();
    let size = c.u64()?;
    let count = c.u32()?;
    c.expect_items(count.into(), 32)?;
    let segments = (0..count).map(|_| c.hash()).collect::<Result<_, _>>()?;
    let count = if patched { c.u32()? } else { 0 };
    c.expect_items(count.into(), PATCH_BYTES as u64)?;
    let patch = |c: &mut Cursor<'_>| -> Result<Patch, FormatError> {
        Ok(Patch {
            chunk: c.u32()?,
            hash: c.hash()?,
        })
    };
    let patches = (0..count).map(|_| patch(c)).collect::<Result<_, _>>()?;
    Ok(Region {
        name,
        size,
        segments,
        patches,
    })
}
