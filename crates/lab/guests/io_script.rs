//! Recorded launches: what programs asked of a machine's disk after somebody touched a key. The guest of `floe-lab io` and the lab's
//! replays read the same files.
//!
//! ```text
//! launch xpdf                        what was launched, the first line
//! slowdown 11.8                      how many times longer the recording guest computed than this kind of host does
//! input                              somebody touches a key; the first line of what follows
//! 4200 read 1048576 16384 xpdf       4.2 ms after everything before was done, xpdf reads 16 KiB at 1 MiB
//! + read 2097152 65536 xpdf          without waiting for the one before
//! 1500 write 4096 4096 kjournald
//! 0 flush 0 0 kjournald
//! ```

/// Bytes of the longest request: what a guest's kernel asks for at once.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Sectors are what a disk counts in.
pub const SECTOR_BYTES: u64 = 512;
/// Most requests of a launch, and bytes of a program's name.
const REQUESTS_MAX: usize = 200_000;
const NAME_BYTES_MAX: usize = 48;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// Brings bytes.
    Read,
    /// Takes bytes.
    Write,
    /// Makes earlier writes durable.
    Flush,
}

/// A request of a recorded launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// How long after everything before it was done, in microseconds; `None`: it did not wait for the one before.
    pub think_us: Option<u64>,
    /// What it does.
    pub does: Does,
    /// Where on the disk, in bytes.
    pub offset: u64,
    /// How much.
    pub bytes: usize,
    /// Who asked, as far as that was known.
    pub program: String,
    /// Whether a key was touched just before it.
    pub after_input: bool,
}

/// A recorded launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    /// What was launched.
    pub name: String,
    /// How many times longer the recording guest computed.
    pub slowdown: f64,
    /// Its requests, in the order in which they came.
    pub requests: Vec<Recorded>,
}

impl Script {
    /// Reads a file's text; the error says which line is wrong.
    pub fn parse(text: &str) -> Result<Script, String> {
        let mut lines = text.lines().enumerate();
        let mut head = |word: &str| {
            let line = lines.next().map_or("", |(_, line)| line);
            let rest = line
                .strip_prefix(word)
                .and_then(|rest| rest.strip_prefix(' '));
            rest.map(str::to_owned)
                .ok_or_else(|| format!("{line:?} is no line \"{word} ...\""))
        };
        let name = head("launch")?;
        let slowdown: f64 = head("slowdown")?
            .parse()
            .map_err(|_| "a slowdown is a number".to_owned())?;
        if !(slowdown.is_finite() && slowdown >= 1.0) {
            return Err(format!("a slowdown of {slowdown} is below 1"));
        }
        let (mut requests, mut after_input): (Vec<Recorded>, bool) = (Vec::new(), false);
        for (number, line) in lines {
            if line == "input" {
                after_input = true;
                continue;
            }
            let request = request(line, std::mem::take(&mut after_input))
                .ok_or_else(|| format!("line {}: {line:?} is no request", number + 1))?;
            let is_first = requests.is_empty() || request.after_input;
            if is_first && request.think_us.is_none() {
                return Err(format!("line {}: there is nothing to wait for", number + 1));
            }
            requests.push(request);
            if requests.len() > REQUESTS_MAX {
                return Err(format!("more than {REQUESTS_MAX} requests"));
            }
        }
        if requests.is_empty() {
            return Err("no request".to_owned());
        }
        Ok(Script {
            name,
            slowdown,
            requests,
        })
    }

    /// Returns the text that [`Script::parse`] reads.
    pub fn text(&self) -> String {
        let mut text = format!("launch {}\nslowdown {}\n", self.name, self.slowdown);
        for request in &self.requests {
            if request.after_input {
                text += "input\n";
            }
            let think = request
                .think_us
                .map_or_else(|| "+".to_owned(), |us| us.to_string());
            let does = match request.does {
                Does::Read => "read",
                Does::Write => "write",
                Does::Flush => "flush",
            };
            text += &format!(
                "{think} {does} {} {} {}\n",
                request.offset, request.bytes, request.program
            );
        }
        text
    }

    /// Returns how long the program computes before this request on a host of ordinary speed, in microseconds.
    pub fn think_us(&self, request: &Recorded) -> Option<u64> {
        let us = request.think_us?;
        Some((us as f64 / self.slowdown) as u64)
    }
}

fn request(line: &str, after_input: bool) -> Option<Recorded> {
    let words: Vec<&str> = line.split(' ').collect();
    let [think, does, offset, bytes, program] = words[..] else {
        return None;
    };
    let (does, least) = match does {
        "read" => (Does::Read, SECTOR_BYTES as usize),
        "write" => (Does::Write, SECTOR_BYTES as usize),
        "flush" => (Does::Flush, 0),
        _ => return None,
    };
    let recorded = Recorded {
        think_us: match think {
            "+" => None,
            us => Some(us.parse().ok()?),
        },
        does,
        offset: offset.parse().ok()?,
        bytes: bytes.parse().ok()?,
        program: program.to_owned(),
        after_input,
    };
    let is_whole = recorded.offset.is_multiple_of(SECTOR_BYTES)
        && (recorded.bytes as u64).is_multiple_of(SECTOR_BYTES);
    let fits = (least..=REQUEST_BYTES_MAX).contains(&recorded.bytes);
    let named = !program.is_empty() && program.len() <= NAME_BYTES_MAX;
    (is_whole && fits && named && recorded.offset.checked_add(1 << 40).is_some())
        .then_some(recorded)
}
