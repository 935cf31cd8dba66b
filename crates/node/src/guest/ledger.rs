//! Tickets: which machine may clone itself, into how many clones, and that each ticket is used once. No I/O, no clock.
//!
//! ```text
//! reserve -> open -> spend -> spent -> (join, kill) discard
//!              '-> expires
//! ```
//! A ticket reserves room until it is spent or expires, so that two programs are never promised the same memory.

use floe_api::CLONES_MAX;
use floe_guest::message::{Refusal, codes};
use std::collections::{BTreeMap, VecDeque};

/// How many open tickets a machine may have: a program needs one at a time.
const OPEN_MAX: usize = 16;
/// How long a ticket is valid, in seconds: longer than any preparation, but short, since an unused ticket holds room.
pub(crate) const TICKET_LIFE_S: u64 = 600;
/// How many spent tickets of all machines are remembered.
const SPENT_MAX: usize = 4096;

/// What a program asks for.
#[derive(Clone, Debug)]
pub(crate) struct Asked<'a> {
    /// The machine that the program runs in.
    pub machine: &'a str,
    /// The household that it is in.
    pub household: &'a str,
    /// How many clones. If a machine is to hold several processes: how many processes.
    pub clones: u64,
    /// How many of them one machine holds.
    pub each: u32,
}

/// How many clones there can be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Clones that the household may have.
    pub allowed: u32,
    /// Clones that it has.
    pub alive: u32,
    /// Clones for which the hosts have room.
    pub room: u32,
}

#[derive(Clone, Debug)]
struct Open {
    machine: String,
    household: String,
    machines: u32,
    until_s: u64,
}

#[derive(Clone, Debug)]
struct Spent {
    id: String,
    machine: String,
    household: String,
    /// How many machines it still reserves; 0 once its fork counts them itself.
    machines: u32,
    /// Clones that were started; `None` while they are being started.
    started: Option<u32>,
}

/// All tickets of a node.
#[derive(Default)]
pub(crate) struct Ledger {
    open: BTreeMap<String, Open>,
    spent: VecDeque<Spent>,
}

impl Ledger {
    /// Opens a ticket with this id for as many clones as there is room for, at most as many as were asked for. Returns how
    /// many clones and how many machines that is.
    pub fn reserve(
        &mut self,
        now_s: u64,
        asked: &Asked<'_>,
        limits: &Limits,
        id: String,
    ) -> Result<(u32, u32), Refusal> {
        self.expire(now_s);
        if asked.clones == 0 {
            return Err(Refusal::new(
                codes::USAGE,
                "0 clones were asked for",
                "ask for at least 1",
            ));
        }
        let of_machine = self
            .open
            .values()
            .filter(|open| open.machine == asked.machine);
        if of_machine.count() >= OPEN_MAX {
            return Err(Refusal::new(
                codes::BUSY,
                format!("{OPEN_MAX} tickets of this machine are open"),
                "use them, or wait until they expire",
            ));
        }
        let open = self
            .open
            .values()
            .map(|open| (&open.household, open.machines));
        let spent = self.spent.iter();
        let held: Vec<(&String, u32)> = open
            .chain(spent.map(|spent| (&spent.household, spent.machines)))
            .collect();
        let held = |all: &dyn Fn(&str) -> bool| -> u32 {
            let held = held.iter().filter(|(household, _)| all(household));
            held.map(|(_, machines)| *machines)
                .fold(0, u32::saturating_add)
        };
        let household_left = limits
            .allowed
            .saturating_sub(limits.alive)
            .saturating_sub(held(&|household| household == asked.household));
        let room_left = limits.room.saturating_sub(held(&|_| true));
        let wanted = asked.clones.div_ceil(u64::from(asked.each.max(1)));
        let machines = wanted
            .min(u64::from(household_left))
            .min(u64::from(room_left))
            .min(u64::from(CLONES_MAX)) as u32;
        if machines == 0 {
            return Err(match household_left {
                0 => Refusal::new(
                    codes::NO_ROOM,
                    format!(
                        "{} and its clones have all the {} clones that they may have together",
                        asked.machine, limits.allowed
                    ),
                    "end some; floe run --clones, floe limit --clones and the node's --guest-clones set the limit",
                ),
                _ => Refusal::new(
                    codes::NO_ROOM,
                    "no host has memory for a clone",
                    "end machines that are no longer needed, and ask again",
                ),
            });
        }
        let clones = u64::from(machines) * u64::from(asked.each.max(1));
        let clones = clones.min(asked.clones) as u32;
        self.open.insert(
            id,
            Open {
                machine: asked.machine.into(),
                household: asked.household.into(),
                machines,
                until_s: now_s + TICKET_LIFE_S,
            },
        );
        Ok((clones, machines))
    }

    /// Reduces a ticket to fewer machines with `each` processes each. Returns how many of `clones` that still allows.
    pub fn lessen(&mut self, id: &str, clones: u32, machines: u32, each: u32) -> u32 {
        if let Some(open) = self.open.get_mut(id) {
            open.machines = open.machines.min(machines);
        }
        clones.min(machines.saturating_mul(each))
    }

    /// Whether a ticket can still be used.
    pub fn is_unused(&mut self, now_s: u64, id: &str) -> bool {
        self.expire(now_s);
        self.open.contains_key(id)
    }

    /// Uses a ticket up. Returns how many machines it is for, or a refusal if it was used, has expired or is unknown.
    pub fn spend(&mut self, now_s: u64, machine: &str, id: &str) -> Result<u32, Refusal> {
        self.expire(now_s);
        if !self.is_open(machine, id) {
            return Err(match self.is_spent(machine, id) {
                true => Refusal::new(
                    codes::SPENT,
                    "the ticket was used already",
                    "request one for each clone call",
                ),
                false => unknown(),
            });
        }
        let open = self.open.remove(id);
        let (household, machines) =
            open.map_or_else(Default::default, |open| (open.household, open.machines));
        if self.spent.len() >= SPENT_MAX {
            self.spent.pop_front();
        }
        self.spent.push_back(Spent {
            id: id.into(),
            machine: machine.into(),
            household,
            machines,
            started: None,
        });
        Ok(machines)
    }

    /// Notes that the fork of a spent ticket has its record, so that its clones are now counted as the household's.
    pub fn begun(&mut self, id: &str) {
        if let Some(spent) = self.spent.iter_mut().find(|spent| spent.id == id) {
            spent.machines = 0;
        }
    }

    /// Notes how many clones of a spent ticket were started.
    pub fn started(&mut self, id: &str, clones: u32) {
        if let Some(spent) = self.spent.iter_mut().find(|spent| spent.id == id) {
            spent.started = Some(clones);
        }
    }

    /// Returns how many clones of a machine's spent ticket were started; `None` if they still are, or if the ticket is
    /// unknown.
    pub fn clones_of(&self, machine: &str, id: &str) -> Option<u32> {
        let mut spent = self.spent.iter();
        let spent = spent.find(|spent| spent.id == id && spent.machine == machine)?;
        spent.started
    }

    /// Whether this machine has used this ticket.
    pub fn is_spent(&self, machine: &str, id: &str) -> bool {
        let mut spent = self.spent.iter();
        spent.any(|spent| spent.id == id && spent.machine == machine)
    }

    /// Whether this machine has this ticket and has not used it.
    pub fn is_open(&self, machine: &str, id: &str) -> bool {
        self.open
            .get(id)
            .is_some_and(|open| open.machine == machine)
    }

    /// Removes a ticket of a machine, used or not.
    pub fn discard(&mut self, machine: &str, id: &str) {
        if self.is_open(machine, id) {
            self.open.remove(id);
        }
        self.spent
            .retain(|spent| spent.id != id || spent.machine != machine);
    }

    fn expire(&mut self, now_s: u64) {
        self.open.retain(|_, open| now_s < open.until_s);
    }
}

/// Returns the refusal of a ticket that does not exist.
pub(super) fn unknown() -> Refusal {
    Refusal::new(
        codes::UNKNOWN_TICKET,
        "the ticket is not one of this machine's",
        "it may have expired, have been joined or killed, or be of a node that was restarted: request a new one",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn asked(machine: &str, clones: u64) -> Asked<'_> {
        Asked {
            machine,
            household: "web",
            clones,
            each: 1,
        }
    }

    const LIMITS: Limits = Limits {
        allowed: 8,
        alive: 2,
        room: 100,
    };

    #[test]
    fn a_ticket_is_good_for_one_clone_call_of_one_machine() {
        let mut ledger = Ledger::default();
        let granted = ledger.reserve(0, &asked("web", 4), &LIMITS, "t".into());
        assert_eq!(granted.unwrap(), (4, 4));
        assert_eq!(
            ledger.spend(1, "web.1", "t").unwrap_err().code,
            codes::UNKNOWN_TICKET
        );
        assert_eq!(ledger.spend(1, "web", "t").unwrap(), 4);
        assert_eq!(ledger.spend(1, "web", "t").unwrap_err().code, codes::SPENT);
        assert_eq!(
            ledger.spend(1, "web", "u").unwrap_err().code,
            codes::UNKNOWN_TICKET
        );
        assert_eq!(ledger.clones_of("web", "t"), None);
        ledger.started("t", 3);
        assert_eq!(ledger.clones_of("web", "t"), Some(3));
        ledger.discard("web", "t");
        assert_eq!(
            ledger.spend(1, "web", "t").unwrap_err().code,
            codes::UNKNOWN_TICKET
        );
    }

    #[test]
    fn whoever_asks_for_a_billion_gets_what_is_left_and_who_comes_later_less() {
        let mut ledger = Ledger::default();
        let mut get = |now_s, machine, clones, id: &str| {
            ledger.reserve(now_s, &asked(machine, clones), &LIMITS, id.into())
        };
        assert_eq!(get(0, "web", 1_000_000_000, "a").unwrap(), (6, 6));
        let refusal = get(1, "web.1", 1, "b").unwrap_err();
        assert_eq!(refusal.code, codes::NO_ROOM);
        assert!(refusal.message.contains("all the 8 clones"), "{refusal}");
        assert!(refusal.fix.contains("--clones"), "{refusal}");
        // the room of a ticket that expired is free again
        assert_eq!(get(TICKET_LIFE_S, "web.1", u64::MAX, "c").unwrap().0, 6);
        assert_eq!(get(0, "web", 0, "d").unwrap_err().code, codes::USAGE);
    }

    #[test]
    fn a_ticket_for_which_less_is_granted_holds_less() {
        let mut ledger = Ledger::default();
        let mut asked = asked("web", 6);
        asked.each = 2;
        let (clones, machines) = ledger.reserve(0, &asked, &LIMITS, "a".into()).unwrap();
        assert_eq!((clones, machines), (6, 3));
        assert_eq!(ledger.lessen("a", clones, 2, 2), 4);
        assert!(ledger.is_unused(1, "a"));
        assert_eq!(ledger.spend(1, "web", "a").unwrap(), 2);
        assert!(!ledger.is_unused(1, "a"));
        let asked_all = &self::asked("web", 100);
        // until its fork has begun, a spent ticket keeps its room
        let (_, machines) = ledger.reserve(1, asked_all, &LIMITS, "b".into()).unwrap();
        assert_eq!(machines, 4);
        ledger.discard("web", "b");
        ledger.begun("a");
        let (_, machines) = ledger.reserve(1, asked_all, &LIMITS, "b".into()).unwrap();
        assert_eq!(machines, 6);
        ledger.discard("web", "b");
        ledger.reserve(1, &asked, &LIMITS, "b".into()).unwrap();
        assert!(!ledger.is_unused(1 + TICKET_LIFE_S, "b"));
    }

    #[test]
    fn processes_fill_as_few_machines_as_can_hold_them() {
        let mut ledger = Ledger::default();
        let mut asked = asked("web", 10);
        asked.each = 4;
        assert_eq!(
            ledger.reserve(0, &asked, &LIMITS, "a".into()).unwrap(),
            (10, 3)
        );
        asked.clones = 100;
        assert_eq!(
            ledger.reserve(0, &asked, &LIMITS, "b".into()).unwrap(),
            (12, 3)
        );
    }

    #[test]
    fn a_machine_cannot_collect_tickets() {
        let mut ledger = Ledger::default();
        let limits = Limits {
            allowed: 1000,
            ..LIMITS
        };
        for n in 0..OPEN_MAX {
            ledger
                .reserve(0, &asked("web", 1), &limits, n.to_string())
                .unwrap();
        }
        let refusal = ledger.reserve(0, &asked("web", 1), &limits, "more".into());
        assert_eq!(refusal.unwrap_err().code, codes::BUSY);
        ledger
            .reserve(0, &asked("db", 1), &limits, "other".into())
            .unwrap();
    }

    proptest! {
        #[test]
        fn never_is_more_promised_than_there_is(
            wishes in prop::collection::vec((0u64..200, 1u32..9, 0usize..3), 1..40),
            allowed in 0u32..300,
            room in 0u32..300,
        ) {
            let mut ledger = Ledger::default();
            let mut promised = 0;
            for (n, (clones, each, machine)) in wishes.into_iter().enumerate() {
                let machine = ["web", "web.1", "web.2"][machine];
                let asked = Asked { machine, household: "web", clones, each };
                let limits = Limits { allowed, alive: 0, room };
                if let Ok((got, machines)) = ledger.reserve(0, &asked, &limits, n.to_string()) {
                    prop_assert!(u64::from(got) <= clones && got <= machines * each);
                    prop_assert!(got > (machines - 1) * each);
                    promised += machines;
                }
            }
            prop_assert!(promised <= allowed.min(room));
        }
    }
}
