//! The `floe-lab` command.
#![allow(
    clippy::disallowed_methods,
    reason = "an experiment may ask whether a file is there"
)]

use anyhow::{Context as _, bail};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use floe_lab::experiments;
use floe_testbed::harness::{Context, Report};
use floe_testbed::link::tool;
use floe_testbed::live;
use floe_testbed::signals;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Exit code after Ctrl-C, as in shells.
const INTERRUPTED_CODE: i32 = 130;

/// Measures floe against its alternatives
#[derive(Parser)]
#[command(
    version,
    after_help = "Example: floe-lab import --quick --json import.json"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List what can be measured
    List,
    All(floe_lab::papers::Arguments),
    Link(tool::Arguments),
    Collect(floe_testbed::workloads::Arguments),
    Model(floe_simulator::predict::Arguments),
    RecordLaunches(floe_contention::io::RecordArguments),
    /// Replay recorded launches, pages, films and commands beside noisy machines on a modelled disk, against the host's schedulers
    Io {
        #[command(flatten)]
        run: RunArguments,
        #[command(flatten)]
        options: floe_contention::io::Options,
    },
    /// Kill node, hub, supervisor, QEMU, network and disk at random under machines that write and verify without end, and that are lent
    Hammer {
        #[command(flatten)]
        run: RunArguments,
        #[command(flatten)]
        options: floe_torture::hammer::Options,
    },
    /// Give every parser of foreign bytes inputs that are guided by what they reach
    Fuzz {
        #[command(flatten)]
        run: RunArguments,
        #[command(flatten)]
        options: floe_torture::fuzz::Options,
    },
    /// Bring a guest with a file system to run in every way after every other, and compare its disk each time
    Ways {
        #[command(flatten)]
        run: RunArguments,
        #[command(flatten)]
        options: floe_torture::ways::Options,
    },
    /// Start one image on 1 to 1024 hosts at once in virtual time, with VMTorrent's policies and ours
    SwarmSim {
        #[command(flatten)]
        run: RunArguments,
        #[command(flatten)]
        options: floe_delivery::swarm_sim::Options,
    },
    /// Start one image on 2 to 16 nodes at once behind slow links: from the hub, from each other, and by BitTorrent
    SwarmReal {
        #[command(flatten)]
        run: RunArguments,
        #[command(flatten)]
        options: floe_delivery::swarm_real::Options,
    },
    /// Run machines of two vCPUs whose threads wait for each other by spinning: vCPUs where the kernel places them, apart, and abreast
    CpuUser {
        #[command(flatten)]
        run: RunArguments,
        #[command(flatten)]
        options: floe_contention::cpu_user::Options,
    },
    /// Compile the command, from nothing and after a change of one service, against another tree of this repository
    Build {
        #[command(flatten)]
        run: RunArguments,
        #[command(flatten)]
        options: experiments::build::Options,
    },
    /// Run this repository's tests from clean clones, and again beside a load (half a day)
    Test {
        #[command(flatten)]
        run: RunArguments,
        #[command(flatten)]
        options: experiments::test::Options,
    },
    #[command(hide = true)]
    Toucher(floe_delivery::touch::toucher::Arguments),
    #[command(hide = true)]
    ServeNode(live::NodeArguments),
    #[command(hide = true)]
    HubStrangers(floe_torture::hub_hostile::strangers::Arguments),
    #[command(hide = true)]
    SlowDisk(floe_testbed::slow_disk::server::Arguments),
    #[command(hide = true)]
    TrainOnce(floe_delivery::train::Arguments),
    #[command(hide = true)]
    SwarmHost(floe_delivery::swarm_cost::connections::Arguments),
    #[command(hide = true)]
    ServeHub(live::HubArguments),
}

/// Options of every experiment.
#[derive(clap::Args)]
struct RunArguments {
    /// Fewer runs and less data: shows that it works, proves no figure
    #[arg(long)]
    quick: bool,
    /// Also write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Do nothing where FILE holds figures of a full run of this very code on this machine
    #[arg(long, requires = "json", conflicts_with = "quick")]
    unless_recorded: bool,
    /// Where data may be written (default: a directory under the current one, or $FLOE_LAB_SCRATCH)
    #[arg(long, value_name = "DIR", env = "FLOE_LAB_SCRATCH")]
    scratch: Option<PathBuf>,
}

fn main() -> ExitCode {
    // The experiments' nodes use this program to start their supervisor and to wrap their QEMUs.
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(code) = floe_node::helpers::dispatch(&arguments) {
        return code;
    }
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into()),
        )
        .with_writer(std::io::stderr)
        .init();
    let mut command = Cli::command();
    for experiment in experiments::ALL {
        let sub = clap::Command::new(experiment.name).about(experiment.about);
        command = command.subcommand(<RunArguments as clap::Args>::augment_args(sub));
    }
    let matches = command.get_matches();
    let (name, arguments) = matches.subcommand().expect("clap demands a subcommand");
    let result = match experiments::ALL
        .iter()
        .find(|experiment| experiment.name == name)
    {
        Some(experiment) => RunArguments::from_arg_matches(arguments)
            .map_err(Into::into)
            .and_then(|arguments| run(name, experiment.run, &arguments)),
        None => Cli::from_arg_matches(&matches)
            .map_err(Into::into)
            .and_then(|cli| other(name, cli.command)),
    };
    result.unwrap_or_else(|error| {
        eprintln!("floe-lab {name}: {error:#}");
        ExitCode::FAILURE
    })
}

fn other(name: &str, command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::List => {
            let mut out = std::io::stdout().lock();
            for experiment in experiments::ALL {
                writeln!(out, "{:<12} {}", experiment.name, experiment.about)?;
            }
            // add the experiments that have options of their own
            for command in Cli::command().get_subcommands() {
                let name = command.get_name();
                if let (
                    "build" | "cpu-user" | "hammer" | "fuzz" | "io" | "swarm-real" | "swarm-sim"
                    | "test" | "ways",
                    Some(about),
                ) = (name, command.get_about())
                {
                    writeln!(out, "{name:<12} {about}")?;
                }
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::All(arguments) => arguments.run(),
        Command::Link(arguments) => arguments.run(),
        Command::Collect(arguments) => collect(arguments),
        Command::Model(arguments) => arguments.run(),
        Command::RecordLaunches(arguments) => {
            in_work(arguments.work().map(Path::to_owned), |work| {
                arguments.run(work)
            })
        }
        Command::Io {
            run: arguments,
            options,
        } => run(
            name,
            |context| floe_contention::io::run(context, &options),
            &arguments,
        ),
        Command::Hammer {
            run: arguments,
            options,
        } => run(
            name,
            |context| floe_torture::hammer::run(context, &options),
            &arguments,
        ),
        Command::Fuzz {
            run: arguments,
            options,
        } => run(
            name,
            |context| floe_torture::fuzz::run(context, &options),
            &arguments,
        ),
        Command::Ways {
            run: arguments,
            options,
        } => run(
            name,
            |context| floe_torture::ways::run(context, &options),
            &arguments,
        ),
        Command::SwarmSim {
            run: arguments,
            options,
        } => run(
            name,
            |context| floe_delivery::swarm_sim::run(context, &options),
            &arguments,
        ),
        Command::CpuUser {
            run: arguments,
            options,
        } => run(
            name,
            |context| floe_contention::cpu_user::run(context, &options),
            &arguments,
        ),
        Command::Build {
            run: arguments,
            options,
        } => run(
            name,
            |context| experiments::build::run(context, &options),
            &arguments,
        ),
        Command::Test {
            run: arguments,
            options,
        } => run(
            name,
            |context| experiments::test::run(context, &options),
            &arguments,
        ),
        Command::SwarmReal {
            run: arguments,
            options,
        } => run(
            name,
            |context| floe_delivery::swarm_real::run(context, &options),
            &arguments,
        ),
        Command::Toucher(arguments) => arguments.run(),
        Command::ServeNode(arguments) => arguments.run(),
        Command::HubStrangers(arguments) => arguments.run(),
        Command::SlowDisk(arguments) => arguments.run(),
        Command::TrainOnce(arguments) => arguments.run(),
        Command::SwarmHost(arguments) => arguments.run(),
        Command::ServeHub(arguments) => arguments.run(),
    }
}

/// Collects traces.
fn collect(arguments: floe_testbed::workloads::Arguments) -> anyhow::Result<ExitCode> {
    in_work(arguments.work().map(Path::to_owned), |work| {
        arguments.run(work)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Does something with workloads' images and machines. They are in a directory that is kept if the user names it.
fn in_work(
    named: Option<PathBuf>,
    run: impl FnOnce(&Path) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    // mounts and QEMUs have other working directories
    if let Some(dir) = named {
        return run(&std::path::absolute(dir)?);
    }
    let scratch = scratch_in(&std::env::current_dir()?)?;
    clean_up_when_interrupted(scratch.path())?;
    run(scratch.path())
}

/// Makes a scratch directory. QEMUs run as users of their own, who must be able to pass through to their files.
fn scratch_in(base: &Path) -> std::io::Result<tempfile::TempDir> {
    let passable = std::fs::Permissions::from_mode(0o711);
    tempfile::Builder::new()
        .prefix(".floe-lab-")
        .permissions(passable)
        .tempdir_in(base)
}

/// Cleans up on Ctrl-C, so that nothing stays mounted and no data stays behind. Namespaces have no names and end with
/// this process; nodes and hubs end their machines when this process closes its end of their input.
fn clean_up_when_interrupted(scratch: &Path) -> anyhow::Result<()> {
    const LOOK_EVERY: Duration = Duration::from_millis(100);
    let (interrupted, scratch) = (signals::until_interrupted()?, scratch.to_path_buf());
    std::thread::spawn(move || {
        while !interrupted.load(Relaxed) {
            std::thread::sleep(LOOK_EVERY);
        }
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        for path in mounts
            .lines()
            .filter_map(|line| line.split(' ').nth(1))
            .filter(|path| Path::new(path).starts_with(&scratch))
        {
            let _ = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
        }
        let _ = std::fs::remove_dir_all(&scratch);
        std::process::exit(INTERRUPTED_CODE);
    });
    Ok(())
}

fn run(
    name: &str,
    experiment: impl FnOnce(&Context) -> anyhow::Result<Report>,
    arguments: &RunArguments,
) -> anyhow::Result<ExitCode> {
    let base = match &arguments.scratch {
        Some(dir) => dir.clone(),
        None => std::env::current_dir()?,
    };
    std::fs::create_dir_all(&base).with_context(|| format!("cannot make {}", base.display()))?;
    if let Some(json) = arguments.json.as_deref().and_then(|path| path.parent())
        && !json.as_os_str().is_empty()
        && !json.is_dir()
    {
        bail!("{} is no directory; make it first", json.display());
    }
    if let Some(path) = &arguments.json
        && arguments.unless_recorded
        && recorded(path).is_some_and(|report| report.holds_for(&Report::new(name, false)))
    {
        println!(
            "{name}: {} is of this code and this machine",
            path.display()
        );
        return Ok(ExitCode::SUCCESS);
    }
    let scratch = scratch_in(&base)?;
    clean_up_when_interrupted(scratch.path())?;
    let began = Instant::now();
    let context = Context {
        quick: arguments.quick,
        scratch: scratch.path().to_path_buf(),
    };
    let mut report = experiment(&context)?;
    report.finished_unix_s = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)?
        .as_secs();
    report.took_s = began.elapsed().as_secs();
    print!("{report}");
    if let Some(path) = &arguments.json {
        std::fs::write(path, serde_json::to_string_pretty(&report)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
        write_plots(&report, path)?;
    }
    if !report.violations.is_empty() {
        bail!("{} promises were broken", report.violations.len());
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the figures in a file of an earlier run, if they can be read.
fn recorded(path: &Path) -> Option<Report> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// Writes the plots into the folder `plots` next to the figures.
fn write_plots(report: &Report, json: &Path) -> anyhow::Result<()> {
    let dir = json.with_file_name("plots");
    if !report.plots.is_empty() {
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    for (name, svg) in &report.plots {
        let path = dir.join(format!("{name}.svg"));
        std::fs::write(&path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
