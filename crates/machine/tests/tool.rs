//! What a stranger's disk image can make `qemu-img` do: read its input file and write its output file, nothing else.

mod common;

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use common::{programs, scratch};
use floe_machine::tool::{INPUT, OUTPUT, Tool};

/// Content that no image may copy into another.
const SECRET: &[u8] = b"the host's secret";

fn program(name: &str) -> PathBuf {
    let found = fs::canonicalize(Path::new("/usr/bin").join(name));
    found.unwrap_or_else(|error| panic!("{name}: {error}; make deps installs it"))
}

/// Runs a tool on an input that only this process's user may read. Returns the exit status, the messages and the output
/// file.
fn run(tool: &Path, args: &[&str], input: &Path) -> (ExitStatus, String, Vec<u8>) {
    let output = tempfile::NamedTempFile::new().unwrap();
    let mut child = Tool {
        program: tool.into(),
        args: args.iter().map(Into::into).collect(),
        input: File::open(input).unwrap(),
        output: output.reopen().unwrap(),
    }
    .start(&programs())
    .unwrap();
    let mut said = String::new();
    let mut pipe = child.stderr.take().unwrap();
    pipe.read_to_string(&mut said).unwrap();
    let status = child.wait().unwrap();
    (status, said, fs::read(output.path()).unwrap())
}

fn qemu_img(args: &[&str]) {
    let done = Command::new("qemu-img").args(args).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

fn convert<'a>(format: &'a str, to: &'a str) -> Vec<&'a str> {
    vec![
        "convert", "-p", "-f", format, "-O", to, "-W", "-m", "8", INPUT, OUTPUT,
    ]
}

#[test]
#[ignore = "needs qemu-img and python3: make test-all"]
fn disks_are_converted_by_descriptors_alone() {
    let tool = program("qemu-img");
    let dir = scratch();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let content: Vec<u8> = (0..3 << 20).map(|i: u32| (i / 4096 * 7) as u8).collect();
    fs::write(path("raw"), &content).unwrap();
    for format in ["qcow2", "vmdk", "vpc", "vhdx", "vdi", "raw"] {
        let image = path(format);
        if format != "raw" {
            qemu_img(&["convert", "-f", "raw", "-O", format, &path("raw"), &image]);
        }
        fs::set_permissions(&image, fs::Permissions::from_mode(0o600)).unwrap();
        let (status, said, raw) = run(&tool, &convert(format, "raw"), Path::new(&image));
        assert!(status.success(), "{format}: {said}");
        assert!(said.contains("(100.00/100%)"), "{format}: {said}");
        // the confinement is not heard of
        assert!(!said.contains("/dev/null"), "{format}: {said}");
        assert_eq!(raw[..content.len()], content, "{format}");
        assert!(raw[content.len()..].iter().all(|byte| *byte == 0));
    }
    let (status, said, packed) = run(
        &tool,
        &["convert", "-f", "raw", "-O", "qcow2", "-c", INPUT, OUTPUT],
        Path::new(&path("raw")),
    );
    assert!(status.success(), "{said}");
    assert!(packed.starts_with(b"QFI\xfb"));
}

#[test]
#[ignore = "needs qemu-img and python3: make test-all"]
fn a_disk_that_names_a_file_of_the_host_gets_nothing_of_it() {
    let tool = program("qemu-img");
    let dir = scratch();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let secret = path("secret");
    let mut bytes = SECRET.to_vec();
    bytes.resize(1 << 20, b'!');
    fs::write(&secret, bytes).unwrap();
    // not even a file that every user of the host may read
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    let descriptor = format!(
        "# Disk DescriptorFile\nversion=1\nCID=1\nparentCID=ffffffff\ncreateType=\"monolithicFlat\"\n\
         RW 2048 FLAT \"{secret}\" 0\nddb.adapterType = \"ide\"\n"
    );
    fs::write(path("descriptor.vmdk"), descriptor).unwrap();
    let create = |name: &str, options: &[&str]| {
        let image = path(name);
        let mut args = vec!["create", "-q", "-u", "-f", "qcow2"];
        args.extend(options);
        args.extend([image.as_str(), "1M"]);
        qemu_img(&args);
    };
    create("backed.qcow2", &["-b", &secret, "-F", "raw"]);
    let json =
        format!(r#"json:{{"driver":"raw","file":{{"driver":"file","filename":"{secret}"}}}}"#);
    create("json.qcow2", &["-b", &json, "-F", "raw"]);
    create("nbd.qcow2", &["-b", "nbd://127.0.0.1:1/x", "-F", "raw"]);
    let other = format!("data_file={},data_file_raw=on", path("data"));
    let image = path("data.qcow2");
    qemu_img(&["create", "-q", "-f", "qcow2", "-o", &other, &image, "1M"]);
    // replace the file that the image names, which it was made with
    fs::copy(&secret, path("data")).unwrap();
    for (name, format) in [
        ("backed.qcow2", "qcow2"),
        ("json.qcow2", "qcow2"),
        ("nbd.qcow2", "qcow2"),
        ("data.qcow2", "qcow2"),
        ("descriptor.vmdk", "vmdk"),
    ] {
        let (status, said, written) = run(&tool, &convert(format, "raw"), Path::new(&path(name)));
        assert!(!status.success(), "{name} was read: {said}");
        let leaked = written.windows(SECRET.len()).any(|at| at == SECRET);
        assert!(!leaked, "{name}: {said}");
        assert!(said.contains("Could not open"), "{name}: {said}");
        assert!(!said.contains("/dev/null"), "{name}: {said}");
    }
}

#[test]
#[ignore = "needs qemu-img and python3: make test-all"]
fn a_disk_is_opened_by_options_as_well() {
    let dir = scratch();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("raw"), vec![7; 3 << 20]).unwrap();
    let (raw, vhd) = (path("raw"), path("vhd"));
    qemu_img(&[
        "convert",
        "-f",
        "raw",
        "-O",
        "vpc",
        "-o",
        "force_size=on",
        &raw,
        &vhd,
    ]);
    let input =
        format!("driver=vpc,file.driver=file,file.filename={INPUT},force_size_calc=current_size");
    let args = ["convert", "-p", "-O", "raw", "--image-opts", &input, OUTPUT];
    let (status, said, written) = run(&program("qemu-img"), &args, Path::new(&vhd));
    assert!(status.success(), "{said}");
    assert!(
        written == vec![7; 3 << 20],
        "{} bytes: {said}",
        written.len()
    );
}

#[test]
#[ignore = "needs qemu-img and python3: make test-all"]
fn a_tool_that_was_taken_over_has_neither_files_nor_network_nor_processes() {
    let python = program("python3");
    let dir = scratch();
    let input = dir.path().join("in");
    fs::write(&input, "input").unwrap();
    fs::set_permissions(&input, fs::Permissions::from_mode(0o600)).unwrap();
    // import modules first: like a tool's libraries, they are loaded before the input is opened
    let script = "\
import os, socket, ctypes, resource, sys
before = os.open('/etc/hostname', os.O_RDONLY)
f = os.open('/floe/in', os.O_RDONLY)
print('read', os.read(f, 100).decode())
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, call):
    try:
        r = call()
        print(name, 'REFUSED' if r is not None and r < 0 else 'DONE')
    except (OSError, MemoryError) as e:
        print(name, 'REFUSED')
attempt('open', lambda: os.open('/etc/passwd', os.O_RDONLY))
attempt('raw-open', lambda: libc.syscall(257, -100, b'/etc/passwd', 0))
attempt('raw-open2', lambda: libc.syscall(2, b'/etc/passwd', 0))
attempt('socket', lambda: socket.socket() and None)
attempt('fork', lambda: os.fork())
attempt('exec', lambda: os.execv('/bin/true', ['true']))
attempt('unlink', lambda: os.unlink('/tmp/x'))
attempt('ptrace', lambda: libc.ptrace(16, 1, 0, 0))
attempt('kill', lambda: os.kill(1, 0))
attempt('memory', lambda: bytearray(4 << 30) and None)
n = os.open('/dev/null', os.O_RDWR)
print('null', os.write(n, b'x'), len(os.read(n, 1)), os.fstat(n).st_rdev == os.makedev(1, 3))
o = os.open('/floe/out', os.O_RDWR | os.O_CREAT)
os.write(o, b'output')
print('uid', os.geteuid(), 'new privileges', libc.prctl(39, 0, 0, 0, 0))
";
    let (status, said, written) = run(&python, &["-I", "-S", "-c", script], &input);
    assert!(status.success(), "{said}");
    assert_eq!(written, b"output", "{said}");
    assert!(said.contains("read input"), "{said}");
    assert!(!said.contains("DONE"), "{said}");
    assert_eq!(said.matches("REFUSED").count(), 10, "{said}");
    assert!(said.contains("null 1 0 True"), "{said}");
    assert!(said.contains("new privileges 1"), "{said}");
    // SAFETY: takes nothing.
    if unsafe { libc::geteuid() } == 0 {
        assert!(!said.contains("uid 0 "), "{said}");
    }
}
