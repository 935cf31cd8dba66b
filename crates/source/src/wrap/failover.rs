//! Several sources for one image, asked one after the other.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use floe_image::{Hash, Kind, Layout, Manifest};
use parking_lot::Mutex;

use super::Progress;
use crate::packed::Deadline;
use crate::{LinkEstimate, Request, Sink, Source, SourceError, WholePacks};

/// How long a source that failed is asked last; the time doubles with each failure in a row.
const SICK_FIRST: Duration = Duration::from_secs(1);

/// The longest such time: a repaired server is used again within a minute.
const SICK_LONGEST: Duration = Duration::from_secs(60);

/// A source that did not answer within less than this has not failed: a busy link takes longer, and whoever waits so short a time asks again.
const SLOW_FROM: Duration = Duration::from_secs(1);

/// Several sources, in order of preference. If a source lacks something, can't be reached, is too slow or sends wrong bytes,
/// the next one is asked for the rest; a source that failed is asked last for a while. If a source denies access the read
/// fails, because that is a mistake that somebody should see.
pub struct Failover {
    sources: Vec<Member>,
}

pub(super) struct Member {
    pub(super) source: Arc<dyn Source>,
    health: Mutex<Health>,
}

#[derive(Default)]
struct Health {
    failures: u32,
    sick_until: Option<Instant>,
}

impl Member {
    /// Notes the outcome of its last answer.
    pub(super) fn learn(&self, outcome: Option<&SourceError>) {
        match outcome {
            Some(SourceError::Timeout { after, .. }) if *after < SLOW_FROM => {}
            Some(error) if error.is_retryable() => self.failed(error),
            _ => *self.health.lock() = Health::default(),
        }
    }

    /// Notes a failure: the source is asked last for a while.
    pub(super) fn failed(&self, error: &SourceError) {
        let mut health = self.health.lock();
        let sick = SICK_FIRST
            .saturating_mul(1 << health.failures.min(10))
            .min(SICK_LONGEST);
        health.failures += 1;
        health.sick_until = Some(floe_threads::from_now(sick));
        tracing::warn!(%error, source = self.source.describe(), ?sick, "source failed, others come first for a while");
    }

    /// Returns until when it is to be asked last; `None` if it isn't.
    fn sick_until(&self, now: Instant) -> Option<Instant> {
        self.health.lock().sick_until.filter(|until| *until > now)
    }
}

impl Failover {
    /// Makes a source of `sources`, with the preferred one first.
    pub fn new(sources: Vec<Arc<dyn Source>>) -> Failover {
        let sources = sources
            .into_iter()
            .map(|source| Member {
                source,
                health: Mutex::default(),
            })
            .collect();
        Failover { sources }
    }

    /// Returns all sources, in order of preference.
    pub(super) fn members(&self) -> &[Member] {
        &self.sources
    }

    /// Returns the indices of the sources that didn't fail lately, in order of preference.
    pub(super) fn healthy(&self) -> Vec<usize> {
        let now = Instant::now();
        let all = self.sources.iter().enumerate();
        all.filter(|(_, member)| member.sick_until(now).is_none())
            .map(|(number, _)| number)
            .collect()
    }

    /// Reads what is left of a read.
    pub(super) fn read_rest(
        &self,
        image: &Hash,
        progress: &mut Progress,
        clock: &Deadline,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        self.first("the items", |source, left| {
            // A source that hangs must leave time for those after it.
            let rest = clock.request();
            let share = Request {
                deadline: rest.deadline / left,
                ..rest
            };
            progress.attempt(source, image, &share, sink)
        })
    }

    /// Returns the healthy sources in order of preference, then the failed ones, the first to recover first.
    fn order(&self) -> Vec<&Member> {
        let now = Instant::now();
        let mut members: Vec<_> = self
            .sources
            .iter()
            .map(|member| (member.sick_until(now), member))
            .collect();
        members.sort_by_key(|(sick, _)| sick.map(|until| until - now));
        members.into_iter().map(|(_, member)| member).collect()
    }

    /// Asks one source after the other. `call` is given the number of sources left, the present one included.
    fn first<T>(
        &self,
        what: &str,
        mut call: impl FnMut(&dyn Source, u32) -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        let order = self.order();
        let mut errors = Vec::new();
        for (asked, member) in order.iter().enumerate() {
            let outcome = call(&*member.source, (order.len() - asked) as u32);
            member.learn(outcome.as_ref().err());
            match outcome {
                Err(error) if error.falls_through() => errors.push(error),
                other => return other,
            }
        }
        // A source that could not answer may have it: then trying again makes sense, and "missing" would be wrong.
        errors.sort_by_key(|error| Reverse(error.is_retryable()));
        Err(match errors.into_iter().next() {
            Some(SourceError::Missing { what, .. }) => SourceError::Missing {
                at: self.describe(),
                what,
            },
            Some(error) => error,
            None => SourceError::Missing {
                at: "an empty list of sources".into(),
                what: what.into(),
            },
        })
    }
}

impl Source for Failover {
    fn describe(&self) -> String {
        self.sources
            .iter()
            .map(|member| member.source.describe())
            .collect::<Vec<_>>()
            .join(", ")
    }

    fn resolve(&self, name: &str) -> Result<Hash, SourceError> {
        self.first(name, |source, _| source.resolve(name))
    }

    fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError> {
        self.first("the manifest", |source, _| source.manifest(id))
    }

    fn layout(&self, id: &Hash) -> Result<Option<Layout>, SourceError> {
        self.first("the layout", |source, _| source.layout(id))
    }

    fn read(
        &self,
        image: &Hash,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        let mut progress = Progress::new(wants);
        self.read_rest(image, &mut progress, &Deadline::new(request), sink)
    }

    fn merges(&self, image: &Hash, hash: &Hash) -> bool {
        // what the others have is read at once
        self.sources
            .iter()
            .any(|member| member.source.merges(image, hash))
    }

    fn multicast(&self) -> Option<bool> {
        let mut sources = self.sources.iter();
        sources.find_map(|member| member.source.multicast())
    }

    fn whole_packs(&self, image: &Hash) -> Option<Arc<dyn WholePacks>> {
        let mut sources = self.sources.iter();
        sources.find_map(|member| member.source.whole_packs(image))
    }

    fn link(&self) -> LinkEstimate {
        let links = self.order().into_iter().map(|member| member.source.link());
        links.reduce(LinkEstimate::with).unwrap_or_default()
    }
}
