//! Enters swarms: opens the shelf of an image's pieces, joins those who exchange them, and says what is wanted.

use super::{
    Known, Swarms,
    decide::{Event, Key},
    member::{Place, Shared, digits, members},
    pieces::{Part, Pieces, wait_for},
    predict,
};
use floe_api::SwarmMembership;
use floe_ground::files::make_private_dir;
use floe_image::{Hash, Layout, PackRef};
use floe_inventory::inventory::record::Origin;
use floe_peers::{Content, Options, Pack, PieceId, Seed, Shelf, ShelfError, Swarm};
use floe_source::{PackReader, Purpose, Request, SourceError};
use floe_store::Repository;
use std::{
    collections::HashMap,
    io,
    path::Path,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

/// How long a hub may take to say where an image's packs end.
const LAYOUT_TIMEOUT: Duration = Duration::from_secs(20);
/// How long joining may take, which asks nobody.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Among how many pieces, the first ones that are lacking, a seed brings the rarest first: 1 GiB.
const BRING_PIECES: usize = 16 << 10;
/// How often it looks whether all of the image is still wanted.
const BRING_EVERY: Duration = Duration::from_secs(20);
/// How long a few pieces may take that are brought for others.
const LATER_TIMEOUT: Duration = Duration::from_secs(30);

/// Why an image that is not stored in packs has no swarm.
pub(super) const NO_PACKS: &str = "the hub does not keep it in packs";

impl Swarms {
    /// Enters a swarm as its hub described it last, and tells how that went.
    pub(super) fn enter(self: &Arc<Self>, key: &Key) {
        let part = match self.enter_now(key) {
            Ok(part) => part,
            Err(why) => {
                tracing::warn!(image = key.image.short(), why, "a swarm can't be entered");
                self.trouble(key, why);
                return self.tell(Event::Broken(key.clone()));
            }
        };
        self.trouble(key, String::new());
        self.tell(Event::Entered(key.clone()));
        let shelf = part.swarm.shelf();
        tracing::info!(
            image = key.image.short(),
            pieces = shelf.content().pieces(),
            here = shelf.pieces().count(),
            "entered a swarm"
        );
        self.predict_if_new(key);
    }

    fn enter_now(self: &Arc<Self>, key: &Key) -> Result<Arc<Part>, String> {
        let before = self.end_part(key);
        // until it is among the active ones, whose shelves nobody removes
        let claim = self.shelves.claim(key.image);
        let _claim = claim.ok_or("its pieces are being brought in or removed already")?;
        let all = self.active.all();
        if all.iter().any(|(other, _)| other.image == key.image) {
            return Err("its pieces are exchanged by way of another hub already".into());
        }
        if self.free_bytes() < super::FREE_BYTES_MIN {
            return Err("the disk is full".into());
        }
        let host = self.host()?;
        let known = self.known.lock().get(key).map(|known| {
            let Known {
                place,
                others,
                membership,
                ..
            } = known;
            let of = (place.clone(), others.clone(), membership.clone());
            (!known.is_spoilt()).then_some(of)
        });
        let known = known.ok_or("nobody wants it any more")?;
        let (place, others_too, membership) =
            known.ok_or("the hub's pieces are not the image's")?;
        let wanted = self.wanted();
        let wanted = wanted.get(key).ok_or("nobody wants it any more")?;
        // who only gives goes over to the present layout, and gives what is here of others as well
        let before = before.filter(|_| !wanted.machines.is_empty());
        let before = before.map(|part| part.reader.layout().clone());
        let (layout, packs) = self.packs_of(key, &place, &membership, before)?;
        let Packs { content, ids, name } = packs;
        if let Some(known) = self.known.lock().get_mut(key) {
            known.layout = Some(name);
        }
        let dir = self.shelf_of(&key.image);
        let shelf = make_private_dir(&dir)
            .map_err(|error| error.to_string())
            .and_then(|()| Shelf::open(&dir, content).map_err(|error| error.to_string()))?;
        let shelf = Arc::new(shelf);
        fill(&shelf, &dir, &ids, &self.images.repo);
        let shared = Shared::default();
        let seeds = seeds_of(key.image, &place, &others_too, &ids, &shared)?;
        let token = digits(&membership.token).ok_or("the hub's token is not 64 digits")?;
        let options = Options {
            config: self.core.options.swarm.policy.config(),
            image: key.image.0,
            token,
            members: members(&membership.members),
        };
        let ahead = options.config.prefetch;
        let me = host.key();
        let others = options.members.iter().any(|member| member.key != me);
        let listed = options.members.len();
        let joined = wait_for(&self.runtime, JOIN_TIMEOUT, async move {
            host.join(shelf, seeds, options)
        });
        let swarm = joined.ok_or("the node is ending")?;
        let swarm = Arc::new(swarm.map_err(|error| error.to_string())?);
        let at = format!("the swarm of {}", key.hub);
        let pieces = Pieces::new(at, swarm.clone(), &ids, ahead, self.runtime.clone());
        let index_dir = Some(self.core.home.run().join("index"));
        let reader = PackReader::new(pieces, layout, index_dir);
        let mut part = Part::new(membership.content, swarm, reader, shared.hedge);
        part.only_pieces = self.core.options.swarm.policy.only_pieces();
        part.always.store(wanted.wish.always, Relaxed);
        part.others.store(others, Relaxed);
        part.listed.store(listed, Relaxed);
        let whole = wanted.given.is_some();
        part.whole.store(whole, Relaxed);
        let part = Arc::new(part);
        let _ = shared.part.set(Arc::downgrade(&part)); // nobody else sets it
        self.active.put(key.clone(), part.clone());
        if whole {
            self.bring_whole(key, &part);
        }
        Ok(part)
    }

    /// Returns the layout by which the image is read here, and the hub's packs: the layout by which it was read `before`, while the hub has
    /// those packs, since of them there is much here and with the others.
    fn packs_of(
        &self,
        key: &Key,
        place: &Place,
        membership: &SwarmMembership,
        before: Option<Layout>,
    ) -> Result<(Layout, Packs), String> {
        if let Some(layout) = before
            && let Ok(packs) = content_of(membership, &layout)
        {
            return Ok((layout, packs));
        }
        let layout = self.layout(key, place)?;
        let packs = content_of(membership, &layout)?;
        Ok((layout, packs))
    }

    fn layout(&self, key: &Key, place: &Place) -> Result<Layout, String> {
        let layout = self.layout_at(key, place);
        let layout = layout.map_err(|error| error.to_string())?;
        layout.ok_or_else(|| NO_PACKS.into())
    }

    /// Asks a hub where an image's packs end; `None` if it does not keep the image in packs.
    pub(super) fn layout_at(
        &self,
        key: &Key,
        place: &Place,
    ) -> Result<Option<Layout>, SourceError> {
        let origin = Origin {
            urls: vec![place.url.clone()],
            token: place.token.clone(),
            ca: place.ca.clone(),
            ..Default::default()
        };
        let source = self
            .images
            .sources
            .ask_one(&place.url, &origin, LAYOUT_TIMEOUT);
        source.and_then(|source| source.layout(&key.image))
    }

    /// Brings all pieces of the image's layout here, in the background.
    pub(super) fn bring_whole(self: &Arc<Self>, key: &Key, part: &Arc<Part>) {
        let (here, key) = (Arc::downgrade(self), key.clone());
        let (part, over) = (Arc::downgrade(part), self.core.threads.over().clone());
        let work = move || {
            while let (Some(swarms), Some(part)) = (here.upgrade(), part.upgrade()) {
                let shelf = part.swarm.shelf();
                let (packs, bytes) = (&part.reader.layout().packs, part.reader.bytes());
                let of = |pack: &PackRef| bytes.pieces_of(&pack.id, &(0..pack.file_bytes));
                let lacking = packs.iter().flat_map(of).filter(|piece| !shelf.has(*piece));
                let lacking: Vec<PieceId> = lacking.take(BRING_PIECES).collect();
                let same = swarms.active.part(&key);
                let same = same.is_some_and(|same| Arc::ptr_eq(&same, &part));
                if lacking.is_empty() || !same || !part.whole.load(Relaxed) || over.is_cancelled() {
                    return;
                }
                let swarm = part.swarm.clone();
                drop((part, swarms.runtime.clone()));
                bring(&swarms, swarm, lacking);
            }
        };
        if let Err(error) = self.core.threads.start("swarm-whole", work) {
            tracing::error!(%error, "no thread to bring a whole image here");
        }
    }

    /// Tells an image's hub that the bytes which came of some packs are not what the image needs.
    pub(super) fn doubt(&self, key: &Key, packs: Vec<Hash>) {
        let place = self.known.lock().get(key).map(|known| known.place.clone());
        let Some(place) = place else {
            return;
        };
        let work = move || packs.iter().for_each(|pack| place.doubt(pack));
        if let Err(error) = self.core.threads.start("swarm-doubt", work) {
            tracing::error!(%error, "no thread to tell a hub");
        }
    }

    /// Brings pieces here of what machines have read from the hub while nobody else was there, as long as they are quiet.
    pub(super) fn bring_later(&self, part: &Arc<Part>) {
        if !part.may_follow() || part.follows.swap(true, Relaxed) {
            return;
        }
        let (part, over) = (part.clone(), self.core.threads.over().clone());
        let followed = part.clone();
        let work = move || {
            while part.may_follow() && !over.is_cancelled() {
                let request = Request::of(Purpose::Seed, LATER_TIMEOUT);
                let items = part.take_later();
                if let Err(error) = part.reader.read(&items, &request, &mut |_, _, _| ()) {
                    tracing::debug!(%error, "others find it on the hub");
                }
            }
            part.follows.store(false, Relaxed);
        };
        if let Err(error) = self.core.threads.start("swarm-later", work) {
            tracing::error!(%error, "no thread to bring pieces for others");
            followed.follows.store(false, Relaxed);
        }
    }

    /// Tells a swarm what machines of the image will need next, if that may have changed since it was told.
    pub(super) fn predict_if_new(&self, key: &Key) {
        if let Some(part) = self.active.part(key)
            && let Err(why) = self.predict(key, &part)
        {
            part.note_no_answer(Instant::now());
            tracing::warn!(image = key.image.short(), why, "no new prediction");
        }
    }

    /// The same. Without a machine here, or a model, there is nothing to tell.
    fn predict(&self, key: &Key, part: &Part) -> Result<(), String> {
        if !self.core.options.swarm.policy.config().prefetch {
            return Ok(()); // nothing would be fetched by it
        }
        if part.is_alone() && !part.only_pieces {
            return Ok(()); // the hub is read as without a swarm
        }
        let mut entries = self.inventory.all().into_iter();
        let entry = entries.find(|entry| super::uses(entry) && entry.record().image == key.image);
        let Some(entry) = entry.filter(|_| part.asks_for_model(Instant::now())) else {
            return Ok(());
        };
        let origin = &entry.record().origin;
        let fetcher = self.images.sources.fetcher(origin);
        let fetcher = fetcher.map_err(|error| error.to_string())?;
        let manifest = self.images.manifest_of(&entry.dir, &key.image);
        let manifest = match manifest {
            Ok(manifest) => manifest,
            Err(_) => fetcher
                .source()
                .manifest(&key.image)
                .map_err(|error| error.to_string())?,
        };
        let Some(model) = self
            .traces
            .known_model(key.image, &manifest, origin, &fetcher)?
        else {
            part.note_no_model();
            return Ok(());
        };
        let id = Hash::of(&model.encode());
        if !part.is_new_model(id) {
            return Ok(());
        }
        let found = predict::order(part, &model, &manifest, &fetcher);
        let found = found.map_err(|error| error.to_string())?;
        part.note_prediction(id, &found.pieces);
        tracing::info!(
            image = key.image.short(),
            pieces = found.pieces.len(),
            "predicted"
        );
        let swarm = part.swarm.clone();
        wait_for(&self.runtime, JOIN_TIMEOUT, async move {
            // it may be ending
            let _ = swarm.predict(&found.pieces, &found.due_ms).await;
        });
        Ok(())
    }
}

/// Puts packs on the shelf, which is in `dir`, that this host's repository has. Others come from other hosts and the hub.
fn fill(shelf: &Shelf, dir: &Path, ids: &[Hash], repo: &Repository) {
    for (number, id) in ids.iter().enumerate() {
        if shelf.file_of(number).is_ok() {
            continue;
        }
        let named = match floe_store::second_name(&repo.pack_path(id), dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            named => named.map_err(ShelfError::from),
        };
        match named.and_then(|file| shelf.fill(number, file)) {
            Ok(true) => {}
            Ok(false) => tracing::info!(pack = id.short(), "the hub's pack is another"),
            Err(error) => tracing::warn!(pack = id.short(), %error, "can't be put on the shelf"),
        }
    }
}

/// Makes the seeds of an image's packs: the hub that lists who takes part, and after it others that the image may be read from.
fn seeds_of(
    image: Hash,
    place: &Place,
    others: &[Place],
    ids: &[Hash],
    shared: &Shared,
) -> Result<Vec<Arc<dyn Seed>>, String> {
    let all = std::iter::once(place).chain(others);
    let seed = |place: &Place| {
        let seed = place.seed(image, ids.to_vec(), shared.clone());
        let seed = seed.map_err(|error| error.to_string())?;
        Ok(Arc::new(seed) as Arc<dyn Seed>)
    };
    all.map(seed).collect()
}

fn bring(swarms: &Swarms, swarm: Arc<Swarm>, lacking: Vec<PieceId>) {
    wait_for(&swarms.runtime, BRING_EVERY, async move {
        let _ = swarm.copy(&lacking).await; // it may be ending
    });
}

/// The packs that a hub lists of an image.
struct Packs {
    content: Arc<Content>,
    /// Their names, in that order.
    ids: Vec<Hash>,
    /// What the hub calls those of the layout alone.
    name: String,
}

/// Numbers an image's packs as its hub does. Those of the layout must be among them.
fn content_of(membership: &SwarmMembership, layout: &Layout) -> Result<Packs, String> {
    let (mut packs, mut ids) = (Vec::new(), Vec::new());
    for pack in &membership.packs {
        let root =
            digits(&pack.root).ok_or("the hub names a pack by something else than 64 digits")?;
        let id = digits(&pack.id).ok_or("the hub names a pack by something else than 64 digits")?;
        ids.push(Hash(id));
        packs.push(Pack {
            root,
            bytes: pack.bytes,
        });
    }
    let known: HashMap<Hash, Pack> = ids.iter().copied().zip(packs.iter().copied()).collect();
    let listed = |of: &PackRef| {
        let pack = known.get(&of.id).copied();
        let same_root = |pack: &Pack| of.root.is_none_or(|root| root.0 == pack.root);
        pack.filter(|pack| pack.bytes == of.file_bytes && same_root(pack))
    };
    let read: Option<Vec<Pack>> = layout.packs.iter().map(listed).collect();
    let read = read.ok_or("the hub has laid the image's packs out anew")?;
    let content = |packs| Content::new(packs).map_err(|error| error.to_string());
    let (all, read) = (content(packs)?, content(read)?);
    if digits(&membership.content) != Some(all.id()) {
        return Err("the hub's packs are not what it calls them".into());
    }
    Ok(Packs {
        content: Arc::new(all),
        ids,
        name: Hash(read.id()).to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::world_tests::noise;
    use super::*;
    use floe_api::SwarmPack;
    use floe_image::{CHUNK_SIZE, MachineConfig};
    use floe_peers::Tree;
    use floe_store::{GcOptions, Ingest, IngestOptions};
    use std::{fs, sync::atomic::AtomicBool};

    /// An image of some packs in a repository, and its chunks.
    fn image(repo: &Repository) -> (Hash, Vec<Vec<u8>>) {
        let noise = noise(0, 3 << 20);
        let options = IngestOptions {
            pack_bytes_max: 512 << 10,
            ..Default::default()
        };
        let mut ingest = Ingest::new(repo, options).unwrap();
        ingest.region_bytes("ram", &noise).unwrap();
        let id = ingest.finish(MachineConfig::default()).unwrap();
        (id, noise.chunks(CHUNK_SIZE).map(<[u8]>::to_vec).collect())
    }

    /// Ends another thread's work, also if this one panics.
    struct Ends<'a>(&'a AtomicBool);

    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }

    #[test]
    fn packs_of_the_repository_stay_here_while_it_is_laid_out_anew_and_swept() {
        let dir = tempfile::tempdir().unwrap();
        let repo = Repository::create(&dir.path().join("repo")).unwrap();
        let (id, chunks) = image(&repo);
        let packs = repo.layout(&id).unwrap().packs;
        let ids: Vec<Hash> = packs.iter().map(|pack| pack.id).collect();
        let path = |number: usize| repo.pack_path(&ids[number]);
        let bytes: Vec<Vec<u8>> = (0..ids.len()).map(|n| fs::read(path(n)).unwrap()).collect();
        let known = |pack: &Vec<u8>| Tree::of(&pack[..], pack.len() as u64).unwrap().pack();
        let content = Arc::new(Content::new(bytes.iter().map(known).collect()).unwrap());
        let shelves = dir.path().join("shelf");
        let shelf = Shelf::open(&shelves, content.clone()).unwrap();
        fill(&shelf, &shelves, &ids, &repo);
        assert_eq!(shelf.pieces().count() as u32, content.pieces());
        let whole = |shelf: &Shelf| {
            let mut all = (0..).zip(&bytes);
            all.all(|(n, pack)| shelf.read(n, 0..pack.len() as u64).unwrap() == *pack)
        };
        let sweep = || {
            let options = GcOptions {
                min_age: Duration::ZERO,
                ..GcOptions::default()
            };
            repo.gc(&options).unwrap()
        };
        let over = AtomicBool::new(false);
        floe_threads::scope(|threads| {
            let _ends = Ends(&over);
            threads.spawn("reader", || {
                while !over.load(Relaxed) {
                    assert!(whole(&shelf));
                }
            });
            for step in [7, 11] {
                let chosen = chunks.iter().step_by(step);
                let cluster: Vec<Hash> = chosen.map(|chunk| Hash::of(chunk)).collect();
                let ready = repo.rearrange(&id, &[cluster], &mut |_, _| true);
                ready.unwrap().publish().unwrap();
                sweep();
            }
        });
        // those of chunks are gone from the repository, and the shelf, also of a node that starts again, has all
        let gone = (0..ids.len()).filter(|n| path(*n).metadata().is_err());
        let gone = gone.count();
        assert!(gone > 3, "{gone} of {}", ids.len());
        drop(shelf);
        let shelf = Shelf::open(&shelves, content).unwrap();
        assert!(whole(&shelf));
        // back again, and the shelf goes
        for (number, pack) in packs.iter().enumerate() {
            let taken = repo.share_pack(&shelf.file_of(number).unwrap());
            assert_eq!(taken.unwrap(), *pack);
        }
        drop(shelf);
        fs::remove_dir_all(&shelves).unwrap();
        assert!((0..ids.len()).all(|n| fs::read(path(n)).unwrap() == bytes[n]));
        // no image lists them
        assert_eq!(sweep().packs, gone as u64);
        assert!(repo.verify(&id, &|_, _| true).unwrap().is_sound());
    }

    #[test]
    fn the_repositorys_own_pack_is_no_other_that_the_hub_gives_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let repo = Repository::create(&dir.path().join("repo")).unwrap();
        let (id, _) = image(&repo);
        let pack = repo.layout(&id).unwrap().packs[0];
        let mut other = fs::read(repo.pack_path(&pack.id)).unwrap();
        other[100] ^= 1;
        let known = Tree::of(&other[..], pack.file_bytes).unwrap().pack();
        let content = Arc::new(Content::new(vec![known]).unwrap());
        let shelves = dir.path().join("shelf");
        let shelf = Shelf::open(&shelves, content).unwrap();
        fill(&shelf, &shelves, &[pack.id], &repo);
        assert_eq!(shelf.pieces().count(), 0);
        assert_eq!(fs::read_dir(&shelves).unwrap().count(), 0);
    }

    #[test]
    fn packs_that_are_not_those_of_the_image_are_no_content() {
        let pack = |name: &[u8]| PackRef {
            id: Hash::of(name),
            file_bytes: 100 + name.len() as u64,
            index_offset: 50,
            index_bytes: 10,
            root: None,
        };
        let listed = |of: &PackRef| SwarmPack {
            id: of.id.to_string(),
            root: Hash::of(of.id.as_bytes()).to_string(),
            bytes: of.file_bytes,
        };
        let (a, b) = (pack(b"a"), pack(b"bb"));
        let layout = Layout { packs: vec![a, b] };
        let membership = |packs: Vec<SwarmPack>| {
            let known = packs.iter().map(|pack| Pack {
                root: digits(&pack.root).unwrap_or_default(),
                bytes: pack.bytes,
            });
            SwarmMembership {
                content: Hash(Content::new(known.collect()).unwrap().id()).to_string(),
                packs,
                ..Default::default()
            }
        };
        let both = membership(vec![listed(&b), listed(&a)]);
        let packs = content_of(&both, &layout).unwrap();
        assert_eq!(packs.ids, [b.id, a.id]);
        assert_eq!(packs.content.packs()[0].bytes, b.file_bytes);
        // the layout has a name of its own, and is read as well where the hub lists others beside it
        let alone = membership(vec![listed(&a), listed(&b)]);
        assert_eq!(packs.name, alone.content);
        let more = membership(vec![listed(&pack(b"ccc")), listed(&a), listed(&b)]);
        let packs = content_of(&more, &layout).unwrap();
        assert_eq!((packs.ids.len(), packs.name), (3, alone.content));
        assert!(content_of(&membership(vec![listed(&a)]), &layout).is_err());
        let mut short = listed(&b);
        short.bytes -= 1;
        assert!(content_of(&membership(vec![listed(&a), short]), &layout).is_err());
        let rooted = |root: Hash| {
            let root = Some(root);
            Layout {
                packs: vec![PackRef { root, ..a }, b],
            }
        };
        let both = membership(vec![listed(&a), listed(&b)]);
        assert!(content_of(&both, &rooted(Hash::of(a.id.as_bytes()))).is_ok());
        assert!(content_of(&both, &rooted(a.id)).is_err());
        let mut odd = listed(&b);
        odd.root = "no digits".into();
        assert!(content_of(&membership(vec![listed(&a), odd]), &layout).is_err());
    }
}
