//! A small image in a real repository, behind a source that can be switched off, on a real mount.
#![allow(dead_code)]

pub mod frail;

use floe_image::{Hash, Kind, Layout, MachineConfig, Manifest};
use floe_mount::{
    DiskSpec, ImageHandle, ImageSpec, MachineHandle, MachineSpec, Mount, MountOptions,
};
use floe_source::{Directory, FetchOptions, Fetcher, Request, Sink, Source, SourceError};
use floe_store::{Cache, Ingest, IngestOptions, Repository};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub const RAM_BYTES: usize = 24 << 20;
pub const DISK_BYTES: usize = 8 << 20;

/// Deterministic bytes with zero pages among them.
pub fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut out = vec![0u8; len];
    for (i, page) in out.chunks_mut(4096).enumerate() {
        if i % 5 == 3 || i % 64 > 56 {
            continue;
        }
        for word in page.chunks_mut(8) {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            word.copy_from_slice(&(state >> 11 & 0xFFFF_FFFF).to_le_bytes()[..word.len()]);
        }
    }
    out
}

/// A directory source that can be switched off and slowed down, and that can deny everything.
pub struct Switch {
    inner: Directory,
    pub down: AtomicBool,
    pub denies: AtomicBool,
    /// Demands that were denied.
    pub denied: AtomicU64,
    pub delay_us: AtomicU64,
}

impl Source for Switch {
    fn describe(&self) -> String {
        "a source with a switch".into()
    }
    fn resolve(&self, name: &str) -> Result<Hash, SourceError> {
        self.inner.resolve(name)
    }
    fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError> {
        self.inner.manifest(id)
    }
    fn layout(&self, id: &Hash) -> Result<Option<Layout>, SourceError> {
        self.inner.layout(id)
    }
    fn read(
        &self,
        image: &Hash,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        std::thread::sleep(Duration::from_micros(self.delay_us.load(Ordering::Relaxed)));
        if self.down.load(Ordering::Relaxed) {
            let (at, what, reason) = (self.describe(), "a chunk".into(), "switched off".into());
            return Err(SourceError::Unreachable { at, what, reason });
        }
        if self.denies.load(Ordering::Relaxed) {
            let demands = u64::from(request.is_demand());
            self.denied.fetch_add(demands, Ordering::Relaxed);
            let (at, what, fix) = (
                self.describe(),
                "a chunk".into(),
                SourceError::NO_TOKEN.into(),
            );
            return Err(SourceError::Denied { at, what, fix });
        }
        self.inner.read(image, wants, request, sink)
    }
}

/// The directories of a test, and the content of its image.
pub struct Place {
    pub root: PathBuf,
    pub id: Hash,
    pub ram: Vec<u8>,
    pub disk: Vec<u8>,
}

impl Place {
    /// Makes the image in `root`.
    pub fn make(root: &Path) -> Self {
        let repository = Repository::create(&root.join("repo")).unwrap();
        let (ram, disk) = (content(1, RAM_BYTES), content(2, DISK_BYTES));
        let mut ingest = Ingest::new(&repository, IngestOptions::default()).unwrap();
        ingest.region_bytes("ram", &ram).unwrap();
        ingest.region_bytes("disk0", &disk).unwrap();
        let id = ingest.finish(MachineConfig::default()).unwrap();
        std::fs::create_dir(root.join("mnt")).unwrap();
        Self {
            root: root.to_owned(),
            id,
            ram,
            disk,
        }
    }

    /// Returns the place with an image that another process made.
    pub fn found(root: &Path, id: Hash) -> Self {
        Self {
            root: root.to_owned(),
            id,
            ram: content(1, RAM_BYTES),
            disk: content(2, DISK_BYTES),
        }
    }

    pub fn options(&self) -> MountOptions {
        MountOptions::new(self.root.join("run"))
    }

    pub fn start(&self, options: MountOptions) -> Node {
        let mountpoint = self.root.join("mnt");
        // Right after a kill the old process may not have released its lock yet.
        let cache = (0..200).find_map(|_| {
            let cache = Cache::open(&self.root.join("cache"), 1 << 30).ok();
            std::thread::sleep(Duration::from_millis(if cache.is_some() { 0 } else { 20 }));
            cache
        });
        let cache = Arc::new(cache.expect("the cache can be opened"));
        let inner = Directory::open(&self.root.join("repo")).unwrap();
        let source = Arc::new(Switch {
            inner,
            down: AtomicBool::new(false),
            denies: AtomicBool::new(false),
            denied: AtomicU64::new(0),
            delay_us: AtomicU64::new(0),
        });
        let fetch = FetchOptions {
            demand_deadline: Some(Duration::from_millis(100)),
            ..FetchOptions::default()
        };
        let fetcher = Arc::new(Fetcher::new(source.clone(), cache.clone(), fetch));
        let mount = Mount::start(&mountpoint, options).unwrap();
        let mut node = Node {
            mount,
            cache,
            source,
            fetcher,
            image: None,
        };
        node.image = Some(node.add_image(self.id));
        node
    }

    pub fn machine(&self, node: &Node, name: &str) -> MachineHandle {
        self.machine_in(node, name, &self.root.join("machines").join(name))
    }

    pub fn machine_in(&self, node: &Node, name: &str, dir: &Path) -> MachineHandle {
        self.add(node, name, dir, DISK_BYTES as u64)
    }

    /// Adds a machine whose disk was grown to so many bytes.
    pub fn machine_of(&self, node: &Node, name: &str, disk_bytes: u64) -> MachineHandle {
        let dir = self.root.join("machines").join(name);
        self.add(node, name, &dir, disk_bytes)
    }

    fn add(&self, node: &Node, name: &str, dir: &Path, disk_bytes: u64) -> MachineHandle {
        let image = node.image.clone().unwrap();
        let disks = vec![DiskSpec::of_region("disk0", disk_bytes)];
        node.mount
            .add_machine(MachineSpec {
                name: name.into(),
                uid: 0,
                gid: 0,
                image,
                dir: dir.to_owned(),
                disks,
                base: None,
            })
            .unwrap()
    }
}

pub struct Node {
    pub mount: Mount,
    pub cache: Arc<Cache>,
    pub source: Arc<Switch>,
    pub fetcher: Arc<Fetcher>,
    pub image: Option<ImageHandle>,
}

impl Node {
    pub fn add_image(&self, id: Hash) -> ImageHandle {
        let manifest = self.source.manifest(&id).unwrap();
        let (fetcher, cache) = (self.fetcher.clone(), self.cache.clone());
        self.mount
            .add_image(ImageSpec {
                id,
                manifest,
                fetcher,
                cache,
            })
            .unwrap()
    }
}

/// A private mapping of a file, as QEMU makes one of its memory.
pub fn map(path: &Path) -> memmap2::Mmap {
    let file = std::fs::File::open(path).unwrap();
    // SAFETY: nobody changes the file behind the mapping: the mount refuses writes to an image, which is what is tested.
    unsafe {
        memmap2::MmapOptions::new()
            .map_copy_read_only(&file)
            .unwrap()
    }
}

/// Small deterministic random numbers.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}
