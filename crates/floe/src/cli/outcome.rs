//! What came of an operation that took a while.

use std::process::ExitCode;

use super::error::CliError;
use super::output::{bytes, seconds, short};
use super::{Context, progress};

/// Shows a check's progress and result. If there are problems, the exit code is 1.
pub(super) fn verified(
    cx: &Context,
    events: floe_api::client::Events,
) -> Result<ExitCode, CliError> {
    let report = progress::follow(cx.out, events)?
        .outcome
        .verify
        .unwrap_or_default();
    let mut text: String = report
        .problems
        .iter()
        .map(|p| format!("bad: {p}\n"))
        .collect();
    text += &match report.problems.len() {
        0 => format!("{} items checked, all intact\n", report.checked),
        n => format!("{} items checked, {n} bad\n", report.checked),
    };
    cx.out.text(&text)?;
    Ok(match report.problems.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Returns the part of an outcome without which a call has not told its result.
pub(super) fn result<T>(told: Option<T>, of: &str) -> Result<T, CliError> {
    told.ok_or_else(|| CliError::failed(of, "the node told no result"))
}

/// Describes what an import or a capture stored.
pub(super) fn stored(outcome: &floe_api::Outcome, verb: &str) -> String {
    let mut text = String::new();
    if let Some(image) = &outcome.image {
        let name = image.names.first().map_or_else(
            || short(&image.id),
            |n| format!("{n} ({})", short(&image.id)),
        );
        text += &format!("{verb} {name} in {}\n", seconds(outcome.total_ms));
    }
    if let Some(pause_ms) = outcome.pause_ms {
        text += &format!("  the guest stood still for {pause_ms:.0} ms\n");
    }
    if let Some(s) = &outcome.stored {
        text += &format!(
            "  {} read: {} new chunks stored in {}, {} known, {} zero\n",
            bytes(s.bytes_in),
            s.new_chunks,
            bytes(s.new_bytes_compressed),
            s.dedup_chunks,
            s.zero_chunks
        );
    }
    text
}
