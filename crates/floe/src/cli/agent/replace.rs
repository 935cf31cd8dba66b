//! Replaces an agent by way of itself: its successor is copied through it, checked, and put in its place by a script that puts it
//! back unless the host says that the new one answers.

use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use super::ANSWER_AGAIN;
use crate::cli::copy;
use crate::cli::error::CliError;
use crate::cli::session::{Output, Session};
use floe_api::client::Client;
use floe_api::{ErrorCode, ExecRequest, Program};

/// What replaces the agent in the guest.
const SCRIPT: &str = include_str!("replace.sh");
/// Tells the program of the agent that runs this, and where it stands.
const LOOK: &str =
    "set -- $(sha256sum </proc/$PPID/exe) && echo \"$1 $(readlink /proc/$PPID/exe)\"";
/// How long until the guest has either agent again: longer than `replace.sh` waits for the new one.
const SETTLE_WAIT: Duration = Duration::from_secs(180);
/// Most bytes of a command's output that are looked at.
const OUTPUT_BYTES_MAX: u64 = 64 << 10;

/// The agent that runs in a guest.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Running {
    /// The checksum of its program, as `sha256sum` prints it.
    pub checksum: String,
    /// Where the program stands; `None` if it was removed since.
    pub path: Option<String>,
}

/// Returns the agent that answers in a machine, if one does that can say what it is.
pub(super) fn running(client: &Client, machine: &str) -> Option<Running> {
    parse(&shell(client, machine, LOOK, &[]).ok()?)
}

fn parse(said: &str) -> Option<Running> {
    let (checksum, path) = said.trim_end().split_once(' ')?;
    // what the kernel says of a file that was removed
    let stands = path.starts_with('/') && !path.ends_with(" (deleted)");
    Some(Running {
        checksum: checksum.into(),
        path: stands.then(|| path.into()),
    })
}

/// Runs a shell's line as root. Returns its output; an error unless it ends well.
fn shell(
    client: &Client,
    machine: &str,
    line: &str,
    arguments: &[&str],
) -> Result<String, CliError> {
    let mut session = Session::start(client, machine, &command(line, arguments))?;
    let mut output = Output::new(&mut session);
    let mut said = Vec::new();
    let read = output
        .by_ref()
        .take(OUTPUT_BYTES_MAX)
        .read_to_end(&mut said);
    let read = read.and_then(|_| output.finish());
    output.conclude(read, "cannot read what the guest says")?;
    Ok(String::from_utf8_lossy(&said).into_owned())
}

fn command(line: &str, arguments: &[&str]) -> ExecRequest {
    let words = ["sh", "-c", line, "floe-agent-install"];
    let words = words.iter().chain(arguments);
    ExecRequest::new(Program::Command(
        words.map(|&word| word.to_owned()).collect(),
    ))
}

/// Replaces the agent whose program stands at `path` in the guest by the one at `program` here.
pub(super) fn replace(
    client: &Client,
    machine: &str,
    path: &str,
    program: &Path,
    checksum: &str,
) -> Result<(), CliError> {
    copy::put(client, machine, program, &format!("{path}.floe-new"))?;
    // what does not even run, or did not arrive whole, replaces nothing
    let check = "chmod 755 \"$1.floe-new\" && set -- \"$1\" \"$2\" $(sha256sum <\"$1.floe-new\") && [ \"$3\" = \"$2\" ] \
        && \"$1.floe-new\" --help >/dev/null && mktemp -d || { rm -f \"$1.floe-new\"; echo 'it does not run there' >&2; exit 1; }";
    let said = shell(client, machine, check, &[path, checksum])
        .map_err(|error| stays(machine, &error.0.message))?;
    let dir = said.trim_end();
    let request = ExecRequest {
        detach: true,
        ..command(SCRIPT, &[path, dir])
    };
    Session::start(client, machine, &request)?.conclude(Vec::new())?;
    settle(client, machine, dir, checksum)
}

/// Waits until the new agent answers, and says so in the guest; or until the old one does again.
fn settle(client: &Client, machine: &str, dir: &str, checksum: &str) -> Result<(), CliError> {
    let until = Instant::now() + SETTLE_WAIT;
    let failed = "[ ! -e \"$1/failed\" ] || { cat \"$1/failed\"; rm -rf \"$1\"; }";
    loop {
        if let Some(found) = running(client, machine) {
            if found.checksum == checksum {
                return shell(client, machine, ": >\"$1/good\"", &[dir]).map(drop);
            }
            match shell(client, machine, failed, &[dir]) {
                Ok(why) if !why.is_empty() => return Err(stays(machine, why.trim_end())),
                _ => {}
            }
        }
        if Instant::now() >= until {
            let text = format!("no agent answers in {machine} since its own was to be replaced");
            let fix = format!(
                "look with floe console {machine}; what was there is beside it, as .floe-old"
            );
            return Err(CliError::new(ErrorCode::Failed, text, fix));
        }
        // the node opens a session when it hears of an agent, and nothing tells this command of that
        std::thread::sleep(ANSWER_AGAIN);
    }
}

/// The error for an agent that could not be replaced, and runs on.
fn stays(machine: &str, why: &str) -> CliError {
    CliError::new(
        ErrorCode::Failed,
        format!("the new agent was not put in place in {machine}: {why}"),
        "the old one runs; is the new one made for this guest's processor?",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_known_by_its_program_and_where_that_stands() {
        let found = parse("abc /usr/local/bin/floe-guest\n").unwrap();
        assert_eq!(found.checksum, "abc");
        assert_eq!(found.path.as_deref(), Some("/usr/local/bin/floe-guest"));
        let removed = parse("abc /bin/floe-guest (deleted)\n").unwrap();
        assert_eq!(removed.path, None);
        assert_eq!(parse(""), None);
    }
}
