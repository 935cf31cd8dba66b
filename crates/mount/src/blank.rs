//! Files whose content is not known yet. A VMM takes most of its start for itself, and what it is to continue may only be
//! known later: it is started on *blank* files, and the image is *bound* to them when it is needed.
//!
//! A blank is an image of zeros that has no directory of its own. Its machines are machines like others: those of one blank
//! share the inodes of its memory, before and after they are bound, and so their pages in the page cache. Binding replaces what
//! the inode numbers stand for, which the VMM's descriptors and mappings keep. That is only right if nobody has seen the zeros:
//! each page and each chunk that is read of a blank is counted, and a blank of which anything was read, or to which anything was
//! written, is refused. A page that was never read is in no page cache and in no private mapping either, because the
//! kernel fills both by reading it. The one exception is the beginning of a disk, which VMMs read when they open it: the blank
//! shows there what the caller expects, and only an image that has the same there can be bound.

use crate::backend::Backend;
use crate::image::Image;
use crate::inbox::{Message, Stir};
use crate::machine::{self, Machine};
use crate::tree::{Found, Node, Tree};
use crate::{ImageHandle, MachineHandle, MachineSpec, Mount, MountError};
use floe_image::{CHUNK_SIZE, CHUNKS_PER_SEGMENT, Hash, Kind, Manifest, Patch, Region, Segment};
use floe_planner::{Link, LinkId, RegionId};
use floe_sched::{Limit, MachineId, Who};
use floe_source::{Done, Each, SourceError};
use floe_store::Got;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Files without content, for machines that are bound later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlankSpec {
    /// The regions of the memory (`ram`, `ram1`, ...), with their sizes in bytes.
    pub memory: Vec<(String, u64)>,
    /// The disks.
    pub disks: Vec<BlankDisk>,
}

/// A disk of a blank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlankDisk {
    /// The region's name.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// What the disk begins with, at most one chunk: what a VMM sees that looks at it before it is bound.
    pub beginning: Vec<u8>,
}

/// The store of a blank: it has the chunks with which the disks begin, and nothing else is ever asked for.
struct Nothing {
    beginnings: HashMap<Hash, Box<[u8; CHUNK_SIZE]>>,
}

impl Backend for Nothing {
    fn get(&self, hash: &Hash, out: &mut [u8; CHUNK_SIZE], _: bool) -> bool {
        let chunk = self.beginnings.get(hash);
        chunk.map(|chunk| out.copy_from_slice(&chunk[..])).is_some()
    }

    fn get_now(&self, hash: &Hash, out: &mut [u8; CHUNK_SIZE], keep: bool) -> Got {
        match self.get(hash, out, keep) {
            true => Got::Here,
            false => Got::Missing,
        }
    }

    fn has(&self, hash: &Hash) -> bool {
        self.beginnings.contains_key(hash)
    }

    fn segment(&self, _: &Hash) -> Option<Arc<Segment>> {
        None
    }

    fn demand(&self, _: Who, _: Option<Duration>, _: Kind, hash: &Hash, _: bool, done: Done) {
        done(Err(nothing(hash)));
    }

    fn prefetch(&self, _: Who, items: Vec<(Kind, Hash)>, each: Each) {
        let none = |(kind, hash): &(Kind, Hash)| each(*kind, hash, Err(&nothing(hash)));
        items.iter().for_each(none);
    }

    fn limit(&self, _: MachineId, _: Limit) {}

    fn gone(&self, _: MachineId) {}

    fn link_id(&self) -> LinkId {
        LinkId::MAX // the planner knows no blank, so it never asks
    }

    fn link(&self) -> Option<Link> {
        None
    }

    fn trouble(&self) -> Option<SourceError> {
        None
    }
}

/// The error of whoever asks a blank for a chunk, which passes once an image is bound to it.
fn nothing(hash: &Hash) -> SourceError {
    SourceError::Local {
        what: hash.short(),
        reason: "a blank has no chunks".into(),
    }
}

fn region(name: &str, size: u64, patches: Vec<Patch>) -> Region {
    let segments = size.div_ceil((CHUNKS_PER_SEGMENT * CHUNK_SIZE) as u64);
    Region {
        name: name.to_owned(),
        size,
        segments: vec![Hash::ZERO; segments as usize],
        patches,
    }
}

/// Makes the image of a blank. Its id only tells blanks apart.
fn image_of(spec: BlankSpec, first_region: RegionId) -> Image {
    let mut beginnings = HashMap::new();
    let memory = spec.memory.iter();
    let mut regions: Vec<Region> = memory
        .map(|(name, size)| region(name, *size, Vec::new()))
        .collect();
    for disk in &spec.disks {
        let mut chunk = Box::new([0; CHUNK_SIZE]);
        let len = disk.beginning.len().min(CHUNK_SIZE);
        chunk[..len].copy_from_slice(&disk.beginning[..len]);
        let hash = Hash::of(&chunk[..]);
        regions.push(region(
            &disk.name,
            disk.size,
            vec![Patch { chunk: 0, hash }],
        ));
        beginnings.insert(hash, chunk);
    }
    let manifest = Manifest {
        regions,
        ..Manifest::default()
    };
    let id = format!("blank {} {first_region}", std::process::id());
    let backend = Box::new(Nothing { beginnings });
    let mut image = Image::new(Hash::of(id.as_bytes()), &manifest, backend, first_region);
    let disks = spec.disks.into_iter();
    image.blank = Some(disks.map(|disk| (disk.name, disk.beginning)).collect());
    image
}

impl Mount {
    /// Makes a blank, from which machines are added as from an image ([`Mount::add_machine`]). It has no directory of its own
    /// and is gone with its last machine.
    pub fn blank(&self, spec: BlankSpec) -> ImageHandle {
        let regions = (spec.memory.len() + spec.disks.len()) as u32;
        let first = self.next_region.fetch_add(regions, Ordering::Relaxed);
        self.image_handle(Arc::new(image_of(spec, first)))
    }

    /// Gives a machine of a blank its content: from now on its files are those of `spec`, which must have the same names and
    /// sizes. What was opened or mapped stays open and mapped. All machines of one blank can only be bound to one image. On an
    /// error before anything was changed (`MountError::Blank`) the machine is as it was; otherwise it is gone from the mount.
    pub fn bind_machine(&self, spec: MachineSpec) -> Result<MachineHandle, MountError> {
        let unknown = || MountError::Unknown {
            what: "machine",
            name: spec.name.clone(),
        };
        let old = self.core.machines.read().get(&spec.name).cloned();
        let old = old.ok_or_else(unknown)?;
        let refused = |reason| MountError::Blank {
            machine: spec.name.clone(),
            reason,
        };
        compare(&old, &spec).map_err(refused)?; // may have to fetch, so nobody waits for it
        let _one = self.core.binding.lock();
        check(&self.core.tree, &old, &spec).map_err(refused)?;
        let name = spec.name.clone();
        self.core.machines.write().remove(&name);
        let gone = Message::Machine(Stir::Gone(old.id));
        self.core.queues.inbox.call(gone);
        // it comes back with another number
        self.core.classes.gone(old.id);
        self.core.io_gone(old.id);
        let bind = || -> Result<MachineHandle, MountError> {
            // nothing was written to them: the record says that they stand on the blank
            old.disks().iter().for_each(|disk| disk.close());
            let disks = spec.dir.join("disks");
            match std::fs::remove_dir_all(&disks) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(MountError::io("remove", &disks)(error));
                }
                _ => {}
            }
            old.trace.write_out()?; // so that nothing is left to be written into the trace that begins now
            self.add_machine(spec)
        };
        bind().inspect_err(|_| {
            let _ = self.remove(&format!("machines/{name}"));
        })
    }
}

/// Returns why what has been seen of a blank machine's disks is not what `spec` has there.
fn compare(old: &Machine, spec: &MachineSpec) -> Result<(), String> {
    let Some(beginnings) = &old.image.blank else {
        return Err("it is no blank".into());
    };
    let image = &spec.image.image;
    for disk in &spec.disks {
        let expected = beginnings.get(&disk.name);
        let expected = expected.ok_or_else(|| format!("it has no disk {}", disk.name))?;
        let mut there = vec![0; expected.len()];
        if let Some(base) = &disk.base {
            let region = image.region(base);
            let region = region.ok_or_else(|| format!("the image has no region {base}"))?;
            let read = image.read_waiting(region, 0, &mut there);
            read.map_err(|error| error.to_string())?;
        }
        if there != *expected {
            return Err(format!("disk {} begins with something else", disk.name));
        }
    }
    Ok(())
}

/// Returns why the content of `spec` can't take the place of the blank that a machine has.
fn check(tree: &Tree, old: &Machine, spec: &MachineSpec) -> Result<(), String> {
    let (blank, image) = (&old.image, &spec.image.image);
    if blank.zero.load(Ordering::Acquire) != 0 {
        return Err("something has read of it and has seen zeros".into());
    }
    let written = machine::read(&old.counters.writes) != 0;
    if written || !old.disks().iter().all(|disk| disk.is_untouched()) {
        return Err("something was written to its disks".into());
    }
    let memory = |image: &Image| -> Vec<(String, u64)> {
        let regions = image.regions.iter();
        let memory = regions.filter(|r| floe_image::memory_block(&r.name).is_some());
        let mut memory: Vec<_> = memory.map(|r| (r.name.clone(), r.size)).collect();
        memory.sort();
        memory
    };
    if memory(blank) != memory(image) {
        return Err("the image's memory has another size".into());
    }
    let disks = old.disks();
    let disks = disks.iter().map(|disk| (&disk.name, disk.size()));
    if !disks.eq(spec.disks.iter().map(|disk| (&disk.name, disk.size))) {
        return Err("the image has other disks".into());
    }
    for (name, _) in memory(blank) {
        let ino = tree.ino(&format!("machines/{}/{name}", old.name));
        match ino.map(|ino| tree.node(ino)) {
            Some(Found::Node(_, Node::Region { image: now, .. }))
                if Arc::ptr_eq(&now, blank) || Arc::ptr_eq(&now, image) => {}
            _ => return Err(format!("its {name} has other content already")),
        }
    }
    Ok(())
}
