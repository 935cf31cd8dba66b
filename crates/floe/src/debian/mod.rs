//! Makes a Debian that boots as a machine of floe, from Debian's packages alone: a kernel, a small initial ramdisk, and a disk
//! with one ext4 file system, in which floe's agent is.
//!
//! mmdebstrap installs the packages into a directory, and runs `setup.sh` in it; `initrd.rs` packs what finds the disk; mkfs.ext4
//! makes the disk of the directory. Nothing needs a node. Root does this in the directory of the result; other users need
//! subordinate user ids, which own the directory's files, and do it where those ids may go ([`Build::tree_in`]).

mod host;
mod initrd;
mod run;
mod steps;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use host::check as check_host;
pub use run::Stop;
pub use steps::Progress;

/// What is done in the directory of the packages.
const SETUP: &str = include_str!("setup.sh");
/// What the kernel of such a machine is told. Pages that the guest frees are zeroed, and so cost nothing in an image.
const CMDLINE: &str = "root=/dev/vda rw console=ttyS0 init_on_free=1 quiet\n";
/// The packages of each such Debian, besides those that Debian calls required.
const PACKAGES: &str = "systemd-sysv,udev,dbus,iproute2,kmod,procps,busybox-static,ca-certificates,netbase,iputils-ping,less";
/// Smallest disk on which the packages above and their lists have room, bytes.
pub const DISK_BYTES_MIN: u64 = 1 << 30;
/// Where Debian's packages are.
pub const MIRROR: &str = "http://deb.debian.org/debian";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Where programs of the administrator are, which is not in each user's search path.
const MORE_PATH: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// What a Debian is made of.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The release's name, such as `bookworm`.
    pub suite: String,
    /// More packages.
    pub packages: Vec<String>,
    /// Size of the disk in bytes.
    pub disk_bytes: u64,
    /// Where the packages are.
    pub mirror: String,
    /// The machine's name for itself.
    pub hostname: String,
    /// Lines of an `authorized_keys` file for root.
    pub ssh_keys: Option<String>,
    /// The program of floe's agent.
    pub agent: PathBuf,
}

/// Why a build failed.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The recipe can't be made.
    #[error("{0}")]
    Recipe(String),
    /// The host lacks what a build needs, or its user may not use it.
    #[error("{what}")]
    Host {
        /// What is missing.
        what: String,
        /// How it comes.
        fix: String,
    },
    /// A program ended with an error.
    #[error("{program} failed ({how}){said}")]
    Program {
        /// The program.
        program: &'static str,
        /// How it ended.
        how: String,
        /// The last of what it said.
        said: String,
    },
    /// A file could not be read or written.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// What the packages contain is not what was expected of them.
    #[error("the packages of this release are not as expected: {0}")]
    Content(String),
    /// The build was asked to end.
    #[error("interrupted")]
    Interrupted,
}

/// Returns what turns an I/O error into one that says what was being done.
fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> BuildError {
    let what = what.into();
    move |source| BuildError::Io { what, source }
}

impl Recipe {
    /// Checks what a user has written. Each part becomes a word of a command line or of a file in the guest.
    pub fn check(&self) -> Result<(), BuildError> {
        let refuse = |text: String| Err(BuildError::Recipe(text));
        let word = |text: &str, more: &str| {
            let first = text
                .bytes()
                .next()
                .is_some_and(|b| b.is_ascii_alphanumeric());
            first
                && text.bytes().all(|b| {
                    b.is_ascii_lowercase() || b.is_ascii_digit() || more.as_bytes().contains(&b)
                })
        };
        if !word(&self.suite, "-") {
            return refuse(format!(
                "{:?} is no name of a Debian release, such as bookworm or trixie",
                self.suite
            ));
        }
        if let Some(bad) = self.packages.iter().find(|name| !word(name, "+-.")) {
            return refuse(format!("{bad:?} is no name of a package"));
        }
        if !word(&self.hostname, "-") || self.hostname.len() > 63 {
            return refuse(format!(
                "{:?} is no host name: up to 63 of a-z, 0-9 and -",
                self.hostname
            ));
        }
        let address = ["http://", "https://", "file:///"]
            .iter()
            .any(|scheme| self.mirror.starts_with(scheme));
        if !address
            || self
                .mirror
                .contains(|c: char| c.is_whitespace() || c.is_control())
        {
            return refuse(format!(
                "{:?} is no address of a mirror, such as {MIRROR}",
                self.mirror
            ));
        }
        if self.disk_bytes < DISK_BYTES_MIN || !self.disk_bytes.is_multiple_of(4096) {
            return refuse("the disk must have at least 1G, and whole pages of 4096 bytes".into());
        }
        let keys = self.ssh_keys.as_deref().is_none_or(|keys| {
            let mut lines = keys
                .lines()
                .filter(|line| !line.trim().is_empty())
                .peekable();
            lines.peek().is_some()
                && lines.all(|line| {
                    ["ssh-", "ecdsa-", "sk-"]
                        .iter()
                        .any(|kind| line.starts_with(kind))
                })
        });
        match keys {
            true => Ok(()),
            false => refuse("the file of --ssh-key has a line that is no public key; give the file that ends in .pub".into()),
        }
    }

    /// The lines for apt: the release, and its fixes where it has any.
    fn sources(&self) -> String {
        let mirror = self.mirror.trim_end_matches('/');
        let line = |address: &str, suite: &str| {
            format!("deb [signed-by={KEYRING}] {address} {suite} main\n")
        };
        let mut lines = line(mirror, &self.suite);
        if !["sid", "unstable", "testing"].contains(&&*self.suite) {
            // a mirror has the fixes beside the release, and where that is called otherwise, they come from Debian
            let parent = mirror
                .strip_suffix("/debian")
                .unwrap_or("http://deb.debian.org");
            lines += &line(
                &format!("{parent}/debian-security"),
                &format!("{}-security", self.suite),
            );
            lines += &line(mirror, &format!("{}-updates", self.suite));
        }
        lines
    }

    fn packages(&self) -> String {
        let mut all = PACKAGES.to_owned();
        let ssh = self.ssh_keys.iter().map(|_| "openssh-server");
        for name in self.packages.iter().map(String::as_str).chain(ssh) {
            all = all + "," + name;
        }
        all
    }
}

/// A build in a directory of its own.
#[derive(Debug)]
pub struct Build<'a> {
    /// What is made.
    pub recipe: &'a Recipe,
    /// Where `vmlinuz`, `initrd`, `disk.raw` and `cmdline` are put.
    pub out: &'a Path,
    /// An empty directory for the tree of files and what is needed beside it.
    pub tree_in: &'a Path,
    /// How it is asked to end.
    pub stop: &'a Stop,
}

impl Build<'_> {
    /// Makes it. `tell` hears how far it is.
    pub fn run(&self, tell: &mut dyn FnMut(Progress)) -> Result<(), BuildError> {
        self.recipe.check()?;
        check_host()?;
        let made = self.install(tell).and_then(|()| {
            tell(Progress::Step("the initial ramdisk"));
            let tree = self.tree();
            let version = initrd::kernel_version(&tree)?;
            let kernel = tree.join(format!("boot/vmlinuz-{version}"));
            std::fs::copy(&kernel, self.out.join("vmlinuz"))
                .map_err(io(format!("copy {}", kernel.display())))?;
            let packed = initrd::pack(&tree, &version)?;
            std::fs::write(self.out.join("initrd"), packed)
                .map_err(io("write the initial ramdisk"))?;
            std::fs::write(self.out.join("cmdline"), CMDLINE)
                .map_err(io("write the kernel's command line"))?;
            tell(Progress::Step("the disk"));
            self.disk()
        });
        let removed = self.remove_tree();
        made.and(removed)
    }

    fn tree(&self) -> PathBuf {
        self.tree_in.join("tree")
    }

    fn install(&self, tell: &mut dyn FnMut(Progress)) -> Result<(), BuildError> {
        let recipe = self.recipe;
        let beside = |name: &str, bytes: &[u8]| {
            let path = self.tree_in.join(name);
            std::fs::write(&path, bytes)
                .and_then(|()| std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)))
                .map_err(io(format!("write {}", path.display())))
        };
        let agent =
            std::fs::read(&recipe.agent).map_err(io(format!("read {}", recipe.agent.display())))?;
        beside("setup.sh", SETUP.as_bytes())?;
        beside("floe-guest", &agent)?;
        beside(
            "floe-guest.service",
            floe_guest::unit("/usr/local").as_bytes(),
        )?;
        beside("debian.list", recipe.sources().as_bytes())?;
        beside(
            "authorized_keys",
            recipe.ssh_keys.as_deref().unwrap_or_default().as_bytes(),
        )?;
        let mut command = program("mmdebstrap");
        command
            .args([
                "--verbose",
                "--variant=minbase",
                "--format=directory",
                "--architectures=amd64",
            ])
            .arg(format!(
                "--mode={}",
                if is_root() { "root" } else { "unshare" }
            ))
            .arg(format!("--include={}", recipe.packages()))
            .arg("--aptopt=Acquire::Retries \"3\"")
            .arg("--aptopt=Apt::Install-Recommends \"false\"")
            // These three only hold while the packages here are installed: what a user adds comes whole.
            .args(
                ["doc", "man", "locale"]
                    .map(|part| format!("--dpkgopt=path-exclude=/usr/share/{part}/*")),
            )
            .arg(format!(
                "--customize-hook={}",
                self.tree_in.join("setup.sh").display()
            ))
            .args([&recipe.suite])
            .arg(self.tree())
            .arg(self.tree_in.join("debian.list"))
            .env("FLOE_BESIDE", self.tree_in)
            .env("FLOE_HOSTNAME", &recipe.hostname);
        let mut heard = steps::Heard::default();
        run::watched("mmdebstrap", &mut command, self.stop, &mut |line| {
            if let Some(progress) = heard.line(line) {
                tell(progress);
            }
        })
    }

    /// Makes the disk of the tree.
    fn disk(&self) -> Result<(), BuildError> {
        let path = self.out.join("disk.raw");
        let disk = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .and_then(|disk| disk.set_len(self.recipe.disk_bytes).map(|()| disk))
            .map_err(io(format!("make {}", path.display())))?;
        let mut target = path.clone();
        let mut command = as_owner("mkfs.ext4");
        if !is_root() {
            // The ids that own the tree can't reach the file by its path, which may lead through a closed directory.
            disk.set_permissions(PermissionsExt::from_mode(0o666))
                .map_err(io("open the disk for mkfs.ext4"))?;
            rustix::io::fcntl_setfd(&disk, rustix::io::FdFlags::empty())
                .map_err(|e| io("pass the disk to mkfs.ext4")(e.into()))?;
            target = format!("/proc/self/fd/{}", disk.as_raw_fd()).into();
        }
        // The same for each build, so that two of the same packages are nearly the same disk, which is stored once.
        command
            .args([
                "-q",
                "-F",
                "-L",
                "floe",
                "-U",
                "666c6f65-0000-4000-8000-000000000001",
            ])
            .args([
                "-E",
                "hash_seed=666c6f65-0000-4000-8000-000000000002,lazy_itable_init=0",
                "-d",
            ])
            .arg(self.tree())
            .arg(target);
        run::watched("mkfs.ext4", &mut command, self.stop, &mut |_| ())?;
        if !is_root() {
            disk.set_permissions(PermissionsExt::from_mode(0o644))
                .map_err(io("close the disk for others"))?;
        }
        // mkfs writes zeros where it could leave holes; where they can't be made, they only take room.
        let holes = program("fallocate").arg("--dig-holes").arg(&path).output();
        drop(holes);
        disk.sync_all()
            .map_err(io(format!("write {}", path.display())))
    }

    fn remove_tree(&self) -> Result<(), BuildError> {
        let tree = self.tree();
        remove(&tree).map_err(io(format!("remove {}", tree.display())))
    }
}

/// A program that is run as the owner of a tree's files.
fn as_owner(name: &str) -> Command {
    if is_root() {
        return program(name);
    }
    let mut command = program("mmdebstrap");
    command.args(["--unshare-helper", name]);
    command
}

/// Removes a directory with files that belong to the ids of a build, if it is there.
pub fn remove(dir: &Path) -> std::io::Result<()> {
    if !dir.try_exists()? {
        return Ok(());
    }
    // A group of its own: Ctrl-C, which wants all of this gone, must not end what removes it.
    as_owner("rm")
        .args(["-rf", "--one-file-system"])
        .arg(dir)
        .process_group(0)
        .output()?;
    match std::fs::exists(dir)? {
        false => Ok(()),
        true => std::fs::remove_dir_all(dir),
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the search path, with the places of the administrator's programs.
fn search_path() -> std::ffi::OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    path.push(":");
    path.push(MORE_PATH);
    path
}

fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("PATH", search_path());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe() -> Recipe {
        Recipe {
            suite: "bookworm".into(),
            packages: vec!["g++".into(), "cloud-init".into()],
            disk_bytes: 4 << 30,
            mirror: MIRROR.into(),
            hostname: "web".into(),
            ssh_keys: Some("ssh-ed25519 AAAA me@here\n".into()),
            agent: "floe-guest".into(),
        }
    }

    #[test]
    fn a_recipe_of_words_is_taken_and_no_other() {
        recipe().check().unwrap();
        let wrong: [fn(&mut Recipe); 9] = [
            |r| r.suite = "book worm".into(),
            |r| r.suite = String::new(),
            |r| r.suite = "../x".into(),
            |r| r.packages.push("--help".into()),
            |r| r.packages.push("a;b".into()),
            |r| r.hostname = "Web.example".into(),
            |r| r.mirror = "http://x y/debian".into(),
            |r| r.disk_bytes = 1 << 20,
            |r| r.ssh_keys = Some("-----BEGIN OPENSSH PRIVATE KEY-----\n".into()),
        ];
        for (number, change) in wrong.into_iter().enumerate() {
            let mut changed = recipe();
            change(&mut changed);
            let refused = changed.check();
            assert!(
                matches!(refused, Err(BuildError::Recipe(_))),
                "{number}: {refused:?}"
            );
        }
    }

    #[test]
    fn fixes_come_from_beside_the_release_where_there_are_any() {
        let mut recipe = recipe();
        recipe.mirror = "http://mirror.example/debian/".into();
        let lines = recipe.sources();
        assert!(
            lines.contains("] http://mirror.example/debian bookworm main\n"),
            "{lines}"
        );
        assert!(
            lines.contains("] http://mirror.example/debian-security bookworm-security main\n"),
            "{lines}"
        );
        recipe.suite = "sid".into();
        assert_eq!(recipe.sources().lines().count(), 1);
    }

    #[test]
    fn a_key_brings_the_server_that_asks_for_it() {
        let mut recipe = recipe();
        assert!(
            recipe
                .packages()
                .ends_with(",g++,cloud-init,openssh-server")
        );
        recipe.ssh_keys = None;
        assert!(!recipe.packages().contains("openssh"));
    }
}
