//! What people bring along to be imported: disks in every format and packing, cut off, of odd sizes, and things that are none.

mod importing;
mod node;

use floe_api::*;
use floe_image::Region;
use floe_store::Repository;
use importing::Rig;
use node::finish;
use std::{fs, os::unix::net::UnixListener, path::Path, process::Command};

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

impl Rig {
    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    fn import(&self, file: &str) -> Result<Outcome, String> {
        let request = ImportRequest {
            labels: [("from".to_owned(), file.to_owned())].into(), // no two are the same image
            ..Default::default()
        };
        self.import_disk(&self.path(file), request)
    }

    /// What the image consists of, by hashes.
    fn regions(&self, outcome: &Outcome) -> Vec<Region> {
        let repository = Repository::open(&self.node.home().join("repo")).unwrap();
        let id = outcome.image.as_ref().unwrap().id.parse().unwrap();
        repository.manifest(&id).unwrap().regions
    }
}

/// 8 MiB with a partition that fills it: noise in its first and last parts, a hole between.
fn disk() -> Vec<u8> {
    const BYTES: usize = 8 << 20;
    let mut state = 1u64;
    let mut noise = |len: usize| -> Vec<u8> {
        let mut next = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        (0..len).map(|_| next()).collect()
    };
    let mut disk = noise(3 << 20);
    disk.resize(BYTES - (2 << 20), 0);
    disk.extend(noise(2 << 20));
    disk[446..510].fill(0);
    disk[450] = 0x83;
    disk[454..458].copy_from_slice(&2048u32.to_le_bytes());
    disk[458..462].copy_from_slice(&((BYTES as u32 >> 9) - 2048).to_le_bytes());
    disk[510..512].copy_from_slice(b"\x55\xaa");
    disk
}

fn tool(program: &str, args: &[&str], to: &Path) {
    let out = fs::File::create(to).unwrap();
    let done = Command::new(program).args(args).stdout(out).status();
    assert!(done.unwrap().success(), "{program} {args:?}");
}

fn convert(rig: &Rig, name: &str, format: &str, options: &[&str]) {
    let (from, to) = (rig.path("disk.raw"), rig.path(name));
    let done = Command::new("qemu-img")
        .args(["convert", "-f", "raw", "-O", format])
        .args(options)
        .args([&from, &to])
        .output()
        .unwrap();
    assert!(done.status.success(), "{name}: {done:?}");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
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
#[ignore = "needs root, FUSE and QEMU: make test-all"]
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
#[ignore = "needs root, FUSE and QEMU: make test-all"]
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

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_packed_disk_is_the_disk_that_was_packed() {
    let rig = Rig::new();
    rig.write("disk.raw", &disk());
    let whole = rig.regions(&rig.import("disk.raw").unwrap());
    convert(
        &rig,
        "a-disk1.vmdk",
        "vmdk",
        &["-o", "subformat=streamOptimized"],
    );
    rig.write("a.ovf", b"<?xml version=\"1.0\"?><Envelope/>");
    let dir = rig.path("").display().to_string();
    let raw = rig.path("disk.raw").display().to_string();
    tool("gzip", &["-1c", &raw], &rig.path("disk.raw.gz"));
    tool("xz", &["-1c", &raw], &rig.path("disk.raw.xz"));
    tool("zstd", &["-1qc", &raw], &rig.path("disk.raw.zst"));
    tool(
        "tar",
        &["-cC", &dir, "a.ovf", "a-disk1.vmdk"],
        &rig.path("a.ova"),
    );
    tool("tar", &["-cJC", &dir, "disk.raw"], &rig.path("disk.tar.xz"));
    for name in [
        "disk.raw.gz",
        "disk.raw.xz",
        "disk.raw.zst",
        "a.ova",
        "disk.tar.xz",
    ] {
        let outcome = rig
            .import(name)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(rig.regions(&outcome), whole, "{name}");
        let bytes = fs::read(rig.path(name)).unwrap();
        for keep in [bytes.len() / 3, bytes.len() / 2] {
            rig.write("cut", &bytes[..keep]);
            let error = rig.import("cut").unwrap_err();
            assert!(error.contains("is cut off"), "{keep} of {name}: {error}");
        }
    }
    let names = ["-cC", &dir, "a.ovf", "a-disk1.vmdk", "disk.raw"];
    tool("tar", &names, &rig.path("two.ova"));
    let error = rig.import("two.ova").unwrap_err();
    assert!(error.contains("2 disks: a-disk1.vmdk, disk.raw"), "{error}");
    rig.assert_nothing_is_left();
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_disk_of_an_odd_size_starts_and_is_exported_as_it_was() {
    let rig = Rig::new();
    for bytes in [5003usize, 9 * 512] {
        let mut disk: Vec<u8> = (0..bytes).map(|n| (n % 251) as u8).collect();
        disk[510..512].copy_from_slice(b"\x55\xaa");
        disk[446..510].fill(0);
        let last = *b"the last bytes";
        disk[bytes - last.len()..].copy_from_slice(&last);
        rig.write("odd.raw", &disk);
        let name = format!("odd-{bytes}");
        rig.node.import_tiny(&name, Some(&rig.path("odd.raw")));
        rig.node.run_named(&name, &name);
        rig.node.wait_console(&name, "floe-guest ready");
        // QEMU's sectors and ours: the guest sees zeros behind the end
        let command = format!(
            "echo odd-$(dd if=/dev/vda bs=1 skip={} count={} 2>/dev/null | tr ' ' _)-$((1+1))",
            bytes - last.len(),
            last.len()
        );
        rig.node
            .type_and_wait(&name, &command, "odd-the_last_bytes-2");
        let request = ExportRequest {
            image: name.clone(),
            region: "disk0".into(),
            path: rig.path("back.raw").display().to_string(),
            format: ExportFormat::Raw,
            force: true,
        };
        finish(rig.node.client().export(&request).unwrap());
        assert!(fs::read(rig.path("back.raw")).unwrap() == disk, "{name}");
        // and what such a machine becomes is whole as well
        let request = CaptureRequest {
            name: Some(format!("{name}-kept")),
            rehearse_s: Some(0),
            ..Default::default()
        };
        finish(rig.node.client().capture(&name, &request).unwrap());
        rig.node
            .run_named(&format!("{name}-kept"), &format!("{name}-again"));
        let command = command.replace("odd-", "again-");
        let again = format!("{name}-again");
        rig.node
            .type_and_wait(&again, &command, "again-the_last_bytes-2");
    }
}
