//! The packs of a pull that is not complete yet, and the journal that names them.

use super::{OnProgress, Passes, Progress, PullOptions, TransferError, check, retry_for};
use floe_image::{Hash, Kind, Layout, Manifest, PackRef, PackWriter, compress_frame};
use floe_source::{Purpose, Request, SourceError, WholePacks};
use floe_store::{Cache, Repository, StoreError, UNFINISHED_PULL};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// How long one read may take: 1 MiB at 100 kbit/s.
pub(super) const READ_DEADLINE: Duration = Duration::from_secs(120);
/// zstd level of what is packed here.
const LEVEL: i32 = 3;
/// A pack is closed at this size by default, before it can exceed the limit of uploads.
const PACK_BYTES: u64 = 7 << 20;
/// A pack is taken whole if at most one in this many of its items is here already; those items are then stored twice.
const HERE_MAX: usize = 4;

/// Whether a pack is taken whole, given which of its items are here.
pub(super) fn is_mostly_missing(here: &[bool]) -> bool {
    here.iter().filter(|here| **here).count() * HERE_MAX <= here.len()
}

/// The packs of an unfinished pull.
pub(super) struct Unfinished<'a> {
    pub repository: &'a Repository,
    pub cache: Option<&'a Cache>,
    /// Packs that were here when the pull began: other images', those of an earlier try, and those of other pulls that were not finished.
    local: Layout,
    /// Packs of this try and of earlier ones.
    made: Mutex<Vec<PackRef>>,
    journal: PathBuf,
    /// At how many bytes a pack is closed.
    pack_bytes: u64,
}

impl<'a> Unfinished<'a> {
    pub fn open(
        repository: &'a Repository,
        cache: Option<&'a Cache>,
        image: &Hash,
        pack_bytes: u64,
    ) -> Result<Self, TransferError> {
        let folder = repository.dir().join("tmp");
        let journal = folder.join(format!("{UNFINISHED_PULL}{image}"));
        let earlier = std::fs::read(&journal)
            .ok()
            .and_then(|bytes| Layout::decode(&bytes).ok())
            .unwrap_or_default(); // what can't be read of an earlier pull is pulled again
        let made: Vec<PackRef> = earlier
            .packs
            .into_iter()
            .filter(|pack| !matches!(repository.pack_path(&pack.id).try_exists(), Ok(false)))
            .collect();
        let mut seen: HashSet<Hash> = made.iter().map(|pack| pack.id).collect();
        let mut packs = made.clone();
        for entry in repository.list()? {
            let layout = match repository.layout(&entry.id) {
                Err(StoreError::NotFound { .. }) => continue, // removed meanwhile
                layout => layout?,
            };
            packs.extend(layout.packs.into_iter().filter(|pack| seen.insert(pack.id)));
        }
        // what is pulled may be an earlier one's, changed a little, as a machine's that was cut off on its way here
        match repository.noted_packs() {
            Ok(noted) => packs.extend(noted.into_iter().filter(|pack| seen.insert(pack.id))),
            Err(error) => tracing::warn!(%error, "what other pulls have brought is not used"),
        }
        packs.truncate(floe_image::LAYOUT_PACKS_MAX as usize);
        Ok(Unfinished {
            repository,
            cache,
            local: Layout { packs },
            made: Mutex::new(made),
            journal,
            pack_bytes: match pack_bytes {
                0 => PACK_BYTES,
                bytes => bytes,
            },
        })
    }

    /// Takes in packs that are brought here whole and are mostly missing. What can't be had this way is left to the pull that follows.
    pub fn take(
        &mut self,
        whole: &dyn WholePacks,
        options: &PullOptions,
        progress: OnProgress<'_>,
    ) -> Result<(), TransferError> {
        let total_bytes = whole.packs().iter().map(|pack| pack.file_bytes).sum();
        let (mut done_bytes, mut wire_bytes) = (0, 0);
        let (mut taken, mut left) = (Vec::new(), whole.packs().to_vec());
        while !left.is_empty() {
            let next = whole.next(&left).min(left.len() - 1);
            let pack = left.remove(next);
            match self.take_one(whole, &pack, options) {
                Ok(None) => {}
                Ok(Some(pack)) => {
                    wire_bytes += pack.file_bytes;
                    taken.push(pack);
                }
                Err(error @ (TransferError::Cancelled | TransferError::NoRoom { .. })) => {
                    return Err(error);
                }
                Err(error) => {
                    tracing::info!(pack = pack.id.short(), %error, "no further pack is taken whole");
                    break;
                }
            }
            done_bytes += pack.file_bytes;
            progress(Progress {
                done_bytes,
                total_bytes,
                wire_bytes,
            });
        }
        self.local.packs.splice(0..0, taken);
        let most = floe_image::LAYOUT_PACKS_MAX as usize;
        self.local.packs.truncate(most);
        Ok(())
    }

    /// Returns the pack if it was taken in.
    fn take_one(
        &self,
        whole: &dyn WholePacks,
        pack: &PackRef,
        options: &PullOptions,
    ) -> Result<Option<PackRef>, TransferError> {
        check(&options.cancel)?;
        if self.has(pack) {
            return Ok(None);
        }
        let request = Request::of(Purpose::Settle, READ_DEADLINE);
        let items = whole.items(pack, &request)?;
        if !is_mostly_missing(&self.repository.has(&self.local, &items)?) {
            return Ok(None);
        }
        if let Some(gate) = &options.gate {
            gate.pass(pack.file_bytes, &options.cancel)?;
        }
        // it may have to wait for what machines need
        let file = retry_for(options.patience, &options.cancel, late, || {
            Ok(whole.bring(pack, &request)?)
        })?;
        let taken = self.repository.share_pack(&file)?;
        self.note(taken);
        Ok(Some(taken))
    }

    pub fn put(
        &self,
        items: &[(Kind, Hash, &[u8])],
        writer: &mut Option<PackWriter<Vec<u8>>>,
    ) -> Result<(), TransferError> {
        let kind_of = |item: &(Kind, Hash, &[u8])| item.0;
        for run in items.chunk_by(|a, b| kind_of(a) == kind_of(b)) {
            let kind = kind_of(&run[0]);
            for frame in run.chunks(kind.frame_items_max()) {
                let (hashes, bytes): (Vec<Hash>, Vec<&[u8]>) =
                    frame.iter().map(|(_, hash, bytes)| (*hash, *bytes)).unzip();
                let packed = compress_frame(kind, &bytes, LEVEL);
                let open = match writer {
                    Some(open) => open,
                    None => writer.insert(PackWriter::new(Vec::new()).map_err(in_memory)?),
                };
                open.push_frame(kind, &hashes, &packed).map_err(in_memory)?;
                if open.bytes_written() >= self.pack_bytes {
                    self.close(writer)?;
                }
            }
        }
        Ok(())
    }

    /// Moves the pack being written into the repository and notes it.
    pub fn close(&self, writer: &mut Option<PackWriter<Vec<u8>>>) -> Result<(), TransferError> {
        let Some(writer) = writer.take() else {
            return Ok(());
        };
        let (bytes, _) = writer.finish().map_err(in_memory)?;
        let pack = self
            .repository
            .adopt_pack_from(&mut &bytes[..], bytes.len() as u64)?;
        self.note(pack);
        Ok(())
    }

    /// Whether the pack is here, from another image or an earlier try.
    pub fn has(&self, pack: &PackRef) -> bool {
        self.local.packs.contains(pack)
    }

    /// Returns the packs that were here when the pull began.
    pub fn known(&self) -> &Layout {
        &self.local
    }

    /// Notes a pack that is here now.
    pub fn note(&self, pack: PackRef) {
        let mut made = self.made.lock();
        if made.iter().all(|other| other.id != pack.id) {
            made.push(pack);
        }
        // the journal only saves work: if it cannot be written, the pull continues
        let layout = Layout {
            packs: made.clone(),
        };
        let partial = self.journal.with_extension("partial");
        let note = || -> io::Result<()> {
            if let Some(folder) = self.journal.parent() {
                floe_store::private::make_dirs(folder)?;
            }
            floe_store::private::write(&partial, &layout.encode())?;
            std::fs::rename(&partial, &self.journal)
        };
        if let Err(error) = note() {
            tracing::warn!(%error, "cannot note the packs of an unfinished pull");
        }
    }

    pub fn publish(&self, manifest: &Manifest) -> Result<(), TransferError> {
        let mut layout = Layout {
            packs: self.made.lock().clone(),
        };
        let made: HashSet<Hash> = layout.packs.iter().map(|pack| pack.id).collect();
        layout.packs.extend(
            self.local
                .packs
                .iter()
                .filter(|pack| !made.contains(&pack.id)),
        );
        let layout = self.repository.check_complete(manifest, &layout)?;
        self.repository.publish(manifest, &layout)?;
        if let Err(error) = std::fs::remove_file(&self.journal)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::debug!(%error, "cannot remove a pull's journal");
        }
        Ok(())
    }
}

fn late(error: &TransferError) -> Passes {
    match error {
        TransferError::Source(SourceError::Timeout { .. }) => Passes::Often,
        _ => Passes::Never,
    }
}

fn in_memory(error: io::Error) -> TransferError {
    TransferError::Options(format!("cannot pack: {error}"))
}

#[cfg(test)]
mod tests {
    use super::super::{Destination, pull};
    use super::*;
    use floe_image::{CHUNK_SIZE, MachineConfig};
    use floe_source::{Directory, Sink, Source};
    use floe_store::{Ingest, IngestOptions};
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// Brings a repository's packs whole, so many of them, the last one first, which it brings late.
    struct Whole {
        repo: Repository,
        packs: Vec<PackRef>,
        left: AtomicU64,
        late: AtomicBool,
        brought: Mutex<Vec<PackRef>>,
    }

    impl WholePacks for Whole {
        fn packs(&self) -> &[PackRef] {
            &self.packs
        }

        fn next(&self, left: &[PackRef]) -> usize {
            left.len() - 1
        }

        fn items(&self, pack: &PackRef, _: &Request) -> Result<Vec<(Kind, Hash)>, SourceError> {
            Ok(self.repo.pack_items(pack).unwrap())
        }

        fn bring(&self, pack: &PackRef, request: &Request) -> Result<PathBuf, SourceError> {
            if self.late.swap(false, Ordering::Relaxed) {
                return Err(SourceError::Timeout {
                    at: "a swarm".into(),
                    what: "a pack".into(),
                    after: request.deadline,
                });
            }
            let left = self.left.load(Ordering::Relaxed);
            if left == 0 {
                return Err(SourceError::Unreachable {
                    at: "a swarm".into(),
                    what: "a pack".into(),
                    reason: "all others have left".into(),
                });
            }
            self.left.store(left - 1, Ordering::Relaxed);
            self.brought.lock().push(*pack);
            Ok(self.repo.pack_path(&pack.id))
        }
    }

    /// Brings packs whole after so many reads.
    struct Place(Directory, Arc<Whole>, AtomicU64);

    impl Source for Place {
        fn describe(&self) -> String {
            self.0.describe()
        }

        fn resolve(&self, name: &str) -> Result<Hash, SourceError> {
            self.0.resolve(name)
        }

        fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError> {
            self.0.manifest(id)
        }

        fn layout(&self, id: &Hash) -> Result<Option<Layout>, SourceError> {
            self.0.layout(id)
        }

        fn read(
            &self,
            image: &Hash,
            wants: &[(Kind, Hash)],
            request: &Request,
            sink: &mut Sink<'_>,
        ) -> Result<(), SourceError> {
            let _ = self
                .2
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    left.checked_sub(1)
                });
            self.0.read(image, wants, request, sink)
        }

        fn whole_packs(&self, _: &Hash) -> Option<Arc<dyn WholePacks>> {
            (self.2.load(Ordering::Relaxed) == 0).then(|| self.1.clone() as Arc<dyn WholePacks>)
        }
    }

    /// Bytes that no compression makes smaller.
    fn noise() -> Vec<u8> {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        std::iter::repeat_with(next).take(2 << 20).collect()
    }

    /// An image in several packs.
    fn image(repo: &Repository, content: &[u8]) -> Hash {
        let options = IngestOptions {
            pack_bytes_max: 512 << 10,
            ..Default::default()
        };
        let mut ingest = Ingest::new(repo, options).unwrap();
        ingest.region_bytes("ram", content).unwrap();
        ingest.finish(MachineConfig::default()).unwrap()
    }

    #[test]
    fn packs_are_taken_whole_as_soon_as_the_source_can_and_what_came_before_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str| Repository::create(&dir.path().join(name)).unwrap();
        let theirs = make("theirs");
        let id = image(&theirs, &noise());
        let packs = theirs.layout(&id).unwrap().packs;
        let bytes = |packs: &[PackRef]| packs.iter().map(|pack| pack.file_bytes).sum::<u64>();
        // the segments are one read, the chunks two
        for reads in [1, 2] {
            let there = make(&format!("there {reads}"));
            let whole = Arc::new(Whole {
                repo: theirs.clone(),
                packs: packs.clone(),
                left: (packs.len() as u64).into(),
                late: false.into(),
                brought: Mutex::default(),
            });
            let source = Place(Directory::new(theirs.clone()), whole, reads.into());
            let options = PullOptions {
                whole_packs: true,
                connections: 1,
                ..PullOptions::default()
            };
            let to = Destination::Repository(&there, None);
            let report = pull(&source, &id, to, &options, &|_| ()).unwrap();
            let ours = there.layout(&id).unwrap().packs;
            assert!(ours.iter().any(|pack| packs.contains(pack)), "{reads}");
            // what came one by one, and the rest of those packs
            let fetched = [0..1, 256..400][reads as usize - 1].contains(&report.chunks_fetched);
            assert!(fetched, "{reads}: {report:?}");
            assert!(
                bytes(&ours) <= bytes(&packs) * 3 / 2 + (64 << 10),
                "{reads}"
            );
            assert!(there.verify(&id, &|_, _| true).unwrap().is_sound());
        }
    }

    #[test]
    fn packs_that_come_whole_lie_on_the_disk_once_and_the_rest_is_pulled_item_by_item() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str| Repository::create(&dir.path().join(name)).unwrap();
        let theirs = make("theirs");
        let id = image(&theirs, &noise());
        let packs = theirs.layout(&id).unwrap().packs;
        let all = packs.len() as u64;
        assert!(all > 3);
        for (whole_packs, left) in [(true, 2), (true, all), (false, all)] {
            let there = make(&format!("there {whole_packs} {left}"));
            let whole = Whole {
                repo: theirs.clone(),
                packs: packs.clone(),
                left: left.into(),
                late: true.into(),
                brought: Mutex::default(),
            };
            let whole = Arc::new(whole);
            let source = Place(Directory::new(theirs.clone()), whole.clone(), 0.into());
            let options = PullOptions {
                whole_packs,
                ..PullOptions::default()
            };
            let to = Destination::Repository(&there, None);
            let report = pull(&source, &id, to, &options, &|_| ()).unwrap();
            let ours = there.layout(&id).unwrap().packs;
            let shared = ours.iter().filter(|pack| packs.contains(pack));
            let shared = shared.filter(|pack| {
                let file = there.pack_path(&pack.id).metadata().unwrap();
                file.ino() == theirs.pack_path(&pack.id).metadata().unwrap().ino()
            });
            let expected = if whole_packs { left } else { 0 };
            assert_eq!(shared.count() as u64, expected, "{whole_packs} {left}");
            let last = packs.iter().rev().take(expected as usize);
            assert!(last.eq(whole.brought.lock().iter()));
            assert_eq!(report.chunks_fetched == 0, expected == all);
            assert!(there.verify(&id, &|_, _| true).unwrap().is_sound());
        }
        assert!(is_mostly_missing(&[true, false, false, false]));
        assert!(!is_mostly_missing(&[true, false, false]));
    }

    #[test]
    fn what_an_unfinished_pull_has_brought_is_not_pulled_again_for_an_image_that_has_changed_a_little()
     {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str| Repository::create(&dir.path().join(name)).unwrap();
        let theirs = make("theirs");
        let mut content = noise();
        let chunks = (content.len() / CHUNK_SIZE) as u64;
        let first = image(&theirs, &content);
        *content.last_mut().unwrap() ^= 1;
        let second = image(&theirs, &content);
        let source = Directory::new(theirs);
        // once as it is, and once with a note of packs that are gone
        for gone in [false, true] {
            let here = make(if gone { "gone" } else { "here" });
            let to = Destination::Repository(&here, None);
            let options = PullOptions {
                connections: 1,
                pack_bytes: 512 << 10,
                ..PullOptions::default()
            };
            let brought = AtomicU64::new(0);
            let cut = |progress: Progress| {
                let count = progress.wire_bytes / CHUNK_SIZE as u64;
                brought.store(count, Ordering::Relaxed);
                if count > 0 {
                    options.cancel.cancel();
                }
            };
            let ended = pull(&source, &first, to, &options, &cut);
            assert!(matches!(ended, Err(TransferError::Cancelled)), "{ended:?}");
            let brought = brought.into_inner();
            assert!(brought > 0 && brought < chunks, "{brought} of {chunks}");
            let noted = here.noted_packs().unwrap();
            // one of tables, and several small ones of chunks
            assert!(noted.len() > 2, "{noted:?}");
            if gone {
                for pack in &noted {
                    std::fs::remove_file(here.pack_path(&pack.id)).unwrap();
                }
                assert!(here.noted_packs().unwrap().is_empty());
            }
            let report = pull(&source, &second, to, &PullOptions::default(), &|_| ()).unwrap();
            let reused = if gone { 0 } else { brought };
            assert_eq!(report.chunks_reused, reused);
            assert_eq!(report.chunks_fetched, chunks - reused);
            assert!(here.verify(&second, &|_, _| true).unwrap().is_sound());
        }
    }
}
