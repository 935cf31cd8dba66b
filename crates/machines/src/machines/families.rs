//! Decides which machines' clones and runs QEMUs are started ahead for, before it is known which image they will load. No I/O, no clock.
//!
//! ```text
//! ask -> (begin -> enter)* -> take* -> close
//!    '-> expires            '-> close, if another image is wanted
//! ```
//! Those of one *family* share one blank memory file, and so one image: the first of them that is taken decides which one.

use floe_api::{HostAccess, Limits};
use floe_image::{Hash, MachineConfig};
use std::time::{Duration, Instant};

/// How long a family waits for clones: as long as a ticket is valid.
pub(super) const LIFE: Duration = Duration::from_secs(600);

/// What the QEMUs of a family wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// Clones of the machine of this name.
    ClonesOf(String),
    /// A run of an image with exactly these devices: the addresses of its network cards are among their properties.
    RunOf(Vec<String>),
}

/// What was decided when the QEMUs of a family were started, and can't be changed later.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Terms {
    /// The hardware, as [`floe_machine::hardware_of`] returns it.
    pub hardware: MachineConfig,
    pub access: HostAccess,
    pub limits: Limits,
    /// The household that they are in, if it is not one of their own.
    pub household: Option<String>,
}

struct Family<T, F> {
    number: u64,
    whose: Whose,
    terms: Terms,
    files: F,
    /// The image that one of them became; the others can't become another.
    bound: Option<Hash>,
    waiting: Vec<T>,
    /// How many are being started now, and how many are still to be.
    starting: usize,
    left: usize,
    since: Instant,
}

impl<T, F> Family<T, F> {
    fn len(&self) -> usize {
        self.waiting.len() + self.starting + self.left
    }
}

/// What is to be done after [`Families::ask`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Asked<T> {
    /// The family of which some are to be started now, and how many.
    pub start: Option<(u64, usize)>,
    /// Those that are to be ended.
    pub gone: Vec<T>,
}

/// All families: `T` is a QEMU that waits, `F` the files that those of a family share.
pub(super) struct Families<T, F> {
    /// The one that was asked for first is first.
    list: Vec<Family<T, F>>,
    next: u64,
    over: bool,
}

impl<T, F> Default for Families<T, F> {
    fn default() -> Self {
        Families {
            list: Vec::new(),
            next: 0,
            over: false,
        }
    }
}

impl<T, F: Clone> Families<T, F> {
    /// Returns how many wait.
    pub fn waiting(&self) -> usize {
        self.list.iter().map(|family| family.waiting.len()).sum()
    }

    /// Asks that `count` QEMUs wait for someone, with at most `most` in all; older families make room. A new family gets `files`.
    pub fn ask(
        &mut self,
        now: Instant,
        (whose, terms): (Whose, Terms),
        files: F,
        count: usize,
        most: usize,
    ) -> Asked<T> {
        let count = count.min(most);
        let mut gone = Vec::new();
        if self.over || count == 0 {
            return Asked { start: None, gone };
        }
        let usable = |family: &Family<T, F>| {
            family.whose == whose && family.terms == terms && family.bound.is_none()
        };
        let mut family = match self.list.iter().position(usable) {
            Some(at) => self.list.remove(at),
            None => {
                self.next += 1;
                Family {
                    number: self.next,
                    whose: whose.clone(),
                    terms: terms.clone(),
                    files,
                    bound: None,
                    waiting: Vec::new(),
                    starting: 0,
                    left: 0,
                    since: now,
                }
            }
        };
        // what waits for the same with other hardware is of no use any more
        gone.extend(self.drop_if(|other| other.whose == whose));
        let missing = count.saturating_sub(family.len());
        let all = |list: &[Family<T, F>]| list.iter().map(Family::len).sum::<usize>();
        while !self.list.is_empty() && all(&self.list) + family.len() + missing > most {
            gone.extend(self.list.remove(0).waiting);
        }
        family.left += missing;
        family.since = now;
        let start = (family.left > 0).then_some((family.number, family.left));
        self.list.push(family);
        Asked { start, gone }
    }

    /// Begins to start one more of a family; returns its files, or `None` if no more is to be started.
    pub fn begin(&mut self, number: u64) -> Option<F> {
        let mut list = self.list.iter_mut();
        let family = list.find(|family| family.number == number)?;
        // once the first was taken it is too late: whoever takes the others would wait for these
        if family.left == 0 || family.bound.is_some() {
            family.left = 0;
            return None;
        }
        family.left -= 1;
        family.starting += 1;
        Some(family.files.clone())
    }

    /// Enters one that was begun, `None` if it could not be started. Returns it if nobody waits for it any more.
    pub fn enter(&mut self, number: u64, started: Option<T>) -> Option<T> {
        let mut list = self.list.iter_mut();
        let Some(family) = list.find(|family| family.number == number) else {
            return started;
        };
        family.starting -= 1;
        if started.is_none() {
            family.left = 0; // the next one would hardly fare better
        }
        family.waiting.extend(started);
        self.list.retain(|family| family.len() > 0);
        None
    }

    /// Takes a QEMU that waits and can load this image.
    pub fn take(&mut self, whose: &Whose, terms: &Terms, image: &Hash) -> Option<T> {
        let fits = |family: &&mut Family<T, F>| {
            let free = family.bound.is_none_or(|bound| bound == *image);
            free && family.whose == *whose && family.terms == *terms && !family.waiting.is_empty()
        };
        let family = self.list.iter_mut().find(fits)?;
        family.bound = Some(*image);
        let taken = family.waiting.pop();
        self.list.retain(|family| family.len() > 0);
        taken
    }

    /// Takes one of those that have waited longest, to be ended.
    pub fn oldest(&mut self) -> Option<T> {
        let mut list = self.list.iter_mut();
        let family = list.find(|family| !family.waiting.is_empty())?;
        family.left = 0;
        family.waiting.pop()
    }

    /// Forgets those that wait for someone; returns them to be ended. With `bound`, only those that became an image.
    pub fn close(&mut self, whose: &Whose, bound: bool) -> Vec<T> {
        self.drop_if(|family| family.whose == *whose && (!bound || family.bound.is_some()))
    }

    /// Forgets the oldest of those that wait for runs, but for so many of the newest; returns them to be ended.
    pub fn keep_for_runs(&mut self, newest: usize) -> Vec<T> {
        let for_runs = |family: &Family<T, F>| matches!(family.whose, Whose::RunOf(_));
        let all = self.list.iter().filter(|family| for_runs(family)).count();
        let gone = self.list.extract_if(.., |family| for_runs(family));
        let gone = gone.take(all.saturating_sub(newest));
        gone.flat_map(|family| family.waiting).collect()
    }

    /// Forgets those that have waited for clones for too long.
    pub fn expire(&mut self, now: Instant) -> Vec<T> {
        self.drop_if(|family| {
            let for_clones = matches!(family.whose, Whose::ClonesOf(_));
            for_clones && now.saturating_duration_since(family.since) >= LIFE
        })
    }

    /// Ends everything: nothing is begun any more.
    pub fn end(&mut self) -> Vec<T> {
        self.over = true;
        self.drop_if(|_| true)
    }

    fn drop_if(&mut self, goes: impl Fn(&Family<T, F>) -> bool) -> Vec<T> {
        let gone = self.list.extract_if(.., |family| goes(family));
        gone.flat_map(|family| family.waiting).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Numbers = Families<u32, &'static str>;

    fn clones_of(name: &str) -> Whose {
        Whose::ClonesOf(name.into())
    }

    fn terms(cpus: u32) -> Terms {
        Terms {
            hardware: MachineConfig {
                cpus: Some(cpus),
                ..Default::default()
            },
            access: HostAccess::None,
            limits: Limits::default(),
            household: None,
        }
    }

    fn ask(
        families: &mut Numbers,
        now: Instant,
        of: &str,
        count: usize,
        most: usize,
    ) -> (Option<u64>, Vec<u32>) {
        let asked = families.ask(now, (clones_of(of), terms(1)), "files", count, most);
        (asked.start.map(|(number, _)| number), asked.gone)
    }

    /// Starts all that are to be started of a family, with these numbers.
    fn start(families: &mut Numbers, number: u64, from: u32) -> u32 {
        let mut next = from;
        while families.begin(number).is_some() {
            assert_eq!(families.enter(number, Some(next)), None);
            next += 1;
        }
        next - from
    }

    #[test]
    fn those_of_a_family_become_one_image_and_no_other() {
        let (mut families, now) = (Numbers::default(), Instant::now());
        let (one, other) = (Hash::of(b"one"), Hash::of(b"other"));
        let (number, gone) = ask(&mut families, now, "web", 3, 8);
        let number = number.unwrap();
        assert!(gone.is_empty());
        assert_eq!(
            families.take(&clones_of("web"), &terms(1), &one),
            None,
            "none has started yet"
        );
        assert_eq!(start(&mut families, number, 10), 3);
        // asked for again: enough wait
        assert_eq!(ask(&mut families, now, "web", 2, 8), (None, vec![]));
        assert_eq!(families.take(&clones_of("db"), &terms(1), &one), None);
        assert_eq!(families.take(&clones_of("web"), &terms(2), &one), None);
        assert_eq!(families.take(&clones_of("web"), &terms(1), &one), Some(12));
        assert_eq!(families.take(&clones_of("web"), &terms(1), &other), None);
        assert_eq!(families.take(&clones_of("web"), &terms(1), &one), Some(11));
        assert_eq!(families.waiting(), 1);
        assert_eq!(families.close(&clones_of("web"), true), [10]);
        assert_eq!(families.waiting(), 0);
    }

    #[test]
    fn no_more_wait_than_there_is_room_for_and_the_oldest_make_room() {
        let (mut families, now) = (Numbers::default(), Instant::now());
        let (a, _) = ask(&mut families, now, "a", 3, 4);
        assert_eq!(start(&mut families, a.unwrap(), 0), 3);
        let (b, gone) = ask(&mut families, now, "b", 2, 4);
        assert_eq!(gone, [0, 1, 2]);
        assert_eq!(start(&mut families, b.unwrap(), 10), 2);
        let (more, gone) = ask(&mut families, now, "b", 9, 4);
        assert_eq!((more, gone), (b, vec![]));
        assert_eq!(start(&mut families, more.unwrap(), 20), 2);
        assert_eq!(ask(&mut families, now, "b", 9, 0), (None, vec![]));
        assert_eq!(families.oldest(), Some(21));
        assert_eq!(families.expire(now + LIFE / 2), Vec::<u32>::new());
        assert_eq!(families.expire(now + LIFE), [10, 11, 20]);
        assert_eq!(families.oldest(), None);
    }

    #[test]
    fn one_that_comes_too_late_is_given_back_and_nothing_starts_after_the_end() {
        let (mut families, now) = (Numbers::default(), Instant::now());
        let image = Hash::of(b"image");
        let number = ask(&mut families, now, "web", 4, 8).0.unwrap();
        assert!(families.begin(number).is_some() && families.begin(number).is_some());
        assert_eq!(families.enter(number, Some(1)), None);
        assert_eq!(families.take(&clones_of("web"), &terms(1), &image), Some(1));
        assert_eq!(families.begin(number), None, "its clones are being started");
        assert_eq!(
            families.enter(number, Some(2)),
            None,
            "another clone takes it"
        );
        assert_eq!(families.take(&clones_of("web"), &terms(1), &image), Some(2));
        let number = ask(&mut families, now, "web", 2, 8).0.unwrap();
        assert!(families.begin(number).is_some());
        assert_eq!(families.close(&clones_of("web"), false), Vec::<u32>::new());
        assert_eq!(families.enter(number, Some(3)), Some(3));
        let number = ask(&mut families, now, "web", 2, 8).0.unwrap();
        assert!(families.begin(number).is_some());
        assert_eq!(families.enter(number, None), None);
        assert_eq!(families.begin(number), None, "the first one failed");
        assert_eq!(families.end(), Vec::<u32>::new());
        assert_eq!(ask(&mut families, now, "web", 2, 8), (None, vec![]));
    }

    #[test]
    fn for_runs_the_newest_wait_however_long() {
        let (mut families, now) = (Numbers::default(), Instant::now());
        let clones = ask(&mut families, now, "web", 1, 8).0.unwrap();
        start(&mut families, clones, 10);
        for (number, device) in (0..).zip(["a", "b", "c"]) {
            let whose = Whose::RunOf(vec![device.into()]);
            let asked = families.ask(now, (whose, terms(1)), "files", 1, 8);
            start(&mut families, asked.start.unwrap().0, number);
        }
        assert_eq!(families.keep_for_runs(3), Vec::<u32>::new());
        assert_eq!(families.keep_for_runs(2), [0]);
        assert_eq!(families.expire(now + 9 * LIFE), [10]);
        assert_eq!(families.waiting(), 2);
        let image = Hash::of(b"image");
        let whose = Whose::RunOf(vec!["c".into()]);
        assert_eq!(families.take(&whose, &terms(1), &image), Some(2));
        assert_eq!(families.take(&whose, &terms(1), &image), None);
    }

    #[test]
    fn those_in_one_household_are_for_nobody_outside_of_it() {
        let (mut families, now) = (Numbers::default(), Instant::now());
        let joined = Terms {
            household: Some("00ff".into()),
            ..terms(1)
        };
        let asked = families.ask(now, (clones_of("web"), joined.clone()), "files", 1, 8);
        start(&mut families, asked.start.unwrap().0, 3);
        let image = Hash::of(b"image");
        assert_eq!(families.take(&clones_of("web"), &terms(1), &image), None);
        assert_eq!(families.take(&clones_of("web"), &joined, &image), Some(3));
    }

    #[test]
    fn what_was_prepared_for_other_hardware_goes() {
        let (mut families, now) = (Numbers::default(), Instant::now());
        let number = ask(&mut families, now, "web", 2, 8).0.unwrap();
        start(&mut families, number, 0);
        let asked = families.ask(now, (clones_of("web"), terms(2)), "others", 1, 8);
        assert_eq!(asked.gone, [0, 1]);
        let (number, left) = asked.start.unwrap();
        assert_eq!((start(&mut families, number, 7), left), (1, 1));
        let image = Hash::of(b"image");
        assert_eq!(families.take(&clones_of("web"), &terms(2), &image), Some(7));
    }
}
