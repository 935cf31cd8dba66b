//! The descriptor of a VMDK: a text that names the files of which the disk consists (its extents), in their order. Hostile bytes. No I/O.
//!
//! An extent is only ever a file beside its descriptor whose name ends as those of VMDKs do: a descriptor comes from a stranger, and
//! must not choose among the files of the host.

use crate::disk_refused::Refused;

/// What a descriptor begins with.
pub const MARK: &str = "# Disk DescriptorFile";
/// Longest descriptor, in bytes: enough for the extents of the largest image.
pub const BYTES_MAX: usize = 1 << 20;
/// Longest name of an extent, in bytes: what file systems take.
const NAME_BYTES_MAX: usize = 255;
/// Most extents: of 2 GiB each, those of twice the largest image.
const EXTENTS_MAX: usize = 16_384;
const SECTOR: u64 = 512;
/// Most sectors of a disk: more than the largest image has.
const SECTORS_MAX: u64 = 1 << 40;

/// A part of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How many bytes of the disk it has.
    pub bytes: u64,
    /// In what they are.
    pub form: Form,
}

/// How an extent's bytes are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// Nowhere: they are zero.
    Zero,
    /// As they are.
    Flat {
        /// The file's name.
        name: String,
        /// Where in the file they begin.
        at: u64,
    },
    /// In a file with a table of its own.
    Sparse {
        /// The file's name.
        name: String,
    },
}

impl Form {
    /// The file that holds the bytes.
    pub fn name(&self) -> Option<&str> {
        match self {
            Form::Zero => None,
            Form::Flat { name, .. } | Form::Sparse { name } => Some(name),
        }
    }
}

/// Returns a refusal if a disk with this descriptor has a parent or is encrypted.
pub fn stands_alone(text: &str) -> Option<Refused> {
    if let Some((_, rest)) = text.split_once("parentFileNameHint") {
        let name = rest.split('"').nth(1).unwrap_or_default().to_owned();
        let what = "parent";
        return Some(Refused::Needs { what, name });
    }
    let is_encrypted = ["encryption.keySafe", "encryption.data"]
        .iter()
        .any(|key| text.contains(key));
    is_encrypted.then_some(Refused::Encrypted("VMware's way"))
}

/// Returns the lines of a descriptor that describe extents: `RW 2048 FLAT "disk-flat.vmdk" 0`.
pub fn extents(text: &str) -> impl Iterator<Item = &str> {
    let is_extent = |line: &&str| {
        ["RW ", "RDONLY ", "NOACCESS "]
            .iter()
            .any(|access| line.starts_with(access))
    };
    text.lines().map(str::trim).filter(is_extent)
}

/// Returns the extents of a disk, in order, or why it can't be read.
pub fn parse(text: &str) -> Result<Vec<Extent>, Refused> {
    if let Some(refused) = stands_alone(text) {
        return Err(refused);
    }
    let found: Vec<Extent> = extents(text)
        .take(EXTENTS_MAX + 1)
        .map(extent)
        .collect::<Result<_, _>>()?;
    let bytes = found
        .iter()
        .fold(0u64, |sum, extent| sum.saturating_add(extent.bytes));
    match found.len() {
        0 => Err(damaged("its descriptor names no extents")),
        1..=EXTENTS_MAX if bytes <= SECTORS_MAX * SECTOR => Ok(found),
        _ => Err(damaged(
            "its descriptor tells of a disk that is larger than any image",
        )),
    }
}

fn damaged(what: impl Into<String>) -> Refused {
    Refused::Damaged(what.into())
}

fn extent(line: &str) -> Result<Extent, Refused> {
    let unknown = || damaged("a line of its descriptor is none of an extent");
    let mut words = line.splitn(4, ' ');
    let (_, sectors, kind) = (words.next(), words.next(), words.next().unwrap_or_default());
    let sectors: u64 = sectors.and_then(|n| n.parse().ok()).ok_or_else(unknown)?;
    let bytes = sectors.checked_mul(SECTOR).ok_or_else(unknown)?;
    let mut rest = words.next().unwrap_or_default().split('"');
    let (_, name, after) = (rest.next(), rest.next().unwrap_or_default(), rest.next());
    let after = after.unwrap_or_default().trim();
    let form = match kind {
        "ZERO" => Form::Zero,
        "FLAT" | "VMFS" => {
            let sectors: u64 = match after {
                "" => 0,
                number => number.parse().map_err(|_| unknown())?,
            };
            let at = sectors.checked_mul(SECTOR).ok_or_else(unknown)?;
            let name = plain(name)?;
            Form::Flat { name, at }
        }
        "SPARSE" => Form::Sparse { name: plain(name)? },
        // what only VMware's own hosts have: devices, and tables that nobody else knows
        _ => {
            let what = "extent of a kind that only VMware reads,";
            return Err(needs(what, name));
        }
    };
    Ok(Extent { bytes, form })
}

fn needs(what: &'static str, name: &str) -> Refused {
    let name = name.chars().take(NAME_BYTES_MAX).collect();
    Refused::Needs { what, name }
}

/// Returns a name that can only be that of a VMDK beside its descriptor.
fn plain(name: &str) -> Result<String, Refused> {
    let lower = name.to_ascii_lowercase();
    let is_plain = lower.ends_with(".vmdk")
        && name.len() <= NAME_BYTES_MAX
        && !name.contains(['/', '\\', '\0']);
    match is_plain {
        true => Ok(name.to_owned()),
        false => Err(needs("extent", name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &str) -> Result<Vec<Extent>, Refused> {
        parse(&format!(
            "{MARK}\nversion=1\nparentCID=ffffffff\n{lines}\nddb.adapterType = \"ide\"\n"
        ))
    }

    #[test]
    fn the_extents_of_a_disk_are_read_in_their_order() {
        let found = of(
            "RW 2048 SPARSE \"d-s001.vmdk\"\nRW 8 ZERO\r\nRDONLY 16 FLAT \"d f.VMDK\" 3\nRW 1 VMFS \"d-flat.vmdk\"",
        );
        let name = |name: &str| name.to_owned();
        let expected = [
            (
                2048,
                Form::Sparse {
                    name: name("d-s001.vmdk"),
                },
            ),
            (8, Form::Zero),
            (
                16,
                Form::Flat {
                    name: name("d f.VMDK"),
                    at: 3 * 512,
                },
            ),
            (
                1,
                Form::Flat {
                    name: name("d-flat.vmdk"),
                    at: 0,
                },
            ),
        ];
        let expected = expected.map(|(sectors, form)| Extent {
            bytes: sectors * 512,
            form,
        });
        assert_eq!(found.unwrap(), expected);
    }

    #[test]
    fn a_descriptor_chooses_no_file_of_the_host() {
        for name in [
            "/etc/shadow",
            "../d.vmdk",
            "a/b.vmdk",
            "..",
            "",
            "shadow",
            "a\\b.vmdk",
        ] {
            for kind in ["FLAT", "SPARSE", "VMFS"] {
                let refused = of(&format!("RW 8 {kind} \"{name}\" 0")).unwrap_err();
                assert_eq!(refused, needs("extent", name), "{kind}");
            }
        }
        assert!(
            matches!(of("RW 8 VMFSRDM \"/dev/sda\""), Err(Refused::Needs { name, .. }) if name == "/dev/sda")
        );
    }

    #[test]
    fn what_makes_no_disk_is_refused() {
        for lines in [
            "",
            "RW x FLAT \"a.vmdk\" 0",
            "RW 8 FLAT \"a.vmdk\" x",
            "RW 99999999999999999999 ZERO",
            "RW 18446744073709551615 ZERO",
            "RW 1099511627776 ZERO\nRW 1 ZERO",
        ] {
            assert!(matches!(of(lines), Err(Refused::Damaged(_))), "{lines}");
        }
        let many = "RW 1 ZERO\n".repeat(EXTENTS_MAX + 1);
        assert!(matches!(of(&many), Err(Refused::Damaged(_))));
        let parent = of("parentFileNameHint=\"base.vmdk\"\nRW 8 ZERO");
        assert!(matches!(parent, Err(Refused::Needs { what: "parent", .. })));
        let sealed = of("encryption.data = \"x\"\nRW 8 ZERO");
        assert!(matches!(sealed, Err(Refused::Encrypted(_))));
    }
}
