//! Commands that end machines, pause them or let them go on: stop, pause, resume, rm. Each takes several machines, and each of
//! those gets its turn, whatever became of the others.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;

use super::error::CliError;
use super::machines::{WaitArgs, started};
use super::output::word;
use super::{Context, ensembles};
use floe_api::client::{Client, ClientError};
use floe_api::{MachineInfo, MachineList};

/// The exit code of a stop for which a guest had to be switched off.
pub(super) const EXIT_SWITCHED_OFF: u8 = 6;

/// Power machines down; their disks stay
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe stop web
  floe stop web db --timeout 60
  floe stop web --now
Example: all machines of an ensemble that floe activate --ensemble has started
  floe stop --ensemble shop

A guest that does not power down in time is switched off: it starts again as after a power cut. The exit code is 6 then.")]
pub struct Stop {
    /// The machines
    #[arg(required_unless_present = "of_ensemble")]
    machines: Vec<String>,
    #[command(flatten)]
    ensemble: ensembles::OfEnsemble,
    /// Do not ask the guest to power down, end it
    #[arg(long)]
    now: bool,
    /// How long the guest may take before it is switched off, in seconds
    #[arg(long, value_name = "SECONDS", conflicts_with = "now")]
    timeout: Option<u64>,
}

impl Stop {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        let request = floe_api::StopRequest {
            now: self.now,
            timeout_s: self.timeout,
        };
        let names = self.ensemble.machines(cx, self.machines)?;
        let turns = Turns::take(cx, &names, |client, name| {
            let machine = client.stop(name, &request)?;
            if machine.switched_off && !cx.out.json {
                warn(&format!("{name} was {}", machine.detail));
            }
            Ok::<_, ClientError>(machine)
        })?;
        let switched_off = turns.done.iter().any(|machine| machine.switched_off);
        let code = turns.show(cx, |m| format!("{} is {}\n", m.name, word(&m.status)))?;
        Ok(code.unwrap_or_else(|| match switched_off {
            true => ExitCode::from(EXIT_SWITCHED_OFF),
            false => ExitCode::SUCCESS,
        }))
    }
}

/// Power machines down and start them again from their disks
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe restart web
Example: without asking the guest, and until its web server answers
  floe restart web --force --wait port=80

A guest that does not power down in time is switched off, which is said. A machine that is stopped is only started.")]
pub struct Restart {
    /// The machines
    #[arg(required = true)]
    machines: Vec<String>,
    /// Do not ask the guest to power down, end it
    #[arg(long, short)]
    force: bool,
    /// How long the guest may take before it is switched off, in seconds
    #[arg(long, value_name = "SECONDS", conflicts_with = "force")]
    timeout: Option<u64>,
    #[command(flatten)]
    wait: WaitArgs,
}

impl Restart {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        let request = floe_api::RestartRequest {
            stop: floe_api::StopRequest {
                now: self.force,
                timeout_s: self.timeout,
            },
            start: self.wait.request(),
        };
        let turns = Turns::take(cx, &self.machines, |client, name| {
            started(cx, client.restart(name, &request)?)
        })?;
        Ok(turns.failed.unwrap_or(ExitCode::SUCCESS))
    }
}

/// Pause machines: their CPUs stand still until floe resume
#[derive(Debug, Args)]
#[command(after_help = "\
Example: give others the CPUs for a while
  floe pause web db
  floe resume web db

Memory stays where it is. A paused machine stays paused when its node ends and another one takes it over.")]
pub struct Pause {
    /// The machines
    #[arg(required = true)]
    machines: Vec<String>,
}

impl Pause {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        let turns = Turns::take(cx, &self.machines, Client::pause)?;
        let code = turns.show(cx, |m| format!("{} is {}\n", m.name, word(&m.status)))?;
        Ok(code.unwrap_or(ExitCode::SUCCESS))
    }
}

/// Let machines go on that floe pause has paused
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe resume web

A machine may stand still for other reasons too, such as a full disk: those stay, and are named.")]
pub struct Resume {
    /// The machines
    #[arg(required = true)]
    machines: Vec<String>,
}

impl Resume {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        let turns = Turns::take(cx, &self.machines, Client::resume)?;
        let code = turns.show(cx, resumed)?;
        Ok(code.unwrap_or(ExitCode::SUCCESS))
    }
}

fn resumed(machine: &MachineInfo) -> String {
    if machine.paused_for.is_empty() {
        return format!("{} is {}\n", machine.name, word(&machine.status));
    }
    let reasons: Vec<String> = machine.paused_for.iter().map(ToString::to_string).collect();
    format!(
        "{} goes on later, because {}\n",
        machine.name,
        reasons.join(" and ")
    )
}

/// Remove machines with their disks
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe stop web && floe rm web
  floe rm --force web
Example: all machines of an ensemble that floe activate --ensemble has started
  floe rm --force --ensemble shop")]
pub struct Rm {
    /// The machines
    #[arg(required_unless_present = "of_ensemble")]
    machines: Vec<String>,
    #[command(flatten)]
    ensemble: ensembles::OfEnsemble,
    /// End them first if they run
    #[arg(long, short)]
    force: bool,
}

impl Rm {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        let names = self.ensemble.machines(cx, self.machines)?;
        let turns = Turns::take(cx, &names, |client, name| {
            client.remove_machine(name, self.force)?;
            Ok::<_, ClientError>(name.to_owned())
        })?;
        if !turns.done.is_empty() {
            cx.out
                .acknowledge(&format!("removed {}", turns.done.join(", ")))?;
        }
        Ok(turns.failed.unwrap_or(ExitCode::SUCCESS))
    }
}

/// What came of doing something with each of several machines.
pub(super) struct Turns<T> {
    /// What was done.
    pub done: Vec<T>,
    /// The exit code of the first failure, if there was one. All failures have been printed.
    pub failed: Option<ExitCode>,
}

impl<T> Turns<T> {
    /// Gives each machine its turn. A failure is printed at once, and the next machine follows.
    pub fn take<E: Into<CliError>>(
        cx: &Context,
        names: &[String],
        turn: impl Fn(&Client, &str) -> Result<T, E>,
    ) -> Result<Turns<T>, CliError> {
        let client = cx.client()?;
        let mut turns = Turns {
            done: Vec::new(),
            failed: None,
        };
        for name in names {
            match turn(&client, name) {
                Ok(done) => turns.done.push(done),
                Err(error) => {
                    let error: CliError = error.into();
                    error.print(cx.out.json);
                    let code = ExitCode::from(error.exit_code());
                    turns.failed.get_or_insert(code);
                }
            }
        }
        Ok(turns)
    }
}

impl Turns<MachineInfo> {
    /// Prints what was done, one line for each machine. Returns the exit code if something failed.
    pub(super) fn show(
        self,
        cx: &Context,
        line: impl Fn(&MachineInfo) -> String,
    ) -> Result<Option<ExitCode>, CliError> {
        let list = MachineList {
            machines: self.done,
        };
        if !list.machines.is_empty() {
            cx.out
                .value(&list, |list| list.machines.iter().map(&line).collect())?;
        }
        Ok(self.failed)
    }
}

/// Prints a warning. It may quote a guest or a host's disk.
fn warn(text: &str) {
    // if standard error is closed, nobody can be warned
    let _ = writeln!(
        std::io::stderr(),
        "warning: {}",
        super::visible::message(text)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_a_resumed_machine_standing_is_named() {
        let mut machine = super::super::top::tests::machine();
        assert_eq!(resumed(&machine), format!("{} is running\n", machine.name));
        machine.paused_for = vec![
            floe_api::PauseReason::Buffering,
            floe_api::PauseReason::Disk,
        ];
        assert_eq!(
            resumed(&machine),
            format!(
                "{} goes on later, because what it needs next has not arrived yet and a disk can't be written\n",
                machine.name
            )
        );
    }
}
