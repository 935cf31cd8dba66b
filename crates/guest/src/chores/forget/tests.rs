use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};

/// A machine's files.
struct Root(tempfile::TempDir);

impl Root {
    fn new() -> Root {
        Root(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Writes a program in another process: a test beside this one may start a process while the file is open, which keeps it busy.
    fn program(&self, name: &str, script: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        let write = r#"printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod 755 "$1""#;
        let written = std::process::Command::new("sh")
            .args(["-c", write, "sh"])
            .arg(self.path(name))
            .arg(script)
            .status();
        assert!(written.unwrap().success());
    }

    fn forget(&self) -> Result<Forgotten, String> {
        forget(self.0.path())
    }
}

/// A program that makes keys: what it writes says of which kind they are. It knows no `dsa`.
const KEYGEN: &str = r#"while [ $# -gt 0 ]; do case $1 in -t) kind=$2;; -f) file=$2;; esac; shift; done
[ $kind != dsa ] || { echo unknown key type dsa >&2; exit 1; }
[ ! -e $file ] || exit 2
echo new $kind > $file; echo ssh-$kind > $file.pub"#;

#[test]
fn what_makes_a_machine_that_one_is_gone_or_new_and_the_rest_stays() {
    let root = Root::new();
    assert_eq!(root.forget(), Ok(Forgotten::default()));
    let gone = [
        "etc/ssh/ssh_host_ed25519_key",
        "etc/ssh/ssh_host_ed25519_key.pub",
        "etc/ssh/ssh_host_ed25519_key-cert.pub",
        "etc/dropbear/dropbear_ed25519_host_key",
        "etc/dhcpcd.duid",
        "var/lib/dhcp/dhclient.eth0.leases",
        "var/lib/NetworkManager/secret_key",
        "run/systemd/netif/leases/2",
        "var/lib/dhcpcd/duid",
        "var/lib/dhcpcd5/dhcpcd-eth0.lease",
        "var/lib/systemd/credential.secret",
        "run/motd.dynamic",
        "var/log/wtmp.1",
        "var/log/auth.log.2.gz",
        "var/log/secure-20261101",
        "var/log/journal/00112233445566778899aabbccddeeff/system.journal",
        "run/log/journal/00112233445566778899aabbccddeeff.space/system.journal",
    ];
    let stays = [
        "etc/ssh/sshd_config",
        "etc/ssh/ssh_host_key_notes",
        "root/.ssh/authorized_keys",
        "var/lib/dhcp/readme",
        "var/log/syslog",
        "var/log/wtmpfs",
        "var/log/journal/remote/remote-web.journal",
        "var/log/journal/0123456789abcdef0123456789abcdef/system.journal",
    ];
    let seeds = ["var/lib/systemd/random-seed", "var/lib/seedrng/seed.credit"];
    let empty = ["var/log/wtmp", "var/log/auth.log", "var/lib/wtmpdb/wtmp.db"];
    for name in gone.iter().chain(&stays).chain(&seeds).chain(&empty) {
        root.write(name, "the parent's");
    }
    fs::set_permissions(root.path(seeds[0]), fs::Permissions::from_mode(0o600)).unwrap();
    root.write("etc/hostname", "web-1\n");
    root.write("etc/machine-id", "0123456789abcdef0123456789abcdef\n");
    root.write(
        "etc/hosts",
        "127.0.0.1 localhost\n127.0.1.1 web.example web\n",
    );
    root.write("etc/mailname", "web.example\n");
    root.write(
        "etc/machine-info",
        "PRETTY_HOSTNAME=\"Anna's web\"\nCHASSIS=vm\n",
    );
    symlink("/etc/passwd", root.path("var/log/btmp")).unwrap();
    let done = root.forget().unwrap();
    let count = gone.len() + seeds.len() + empty.len();
    assert_eq!(done.files as usize, count, "{done:?}");
    for name in gone {
        assert!(!root.path(name).exists(), "{name}");
    }
    let journals = fs::read_dir(root.path("var/log/journal")).unwrap();
    assert_eq!(journals.count(), 2, "the parent's directory is gone");
    for name in stays {
        assert_eq!(root.read(name), "the parent's", "{name}");
    }
    for name in empty {
        assert_eq!(root.read(name), "", "{name}");
    }
    let seed = |name| fs::read(root.path(name)).unwrap();
    let first = seeds.map(seed);
    assert!(first[0].len() == SEED_BYTES && first[0] != first[1]);
    let mode = fs::metadata(root.path(seeds[0])).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    assert_eq!(
        root.read("etc/hosts"),
        "127.0.0.1 localhost\n127.0.1.1\tweb-1\n"
    );
    assert_eq!(root.read("etc/mailname"), "web-1\n");
    assert_eq!(root.read("etc/machine-info"), "CHASSIS=vm\n");
    // another machine that began with the same seed
    root.forget().unwrap();
    assert_ne!(seeds.map(seed), first);
}

#[test]
fn what_can_not_be_looked_at_is_told_and_nothing_is_removed_for_it() {
    let journal = "var/log/journal/0123456789abcdef0123456789abcdef/system.journal";
    for (link, stays) in [
        ("etc/machine-id", journal),
        ("usr/bin/ssh-keygen", "etc/ssh/ssh_host_rsa_key"),
    ] {
        let root = Root::new();
        root.write(stays, "the parent's");
        root.write(link, "");
        // it leads to itself
        fs::remove_file(root.path(link)).unwrap();
        symlink(root.path(link), root.path(link)).unwrap();
        let told = root.forget().unwrap_err();
        assert!(told.contains(link), "{told}");
        assert_eq!(root.read(stays), "the parent's");
    }
}

#[test]
fn each_key_of_a_server_becomes_another_of_its_kind() {
    let root = Root::new();
    root.program("usr/bin/ssh-keygen", KEYGEN);
    for kind in ["rsa", "ecdsa", "ed25519", "dsa"] {
        let key = format!("etc/ssh/ssh_host_{kind}_key");
        root.write(&key, "old");
        root.write(&format!("{key}.pub"), "old");
    }
    // one that its administrator has elsewhere, and one that is a link to a place that is shared
    root.write(
        "etc/ssh/sshd_config.d/own.conf",
        "hostkey = \"/srv/keys/web\"\n#HostKey /srv/no\n",
    );
    root.write("srv/keys/web", "old");
    root.write("srv/keys/web.pub", "ssh-rsa AAAA root@web");
    root.write("srv/shared", "old");
    fs::remove_file(root.path("etc/ssh/ssh_host_rsa_key")).unwrap();
    symlink("../../srv/shared", root.path("etc/ssh/ssh_host_rsa_key")).unwrap();
    // of a call that was cut off
    root.write("etc/ssh/ssh_host_ecdsa_key.floe", "half a key");
    root.forget().unwrap();
    for kind in ["rsa", "ecdsa", "ed25519"] {
        let key = format!("etc/ssh/ssh_host_{kind}_key");
        assert_eq!(root.read(&key), format!("new {kind}\n"));
        assert_eq!(root.read(&format!("{key}.pub")), format!("ssh-{kind}\n"));
    }
    assert_eq!(root.read("srv/keys/web"), "new rsa\n");
    assert_eq!(root.read("srv/shared"), "old");
    // no server knows such a key any more
    assert!(!root.path("etc/ssh/ssh_host_dsa_key").exists());
    assert_eq!(fs::read_dir(root.path("etc/ssh")).unwrap().count(), 7);
    root.write("srv/keys/web.pub", "");
    let why = root.forget().unwrap_err();
    assert!(why.contains("ssh-keygen -y -f"), "{why}");
}

#[test]
fn keys_that_cannot_be_made_anew_are_an_error_and_made_at_the_next_try() {
    let root = Root::new();
    root.program("usr/bin/ssh-keygen", "echo no random numbers >&2; exit 1");
    root.write("etc/ssh/ssh_host_rsa_key", "old");
    let why = root.forget().unwrap_err();
    assert!(why.contains("-t rsa: no random numbers"), "{why}");
    root.program("usr/bin/ssh-keygen", KEYGEN);
    root.forget().unwrap();
    assert_eq!(root.read("etc/ssh/ssh_host_rsa_key"), "new rsa\n");
}

#[test]
fn services_that_run_begin_anew_or_the_machine_stays_without_a_network() {
    let root = Root::new();
    let log = root.path("log");
    root.program(
        "usr/bin/systemctl",
        &format!("echo $* >> {}", log.display()),
    );
    fs::create_dir_all(root.path("run/systemd/system")).unwrap();
    fs::create_dir_all(root.path("run/systemd/units")).unwrap();
    root.forget().unwrap();
    assert!(!log.exists(), "none runs");
    for unit in [
        "systemd-journald.service",
        "systemd-networkd.service",
        "ssh.service",
        "cron.service",
    ] {
        let running = root.path(&format!("run/systemd/units/invocation:{unit}"));
        symlink("0123", running).unwrap();
    }
    root.forget().unwrap();
    // a family's address is not a DHCP client's to take away
    root.write("run/floe.identity", "mac=1\naddress=10.0.2.17/24\n");
    root.forget().unwrap();
    assert_eq!(
        fs::read_to_string(&log).unwrap(),
        "try-restart systemd-journald.service systemd-networkd.service ssh.service\n\
         try-restart systemd-journald.service ssh.service\n"
    );
    root.program(
        "usr/bin/systemctl",
        "echo ssh.service: bad configuration >&2; exit 1",
    );
    let why = root.forget().unwrap_err();
    assert!(
        why.contains("try-restart") && why.contains("bad configuration"),
        "{why}"
    );
}

#[test]
fn what_is_too_much_to_look_at_is_not_taken_for_forgotten() {
    let root = Root::new();
    fs::create_dir_all(root.path("var/lib/dhcp")).unwrap();
    for number in 0..=ENTRIES_MAX {
        fs::File::create(root.path(&format!("var/lib/dhcp/{number}.leases"))).unwrap();
    }
    assert!(
        root.forget()
            .unwrap_err()
            .contains("var/lib/dhcp has more than")
    );
    // names of any length leave room for the rest of the answer
    let mut done = Forgotten::default();
    for _ in 0..100 {
        done.add(Path::new(&"\u{1}".repeat(255)));
    }
    let answer = serde_json::to_string(&done).unwrap();
    assert!(done.files == 100 && answer.len() < super::super::ANSWER_BYTES_MAX);
}
