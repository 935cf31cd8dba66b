//! [`Mount`]: starting and ending a mount, and adding and removing images and machines.

use crate::backend::{Backend, Stored};
use crate::core::Core;
use crate::device::{self, Device};
use crate::dirs::{entries, live_dir, make_private};
use crate::image::Image;
use crate::inbox::{Message, Stir};
use crate::machine::{self, Machine};
use crate::overlay::{Base, BaseRecord, Disk};
use crate::raw::Raw;
use crate::trace::Trace;
use crate::tree::{Kept, Node, Table, Tree, disk_entry, is_shown};
use crate::{
    DiskSpec, ImageHandle, ImageSpec, Keeper, MachineHandle, MachineSpec, MountError, MountOptions,
    PushReport, Stats,
};
use crate::{abi, crew, owner, push, serve, start};
use floe_image::{Hash, Manifest};
use floe_planner::{Event, Planner, Urgency};
use floe_threads::Task;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Name of the table of inodes among the descriptors that the supervisor holds for a mount.
const TREE: &str = "tree";
/// Longest name of a machine in bytes.
const MACHINE_NAME_MAX: usize = 63;

/// The mount of a node. Dropping it unmounts.
pub struct Mount {
    pub(crate) core: Arc<Core>,
    mountpoint: PathBuf,
    device_number: u64,
    took_over: bool,
    /// The number that the planner will know the next region by.
    pub(crate) next_region: AtomicU32,
    threads: Vec<Task<()>>,
    live_dir: PathBuf,
    open: bool,
}

/// A connection to the kernel, new or taken over.
struct Connection {
    devices: Vec<Device>,
    table: Option<Table>,
    max_write: usize,
}

/// Returns the beginning of the names under which the supervisor holds the descriptors of a mount.
fn held_prefix(mountpoint: &Path) -> String {
    let hash = Hash::of(mountpoint.as_os_str().as_encoded_bytes()).to_string();
    format!("mount-{}-", &hash[..16])
}

/// Returns where the table of a mount's inodes is kept.
fn kept_tree(keeper: &Keeper, mountpoint: &Path) -> Kept {
    Kept {
        keeper: keeper.clone(),
        name: format!("{}{TREE}", held_prefix(mountpoint)),
    }
}

fn take_over(mountpoint: &Path, options: &MountOptions) -> Result<Option<Connection>, MountError> {
    let Some(keeper) = &options.keeper else {
        return Ok(None);
    };
    let prefix = held_prefix(mountpoint);
    let (mut names, mut devices) = (Vec::new(), Vec::new());
    for name in keeper.list()? {
        if name.strip_prefix(&prefix).is_some_and(|rest| rest != TREE) {
            devices.extend(keeper.take(&name)?.map(Device::new));
            names.push(name);
        }
    }
    let alive = devices.first().map_or(Ok(false), Device::alive);
    if !alive.map_err(MountError::io(
        "ask the kernel about the mount on",
        mountpoint,
    ))? {
        drop(devices);
        names.iter().for_each(|name| keeper.release(name));
        return Ok(None);
    }
    let table = Tree::load(&kept_tree(keeper, mountpoint), &options.runtime_dir);
    let table = table.map_err(|error| MountError::Cannot {
        path: mountpoint.to_owned(),
        reason: format!(
            "machines run on it, and it can't be found out which of its files are whose ({error})"
        ),
        fix: "end the `floe supervisor` of this state directory; its machines lose their memory, and start again from their disks"
            .into(),
    })?;
    let max_write = table.max_write as usize;
    Ok(Some(Connection {
        devices,
        table: Some(table),
        max_write,
    }))
}

fn connect(mountpoint: &Path, options: &MountOptions) -> Result<Connection, MountError> {
    if device::unmount_dead(mountpoint)? > 0 {
        tracing::warn!(
            mountpoint = %mountpoint.display(),
            "a mount was dead, because its node and its supervisor ended together; it is replaced"
        );
    }
    let device = device::mount(mountpoint, options.allow_other)?;
    let max_write = start::negotiate(&device, mountpoint)?;
    let clones = (1..options.threads.max(1)).map(|_| device.another());
    let clones: Vec<Device> = clones
        .collect::<Result<_, _>>()
        .map_err(MountError::io("clone the descriptor of", mountpoint))?;
    Ok(Connection {
        devices: std::iter::once(device).chain(clones).collect(),
        table: None,
        max_write,
    })
}

impl Mount {
    /// Mounts on `mountpoint`, or takes over the connection that the supervisor still holds for it. After a takeover, requests
    /// for images and machines that weren't added yet wait: add them all, then call [`Mount::takeover_done`].
    pub fn start(mountpoint: &Path, options: MountOptions) -> Result<Self, MountError> {
        make_private(&options.runtime_dir)?;
        let root = rustix::process::geteuid().is_root();
        let live_dir = live_dir(&options.runtime_dir, Path::new("/dev/shm"), root)?;
        let (connection, took_over) = match take_over(mountpoint, &options)? {
            Some(connection) => (connection, true),
            None => (connect(mountpoint, &options)?, false),
        };
        let keeper = options.keeper.as_ref();
        let tree = Tree::new(
            keeper.map(|keeper| kept_tree(keeper, mountpoint)),
            connection.table,
            connection.max_write as u32,
        )?;
        // after the table: a node that is killed in between leaves no mount of which nobody knows whose files are whose
        if let Some(keeper) = keeper.filter(|_| !took_over) {
            for (i, device) in connection.devices.iter().enumerate() {
                keeper.hold(&format!("{}{i}", held_prefix(mountpoint)), device)?;
            }
        }
        let planner = Planner::new(options.planner);
        let core = Core::new(
            connection.devices,
            tree,
            options,
            connection.max_write,
            took_over,
            serve::handle_raw,
        );
        let core = Arc::new(core);
        let buffers = start::Buffers::new(core.devices.len(), core.max_write)
            .map_err(MountError::io("get memory for the buffers of", mountpoint))?;
        let threads = crew::start(&core, buffers, planner)?;
        if took_over && let Err(error) = device::resend(&core.devices[0]) {
            tracing::warn!(%error, "the kernel can't send requests again; those that were under way are lost");
        }
        let device_number = std::fs::metadata(mountpoint).map_or(0, |m| m.dev());
        let next_region = AtomicU32::new(0);
        Ok(Self {
            core,
            mountpoint: mountpoint.to_owned(),
            device_number,
            took_over,
            next_region,
            threads,
            live_dir,
            open: true,
        })
    }

    /// Returns whether [`Mount::start`] took over a live connection.
    pub fn took_over(&self) -> bool {
        self.took_over
    }

    /// Returns the images and the machines that the kernel knows from before the takeover and that weren't added yet.
    pub fn expected(&self) -> (Vec<Hash>, Vec<String>) {
        let images = self.core.tree.expected("images");
        (
            images.iter().filter_map(|i| i.parse().ok()).collect(),
            self.core.tree.expected("machines"),
        )
    }

    /// Ends a takeover, once everything was added again that can be: what is still missing is removed (requests for it fail with
    /// ESTALE). Only machines that are still `awaited`, and all images as long as there are any, stay expected: requests for them wait
    /// until they are added, or until this is called again and they are awaited no more.
    pub fn takeover_done(&self, awaited: impl Fn(&str) -> bool) {
        let (images, machines) = self.expected();
        let (awaited, gone): (Vec<String>, Vec<String>) =
            machines.into_iter().partition(|name| awaited(name));
        let images = images.iter().filter(|_| awaited.is_empty());
        let images = images.map(|id| format!("images/{id}"));
        let mut names = Vec::new();
        for path in images.chain(gone.iter().map(|name| format!("machines/{name}"))) {
            match self.core.tree.remove(&path) {
                Ok(removed) => names.extend(removed),
                Err(error) => {
                    tracing::warn!(path, %error, "could not forget what was not added again");
                }
            }
        }
        // first: who looks one of these names up has locked its directory until the answer, and the kernel locks that to forget it
        match awaited.is_empty() {
            false => self.replay_early(),
            true => {
                let early = self.core.early.lock().take();
                self.replay(early.unwrap_or_default());
            }
        }
        self.forget(names);
    }

    /// Handles requests again that came before what they are for was added.
    fn replay(&self, early: Vec<Raw>) {
        if early.is_empty() {
            return;
        }
        let mut reply = vec![0; abi::OUT_HEADER_BYTES + start::IO_BYTES_MAX];
        for raw in early {
            serve::handle_early(&self.core, raw, &mut reply);
        }
    }

    fn replay_early(&self) {
        let early = self.core.early.lock().as_mut().map(std::mem::take);
        self.replay(early.unwrap_or_default());
    }

    /// Adds an image, so that its regions are files. Adding one that is there already returns the same image's handle.
    pub fn add_image(&self, spec: ImageSpec) -> Result<ImageHandle, MountError> {
        let pin = spec.cache.pin();
        let backend = Stored {
            image: spec.id,
            cache: spec.cache,
            fetcher: spec.fetcher,
            pin,
        };
        self.add_image_from(spec.id, spec.manifest, Box::new(backend))
    }

    pub(crate) fn add_image_from(
        &self,
        id: Hash,
        manifest: Manifest,
        backend: Box<dyn Backend>,
    ) -> Result<ImageHandle, MountError> {
        let mut images = self.core.images.write();
        if let Some(image) = images.get(&id) {
            return Ok(self.image_handle(image.clone()));
        }
        let first = self
            .next_region
            .fetch_add(manifest.regions.len() as u32, Ordering::Relaxed);
        let image = Arc::new(Image::new(id, &manifest, backend, first));
        let dir = format!("images/{id}");
        let regions = image.regions.iter().enumerate();
        let files = regions.map(|(region, r)| {
            (
                format!("{dir}/{}", r.name),
                Some(Node::Region {
                    image: image.clone(),
                    region,
                }),
            )
        });
        self.core.tree.add(
            std::iter::once((dir.clone(), None)).chain(files).collect(),
            None,
        )?;
        images.insert(id, image.clone());
        drop(images);
        self.core.limit_link(&image);
        for (region, state) in image.regions.iter().enumerate() {
            self.core
                .regions
                .write()
                .insert(state.id, (Arc::downgrade(&image), region));
            let urgency = if floe_image::memory_block(&state.name).is_some() {
                Urgency::Memory
            } else {
                Urgency::Storage
            };
            let segments = state.missing_tables();
            let event = Event::RegionAdded {
                region: state.id,
                link: image.backend.link_id(),
                image: first,
                chunks: state.chunks(),
                segments,
                urgency,
            };
            self.core.queues.inbox.call(Message::Event(event));
        }
        // A machine that starts at once is buffered by what is already known about the link.
        if let Some(event) = owner::measured(&image) {
            self.core.queues.inbox.call(Message::Event(event));
        }
        self.replay_early();
        Ok(self.image_handle(image))
    }

    pub(crate) fn image_handle(&self, image: Arc<Image>) -> ImageHandle {
        ImageHandle {
            image,
            core: self.core.clone(),
            mountpoint: self.mountpoint.clone(),
        }
    }

    /// Adds a machine; its disks and its trace continue what is in its directory. The images that [`Mount::recorded_bases`]
    /// returns for that directory must have been added before.
    // Long: checks of the description, then all parts of the machine in the order in which they need each other.
    pub fn add_machine(&self, spec: MachineSpec) -> Result<MachineHandle, MountError> {
        check_machine_name(&spec.name)?;
        if self.core.machines.read().contains_key(&spec.name) {
            return Err(MountError::Name {
                what: "machine",
                name: spec.name,
                reason: "there is one of that name; remove it first",
            });
        }
        floe_store::private::make_dirs(&spec.dir).map_err(MountError::io("make", &spec.dir))?;
        let image = spec.image.image.clone();
        let disks: Result<Vec<_>, _> = spec
            .disks
            .iter()
            .map(|disk| self.open_disk(&spec.dir, &image, disk))
            .collect();
        let disks = RwLock::new(disks?);
        let trace = Trace::open(&spec.dir, image.id, &spec.name)?;
        let base = spec.base.unwrap_or(image.id);
        let machine = Arc::new(Machine {
            id: self.core.next_machine(),
            class: Mutex::default(),
            name: spec.name,
            uid: spec.uid,
            gid: spec.gid,
            image: image.clone(),
            dir: spec.dir,
            disks,
            changing: Mutex::default(),
            trace,
            progress: Mutex::default(),
            given_up: Mutex::default(),
            counters: machine::Counters::default(),
            relieving: AtomicBool::new(false),
            files: Default::default(),
        });
        let dir = format!("machines/{}", machine.name);
        let mut entries = vec![(dir.clone(), None)];
        for (region, shown) in image.regions.iter().enumerate() {
            if is_shown(&shown.name) {
                entries.push((
                    format!("{dir}/{}", shown.name),
                    Some(Node::Region {
                        image: image.clone(),
                        region,
                    }),
                ));
            }
        }
        entries.extend(
            machine
                .disks()
                .into_iter()
                .map(|disk| disk_entry(&machine, disk)),
        );
        self.core
            .tree
            .add(entries, Some((machine.uid, machine.gid)))?;
        self.core.classes.began(&machine, base);
        self.core
            .machines
            .write()
            .insert(machine.name.clone(), machine.clone());
        self.note_users();
        self.replay_early();
        let dir = self.mountpoint.join(dir);
        Ok(MachineHandle {
            machine,
            core: self.core.clone(),
            dir,
        })
    }

    /// Opens a disk of a machine of this image with this directory, or makes a new one.
    pub(crate) fn open_disk(
        &self,
        dir: &Path,
        image: &Arc<Image>,
        spec: &DiskSpec,
    ) -> Result<Arc<Disk>, MountError> {
        let name = &spec.name;
        if !floe_image::region_name_is_valid(name) || is_shown(name) {
            let reason = "a disk's name is of [a-z0-9-], at most 32 bytes, and neither ram (nor ram1, ...) nor vram";
            return Err(MountError::Name {
                what: "disk",
                name: name.clone(),
                reason,
            });
        }
        let region = spec.base.as_ref().map(|name| {
            image.region(name).ok_or_else(|| MountError::Unknown {
                what: "region",
                name: name.clone(),
            })
        });
        let fresh = region.transpose()?.map(|region| Base {
            image: image.clone(),
            region,
        });
        let find = |id: &floe_image::Hash| self.core.images.read().get(id).cloned();
        let dir = Disk::dir(dir, name);
        let disk = Disk::open(&dir, &self.live_dir, name, spec.size, fresh, find)?;
        Ok(Arc::new(disk))
    }

    /// Updates which user belongs to which machine, after machines were added or removed.
    fn note_users(&self) {
        let own = rustix::process::geteuid().as_raw();
        let machines = self.core.machines.read();
        self.core.askers.set_machines(machines.values(), own);
    }

    /// Returns the images that the disks in a machine's directory are based on.
    pub fn recorded_bases(dir: &Path) -> Result<Vec<Hash>, MountError> {
        let mut bases = Vec::new();
        for disk in entries(&dir.join("disks"))? {
            bases.extend(BaseRecord::read(&disk?)?.and_then(|r| r.image()));
        }
        bases.sort();
        bases.dedup();
        Ok(bases)
    }

    /// Returns the sizes in bytes of the disks in a machine's directory, by name; none of a disk that was never on the mount.
    pub fn recorded_sizes(dir: &Path) -> Result<BTreeMap<String, u64>, MountError> {
        let mut sizes = BTreeMap::new();
        for disk in entries(&dir.join("disks"))? {
            let disk = disk?;
            if let (Some(record), Some(name)) = (
                BaseRecord::read(&disk)?,
                disk.file_name().and_then(|name| name.to_str()),
            ) {
                sizes.insert(name.to_owned(), record.disk_bytes());
            }
        }
        Ok(sizes)
    }

    /// Removes an image's directory. Machines that use the image keep it.
    pub fn remove_image(&self, id: &Hash) -> Result<(), MountError> {
        let known = self.core.images.write().remove(id).is_some();
        if !known {
            return Err(MountError::Unknown {
                what: "image",
                name: id.to_string(),
            });
        }
        self.remove(&format!("images/{id}"))
    }

    /// Makes a machine's disks durable and removes it from the mount. The files in its own directory stay.
    pub fn remove_machine(&self, name: &str) -> Result<(), MountError> {
        let machine = self.core.machines.write().remove(name);
        let Some(machine) = machine else {
            return Err(MountError::Unknown {
                what: "machine",
                name: name.to_owned(),
            });
        };
        let gone = Message::Machine(Stir::Gone(machine.id));
        self.core.queues.inbox.call(gone);
        self.core.classes.gone(machine.id);
        self.core.io_gone(machine.id);
        self.note_users();
        self.remove(&format!("machines/{name}"))?;
        for disk in machine.disks() {
            disk.flush()
                .map_err(MountError::io("flush disk", &disk.name))?;
            disk.close();
        }
        machine.trace.write_out()?;
        Ok(())
    }

    /// Removes paths from the mount and makes the kernel forget their names.
    pub(crate) fn remove(&self, path: &str) -> Result<(), MountError> {
        self.forget(self.core.tree.remove(path)?);
        Ok(())
    }

    /// Makes the kernel forget names, each with its directory. It locks the directory for that, as who looks a name up there has done
    /// until the answer. After a takeover answers may wait for a machine that is not added yet, so then another thread waits for the
    /// lock: whoever waited here might be the one who would add the machine.
    fn forget(&self, names: Vec<(u64, String)>) {
        let core = self.core.clone();
        let forget = move || {
            for (parent, name) in names {
                let head = abi::notify_inval_entry(parent, &name);
                // ENOENT: the kernel never looked the name up.
                let _ = core.devices[0].notify(abi::notify::INVAL_ENTRY, &head, &[]);
            }
        };
        if self.core.early.lock().is_none() {
            return forget();
        }
        if let Err(error) = floe_threads::spawn("floe-forget", forget) {
            tracing::warn!(%error, "the kernel keeps names of what is gone");
        }
    }

    /// Puts those of a region's chunks that are in the local cache into the kernel's page cache (NOTIFY_STORE). Blocks while
    /// the kernel reads one of these pages, so a fetcher's thread must not call this.
    pub fn push(
        &self,
        image: &ImageHandle,
        region: &str,
        chunks: Range<u64>,
    ) -> Result<PushReport, MountError> {
        let unknown = || MountError::Unknown {
            what: "region",
            name: region.to_owned(),
        };
        let number = image.image.region(region).ok_or_else(unknown)?;
        let path = image.region_path(region).ok_or_else(unknown)?;
        // The kernel accepts pages only for an inode that it has looked up.
        let meta = std::fs::metadata(&path).map_err(MountError::io("look up", &path))?;
        push::push(&self.core, &image.image, number, chunks, false, meta.ino())
            .map_err(MountError::io("push into", &path))
    }

    /// Returns the counters.
    pub fn stats(&self) -> Stats {
        let c = &self.core.counters;
        let read = machine::read;
        Stats {
            region_reads: read(&c.region_reads),
            region_read_bytes: read(&c.region_read_bytes),
            disk_reads: read(&c.disk_reads),
            disk_read_bytes: read(&c.disk_read_bytes),
            disk_writes: read(&c.disk_writes),
            disk_write_bytes: read(&c.disk_write_bytes),
            waits: read(&c.waits),
            wait_us: read(&c.wait_us),
            waiting: self.core.waiting.lock().len() as u64,
            errors: read(&c.errors),
            pushes: read(&c.pushes),
            pushed_bytes: read(&c.pushed_bytes),
            ahead_chunks: read(&c.ahead_chunks),
            touches_dropped: self.core.queues.inbox.dropped(),
        }
    }

    /// Returns the directory that this is mounted on.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Unmounts and has the supervisor release the connection. Open files fail from now on. (Dropping a mount does the same.)
    pub fn unmount(mut self) -> Result<(), MountError> {
        self.close()
    }

    fn close(&mut self) -> Result<(), MountError> {
        self.open = false;
        for machine in self.core.machines.read().values() {
            for disk in machine.disks() {
                disk.flush()
                    .map_err(MountError::io("flush disk", &disk.name))?;
            }
            machine.trace.write_out()?;
        }
        if let Some(keeper) = &self.core.options.keeper {
            let prefix = held_prefix(&self.mountpoint);
            let devices = (0..self.core.devices.len()).map(|i| i.to_string());
            for name in devices.chain([TREE.to_owned()]) {
                keeper.release(&format!("{prefix}{name}"));
            }
        }
        device::unmount(&self.mountpoint).map_err(MountError::io("unmount", &self.mountpoint))?;
        device::abort(self.device_number);
        device::unmount_dead(&self.mountpoint)?;
        Ok(())
    }

    /// Leaves the connection with the supervisor for the next node. Call this just before the process ends.
    pub fn detach(mut self) -> Result<(), MountError> {
        self.open = false;
        let machines: Vec<_> = self.core.machines.read().values().cloned().collect();
        machines
            .iter()
            .try_for_each(|m| m.trace.write_out().map(|_| ()))
    }

    /// Blocks until the mount is gone, whoever unmounted it.
    pub fn wait(&mut self) {
        for thread in self.threads.drain(..) {
            let _ = thread.wait();
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.open
            && let Err(error) = self.close()
        {
            tracing::error!(%error, "unmounting failed");
        }
    }
}

fn check_machine_name(name: &str) -> Result<(), MountError> {
    let rest = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
    let first = name
        .bytes()
        .next()
        .is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    if first && name.len() <= MACHINE_NAME_MAX && name.bytes().all(rest) {
        return Ok(());
    }
    let reason = "a machine's name is [a-z0-9][a-z0-9._-]*, at most 63 bytes";
    Err(MountError::Name {
        what: "machine",
        name: name.to_owned(),
        reason,
    })
}
