//! The guests: found where they were built, or built now.
use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A guest on the local disk.
pub struct Guest {
    dir: PathBuf,
}

impl Guest {
    /// busybox: seconds to a shell.
    pub fn tiny() -> anyhow::Result<Guest> {
        Guest::find("tiny")
    }

    /// A small systemd Debian 12 with a disk.
    pub fn debian() -> anyhow::Result<Guest> {
        Guest::find("debian")
    }

    /// Debian with programs that compute.
    pub fn apps() -> anyhow::Result<Guest> {
        Guest::find("apps")
    }

    /// Debian with a screen and the workloads' programs.
    pub fn desktop() -> anyhow::Result<Guest> {
        Guest::find("desktop")
    }

    /// `$FLOE_GUESTS/KIND`, or `.cache/guests/KIND` in the workspace; built if it isn't there.
    fn find(kind: &str) -> anyhow::Result<Guest> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let guests = match std::env::var_os("FLOE_GUESTS") {
            Some(dir) => PathBuf::from(dir),
            None => here.join("../../.cache/guests"),
        };
        let dir = guests.join(kind);
        if !dir.join("recipe").exists() {
            eprintln!("building the {kind} guest in {} ...", dir.display());
            let script = here.join("guests/build");
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

    /// A guest in a directory of its own.
    pub fn at(dir: &Path) -> anyhow::Result<Guest> {
        let dir = dir
            .canonicalize()
            .with_context(|| format!("no guest in {}; guests/build makes one", dir.display()))?;
        Ok(Guest { dir })
    }

    /// The kernel.
    pub fn kernel(&self) -> PathBuf {
        self.dir.join("vmlinuz")
    }

    /// The initial RAM disk.
    pub fn initrd(&self) -> PathBuf {
        self.dir.join("initrd")
    }

    /// The disk (the tiny guest has none).
    pub fn disk(&self) -> PathBuf {
        self.dir.join("disk.raw")
    }

    /// The kernel's command line.
    pub fn cmdline(&self) -> anyhow::Result<String> {
        let path = self.dir.join("cmdline");
        Ok(std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?
            .trim()
            .to_string())
    }
}

/// What the guests print on the serial line when their shell is there.
pub const READY: &str = "floe-guest ready";

/// How guests run here.
pub fn accelerator() -> String {
    if !Path::new("/dev/kvm").exists() {
        "tcg (no /dev/kvm)".into()
    } else if Path::new("/sys/module/kvm_pvm").exists() {
        "tcg (nested PVM cannot run ordinary guests)".into()
    } else {
        "kvm".into()
    }
}
