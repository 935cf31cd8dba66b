//! What `floe run` wants of a machine beyond its start: what becomes of it once it has ended, and a shell in it at once.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::error::CliError;
use super::{Context, args, console, exec, interrupt, progress, visible};
use floe_api::client::{Client, ClientError, Events};
use floe_api::{
    ErrorCode, ExecRequest, MachineInfo, Program, RestartPolicy, WAIT_TIMEOUT_S_DEFAULT, WaitFor,
    WaitQuery,
};

/// How long a restored guest's agent may take to answer before its console is shown instead, in seconds: many times what it
/// takes over a slow link.
const AGENT_S: u64 = 10;
/// The guest's best shell.
const SHELL: &str = "command -v bash >/dev/null && exec bash -l; exec sh -l";

/// Options about a machine's end.
#[derive(Debug, Args)]
pub struct Ending {
    /// Remove the machine with its disks once it has ended; with -it as soon as its shell has
    #[arg(long, conflicts_with = "restart")]
    pub rm: bool,
    /// Start it again once it has ended: no, on-failure[:N] (at most N times in a row), always, unless-stopped (by you)
    #[arg(long, value_name = "POLICY", default_value_t = RestartPolicy::No)]
    pub restart: RestartPolicy,
    /// Park it once nobody has used it and it has done next to nothing for this long, such as 10m; a connection to one of its
    /// ports wakes it
    #[arg(long, value_parser = args::time_s, value_name = "TIME")]
    pub park_after: Option<u64>,
}

/// Options about a shell.
#[derive(Debug, Args)]
pub struct Inside {
    /// Then run a shell in it, or the command after --, with this standard input
    #[arg(long, short)]
    interactive: bool,
    /// Give that a terminal: -it is a shell at once, through floe's agent, or else on the serial console
    #[arg(long, short)]
    tty: bool,
    /// A command for the guest, after --
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Inside {
    /// Whether something is to be run in the guest.
    pub fn is_wanted(&self) -> bool {
        self.interactive || self.tty || !self.command.is_empty()
    }

    /// Follows a start, then runs the shell or command. With `remove` the machine goes with it.
    pub fn run(
        self,
        cx: &Context,
        client: &Client,
        events: Events,
        remove: bool,
    ) -> Result<ExitCode, CliError> {
        let done = progress::follow(cx.out, events)?;
        let machine = done.outcome.machine;
        let machine =
            machine.ok_or_else(|| CliError::failed("no machine was started", "no answer"))?;
        if remove {
            let (client, name) = (client.clone(), machine.name.clone());
            interrupt::ends_with(move || {
                // it may have ended by itself, and is removed then
                let _ = client.remove_machine(&name, true);
                interrupt::EXIT_INTERRUPTED
            });
        }
        let ended = self.inside(client, &machine);
        if remove {
            gone(client.remove_machine(&machine.name, true))?;
        }
        ended
    }

    fn inside(self, client: &Client, machine: &MachineInfo) -> Result<ExitCode, CliError> {
        let name = &machine.name;
        let command = !self.command.is_empty();
        // a guest that boots may have no agent, and shows on its console how far it is
        let limit_s = match (command, machine.restored) {
            (true, _) => Some(WAIT_TIMEOUT_S_DEFAULT),
            (false, true) => Some(AGENT_S),
            (false, false) => None,
        };
        let answers = limit_s.map(|limit_s| {
            let query = WaitQuery {
                what: WaitFor::Answers,
                timeout_s: Some(limit_s),
            };
            client.wait(name, &query)
        });
        match answers {
            Some(Ok(_)) => {
                let terminal = self.tty && std::io::stdin().is_terminal();
                let program = match command {
                    true => self.command,
                    false => ["sh", "-c", SHELL].map(str::to_owned).to_vec(),
                };
                let request = ExecRequest {
                    environment: exec::terminal_kind(terminal),
                    terminal: terminal.then(exec::size),
                    ..ExecRequest::new(Program::Command(program))
                };
                exec::attached(client, name, &request, self.interactive)
            }
            Some(Err(ClientError::Api(error))) if command => Err(CliError::new(
                error.code,
                format!(
                    "no command runs in {name}, since floe's agent in its guest does not answer: {}",
                    error.message
                ),
                format!(
                    "{}; into a guest that has no agent, and all of its memory, floe agent install {name} puts one",
                    error.fix
                ),
            )),
            Some(Err(error)) if command => Err(error.into()),
            silent => {
                if let Some(Err(why)) = silent {
                    eprintln!(
                        "-- {}; this is the serial console. Once floe's agent answers, floe exec -it {} sh is a shell --",
                        visible::line(&why.to_string()),
                        visible::line(name)
                    );
                }
                console::attach(client, name, Duration::from_secs(2)).map(|()| ExitCode::SUCCESS)
            }
        }
    }
}

/// What is removed already is as it should be.
fn gone(removed: Result<(), ClientError>) -> Result<(), CliError> {
    match removed {
        Err(ClientError::Api(error)) if error.code == ErrorCode::NotFound => Ok(()),
        done => Ok(done?),
    }
}
