//! What is said by hand and what is learned, and the file of both.

use super::*;

#[test]
fn hands_come_before_counts_and_the_machines_own_before_its_images() {
    let mut scene = Scene::new();
    let (player, dd) = (task("mplayer"), task("dd"));
    let name = |text: &str| Name::new(text).expect("a name");
    let (machine, image) = (Scope::Machine(MACHINE), Scope::Disk(OF));
    scene
        .classifier
        .allow(image, name("mplayer"))
        .expect("room");
    assert_eq!(
        scene.ask(SECOND, Some(&player), None, 4096),
        Class::Interactive
    );
    assert_eq!(scene.rule(&player).1, Rule::Allowed);
    scene
        .classifier
        .forbid(machine, name("mplayer"))
        .expect("room");
    scene.input(2 * SECOND);
    assert_eq!(
        scene.ask(2 * SECOND, Some(&player), None, 4096),
        Class::Normal
    );
    assert_eq!(scene.rule(&player).1, Rule::Forbidden);
    assert_eq!(scene.classifier.unsay(machine, name("mplayer")), Ok(true));
    assert_eq!(scene.classifier.unsay(machine, name("mplayer")), Ok(false));
    assert_eq!(
        scene.ask(3 * SECOND, Some(&player), None, 4096),
        Class::Interactive
    );
    scene.classifier.forbid(image, name("dd")).expect("room");
    assert_eq!(scene.ask(2 * SECOND, Some(&dd), None, 4096), Class::Normal);
    let list = scene.classifier.export(OF);
    assert_eq!(list.allowed().collect::<Vec<_>>(), [&name("mplayer")]);
    assert_eq!(list.forbidden().collect::<Vec<_>>(), [&name("dd")]);
    let nobody = Scope::Machine(MachineId(99));
    assert_eq!(
        scene.classifier.allow(nobody, name("x")),
        Err(ListError::NoMachine)
    );
    for number in 0..HAND_MAX {
        let said = scene.classifier.allow(machine, name(&format!("p{number}")));
        said.expect("room");
    }
    let many = scene.classifier.allow(machine, name("one more"));
    assert!(matches!(many, Err(ListError::TooMany { .. })), "{many:?}");
}

/// Lets a program answer inputs in a machine, or go on without regard to them.
fn teach(classifier: &mut Classifier, machine: u32, program: &Program, times: u64, answers: bool) {
    let machine = MachineId(machine);
    classifier.began(0, machine, OF);
    let mut scene = Scene {
        classifier: std::mem::take(classifier),
        machine,
    };
    for time in 1..=times {
        let at = time * 20 * SECOND;
        scene.input(at);
        let until = if answers {
            at + 2 * SECOND
        } else {
            at + 20 * SECOND
        };
        scene.reads(Some(program), at, until, 100_000);
    }
    scene.input((times + 1) * 20 * SECOND);
    *classifier = scene.classifier;
    classifier.gone(machine);
}

#[test]
fn what_several_machines_show_their_image_knows_and_no_other_owners() {
    let mut classifier = Classifier::new();
    let (viewer, indexer) = (task("evince"), task("tracker"));
    for machine in 1..=3 {
        for (program, answers) in [(&viewer, true), (&indexer, false)] {
            teach(&mut classifier, machine, program, 2, answers);
        }
    }
    let list = List::parse(classifier.export(OF).encode().as_bytes()).expect("what was encoded");
    assert_eq!(list, classifier.export(OF));
    let mut elsewhere = Classifier::new();
    elsewhere.import(OF, list.clone());
    elsewhere.import(OF, list.clone());
    assert_eq!(elsewhere.export(OF), list);
    elsewhere.began(0, MACHINE, OF);
    let other = Owned { uid: 1001, ..OF };
    elsewhere.began(0, MachineId(2), other);
    let mut ask = |machine, program| {
        let seen = Seen {
            machine,
            program: Some(program),
            folder: None,
            place: None,
            bytes: 4096,
            op: Op::Read,
        };
        elsewhere.request(SECOND, &seen)
    };
    assert_eq!(
        ask(MACHINE, &viewer),
        Class::Interactive,
        "before any input"
    );
    assert_eq!(ask(MACHINE, &indexer), Class::Normal);
    assert_eq!(ask(MachineId(2), &viewer), Class::Normal);
    let status = elsewhere.status(MACHINE).expect("it runs");
    assert!(
        status.programs.iter().all(|p| p.rule == Rule::Learned),
        "{status:?}"
    );
}

#[test]
fn a_single_machine_teaches_nothing_alone_however_long_it_lies() {
    let mut classifier = Classifier::new();
    let dd = task("dd");
    teach(&mut classifier, 1, &dd, 200, true);
    let list = classifier.export(OF);
    let (_, tally) = list.learned().next().expect("it was noted");
    let eight = u32::from(TAUGHT_EACH_MAX);
    assert_eq!(
        (tally.machines, tally.seen, tally.interactive),
        (1, eight, eight)
    );
    assert_eq!(tally.belief(), None);
    // three honest ones outvote it
    for machine in 2..=4 {
        teach(&mut classifier, machine, &dd, 8, false);
    }
    let list = classifier.export(OF);
    let tally = list.learned().next().expect("it was noted").1;
    assert_eq!(tally.belief(), Some(false));
}

#[test]
fn a_wrong_list_says_what_is_wrong_and_where() {
    let told = |text: &str| List::parse(text.as_bytes()).expect_err(text).to_string();
    assert!(told("{").contains("line 1 column 1"));
    assert_eq!(
        told(r#"{"version":2,"new":1}"#),
        "the list has version 2, this floe knows version 1"
    );
    assert!(told(r#"{"version":1,"allowed":["a\u0007"]}"#).contains("control character at line 1"));
    let long = format!(r#"{{"version":1,"allowed":["{}"]}}"#, "x".repeat(49));
    assert!(told(&long).contains("49 bytes, at most 48"));
    let twice = r#"{"version":1,"allowed":["a"],"forbidden":["b","a"]}"#;
    assert_eq!(
        told(twice),
        "forbidden[1] of the list has been named before"
    );
    let more = r#"{"version":1,"learned":[{"name":"a","machines":1,"seen":2,"interactive":3}]}"#;
    assert_eq!(
        told(more),
        "learned[0] of the list was interactive more often than it was seen"
    );
    let nameless = r#"{"version":1,"learned":[{"machines":1,"seen":2,"interactive":2}]}"#;
    assert!(told(nameless).contains("missing field `name` at line 1 column"));
    let names: Vec<String> = (0..HAND_MAX + 1)
        .map(|number| format!("\"{number}\""))
        .collect();
    let many = format!(r#"{{"version":1,"allowed":[{}]}}"#, names.join(","));
    assert!(told(&many).starts_with("257 names by hand are too many, 256 are allowed"));
    let large = vec![b' '; LIST_BYTES_MAX + 1];
    assert_eq!(
        List::parse(&large),
        Err(ListError::TooLong { bytes: large.len() })
    );
}
