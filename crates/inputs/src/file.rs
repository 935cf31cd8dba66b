//! The file in which inputs wait for a machine: a line for each thing that happens, so that keeping an input is one write.
//!
//! ```text
//! floe-inputs 1
//! machine 1732839201                    when the machine was made, by which it is known on every node
//! node 10.0.0.2:7071 beta               where it is if it is not here
//! keep 00000000000000ab 7 250 x6c730a   source, number, gap in ms, input
//! said 00000000000000ab 9               the guest may have got those up to this number
//! taken 00000000000000ab 9              the guest has got them
//! ```
//! What a power cut has left half written is at the end, and was never answered.

use super::decide::{GAP_MS_MAX, Kept};
use floe_inventory::inventory::turn::Peer;
use std::{collections::BTreeMap, fmt::Write};

/// The first line.
const HEAD: &str = "floe-inputs 1";
/// Longest name of a node that is read.
const NAME_BYTES_MAX: usize = 255;

/// What a file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// When the machine was made, Unix time in seconds.
    pub machine: u64,
    /// Where it is if it is not here.
    pub node: Option<Peer>,
    /// What waits, in order.
    pub waiting: Vec<Kept>,
    /// Up to which number of which source the guest may have got some.
    pub said: Option<(u64, u64)>,
    /// The last number of each source that the guest has got, as far as the file still says that.
    pub taken: BTreeMap<u64, u64>,
    /// Whether a line made no sense: what stood there and after it is lost.
    pub damaged: bool,
}

/// Returns a file's whole text.
pub fn text<'a>(
    machine: u64,
    node: Option<&Peer>,
    said: Option<(u64, u64)>,
    waiting: impl Iterator<Item = &'a Kept>,
) -> String {
    let mut text = format!("{HEAD}\nmachine {machine}\n");
    if let Some(node) = node {
        let _ = writeln!(text, "node {} {}", node.address, node.name); // a String takes all
    }
    text += &kept(waiting);
    if let Some((from, number)) = said {
        text += &line("said", from, number);
    }
    text
}

/// Returns the lines of inputs that are kept from now on.
pub fn kept<'a>(inputs: impl Iterator<Item = &'a Kept>) -> String {
    let mut text = String::new();
    for kept in inputs {
        let Kept {
            from,
            number,
            gap_ms,
            input,
        } = kept;
        let _ = writeln!(text, "keep {from:016x} {number} {gap_ms} {input}"); // as above
    }
    text
}

/// Returns the line that inputs up to a number were `said`, or were `taken`.
pub fn line(what: &str, from: u64, number: u64) -> String {
    format!("{what} {from:016x} {number}\n")
}

/// Reads a file up to the first line that makes no sense.
pub fn parse(bytes: &[u8]) -> Result<Found, String> {
    let text = String::from_utf8_lossy(bytes);
    // what has no end is not whole
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut lines = whole.split('\n');
    if lines.next() != Some(HEAD) {
        return Err(format!("it does not begin with {HEAD:?}"));
    }
    let machine = lines.next().and_then(|line| line.strip_prefix("machine "));
    let machine = machine.and_then(|machine| machine.parse().ok());
    let mut found = Found {
        machine: machine.ok_or("it does not say of which machine it is")?,
        ..Found::default()
    };
    for line in lines {
        if read(line, &mut found).is_none() {
            found.damaged = true;
            break;
        }
    }
    Ok(found)
}

fn read(line: &str, found: &mut Found) -> Option<()> {
    let mut words = line.split(' ');
    let what = words.next()?;
    if what == "node" {
        let address = words.next()?.parse().ok()?;
        let name = words.next().filter(|name| name.len() <= NAME_BYTES_MAX)?;
        found.node = Some(Peer {
            name: name.to_owned(),
            address,
        });
        return words.next().is_none().then_some(());
    }
    let from = u64::from_str_radix(words.next()?, 16).ok()?;
    let number: u64 = words.next()?.parse().ok()?;
    match what {
        "keep" => {
            let gap_ms: u64 = words.next()?.parse().ok()?;
            let input = words.next()?.parse().ok()?;
            let kept = Kept {
                from,
                number,
                gap_ms: gap_ms.min(GAP_MS_MAX),
                input,
            };
            found.waiting.push(kept);
        }
        "said" => found.said = Some((from, number)),
        "taken" => {
            let is_taken = |kept: &Kept| kept.from == from && kept.number <= number;
            found.waiting.retain(|kept| !is_taken(kept));
            let last = found.taken.entry(from).or_default();
            *last = number.max(*last);
        }
        _ => return None,
    }
    words.next().is_none().then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_guest::input::Input;
    use proptest::prelude::*;

    fn some(from: u64, number: u64) -> Kept {
        Kept {
            from,
            number,
            gap_ms: number,
            input: Input::Text(format!("{number}\n").into_bytes()),
        }
    }

    fn node() -> Peer {
        Peer {
            name: "beta".into(),
            address: "10.0.0.2:7071".parse().unwrap(),
        }
    }

    #[test]
    fn a_file_says_what_was_written_and_what_has_become_of_it() {
        let waiting = [some(0xab, 1), some(0xab, 2), some(0xcd, 1)];
        let mut text = text(5, Some(&node()), None, waiting.iter());
        assert!(
            text.contains("\nkeep 00000000000000ab 2 2 x320a\n"),
            "{text}"
        );
        let found = parse(text.as_bytes()).unwrap();
        assert_eq!((found.machine, &found.node), (5, &Some(node())));
        assert_eq!(found.waiting, waiting);
        text += &line("said", 0xab, 2);
        text += &line("taken", 0xab, 1);
        text += &kept([some(0xcd, 2)].iter());
        let found = parse(text.as_bytes()).unwrap();
        assert_eq!((found.said, found.damaged), (Some((0xab, 2)), false));
        assert_eq!(found.taken, BTreeMap::from([(0xab, 1)]));
        let left = [some(0xab, 2), some(0xcd, 1), some(0xcd, 2)];
        assert_eq!(found.waiting, left);
        // the last line was cut
        let cut = parse(&text.as_bytes()[..text.len() - 1]).unwrap();
        assert_eq!(cut.waiting, left[..2]);
        let damaged = parse(format!("{text}keep x\n{text}").as_bytes()).unwrap();
        assert!(damaged.damaged && damaged.waiting == left);
        for bad in ["", "floe-inputs 1\n", "floe-inputs 2\nmachine 1\n", "x\n"] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_file_that_was_cut_has_what_was_whole(cut in 0usize..400) {
            let all: Vec<Kept> = (1..=9).map(|number| some(7, number)).collect();
            let text = text(5, None, None, all.iter());
            let cut = cut.min(text.len());
            if let Ok(found) = parse(&text.as_bytes()[..cut]) {
                prop_assert_eq!(&found.waiting[..], &all[..found.waiting.len()]);
                let lines = text[..cut].matches('\n').count();
                prop_assert_eq!(found.waiting.len(), lines - 2);
            }
        }

        #[test]
        fn garbage_never_panics(text in "floe-inputs 1\nmachine 1\n((keep|said|taken|node) [0-9a-f.:]{0,20} [0-9]{0,22} ?[0-9kptx+:-]{0,9}\n){0,5}") {
            let _ = parse(text.as_bytes());
        }
    }
}
