//! The rules one by one, with the paper's own examples.

mod bounds;
mod lists;

use super::limits::*;
use super::*;

const SECOND: u64 = 1_000_000;
const MACHINE: MachineId = MachineId(1);
const OF: Owned = Owned {
    disk: ImageId([7; 32]),
    uid: 1000,
};

fn task(name: &str) -> Program {
    Program::Task(Name::new(name).expect("a name"))
}

fn file(inode: u64) -> Program {
    Program::File {
        image: OF.disk,
        inode,
    }
}

fn folder(inode: u64) -> Program {
    Program::Folder {
        image: OF.disk,
        inode,
    }
}

/// A machine in front of which things happen.
struct Scene {
    classifier: Classifier,
    machine: MachineId,
}

impl Scene {
    fn new() -> Scene {
        let mut classifier = Classifier::new();
        classifier.began(0, MACHINE, OF);
        Scene {
            classifier,
            machine: MACHINE,
        }
    }

    fn input(&mut self, at_us: u64) {
        self.classifier.input(at_us, self.machine);
    }

    fn ask(
        &mut self,
        at_us: u64,
        program: Option<&Program>,
        place: Option<Place>,
        bytes: u64,
    ) -> Class {
        let seen = Seen {
            machine: self.machine,
            program,
            folder: None,
            place,
            bytes,
            op: Op::Read,
        };
        self.classifier.request(at_us, &seen)
    }

    /// Scattered reads of 4 KiB, and the class of the last one.
    fn reads(
        &mut self,
        program: Option<&Program>,
        from_us: u64,
        to_us: u64,
        every_us: u64,
    ) -> Class {
        let mut class = Class::Normal;
        for at in (from_us..to_us).step_by(every_us as usize) {
            // far from each other
            let offset = (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) & !4095;
            let place = Place { region: 0, offset };
            class = self.ask(at, program, Some(place), 4096);
        }
        class
    }

    /// Reads of 128 KiB, one after the other in the same region.
    fn stream(
        &mut self,
        program: Option<&Program>,
        from_us: u64,
        to_us: u64,
        bytes_per_s: u64,
    ) -> Vec<Class> {
        let bytes = 128 << 10;
        let every_us = (bytes * SECOND / bytes_per_s) as usize;
        let times = (from_us..to_us).step_by(every_us).enumerate();
        let classes = times.map(|(number, at)| {
            let offset = number as u64 * bytes;
            let place = Place { region: 9, offset };
            self.ask(at, program, Some(place), bytes)
        });
        classes.collect()
    }

    fn rule(&self, program: &Program) -> (Class, Rule) {
        let status = self.classifier.status(self.machine).expect("it runs");
        let found = status.programs.iter().find(|p| p.program == *program);
        found.map(|p| (p.class, p.rule)).expect("it has asked")
    }

    fn counts(&self, program: &Program) -> (u32, u32) {
        let status = self.classifier.status(self.machine).expect("it runs");
        let found = status.programs.iter().find(|p| p.program == *program);
        found
            .map(|p| (p.after_inputs, p.before_inputs))
            .expect("it has asked")
    }
}

#[test]
fn figure_7_program_b_is_interactive_and_program_a_is_not_although_it_asks_more() {
    let mut scene = Scene::new();
    let (a, b) = (task("a"), task("b"));
    let input = 10 * SECOND;
    for at in [1, 2, 3, 4] {
        scene.ask(input - at * SECOND / 2, Some(&a), None, 4096);
    }
    scene.ask(input - SECOND, Some(&b), None, 4096);
    scene.input(input);
    for at in [1, 2, 3, 4] {
        scene.ask(input + at * SECOND / 2, Some(&a), None, 4096);
    }
    for at in [1, 2, 3] {
        scene.ask(input + at * SECOND / 2, Some(&b), None, 4096);
    }
    // requests beyond both periods are nobody's evidence
    scene.input(input + 20 * SECOND);
    assert_eq!(scene.counts(&a), (4, 4));
    assert_eq!(scene.counts(&b), (3, 1));
    let at = input + 30 * SECOND;
    assert_eq!(scene.ask(at, Some(&a), None, 4096), Class::Normal);
    assert_eq!(scene.ask(at, Some(&b), None, 4096), Class::Interactive);
    assert_eq!(scene.rule(&a), (Class::Normal, Rule::Counts));
    assert_eq!(scene.rule(&b), (Class::Interactive, Rule::Counts));
}

#[test]
fn a_cold_launch_is_interactive_from_its_first_request() {
    let mut scene = Scene::new();
    let office = task("soffice.bin");
    scene.input(20 * SECOND);
    let at = 20 * SECOND + 50_000;
    assert_eq!(scene.ask(at, Some(&office), None, 4096), Class::Interactive);
    let launching = scene.reads(Some(&office), at, 30 * SECOND, 10_000);
    assert_eq!(launching, Class::Interactive);
    assert_eq!(scene.rule(&office).1, Rule::Launch);
    // the next input shows what it was
    scene.input(40 * SECOND);
    assert_eq!(
        scene.ask(41 * SECOND, Some(&office), None, 4096),
        Class::Interactive
    );
    assert_eq!(scene.rule(&office).1, Rule::Counts);
}

#[test]
fn a_program_that_was_there_before_the_input_is_no_launch() {
    let mut scene = Scene::new();
    let scanner = task("clamscan");
    scene.reads(Some(&scanner), 15 * SECOND, 20 * SECOND, 20_000);
    scene.input(20 * SECOND);
    let class = scene.reads(Some(&scanner), 20 * SECOND, 23 * SECOND, 20_000);
    assert_eq!(class, Class::Normal);
    assert_eq!(scene.rule(&scanner).1, Rule::Counts);
}

#[test]
fn page_loads_a_second_apart_make_a_browser_interactive() {
    let mut scene = Scene::new();
    let (browser, scanner) = (task("chrome"), task("clamscan"));
    let mut at = 10 * SECOND;
    for _ in 0..10 {
        scene.input(at);
        // the page takes 1.5 s, then a second passes
        scene.reads(Some(&browser), at + 100_000, at + 1_500_000, 70_000);
        scene.reads(Some(&scanner), at, at + 2_500_000, 50_000);
        at += 2_500_000;
    }
    scene.input(at);
    assert_eq!(
        scene.ask(at, Some(&browser), None, 4096),
        Class::Interactive
    );
    let (after, before) = scene.counts(&browser);
    assert!(after > 4 * before, "{after} {before}");
    assert_eq!(scene.ask(at, Some(&scanner), None, 4096), Class::Normal);
    let (after, before) = scene.counts(&scanner);
    assert!(after * 100 <= (after + before) * 53, "{after} {before}");
}

#[test]
fn whoever_pays_no_regard_to_inputs_has_half_of_its_requests_after_them_however_far_apart_they_are()
{
    for gap_us in [
        1_000_000, 1_010_000, 1_240_000, 1_700_000, 3_333_333, 7_900_000, 8_000_000, 30_000_000,
    ] {
        let mut scene = Scene::new();
        let reader = task("md5sum");
        let mut at = 10 * SECOND;
        scene.input(at);
        for _ in 0..6 {
            scene.reads(Some(&reader), at, at + gap_us, 7_000);
            at += gap_us;
            scene.input(at);
        }
        let (after, before) = scene.counts(&reader);
        let percent = after * 100 / (after + before);
        assert!((47..=53).contains(&percent), "{gap_us}: {percent} %");
    }
}

#[test]
fn clicking_without_end_makes_nothing_interactive() {
    for every_us in [10_000, 300_000, 999_999, 1_100_000, 2_000_000] {
        let mut scene = Scene::new();
        let liar = task("dd");
        let mut class = Class::Interactive;
        for at in (SECOND..60 * SECOND).step_by(10_000) {
            if at % every_us < 10_000 {
                scene.input(at);
            }
            class = scene.ask(at, Some(&liar), None, 1 << 20);
        }
        assert_eq!(class, Class::Bulk, "a click every {every_us} us");
    }
}

#[test]
fn a_copy_that_starts_on_an_input_is_bulk_as_soon_as_it_shows() {
    let mut scene = Scene::new();
    let dd = task("dd");
    scene.input(10 * SECOND);
    let classes = scene.stream(Some(&dd), 10 * SECOND + 1000, 20 * SECOND, 100 << 20);
    let interactive = classes.iter().filter(|c| **c == Class::Interactive).count();
    assert!(interactive as u64 * (128 << 10) <= STREAM_BYTES);
    assert_eq!(classes.last(), Some(&Class::Bulk));
    assert_eq!(scene.rule(&dd), (Class::Bulk, Rule::Stream));
    // without any name as well
    let mut scene = Scene::new();
    scene.input(10 * SECOND);
    let classes = scene.stream(None, 10 * SECOND + 1000, 20 * SECOND, 100 << 20);
    assert_eq!(classes.first(), Some(&Class::Interactive));
    assert_eq!(classes.last(), Some(&Class::Bulk));
}

#[test]
fn a_compiler_that_starts_on_an_input_is_normal_when_nobody_can_be_waiting_any_more() {
    let mut scene = Scene::new();
    let cc = task("cc1");
    scene.input(10 * SECOND);
    let class = scene.reads(Some(&cc), 10 * SECOND + 1000, 24 * SECOND, 10_000);
    assert_eq!(class, Class::Interactive);
    let class = scene.reads(Some(&cc), 24 * SECOND, 40 * SECOND, 10_000);
    assert_eq!(class, Class::Normal);
    assert_eq!(scene.rule(&cc).1, Rule::GoesOn);
}

#[test]
fn a_video_is_interactive_though_it_reads_before_inputs_as_much_as_after() {
    for program in [Some(task("mplayer")), Some(file(4711)), None] {
        let mut scene = Scene::new();
        scene.input(10 * SECOND);
        let program = program.as_ref();
        // 20 Mbit/s
        let classes = scene.stream(program, 10 * SECOND + 1000, 100 * SECOND, 5 << 19);
        if program.is_some() {
            assert!(classes.iter().all(|class| *class == Class::Interactive));
        } else {
            assert_eq!(classes.last(), Some(&Class::Interactive));
        }
        // volume up, twice
        scene.input(101 * SECOND);
        scene.input(120 * SECOND);
        let again = scene.stream(program, 120 * SECOND, 140 * SECOND, 5 << 19);
        assert_eq!(again.last(), Some(&Class::Interactive));
        if let Some(program) = program {
            assert_eq!(scene.rule(program).1, Rule::Player);
        }
    }
}

#[test]
fn a_steady_reader_without_an_input_or_faster_than_a_film_is_no_player() {
    let mut scene = Scene::new();
    let backup = task("rsync");
    let classes = scene.stream(Some(&backup), 10 * SECOND, 60 * SECOND, 2 << 20);
    assert_eq!(
        classes.last(),
        Some(&Class::Bulk),
        "64 MiB in a run that nobody waits for"
    );
    scene.input(100 * SECOND);
    let copy = task("cp");
    let classes = scene.stream(Some(&copy), 100 * SECOND, 160 * SECOND, 12 << 20);
    assert_eq!(classes.last(), Some(&Class::Bulk));
}

#[test]
fn a_slow_copy_that_was_taken_for_a_player_is_found_out_when_it_reads_faster() {
    let mut scene = Scene::new();
    let copy = task("cp");
    scene.input(10 * SECOND);
    scene.stream(Some(&copy), 10 * SECOND, 30 * SECOND, 2 << 20);
    assert_eq!(scene.rule(&copy).1, Rule::Player);
    let classes = scene.stream(Some(&copy), 30 * SECOND, 40 * SECOND, 20 << 20);
    assert_eq!(classes.last(), Some(&Class::Bulk));
    scene.stream(Some(&copy), 40 * SECOND, 90 * SECOND, 2 << 20);
    assert_ne!(scene.rule(&copy).0, Class::Interactive);
}

#[test]
fn a_scan_of_ever_new_files_is_not_taken_for_launches() {
    let mut scene = Scene::new();
    scene.input(SECOND);
    let mut class = Class::Interactive;
    for number in 0..6000u64 {
        let at = 10 * SECOND + number * 10_000;
        if number % 1000 == 0 {
            scene.input(at);
        }
        class = scene.ask(at, Some(&file(number)), None, 16 << 10);
        if number > 1100 {
            assert_eq!(class, Class::Normal, "file {number}");
        }
    }
    assert_eq!(class, Class::Normal);
}

#[test]
fn a_launch_beside_a_reader_that_never_pauses_is_found_by_its_directory() {
    let mut scene = Scene::new();
    let read = |scene: &mut Scene, at_us, inode, of| {
        let seen = Seen {
            machine: MACHINE,
            program: Some(&file(inode)),
            folder: Some(&folder(of)),
            place: None,
            bytes: 16 << 10,
            op: Op::Read,
        };
        scene.classifier.request(at_us, &seen)
    };
    // one file every 0.4 s, each for the first time
    let steady = |scene: &mut Scene, from: u64, to: u64| {
        (from..to).all(|n| read(scene, n * 2 * SECOND / 5, n, 1) == Class::Normal)
    };
    assert!(steady(&mut scene, 1, 26));
    scene.input(10_100_000);
    assert!(steady(&mut scene, 26, 27));
    let launch = (0..60).map(|n| read(&mut scene, 10_500_000 + n * 5_000, 1000 + n, 2));
    let first = launch
        .collect::<Vec<_>>()
        .iter()
        .position(|class| *class == Class::Interactive);
    assert!(first.is_some_and(|first| first < 10), "{first:?}");
    assert!(steady(&mut scene, 28, 40));
}

#[test]
fn requests_without_a_name_are_interactive_soon_after_inputs_only() {
    let mut scene = Scene::new();
    assert_eq!(scene.reads(None, SECOND, 2 * SECOND, 50_000), Class::Normal);
    scene.input(20 * SECOND);
    assert_eq!(
        scene.reads(None, 20 * SECOND, 23 * SECOND, 50_000),
        Class::Interactive
    );
    assert_eq!(
        scene.reads(None, 24 * SECOND + 1, 25 * SECOND, 50_000),
        Class::Normal
    );
}

#[test]
fn a_program_that_changes_is_judged_anew() {
    let mut scene = Scene::new();
    let python = task("python3");
    let mut at = 20 * SECOND;
    for _ in 0..10 {
        scene.input(at);
        scene.reads(Some(&python), at, at + 2 * SECOND, 20_000);
        at += 20 * SECOND;
    }
    assert_eq!(scene.rule(&python), (Class::Interactive, Rule::Counts));
    for _ in 0..4 {
        scene.input(at);
        scene.reads(Some(&python), at, at + 20 * SECOND, 20_000);
        at += 20 * SECOND;
    }
    assert_ne!(scene.rule(&python).0, Class::Interactive);
}

#[test]
fn writes_and_flushes_prove_nothing() {
    let editor = task("gedit");
    for (op, program) in [
        (Op::Write, Some(&editor)),
        (Op::Write, None),
        (Op::Flush, None),
    ] {
        let mut scene = Scene::new();
        scene.input(10 * SECOND);
        for number in 0..10 {
            let seen = Seen {
                machine: MACHINE,
                program,
                folder: None,
                place: None,
                bytes: 4096,
                op,
            };
            scene.classifier.request(10 * SECOND + number, &seen);
        }
        let status = scene.classifier.status(MACHINE).expect("it runs");
        assert_eq!(status.strangers_after_input, 0, "{op:?} of {program:?}");
        assert_eq!(status.unnamed, None);
        scene.input(30 * SECOND);
        if program.is_some() {
            assert_eq!(scene.counts(&editor), (0, 0));
        }
    }
}

#[test]
fn of_reads_of_nobody_that_is_known_it_is_told_how_many_there_were_and_why_the_last_one_went_first()
{
    let mut scene = Scene::new();
    scene.reads(Some(&file(1)), SECOND, 2 * SECOND, SECOND / 4);
    let told = |scene: &Scene| scene.classifier.status(MACHINE).expect("it runs").unnamed;
    assert_eq!(told(&scene), None);
    scene.input(10 * SECOND);
    scene.reads(None, 10 * SECOND + 1, 11 * SECOND + 1, SECOND / 4);
    let last = told(&scene).expect("there were some");
    assert_eq!(
        (last.reads, last.last_us),
        (4, 10 * SECOND + 1 + SECOND * 3 / 4)
    );
    assert_eq!(
        (last.class, last.rule),
        (Class::Interactive, Rule::SoonAfter)
    );
    scene.reads(None, 20 * SECOND, 20 * SECOND + 1, SECOND);
    let last = told(&scene).expect("there were some");
    assert_eq!(
        (last.reads, last.class, last.rule),
        (5, Class::Normal, Rule::Unknown)
    );
}
