//! Does to a machine's disk what a recorded machine did: touches the same chunks in the same order, with the same time for itself
//! between them.
use super::script::Run;
use anyhow::{Context as _, ensure};
use floe_image::CHUNK_SIZE;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// Shorter times are saved up: a thread that sleeps wakes up this much too late at worst.
const SLEEP_MIN: Duration = Duration::from_micros(300);

/// Touches everything, from the disk's file on the mount. Returns how long the disk was waited for.
pub fn play(disk: &Path, run: &Run) -> anyhow::Result<Duration> {
    // a guest's disk is opened this way, too: each request reaches the mount
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(disk);
    let file = file.with_context(|| format!("cannot open {}", disk.display()))?;
    let mut page = Page::new();
    let began = Instant::now();
    let mut waited = Duration::ZERO;
    for (t_us, chunk) in &run.accesses {
        sleep_until(began + Duration::from_micros(*t_us) + waited);
        let asked = Instant::now();
        touch(&file, *chunk, page.bytes())?;
        waited += asked.elapsed();
    }
    std::thread::sleep(
        (began + Duration::from_micros(run.end_us) + waited)
            .saturating_duration_since(Instant::now()),
    );
    Ok(waited)
}

fn sleep_until(due: Instant) {
    let left = due.saturating_duration_since(Instant::now());
    if left >= SLEEP_MIN {
        std::thread::sleep(left);
    }
}

fn touch(file: &File, chunk: u32, page: &mut [u8]) -> anyhow::Result<()> {
    let read = file.read_at(page, u64::from(chunk) * CHUNK_SIZE as u64);
    let read = read.with_context(|| format!("cannot read chunk {chunk}"))?;
    ensure!(read == page.len(), "chunk {chunk} is cut short");
    Ok(())
}

/// A buffer that direct reads take: it begins at a multiple of its size.
struct Page(Vec<u8>, usize);

impl Page {
    fn new() -> Page {
        let bytes = vec![0; 2 * CHUNK_SIZE];
        let at = bytes.as_ptr().align_offset(CHUNK_SIZE);
        Page(bytes, at)
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.0[self.1..self.1 + CHUNK_SIZE]
    }
}
