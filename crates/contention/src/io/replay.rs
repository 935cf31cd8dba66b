//! Replays of recorded launches on a real disk, and of a film: a player reads its frames some time ahead.

use super::disk::{Buffer, Target};
use anyhow::Context as _;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use floe_mount::MachineHandle;
use floe_sched::Op;
use floe_sched::classify::{Name, Told};
use floe_testbed::launch::{Launch, NOBODY, Next, Play, REQUEST_BYTES_MAX};
use std::collections::BTreeMap;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Requests of a machine that are made at the same time: what a guest's block layer has under way for a program.
const LANES: usize = 8;
/// How long after a request a guest's agent tells who has made it, and how long it holds back what comes then.
const AGENT_LATE: Duration = Duration::from_millis(20);
const AGENT_HOLD: Duration = Duration::from_millis(40);
/// Programs that it tells of at once, and places of each.
const TOLD_AT_ONCE: usize = 4;
const PLACES_MAX: usize = 48;
/// What a replay's writes put into a disk.
const WRITTEN: u8 = 5;
/// Bytes of a frame, and how long it is shown: 7.4 Mbit/s.
pub const FRAME_BYTES: u64 = 36 << 10;
/// Bytes of a frame of a film that needs more than one share of eight of the hard disk: 11.5 Mbit/s.
pub const LARGE_FRAME_BYTES: u64 = 56 << 10;
/// How long a frame is shown.
pub const FRAME: Duration = Duration::from_millis(40);
/// Frames that a player reads ahead.
pub const FRAMES_AHEAD: usize = 8;

struct Ask {
    number: usize,
    op: Op,
    offset: u64,
    bytes: usize,
}

struct Answer {
    number: usize,
    took: Duration,
    done: std::io::Result<()>,
}

/// Threads that make one machine's requests, a few at a time. They end when it is dropped.
pub struct Lanes {
    ask: Option<Sender<Ask>>,
    answers: Receiver<Answer>,
    threads: Vec<JoinHandle<()>>,
}

impl Lanes {
    /// Opens a machine's disk.
    pub fn new(target: &Target) -> anyhow::Result<Lanes> {
        let (ask, asked) = unbounded::<Ask>();
        let (answer, answers) = unbounded();
        let mut lanes = Lanes {
            ask: Some(ask),
            answers,
            threads: Vec::new(),
        };
        for _ in 0..LANES {
            let (asked, answer, target) = (asked.clone(), answer.clone(), target.clone());
            let (opens, opened) = bounded(1);
            let lane = move || {
                floe_testbed::link::exact_timers();
                let disk = target.open();
                let mut disk = match disk {
                    Ok(disk) => {
                        let _ = opens.send(Ok(()));
                        disk
                    }
                    Err(error) => {
                        let _ = opens.send(Err(error));
                        return;
                    }
                };
                let mut buffer = Buffer::new(REQUEST_BYTES_MAX + 8192, 0);
                for ask in asked {
                    let bytes = buffer.first(ask.bytes);
                    if ask.op == Op::Write {
                        // what this lane has read before is not written back
                        bytes.fill(WRITTEN);
                    }
                    let start = Instant::now();
                    let done = disk.request(ask.op, ask.offset, bytes);
                    let took = start.elapsed();
                    let number = ask.number;
                    if answer.send(Answer { number, took, done }).is_err() {
                        return;
                    }
                }
            };
            let thread = std::thread::Builder::new()
                .name("lane".into())
                .spawn(lane)?;
            lanes.threads.push(thread);
            opened.recv().context("a lane has ended")??;
        }
        Ok(lanes)
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        drop(self.ask.take());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// What came of a replay.
#[derive(Clone, Copy, Debug, Default)]
pub struct Replayed {
    /// How long it took, in seconds.
    pub took_s: f64,
    /// For how long of that at least one of its requests was under way.
    pub waited_s: f64,
    /// The time of all its reads together: more, where several were under way.
    pub reads_s: f64,
}

/// What a guest's agent tells, which is all that the product knows of the truth in a record: later, of several requests at once, and of those few
/// programs first that have read most. It does as `floe-guest` does.
#[derive(Default)]
struct Words {
    /// What was read and not told of yet: offsets and bytes.
    read: BTreeMap<Name, Vec<(u64, u64)>>,
    /// When it looks next, if anything was read.
    looks: Option<Instant>,
    /// Before that it does not look.
    held: Option<Instant>,
}

impl Words {
    /// Adds a read; of a program without a name nothing is told.
    fn add(&mut self, now: Instant, program: &str, offset: u64, bytes: u64) {
        let (Ok(name), false) = (Name::new(program), program == NOBODY) else {
            return;
        };
        let soonest = now + AGENT_LATE;
        let looks = self.held.map_or(soonest, |held| held.max(soonest));
        self.looks = self.looks.or(Some(looks));
        let places = self.read.entry(name).or_default();
        let is_full = places.len() >= PLACES_MAX;
        match places.last_mut() {
            Some((from, long)) if *from + *long == offset => *long += bytes,
            Some(last) if is_full => *last = (offset, bytes),
            _ => places.push((offset, bytes)),
        }
    }

    /// Returns what is told now.
    fn take(&mut self, now: Instant) -> Vec<Told> {
        if self.looks.is_none_or(|looks| now < looks) {
            return Vec::new();
        }
        let read = |places: &[(u64, u64)]| places.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let sums = self.read.iter().map(|(name, places)| (read(places), *name));
        let mut most: Vec<(u64, Name)> = sums.collect();
        most.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        let mut told = Vec::new();
        for (_, name) in most.into_iter().take(TOLD_AT_ONCE) {
            let places = self.read.remove(&name).unwrap_or_default();
            told.extend(places.into_iter().map(|(from, bytes)| Told {
                name,
                from: Some(from),
                bytes,
            }));
        }
        let held = now + AGENT_HOLD;
        self.held = Some(held);
        self.looks = (!self.read.is_empty()).then_some(held);
        told
    }

    /// Tells what is due. Returns when the next word is.
    fn tell(&mut self, machine: &MachineHandle) -> Option<Instant> {
        let told = self.take(Instant::now());
        if !told.is_empty() {
            machine.told_who_asks(&told);
        }
        self.looks
    }
}

/// Replays a launch. The machine, if it is one of a mount, has the inputs, and its agent tells who has read what. `each` hears how long each
/// request took, in microseconds, and says whether to go on.
pub fn replay(
    lanes: &Lanes,
    launch: &Launch,
    machine: Option<&MachineHandle>,
    each: &mut dyn FnMut(u64) -> bool,
) -> anyhow::Result<Replayed> {
    let ask = lanes.ask.as_ref().context("it has not ended")?;
    let began = Instant::now();
    let now_us = || began.elapsed().as_micros() as u64;
    let mut play = Play::new(launch, 0);
    let (mut words, mut reads) = (Words::default(), Duration::ZERO);
    let (mut outstanding, mut goes_on) = (0usize, true);
    loop {
        let word = machine.and_then(|machine| words.tell(machine));
        let until = match play.next(now_us()) {
            // what has begun is waited for, or its answer would be taken for another's
            _ if !goes_on && outstanding == 0 => break,
            Next::Over => break,
            Next::Input => {
                if let Some(machine) = machine {
                    machine.input();
                }
                continue;
            }
            Next::Begin(number) => {
                let step = &launch.steps[number];
                outstanding += 1;
                ask.send(Ask {
                    number,
                    op: step.op,
                    offset: step.offset,
                    bytes: step.bytes as usize,
                })
                .context("the lanes have ended")?;
                continue;
            }
            Next::Until(us) => Some(began + Duration::from_micros(us)),
            Next::Waits => None,
        };
        let until = until.into_iter().chain(word).min();
        let answer = match until {
            Some(until) => lanes.answers.recv_deadline(until),
            None => lanes
                .answers
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
        };
        match answer {
            Ok(Answer { number, took, done }) => {
                let step = &launch.steps[number];
                done.with_context(|| format!("{} bytes at {}", step.bytes, step.offset))?;
                outstanding -= 1;
                play.done(now_us());
                goes_on &= each(took.as_micros() as u64);
                if step.op == Op::Read {
                    reads += took;
                    words.add(Instant::now(), &step.program, step.offset, step.bytes);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => anyhow::bail!("the lanes have ended"),
        }
    }
    Ok(Replayed {
        took_s: play.took_us() as f64 / 1e6,
        waited_s: play.waited_us() as f64 / 1e6,
        reads_s: reads.as_secs_f64(),
    })
}

/// Plays a film of so many frames from this place on; returns the share of its frames that are dropped, in percent. One that isn't there within its own
/// time is dropped, and passed over when it comes.
pub fn film(
    target: &Target,
    machine: Option<&MachineHandle>,
    from: u64,
    frame_bytes: u64,
    frames: usize,
) -> anyhow::Result<f64> {
    floe_testbed::link::exact_timers();
    let mut disk = target.open()?;
    let mut buffer = Buffer::new(frame_bytes as usize, 0);
    if let Some(machine) = machine {
        machine.input();
    }
    let (mut words, mut start) = (Words::default(), None);
    let mut arrived = Vec::with_capacity(frames);
    for frame in 0..frames {
        if let Some(wanted) = may_read(frame, start) {
            std::thread::sleep(wanted.saturating_duration_since(Instant::now()));
        }
        let offset = from + frame as u64 * frame_bytes;
        disk.request(Op::Read, offset, buffer.first(frame_bytes as usize))?;
        let now = Instant::now();
        // a player begins once it has read ahead
        if frame + 1 == FRAMES_AHEAD.min(frames) {
            start = Some(now);
        }
        arrived.push(now);
        if let Some(machine) = machine {
            words.add(now, "mplayer", offset, frame_bytes);
            words.tell(machine);
        }
    }
    let start = start.context("a film has frames")?;
    let late = |at: &Instant| at.saturating_duration_since(start).as_micros() as u64;
    let arrived_us: Vec<u64> = arrived.iter().map(late).collect();
    Ok(dropped_percent(&arrived_us))
}

/// Returns when a frame may be read: when the one before it by as many as are read ahead begins to be shown.
fn may_read(frame: usize, start: Option<Instant>) -> Option<Instant> {
    let shown = frame.checked_sub(FRAMES_AHEAD)?;
    Some(start? + FRAME * shown as u32)
}

/// Returns the share of frames that came later than their own time on the screen, in percent; times are in microseconds after the first was shown.
fn dropped_percent(arrived_us: &[u64]) -> f64 {
    let frame_us = FRAME.as_micros() as u64;
    let is_late = |(frame, us): &(usize, &u64)| **us > (*frame as u64 + 1) * frame_us;
    let late = arrived_us.iter().enumerate().filter(is_late).count();
    late as f64 / arrived_us.len().max(1) as f64 * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_testbed::launch::Script;

    #[test]
    fn a_frame_is_dropped_that_comes_after_its_own_time() {
        let frame_us = 40_000;
        assert_eq!(dropped_percent(&[0, 0, 0, 0]), 0.0);
        assert_eq!(
            dropped_percent(&[frame_us, 2 * frame_us, 3 * frame_us]),
            0.0
        );
        assert_eq!(
            dropped_percent(&[0, 2 * frame_us + 1, 3 * frame_us, 9 * frame_us]),
            50.0
        );
        assert_eq!(dropped_percent(&[]), 0.0);
    }

    #[test]
    fn a_film_is_of_at_most_8_mbit_a_second_and_the_large_one_of_more_than_a_share() {
        let mbit = |bytes: u64| bytes as f64 * 8.0 / FRAME.as_secs_f64() / 1e6;
        assert!(mbit(FRAME_BYTES) <= 8.0 && mbit(FRAME_BYTES) > 7.0);
        assert!(mbit(LARGE_FRAME_BYTES) > 11.0);
    }

    #[test]
    fn a_player_reads_no_further_ahead_than_it_shows() {
        let start = Instant::now();
        assert_eq!(may_read(FRAMES_AHEAD - 1, None), None);
        assert_eq!(may_read(FRAMES_AHEAD, Some(start)), Some(start));
        assert_eq!(
            may_read(FRAMES_AHEAD + 5, Some(start)),
            Some(start + 5 * FRAME)
        );
    }

    #[test]
    fn the_agent_tells_late_of_those_that_read_most_and_nothing_of_nobody() {
        let (start, mut words) = (Instant::now(), Words::default());
        for (number, program) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
            words.add(start, program, 1 << 20, 4096 * (number as u64 + 1));
        }
        words.add(start, NOBODY, 0, 1 << 20);
        // the next place is the same one, a further one is another
        words.add(start, "e", (1 << 20) + 5 * 4096, 4096);
        words.add(start, "e", 0, 4096);
        assert!(words.take(start).is_empty());
        let told = words.take(start + AGENT_LATE);
        let names: Vec<&str> = told.iter().map(|told| told.name.as_str()).collect();
        assert_eq!(names, ["e", "e", "d", "c", "b"]);
        assert_eq!((told[0].from, told[0].bytes), (Some(1 << 20), 6 * 4096));
        let held = start + AGENT_LATE + AGENT_HOLD;
        words.add(start + AGENT_LATE, "f", 0, 4096);
        assert_eq!(words.looks, Some(held));
        assert_eq!(words.take(held).len(), 2);
        assert_eq!(words.looks, None);
        for number in 0..1_000 {
            words.add(held, "g", number * 8192, 4096);
        }
        assert_eq!(words.take(held + AGENT_HOLD).len(), PLACES_MAX);
    }

    #[test]
    fn a_replay_makes_each_request_of_a_launch_once() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("disk");
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        let target = Target::File {
            path: path.clone(),
            group: None,
        };
        let lanes = Lanes::new(&target).unwrap();
        let text = "launch a\nslowdown 1\ninput\n100 read 0 4096 a\n+ read 4096 8192 a\n50 write 16384 4096 a\n0 flush 0 0 a\n10 read 8192 4096 a\n";
        let launch = Launch::of(&Script::parse(text).unwrap());
        let mut took = Vec::new();
        let replayed = replay(&lanes, &launch, None, &mut |us| {
            took.push(us);
            true
        });
        let replayed = replayed.unwrap();
        assert_eq!(took.len(), 5);
        assert!(replayed.waited_s <= replayed.took_s && replayed.took_s > 160e-6);
        assert_eq!(std::fs::read(&path).unwrap()[16384], WRITTEN);
        // one that is told to stop leaves no answer behind
        let mut heard = 0;
        let stopped = replay(&lanes, &launch, None, &mut |_| {
            heard += 1;
            false
        });
        stopped.unwrap();
        assert_eq!(heard, 2);
        replay(&lanes, &launch, None, &mut |_| true).unwrap();
        std::fs::write(&path, [1; 512]).unwrap();
        assert!(replay(&lanes, &launch, None, &mut |_| true).is_err());
    }
}
