//! What a long call reports to its client: stages and progress. Also carries the other direction: whether the client hung up.

use crate::error::NodeError;
use crate::patience::{PATIENCE, Step};
use floe_api::{CloneInfo, Event, Outcome};
use floe_transfer::Cancel;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Progress events that follow sooner than this after another are dropped: nobody can read more than ten a second.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// Stopwatch of one long call and its connection to the client. Every moment belongs to exactly one stage, so the stages'
/// times sum to the total.
pub struct Report {
    events: mpsc::UnboundedSender<Event>,
    cancel: Cancel,
    started: Instant,
    stage_began: Instant,
    last_progress: Option<Instant>,
    /// The client was told that a source is waited for.
    waits: bool,
}

impl Report {
    /// Returns a report that begins now, and the stream of its events.
    pub fn new() -> (Report, mpsc::UnboundedReceiver<Event>) {
        let (events, receiver) = mpsc::unbounded_channel();
        let now = Instant::now();
        let report = Report {
            events,
            cancel: Cancel::default(),
            started: now,
            stage_began: now,
            last_progress: None,
            waits: false,
        };
        (report, receiver)
    }

    /// Returns the switch that is thrown when the client hangs up.
    pub fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Returns an error if the client has hung up.
    pub fn check(&self) -> Result<(), NodeError> {
        if self.cancel.is_cancelled() {
            return Err(NodeError::Cancelled);
        }
        Ok(())
    }

    /// Ends the current stage and gives it this name; the next one begins. Returns an error if the client has hung up.
    pub fn stage(&mut self, name: &str) -> Result<(), NodeError> {
        let now = Instant::now();
        self.stage_at(name, now);
        self.check()
    }

    /// Takes a step of a call that looks for an image: ends a stage, or waits for a source that gives nothing usable. Returns an error if
    /// the client has hung up.
    pub fn step(&mut self, step: Step<'_>) -> Result<(), NodeError> {
        match step {
            Step::Done(name) => self.stage(name),
            Step::Waits(error, pause) => {
                if !std::mem::replace(&mut self.waits, true) {
                    let minutes = PATIENCE.as_secs_f64() / 60.0;
                    self.note(format!(
                        "{error} (it is asked again, for {minutes} minutes)"
                    ));
                }
                match self.cancel.sleep(pause) {
                    true => Ok(()),
                    false => Err(NodeError::Cancelled),
                }
            }
        }
    }

    /// Ends the current stage at a time that was noted elsewhere.
    pub fn stage_at(&mut self, name: &str, end: Instant) {
        let ms = millis(end.saturating_duration_since(self.stage_began));
        self.stage_began = self.stage_began.max(end);
        self.last_progress = None;
        metrics::histogram!(floe_front::telemetry::NODE_STAGE_SECONDS, "stage" => name.to_owned())
            .record(ms / 1e3);
        let _ = self.events.send(Event::Stage {
            name: name.into(),
            ms,
        });
    }

    /// Reports how far the work is; most calls send nothing, because the last report was too recent.
    pub fn progress(&mut self, name: &str, done: u64, total: u64, unit: &str) {
        let now = Instant::now();
        let soon = self
            .last_progress
            .is_some_and(|last| now - last < PROGRESS_EVERY);
        if soon && (total == 0 || done < total) {
            return;
        }
        self.last_progress = Some(now);
        let _ = self.events.send(Event::Progress {
            name: name.into(),
            done,
            total,
            unit: unit.into(),
        });
    }

    /// Returns the milliseconds since the call began.
    pub fn elapsed_ms(&self) -> f64 {
        millis(self.started.elapsed())
    }

    /// Sends a text for the user.
    pub fn note(&self, message: impl Into<String>) {
        let _ = self.events.send(Event::Note {
            message: message.into(),
        });
    }

    /// Reports what became of a clone.
    pub fn clone_info(&self, clone: CloneInfo) {
        let _ = self.events.send(Event::Clone(clone));
    }

    /// Returns a handle through which other threads report progress.
    pub fn progress_line(&self, name: &'static str, unit: &'static str) -> ProgressLine {
        ProgressLine {
            events: self.events.clone(),
            cancel: self.cancel.clone(),
            last: parking_lot::Mutex::new(None),
            name,
            unit,
        }
    }

    /// Sends the last event. Time since the last stage, if any, becomes a stage of its own.
    pub fn finish(mut self, result: Result<Outcome, NodeError>) {
        let event = match result {
            Ok(outcome) => {
                self.stage_at("finish", Instant::now());
                let total_ms = millis(self.stage_began - self.started);
                Event::Done(Outcome {
                    total_ms,
                    ..outcome
                })
            }
            Err(error) => Event::Error(error.to_api()),
        };
        let _ = self.events.send(event);
    }
}

/// Reports progress from worker threads.
pub struct ProgressLine {
    events: mpsc::UnboundedSender<Event>,
    cancel: Cancel,
    last: parking_lot::Mutex<Option<Instant>>,
    name: &'static str,
    unit: &'static str,
}

impl ProgressLine {
    /// Returns the switch that is thrown when the client hangs up.
    pub fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// Reports how far the work is; returns false once the client has hung up.
    pub fn at(&self, done: u64, total: u64) -> bool {
        let now = Instant::now();
        {
            let mut last = self.last.lock();
            if last.is_some_and(|last| now - last < PROGRESS_EVERY) && done < total {
                return !self.cancel.is_cancelled();
            }
            *last = Some(now);
        }
        let _ = self.events.send(Event::Progress {
            name: self.name.into(),
            done,
            total,
            unit: self.unit.into(),
        });
        !self.cancel.is_cancelled()
    }
}

/// Converts a duration to milliseconds, with microseconds as decimals.
pub fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stages_sum_to_the_total() {
        let (mut report, mut events) = Report::new();
        for name in ["resolve", "mount", "qemu"] {
            std::thread::sleep(Duration::from_millis(2));
            report.stage(name).unwrap();
        }
        report.finish(Ok(Outcome::default()));
        let mut sum = 0.0;
        let mut total = None;
        while let Ok(event) = events.try_recv() {
            match event {
                Event::Stage { ms, .. } => sum += ms,
                Event::Done(outcome) => total = Some(outcome.total_ms),
                other => panic!("{other:?}"),
            }
        }
        // each time is rounded to a microsecond
        assert!((sum - total.unwrap()).abs() < 0.01, "{sum} {total:?}");
    }

    #[test]
    fn a_client_that_hung_up_stops_the_work_at_the_next_stage() {
        let (mut report, _events) = Report::new();
        let line = report.progress_line("import", "bytes");
        assert!(line.at(1, 2));
        report.cancel().cancel();
        assert!(!line.at(2, 2));
        assert!(matches!(report.stage("x"), Err(NodeError::Cancelled)));
    }
}
