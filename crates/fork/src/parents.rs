//! Watches whether the nodes of clones' parents still answer, and makes clones independent of them.
//!
//! A clone waits for a missing page, for ever if need be, so it comes to no harm when its parent's node is gone: it stops at
//! the next such page. A user could not understand that, so the node watches. It pauses such a clone before it gets there,
//! `floe ps` says why, and the clone goes on once its parent's node answers again.

use crate::Forks;
use floe_api::PauseReason;
use floe_ground::{
    error::{NodeError, failed},
    news::News,
};
use floe_http::Url;
use floe_image::Hash;
use floe_inventory::inventory::{
    Entry,
    lifecycle::{Event, Task},
    record::Origin,
};
use floe_source::SourceError;
use std::{collections::HashMap, sync::Arc, time::Duration};

/// How often parents' nodes are asked whether they still answer.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// How long such a node may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How many questions in a row must stay unanswered: a node that is restarted for an update is back before that.
const SILENT_MAX: u32 = 4;
/// How long until pulling the rest of a clone's image is tried again.
const SETTLE_AGAIN: Duration = Duration::from_secs(5);

/// A parent's image and where it is read from.
type Parent = (Hash, Origin);

/// How a parent's node has answered lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Silence {
    /// How many questions in a row had no good answer.
    times: u32,
    /// Whether the last answer was that it has nothing for us.
    denied: bool,
}

impl Silence {
    fn learn(&mut self, answer: &Result<(), SourceError>) {
        *self = match answer {
            Ok(()) => Silence::default(),
            Err(error) => Silence {
                times: self.times.saturating_add(1),
                denied: !error.is_retryable(),
            },
        };
    }

    /// Returns what is shown about its clones once it is considered lost.
    fn why(&self, origin: &Origin) -> Option<String> {
        if self.times < SILENT_MAX {
            return None;
        }
        let url = origin.urls.first().and_then(|url| Url::parse(url).ok());
        let mut url = url.as_ref().and_then(floe_http::web);
        if let Some(url) = &mut url {
            url.set_path("");
        }
        let url = url.map_or_else(String::new, |url| floe_http::shown(url.as_str()));
        Some(match self.denied {
            true => format!(
                "its parent's node {url} no longer has what it needs; what it has not touched is lost: floe kill ends it"
            ),
            false => format!(
                "its parent's node {url} does not answer; it stands still until that does, or floe kill ends it"
            ),
        })
    }
}

impl Forks {
    /// Finds forks that an earlier node had in memory only, and marks them as lost: their readers wait and get no wrong data.
    pub fn find_lost_forks(&self) {
        for fork in self.records.all() {
            let is_here = self.layers.get(&fork.image).is_some();
            if !is_here && matches!(self.is_stored(&fork.image), Ok(false)) {
                self.layers.mark_lost(fork.image);
                if self.layers.any_unread() {
                    continue; // it may be one of those
                }
                self.core.tell(&fork.image.short(), &News::ForkLost);
            }
        }
    }

    /// Starts the thread that watches parents' nodes.
    pub fn start_watching_parents(self: &Arc<Self>) -> Result<(), NodeError> {
        let mut silences: HashMap<Hash, Silence> = HashMap::new();
        let threads = &self.core.threads;
        Ok(threads.keep("parent-watch", self, ASK_EVERY, move |forks| {
            forks.look_after_clones(&mut silences);
        })?)
    }

    /// Asks the parents' nodes of clones here, pauses clones whose parent is lost, and lets those go on whose parent is back.
    fn look_after_clones(&self, silences: &mut HashMap<Hash, Silence>) {
        let parents = self.dependants();
        silences.retain(|image, _| parents.iter().any(|((known, _), _)| known == image));
        for (parent, clones) in parents {
            // an image belongs to one fork, and a fork to one node
            let silence = silences.entry(parent.0).or_default();
            silence.learn(&self.ask_parent(&parent));
            let why = silence.why(&parent.1);
            for entry in clones {
                if let Err(error) = self.set_orphan(&entry, why.clone()) {
                    tracing::info!(machine = %entry.name, %error, "an orphan was not told");
                }
            }
        }
    }

    /// Asks whether a parent's node still has its image for us.
    fn ask_parent(&self, (image, origin): &Parent) -> Result<(), SourceError> {
        let mut last = Ok(());
        for url in &origin.urls {
            let source = self.images.sources.ask_one(url, origin, ANSWER_TIMEOUT);
            let answer = source.and_then(|source| source.resolve(&image.to_string()));
            last = answer.map(drop);
            if last.is_ok() {
                break;
            }
        }
        last
    }

    /// Pulls the rest of a clone's image on a thread of its own, until it is complete or the clone is gone.
    pub(super) fn settle_later(self: &Arc<Self>, entry: &Arc<Entry>) {
        let (forks, entry) = (Arc::downgrade(self), entry.clone());
        let over = self.core.threads.over().clone();
        let spawned = self.core.threads.start("fork-settle", move || {
            loop {
                let Some(forks) = forks.upgrade() else { return };
                let known = forks.inventory.get(entry.name.as_str());
                if !known.is_ok_and(|known| Arc::ptr_eq(&known, &entry)) {
                    return;
                }
                match forks.settle(&entry) {
                    Ok(()) => {
                        forks.core.tell(entry.name.as_str(), &News::Settled);
                        return;
                    }
                    Err(error) => {
                        tracing::info!(machine = %entry.name, %error, "is not settled yet");
                    }
                }
                drop(forks);
                if !over.sleep(SETTLE_AGAIN) {
                    return;
                }
            }
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "no thread to settle a clone; it needs its parent's node");
        }
    }

    fn settle(&self, entry: &Arc<Entry>) -> Result<(), NodeError> {
        let record = entry.record();
        self.keep_fork(&record.image, &record.origin)?;
        entry.update(|record| {
            // from now on this node reads the image from its own repository
            record.origin = Origin::default();
            if let Some(family) = &mut record.family {
                family.settled = true;
            }
        })?;
        self.set_orphan(entry, None)
    }

    /// Pauses a clone whose parent is lost (`why` is given), or lets it go on once that is over. After an error, because another
    /// operation is under way, the next look tries again.
    fn set_orphan(&self, entry: &Arc<Entry>, why: Option<String>) -> Result<(), NodeError> {
        let life = entry.life();
        // a clone that waits for a page stands still already, and its QEMU may not answer
        let fetcher = entry.state().fetcher.clone();
        let deaf = fetcher.is_some_and(|fetcher| fetcher.stats().waiting > 0);
        match why {
            None if life.is(PauseReason::Orphaned) => {
                let operation = entry.begin(Task::Continue)?;
                let over = "its parent's node answers".to_owned();
                operation.drive(Event::Over(PauseReason::Orphaned, over))?;
            }
            Some(why) if life.orphaned() != Some(&why) || life.is_deaf() != deaf => {
                let operation = entry.begin(Task::Pause)?;
                // the rest of its image may have come since its parent's node was asked
                if !entry.record().needs_parent() {
                    return Ok(());
                }
                operation.drive(Event::Orphaned { why, deaf })?;
            }
            // its QEMU did not do what it was told, and may by now
            _ if life.next().is_some() => entry.begin(Task::Continue)?.catch_up()?,
            _ => {}
        }
        Ok(())
    }

    /// Returns the running clones that need another node, grouped by where their parent's state is.
    fn dependants(&self) -> Vec<(Parent, Vec<Arc<Entry>>)> {
        let mut parents: Vec<(Parent, Vec<Arc<Entry>>)> = Vec::new();
        for entry in self.inventory.all() {
            let record = entry.record();
            let open = record.needs_parent() && !record.origin.urls.is_empty();
            if !open || entry.state().vm.is_none() {
                continue;
            }
            let parent = (record.image, record.origin.clone());
            match parents.iter_mut().find(|(known, _)| *known == parent) {
                Some((_, clones)) => clones.push(entry),
                None => parents.push((parent, vec![entry])),
            }
        }
        parents
    }

    /// Whether machines here, or clones elsewhere, would stop if the cluster's other members could not be reached any more.
    pub fn needs_members(&self) -> bool {
        let mut forks = self.records.all().into_iter();
        !self.dependants().is_empty() || forks.any(|fork| fork.has_clones_away())
    }

    /// Returns an error unless the address is that of another node's forks.
    pub(super) fn check_parent_address(source: &str) -> Result<(), NodeError> {
        let url = Url::parse(source);
        if url.is_ok_and(|url| matches!(url.scheme(), "floe" | "floe+http")) {
            return Ok(());
        }
        Err(failed(
            format!("{source:?} is no node's address"),
            "it begins with floe+http:// or floe://",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_is_lost_only_after_a_while_and_not_once_it_answers() {
        let origin = Origin {
            urls: vec!["floe+http://10.0.0.1:7070/fork".into()],
            ..Default::default()
        };
        let silent = || {
            Err(SourceError::Unreachable {
                at: "there".into(),
                what: "it".into(),
                reason: "refused".into(),
            })
        };
        let mut silence = Silence::default();
        for _ in 1..SILENT_MAX {
            silence.learn(&silent());
            assert_eq!(silence.why(&origin), None);
        }
        silence.learn(&silent());
        let why = silence.why(&origin).unwrap();
        assert!(
            why.contains("http://10.0.0.1:7070 does not answer"),
            "{why}"
        );
        silence.learn(&Ok(()));
        assert_eq!(silence, Silence::default());
    }
}
