//! Measures how much processor time the cache's operations take, in a directory of your choice:
//!
//! ```text
//! cargo run --release -p floe-store --example cache -- /var/tmp/floe-cache
//! ```

use std::path::PathBuf;
use std::time::Duration;

use floe_image::{CHUNK_SIZE, Hash};
use floe_store::Cache;

/// 128 MiB of chunks: they fit into the page cache, but not into the processor's.
const CHUNKS: u64 = 32 * 1024;

fn chunk(n: u64) -> [u8; CHUNK_SIZE] {
    let mut data = [1u8; CHUNK_SIZE];
    data[..8].copy_from_slice(&n.to_le_bytes());
    data
}

/// Returns this thread's time on a processor, so that other programs don't count.
fn busy() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = PathBuf::from(std::env::args().nth(1).ok_or("usage: cache DIRECTORY")?);
    let cache = Cache::open(&dir, 1 << 30)?;
    let hashes: Vec<Hash> = (0..CHUNKS).map(|n| Hash::of(&chunk(n))).collect();
    let each = |start: Duration| (busy() - start).as_secs_f64() * 1e6 / CHUNKS as f64;
    let start = busy();
    for (n, hash) in hashes.iter().enumerate() {
        cache.put(hash, &chunk(n as u64), None)?;
    }
    println!("put       {:.2} us a chunk", each(start));
    let pin = cache.pin();
    let mut out = [0u8; CHUNK_SIZE];
    for (what, pin) in [("get      ", None), ("get, pin ", Some(&pin))] {
        let start = busy();
        for n in 0..CHUNKS {
            // Visits each chunk once: 40503 is odd, and the count is a power of two.
            assert!(cache.get(&hashes[(n * 40503 % CHUNKS) as usize], &mut out, pin)?);
        }
        println!("{what} {:.2} us a chunk, random", each(start));
    }
    drop((pin, cache));
    let start = busy();
    let cache = Cache::open(&dir, 1 << 30)?;
    println!(
        "open      {:.1} ms for {} chunks",
        (busy() - start).as_secs_f64() * 1e3,
        cache.stats().chunks
    );
    Ok(())
}
