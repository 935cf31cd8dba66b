//! Who asked, as the recorded guest's own kernel says: it traces each request that a program makes (`block_bio_queue`), before requests are joined and
//! divided on their way to the disk. The launched program is one of several: its helpers, and the system's daemons, have their own names.

use super::Noted;
use super::script::{Does, SECTOR_BYTES};
use std::collections::HashMap;

/// Stands for the program where the guest's kernel has not said who asked. No agent tells of it.
pub const NOBODY: &str = "?";

/// A request as a program made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traced {
    program: String,
    does: Does,
    /// Whether earlier writes are made durable before or with it.
    flushes: bool,
    /// The first byte, and the first one behind it.
    from: u64,
    end: u64,
}

/// A line of the kernel's trace.
struct Event<'a> {
    name: &'a str,
    thread: u32,
    /// The process that the thread belongs to, if the kernel still knew it.
    process: Option<u32>,
    does: Does,
    flushes: bool,
    from: u64,
    end: u64,
}

/// Reads the kernel's trace with `record-tgid`; lines of anything else are passed over.
pub fn traced(text: &str) -> Vec<Traced> {
    // threads have names of their own, but a program is its process
    let mut names: HashMap<u32, &str> = HashMap::new();
    let mut all = Vec::new();
    for event in text.lines().filter_map(event) {
        let process = event.process.unwrap_or(event.thread);
        let name = match process == event.thread {
            true => {
                names.insert(process, event.name);
                event.name
            }
            false => names.get(&process).copied().unwrap_or(event.name),
        };
        all.push(Traced {
            program: plain(name),
            does: event.does,
            flushes: event.flushes,
            from: event.from,
            end: event.end,
        });
    }
    all
}

/// Reads a line of such a trace, if it is of a read: the thread that asked, the first byte, and the first one behind it.
pub fn read_of(line: &str) -> Option<(u32, u64, u64)> {
    let event = event(line)?;
    (event.does == Does::Read).then_some((event.thread, event.from, event.end))
}

/// Reads a line such as `dd-310 ( 310) [000] d..1. 12.345678: block_bio_queue: 254,0 RA 2048 + 256 [dd]`.
fn event(line: &str) -> Option<Event<'_>> {
    let (head, tail) = line.split_once(": block_bio_queue: ")?;
    let task = head[..head.rfind(" [")?].trim_end();
    let (task, process) = match task
        .strip_suffix(')')
        .and_then(|task| task.rsplit_once('('))
    {
        Some((task, process)) => (task, process.trim().parse().ok()),
        None => (task, None),
    };
    let (_, thread) = task.trim_end().rsplit_once('-')?;
    let (_, asked) = tail.split_once(' ')?;
    let (asked, name) = asked.trim_end().strip_suffix(']')?.split_once(" [")?;
    let words: Vec<&str> = asked.split(' ').collect();
    let [kind, first, "+", count] = words[..] else {
        return None;
    };
    let flushes = kind.contains('F');
    let does = match kind.trim_start_matches('F').chars().next() {
        Some('R') => Does::Read,
        Some('W') => Does::Write,
        None => Does::Flush,
        Some(_) => return None,
    };
    let from = first.parse::<u64>().ok()?.checked_mul(SECTOR_BYTES)?;
    let bytes = count.parse::<u64>().ok()?.checked_mul(SECTOR_BYTES)?;
    Some(Event {
        name,
        thread: thread.parse().ok()?,
        process,
        does,
        flushes,
        from,
        end: from.checked_add(bytes)?,
    })
}

/// Returns a program's name as a script has it, in one word: kernel threads of one kind (`kworker/3:1`) are one program, as an agent tells them.
fn plain(name: &str) -> String {
    let name = match name.split_once('/') {
        Some((kind, _)) if kind == "kworker" || kind == "jbd2" => kind,
        _ => name,
    };
    let odd = |c: char| c.is_whitespace() || c.is_control();
    match name.is_empty() {
        true => NOBODY.to_owned(),
        false => name.replace(odd, "_"),
    }
}

/// Finds who made the requests that a disk was asked for, in the order in which it was.
pub(super) struct Truth<'a> {
    /// With how many bytes of each the disk was not asked for yet.
    rest: Vec<(&'a Traced, u64)>,
    flushers: Vec<&'a str>,
    flushes: usize,
}

impl<'a> Truth<'a> {
    pub fn new(traced: &'a [Traced]) -> Truth<'a> {
        let flushing = traced.iter().filter(|traced| traced.flushes);
        Truth {
            rest: traced
                .iter()
                .map(|traced| (traced, traced.end - traced.from))
                .collect(),
            flushers: flushing.map(|traced| traced.program.as_str()).collect(),
            flushes: 0,
        }
    }

    /// Returns who asked for the most of it. A flush more than was traced is that of the one before: the kernel divides them in two.
    pub fn who(&mut self, noted: &Noted) -> &'a str {
        if noted.does == Does::Flush {
            let at = self.flushes.min(self.flushers.len().saturating_sub(1));
            self.flushes += 1;
            return self.flushers.get(at).copied().unwrap_or(NOBODY);
        }
        let (from, end) = (noted.offset, noted.offset + noted.bytes);
        let mut lacking = noted.bytes;
        let mut parts: Vec<(&'a str, u64)> = Vec::new();
        for (traced, left) in &mut self.rest {
            let common = traced.end.min(end).saturating_sub(traced.from.max(from));
            let common = common.min(*left).min(lacking);
            if common == 0 || traced.does != noted.does {
                continue;
            }
            *left -= common;
            lacking -= common;
            match parts.iter_mut().find(|(name, _)| *name == traced.program) {
                Some((_, bytes)) => *bytes += common,
                None => parts.push((traced.program.as_str(), common)),
            }
        }
        let mut most = (NOBODY, 0);
        for part in parts {
            if part.1 > most.1 {
                most = part;
            }
        }
        most.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "# tracer: nop\n\
        \x20            sh-310     (    310) [000] .....    12.000001: block_bio_queue: 254,0 R 0 + 8 [sh]\r\n\
        \x20       mplayer-311     (    311) [000] .....    12.100000: block_bio_queue: 254,0 RA 8 + 8 [mplayer]\r\n\
        \x20       mplayer-315     (    311) [000] d..1.    12.200000: block_bio_queue: 254,0 RA 16 + 24 [demux one]\r\n\
        \x20    jbd2/vda-8-90      (-------) [000] .....    12.300000: block_bio_queue: 254,0 FWFS 800 + 8 [jbd2/vda-8]\r\n\
        \x20  kworker/u2:1-33      (     33) [000] .....    12.400000: block_bio_queue: 254,0 W 0 + 8 [kworker/u2:1]\r\n\
        \x20   Web [a] -9-400      (    401) [000] .....    12.500000: block_bio_queue: 254,0 R 0 + 8 [Web [a] -9]\r\n";

    fn noted(does: Does, sector: u64, sectors: u64) -> Noted {
        Noted {
            unix_us: 0,
            done_us: 1,
            does,
            offset: sector * SECTOR_BYTES,
            bytes: sectors * SECTOR_BYTES,
        }
    }

    #[test]
    fn a_thread_is_its_process_and_kernel_threads_of_a_kind_are_one() {
        let traced = traced(TEXT);
        let names: Vec<&str> = traced.iter().map(|one| one.program.as_str()).collect();
        let expected = ["sh", "mplayer", "mplayer", "jbd2", "kworker", "Web_[a]_-9"];
        assert_eq!(names, expected);
        let flushing: Vec<bool> = traced.iter().map(|one| one.flushes).collect();
        assert_eq!(flushing, [false, false, false, true, false, false]);
        assert_eq!((traced[2].from, traced[2].end), (16 * 512, 40 * 512));
    }

    #[test]
    fn each_request_is_whose_most_of_it_is_and_the_same_place_is_the_next_ones_again() {
        let traced = traced(TEXT);
        let mut truth = Truth::new(&traced);
        // joined of what the shell and the player asked for
        assert_eq!(truth.who(&noted(Does::Read, 0, 24)), "mplayer");
        // the rest of what was divided, and what nobody is known to have asked for
        assert_eq!(truth.who(&noted(Does::Read, 24, 16)), "mplayer");
        assert_eq!(truth.who(&noted(Does::Read, 24, 16)), NOBODY);
        assert_eq!(truth.who(&noted(Does::Write, 0, 8)), "kworker");
        assert_eq!(truth.who(&noted(Does::Read, 0, 8)), "Web_[a]_-9");
        // before the write, and after it
        assert_eq!(truth.who(&noted(Does::Flush, 0, 0)), "jbd2");
        assert_eq!(truth.who(&noted(Does::Flush, 0, 0)), "jbd2");
        assert_eq!(Truth::new(&[]).who(&noted(Does::Flush, 0, 0)), NOBODY);
    }

    proptest! {
        #[test]
        fn no_line_does_harm(line in "\\PC{0,40}: block_bio_queue: \\PC{0,40}") {
            let _ = traced(&line);
        }
    }
}
