//! What guests and images of strangers can do to the host that runs them: reach it, have its files read, steer the terminal
//! of whoever looks at them.

mod hosts;
mod node;

use floe_api::*;
use hosts::Hosts;
use node::{Setup, Signal, TestNode, eventually, finish};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{
    fs, io::Write, net::TcpListener, os::fd::AsFd, os::unix::fs::PermissionsExt, path::Path,
    process::Command,
};

/// What a service of the host answers.
const BANNER: &str = "the host answers";
/// Its port.
const PORT: u16 = 7070;
/// Where a cloud's metadata is.
const METADATA: &str = "169.254.169.254";

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.unwrap().success(), "ip {arguments}");
}

/// Listens in a namespace.
fn serve(namespace: &str, address: &str) {
    let space = fs::File::open(format!("/run/netns/{namespace}")).unwrap();
    let address = format!("{address}:{PORT}");
    let (ready, is_ready) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        let listener = TcpListener::bind(address).unwrap();
        ready.send(()).unwrap();
        for stream in listener.incoming() {
            let _ = stream.and_then(|mut stream| writeln!(stream, "{BANNER}"));
        }
    });
    is_ready.recv().unwrap();
}

/// Whether a guest gets something of an address; `mark` is of this question alone.
fn reaches(node: &TestNode, from: &str, to: &str, mark: &str) -> bool {
    let command = format!(
        "echo {mark}-$(timeout 20 nc -w 20 {to} {PORT} </dev/null 2>/dev/null | tr ' ' _)-o$((1+1))"
    );
    let _typist = node.type_line(from, &command);
    let yes = format!("{mark}-{}-o2", BANNER.replace(' ', "_"));
    let no = format!("{mark}--o2");
    let says = |what: &str| node.console(from).contains(what);
    eventually("the guest's answer", || says(&yes) || says(&no));
    says(&yes)
}

fn run(node: &TestNode, image: &str, name: &str, allow_host: HostAccess) {
    node.run(&RunRequest {
        image: image.into(),
        name: Some(name.into()),
        allow_host,
        ..Default::default()
    });
}

fn fork(node: &TestNode, parent: &str) {
    let request = ForkRequest {
        clones: 1,
        ..Default::default()
    };
    finish(node.client().fork(parent, &request).unwrap());
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_machine_its_clones_and_its_images_reach_the_host_as_far_as_was_said_and_no_further() {
    let hosts = Hosts::new();
    let here = &hosts.names[0];
    ip(&format!("-n {here} addr add {METADATA}/32 dev lo"));
    for address in ["127.0.0.1", METADATA] {
        serve(here, address);
    }
    let mut node = TestNode::with(Setup {
        namespace: Some(here.clone()),
        ..Default::default()
    });
    node.boot_tiny("web");
    run(&node, "tiny", "open", HostAccess::All);
    node.wait_console("open", "floe-guest ready");
    assert!(reaches(&node, "open", "10.0.2.2", "a"));
    assert!(reaches(&node, "open", METADATA, "b"));
    assert!(!reaches(&node, "web", "10.0.2.2", "a"));
    assert!(!reaches(&node, "web", METADATA, "b"));

    // clones are what their parent is
    fork(&node, "web");
    fork(&node, "open");
    assert!(!reaches(&node, "web.1", "10.0.2.2", "c"));
    assert!(!reaches(&node, "web.1", METADATA, "d"));
    assert!(reaches(&node, "open.1", "10.0.2.2", "c"));
    let access = |name: &str| node.client().machine(name).unwrap().allow_host;
    assert_eq!(access("open.1"), HostAccess::All);
    assert_eq!(access("web.1"), HostAccess::None);

    // an image is not: who runs it says
    let request = CaptureRequest {
        name: Some("kept".into()),
        rehearse_s: Some(0),
        ..Default::default()
    };
    finish(node.client().capture("open", &request).unwrap());
    run(&node, "kept", "copy", HostAccess::None);
    assert!(!reaches(&node, "copy", "10.0.2.2", "e"));
    run(&node, "kept", "again", HostAccess::Ports(vec![PORT]));
    assert!(reaches(&node, "again", "10.0.2.2", "f"));

    // a node that comes back finds it so, and a machine that starts again is so
    node.end(Signal::KILL);
    node.start_again();
    assert!(!reaches(&node, "web", "10.0.2.2", "g"));
    assert!(reaches(&node, "open", "10.0.2.2", "h"));
    let error = node.client().run(&RunRequest {
        image: "tiny".into(),
        allow_host: HostAccess::All,
        network: Some(NetworkRequest::default()),
        ..Default::default()
    });
    let error = error.unwrap().finish(|_| ()).unwrap_err().to_string();
    assert!(error.contains("--allow 169.254.169.254:80"), "{error}");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_family_network_that_may_go_anywhere_does_not_go_to_the_clouds_metadata_unless_that_is_named() {
    let hosts = Hosts::new();
    let (here, there) = (&hosts.names[0], &hosts.names[1]);
    ip(&format!("-n {there} addr add {METADATA}/32 dev eth0"));
    ip(&format!("-n {here} route add {METADATA}/32 dev eth0"));
    serve(there, "10.90.0.2");
    serve(there, METADATA);
    let node = TestNode::with(Setup {
        namespace: Some(here.clone()),
        ..Default::default()
    });
    node.import_tiny("tiny", None);
    for (name, allow) in [
        ("wide", vec!["0.0.0.0/0"]),
        ("named", vec!["0.0.0.0/0", "169.254.169.254:7070"]),
    ] {
        node.run(&RunRequest {
            image: "tiny".into(),
            name: Some(name.into()),
            network: Some(NetworkRequest {
                allow: allow.iter().map(|text| text.parse().unwrap()).collect(),
                ..Default::default()
            }),
            ..Default::default()
        });
        node.wait_console(name, "floe-guest ready");
        assert!(reaches(&node, name, "10.90.0.2", "a"), "{name}");
        assert_eq!(reaches(&node, name, METADATA, "b"), name == "named");
    }
}

fn qemu_img(args: &[&str]) {
    let done = Command::new("qemu-img").args(args).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
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
        assert!(error.contains("make it stand alone"), "{error}");
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

/// Runs the command as a user would.
fn floe(home: &Path, args: &[&str]) -> (String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_floe"))
        .args(args)
        .env("FLOE_HOME", home)
        .env_remove("FLOE_SOCKET")
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("what is printed is UTF-8");
    (text(out.stdout), text(out.stderr))
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
#[ignore = "needs root, FUSE and QEMU: make test-all"]
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
