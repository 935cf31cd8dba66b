//! `floe ssh`: this host's ssh into a guest, through the guest's agent, with a key of floe's own.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use super::error::CliError;
use super::{Context, exec};
use floe_api::client::Client;
use floe_api::{ErrorCode, ExecRequest, Program};

/// Connect to a machine's guest with ssh, without keys, ports or addresses
#[derive(Debug, Args)]
#[command(after_help = "\
Example: a shell
  floe ssh web
Example: as another user, one command
  floe ssh --user alice web -- uname -a
Example: options of ssh, here a port of the guest on this host
  floe ssh web -- -N -L 8080:localhost:80

A key pair of floe's own is made once (ssh/ in floe's directory), and its public half is given to the user in the guest. The
connection goes through the guest's agent to its port 22, so neither network nor forwarded port is needed; and as the node
vouches for whose port that is, no known_hosts file is read or changed. ~/.ssh/config and /etc/ssh/ssh_config are not read either,
since they are about hosts: give options after --. The guest needs an SSH server, and floe's agent: floe agent install.")]
pub struct Ssh {
    /// The machine
    machine: String,
    /// The user in the guest
    #[arg(long, short, default_value = "root")]
    user: String,
    /// The port of the guest's SSH server
    #[arg(long, default_value = "22")]
    port: u16,
    /// What ssh gets after the machine: a command, or options
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

impl Ssh {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let client = Client::connect(&cx.socket)?;
        let key = key_pair(&cx.home.root().join("ssh"))?;
        let public = key.with_extension("pub");
        let public = fs::read_to_string(&public).map_err(|e| CliError::file("read", &public, e))?;
        let request = ExecRequest {
            user: self.user.clone(),
            ..ExecRequest::new(Program::Authorize {
                key: public.trim().into(),
            })
        };
        exec::call(&client, &self.machine, &request)?;
        let program = std::env::current_exe()
            .map_err(|e| CliError::failed("cannot find floe's own program", e))?;
        let proxy = proxy(&program, &cx.socket, &self.machine, self.port);
        let mut ssh = ssh(&key, &proxy, &self.user, &self.machine);
        let error = ssh.args(&self.arguments).exec();
        Err(not_there("ssh", &error))
    }
}

/// Options that no other option of ssh changes, since ssh takes the first value of each: the connection is to the machine and not to a
/// host of the same name, and the guest gets at none of this host's other keys and agents.
const OPTIONS: &[&str] = &[
    "IdentitiesOnly=yes",
    "IdentityAgent=none",
    "UserKnownHostsFile=/dev/null",
    "GlobalKnownHostsFile=/dev/null",
    "StrictHostKeyChecking=no",
    "LogLevel=ERROR",
    "ControlMaster=no",
    "ControlPath=none",
    "ForwardAgent=no",
    "RemoteCommand=none",
];

/// Returns the command that connects to a machine. ssh's configuration files are not read: what they say of a name or of all names
/// is about hosts.
fn ssh(key: &Path, proxy: &str, user: &str, machine: &str) -> Command {
    let mut ssh = Command::new("ssh");
    ssh.args(["-F", "none", "-i"]).arg(key);
    for option in OPTIONS {
        ssh.args(["-o", option]);
    }
    ssh.arg("-o").arg(format!("ProxyCommand={proxy}"));
    ssh.args(["-l", user, machine]);
    ssh
}

fn not_there(program: &str, error: &std::io::Error) -> CliError {
    CliError::new(
        ErrorCode::Refused,
        format!("cannot run {program}: {error}"),
        "install the Debian package openssh-client (apt-get install openssh-client)",
    )
}

/// Returns the command by which ssh connects to the guest, quoted for a shell (ssh puts `exec` before it) and for ssh (percent signs).
fn proxy(program: &Path, socket: &Path, machine: &str, port: u16) -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
    let (program, socket) = (program.to_string_lossy(), socket.to_string_lossy());
    let command = format!(
        "{} --socket {} dial {} {port}",
        quoted(&program),
        quoted(&socket),
        quoted(machine)
    );
    command.replace('%', "%%")
}

/// Returns the private key's path; makes the pair first if there is none.
fn key_pair(dir: &Path) -> Result<PathBuf, CliError> {
    let key = dir.join("id_ed25519");
    let cannot = |e| CliError::file("make a key in", dir, e);
    if key.try_exists().map_err(cannot)? {
        return Ok(key);
    }
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir);
    made.map_err(cannot)?;
    // one at a time: two would mix their halves
    let lock = dir.join("lock");
    let lock = fs::File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(lock);
    let lock = lock.map_err(cannot)?;
    lock.lock().map_err(cannot)?;
    if key.try_exists().map_err(cannot)? {
        return Ok(key);
    }
    let partial = dir.join("id_ed25519.new");
    for half in [partial.clone(), partial.with_extension("new.pub")] {
        let _ = fs::remove_file(half); // of one that was interrupted
    }
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", "floe", "-f"])
        .arg(&partial)
        .output()
        .map_err(|error| not_there("ssh-keygen", &error))?;
    if !made.status.success() {
        let said = String::from_utf8_lossy(&made.stderr).into_owned();
        return Err(CliError::failed("ssh-keygen", said));
    }
    // the private half last: where it is, the other is too
    fs::rename(partial.with_extension("new.pub"), key.with_extension("pub")).map_err(cannot)?;
    fs::rename(&partial, &key).map_err(cannot)?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_for_ssh_survives_odd_paths() {
        let command = proxy(Path::new("/o'dd/100%/floe"), Path::new("/run/s"), "web", 22);
        let wanted = r"'/o'\''dd/100%%/floe' --socket '/run/s' dial 'web' 22";
        assert_eq!(command, wanted);
    }
    /// What a user's or host's configuration may say of a host that is called as a machine is.
    const HOSTILE: &str = "\
Host g
  Hostname 192.0.2.1
  Port 2222
Host *
  User mallory
  IdentityFile /etc/hostname
  IdentityAgent /run/agent.sock
  ProxyJump jump
  ControlMaster auto
  ControlPath /run/master-%n
  ControlPersist yes
  ForwardAgent yes
  ForwardX11 yes
  RemoteCommand reboot
  LocalForward 127.0.0.1:7777 127.0.0.1:7777
  RemoteForward 7778 127.0.0.1:7778
  DynamicForward 7779
  PermitLocalCommand yes
  LocalCommand touch /run/ran
  KnownHostsCommand /run/command
  GlobalKnownHostsFile /run/known
  CanonicalizeHostname always
  CanonicalDomains example.org
  SendEnv *
  SetEnv SECRET=1
  Tunnel yes
";

    /// What ssh itself says is in force, as lines of an option and its value.
    fn in_force(mut ssh: Command) -> Vec<String> {
        let output = ssh.arg("-G").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8(output.stdout).unwrap();
        said.lines().map(str::to_owned).collect()
    }

    fn to_g() -> Command {
        ssh(Path::new("/floe/key"), "floe dial g", "root", "g")
    }

    #[test]
    fn no_configuration_that_ssh_is_given_takes_it_to_another_host_or_lends_this_one() {
        let dir = tempfile::tempdir().unwrap();
        let hostile = dir.path().join("config");
        fs::write(&hostile, HOSTILE).unwrap();
        let mut given = to_g();
        given.arg("-F").arg(&hostile);
        let said = in_force(given);
        for (option, value) in OPTIONS.iter().filter_map(|o| o.split_once('=')) {
            let option = option.to_lowercase();
            let mut lines = said.iter().filter_map(|line| line.split_once(' '));
            let found = lines
                .find(|(name, _)| *name == option)
                .map(|(_, value)| value);
            // as ssh writes it
            let same = match (option.as_str(), value, found) {
                ("controlpath" | "remotecommand", "none", None) => true,
                ("controlmaster" | "stricthostkeychecking", "no", Some("false")) => true,
                (_, value, found) => found == Some(value),
            };
            assert!(same, "{option} {value}: {said:#?}");
        }
        assert!(
            said.contains(&"proxycommand floe dial g".into()),
            "{said:#?}"
        );
        assert!(said.contains(&"user root".into()), "{said:#?}");
        assert!(!said.iter().any(|line| line.starts_with("proxyjump")));
        // what is not floe's business is the user's
        assert!(said.contains(&"permitlocalcommand yes".into()), "{said:#?}");
    }

    #[test]
    #[ignore = "needs root: make test-all"]
    fn what_a_user_has_configured_for_hosts_is_not_for_machines() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join(".ssh/config");
        fs::create_dir(dir.path().join(".ssh")).unwrap();
        fs::write(&config, HOSTILE).unwrap();
        // ssh reads the directory that the list of users names, whatever $HOME says
        let in_that_home = |ssh: &Command| {
            let script =
                r#"mount --bind "$0" "$(getent passwd "$(id -u)" | cut -d: -f6)" && exec "$@""#;
            let mut shell = Command::new("unshare");
            shell.args(["--mount", "sh", "-c", script]).arg(dir.path());
            shell.arg(ssh.get_program()).args(ssh.get_args());
            in_force(shell)
        };
        let mut plain = Command::new("ssh");
        plain.arg("g");
        let theirs = in_that_home(&plain);
        assert!(theirs.contains(&"hostname 192.0.2.1".into()), "{theirs:#?}");
        let of = |lines: Vec<String>| {
            let mut lines = lines;
            lines.sort();
            lines
        };
        assert_eq!(of(in_that_home(&to_g())), of(in_force(to_g())));
        let said = in_force(to_g());
        for line in ["hostname g", "port 22", "permitlocalcommand no"] {
            assert!(said.contains(&line.into()), "{line}: {said:#?}");
        }
        let words = [
            "192.0.2.1",
            "mallory",
            "/run/",
            "777",
            "jump",
            "example",
            "SECRET",
        ];
        for word in words {
            assert!(
                !said.iter().any(|line| line.contains(word)),
                "{word}: {said:#?}"
            );
        }
    }
}
