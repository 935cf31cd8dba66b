//! The command line: translates what a user types into calls of the node's [`Client`] and of the hub.
//!
//! Every command answers on standard output (a table, or with `--json` one JSON value; long calls print one event per
//! line), reports progress and errors on standard error, and ends with the exit codes of
//! [`ErrorCode`](floe_api::ErrorCode). Nothing is decided here: a command that does more than ask and show belongs in the
//! node.

mod advise;
mod agent;
mod args;
mod attach;
mod authority;
mod build;
mod change;
mod cluster;
mod completions;
mod confirm;
mod console;
mod copy;
mod daemon;
mod doctor;
mod ending;
mod ensembles;
mod error;
mod exec;
mod forks;
mod hardware;
mod hub;
mod hub_images;
mod images;
mod independent;
mod interrupt;
mod io;
mod limits;
mod login;
mod machines;
mod man;
mod moves;
mod offload;
mod outcome;
pub(crate) mod output;
mod park;
mod pool;
mod pool_host;
mod pool_moving;
mod pool_shown;
mod power;
mod progress;
mod prune;
mod ps;
mod resize;
mod rollback;
mod sched;
mod session;
mod ssh;
mod storage;
mod stream;
mod swarm;
mod terminal;
mod top;
mod traces;
mod transfer;
mod typing;
mod visible;
mod watching;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{ExitCode, Termination};

use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use error::CliError;
use floe_api::client::Client;
use floe_api::paths::Home;
use output::Output;

const AFTER: &str = "\
Example: from a disk to a machine that others can run
  floe up &
  floe image build debian
  floe run debian --name web -p 8080:80
  floe capture web --name debian-booted
  floe push debian-booted https://hub.example

Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 not found, 4 unreachable, 5 refused or unsupported,
6 a machine had to be switched off, 7 only some machines of an ensemble are ready, 130 interrupted.

Files: $FLOE_HOME (/var/lib/floe for root, ~/.local/share/floe for others).";

/// Run virtual machines from streamed state: capture a running machine, publish it, run it anywhere at once.
#[derive(Debug, Parser)]
#[command(name = "floe", version, about, after_help = AFTER, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Args)]
struct Global {
    /// Answer in JSON: one value, or one event per line for commands that take long
    #[arg(long, global = true)]
    json: bool,
    /// Log more in up, node and hub (twice: still more)
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    /// The node's socket
    #[arg(long, global = true, env = "FLOE_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Makes the list of commands, and `run`, which runs one of them. Its own `run` returns the exit code, or nothing if that is always 0.
macro_rules! commands {
    ($($(#[$($note:tt)+])* $name:ident($($kind:tt)+),)+) => {
        #[derive(Debug, Subcommand)]
        enum Command {
            $($(#[$($note)+])* $name($($kind)+),)+
            /// Holds the mount's descriptors while a node is replaced
            #[command(
                hide = true,
                after_help = "Example: started by the node\n  floe supervisor /run/floe/supervisor.sock"
            )]
            Supervisor {
                /// Its socket
                socket: PathBuf,
            },
            /// Becomes QEMU, confined
            #[command(
                hide = true,
                after_help = "Example: started by the node\n  floe exec-qemu --dir DIR -- qemu-system-x86_64"
            )]
            ExecQemu {
                /// Options, --, QEMU and its arguments
                #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
                args: Vec<OsString>,
            },
        }

        fn run(command: Command, cx: &Context) -> Result<ExitCode, CliError> {
            Ok(match command {
                $(Command::$name(command) => command.run(cx)?.report(),)+
                Command::Supervisor { .. } | Command::ExecQemu { .. } => {
                    let why = "this command is the node's own and was not called the way the node calls it";
                    return Err(CliError::usage(why, "see its --help"));
                }
            })
        }
    };
}

commands! {
    Up(daemon::Up),
    Node(daemon::Node),
    Down(daemon::Down),
    Open(daemon::Open),
    #[command(subcommand)]
    Hub(hub::Hub),
    #[command(subcommand)]
    Image(images::Image),
    Run(Box<machines::Run>),
    Ps(ps::Ps),
    Console(machines::Console),
    Exec(exec::Exec),
    Cp(copy::Cp),
    Ssh(ssh::Ssh),
    #[command(subcommand)]
    Agent(agent::Agent),
    #[command(hide = true)]
    Dial(exec::Dial),
    Screenshot(machines::Screenshot),
    Logs(machines::Logs),
    Capture(machines::Capture),
    Dock(pool::Dock),
    Activate(pool::Activate),
    #[command(subcommand)]
    Pool(pool::PoolCommand),
    #[command(subcommand)]
    Cluster(cluster::Cluster),
    Fork(forks::Fork),
    Family(forks::Family),
    Hosts(forks::Hosts),
    Kill(forks::Kill),
    Stop(power::Stop),
    Start(machines::Start),
    Restart(power::Restart),
    Rollback(rollback::Rollback),
    Wait(watching::Wait),
    Rename(change::Rename),
    Resize(resize::Resize),
    Independent(independent::Independent),
    Attach(attach::Attach),
    Detach(attach::Detach),
    #[command(subcommand)]
    Disk(change::DiskCommand),
    Park(park::Park),
    Wake(park::Wake),
    Move(moves::Move),
    Recall(moves::Recall),
    Type(typing::Type),
    Offload(offload::Offload),
    Sync(offload::SyncCommand),
    Pair(offload::Pair),
    Advise(advise::Advise),
    Drain(moves::Drain),
    Pause(power::Pause),
    Resume(power::Resume),
    Rm(power::Rm),
    Forward(machines::Forward),
    Limit(limits::Limit),
    #[command(subcommand)]
    Io(io::Io),
    #[command(subcommand)]
    Sched(sched::Sched),
    Top(top::Top),
    Stats(watching::Stats),
    Events(watching::Events),
    #[command(subcommand)]
    Trace(traces::Trace),
    Login(login::Login),
    Logout(login::Logout),
    Push(transfer::Push),
    Pull(transfer::Pull),
    #[command(subcommand)]
    Swarm(swarm::Swarm),
    Mount(storage::Mount),
    Unmount(storage::Unmount),
    #[command(subcommand)]
    Cache(storage::Cache),
    Prune(prune::PruneArgs),
    Doctor(doctor::Doctor),
    Completions(completions::Completions),
    #[command(name = "man")]
    Manual(man::Manual),
}

/// What every command gets.
struct Context {
    out: Output,
    verbose: u8,
    socket: PathBuf,
    home: Home,
}

impl Context {
    /// Connects to the node, for a command that may be interrupted at any time.
    fn client(&self) -> Result<Client, CliError> {
        interrupt::exit_on_signals();
        Ok(Client::connect(&self.socket)?)
    }
}

/// The whole program: parses the command line, runs the command, and returns the exit code.
pub fn main() -> ExitCode {
    // Do this first: the programs that these subcommands become must inherit nothing.
    let args: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = floe_node::helpers::dispatch(args.get(1..).unwrap_or_default()) {
        return code;
    }
    completions::answer(description);
    // on a wrong command line: usage on standard error, exit code 2
    let cli = parse(args).unwrap_or_else(|error| explained(error).exit());
    let home = Home::from_env();
    let context = Context {
        out: Output {
            json: cli.global.json,
        },
        verbose: cli.global.verbose,
        socket: cli.global.socket.unwrap_or_else(|| home.socket()),
        home,
    };
    match run(cli.command, &context) {
        Ok(code) => code,
        Err(error) => {
            error.print(context.out.json);
            ExitCode::from(error.exit_code())
        }
    }
}

fn parse(args: Vec<OsString>) -> Result<Cli, clap::Error> {
    let mut command = description();
    let matches = command.try_get_matches_from_mut(args)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Returns the command line's description, with notes that are cut into lines where the terminal ends and nowhere else.
fn description() -> clap::Command {
    with_flowing_notes(Cli::command())
}

fn with_flowing_notes(mut command: clap::Command) -> clap::Command {
    if let Some(notes) = command.get_after_help().map(ToString::to_string) {
        command = command.after_help(flowing(&notes));
    }
    let subcommands = command.get_subcommands();
    let names: Vec<String> = subcommands.map(|sub| sub.get_name().to_owned()).collect();
    names.into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, with_flowing_notes)
    })
}

/// Makes one line of each paragraph. Lines that are indented, as what is to be typed is, stay as they are.
fn flowing(notes: &str) -> String {
    let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
    let mut text = String::new();
    let mut before = "";
    for line in notes.lines() {
        if !text.is_empty() {
            text.push(if is_prose(before) && is_prose(line) {
                ' '
            } else {
                '\n'
            });
        }
        text += line;
        before = line;
    }
    text
}

/// Says of a number below zero that none is possible. The parser takes it for an option, and would advise to write `-- -1`.
fn explained(error: clap::Error) -> clap::Error {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    let Some(ContextValue::String(what)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let is_number = what
        .strip_prefix('-')
        .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
    match error.kind() {
        ErrorKind::UnknownArgument if is_number => clap::Error::raw(
            ErrorKind::InvalidValue,
            format!(
                "{what} is less than nothing: numbers, sizes and times of floe begin at 0\n\nFor more information, try '--help'.\n"
            ),
        ),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_tree_is_well_formed() {
        description().debug_assert();
    }

    #[test]
    fn notes_are_cut_into_lines_by_the_terminal_and_examples_are_not() {
        let notes = "Example: one\n  floe a \\\n    --b\nExample: two\n  floe c\n\nA note\nof two lines.\n\nAnother.";
        let flows = "Example: one\n  floe a \\\n    --b\nExample: two\n  floe c\n\nA note of two lines.\n\nAnother.";
        assert_eq!(flowing(notes), flows);
        let runs = |notes: &str| {
            notes
                .lines()
                .any(|line| line.starts_with("Only what") && line.len() > 140)
        };
        let moves = description();
        let moves = moves
            .find_subcommand("move")
            .and_then(|sub| sub.get_after_help());
        assert!(runs(&moves.unwrap().to_string()));
    }

    #[test]
    fn what_a_guest_reaches_is_said_without_eating_the_image() {
        let parse = |args: &[&str]| {
            let args = ["floe", "run"].iter().chain(args);
            match Cli::try_parse_from(args).map(|cli| cli.command) {
                Ok(Command::Run(run)) => run.host_access(),
                other => panic!("{other:?}"),
            }
        };
        use floe_api::HostAccess;
        assert_eq!(parse(&["debian"]), HostAccess::None);
        assert_eq!(parse(&["--allow-host", "debian"]), HostAccess::All);
        let ports = HostAccess::Ports(vec![80, 5432]);
        assert_eq!(parse(&["--allow-host=80,5432", "debian"]), ports);
        assert_eq!(
            parse(&["--allow-host=80", "debian", "--allow-host=5432"]),
            ports
        );
        for bad in ["--allow-host=0", "--allow-host=x", "--allow-host=65536"] {
            assert!(Cli::try_parse_from(["floe", "run", bad, "debian"]).is_err());
        }
        assert!(
            Cli::try_parse_from(["floe", "run", "--network", "--allow-host", "debian"]).is_err()
        );
    }

    fn each(command: &clap::Command, path: &str, check: &mut dyn FnMut(&str, &clap::Command)) {
        check(path, command);
        for sub in command.get_subcommands().filter(|s| s.get_name() != "help") {
            each(sub, &format!("{path} {}", sub.get_name()), check);
        }
    }

    #[test]
    fn every_command_and_option_is_explained() {
        let mut seen = 0;
        each(&description(), "floe", &mut |path, command| {
            seen += 1;
            assert!(command.get_about().is_some(), "{path} has no description");
            for argument in command.get_arguments() {
                assert!(
                    argument.get_help().is_some(),
                    "{path} {} has no help",
                    argument.get_id()
                );
            }
        });
        assert!(seen > 30, "{seen} commands");
    }
}
