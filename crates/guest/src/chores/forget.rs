//! Makes this machine forget what it has from the machine that it was copied from, beyond what its identity sets anew: keys, seeds,
//! leases and the logs of who was there. A machine that shares any of these with another is not yet one of its own.

use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a machine forgets, in words, in this order. The first three come with its identity, the rest is this chore's.
pub const FORGOTTEN: [&str; 7] = [
    "host name",
    "network addresses",
    "machine id",
    "SSH host keys",
    "random seeds",
    "DHCP leases",
    "logs of logins and the journal",
];
/// How many entries of a directory are looked at, at most.
const ENTRIES_MAX: usize = 10_000;
/// Bytes of a random seed: as many as systemd writes, and more than any kernel asks for.
const SEED_BYTES: usize = 512;
/// Most bytes of `/etc/hosts`: a larger one is left as it is.
pub(super) const HOSTS_BYTES_MAX: u64 = 1 << 20;

/// Files with random numbers that the next start of the guest begins with.
const SEEDS: [&str; 3] = [
    "var/lib/systemd/random-seed",
    "var/lib/urandom/random-seed",
    "var/lib/random-seed",
];
/// Directories of DHCP clients, and how the names of their leases end; and the keys from which they derive who they are.
const LEASES: [(&str, &[&str]); 6] = [
    ("var/lib/dhcp", &[".leases", ".leases6", ".lease"]),
    ("var/lib/dhclient", &[".leases", ".lease"]),
    ("var/lib/dhcpcd", &[".lease", ".lease6", "duid", "secret"]),
    ("var/lib/NetworkManager", &[".lease", "secret_key"]),
    ("run/systemd/netif/leases", &[""]),
    ("var/lib/systemd/network", &[""]),
];
/// Who logged in, and who tried.
const LOGINS: [&str; 5] = [
    "var/log/wtmp",
    "var/log/btmp",
    "var/log/lastlog",
    "var/log/faillog",
    "var/lib/wtmpdb/wtmp.db",
];
/// Where journals are, each in a directory that is called after a machine id.
const JOURNALS: [&str; 2] = ["var/log/journal", "run/log/journal"];
/// Keys that OpenSSH shows its users, and those of Dropbear, which makes new ones when it needs them.
const SSH_KEYS: [(&str, &str, &str); 2] = [
    ("etc/ssh", "ssh_host_", "_key"),
    ("etc/dropbear", "dropbear_", "_host_key"),
];
/// The program that makes new keys.
const KEYGEN: [&str; 2] = ["usr/bin/ssh-keygen", "usr/local/bin/ssh-keygen"];

/// Most names in an answer.
const NAMED_MAX: usize = 32;

/// What was forgotten.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forgotten {
    /// How many files were there and are new or gone now.
    pub files: u64,
    /// The names of the first of them.
    pub names: Vec<String>,
}

impl Forgotten {
    fn add(&mut self, path: &Path) {
        self.files += 1;
        if self.names.len() < NAMED_MAX {
            self.names.push(text(path));
        }
    }
}

/// Forgets everything; a file that is not there was never known. `root` is the root directory, or one like it in a test.
pub(super) fn forget(root: &Path) -> Result<Forgotten, String> {
    let mut done = Forgotten::default();
    name_in_hosts(root)?;
    ssh_keys(root, &mut done)?;
    for seed in SEEDS.map(|seed| root.join(seed)) {
        if is_file(&seed) {
            reseed(&seed).map_err(said(&seed))?;
            done.add(&seed);
        }
    }
    for (dir, ends) in LEASES {
        for lease in entries(&root.join(dir))? {
            let name = text(lease.file_name().unwrap_or_default());
            if is_file(&lease) && ends.iter().any(|end| name.ends_with(end)) {
                remove(&lease, &mut done)?;
            }
        }
    }
    for log in LOGINS.map(|log| root.join(log)) {
        if is_file(&log) {
            let cut = OpenOptions::new().write(true).truncate(true).open(&log);
            cut.map_err(said(&log))?;
            done.add(&log);
        }
    }
    journals(root, &mut done)?;
    Ok(done)
}

fn said(path: &Path) -> impl Fn(io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}

fn text(name: impl AsRef<std::ffi::OsStr>) -> String {
    name.as_ref().to_string_lossy().into_owned()
}

/// Whether it is a file itself, and no link to one that is somebody else's.
fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file())
}

fn remove(path: &Path, done: &mut Forgotten) -> Result<(), String> {
    fs::remove_file(path).map_err(said(path))?;
    done.add(path);
    Ok(())
}

/// Returns what is in a directory, by name; nothing if there is none.
fn entries(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let found = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        found => found.map_err(said(dir))?,
    };
    let paths = found
        .take(ENTRIES_MAX)
        .map(|entry| entry.map(|entry| entry.path()));
    let mut paths: Vec<PathBuf> = paths.collect::<Result<_, _>>().map_err(said(dir))?;
    paths.sort();
    Ok(paths)
}

/// Gives the name that the machine has now to the address that Debian keeps for it.
pub(super) fn name_in_hosts(root: &Path) -> Result<(), String> {
    let path = root.join("etc/hosts");
    let small = fs::metadata(&path).is_ok_and(|found| found.len() <= HOSTS_BYTES_MAX);
    let (true, Ok(name)) = (small, fs::read_to_string(root.join("etc/hostname"))) else {
        return Ok(());
    };
    let before = fs::read_to_string(&path).map_err(said(&path))?;
    let own = |line: &str| line.split_whitespace().next() == Some("127.0.1.1");
    let lines = before.lines().map(|line| match own(line) {
        true => format!("127.0.1.1\t{}\n", name.trim()),
        false => format!("{line}\n"),
    });
    let after: String = lines.collect();
    if after == before {
        return Ok(());
    }
    replace(&path, after.as_bytes()).map_err(said(&path))
}

/// Writes a file anew under a temporary name, with the mode of the one that it replaces, and puts it in place.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".floe");
    let mut file = File::create(&temporary)?;
    file.set_permissions(fs::metadata(path)?.permissions())?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

fn reseed(path: &Path) -> io::Result<()> {
    let mut seed = [0; SEED_BYTES];
    // the kernel's generator was seeded anew before this chore
    File::open("/dev/urandom")?.read_exact(&mut seed)?;
    replace(path, &seed)
}

/// Removes the keys that the machine shows to its users, and makes new ones of the same kinds.
fn ssh_keys(root: &Path, done: &mut Forgotten) -> Result<(), String> {
    let mut kinds = Vec::new();
    for (dir, begin, end) in SSH_KEYS {
        for key in entries(&root.join(dir))? {
            let name = text(key.file_name().unwrap_or_default());
            let private = name.strip_suffix(".pub").unwrap_or(&name);
            let kind = private
                .strip_prefix(begin)
                .and_then(|name| name.strip_suffix(end));
            let Some(kind) = kind.filter(|_| is_file(&key)) else {
                continue;
            };
            if dir == "etc/ssh" && private == name {
                kinds.push((kind.to_owned(), key.clone()));
            }
            remove(&key, done)?;
        }
    }
    let keygen = KEYGEN.map(|place| root.join(place));
    let Some(keygen) = keygen.into_iter().find(|place| place.exists()) else {
        return Ok(()); // nor has it a server, which would say that it has no key
    };
    for (kind, key) in &kinds {
        let made = Command::new(&keygen)
            .args(["-q", "-N", "", "-t", kind, "-f"])
            .arg(key)
            .stdin(Stdio::null())
            .output()
            .map_err(said(&keygen))?;
        if !made.status.success() {
            let why = String::from_utf8_lossy(&made.stderr);
            return Err(format!("ssh-keygen -t {kind}: {}", why.trim()));
        }
    }
    if !kinds.is_empty() {
        reload_server(root);
    }
    Ok(())
}

/// Has a server that runs read the new keys: it has the old ones in its memory.
fn reload_server(root: &Path) {
    let pid = fs::read_to_string(root.join("run/sshd.pid"));
    let pid = pid.ok().and_then(|pid| pid.trim().parse().ok());
    let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) else {
        return;
    };
    let name = fs::read_to_string(format!("/proc/{pid}/comm", pid = pid.as_raw_nonzero()));
    if name.is_ok_and(|name| name.trim() == "sshd") {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::HUP);
    }
}

/// Removes what the journal has written: each entry has the old machine id and the old name.
fn journals(root: &Path, done: &mut Forgotten) -> Result<(), String> {
    let mut any = false;
    for dir in JOURNALS.map(|dir| root.join(dir)) {
        for of_one in entries(&dir)? {
            if !fs::symlink_metadata(&of_one).is_ok_and(|found| found.is_dir()) {
                continue;
            }
            for journal in entries(&of_one)? {
                if is_file(&journal) {
                    remove(&journal, done)?;
                    any = true;
                }
            }
        }
    }
    let systemctl = root.join("usr/bin/systemctl");
    if any && root.join("run/systemd/system").is_dir() && systemctl.exists() {
        // it has the removed files open, and writes under the old machine id until it begins anew
        let _ = Command::new(systemctl)
            .args(["--no-block", "restart", "systemd-journald.service"])
            .stdin(Stdio::null())
            .output();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_a_machine_that_one_is_gone_or_new_and_the_rest_stays() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let write = |name: &str, text: &str| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(forget(root), Ok(Forgotten::default()));
        let gone = [
            "etc/ssh/ssh_host_ed25519_key",
            "etc/ssh/ssh_host_ed25519_key.pub",
            "etc/dropbear/dropbear_ed25519_host_key",
            "var/lib/dhcp/dhclient.eth0.leases",
            "run/systemd/netif/leases/2",
            "var/lib/dhcpcd/duid",
            "var/log/journal/0123/system.journal",
        ];
        let stays = [
            "etc/ssh/sshd_config",
            "etc/ssh/ssh_host_key_notes",
            "root/.ssh/authorized_keys",
            "var/lib/dhcp/readme",
            "var/log/syslog",
        ];
        let changed = ["var/lib/systemd/random-seed", "var/log/wtmp"];
        for name in gone.iter().chain(&stays).chain(&changed) {
            write(name, "the parent's");
        }
        write("etc/hostname", "web-1\n");
        write(
            "etc/hosts",
            "127.0.0.1 localhost\n127.0.1.1 web.example web\n",
        );
        std::os::unix::fs::symlink("/etc/passwd", root.join("var/log/btmp")).unwrap();
        let done = forget(root).unwrap();
        assert_eq!(done.files as usize, gone.len() + changed.len(), "{done:?}");
        for name in gone {
            assert!(!root.join(name).exists(), "{name}");
        }
        for name in stays {
            assert_eq!(
                fs::read(root.join(name)).unwrap(),
                b"the parent's",
                "{name}"
            );
        }
        let seed = fs::read(root.join(changed[0])).unwrap();
        assert_eq!(seed.len(), SEED_BYTES);
        assert_eq!(fs::read(root.join(changed[1])).unwrap(), b"");
        let hosts = fs::read_to_string(root.join("etc/hosts")).unwrap();
        assert_eq!(hosts, "127.0.0.1 localhost\n127.0.1.1\tweb-1\n");
        // another machine that began with the same seed
        forget(root).unwrap();
        assert_ne!(fs::read(root.join(changed[0])).unwrap(), seed);
    }

    #[test]
    fn keys_that_cannot_be_made_anew_are_an_error() {
        let root = tempfile::tempdir().unwrap();
        for dir in ["etc/ssh", "usr/bin"] {
            fs::create_dir_all(root.path().join(dir)).unwrap();
        }
        std::os::unix::fs::symlink("/bin/false", root.path().join("usr/bin/ssh-keygen")).unwrap();
        fs::write(root.path().join("etc/ssh/ssh_host_rsa_key"), "old").unwrap();
        let why = forget(root.path()).unwrap_err();
        assert!(why.contains("ssh-keygen -t rsa"), "{why}");
        assert!(!root.path().join("etc/ssh/ssh_host_rsa_key").exists());
    }
}
