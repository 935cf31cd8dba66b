//! The guests: an existing build, or a new one.
use anyhow::{Context, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A guest on the local disk.
pub struct Guest {
    dir: PathBuf,
}

impl Guest {
    /// Returns a guest with busybox: seconds to a shell.
    pub fn tiny() -> anyhow::Result<Guest> {
        Guest::find("tiny")
    }

    /// Returns the same on a kernel in which programs may be keyboards and pointers.
    pub fn keys() -> anyhow::Result<Guest> {
        Guest::find("keys")
    }

    /// Returns a small Debian 12 with systemd and a disk.
    pub fn debian() -> anyhow::Result<Guest> {
        Guest::find("debian")
    }

    /// Returns Debian with programs that compute.
    pub fn apps() -> anyhow::Result<Guest> {
        Guest::find("apps")
    }

    /// Returns Debian with a screen and the workloads' programs.
    pub fn desktop() -> anyhow::Result<Guest> {
        Guest::find("desktop")
    }

    /// Returns a directory with ten disks of Debian guests, each with other packages.
    pub fn family() -> anyhow::Result<PathBuf> {
        Ok(Guest::find("family")?.dir)
    }

    /// Returns a guest whose kernel lets programs replace its scheduler. It runs `scx_guest`, and ends.
    pub fn scx() -> anyhow::Result<Guest> {
        Guest::find("scx")
    }

    /// Returns Debian with a web server, PHP and a database, which floe itself has built.
    pub fn shop() -> anyhow::Result<Guest> {
        Guest::at(&Guest::kept("shop"))
            .context("the guest shop is not there: make guest-shop builds it")
    }

    fn kept(kind: &str) -> PathBuf {
        let guests = match std::env::var_os("FLOE_GUESTS") {
            Some(dir) => PathBuf::from(dir),
            None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/guests"),
        };
        guests.join(kind)
    }

    /// Returns the guest in `$FLOE_GUESTS/KIND`, or in `.cache/guests/KIND` in the workspace; builds it if it isn't
    /// there.
    fn find(kind: &str) -> anyhow::Result<Guest> {
        let dir = Guest::kept(kind);
        if !dir.join("recipe").exists() {
            eprintln!("building the {kind} guest in {} ...", dir.display());
            let here = Path::new(env!("CARGO_MANIFEST_DIR"));
            let script = here.with_file_name("lab").join("guests/build");
            let status = Command::new("bash")
                .arg(&script)
                .arg(kind)
                .arg(&dir)
                .status();
            let status = status.with_context(|| format!("cannot run {}", script.display()))?;
            if !status.success() {
                bail!(
                    "the {kind} guest could not be built: {} {kind} {}",
                    script.display(),
                    dir.display()
                );
            }
        }
        Ok(Guest {
            dir: dir.canonicalize()?,
        })
    }

    /// Returns the guest in a given directory.
    pub fn at(dir: &Path) -> anyhow::Result<Guest> {
        let dir = dir
            .canonicalize()
            .with_context(|| format!("no guest in {}; guests/build makes one", dir.display()))?;
        Ok(Guest { dir })
    }

    /// Returns the kernel's path.
    pub fn kernel(&self) -> PathBuf {
        self.dir.join("vmlinuz")
    }

    /// Returns the path of the initial RAM disk.
    pub fn initrd(&self) -> PathBuf {
        self.dir.join("initrd")
    }

    /// Returns the disk's path (the tiny guest has none).
    pub fn disk(&self) -> PathBuf {
        self.dir.join("disk.raw")
    }

    /// Returns the kernel's command line.
    pub fn cmdline(&self) -> anyhow::Result<String> {
        let path = self.dir.join("cmdline");
        Ok(std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?
            .trim()
            .to_string())
    }

    /// Writes the guest's initial RAM disk with the files below `root` in addition to `path`, which it returns. A file that the guest has
    /// is replaced.
    pub fn add_to_initrd(&self, root: &Path, path: &Path) -> anyhow::Result<PathBuf> {
        let archive = Command::new("sh")
            .args(["-c", "find . | cpio --quiet -o -H newc -R 0:0"])
            .current_dir(root)
            .output()
            .context("cannot run sh")?;
        ensure!(
            archive.status.success(),
            "cpio is missing; install the Debian package cpio"
        );
        // The kernel unpacks concatenated archives in order; a later file replaces an earlier one.
        let mut initrd = std::fs::read(self.initrd())?;
        initrd.resize(initrd.len().next_multiple_of(4), 0);
        initrd.extend(archive.stdout);
        std::fs::write(path, initrd)?;
        Ok(path.to_owned())
    }
}

/// Compiles a program that guests run, without shared libraries, from `source` into the file `program`.
pub fn compile(source: &Path, program: &Path) -> anyhow::Result<()> {
    let compiled = Command::new("rustc")
        .args([
            "--edition",
            "2024",
            "-O",
            "-C",
            "target-feature=+crt-static",
        ])
        .args(["-C", "strip=symbols", "-C", "panic=abort", "-o"])
        .args([program, source])
        .output()
        .context("cannot run rustc, which compiles what the guests run")?;
    ensure!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    Ok(())
}

/// The line that guests print on the serial line when their shell is ready.
pub const READY: &str = "floe-guest ready";

/// Returns how guests run on this host: `kvm` or `tcg`, with the reason.
pub fn accelerator() -> String {
    if !Path::new("/dev/kvm").exists() {
        "tcg (no /dev/kvm)".into()
    } else if Path::new("/sys/module/kvm_pvm").exists() {
        "tcg (nested PVM cannot run ordinary guests)".into()
    } else {
        "kvm".into()
    }
}
