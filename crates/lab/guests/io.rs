//! The program in the guests of `floe-lab io`: it does what a user's programs do to a disk, and tells how long that took.
//!
//! It reads past the guest's page cache (O_DIRECT), so every launch is a cold one. A file is a range of the disk; which ranges belong
//! to a program or a page follows from its number. Commands come over the serial line, each is answered by a line that begins with `@`:
//!
//! ```text
//! launch PROGRAM            -> @launch MICROSECONDS     60 reads of 16 to 64 KiB that depend on each other, some computing between them
//! page PAGE                 -> @page MICROSECONDS       a read, then 12 more, four at a time
//! video SECONDS             -> @video FRAMES DROPPED    25 frames of 40 KiB a second, eight of them read ahead
//! noise KIND SECONDS        -> @noise REQUESTS MICROSECONDS     reader, stream, boot or sync
//! ```
//!
//! It needs no crate: `floe-lab io` compiles it with `rustc -C target-feature=+crt-static`.
mod io_files;

use io_files::{FILES_BYTES, LAUNCH_READS, file, mix, think_us};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const DISK: &str = "/dev/vda";
/// `O_DIRECT` on x86-64.
const O_DIRECT: i32 = 0o40000;
/// What the film has, after the files.
const FILM_BYTES: u64 = 24 << 20;
const PAGE_READS: u64 = 12;
const PAGE_AT_ONCE: u64 = 4;
const FRAME_BYTES: usize = 40 << 10;
const FRAME: Duration = Duration::from_millis(40);
const FRAMES_AHEAD: usize = 8;

#[repr(align(4096))]
struct Buffer([u8; 64 << 10]);

fn read(disk: &File, buffer: &mut Buffer, (offset, bytes): (u64, usize)) {
    if let Err(error) = disk.read_exact_at(&mut buffer.0[..bytes], offset) {
        println!("@error cannot read {bytes} bytes at {offset}: {error}");
    }
}

fn launch(disk: &File, program: u64) -> u64 {
    let (start, mut buffer) = (Instant::now(), Box::new(Buffer([0; 64 << 10])));
    for number in 0..LAUNCH_READS {
        read(disk, &mut buffer, file(program, number));
        std::thread::sleep(Duration::from_micros(think_us(program, number)));
    }
    start.elapsed().as_micros() as u64
}

fn page(disk: &File, page: u64) -> u64 {
    let (start, of) = (Instant::now(), 1000 + page);
    let next = AtomicU64::new(1);
    let mut buffer = Box::new(Buffer([0; 64 << 10]));
    read(disk, &mut buffer, file(of, 0));
    std::thread::scope(|scope| {
        for _ in 0..PAGE_AT_ONCE {
            scope.spawn(|| {
                let mut buffer = Box::new(Buffer([0; 64 << 10]));
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number > PAGE_READS {
                        return;
                    }
                    read(disk, &mut buffer, file(of, number));
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
        }
    });
    start.elapsed().as_micros() as u64
}

/// Plays a film: a frame that isn't there within its own 40 ms is dropped, and passed over when it comes.
fn video(disk: File, seconds: u64) -> (u64, u64) {
    let frames = seconds * 25;
    let (bring, frames_read) = mpsc::sync_channel(FRAMES_AHEAD);
    std::thread::spawn(move || {
        let mut buffer = Box::new(Buffer([0; 64 << 10]));
        for frame in 0..frames {
            let offset = frame * FRAME_BYTES as u64 % FILM_BYTES;
            read(&disk, &mut buffer, (FILES_BYTES + offset, FRAME_BYTES));
            if bring.send(frame).is_err() {
                return;
            }
        }
    });
    // A player begins once it has read ahead.
    let mut newest = frames_read.recv().unwrap_or(0);
    std::thread::sleep(FRAME * FRAMES_AHEAD as u32);
    let (start, mut dropped) = (Instant::now(), 0);
    for frame in 1..frames {
        let until = start + FRAME * (frame as u32 + 1);
        while newest < frame {
            let left = until.saturating_duration_since(Instant::now());
            match frames_read.recv_timeout(left) {
                Ok(came) => newest = came,
                Err(_) => break,
            }
        }
        dropped += u64::from(newest < frame);
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }
    (frames, dropped)
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
            Some("launch") => println!("@launch {}", launch(&open(), number(1))),
            Some("page") => println!("@page {}", page(&open(), number(1))),
            Some("video") => {
                let (frames, dropped) = video(open(), number(1));
                println!("@video {frames} {dropped}");
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
