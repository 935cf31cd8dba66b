//! How often the classification is right, over days at a desk that are made up and of which the truth is known: for each request,
//! whether somebody waited for it. The same days are seen in the four ways in which a mount may see them.

use floe_sched::classify::{Classifier, ImageId, List, Name, Owned, Place, Program, Seen};
use floe_sched::{Class, MachineId, Op};

const SECOND: u64 = 1_000_000;
const OF: Owned = Owned {
    image: ImageId([1; 32]),
    uid: 1000,
};
/// What is on the disk from here on was written by the machine itself, and is at other places in each.
const OWN_FILES: u64 = 1_000_000;

/// xorshift64*: the same days in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n.max(1)
    }

    fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from)
    }
}

/// Something that happens in front of a machine or in it.
#[derive(Clone, Debug)]
enum Event {
    Input,
    Read {
        name: &'static str,
        /// The number of the process, in place of its address space.
        process: u64,
        inode: u64,
        offset: u64,
        bytes: u64,
        /// The truth.
        is_waited_for: bool,
    },
}

/// A day at a desk: half an hour of it.
struct Day {
    random: Random,
    events: Vec<(u64, Event)>,
    processes: u64,
}

/// What runs beside what the user waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Noise {
    Quiet,
    Copy,
    Index,
    Compile,
    Update,
}

const NOISES: [Noise; 5] = [
    Noise::Quiet,
    Noise::Copy,
    Noise::Index,
    Noise::Compile,
    Noise::Update,
];

/// Programs, each with the number of the first of its files.
const PROGRAMS: [(&str, u64); 5] = [
    ("firefox", 1000),
    ("soffice.bin", 2000),
    ("gimp-2.10", 3000),
    ("evince", 4000),
    ("gedit", 5000),
];

impl Day {
    fn new(seed: u64, noise: Noise) -> Day {
        let mut day = Day {
            random: Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            events: Vec::new(),
            processes: 100,
        };
        day.boot();
        day.work();
        match noise {
            Noise::Quiet => {}
            Noise::Copy => day.copy(),
            Noise::Index => day.index(),
            Noise::Compile => day.compile(),
            Noise::Update => day.update(),
        }
        day.events.sort_by_key(|(at, _)| *at);
        day
    }

    fn input(&mut self, at: u64) {
        self.events.push((at, Event::Input));
    }

    /// `number` reads of files around the first one, over so long, more of them in the beginning.
    fn reads(
        &mut self,
        (name, process): (&'static str, u64),
        files: (u64, u64),
        (at, us): (u64, u64),
        number: u64,
        is_waited_for: bool,
    ) {
        for _ in 0..number {
            let late = self.random.below(us).min(self.random.below(us));
            let inode = files.0 + self.random.below(files.1);
            let offset = (inode << 24) + (self.random.below(256) << 16);
            let read = Event::Read {
                name,
                process,
                inode,
                offset,
                bytes: self.random.between(1, 32) << 12,
                is_waited_for,
            };
            self.events.push((at + 30_000 + late, read));
        }
    }

    fn process(&mut self) -> u64 {
        self.processes += 1;
        self.processes
    }

    fn boot(&mut self) {
        self.reads(("systemd", 1), (1, 400), (0, 20 * SECOND), 900, false);
    }

    /// What a user does, every 5 to 25 seconds, and waits for.
    fn work(&mut self) {
        let mut at = 40 * SECOND;
        let mut started: Vec<(&str, u64)> = Vec::new();
        while at < 1800 * SECOND {
            let (name, files) = PROGRAMS[self.random.below(5) as usize];
            let running = started.iter().find(|(n, _)| *n == name).map(|(_, p)| *p);
            match (running, self.random.below(10)) {
                (None, _) => {
                    let process = self.process();
                    started.push((name, process));
                    self.input(at);
                    let us = self.random.between(2 * SECOND, 6 * SECOND);
                    self.reads((name, process), (files, 200), (at, us), 350, true);
                    self.reads((name, process), (500, 60), (at, us), 60, true);
                    at += us;
                }
                (Some(process), 0..=4) => {
                    // a page, a document, a menu
                    self.input(at);
                    let us = self.random.between(SECOND / 2, 2 * SECOND);
                    let number = self.random.between(5, 40);
                    self.reads((name, process), (files + 200, 300), (at, us), number, true);
                    at += us;
                }
                (Some(process), 5..=7) => {
                    for _ in 0..self.random.between(5, 40) {
                        self.input(at);
                        at += self.random.between(100_000, 350_000);
                    }
                    self.reads((name, process), (files + 200, 300), (at, SECOND), 4, true);
                }
                (Some(_), 8) => {
                    let process = self.process();
                    self.input(at);
                    self.reads(("bash", process), (600, 40), (at, SECOND), 30, true);
                }
                (Some(process), _) => {
                    // by itself, while nobody looks
                    let quiet = at + 4 * SECOND;
                    self.reads((name, process), (OWN_FILES, 50), (quiet, SECOND), 3, false);
                }
            }
            at += self.random.between(5 * SECOND, 25 * SECOND);
        }
        self.video();
    }

    /// Two minutes of a film at 20 Mbit/s.
    fn video(&mut self) {
        let start = self.random.between(1820, 1840) * SECOND;
        self.input(start);
        let process = self.process();
        let inode = OWN_FILES + 77;
        for number in 0..2400 {
            let read = Event::Read {
                name: "mplayer",
                process,
                inode,
                offset: (inode << 24) + number * (128 << 10),
                bytes: 128 << 10,
                is_waited_for: true,
            };
            self.events.push((start + 50_000 + number * 50_000, read));
        }
    }

    /// Three copies of 8 GiB, each started on an input, each for a minute and a half.
    fn copy(&mut self) {
        for round in 0..3 {
            let start = (300 + 500 * round) * SECOND;
            self.input(start);
            let process = self.process();
            let inode = OWN_FILES + 1000 + round;
            for number in 0..65536 {
                let read = Event::Read {
                    name: "dd",
                    process,
                    inode,
                    offset: (inode << 36) + number * (128 << 10),
                    bytes: 128 << 10,
                    is_waited_for: false,
                };
                self.events.push((start + 20_000 + number * 1400, read));
            }
        }
    }

    /// Goes through all files, thirty a second, for ten minutes.
    fn index(&mut self) {
        for number in 0..18_000 {
            let at = 600 * SECOND + number * 33_000 + self.random.below(10_000);
            let files = (number / 3 + 1, 1);
            self.reads(("tracker-miner-f", 50), files, (at, 1), 1, false);
        }
    }

    /// Four builds of two minutes, each started on an input: compilers that come and go, and read what is read again and again.
    fn compile(&mut self) {
        for round in 0..4 {
            let start = (200 + 400 * round) * SECOND;
            self.input(start);
            for step in 0..240 {
                let process = self.process();
                let at = start + step * SECOND / 2;
                let name = if step % 10 == 9 { "ld" } else { "cc1" };
                let files = (OWN_FILES + 5000 + step * 5, 30);
                self.reads((name, process), files, (at, SECOND / 2), 20, false);
            }
        }
    }

    /// Looks for updates now and then, and unpacks them.
    fn update(&mut self) {
        let mut at = 60 * SECOND;
        while at < 1800 * SECOND {
            let us = 6 * SECOND;
            self.reads(("apt-get", 60), (700, 200), (at, us), 300, false);
            at += self.random.between(40 * SECOND, 120 * SECOND);
        }
    }
}

/// How a mount sees who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    Agent,
    File,
    Space,
    Nothing,
}

#[derive(Clone, Copy, Debug, Default)]
struct Score {
    right: u64,
    wrong: u64,
    missed: u64,
}

impl Score {
    fn precision(&self) -> f64 {
        self.right as f64 / (self.right + self.wrong).max(1) as f64
    }

    fn recall(&self) -> f64 {
        self.right as f64 / (self.right + self.missed).max(1) as f64
    }
}

/// Lets a machine live through a day, and compares.
fn live(classifier: &mut Classifier, machine: u32, day: &Day, view: View) -> Score {
    let machine = MachineId(machine);
    classifier.began(0, machine, OF);
    let mut score = Score::default();
    for (at, event) in &day.events {
        let Event::Read {
            name,
            process,
            inode,
            offset,
            bytes,
            is_waited_for,
        } = event
        else {
            classifier.input(*at, machine);
            continue;
        };
        let program = match view {
            View::Agent => Some(Program::Task(Name::new(name).expect("a name"))),
            View::File => Some(Program::File {
                // the machine's own disk is not the image's
                image: if *inode < OWN_FILES {
                    OF.image
                } else {
                    ImageId([2; 32])
                },
                inode: *inode,
            }),
            View::Space => Some(Program::Space(*process)),
            View::Nothing => None,
        };
        let seen = Seen {
            machine,
            program: program.as_ref(),
            place: Some(Place {
                region: 1,
                offset: *offset,
            }),
            bytes: *bytes,
            op: Op::Read,
        };
        let is_interactive = classifier.request(*at, &seen) == Class::Interactive;
        match (is_interactive, is_waited_for) {
            (true, true) => score.right += 1,
            (true, false) => score.wrong += 1,
            (false, true) => score.missed += 1,
            (false, false) => {}
        }
    }
    classifier.gone(machine);
    score
}

/// Returns the score of twenty days, four with each noise.
fn scores(view: View, list: &List) -> Score {
    let mut sum = Score::default();
    for noise in NOISES {
        let mut of_noise = Score::default();
        for seed in 1..=4 {
            let mut classifier = Classifier::new();
            classifier.import(OF, list.clone());
            let score = live(&mut classifier, 1, &Day::new(seed, noise), view);
            for sum in [&mut sum, &mut of_noise] {
                sum.right += score.right;
                sum.wrong += score.wrong;
                sum.missed += score.missed;
            }
        }
        let (precision, recall) = (of_noise.precision(), of_noise.recall());
        println!("{view:?} {noise:?}: precision {precision:.3}, recall {recall:.3}");
    }
    let (precision, recall) = (sum.precision(), sum.recall());
    println!("{view:?}: precision {precision:.3}, recall {recall:.3}");
    sum
}

/// What the agents of twenty other machines of the image have taught.
fn learned() -> List {
    let mut classifier = Classifier::new();
    for machine in 1..=20 {
        let noise = NOISES[machine as usize % 5];
        let day = Day::new(100 + u64::from(machine), noise);
        live(&mut classifier, machine, &day, View::Agent);
    }
    classifier.export(OF)
}

fn at_least(score: Score, precision: f64, recall: f64) {
    assert!(score.precision() >= precision, "{score:?}");
    assert!(score.recall() >= recall, "{score:?}");
}

#[test]
fn with_an_agents_names_nearly_every_request_is_judged_right() {
    at_least(scores(View::Agent, &List::default()), 0.95, 0.95);
    at_least(scores(View::Agent, &learned()), 0.95, 0.95);
}

#[test]
fn with_files_most_requests_are_judged_right() {
    at_least(scores(View::File, &List::default()), 0.85, 0.8);
}

#[test]
fn with_address_spaces_most_requests_are_judged_right() {
    at_least(scores(View::Space, &List::default()), 0.85, 0.8);
}

#[test]
fn without_any_name_it_is_better_than_to_guess() {
    at_least(scores(View::Nothing, &List::default()), 0.5, 0.5);
}
