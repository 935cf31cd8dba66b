//! Liars, floods, and any sequence of calls.

use super::*;
use proptest::prelude::*;

#[test]
fn an_agent_that_floods_with_names_keeps_the_memory_bounded_and_the_known_programs() {
    let mut scene = Scene::new();
    let editor = task("gedit");
    for input in 1..=3u64 {
        scene.input(input * 20 * SECOND);
        scene.reads(
            Some(&editor),
            input * 20 * SECOND,
            input * 20 * SECOND + SECOND,
            100_000,
        );
    }
    for number in 0..20_000u64 {
        let at = 80 * SECOND + number * 1000;
        if number % 100 == 0 {
            scene.input(at);
        }
        let liar = task(&format!("x{number}"));
        scene.ask(at, Some(&liar), None, u64::MAX);
    }
    let status = scene.classifier.status(MACHINE).expect("it runs");
    assert!(status.programs_known <= PROGRAMS_MAX);
    assert_eq!(status.programs.len(), STATUS_PROGRAMS_MAX);
    assert!(scene.classifier.export(OF).learned().count() <= TAUGHT_MAX);
    assert_eq!(
        scene.ask(100 * SECOND, Some(&editor), None, 4096),
        Class::Interactive
    );
    assert_eq!(scene.rule(&editor).1, Rule::Counts);
}

/// An agent tells who has read this just now.
fn tell(classifier: &mut Classifier, at_us: u64, machine: MachineId, name: &str, from: u64) {
    let told = Told {
        name: Name::new(name).expect("a name"),
        from: Some(from),
        bytes: 4096,
    };
    classifier.told(at_us, machine, &[told]);
}

#[test]
fn an_agent_that_lies_changes_nothing_in_another_machine() {
    let (liar, other) = (MachineId(1), MachineId(2));
    let run = |lies: bool| {
        let mut classifier = Classifier::new();
        classifier.began(0, liar, OF);
        classifier.began(0, other, OF);
        let mut verdicts = Vec::new();
        for number in 0..4000u64 {
            let at = 10 * SECOND + number * 20_000;
            if number % 500 == 0 {
                classifier.input(at, other);
            }
            let offset = (number * 7919 % 5000) << 20;
            let read = |machine| Seen {
                machine,
                program: None,
                folder: None,
                place: Some(Place { region: 0, offset }),
                bytes: 4096,
                op: Op::Read,
            };
            if lies {
                // it clicks at each of its reads, and tells of those of others too, and of what nobody has read
                classifier.input(at, liar);
                classifier.request(at, &read(liar));
                tell(&mut classifier, at + 1, liar, "editor", offset);
                tell(&mut classifier, at + 2, liar, "backup", u64::MAX - number);
            }
            verdicts.push(classifier.judge(at + 3, &read(other)));
            if number % 3 == 0 {
                tell(&mut classifier, at + 3000, other, "editor", offset);
            }
        }
        verdicts
    };
    let (honest, beside_a_liar) = (run(false), run(true));
    assert!(honest.iter().any(|one| one.class == Class::Interactive));
    assert!(honest.iter().any(|one| one.source == Source::Agent));
    assert_eq!(honest, beside_a_liar);
}

#[test]
fn where_an_agent_dies_the_files_say_who_asks_again() {
    let mut scene = Scene::new();
    let of_file = file(5);
    let ask = |scene: &mut Scene, at_us: u64| {
        let seen = Seen {
            machine: MACHINE,
            program: Some(&of_file),
            folder: None,
            place: Some(Place::default()),
            bytes: 4096,
            op: Op::Read,
        };
        scene.classifier.judge(at_us, &seen)
    };
    scene.input(10 * SECOND);
    assert_eq!(ask(&mut scene, 10 * SECOND).source, Source::Caller);
    tell(
        &mut scene.classifier,
        10 * SECOND + 5000,
        MACHINE,
        "editor",
        0,
    );
    let told = ask(&mut scene, 11 * SECOND);
    assert_eq!(
        (told.source, told.program),
        (Source::Agent, Some(task("editor")))
    );
    // it tells nothing more
    let alone = ask(&mut scene, 30 * SECOND);
    assert_eq!(
        (alone.source, alone.program),
        (Source::Caller, Some(of_file))
    );
}

#[test]
fn strangers_and_machines_without_number_change_nothing() {
    let mut classifier = Classifier::new();
    classifier.began(0, MachineId::NONE, OF);
    assert_eq!(classifier.status(MachineId::NONE), None);
    for number in 0..2 * MACHINES_MAX as u32 {
        classifier.began(0, MachineId(number + 1), Owned { uid: number, ..OF });
    }
    assert_eq!(classifier.machines.len(), MACHINES_MAX);
    for number in 0..4 * LISTS_MAX as u32 {
        classifier.import(Owned { uid: number, ..OF }, List::default());
    }
    assert_eq!(classifier.lists.len(), LISTS_MAX);
    classifier.gone(MachineId(1));
    assert_eq!(classifier.status(MachineId(1)), None);
}

#[derive(Clone, Debug)]
enum Call {
    Input,
    Ask(usize, u64, u64, Op),
    Restart,
}

fn call() -> impl Strategy<Value = (u64, u32, Call)> {
    let op = prop_oneof![Just(Op::Read), Just(Op::Write), Just(Op::Flush)];
    let call = prop_oneof![
        2 => Just(Call::Input),
        20 => (0..40usize, any::<u64>(), 0..u64::MAX, op).prop_map(|(p, at, bytes, op)| Call::Ask(p, at, bytes, op)),
        1 => Just(Call::Restart),
    ];
    (0..3 * SECOND, 0..4u32, call)
}

fn run(calls: &[(u64, u32, Call)]) -> (Vec<Class>, Vec<Option<Status>>, List) {
    let mut classifier = Classifier::new();
    let (mut now, mut classes) = (0, Vec::new());
    for (pass, machine, call) in calls {
        now += pass;
        let machine = MachineId(*machine);
        match call {
            Call::Input => classifier.input(now, machine),
            Call::Restart => {
                classifier.gone(machine);
                classifier.began(now, machine, OF);
            }
            Call::Ask(who, at, bytes, op) => {
                let named = [task(&format!("t{who}")), file(*who as u64), file(*at)];
                let folders = [folder(*at), folder(7)];
                let seen = Seen {
                    machine,
                    program: named.get(who % 4),
                    folder: folders.get(who % 3),
                    place: (who % 3 > 0).then_some(Place {
                        region: 0,
                        offset: *at,
                    }),
                    bytes: *bytes,
                    op: *op,
                };
                classes.push(classifier.request(now, &seen));
            }
        }
    }
    let status = (0..4)
        .map(|machine| classifier.status(MachineId(machine)))
        .collect();
    (classes, status, classifier.export(OF))
}

proptest! {
    /// Whatever is called with whatever numbers: nothing panics, the same calls have the same answers, all that is kept is bounded,
    /// and the list is one that can be read again.
    #[test]
    fn the_same_calls_have_the_same_answers(calls in prop::collection::vec(call(), 0..400)) {
        let (classes, status, list) = run(&calls);
        prop_assert_eq!(&run(&calls), &(classes, status.clone(), list.clone()));
        prop_assert_eq!(&status[0], &None, "nobody's machine is none");
        for status in status.into_iter().flatten() {
            prop_assert!(status.programs_known <= PROGRAMS_MAX);
            for program in status.programs {
                prop_assert!(program.after_inputs + program.before_inputs <= COUNTS_MAX);
            }
        }
        prop_assert!(list.learned().count() <= LEARNED_MAX);
        prop_assert_eq!(List::parse(list.encode().as_bytes()), Ok(list));
    }
}
