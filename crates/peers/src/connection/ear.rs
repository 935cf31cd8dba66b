//! What another host says, in this host's numbers ([`Numbers`]). No I/O, no clock.
use crate::content::Content;
use crate::tree::PIECE_BYTES;
use crate::wire::{Malformed, Message, Numbers, PACKS_MAX, PackName, Run};
use floe_swarm::policy::PieceId;
use std::sync::{Arc, OnceLock};

/// How the other host numbers pieces: as this one does (`None`), or in a way that is known once it has named its packs.
#[derive(Clone, Debug)]
pub(super) struct Theirs(Option<Arc<OnceLock<Numbers>>>);

impl Theirs {
    /// `same`: whether both hosts know the same packs in the same order.
    pub(super) fn new(same: bool) -> Theirs {
        Theirs((!same).then(Arc::default))
    }

    /// Returns what the other calls a piece that it has asked for.
    pub(super) fn called(&self, piece: PieceId) -> Option<PieceId> {
        match &self.0 {
            None => Some(piece),
            Some(numbers) => numbers.get()?.to_theirs(piece),
        }
    }
}

/// What has been heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// In this host's numbers.
    Said(Message),
    /// The other asks for a piece that this host does not know; this is the other's number for it.
    Unknown(PieceId),
    /// Nothing that concerns this host.
    Nothing,
}

/// Translates what one host says.
#[derive(Debug)]
pub(super) struct Ear {
    theirs: Theirs,
    /// The packs that it has named until now.
    packs: Vec<PackName>,
}

impl Ear {
    pub(super) fn new(theirs: Theirs) -> Ear {
        Ear {
            theirs,
            packs: Vec::new(),
        }
    }

    /// Takes a message. Also returns how many steps that took, or will take.
    ///
    /// # Errors
    ///
    /// If the other names packs that it need not name, too late or too many, or that can't be numbered.
    pub(super) fn hear(
        &mut self,
        message: Message,
        mine: &Content,
    ) -> Result<(Heard, u64), Malformed> {
        let Some(numbers) = &self.theirs.0 else {
            return match message {
                Message::Packs(_) => Err(Malformed),
                message => {
                    let work = work_of(&message);
                    Ok((Heard::Said(message), work))
                }
            };
        };
        if let Message::Packs(more) = message {
            let all = self.packs.len() + more.len();
            if numbers.get().is_some() || all > PACKS_MAX {
                return Err(Malformed);
            }
            let work = more.len() as u64;
            self.packs.extend(more);
            return Ok((Heard::Nothing, 1 + work));
        }
        // what is not a pack's name ends them
        let numbers = match numbers.get() {
            Some(numbers) => numbers,
            None => {
                let theirs = std::mem::take(&mut self.packs);
                let found = Numbers::new(&names_of(mine), &theirs, PIECE_BYTES)?;
                numbers.get_or_init(|| found)
            }
        };
        Ok(translated(message, numbers))
    }
}

fn translated(message: Message, numbers: &Numbers) -> (Heard, u64) {
    let listed = |runs: &[Run], of: fn(Vec<Run>) -> Message| {
        let (runs, steps) = numbers.runs_to_mine(runs);
        match runs.is_empty() {
            true => (Heard::Nothing, 1 + steps),
            false => {
                let message = of(runs);
                let work = steps + work_of(&message);
                (Heard::Said(message), work)
            }
        }
    };
    let heard = match message {
        Message::Has(runs) => return listed(&runs, Message::Has),
        Message::Lacks(runs) => return listed(&runs, Message::Lacks),
        Message::Ask(piece, purpose) => match numbers.to_mine(piece) {
            Some(mine) => Heard::Said(Message::Ask(mine, purpose)),
            None => Heard::Unknown(piece),
        },
        Message::Withdraw(piece) => match numbers.to_mine(piece) {
            Some(mine) => Heard::Said(Message::Withdraw(mine)),
            None => Heard::Nothing,
        },
        // an answer has the number of the question
        other => Heard::Said(other),
    };
    (heard, 1)
}

/// Returns how many steps a message makes its reader take.
fn work_of(message: &Message) -> u64 {
    match message {
        Message::Has(runs) | Message::Lacks(runs) => {
            1 + runs.iter().map(|(_, count)| u64::from(*count)).sum::<u64>()
        }
        _ => 1,
    }
}

/// Returns the packs of a content as hosts name them to each other.
pub(super) fn names_of(content: &Content) -> Vec<PackName> {
    let packs = content.packs().iter().take(PACKS_MAX);
    let name = packs.map(|pack| PackName {
        root: pack.root,
        bytes: pack.bytes,
    });
    name.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Pack;
    use floe_swarm::policy::Purpose;

    fn pack(name: u8, pieces: u64) -> Pack {
        Pack {
            root: [name; 32],
            bytes: pieces * PIECE_BYTES,
        }
    }

    fn content(packs: &[Pack]) -> Content {
        Content::new(packs.to_vec()).unwrap()
    }

    #[test]
    fn who_numbers_pieces_alike_is_taken_at_its_word_and_names_no_packs() {
        let mine = content(&[pack(1, 3)]);
        let (theirs, message) = (Theirs::new(true), Message::Has(vec![(0, 2), (7, 100)]));
        let mut ear = Ear::new(theirs.clone());
        let heard = ear.hear(message.clone(), &mine);
        assert_eq!(heard, Ok((Heard::Said(message), 103)));
        assert_eq!(theirs.called(2), Some(2));
        let packs = Message::Packs(names_of(&mine));
        assert_eq!(ear.hear(packs, &mine), Err(Malformed));
    }

    #[test]
    fn who_numbers_pieces_otherwise_names_its_packs_first_and_is_understood() {
        let mine = content(&[pack(1, 3), pack(2, 4)]);
        let other = content(&[pack(3, 10), pack(2, 4)]);
        let theirs = Theirs::new(false);
        let mut ear = Ear::new(theirs.clone());
        for name in names_of(&other) {
            let heard = ear.hear(Message::Packs(vec![name]), &mine);
            assert_eq!(heard, Ok((Heard::Nothing, 2)));
            assert_eq!(theirs.called(4), None);
        }
        let mut hear = |message| ear.hear(message, &mine).unwrap();
        let said = |message| (Heard::Said(message), 1u64);
        let ask = |piece| Message::Ask(piece, Purpose::Demand);
        assert_eq!(hear(ask(11)), said(ask(4)));
        assert_eq!(hear(ask(5)), (Heard::Unknown(5), 1));
        let (has, lacks) = (Message::Has(vec![(4, 8)]), Message::Lacks(vec![(0, 10)]));
        let right = Heard::Said(Message::Has(vec![(3, 2)]));
        // two packs are looked at, two pieces are told of
        assert_eq!(hear(has), (right, 5));
        assert_eq!(hear(lacks), (Heard::Nothing, 2));
        assert_eq!(hear(Message::Withdraw(11)), said(Message::Withdraw(4)));
        assert_eq!(hear(Message::Withdraw(99)), (Heard::Nothing, 1));
        // of its own question it speaks as this host did
        assert_eq!(hear(Message::Refuse(5)), said(Message::Refuse(5)));
        assert_eq!((theirs.called(4), theirs.called(0)), (Some(11), None));
        let late = Message::Packs(names_of(&other));
        assert_eq!(ear.hear(late, &mine), Err(Malformed));
    }

    #[test]
    fn what_is_named_is_bounded_and_what_can_not_be_numbered_is_no_word() {
        let mine = content(&[pack(1, 3)]);
        let name = |n: usize| PackName {
            root: *blake3::hash(&n.to_le_bytes()).as_bytes(),
            bytes: 1,
        };
        let mut ear = Ear::new(Theirs::new(false));
        let all: Vec<PackName> = (0..PACKS_MAX).map(name).collect();
        for some in all.chunks(400) {
            assert!(ear.hear(Message::Packs(some.to_vec()), &mine).is_ok());
        }
        let more = Message::Packs(vec![name(PACKS_MAX)]);
        assert_eq!(ear.hear(more, &mine), Err(Malformed));
        // a list over all of them is as much work as it makes
        let list = Message::Has(vec![(0, 1 << 22)]);
        let work = PACKS_MAX as u64 + 1;
        assert_eq!(ear.hear(list, &mine), Ok((Heard::Nothing, work)));
        for wrong in [
            vec![name(1), name(1)],
            vec![PackName {
                bytes: 0,
                ..name(1)
            }],
        ] {
            let mut ear = Ear::new(Theirs::new(false));
            assert!(ear.hear(Message::Packs(wrong), &mine).is_ok());
            assert_eq!(ear.hear(Message::Withdraw(1), &mine), Err(Malformed));
        }
    }
}
