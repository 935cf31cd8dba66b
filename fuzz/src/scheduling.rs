//! What is read of stored lists of programs.

/// A list of interactive programs is bounded, and what is read of it, written again, is read as the same.
pub fn io_list(data: &[u8]) {
    use floe_sched::classify::{Classifier, List, Owned};
    let Ok(list) = List::parse(data) else { return };
    let again = list.encode();
    assert_eq!(List::parse(again.as_bytes()).as_ref(), Ok(&list));
    let names = list.allowed().chain(list.forbidden());
    let learned = list.learned().map(|(name, _)| name);
    assert!(
        names
            .chain(learned)
            .all(|name| !name.as_str().is_empty() && !name.as_str().contains(char::is_control))
    );
    assert!(
        list.learned()
            .all(|(_, tally)| tally.interactive <= tally.seen && tally.machines <= tally.seen)
    );
    let mut classifier = Classifier::new();
    classifier.import(Owned::default(), list.clone());
    classifier.import(Owned::default(), list.clone());
    assert_eq!(classifier.export(Owned::default()), list);
}
