//! Reads images out of the pieces of swarms: the way from a guest's fault to the hosts that have the piece.
//!
//! Whoever reads an image of a hub asks here first, at each read: a machine that runs already has the benefit as soon as its image's
//! swarm is entered. What is on this host's shelf is read from it; what is not is needed, or wanted ahead of need, and waited for, unless
//! the hub sends it sooner and in few bytes ([`Sooner`](super::sooner::Sooner)). What somebody stands still for is waited for no longer than
//! the hub would take ([`Hedge`](super::hedge::Hedge)). Where no other node is connected, and where the image has no swarm now, the hub is read
//! as without all this.
//!
//! What is fetched ahead is paced by the planner and the fetcher, by the link that a source tells them of. For images that come by swarms
//! that is what their swarms have measured, by which these bound what is under way themselves, and not what the hub would do; while the hub
//! sends chunks of them, it is the quicker of the two.

use super::{
    borrow::Borrowed,
    decide::Key,
    pieces::{Active, Part},
    reading::Reading,
};
use floe_api::credentials::HubAddress;
use floe_image::{Hash, Kind, Layout, Manifest};
use floe_inventory::inventory::record::Origin;
use floe_library::images::sources::Provide;
use floe_peers::Speed;
use floe_source::{
    LinkEstimate, Origin as Address, Purpose, Request, Scheme, Sink, Source, SourceError,
    WholePacks,
};
use parking_lot::Mutex;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// A read that may not take longer than this is tried again by its caller: it is not worth while to ask two places in that time.
const SHORT: Duration = Duration::from_secs(1);
/// How long the hub may take for what the swarm may bring yet: while it does not answer, the swarm goes on.
const HEDGED: Duration = Duration::from_secs(2);
/// What was read of the hub within so long is still being read: as long as what was measured of a link counts.
const READ_LATELY: Duration = Duration::from_secs(10);

impl Provide for Active {
    fn scheme(&self) -> Option<Scheme> {
        None
    }

    fn here(&self, repository: Arc<dyn Source>) -> Arc<dyn Source> {
        repository
    }

    fn elsewhere(&self, source: Arc<dyn Source>, _: &Origin) -> Arc<dyn Source> {
        source
    }

    fn beside(&self, source: Arc<dyn Source>, place: &Address) -> Arc<dyn Source> {
        match HubAddress::of(place.url().as_str()) {
            Some(hub) => Arc::new(Beside::new(source, hub, self.clone())),
            None => source,
        }
    }

    fn before(&self, source: Arc<dyn Source>) -> Arc<dyn Source> {
        Arc::new(Borrowed::new(source, self.clone()))
    }
}

/// A hub as a source; the swarms of its images are asked before it.
pub(super) struct Beside {
    hub_source: Arc<dyn Source>,
    hub: HubAddress,
    active: Active,
    /// The image that was read last of the hub alone, and when.
    alone: Mutex<Option<(Hash, Instant)>>,
    /// When the hub was last asked for chunks of an image that comes by a swarm.
    chunks: Mutex<Option<Instant>>,
    /// Bytes of pieces that the hub's swarms had brought before this was opened: they are not what was read of it.
    before: u64,
}

impl Beside {
    pub fn new(hub_source: Arc<dyn Source>, hub: HubAddress, active: Active) -> Beside {
        let (before, _) = active.carried(&hub);
        Beside {
            hub_source,
            hub,
            active,
            alone: Mutex::default(),
            chunks: Mutex::default(),
            before,
        }
    }

    /// Returns the part in an image's swarm, if it is of use.
    fn part(&self, image: &Hash) -> Option<Arc<Part>> {
        let key = Key {
            hub: self.hub.clone(),
            image: *image,
        };
        self.active.part(&key).filter(|part| part.is_of_use())
    }

    /// Reads what a machine stands still for: from the hub what comes sooner from there, the rest from the swarm for as long as the hub would
    /// take, then from the hub, unless too much was read from the hub already. What is on the shelf is always read from there.
    fn demand(&self, part: &Part, reading: &mut Reading<'_, '_>) -> Result<(), SourceError> {
        part.note_busy();
        self.sooner(part, reading);
        let lacks = reading.lacks();
        if lacks == 0 {
            return Ok(());
        }
        let (asked, connected) = (Instant::now(), part.swarm.connected() > 0);
        let most = match reading.request.deadline {
            short if short < SHORT => short,
            deadline => deadline.mul_f32(0.6), // it leaves time for the hub
        };
        let patience = part.hedge.lock().patience(connected, lacks);
        let limit = reading.began.elapsed() + patience;
        let mut lacked = connected && part.lacks_pieces(&reading.rest());
        let mut read = reading.of_swarm(part, limit.min(most));
        let mut waited = asked.elapsed();
        let late = connected && matches!(read, Err(SourceError::Timeout { .. }));
        let limit = reading.began.elapsed() + HEDGED;
        let hedged =
            late && part.may_hedge(reading.lacks()) && self.of_hub(part, reading, limit).is_ok();
        if late && !hedged {
            // the first wait is a part of this one, and does not count by itself
            lacked = lacked || part.lacks_pieces(&reading.rest());
            read = reading.of_swarm(part, most);
            waited = asked.elapsed();
        }
        if lacked {
            part.swarm_took(waited, read.is_ok());
        }
        let error = match read {
            Err(error) if !hedged => error,
            _ => return Ok(()),
        };
        if late && reading.within(reading.request.deadline).deadline.is_zero() {
            return Err(error);
        }
        tracing::debug!(image = reading.image.short(), %error, "read from the hub instead");
        if !connected {
            part.keep_for_later(&reading.rest());
        }
        let limit = reading.request.deadline;
        self.of_hub(part, reading, limit)
    }

    /// Reads from the hub what it sends sooner than the swarm. What has not come then is left to the swarm, and half of the time of a read ahead.
    fn sooner(&self, part: &Part, reading: &mut Reading<'_, '_>) {
        let (began, demand) = (Instant::now(), reading.request.is_demand());
        let Some((items, patience)) = part.sooner_of_hub(&reading.rest(), demand) else {
            return;
        };
        let limit = match demand {
            true => reading.began.elapsed() + patience,
            false => reading.request.deadline / 2,
        };
        *self.chunks.lock() = Some(began);
        let _flight = (!demand).then(|| part.fly(&items));
        let read = reading.some_of_source(&*self.hub_source, &items, limit);
        if demand {
            let took = match &read {
                Ok(()) => began.elapsed(),
                Err(_) => began.elapsed().max(patience), // it is no better for failing soon
            };
            part.hub_took(took, read.is_ok());
        } else if read.is_err() {
            part.hub_took(limit, false);
        }
        if let Err(error) = read {
            tracing::debug!(image = reading.image.short(), %error, "read from the swarm instead");
        }
    }

    /// Reads from the hub what has not come, and notes how long that took, be it in vain.
    fn of_hub(
        &self,
        part: &Part,
        reading: &mut Reading<'_, '_>,
        limit: Duration,
    ) -> Result<(), SourceError> {
        let (began, bytes) = (Instant::now(), reading.lacks());
        let read = reading.of_source(&*self.hub_source, limit);
        part.hedge.lock().answered(bytes, began.elapsed());
        read
    }

    /// Reads ahead of need as without a swarm, but for what is on the shelf. Others may want the rest, as pieces, once the machines are quiet.
    fn ahead_alone(&self, part: &Part, reading: &mut Reading<'_, '_>) -> Result<(), SourceError> {
        part.note_busy();
        if reading.of_swarm(part, Duration::ZERO).is_ok() {
            return Ok(());
        }
        // nothing is given of a read of which a piece is lacking
        let here = part.look_up(&reading.rest()).here;
        if !here.is_empty() {
            let _ = reading.some_of_swarm(part, &here, Duration::ZERO); // the hub has it, too
        }
        let rest = reading.rest();
        part.keep_for_later(&rest);
        let _flight = part.fly(&rest);
        let read = reading.of_source(&*self.hub_source, reading.request.deadline);
        part.note_busy();
        read
    }

    /// Reads ahead of need, likewise. What does not arrive in time arrives later, and is not asked for anywhere else meanwhile.
    fn ahead(&self, part: &Part, reading: &mut Reading<'_, '_>) -> Result<(), SourceError> {
        if reading.request.who.purpose == Purpose::Prefetch && !part.only_pieces {
            if part.is_alone() {
                return self.ahead_alone(part, reading);
            }
            self.sooner(part, reading);
            if reading.rest().is_empty() {
                return Ok(());
            }
        }
        match reading.of_swarm(part, reading.request.deadline) {
            Ok(()) => Ok(()),
            Err(error @ SourceError::Timeout { .. }) => match reading.rest().is_empty() {
                true => Ok(()),
                false => Err(error),
            },
            Err(error) => {
                tracing::debug!(image = reading.image.short(), %error, "read from the hub instead");
                let _flight = part.fly(&reading.rest());
                reading.of_source(&*self.hub_source, reading.request.deadline)
            }
        }
    }
}

impl Source for Beside {
    fn describe(&self) -> String {
        self.hub_source.describe()
    }

    fn resolve(&self, name: &str) -> Result<Hash, SourceError> {
        self.hub_source.resolve(name)
    }

    fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError> {
        self.hub_source.manifest(id)
    }

    fn layout(&self, id: &Hash) -> Result<Option<Layout>, SourceError> {
        self.hub_source.layout(id)
    }

    fn read(
        &self,
        image: &Hash,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        let Some(part) = self.part(image) else {
            *self.alone.lock() = Some((*image, Instant::now()));
            return self.hub_source.read(image, wants, request, sink);
        };
        let mut reading = Reading::new(image, wants, request, sink);
        match request.is_demand() && !part.only_pieces {
            true => self.demand(&part, &mut reading),
            false => self.ahead(&part, &mut reading),
        }
    }

    /// A piece that somebody waits for, and that is on its way for somebody else already, is hurried. A chunk of the hub would come twice.
    fn merges(&self, image: &Hash, hash: &Hash) -> bool {
        self.part(image).is_some_and(|part| !part.is_flying(hash))
    }

    fn whole_packs(&self, image: &Hash) -> Option<Arc<dyn WholePacks>> {
        self.part(image).map(|part| part as Arc<dyn WholePacks>)
    }

    /// An image that comes from the hub alone must not be fetched ahead as if it came from many hosts: while one does, it is the hub's link
    /// that counts, for all that share it.
    fn link(&self) -> LinkEstimate {
        let alone = *self.alone.lock();
        let alone = alone.filter(|(_, at)| at.elapsed() < READ_LATELY);
        let of_hub = alone.is_some_and(|(image, _)| self.part(&image).is_none());
        let (bytes, mut speeds) = self.active.carried(&self.hub);
        if of_hub {
            speeds.clear();
        }
        let bytes = bytes.saturating_sub(self.before);
        let chunks = self
            .chunks
            .lock()
            .is_some_and(|at| at.elapsed() < READ_LATELY);
        link_of(self.hub_source.link(), bytes, &speeds, chunks)
    }
}

/// Returns the link over which a hub's images come: the `hub`'s, or that of the swarms whose pieces come at these speeds, or the quicker one if
/// `chunks` of the same images come from the hub. `bytes` of pieces have come by swarms.
fn link_of(hub: LinkEstimate, bytes: u64, speeds: &[Speed], chunks: bool) -> LinkEstimate {
    // each measures what is its own share of this host's link
    let of_swarms: u64 = speeds.iter().map(|speed| speed.bytes_per_s).sum();
    let quickest = speeds.iter().map(|speed| speed.piece_us).min();
    let of_hub = hub.bytes_per_s.filter(|_| chunks || speeds.is_empty());
    LinkEstimate {
        wire_bytes: hub.wire_bytes + bytes,
        bytes_per_s: of_hub.max(quickest.map(|_| of_swarms)),
        rtt_us: quickest.or(hub.rtt_us),
        ..hub
    }
}

#[cfg(test)]
mod tests {
    use super::super::world_tests::{CHUNKS, DEADLINE, READ, World, items, read};
    use super::*;
    use floe_ground::patience::PATIENCE;
    use floe_peers::{PieceId, Swarm};

    /// Lets the other host of a world take part, and waits until the two are connected.
    fn connected(world: &World, has_all: bool) -> Swarm {
        let other = world.other(has_all);
        let connected = async {
            while world.part.swarm.connected() == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let connected = async { tokio::time::timeout(PATIENCE, connected).await };
        world.runtime.block_on(connected).unwrap();
        other
    }

    /// Takes all that is to be brought as pieces later; returns how many items that is.
    fn take_all_later(world: &World) -> usize {
        let counts = std::iter::repeat_with(|| world.part.take_later().len());
        counts.take_while(|count| *count > 0).sum()
    }

    #[test]
    fn a_demand_is_read_from_the_hub_if_nobody_is_connected_and_soon_if_no_swarm_brings_it() {
        let world = World::new(false);
        let demand = Request::demand(DEADLINE);
        world.read(0, &demand).unwrap();
        assert_eq!(world.needed(), 0, "nobody was asked for a piece");
        assert_eq!(take_all_later(&world), READ, "others may want it");

        let other = connected(&world, false);
        // it is needed in the swarm, where it may come yet, and comes from the hub: as much as may be read there before any piece came
        world.read(0, &demand).unwrap();
        assert!(world.needed() > 0);
        world.read(16, &demand).unwrap();
        assert!(!world.part.may_hedge(1));
        // further ones wait for the swarm as long as there is time left for the hub, and end
        world.read(32, &demand).unwrap();
        assert!(world.part.take_later().is_empty());
        // nobody stands still for what is read ahead
        let ahead = world.read(48, &Request::prefetch(Duration::from_millis(50)));
        assert!(
            matches!(ahead, Err(SourceError::Timeout { .. })),
            "{ahead:?}"
        );
        drop(other);
    }

    #[test]
    fn a_host_that_is_alone_reads_ahead_as_without_a_swarm_and_what_is_on_its_shelf_from_there() {
        let world = World::new(false);
        let ahead = Request::prefetch(PATIENCE);
        world.read(0, &ahead).unwrap();
        assert_eq!((world.needed(), world.part.swarm.received()), (0, 0));
        assert_eq!(take_all_later(&world), READ, "others may want it");
        world.fill();
        world.read(16, &ahead).unwrap();
        assert!(world.part.take_later().is_empty(), "it was here");
    }

    #[test]
    fn a_little_of_a_piece_that_nobody_predicts_is_read_from_the_hub_and_much_of_it_from_others() {
        let world = World::new(false);
        let other = connected(&world, true);
        let (part, ahead) = (&world.part, Request::prefetch(PATIENCE));
        let quick = || (0..100).for_each(|_| part.hub_took(Duration::ZERO, true));
        let one = |number: u16, request: &Request| {
            quick();
            let (read, _) = read(&world.beside, &world.image, &items([number]), request);
            read.unwrap();
        };
        let lacks = |number: u16| part.lacks_pieces(&items([number]));
        // as long as it is not known whether there is a model, pieces come, and with them the packs' indices
        one(0, &ahead);
        let came = part.swarm.received();
        assert!(came > 0 && !lacks(0));
        let far: Vec<u16> = (0..CHUNKS).filter(|at| lacks(*at)).collect();
        let (first, last) = (far[0], far[far.len() - 1]);

        part.note_no_model();
        one(first, &Request::demand(PATIENCE));
        one(last, &ahead);
        assert_eq!(part.swarm.received(), came, "the hub has sent them");
        assert!(lacks(first) && lacks(last));
        // half of a piece is this host's share of it, and a whole frame is longer
        quick();
        let many = items(first..first + 3 * READ as u16);
        read(&world.beside, &world.image, &many, &ahead).0.unwrap();
        assert!(part.swarm.received() > came);

        let pieces = part.swarm.shelf().content().pieces();
        let all: Vec<PieceId> = (0..pieces).collect();
        part.note_prediction(world.image, &all);
        assert!(lacks(last));
        one(last, &ahead);
        assert!(!lacks(last), "what is predicted comes as a piece");
        drop(other);
    }

    #[test]
    fn what_the_hub_sends_ahead_is_not_read_once_more_for_whoever_waits_for_it() {
        let world = World::new(false);
        let other = connected(&world, true);
        world.part.note_no_model();
        let mut merged = Vec::new();
        let ahead = Request::prefetch(PATIENCE);
        // the first is a chunk of the hub's, and so many are pieces
        for numbers in [0..1, 512..CHUNKS] {
            let (wants, mut came) = (items(numbers), None);
            let mut sink = |_: Kind, hash: Hash, _: &[u8]| {
                if hash == wants[0].1 {
                    came = Some(world.beside.merges(&world.image, &hash));
                }
            };
            let read = world.beside.read(&world.image, &wants, &ahead, &mut sink);
            read.unwrap();
            merged.push(came);
            assert!(world.beside.merges(&world.image, &wants[0].1));
        }
        assert_eq!(merged, [Some(false), Some(true)]);
        drop(other);
    }

    #[test]
    fn what_is_fetched_ahead_is_paced_by_the_link_that_brings_it() {
        let hub = LinkEstimate {
            wire_bytes: 1_000,
            requests: 3,
            bytes_per_s: Some(20_000),
            rtt_us: Some(900_000),
        };
        // pieces that came before count, also where none come now
        let alone = LinkEstimate {
            wire_bytes: 1_500,
            ..hub
        };
        assert_eq!(link_of(hub, 500, &[], false), alone);
        let speed = |bytes_per_s: u64, piece_us: u64| Speed {
            bytes_per_s,
            piece_us,
        };
        let two = [speed(2_000_000, 30_000), speed(500_000, 20_000)];
        let swarms = LinkEstimate {
            bytes_per_s: Some(2_500_000),
            rtt_us: Some(20_000),
            ..alone
        };
        assert_eq!(link_of(hub, 500, &two, false), swarms);
        // chunks of the hub come besides: neither way is held back by the other
        assert_eq!(link_of(hub, 500, &two, true), swarms);
        let quick = LinkEstimate {
            bytes_per_s: Some(9_000_000),
            ..hub
        };
        let paced = |chunks: bool| link_of(quick, 500, &two, chunks).bytes_per_s;
        assert_eq!(
            (paced(true), paced(false)),
            (Some(9_000_000), Some(2_500_000))
        );
    }

    #[test]
    fn an_image_that_comes_from_the_hub_alone_is_noted_until_it_has_a_swarm() {
        let world = World::new(false);
        let noted = || world.beside.alone.lock().map(|(image, _)| image);
        let request = Request::demand(DEADLINE);
        world.read(0, &request).unwrap();
        assert_eq!(noted(), None, "it has a swarm");
        let key = Key {
            hub: world.beside.hub.clone(),
            image: world.image,
        };
        world.beside.active.take(&key).unwrap();
        world.read(16, &request).unwrap();
        assert_eq!(noted(), Some(world.image));
        let received = world.part.swarm.received();
        assert_eq!(
            world.beside.active.carried(&world.beside.hub),
            (received, Vec::new())
        );
    }

    #[test]
    fn what_swarms_had_brought_before_a_source_was_opened_is_not_counted_as_its_own() {
        let world = World::new(false);
        let other = world.other(true);
        world.read(0, &Request::prefetch(PATIENCE)).unwrap();
        let Beside {
            hub_source,
            hub,
            active,
            ..
        } = &world.beside;
        let key = Key {
            hub: hub.clone(),
            image: world.image,
        };
        // what has ended brings no more
        active.take(&key).unwrap();
        let (brought, _) = active.carried(hub);
        assert!(brought > 0);
        assert_eq!(world.beside.link().wire_bytes, brought);
        let later = Beside::new(hub_source.clone(), hub.clone(), active.clone());
        assert_eq!(later.link().wire_bytes, 0);
        drop(other);
    }

    #[test]
    fn a_piece_of_the_hubs_that_is_not_the_images_is_found_out_before_anybody_reads_it() {
        let world = World::new(true);
        let (part, demand) = (&world.part, Request::demand(PATIENCE));
        let places = part.reader.places(&items([0]), &demand).unwrap();
        let (pack, range) = &places[0];
        let mut packs = part.reader.layout().packs.iter();
        let number = packs.position(|known| known.id == *pack).unwrap();
        let bytes = part.swarm.shelf().read(number, range.clone()).unwrap();
        assert!(part.is_of_use() && !part.fits(pack, range, &bytes));
        assert!(!part.is_of_use());
        let (why, packs) = part.newly_spoilt().unwrap();
        assert!(why.contains("not the image's"), "{why}");
        assert_eq!(packs, [*pack]);
    }

    #[test]
    fn pieces_that_fit_their_roots_and_are_not_the_images_reach_nobody_and_end_the_swarm() {
        let world = World::new(true);
        world.read(0, &Request::demand(DEADLINE)).unwrap();
        let (why, packs) = world.part.newly_spoilt().unwrap();
        assert!(why.contains("not the image's"), "{why}");
        assert!(!packs.is_empty());
        assert!(!world.part.is_of_use() && world.part.newly_spoilt().is_none());
        world.read(16, &Request::prefetch(DEADLINE)).unwrap();
    }
}
