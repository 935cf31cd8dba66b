//! The program of `floe-lab switch`, in its guest and on its host: two processes that hand a byte to each other, as lmbench has it.
//!
//! ```text
//! floe-switch pair SECONDS KIB     -> @pair COUNT MICROSECONDS    a byte goes to another process and comes back; both then touch so many KiB
//! floe-switch alone SECONDS KIB    -> @alone COUNT MICROSECONDS   the same bytes and touches of one of them, without another
//! floe-switch call SECONDS 0       -> @call COUNT MICROSECONDS    a system call that does nothing
//! ```
//!
//! Both processes must have the same processor, which is up to who starts it. It needs no crate: `floe-lab switch` compiles it with
//! `rustc -C target-feature=+crt-static`.
use std::fs::File;
use std::hint::black_box;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::parent_id;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What is done between two looks at the clock.
const AT_A_TIME: u64 = 64;
/// Words of a KiB, and of a line of the cache.
const KIB_WORDS: usize = 128;
const LINE_WORDS: usize = 8;

/// What a process keeps in the processor's caches.
struct Memory(Vec<u64>);

impl Memory {
    fn new(kib: usize) -> Memory {
        Memory(vec![1; kib * KIB_WORDS])
    }

    fn touch(&mut self) {
        for word in self.0.iter_mut().step_by(LINE_WORDS) {
            *word = black_box(*word).wrapping_add(1);
        }
    }
}

/// Does something again and again for so long. Returns how often, and for how long it was.
fn again(time: Duration, mut once: impl FnMut() -> io::Result<()>) -> io::Result<(u64, Duration)> {
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < time {
        for _ in 0..AT_A_TIME {
            once()?;
        }
        count += AT_A_TIME;
    }
    Ok((count, began.elapsed()))
}

/// The other one of a pair: it sends back what comes, until nothing comes any more.
fn echo(kib: usize) -> io::Result<()> {
    // without the standard library's buffers
    let mut from = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut to = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let (mut memory, mut byte) = (Memory::new(kib), [0u8]);
    while from.read(&mut byte)? > 0 {
        memory.touch();
        to.write_all(&byte)?;
    }
    Ok(())
}

fn pair(time: Duration, kib: usize) -> io::Result<(u64, Duration)> {
    let mut other = Command::new(std::env::current_exe()?)
        .args(["echo", "0", &kib.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (to, from) = (other.stdin.take(), other.stdout.take());
    let (Some(mut to), Some(mut from)) = (to, from) else {
        return Err(io::Error::other("it was started without pipes"));
    };
    let (mut memory, mut byte) = (Memory::new(kib), [0u8]);
    let told = again(time, || {
        to.write_all(&byte)?;
        from.read_exact(&mut byte)?;
        memory.touch();
        Ok(())
    });
    drop(to);
    other.wait()?;
    told
}

fn alone(time: Duration, kib: usize) -> io::Result<(u64, Duration)> {
    let (mut from, mut to): (PipeReader, PipeWriter) = io::pipe()?;
    let (mut memory, mut byte) = (Memory::new(kib), [0u8]);
    again(time, || {
        to.write_all(&byte)?;
        from.read_exact(&mut byte)?;
        memory.touch();
        Ok(())
    })
}

fn call(time: Duration) -> io::Result<(u64, Duration)> {
    again(time, || {
        black_box(parent_id());
        Ok(())
    })
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u32>().ok());
    let (Some(what), Some(seconds), Some(kib)) = (words.get(1), number(2), number(3)) else {
        println!("@error floe-switch pair|alone|call SECONDS KIB");
        return;
    };
    let (time, kib) = (Duration::from_secs(seconds.into()), kib as usize);
    let told = match what.as_str() {
        "pair" => pair(time, kib),
        "alone" => alone(time, kib),
        "call" => call(time),
        "echo" => {
            // who has started it sees that nothing comes back
            let _ = echo(kib);
            return;
        }
        other => Err(io::Error::other(format!("no program {other}"))),
    };
    match told {
        Ok((count, took)) => println!("@{what} {count} {}", took.as_micros()),
        Err(error) => println!("@error {error}"),
    }
}
