//! The command line of `floe-mpirun`.

use super::plan::{Fewer, Job};
use crate::agent::SOCKET_PATH;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The text of `floe-mpirun --help`.
pub const HELP: &str = "\
floe-mpirun: runs an MPI program on clones of this machine

  floe-mpirun [OPTIONS] -n RANKS [MPIEXEC-OPTIONS] PROGRAM [ARGUMENTS]

Clones the machine, runs MPICH's mpiexec with the clones as its hosts, and ends them when it has ended. The program is any
that was built for MPICH. It is there, with its input, as everything else in this machine is; but clones end with their
disks, so that results must come by standard output, or from rank 0 with --rank0-here. The machine must have a network
with its clones (floe run IMAGE --network).

  -n RANKS            ranks in all; what follows goes to mpiexec as it is, other programs with `: -n RANKS PROGRAM` too
  --ppn RANKS         ranks on each machine (1)
  --rank0-here        the first ranks run in this machine, the others in clones: files that rank 0 writes stay
  --fewer WHAT        if there is room for fewer clones than it takes
                        fail    nothing runs (the default)
                        pack    all ranks run, more on each clone
                        shrink  fewer ranks run
  --timeout SECONDS   how long clones may take until they are there (180)
  --mpiexec PROGRAM   MPICH's mpiexec (mpiexec.hydra, mpiexec.mpich or mpiexec of the PATH)
  --address ADDRESS   of this machine in its family's network (that of the default route)
  --socket PATH       where floe-guest listens (/run/floe.sock)
  --verbose           tells what happens

The exit status is mpiexec's, or 125 if it came to none or lost a clone. Ctrl-C ends program and clones.

Example: four ranks, each in a clone of its own
  floe-mpirun -n 4 ./mpi-ranks
";

/// Default time limit for clones. The longest call of a guest has the same limit.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Most ranks: more than a family's network has clones for, at 64 ranks each.
const RANKS_MAX: u32 = 16384;

/// The parsed command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed {
    /// The help is requested.
    Help,
    /// A run.
    Run(Box<Options>),
}

/// The settings of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Number and distribution of ranks.
    pub job: Job,
    /// The arguments that follow `-n RANKS`.
    pub rest: Vec<String>,
    /// Time limit for cloning.
    pub timeout: Duration,
    /// MPICH's mpiexec, if it was given.
    pub mpiexec: Option<PathBuf>,
    /// This machine's address, if it was given.
    pub address: Option<IpAddr>,
    /// The agent's socket.
    pub socket: PathBuf,
    /// Whether to print what happens.
    pub verbose: bool,
}

/// Parses the arguments, without the program's name.
pub fn parse(args: &[String]) -> Result<Parsed, String> {
    let mut options = Options {
        job: Job {
            ranks: 0,
            each: 1,
            here: false,
            fewer: Fewer::Fail,
        },
        rest: Vec::new(),
        timeout: TIMEOUT,
        mpiexec: None,
        address: None,
        socket: SOCKET_PATH.into(),
        verbose: false,
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let (name, inline) = match arg.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
            _ => (arg.as_str(), None),
        };
        let mut value = || {
            let value = inline.clone().or_else(|| args.next().cloned());
            value.ok_or_else(|| format!("{name} needs a value"))
        };
        match name {
            "-h" | "--help" => return Ok(Parsed::Help),
            "-n" | "-np" => {
                options.job.ranks = ranks(name, &value()?)?;
                options.rest = args.cloned().collect();
                break;
            }
            "--ppn" => options.job.each = ranks(name, &value()?)?,
            "--rank0-here" => options.job.here = true,
            "--fewer" => options.job.fewer = fewer(&value()?)?,
            "--timeout" => {
                let text = value()?;
                let seconds = text.parse::<u32>().ok().filter(|seconds| *seconds > 0);
                let seconds = seconds.ok_or(format!("--timeout {text} is no number of seconds"))?;
                options.timeout = Duration::from_secs(seconds.into());
            }
            "--mpiexec" => options.mpiexec = Some(value()?.into()),
            "--address" => {
                let text = value()?;
                let address = text
                    .parse()
                    .map_err(|_| format!("{text:?} is no address"))?;
                options.address = Some(address);
            }
            "--socket" => options.socket = value()?.into(),
            "--verbose" => options.verbose = true,
            other => {
                return Err(format!(
                    "{other:?} is unknown; options of mpiexec and the program stand behind -n RANKS"
                ));
            }
        }
    }
    if options.job.ranks == 0 {
        return Err("-n RANKS is missing".into());
    }
    if options.rest.is_empty() {
        return Err("the program is missing".into());
    }
    more_programs(&mut options)?;
    Ok(Parsed::Run(Box::new(options)))
}

/// Adds the ranks of further programs, `: -n RANKS PROGRAM`.
fn more_programs(options: &mut Options) -> Result<(), String> {
    let mut total = options.job.ranks;
    for program in options.rest.split(|arg| arg == ":").skip(1) {
        if options.job.fewer == Fewer::Shrink {
            return Err(
                "--fewer shrink can't tell which of several programs is to have fewer ranks".into(),
            );
        }
        let at = program.iter().position(|arg| arg == "-n" || arg == "-np");
        let count = at.and_then(|at| program.get(at + 1));
        let count = count.ok_or("each program behind a colon needs its -n RANKS")?;
        total = total.saturating_add(ranks("-n", count)?);
    }
    if total > RANKS_MAX {
        return Err(format!("{total} ranks; at most {RANKS_MAX}"));
    }
    options.job.ranks = total;
    Ok(())
}

fn ranks(name: &str, text: &str) -> Result<u32, String> {
    let count = text
        .parse()
        .ok()
        .filter(|count| (1..=RANKS_MAX).contains(count));
    count.ok_or_else(|| format!("{name} {text} is no number from 1 to {RANKS_MAX}"))
}

fn fewer(text: &str) -> Result<Fewer, String> {
    match text {
        "fail" => Ok(Fewer::Fail),
        "pack" => Ok(Fewer::Pack),
        "shrink" => Ok(Fewer::Shrink),
        other => Err(format!("--fewer {other:?} is none of fail, pack, shrink")),
    }
}

impl Options {
    /// Returns mpiexec's arguments from `-n` on, for this total number of ranks.
    pub fn program(&self, ranks: u32) -> Vec<String> {
        // further programs keep their own number of ranks: such jobs don't shrink
        let others: u32 = self
            .rest
            .split(|arg| arg == ":")
            .skip(1)
            .filter_map(|program| {
                let at = program.iter().position(|arg| arg == "-n" || arg == "-np")?;
                program.get(at + 1)?.parse::<u32>().ok()
            })
            .sum();
        let mut args = vec!["-n".to_owned(), ranks.saturating_sub(others).to_string()];
        args.extend(self.rest.iter().cloned());
        args
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options, String> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        match parse(&args)? {
            Parsed::Run(options) => Ok(*options),
            Parsed::Help => Err("help".into()),
        }
    }

    #[test]
    fn what_follows_the_number_of_ranks_is_mpiexecs() {
        let options =
            parsed("--ppn 2 --rank0-here --fewer=pack -n 6 -genv A b ./p --ppn 9 -n 3").unwrap();
        let job = Job {
            ranks: 6,
            each: 2,
            here: true,
            fewer: Fewer::Pack,
        };
        assert_eq!(options.job, job);
        assert_eq!(
            options.program(6).join(" "),
            "-n 6 -genv A b ./p --ppn 9 -n 3"
        );
        assert_eq!(
            options.program(4).join(" "),
            "-n 4 -genv A b ./p --ppn 9 -n 3"
        );
    }

    #[test]
    fn several_programs_have_one_sum_of_ranks() {
        let options = parsed("-n 1 ./master : -n 3 ./worker x : -genv A b -np 2 ./other").unwrap();
        assert_eq!(options.job.ranks, 6);
        assert_eq!(
            options.program(6).join(" "),
            "-n 1 ./master : -n 3 ./worker x : -genv A b -np 2 ./other"
        );
        let wrong = parsed("--fewer shrink -n 1 ./a : -n 1 ./b").unwrap_err();
        assert!(wrong.contains("several programs"), "{wrong}");
        assert!(parsed("-n 1 ./a : ./b").is_err());
    }

    #[test]
    fn a_wrong_line_says_what_is_wrong() {
        for (line, word) in [
            ("", "-n RANKS"),
            ("-n 4", "program"),
            ("-n", "value"),
            ("-n 0 ./p", "from 1"),
            ("-n 99999 ./p", "from 1"),
            ("./p", "unknown"),
            ("--fewer none -n 2 ./p", "fail, pack, shrink"),
            ("--address here -n 2 ./p", "address"),
            ("--timeout 0 -n 2 ./p", "seconds"),
            ("-n 16384 ./p : -n 1 ./q", "16385"),
        ] {
            let why = parsed(line).unwrap_err();
            assert!(why.contains(word), "{line}: {why}");
        }
    }
}
