//! A real guest for tests: busybox on Debian's cloud kernel, under whatever accelerator this host has.
#![allow(
    clippy::disallowed_methods,
    reason = "a test may ask whether a file is there"
)]
#![allow(dead_code)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use floe_image::CHUNK_SIZE;
use floe_machine::{
    Boot, Capture, Machine, Pages, Programs, Rest, Snapshot, Socket, Spec, User, accel,
};

/// Longest time for anything in the guest on a loaded host.
pub const PATIENCE: Duration = Duration::from_secs(100);
pub const MEMORY_BYTES: u64 = 128 << 20;

/// Returns the guest's directory.
pub fn guest() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/guests");
    let guests = std::env::var_os("FLOE_GUESTS").map_or(workspace, PathBuf::from);
    guests.join("tiny").canonicalize().unwrap_or_else(|e| {
        panic!(
            "{}/tiny: {e}; build it with `make guest-tiny`",
            guests.display()
        )
    })
}

pub fn programs() -> Programs {
    Programs {
        qemu: "/usr/bin/qemu-system-x86_64".into(),
        wrapper: vec![env!("CARGO_BIN_EXE_floe-exec-qemu").into()],
    }
}

/// Returns the arguments with which Python runs a script with the guard loaded as in QEMU. The C library's streams for output have no
/// descriptors there, so that Python does not use them by itself.
pub fn python_arguments(script: &str) -> Vec<std::ffi::OsString> {
    let streams = "import sys; sys.stdout, sys.stderr = open(1, 'w', 1), open(2, 'w', 1)";
    vec!["-c".into(), format!("{streams}\n{script}").into()]
}

/// Returns a directory for machines that other users may pass through.
pub fn scratch() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// Returns the spec of the tiny guest, with a user of its own as in the product. `number` keeps users apart.
pub fn spec(guest: &Path, dir: &Path, name: &str, number: u32) -> Spec {
    // The repository may be in a place that only its owner can read.
    let readable = |file: &str| {
        use std::os::unix::fs::PermissionsExt;
        let to = dir.join(file);
        if !to.exists() {
            std::fs::copy(guest.join(file), &to).unwrap();
            std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o644)).unwrap();
        }
        to
    };
    let mut spec = Spec::new(name, dir.join(name), accel::detect(), programs());
    spec.config.memory_bytes = Some(MEMORY_BYTES);
    spec.config.cmdline = Some("console=ttyS0 init_on_free=1 quiet".into());
    spec.boot = Some(Boot {
        kernel: readable("vmlinuz"),
        initrd: Some(readable("initrd")),
    });
    spec.user = User::for_machine(number);
    spec
}

/// Returns the spec of a clone of a captured machine.
pub fn clone_spec<F>(
    original: &Spec,
    capture: &Capture<F>,
    dir: &Path,
    name: &str,
    number: u32,
) -> Spec {
    let mut spec = original.clone();
    spec.name = name.into();
    spec.dir = dir.join(name);
    spec.config = capture.config.clone();
    spec.user = User::for_machine(number);
    spec.forwards.clear();
    spec
}

/// Writes what the mount would show as the image. Each clone gets its own files, since QEMU's balloon would punch holes
/// into ordinary ones. Added memory blocks are beside `ram`, with their numbers appended to its name.
pub fn snapshot<F>(
    capture: &Capture<F>,
    base: Option<&Path>,
    ram: &Path,
    user: Option<User>,
) -> Snapshot {
    write_region(&capture.ram, base, ram, user);
    let blocks = (1..).zip(&capture.blocks).map(|(number, pages)| {
        let (base, file) = (
            base.map(|base| numbered(base, number)),
            numbered(ram, number),
        );
        write_region(pages, base.as_deref(), &file, user);
        file
    });
    let vram = capture
        .vram
        .iter()
        .map(|(chunk, content)| (chunk, Box::new(*content)))
        .collect();
    Snapshot {
        ram: ram.into(),
        blocks: blocks.collect(),
        device: capture.device.clone(),
        vram,
    }
}

fn numbered(ram: &Path, number: usize) -> PathBuf {
    let mut name = ram.as_os_str().to_owned();
    name.push(number.to_string());
    name.into()
}

/// Returns the modes with which a process has a file open, one for each descriptor.
pub fn open_modes(pid: u32, path: &Path) -> Vec<i32> {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let of_file = fds
        .flatten()
        .filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == path));
    let mode = |fd: std::fs::DirEntry| {
        let number = fd.file_name();
        let info = format!("/proc/{pid}/fdinfo/{}", number.to_string_lossy());
        let info = std::fs::read_to_string(info).unwrap();
        let flags = info.lines().find_map(|l| l.strip_prefix("flags:")).unwrap();
        i32::from_str_radix(flags.trim(), 8).unwrap() & libc::O_ACCMODE
    };
    of_file.map(mode).collect()
}

/// Writes the content of a memory region, on top of that of the earlier image if the capture is based on one.
fn write_region(pages: &Pages, base: Option<&Path>, to: &Path, user: Option<User>) {
    use std::os::unix::fs::FileExt;
    if let (Some(base), Rest::Base) = (base, pages.rest()) {
        std::fs::copy(base, to).unwrap();
    }
    let file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(to)
        .unwrap();
    file.set_len(pages.size()).unwrap();
    for (chunk, content) in pages.iter() {
        file.write_all_at(content, u64::from(chunk) * CHUNK_SIZE as u64)
            .unwrap();
    }
    give(to, user);
}

/// Makes the machine's user the owner of a file.
pub fn give(path: &Path, user: Option<User>) {
    if let Some(User { uid, gid }) = user {
        std::os::unix::fs::chown(path, Some(uid), Some(gid)).unwrap();
    }
}

/// The serial console of a machine.
pub struct Console {
    stream: UnixStream,
    pub seen: String,
}

impl Console {
    pub fn open(machine: &Machine) -> Console {
        let stream = machine.connect(Socket::Console).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        Console {
            stream,
            seen: String::new(),
        }
    }

    pub fn send(&mut self, line: &str) {
        self.stream.write_all(line.as_bytes()).unwrap();
        self.stream.write_all(b"\n").unwrap();
    }

    /// Reads until the text written from now on contains `text`, and returns it.
    pub fn expect(&mut self, text: &str) -> String {
        self.expect_with(|seen| seen.contains(text), text)
    }

    pub fn expect_with(&mut self, good: impl Fn(&str) -> bool, what: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut buffer = [0; 4096];
        loop {
            if good(&self.seen) {
                return std::mem::take(&mut self.seen);
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => panic!("the console ended before {what:?}; it said:\n{}", self.seen),
                Ok(n) => self.seen.push_str(&String::from_utf8_lossy(&buffer[..n])),
                Err(_) => assert!(
                    Instant::now() < deadline,
                    "no {what:?}; the console said:\n{}",
                    self.seen
                ),
            }
        }
    }

    /// Runs a command in the guest's shell and returns what it printed.
    pub fn run(&mut self, command: &str) -> String {
        self.seen.clear();
        // The echo of the line contains the quotes, the shell's output does not.
        self.send(&format!("echo 'BEG''IN'; {command}; echo 'E''ND'"));
        let said = self.expect_with(
            |s| s.contains("BEGIN\r\n") && s.contains("END\r\n"),
            "the end of a command",
        );
        let (_, said) = said.split_once("BEGIN\r\n").unwrap();
        said.split_once("END\r\n").unwrap().0.replace('\r', "")
    }
}

/// Boots the guest to its shell.
pub fn boot(spec: Spec) -> (Machine, Console) {
    let machine = Machine::start(spec).unwrap();
    let mut console = Console::open(&machine);
    console.send("");
    wait_ready(&machine);
    console.send("");
    console.expect("tiny#");
    (machine, console)
}

pub fn wait_ready(machine: &Machine) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let said = machine.console_history(1 << 20).unwrap();
        if String::from_utf8_lossy(&said).contains("floe-guest ready") {
            return;
        }
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(
            Instant::now() < deadline,
            "the guest did not come up; it said:\n{said}\n{}",
            machine.qemu_log()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Ends its machine when the test ends, whether it succeeds or not.
pub struct Guard<'a>(pub &'a Machine);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let _ = self.0.quit(Duration::from_secs(5));
    }
}
