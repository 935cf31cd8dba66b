//! What a fetcher says and does while its source gives nothing: who looks is told, and no answer that may pass is believed too soon.

mod common;

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::script::{Act, Script};
use common::*;
use floe_image::{Hash, Kind};
use floe_source::{FetchOptions, Fetcher, SourceError, Who};
use floe_store::Cache;

const IMAGE: Hash = Hash([9; 32]);
/// Longest time for something to happen.
const PATIENCE: Duration = Duration::from_secs(60);

struct Bench {
    script: Arc<Script>,
    fetcher: Fetcher,
    chunk: (Hash, Vec<u8>),
    _dir: tempfile::TempDir,
}

fn bench(options: FetchOptions) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let cache = Arc::new(Cache::open(dir.path(), 64 << 20).unwrap());
    let chunk = (Hash::of(&content(1)), content(1));
    let script = Script::new(std::slice::from_ref(&chunk));
    Bench {
        fetcher: Fetcher::new(script.clone(), cache, options),
        script,
        chunk,
        _dir: dir,
    }
}

impl Bench {
    /// Demands the chunk; the answer comes later.
    fn demand(&self) -> mpsc::Receiver<Result<Vec<u8>, SourceError>> {
        let (tell, told) = mpsc::channel();
        let hash = self.chunk.0;
        let fetcher = &self.fetcher;
        fetcher.demand(Who::default(), &IMAGE, Kind::Chunk, &hash, move |outcome| {
            // if the test has failed already, nobody listens
            let _ = tell.send(outcome.map(<[u8]>::to_vec));
        });
        told
    }
}

#[test]
fn who_waits_for_a_source_is_told_since_when_and_why_until_something_comes() {
    let bench = bench(FetchOptions::default());
    assert!(bench.fetcher.trouble().is_none());
    bench.script.play(&[Act::GiveThenFail(0); 10_000]);
    let told = bench.demand();
    let until = Instant::now() + PATIENCE;
    let longer = loop {
        assert!(Instant::now() < until, "nothing is said");
        match bench.fetcher.trouble() {
            Some((lasts, error)) if lasts > Duration::from_millis(50) => {
                assert!(error.to_string().contains("the script says so"), "{error}");
                break lasts;
            }
            _ => std::thread::yield_now(),
        }
    };
    assert!(
        bench.fetcher.trouble().unwrap().0 >= longer,
        "it begins anew"
    );
    bench.script.play(&[]);
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap(), bench.chunk.1);
    assert!(bench.fetcher.trouble().is_none());
}

#[test]
fn what_is_denied_missing_or_refused_for_a_while_is_not_believed_before_its_time() {
    let patient = bench(FetchOptions {
        believed_after: PATIENCE * 10,
        ..FetchOptions::default()
    });
    let acts = [Act::Deny, Act::Lack, Act::Refuse, Act::Deny, Act::Lack];
    patient.script.play(&acts);
    let told = patient.demand().recv_timeout(PATIENCE).unwrap();
    assert_eq!(told.unwrap(), patient.chunk.1);
    assert_eq!(patient.script.reads(), acts.len() + 1);

    // and in the end it is
    let hasty = bench(FetchOptions {
        believed_after: Duration::from_millis(1),
        ..FetchOptions::default()
    });
    hasty.script.play(&[Act::Deny; 10_000]);
    let told = hasty.demand().recv_timeout(PATIENCE).unwrap();
    assert!(matches!(told, Err(SourceError::Denied { .. })), "{told:?}");
    assert_eq!(hasty.script.reads(), 2);
}
