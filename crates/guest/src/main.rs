//! `floe-guest`: the agent, and its calls as shell commands.

use floe_guest::agent::{self, Options, SOCKET_PATH};
use floe_guest::client;
use floe_guest::message::{Answer, Call};
use floe_guest::{chores, mpi, tools};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const HELP: &str = "\
floe-guest: lets programs in this guest clone their machine, and users of its host run commands in it

  floe-guest serve [--socket PATH] [--mode 0660] [--port DEVICE]
      The agent. Whoever may write to the socket may clone and end the machine. For the host it starts commands
      (floe exec), and this program as send, receive, dial and authorize (floe cp, floe ssh) and as chore, which
      does what the host wants of this guest's kernel (floe resize).

  floe-guest ticket N [--hierarchical]   a ticket, and for how many clones it is
  floe-guest clone TICKET                the clone's number; 0 in the parent
  floe-guest join TICKET                 waits until all clones of the ticket have ended
  floe-guest kill TICKET                 ends them
  floe-guest exit                        ends this machine, a clone
  floe-guest whoami                      number, name and parent of this machine
  floe-guest offload [NODE] [--cpus N] [--memory SIZE]
                                         this machine goes on on another node of its cluster, with so many CPUs and so
                                         much memory (8G) there; prints which node that is
  floe-guest recall                      it goes on where it comes from; prints which node that is
  floe-guest mpirun ...                  an MPI program on clones: floe-mpirun, see floe-mpirun --help

Each call takes --timeout SECONDS and --socket PATH.

Example: four clones, each of which does its part
  ticket=$(floe-guest ticket 4 | cut -d' ' -f1)
  id=$(floe-guest clone $ticket)
  if [ $id = 0 ]; then floe-guest join $ticket; else work $id; floe-guest exit; fi
";

/// The time for a join is kept by the node, which tells what came in it. A busy one is waited for so much longer.
const NODE_LATE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().collect();
    let program = PathBuf::from(if args.is_empty() {
        String::new()
    } else {
        args.remove(0)
    });
    if let Some(code) = mpi::run_as(&program, &args) {
        return code;
    }
    if args.first().is_some_and(|arg| arg == "mpirun") {
        return mpi::mpirun(&args[1..]);
    }
    if let Some(name) = args
        .first()
        .filter(|arg| tools::NAMES.contains(&arg.as_str()))
    {
        return match tools::run(name, &args[1..]) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                eprintln!("{why}");
                ExitCode::FAILURE
            }
        };
    }
    if args.first().is_some_and(|arg| arg == chores::WORD) {
        return match chores::run(&args[1..]) {
            Ok(line) => {
                println!("{line}");
                ExitCode::SUCCESS
            }
            Err((code, why)) => {
                eprintln!("{why}");
                code.into()
            }
        };
    }
    match run(&mut args) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("floe-guest: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Removes `--name VALUE` from the arguments and returns the value.
fn option(args: &mut Vec<String>, name: &str) -> Result<Option<String>, String> {
    let Some(at) = args.iter().position(|arg| arg == name) else {
        return Ok(None);
    };
    if at + 1 >= args.len() {
        return Err(format!("{name} needs a value"));
    }
    args.remove(at);
    Ok(Some(args.remove(at)))
}

fn run(args: &mut Vec<String>) -> Result<String, String> {
    if args.is_empty() || args.iter().any(|arg| arg == "--help" || arg == "-h") {
        return Ok(HELP.into());
    }
    let socket = option(args, "--socket")?.map_or_else(|| SOCKET_PATH.into(), PathBuf::from);
    if args[0] == "serve" {
        let mut options = Options {
            socket,
            port: option(args, "--port")?.map(PathBuf::from),
            ..Default::default()
        };
        if let Some(mode) = option(args, "--mode")? {
            let parsed = u32::from_str_radix(&mode, 8)
                .ok()
                .filter(|mode| *mode <= 0o777);
            options.mode = parsed.ok_or_else(|| format!("--mode {mode} is not like 0660"))?;
        }
        no_more(&args[1..])?;
        return match agent::serve(&options) {
            Ok(()) => Ok(String::new()),
            Err(error) => Err(format!("the agent ended: {error}")),
        };
    }
    let limit = match option(args, "--timeout")? {
        None => None,
        Some(text) => {
            let seconds = text.parse::<f64>().ok();
            let limit = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            Some(limit.ok_or_else(|| format!("--timeout {text} is no number of seconds"))?)
        }
    };
    let call = parse(args, limit)?;
    let patience = match call {
        Call::Join { .. } => limit.map(|limit| limit.saturating_add(NODE_LATE)),
        _ => limit,
    };
    let answer = client::call(&socket, &call, patience).map_err(|error| error.to_string())?;
    tell(answer)
}

fn no_more(rest: &[String]) -> Result<(), String> {
    match rest.first() {
        None => Ok(()),
        Some(word) => Err(format!(
            "{word:?} is not expected here; see floe-guest --help"
        )),
    }
}

fn parse(args: &mut Vec<String>, limit: Option<Duration>) -> Result<Call, String> {
    let before = args.len();
    args.retain(|arg| arg != "--hierarchical");
    let hierarchical = args.len() < before;
    let (cpus, memory) = (option(args, "--cpus")?, option(args, "--memory")?);
    let mut words = args.drain(..);
    let verb = words.next().unwrap_or_default();
    let mut word = |what: &str| words.next().ok_or_else(|| format!("{verb} needs {what}"));
    let call = match verb.as_str() {
        "ticket" => {
            let count = word("a number of clones")?;
            let clones = count
                .parse()
                .map_err(|_| format!("{count:?} is no number of clones"))?;
            Call::Ticket {
                clones,
                hierarchical,
            }
        }
        "clone" => Call::Clone {
            ticket: word("a ticket")?,
        },
        "join" => Call::Join {
            ticket: word("a ticket")?,
            timeout_ms: limit.map(|limit| limit.as_millis().min(u128::from(u64::MAX)) as u64),
        },
        "kill" => Call::Kill {
            ticket: word("a ticket")?,
        },
        "exit" => Call::Exit,
        "whoami" => Call::Whoami,
        "offload" => Call::Offload {
            to: words.next(),
            cpus: read(cpus, "number of CPUs", |text| text.parse().ok())?,
            memory_bytes: read(memory, "amount of memory", bytes_of)?,
        },
        "recall" => Call::Recall,
        other => return Err(format!("{other:?} is unknown; see floe-guest --help")),
    };
    no_more(&words.collect::<Vec<_>>())?;
    Ok(call)
}

/// Reads an option's value, if there is one.
fn read<T>(
    text: Option<String>,
    what: &str,
    of: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, String> {
    let read = |text: String| of(&text).ok_or_else(|| format!("{text:?} is no {what}"));
    text.map(read).transpose()
}

/// Reads an amount of bytes such as `512M`, `8G` or `1073741824`.
fn bytes_of(text: &str) -> Option<u64> {
    let (digits, shift) = match text.chars().last()? {
        'M' => (text.strip_suffix('M')?, 20),
        'G' => (text.strip_suffix('G')?, 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn tell(answer: Answer) -> Result<String, String> {
    Ok(match answer {
        Answer::Ticket {
            ticket,
            clones,
            each,
        } => format!("{ticket} {clones} {each}\n"),
        Answer::Cloned { id, .. } => format!("{id}\n"),
        Answer::Done { ended, lost } => format!("{ended} ended, {lost} of them lost\n"),
        Answer::Me(me) => format!("{} {} {}\n", me.id, me.machine, me.parent),
        Answer::Moved { node } => format!("{node}\n"),
        Answer::Refused(refusal) => return Err(format!("{refusal} ({})", refusal.code)),
    })
}
