//! What is read of stored lists of programs, and of what VNC clients send.

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

/// However a VNC client's bytes are cut, the same presses are found in them: the first byte says where.
pub fn vnc_client(data: &[u8]) {
    use floe_sched::Presses;
    let Some((cut, bytes)) = data.split_first() else {
        return;
    };
    let mut whole = Presses::default();
    let pressed = whole.are_in(bytes);
    let mut pieces = Presses::default();
    let (first, second) = bytes.split_at(usize::from(*cut).min(bytes.len()));
    let in_pieces = [first, second].map(|piece| pieces.are_in(piece));
    assert_eq!(in_pieces.contains(&true), pressed);
    assert_eq!(pieces, whole);
    let mut bytewise = Presses::default();
    let each = bytes.iter().map(|byte| bytewise.are_in(&[*byte]));
    // each message has a byte at which it is known that something goes down
    let number = each.filter(|pressed| *pressed).count();
    assert_eq!((number > 0, bytewise), (pressed, whole));
    assert!(number <= bytes.len() / 2);
    which_way(*cut, bytes);
}

/// However a client's bytes are cut, each of its messages goes the same way, and nothing is made up.
fn which_way(cut: u8, bytes: &[u8]) {
    use crate::node::vnc::{Client, Done, Stand};
    for (still, kept) in [(false, false), (true, false), (true, true), (false, true)] {
        let pointer = still && kept;
        let stand = Stand {
            still,
            kept,
            pointer,
        };
        let (mut whole, mut pieces) = (Client::default(), Client::default());
        let all = whole.takes(bytes, stand);
        let (first, second) = bytes.split_at(usize::from(cut).min(bytes.len()));
        let [mut one, two] = [first, second].map(|piece| pieces.takes(piece, stand));
        one.pass.extend(two.pass);
        one.keep.extend(two.keep);
        assert_eq!((&one.pass, &one.keep), (&all.pass, &all.keep));
        assert!(all.pass.len() + all.keep.len() <= bytes.len());
        let is_good = |done: &Done| match done {
            Done::Input(input) => input.check().is_ok(),
            Done::Points { buttons, .. } => pointer && *buttons < 32,
        };
        assert!(all.keep.iter().all(is_good));
        assert!(still || !whole.is_holding());
        assert!(kept || all.keep.is_empty());
        while whole.is_holding() && !whole.goes_on().pass.is_empty() {}
        whole.leaves();
    }
}
