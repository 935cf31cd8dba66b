//! Strangers' disks: their formats, tables, partitions and file systems.

use crate::images;

/// A stranger's disk image: its format, the file that it reaches for, or those of which it consists: none that is elsewhere.
pub fn disk_header(data: &[u8]) {
    use images::{disk_format, disk_vhd, disk_vmdk};
    let _ = disk_format::examine_bytes(data);
    let _ = disk_vhd::calculation(data);
    let text = disk_format::descriptor(&disk_format::reader(data)).unwrap_or_default();
    for extent in text
        .and_then(|text| disk_vmdk::parse(&text).ok())
        .unwrap_or_default()
    {
        let name = extent.form.name().unwrap_or("zero.vmdk");
        assert!(!name.contains('/') && name.to_ascii_lowercase().ends_with(".vmdk"));
    }
}

/// The description of a stranger's appliance.
pub fn appliance(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let disks = images::ovf::disks(&text)
        .unwrap_or_default()
        .unwrap_or_default();
    let ids: std::collections::HashSet<_> = disks.iter().map(|disk| &disk.id).collect();
    assert_eq!(ids.len(), disks.len(), "a disk is named twice");
}

/// The tables of a stranger's disk image, in a file that may be longer than what there is of it; or what it is, if it has none.
pub fn disk_tables(data: &[u8]) {
    use images::{disk_content, disk_extent, disk_format};
    let _ = disk_content::look_at_bytes(data);
    let _ = disk_content::missing(&disk_format::reader(data), data.len() as u64);
    if let Ok(format) = disk_format::examine_bytes(data) {
        let read = disk_format::reader(data);
        for len in [data.len() as u64, 1 << 32, u64::MAX] {
            let _ = disk_extent::check(format, &read, len, &|| true);
            let _ = disk_extent::walk(format, &read, len, &|| true, &|_, at, bytes| {
                assert!(at + bytes <= len);
                Ok(())
            });
        }
    }
}

/// The partition tables of a stranger's disk: where its partitions are, what is in them, and what can boot it.
pub fn disk_boot(data: &[u8]) {
    use images::{disk_content, disk_format};
    let read = disk_format::reader(data);
    let table = floe_extents::partitions::read(&read).unwrap_or_default();
    for partition in table.iter().flat_map(|t| &t.partitions).take(8) {
        let _ = disk_content::file_system(&read, partition.first);
    }
    let found = images::disk_boot::look_bytes(data);
    assert!(data.len() >= 512 || found == Default::default());
}

/// What debugfs says of a name in a stranger's file system, whose own bytes are in it.
pub fn disk_entry(data: &[u8]) {
    use images::stat::{Kind, entry};
    if let Some(found) = entry(data) {
        assert!(found.mode <= 0o7777);
        if let Kind::Link(Some(target)) = found.kind {
            assert_eq!(target.len() as u64, found.bytes);
        }
    }
}

/// A stranger's archive of disks: its files lie within it, and the parts of sparse ones within those.
pub fn disk_archive(data: &[u8]) {
    use images::{archive, disk_format};
    let (read, len) = (disk_format::reader(data), data.len() as u64);
    for member in archive::members(&read, len).unwrap_or_default() {
        assert!(member.at + member.stored <= len);
        let (mut end, mut stored) = (0, 0);
        let walked = archive::parts(&read, len, &member, &mut |offset, length| {
            assert!(offset >= end);
            (end, stored) = (offset + length, stored + length);
            Ok(())
        });
        walked.expect("its parts were read before");
        assert_eq!(stored, member.stored);
        if let archive::Form::Sparse { bytes, .. } = member.form {
            assert!(end <= bytes);
        }
    }
}
