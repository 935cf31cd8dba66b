//! Tries again what may succeed later.

use std::sync::Arc;
use std::time::{Duration, Instant};

use floe_image::{Hash, Kind, Layout, Manifest};
use rand::Rng;

use super::Progress;
use crate::packed::Deadline;
use crate::{LinkEstimate, Request, Sink, Source, SourceError};

/// How often and how soon to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryOptions {
    /// Number of attempts in total, at least 1.
    pub attempts: u32,
    /// Pause after the first failure; it doubles with each further one.
    pub first_pause: Duration,
    /// Longest pause.
    pub longest_pause: Duration,
}

impl Default for RetryOptions {
    fn default() -> RetryOptions {
        RetryOptions {
            attempts: 5,
            first_pause: Duration::from_millis(50),
            longest_pause: Duration::from_secs(5),
        }
    }
}

/// Returns the pause after failure number `failures` (from 1). It grows exponentially, and half of it is random, so that many
/// nodes that lost the same server don't come back in step.
pub(crate) fn pause(options: &RetryOptions, failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(20);
    let whole = options
        .first_pause
        .saturating_mul(1 << doublings)
        .min(options.longest_pause);
    whole.mul_f64(rand::rng().random_range(0.5..=1.0))
}

/// A source that tries again what may succeed later, and asks only for what hasn't arrived yet.
pub struct Retry {
    inner: Arc<dyn Source>,
    options: RetryOptions,
}

impl Retry {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Source>, options: RetryOptions) -> Retry {
        Retry { inner, options }
    }

    fn again<T>(
        &self,
        until: Option<Instant>,
        mut call: impl FnMut() -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        let mut failures = 0;
        loop {
            let error = match call() {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            failures += 1;
            let pause = pause(&self.options, failures);
            let in_time = until.is_none_or(|until| floe_threads::from_now(pause) < until);
            if !error.is_retryable() || failures >= self.options.attempts || !in_time {
                return Err(error);
            }
            tracing::debug!(%error, failures, ?pause, "trying again");
            // a pause for the server, which nobody can end early: the fetcher's readers wait with deadlines of their own
            std::thread::sleep(pause);
        }
    }
}

impl Retry {
    /// Asks once more, after a pause, for what every image has but the source says is missing or denied: a cache or a proxy in
    /// between may be wrong for a moment. (Chunks get a second chance in the fetcher, after all other sources were asked.)
    fn once_more<T>(
        &self,
        mut call: impl FnMut() -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        match call() {
            Err(error) if error.may_be_hearsay() => {
                // as above: time for the server, not a wait for anything here
                std::thread::sleep(pause(&self.options, 2));
                call()
            }
            other => other,
        }
    }
}

impl Source for Retry {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn resolve(&self, name: &str) -> Result<Hash, SourceError> {
        self.again(None, || self.inner.resolve(name))
    }

    fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError> {
        self.once_more(|| self.again(None, || self.inner.manifest(id)))
    }

    fn layout(&self, id: &Hash) -> Result<Option<Layout>, SourceError> {
        self.once_more(|| self.again(None, || self.inner.layout(id)))
    }

    fn read(
        &self,
        image: &Hash,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        let clock = Deadline::new(request);
        let mut progress = Progress::new(wants);
        self.again(Some(clock.until()), || {
            progress.attempt(&*self.inner, image, &clock.request(), sink)
        })
    }

    fn merges(&self, image: &Hash, hash: &Hash) -> bool {
        self.inner.merges(image, hash)
    }

    fn link(&self) -> LinkEstimate {
        self.inner.link()
    }
}
