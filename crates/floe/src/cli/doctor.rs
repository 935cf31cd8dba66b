//! `floe doctor`: reports what is missing on this host, and which package has it.

use std::process::ExitCode;

use clap::Args;

use super::Context;
use super::error::CliError;
use super::output::table;
use crate::debian::BuildError;
use floe_api::client::{Client, ClientError};
use floe_api::{Check, CheckStatus, DoctorReport, ErrorCode, STATES_CHECK, is_qemu_version};

/// Tell what is missing on this host, and which package has it
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe doctor
  floe doctor --json | jq '.checks[] | select(.status != \"ok\")'
Example: before an update of QEMU to 10.0 (apt-cache policy qemu-system-x86 says which it would be)
  floe doctor --qemu 10.0

A running state, that of an image, a parked machine or a substrate, goes on only under the QEMU series that made it, such as 7.2. With
--qemu the node is asked which of its states one of that version could not load. Exit code 1 if something cannot work, or if there are such
states; warnings leave it 0.")]
pub struct Doctor {
    /// Also name the states here that a QEMU of this version could not load
    #[arg(long, value_name = "VERSION", value_parser = qemu_version)]
    qemu: Option<String>,
}

/// Takes what `qemu-system-x86_64 --version` prints as its version, or the first two numbers of that.
fn qemu_version(text: &str) -> Result<String, String> {
    match is_qemu_version(text) {
        true => Ok(text.to_owned()),
        false => Err("write a version of QEMU, such as 10.0".into()),
    }
}

impl Doctor {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        let mut report = floe_node::host::report(&cx.home);
        report.checks.extend([image_build(), node(cx)]);
        match states(cx, self.qemu.as_deref()) {
            Ok(None) if self.qemu.is_some() => {
                return Err(CliError::new(
                    ErrorCode::Failed,
                    "the node is of an earlier floe, which does not know which states a QEMU can load",
                    "restart it with this floe, and ask again",
                ));
            }
            Ok(check) => report.checks.extend(check),
            Err(error) if self.qemu.is_some() => return Err(error.into()),
            Err(_) => {} // that no node answers was said just now
        }
        cx.out.value(&report, describe)?;
        let failed = report.checks.iter().any(|c| c.status == CheckStatus::Fail);
        Ok(if failed {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        })
    }
}

/// What `floe image build` needs, and nothing else.
fn image_build() -> Check {
    let (status, detail, fix) = match crate::debian::check_host() {
        Ok(()) => (
            CheckStatus::Ok,
            "all that it needs is there".into(),
            String::new(),
        ),
        Err(BuildError::Host { what, fix }) => (
            CheckStatus::Warn,
            format!("{what}: only floe image build needs it"),
            fix,
        ),
        Err(error) => (
            CheckStatus::Warn,
            error.to_string(),
            "floe image build needs it, nothing else does".into(),
        ),
    };
    Check {
        name: "image build".into(),
        status,
        detail,
        fix,
    }
}

fn node(cx: &Context) -> Check {
    let name = "node".to_owned();
    match Client::connect(&cx.socket).and_then(|client| client.node()) {
        Ok(node) => Check {
            name,
            status: CheckStatus::Ok,
            detail: format!(
                "version {} answers on {}",
                node.version,
                cx.socket.display()
            ),
            fix: String::new(),
        },
        Err(error) => {
            let error = error.to_api();
            Check {
                name,
                status: CheckStatus::Warn,
                detail: error.message,
                fix: error.fix,
            }
        }
    }
}

/// Asks the node which states the QEMU that is there, or one of this version, can load. A node of an earlier floe does not say.
fn states(cx: &Context, qemu: Option<&str>) -> Result<Option<Check>, ClientError> {
    let client = Client::connect(&cx.socket)?;
    let report = match qemu {
        None => client.doctor()?,
        Some(version) => client.doctor_for_qemu(version)?,
    };
    let mut checks = report.checks.into_iter();
    Ok(checks.find(|check| check.name == STATES_CHECK))
}

fn describe(report: &DoctorReport) -> String {
    let mut rows = Vec::new();
    for check in &report.checks {
        let status = match check.status {
            CheckStatus::Ok => "ok",
            CheckStatus::Warn => "warning",
            CheckStatus::Fail => "MISSING",
        };
        rows.push(vec![
            check.name.clone(),
            status.into(),
            check.detail.clone(),
        ]);
        if !check.fix.is_empty() {
            rows.push(vec![
                String::new(),
                String::new(),
                format!("fix: {}", check.fix),
            ]);
        }
    }
    let count = |status| report.checks.iter().filter(|c| c.status == status).count();
    let verdict = match (count(CheckStatus::Fail), count(CheckStatus::Warn)) {
        (0, 0) => "all is well".to_owned(),
        (0, n) => format!("floe works here; warnings: {n}"),
        (n, _) => format!("floe cannot work here; missing: {n}"),
    };
    table(&["CHECK", "STATUS", "FOUND"], rows) + &format!("\n{verdict}\n")
}
