//! Completion in shells: the script of `floe completions` asks this program at each Tab, so that it knows the machines and images of
//! the node.

use std::time::{Duration, Instant};

use clap::{Args, Command};
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};

use super::Context;
use super::error::CliError;
use floe_api::client::Client;
use floe_api::paths::Home;

/// The variable in which a shell's script says that it wants completions.
const VARIABLE: &str = "FLOE_COMPLETE";
/// How long a node may take to answer, before its machines and images are left out.
const PATIENCE: Duration = Duration::from_secs(1);

/// Print the completion script of a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Example: bash, for this user
  mkdir -p ~/.local/share/bash-completion/completions
  floe completions bash > ~/.local/share/bash-completion/completions/floe
Example: zsh and fish
  floe completions zsh > /usr/local/share/zsh/site-functions/_floe
  floe completions fish > ~/.config/fish/completions/floe.fish

The script asks floe at each Tab, and so knows the names of machines and images. Print it anew after an update of floe.")]
pub struct Completions {
    /// The shell
    #[arg(value_parser = ["bash", "zsh", "fish"])]
    shell: String,
}

impl Completions {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let mut script = Vec::new();
        let shells = Shells::builtins();
        let shell = shells.completer(&self.shell);
        let shell = shell.ok_or_else(|| CliError::usage("an unknown shell", "use bash"))?;
        shell
            .write_registration(VARIABLE, "floe", "floe", "floe", &mut script)
            .map_err(|error| CliError::failed("cannot write the script", error))?;
        cx.out.bytes(&script)
    }
}

/// Answers a shell's script and ends the process, if that is who has started it. Nothing may have been printed before.
pub fn answer(commands: fn() -> Command) {
    CompleteEnv::with_factory(move || with_names(commands()))
        .var(VARIABLE)
        .complete();
}

/// Teaches the commands which of their arguments are names of machines and images.
fn with_names(command: Command) -> Command {
    let command = command.mut_args(|argument| {
        let names: fn() -> Vec<CompletionCandidate> = match argument.get_id().as_str() {
            "machine" | "machines" => machines,
            "image" | "images" => images,
            "substrate" | "substrates" => substrates,
            _ => return argument,
        };
        argument.add(ArgValueCandidates::new(names))
    });
    command.mut_subcommands(with_names)
}

fn machines() -> Vec<CompletionCandidate> {
    asked(|client| {
        let machines = client.machines().ok()?.machines;
        Some(
            machines
                .into_iter()
                .map(|m| (m.name, m.image_name))
                .collect(),
        )
    })
}

fn images() -> Vec<CompletionCandidate> {
    asked(|client| {
        let images = client.images().ok()?.images.into_iter();
        Some(
            images
                .flat_map(|i| i.names)
                .map(|n| (n, String::new()))
                .collect(),
        )
    })
}

fn substrates() -> Vec<CompletionCandidate> {
    asked(|client| {
        let substrates = client.substrates().ok()?.substrates.into_iter();
        Some(substrates.map(|s| (s.name, s.machine)).collect())
    })
}

/// Asks the node for names, each with a remark. Without a node, or one that takes long, there are none, and nothing is said.
fn asked(
    ask: impl FnOnce(&Client) -> Option<Vec<(String, String)>> + Send + 'static,
) -> Vec<CompletionCandidate> {
    let socket = std::env::var_os("FLOE_SOCKET").map(Into::into);
    let socket = socket.unwrap_or_else(|| Home::from_env().socket());
    let asking = floe_threads::spawn("complete", move || ask(&Client::connect(socket).ok()?));
    let names = asking.ok().and_then(|asking| {
        let answered = asking.wait_until(Some(Instant::now() + PATIENCE), None);
        answered.come()?.ok()?
    });
    let candidate = |(name, remark): (String, String)| {
        let remark = Some(remark).filter(|remark| !remark.is_empty());
        CompletionCandidate::new(name).help(remark.map(Into::into))
    };
    names
        .unwrap_or_default()
        .into_iter()
        .map(candidate)
        .collect()
}
