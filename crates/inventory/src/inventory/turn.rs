//! Decides on which of two nodes a machine runs that moves from one to the other. No I/O and no clock.
//!
//! ```text
//! the node that gives                                  the node that takes
//! Here -> stored, record: Offered ------- offer -----> brings what it lacks, record: Arriving
//!         record: Away            <------ ready -------
//!                                 ------- given -----> record: Here, and then its guest goes on
//!         forgets it              <------ runs --------
//! ```
//! Each side's record is its memory: it is written before the other side is told, and before a guest goes on. So whatever is killed or cut
//! at any step, at most one of them lets the guest go on: the one that gives may take the machine back while it is *Offered* and not any
//! more once it is *Away*; the one that takes has a copy that does not go on before it has heard that it is given. Each asks the other
//! again until it knows: who gives says its last word again ([`heard`] is what comes of it), and who takes asks where the machine is
//! ([`Turn::answer`] and [`Turn::told`]).
//!
//! Each hand-over has a number of its own, greater than all before, so that nothing that is said late is taken for another's.
//!
//! A node that is gone for good leaves the other one waiting. Its user may then *force* the machine here. That is the one way in which
//! both may run, and it cannot be otherwise over a cut link: the side that went on by an older number, or that was never given the
//! machine, is *Fenced* as soon as the two hear of each other. What it did is kept and merged with nothing. The side on which the machine
//! was forced says so until the other has heard it; before that the machine moves nowhere.
//!
//! A machine can be *lent*: whoever gives it keeps what it was, as [`Side::Lent`], instead of forgetting it, and what the other side tells
//! of it meanwhile ([`Turn::synced`]). It comes back by an ordinary hand-over, and moves nowhere else. If the borrower is gone for good,
//! the lender's user forces it: it goes on from what was told last. A borrower tries to give it back any number of times before that, each
//! by a number of its own, so a forced loan begins a new *epoch*, whose numbers are above all of those.

use ::core::net::SocketAddr;
use floe_api::{MachineMove, MoveStanding, Size};
use floe_image::Hash;
use serde::{Deserialize, Serialize};

/// Hex digits of a machine's key.
const KEY_DIGITS: usize = 16;
/// The part of a number that hand-overs count up; what is above it is the epoch.
const IN_EPOCH: u64 = u32::MAX as u64;

/// Another node that has a machine, or is to have it: a member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Its name for people.
    pub name: String,
    /// The address at which members reach it, by which it is known again.
    pub address: SocketAddr,
}

/// Where a machine stands between this node and another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turn {
    /// What all nodes call the machine, whatever its name is: 16 hex digits.
    pub key: String,
    /// The number of the latest hand-over that this node has taken part in.
    pub number: u64,
    /// What this node has of it.
    pub side: Side,
    /// The node that it comes from, which may ask for it back; `None` if that is this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<Peer>,
    /// Whether it was parked before this hand-over: it is parked after it, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub parked: bool,
    /// The node to which it had been given when its user forced it to go on here, until that node has said that its copy does not run.
    /// Before that the machine moves nowhere: that node would find nobody who tells it that it is too late, and let its copy run on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<Peer>,
    /// Whether this node lends it by this hand-over, and keeps its copy.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lends: bool,
    /// The node that has lent it to this one: it moves to no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lender: Option<Peer>,
    /// What the guest of one that is borrowed had when it came: it is given back as large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// The image of what it was on the borrower's side when that told of it last: it goes on from there if it is forced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synced: Option<Hash>,
    /// Whether its loan is to end: the borrower is told to throw the machine away, and then it goes on here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ends: bool,
    /// For how many seconds it runs on the borrower's side without a word of its lender; `None` if that does not matter. Both sides have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_s: Option<u64>,
    /// Whether that is over on this side: it is parked, and goes on once its lender answers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lapsed: bool,
    /// Whether what another node keeps of it while it does not run there is to be sealed. All nodes have it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sealed: bool,
}

/// What a node has of a machine that moves, or that has moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Side {
    /// The machine: its guest may execute here.
    Here {
        /// Who gave it, and has not been heard to have forgotten it.
        owes: Option<Peer>,
        /// Whether its guest is still to be let go on.
        due: bool,
    },
    /// The machine, whose guest stands still while the other side brings it. It may be taken back.
    Offered {
        /// Who is to have it.
        to: Peer,
    },
    /// A copy that is not to go on: it was given away, and the other side has not been heard to run it yet.
    Away {
        /// Who has it.
        to: Peer,
    },
    /// What it was when it was lent. The other side runs it.
    Lent {
        /// Who has it.
        to: Peer,
    },
    /// A copy that is not to go on yet: it is offered.
    Arriving {
        /// Who offers it.
        from: Peer,
    },
    /// What the guest did here after the machine had gone on elsewhere. It is kept, and never goes on.
    Fenced,
}

/// How a machine is synced by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Syncing {
    /// The node that is told what it is while it runs here.
    pub with: Peer,
    /// How often, in seconds.
    pub every_s: u64,
    /// After how many bytes of changes sooner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold_bytes: Option<u64>,
}

/// What the side that takes a machine does when it hears of a hand-over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It brings the machine. The copy of an earlier hand-over, if there is one, is of no use any more.
    Bring,
    /// It says that it has all of it.
    Ready,
    /// It writes this down, lets the guest go on, and says that it runs.
    Takes(Turn),
    /// It says that it runs.
    Runs,
    /// The machine went on elsewhere without what was done here since: it writes this down, and keeps that.
    Fence(Turn),
    /// The machine went on where it comes from: it removes its copy, which never went on.
    Void,
    /// It has nothing that is meant.
    Stale,
}

/// What the side that gives a machine answers to one that asks where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// That is not decided.
    Wait,
    /// It is the asking side's.
    Given,
    /// The hand-over is void: the machine went on here.
    Void,
    /// No such machine is here any more.
    Gone,
}

/// What the side that takes a machine does with an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It writes this down, and lets the guest go on if that is due.
    Becomes(Turn),
    /// It removes its copy, which never went on.
    Drop,
    /// As in [`Heard::Fence`].
    Fence(Turn),
    /// It asks again later.
    Waits,
}

/// Whether two sides mean the same node.
fn is(one: &Peer, other: &Peer) -> bool {
    one.address == other.address
}

/// Returns what comes of hearing of a hand-over from another node: that the machine is offered, or that it is `given`. `here` is what is
/// here of it.
pub fn heard(here: Option<&Turn>, number: u64, given: bool, from: &Peer) -> Heard {
    let Some(turn) = here else {
        return match given {
            true => Heard::Stale,
            false => Heard::Bring,
        };
    };
    match &turn.side {
        Side::Arriving { from: known } if is(known, from) => match number.cmp(&turn.number) {
            std::cmp::Ordering::Equal if given => Heard::Takes(turn.taken(from)),
            std::cmp::Ordering::Equal => Heard::Ready,
            std::cmp::Ordering::Greater if given => Heard::Void,
            std::cmp::Ordering::Greater => Heard::Bring,
            std::cmp::Ordering::Less => Heard::Stale,
        },
        // whoever gave it went on without it
        Side::Here {
            owes: Some(owed), ..
        } if is(owed, from) && number > turn.number => Heard::Fence(turn.with(Side::Fenced)),
        Side::Here { .. } if given && number > turn.number && turn.is_borrowed_from(from) => {
            Heard::Fence(turn.with(Side::Fenced))
        }
        // it takes that back first, and is fenced then
        Side::Offered { .. } if given && number > turn.number && turn.is_borrowed_from(from) => {
            Heard::Runs
        }
        // it comes back
        Side::Lent { to } if is(to, from) && !given && !turn.ends && number > turn.number => {
            Heard::Bring
        }
        Side::Here { .. } if number == turn.number => Heard::Runs,
        _ => Heard::Stale,
    }
}

impl Turn {
    /// Returns why this is no turn, if it is none.
    pub(super) fn check(&self) -> Result<(), String> {
        match is_key(&self.key) {
            true => Ok(()),
            false => Err(format!("{:?} is no machine's key", self.key)),
        }
    }

    fn with(&self, side: Side) -> Turn {
        Turn {
            side,
            ..self.clone()
        }
    }

    fn taken(&self, from: &Peer) -> Turn {
        self.with(Side::Here {
            owes: Some(from.clone()),
            due: !self.parked,
        })
    }

    /// Returns the turn of a machine that is offered now. `key` is what it is called from now on if it has no key yet.
    pub fn offered(before: Option<&Turn>, key: String, to: Peer) -> Turn {
        Turn {
            number: before.map_or(0, |turn| turn.number).saturating_add(1),
            side: Side::Offered { to },
            home: before.and_then(|turn| turn.home.clone()),
            lender: before.and_then(|turn| turn.lender.clone()),
            size: before.and_then(|turn| turn.size),
            // what is borrowed has it still if it is taken back
            lease_s: before
                .filter(|turn| turn.lender.is_some())
                .and_then(|turn| turn.lease_s),
            sealed: before.is_some_and(|turn| turn.sealed),
            ..Turn::told_of(before.map_or(key, |turn| turn.key.clone()))
        }
    }

    /// Returns the turn of a machine that is told of to another node before it moves there, so that it is known by this key then.
    pub fn told_of(key: String) -> Turn {
        Turn {
            key,
            number: 0,
            side: Side::Here {
                owes: None,
                due: false,
            },
            home: None,
            parked: false,
            late: None,
            lends: false,
            lender: None,
            size: None,
            synced: None,
            ends: false,
            lease_s: None,
            lapsed: false,
            sealed: false,
        }
    }

    /// Returns the turn of a copy that has come whole.
    pub fn arrived(key: &str, number: u64, from: Peer) -> Turn {
        Turn {
            number,
            home: Some(from.clone()),
            side: Side::Arriving { from },
            ..Turn::told_of(key.to_owned())
        }
    }

    /// The other side runs it, which was given it as a loan: returns what is written instead of forgetting it. `None` if it is no loan.
    pub fn lent(&self) -> Option<Turn> {
        match &self.side {
            Side::Away { to } if self.lends => Some(self.with(Side::Lent { to: to.clone() })),
            _ => None,
        }
    }

    /// The borrower has told what it was a moment ago, which this image has: returns what is written. `None` if it is not lent to that one.
    pub fn syncs(&self, image: Hash, by: SocketAddr) -> Option<Turn> {
        let known = matches!(&self.side, Side::Lent { to } if to.address == by);
        known.then(|| Turn {
            synced: Some(image),
            ..self.clone()
        })
    }

    /// Its loan is to end: returns what is written before the borrower is told to throw it away. `None` if it is not lent.
    pub fn ends_loan(&self) -> Option<Turn> {
        self.borrower()?;
        Some(Turn {
            ends: true,
            ..self.clone()
        })
    }

    /// The borrower has nothing of it any more: returns what is written. `None` if its loan was not to end.
    pub fn loan_ended(&self) -> Option<Turn> {
        let forced = self.forces().filter(|_| self.ends)?;
        Some(forced.has_told())
    }

    /// Returns for how many milliseconds it runs here without a word of its lender, if that is so.
    pub fn lease_ms(&self) -> Option<u64> {
        let lease_s = self.lease_s.filter(|_| self.lender.is_some())?;
        Some(lease_s.saturating_mul(1000))
    }

    /// Its lease ends: returns what is written with its state. `None` if it is not here, or has ended before.
    pub fn lapses(&self) -> Option<Turn> {
        let runs = self.is_here() && self.lease_ms().is_some();
        runs.then(|| Turn {
            lapsed: true,
            ..self.has_gone_on()
        })
    }

    /// Its lender has granted its lease anew: it goes on, as it did when that was over, whatever it did when it came.
    pub fn unlapses(&self) -> Turn {
        let side = match &self.side {
            Side::Here { owes, .. } => Side::Here {
                owes: owes.clone(),
                due: true,
            },
            side => side.clone(),
        };
        Turn {
            lapsed: false,
            ..self.with(side)
        }
    }

    /// Its lender has nothing of it any more, and so can't let it go on: returns what is written. It needs no lease from now on.
    pub fn needs_no_lease(&self) -> Turn {
        let free = match self.lapsed {
            true => self.unlapses(),
            false => self.clone(),
        };
        Turn {
            lease_s: None,
            ..free
        }
    }

    /// Returns the node that it is lent to.
    pub fn borrower(&self) -> Option<&Peer> {
        match &self.side {
            Side::Lent { to } => Some(to),
            _ => None,
        }
    }

    fn is_borrowed_from(&self, peer: &Peer) -> bool {
        self.lender.as_ref().is_some_and(|lender| is(lender, peer))
    }

    /// The other side has all of it: returns what is written before it is told that the machine is its own. `None` if it was not offered.
    pub fn gives(&self) -> Option<Turn> {
        match &self.side {
            Side::Offered { to } => Some(self.with(Side::Away { to: to.clone() })),
            _ => None,
        }
    }

    /// It is not given away after all. `None` if it is too late for that.
    pub fn takes_back(&self) -> Option<Turn> {
        let here = Side::Here {
            owes: None,
            due: !self.parked,
        };
        matches!(self.side, Side::Offered { .. }).then(|| self.with(here))
    }

    /// Its user has it go on here, although the other side was not heard to give it, or to have taken it. `None` if there is nothing to
    /// force.
    pub fn forces(&self) -> Option<Turn> {
        match &self.side {
            // the other side may run by this number, and knows by the next one that it is too late
            Side::Away { to } => Some(Turn {
                number: self.number.saturating_add(1),
                late: Some(to.clone()),
                ..self.with(Side::Here {
                    owes: None,
                    due: !self.parked,
                })
            }),
            // that side may have tried to give it back any number of times
            Side::Lent { to } => Some(Turn {
                number: (self.number | IN_EPOCH).saturating_add(1),
                late: Some(to.clone()),
                lends: false,
                synced: None,
                ends: false,
                ..self.with(Side::Here {
                    owes: None,
                    due: !self.parked,
                })
            }),
            // if the other side took it back instead, that stands
            Side::Arriving { from } => Some(self.taken(from)),
            // its lender is gone for good
            Side::Here { .. } if self.lapsed => Some(self.needs_no_lease()),
            _ => None,
        }
    }

    /// Its guest was let go on, or could not be, which is its user's to see.
    pub fn has_gone_on(&self) -> Turn {
        match &self.side {
            Side::Here { owes, .. } => self.with(Side::Here {
                owes: owes.clone(),
                due: false,
            }),
            _ => self.clone(),
        }
    }

    /// Whether its guest may execute here.
    pub fn is_here(&self) -> bool {
        matches!(self.side, Side::Here { .. }) && !self.lapsed
    }

    /// Whether it is this node's, and comes from the node at this address.
    pub fn came_from(&self, address: SocketAddr) -> bool {
        let gave = |home: &Peer| home.address == address;
        matches!(self.side, Side::Here { .. }) && self.home.as_ref().is_some_and(gave)
    }

    /// Whether it is this node's, and has come from one that was not heard to have forgotten it.
    pub fn is_owed(&self) -> bool {
        matches!(self.side, Side::Here { owes: Some(_), .. })
    }

    /// Whether it was given to another node, or is offered to one.
    pub fn is_given_or_offered(&self) -> bool {
        matches!(self.side, Side::Offered { .. } | Side::Away { .. })
    }

    /// Whether it is another node's as far as this one knows, or offered to one.
    pub fn is_elsewhere(&self) -> bool {
        self.is_given_or_offered() || self.borrower().is_some()
    }

    /// Whether its guest is to be let go on.
    pub fn is_due(&self) -> bool {
        matches!(self.side, Side::Here { due: true, .. })
    }

    /// Whether anything is to be done for it that nobody may be doing.
    pub fn is_open(&self) -> bool {
        match &self.side {
            Side::Here { owes, due } => owes.is_some() || *due || self.late.is_some(),
            Side::Lent { .. } => self.ends,
            Side::Fenced => false,
            Side::Offered { .. } | Side::Away { .. } | Side::Arriving { .. } => true,
        }
    }

    /// Returns the node that is asked, or told, until this side knows more.
    pub fn peer(&self) -> Option<&Peer> {
        match &self.side {
            Side::Here { owes, .. } => owes.as_ref(),
            Side::Offered { to } | Side::Away { to } | Side::Lent { to } => Some(to),
            Side::Arriving { from } => Some(from),
            Side::Fenced => None,
        }
    }

    /// Returns what is answered to the other side, which has taken part in the hand-over of this number. `here` is what is here of it.
    pub fn answer(here: Option<&Turn>, number: u64) -> Answer {
        let Some(turn) = here else {
            return Answer::Gone;
        };
        match (&turn.side, turn.number.cmp(&number)) {
            (_, std::cmp::Ordering::Greater) => Answer::Void,
            (_, std::cmp::Ordering::Less) => Answer::Wait,
            (Side::Away { .. }, _) => Answer::Given,
            // this side has nothing left to say about that hand-over
            (Side::Lent { .. }, _) => Answer::Gone,
            (Side::Here { .. }, _) => Answer::Void,
            (Side::Offered { .. } | Side::Arriving { .. } | Side::Fenced, _) => Answer::Wait,
        }
    }

    /// The node that was too late has nothing of it that goes on: returns what is written then.
    pub fn has_told(&self) -> Turn {
        Turn {
            late: None,
            ..self.clone()
        }
    }

    /// Returns what comes of an answer to a question that named this number.
    pub fn told(&self, number: u64, answer: Answer) -> Told {
        if number != self.number {
            return Told::Waits; // it is about an earlier hand-over
        }
        match (&self.side, answer) {
            (Side::Arriving { from }, Answer::Given) => Told::Becomes(self.taken(from)),
            (Side::Arriving { .. }, Answer::Void) => Told::Drop,
            // only now has the other side nothing left that it could say to anybody
            (Side::Here { owes: Some(_), due }, Answer::Gone) => {
                Told::Becomes(self.with(Side::Here {
                    owes: None,
                    due: *due,
                }))
            }
            (Side::Here { owes: Some(_), .. }, Answer::Void) => {
                Told::Fence(self.with(Side::Fenced))
            }
            _ => Told::Waits,
        }
    }

    /// Returns how programs are told that a machine is not this node's to run; nothing if it is.
    pub fn listed(&self) -> Option<MachineMove> {
        let standing = match &self.side {
            Side::Here { .. } if self.lapsed => MoveStanding::Lapsed,
            Side::Here { .. } => return None,
            Side::Offered { .. } => MoveStanding::Offered,
            Side::Away { .. } => MoveStanding::Given,
            Side::Lent { .. } => MoveStanding::Lent,
            Side::Arriving { .. } => MoveStanding::Arriving,
            Side::Fenced => MoveStanding::Fenced,
        };
        Some(MachineMove {
            standing,
            node: self
                .peer()
                .or(self.lender.as_ref().filter(|_| self.lapsed))
                .map(|peer| peer.name.clone()),
        })
    }

    /// Returns what users are told of a machine by this name that is not this node's to run; nothing if it is.
    pub fn shown(&self, name: &str) -> Option<String> {
        let here = format!("floe move {name} --here");
        Some(match &self.side {
            Side::Here { .. } if self.lapsed => match &self.lender {
                Some(lender) => format!(
                    "its lease is over, and it goes on once {0} answers, which has lent it; if {0} is gone for good, floe cluster revoke \
                     {0} and then {here} let it go on",
                    lender.name
                ),
                None => "its lease is over".to_owned(),
            },
            Side::Here { .. } => return None,
            Side::Offered { to } => format!("it moves to {}", to.name),
            Side::Away { to } => format!(
                "it was given to {0}, which does not say yet that it runs there, and is asked again; if {0} is gone for good, {here} \
                 lets it go on from where it left",
                to.name
            ),
            Side::Lent { to } => format!(
                "it runs on {0}; floe recall {name} brings it back, and if {0} is gone for good, {here} has it go on from what it was \
                 when it was {1}",
                to.name,
                match self.synced {
                    Some(_) => "last synced",
                    None => "given away",
                }
            ),
            Side::Arriving { from } => format!(
                "it comes from {0}, and goes on here once {0} gives it away; if {0} is gone for good, {here} lets it go on",
                from.name
            ),
            Side::Fenced => format!(
                "it went on elsewhere without what it did here since: that is kept as an image (floe image ls), or on its disks if it had \
                 been stopped; floe rm {name} removes the rest"
            ),
        })
    }
}

/// Whether this can be a machine's key.
pub fn is_key(text: &str) -> bool {
    text.len() == KEY_DIGITS && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
#[path = "turn/tests.rs"] // also where the fuzz targets include this file
mod tests;
