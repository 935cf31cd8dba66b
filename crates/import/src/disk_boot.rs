//! Tells from a disk's partition tables what can boot it: a BIOS, or only a UEFI firmware, and whether Windows is on it, which
//! has no drivers for VirtIO of its own. Hostile bytes: all reads are bounded. No I/O beyond reads that the caller does.

use crate::disk_format::{Bytes, Read};
use floe_extents::partitions::{self, Kind};
use std::io;

/// What a disk's tables say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskBoot {
    /// It has an EFI system partition and nothing that a BIOS could boot.
    pub needs_uefi: bool,
    /// Windows is installed on it.
    pub windows: bool,
}

/// File systems that are looked at for Windows.
const NTFS_LOOKS_MAX: usize = 16;

/// MBR type of an EFI system partition.
const MBR_EFI: u8 = 0xef;
/// MBR type of NTFS.
const MBR_NTFS: u8 = 0x07;

/// EFI system partition, c12a7328-f81f-11d2-ba4b-00a0c93ec93b, as it is written.
const EFI_SYSTEM: &[u8; 16] = b"\x28\x73\x2a\xc1\x1f\xf8\xd2\x11\xba\x4b\x00\xa0\xc9\x3e\xc9\x3b";
/// BIOS boot partition, in which GRUB for a BIOS is.
const BIOS_BOOT: &[u8; 16] = b"Hah!IdontNeedEFI";
/// Windows' partition for itself, e3c9e316-0b5c-4db8-817d-f92df00215ae: every disk that Windows boots from has one.
const WINDOWS_RESERVED: &[u8; 16] =
    b"\x16\xe3\xc9\xe3\x5c\x0b\xb8\x4d\x81\x7d\xf9\x2d\xf0\x02\x15\xae";
/// Windows' data, ebd0a0a2-b9e5-4433-87c0-68b6b72699c7.
const WINDOWS_DATA: &[u8; 16] = b"\xa2\xa0\xd0\xeb\xe5\xb9\x33\x44\x87\xc0\x68\xb6\xb7\x26\x99\xc7";
/// Attribute of a GPT's partition that a BIOS may boot.
const LEGACY_BOOTABLE: u64 = 1 << 2;

/// Examines the bytes of a whole disk.
pub fn look(read: &Read<'_>) -> io::Result<DiskBoot> {
    let Some(table) = partitions::read(read)? else {
        return Ok(DiskBoot::default());
    };
    let (mut efi, mut bios, mut active) = (false, false, false);
    let (mut reserved, mut ntfs) = (false, false);
    let mut looks = 0;
    for part in &table.partitions {
        let may_be_windows = match &part.kind {
            Kind::Mbr { kind, active: is } => {
                efi |= *kind == MBR_EFI;
                active |= is;
                *is && *kind == MBR_NTFS
            }
            Kind::Gpt { kind, attributes } => {
                efi |= kind == EFI_SYSTEM;
                bios |= kind == BIOS_BOOT || attributes & LEGACY_BOOTABLE != 0;
                reserved |= kind == WINDOWS_RESERVED;
                kind == WINDOWS_DATA
            }
        };
        if may_be_windows && looks < NTFS_LOOKS_MAX && !ntfs {
            looks += 1;
            ntfs = is_ntfs(read, part.first)?;
        }
    }
    Ok(match table.is_gpt {
        true => DiskBoot {
            // a boot record with a program but nothing that this program could load is Windows' message that it can't
            needs_uefi: efi && !(table.has_code && bios),
            windows: reserved && ntfs,
        },
        false => DiskBoot {
            needs_uefi: efi && !(table.has_code && active),
            windows: ntfs,
        },
    })
}

fn is_ntfs(read: &Read<'_>, first: u64) -> io::Result<bool> {
    let mut boot = [0; 11];
    let got = read(first, &mut boot)?;
    Ok(got == boot.len() && Bytes(&boot).at(3, b"NTFS    "))
}

/// Examines bytes in memory as if they were a disk.
#[allow(dead_code, reason = "for tests and fuzzing")]
pub fn look_bytes(bytes: &[u8]) -> DiskBoot {
    look(&crate::disk_format::reader(bytes)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk of 64 KiB with a GPT of these types and attributes; each partition begins at its own sector from 64 on.
    fn gpt_disk(code: bool, parts: &[(&[u8; 16], u64)]) -> Vec<u8> {
        let mut disk = vec![0; 64 << 10];
        disk[0] = u8::from(code);
        disk[446 + 4] = 0xee;
        disk[510..512].copy_from_slice(b"\x55\xaa");
        disk[512..520].copy_from_slice(b"EFI PART");
        disk[512 + 72] = 2;
        disk[512 + 80] = 128;
        disk[512 + 84] = 128;
        for (i, (kind, attributes)) in parts.iter().enumerate() {
            let at = 1024 + i * 128;
            disk[at..at + 16].copy_from_slice(*kind);
            disk[at + 32] = 64 + i as u8;
            disk[at + 48..at + 56].copy_from_slice(&attributes.to_le_bytes());
        }
        disk
    }

    #[test]
    fn a_disk_that_no_bios_can_boot_needs_uefi() {
        let needs =
            |code, parts: &[(&[u8; 16], u64)]| look_bytes(&gpt_disk(code, parts)).needs_uefi;
        assert!(needs(false, &[(EFI_SYSTEM, 0), (WINDOWS_DATA, 0)]));
        assert!(needs(true, &[(EFI_SYSTEM, 0)]), "no program to load");
        assert!(
            needs(false, &[(EFI_SYSTEM, 0), (BIOS_BOOT, 0)]),
            "no program"
        );
        assert!(
            !needs(true, &[(EFI_SYSTEM, 0), (BIOS_BOOT, 0)]),
            "both work"
        );
        assert!(!needs(true, &[(EFI_SYSTEM, LEGACY_BOOTABLE)]));
        assert!(!needs(false, &[(WINDOWS_DATA, 0)]), "a disk of data");
        let mut mbr = vec![0; 4096];
        mbr[510..512].copy_from_slice(b"\x55\xaa");
        mbr[446 + 4] = MBR_EFI;
        assert!(look_bytes(&mbr).needs_uefi);
        mbr[0] = 0xeb;
        mbr[446 + 16] = 0x80;
        assert!(!look_bytes(&mbr).needs_uefi);
        assert_eq!(look_bytes(&[0; 4096]), DiskBoot::default());
    }

    #[test]
    fn windows_is_known_by_its_system_partition() {
        let parts: [(&[u8; 16], u64); 3] =
            [(EFI_SYSTEM, 0), (WINDOWS_RESERVED, 0), (WINDOWS_DATA, 0)];
        let mut disk = gpt_disk(true, &parts);
        assert!(!look_bytes(&disk).windows, "no NTFS");
        disk[66 * 512 + 3..][..8].copy_from_slice(b"NTFS    ");
        let found = look_bytes(&disk);
        assert!(found.windows && found.needs_uefi);
        let mut data = gpt_disk(true, &[(WINDOWS_DATA, 0)]);
        data[64 * 512 + 3..][..8].copy_from_slice(b"NTFS    ");
        assert!(!look_bytes(&data).windows, "NTFS alone is no Windows");
        let mut mbr = vec![0; 4096];
        mbr[0] = 0x33;
        mbr[510..512].copy_from_slice(b"\x55\xaa");
        (mbr[446 + 4], mbr[446 + 8]) = (MBR_NTFS, 2);
        mbr[1024 + 3..1024 + 11].copy_from_slice(b"NTFS    ");
        assert!(!look_bytes(&mbr).windows);
        mbr[446] = 0x80;
        assert_eq!(
            look_bytes(&mbr),
            DiskBoot {
                needs_uefi: false,
                windows: true
            }
        );
    }

    #[test]
    fn tables_that_point_anywhere_are_read_within_bounds() {
        for (at, value) in [(72, u64::MAX), (72, u64::MAX / 512), (72, 1 << 40)] {
            let mut disk = gpt_disk(false, &[(EFI_SYSTEM, 0)]);
            disk[512 + at..512 + at + 8].copy_from_slice(&value.to_le_bytes());
            assert_eq!(look_bytes(&disk), DiskBoot::default());
        }
        let mut far = gpt_disk(false, &[(WINDOWS_DATA, 0)]);
        far[1024 + 32..1024 + 40].fill(0xff);
        assert_eq!(look_bytes(&far), DiskBoot::default());
        for len in 0..1200 {
            look_bytes(&gpt_disk(true, &[(EFI_SYSTEM, 0)])[..len]);
        }
    }
}
