//! A mount with everything local, for the experiments without a network.
use crate::workload;
use anyhow::Context as _;
use floe_image::{CHUNK_SIZE, Hash, MachineConfig, Manifest};
use floe_mount::{ImageHandle, ImageSpec, IoScheduling, Mount, MountOptions};
use floe_source::{Directory, FetchOptions, Fetcher};
use floe_store::{Cache, Ingest, IngestOptions, Repository};
use std::cell::Cell;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An image whose RAM is noise, completely in the cache, and a mount that shows it.
pub struct LocalRam {
    /// The mount.
    pub mount: Mount,
    /// The cache that contains every chunk.
    pub cache: Arc<Cache>,
    /// The RAM's chunks in order.
    pub hashes: Arc<Vec<Hash>>,
    /// The RAM as a plain file in memory.
    pub tmpfs: tempfile::NamedTempFile,
    fetcher: Arc<Fetcher>,
    manifest: Manifest,
    made: Cell<u64>,
}

/// A mount in `dir`, and its fetcher and cache over the repository there.
pub struct LocalMount {
    /// The mount.
    pub mount: Mount,
    /// Its cache.
    pub cache: Arc<Cache>,
    /// Its fetcher, which reads from the repository.
    pub fetcher: Arc<Fetcher>,
    /// The repository.
    pub repository: Repository,
}

impl LocalMount {
    /// Mounts at `dir/mnt`, with `dir/repo` as the source.
    pub fn new(dir: &Path, cache_bytes: u64) -> anyhow::Result<LocalMount> {
        LocalMount::scheduled(dir, cache_bytes, IoScheduling::default())
    }

    /// The same with another order of its disk requests.
    pub fn scheduled(dir: &Path, cache_bytes: u64, io: IoScheduling) -> anyhow::Result<LocalMount> {
        let repository = Repository::create(&dir.join("repo"))?;
        let cache = Arc::new(Cache::open(&dir.join("cache"), cache_bytes)?);
        let source = Arc::new(Directory::new(repository.clone()));
        let fetcher = Arc::new(Fetcher::new(source, cache.clone(), FetchOptions::default()));
        let mountpoint = dir.join("mnt");
        std::fs::create_dir_all(&mountpoint)?;
        let options = MountOptions {
            io,
            ..MountOptions::new(dir.join("run"))
        };
        let mount =
            Mount::start(&mountpoint, options).context("the mount needs root and /dev/fuse")?;
        Ok(LocalMount {
            mount,
            cache,
            fetcher,
            repository,
        })
    }

    /// Loads a whole image into the cache and shows it on the mount.
    pub fn show(&self, id: &Hash) -> anyhow::Result<ImageHandle> {
        let manifest = self.repository.manifest(id)?;
        let image = self.mount.add_image(ImageSpec {
            id: *id,
            manifest,
            fetcher: self.fetcher.clone(),
            cache: self.cache.clone(),
        })?;
        Ok(image)
    }
}

impl LocalRam {
    /// Makes the image: `bytes` of RAM full of noise, in a repository below `dir`.
    pub fn image(dir: &Path, bytes: usize) -> anyhow::Result<(Repository, Hash)> {
        let repository = Repository::create(&dir.join("repo"))?;
        let mut ingest = Ingest::new(&repository, IngestOptions::default())?;
        ingest.region_bytes("ram", &workload::noise(bytes, 1))?;
        let id = ingest.finish(MachineConfig::default())?;
        Ok((repository, id))
    }

    /// Makes a mount and an image with `bytes` of RAM, all of it in the cache.
    pub fn new(dir: &Path, bytes: usize) -> anyhow::Result<LocalRam> {
        let mut tmpfs = tempfile::NamedTempFile::new_in("/dev/shm")?;
        let (repository, id) = LocalRam::image(dir, bytes)?;
        let LocalMount {
            mount,
            cache,
            fetcher,
            ..
        } = LocalMount::new(dir, 4 * bytes as u64)?;
        let manifest = repository.manifest(&id)?;
        let mut hashes = Vec::new();
        for page in workload::noise(bytes, 1).chunks(CHUNK_SIZE) {
            let hash = Hash::of(page);
            cache.put(&hash, page, None)?;
            hashes.push(hash);
            tmpfs.write_all(page)?;
        }
        let scope = repository.scope(&id)?;
        for segment in &manifest.region("ram").context("it was just made")?.segments {
            cache.put_segment(segment, &scope.segment(segment)?.encode(), None)?;
        }
        Ok(LocalRam {
            mount,
            cache,
            hashes: Arc::new(hashes),
            tmpfs,
            fetcher,
            manifest,
            made: Cell::new(0),
        })
    }

    /// Shows the same RAM under another name, which is a new inode without cached pages.
    pub fn fresh_image(&self) -> anyhow::Result<ImageHandle> {
        self.made.set(self.made.get() + 1);
        let manifest = Manifest {
            created_unix_s: self.made.get(),
            ..self.manifest.clone()
        };
        let spec = ImageSpec {
            id: manifest.id(),
            manifest,
            fetcher: self.fetcher.clone(),
            cache: self.cache.clone(),
        };
        Ok(self.mount.add_image(spec)?)
    }
}

/// Returns the path of `command`, or an error that names the package that has it.
pub fn need(command: &str, package: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|dir| dir.join(command))
        .find(|file| file.is_file())
        .with_context(|| format!("{command} is missing; install the Debian package {package}"))
}
