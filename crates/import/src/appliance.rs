//! Which files of an archive are disks, and in what order: by the description that an appliance (OVA) has, or by their names where only
//! one disk can be meant.

use crate::{
    disk_file::DISKS_MAX,
    disk_vmdk::{self, MARK},
    ovf,
    unpack::Archive,
};
use floe_ground::error::{NodeError, refused};
use std::path::Path;

/// How many of an archive's files an error names at most.
const NAMES_SHOWN: usize = 8;
/// File name endings of disk images.
const DISK_ENDINGS: [&str; 10] = [
    "vmdk", "qcow2", "qcow", "vdi", "vhd", "vhdx", "img", "raw", "iso", "bin",
];
/// Endings that may follow those.
const PACKED_ENDINGS: [&str; 3] = [".gz", ".xz", ".zst"];

/// A disk of an archive.
pub enum Disk {
    /// In one file, which may be packed.
    Whole(String),
    /// In the files that a descriptor beside them names.
    Split {
        /// The descriptor's name.
        name: String,
        /// Its text.
        descriptor: String,
    },
}

/// What was found.
pub struct Disks {
    /// The disks in their order; at least one.
    pub disks: Vec<Disk>,
    /// What the user should know of others.
    pub notes: Vec<String>,
}

/// Returns the disks of an archive.
pub fn disks(archive: &Archive<'_>) -> Result<Disks, NodeError> {
    let names = archive.names();
    // the description is the first file of an appliance
    let description = names.iter().find(|name| ending(name) == Some("ovf".into()));
    if let Some(description) = description {
        let text = archive.text(description, ovf::BYTES_MAX)?;
        let described = ovf::disks(&text).map_err(|what| {
            refused(
                format!("{description} in {}: {what}", archive.shown()),
                "take the disks that you want out of it (tar -xf), and import those",
            )
        })?;
        if let Some(described) = described {
            return in_order(archive, description, described);
        }
    }
    Ok(Disks {
        disks: vec![only(archive, &names)?],
        notes: Vec::new(),
    })
}

/// Returns the disks that a description names.
fn in_order(
    archive: &Archive<'_>,
    description: &str,
    described: Vec<ovf::Described>,
) -> Result<Disks, NodeError> {
    let shown = archive.shown();
    if described.len() > DISKS_MAX {
        return Err(refused(
            format!(
                "{shown} describes {} disks, and an image has at most {DISKS_MAX}",
                described.len()
            ),
            "take those that you want out of it (tar -xf), and import them",
        ));
    }
    let mut found = Disks {
        disks: Vec::new(),
        notes: Vec::new(),
    };
    for disk in described {
        let Some(file) = disk.file else {
            found.notes.push(format!(
                "{} of {shown} is empty, and is left out: give machines one with floe attach",
                disk.id
            ));
            continue;
        };
        let inside = match description.rsplit_once('/') {
            Some((dir, _)) => format!("{dir}/{file}"),
            None => file.clone(),
        };
        let trouble = if disk.chunked {
            Some("is cut into pieces")
        } else if disk.parent.is_some() {
            Some("is a layer over another disk")
        } else if !archive.holds(&inside) {
            Some("is not in it")
        } else {
            None
        };
        if let Some(trouble) = trouble {
            return Err(refused(
                format!("{shown} describes a disk {file}, which {trouble}"),
                "export the appliance anew as one file with whole disks (ovftool, VBoxManage export)",
            ));
        }
        found.disks.push(kind(archive, &inside)?);
    }
    match found.disks.is_empty() {
        false => Ok(found),
        true => Err(refused(
            format!("{shown} describes no disk that has anything on it"),
            "import an empty disk: truncate -s 20G empty.raw",
        )),
    }
}

/// Returns what a file of an archive is, which holds a disk or describes one.
fn kind(archive: &Archive<'_>, name: &str) -> Result<Disk, NodeError> {
    let text = match ending(name).as_deref() {
        Some("vmdk") => archive.text(name, disk_vmdk::BYTES_MAX as u64)?,
        _ => String::new(),
    };
    let name = name.to_owned();
    Ok(match text.starts_with(MARK) {
        true => Disk::Split {
            name,
            descriptor: text,
        },
        false => Disk::Whole(name),
    })
}

/// Returns the one disk in an archive that holds these files.
fn only(archive: &Archive<'_>, names: &[String]) -> Result<Disk, NodeError> {
    let shown = archive.shown();
    let (discs, disks): (Vec<_>, Vec<_>) = names
        .iter()
        .filter(|name| is_disk(name))
        .partition(|name| name.to_ascii_lowercase().ends_with(".iso"));
    // an ISO in an appliance was in its drive; the appliance does not start from it
    let mut found = if disks.is_empty() { discs } else { disks };
    let (mut kinds, mut parts) = (Vec::new(), Vec::new());
    for name in &found {
        let disk = kind(archive, name)?;
        if let Disk::Split { descriptor, .. } = &disk {
            let dir = name
                .rsplit_once('/')
                .map_or(String::new(), |(dir, _)| format!("{dir}/"));
            let extents = disk_vmdk::extents(descriptor);
            parts.extend(
                extents.filter_map(|line| Some(format!("{dir}{}", line.split('"').nth(1)?))),
            );
        }
        kinds.push(disk);
    }
    found.retain(|name| !parts.contains(*name));
    match &found[..] {
        [one] => {
            let is_it = |disk: &Disk| match disk {
                Disk::Whole(name) | Disk::Split { name, .. } => name == *one,
            };
            let disk = kinds.into_iter().find(is_it);
            Ok(disk.unwrap_or_else(|| Disk::Whole((*one).clone())))
        }
        [] => Err(refused(
            format!(
                "{shown} is an archive without a disk image: it holds {}",
                list(names)
            ),
            "take what you want to import out of it: tar -xf",
        )),
        many => Err(refused(
            format!(
                "{shown} holds {} disks, and no description (OVF) of their order: {}",
                many.len(),
                list(many)
            ),
            "take them out (tar -xf), and import those that you want, the first one first",
        )),
    }
}

/// Returns a file's ending in small letters, without that of a packing; `None` for hidden files, which macOS puts beside others.
fn ending(name: &str) -> Option<String> {
    let name = name.to_ascii_lowercase();
    let file = Path::new(&name).file_name()?.to_string_lossy();
    let packed = PACKED_ENDINGS
        .iter()
        .find_map(|ending| file.strip_suffix(ending));
    let ending = packed.unwrap_or(&file).rsplit_once('.')?.1.to_owned();
    (!file.starts_with('.')).then_some(ending)
}

fn is_disk(name: &str) -> bool {
    ending(name).is_some_and(|ending| DISK_ENDINGS.contains(&ending.as_str()))
}

fn list(names: &[impl AsRef<str>]) -> String {
    let shown = names.iter().take(NAMES_SHOWN).map(AsRef::as_ref);
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if names.len() > NAMES_SHOWN {
        text += ", ...";
    }
    if names.is_empty() {
        text += "nothing";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, io::Write};

    /// What is found in an archive of these files.
    fn found(files: &[(&str, &str)]) -> Result<(Vec<String>, Vec<String>), String> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            builder
                .append_data(&mut header, name, content.as_bytes())
                .unwrap();
        }
        let bytes = builder.into_inner().unwrap();
        let mut file: File = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let archive = Archive::open(&file, "x.ova", bytes.len() as u64).unwrap();
        let disks = disks(&archive).map_err(|error| error.to_string())?;
        let names = disks.disks.into_iter().map(|disk| match disk {
            Disk::Whole(name) => name,
            Disk::Split { name, .. } => format!("split {name}"),
        });
        Ok((names.collect(), disks.notes))
    }

    #[test]
    fn one_disk_of_an_archive_is_taken_and_several_are_named() {
        let one = found(&[
            ("a.ovf", "?"),
            ("a.mf", "?"),
            ("a-disk1.vmdk", "?"),
            ("tools.iso", "?"),
            ("._a.vmdk", ""),
        ]);
        assert_eq!(one.unwrap().0, ["a-disk1.vmdk"]);
        let two = found(&[
            ("a.ovf", "<Envelope/>"),
            ("a-disk1.vmdk", ""),
            ("a-disk2.vmdk.gz", ""),
        ]);
        let error = two.unwrap_err();
        assert!(error.contains("2 disks"), "{error}");
        assert!(error.contains("a-disk1.vmdk, a-disk2.vmdk.gz"), "{error}");
        let error = found(&[("readme.txt", "")]).unwrap_err();
        assert!(error.contains("it holds readme.txt"), "{error}");
    }

    #[test]
    fn an_appliances_disks_are_all_found_in_the_order_of_its_description() {
        let ovf = "<Envelope><File id='1' href='a.vmdk'/><File id='2' href='b.vmdk.gz'/><Disk diskId='x' fileRef='2'/>\
             <Disk diskId='y' fileRef='1'/><Disk diskId='z' capacity='1'/></Envelope>";
        let (names, notes) =
            found(&[("d/v.ovf", ovf), ("d/a.vmdk", "?"), ("d/b.vmdk.gz", "?")]).unwrap();
        assert_eq!(names, ["d/b.vmdk.gz", "d/a.vmdk"]);
        assert!(notes[0].contains("z of x.ova is empty"), "{notes:?}");
        let error = found(&[("v.ovf", ovf), ("a.vmdk", "?")]).unwrap_err();
        assert!(error.contains("b.vmdk.gz, which is not in it"), "{error}");
        let layered = ovf.replace("fileRef='1'", "fileRef='1' parentRef='x'");
        let error = found(&[("v.ovf", &layered), ("a.vmdk", "?"), ("b.vmdk.gz", "?")]).unwrap_err();
        assert!(error.contains("a layer over another"), "{error}");
    }

    #[test]
    fn the_files_of_a_split_disk_are_one_disk() {
        let descriptor =
            format!("{MARK}\nRW 8 SPARSE \"d-s001.vmdk\"\nRW 8 SPARSE \"d-s002.vmdk\"\n");
        let files = [
            ("v/d-s001.vmdk", "KDMV"),
            ("v/d-s002.vmdk", "KDMV"),
            ("v/d.vmdk", &descriptor),
        ];
        assert_eq!(found(&files).unwrap().0, ["split v/d.vmdk"]);
    }
}
