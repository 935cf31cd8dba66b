//! Captures the state of a running machine in a pause of some tens of milliseconds.
//!
//! Before the pause: find the guest's memory and copy it, in rounds, while the kernel notes what is written meanwhile; each
//! round has a short pause of its own, in which the disks' requests end (`copying`). Where the kernel does not do that, and
//! if the guest stands still anyway: estimate how much is to be kept, and fault in the buffers. In the pause: QMP `stop`
//! (which also completes the disks' requests), `xen-save-devices-state` into a descriptor, the caller's freeze of the disks,
//! copying the pages that are not zero and not copied yet, and `cont`. After the pause, the caller hashes and compresses. If
//! anything fails after `stop`, the machine is resumed. The state exists in memory only, so that a QEMU or a node that dies
//! leaves no file behind.
//!
//! `xen-save-devices-state` works with every accelerator and machine type; it is the only command that writes the devices
//! without RAM. Rejected: the migration stream with RAM in it (a GiB to write and to parse in the pause) and
//! `background-snapshot` (docs/decisions/pause.md).

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use floe_image::MachineConfig;
use serde_json::json;

use crate::buffers::memory_file;
use crate::command::RamBacking;
use crate::copying::{Copying, NotAhead};
use crate::error::MachineError;
use crate::hardware;
use crate::hurry::Hurry;
use crate::machine::{Machine, Status, memfd};
use crate::memory::Memory;
use crate::pages::{CopyError, Pages, Rest};
use crate::process::{Span, is_mapping_of};
use crate::qmp::QmpError;
use crate::spec::MEMORY_BYTES_DEFAULT;

/// Longest time to complete the disks' outstanding requests when the machine is paused.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// Largest device state that is read, in bytes: 100 times that of a machine with every device.
const DEVICE_BYTES_MAX: u64 = 64 << 20;

/// Steps of a capture, for its errors.
const FIND: &str = "finding its memory";
const COPY: &str = "copying its memory";

/// Options of a capture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CaptureOptions {
    /// Leave the machine paused after a successful capture, because it is to be ended: the image then holds all that it
    /// did.
    pub stay_paused: bool,
    /// Most bytes of pages to keep; by default there is no limit.
    pub bytes_max: Option<u64>,
    /// Copy the pages of the RAM and of all added blocks into one memory file ([`Pages::file`]), which another process
    /// can keep after this one has ended.
    pub in_file: bool,
}

/// How the time of the pause was spent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pause {
    /// The short pauses before, one for each round of copying ahead, in which the disks' requests end.
    pub drains: Duration,
    /// Stopping the vCPUs and completing the disks' requests.
    pub stop: Duration,
    /// Writing the device state.
    pub device: Duration,
    /// The caller's freeze.
    pub freeze: Duration,
    /// Scanning and copying RAM and video memory.
    pub memory: Duration,
    /// Resuming the machine; zero if it stays paused.
    pub cont: Duration,
}

impl Pause {
    /// Returns how long the guest stands still for the capture, from each command to pause until it runs again.
    pub fn total(&self) -> Duration {
        self.drains + self.stop + self.device + self.freeze + self.memory + self.cont
    }
}

/// What was copied of a machine's memory before its pause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ahead {
    /// How often what was written was copied; 0 if everything was left to the pause.
    pub rounds: u32,
    /// Bytes of the pages that were found written, again in each round; pages of zeros count.
    pub bytes: u64,
}

/// A captured machine.
pub struct Capture<F> {
    /// The configuration with which a restore must start.
    pub config: MachineConfig,
    /// The `device` region.
    pub device: Vec<u8>,
    /// The `ram` region: pages that are not zero (after a cold start), or that differ from the image the machine was
    /// restored from.
    pub ram: Pages,
    /// The regions `ram1`, `ram2`, ...: memory blocks that were added while the machine ran, in the configuration's
    /// order.
    pub blocks: Vec<Pages>,
    /// The `vram` region; empty without a video device.
    pub vram: Pages,
    /// What the caller's freeze returned.
    pub frozen: F,
    /// How the time of the pause was spent.
    pub pause: Pause,
    /// Time before the pause, in which the guest still ran.
    pub prepare: Duration,
    /// What was copied in that time.
    pub ahead: Ahead,
}

impl Machine {
    /// Captures the machine. `freeze` is called in the pause, once the disks have no requests; it should take almost no
    /// time.
    pub fn capture<F, E: std::fmt::Display>(
        &self,
        options: CaptureOptions,
        freeze: impl FnOnce() -> Result<F, E>,
    ) -> Result<Capture<F>, MachineError> {
        if self.capturing.swap(true, Ordering::Acquire) {
            return Err(MachineError::CaptureRunning { name: self.name() });
        }
        let _busy = Busy(self);
        self.capture_alone(options, freeze).map_err(|e| {
            if self.process().is_alive() {
                e
            } else {
                self.dead_in_capture(e)
            }
        })
    }

    // Long: the steps of the pause in their order, each beside what undoes it if a later one fails.
    fn capture_alone<F, E: std::fmt::Display>(
        &self,
        options: CaptureOptions,
        freeze: impl FnOnce() -> Result<F, E>,
    ) -> Result<Capture<F>, MachineError> {
        let began = Instant::now();
        let runs = self.runs()?;
        // While this lock is held, the hardware can't change between finding the memory, saving the device state and
        // copying.
        let _unchanged = self.hardware.lock();
        if let Some(why) = hardware::unsavable(&self.config().devices) {
            let name = self.name();
            return Err(MachineError::Unsavable { name, why });
        }
        let failed = |step, e| self.copy_error(step, e);
        let limit = options.bytes_max.unwrap_or(u64::MAX);
        let memories = self.memories().map_err(|e| failed(FIND, e.into()))?;
        if !runs {
            let process = self.process();
            memories.iter().for_each(|memory| memory.unprotect(process));
        }
        let file = options.in_file.then(memory_file).transpose();
        let file = file.map_err(|e| failed(COPY, e.into()))?;
        let mut copying =
            Copying::new(memories, limit, file.as_ref()).map_err(|e| failed(COPY, e.into()))?;
        let vram = match vram_span(self)? {
            Some(span) => vec![
                Memory::private(self.pid(), vec![span], span.len, Rest::Zero)
                    .map_err(|e| failed(FIND, e.into()))?,
            ],
            None => Vec::new(),
        };
        // it is small, and copied in the pause
        let mut vram = Copying::new(vram, limit, None).map_err(|e| failed(COPY, e.into()))?;
        vram.make_room();
        let mut pause = Pause::default();
        let ahead = self.copy_ahead(runs, &mut copying, &mut pause)?;
        let state = memfd("floe-device-state")
            .map_err(MachineError::io("make a buffer for the device state"))?;
        let prepare = began.elapsed().saturating_sub(pause.drains);

        let mut last = Instant::now();
        let mut lap = || {
            let now = Instant::now();
            now - std::mem::replace(&mut last, now)
        };
        let hurry = Hurry::begin();
        let mut paused = Paused {
            machine: self,
            go_on: runs,
        };
        self.qmp.execute_within("stop", json!({}), STOP_TIMEOUT)?;
        paused.go_on = runs && !self.has_failed_request()?;
        if !self.record.lock().removing.is_empty() {
            // up to now, a guest may have released a device at any time
            self.settle_alone()?;
        }
        pause.stop = lap();
        self.with_fdset(state.as_fd(), |file| {
            // live: true would also hand the disks over to the target of a migration.
            self.qmp.execute(
                "xen-save-devices-state",
                json!({"filename": file, "live": false}),
            )
        })
        .map_err(|e| self.device_error(e))?;
        pause.device = lap();
        let frozen = freeze().map_err(|e| MachineError::Freeze {
            name: self.name(),
            reason: e.to_string(),
        })?;
        pause.freeze = lap();
        copying.copy().map_err(|e| failed(COPY, e))?;
        vram.copy().map_err(|e| failed(COPY, e))?;
        pause.memory = lap();
        if options.stay_paused {
            // the kernel may take away the memory of a QEMU that it has killed: one that answers had all of it when it was copied
            self.runs()?;
            paused.go_on = false;
        } else if paused.go_on {
            self.cont()?;
            paused.go_on = false;
            pause.cont = lap();
        }
        drop(hurry);
        let mut blocks = copying.into_pages();
        let vram = vram.into_pages().pop().unwrap_or_else(|| Pages::empty(0));
        let pages = blocks.iter().map(Pages::len).sum::<usize>();
        let ram = blocks.remove(0); // `memories` returns it first
        let device = read_state(&state).map_err(MachineError::io("read the device state"))?;
        tracing::info!(
            machine = self.name(),
            pause_ms = pause.total().as_secs_f64() * 1e3,
            pages,
            rounds = ahead.rounds,
            "captured"
        );
        Ok(Capture {
            config: self.config(),
            device,
            ram,
            blocks,
            vram,
            frozen,
            pause,
            prepare,
            ahead,
        })
    }

    /// Copies memory while the guest runs, as far as that can be done, and prepares the pause.
    fn copy_ahead(
        &self,
        runs: bool,
        copying: &mut Copying,
        pause: &mut Pause,
    ) -> Result<Ahead, MachineError> {
        // a guest that stands still gains nothing
        if runs {
            let drained = copying.ahead(self.process(), || self.drain(&mut pause.drains));
            let name = self.name();
            match drained {
                Ok(rounds) => {
                    return Ok(Ahead {
                        rounds: rounds.made,
                        bytes: rounds.bytes,
                    });
                }
                Err(NotAhead::Drain(e)) => return Err(e),
                Err(NotAhead::Copy(e @ CopyError::TooLarge(_))) => {
                    return Err(self.copy_error(COPY, e));
                }
                Err(NotAhead::Copy(CopyError::Io(e))) => {
                    tracing::warn!(machine = name, "all memory is copied in the pause: {e}");
                }
                Err(NotAhead::Unwatched(e)) => {
                    tracing::debug!(machine = name, "all memory is copied in the pause: {e}");
                }
            }
        }
        copying.prepare().map_err(|e| self.copy_error(COPY, e))?;
        Ok(Ahead::default())
    }

    /// Has all requests of the disks that are under way end, by a short pause, and adds the time that the guest stood still.
    fn drain(&self, stood_still: &mut Duration) -> Result<(), MachineError> {
        let _hurry = Hurry::begin();
        let began = Instant::now();
        let mut paused = Paused {
            machine: self,
            go_on: true,
        };
        self.qmp.execute_within("stop", json!({}), STOP_TIMEOUT)?;
        paused.go_on = !self.has_failed_request()?;
        if paused.go_on {
            self.cont()?;
            paused.go_on = false;
            *stood_still += began.elapsed();
        }
        Ok(())
    }

    /// Returns whether QEMU has stopped the guest by itself, at a full disk for instance. QMP `stop` leaves that as it is, and so does a
    /// capture: whoever looks after it lets the guest go on.
    fn has_failed_request(&self) -> Result<bool, MachineError> {
        Ok(matches!(self.status()?, Status::IoError { .. }))
    }

    /// Returns whether the guest executes; an error if QEMU has ended.
    fn runs(&self) -> Result<bool, MachineError> {
        match self.status()? {
            Status::Ended(_) => Err(self.dead()),
            status => Ok(status == Status::Running),
        }
    }

    fn copy_error(&self, step: &'static str, e: CopyError) -> MachineError {
        match e {
            CopyError::TooLarge(limit_bytes) => MachineError::CaptureTooLarge {
                name: self.name(),
                limit_bytes,
            },
            CopyError::Io(e) => MachineError::Capture {
                name: self.name(),
                step,
                reason: e.to_string(),
            },
        }
    }

    fn device_error(&self, e: MachineError) -> MachineError {
        let reason = match &e {
            MachineError::Qmp(q) if q.is_unknown_command() => {
                "this QEMU was built without xen-save-devices-state; use your distribution's qemu-system-x86".to_string()
            }
            e => e.to_string(),
        };
        MachineError::Capture {
            name: self.name(),
            step: "saving the device state",
            reason,
        }
    }

    fn dead_in_capture(&self, e: MachineError) -> MachineError {
        match e {
            MachineError::Dead { .. } | MachineError::CaptureRunning { .. } => e,
            e => MachineError::Capture {
                name: self.name(),
                step: "waiting for QEMU",
                reason: format!(
                    "QEMU ended in the middle ({e}); nothing was captured, start the machine again"
                ),
            },
        }
    }

    /// Returns the memory with which the machine was started, then each block that was added to it.
    fn memories(&self) -> std::io::Result<Vec<Memory>> {
        let record = self.record();
        let size = record.config.memory_bytes.unwrap_or(MEMORY_BYTES_DEFAULT);
        let mut memories = vec![self.memory_of(&record.ram, size)?];
        for (backing, size) in record.blocks.iter().zip(&record.config.memory_blocks) {
            memories.push(self.memory_of(backing, *size)?);
        }
        Ok(memories)
    }

    fn memory_of(&self, backing: &RamBacking, size: u64) -> std::io::Result<Memory> {
        let added = |inode: &u64| {
            let is_it = |backing: &RamBacking| matches!(backing, RamBacking::Added { inode: i } if i == inode);
            self.record.lock().blocks.iter().any(is_it)
        };
        let memfd = match backing {
            RamBacking::File(path) => {
                let spans = ram_spans(self, path, size)?;
                return Memory::private(self.pid(), spans, size, Rest::Base);
            }
            RamBacking::Anonymous => memfds(self.pid())?.into_iter().find(|(i, _)| !added(i)),
            RamBacking::Added { inode } => {
                memfds(self.pid())?.into_iter().find(|(i, _)| i == inode)
            }
        };
        match memfd {
            Some((_, link)) => Memory::shared(File::open(&link)?),
            None => Err(std::io::Error::other("QEMU holds no memfd with its RAM")),
        }
    }
}

/// Returns the memfds that QEMU has for memory: inode number and a path to open.
pub(crate) fn memfds(pid: u32) -> std::io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let link = entry?.path();
        let is_memory = |to: PathBuf| to.starts_with("/memfd:memory-backend-memfd (deleted)");
        if std::fs::read_link(&link).is_ok_and(is_memory) {
            found.push((std::fs::metadata(&link)?.ino(), link));
        }
    }
    Ok(found)
}

/// Returns the mappings of a memory file; the kernel may have split one into several.
fn ram_spans(machine: &Machine, file: &Path, size: u64) -> std::io::Result<Vec<Span>> {
    let mappings = machine.process().mappings()?;
    let ours = mappings
        .iter()
        .filter(|m| is_mapping_of(m, file) && m.permissions.ends_with('p'));
    let spans: Vec<Span> = ours
        .map(|m| Span {
            address: m.start,
            len: m.end - m.start,
            offset: m.offset,
        })
        .collect();
    let mapped: u64 = spans.iter().map(|s| s.len).sum();
    if mapped != size {
        let file = file.display();
        return Err(std::io::Error::other(format!(
            "{mapped} of {size} bytes of RAM are mapped from {file}"
        )));
    }
    Ok(spans)
}

/// Returns where the video memory is; `None` if there is none.
///
/// QEMU reports a block's size, but not its address. Its mappings of device memory are anonymous, separate from their
/// neighbours (guard pages, and a flag that keeps them out of forks), and only this one has that size; two candidates are
/// an error.
pub(crate) fn vram_span(machine: &Machine) -> Result<Option<Span>, MachineError> {
    let blocks = machine.qmp.human("info ramblock")?;
    let Some(size) = vram_size(&blocks) else {
        return Ok(None);
    };
    let mappings = machine
        .process()
        .mappings()
        .map_err(MachineError::io("read QEMU's mappings"))?;
    let mut found = mappings
        .iter()
        .filter(|m| m.path.is_empty() && m.permissions == "rw-p" && m.end - m.start == size);
    match (found.next(), found.next()) {
        (Some(m), None) => Ok(Some(Span {
            address: m.start,
            len: size,
            offset: 0,
        })),
        (one, _) => Err(MachineError::Capture {
            name: machine.name(),
            step: "finding its video memory",
            reason: format!(
                "QEMU has {} mappings of {size} bytes",
                if one.is_some() { "several" } else { "no" }
            ),
        }),
    }
}

/// Returns the used length of the video memory from the table of `info ramblock`.
fn vram_size(blocks: &str) -> Option<u64> {
    let line = blocks.lines().find(|l| l.contains("vga.vram"))?;
    // The columns: name, page size, unit, offset, used, total.
    let mut numbers = line
        .split_ascii_whitespace()
        .filter_map(|w| w.strip_prefix("0x"));
    u64::from_str_radix(numbers.nth(1)?, 16).ok()
}

fn read_state(state: &File) -> std::io::Result<Vec<u8>> {
    // QEMU wrote through an open file of its own, so this one is still at its beginning.
    let mut device = Vec::new();
    state.take(DEVICE_BYTES_MAX).read_to_end(&mut device)?;
    if device.is_empty() {
        Err(std::io::Error::other("QEMU wrote nothing"))
    } else {
        Ok(device)
    }
}

/// Marks the machine as no longer being captured when it is dropped.
struct Busy<'a>(&'a Machine);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.capturing.store(false, Ordering::Release);
    }
}

/// Resumes the machine when it is dropped, whatever happens.
struct Paused<'a> {
    machine: &'a Machine,
    go_on: bool,
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        if !self.go_on {
            return;
        }
        match self.machine.cont() {
            Ok(())
            | Err(MachineError::Dead { .. })
            | Err(MachineError::Qmp(QmpError::Closed { .. })) => {}
            Err(e) => tracing::error!(
                machine = self.machine.name(),
                "the machine stays paused after a failed capture: {e}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_video_memory_is_found_in_qemus_table() {
        let old = "              Block Name    PSize              Offset               Used              Total\r\n\
                                       ram0    4 KiB  0x0000000000000000 0x0000000004000000 0x0000000004000000\r\n\
                       0000:00:01.0/vga.vram    4 KiB  0x0000000004080000 0x0000000001000000 0x0000000001000000\r\n";
        assert_eq!(vram_size(old), Some(16 << 20));
        // QEMU 9 prints more columns.
        let new = "0000:00:01.0/vga.vram    4 KiB  0x0000000004080000 0x0000000000800000 0x0000000000800000 0x00007f 0 rw\n";
        assert_eq!(vram_size(new), Some(8 << 20));
        assert_eq!(vram_size("vga.vram 4 KiB"), None);
        assert_eq!(vram_size(""), None);
    }
}
