//! Brings a machine back from the node that it was given to: that node moves it here, since the one that gave it asks for it.

use super::{
    Moves,
    arrive::parse,
    wire::{self, Recall, Recalled},
};
use crate::{
    caller::FromMember,
    error::{NodeError, busy, failed, not_found},
    inventory::Entry,
    patience::PATIENCE,
    report::Report,
};
use floe_api::{ApiError, ErrorCode, MoveRequest, Outcome, RecallRequest};
use parking_lot::Mutex;
use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

/// How often the other node is asked how it goes. It says nothing by itself.
const AGAIN: Duration = Duration::from_millis(500);

/// How a machine's way back ended, once it has.
pub(super) type Ended = Arc<Mutex<Option<Result<(), ApiError>>>>;

impl Moves {
    /// Has a machine come back that was given to another node, and waits until it is here.
    pub fn recall(
        &self,
        name: &str,
        request: &RecallRequest,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let from = self.member(&request.from)?;
        self.inventory.check_free(&parse(name)?)?;
        let asked = Recall {
            name: name.to_owned(),
        };
        let (cancel, mut heard) = (report.cancel(), Instant::now());
        loop {
            match wire::recall(&self.cluster, &from, &asked) {
                Ok(Recalled::UnderWay) => heard = Instant::now(),
                Ok(Recalled::Given) => break,
                // its node may have forgotten it, and that it was asked
                Err(_) if self.came(name).is_some() => break,
                Err(silence) if silence.passes() && heard.elapsed() < PATIENCE => {}
                Err(silence) => return Err(silence.into()),
            }
            if let Some((done, total)) = self.progress_of(name) {
                report.progress("bring", done, total, "bytes");
            }
            if !cancel.sleep(AGAIN) {
                return Err(NodeError::Cancelled);
            }
        }
        report.stage("come back")?;
        let entry = self.came(name).ok_or_else(|| {
            failed(
                format!("{} has given {name} away, and it is not here", from.name),
                "floe ps, here and there, shows where it is",
            )
        })?;
        Ok(Outcome {
            machine: Some(self.machines.info_of(&entry)),
            ..Default::default()
        })
    }

    /// Returns a machine that has come and is this node's.
    fn came(&self, name: &str) -> Option<Arc<Entry>> {
        let entry = self.inventory.get(name).ok()?;
        let is_here = entry.turn().is_some_and(|turn| turn.is_here());
        is_here.then_some(entry)
    }

    /// Gives a machine back to the member that gave it, which asks for it, or says how that goes.
    pub fn give_back(
        self: &Arc<Self>,
        asked: &Recall,
        by: &FromMember,
    ) -> Result<Recalled, NodeError> {
        let key = (asked.name.clone(), by.address);
        let known = self.recalls.lock().get(&key).cloned();
        if let Some(known) = known {
            let Some(ended) = known.lock().clone() else {
                return Ok(Recalled::UnderWay);
            };
            self.recalls.lock().remove(&key);
            // it is over: who asks is told so, and does not ask again as of what is busy for a moment
            return ended
                .map(|()| Recalled::Given)
                .map_err(|error| match error.code {
                    ErrorCode::Busy => failed(error.message, error.fix),
                    _ => error.into(),
                });
        }
        // who did not give it is told that there is none
        let absent = || not_found(format!("there is no machine {} of yours", asked.name), "");
        let found = self.inventory.get(&asked.name);
        let entry = found.map_err(|error| match error.code() {
            ErrorCode::NotFound => absent(),
            _ => error,
        })?;
        let turn = entry.turn().filter(|turn| turn.came_from(by.address));
        let turn = turn.ok_or_else(absent)?;
        if turn.is_open() {
            return Err(busy(
                format!("{} has come a moment ago", asked.name),
                "try again in a moment",
            ));
        }
        let ended = Ended::default();
        let mut recalls = self.recalls.lock();
        recalls.retain(|_, known| known.lock().is_none());
        recalls.insert(key.clone(), ended.clone());
        drop(recalls);
        let (mut report, _events) = Report::new();
        let job = self.core.job(report.cancel());
        let moves = self.clone();
        let (name, to) = (asked.name.clone(), format!("https://{}", by.address));
        let work = move || {
            let request = MoveRequest::default();
            let gives = || moves.depart(&name, &to, &request, &mut report);
            let done = std::panic::catch_unwind(AssertUnwindSafe(gives));
            let done = done.unwrap_or_else(|_| {
                Err(failed(
                    "the node made a mistake",
                    "see its log, and report it",
                ))
            });
            *ended.lock() = Some(done.map(drop).map_err(|error| error.to_api()));
            drop(job);
        };
        if let Err(error) = floe_threads::spawn("move-back", work) {
            self.recalls.lock().remove(&key);
            return Err(error.into());
        }
        Ok(Recalled::UnderWay)
    }
}
