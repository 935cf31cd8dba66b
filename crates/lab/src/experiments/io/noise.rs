//! Noisy machines: requests like those of a machine, made to its disk's file. On a mount, the file says which machine it is; on a raw
//! file, the thread's control group does.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A noisy machine's disk. A power of two, so that odd steps reach every block.
pub const DISK_BYTES: u64 = 64 << 20;
/// From one block to the next that is read, in blocks: far, and all are read before one is read again.
const STEP: u64 = 2_731;

/// What a noisy machine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Four random reads of 16 KiB at a time, without end.
    Reader,
    /// What an operating system does that boots: it reads (two at a time), logs (two writes at a time), and flushes its log.
    Boot,
    /// Four small writes at a time, each followed by a flush.
    Sync,
}

impl Kind {
    fn threads(self) -> u64 {
        match self {
            Kind::Reader | Kind::Sync => 4,
            Kind::Boot => 5,
        }
    }
}

/// What a machine got.
#[derive(Clone, Copy, Debug, Default)]
pub struct Got {
    pub requests: f64,
    pub waited_us: f64,
}

impl Got {
    /// Returns what came after `earlier`.
    pub fn since(self, earlier: Got) -> Got {
        Got {
            requests: self.requests - earlier.requests,
            waited_us: self.waited_us - earlier.waited_us,
        }
    }

    /// Returns the mean time of a request.
    pub fn mean_us(self) -> f64 {
        self.waited_us / self.requests.max(1.0)
    }
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    next: AtomicU64,
    requests: AtomicU64,
    waited_us: AtomicU64,
}

/// A noisy machine at work, until it is dropped.
pub struct Noise {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Noise {
    /// Starts it on the file of its disk. `group` is the control group of its threads.
    pub fn start(kind: Kind, file: &Path, group: Option<PathBuf>) -> anyhow::Result<Noise> {
        let shared = Arc::new(Shared::default());
        let mut noise = Noise {
            shared: shared.clone(),
            threads: Vec::new(),
        };
        for thread in 0..kind.threads() {
            let disk = File::options()
                .read(true)
                .write(true)
                .custom_flags(libc::O_DIRECT)
                .open(file)?;
            let (shared, group) = (shared.clone(), group.clone());
            let name = format!("noise-{thread}");
            noise
                .threads
                .push(std::thread::Builder::new().name(name).spawn(move || {
                    // 0 is the thread that writes
                    if let Some(group) = group
                        && let Err(error) = std::fs::write(group.join("tasks"), "0")
                    {
                        eprintln!("io: {}: {error}", group.display());
                    }
                    run(kind, thread, &disk, &shared);
                })?);
        }
        Ok(noise)
    }

    /// Returns what it has got so far.
    pub fn got(&self) -> Got {
        Got {
            requests: self.shared.requests.load(Relaxed) as f64,
            waited_us: self.shared.waited_us.load(Relaxed) as f64,
        }
    }
}

impl Drop for Noise {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[repr(align(4096))]
struct Buffer([u8; 64 << 10]);

fn run(kind: Kind, thread: u64, disk: &File, shared: &Shared) {
    let mut buffer = Box::new(Buffer([thread as u8 + 1; 64 << 10]));
    let mut random = (thread + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while !shared.stop.load(Relaxed) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let number = shared.next.fetch_add(1, Relaxed);
        let place = |bytes: u64| number.wrapping_mul(STEP) % (DISK_BYTES / bytes) * bytes;
        let start = Instant::now();
        let (done, pause_us) = match (kind, thread) {
            (Kind::Reader, _) => (
                read(disk, &mut buffer.0[..16 << 10], place(16 << 10)),
                25 + random % 75,
            ),
            (Kind::Boot, 0 | 1) => (
                read(disk, &mut buffer.0[..32 << 10], place(32 << 10)),
                100 + random % 5_900,
            ),
            (Kind::Boot, 2 | 3) => (
                disk.write_all_at(&buffer.0, place(64 << 10)),
                2_000 + random % 18_000,
            ),
            (Kind::Boot, _) => (disk.sync_data(), 50_000 + random % 250_000),
            (Kind::Sync, _) => {
                let wrote = disk.write_all_at(&buffer.0[..16 << 10], place(16 << 10));
                (wrote.and_then(|()| disk.sync_data()), 0)
            }
        };
        if let Err(error) = done {
            eprintln!("io: a noisy machine's request failed: {error}");
            return;
        }
        shared
            .waited_us
            .fetch_add(start.elapsed().as_micros() as u64, Relaxed);
        shared.requests.fetch_add(1, Relaxed);
        std::thread::sleep(Duration::from_micros(pause_us));
    }
}

fn read(disk: &File, into: &mut [u8], offset: u64) -> std::io::Result<()> {
    disk.read_exact_at(into, offset)
}
