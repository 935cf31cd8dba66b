//! The programs in the guest of `floe-lab io-who`: each is this one under another name. They read the files that `/layout` places on the disk,
//! a line for each run of blocks: `DIRECTORY FILE OFFSET BYTES`.
//!
//! ```text
//! editor read launch 60            read the files 0 to 59 of `editor/launch`, one after the other, computing in between, and end
//! backup every 2000 files 8        read eight files of `backup/files` every two seconds, without end
//! ```
//!
//! It needs no crate: `floe-lab io-who` compiles it with `rustc -C target-feature=+crt-static`.
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Duration;

const DISK: &str = "/dev/vda";
/// `O_DIRECT` on x86-64: what is read comes from the disk, not from the guest's page cache.
const O_DIRECT: i32 = 0o40000;

#[repr(align(4096))]
struct Buffer([u8; 64 << 10]);

/// The runs of a directory's files, by file.
fn layout(of: &str) -> Vec<Vec<(u64, usize)>> {
    let text = std::fs::read_to_string("/layout").expect("the layout is in the initial RAM disk");
    let mut files: Vec<Vec<(u64, usize)>> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [directory, file, offset, bytes] = words[..] else {
            continue;
        };
        let (Ok(file), Ok(offset), Ok(bytes)) = (file.parse(), offset.parse(), bytes.parse())
        else {
            continue;
        };
        if directory == of {
            let file: usize = file;
            files.resize(files.len().max(file + 1), Vec::new());
            files[file].push((offset, bytes));
        }
    }
    files
}

fn read(disk: &File, runs: &[(u64, usize)]) {
    let mut buffer = Box::new(Buffer([0; 64 << 10]));
    for (offset, bytes) in runs {
        let mut done = 0;
        while done < *bytes {
            let most = (bytes - done).min(buffer.0.len());
            disk.read_exact_at(&mut buffer.0[..most], offset + done as u64)
                .expect("the disk is readable");
            done += most;
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let name = arguments[0].rsplit('/').next().unwrap_or_default();
    let word = |at: usize| arguments.get(at).map_or("", String::as_str);
    let number = |at: usize| word(at).parse::<u64>().unwrap_or(0);
    let disk = OpenOptions::new()
        .read(true)
        .custom_flags(O_DIRECT)
        .open(DISK)
        .expect("the guest has a disk");
    match word(1) {
        "read" => {
            let files = layout(&format!("{name}/{}", word(2)));
            let first = number(4) as usize;
            for (at, runs) in files
                .iter()
                .skip(first)
                .take(number(3) as usize)
                .enumerate()
            {
                read(&disk, runs);
                std::thread::sleep(Duration::from_millis(1 + at as u64 * 7 % 9));
            }
        }
        "every" => {
            let files = layout(&format!("{name}/{}", word(3)));
            let mut next = 0;
            loop {
                for _ in 0..number(4) {
                    read(&disk, &files[next % files.len()]);
                    next += 1;
                }
                std::thread::sleep(Duration::from_millis(number(2)));
            }
        }
        other => eprintln!("{name}: read or every, not {other:?}"),
    }
}
