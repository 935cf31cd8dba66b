//! Days at a desk that are made up and of which the truth is known: for each request, whether somebody waited for it. The same days are
//! seen in the four ways in which a mount may see them. The lab's `io-who` measures with them, too.

use floe_sched::classify::{Classifier, ImageId, List, Name, Owned, Place, Program, Seen, Told};
use floe_sched::{Class, MachineId, Op};

const SECOND: u64 = 1_000_000;
const OF: Owned = Owned {
    disk: ImageId([1; 32]),
    uid: 1000,
};
/// The program that shows a film.
const PLAYER: &str = "mplayer";
/// What is on the disk from here on was written by the machine itself, and is at other places in each.
const OWN_FILES: u64 = 1_000_000;

/// Files of a directory.
const FOLDER_FILES: u64 = 100;

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
}

/// What runs beside what the user waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Noise {
    Quiet,
    Copy,
    Index,
    Compile,
    Update,
    Timers,
    Hurry,
}

const NOISES: [Noise; 7] = [
    Noise::Quiet,
    Noise::Copy,
    Noise::Index,
    Noise::Compile,
    Noise::Update,
    Noise::Timers,
    Noise::Hurry,
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
        };
        day.boot();
        match noise {
            Noise::Hurry => day.hurry(),
            _ => day.work(),
        }
        match noise {
            Noise::Quiet => {}
            Noise::Copy => day.copy(),
            Noise::Index => day.index(),
            Noise::Compile => day.compile(),
            Noise::Update => day.update(),
            Noise::Timers | Noise::Hurry => day.timers(),
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
        name: &'static str,
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
                inode,
                offset,
                bytes: self.random.between(1, 32) << 12,
                is_waited_for,
            };
            self.events.push((at + 30_000 + late, read));
        }
    }

    fn boot(&mut self) {
        self.reads("systemd", (1, 400), (0, 20 * SECOND), 900, false);
    }

    /// What a user does, every 5 to 25 seconds, and waits for.
    fn work(&mut self) {
        let mut at = 40 * SECOND;
        let mut started: Vec<&str> = Vec::new();
        while at < 1800 * SECOND {
            let (name, files) = PROGRAMS[self.random.below(5) as usize];
            match (started.contains(&name), self.random.below(10)) {
                (false, _) => {
                    started.push(name);
                    self.input(at);
                    let us = self.random.between(2 * SECOND, 6 * SECOND);
                    self.reads(name, (files, 200), (at, us), 350, true);
                    self.reads(name, (500, 60), (at, us), 60, true);
                    at += us;
                }
                (true, 0..=4) => {
                    // a page, a document, a menu
                    self.input(at);
                    let us = self.random.between(SECOND / 2, 2 * SECOND);
                    let number = self.random.between(5, 40);
                    self.reads(name, (files + 200, 300), (at, us), number, true);
                    at += us;
                }
                (true, 5..=7) => {
                    for _ in 0..self.random.between(5, 40) {
                        self.input(at);
                        at += self.random.between(100_000, 350_000);
                    }
                    self.reads(name, (files + 200, 300), (at, SECOND), 4, true);
                }
                (true, 8) => {
                    self.input(at);
                    self.reads("bash", (600, 40), (at, SECOND), 30, true);
                }
                (true, _) => {
                    // by itself, while nobody looks
                    let quiet = at + 4 * SECOND;
                    self.reads(name, (OWN_FILES, 50), (quiet, SECOND), 3, false);
                }
            }
            at += self.random.between(5 * SECOND, 25 * SECOND);
        }
        self.video();
    }

    /// Two minutes with hardly a pause: an input every few seconds starts or uses one of five programs, which also read by themselves.
    fn hurry(&mut self) {
        let mut at = 40 * SECOND;
        let mut started = [false; PROGRAMS.len()];
        while at < 150 * SECOND {
            at += self.random.between(2 * SECOND, 6 * SECOND);
            self.input(at);
            let which = self.random.below(5) as usize;
            let (name, files) = PROGRAMS[which];
            if !started[which] || self.random.below(4) == 0 {
                started[which] = true;
                at = self.walk(name, (files, 60), at, true);
            } else {
                let first = files + 200 + self.random.below(108);
                at = self.walk(name, (first, 12), at, true);
            }
            if self.random.below(4) == 0 {
                let first = files + 400 + self.random.below(27);
                let later = at + 6 * SECOND;
                self.walk(name, (first, 3), later, false);
            }
        }
    }

    /// Reads files of a directory one after the other. Returns when the last one was read.
    fn walk(
        &mut self,
        name: &'static str,
        (first, number): (u64, u64),
        at: u64,
        is_waited_for: bool,
    ) -> u64 {
        let mut at = at + self.random.between(30_000, 300_000);
        for inode in first..first + number {
            let read = Event::Read {
                name,
                inode,
                offset: inode * (44 << 10),
                bytes: self.random.between(1, 12) << 12,
                is_waited_for,
            };
            self.events.push((at, read));
            at += self.random.between(2_000, 15_000);
        }
        at
    }

    /// Two minutes of a film at 20 Mbit/s.
    fn video(&mut self) {
        let start = self.random.between(1820, 1840) * SECOND;
        self.input(start);
        let inode = OWN_FILES + 77;
        for number in 0..2400 {
            let read = Event::Read {
                name: PLAYER,
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
            let inode = OWN_FILES + 1000 + round;
            for number in 0..65536 {
                let read = Event::Read {
                    name: "dd",
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
            self.reads("tracker-miner-f", files, (at, 1), 1, false);
        }
    }

    /// Four builds of two minutes, each started on an input: compilers that come and go, and read what is read again and again.
    fn compile(&mut self) {
        for round in 0..4 {
            let start = (200 + 400 * round) * SECOND;
            self.input(start);
            for step in 0..240 {
                let at = start + step * SECOND / 2;
                let name = if step % 10 == 9 { "ld" } else { "cc1" };
                let files = (OWN_FILES + 5000 + step * 5, 30);
                self.reads(name, files, (at, SECOND / 2), 20, false);
            }
        }
    }

    /// Looks for updates now and then, and unpacks them.
    fn update(&mut self) {
        let mut at = 60 * SECOND;
        while at < 1800 * SECOND {
            let us = 6 * SECOND;
            self.reads("apt-get", (700, 200), (at, us), 300, false);
            at += self.random.between(40 * SECOND, 120 * SECOND);
        }
    }

    /// Three daemons, all day: one file every 0.4 seconds, ten every seven, sixty every fifteen. Each goes through files of its own that lie
    /// side by side, and was started by hand.
    fn timers(&mut self) {
        const FILE_BYTES: u64 = 44 << 10;
        let daemons = [
            ("indexd", 20_000, SECOND * 2 / 5, 1),
            ("updated", 21_000, 7 * SECOND, 10),
            ("backupd", 22_000, 15 * SECOND, 60),
        ];
        for (name, inode, every, files) in daemons {
            let start = 30 * SECOND + self.random.below(SECOND);
            self.input(start);
            for number in 0..(1770 * SECOND / every) * files {
                let file = number % 300;
                let read = Event::Read {
                    name,
                    inode: inode + file,
                    offset: (inode << 24) + file * FILE_BYTES,
                    bytes: self.random.between(1, 12) << 12,
                    is_waited_for: false,
                };
                let at = start + 20_000 + number / files * every + number % files * 2_000;
                self.events.push((at, read));
            }
        }
    }
}

/// How a mount sees who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// By its name, which comes with the request itself, as if nothing took time.
    Agent,
    /// By the file with the request, and by its name as an agent tells it: 3 to 40 ms later.
    Told,
    /// By the file that is read.
    File,
    /// Not at all.
    Nothing,
}

/// How many requests were taken for waited for rightly and wrongly, and how many that were waited for were not.
#[derive(Clone, Copy, Debug, Default)]
pub struct Score {
    right: u64,
    wrong: u64,
    missed: u64,
    /// Of what was right, and of what was missed, what a player has read.
    right_of_player: u64,
    missed_of_player: u64,
}

impl Score {
    /// Returns which part of what was taken for waited for was.
    pub fn precision(&self) -> f64 {
        self.right as f64 / (self.right + self.wrong).max(1) as f64
    }

    /// Returns which part of what was waited for was taken for it.
    pub fn recall(&self) -> f64 {
        self.right as f64 / (self.right + self.missed).max(1) as f64
    }

    /// Returns the same of what a player has read.
    pub fn player_recall(&self) -> f64 {
        let all = self.right_of_player + self.missed_of_player;
        self.right_of_player as f64 / all.max(1) as f64
    }

    fn add(&mut self, other: Score) {
        self.right += other.right;
        self.wrong += other.wrong;
        self.missed += other.missed;
        self.right_of_player += other.right_of_player;
        self.missed_of_player += other.missed_of_player;
    }
}

/// Lets a machine live through a day, and compares.
fn live(classifier: &mut Classifier, machine: u32, day: &Day, view: View) -> Score {
    let machine = MachineId(machine);
    classifier.began(0, machine, OF);
    let mut score = Score::default();
    let mut untold: Vec<Told> = Vec::new();
    let mut told_at = 0;
    for (at, event) in &day.events {
        if !untold.is_empty() && told_at <= *at {
            classifier.told(*at, machine, &std::mem::take(&mut untold));
        }
        let Event::Read {
            name,
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
            View::File | View::Told => Some(Program::File {
                // the machine's own disk is not the image's
                image: if *inode < OWN_FILES {
                    OF.disk
                } else {
                    ImageId([2; 32])
                },
                inode: *inode,
            }),
            View::Nothing => None,
        };
        let folder = match program {
            Some(Program::File { image, inode }) => Some(Program::Folder {
                image,
                inode: inode / FOLDER_FILES,
            }),
            _ => None,
        };
        let seen = Seen {
            machine,
            program: program.as_ref(),
            folder: folder.as_ref(),
            place: Some(Place {
                region: 1,
                offset: *offset,
            }),
            bytes: *bytes,
            op: Op::Read,
        };
        let is_interactive = classifier.request(*at, &seen) == Class::Interactive;
        if view == View::Told {
            let told = Told {
                name: Name::new(name).expect("a name"),
                from: Some(*offset),
                bytes: *bytes,
            };
            if untold.is_empty() {
                // it takes a while to come here, and the agent looks no sooner than 40 ms after the last time
                told_at = (at + 3_000).max(told_at + 40_000);
            }
            untold.push(told);
        }
        let of_player = u64::from(*name == PLAYER);
        match (is_interactive, is_waited_for) {
            (true, true) => {
                score.right += 1;
                score.right_of_player += of_player;
            }
            (true, false) => score.wrong += 1,
            (false, true) => {
                score.missed += 1;
                score.missed_of_player += of_player;
            }
            (false, false) => {}
        }
    }
    classifier.gone(machine);
    score
}

/// Returns the score of twenty-eight days, four of each kind.
pub fn scores(view: View, list: &List) -> Score {
    let mut sum = Score::default();
    for noise in NOISES {
        let mut of_noise = Score::default();
        for seed in 1..=4 {
            let mut classifier = Classifier::new();
            classifier.import(OF, list.clone());
            let score = live(&mut classifier, 1, &Day::new(seed, noise), view);
            sum.add(score);
            of_noise.add(score);
        }
        let (precision, recall) = (of_noise.precision(), of_noise.recall());
        eprintln!("{view:?} {noise:?}: precision {precision:.3}, recall {recall:.3}");
    }
    let (precision, recall) = (sum.precision(), sum.recall());
    let player = sum.player_recall();
    eprintln!("{view:?}: precision {precision:.3}, recall {recall:.3}, of players {player:.3}");
    sum
}

/// What the agents of twenty other machines of the image have taught.
pub fn learned() -> List {
    let mut classifier = Classifier::new();
    for machine in 1..=20 {
        let noise = NOISES[machine as usize % 5];
        let day = Day::new(100 + u64::from(machine), noise);
        live(&mut classifier, machine, &day, View::Agent);
    }
    classifier.export(OF)
}
