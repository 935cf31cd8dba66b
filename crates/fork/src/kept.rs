//! What is kept of a fork's layer for the next node, in case this one is killed.
//!
//! ```text
//! with the supervisor, as `layer-NONCE`      one memory file: pages, chunks kept by themselves, index, trailer
//! forks/layer-NONCE/DISK-LAYER               second names of the files that frozen disks' written chunks are in
//! ```
//! The memory file is handed to the supervisor when it is complete, so there is never half of one. It is lost when the host
//! goes down, because nothing in it waits for a disk. The trailer says where the index begins. The index is a line of JSON
//! ([`Head`]) followed by what that counts: the manifest, the device state, tables (hash, then the table), chunks (hash,
//! where: u32, what: u64; little-endian).

use super::layer::{Layer, Names, PREFIX, Parent, Place, Whereabouts};
use floe_api::paths::Home;
use floe_ground::{
    aside::{self, has_data},
    error::{NodeError, at},
};
use floe_image::{CHUNK_SIZE, Hash, Manifest, SEGMENT_BYTES, Segment};
use floe_inventory::inventory::record::Origin;
use floe_machine::{MemoryFile, Pages};
use floe_mount::Keeper;
use floe_source::Fetcher;
use floe_threads::Cancel;
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Version of the index.
const VERSION: u32 = 1;
/// The first bytes of a memory file's trailer.
const MAGIC: &[u8; 8] = b"FLOELAYR";
/// Size of the trailer: magic, offset of the index, length of its head.
const TRAILER_BYTES: usize = 24;
/// Size of a chunk's entry in the index.
const CHUNK_LINE: usize = 32 + 4 + 8;
/// Size of a table's entry in the index.
const TABLE_LINE: usize = 32 + SEGMENT_BYTES;
/// Stands for the memory file where a chunk's entry has the number of a file.
const IN_MEMORY: u32 = u32::MAX;

/// A layer whose memory file is not finished.
pub(super) struct Unfinished {
    pub id: Hash,
    pub manifest: Manifest,
    pub ram_chunks: u64,
    pub parent: Parent,
    pub names: Names,
    pub device: Vec<u8>,
    pub tables: HashMap<Hash, Arc<Segment>>,
    pub chunks: HashMap<Hash, Whereabouts>,
    pub files: Vec<File>,
    pub bases: Vec<(Hash, Origin, Arc<Fetcher>)>,
    /// The memory that the machine started with and the blocks that were added later, all copied into one file.
    pub memory: Vec<Pages>,
    pub own: Vec<Box<[u8; CHUNK_SIZE]>>,
}

/// The JSON line at the beginning of an index.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    version: u32,
    id: Hash,
    ram_chunks: u64,
    parent: Parent,
    files: Vec<String>,
    bases: Vec<(Hash, Origin)>,
    manifest_bytes: u64,
    device_bytes: u64,
    tables: u64,
    chunks: u64,
}

impl Unfinished {
    /// Writes everything else behind the pages and seals the file.
    pub fn finish(self) -> Result<Layer, NodeError> {
        let failed = "cannot keep a fork's memory";
        let file = match self.memory.first().and_then(Pages::file) {
            Some(file) => file.try_clone(),
            None => Err(io::Error::other("it was not copied into a file")),
        };
        let file = file.map_err(at(failed))?;
        let end = file.metadata().map_err(at(failed))?.len();
        let own = end.next_multiple_of(CHUNK_SIZE as u64);
        let index = own + (self.own.len() * CHUNK_SIZE) as u64;
        let place = |place: Whereabouts| match place {
            Whereabouts::Known(place) => place,
            Whereabouts::Own(at) => Place::Memory(own + u64::from(at) * CHUNK_SIZE as u64),
        };
        let chunks: HashMap<Hash, Place> = self
            .chunks
            .into_iter()
            .map(|(hash, at)| (hash, place(at)))
            .collect();
        let manifest = self.manifest.encode();
        let head = Head {
            version: VERSION,
            id: self.id,
            ram_chunks: self.ram_chunks,
            parent: self.parent,
            files: self.names.files.clone(),
            bases: self
                .bases
                .iter()
                .map(|(id, origin, _)| (*id, origin.clone()))
                .collect(),
            manifest_bytes: manifest.len() as u64,
            device_bytes: self.device.len() as u64,
            tables: self.tables.len() as u64,
            chunks: chunks.len() as u64,
        };
        let bytes = encode(&head, &manifest, &self.device, &self.tables, &chunks, index);
        let write = || -> io::Result<()> {
            for (number, chunk) in self.own.iter().enumerate() {
                file.write_all_at(&chunk[..], own + (number * CHUNK_SIZE) as u64)?;
            }
            file.write_all_at(&bytes, index)
        };
        write().map_err(at(failed))?;
        drop(self.memory); // unmaps it, so that nobody can write to it any more
        Ok(Layer {
            id: self.id,
            manifest: self.manifest,
            ram_chunks: self.ram_chunks,
            parent: head.parent,
            names: self.names,
            device: self.device,
            tables: self.tables,
            chunks,
            memory: MemoryFile::seal(file).map_err(at(failed))?,
            files: self.files,
            bases: self.bases,
            hurry: Cancel::default(),
        })
    }
}

fn encode(
    head: &Head,
    manifest: &[u8],
    device: &[u8],
    tables: &HashMap<Hash, Arc<Segment>>,
    chunks: &HashMap<Hash, Place>,
    offset: u64,
) -> Vec<u8> {
    let mut out = serde_json::to_vec(head).expect("a head has only strings, numbers and lists");
    let head_bytes = out.len() as u64;
    out.extend_from_slice(manifest);
    out.extend_from_slice(device);
    for (hash, table) in tables {
        out.extend_from_slice(hash.as_bytes());
        out.extend_from_slice(&table.encode());
    }
    for (hash, place) in chunks {
        let (whose, at) = match place {
            Place::Memory(offset) => (IN_MEMORY, *offset),
            Place::File(file, chunk) => (u32::from(*file), *chunk),
        };
        out.extend_from_slice(hash.as_bytes());
        out.extend_from_slice(&whose.to_le_bytes());
        out.extend_from_slice(&at.to_le_bytes());
    }
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&offset.to_le_bytes());
    out.extend_from_slice(&head_bytes.to_le_bytes());
    out
}

/// The decoded content of an index.
struct Index {
    head: Head,
    manifest: Manifest,
    device: Vec<u8>,
    tables: HashMap<Hash, Arc<Segment>>,
    chunks: HashMap<Hash, Place>,
}

/// Takes `count` bytes off the front.
fn take<'a>(bytes: &mut &'a [u8], count: u64) -> Result<&'a [u8], String> {
    let count = usize::try_from(count).map_err(|e| e.to_string())?;
    let (taken, rest) = bytes
        .split_at_checked(count)
        .ok_or_else(|| format!("{count} more bytes are needed, {} are there", bytes.len()))?;
    *bytes = rest;
    Ok(taken)
}

fn number(bytes: &[u8]) -> u64 {
    let all = bytes.iter().rev();
    all.fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn hash(bytes: &[u8]) -> Result<Hash, String> {
    let bytes = bytes.first_chunk::<32>().ok_or("a hash is cut off")?;
    Ok(Hash(*bytes))
}

impl Index {
    /// Decodes the end of a memory file, or returns why that is impossible.
    fn decode(file: &[u8]) -> Result<Index, String> {
        let at = file.len().checked_sub(TRAILER_BYTES);
        let at = at.ok_or("it is too short")?;
        let (content, trailer) = file.split_at(at);
        if &trailer[..8] != MAGIC {
            return Err("it is no fork's memory".into());
        }
        let offset = usize::try_from(number(&trailer[8..16])).map_err(|e| e.to_string())?;
        let mut rest = content.get(offset..).ok_or("its index is behind its end")?;
        let head = take(&mut rest, number(&trailer[16..24]))?;
        let head: Head = serde_json::from_slice(head).map_err(|e| e.to_string())?;
        if head.version != VERSION {
            return Err(format!(
                "it has version {}, this floe knows version {VERSION}",
                head.version
            ));
        }
        let manifest = take(&mut rest, head.manifest_bytes)?;
        if Hash::of(manifest) != head.id {
            return Err("its manifest is not what its name says".into());
        }
        let manifest = Manifest::decode(manifest).map_err(|e| e.to_string())?;
        let device = take(&mut rest, head.device_bytes)?.to_vec();
        let lines =
            |count: u64, line: usize| count.checked_mul(line as u64).ok_or("too many lines");
        let mut tables = HashMap::new();
        for line in take(&mut rest, lines(head.tables, TABLE_LINE)?)?.chunks_exact(TABLE_LINE) {
            let table = Segment::decode(&line[32..]).map_err(|e| e.to_string())?;
            tables.insert(hash(line)?, Arc::new(table));
        }
        let mut chunks = HashMap::new();
        for line in take(&mut rest, lines(head.chunks, CHUNK_LINE)?)?.chunks_exact(CHUNK_LINE) {
            let at = number(&line[36..]);
            let place = match number(&line[32..36]) as u32 {
                IN_MEMORY => Place::Memory(at),
                file if (file as usize) < head.files.len() => Place::File(file as u16, at),
                file => return Err(format!("there is no file {file}")),
            };
            chunks.insert(hash(line)?, place);
        }
        Ok(Index {
            head,
            manifest,
            device,
            tables,
            chunks,
        })
    }
}

/// Keeps layers with the supervisor and in a directory.
pub struct Keeping {
    keeper: Keeper,
    /// The state directory.
    root: PathBuf,
    dir: PathBuf,
}

/// What an earlier node left.
#[derive(Default)]
pub struct Left {
    /// The layers that were read.
    pub layers: Vec<Layer>,
    /// Whether there may be others, which could not be read.
    pub unread: bool,
}

impl Keeping {
    /// Returns a keeping with this supervisor, and with files in this state directory.
    pub fn new(keeper: Keeper, home: &Home) -> Keeping {
        Keeping {
            keeper,
            root: home.root().to_owned(),
            dir: home.forks(),
        }
    }

    /// Returns the directory of the layers' files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Hands a layer's memory to the supervisor, so that it outlives this process.
    pub fn hold(&self, layer: &Layer) -> Result<(), NodeError> {
        Ok(self.keeper.hold(&layer.names.held, layer.memory.file())?)
    }

    /// Removes what is kept of a layer that is not needed any more.
    pub fn release(&self, layer: &Layer) {
        self.keeper.release(&layer.names.held);
        layer.names.remove();
    }

    /// Returns the layers that an earlier node left. Those that can't be read stay with the supervisor, for the next node.
    pub fn find_again(&self, fetcher: impl Fn(&Origin) -> Result<Arc<Fetcher>, NodeError>) -> Left {
        let mut left = Left::default();
        let held = match self.keeper.list() {
            Ok(held) => held,
            Err(error) => {
                tracing::error!(%error, "forks that are not stored yet are not found again");
                left.unread = true;
                return left;
            }
        };
        let held = held.into_iter().filter(|name| name.starts_with(PREFIX));
        let held: Vec<String> = held.collect();
        for name in &held {
            match self.find(name, &fetcher) {
                Ok(layer) => left.layers.push(layer),
                Err(why) => {
                    tracing::error!(
                        name,
                        why,
                        "a fork that is not stored yet can't be read; the next node tries again"
                    );
                    left.unread = true;
                }
            }
        }
        clear(&self.root, &self.dir, &held);
        left
    }

    fn find(
        &self,
        name: &str,
        fetcher: impl Fn(&Origin) -> Result<Arc<Fetcher>, NodeError>,
    ) -> Result<Layer, String> {
        let taken = self.keeper.take(name).map_err(|e| e.to_string())?;
        let file = taken.ok_or("the supervisor has let go of it")?;
        let memory = MemoryFile::seal(file.into()).map_err(|e| e.to_string())?;
        let index = Index::decode(memory.bytes())?;
        let dir = self.dir.join(name);
        let open = |name: &String| match name.contains('/') {
            true => Err(format!("{name:?} is no file's name")),
            false => File::open(dir.join(name)).map_err(|e| format!("{name}: {e}")),
        };
        let files = index
            .head
            .files
            .iter()
            .map(open)
            .collect::<Result<_, _>>()?;
        let base = |(id, origin): (Hash, Origin)| {
            let fetcher = fetcher(&origin).map_err(|e| e.to_string())?;
            Ok((id, origin, fetcher))
        };
        let bases = index.head.bases.into_iter().map(base);
        Ok(Layer {
            id: index.head.id,
            manifest: index.manifest,
            ram_chunks: index.head.ram_chunks,
            parent: index.head.parent,
            device: index.device,
            tables: index.tables,
            chunks: index.chunks,
            memory,
            files,
            bases: bases.collect::<Result<_, String>>()?,
            names: Names {
                held: name.to_owned(),
                dir,
                files: index.head.files,
            },
            hurry: Cancel::default(),
        })
    }
}

/// Clears the directory of the files of layers that nobody holds any more. What a guest wrote is still in the parent's disks as long
/// as its file has another name there; if it has none, it is set aside.
fn clear(root: &Path, dir: &Path, held: &[String]) {
    let found = aside::list(dir).unwrap_or_else(|error| {
        tracing::error!(%error, "files of forks stay there");
        Vec::new()
    });
    for entry in found {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(PREFIX) && !held.iter().any(|held| *held == name) {
            let is_only_name = |_: &Path, meta: &fs::Metadata| meta.nlink() == 1 && has_data(meta);
            aside::remove_or_set_aside(root, &entry.path(), is_only_name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_mount::supervisor;

    #[test]
    fn files_of_layers_that_nobody_holds_are_removed_only_where_they_have_another_name() {
        let root = tempfile::tempdir().unwrap();
        let (root, dir) = (root.path(), root.path().join("forks"));
        let file = |layer: &str| dir.join(layer).join("disk0-1");
        for layer in ["layer-held", "layer-linked", "layer-only"] {
            fs::create_dir_all(dir.join(layer)).unwrap();
            fs::write(file(layer), b"a guest wrote this").unwrap();
        }
        fs::hard_link(file("layer-linked"), root.join("layer-1.data")).unwrap();
        // in place of directories: a file, a link to itself
        fs::write(dir.join("layer-file"), b"bytes").unwrap();
        let link = dir.join("layer-loop");
        std::os::unix::fs::symlink(&link, &link).unwrap();
        fs::write(dir.join("fork.json"), b"{}").unwrap();
        clear(root, &dir, &["layer-held".to_owned()]);
        let names = |dir: &Path| {
            let all = aside::list(dir).unwrap().into_iter();
            let mut names: Vec<String> = all
                .map(|entry| entry.file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        assert_eq!(names(&dir), ["fork.json", "layer-held"]);
        assert!(root.join("layer-1.data").exists());
        let aside = root.join("set-aside");
        let names = names(&aside);
        let moved = [
            "forks.layer-file-",
            "forks.layer-loop-",
            "forks.layer-only-",
        ];
        assert_eq!(names.len(), moved.len(), "{names:?}");
        assert!(
            names
                .iter()
                .zip(moved)
                .all(|(name, begin)| name.starts_with(begin))
        );
        let only = fs::read(aside.join(&names[2]).join("disk0-1")).unwrap();
        assert_eq!(only, b"a guest wrote this");
    }

    #[test]
    fn a_supervisor_that_cannot_be_asked_costs_no_layer() {
        let root = tempfile::tempdir().unwrap();
        let home = Home::at(root.path());
        let file = home.forks().join("layer-1").join("disk0-1");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, b"a guest wrote this").unwrap();
        let socket = root.path().join("supervisor.sock");
        let (listens, listening) = std::sync::mpsc::channel();
        let at = socket.clone();
        let ended = std::thread::spawn(move || supervisor::run(&at, || listens.send(()).unwrap()));
        listening.recv().unwrap();
        let keeper = Keeper::start(&socket, |_| Ok(())).unwrap();
        let client = supervisor::Client::connect(&socket).unwrap();
        client.quit().unwrap();
        ended.join().unwrap().unwrap();
        let keeping = Keeping::new(keeper, &home);
        let left = keeping.find_again(|_| unreachable!("no layer is read"));
        assert!(left.unread && left.layers.is_empty());
        assert_eq!(fs::read(&file).unwrap(), b"a guest wrote this");
    }

    #[test]
    fn a_layer_that_cannot_be_read_stays_with_the_supervisor_and_its_files_stay_there() {
        let root = tempfile::tempdir().unwrap();
        let home = Home::at(root.path());
        let (damaged, unlinked) = ("layer-1", "layer-2");
        let file = home.forks().join(damaged).join("disk0-1");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, b"a guest wrote this").unwrap();
        // in place of the directory with its file
        fs::write(home.forks().join(unlinked), b"no directory").unwrap();
        let socket = root.path().join("supervisor.sock");
        let (listens, listening) = std::sync::mpsc::channel();
        let at = socket.clone();
        let ended = std::thread::spawn(move || supervisor::run(&at, || listens.send(()).unwrap()));
        listening.recv().unwrap();
        let keeper = Keeper::start(&socket, |_| Ok(())).unwrap();
        let memory = |bytes: &[u8]| {
            let name = root.path().join("memory");
            fs::write(&name, bytes).unwrap();
            File::open(name).unwrap()
        };
        keeper.hold(damaged, memory(b"no index")).unwrap();
        keeper.hold(unlinked, memory(&index())).unwrap();
        let keeping = Keeping::new(keeper.clone(), &home);
        let left = keeping.find_again(|_| unreachable!("no layer is read"));
        assert!(left.unread && left.layers.is_empty());
        let mut held = keeper.list().unwrap();
        held.sort();
        assert_eq!(held, [damaged, unlinked]);
        assert_eq!(fs::read(&file).unwrap(), b"a guest wrote this");
        assert!(home.forks().join(unlinked).is_file());
        keeper.end();
        ended.join().unwrap().unwrap();
    }

    fn index() -> Vec<u8> {
        let manifest = Manifest::default();
        let table = Segment::new();
        let tables = HashMap::from([(Hash::of(b"table"), Arc::new(table))]);
        let chunks = HashMap::from([
            (Hash::of(b"page"), Place::Memory(4096)),
            (Hash::of(b"block"), Place::File(0, 7)),
        ]);
        let head = Head {
            version: VERSION,
            id: manifest.id(),
            ram_chunks: 3,
            parent: Parent {
                name: "web".into(),
                created_unix_s: 7,
                last_layers: vec![2],
            },
            files: vec!["disk0-2".into()],
            bases: vec![(Hash::of(b"base"), Origin::default())],
            manifest_bytes: manifest.encode().len() as u64,
            device_bytes: 6,
            tables: 1,
            chunks: 2,
        };
        let mut file = vec![1; 2 * CHUNK_SIZE];
        let offset = file.len() as u64;
        file.extend(encode(
            &head,
            &manifest.encode(),
            b"device",
            &tables,
            &chunks,
            offset,
        ));
        file
    }

    #[test]
    fn an_index_comes_back_as_it_was() {
        let read = Index::decode(&index()).unwrap();
        assert_eq!(read.device, b"device");
        assert_eq!(read.manifest, Manifest::default());
        assert_eq!(read.head.parent.name, "web");
        assert_eq!(read.tables.len(), 1);
        assert_eq!(read.chunks[&Hash::of(b"page")], Place::Memory(4096));
        assert_eq!(read.chunks[&Hash::of(b"block")], Place::File(0, 7));
    }

    #[test]
    fn a_damaged_index_is_refused_wherever_it_is_damaged() {
        let good = index();
        for cut in 0..good.len() {
            assert!(Index::decode(&good[..cut]).is_err(), "cut at {cut}");
        }
        for at in 2 * CHUNK_SIZE..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x80;
            let _ = Index::decode(&bad); // must not panic; what is still readable is later checked by its hashes
        }
    }
}
