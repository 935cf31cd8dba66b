//! Tells what format a disk image has, and whether it consists of one file. No I/O beyond reads that the caller does.
//!
//! A disk image may refer to other files: a backing file, an external data file, extents, a parent. Such an image is refused
//! because of its header, before any program that would open those files sees it. (If this overlooks a reference, the
//! confinement of [`floe_machine::tool`] still keeps `qemu-img` from opening anything but the image.)

use crate::{
    disk_refused::Refused,
    disk_vmdk::{self, MARK},
};
use std::io;

/// Reads bytes at an offset of a file: fills as much of the buffer as the file has, and returns how much that is.
pub type Read<'a> = dyn Fn(u64, &mut [u8]) -> io::Result<usize> + 'a;

/// A format, with `qemu-img`'s name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The disk's bytes without a header.
    Raw,
    /// QEMU's first format.
    Qcow,
    /// QEMU's current format.
    Qcow2,
    /// VMware's.
    Vmdk,
    /// Microsoft's first format (VHD).
    Vpc,
    /// Microsoft's current format.
    Vhdx,
    /// VirtualBox's.
    Vdi,
}

impl Format {
    /// Returns `qemu-img`'s name for the format.
    pub fn name(self) -> &'static str {
        match self {
            Format::Raw => "raw",
            Format::Qcow => "qcow",
            Format::Qcow2 => "qcow2",
            Format::Vmdk => "vmdk",
            Format::Vpc => "vpc",
            Format::Vhdx => "vhdx",
            Format::Vdi => "vdi",
        }
    }
}

/// How many bytes are read first.
const HEAD_BYTES: usize = 512;
/// Longest name of another file: qcow2's own limit, in bytes.
const NAME_BYTES_MAX: usize = 1023;
/// Most header extensions of a qcow2 file that are read; six kinds are known.
const EXTENSIONS_MAX: usize = 64;
/// Most bytes of a VMDK's embedded descriptor: QEMU's own limit.
const DESCRIPTOR_BYTES_MAX: usize = 20 * 512;
const SECTOR: u64 = 512;

/// Returns the descriptor of a disk that consists of several files, if this file is one: a VMDK of which the others are parts.
pub fn descriptor(read: &Read<'_>) -> io::Result<Option<String>> {
    let text = text_at(read, 0, disk_vmdk::BYTES_MAX)?;
    Ok(text.starts_with(MARK).then_some(text))
}

/// Returns the image's format, or why it is refused.
pub fn examine(read: &Read<'_>) -> io::Result<Result<Format, Refused>> {
    let mut head = [0; HEAD_BYTES];
    let len = read(0, &mut head)?;
    let head = Bytes(&head[..len]);
    Ok(if head.at(0, b"QFI\xfb") {
        match head.be32(4) {
            1 => stands_alone(
                Format::Qcow,
                encrypted(&head, 36).or(backing_file(&head, read)?),
            ),
            2 | 3 => stands_alone(
                Format::Qcow2,
                encrypted(&head, 32).or(qcow2_other(&head, read)?),
            ),
            version => Err(Refused::Damaged(format!("qcow version {version}"))),
        }
    } else if head.at(0, b"KDMV") {
        stands_alone(Format::Vmdk, vmdk_other(&head, read)?)
    } else if head.at(0, MARK.as_bytes()) {
        let text = text_at(read, 0, disk_vmdk::BYTES_MAX)?;
        Err(needs("extent", first_extent(&text)))
    } else if head.at(0, b"conectix") {
        let differs = (head.be32(60) == 4).then(|| needs("parent", "in its header".into()));
        stands_alone(Format::Vpc, differs)
    } else if head.at(0, b"vhdxfile") {
        Ok(Format::Vhdx) // `qemu-img` itself refuses one with a parent, since it cannot read such a file
    } else if head.at(0x40, b"\x7f\x10\xda\xbe") {
        match head.le32(0x4c) {
            1 | 2 => Ok(Format::Vdi),
            _ => Err(needs("parent", "in its header".into())),
        }
    } else {
        Ok(Format::Raw)
    })
}

fn needs(what: &'static str, name: String) -> Refused {
    Refused::Needs { what, name }
}

fn stands_alone(format: Format, other: Option<Refused>) -> Result<Format, Refused> {
    other.map_or(Ok(format), Err)
}

/// Returns a refusal if the method of encryption, at this place of a qcow's or qcow2's header, is one.
fn encrypted(head: &Bytes<'_>, at: usize) -> Option<Refused> {
    match head.be32(at) {
        0 => None,
        1 => Some(Refused::Encrypted("qcow2's AES")),
        2 => Some(Refused::Encrypted("LUKS in qcow2")),
        _ => Some(Refused::Encrypted("a method that QEMU added later")),
    }
}

/// Returns a refusal if a qcow or qcow2 has a backing file.
fn backing_file(head: &Bytes<'_>, read: &Read<'_>) -> io::Result<Option<Refused>> {
    let (offset, len) = (head.be64(8), head.be32(16) as usize);
    if offset == 0 {
        return Ok(None);
    }
    let name = text_at(read, offset, len.min(NAME_BYTES_MAX))?;
    Ok(Some(needs("backing file", name)))
}

/// Returns a refusal if a qcow2 has a backing file or an external data file.
fn qcow2_other(head: &Bytes<'_>, read: &Read<'_>) -> io::Result<Option<Refused>> {
    const DATA_FILE: u64 = 1 << 2;
    const DATA_FILE_NAME: u32 = 0x4441_5441;
    if let Some(refused) = backing_file(head, read)? {
        return Ok(Some(refused));
    }
    let is_three = head.be32(4) == 3;
    let mut external = is_three && head.be64(72) & DATA_FILE != 0;
    let mut name = String::new();
    let mut offset = match is_three {
        true => u64::from(head.be32(100)),
        false => 72,
    };
    for _ in 0..EXTENSIONS_MAX {
        let mut extension = [0; 8];
        if read(offset, &mut extension)? < extension.len() {
            break;
        }
        let extension = Bytes(&extension);
        let (kind, len) = (extension.be32(0), extension.be32(4));
        if kind == 0 {
            break;
        }
        if kind == DATA_FILE_NAME {
            name = text_at(read, offset + 8, (len as usize).min(NAME_BYTES_MAX))?;
            external = true;
        }
        offset += 8 + u64::from(len).next_multiple_of(8);
    }
    Ok(external.then(|| needs("data file", name)))
}

/// Returns a refusal if a VMDK with an embedded descriptor has a parent or is encrypted, or if the file is only a descriptor of extents,
/// or only one of them.
fn vmdk_other(head: &Bytes<'_>, read: &Read<'_>) -> io::Result<Option<Refused>> {
    let at = head.le64(28).saturating_mul(SECTOR);
    let mut descriptor = String::new();
    // QEMU looks for a parent in the usual place, whatever the header says
    for offset in [SECTOR, at] {
        let text = text_at(read, offset, DESCRIPTOR_BYTES_MAX)?;
        if let Some(refused) = disk_vmdk::stands_alone(&text) {
            return Ok(Some(refused));
        }
        if disk_vmdk::extents(&text).next().is_some() {
            descriptor = text;
        }
    }
    if head.le64(12) == 0 {
        return Ok(Some(needs("extent", first_extent(&descriptor))));
    }
    let extents = disk_vmdk::extents(&descriptor).count();
    Ok(match extents {
        1 => None,
        // each file of a split disk has a header like a whole one's, and no description of the disk
        _ => Some(Refused::Part),
    })
}

fn first_extent(text: &str) -> String {
    let first = disk_vmdk::extents(text).next();
    let name = first.and_then(|line| line.split('"').nth(1));
    let name = name.unwrap_or("that it does not name");
    name.chars().take(NAME_BYTES_MAX).collect()
}

/// Reads text of a foreign file, up to its first zero byte.
fn text_at(read: &Read<'_>, offset: u64, len_max: usize) -> io::Result<String> {
    let mut bytes = vec![0; len_max];
    let len = read(offset, &mut bytes)?;
    let text = bytes[..len].split(|byte| *byte == 0).next();
    Ok(String::from_utf8_lossy(text.unwrap_or_default()).into_owned())
}

/// A header; bytes beyond its end read as zero.
pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    /// Whether these bytes stand at an offset.
    pub fn at(&self, offset: usize, magic: &[u8]) -> bool {
        self.0.get(offset..offset + magic.len()) == Some(magic)
    }

    fn array<const N: usize>(&self, offset: usize) -> [u8; N] {
        let bytes = self.0.get(offset..).and_then(|rest| rest.first_chunk());
        bytes.copied().unwrap_or([0; N])
    }

    /// Reads a number, the most significant byte first.
    pub fn be32(&self, offset: usize) -> u32 {
        u32::from_be_bytes(self.array(offset))
    }

    /// Reads a number, the most significant byte first.
    pub fn be64(&self, offset: usize) -> u64 {
        u64::from_be_bytes(self.array(offset))
    }

    /// Reads a number, the least significant byte first.
    pub fn le32(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.array(offset))
    }

    /// Reads a number, the least significant byte first.
    pub fn le64(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.array(offset))
    }
}

/// Returns a reader for bytes in memory.
#[allow(dead_code, reason = "for tests and fuzzing")]
pub fn reader(bytes: &[u8]) -> impl Fn(u64, &mut [u8]) -> io::Result<usize> {
    move |offset: u64, buffer: &mut [u8]| {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = bytes.get(from..).unwrap_or_default();
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }
}

/// Examines bytes in memory as if they were a file.
#[allow(dead_code, reason = "for tests and fuzzing")]
pub fn examine_bytes(bytes: &[u8]) -> Result<Format, Refused> {
    examine(&reader(bytes)).unwrap_or_else(|error| Err(Refused::Damaged(error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn needs_of(bytes: &[u8]) -> (&'static str, String) {
        match examine_bytes(bytes) {
            Err(Refused::Needs { what, name }) => (what, name),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_file_without_a_known_beginning_is_raw() {
        for bytes in [&b""[..], b"QF", &[0x55; 1024]] {
            assert_eq!(examine_bytes(bytes), Ok(Format::Raw));
        }
    }

    #[test]
    fn an_image_that_is_made_of_another_file_is_refused_by_that_files_name() {
        let mut backed = vec![0; 4096];
        backed[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
        backed[8..16].copy_from_slice(&1024u64.to_be_bytes());
        backed[16..20].copy_from_slice(&11u32.to_be_bytes());
        backed[1024..1035].copy_from_slice(b"/etc/shadow");
        assert_eq!(needs_of(&backed), ("backing file", "/etc/shadow".into()));
        backed[7] = 1;
        assert_eq!(needs_of(&backed), ("backing file", "/etc/shadow".into()));

        let mut external = vec![0; 4096];
        external[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
        external[79] = 4;
        external[100..104].copy_from_slice(&104u32.to_be_bytes());
        assert_eq!(needs_of(&external), ("data file", String::new()));
        external[104..112].copy_from_slice(b"DATA\0\0\0\x0b");
        external[112..123].copy_from_slice(b"/etc/shadow");
        assert_eq!(needs_of(&external), ("data file", "/etc/shadow".into()));

        let text = b"# Disk DescriptorFile\nversion=1\nRW 2048 FLAT \"/etc/shadow\" 0\n";
        assert_eq!(needs_of(text), ("extent", "/etc/shadow".into()));
        let mut inside = vec![0; 4096];
        inside[..4].copy_from_slice(b"KDMV");
        inside[28] = 2;
        inside[1024..1024 + text.len()].copy_from_slice(text);
        assert_eq!(needs_of(&inside), ("extent", "/etc/shadow".into()));
        inside[12] = 1;
        assert_eq!(examine_bytes(&inside), Ok(Format::Vmdk));
        // an extent of a split disk has a capacity, but no descriptor
        let mut part = inside.clone();
        part[1024..].fill(0);
        assert_eq!(examine_bytes(&part), Err(Refused::Part));
        let hint = b"# Disk DescriptorFile\nparentFileNameHint=\"/etc/shadow\"\n";
        inside[512..512 + hint.len()].copy_from_slice(hint);
        assert_eq!(needs_of(&inside), ("parent", "/etc/shadow".into()));

        let mut vhd = vec![0; 512];
        vhd[..8].copy_from_slice(b"conectix");
        assert_eq!(examine_bytes(&vhd), Ok(Format::Vpc));
        vhd[63] = 4;
        assert_eq!(needs_of(&vhd).0, "parent");
        let mut vdi = vec![0; 512];
        vdi[0x40..0x44].copy_from_slice(b"\x7f\x10\xda\xbe");
        vdi[0x4c] = 1;
        assert_eq!(examine_bytes(&vdi), Ok(Format::Vdi));
        vdi[0x4c] = 4;
        assert_eq!(needs_of(&vdi).0, "parent");
    }

    #[test]
    fn an_encrypted_image_is_called_so() {
        let mut image = vec![0; 4096];
        image[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
        image[35] = 2;
        let refused = examine_bytes(&image).unwrap_err();
        assert_eq!(refused, Refused::Encrypted("LUKS in qcow2"));
        image[35] = 1;
        assert!(matches!(examine_bytes(&image), Err(Refused::Encrypted(_))));
        (image[7], image[35], image[39]) = (1, 0, 1);
        assert!(matches!(examine_bytes(&image), Err(Refused::Encrypted(_))));
        let mut vmdk = vec![0; 4096];
        vmdk[..4].copy_from_slice(b"KDMV");
        (vmdk[12], vmdk[28]) = (1, 1);
        let text = b"# Disk DescriptorFile\nencryption.keySafe = \"vmware:key/list/x\"\n";
        vmdk[512..512 + text.len()].copy_from_slice(text);
        assert!(matches!(examine_bytes(&vmdk), Err(Refused::Encrypted(_))));
    }

    #[test]
    #[ignore = "needs qemu-img: make test-all"]
    fn what_qemu_img_makes_is_told_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        for format in ["raw", "qcow2", "vmdk", "vpc", "vhdx", "vdi"] {
            let path = dir.path().join(format);
            let made = Command::new("qemu-img")
                .args(["create", "-q", "-f", format])
                .args([path.as_os_str(), "1M".as_ref()])
                .status();
            made.unwrap();
            let bytes = std::fs::read(&path).unwrap();
            assert_eq!(
                examine_bytes(&bytes).map(Format::name),
                Ok(format),
                "{format}"
            );
        }
    }
}
