//! What people bring along to be imported: disks in every format and packing, cut off, of odd sizes, and things that are none.

use crate::support::importing::Rig;
use crate::support::imports::{convert, disk};
use crate::support::node::{self, finish};
use floe_api::*;
use floe_store::Repository;
use std::{fs, os::unix::net::UnixListener, process::Command};

/// The formats, with `qemu-img`'s options for what differs in their tables.
const FORMATS: &[(&str, &str, &[&str])] = &[
    ("qcow", "qcow", &[]),
    ("qcow2", "qcow2", &[]),
    ("qcow2-old", "qcow2", &["-o", "compat=0.10"]),
    ("qcow2-packed", "qcow2", &["-c"]),
    ("qcow2-small", "qcow2", &["-o", "cluster_size=4k"]),
    ("qcow2-parts", "qcow2", &["-o", "extended_l2=on"]),
    ("vmdk", "vmdk", &[]),
    ("vmdk-stream", "vmdk", &["-o", "subformat=streamOptimized"]),
    ("vdi", "vdi", &[]),
    ("vdi-static", "vdi", &["-o", "static=on"]),
    ("vhdx", "vhdx", &[]),
    ("vpc", "vpc", &["-o", "force_size=on"]),
    ("vpc-fixed", "vpc", &["-o", "subformat=fixed,force_size=on"]),
];

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn an_image_that_is_cut_off_is_refused_wherever_it_is_cut() {
    let rig = Rig::new();
    rig.write("disk.raw", &disk());
    let whole = rig.regions(&rig.import("disk.raw").unwrap());
    for (name, format, options) in FORMATS {
        convert(&rig, name, format, options);
        let outcome = rig
            .import(name)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(rig.regions(&outcome), whole, "{name}");
        let bytes = fs::read(rig.path(name)).unwrap();
        // what is behind the data of a vmdk stream only fills it up
        let end = bytes.len() - (64 << 10);
        for keep in [1000, 60_000, end / 3, end / 2, end * 9 / 10, end] {
            rig.write("cut", &bytes[..keep]);
            let error = rig
                .import("cut")
                .expect_err(&format!("{keep} bytes of {name}"));
            assert!(error.contains("/cut"), "{keep} of {name}: {error}");
        }
    }
    let raw = disk();
    for keep in [raw.len() / 2, raw.len() - 512] {
        rig.write("cut", &raw[..keep]);
        let error = rig.import("cut").unwrap_err();
        assert!(error.contains("is cut off"), "{error}");
    }
    rig.assert_nothing_is_left();
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn one_disk_in_every_format_is_stored_once() {
    let rig = Rig::new();
    rig.write("disk.raw", &disk());
    let stored = || {
        let repository = Repository::open(&rig.node.home().join("repo")).unwrap();
        let entries = repository.list().unwrap();
        entries
            .iter()
            .map(|e| e.pack_bytes - e.shared_bytes)
            .sum::<u64>()
    };
    let first = rig.import("disk.raw").unwrap().image.unwrap();
    let one = stored();
    assert_eq!((first.shared_bytes, first.stored_bytes), (0, one));
    for (name, format, options) in FORMATS {
        convert(&rig, name, format, options);
        let outcome = rig
            .import(name)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let image = outcome.image.unwrap();
        assert_eq!(image.shared_bytes, image.stored_bytes, "{name}");
        assert_eq!(outcome.stored.unwrap().new_chunks, 0, "{name}");
    }
    // the one that brought it goes, the others stay whole
    let request = RemoveImageRequest {
        image: "disk-raw".into(),
        force: false,
    };
    rig.node.client().remove_image(&request).unwrap();
    let verify = finish(rig.node.client().verify_image("vdi").unwrap());
    assert_eq!(verify.verify.unwrap().problems, Vec::<String>::new());
    let mut packs = 0;
    for folder in fs::read_dir(rig.node.home().join("repo/packs")).unwrap() {
        for pack in fs::read_dir(folder.unwrap().path()).unwrap() {
            packs += pack.unwrap().metadata().unwrap().len();
        }
    }
    assert_eq!(packs, one, "stored once");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn what_is_no_disk_is_refused_by_name_and_nothing_is_waited_for() {
    let rig = Rig::new();
    fs::copy("/proc/self/exe", rig.path("elf")).unwrap();
    rig.write("empty", b"");
    rig.write("text", b"this is a letter\n");
    rig.write("pdf", b"%PDF-1.7\n\xff\xff");
    rig.write(
        "noise",
        &(0..99_999u32)
            .map(|n| (n.wrapping_mul(n) >> 3) as u8)
            .collect::<Vec<_>>(),
    );
    fs::copy(node::guest("tiny/vmlinuz"), rig.path("kernel")).unwrap();
    fs::create_dir(rig.path("folder")).unwrap();
    let fifo = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, rig.path("fifo"), fifo).unwrap();
    let _socket = UnixListener::bind(rig.path("socket")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", rig.path("device")).unwrap();
    for (file, what) in [
        ("elf", "an ELF program"),
        ("empty", "an empty file"),
        ("text", "a text"),
        ("pdf", "a PDF document"),
        ("noise", "--format raw"),
        ("kernel", "--kernel"),
        ("folder", "a directory"),
        ("fifo", "a pipe"),
        ("socket", "a socket"),
        ("device", "a character device"),
    ] {
        let out = Command::new(env!("CARGO_BIN_EXE_floe"))
            .args(["image", "import"])
            .arg(rig.path(file))
            .env("FLOE_HOME", rig.node.home())
            .env_remove("FLOE_SOCKET")
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success(), "{file}: {out:?}");
        assert!(error.contains(what), "{file}: {error}");
    }
    // whoever insists is believed
    let request = ImportRequest {
        disks: vec![rig.path("noise").display().to_string()],
        format: Some(ImportFormat::Raw),
        name: Some("noise".into()),
        ..Default::default()
    };
    finish(rig.node.client().import(&request).unwrap());
    rig.assert_nothing_is_left();
}

/// What a node gets along with while it imports, whatever that is.
const MEMORY_BYTES: u64 = 512 << 20;

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn no_archive_and_no_image_takes_the_nodes_memory() {
    let rig = Rig::new();
    rig.node.limit_memory(MEMORY_BYTES);
    let zstd = |name: &str| {
        let (from, to) = (rig.path(name), rig.path(&format!("{name}.zst")));
        let done = Command::new("zstd")
            .args(["-q1", "-o"])
            .args([&to, &from])
            .status();
        assert!(done.unwrap().success());
    };
    // a name, and a list of properties, of twice that memory, in some KB
    for (kind, name) in [(b'L', "name.tar"), (b'x', "properties.tar")] {
        let mut header = vec![0; 512];
        header[..7].copy_from_slice(b"@Header");
        header[124] = 0x80; // what follows is a number, not its digits
        header[128..136].copy_from_slice(&(2 * MEMORY_BYTES).to_be_bytes());
        header[156] = kind;
        header[257..265].copy_from_slice(b"ustar  \0");
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        rig.write(name, &header);
        let archive = fs::File::options().write(true).open(rig.path(name));
        archive.unwrap().set_len(2 * MEMORY_BYTES + 4096).unwrap();
        zstd(name);
        let error = rig.import(&format!("{name}.zst")).unwrap_err();
        let wanted = format!("has {} bytes, more than", 2 * MEMORY_BYTES);
        assert!(error.contains(&wanted), "{error}");
    }
    // a disk that is stored without its holes is the disk
    rig.write("disk.raw", &disk());
    let whole = rig.regions(&rig.import("disk.raw").unwrap());
    let holes = Command::new("cp")
        .args(["--sparse=always"])
        .args([rig.path("disk.raw"), rig.path("holes.raw")])
        .status();
    assert!(holes.unwrap().success());
    for (name, packing) in [("gnu.tar", "--sparse"), ("gnu.tar.zst", "--zstd")] {
        let done = Command::new("tar")
            .args(["--sparse", "--format=gnu", packing, "-cf"])
            .arg(rig.path(name))
            .arg("-C")
            .args([rig.path(""), "holes.raw".into()])
            .output();
        assert!(done.unwrap().status.success());
        assert!(fs::metadata(rig.path(name)).unwrap().len() < 6 << 20);
        let outcome = rig.import(name).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(rig.regions(&outcome), whole, "{name}");
    }
    // a qcow whose tables of 64 KiB lie at every byte
    let mut image = b"QFI\xfb\0\0\0\x01".to_vec();
    let tables = 1u64 << 20;
    image.resize(24, 0);
    image.extend((tables << 22).to_be_bytes());
    image.extend([9, 13, 0, 0, 0, 0, 0, 0]);
    image.extend(48u64.to_be_bytes());
    image.extend((0..tables).flat_map(|n| (48 + n).to_be_bytes()));
    image.resize(image.len() + (64 << 10), 0);
    rig.write("across.qcow", &image);
    let error = rig.import("across.qcow").unwrap_err();
    assert!(error.contains("qcow"), "{error}");
    // and it is still there
    rig.import("disk.raw").unwrap();
    rig.assert_nothing_is_left();
}
