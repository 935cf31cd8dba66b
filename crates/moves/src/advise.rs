//! Says whether it would pay to lend a machine to a strong host: measures what [`pays`](floe_ground::pays) reckons with, and puts its answer into
//! words.
//!
//! Measured are, for a moment: for which part of the time the machine's CPUs are needed (run, or wait for a core of this host: a device that
//! is too slow is not idle), which part of that they get, how fast one core is here and there, the round trip. Remembered is how fast bytes
//! came over the link when a machine was synced or moved last. What a job changes until it comes back is what it changes now, for as long
//! as it takes here: it changes no less if it is done sooner.

use super::{
    Moves,
    depart::{check_loan, new_key},
    wire::{self, Speed},
};
use floe_api::{Advice, AdviceVerdict, AdviseRequest, ApiError, ErrorCode, size_text};
use floe_ground::{
    caller::FromMember,
    error::{NodeError, at, failed, usage},
    pays::{BUSY_MIN, Case, Costs, Verdict},
    report::Report,
};
use floe_image::Hash;
use floe_inventory::inventory::{
    Entry,
    turn::{Peer, Turn},
};
use floe_machines::vcpus::run_and_wait_ns;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

/// For how long a machine is looked at.
const SAMPLE: Duration = Duration::from_secs(2);
/// Somebody whose last key, button or touch is no longer ago than this is at the machine, and waits for it.
const AT_IT: Duration = Duration::from_secs(10);
/// How much processor time it takes to measure a core's speed.
const SPEED_SAMPLE: Duration = Duration::from_millis(100);
/// How long that may take on a host that is busy.
const SPEED_MAX: Duration = Duration::from_secs(3);
/// For how long a measured speed is told again.
const SPEED_KEPT: Duration = Duration::from_secs(60);
/// How much is hashed at a time, in bytes.
const HASHED_BYTES: usize = 64 << 10;
/// The work that is reckoned with if it is not known, in seconds.
const WORK_S: f64 = 600.0;
/// Which part of what a machine has changed crosses the network: the rest are zeros, known chunks and what compression saves.
const SENT_PART: f64 = 0.4;
/// What crosses it at least: the device state and tables.
const SENT_BYTES_MIN: f64 = 256e3;
/// The least part of a core that a machine is taken to have that wants one.
const HAS_MIN: f64 = 0.01;
/// Fewer bytes than this say nothing of a link's rate.
const RATE_BYTES_MIN: u64 = 256 << 10;
/// Round trips of a question: the connection, its keys, and the question.
const ROUND_TRIPS: f64 = 3.0;

/// A speed that was measured, and when.
pub(super) type KnownSpeed = Mutex<Option<(Instant, f64)>>;

/// Bytes a second over a link, as far as they were seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rates {
    /// From here to there.
    pub up: Option<f64>,
    /// From there to here.
    pub down: Option<f64>,
}

/// What was seen of a machine in a moment.
struct Seen {
    /// For which part of the time it needs its CPUs.
    busy: f64,
    /// Which part of that time it has them.
    has: f64,
    /// Bytes that it changes in a second.
    changes_s: f64,
    /// Bytes that it has changed and that the other node does not know.
    unknown_bytes: f64,
}

impl Seen {
    /// Returns a job that takes `work_s` here as the model sees it: how much faster it is there, at how many seconds of a round trip, over a
    /// link of these rates if they are known. It changes the same however fast it is done, and no more than `most` bytes.
    fn case(
        &self,
        (work_s, most): (f64, f64),
        (speedup, round_trip_s): (f64, f64),
        rates: Option<(f64, f64)>,
    ) -> Case {
        let wire = |bytes: f64| (bytes * SENT_PART).max(SENT_BYTES_MIN);
        let (up_bytes_s, down_bytes_s) = rates.unwrap_or((f64::INFINITY, f64::INFINITY));
        Case {
            work_s,
            busy: self.busy,
            speedup,
            up_bytes: wire(self.unknown_bytes),
            down_bytes: wire((self.changes_s * work_s).min(most)),
            up_bytes_s,
            down_bytes_s,
            round_trip_s,
        }
    }
}

impl Moves {
    /// Says whether it would pay to lend a machine to another node.
    pub fn advise(&self, name: &str, request: &AdviseRequest) -> Result<Advice, NodeError> {
        check(request)?;
        let entry = self.inventory.get(name)?;
        entry.is_here()?;
        let to = self.member(&request.to)?;
        let seen = self.look_at(&entry)?;
        let (speedup, round_trip_s) = self.ask_speed(&entry, &to, seen.has, request)?;
        let known = self.rates.lock().get(&to.address).copied();
        let known = known.unwrap_or_default();
        let rate = |seen: Option<f64>| request.link_bytes_s.or(seen);
        let rates = rate(known.up.or(known.down)).zip(rate(known.down.or(known.up)));
        let work_s = request.work_s.unwrap_or(WORK_S);
        let most = entry.record().size().memory_bytes as f64;
        let case = seen.case((work_s, most), (speedup, round_trip_s), rates);
        let said = advice(
            &case,
            &to.name,
            rates.is_some(),
            request.work_s,
            entry.last_input().is_some_and(|ago| ago <= AT_IT),
        );
        Ok(unless(said, self.why_not(&entry, &to)))
    }

    /// Returns why a machine can't go to another node, if that is so: as `floe offload` is told it, by this node and by that one. What passes
    /// in a moment here, as when a loan has just ended, is no reason.
    fn why_not(&self, entry: &Entry, to: &Peer) -> Option<ApiError> {
        let (report, _events) = Report::new(); // what it does without there is said when it goes
        let mut turn = Turn::offered(entry.turn().as_ref(), new_key(), to.clone());
        turn.lends = true;
        let goes = self.check_goes(entry, &report);
        let goes = goes.and_then(|()| check_loan(entry, to, true));
        let could = match goes {
            Err(error) if error.code() == ErrorCode::Busy => return None,
            goes => goes.and_then(|()| self.ask(entry, to, &turn)),
        };
        Some(could.err()?.to_api())
    }

    /// Looks at a machine for a moment.
    fn look_at(&self, entry: &Entry) -> Result<Seen, NodeError> {
        let vm = entry.vm()?;
        let pid = vm.pid();
        let sums = || {
            run_and_wait_ns(pid).map_err(at("cannot read what the kernel tells of QEMU's threads"))
        };
        let (began, (run, wait)) = (Instant::now(), sums()?);
        let changes = self.machines.changes_of(entry);
        if !self.core.threads.over().sleep(SAMPLE) {
            return Err(NodeError::Cancelled);
        }
        let (run_now, wait_now) = sums()?;
        let s = began.elapsed().as_secs_f64();
        let now = self.machines.changes_of(entry);
        let ran_s = run_now.saturating_sub(run) as f64 / 1e9;
        let wanted_s = ran_s + wait_now.saturating_sub(wait) as f64 / 1e9;
        let cpus = f64::from(entry.record().size().cpus.max(1));
        let key = entry.turn().map(|turn| turn.key);
        let unknown = self.known.lock().lacks(key.as_deref(), now);
        Ok(Seen {
            busy: (wanted_s / s / cpus).min(1.0),
            has: match wanted_s > 0.0 {
                true => (ran_s / wanted_s).max(HAS_MIN),
                false => 1.0,
            },
            changes_s: now.saturating_sub(changes) as f64 / s,
            unknown_bytes: unknown as f64,
        })
    }

    /// Returns how much faster a machine's CPUs are on another node, and a round trip to that. `has`: which part of the time that it wants
    /// its CPUs here it has them.
    fn ask_speed(
        &self,
        entry: &Entry,
        to: &Peer,
        has: f64,
        request: &AdviseRequest,
    ) -> Result<(f64, f64), NodeError> {
        if let Some((speedup, ms)) = request.speedup.zip(request.round_trip_ms) {
            return Ok((speedup, ms / 1e3));
        }
        wire::speed(&self.cluster, to)?; // it is measured now, and told at once the next time
        let began = Instant::now();
        let there = wire::speed(&self.cluster, to)?;
        let asked_s = began.elapsed().as_secs_f64() / ROUND_TRIPS;
        let here = self.own_speed();
        if !(there.hashed_bytes_s.is_finite() && there.hashed_bytes_s > 0.0) {
            return Err(failed(
                format!("{} tells no speed", to.name),
                "say how much faster it is: --speedup",
            ));
        }
        let cpus = f64::from(entry.record().size().cpus.max(1));
        let share = (f64::from(there.free_cpus.max(1)) / cpus).min(1.0);
        let speedup = request
            .speedup
            .unwrap_or(there.hashed_bytes_s / (here * has) * share);
        let round_trip_s = request.round_trip_ms.map_or(asked_s, |ms| ms / 1e3);
        Ok((speedup, round_trip_s))
    }

    /// Tells a member how fast a core of this host is.
    pub fn speed_for(&self, _by: &FromMember) -> Speed {
        let room = self.machines.resources.room();
        Speed {
            hashed_bytes_s: self.own_speed(),
            free_cpus: room.map_or(1, |room| room.free_cpus),
        }
    }

    /// Returns how many bytes one core hashes in a second of its time; who asks again soon is told the same.
    fn own_speed(&self) -> f64 {
        let mut known = self.speed.lock();
        if let Some((when, speed)) = *known
            && when.elapsed() < SPEED_KEPT
        {
            return speed;
        }
        let bytes = vec![0x5au8; HASHED_BYTES];
        let (began, cpu_began) = (Instant::now(), cpu_s());
        let mut hashed = 0u64;
        while cpu_s() - cpu_began < SPEED_SAMPLE.as_secs_f64() && began.elapsed() < SPEED_MAX {
            std::hint::black_box(Hash::of(std::hint::black_box(bytes.as_slice())));
            hashed += bytes.len() as u64;
        }
        let took_s = (cpu_s() - cpu_began).max(f64::EPSILON);
        let speed = hashed as f64 / took_s;
        *known = Some((Instant::now(), speed));
        speed
    }

    /// Notes how fast bytes went to a node, or came from one.
    pub(super) fn saw_rate(&self, with: SocketAddr, bytes: u64, took: Duration, up: bool) {
        if bytes < RATE_BYTES_MIN || took.is_zero() {
            return;
        }
        let rate = bytes as f64 / took.as_secs_f64();
        let mut rates = self.rates.lock();
        let known = rates.entry(with).or_default();
        match up {
            true => known.up = Some(rate),
            false => known.down = Some(rate),
        }
    }
}

/// Processor time of this thread in seconds.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Refuses figures that are none.
fn check(request: &AdviseRequest) -> Result<(), NodeError> {
    let figures = [
        request.work_s,
        request.speedup,
        request.link_bytes_s,
        request.round_trip_ms,
    ];
    match figures
        .into_iter()
        .flatten()
        .all(|f| f.is_finite() && f >= 0.0)
        && request.speedup.is_none_or(|speedup| speedup > 0.0)
        && request.link_bytes_s.is_none_or(|rate| rate > 0.0)
    {
        true => Ok(()),
        false => Err(usage(
            "times are no less than nothing, rates and speed-ups more",
            "leave out what is not known: it is measured",
        )),
    }
}

/// Advises against what can't be done, whatever the model says of it.
fn unless(said: Advice, why_not: Option<ApiError>) -> Advice {
    let Some(error) = why_not else {
        return said;
    };
    Advice {
        verdict: AdviceVerdict::Stay,
        why: format!("it can't go to {}: {}", said.to, error.message),
        ..said
    }
}

/// Puts into words what the model says. `work_s`: of the job, if its user knows that; `used`: whether somebody is at the machine. What that
/// one does next is decided by what is seen and typed, however busy the machine is, and would cross the link each time.
fn advice(case: &Case, to: &str, link: bool, work_s: Option<f64>, used: bool) -> Advice {
    let costs = Costs::default();
    let forecast = case.forecast(&costs);
    let waits = case.verdict(&costs) == Verdict::Bound;
    let bound = waits || used;
    let verdict = match (bound, forecast.break_even_s) {
        (true, _) | (false, None) => AdviceVerdict::Stay,
        _ if !link || work_s.is_none() => AdviceVerdict::Depends,
        _ if case.verdict(&costs) == Verdict::Pays => AdviceVerdict::Offload,
        _ => AdviceVerdict::Stay,
    };
    let busy = case.busy * 100.0;
    let why = if waits {
        let for_whom = match used {
            true => "a person, a sensor or the network",
            false => "a sensor, a clock or the network",
        };
        format!(
            "it needs its CPUs for {busy:.0} % of the time, less than {:.0} %: it waits for {for_whom}, which no CPU makes faster",
            BUSY_MIN * 100.0
        )
    } else if used {
        format!(
            "somebody is using it, and would wait {:.0} ms more for the answer to each key and touch; ask again once it computes alone",
            case.round_trip_s * 1e3
        )
    } else {
        match forecast.break_even_s {
            None => format!("{to} is no faster for it"),
            Some(_) if !link => format!(
                "how fast the link to {to} is, nobody has seen yet: floe sync NAME --to {to} does, or say --link"
            ),
            Some(work_s) => format!(
                "{} go there and {} come back; jobs that take longer than {work_s:.0} s here are done sooner on {to}",
                size_text(case.up_bytes as u64),
                size_text(case.down_bytes as u64)
            ),
        }
    };
    let of_work = |figure: f64| (link && work_s.is_some()).then_some(figure);
    Advice {
        to: to.to_owned(),
        verdict,
        why,
        busy: case.busy,
        speedup: case.speedup,
        up_bytes: case.up_bytes as u64,
        down_bytes: case.down_bytes as u64,
        link_bytes_s: link.then_some(case.up_bytes_s),
        round_trip_ms: case.round_trip_s * 1e3,
        break_even_s: forecast.break_even_s.filter(|_| link && !bound),
        here_s: of_work(forecast.here_s),
        there_s: of_work(forecast.there_s),
        here_joule: of_work(forecast.here_joule),
        there_joule: of_work(forecast.there_joule),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: Case = Case {
        work_s: 600.0,
        busy: 0.9,
        speedup: 6.0,
        up_bytes: 20e6,
        down_bytes: 5e6,
        up_bytes_s: 0.9e6,
        down_bytes_s: 0.9e6,
        round_trip_s: 0.12,
    };

    #[test]
    fn advice_says_what_is_known_and_why() {
        let said = |case: &Case, link, work_s| advice(case, "cloud", link, work_s, false);
        let long = said(&CASE, true, Some(600.0));
        assert_eq!(long.verdict, AdviceVerdict::Offload);
        assert!(long.there_s.unwrap() < 600.0 && long.there_joule < long.here_joule);
        assert!(long.why.contains("come back"), "{}", long.why);
        let short = Case {
            work_s: 5.0,
            ..CASE
        };
        assert_eq!(said(&short, true, Some(5.0)).verdict, AdviceVerdict::Stay);
        // without the job, or the link, it says what it depends on
        let any = said(&CASE, true, None);
        assert_eq!((any.verdict, any.there_s), (AdviceVerdict::Depends, None));
        assert!(any.break_even_s.unwrap() > 30.0);
        let unseen = said(&CASE, false, Some(600.0));
        assert_eq!(unseen.verdict, AdviceVerdict::Depends);
        assert!(unseen.break_even_s.is_none() && unseen.why.contains("--link"));
        // what waits stays, however long it does
        let waits = Case { busy: 0.05, ..CASE };
        let waits = said(&waits, true, Some(1e6));
        assert_eq!(waits.verdict, AdviceVerdict::Stay);
        assert!(waits.why.contains("no CPU makes faster"), "{}", waits.why);
        // so does what somebody is using, however busy it is
        let used = advice(&CASE, "cloud", true, Some(600.0), true);
        assert_eq!(used.verdict, AdviceVerdict::Stay);
        assert!(used.why.contains("120 ms more"), "{}", used.why);
        assert_eq!((used.break_even_s, used.there_s), (None, long.there_s));
        let weak = Case {
            speedup: 0.9,
            ..CASE
        };
        assert_eq!(said(&weak, true, Some(1e6)).verdict, AdviceVerdict::Stay);
    }

    #[test]
    fn what_cannot_go_there_stays_whatever_would_be_gained() {
        let said = || advice(&CASE, "cloud", true, Some(600.0), false);
        assert_eq!(unless(said(), None), said());
        let no_room = ApiError {
            code: ErrorCode::Refused,
            message: "there is no room for web".into(),
            fix: String::new(),
        };
        let stays = unless(said(), Some(no_room));
        assert_eq!(stays.verdict, AdviceVerdict::Stay);
        assert_eq!(stays.why, "it can't go to cloud: there is no room for web");
        assert_eq!(stays.there_s, said().there_s);
    }

    #[test]
    fn a_job_brings_back_as_much_however_fast_it_is_done() {
        let seen = Seen {
            busy: 0.9,
            has: 1.0,
            changes_s: 100e3,
            unknown_bytes: 50e6,
        };
        let down = |work_s: f64, speedup: f64| {
            let case = seen.case((work_s, 1e9), (speedup, 0.12), Some((0.9e6, 0.9e6)));
            assert_eq!((case.up_bytes, case.speedup), (20e6, speedup));
            case.down_bytes
        };
        assert_eq!(down(600.0, 1.0), 24e6);
        assert_eq!(down(600.0, 8.0), 24e6);
        // no more than all of its memory, and no less than the state of its devices
        assert_eq!(down(1e6, 8.0), 400e6);
        assert_eq!(down(0.0, 8.0), SENT_BYTES_MIN);
    }

    #[test]
    fn figures_that_are_none_are_refused() {
        let mut request = AdviseRequest {
            to: "cloud".into(),
            speedup: Some(8.0),
            ..Default::default()
        };
        check(&request).unwrap();
        request.work_s = Some(0.0);
        check(&request).unwrap();
        request.link_bytes_s = Some(0.0);
        assert!(check(&request).is_err());
        request.link_bytes_s = Some(f64::NAN);
        assert!(check(&request).is_err());
        request.link_bytes_s = None;
        request.speedup = Some(-1.0);
        assert!(check(&request).is_err());
    }
}
