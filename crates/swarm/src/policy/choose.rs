//! The rules: what to ask next, and of whom.
use super::copies::{COPY_HELD_US, COPY_TURN, RANKS};
use super::downloads::{Ask, Demand, Flight};
use super::rate::Rate;
use super::uploads::Answer;
use super::{Action, DEMANDS_MAX, Fault, PeerId, PieceId, Policy, Purpose};
use rand::Rng;

/// How many pieces of the window are looked at for one that can be asked for, each time.
const DRAWS: usize = 8;
/// So many prefetches may be under way however slowly pieces come: from different hosts, so that none of them is waited for alone.
const PREFETCH_LEAST: usize = 4;
/// How often a demand without a host looks for one again, in microseconds.
const AGAIN_US: u64 = 50_000;
/// After how many times its patience a demand goes to the seed, however many hosts say that they have the piece.
const HOPELESS: u64 = 4;
/// How far ahead, in milliseconds, the policy checks whether what is due arrives in time: some seconds, because a machine needs its pieces
/// in bursts.
const SOON_MS: u32 = 5_000;
/// If what is due needs less than this share of the link, it arrives in time in any order.
const JUST: f64 = 0.6;
/// After a machine has waited it has to run for so many times as long before copies go on, at most [`COPY_HELD_US`]: one that waits often will
/// soon do so again.
const COPY_REST: u64 = 4;
/// How many copies of a rank are looked at for one that can be asked for, each time: the seed brings none of its rank while it is busy.
const COPY_DRAWS: usize = 2;
/// Patience with the swarm grows with the logarithm of its size: a piece needs log n steps to spread, and a large swarm must not send every
/// demand to the seed.
const PATIENCE_PER_HOST_US: u64 = 5_000;

impl Policy {
    pub(super) fn miss(&mut self, now_us: u64, piece: PieceId, out: &mut Vec<Action>) {
        let known = self.downloads.demands.contains_key(&piece);
        let pointless = self.here.get(piece) || !self.here.is_of_image(piece);
        if pointless || known || self.downloads.demands.len() >= DEMANDS_MAX {
            return;
        }
        self.downloads.missed(self.ahead.knows(piece));
        let demand = Demand {
            since_us: now_us,
            again_us: now_us,
        };
        self.downloads.demands.insert(piece, demand);
        if self.downloads.is_on_its_way(piece) {
            self.raise(piece, Purpose::Demand, out);
        } else {
            self.downloads.unasked.push(piece);
        }
    }

    pub(super) fn unmissed(&mut self, piece: PieceId, out: &mut Vec<Action>) {
        self.downloads.demands.remove(&piece);
        self.downloads.unasked.retain(|other| *other != piece);
        if !self.downloads.is_on_its_way(piece) {
            self.uploads.give_up(piece, out);
        }
    }

    /// Makes a piece that is on its way more urgent.
    pub(super) fn raise(&mut self, piece: PieceId, purpose: Purpose, out: &mut Vec<Action>) {
        for id in self.downloads.raise(piece, purpose) {
            if let Some(peer) = self.peers.get(id)
                && purpose == Purpose::Demand
            {
                peer.prefetching = peer.prefetching.saturating_sub(1);
            }
            out.push(Action::Ask(id, piece, purpose));
        }
    }

    pub(super) fn arrived(
        &mut self,
        now_us: u64,
        from: PeerId,
        piece: PieceId,
        out: &mut Vec<Action>,
    ) {
        if let Some(flight) = self.downloads.end(piece) {
            self.downloads.passed += usize::from(flight.purpose > Purpose::Copy);
            for ask in &flight.asks {
                self.answered(ask.peer, &flight);
                if ask.peer != from {
                    out.push(Action::Cancel(ask.peer, piece));
                    continue;
                }
                let took_us = now_us.saturating_sub(ask.since_us);
                self.downloads.rate.came(now_us, took_us);
                if self.peers.is_seed(from) {
                    self.downloads.seed_rate.came(now_us, took_us);
                }
                if let Some(peer) = self.peers.get(from) {
                    peer.has_answered(now_us, took_us);
                }
            }
        }
        if let Some(demand) = self.downloads.demands.remove(&piece) {
            let waited_us = now_us.saturating_sub(demand.since_us);
            self.downloads.calm_us = now_us.saturating_add(waited_us);
            let rests_us = waited_us.saturating_mul(COPY_REST).min(COPY_HELD_US);
            self.downloads.rested_us = now_us.saturating_add(rests_us);
        }
        self.downloads.unasked.retain(|other| *other != piece);
        self.put(piece);
        self.uploads.release(piece);
    }

    /// Notes that a host owes one answer less.
    fn answered(&mut self, id: PeerId, flight: &Flight) {
        if let Some(peer) = self.peers.get(id) {
            peer.owes_less();
            if flight.purpose != Purpose::Demand {
                peer.prefetching = peer.prefetching.saturating_sub(1);
            }
        }
    }

    pub(super) fn failed(
        &mut self,
        now_us: u64,
        from: PeerId,
        piece: PieceId,
        out: &mut Vec<Action>,
    ) {
        let Some(flight) = self.unask(from, piece, out) else {
            return;
        };
        let again_us = now_us + self.config.refused_us;
        let Some(peer) = self.peers.get(from) else {
            return;
        };
        peer.refuse_until(again_us);
        if self.peers.is_seed(from) {
            let other = self.peers.seed(now_us).filter(|other| *other != from);
            let other = other.and_then(|other| self.peers.get(other));
            let another = other.is_some_and(|other| other.is_free(now_us));
            if let Some(demand) = self.downloads.demands.get_mut(&piece) {
                demand.again_us = if another { now_us } else { again_us };
            }
            return;
        }
        let Some(peer) = self.peers.get(from) else {
            return;
        };
        if peer.has_failed(now_us, flight.sure) {
            self.drop_peer(from, Fault::Lied, out);
        }
    }

    /// Takes back what is known of a question.
    fn unask(&mut self, from: PeerId, piece: PieceId, out: &mut Vec<Action>) -> Option<Flight> {
        let (flight, last) = self.downloads.unask(from, piece)?;
        self.answered(from, &flight);
        if last {
            self.back(piece);
            if !self.downloads.demands.contains_key(&piece) {
                self.uploads.give_up(piece, out);
            }
        }
        Some(flight)
    }

    pub(super) fn wrong(
        &mut self,
        now_us: u64,
        from: PeerId,
        piece: PieceId,
        out: &mut Vec<Action>,
    ) {
        self.unask(from, piece, out);
        if self.peers.is_seed(from) {
            // it has what nobody else has: it is left alone for a while, in which another seed is asked
            if let Some(peer) = self.peers.get(from) {
                peer.was_wrong(now_us, self.config.refused_us);
            }
        } else if self.peers.knows(from) {
            self.drop_peer(from, Fault::WrongBytes, out);
        }
    }

    pub(super) fn asked_by(
        &mut self,
        now_us: u64,
        from: PeerId,
        piece: PieceId,
        purpose: Purpose,
        out: &mut Vec<Action>,
    ) {
        if !self.peers.knows(from) {
            return out.push(Action::Refuse(from, piece));
        }
        let purpose = match self.config.demand_first {
            true => purpose,
            false => Purpose::Prefetch,
        };
        let here = self.here.get(piece);
        let flight = self.downloads.flights.get(&piece);
        let coming = flight.is_some_and(|flight| flight.sure);
        let mine = !here
            && flight.is_none()
            && self.config.wardens
            && purpose > Purpose::Copy
            && self.peers.seed(now_us).is_some()
            && self.ring.stands_in(piece, self.me)
            && self.here.is_of_image(piece);
        let hold = self.config.wardens && (coming || mine);
        let answer = match here || hold {
            true => self.uploads.ask((from, piece), purpose, !here),
            false => Answer::Refused,
        };
        match answer {
            Answer::Refused => out.push(Action::Refuse(from, piece)),
            Answer::Flood => self.drop_peer(from, Fault::Flooded, out),
            Answer::Taken if mine => self.fetch_duty(now_us, piece, purpose, out),
            Answer::Taken if coming => self.raise(piece, purpose, out),
            Answer::Taken => {}
        }
    }

    fn fetch_duty(&mut self, now_us: u64, piece: PieceId, purpose: Purpose, out: &mut Vec<Action>) {
        if let Some(seed) = self.peers.seed(now_us) {
            self.ask(now_us, seed, piece, purpose, true, out);
        }
    }

    /// Asks a host for a piece that is not on its way.
    fn ask(
        &mut self,
        now_us: u64,
        id: PeerId,
        piece: PieceId,
        purpose: Purpose,
        duty: bool,
        out: &mut Vec<Action>,
    ) {
        let sure = self.peers.is_seed(id) || self.peers.has_piece(id, piece);
        if !self.peers.knows(id) {
            return;
        }
        let prefetch = purpose != Purpose::Demand;
        self.peers.ask(id, now_us, prefetch);
        if purpose == Purpose::Copy {
            (self.downloads.passed, self.downloads.copied_us) = (0, now_us);
        }
        let ask = Ask {
            peer: id,
            since_us: now_us,
        };
        let flight = Flight {
            asks: vec![ask],
            purpose,
            sure,
            duty,
        };
        self.downloads.start(piece, flight);
        self.ahead.take(piece);
        self.copies.take(piece);
        out.push(Action::Ask(id, piece, purpose));
    }

    /// Asks for what may be asked for now: demands, duties, prefetch, copies.
    pub(super) fn fill(&mut self, now_us: u64, out: &mut Vec<Action>) {
        if !self.downloads.unasked.is_empty() {
            self.fill_demands(now_us, out);
        }
        if self.config.prefetch {
            // one that has just refused would do so again, as often as it answers
            let seed = self.peers.seed(now_us);
            let seed = seed.and_then(|seed| self.peers.get(seed));
            if self.config.wardens && seed.is_some_and(|seed| seed.is_free(now_us)) {
                self.fill_duties(now_us, out);
            }
            if self.config.quiet && self.is_catching_up(now_us) {
                return;
            }
            let sharers = 1 + self.others_ahead;
            let [least, most] = [PREFETCH_LEAST, self.config.prefetch_max];
            let [least, most] = [least, most].map(|pieces| (pieces / sharers).max(1));
            let most = self.ahead_most(&self.downloads.rate, least, most);
            while self.downloads.prefetching < most {
                let Some((peer, piece)) = self.next_prefetch(now_us) else {
                    break;
                };
                self.ask(now_us, peer, piece, Purpose::Prefetch, false, out);
            }
            if self.downloads.prefetching >= most {
                self.downloads.rate.fills();
            }
            if self.copies.len() > 0 {
                self.fill_copies(now_us, out);
            }
        }
    }

    /// Asks for copies, as many as may be under way beside what else is.
    fn fill_copies(&mut self, now_us: u64, out: &mut Vec<Action>) {
        let busy = self.downloads.flights.len() > self.downloads.copies
            || now_us < self.downloads.rested_us;
        let waited_us = now_us.saturating_sub(self.downloads.copied_us);
        let turn = self.downloads.passed >= COPY_TURN || waited_us >= COPY_HELD_US;
        let most = match busy || self.others_ahead > 0 {
            true if busy && !turn => return,
            true => 1,
            false => {
                // half of what may be under way ahead of need: machines wait behind it without any use
                let most = (self.config.prefetch_max / (1 + self.others_copy)).max(1);
                let least = (PREFETCH_LEAST / 2).min(most);
                let rate = &self.downloads.rate;
                rate.under_way(self.config.queue_us / 2, least, most)
            }
        };
        while self.downloads.copies < most {
            let Some((peer, piece)) = self.next_copy(now_us) else {
                return;
            };
            self.ask(now_us, peer, piece, Purpose::Copy, false, out);
        }
    }

    /// Draws one of the rarest pieces that are to be copied and that somebody can be asked for.
    fn next_copy(&mut self, now_us: u64) -> Option<(PeerId, PieceId)> {
        let mut left = DRAWS;
        for rank in 0..RANKS {
            for _ in 0..COPY_DRAWS {
                let Some(piece) = self.copies.draw(rank, &mut self.random) else {
                    break;
                };
                left = left.checked_sub(1)?;
                if let Some(peer) = self.source_ahead(now_us, piece, Purpose::Copy) {
                    return Some((peer, piece));
                }
            }
        }
        None
    }

    /// Whether machines are catching up, so that nothing is fetched but what they wait for.
    fn is_catching_up(&self, now_us: u64) -> bool {
        !self.downloads.demands.is_empty() || now_us < self.downloads.calm_us
    }

    /// Returns how many pieces may be under way ahead of need where they come at this rate, between `least` and `most`.
    fn ahead_most(&self, rate: &Rate, least: usize, most: usize) -> usize {
        match self.config.queue_us {
            0 => most,
            us => rate.under_way(us, least, most),
        }
    }

    fn fill_demands(&mut self, now_us: u64, out: &mut Vec<Action>) {
        let mut unasked = std::mem::take(&mut self.downloads.unasked);
        unasked.retain(|piece| {
            let Some(demand) = self.downloads.demands.get(piece).copied() else {
                return false;
            };
            if self.downloads.is_on_its_way(*piece) {
                self.raise(*piece, Purpose::Demand, out); // asked for another host meanwhile
                return false;
            }
            if demand.again_us > now_us {
                return true;
            }
            if let Some(peer) = self.source(now_us, *piece, demand.since_us) {
                self.ask(now_us, peer, *piece, Purpose::Demand, false, out);
                return false;
            }
            if let Some(demand) = self.downloads.demands.get_mut(piece) {
                demand.again_us = now_us + AGAIN_US;
            }
            true
        });
        self.downloads.unasked.append(&mut unasked);
    }

    /// Returns how long a demand may wait for the swarm before it goes to the seed.
    fn seed_patience_us(&self) -> u64 {
        let hosts = self.ring.hosts() as u64;
        self.config
            .seed_patience_us
            .max(hosts * PATIENCE_PER_HOST_US)
    }

    /// Whether a demand has waited so long that it goes to the seed from now on.
    fn is_hopeless(&self, now_us: u64, since_us: u64) -> bool {
        let patience_us = self.seed_patience_us() * HOPELESS;
        self.peers.has_seed() && now_us.saturating_sub(since_us) >= patience_us
    }

    /// Returns whom to ask for a piece that a machine has waited for since then.
    fn source(&mut self, now_us: u64, piece: PieceId, since_us: u64) -> Option<PeerId> {
        let seed = self.peers.seed(now_us);
        if !self.config.peers || self.is_hopeless(now_us, since_us) {
            return seed;
        }
        let holder = self
            .peers
            .holder(piece, now_us, usize::MAX, &mut self.random);
        if holder.is_some() {
            return holder;
        }
        let Some(warden) = self.warden(now_us, piece) else {
            return seed;
        };
        let patient = now_us.saturating_sub(since_us) < self.seed_patience_us();
        if warden == self.me || !patient && seed.is_some() {
            return seed;
        }
        let free = self
            .peers
            .get(warden)
            .is_some_and(|peer| peer.is_free(now_us));
        free.then_some(warden)
    }

    fn fill_duties(&mut self, now_us: u64, out: &mut Vec<Action>) {
        let k = self.window();
        let mut at = 0;
        // the seed's link is everybody's: with many hosts it brings each of them little
        let most = self.ahead_most(&self.downloads.seed_rate, 1, self.config.duties_max);
        while self.downloads.duties < most {
            let Some(piece) = self.ahead.duty(at) else {
                return;
            };
            let Some(place) = self.ahead.place(piece) else {
                // here, or on its way
                self.ahead.drop_duty(at);
                continue;
            };
            if place >= k {
                return;
            }
            if self.peers.holders(piece) > 0 {
                // it is in the swarm; should its holders leave, it is asked for like any other
                self.ahead.drop_duty(at);
                continue;
            }
            at += 1;
            self.fetch_duty(now_us, piece, Purpose::Prefetch, out);
        }
    }

    /// Draws a piece of the window that somebody can be asked for.
    fn next_prefetch(&mut self, now_us: u64) -> Option<(PeerId, PieceId)> {
        let k = self.window().min(self.ahead.len());
        if k == 0 {
            return None;
        }
        for _ in 0..DRAWS {
            let piece = self.ahead.at(self.random.random_range(0..k));
            if let Some(peer) = self.source_ahead(now_us, piece, Purpose::Prefetch) {
                return Some((peer, piece));
            }
        }
        None
    }

    /// Returns whom to ask for a piece that no machine waits for.
    fn source_ahead(&mut self, now_us: u64, piece: PieceId, purpose: Purpose) -> Option<PeerId> {
        let copy = purpose == Purpose::Copy;
        // copies leave a place of each host to what machines will need
        let most = self.config.prefetch_per_peer_max;
        let most = most.saturating_sub(usize::from(copy)).max(1);
        if self.config.peers && self.peers.holders(piece) > 0 {
            let holder = self.peers.holder(piece, now_us, most, &mut self.random);
            // one that is busy is waited for, one that is slow is not
            if holder.is_some() || self.peers.has_quick_holder(piece, now_us) {
                return holder;
            }
        }
        let warden = self.warden(now_us, piece);
        let ask = match warden {
            // another host need not have what only this one wants
            Some(warden) if warden != self.me && !copy => warden,
            _ => self.peers.seed(now_us)?,
        };
        // without peers, the seed is the only one that all of it can come from
        let most = if self.config.peers { most } else { usize::MAX };
        let peer = self.peers.get(ask)?;
        (peer.is_free(now_us) && peer.prefetching < most).then_some(ask)
    }

    /// Whether what is due soon arrives in time if pieces are fetched in the order in which they are due (section 2.2.2). If the link is
    /// too slow for that, machines wait whatever the order is, and it is better if hosts have different pieces to give.
    fn just_suffices(&self) -> bool {
        let Some(due) = self.ahead.due_within(SOON_MS) else {
            return false;
        };
        let needed = due as f64 * 1000.0 / f64::from(SOON_MS);
        let speed = self.downloads.rate.speed();
        (speed * JUST..=speed).contains(&needed)
    }

    pub(super) fn tick(&mut self, now_us: u64, out: &mut Vec<Action>) {
        self.in_order = self.just_suffices();
        let flights = &self.downloads.flights;
        let demands = flights.values().any(|f| f.purpose == Purpose::Demand);
        // the paper's policies know nothing of slow hosts
        self.peers.measure(now_us, demands, self.config.wardens);
        while let Some(peer) = self.peers.stalled(self.config.stall_us) {
            self.drop_peer(peer, Fault::Stalled, out);
        }
        if !self.config.peers {
            return;
        }
        if self.config.wardens {
            let (ring, me) = (&mut self.ring, self.me);
            self.ahead
                .find_duties(ring.version(), |piece| ring.warden(piece) == me);
        }
        let outdated = self.copies.outdated(now_us, self.ring.version());
        self.rank(&outdated);
        self.leave_late(now_us, out);
        self.move_demands(now_us, out);
        self.end_game(now_us, out);
    }

    /// Takes back prefetches and copies that are long overdue, whose answers may have been lost. A demand has a limit of its own; these have
    /// only this one.
    fn leave_late(&mut self, now_us: u64, out: &mut Vec<Action>) {
        let late_us = self.peers.late_us();
        let is_late = |flight: &Flight| match flight.asks[..] {
            [ask] if flight.purpose != Purpose::Demand && !self.peers.is_seed(ask.peer) => {
                (now_us.saturating_sub(ask.since_us) > late_us).then_some(ask.peer)
            }
            _ => None,
        };
        let flights = self.downloads.flights.iter();
        let asked = flights.filter_map(|(piece, flight)| Some((*piece, is_late(flight)?)));
        let mut asked: Vec<(PieceId, PeerId)> = asked.collect();
        asked.sort_unstable();
        for (piece, peer) in asked {
            out.push(Action::Cancel(peer, piece));
            self.unask(peer, piece, out);
        }
    }

    /// Moves demands that have waited too long at one host to another.
    fn move_demands(&mut self, now_us: u64, out: &mut Vec<Action>) {
        let demands: Vec<(PieceId, Demand)> = self
            .downloads
            .demands
            .iter()
            .map(|(p, d)| (*p, *d))
            .collect();
        for (piece, demand) in demands {
            let Some(flight) = self.downloads.flights.get(&piece) else {
                continue;
            };
            let [ask] = flight.asks[..] else { continue };
            let waited_us = now_us.saturating_sub(ask.since_us.max(demand.since_us));
            let at_seed = self.peers.is_seed(ask.peer);
            let slow = !at_seed && self.peers.is_slow(ask.peer, now_us);
            let patience_us = match at_seed {
                // its queue is everybody's: whoever can be served elsewhere leaves it
                true => self.config.refused_us,
                false if slow => 0,
                false => self.config.demand_patience_us,
            };
            if waited_us < patience_us {
                continue;
            }
            let sure = flight.sure && !at_seed;
            let other = self
                .peers
                .holder(piece, now_us, usize::MAX, &mut self.random);
            let late = now_us.saturating_sub(demand.since_us) >= self.seed_patience_us();
            let hopeless = self.is_hopeless(now_us, demand.since_us);
            if hopeless && at_seed {
                continue;
            }
            let to = match other.filter(|other| *other != ask.peer) {
                _ if hopeless => self.peers.seed(now_us),
                Some(other) if !sure || late || slow => Some(other),
                _ if late && !at_seed => self.peers.seed(now_us),
                _ if slow => self.source(now_us, piece, demand.since_us),
                _ => None,
            };
            let to = to.filter(|to| *to != ask.peer);
            if let Some(to) = to {
                out.push(Action::Cancel(ask.peer, piece));
                self.unask(ask.peer, piece, out);
                self.downloads.unasked.retain(|other| *other != piece);
                self.ask(now_us, to, piece, Purpose::Demand, false, out);
            }
        }
    }

    /// Asks a second host for the last pieces, where the first one takes long.
    fn end_game(&mut self, now_us: u64, out: &mut Vec<Action>) {
        let left = self.downloads.flights.len();
        if self.ahead.len() > 0 || left == 0 || left > self.config.end_game_pieces {
            return;
        }
        let last = |flight: &Flight| self.copies.len() == 0 || flight.purpose > Purpose::Copy;
        let late = |flight: &Flight| match flight.asks[..] {
            [ask] if last(flight) => now_us.saturating_sub(ask.since_us) >= self.config.end_game_us,
            _ => false,
        };
        let mut pieces: Vec<PieceId> = self
            .downloads
            .flights
            .iter()
            .filter(|(_, flight)| late(flight))
            .map(|(piece, _)| *piece)
            .collect();
        pieces.sort_unstable();
        for piece in pieces {
            let other = self
                .peers
                .holder(piece, now_us, usize::MAX, &mut self.random);
            let other = other.or(self.peers.seed(now_us));
            let Some(flight) = self.downloads.flights.get_mut(&piece) else {
                continue;
            };
            let Some(other) = other.filter(|other| flight.asks.iter().all(|a| a.peer != *other))
            else {
                continue;
            };
            let purpose = flight.purpose;
            flight.asks.push(Ask {
                peer: other,
                since_us: now_us,
            });
            let prefetch = purpose != Purpose::Demand;
            self.peers.ask(other, now_us, prefetch);
            out.push(Action::Ask(other, piece, purpose));
        }
    }
}
