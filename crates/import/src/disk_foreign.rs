//! Files that are no disks floe can read, by the bytes that they begin or end with: what they are, and what the user can do.

use crate::disk_format::Bytes;

/// What a file is instead of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// `a PDF document`, `encrypted (LUKS)`.
    pub what: &'static str,
    /// What the user can do.
    pub fix: &'static str,
}

const UNPACK: &str = "unpack it first, and import the disk image that is in it";
const KERNEL: &str = "give it with --kernel";
const GUEST: &str = "give the disk image of a machine; this is a program";
pub(super) const DOCUMENT: &str = "check the path, or the download";
const PARALLELS: &str = "convert it first: qemu-img convert -f parallels -O qcow2 IN OUT";
const ON_A_MAC: &str =
    "convert it first: `hdiutil convert IN -format UDTO -o OUT` on a Mac, or dmg2img IN OUT";
const PGP: &str = "decrypt it first (gpg -o OUT -d IN), and import what comes out";
const AGE: &str = "decrypt it first (age -d -o OUT IN), and import what comes out";
const OPENSSL: &str = "decrypt it first (openssl enc -d), and import what comes out";
const LUKS: &str = "import what is in it: qemu-img convert --object secret,id=key,file=KEY_FILE --image-opts -O qcow2 \
     driver=luks,key-secret=key,file.filename=IN OUT; if the guest itself is to open it, import it with --format raw";

/// First bytes of such files.
const FOREIGN: &[(&[u8], &str, &str)] = &[
    (b"\x7fELF", "an ELF program, library or kernel", GUEST),
    (b"%PDF", "a PDF document", DOCUMENT),
    (b"PK\x03\x04", "a zip archive", UNPACK),
    (b"BZh", "packed with bzip2", UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (b"Rar!\x1a\x07", "a RAR archive", UNPACK),
    (b"\x04\x22\x4d\x18", "packed with lz4", UNPACK),
    (b"\x02\x21\x4c\x18", "packed with lz4", UNPACK),
    (b"\x89LZO\0\r\n\x1a\n", "packed with lzop", UNPACK),
    (b"LZIP", "packed with lzip", UNPACK),
    (b"LRZI", "packed with lrzip", UNPACK),
    (b"\x1f\x9d", "packed with compress (.Z)", UNPACK),
    (b"MSWIM\0\0\0", "a Windows image (WIM)", UNPACK),
    (b"xar!", "a xar archive, such as a package of macOS", UNPACK),
    (
        b"partclone-image",
        "a backup of Partclone",
        "restore it to a disk first: partclone.restore",
    ),
    (
        b"EVF\x09\x0d\x0a\xff\0",
        "an EnCase image (E01)",
        "convert it first: ewfexport -f raw IN",
    ),
    (b"\x89PNG\r\n\x1a\n", "a PNG picture", DOCUMENT),
    (b"\xff\xd8\xff", "a JPEG picture", DOCUMENT),
    (b"GIF8", "a GIF picture", DOCUMENT),
    (b"SQLite format 3\0", "an SQLite database", DOCUMENT),
    (b"!<arch>\n", "a Debian package or a library", DOCUMENT),
    (b"\xed\xab\xee\xdb", "an RPM package", DOCUMENT),
    (
        b"07070",
        "a cpio archive, such as an initial ramdisk",
        "give a ramdisk with --initrd",
    ),
    (
        b"COWD",
        "a VMDK of VMware's oldest kind",
        "make it new first: vmkfstools -i IN OUT",
    ),
    (
        b"QED\0",
        "a disk of QEMU's format QED",
        "convert it first: qemu-img convert -f qed -O qcow2 IN OUT",
    ),
    (
        b"Bochs Virtual HD Image",
        "a Bochs disk",
        "convert it first: qemu-img convert -f bochs -O qcow2 IN OUT",
    ),
    (b"WithoutFreeSpace", "a Parallels disk", PARALLELS),
    (b"WithouFreSpacExt", "a Parallels disk", PARALLELS),
    (b"LUKS\xba\xbe", "encrypted (LUKS)", LUKS),
    (b"encrcdsa", "an encrypted Apple disk image (DMG)", ON_A_MAC),
    (b"age-encryption.org/", "encrypted (age)", AGE),
    (
        b"-----BEGIN AGE ENCRYPTED FILE-----",
        "encrypted (age)",
        AGE,
    ),
    (b"-----BEGIN PGP MESSAGE-----", "encrypted (OpenPGP)", PGP),
    (b"Salted__", "encrypted (openssl enc)", OPENSSL),
    (b"U2FsdGVkX1", "encrypted (openssl enc)", OPENSSL),
];

/// Returns what the file is that begins with these bytes.
pub fn by_head(head: &[u8]) -> Option<Foreign> {
    let found = FOREIGN.iter().find(|(magic, ..)| head.starts_with(magic));
    found.map(|(_, what, fix)| Foreign { what, fix })
}

/// Returns what the file is that ends with these 512 bytes.
pub fn by_tail(tail: &[u8]) -> Option<Foreign> {
    let tail = Bytes(tail);
    let is_dmg = tail.at(0, b"koly") && tail.be32(8) == 512;
    is_dmg.then_some(Foreign {
        what: "an Apple disk image (DMG)",
        fix: ON_A_MAC,
    })
}

/// Returns what a file is whose first bytes are no disk's, by signs too weak to set against any others.
pub fn by_weak_signs(head: &[u8]) -> Option<Foreign> {
    let (what, fix) = if is_lzma(head) {
        ("packed with lzma", UNPACK)
    } else if is_openpgp(head) {
        ("encrypted (OpenPGP)", PGP)
    } else {
        return text(head);
    };
    Some(Foreign { what, fix })
}

/// Whether it is a kernel as `--kernel` expects it. Such a kernel begins like a boot sector.
pub fn kernel(head: &[u8]) -> Option<Foreign> {
    let head = Bytes(head);
    let at = head.le32(0x3c) as usize;
    let is_kernel = head.at(0x202, b"HdrS")
        || head.at(0x38, b"ARM\x64")
        || head.at(0, b"MZ") && head.at(at, b"PE\0\0");
    is_kernel.then_some(Foreign {
        what: "a Linux kernel or an EFI program",
        fix: KERNEL,
    })
}

/// Whether this is the header of the old `.lzma`: properties, a dictionary's size as its tool chooses them, and a length or none.
fn is_lzma(head: &[u8]) -> bool {
    const BYTES_MAX: u64 = 1 << 48;
    let bytes = Bytes(head);
    let dictionary = bytes.le32(1);
    let length = bytes.le64(5);
    head.len() > 13
        && head[0] == 0x5d
        && (1 << 12..=1 << 30).contains(&dictionary)
        && (dictionary.is_power_of_two() || (dictionary / 3).is_power_of_two())
        && (length == u64::MAX || length < BYTES_MAX)
        && head[13] == 0 // the first byte of a range coder
}

/// Whether the first packet is a session's key, for a public key or a password, or the encrypted data themselves (RFC 9580).
fn is_openpgp(head: &[u8]) -> bool {
    let &[tag, a, b, c, d, ..] = head else {
        return false;
    };
    match tag {
        0x84 | 0xc1 => b == 3 || b == 6,
        0x85 => c == 3 && a < 16,
        0x8c => (b == 4 || b == 5) && a < 64 && (1..=13).contains(&c),
        0xc3 => (4..=6).contains(&b) && a < 192 && d < 14,
        _ => false,
    }
}

/// Returns what kind of text it is, if it is one.
fn text(head: &[u8]) -> Option<Foreign> {
    const LOOK: usize = 1024;
    let bytes = &head[..head.len().min(LOOK)];
    // the last character may be cut off
    let whole = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    if whole.is_empty() || whole.contains(|c: char| c.is_control() && !c.is_whitespace()) {
        return None;
    }
    let start = whole.trim_start().to_ascii_lowercase();
    let what = if start.starts_with("<!doctype html") || start.starts_with("<html") {
        "a web page"
    } else if start.contains("<envelope") || start.contains(":envelope") {
        "an OVF description, not the disk beside it"
    } else if start.starts_with("#!") {
        "a script"
    } else {
        "a text"
    };
    Some(Foreign {
        what,
        fix: DOCUMENT,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what(found: Option<Foreign>) -> &'static str {
        found.map_or("nothing", |found| found.what)
    }

    #[test]
    fn what_is_encrypted_is_called_so() {
        for head in [
            &b"LUKS\xba\xbe\0\x02"[..],
            b"age-encryption.org/v1\n-> X25519 abc",
            b"-----BEGIN AGE ENCRYPTED FILE-----\nYWdl",
            b"-----BEGIN PGP MESSAGE-----\n\nhQEM",
            b"Salted__\x01\x02\x03\x04\x05\x06\x07\x08",
        ] {
            let found = by_head(head).unwrap();
            assert!(found.what.starts_with("encrypted ("), "{found:?}");
        }
        // as gpg writes them: for a key of 3072 bits, for a password, and for a key on a curve
        for head in [
            &b"\x85\x01\x8c\x03\x35\x11"[..],
            b"\x8c\x0d\x04\x09\x03\x08\x11\x22",
            b"\x84\x5e\x03\x12\x34\x56",
        ] {
            assert_eq!(what(by_weak_signs(head)), "encrypted (OpenPGP)");
        }
    }

    #[test]
    fn what_is_packed_in_a_way_that_floe_does_not_know_is_called_so_and_never_taken_as_raw() {
        let mut lzma = b"\x5d\0\0\x80\0\xff\xff\xff\xff\xff\xff\xff\xff\0".to_vec();
        lzma.extend([1; 100]);
        assert_eq!(what(by_weak_signs(&lzma)), "packed with lzma");
        assert_eq!(what(by_head(b"\x04\x22\x4d\x18\x64")), "packed with lz4");
        assert_eq!(what(by_head(b"\x02\x21\x4c\x18\x64")), "packed with lz4");
        let mut koly = vec![0; 512];
        koly[..12].copy_from_slice(b"koly\0\0\0\x04\0\0\x02\0");
        assert!(what(by_tail(&koly)).contains("DMG"));
        assert!(what(by_head(b"QED\0\0\0\x01\0")).contains("QED"));
        for (magic, _, fix) in FOREIGN
            .iter()
            .filter(|(magic, ..)| *magic != b"LUKS\xba\xbe")
        {
            assert!(!fix.contains("--format raw"), "{magic:?}");
        }
        let noise =
            |seed: u8| -> Vec<u8> { (0..64).map(|n: u8| (n ^ seed).wrapping_mul(37)).collect() };
        let named = (0..=255)
            .filter(|seed| by_weak_signs(&noise(*seed)).is_some())
            .count();
        assert_eq!(named, 0);
    }
}
