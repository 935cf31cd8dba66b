//! Machines that are synced sealed: what another node is told of one before it goes there lies there encrypted, with a key that this node has.
//!
//! ```text
//! the machine's node                                  the other
//! captures it as it runs, seals the packs ----------> keeps that as a hidden image, which it can't read
//! offers it, with the key --------------------------> opens what it has, brings the rest; the key is in its memory
//!                                                     makes the machine, forgets the key and what it has opened
//! ```
//! What a capture is made of is packed anew, since its own packs may have chunks of other machines, too. A sync packs what the one before
//! had not, and the sealed packs follow each other in one region: so an ordinary pull brings those that are new. The manifest and the list of
//! packs are sealed, too, and what is opened is checked against them. While a machine runs on the other node it is open there. What is left
//! there when it has gone is what was told sealed.

use super::{Moves, depart::new_key, wire::SealKey};
use floe_ground::{
    error::{NodeError, at, busy, failed, refused},
    files,
    report::Report,
};
use floe_image::{
    CHUNK_SIZE, Hash, Kind, LAYOUT_BYTES_MAX, Layout, MANIFEST_BYTES_MAX, MachineConfig, Manifest,
    PackWriter, REST_BYTES, Region, RestKey, Segment, compress_frame,
};
use floe_inventory::inventory::{Entry, lifecycle::Task, turn::Turn};
use floe_library::images::{PARK_LABEL, finish};
use floe_store::{Ingest, IngestOptions, Repository, UNFINISHED_PULL};
use parking_lot::Mutex;
use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::{self, ErrorKind, Read, Write},
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
    time::Duration,
};

/// How the names begin under which the last sealed capture, and the image that it was made of, are kept: no machine's key begins so.
const WHAT: &str = "sealed ";
const WHAT_FROM: &str = "sealed from ";
/// The label of an image that is a sealed one.
const SEALED_LABEL: &str = "floe.sealed";
/// Its regions.
const MANIFEST: &str = "manifest";
const LAYOUT: &str = "layout";
const PACKS: &str = "packs";
/// For how long it is kept by the node that sends it, so that less is to be sealed the next time.
const KEPT: Duration = Duration::from_secs(36 * 3600);
/// How many bytes a sealed piece of a pack has.
const SEALED_PIECE: u64 = 1 << 20;
/// How many bytes of a pack that is.
const PIECE: u64 = SEALED_PIECE - REST_BYTES as u64;
/// A pack is closed once it has so many bytes.
const PACK_BYTES: u64 = 4 << 20;
/// zstd level of what is packed.
const LEVEL: i32 = 3;
/// How many items of an image are read at once: at most 8 MiB.
const ITEMS_AT_ONCE: usize = 256;
/// Most bytes of the file with this node's key.
const OWN_KEY_BYTES_MAX: u64 = 4096;
/// Fewest: who has chosen it may not have chosen what can be guessed.
const OWN_KEY_BYTES_MIN: usize = 32;

/// Held while this node's key is made, so that there is one.
static MAKING_KEY: Mutex<()> = Mutex::new(());

impl Moves {
    /// Notes whether what other nodes are told of a machine ahead of time is sealed from now on.
    pub(super) fn seals(&self, entry: &Arc<Entry>, sealed: bool) -> Result<(), NodeError> {
        let is_lent = |turn: &Turn| turn.lender.is_some() || turn.borrower().is_some();
        let name = &entry.name;
        if entry.turn().as_ref().is_some_and(is_lent) {
            return Err(refused(
                format!("{name} is lent: it is open to the host that runs it"),
                format!("floe recall {name} where it comes from, and say it then"),
            ));
        }
        let operation = self.begin(entry, Task::Settle)?.ok_or_else(|| {
            busy(
                format!("machine {name} is gone from here just now"),
                "floe ps, here and on the other node, shows where it is",
            )
        })?;
        operation.update(|record| {
            let turn = record.turn.get_or_insert_with(|| Turn::told_of(new_key()));
            turn.sealed = sealed;
        })
    }

    /// Returns the key for what other nodes keep of a machine; `None` if that need not be sealed. Who has lent it may read it.
    pub(super) fn seal_key(&self, turn: &Turn) -> Result<Option<SealKey>, NodeError> {
        if !turn.sealed || turn.lender.is_some() {
            return Ok(None);
        }
        let own = own_key(&self.core.home.seal_key())?;
        Ok(Some(SealKey::of(&own, &turn.key)))
    }

    /// Returns what another node is told of a machine which is this image: the image, or all of it sealed.
    pub(super) fn as_told(
        &self,
        turn: &Turn,
        image: Hash,
        report: &mut Report,
    ) -> Result<Hash, NodeError> {
        let Some(key) = self.seal_key(turn)? else {
            return Ok(image);
        };
        let what = format!("{WHAT}{}", turn.key);
        let before = self.copies.lock().get(&what).map(|copy| copy.image);
        let line = report.progress_line("seal", "bytes");
        let storing = self.images.storing.read();
        let sealed = seal(
            &self.images.repo,
            &image,
            &key.rest(),
            before,
            &|done, total| line.at(done, total),
        )?;
        self.keep_copy(&what, sealed, KEPT);
        self.keep_copy(&format!("{WHAT_FROM}{}", turn.key), image, KEPT);
        drop(storing);
        report.stage("seal")?;
        Ok(sealed)
    }

    /// Opens what this node was told, sealed, of a machine that is now offered with this key. Returns that image, so that what it has need
    /// not be brought again; `None` if nothing opens.
    pub(super) fn opens(&self, machine: &str, key: &SealKey, report: &Report) -> Option<Hash> {
        let sealed = self.copies.lock().get(machine).map(|copy| copy.image)?;
        let repo = &self.images.repo;
        if !repo.manifest(&sealed).is_ok_and(|image| is_sealed(&image)) {
            return None;
        }
        let line = report.progress_line("open", "bytes");
        let _storing = self.images.storing.read();
        let opened = open(repo, &sealed, &key.rest(), &|done, total| {
            line.at(done, total)
        });
        if let Err(error) = &opened {
            tracing::warn!(machine, %error, "what was told of it sealed does not open: all of it is brought");
            self.images.leaves_garbage(); // what has opened of it can be read
        }
        opened.ok()
    }

    /// Forgets what has come of a machine that did not come: it is not to wait here, readable, for another try.
    pub(super) fn forgets_arrival(&self, image: &Hash) {
        let note = self.images.repo.tmp_dir();
        let note = note.join(format!("{UNFINISHED_PULL}{image}"));
        if let Err(error) = std::fs::remove_file(&note)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(path = %note.display(), %error, "what has come of a machine stays here for a while");
        }
        self.images.leaves_garbage();
    }
}

/// Whether an image is a sealed one.
pub(super) fn is_sealed(image: &Manifest) -> bool {
    image.config.labels.contains_key(SEALED_LABEL)
}

/// Returns the secret of this node of which machines' keys are made. It is made if there is none.
fn own_key(path: &Path) -> Result<String, NodeError> {
    let _making = MAKING_KEY.lock();
    let bytes = match files::read_bounded(path, OWN_KEY_BYTES_MAX) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let (one, two) = (rand::random::<u128>(), rand::random::<u128>());
            let made = format!("{one:032x}{two:032x}\n").into_bytes();
            files::replace_file(path, &made)?;
            made
        }
        read => read.map_err(at(format!("cannot read {}", path.display())))?,
    };
    let text = String::from_utf8(bytes).unwrap_or_default();
    match text.trim() {
        key if key.len() >= OWN_KEY_BYTES_MIN => Ok(key.to_owned()),
        _ => Err(refused(
            format!(
                "{} is no key: it has {OWN_KEY_BYTES_MIN} or more characters of text",
                path.display()
            ),
            "restore it; without it a new one is made, and machines are synced anew",
        )),
    }
}

/// Returns how many bytes a pack of so many has when it is sealed: whole chunks.
fn sealed_bytes(pack_bytes: u64) -> u64 {
    let last = match pack_bytes % PIECE {
        0 => 0,
        rest => (rest + REST_BYTES as u64).next_multiple_of(CHUNK_SIZE as u64),
    };
    (pack_bytes / PIECE)
        .saturating_mul(SEALED_PIECE)
        .saturating_add(last)
}

/// Returns how many bytes all packs of an image have when they are sealed.
fn sealed_size(layout: &Layout) -> u64 {
    let sizes = layout
        .packs
        .iter()
        .map(|pack| sealed_bytes(pack.file_bytes));
    sizes.fold(0, u64::saturating_add)
}

/// Returns a part of a sealed image, opened.
fn part(
    repo: &Repository,
    sealed: &Hash,
    key: &RestKey,
    region: &str,
    bytes_max: usize,
) -> Result<Vec<u8>, NodeError> {
    let bytes = repo.read_region(sealed, region, (bytes_max + REST_BYTES) as u64)?;
    key.open(&bytes).map_err(no_part)
}

/// What was sealed before of the same machine.
struct Before {
    sealed: Hash,
    /// What that is.
    image: Hash,
    /// Its packs, which have all of that.
    layout: Layout,
}

impl Before {
    /// Returns what an image is that was sealed before. If that is of no use any more, for whatever reason, all is sealed anew.
    fn find(repo: &Repository, sealed: Hash, key: &RestKey) -> Option<Before> {
        let manifest = part(repo, &sealed, key, MANIFEST, MANIFEST_BYTES_MAX).ok()?;
        let layout = part(repo, &sealed, key, LAYOUT, LAYOUT_BYTES_MAX).ok()?;
        let image = Hash::of(&manifest);
        repo.manifest(&image).ok()?;
        Some(Before {
            sealed,
            image,
            layout: Layout::decode(&layout).ok()?,
        })
    }
}

/// Returns hashes, each once and without that of zeros, as those of items of a kind.
fn unique(kind: Kind, hashes: impl Iterator<Item = Hash>) -> Vec<(Kind, Hash)> {
    let mut seen = HashSet::new();
    let mut items = Vec::new();
    for hash in hashes {
        if !hash.is_zero() && seen.insert(hash) {
            items.push((kind, hash));
        }
    }
    items
}

/// Reads items of an image, all of which are here.
fn read(
    repo: &Repository,
    image: &Hash,
    items: &[(Kind, Hash)],
    sink: &mut dyn FnMut(Kind, Hash, &[u8]),
) -> Result<(), NodeError> {
    let missing = repo.read_items(image, items, sink)?;
    match missing.len() {
        0 => Ok(()),
        count => Err(failed(
            format!("image {} lacks {count} of its parts here", image.short()),
            "floe image verify says more",
        )),
    }
}

/// Returns what an image is made of.
fn items_of(repo: &Repository, image: &Hash) -> Result<Vec<(Kind, Hash)>, NodeError> {
    let manifest = repo.manifest(image)?;
    let regions = &manifest.regions;
    let tables = regions
        .iter()
        .flat_map(|region| region.segments.iter().copied());
    let mut items = unique(Kind::Segment, tables);
    let mut chunks: Vec<Hash> = regions.iter().flat_map(Region::patched_chunks).collect();
    for tables in items.chunks(ITEMS_AT_ONCE) {
        read(repo, image, tables, &mut |_, _, bytes| {
            // it has its hash, and so it is one
            if let Ok(table) = Segment::decode(bytes) {
                chunks.extend(table.hashes().iter().filter(|hash| !hash.is_zero()));
            }
        })?;
    }
    items.extend(unique(Kind::Chunk, chunks.into_iter()));
    Ok(items)
}

/// Stores an image sealed, as a hidden one, whose first packs are those of what was sealed `before`. `goes_on` is told how far that is.
fn seal(
    repo: &Repository,
    image: &Hash,
    key: &RestKey,
    before: Option<Hash>,
    goes_on: &dyn Fn(u64, u64) -> bool,
) -> Result<Hash, NodeError> {
    let items = items_of(repo, image)?;
    let raw_bytes: u64 = items.iter().map(|(kind, _)| kind.raw_size() as u64).sum();
    let before = before.and_then(|sealed| Before::find(repo, sealed, key));
    // all is packed anew once most of what is sealed is of no use any more
    let before = before.filter(|before| sealed_size(&before.layout) / 2 <= raw_bytes);
    let mut known = HashSet::new();
    let mut layout = Layout::default();
    if let Some(before) = &before {
        known.extend(items_of(repo, &before.image)?);
        layout = before.layout.clone();
    }
    let new: Vec<(Kind, Hash)> = items
        .into_iter()
        .filter(|item| !known.contains(item))
        .collect();
    let from = sealed_size(&layout);
    // a file without a name, of what is sealed
    let file = files::beside(&repo.tmp_dir().join(PACKS), true)?.into_file();
    seal_items(repo, image, &new, key, &mut layout, &file, goes_on)?;

    let options = IngestOptions {
        level: 1, // it does not become smaller
        parent: before.as_ref().map(|before| before.sealed),
        ..Default::default()
    };
    let mut ingest = Ingest::new(repo, options)?;
    ingest.region_bytes(MANIFEST, &key.seal(&repo.manifest_bytes(image)?))?;
    ingest.region_bytes(LAYOUT, &key.seal(&layout.encode()))?;
    let (size, chunk) = (sealed_size(&layout), CHUNK_SIZE as u64);
    let pages = (from / chunk..size / chunk).map(|number| -> io::Result<(u64, Vec<u8>)> {
        let mut page = vec![0; CHUNK_SIZE];
        file.read_exact_at(&mut page, number * chunk - from)?;
        Ok((number, page))
    });
    let base = before.as_ref().map(|_| PACKS);
    ingest.region_from_pages(PACKS, size, base, pages)?;
    let mut config = MachineConfig::default();
    config.labels.insert(PARK_LABEL.into(), "1".into());
    config.labels.insert(SEALED_LABEL.into(), "1".into());
    Ok(finish(ingest, config)?.0)
}

/// Packs items of an image, and writes the packs to a file, sealed. Adds them to `layout`, unless they are there.
fn seal_items(
    repo: &Repository,
    image: &Hash,
    items: &[(Kind, Hash)],
    key: &RestKey,
    layout: &mut Layout,
    to: &File,
    goes_on: &dyn Fn(u64, u64) -> bool,
) -> Result<(), NodeError> {
    let mut writer: Option<PackWriter<Vec<u8>>> = None;
    for (number, part) in items.chunks(ITEMS_AT_ONCE).enumerate() {
        let done = (number * ITEMS_AT_ONCE * CHUNK_SIZE) as u64;
        if !goes_on(done, (items.len() * CHUNK_SIZE) as u64) {
            return Err(NodeError::Cancelled);
        }
        let mut raw: HashMap<Hash, Vec<u8>> = HashMap::new();
        read(repo, image, part, &mut |_, hash, bytes| {
            raw.insert(hash, bytes.to_vec());
        })?;
        for run in part.chunk_by(|one, other| one.0 == other.0) {
            let kind = run[0].0;
            for frame in run.chunks(kind.frame_items_max()) {
                let hashes: Vec<Hash> = frame.iter().map(|(_, hash)| *hash).collect();
                let bytes: Vec<&[u8]> = hashes.iter().map(|hash| &raw[hash][..]).collect();
                let packed = compress_frame(kind, &bytes, LEVEL);
                let open = match &mut writer {
                    Some(open) => open,
                    None => writer.insert(PackWriter::new(Vec::new()).map_err(unsealed())?),
                };
                open.push_frame(kind, &hashes, &packed)
                    .map_err(unsealed())?;
                if open.bytes_written() >= PACK_BYTES {
                    seal_pack(writer.take(), key, layout, to).map_err(unsealed())?;
                }
            }
        }
    }
    seal_pack(writer, key, layout, to).map_err(unsealed())
}

/// Writes a pack to a file, sealed, if there is one.
fn seal_pack(
    writer: Option<PackWriter<Vec<u8>>>,
    key: &RestKey,
    layout: &mut Layout,
    mut to: &File,
) -> io::Result<()> {
    let Some(writer) = writer else {
        return Ok(());
    };
    let (bytes, pack) = writer.finish()?;
    // what a machine goes back to was sealed once
    if layout.packs.contains(&pack) {
        return Ok(());
    }
    for piece in bytes.chunks(PIECE as usize) {
        let mut sealed = key.seal(piece);
        sealed.resize(sealed.len().next_multiple_of(CHUNK_SIZE), 0);
        to.write_all(&sealed)?;
    }
    layout.packs.push(pack);
    Ok(())
}

fn unsealed() -> impl FnOnce(io::Error) -> NodeError {
    at("cannot write what is sealed")
}

/// Opens a sealed image, and stores what it is as the hidden image that it was. `goes_on` is told how many bytes of how many are done.
fn open(
    repo: &Repository,
    sealed: &Hash,
    key: &RestKey,
    goes_on: &dyn Fn(u64, u64) -> bool,
) -> Result<Hash, NodeError> {
    let manifest = part(repo, sealed, key, MANIFEST, MANIFEST_BYTES_MAX)?;
    let manifest = Manifest::decode(&manifest).map_err(no_part)?;
    let layout = part(repo, sealed, key, LAYOUT, LAYOUT_BYTES_MAX)?;
    let layout = Layout::decode(&layout).map_err(no_part)?;
    // what is to go again by itself, and is in no list
    if !manifest.config.labels.contains_key(PARK_LABEL) {
        return Err(no_part("it is no machine's"));
    }
    let id = manifest.id();
    if repo.contains(&id)? {
        return Ok(id);
    }
    // a file without a name, of what is sealed
    let packs = files::beside(&repo.tmp_dir().join(PACKS), true)?.into_file();
    repo.export(sealed, PACKS, &packs, &mut |done, total| {
        goes_on(done, total)
    })?;
    let (mut from, size) = (0u64, sealed_size(&layout));
    for pack in &layout.packs {
        if !goes_on(from, size) {
            return Err(NodeError::Cancelled);
        }
        // one of which it is not known whether it is here is written anew
        if !matches!(repo.pack_path(&pack.id).try_exists(), Ok(true)) {
            let mut opening = Opening {
                key,
                packs: &packs,
                from,
                left: pack.file_bytes,
                opened: Vec::new(),
                taken: 0,
            };
            let adopted = repo.adopt_pack_from(&mut opening, pack.file_bytes)?;
            if adopted != *pack {
                return Err(no_part("one of its packs is another"));
            }
        }
        from = from.saturating_add(sealed_bytes(pack.file_bytes));
    }
    Ok(repo.publish(&manifest, &layout)?)
}

/// A sealed pack, opened as it is read.
struct Opening<'a> {
    key: &'a RestKey,
    packs: &'a File,
    /// Where its next piece begins.
    from: u64,
    /// How many bytes of the pack are left.
    left: u64,
    /// The piece that was opened last, and how many bytes of it were taken.
    opened: Vec<u8>,
    taken: usize,
}

impl Read for Opening<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.opened.len() && self.left > 0 {
            let bytes = self.left.min(PIECE);
            let mut sealed = vec![0; bytes as usize + REST_BYTES];
            self.packs.read_exact_at(&mut sealed, self.from)?;
            self.opened = self.key.open(&sealed).map_err(io::Error::other)?;
            self.taken = 0;
            self.from = self.from.saturating_add(SEALED_PIECE);
            self.left -= bytes;
        }
        let rest = &self.opened[self.taken..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.taken += count;
        Ok(count)
    }
}

fn no_part(why: impl std::fmt::Display) -> NodeError {
    failed(
        format!("what was told of the machine does not open: {why}"),
        "floe sync tells it anew",
    )
}

#[cfg(test)]
mod tests;
