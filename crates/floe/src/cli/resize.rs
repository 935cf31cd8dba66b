//! Gives a machine more or less while it runs: `floe resize`.

use clap::Args;

use super::error::CliError;
use super::output::bytes;
use super::{Context, args, progress};
use floe_api::client::Client;
use floe_api::{ResizeReport, Size, SizeRequest};

/// Change a machine's CPUs and memory, while it runs or for its next start
#[derive(Debug, Args)]
#[command(after_help = "\
Example: while it runs, and down again
  floe resize web --cpus 4 --memory 4G
  floe resize web --cpus 1 --memory 1G
Example: what it has, and the most that it can have while it runs
  floe ps web

A machine grows by hardware that is added to it while it runs. It shrinks by what its guest gives back: the agent takes CPUs offline,
the balloon takes memory. If the guest can't give as much as is asked for, it keeps what it needs, and the exit code is 5. A stopped
machine starts with the new size. Limits of its memory and processor time (floe limit) change with its size.")]
pub struct Resize {
    /// The machine
    machine: String,
    /// How many CPUs it is to have
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cpus: Option<u32>,
    /// How much memory it is to have, such as 2G
    #[arg(long, value_parser = args::memory, value_name = "SIZE", required_unless_present = "cpus")]
    memory: Option<u64>,
    /// Do it even if this host has too little for it: when its memory is full, the host may end machines
    #[arg(long)]
    overcommit: bool,
}

impl Resize {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let request = SizeRequest {
            cpus: self.cpus,
            memory_bytes: self.memory,
            overcommit: self.overcommit,
        };
        resized(cx, &cx.client()?, &self.machine, &request)
    }
}

/// Gives a machine another size, and tells it. Fails if the machine has not all of that then.
pub(super) fn resized(
    cx: &Context,
    client: &Client,
    machine: &str,
    request: &SizeRequest,
) -> Result<(), CliError> {
    let done = progress::follow(cx.out, client.resize(machine, request)?)?;
    let report = done.outcome.resized.unwrap_or_default();
    cx.out.text(&told(machine, &report))?;
    let mut short = report.short.into_iter().map(CliError);
    let Some(first) = short.next() else {
        return Ok(());
    };
    short.for_each(|more| more.print(cx.out.json));
    Err(first)
}

fn told(machine: &str, report: &ResizeReport) -> String {
    if report.before == report.after {
        return format!("{machine} has {} as before\n", size(report.after));
    }
    format!(
        "{machine} has {}; it had {}\n",
        size(report.after),
        size(report.before)
    )
}

/// Writes a size in words.
pub(super) fn size(size: Size) -> String {
    let plural = if size.cpus == 1 { "" } else { "s" };
    format!(
        "{} CPU{plural} and {} of memory",
        size.cpus,
        bytes(size.memory_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_machine_has_and_had_is_told_in_words() {
        let size = |cpus, mib: u64| Size {
            cpus,
            memory_bytes: mib << 20,
        };
        let mut report = ResizeReport {
            before: size(1, 256),
            wanted: size(2, 512),
            after: size(2, 512),
            short: Vec::new(),
        };
        assert_eq!(
            told("web", &report),
            "web has 2 CPUs and 512.0 MiB of memory; it had 1 CPU and 256.0 MiB of memory\n"
        );
        report.after = report.before;
        assert!(told("web", &report).ends_with("as before\n"));
    }
}
