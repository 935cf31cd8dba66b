//! Decides whether a guest whose firmware has drawn on the screen is used on its screen or on its serial console.
//!
//! A UEFI firmware and the boot loaders on it write on screen and serial console alike, in pictures that nobody can tell from a guest's by
//! their content, and what was on the screen last stays there if the guest uses its serial line alone. So both are watched from the
//! machine's start: a guest whose console goes on while the picture stays as it is shows itself on the console.

use super::Machines;
use floe_ground::error::NodeError;
use floe_image::{FIRMWARE_REGION, Hash};
use floe_inventory::inventory::Entry;
use floe_machine::console::ConsoleLog;
use parking_lot::Mutex;
use std::{collections::HashMap, sync::Arc, time::Duration};

/// How often machines are looked at that have just been started.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How often each of them is looked at: for ten minutes, in which the slowest guest boots. Later the page looks.
const LOOKS_MAX: u32 = 300;
/// How many bytes on the console, while the picture stays, say that the guest is there. A login's prompt that appears on both may come
/// to the screen first, and has less.
const ALONE_BYTES_MIN: u64 = 64;

/// Where a console is, as [`ConsoleLog::position`] says it.
type Position = (u64, u64);

/// What was seen of one QEMU.
#[derive(Clone, Debug)]
struct Seen {
    pid: u32,
    picture: Hash,
    console: Position,
    /// Bytes that the console has said since the picture last changed.
    alone_bytes: u64,
    looks: u32,
}

impl Seen {
    /// Begins with a first look. `whole`: all that the console has said so far came while this picture was there, as far as is known.
    fn first(pid: u32, picture: Hash, console: Position, whole: bool) -> Seen {
        Seen {
            pid,
            picture,
            console,
            alone_bytes: if whole { console.1 } else { 0 },
            looks: 1,
        }
    }

    fn look(&mut self, picture: Hash, console: Position) {
        let said = match self.console.0 == console.0 {
            true => console.1.saturating_sub(self.console.1),
            // a new file of the log, whose beginning may be missing
            false => console.1,
        };
        self.alone_bytes = match self.picture == picture {
            true => self.alone_bytes.saturating_add(said),
            false => 0,
        };
        (self.picture, self.console) = (picture, console);
        self.looks = self.looks.saturating_add(1);
    }

    fn is_on_console(&self) -> bool {
        self.alone_bytes >= ALONE_BYTES_MIN
    }
}

/// What was seen of the machines with a UEFI firmware, by their names. Locks: itself, briefly.
#[derive(Default)]
pub(super) struct Faces(Mutex<HashMap<String, Seen>>);

impl Machines {
    /// Starts the thread that watches machines while they boot.
    pub(super) fn start_watching_faces(self: &Arc<Self>) -> Result<(), NodeError> {
        let threads = &self.core.threads;
        let watch = threads.keep("face-watch", self, LOOK_EVERY, |machines| {
            let all = machines.inventory.all();
            let mut known = machines.faces.0.lock();
            known.retain(|name, _| all.iter().any(|entry| entry.name.as_str() == name));
            drop(known);
            for entry in all {
                machines.watch_face(&entry);
            }
        });
        Ok(watch?)
    }

    fn watch_face(&self, entry: &Entry) {
        let Ok(vm) = entry.vm() else {
            return;
        };
        let known = self.faces.0.lock().get(entry.name.as_str()).cloned();
        let is_new = known.is_none_or(|seen| seen.pid != vm.pid() || seen.looks < LOOKS_MAX);
        // a restored guest is past its firmware
        if is_new
            && is_uefi(entry)
            && !entry.record().restored
            && !entry.stands_still()
            && let Ok(vram) = vm.video_memory()
        {
            self.is_on_console(entry, vm.pid(), &vram);
        }
    }

    /// Whether a guest with a UEFI firmware and something on its screen is on its console all the same. `vram`: its video memory.
    pub(super) fn is_on_console(&self, entry: &Entry, pid: u32, vram: &[u8]) -> bool {
        if !is_uefi(entry) {
            return false;
        }
        let (picture, record) = (Hash::of(vram), entry.record());
        let console = ConsoleLog::position(&self.console_dir(&record));
        let mut known = self.faces.0.lock();
        match known.get_mut(entry.name.as_str()) {
            Some(seen) if seen.pid == pid => seen.look(picture, console),
            _ => {
                // what a restored guest's console said, it has said since the restore
                let first = Seen::first(pid, picture, console, record.restored);
                known.insert(entry.name.to_string(), first);
            }
        }
        known[entry.name.as_str()].is_on_console()
    }
}

fn is_uefi(entry: &Entry) -> bool {
    let disks = &entry.record().config.disks;
    disks.iter().any(|disk| disk == FIRMWARE_REGION)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(number: u8) -> Hash {
        Hash::of(&[number])
    }

    #[test]
    fn who_speaks_on_the_console_alone_is_there_and_who_draws_is_not() {
        let mut seen = Seen::first(7, picture(0), (1, 0), false);
        // firmware and boot loader: both go on
        for (number, bytes) in [(1, 400), (2, 2000), (3, 4000)] {
            seen.look(picture(number), (1, bytes));
            assert!(!seen.is_on_console());
        }
        // a guest that says nothing on its console, one that says a prompt, one that goes on
        seen.look(picture(3), (1, 4000));
        seen.look(picture(3), (1, 4040));
        assert!(!seen.is_on_console());
        seen.look(picture(3), (1, 4100));
        assert!(seen.is_on_console());
        // it stays there while it is silent, and when its log begins anew
        seen.look(picture(3), (2, 10));
        assert!(seen.is_on_console());
        // and is on the screen as soon as that changes
        seen.look(picture(4), (2, 500));
        assert!(!seen.is_on_console());
    }

    #[test]
    fn a_restored_guest_is_on_its_console_if_it_has_spoken_there_since() {
        assert!(Seen::first(7, picture(0), (1, 5000), true).is_on_console());
        assert!(!Seen::first(7, picture(0), (1, 0), true).is_on_console());
        assert!(!Seen::first(7, picture(0), (1, 5000), false).is_on_console());
    }
}
