//! Shows progress while long calls run.
//!
//! On a terminal, it is a bar with bytes, rate and remaining time; elsewhere a plain line from time to time, so that a
//! log stays readable; with `--json` every event as one line on standard output.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::error::CliError;
use super::output::{Output, bytes};
use super::visible;
use floe_api::client::Events;
use floe_api::{CloneState, Event, Outcome};

/// Time between two plain lines if standard error is no terminal.
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);
/// Time between two redraws of a bar.
const TICK: Duration = Duration::from_millis(200);

/// The bar on the screen, for code that has to write over it or to exit (the thread that handles interrupts).
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Removes the bar from the screen, if there is one.
pub fn clear() {
    // A panic while a bar was replaced does no harm: the bar is either there or not.
    let bar = SHOWN.lock().unwrap_or_else(|e| e.into_inner()).take();
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
}

/// The result of a long call and its stages.
#[derive(Debug)]
pub struct Finished {
    /// The result.
    pub outcome: Outcome,
    /// Names of the stages and their milliseconds, in order.
    pub stages: Vec<(String, f64)>,
}

/// Shows a long call's events until it ends.
pub fn follow(out: Output, events: Events) -> Result<Finished, CliError> {
    let mut view = View::new();
    let mut stages = Vec::new();
    for event in events {
        let event = event.inspect_err(|_| clear())?;
        if out.json {
            out.value(&event, |_| String::new())?;
        }
        match event {
            Event::Stage { name, ms } => stages.push((name, ms)),
            Event::Progress {
                name,
                done,
                total,
                unit,
            } if !out.json => {
                view.progress(&name, done, total, &unit);
            }
            Event::Note { message } if !out.json => view.line(&format!("note: {message}")),
            Event::Done(outcome) => {
                clear();
                return Ok(Finished { outcome, stages });
            }
            Event::Clone(clone) if !out.json && clone.state != CloneState::Running => {
                view.line(&format!("{}: {}", clone.name, clone.detail));
            }
            Event::Progress { .. } | Event::Note { .. } | Event::Clone(_) => {}
            Event::Error(error) => {
                clear();
                return Err(CliError(error));
            }
        }
    }
    clear();
    Err(CliError::failed(
        "the node's answer broke off",
        "it ended without a result",
    ))
}

/// What shows the progress of work: the node's, or this command's own.
pub struct View {
    terminal: bool,
    /// The name of what the bar counts.
    name: String,
    last_plain: Instant,
}

impl View {
    /// Makes one that has shown nothing yet.
    pub fn new() -> View {
        View {
            terminal: std::io::stderr().is_terminal(),
            name: String::new(),
            last_plain: Instant::now(),
        }
    }

    /// Shows a line above the bar.
    pub fn line(&self, text: &str) {
        let text = visible::message(text);
        let shown = SHOWN.lock().unwrap_or_else(|e| e.into_inner());
        match shown.as_ref() {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }

    /// Shows how far something is.
    pub fn progress(&mut self, name: &str, done: u64, total: u64, unit: &str) {
        let (name, unit) = (&*visible::line(name), &*visible::line(unit));
        if !self.terminal {
            if self.last_plain.elapsed() >= PLAIN_INTERVAL {
                self.last_plain = Instant::now();
                eprintln!("{}", plain(name, done, total, unit));
            }
            return;
        }
        if self.name != name {
            clear();
            self.name = name.to_owned();
        }
        let mut shown = SHOWN.lock().unwrap_or_else(|e| e.into_inner());
        let bar = shown.get_or_insert_with(|| {
            let bar = ProgressBar::new(total).with_message(name.to_owned());
            bar.set_style(style(total, unit));
            bar.enable_steady_tick(TICK);
            bar
        });
        // When the total becomes known, the spinner becomes a bar.
        if bar.length() != Some(total) {
            // the next file, which is smaller: what is done of the last one is not done of this one
            if bar.length().is_some_and(|last| last > total) {
                bar.reset();
            }
            bar.set_length(total);
            bar.set_style(style(total, unit));
        }
        bar.set_position(done);
    }
}

fn style(total: u64, unit: &str) -> ProgressStyle {
    let template = match (unit, total) {
        ("bytes", 0) => "{msg} {spinner} {binary_bytes} ({binary_bytes_per_sec})",
        ("bytes", _) => {
            "{msg} [{bar:30}] {binary_bytes}/{binary_total_bytes} ({binary_bytes_per_sec}, {eta} left)"
        }
        (_, 0) => "{msg} {spinner} {pos} ({per_sec})",
        _ => "{msg} [{bar:30}] {pos}/{len} ({per_sec}, {eta} left)",
    };
    let style = ProgressStyle::with_template(template);
    style
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

fn plain(name: &str, done: u64, total: u64, unit: &str) -> String {
    let show = |n: u64| match unit {
        "bytes" => bytes(n),
        unit => format!("{n} {unit}"),
    };
    match total {
        0 => format!("{name}: {}", show(done)),
        _ => format!(
            "{name}: {} of {} ({} %)",
            show(done),
            show(total),
            (u128::from(done) * 100 / u128::from(total)).min(100)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_lines_tell_how_far_it_is() {
        assert_eq!(
            plain("import", 1 << 20, 4 << 20, "bytes"),
            "import: 1.0 MiB of 4.0 MiB (25 %)"
        );
        assert_eq!(plain("verify", 7, 0, "chunks"), "verify: 7 chunks");
        assert_eq!(
            plain("x", u64::MAX, 1, "chunks").rsplit('(').next(),
            Some("100 %)")
        );
    }

    #[test]
    fn every_template_is_one_that_indicatif_knows() {
        for unit in ["bytes", "chunks"] {
            for total in [0, 10] {
                let bar = ProgressBar::hidden();
                bar.set_style(style(total, unit));
            }
        }
        assert!(
            ProgressStyle::with_template("{bar:x{").is_err(),
            "a wrong template would be noticed"
        );
    }
}
