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
    for shelf in fs::read_dir(rig.node.home().join("repo/packs")).unwrap() {
        for pack in fs::read_dir(shelf.unwrap().path()).unwrap() {
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
