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
vouches for whose port that is, no known_hosts file is read or changed. The guest needs an SSH server, and floe's
agent: floe agent install.")]
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
        let mut ssh = Command::new("ssh");
        ssh.arg("-i").arg(&key).args(["-o", "IdentitiesOnly=yes"]);
        ssh.args(["-o", "UserKnownHostsFile=/dev/null"]);
        ssh.args(["-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR"]);
        ssh.arg("-o").arg(format!("ProxyCommand={proxy}"));
        ssh.arg("-l").arg(&self.user).arg(&self.machine);
        let error = ssh.args(&self.arguments).exec();
        Err(not_there("ssh", &error))
    }
}

fn not_there(program: &str, error: &std::io::Error) -> CliError {
    CliError::new(
        ErrorCode::Refused,
        format!("cannot run {program}: {error}"),
        "install the Debian package openssh-client (apt-get install openssh-client)",
    )
}

/// Returns the command that connects ssh to the guest, for a shell, in which ssh puts `exec` before it, and for ssh, to which a percent
/// sign is special.
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
    if key.exists() {
        return Ok(key);
    }
    let cannot = |e| CliError::file("make a key in", dir, e);
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
    if key.exists() {
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
}
