//! Ensembles, machines of several substrates that are activated together: what `--ensemble` of `floe activate`, `floe stop` and `floe rm`
//! does.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::error::CliError;
use super::output::table;
use super::{Context, outcome, progress};
use floe_api::{
    ENSEMBLE_FILE_BYTES_MAX, EnsembleMachine, EnsembleReport, EnsembleRequest, ErrorCode,
    InEnsemble,
};

/// The exit code of an activation after which only some machines of an ensemble are ready.
pub(super) const EXIT_HALF: u8 = 7;

/// Options about activating an ensemble.
#[derive(Debug, Args)]
pub struct Ensemble {
    /// Start the machines that this TOML file describes, of several substrates and in one network (see docs/pools.md). If only some of
    /// them become ready the exit code is 7
    #[arg(long = "ensemble", alias = "cluster", value_name = "FILE", conflicts_with_all = [
        "substrate", "pool", "count", "name", "hosts", "network", "answer", "independent", "cpus", "memory", "disks"])]
    file: Option<PathBuf>,
    /// With --ensemble: if one machine does not become ready, remove all of them again
    #[arg(long, requires = "file")]
    all_or_nothing: bool,
    /// With --ensemble: how long to wait until all machines are ready, in seconds
    #[arg(long, requires = "file", value_name = "SECONDS",
        default_value_t = floe_api::ENSEMBLE_READY_S_DEFAULT,
        value_parser = clap::value_parser!(u64).range(1..=floe_api::ENSEMBLE_READY_S_MAX))]
    ready: u64,
}

/// A choice of machines.
#[derive(Debug, Args)]
pub struct OfEnsemble {
    /// All machines of this ensemble (floe activate --ensemble)
    #[arg(
        long = "ensemble",
        alias = "cluster",
        value_name = "NAME",
        conflicts_with = "machines"
    )]
    of_ensemble: Option<String>,
}

impl OfEnsemble {
    /// Returns the named machines, or those of the named ensemble. An ensemble without machines is an error (not found).
    pub(super) fn machines(
        &self,
        cx: &Context,
        named: Vec<String>,
    ) -> Result<Vec<String>, CliError> {
        let Some(ensemble) = &self.of_ensemble else {
            return Ok(named);
        };
        let machines = cx.client()?.machines()?.machines.into_iter();
        let of = |of: &InEnsemble| of.ensemble == *ensemble;
        let machines = machines.filter(|machine| machine.ensemble.as_ref().is_some_and(of));
        let names: Vec<String> = machines.map(|machine| machine.name).collect();
        match names.is_empty() {
            true => Err(CliError::new(
                ErrorCode::NotFound,
                format!("there is no ensemble {ensemble}"),
                "floe ps NAME says of which ensemble a machine is",
            )),
            false => Ok(names),
        }
    }
}

impl Ensemble {
    pub(super) fn run(self, cx: &Context, overcommit: bool) -> Result<ExitCode, CliError> {
        let path = self.file.unwrap_or_default();
        let mut file = String::new();
        // one byte more than is taken: the node says that it is too long
        let read = std::fs::File::open(&path).and_then(|from| {
            from.take(ENSEMBLE_FILE_BYTES_MAX as u64 + 1)
                .read_to_string(&mut file)
        });
        read.map_err(|error| CliError::file("read", &path, error))?;
        let request = EnsembleRequest {
            file,
            all_or_nothing: self.all_or_nothing,
            overcommit,
            ready_s: Some(self.ready),
        };
        let events = cx.client()?.activate_ensemble(&request)?;
        let done = progress::follow(cx.out, events).map_err(|CliError(error)| {
            // what is wrong is in the file, if it names a line of it
            let message = match error.message.starts_with("line ") {
                true => format!("{}, {}", path.display(), error.message),
                false => error.message.clone(),
            };
            CliError::new(error.code, message, error.fix)
        })?;
        let ensemble = outcome::result(done.outcome.ensemble, "the activation")?;
        cx.out.text(&told(&ensemble))?;
        ended(cx, &ensemble)
    }
}

/// Returns the exit code; says what is wrong if not all machines are ready.
fn ended(cx: &Context, ensemble: &EnsembleReport) -> Result<ExitCode, CliError> {
    if ensemble.is_whole() {
        return Ok(ExitCode::SUCCESS);
    }
    let (name, ready, all) = (&ensemble.name, ensemble.ready(), ensemble.machines.len());
    if ensemble.taken_back {
        return Err(CliError::new(
            ErrorCode::Failed,
            format!("ensemble {name} did not become ready: nothing of it is left"),
            "without --all-or-nothing the machines that run stay, to be looked at",
        ));
    }
    if !ensemble.machines.iter().any(|machine| machine.runs) {
        return Err(CliError::new(
            ErrorCode::Failed,
            format!("no machine of ensemble {name} runs"),
            "",
        ));
    }
    let half = CliError::new(
        ErrorCode::Failed,
        format!("half an ensemble: {ready} of {all} machines of {name} are ready"),
        format!("use those, or remove all: floe rm --force --ensemble {name}"),
    );
    half.print(cx.out.json);
    Ok(ExitCode::from(EXIT_HALF))
}

fn told(ensemble: &EnsembleReport) -> String {
    let ms = |ms: Option<f64>| ms.map(|ms| format!("{ms:.0}")).unwrap_or_default();
    let row = |machine: &EnsembleMachine| {
        let ports = machine.forwards.iter();
        let ports = ports.map(|port| format!("{}:{}", port.host_port, port.guest_port));
        let failed = machine.failed.as_ref();
        vec![
            machine.name.clone(),
            machine.host.clone(),
            machine.address.clone(),
            ports.collect::<Vec<_>>().join(" "),
            ms(machine.first_ms),
            ms(machine.answers_ms),
            ms(machine.ready_ms),
            failed.map(|why| why.message.clone()).unwrap_or_default(),
        ]
    };
    table(
        &[
            "NAME",
            "HOST",
            "ADDRESS",
            "PORTS",
            ">RUNS MS",
            ">ANSWERS MS",
            ">READY MS",
            "FAILED",
        ],
        ensemble.machines.iter().map(row),
    )
}

/// Returns the machine's name in its ensemble, and the ensemble's.
pub(super) fn described(of: &InEnsemble) -> String {
    format!("{} of {}", of.host, of.ensemble)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_machine_says_when_it_was_ready_or_why_it_is_not() {
        let machine = |name: &str, ready_ms| EnsembleMachine {
            name: format!("shop-{name}"),
            member: name.into(),
            host: name.into(),
            address: "10.0.2.15".into(),
            substrate: "s".into(),
            forwards: vec!["8080:80".parse().unwrap()],
            runs: true,
            first_ms: Some(41.6),
            answers_ms: None,
            ready_ms,
            failed: ready_ms
                .is_none()
                .then(|| CliError::new(ErrorCode::Failed, "its hook failed", "").0),
        };
        let report = EnsembleReport {
            name: "shop".into(),
            taken_back: false,
            machines: vec![machine("db", Some(812.2)), machine("web", None)],
        };
        let text = told(&report);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[1].contains("shop-db") && lines[1].contains("812"),
            "{text}"
        );
        assert!(
            lines[2].contains("8080:80") && lines[2].ends_with("its hook failed"),
            "{text}"
        );
        assert_eq!((report.ready(), report.is_whole()), (1, false));
    }
}
