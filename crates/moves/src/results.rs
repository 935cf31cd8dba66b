//! Results only: files of a lent machine come back, and the rest of it is thrown away. What was kept of the machine here goes on.
//!
//! ```text
//! lender                                              borrower
//! asks for the files -------------------------------> reads them through the guest's agent, stores them as a hidden image
//! brings that image, writes the files
//! record: the loan is to end ------- ends it -------> removes the machine
//! record: Here, and its guest goes on <-- it is gone
//! ```
//! A lender that is killed after it has written that the loan is to end, or does not reach the borrower, ends it later (`watch`). The files
//! come as a machine does: compressed, encrypted, and where it was if it is cut off.

use super::{
    Moves,
    arrive::AHEAD_KEPT,
    wire::{self, EndAsked, Results, ResultsAsked, Silence},
};
use floe_api::{Outcome, RecallRequest, size_text};
use floe_fork as fork;
use floe_ground::{
    caller::FromMember,
    error::{NodeError, at_named, busy, not_found, refused, usage},
    report::Report,
};
use floe_guest::copy::{self, Form, Place, Together};
use floe_image::MachineConfig;
use floe_inventory::inventory::{
    Entry,
    lifecycle::Task,
    record::Origin,
    turn::{Peer, Side, Turn},
};
use floe_library::images::{PARK_LABEL, finish};
use floe_store::{Ingest, IngestOptions};
use std::{cell::RefCell, collections::HashSet, path::Path, sync::Arc, time::Duration};

/// How they are called among what is under way and what is kept: no machine's key begins so.
const WHAT: &str = "results ";
/// The region of the image that has them.
const REGION: &str = "results";
/// Most bytes of one file or directory that comes back.
const RESULTS_BYTES_MAX: usize = 64 << 20;
/// Longest path of one, in bytes.
const PATH_BYTES_MAX: usize = 4096;
/// Most of them at once.
const RESULTS_MAX: usize = 64;
/// How long a guest may take to give one.
const GIVE_LIMIT: Duration = Duration::from_secs(300);

impl Moves {
    /// Brings files of a lent machine to a directory of this host, has its borrower throw the rest away, and lets what was kept of it go on.
    pub(super) fn recall_results(
        &self,
        name: &str,
        request: &RecallRequest,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let into = check(request)?;
        let entry = self.inventory.get(name)?;
        let turn = entry.turn();
        let Some((key, to)) =
            turn.and_then(|turn| Some((turn.key.clone(), turn.borrower()?.clone())))
        else {
            return Err(usage(
                format!("{name} is lent to no node"),
                format!("floe cp {name}:PATH . has files of a machine that runs here"),
            ));
        };
        let unwritten =
            |what: &str| at_named(format!("cannot write {what} below {}", into.display()));
        // all of them, or none
        let partial = into.join(format!(".{name}.partial"));
        let together = Together::begin(partial).map_err(unwritten("results"))?;
        for path in &request.results {
            let bytes = self.bring_results(&to, &key, path, report)?;
            let file = Path::new(path).file_name();
            let place = Place {
                target: together.path(),
                name: &file.unwrap_or_default().to_string_lossy(),
                special_bits: false,
            };
            copy::receive(&bytes[..], Form::Archive, &place, &mut |_, _| ())
                .map_err(unwritten(path))?;
        }
        together.put_in(into).map_err(unwritten("results"))?;
        report.stage("results")?;
        let operation = self.begin(&entry, Task::Move)?;
        let operation = operation.ok_or_else(|| no_loan(name))?;
        let ends = operation.turn().and_then(|turn| turn.ends_loan());
        let ends = ends.ok_or_else(|| no_loan(name))?;
        operation.update(|record| record.turn = Some(ends))?;
        let turn = operation.turn().ok_or_else(|| no_loan(name))?;
        drop(operation);
        // from here on it is ended, whatever fails
        let ask = || self.ask_end(&turn, &to);
        self.wait_for("", &ask, report)?; // no machine comes by that
        self.loan_has_ended(&entry, report)?;
        entry.is_here()?;
        Ok(Outcome {
            machine: Some(self.machines.info_of(&entry)),
            ..Default::default()
        })
    }

    /// Has a borrower give a file or directory of a machine, and brings it here.
    fn bring_results(
        &self,
        to: &Peer,
        key: &str,
        path: &str,
        report: &mut Report,
    ) -> Result<Vec<u8>, NodeError> {
        let asked = ResultsAsked {
            key: key.to_owned(),
            path: path.to_owned(),
        };
        let said = RefCell::new(None);
        let ask = || -> Result<wire::Recalled, Silence> {
            let results = wire::results(&self.cluster, to, &asked)?;
            let how = results.how();
            *said.borrow_mut() = Some(results);
            Ok(how)
        };
        self.wait_for("", &ask, report)?; // no machine comes by that
        let Some(Results::Ready { image, token }) = said.into_inner() else {
            return Err(not_found(format!("{} has no {path}", to.name), ""));
        };
        let by = FromMember {
            name: to.name.clone(),
            address: to.address,
        };
        let mut origin = Origin {
            urls: vec![format!("floe://{}{}", to.address, fork::PATH)],
            token: Some(token),
            ..Default::default()
        };
        self.forks.check_source(&by, &image, &mut origin)?;
        let found = self.images.sources.find_at(image, origin)?;
        let most = RESULTS_BYTES_MAX as u64;
        // before any of it is brought
        if found.manifest.total_bytes() > most {
            return Err(refused(
                format!(
                    "what {} gives as {path} has more than {}",
                    to.name,
                    size_text(most)
                ),
                "what is larger comes with the whole machine",
            ));
        }
        self.images.bring_here(&found, report)?;
        self.keep_copy(&what(key, path), image, AHEAD_KEPT);
        Ok(self.images.repo.read_region(&image, REGION, most)?)
    }

    /// Gives a member a file or directory of a machine that it has lent, or says how that goes.
    pub fn results_for(
        self: &Arc<Self>,
        asked: &ResultsAsked,
        by: &FromMember,
    ) -> Result<Results, NodeError> {
        super::check_key(&asked.key)?;
        check_path(&asked.path)?;
        // no machine has a name with a space
        let what = (what(&asked.key, &asked.path), by.address);
        match self.how_goes(&what) {
            Some(Ok(wire::Recalled::Given)) => {
                let image = self.copies.lock().get(&what.0).map(|copy| copy.image);
                let image = image.ok_or_else(|| busy("it is gone again", "try again"))?;
                let token = self.forks.lent.lend(image);
                return Ok(Results::Ready { image, token });
            }
            Some(how) => return how.map(|_| Results::UnderWay),
            None => {}
        }
        let entry = self.borrowed(&asked.key, by)?;
        let entry = entry.ok_or_else(|| not_found("there is no such machine of yours", ""))?;
        let (path, made) = (asked.path.clone(), what.0.clone());
        self.begin_for(what, move |moves, report| {
            moves.store_results(&entry, &path, &made, report)
        })?;
        Ok(Results::UnderWay)
    }

    /// Stores a file or directory of a guest as a hidden image, and keeps that for a while under this name.
    fn store_results(
        &self,
        entry: &Entry,
        path: &str,
        made: &str,
        report: &mut Report,
    ) -> Result<(), NodeError> {
        let agents = &self.resizes.agents;
        let (name, cancel) = (entry.name.as_str(), report.cancel());
        let bytes = agents.archive(name, path, RESULTS_BYTES_MAX, GIVE_LIMIT, &cancel)?;
        let _storing = self.images.storing.read();
        let mut ingest = Ingest::new(&self.images.repo, IngestOptions::default())?;
        ingest.region_bytes(REGION, &bytes)?;
        let mut config = MachineConfig::default();
        config.labels.insert(PARK_LABEL.into(), "1".into());
        let (image, _) = finish(ingest, config)?;
        self.keep_copy(made, image, AHEAD_KEPT);
        Ok(())
    }

    /// Finds what is here of a machine that a member has lent to this node. One that another has lent, or this member when it had another
    /// address, is an error: nobody may take it for one that is gone.
    pub(super) fn borrowed(
        &self,
        key: &str,
        by: &FromMember,
    ) -> Result<Option<Arc<Entry>>, NodeError> {
        let found = self.find(key);
        if found.is_none() && self.inventory.any_left_alone() {
            return Err(busy(
                "it may be one of the machines here whose records can't be read",
                "floe ps there shows them",
            ));
        }
        let Some(entry) = found else {
            return Ok(None);
        };
        let lender = entry.turn().and_then(|turn| turn.lender);
        match lender.is_some_and(|lender| lender.address == by.address) {
            true => Ok(Some(entry)),
            false => Err(refused(
                format!("{} is here, and not lent by {}", entry.name, by.address),
                format!("floe ps {} there shows how it stands", entry.name),
            )),
        }
    }

    /// Removes a machine that a member has lent, since that ends the loan.
    pub fn end_for(&self, asked: &EndAsked, by: &FromMember) -> Result<wire::Recalled, NodeError> {
        super::check_key(&asked.key)?;
        let Some(entry) = self.borrowed(&asked.key, by)? else {
            return Ok(wire::Recalled::Given); // it is gone already
        };
        let Some(operation) = self.begin(&entry, Task::Move)? else {
            return Ok(wire::Recalled::Given);
        };
        match operation.turn().map(|turn| turn.side) {
            Some(Side::Here { .. }) => {
                self.machines.remove(&operation, true)?;
                Ok(wire::Recalled::Given)
            }
            Some(Side::Offered { .. } | Side::Away { .. } | Side::Arriving { .. }) => Err(busy(
                format!("{} is on its way", entry.name),
                "try again in a moment",
            )),
            Some(Side::Fenced | Side::Lent { .. }) | None => Ok(wire::Recalled::Given),
        }
    }

    /// Asks the borrower of a machine to throw it away, since its loan is to end. One that is no member any more is heard no more.
    pub(super) fn ask_end(&self, turn: &Turn, to: &Peer) -> Result<wire::Recalled, Silence> {
        let asked = EndAsked {
            key: turn.key.clone(),
        };
        match self.was_removed(to) {
            // it may run there until its lease is over, for which a forced recall waits
            true if turn.lease_s.is_some() => Err(Silence::Unheard(format!(
                "{} is no member any more; floe recall --force has the machine go on",
                to.name
            ))),
            true => Ok(wire::Recalled::Given),
            false => wire::end(&self.cluster, to, &asked),
        }
    }

    /// Lets what was kept of a machine go on, whose borrower has thrown it away. Returns false if its loan is not to end, or has ended.
    pub(super) fn loan_has_ended(
        &self,
        entry: &Arc<Entry>,
        report: &mut Report,
    ) -> Result<bool, NodeError> {
        let Some(operation) = self.begin(entry, Task::Move)? else {
            return Ok(false);
        };
        let turn = operation.turn();
        let Some((turn, next)) = turn.and_then(|turn| Some((turn.clone(), turn.loan_ended()?)))
        else {
            return Ok(false);
        };
        self.take_up(&operation, &turn, next, report)?;
        Ok(true)
    }
}

/// What a file or directory of a machine is called among what is under way and what is kept.
fn what(key: &str, path: &str) -> String {
    format!("{WHAT}{key} {path}")
}

/// Whether what is kept by this name is one.
pub(super) fn is_result(what: &str) -> bool {
    what.starts_with(WHAT)
}

fn no_loan(name: &str) -> NodeError {
    refused(
        format!("{name} is not lent any more"),
        format!("floe ps {name} shows how it stands"),
    )
}

/// Refuses what can't be results. Returns the directory for them.
fn check(request: &RecallRequest) -> Result<&Path, NodeError> {
    let into = request.into.as_deref().map(Path::new);
    let into = into.filter(|into| into.is_absolute()).ok_or_else(|| {
        usage(
            "results need a directory of this host",
            "name it by its whole path",
        )
    })?;
    if request.from.is_some() {
        return Err(usage(
            "results come from the node that a machine is lent to",
            "leave out the node's name",
        ));
    }
    if request.results.len() > RESULTS_MAX {
        return Err(usage(
            format!("these are more than {RESULTS_MAX} files and directories"),
            "have them in one directory, and name that",
        ));
    }
    let mut names = HashSet::new();
    for path in &request.results {
        check_path(path)?;
        if !names.insert(Path::new(path).file_name()) {
            return Err(usage(
                format!("{path} would take the place of another with its name"),
                "bring back the directory that has them, or one of them",
            ));
        }
    }
    let found = std::fs::metadata(into);
    let found = found.map_err(at_named(format!("cannot write to {}", into.display())))?;
    match found.is_dir() {
        true => Ok(into),
        false => Err(usage(
            format!("{} is no directory", into.display()),
            "name one for the results",
        )),
    }
}

/// Refuses what is no path of a guest that can be a result.
fn check_path(path: &str) -> Result<(), NodeError> {
    let named = Path::new(path);
    let is_one = named.is_absolute() && named.file_name().is_some() && !path.contains('\0');
    match is_one && path.len() <= PATH_BYTES_MAX {
        true => Ok(()),
        false => Err(usage(
            format!("{path:?} is no whole path of a file or directory of the guest"),
            "it begins with /, and ends with a name",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_named_by_whole_paths_and_go_to_a_directory() {
        for path in ["/root/out", "/a", "/srv/with space/"] {
            check_path(path).unwrap();
        }
        assert!(is_result(&what("00112233445566aa", "/root/out")));
        assert!(!is_result("00112233445566aa"));
        for path in ["", "/", "out", "../out", "/a/..", "/a\0b"] {
            assert!(check_path(path).is_err(), "{path:?}");
        }
        let dir = tempfile::tempdir().unwrap();
        let into = dir.path().display().to_string();
        let request = RecallRequest {
            results: vec!["/root/out".into()],
            into: Some(into.clone()),
            ..Default::default()
        };
        assert_eq!(check(&request).unwrap(), dir.path());
        let without = RecallRequest {
            into: None,
            ..request.clone()
        };
        assert!(check(&without).is_err());
        let elsewhere = RecallRequest {
            into: Some(format!("{into}/none")),
            ..request.clone()
        };
        assert!(check(&elsewhere).is_err());
        let of_one_name = RecallRequest {
            results: vec!["/root/out".into(), "/srv/out/".into()],
            ..request.clone()
        };
        assert!(check(&of_one_name).is_err());
        let of_a_node = RecallRequest {
            from: Some("cloud".into()),
            ..request
        };
        assert!(check(&of_a_node).is_err());
    }
}
