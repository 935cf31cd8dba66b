//! Imports a raw disk into a repository and prints how fast that was:
//!
//! ```text
//! cargo run --release -p floe-store --example import -- disk.raw /tmp/repository [zstd level]
//! ```

use std::path::PathBuf;
use std::time::Instant;

use floe_image::MachineConfig;
use floe_store::{Ingest, IngestOptions, Repository};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(file), Some(dir)) = (args.next(), args.next()) else {
        return Err("usage: import FILE REPOSITORY [LEVEL]".into());
    };
    let mut options = IngestOptions::default();
    if let Some(level) = args.next() {
        options.level = level.parse()?;
    }
    let repository = Repository::create(&PathBuf::from(dir))?;
    let start = Instant::now();
    let mut ingest = Ingest::new(&repository, options)?;
    ingest.region_from_file("disk0", &PathBuf::from(file))?;
    let read = start.elapsed();
    let (id, stats) = ingest.finish_with_stats(MachineConfig::default())?;
    let all = start.elapsed();
    println!("{id}\n{stats:#?}");
    println!(
        "read, hashed, compressed {read:.2?}; published {all:.2?}: {:.0} MB/s",
        stats.bytes_in as f64 / 1e6 / all.as_secs_f64()
    );
    Ok(())
}
