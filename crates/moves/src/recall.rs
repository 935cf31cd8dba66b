//! Brings a machine back from the node that it was given to: that node moves it here, since the one that gave it asks for it. One that has
//! become larger there becomes as large as it was first; if its guest can't give as much back, it stays.

use super::{
    Moves,
    arrive::parse,
    wire::{self, OtherSize, Recall, Recalled, Silence},
};
use floe_api::{
    ApiError, ErrorCode, MoveRequest, Outcome, RecallRequest, ResizeReport, Size, SizeRequest,
};
use floe_ground::{
    caller::FromMember,
    error::{NodeError, busy, failed, not_found, refused, usage},
    patience::PATIENCE,
    report::Report,
};
use floe_inventory::inventory::{AGENT_LABEL, Entry, lifecycle::Task, turn::Turn};
use floe_machines::machines::size_words;
use parking_lot::Mutex;
use std::{
    net::SocketAddr,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

/// How often the other node is asked how it goes. It says nothing by itself.
const AGAIN: Duration = Duration::from_millis(500);

/// How often an agent is waited for, some seconds each time, before a machine that had one when it came gets another size without it.
const AGENT_TRIES_MAX: u32 = 6;

/// How much may be under way at once that members have asked for.
const ASKED_MAX: usize = 64;

/// When and how what a member has asked for ended, once it has.
pub(super) type Ended = Arc<Mutex<Option<(Instant, Result<(), ApiError>)>>>;

impl Moves {
    /// Has a machine come back that was given to another node, and waits until it is here.
    pub fn recall(
        &self,
        name: &str,
        request: &RecallRequest,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        if !request.results.is_empty() {
            return self.recall_results(name, request, report);
        }
        let lent = match self.inventory.get(name) {
            Ok(entry) => Some(entry),
            Err(error) if error.code() == ErrorCode::NotFound => None,
            Err(error) => return Err(error),
        };
        let lent = lent.filter(|entry| entry.turn().is_some_and(|turn| turn.borrower().is_some()));
        let borrower = lent.as_ref().and_then(|entry| entry.turn());
        let borrower = borrower.as_ref().and_then(Turn::borrower).cloned();
        let from = match (&request.from, borrower) {
            (Some(from), _) => self.member(from)?,
            (None, Some(borrower)) => borrower,
            (None, None) => {
                return Err(usage(
                    format!("{name} is lent to no node"),
                    format!("floe recall {name} --from NODE brings one back that was moved there"),
                ));
            }
        };
        if lent.is_none() {
            self.inventory.check_free(&parse(name)?)?;
        }
        let asked = Recall {
            name: name.to_owned(),
            size: lent.map(|entry| entry.record().size()),
        };
        let ask = || wire::recall(&self.cluster, &from, &asked);
        self.wait_for(name, &ask, report)?;
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

    /// Asks another node again and again until it has done what it is asked. `name`: of the machine that comes here by it.
    pub(super) fn wait_for(
        &self,
        name: &str,
        ask: &dyn Fn() -> Result<Recalled, Silence>,
        report: &mut Report,
    ) -> Result<(), NodeError> {
        let (cancel, mut heard) = (report.cancel(), Instant::now());
        loop {
            match ask() {
                Ok(Recalled::UnderWay) => heard = Instant::now(),
                Ok(Recalled::Given) => return Ok(()),
                // its node may have forgotten it, and that it was asked
                Err(_) if self.came(name).is_some() => return Ok(()),
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
        let what = (asked.name.clone(), by.address);
        if let Some(how) = self.how_goes(&what) {
            return how;
        }
        // who did not give it is told that there is none
        let absent = || not_found(format!("there is no machine {} of yours", asked.name), "");
        let found = self.inventory.get(&asked.name);
        let entry = found.map_err(|error| match error.code() {
            ErrorCode::NotFound => absent(),
            _ => error,
        })?;
        let turn = entry.turn().filter(|turn| turn.came_from(by.address));
        check_settled(&asked.name, &turn.ok_or_else(absent)?)?;
        let (name, to) = (asked.name.clone(), format!("https://{}", by.address));
        let size = asked.size;
        self.begin_for(what, move |moves, report| {
            moves.gives_back(&name, &to, size, report).map(drop)
        })
    }

    /// Has a machine go on on the node that has lent it to this one, or that it comes from, as a program in its guest wishes.
    pub fn go_back(
        self: &Arc<Self>,
        name: &str,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let turn = self.inventory.get(name)?.turn();
        let back = turn.as_ref().and_then(|turn| {
            let to = turn.lender.as_ref().or(turn.home.as_ref())?;
            Some((turn, to))
        });
        let (turn, to) = back.ok_or_else(|| {
            usage(
                "this machine is on the node that it comes from",
                "offload has it go on elsewhere",
            )
        })?;
        check_settled(name, turn)?;
        self.gives_back(name, &format!("https://{}", to.address), turn.size, report)
    }

    /// Says how what a member has asked for goes, if it has been asked for. Its end is said once, and only to one that still waits for it: who
    /// asks later means something else.
    pub(super) fn how_goes(
        &self,
        what: &(String, SocketAddr),
    ) -> Option<Result<Recalled, NodeError>> {
        let known = self.asked.lock().get(what).cloned()?;
        let Some((when, ended)) = known.lock().clone() else {
            return Some(Ok(Recalled::UnderWay));
        };
        self.asked.lock().remove(what);
        if when.elapsed() > PATIENCE {
            return None;
        }
        // it is over: who asks is told so, and does not ask again as of what is busy for a moment
        Some(
            ended
                .map(|()| Recalled::Given)
                .map_err(|error| match error.code {
                    ErrorCode::Busy => failed(error.message, error.fix),
                    _ => error.into(),
                }),
        )
    }

    /// Begins what a member has asked for, on a thread of its own.
    pub(super) fn begin_for(
        self: &Arc<Self>,
        what: (String, SocketAddr),
        work: impl FnOnce(&Arc<Moves>, &mut Report) -> Result<(), NodeError> + Send + 'static,
    ) -> Result<Recalled, NodeError> {
        let ended = Ended::default();
        let mut asked = self.asked.lock();
        // one that has just ended is still asked about
        asked.retain(|_, known| {
            let known = known.lock();
            known
                .as_ref()
                .is_none_or(|(when, _)| when.elapsed() <= PATIENCE)
        });
        if asked.len() >= ASKED_MAX {
            return Err(busy(
                format!("{ASKED_MAX} things that members have asked for are under way here"),
                "try again in a moment",
            ));
        }
        asked.insert(what.clone(), ended.clone());
        drop(asked);
        let (mut report, _events) = Report::new();
        let job = self.core.job(report.cancel());
        let moves = self.clone();
        let run = move || {
            let done = std::panic::catch_unwind(AssertUnwindSafe(|| work(&moves, &mut report)));
            let done = done.unwrap_or_else(|_| {
                Err(failed(
                    "the node made a mistake",
                    "see its log, and report it",
                ))
            });
            let done = done.map_err(|error| error.to_api());
            *ended.lock() = Some((Instant::now(), done));
            drop(job);
        };
        if let Err(error) = floe_threads::spawn("move-back", run) {
            self.asked.lock().remove(&what);
            return Err(error.into());
        }
        Ok(Recalled::UnderWay)
    }

    /// Moves a machine back, as one of this size if it has another. If it stays, it gets back what it has given for that.
    fn gives_back(
        self: &Arc<Self>,
        name: &str,
        to: &str,
        size: Option<Size>,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let entry = self.inventory.get(name)?;
        // what is under way ends first, a sync for instance: who asks for the machine is told of its way back, and not of that
        drop(entry.begin_when_free(Task::Settle, self.core.threads.over()));
        let before = entry.record().size();
        let fits = match size {
            Some(size) if size != before && !entry.is_parked() => self.fits(name, size, report),
            _ => Ok(()),
        };
        let request = MoveRequest::default();
        let gone = fits.and_then(|()| self.depart(name, to, &request, report));
        let error = match gone {
            Ok(outcome) => return Ok(outcome),
            Err(error) => error,
        };
        let still_here = entry.turn().is_none_or(|turn| turn.is_here());
        if still_here && entry.record().size() != before {
            let (mut report, _events) = Report::new(); // who asked may have hung up
            if let Err(error) = self.resizes.resize(name, &exactly(before), &mut report) {
                tracing::warn!(machine = name, %error, "it stays, and does not get back what it gave");
            }
        }
        Err(error)
    }

    /// Brings a machine to the size that its own host has for it.
    fn fits(&self, name: &str, size: Size, report: &mut Report) -> Result<(), NodeError> {
        let done = self.resizes.resize(name, &exactly(size), report)?;
        let resized = done.resized.unwrap_or_default();
        let after = resized.after;
        if after.cpus <= size.cpus && after.memory_bytes <= size.memory_bytes {
            return Ok(());
        }
        let why = resized.short.into_iter().next();
        let why = why.map_or_else(String::new, |why| format!(": {}", why.message));
        Err(refused(
            format!(
                "{name} stays: it has {} and can't be brought to the {} that its own host has for it{why}",
                size_words(after),
                size_words(size)
            ),
            "end programs in it, and try again",
        ))
    }

    /// Gives a machine another size for the member that it comes from.
    pub fn resize_for(
        &self,
        asked: &OtherSize,
        by: &FromMember,
    ) -> Result<ResizeReport, NodeError> {
        super::check_key(&asked.key)?;
        let entry = self.find(&asked.key);
        let entry = entry.filter(|entry| {
            let turn = entry.turn();
            turn.is_some_and(|turn| turn.came_from(by.address))
        });
        let entry = entry.ok_or_else(|| not_found("there is no such machine of yours", ""))?;
        // it has just begun here, and its agent with it
        let has_agent = entry.record().config.labels.contains_key(AGENT_LABEL);
        let agents = &self.resizes.agents;
        let _ = has_agent && (0..AGENT_TRIES_MAX).any(|_| agents.check(&entry).is_ok());
        let (mut report, _events) = Report::new();
        let size = SizeRequest {
            overcommit: false, // that is for this host's users to allow
            ..asked.size
        };
        let done = self
            .resizes
            .resize(entry.name.as_str(), &size, &mut report)?;
        Ok(done.resized.unwrap_or_default())
    }
}

/// Refuses to give a machine back of which the node that gave it has not been heard to have let go, or whose lease is over.
fn check_settled(name: &str, turn: &Turn) -> Result<(), NodeError> {
    match turn.is_open() || turn.lapsed {
        true => Err(busy(
            format!("{name} has come a moment ago"),
            "try again in a moment",
        )),
        false => Ok(()),
    }
}

/// Asks for this size, and nothing of it as it is.
fn exactly(size: Size) -> SizeRequest {
    SizeRequest {
        cpus: Some(size.cpus),
        memory_bytes: Some(size.memory_bytes),
        overcommit: false,
    }
}
