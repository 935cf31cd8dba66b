//! The program in the guests of `floe-lab io`: it does what a user's programs do to a disk, and tells how long that took.
//!
//! It reads past the guest's page cache (O_DIRECT), so every launch is a cold one. Commands come over the serial line, each is answered by a line that begins with `@`:
//!
//! ```text
//! play NAME                 -> @play MICROSECONDS WAITED    the requests of the launch in /launches/NAME, and how long of that it waited for the disk
//! noise KIND SECONDS        -> @noise REQUESTS MICROSECONDS     reader, stream, boot or sync
//! ```
//!
//! It needs no crate: `floe-lab io` compiles it with `rustc -C target-feature=+crt-static`.
#[allow(dead_code)]
mod io_files;
#[allow(dead_code)]
mod io_script;

use io_files::{FILES_BYTES, mix};
use io_script::{Does, Recorded, Script};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const DISK: &str = "/dev/vda";
/// `O_DIRECT` on x86-64.
const O_DIRECT: i32 = 0o40000;

#[repr(align(4096))]
struct Buffer([u8; 64 << 10]);

fn read(disk: &File, buffer: &mut Buffer, (offset, bytes): (u64, usize)) {
    if let Err(error) = disk.read_exact_at(&mut buffer.0[..bytes], offset) {
        println!("@error cannot read {bytes} bytes at {offset}: {error}");
    }
}

fn write_all(disk: &File, offset: u64, bytes: usize) {
    let block = Buffer([5; 64 << 10]);
    for from in (0..bytes).step_by(block.0.len()) {
        let part = &block.0[..block.0.len().min(bytes - from)];
        if let Err(error) = disk.write_all_at(part, offset + from as u64) {
            println!("@error cannot write at {offset}: {error}");
        }
    }
}

/// Makes the requests of a launch: those that were made together at the same time, and each such group after the one before was done.
/// Returns how long it took and how long of that it waited for the disk, in microseconds.
fn play(disk: &File, script: &Script) -> (u64, u64) {
    let (start, mut waited) = (Instant::now(), Duration::ZERO);
    let mut rest = &script.requests[..];
    while let Some(first) = rest.first() {
        let more = rest[1..]
            .iter()
            .take_while(|request| request.think_us.is_none());
        let (group, later) = rest.split_at(1 + more.count());
        rest = later;
        std::thread::sleep(Duration::from_micros(script.think_us(first).unwrap_or(0)));
        let began = Instant::now();
        std::thread::scope(|scope| {
            for request in &group[1..] {
                scope.spawn(|| serve(disk, request));
            }
            serve(disk, first);
        });
        waited += began.elapsed();
    }
    (
        start.elapsed().as_micros() as u64,
        waited.as_micros() as u64,
    )
}

fn serve(disk: &File, request: &Recorded) {
    match request.does {
        Does::Read => {
            let mut buffer = Large::new(request.bytes);
            if let Err(error) = disk.read_exact_at(buffer.first(request.bytes), request.offset) {
                println!(
                    "@error cannot read {} bytes at {}: {error}",
                    request.bytes, request.offset
                );
            }
        }
        Does::Write => write_all(disk, request.offset, request.bytes),
        Does::Flush => {
            let _ = disk.sync_data();
        }
    }
}

/// Bytes at a place that direct I/O may use.
struct Large {
    bytes: Vec<u8>,
    from: usize,
}

impl Large {
    fn new(bytes: usize) -> Large {
        let all = vec![0; bytes + 4096];
        let from = all.as_ptr().align_offset(4096);
        Large { bytes: all, from }
    }

    fn first(&mut self, bytes: usize) -> &mut [u8] {
        &mut self.bytes[self.from..][..bytes]
    }
}

/// Keeps the disk busy; returns how many requests were served.
fn noise(kind: &str, seconds: u64) -> u64 {
    let until = Instant::now() + Duration::from_secs(seconds);
    let blocks = FILES_BYTES / (64 << 10);
    let served = AtomicU64::new(0);
    let served = &served;
    let threads = if kind == "boot" { 5 } else { 4 };
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let disk = open();
                let mut buffer = Box::new(Buffer([thread as u8; 64 << 10]));
                let mut number = mix(thread);
                while Instant::now() < until {
                    number = mix(number);
                    let offset = number % blocks * (64 << 10);
                    let pause = match (kind, thread) {
                        ("reader", _) => {
                            read(&disk, &mut buffer, (offset, 16 << 10));
                            0
                        }
                        ("boot", 0 | 1) => {
                            read(&disk, &mut buffer, (offset, 32 << 10));
                            100 + number % 5_900
                        }
                        ("boot", 2 | 3) => {
                            let _ = disk.write_all_at(&buffer.0, offset);
                            2_000 + number % 18_000
                        }
                        ("boot", _) => {
                            let _ = disk.sync_data();
                            50_000 + number % 250_000
                        }
                        _ => {
                            let _ = disk.write_all_at(&buffer.0[..16 << 10], offset);
                            let _ = disk.sync_data();
                            0
                        }
                    };
                    served.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_micros(pause));
                }
            });
        }
    });
    served.load(Ordering::Relaxed)
}

fn open() -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(O_DIRECT)
        .open(DISK)
        .expect("the guest has a disk")
}

fn main() {
    println!("@ready");
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|w| w.parse().ok()).unwrap_or(0);
        match words.first().copied() {
            Some("play") => {
                let path = format!("/launches/{}", words.get(1).copied().unwrap_or(""));
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                match Script::parse(&text) {
                    Ok(script) => {
                        let (took, waited) = play(&open(), &script);
                        println!("@play {took} {waited}");
                    }
                    Err(error) => println!("@error {path}: {error}"),
                }
            }
            Some("noise") => {
                let start = Instant::now();
                let served = noise(words.get(1).copied().unwrap_or(""), number(2));
                println!("@noise {served} {}", start.elapsed().as_micros());
            }
            Some(other) => println!("@error what is {other}?"),
            None => {}
        }
        let _ = std::io::stdout().flush();
    }
}
