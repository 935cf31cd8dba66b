//! `floe doctor`: reports what is missing on this host, and which package has it.

use std::process::ExitCode;

use clap::Args;

use super::Context;
use super::error::CliError;
use super::output::table;
use crate::debian::BuildError;
use floe_api::client::Client;
use floe_api::{Check, CheckStatus, DoctorReport};

/// Tell what is missing on this host, and which package has it
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe doctor
  floe doctor --json | jq '.checks[] | select(.status != \"ok\")'

Exit code 1 if something cannot work; warnings leave it 0.")]
pub struct Doctor {}

impl Doctor {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        let mut report = floe_node::host::report(&cx.home);
        report.checks.extend([image_build(), node(cx)]);
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
    table(&["CHECK", "STATUS", "FOUND"], &rows) + &format!("\n{verdict}\n")
}
