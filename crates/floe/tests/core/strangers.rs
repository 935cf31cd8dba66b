//! What guests and images of strangers can do to the host that runs them: reach it, have its files read, steer the terminal
//! of whoever looks at them.

use crate::support::node::{self, TestNode, finish};
use crate::support::strangers::floe;
use floe_api::*;
use std::{fs, os::unix::fs::PermissionsExt, process::Command};

fn qemu_img(args: &[&str]) {
    let done = Command::new("qemu-img").args(args).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn disks_of_other_formats_are_imported_and_those_that_reach_for_the_hosts_files_are_refused() {
    let node = TestNode::start();
    let dir = tempfile::tempdir().unwrap(); // nobody else's
    let path = |name: &str| dir.path().join(name).display().to_string();
    let content: Vec<u8> = (0..2 << 20).map(|i: u32| (i / 512 * 3) as u8).collect();
    fs::write(path("raw"), &content).unwrap();
    let import = |file: &str| {
        let request = ImportRequest {
            disks: vec![path(file)],
            name: Some(file.replace('.', "-")),
            ..Default::default()
        };
        node.client().import(&request).unwrap().finish(|_| ())
    };
    for format in ["qcow2", "vmdk", "vdi"] {
        qemu_img(&[
            "convert",
            "-f",
            "raw",
            "-O",
            format,
            &path("raw"),
            &path(format),
        ]);
        fs::set_permissions(path(format), fs::Permissions::from_mode(0o600)).unwrap();
        import(format).unwrap_or_else(|error| panic!("{format}: {error}"));
        for (to, name) in [
            (ExportFormat::Raw, "out.raw"),
            (ExportFormat::Qcow2, "out.qcow2"),
        ] {
            let request = ExportRequest {
                image: format.into(),
                region: "disk0".into(),
                path: path(name),
                format: to,
                force: true,
            };
            finish(node.client().export(&request).unwrap());
        }
        assert_eq!(fs::read(path("out.raw")).unwrap(), content, "{format}");
        qemu_img(&[
            "convert",
            "-f",
            "qcow2",
            "-O",
            "raw",
            &path("out.qcow2"),
            &path("back"),
        ]);
        assert_eq!(fs::read(path("back")).unwrap(), content, "{format}");
    }

    fs::write(path("secret"), vec![b's'; 1 << 20]).unwrap();
    let secret = path("secret");
    let backed = path("backed.qcow2");
    qemu_img(&[
        "create", "-q", "-f", "qcow2", "-b", &secret, "-F", "raw", &backed,
    ]);
    let option = format!("data_file={},data_file_raw=on", path("data"));
    let image = path("data.qcow2");
    qemu_img(&["create", "-q", "-f", "qcow2", "-o", &option, &image, "1M"]);
    let text = format!("# Disk DescriptorFile\nversion=1\nRW 2048 FLAT \"{secret}\" 0\n");
    fs::write(path("extent.vmdk"), text).unwrap();
    for (file, what) in [
        ("backed.qcow2", format!("needs the backing file {secret}")),
        (
            "data.qcow2",
            format!("needs the data file {}", path("data")),
        ),
        ("extent.vmdk", format!("needs the extent {secret}")),
    ] {
        let error = import(file).unwrap_err().to_string();
        assert!(error.contains(&what), "{error}");
        assert!(
            error.contains("stands alone") && error.contains("Only if you trust it"),
            "{error}"
        );
    }
    // a header that promises what the rest does not hold
    let mut broken = fs::read(path("qcow2")).unwrap();
    broken[40..48].copy_from_slice(&u64::MAX.to_be_bytes());
    fs::write(path("broken.qcow2"), broken).unwrap();
    let error = import("broken.qcow2").unwrap_err().to_string();
    assert!(error.contains("its L1 table ends at"), "{error}");
    let left = fs::read_dir(node.home().join("tmp")).unwrap().count();
    assert_eq!(left, 0, "nothing is left of those");
}

fn assert_harmless(shown: &str) {
    let bad = |c: &char| {
        c.is_control() && *c != '\n' && *c != '\t'
            || matches!(*c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let found: Vec<char> = shown.chars().filter(bad).collect();
    assert!(found.is_empty(), "{found:?} in {shown}");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn what_guests_and_images_say_does_not_steer_a_terminal() {
    let node = TestNode::start();
    let hostile = "\x1b]0;owned\x07\u{9b}2J\u{202e}gnp.exe\nfake  row";
    let request = ImportRequest {
        kernel: Some(node::guest("tiny/vmlinuz")),
        initrd: Some(node::guest("tiny/initrd")),
        cmdline: Some("console=ttyS0 init_on_free=1 \x1b]0;x\x07\u{202e}".into()),
        name: Some("tiny".into()),
        memory_bytes: Some(256 << 20),
        labels: [("note".to_owned(), hostile.to_owned())].into(),
        ..Default::default()
    };
    finish(node.client().import(&request).unwrap());
    node.run_named("tiny", "web");
    node.wait_console("web", "floe-guest ready");
    // a title, a colour, a question to the terminal, C1 in both encodings, the other direction
    let say = r"printf '\033]0;owned\007 \033[31mred \033[6n \302\233\062J \233\062J a\342\200\256b\342\201\246c said-%d\n'";
    let shown = |round: u32| {
        node.type_and_wait(
            "web",
            &format!("{say} $((40+{round}))"),
            &format!("said-{}", 40 + round),
        );
        let (shown, _) = floe(node.home(), &["logs", "web"]);
        assert_harmless(&shown);
        let seen = [
            r"\x1b]0;owned\x07 \x1b[31mred \x1b[6n".into(),
            format!(r"\x9b2J \x9b2J a\u{{202e}}b\u{{2066}}c said-{}", 40 + round),
        ];
        let whole = seen.iter().all(|seen| shown.contains(seen));
        whole.then_some(()).ok_or(shown)
    };
    // an emulated serial line on a busy host has been seen to give a character twice
    let said = shown(2).or_else(|_| shown(3)).or_else(|_| shown(4));
    said.unwrap();
    let (json, _) = floe(node.home(), &["logs", "web", "--json"]);
    assert_harmless(&json);
    let raw = Command::new(env!("CARGO_BIN_EXE_floe"))
        .args(["logs", "web", "--raw"])
        .env("FLOE_HOME", node.home())
        .env_remove("FLOE_SOCKET")
        .output()
        .unwrap();
    let title = b"\x1b]0;owned\x07";
    assert!(raw.stdout.windows(title.len()).any(|at| at == title));

    for args in [
        &["image", "inspect", "tiny"][..],
        &["image", "inspect", "tiny", "--json"],
        &["image", "ls"],
        &["image", "ls", "--json"],
        &["ps", "web"],
        &["ps"],
        &["top", "--once"],
        &["trace", "ls"],
        &["run", "\x1b]0;x\x07/\u{202e}"],
        &["logs", "\x1b]0;x\x07"],
        &["ps", "\u{9b}2J"],
    ] {
        let (out, err) = floe(node.home(), args);
        assert_harmless(&out);
        assert_harmless(&err);
    }
    let (inspected, _) = floe(node.home(), &["image", "inspect", "tiny"]);
    assert!(
        inspected.contains(r"\x1b]0;owned\x07\x9b2J\u{202e}gnp.exe"),
        "{inspected}"
    );
}
