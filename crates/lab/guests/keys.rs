//! The program of `floe-lab input` in its guest: writes down what the kernel tells programs of the keyboard and the pointer that floe's agent
//! has made, a line each: `CODE VALUE` of a key into `/keys`, the place from the left into `/points`, and `dropped` where it was too slow for
//! the kernel.
//!
//! It needs no crate: `floe-lab input` compiles it with `rustc -C target-feature=+crt-static`.
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// `struct input_event` of linux/input.h: two words of time, the kind, the code, the value.
const EVENT_BYTES: usize = 24;
/// How many are read at a time.
const EVENTS: usize = 64;
/// Kinds of events, and codes of them (linux/input-event-codes.h).
const SYN: u16 = 0;
const KEY: u16 = 1;
const ABS: u16 = 3;
const SYN_DROPPED: u16 = 3;
const ABS_X: u16 = 0;
/// How often a device is looked for that is not there yet.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The policy of processes that go before all others until they wait (sched.h), and the least priority of it.
const SCHED_FIFO: i32 = 1;
const PRIORITY: i32 = 1;

unsafe extern "C" {
    /// Of the C library.
    fn sched_setscheduler(process: i32, policy: i32, priority: *const i32) -> i32;
}

/// What a program learns by an event.
type Line = fn(u16, u16, i32) -> Option<String>;

fn main() {
    // the kernel keeps 64 events for a program, and the agent may say more of them at once
    // SAFETY: `struct sched_param` is one int, which lives until the call has returned
    if unsafe { sched_setscheduler(0, SCHED_FIFO, &PRIORITY) } != 0 {
        panic!("no priority: {}", io::Error::last_os_error());
    }
    let keys = thread::spawn(|| watch("floe keyboard", "/keys", key));
    watch("floe pointer", "/points", point).expect("the pointer's events");
    keys.join()
        .expect("no panic")
        .expect("the keyboard's events");
}

/// A key that goes up or down; that it is down still is no news.
fn key(kind: u16, code: u16, value: i32) -> Option<String> {
    (kind == KEY && value < 2).then(|| format!("{code} {value}\n"))
}

fn point(kind: u16, code: u16, value: i32) -> Option<String> {
    (kind == ABS && code == ABS_X).then(|| format!("{value}\n"))
}

/// Writes down the events of a device, from when it is there on.
fn watch(name: &str, to: &str, line: Line) -> io::Result<()> {
    let mut device = File::open(find(name))?;
    let mut out = File::create(to)?;
    let mut bytes = [0; EVENTS * EVENT_BYTES];
    loop {
        let count = device.read(&mut bytes)?;
        let mut lines = String::new();
        for event in bytes[..count].chunks_exact(EVENT_BYTES) {
            let half = |at: usize| u16::from_ne_bytes([event[at], event[at + 1]]);
            let value = i32::from_ne_bytes([event[20], event[21], event[22], event[23]]);
            match (half(16), half(18)) {
                (SYN, SYN_DROPPED) => lines += "dropped\n",
                (kind, code) => lines.extend(line(kind, code, value)),
            }
        }
        out.write_all(lines.as_bytes())?;
    }
}

/// Waits for a device of this name. Returns where programs read it.
fn find(name: &str) -> PathBuf {
    loop {
        let listed = fs::read_dir("/sys/class/input").into_iter().flatten();
        for entry in listed.flatten() {
            let number = entry.file_name();
            let device = Path::new("/dev/input").join(&number);
            let named = fs::read_to_string(entry.path().join("device/name"));
            let is_it = named.is_ok_and(|named| named.trim() == name);
            if is_it && number.to_string_lossy().starts_with("event") && device.exists() {
                return device;
            }
        }
        thread::sleep(LOOK_EVERY);
    }
}
