//! Decides which access of a start fails, and with which error, from a seed and from what earlier starts did. No I/O, no
//! clock.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::path::Path;

/// Most starts with an error between a kill and the start without one.
const STARTS_MAX: usize = 3;

/// A kind of access: the name of the system call, and what it is about, without the parts that differ from one file of its
/// kind to the next.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// The system call's name.
    pub call: &'static str,
    /// What it is about.
    pub what: String,
}

impl Kind {
    /// Returns the kind of a call that is about this path, or for example about `socket`.
    pub fn of(call: &'static str, path: &Path) -> Kind {
        Kind {
            call,
            what: masked(&path.to_string_lossy()),
        }
    }
}

/// Replaces ids and numbers by `#`.
fn masked(text: &str) -> String {
    /// Length of the shortest id in hexadecimal digits.
    const ID: usize = 8;
    let mut masked = String::new();
    for word in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let (word, end) = match word.strip_suffix(|c: char| !c.is_ascii_alphanumeric()) {
            Some(rest) => (rest, &word[rest.len()..]),
            None => (word, ""),
        };
        match word.len() >= ID && word.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            true => masked.push('#'),
            false => {
                for c in word.chars() {
                    match c.is_ascii_digit() {
                        true if masked.ends_with('#') => {}
                        true => masked.push('#'),
                        false => masked.push(c),
                    }
                }
            }
        }
        masked.push_str(end);
    }
    masked
}

/// An error that an access can meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Error {
    /// The disk can't be read or written.
    Io,
    /// Somebody has forbidden it.
    Access,
    /// The process has too many open files.
    TooManyFiles,
    /// The disk is full.
    NoSpace,
}

/// All of them.
pub const ERRORS: [Error; 4] = [
    Error::Io,
    Error::Access,
    Error::TooManyFiles,
    Error::NoSpace,
];

impl Error {
    /// Returns the operating system's number.
    pub fn errno(self) -> i32 {
        match self {
            Error::Io => libc::EIO,
            Error::Access => libc::EACCES,
            Error::TooManyFiles => libc::EMFILE,
            Error::NoSpace => libc::ENOSPC,
        }
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match self {
            Error::Io => "EIO",
            Error::Access => "EACCES",
            Error::TooManyFiles => "EMFILE",
            Error::NoSpace => "ENOSPC",
        })
    }
}

/// What is to fail in a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind of access.
    pub kind: Kind,
    /// Which of that kind, from 0.
    pub nth: u64,
    /// How it fails.
    pub error: Error,
}

/// How often each kind of access came in a start.
pub type Counts = BTreeMap<Kind, u64>;

/// What is known of a kind of access.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// How many starts had it.
    starts: u64,
    /// How often it came in the last of them.
    times: u64,
}

/// What is known of the starts of one program, and what has failed in them.
pub struct Faults {
    random: StdRng,
    seen: BTreeMap<Kind, Seen>,
    tried: BTreeSet<(Kind, Error)>,
}

impl Faults {
    /// Makes the faults of a seed, for a program that was never watched.
    pub fn new(seed: u64) -> Faults {
        Faults {
            random: StdRng::seed_from_u64(seed),
            seen: BTreeMap::new(),
            tried: BTreeSet::new(),
        }
    }

    /// Returns how many starts with an error come after a kill: in one case of four none, so that recovery from the kill
    /// alone is seen as well.
    pub fn how_many(&mut self) -> usize {
        self.random.random_range(0..=STARTS_MAX)
    }

    /// Adds what a start did.
    pub fn saw(&mut self, counts: &Counts) {
        for (kind, times) in counts {
            let seen = self.seen.entry(kind.clone()).or_default();
            seen.starts += 1;
            seen.times = *times;
        }
    }

    /// Returns what is to fail in the next start: what never failed in this way before anything does a second time, and of that at first
    /// what came in several starts, so that it likely comes again (temporary names don't). `None` if nothing is known yet.
    pub fn next_fault(&mut self) -> Option<Fault> {
        let mut left = self.untried();
        if left.is_empty() {
            self.tried.clear();
            left = self.untried();
        }
        let comes_again = |(kind, _): &(Kind, Error)| self.seen[kind].starts > 1;
        if left.iter().any(comes_again) {
            left.retain(comes_again);
        }
        if left.is_empty() {
            return None;
        }
        let (kind, error) = left.swap_remove(self.random.random_range(0..left.len()));
        let nth = self.random.random_range(0..self.seen[&kind].times);
        self.tried.insert((kind.clone(), error));
        Some(Fault { kind, nth, error })
    }

    /// Returns each kind with each error with which it has not failed yet.
    fn untried(&self) -> Vec<(Kind, Error)> {
        let each = |kind: &Kind| ERRORS.map(|error| (kind.clone(), error));
        let mut all: Vec<_> = self.seen.keys().flat_map(each).collect();
        all.retain(|one| !self.tried.contains(one));
        all
    }

    /// Returns how many kinds of access are known.
    pub fn kinds(&self) -> usize {
        self.seen.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(call: &'static str, path: &str) -> Kind {
        Kind::of(call, Path::new(path))
    }

    #[test]
    fn files_that_differ_by_numbers_and_ids_are_of_one_kind() {
        for (path, what) in [
            (
                "/s/machines/one/disks/layer-12.map",
                "/s/machines/one/disks/layer-#.map",
            ),
            (
                "/s/repo/packs/0f/0f3ac41d77.pack",
                "/s/repo/packs/#f/#.pack",
            ),
            ("/proc/4711/stat", "/proc/#/stat"),
            ("/s/disk0", "/s/disk#"),
        ] {
            assert_eq!(kind("statx", path).what, what);
        }
        assert_ne!(kind("statx", "/s/a"), kind("openat", "/s/a"));
    }

    #[test]
    fn each_access_fails_once_in_each_way_before_one_fails_twice() {
        let mut faults = Faults::new(1);
        assert_eq!(faults.next_fault(), None);
        let (one, two) = (kind("openat", "/s/a"), kind("read", "/s/b"));
        faults.saw(&[(one.clone(), 1), (two.clone(), 5)].into());
        faults.saw(&[(two.clone(), 3)].into());
        for _ in 0..2 {
            let mut met = BTreeSet::new();
            for _ in 0..2 * ERRORS.len() {
                let fault = faults.next_fault().unwrap();
                assert!(fault.nth < if fault.kind == two { 3 } else { 1 });
                met.insert((fault.kind, fault.error));
            }
            assert_eq!(met.len(), 2 * ERRORS.len());
        }
        assert_eq!(faults.kinds(), 2);
        // what came in two starts goes before what came in one
        let first: Vec<_> = (0..ERRORS.len())
            .filter_map(|_| faults.next_fault())
            .map(|fault| fault.kind)
            .collect();
        assert_eq!(first, vec![two; ERRORS.len()]);
    }

    #[test]
    fn a_seed_gives_the_same_faults_again() {
        let faults = |seed| {
            let mut faults = Faults::new(seed);
            let many: Counts = (0..50u64)
                .map(|n| {
                    (
                        kind("openat", &format!("/{}", "x".repeat(n as usize + 1))),
                        n + 1,
                    )
                })
                .collect();
            faults.saw(&many);
            (0..20).map(|_| faults.next_fault()).collect::<Vec<_>>()
        };
        assert_eq!(faults(3), faults(3));
        assert_ne!(faults(3), faults(4));
    }
}
