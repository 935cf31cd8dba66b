//! The initial ramdisk: busybox, the drivers of the disks that floe's machines have, and `init.sh`.
//!
//! Debian's own is ten times as large, and an emulated guest unpacks it for seconds.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use super::{BuildError, io};

const INIT: &str = include_str!("init.sh");
/// Drivers of each machine, in the order in which they are loaded.
const DRIVERS: [&str; 11] = [
    "virtio_pci",
    "virtio_net",
    "virtio_blk",
    "virtio_balloon",
    "virtio_console",
    "virtio_rng",
    "virtio_mem",
    "vmgenid",
    "ext4",
    "crc32c_generic",
    "crc32c_intel",
];
/// Drivers that are loaded if the disk is not there yet.
const MORE_DRIVERS: [&str; 8] = [
    "virtio_scsi",
    "ahci",
    "ata_piix",
    "nvme",
    "sym53c8xx",
    "mptspi",
    "vmw_pvscsi",
    "sd_mod",
];
/// Largest driver that is believed, bytes, unpacked.
const DRIVER_BYTES_MAX: u64 = 32 << 20;
const MODE_DIR: u32 = 0o040_755;
const MODE_PROGRAM: u32 = 0o100_755;
const MODE_FILE: u32 = 0o100_644;

/// Returns the version of the one kernel in a tree of files.
pub fn kernel_version(tree: &Path) -> Result<String, BuildError> {
    let dir = tree.join("usr/lib/modules");
    let versions = std::fs::read_dir(&dir).map_err(io(format!("read {}", dir.display())))?;
    let mut names = versions
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    match (names.next(), names.next()) {
        (Some(version), None) => Ok(version),
        (first, second) => Err(BuildError::Content(format!(
            "one kernel was expected, not {first:?} and {second:?}"
        ))),
    }
}

/// Packs the ramdisk for the kernel in a tree of files.
pub fn pack(tree: &Path, version: &str) -> Result<Vec<u8>, BuildError> {
    let read = |path: &Path| std::fs::read(path).map_err(io(format!("read {}", path.display())));
    let modules = tree.join("usr/lib/modules").join(version);
    let list = modules.join("modules.dep");
    let list = String::from_utf8(read(&list)?)
        .map_err(|_| BuildError::Content("modules.dep is no text".into()))?;
    let known = dependencies(&list);
    let mut seen = BTreeSet::new();
    let first = load_order(&known, &DRIVERS, &mut seen);
    let more = load_order(&known, &MORE_DRIVERS, &mut seen);

    let mut archive = Archive::default();
    for dir in ["bin", "dev", "proc", "sys", "mnt", "modules"] {
        archive.add(dir, MODE_DIR, &[]);
    }
    archive.add("init", MODE_PROGRAM, INIT.as_bytes());
    archive.add(
        "bin/busybox",
        MODE_PROGRAM,
        &read(&tree.join("usr/bin/busybox"))?,
    );
    for (order, paths) in [("order", first), ("more", more)] {
        let mut names = String::new();
        for path in paths {
            let name = unpacked_name(path);
            archive.add(
                &format!("modules/{name}"),
                MODE_FILE,
                &driver(&modules.join(path))?,
            );
            names = names + name + "\n";
        }
        archive.add(&format!("modules/{order}"), MODE_FILE, names.as_bytes());
    }
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let done = packed
        .write_all(&archive.finish())
        .and_then(|()| packed.finish());
    done.map_err(io("compress the initial ramdisk"))
}

/// A driver's file name without the ending of its compression.
fn unpacked_name(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.strip_suffix(".xz").unwrap_or(name)
}

/// Reads a driver, unpacked: the kernel of a ramdisk that is compressed anyway gains nothing by another layer.
fn driver(path: &Path) -> Result<Vec<u8>, BuildError> {
    let shown = || format!("read {}", path.display());
    let file = File::open(path).map_err(io(shown()))?;
    let mut bytes = Vec::new();
    let read = match path.extension().is_some_and(|end| end == "xz") {
        true => lzma_rust2::XzReader::new(file, true)
            .take(DRIVER_BYTES_MAX)
            .read_to_end(&mut bytes),
        false => file.take(DRIVER_BYTES_MAX).read_to_end(&mut bytes),
    };
    read.map_err(io(shown()))?;
    if !bytes.starts_with(b"\x7fELF") {
        return Err(BuildError::Content(format!(
            "{} is no driver",
            path.display()
        )));
    }
    Ok(bytes)
}

/// What `modules.dep` says: the paths of a driver and of those that it needs, the nearest first, by the driver's name.
fn dependencies(list: &str) -> HashMap<String, Vec<&str>> {
    let mut known = HashMap::new();
    for (path, needs) in list.lines().filter_map(|line| line.split_once(':')) {
        let name = unpacked_name(path)
            .trim_end_matches(".ko")
            .replace('-', "_");
        let paths = std::iter::once(path).chain(needs.split_whitespace());
        known.insert(name, paths.collect());
    }
    known
}

/// The paths of drivers and of what they need, in the order in which they are loaded, without those that were `seen`. A driver that
/// is built into this kernel, or that it does not have, is left out.
fn load_order<'a>(
    known: &HashMap<String, Vec<&'a str>>,
    drivers: &[&str],
    seen: &mut BTreeSet<&'a str>,
) -> Vec<&'a str> {
    let mut order = Vec::new();
    for paths in drivers.iter().filter_map(|name| known.get(*name)) {
        order.extend(paths.iter().rev().filter(|path| seen.insert(path)));
    }
    order
}

/// An archive in the format that the kernel unpacks (cpio, `newc`).
#[derive(Debug, Default)]
struct Archive {
    bytes: Vec<u8>,
    files: u32,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.files += 1;
        let length = |n: usize| u32::try_from(n).unwrap_or(u32::MAX); // drivers and busybox are far below that
        let fields = [
            self.files,
            mode,
            0,
            0,
            1,
            0,
            length(content.len()),
            0,
            0,
            0,
            0,
            length(name.len() + 1),
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        let end = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(end, 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
kernel/fs/ext4/ext4.ko: kernel/lib/crc16.ko kernel/fs/mbcache.ko kernel/fs/jbd2/jbd2.ko
kernel/drivers/block/virtio_blk.ko.xz: kernel/drivers/virtio/virtio_ring.ko.xz kernel/drivers/virtio/virtio.ko.xz
kernel/drivers/char/virtio-rng.ko: kernel/drivers/virtio/virtio_ring.ko.xz kernel/drivers/virtio/virtio.ko.xz
";

    #[test]
    fn what_a_driver_needs_is_loaded_before_it_and_once() {
        let known = dependencies(LIST);
        let mut seen = BTreeSet::new();
        let order = load_order(&known, &["virtio_blk", "built_in", "virtio_rng"], &mut seen);
        let names: Vec<_> = order.into_iter().map(unpacked_name).collect();
        assert_eq!(
            names,
            [
                "virtio.ko",
                "virtio_ring.ko",
                "virtio_blk.ko",
                "virtio-rng.ko"
            ]
        );
        let order = load_order(&known, &["ext4", "virtio_blk"], &mut seen);
        let names: Vec<_> = order.into_iter().map(unpacked_name).collect();
        assert_eq!(names, ["jbd2.ko", "mbcache.ko", "crc16.ko", "ext4.ko"]);
    }

    #[test]
    fn the_archive_is_what_cpio_reads() {
        let mut archive = Archive::default();
        archive.add("dir", MODE_DIR, &[]);
        archive.add("dir/file", MODE_FILE, b"hello");
        let bytes = archive.finish();
        let dir = tempfile::tempdir().unwrap();
        let mut cpio = std::process::Command::new("cpio")
            .args(["--quiet", "-id", "--no-preserve-owner"])
            .current_dir(&dir)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        cpio.stdin.take().unwrap().write_all(&bytes).unwrap();
        assert!(cpio.wait().unwrap().success());
        assert_eq!(
            std::fs::read(dir.path().join("dir/file")).unwrap(),
            b"hello"
        );
    }
}
