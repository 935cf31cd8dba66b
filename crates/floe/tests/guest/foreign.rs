//! Disks as other programs write them: each becomes the disk that is in it, whole, or is refused by what it is.

use crate::support::importing::Rig;
use crate::support::imports::{convert, disk};
use crate::support::node::finish;
use floe_api::*;
use floe_image::Region;
use std::{fs, os::unix::fs::symlink, process::Command};

/// The disk of these tests, with a footer that says so behind it or around it, as `program` writes it: the geometry of the specification,
/// which rounds down.
fn vhd_of(made: &[u8], program: &[u8; 4]) -> Vec<u8> {
    let mut file = made.to_vec();
    let last = file.len() - 512;
    let copies = match file.starts_with(b"conectix") {
        true => vec![0, last],
        false => vec![last],
    };
    for at in copies {
        let footer = &mut file[at..at + 512];
        footer[28..32].copy_from_slice(program);
        // 8 MiB are 16,384 sectors; these are 16,320
        footer[56..60].copy_from_slice(&[0, 240, 4, 17]);
        footer[64..68].fill(0);
        let sum: u32 = footer.iter().map(|byte| u32::from(*byte)).sum();
        footer[64..68].copy_from_slice(&(!sum).to_be_bytes());
    }
    file
}

fn disks(rig: &Rig, outcome: &Outcome) -> Vec<Region> {
    let mut regions = rig.regions(outcome);
    regions.retain(|region| region.name.starts_with("disk"));
    regions
}

fn tar(rig: &Rig, archive: &str, files: &[&str]) {
    let done = Command::new("tar")
        .arg("-cf")
        .arg(rig.path(archive))
        .arg("-C")
        .arg(rig.path(""))
        .args(files)
        .status();
    assert!(done.unwrap().success(), "{archive}");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_vhd_of_any_program_is_imported_whole_whatever_stands_behind_its_footer() {
    let rig = Rig::new();
    rig.write("disk.raw", &disk());
    let whole = rig.regions(&rig.import("disk.raw").unwrap());
    for (kind, options) in [
        ("dynamic", "force_size=on"),
        ("fixed", "subformat=fixed,force_size=on"),
    ] {
        convert(&rig, "made", "vpc", &["-o", options]);
        let made = fs::read(rig.path("made")).unwrap();
        let programs = [b"vbox", b"vpc ", b"win ", b"qem2", b"what", b"\0\0\0\0"];
        let mut files: Vec<(String, Vec<u8>)> = programs
            .iter()
            .map(|program| (format!("{kind} of {program:?}"), vhd_of(&made, program)))
            .collect();
        files.push((
            format!("{kind} without its last byte"),
            made[..made.len() - 1].to_vec(),
        ));
        for more in [1, 512, 4096, 1 << 20] {
            let longer = [&made[..], &vec![0x5a; more]].concat();
            files.push((format!("{kind} with {more} bytes more"), longer));
        }
        for (what, bytes) in files {
            rig.write("foreign.vhd", &bytes);
            let outcome = rig.import("foreign.vhd");
            let outcome = outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(rig.regions(&outcome), whole, "{what}");
        }
    }
    // what was cut before it was converted is missed at the import, not by the guest
    let whole = disk();
    rig.write("disk.raw", &whole[..whole.len() - 4096]);
    for (name, format, options) in [
        ("cut.qcow2", "qcow2", &[][..]),
        ("cut.vhd", "vpc", &["-o", "force_size=on"]),
    ] {
        convert(&rig, name, format, options);
        let error = rig.import(name).unwrap_err();
        assert!(
            error.contains("is cut off") && error.contains("its MBR tells of"),
            "{error}"
        );
    }
    rig.assert_nothing_is_left();
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn all_disks_of_an_appliance_are_imported_in_the_order_of_its_description() {
    let rig = Rig::new();
    rig.write("disk.raw", &disk());
    let mut other = disk();
    other[100_000..100_512].fill(0x33);
    rig.write("other.raw", &other);
    let one = rig.regions(&rig.import("disk.raw").unwrap());
    let two = rig.regions(&rig.import("other.raw").unwrap());
    convert(&rig, "b.vmdk", "vmdk", &["-o", "subformat=streamOptimized"]);
    let item = |address: u32, disk: &str| {
        format!(
            "<Item><rasd:AddressOnParent>{address}</rasd:AddressOnParent><rasd:HostResource>ovf:/disk/{disk}</rasd:HostResource>\
             <rasd:Parent>3</rasd:Parent><rasd:ResourceType>17</rasd:ResourceType></Item>"
        )
    };
    // its machine has them in another order than that in which they are listed and stored
    let description = format!(
        "<?xml version=\"1.0\"?><ovf:Envelope><References><File ovf:href=\"b.vmdk\" ovf:id=\"f1\"/>\
         <File ovf:href=\"other.raw\" ovf:id=\"f2\"/>\
         </References><DiskSection><Disk ovf:diskId=\"d1\" ovf:fileRef=\"f1\"/><Disk ovf:diskId=\"d2\" ovf:fileRef=\"f2\"/></DiskSection>\
         <VirtualSystem><Item><rasd:InstanceID>3</rasd:InstanceID></Item>{}{}</VirtualSystem></ovf:Envelope>",
        item(1, "d1"),
        item(0, "d2")
    );
    rig.write("a.ovf", description.as_bytes());
    tar(&rig, "a.ova", &["a.ovf", "b.vmdk", "other.raw"]);
    let found = disks(&rig, &rig.import("a.ova").unwrap());
    let segments = |region: &Region| region.segments.clone();
    let names: Vec<&str> = found.iter().map(|region| region.name.as_str()).collect();
    assert_eq!(names, ["disk0", "disk1"]);
    assert_eq!(segments(&found[0]), segments(&two[0]));
    assert_eq!(segments(&found[1]), segments(&one[0]));
    tar(&rig, "lacks.ova", &["a.ovf", "b.vmdk"]);
    let error = rig.import("lacks.ova").unwrap_err();
    assert!(error.contains("other.raw, which is not in it"), "{error}");
    rig.assert_nothing_is_left();
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_disk_in_several_files_is_put_together_of_those_beside_its_description_alone() {
    let rig = Rig::new();
    rig.write("disk.raw", &disk());
    let whole = rig.regions(&rig.import("disk.raw").unwrap());
    for (name, kind, part) in [
        ("split.vmdk", "twoGbMaxExtentSparse", "split-s001.vmdk"),
        ("flat.vmdk", "monolithicFlat", "flat-flat.vmdk"),
    ] {
        convert(&rig, name, "vmdk", &["-o", &format!("subformat={kind}")]);
        assert_eq!(rig.regions(&rig.import(name).unwrap()), whole, "{name}");
        let archive = format!("{}.tar", kind.to_lowercase());
        tar(&rig, &archive, &[part, name]);
        assert_eq!(
            rig.regions(&rig.import(&archive).unwrap()),
            whole,
            "{archive}"
        );
        tar(&rig, &archive, &[name]);
        let error = rig.import(&archive).unwrap_err();
        assert!(
            error.contains(part) && error.contains("not beside it"),
            "{error}"
        );
        let bytes = fs::read(rig.path(part)).unwrap();
        rig.write(part, &bytes[..bytes.len() / 2]);
        let error = rig.import(name).unwrap_err();
        assert!(error.contains("is cut off"), "{error}");
        rig.write("whole", &bytes);
        fs::remove_file(rig.path(part)).unwrap();
        let error = rig.import(name).unwrap_err();
        assert!(
            error.contains(part) && error.contains("not beside it"),
            "{error}"
        );
        // a stranger's description does not lead out of the directory
        symlink(rig.path("whole"), rig.path(part)).unwrap();
        let error = rig.import(name).unwrap_err();
        assert!(error.contains("a symbolic link"), "{error}");
    }
    convert(
        &rig,
        "other.vmdk",
        "vmdk",
        &["-o", "subformat=twoGbMaxExtentSparse"],
    );
    let error = rig.import("other-s001.vmdk").unwrap_err();
    assert!(error.contains("one of several files"), "{error}");
    let text = fs::read_to_string(rig.path("other.vmdk")).unwrap();
    rig.write(
        "other.vmdk",
        text.replace("other-s001.vmdk", "/etc/passwd").as_bytes(),
    );
    let error = rig.import("other.vmdk").unwrap_err();
    assert!(error.contains("needs the extent /etc/passwd"), "{error}");
    rig.assert_nothing_is_left();
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn what_can_not_be_read_is_called_what_it_is_and_copies_no_file_of_the_host() {
    let rig = Rig::new();
    rig.write("disk.raw", &disk());
    let qemu_img = |args: &[&str]| {
        let done = Command::new("qemu-img")
            .current_dir(rig.path(""))
            .args(args)
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    let secret = ["create", "--object", "secret,id=s,data=x", "-f"];
    let luks = "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10";
    qemu_img(&[&secret[..], &["qcow2", "-o", luks, "luks.qcow2", "1M"]].concat());
    qemu_img(
        &[
            &secret[..],
            &["luks", "-o", "key-secret=s,iter-time=10", "disk.luks", "1M"],
        ]
        .concat(),
    );
    qemu_img(&["convert", "-f", "raw", "-O", "qed", "disk.raw", "disk.qed"]);
    qemu_img(&[
        "create",
        "-f",
        "qcow2",
        "-b",
        "disk.raw",
        "-F",
        "raw",
        "backed.qcow2",
    ]);
    for (name, bytes) in [
        ("disk.lz4", &b"\x04\x22\x4d\x18\x64\x40\xa7\x01"[..]),
        (
            "disk.lzma",
            b"\x5d\0\0\x80\0\xff\xff\xff\xff\xff\xff\xff\xff\0\x21\x99",
        ),
        (
            "disk.gpg",
            b"\x8c\x0d\x04\x09\x03\x02\x5f\x1c\xff\x80\x99\x12",
        ),
        ("disk.age", b"age-encryption.org/v1\n-> scrypt"),
        ("disk.enc", b"Salted__\x01\x02\x03\x04\x05\x06\x07\x08\xff"),
    ] {
        rig.write(name, bytes);
    }
    let mut dmg = disk();
    dmg.extend(b"koly\0\0\0\x04\0\0\x02\0");
    dmg.resize(dmg.len() + 500, 0);
    rig.write("disk.dmg", &dmg);
    for (name, what) in [
        ("luks.qcow2", "is encrypted (LUKS in qcow2)"),
        ("disk.luks", "is encrypted (LUKS)"),
        ("disk.gpg", "is encrypted (OpenPGP)"),
        ("disk.age", "is encrypted (age)"),
        ("disk.enc", "is encrypted (openssl enc)"),
        ("disk.lz4", "packed with lz4"),
        ("disk.lzma", "packed with lzma"),
        ("disk.dmg", "an Apple disk image (DMG)"),
        ("disk.qed", "QED"),
        ("backed.qcow2", "needs the backing file disk.raw"),
    ] {
        let request = ImportRequest {
            disks: vec![rig.path(name).display().to_string()],
            ..Default::default()
        };
        let done = rig
            .node
            .client()
            .import(&request)
            .and_then(|events| events.finish(|_| ()));
        let said = done.unwrap_err().to_string();
        assert!(said.contains(what), "{name}: {said}");
        // LUKS may be meant for the guest itself
        assert!(
            name == "disk.luks" || !said.contains("--format raw"),
            "{name}: {said}"
        );
        let copies = said.contains("qemu-img convert -O qcow2 IN OUT");
        assert!(
            !copies || said.contains("Only if you trust it"),
            "{name}: {said}"
        );
    }
    rig.assert_nothing_is_left();
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn an_error_of_qemu_img_is_told_without_its_confinements_own() {
    let rig = Rig::new();
    rig.write("disk.raw", &disk());
    // a feature that it does not know
    convert(&rig, "new.qcow2", "qcow2", &[]);
    let mut new = fs::read(rig.path("new.qcow2")).unwrap();
    new[72] = 0x80;
    rig.write("new.qcow2", &new);
    let error = rig.import("new.qcow2").unwrap_err();
    assert!(error.contains("Unsupported qcow2 feature"), "{error}");
    assert!(!error.contains("/dev/null"), "{error}");
    rig.assert_nothing_is_left();
}

/// 8 MiB with a GPT in sectors of 4096 bytes, as Linux wants it: with its checksums.
fn disk_of_large_sectors() -> Vec<u8> {
    const SECTOR: usize = 4096;
    const SECTORS: u64 = 2048;
    let crc = |bytes: &[u8]| {
        !bytes.iter().fold(u32::MAX, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                (crc >> 1) ^ (0xedb8_8320 * (crc & 1))
            })
        })
    };
    let mut disk = vec![0; SECTOR * SECTORS as usize];
    disk[446 + 4] = 0xee;
    disk[446 + 8] = 1;
    disk[446 + 12..446 + 16].copy_from_slice(&(SECTORS as u32 - 1).to_le_bytes());
    disk[510..512].copy_from_slice(b"\x55\xaa");
    let (first, last) = (6u64, SECTORS - 7);
    let mut table = vec![0; 128 * 128];
    table[..16]
        .copy_from_slice(b"\xaf\x3d\xc6\x0f\x83\x84\x72\x47\x8e\x79\x3d\x69\xd8\x47\x7d\xe4");
    table[16..32].fill(7);
    table[32..40].copy_from_slice(&first.to_le_bytes());
    table[40..48].copy_from_slice(&last.to_le_bytes());
    for (own, other, at) in [(1, SECTORS - 1, 2), (SECTORS - 1, 1, SECTORS - 5)] {
        let mut header = vec![0; 92];
        header[..12].copy_from_slice(b"EFI PART\0\0\x01\0");
        header[12] = 92;
        let places: [(usize, u64); 5] = [(24, own), (32, other), (40, first), (48, last), (72, at)];
        for (place, value) in places {
            header[place..place + 8].copy_from_slice(&value.to_le_bytes());
        }
        header[56..72].fill(9);
        (header[80], header[84]) = (128, 128);
        header[88..92].copy_from_slice(&crc(&table).to_le_bytes());
        let sum = crc(&header);
        header[16..20].copy_from_slice(&sum.to_le_bytes());
        let (own, at) = (own as usize * SECTOR, at as usize * SECTOR);
        disk[own..own + 92].copy_from_slice(&header);
        disk[at..at + table.len()].copy_from_slice(&table);
    }
    disk[first as usize * SECTOR..][..16].copy_from_slice(b"first-partition\n");
    disk
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_disk_with_sectors_of_4096_bytes_has_its_partitions_in_its_guest() {
    let rig = Rig::new();
    rig.write("disk.raw", &disk_of_large_sectors());
    rig.node.import_tiny("large", Some(&rig.path("disk.raw")));
    rig.node.run_named("large", "large");
    rig.node.wait_console("large", "floe-guest ready");
    let look = "echo sector-$(cat /sys/block/vda/queue/logical_block_size)-$(head -c 15 /dev/vda1)";
    rig.node
        .type_and_wait("large", look, "sector-4096-first-partition");
    // and so it is in what the machine becomes
    let request = CaptureRequest {
        name: Some("kept".into()),
        rehearse_s: Some(0),
        ..Default::default()
    };
    finish(rig.node.client().capture("large", &request).unwrap());
    rig.node.run_named("kept", "kept");
    rig.node.type_and_wait(
        "kept",
        &look.replace("sector-", "again-"),
        "again-4096-first-partition",
    );

    // a format that says so is believed where the disk has no table
    let mut plain = disk_of_large_sectors();
    plain[4096..8192].fill(0);
    rig.write("disk.raw", &plain);
    convert(&rig, "made.vhdx", "vhdx", &[]);
    let mut vhdx = fs::read(rig.path("made.vhdx")).unwrap();
    let metadata = (1..vhdx.len() >> 20).map(|mib| mib << 20);
    let metadata = metadata
        .into_iter()
        .find(|at| vhdx[*at..].starts_with(b"metadata"))
        .unwrap();
    let entry = (1..64).map(|n| metadata + n * 32);
    let entry = entry
        .into_iter()
        .find(|at| vhdx[*at..].starts_with(b"\x1d\xbf\x41\x81"))
        .unwrap();
    let offset = u32::from_le_bytes(*vhdx[entry + 16..].first_chunk().unwrap()) as usize;
    vhdx[metadata + offset..][..4].copy_from_slice(&4096u32.to_le_bytes());
    rig.write("states.vhdx", &vhdx);
    let outcome = rig.import("states.vhdx").unwrap();
    let whole = rig.import("disk.raw").unwrap();
    assert_eq!(
        disks(&rig, &outcome)[0].segments,
        disks(&rig, &whole)[0].segments
    );
    let sectors = |outcome: &Outcome| {
        let repository = floe_store::Repository::open(&rig.node.home().join("repo")).unwrap();
        let id = outcome.image.as_ref().unwrap().id.parse().unwrap();
        repository.manifest(&id).unwrap().config.disk_sectors
    };
    assert_eq!(sectors(&outcome).get("disk0"), Some(&4096));
    assert!(sectors(&whole).is_empty());
    let request = ImportRequest {
        hardware: Hardware {
            disk_model: Some(DiskModel::Sata),
            ..Default::default()
        },
        ..Default::default()
    };
    let error = rig
        .import_disk(&rig.path("states.vhdx"), request)
        .unwrap_err();
    assert!(
        error.contains("4096 bytes") && error.contains("virtio"),
        "{error}"
    );
    rig.assert_nothing_is_left();
}
