//! Standby QEMUs, which are started ahead: each has loaded the state of a recently run image, and a run only has to let its guest go
//! on.
//!
//! Each costs some 40 MB, so they are few and their memory is bounded. Each maps the image's own memory file, so the pages
//! that its device state touched are shared with the image's other machines.

use crate::machines::{Machines, NewPlace, launch::Attached};
use floe_ground::{
    error::NodeError,
    options::{STANDBY_BYTES, StandbyOptions},
    time::unix_now,
};
use floe_image::Hash;
use floe_inventory::{
    inventory::{
        For, NewMachine, Place,
        record::{Household, Record},
    },
    resources::Ahead,
};
use floe_library::images::sources::Found;
use floe_machine::{Machine, Standby};
use floe_mount::MachineHandle;
use parking_lot::{Condvar, Mutex};
use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// How long a node that ends waits for QEMUs being prepared: they would live on until the next node ends them.
pub(super) const PREPARING_END: Duration = Duration::from_secs(10);

/// The standby QEMUs that wait.
#[derive(Default)]
pub(crate) struct Standbys {
    inner: Mutex<Inner>,
    /// Notified when a thread that prepared one is done.
    done: Condvar,
    next: AtomicU64,
}

#[derive(Default)]
struct Inner {
    /// Those that wait, the oldest first.
    waiting: VecDeque<Waiting>,
    /// Images for which one is being prepared, once for each.
    preparing: Vec<Hash>,
    /// Threads that prepare one; each also ends those that have to make room for it.
    threads: usize,
    over: bool,
}

/// A QEMU that has loaded an image's state and waits for a run.
pub struct Waiting {
    image: Hash,
    standby: Standby,
    attached: Attached,
    place: Place,
    dir: PathBuf,
    /// Its reservation of the host's memory.
    _room: Ahead,
}

impl Waiting {
    /// Returns the machine that waits.
    pub fn machine(&self) -> &Machine {
        self.standby.machine()
    }

    /// Returns its files on the mount.
    pub fn disks(&self) -> &MachineHandle {
        &self.attached.disks
    }

    /// Takes it apart into what a machine is made of.
    pub fn into_parts(self) -> (Standby, Attached, Place) {
        (self.standby, self.attached, self.place)
    }
}

impl Standbys {
    /// Returns how many wait.
    pub fn len(&self) -> usize {
        self.inner.lock().waiting.len()
    }

    /// Returns a number that no directory of this node has.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether one waits or is being prepared for this image.
    pub fn is_for(&self, image: &Hash) -> bool {
        let inner = self.inner.lock();
        inner.waiting.iter().any(|waiting| waiting.image == *image)
            || inner.preparing.contains(image)
    }

    /// Removes and returns one that waits for this image.
    pub fn take(&self, image: &Hash) -> Option<Waiting> {
        let mut inner = self.inner.lock();
        let index = inner
            .waiting
            .iter()
            .position(|waiting| waiting.image == *image)?;
        inner.waiting.remove(index)
    }

    /// Removes and returns the one that has waited longest, preferably one that waits for another image than this.
    fn take_oldest(&self, image: &Hash) -> Option<Waiting> {
        let mut inner = self.inner.lock();
        let other = inner.waiting.iter().position(|one| one.image != *image);
        inner.waiting.remove(other.unwrap_or(0))
    }

    /// Whether one more should be prepared for this image. If so, it is counted as being prepared.
    fn wants(&self, image: &Hash, options: &StandbyOptions) -> bool {
        let mut inner = self.inner.lock();
        let have = inner
            .waiting
            .iter()
            .filter(|waiting| waiting.image == *image)
            .count();
        let coming = inner.preparing.iter().filter(|id| *id == image).count();
        let room = u64::from(options.images > 0) * options.memory_bytes / STANDBY_BYTES;
        if inner.over || have + coming >= options.each || (inner.preparing.len() as u64) >= room {
            return false;
        }
        inner.preparing.push(*image);
        inner.threads += 1;
        true
    }

    /// Adds one that was prepared, if it was, and returns those that must be ended because of the limits.
    fn enter(
        &self,
        image: &Hash,
        waiting: Option<Waiting>,
        options: &StandbyOptions,
    ) -> Vec<Waiting> {
        let mut inner = self.inner.lock();
        if let Some(index) = inner.preparing.iter().position(|id| id == image) {
            inner.preparing.swap_remove(index);
        }
        inner.waiting.extend(waiting);
        let mut out = Vec::new();
        while inner.over && !inner.waiting.is_empty() || too_many(&inner.waiting, options) {
            out.extend(inner.waiting.pop_front());
        }
        out
    }

    /// Removes and returns all that wait for an image, or all if `image` is `None`.
    fn take_all(&self, image: Option<&Hash>) -> Vec<Waiting> {
        let mut inner = self.inner.lock();
        let waiting: Vec<Waiting> = std::mem::take(&mut inner.waiting).into();
        let (go, stay): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .partition(|waiting| image.is_none_or(|id| waiting.image == *id));
        inner.waiting = stay.into();
        go
    }

    /// Notes that a thread that prepared one is done.
    fn leave(&self) {
        self.inner.lock().threads -= 1;
        self.done.notify_all();
    }

    /// Ends all preparing. Returns whether the threads that prepare one have ended within `patience`.
    fn close(&self, patience: Duration) -> bool {
        let mut inner = self.inner.lock();
        inner.over = true;
        let waited = self
            .done
            .wait_while_for(&mut inner, |inner| inner.threads > 0, patience);
        !waited.timed_out()
    }
}

/// Whether more wait than the options allow, by number of images or by memory.
fn too_many(waiting: &VecDeque<Waiting>, options: &StandbyOptions) -> bool {
    let mut images: Vec<Hash> = waiting.iter().map(|waiting| waiting.image).collect();
    images.sort_unstable();
    images.dedup();
    over_limit(waiting.len(), images.len(), options)
}

fn over_limit(count: usize, images: usize, options: &StandbyOptions) -> bool {
    images > options.images || count as u64 * STANDBY_BYTES > options.memory_bytes
}

impl Machines {
    /// Prepares the next QEMU for an image in the background, if the options allow one.
    pub(crate) fn refill_standby(self: &Arc<Self>, found: &Found) {
        if !self.standby.wants(&found.id, &self.core.options.standby) {
            return;
        }
        let machines = self.clone();
        let (id, found) = (found.id, found.copy());
        let spawned = floe_threads::spawn("standby", move || {
            let waiting = match machines.prepare_standby(&found, false) {
                Ok(waiting) => Some(waiting),
                Err(error) => {
                    tracing::info!(image = found.id.short(), %error, "no QEMU waits for the next run");
                    None
                }
            };
            for gone in machines
                .standby
                .enter(&found.id, waiting, &machines.core.options.standby)
            {
                machines.end_waiting(gone);
            }
            machines.standby.leave();
        });
        if spawned.is_err() {
            self.standby.enter(&id, None, &self.core.options.standby);
            self.standby.leave();
        }
    }

    /// Makes the directory of the next waiting QEMU, which is in this household's control group; returns where its files are to be, and
    /// that directory.
    pub(super) fn standby_place(
        &self,
        household: Household,
    ) -> Result<(Place, PathBuf), NodeError> {
        let NewPlace {
            dir,
            directory,
            mount_name,
        } = self.new_place()?;
        let uid = self.inventory.users.claim(For::Waiting);
        let uid = uid.inspect_err(|_| drop(std::fs::remove_dir(&dir)))?;
        let place = Place {
            directory,
            mount_name,
            uid,
            household,
        };
        Ok((place, dir))
    }

    /// Removes what is left of a waiting QEMU that has ended.
    pub(super) fn clear_standby(&self, place: &Place, dir: &Path) {
        let name = &place.mount_name;
        self.resources.remove_group(&place.household.id, name);
        if let Err(error) = self.images.with_mount(|mount| mount.remove_machine(name)) {
            tracing::debug!(%error, "a waiting machine is not on the mount");
        }
        let _ = std::fs::remove_dir_all(dir);
        self.inventory.users.release(place.uid);
    }

    /// Starts a QEMU with an image's state loaded. An `isolated` one cannot reach the network.
    pub(crate) fn prepare_standby(
        &self,
        found: &Found,
        isolated: bool,
    ) -> Result<Waiting, NodeError> {
        let room = self.resources.ahead(&found.manifest.config)?;
        let (place, dir) = self.standby_place(Household::begin())?;
        let prepared = self.prepare_in(found, &place, isolated);
        match prepared {
            Ok((standby, attached)) => Ok(Waiting {
                image: found.id,
                standby,
                attached,
                place,
                dir,
                _room: room,
            }),
            Err(error) => {
                self.clear_standby(&place, &dir);
                Err(error)
            }
        }
    }

    fn prepare_in(
        &self,
        found: &Found,
        place: &Place,
        isolated: bool,
    ) -> Result<(Standby, Attached), NodeError> {
        let record = Record::new(NewMachine {
            name: "standby",
            image_name: "",
            image: found.id,
            origin: found.origin.clone(),
            config: found.manifest.config.clone(),
            restored: true,
            created_unix_s: unix_now(),
            uid: place.uid,
            place: place.directory.clone(),
            mount_name: place.mount_name.clone(),
            household: place.household.clone(),
        });
        let attached = self.attach_record(
            &record,
            found.manifest.clone(),
            found.fetcher.clone(),
            Vec::new(),
        )?;
        let snapshot = self.snapshot(found, &attached.disks, &attached.images)?;
        let mut spec = self.spec(&record, &attached.disks, None)?;
        spec.isolated = isolated;
        Ok((Standby::prepare(spec, &snapshot)?, attached))
    }

    /// Takes one that waits for an image and sets its network up or down. Those that have ended meanwhile are cleaned up.
    pub(crate) fn take_standby(&self, image: &Hash, network: bool) -> Option<Waiting> {
        while let Some(waiting) = self.standby.take(image) {
            let ended = waiting.machine().wait_end(Duration::ZERO);
            if !ended && waiting.machine().set_network(network).is_ok() {
                return Some(waiting);
            }
            tracing::warn!(image = image.short(), "a QEMU that waited has ended");
            self.end_waiting(waiting);
        }
        None
    }

    /// Ends one that waits: one that is bound to no image if there is any, otherwise the oldest, preferably one for another image. Returns false if none waits.
    pub fn end_a_standby(&self, image: &Hash) -> bool {
        if self.end_a_blank() {
            return true;
        }
        let gone = self.standby.take_oldest(image);
        gone.map(|waiting| self.end_waiting(waiting)).is_some()
    }

    /// Ends all that wait for an image.
    pub fn drop_standby(&self, image: &Hash) {
        self.standby
            .take_all(Some(image))
            .into_iter()
            .for_each(|waiting| self.end_waiting(waiting));
    }

    /// Ends all that wait; none is prepared from now on.
    pub fn end_standby(&self) {
        let blanks = self.end_blanks();
        if !self.standby.close(PREPARING_END) || !blanks {
            tracing::warn!("a QEMU is still being started ahead; the next node here ends it");
        }
        self.standby
            .take_all(None)
            .into_iter()
            .for_each(|waiting| self.end_waiting(waiting));
    }

    pub(crate) fn end_waiting(&self, waiting: Waiting) {
        let Waiting {
            image,
            standby,
            attached,
            place,
            dir,
            ..
        } = waiting;
        drop(standby); // ends QEMU
        drop(attached);
        self.clear_standby(&place, &dir);
        self.images.forget_image(&image);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_keeps_within_its_memory_and_its_images() {
        let options = StandbyOptions {
            each: 1,
            images: 2,
            memory_bytes: 2 * STANDBY_BYTES,
            blank_bytes: 0,
        };
        assert!(!over_limit(2, 2, &options));
        assert!(over_limit(3, 2, &options));
        assert!(over_limit(2, 3, &options));
        assert!(!over_limit(
            0,
            0,
            &StandbyOptions {
                each: 0,
                images: 0,
                memory_bytes: 0,
                blank_bytes: 0
            }
        ));
    }

    #[test]
    fn one_is_prepared_at_a_time_for_an_image_and_none_where_there_is_no_room() {
        let standbys = Standbys::default();
        let options = StandbyOptions::default();
        let image = Hash::of(b"image");
        assert!(standbys.wants(&image, &options));
        assert!(!standbys.wants(&image, &options));
        assert!(standbys.enter(&image, None, &options).is_empty());
        standbys.leave();
        assert!(standbys.wants(&image, &options));
        assert!(!standbys.wants(
            &Hash::of(b"other"),
            &StandbyOptions {
                memory_bytes: 0,
                ..options
            }
        ));
        assert!(!standbys.close(Duration::ZERO), "one is being prepared");
        assert!(!standbys.wants(&Hash::of(b"third"), &options));
        standbys.leave();
        assert!(standbys.close(Duration::ZERO));
    }
}
