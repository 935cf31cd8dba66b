//! Recorded launches and their replay: which requests a program made after somebody touched a key, and in which order they are made again.
//!
//! - [`Script`] is a record as it stands in `lab/launches/`, one file each (`guests/io_script.rs` has the format).
//! - [`Launch`] is one that is ready to be replayed: its computing as long as on a host of ordinary speed, its places moved together.
//! - [`Play`] decides when which request is made, without I/O and clock. The replay through a mount (the experiment `io`) and the
//!   simulator (`io-sim`) ask the same code.
//! - [`recorded`] makes a script of what QEMU has traced of a guest's requests ([`noted`]) and of what the guest's kernel has ([`traced`]): who asked.
//!
//! Requests that the program made without waiting for an answer are made without waiting here too; any other one waits until all before it are done, and
//! for as long as the program computed then.

#[path = "../../lab/guests/io_files.rs"]
mod files;
#[path = "../../lab/guests/io_script.rs"]
mod script;
mod truth;

use anyhow::Context as _;
pub use files::mix;
use floe_sched::Op;
pub use script::{Does, REQUEST_BYTES_MAX, Recorded, Script};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::Path;
pub use truth::{NOBODY, Traced, read_of, traced};

/// What a recorded file's name ends with.
const SUFFIX: &str = "launch";
/// Gaps between places that are read are shortened to this, which is as far to seek as any longer one
/// ([`crate::slow_disk::Model`] passes over half of it).
const GAP_BYTES: u64 = 256 << 10;
/// What the lab's disks count in: requests of fewer bytes are of a whole one.
const BLOCK_BYTES: u64 = 4096;
/// Of so many reads of a launch that is made up, a warm one makes one.
const WARM_EACH: u64 = 5;
/// Reads of a page that is made up, and how many of them at a time.
const PAGE_READS: u64 = 12;
const PAGE_AT_ONCE: u64 = 4;
const PAGE_THINK_US: u64 = 2_000;
/// Reads of a shell's command that is made up: the program, a library, its data.
const COMMAND_READS: u64 = 3;
/// Pages and commands have files of their own, as if they were programs with these numbers.
const PAGES: u64 = 1_000;
const COMMANDS: u64 = 2_000;

/// A request of a launch that is replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// How long after everything before it was done (or after its input), in microseconds; `None`: together with the one before.
    pub think_us: Option<u64>,
    /// Whether a key is touched before it.
    pub after_input: bool,
    /// What it does.
    pub op: Op,
    /// Where, in bytes.
    pub offset: u64,
    /// How much.
    pub bytes: u64,
    /// Who asks, in truth; [`NOBODY`] if that isn't known.
    pub program: String,
}

/// A launch that can be replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// What is launched.
    pub name: String,
    /// Its requests, in their order.
    pub steps: Vec<Step>,
}

impl Launch {
    /// Makes a script ready.
    pub fn of(script: &Script) -> Launch {
        let step = |request: &Recorded| {
            let offset = request.offset / BLOCK_BYTES * BLOCK_BYTES;
            let end = request.offset + request.bytes as u64;
            Step {
                think_us: script.think_us(request),
                after_input: request.after_input,
                op: match request.does {
                    Does::Read => Op::Read,
                    Does::Write => Op::Write,
                    Does::Flush => Op::Flush,
                },
                offset,
                bytes: end.next_multiple_of(BLOCK_BYTES) - offset,
                program: request.program.clone(),
            }
        };
        Launch::moved_together(&script.name, script.requests.iter().map(step).collect())
    }

    /// Makes one of steps at their places on a large disk, which are moved together.
    pub fn moved_together(name: &str, mut steps: Vec<Step>) -> Launch {
        move_together(&mut steps);
        Launch {
            name: name.to_owned(),
            steps,
        }
    }

    /// Returns the same launch of which nobody tells whose requests these are, as of a guest without an agent.
    pub fn unnamed(&self) -> Launch {
        let mut launch = self.clone();
        launch
            .steps
            .iter_mut()
            .for_each(|step| step.program.clear());
        launch
    }

    /// Returns the script that this is of when no host computes longer, for a guest that replays it.
    pub fn script(&self) -> Script {
        let recorded = |step: &Step| Recorded {
            think_us: step.think_us,
            does: match step.op {
                Op::Read => Does::Read,
                Op::Write => Does::Write,
                Op::Flush => Does::Flush,
            },
            offset: step.offset,
            bytes: (step.bytes as usize).min(REQUEST_BYTES_MAX),
            program: step.program.clone(),
            after_input: step.after_input,
        };
        Script {
            name: self.name.clone(),
            slowdown: 1.0,
            requests: self.steps.iter().map(recorded).collect(),
        }
    }

    /// Returns where the last byte ends that it uses.
    pub fn end(&self) -> u64 {
        let ends = self.steps.iter().map(|step| step.offset + step.bytes);
        ends.max().unwrap_or(0)
    }

    /// Returns how many reads it has.
    pub fn reads(&self) -> usize {
        let reads = self.steps.iter().filter(|step| step.op == Op::Read);
        reads.count()
    }

    /// Returns how many bytes it reads.
    pub fn read_bytes(&self) -> u64 {
        let reads = self.steps.iter().filter(|step| step.op == Op::Read);
        reads.map(|step| step.bytes).sum()
    }
}

/// Moves what is used together, so that it fits a small disk; what was near stays as near, and what was far is far.
fn move_together(steps: &mut [Step]) {
    let mut used: Vec<(u64, u64)> = steps
        .iter()
        .filter(|step| step.bytes > 0)
        .map(|step| (step.offset, step.offset + step.bytes))
        .collect();
    used.sort_unstable();
    // where each stretch begins, and by how much it moves down
    let mut moves: Vec<(u64, u64)> = Vec::new();
    let (mut end, mut down) = (0, 0);
    for (from, to) in used {
        if moves.is_empty() || from > end + GAP_BYTES {
            down = match moves.is_empty() {
                true => from,
                false => down + (from - end - GAP_BYTES),
            };
            moves.push((from, down));
        }
        end = end.max(to);
    }
    for step in steps {
        let at = moves.partition_point(|(from, _)| *from <= step.offset);
        if let Some((_, down)) = at.checked_sub(1).and_then(|at| moves.get(at)) {
            step.offset -= down;
        }
    }
}

/// Returns all launches that are recorded in a directory, by name; none if there is no such directory.
pub fn load(dir: &Path) -> anyhow::Result<Vec<Script>> {
    let cannot = || format!("cannot read {}", dir.display());
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(cannot)?,
    };
    let mut scripts = Vec::new();
    for entry in entries {
        let path = entry.with_context(cannot)?.path();
        if path.extension().is_none_or(|end| end != SUFFIX) {
            continue;
        }
        let text = std::fs::read_to_string(&path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        let script = Script::parse(&text);
        let script = script.map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
        scripts.push(script);
    }
    scripts.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(scripts)
}

/// Writes a script into a directory, under its name.
pub fn store(dir: &Path, script: &Script) -> anyhow::Result<()> {
    let path = dir.join(format!("{}.{SUFFIX}", script.name));
    let new = path.with_extension("new");
    let cannot = || format!("cannot write {}", path.display());
    std::fs::create_dir_all(dir).with_context(cannot)?;
    std::fs::write(&new, script.text()).with_context(cannot)?;
    std::fs::File::open(&new)
        .and_then(|file| file.sync_all())
        .and_then(|()| std::fs::rename(&new, &path))
        .with_context(cannot)
}

fn made_up_step(of: u64, number: u64, program: &str, think_us: Option<u64>) -> Recorded {
    let (offset, bytes) = files::file(of, number);
    Recorded {
        think_us,
        does: Does::Read,
        offset,
        bytes,
        program: program.to_owned(),
        after_input: number == 0,
    }
}

fn made_up_script(name: String, requests: Vec<Recorded>) -> Script {
    Script {
        name,
        slowdown: 1.0,
        requests,
    }
}

/// Returns a launch that is made up: 60 reads of 16 to 64 KiB that depend on each other, some milliseconds of computing between them.
pub fn made_up(program: u64) -> Script {
    let name = format!("program{program}");
    let step = |number: u64| {
        let think_us = match number.checked_sub(1) {
            Some(before) => files::think_us(program, before),
            None => 0,
        };
        made_up_step(program, number, &name, Some(think_us))
    };
    let requests = (0..files::LAUNCH_READS).map(step).collect();
    made_up_script(name, requests)
}

/// Returns a launch that is made up of the same program after it was used: the guest still has four of five things that it reads, and computes
/// as long as before.
pub fn made_up_warm(program: u64) -> Script {
    let name = format!("warm{program}");
    let step = |number: u64| {
        let since = (number * WARM_EACH).saturating_sub(WARM_EACH);
        let thinks = (since..number * WARM_EACH).map(|before| files::think_us(program, before));
        made_up_step(program, number * WARM_EACH, &name, Some(thinks.sum()))
    };
    let requests = (0..files::LAUNCH_READS / WARM_EACH).map(step).collect();
    made_up_script(name, requests)
}

/// Returns a page that is made up: a read, then twelve more, four at a time.
pub fn made_up_page(page: u64) -> Script {
    let step = |number: u64| {
        let is_first = number == 0 || number % PAGE_AT_ONCE == 1;
        let think_us = is_first.then_some(PAGE_THINK_US);
        made_up_step(PAGES + page, number, "browser", think_us)
    };
    let requests = (0..=PAGE_READS).map(step).collect();
    made_up_script(format!("page{page}"), requests)
}

/// Returns a shell's command that is made up: what it reads of the disk before it answers.
pub fn made_up_command(command: u64) -> Script {
    let step = |number: u64| made_up_step(COMMANDS + command, number, "sh", Some(1_000));
    let requests = (0..COMMAND_READS).map(step).collect();
    made_up_script(format!("command{command}"), requests)
}

/// A request as QEMU has noted it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    /// When it came, in microseconds since 1970.
    pub unix_us: u64,
    /// When it was done, the same.
    pub done_us: u64,
    /// What it does.
    pub does: Does,
    /// Where on the disk, in bytes.
    pub offset: u64,
    /// How much.
    pub bytes: u64,
}

/// Reads what QEMU has traced of a disk (`virtio_blk_handle_*` and `virtio_blk_req_complete`, with `-msg timestamp=on`), in the order in which the requests
/// came. It tells of a flush only that it was done.
pub fn noted(text: &str) -> anyhow::Result<Vec<Noted>> {
    let mut all: Vec<Noted> = Vec::new();
    let mut under_way: HashMap<&str, usize> = HashMap::new();
    for line in text.lines() {
        // `PROCESS@SECONDS.MICROSECONDS:EVENT vdev V req R ...`; the last line may be half written
        let Some((head, event)) = line.split_once(":virtio_blk_") else {
            continue;
        };
        let us = head
            .split_once('@')
            .and_then(|(_, time)| time.split_once('.'))
            .and_then(|(s, us)| Some(s.parse::<u64>().ok()? * 1_000_000 + us.parse::<u64>().ok()?))
            .with_context(|| format!("{line:?} has no time: QEMU lacks -msg timestamp=on"))?;
        let words: Vec<&str> = event.split(' ').collect();
        match words[..] {
            [
                what,
                "vdev",
                _,
                "req",
                request,
                "sector",
                sector,
                "nsectors",
                sectors,
            ] => {
                let does = match what {
                    "handle_read" => Does::Read,
                    "handle_write" => Does::Write,
                    other => anyhow::bail!("QEMU has traced a request that does {other:?}"),
                };
                let (Ok(sector), Ok(sectors)) = (sector.parse::<u64>(), sectors.parse::<u64>())
                else {
                    continue;
                };
                under_way.insert(request, all.len());
                all.push(Noted {
                    unix_us: us,
                    done_us: u64::MAX,
                    does,
                    offset: sector * script::SECTOR_BYTES,
                    bytes: sectors * script::SECTOR_BYTES,
                });
            }
            ["req_complete", "vdev", _, "req", request, "status", _] => {
                match under_way.remove(request) {
                    Some(at) => all[at].done_us = us,
                    None => all.push(Noted {
                        unix_us: us,
                        done_us: us,
                        does: Does::Flush,
                        offset: 0,
                        bytes: 0,
                    }),
                }
            }
            _ => {}
        }
    }
    all.retain(|noted| noted.done_us != u64::MAX);
    Ok(all)
}

/// What was launched, when, and in what guest.
#[derive(Clone, Copy, Debug)]
pub struct Recording<'a> {
    /// Its name.
    pub name: &'a str,
    /// How many times longer the guest computes than this host.
    pub slowdown: f64,
    /// When the key was touched, in microseconds since 1970.
    pub input_us: u64,
    /// When it was there.
    pub until_us: u64,
}

/// Makes a script of what was noted from the input until the end: a request has waited for all before it if they were done when it came. `None` if
/// nothing was asked for. `traced` is what the guest's kernel says of the same time.
pub fn recorded(of: Recording, noted: &[Noted], traced: &[Traced]) -> Option<Script> {
    let mut truth = truth::Truth::new(traced);
    let mut requests: Vec<Recorded> = Vec::new();
    let mut done_us = of.input_us;
    let within = noted
        .iter()
        .filter(|noted| (of.input_us..=of.until_us).contains(&noted.unix_us))
        .filter(|noted| noted.bytes > 0 || noted.does == Does::Flush);
    for noted in within {
        let waited = requests.is_empty() || noted.unix_us >= done_us;
        let mut think_us = waited.then(|| noted.unix_us - done_us);
        done_us = noted.done_us.max(done_us);
        let program = truth.who(noted);
        let (mut from, end) = (noted.offset, noted.offset + noted.bytes);
        loop {
            let bytes = (end - from).min(REQUEST_BYTES_MAX as u64);
            requests.push(Recorded {
                think_us: think_us.take(),
                does: noted.does,
                offset: from,
                bytes: bytes as usize,
                program: program.to_owned(),
                after_input: requests.is_empty(),
            });
            from += bytes;
            if from >= end {
                break;
            }
        }
    }
    (!requests.is_empty()).then(|| Script {
        name: of.name.to_owned(),
        slowdown: of.slowdown.max(1.0),
        requests,
    })
}

impl Script {
    /// Returns the same with its first requests alone, so many of them.
    pub fn first(&self, most: usize) -> Script {
        Script {
            requests: self.requests.iter().take(most).cloned().collect(),
            ..self.clone()
        }
    }
}

/// What a replay does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A key is touched.
    Input,
    /// The step of this number begins.
    Begin(usize),
    /// Nothing before this time.
    Until(u64),
    /// Nothing before one of the requests that have begun is done.
    Waits,
    /// It is over.
    Over,
}

/// A launch that is being replayed. Times are in microseconds of any clock.
#[derive(Debug)]
pub struct Play<'a> {
    steps: &'a [Step],
    at: usize,
    outstanding: usize,
    has_input: bool,
    began_us: u64,
    /// When all before the next step was done.
    ready_us: u64,
    /// When the first of those began that are outstanding.
    waits_us: u64,
    waited_us: u64,
}

impl<'a> Play<'a> {
    /// Begins.
    pub fn new(launch: &'a Launch, now_us: u64) -> Play<'a> {
        Play {
            steps: &launch.steps,
            at: 0,
            outstanding: 0,
            has_input: false,
            began_us: now_us,
            ready_us: now_us,
            waits_us: now_us,
            waited_us: 0,
        }
    }

    /// Returns what is to be done now. A step that it returns has begun.
    pub fn next(&mut self, now_us: u64) -> Next {
        let Some(step) = self.steps.get(self.at) else {
            return match self.outstanding {
                0 => Next::Over,
                _ => Next::Waits,
            };
        };
        if let Some(think_us) = step.think_us {
            if self.outstanding > 0 {
                return Next::Waits;
            }
            if step.after_input && !std::mem::replace(&mut self.has_input, true) {
                return Next::Input;
            }
            let due_us = self.ready_us + think_us;
            if now_us < due_us {
                return Next::Until(due_us);
            }
        }
        if self.outstanding == 0 {
            self.waits_us = now_us;
        }
        self.outstanding += 1;
        self.has_input = false;
        self.at += 1;
        Next::Begin(self.at - 1)
    }

    /// One of the steps that have begun is done.
    pub fn done(&mut self, now_us: u64) {
        self.outstanding -= 1;
        if self.outstanding == 0 {
            self.waited_us += now_us - self.waits_us;
            self.ready_us = now_us;
        }
    }

    /// Returns how long it took until all was done, in microseconds.
    pub fn took_us(&self) -> u64 {
        self.ready_us - self.began_us
    }

    /// Returns for how long of that it waited for the disk: at least one request was under way.
    pub fn waited_us(&self) -> u64 {
        self.waited_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "launch xpdf\nslowdown 10\ninput\n4200 read 1048576 16384 xpdf\n+ read 20971520 65536 xpdf\n1500 write 4096 4096 kjournald\n0 flush 0 0 kjournald\n";

    fn launch() -> Launch {
        Launch::of(&Script::parse(TEXT).unwrap())
    }

    #[test]
    fn a_script_is_read_as_it_was_written_and_nothing_else_is() {
        let script = Script::parse(TEXT).unwrap();
        assert_eq!(script.text(), TEXT);
        assert_eq!(script.think_us(&script.requests[0]), Some(420));
        for (line, wrong) in [
            ("slowdown 10", "slowdown 0.5"),
            ("slowdown 10", "slowdown inf"),
            ("4200 read", "+ read"),
            ("1048576 16384", "1048577 16384"),
            ("1048576 16384", "1048576 2097152"),
            ("1048576 16384", "1048576 0"),
            ("1048576 16384", "18446744073709551104 512"),
            (" xpdf\n+", "\n+"),
            ("write", "trim"),
            ("launch xpdf\n", ""),
        ] {
            let text = TEXT.replacen(line, wrong, 1);
            assert!(text != TEXT && Script::parse(&text).is_err(), "{wrong}");
        }
        assert!(Script::parse("launch x\nslowdown 1\n").is_err());
    }

    #[test]
    fn what_is_near_stays_as_near_and_what_is_far_is_a_seek_away() {
        let offsets: Vec<u64> = launch().steps.iter().map(|step| step.offset).collect();
        let far = (1 << 20) - 4096 - 4096;
        // 4096..8192, then 1 MiB.., then 20 MiB..: two gaps that become the shortest that is sought over
        assert_eq!(offsets[2], 0);
        assert_eq!(offsets[0], 4096 + GAP_BYTES);
        assert_eq!(offsets[1], offsets[0] + 16384 + GAP_BYTES);
        assert!(far > GAP_BYTES);
        let near = "launch a\nslowdown 1\n0 read 8192 4096 a\n0 read 131072 4096 a\n";
        let near = Launch::of(&Script::parse(near).unwrap());
        assert_eq!(near.steps[1].offset - near.steps[0].offset, 131072 - 8192);
        assert_eq!(near.end(), 131072 - 8192 + 4096);
        assert_eq!(Launch::of(&near.script()), near);
        let small = "launch a\nslowdown 1\n0 read 1536 1024 a\n0 read 3584 1024 a\n";
        let small = Launch::of(&Script::parse(small).unwrap());
        assert_eq!(
            (small.steps[0].bytes, small.steps[1].bytes, small.end()),
            (4096, 8192, 8192)
        );
        assert_eq!((small.reads(), small.read_bytes()), (2, 12288));
    }

    #[test]
    fn a_replay_keeps_order_computing_and_what_was_together() {
        let launch = launch();
        let mut play = Play::new(&launch, 1_000);
        assert_eq!(play.next(1_000), Next::Input);
        assert_eq!(play.next(1_000), Next::Until(1_420));
        assert_eq!(play.next(1_419), Next::Until(1_420));
        assert_eq!(play.next(1_425), Next::Begin(0));
        assert_eq!(play.next(1_425), Next::Begin(1));
        assert_eq!(play.next(1_425), Next::Waits);
        play.done(9_000);
        assert_eq!(play.next(9_000), Next::Waits);
        play.done(10_425);
        assert_eq!(play.next(10_425), Next::Until(10_575));
        assert_eq!(play.next(10_575), Next::Begin(2));
        play.done(11_000);
        assert_eq!(play.next(11_000), Next::Begin(3));
        assert_eq!(play.next(11_000), Next::Waits);
        play.done(36_000);
        assert_eq!(play.next(36_000), Next::Over);
        assert_eq!(play.took_us(), 35_000);
        assert_eq!(play.waited_us(), 9_000 + 425 + 25_000);
    }

    #[test]
    fn each_input_comes_before_its_request_and_once() {
        let text = "launch a\nslowdown 1\ninput\n5 read 0 4096 a\ninput\n5 read 4096 512 a\n";
        let launch = Launch::of(&Script::parse(text).unwrap());
        let mut play = Play::new(&launch, 0);
        let mut seen = Vec::new();
        let mut now_us = 0;
        loop {
            let next = play.next(now_us);
            seen.push(next);
            match next {
                Next::Input => {}
                Next::Until(us) => now_us = us,
                Next::Begin(_) => {
                    now_us += 7;
                    play.done(now_us);
                }
                Next::Waits => panic!("nothing is outstanding"),
                Next::Over => break,
            }
        }
        let one = |number, until| [Next::Input, Next::Until(until), Next::Begin(number)];
        assert_eq!(
            seen,
            [&one(0, 5)[..], &one(1, 17)[..], &[Next::Over]].concat()
        );
    }

    #[test]
    fn a_record_tells_computing_and_what_was_asked_for_together() {
        let text = "9@1.000900:virtio_blk_handle_read vdev 0xa req 0x1 sector 0 nsectors 8\n\
            9@1.000950:virtio_blk_req_complete vdev 0xa req 0x1 status 0\n\
            9@1.005000:virtio_blk_handle_read vdev 0xa req 0x1 sector 16 nsectors 8\n\
            9@1.005100:virtio_blk_handle_read vdev 0xa req 0x2 sector 128 nsectors 4096\n\
            9@1.005150:virtio_blk_req_complete vdev 0xa req 0x1 status 0\n\
            9@1.006000:virtio_blk_rw_complete vdev 0xa req 0x2 ret 0\n\
            9@1.006000:virtio_blk_req_complete vdev 0xa req 0x2 status 0\n\
            9@1.007000:virtio_blk_req_complete vdev 0xa req 0x7 status 0\n\
            9@1.008000:virtio_blk_handle_write vdev 0xa req 0x3 sector 8 nsectors 1\n\
            9@1.008090:virtio_blk_req_complete vdev 0xa req 0x3 status 0\n\
            9@1.009900:virtio_blk_handle_read vdev 0xa req 0x1 sector 0 nsectors 8\n\
            9@1.0099";
        let noted = noted(text).unwrap();
        // the last one was never done
        assert_eq!(noted.len(), 5);
        let of = Recording {
            name: "xpdf",
            slowdown: 8.0,
            input_us: 1_001_000,
            until_us: 1_009_500,
        };
        let traced = traced(
            "a-5 ( 5) [0] . 1: block_bio_queue: 254,0 R 16 + 8 [icewm]\nb-6 ( 6) [0] . 1: block_bio_queue: 254,0 RA 128 + 4096 [xpdf]\n\
            c-7 ( 7) [0] . 1: block_bio_queue: 254,0 FWS 8 + 1 [jbd2/vda-8]\n",
        );
        let script = recorded(of, &noted, &traced).unwrap();
        assert_eq!(
            script.text(),
            "launch xpdf\nslowdown 8\ninput\n4000 read 8192 4096 icewm\n+ read 65536 1048576 xpdf\n+ read 1114112 1048576 xpdf\n\
            1000 flush 0 0 jbd2\n1000 write 4096 512 jbd2\n"
        );
        assert_eq!(Script::parse(&script.text()).unwrap(), script);
        let until_us = 1_004_000;
        assert!(recorded(Recording { until_us, ..of }, &noted, &traced).is_none());
        assert!(self::noted("9:virtio_blk_handle_read vdev 0xa\n").is_err());
        assert!(
            self::noted("9@1.0:virtio_blk_handle_trim vdev a req b sector 1 nsectors 1\n").is_err()
        );
    }

    #[test]
    fn what_is_made_up_can_be_written_and_read() {
        for script in [made_up(3), made_up_page(1), made_up_command(0)] {
            assert_eq!(Script::parse(&script.text()).unwrap(), script);
        }
        let page = made_up_page(1);
        let first = page.requests.iter().filter(|r| r.think_us.is_some());
        assert_eq!((page.requests.len(), first.count()), (13, 4));
    }

    #[test]
    fn launches_are_stored_and_found_by_name_and_none_are_none() {
        let dir = tempfile::tempdir().unwrap();
        let launches = dir.path().join("launches");
        assert!(load(&launches).unwrap().is_empty());
        store(&launches, &made_up(2)).unwrap();
        store(&launches, &made_up(1)).unwrap();
        assert_eq!(load(&launches).unwrap(), [made_up(1), made_up(2)]);
        std::fs::write(launches.join("bad.launch"), "launch x\n").unwrap();
        let error = load(&launches).unwrap_err().to_string();
        assert!(error.contains("bad.launch"), "{error}");
    }
}
