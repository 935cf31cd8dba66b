//! How long a call waits for a source that was reached and gives nothing usable: servers restart, and networks ask somebody to sign in.

use crate::error::NodeError;
use floe_source::SourceError;
use std::time::{Duration, Instant};

/// How long such a source is asked again from its first error on.
pub const PATIENCE: Duration = Duration::from_secs(150);
/// Pause before the second try, doubled for each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What a call that looks for an image tells whoever made it. An error ends the call.
pub enum Step<'a> {
    /// A step is done, of this name.
    Done(&'a str),
    /// A source gave nothing usable, and is asked again once the one who is told returns, after this pause.
    Waits(&'a SourceError, Duration),
}

/// The answer of a caller that waits for no source: the error itself.
pub fn impatient(step: Step<'_>) -> Result<(), NodeError> {
    match step {
        Step::Done(_) => Ok(()),
        Step::Waits(error, _) => Err(error.clone().into()),
    }
}

/// Repeats `call` for [`PATIENCE`] while its error `passes`; `tell` waits in between.
pub fn patiently<T>(
    mut call: impl FnMut() -> Result<T, SourceError>,
    passes: impl Fn(&SourceError) -> bool,
    tell: &mut dyn FnMut(Step<'_>) -> Result<(), NodeError>,
) -> Result<T, NodeError> {
    let mut first: Option<Instant> = None;
    let mut pause = FIRST_PAUSE;
    loop {
        let error = match call() {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let since = first.get_or_insert_with(Instant::now);
        if !passes(&error) || since.elapsed() >= PATIENCE {
            return Err(error.into());
        }
        tracing::debug!(%error, ?pause, "a source is asked again");
        tell(Step::Waits(
            &error,
            pause.mul_f64(rand::random_range(0.5..1.0)),
        ))?;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(reached: bool) -> SourceError {
        let (at, what, reason) = ("hub".to_owned(), "it".to_owned(), "no".to_owned());
        match reached {
            true => SourceError::Unanswered { at, what, reason },
            false => SourceError::Unreachable { at, what, reason },
        }
    }

    #[test]
    fn a_source_is_asked_again_while_its_error_passes_and_nobody_ends_it() {
        let ask = |errors: usize, reached: bool, ends_after: usize| {
            let (mut asked, mut waited) = (0, Vec::new());
            let call = || {
                asked += 1;
                match asked > errors {
                    true => Ok(asked),
                    false => Err(error(reached)),
                }
            };
            let passes = |error: &SourceError| matches!(error, SourceError::Unanswered { .. });
            let done = patiently(call, passes, &mut |step| match step {
                Step::Waits(_, pause) if waited.len() < ends_after => {
                    waited.push(pause);
                    Ok(())
                }
                step => impatient(step),
            });
            (done.ok(), waited)
        };
        let (done, waited) = ask(7, true, 10);
        assert_eq!((done, waited.len()), (Some(8), 7));
        assert!(waited.iter().all(|pause| *pause <= PAUSE_MAX) && waited[5] > waited[0]);
        assert_eq!(ask(7, true, 2).0, None);
        assert_eq!(ask(1, false, 10), (None, Vec::new()));
    }
}
