//! What people bring along to be imported: disks in every format and packing, cut off, of odd sizes, and things that are none.

use crate::support::importing::Rig;
use crate::support::imports::{convert, disk};
use crate::support::node::finish;
use floe_api::*;
use std::{fs, path::Path, process::Command};

fn tool(program: &str, args: &[&str], to: &Path) {
    let out = fs::File::create(to).unwrap();
    let done = Command::new(program).args(args).stdout(out).status();
    assert!(done.unwrap().success(), "{program} {args:?}");
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
    assert!(
        error.contains("2 disks") && error.contains("a-disk1.vmdk, disk.raw"),
        "{error}"
    );
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
