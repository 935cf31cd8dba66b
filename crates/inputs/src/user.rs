//! Users at screens and consoles: what they do goes to QEMU as fast as it comes while a machine runs here, and is kept while it would be
//! lost there.
//!
//! It would be where the machine stands still, has no QEMU here, or is another node's. What follows on a user's inputs that wait is kept as
//! well, so that it does not overtake them. A guest whose agent takes no inputs gets them as before, unless there is no QEMU here at all:
//! for it nobody could promise more than that each comes at most once.

use super::{Inputs, Look, decide::Kept, rests};
use floe_api::InputNoted;
use floe_ground::{
    error::{NodeError, not_found},
    typist::Typist,
    vnc::{Done, Stand},
};
use floe_guest::input::{Input, PLACE_MAX};
use floe_inventory::inventory::Entry;
use parking_lot::Mutex;
use std::{
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// For how long the size of a screen is believed: it stays while the machine stands still, and no guest changes it with each click.
const SIZE_FOR: Duration = Duration::from_secs(1);

/// A user at one machine: one source of inputs.
struct User {
    inputs: Arc<Inputs>,
    entry: Arc<Entry>,
    from: u64,
    /// The number of its next input.
    next: Mutex<u64>,
    order: Arc<tokio::sync::Mutex<()>>,
    /// Whether some of its inputs may still wait.
    waits: AtomicBool,
    /// Width and height of the screen, and when it had those.
    size: Mutex<Option<(Instant, (u32, u32))>>,
}

impl User {
    /// Returns width and height of the screen.
    fn size(&self) -> Result<(u32, u32), NodeError> {
        let mut known = self.size.lock();
        if let Some((since, size)) = *known
            && since.elapsed() < SIZE_FOR
        {
            return Ok(size);
        }
        match self.inputs.machines.screen_size(self.entry.name.as_str()) {
            Ok(size) => {
                *known = Some((Instant::now(), size));
                Ok(size)
            }
            // a button that is down goes up, also where the machine has no screen any more
            Err(error) => known.map(|(_, size)| size).ok_or(error),
        }
    }

    /// Returns what was done as an input that a guest understands.
    fn input(&self, done: Done) -> Result<Input, NodeError> {
        Ok(match done {
            Done::Input(input) => input,
            Done::Points { x, y, buttons } => {
                let (width, height) = self.size()?;
                Input::Pointer {
                    x: place(x, width),
                    y: place(y, height),
                    buttons,
                }
            }
        })
    }
}

/// Returns a place on a screen of any size for a point of one that has so many in this direction.
fn place(point: u16, points: u32) -> u16 {
    let last = points.saturating_sub(1).max(1);
    let place = u32::from(point).min(last) * u32::from(PLACE_MAX) / last;
    place.min(u32::from(PLACE_MAX)) as u16
}

impl Typist for User {
    fn screen(&self) -> Result<UnixStream, NodeError> {
        match self.inputs.look(&self.entry, Look::Screen)? {
            Some(there) => Ok(there),
            None => self.inputs.machines.vnc(self.entry.name.as_str()),
        }
    }

    fn stand(&self) -> Stand {
        let name = self.entry.name.as_str();
        // most users have never had anything kept, and ask nobody
        let waits = self.waits.load(Relaxed) && self.inputs.waits_for(name, Some(self.from));
        if !waits {
            self.waits.store(false, Relaxed);
        }
        self.inputs.stand(&self.entry, waits)
    }

    fn has_done(&self) {
        self.entry.has_input();
    }

    fn order(&self) -> &Arc<tokio::sync::Mutex<()>> {
        &self.order
    }

    fn keep(&self, done: Vec<Done>) -> Result<(), NodeError> {
        let name = self.entry.name.as_str();
        let made = |entry: &Entry| entry.record().created_unix_s;
        // a connection to a borrower's screen or console outlives what was here of the machine
        let is_another = |now: Arc<Entry>| made(&now) != made(&self.entry);
        if self.inputs.inventory.get(name).is_ok_and(is_another) {
            return Err(not_found(
                format!("the machine {name} that this was done at is gone"),
                "open the screen or console of the one that has its name now",
            ));
        }
        let (mut inputs, mut placeless) = (Vec::new(), None);
        for done in done {
            match self.input(done) {
                Ok(input) => inputs.push(input),
                // the others are kept all the same: a key among them may be one that goes up
                Err(error) => placeless = Some(error),
            }
        }
        let mut next = self.next.lock();
        let numbered = (*next..).zip(inputs);
        let kept: Vec<Kept> = numbered
            .map(|(number, input)| Kept {
                from: self.from,
                number,
                // with the gaps, all that he does next would be late by as long as the machine stood still
                gap_ms: 0,
                input,
            })
            .collect();
        let count = kept.len() as u64;
        self.inputs.keep(name, kept)?;
        self.waits.store(true, Relaxed);
        *next += count;
        placeless.map_or(Ok(()), Err)
    }
}

impl Inputs {
    /// Returns a new user at a machine.
    pub fn user(self: &Arc<Self>, entry: &Arc<Entry>) -> Arc<dyn Typist> {
        Arc::new(User {
            inputs: self.clone(),
            entry: entry.clone(),
            from: rand::random(),
            next: Mutex::new(1),
            order: Arc::default(),
            waits: AtomicBool::new(false),
            size: Mutex::default(),
        })
    }

    /// Notes that somebody types on a machine's console, by a way that does not lead through the node. Returns how that fares.
    pub fn noted(&self, entry: &Entry) -> InputNoted {
        entry.has_input();
        InputNoted {
            keep: self.stand(entry, false).kept,
            waits: self.waits_for(entry.name.as_str(), None),
        }
    }

    /// How a user's inputs for a machine fare just now; `waits`: some of his wait already.
    fn stand(&self, entry: &Entry, waits: bool) -> Stand {
        let turn = entry.turn();
        let is_elsewhere = turn.as_ref().is_some_and(|turn| turn.is_elsewhere());
        let Ok(vm) = entry.vm() else {
            // one that is stopped begins anew, where nothing of this is meant
            let goes_on = entry.is_parked() || entry.waits_for_adoption();
            return Stand {
                // what is passed on goes to the borrower's QEMU
                still: turn.is_none_or(|turn| turn.borrower().is_none()),
                kept: goes_on || is_elsewhere,
                pointer: false,
            };
        };
        let still = is_elsewhere || rests(entry);
        let kept = (still || waits) && self.agents.takes_inputs(&vm) == Some(true);
        Stand {
            still,
            kept,
            // a QEMU that waits for a page does not say how large its screen is
            pointer: kept && !entry.hangs(),
        }
    }

    /// Whether inputs of a source wait for a machine, or of any, or it is just being looked after.
    fn waits_for(&self, name: &str, from: Option<u64>) -> bool {
        let known = self.boxes.lock().get(name).cloned();
        known.is_some_and(|known| {
            let is_its = |kept: &Kept| from.is_none_or(|from| kept.from == from);
            let now = known.try_lock();
            now.is_none_or(|now| now.waiting.all().any(is_its))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_has_its_place_on_a_screen_of_any_size() {
        for (point, points, at) in [
            (0, 1024, 0),
            (1023, 1024, PLACE_MAX),
            (u16::MAX, 1024, PLACE_MAX),
            (512, 1025, PLACE_MAX / 2),
            (0, 0, 0),
            (9, 1, PLACE_MAX),
            (u16::MAX, u32::MAX, 0),
        ] {
            assert_eq!(place(point, points), at, "{point} of {points}");
        }
    }
}
