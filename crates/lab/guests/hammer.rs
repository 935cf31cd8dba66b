//! The program in the guests of `floe-lab hammer`: it writes its disk without end, reports what is durable, and
//! constantly verifies disk and memory.
//!
//! Every 512-byte sector identifies the write that it came from: the write's number, its place, and 448 bytes that are
//! derived from both. The number of a write also determines which sectors it covers, so whoever knows how many writes
//! were acknowledged knows what each sector must at least contain. A write is acknowledged when an fsync after it has
//! succeeded.
//!
//! The program talks over the console, in lines with a checksum (a killed QEMU truncates lines, and the kernel writes
//! between them):
//!
//! ```text
//! guest: @H                                   has started; repeated until it is answered
//! host:  F ACKED DISK                         every write up to ACKED must be there; DISK identifies this disk's content
//! guest: @A ACKED PASSES RAM_PASSES LOST WRONG_DISK WRONG_RAM ERRORS
//! guest: @B WHAT                              what was found to be wrong
//! ```
//!
//! It needs no crate: `floe-lab hammer` compiles it with `rustc -C target-feature=+crt-static`.
use std::fs::{File, OpenOptions};
use std::io::{BufRead, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::mpsc;
use std::time::Duration;

const SECTOR: usize = 512;
const SECTORS: usize = 8;
const BLOCK: usize = SECTOR * SECTORS;
/// Blocks of the disk that are used: 4 MiB. A power of two, so that odd factors permute them.
const BLOCKS: u64 = 1024;
/// Writes before each fsync.
const BATCH: u64 = 16;
/// Blocks that are read again after each batch.
const READ_AGAIN: u64 = 64;
/// Pages of memory with a pattern, 8 MiB; then the numbers of pages that are checked, and changed, after each batch.
const PAGES: usize = 2048;
const PAGES_LOOKED_AT: usize = 128;
const PAGES_CHANGED: usize = 8;
/// Number of earlier writes that are searched for what a sector must contain: of BLOCKS writes, one goes to each block,
/// mostly to all of it.
const LOOK_BACK: u64 = 12 * BLOCKS;
/// Pause after each batch, so that two emulated guests leave the host some time.
const REST: Duration = Duration::from_millis(60);
/// `O_DIRECT` on x86-64: what is read again comes from the disk and not from the guest's page cache.
const O_DIRECT: i32 = 0o40000;
const MAGIC: u64 = 0x666c_6f65_6861_6d72;

#[repr(align(4096))]
struct Block([u8; BLOCK]);

fn mix(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Returns the block that a write goes to. Each pass goes through all blocks in another order.
fn block_of(write: u64) -> u64 {
    let (round, step) = ((write - 1) / BLOCKS, (write - 1) % BLOCKS);
    let random = mix(round);
    step.wrapping_mul(random | 1).wrapping_add(random >> 32) % BLOCKS
}

/// Returns the sectors of its block that a write covers: all of them, or some of them in one of four writes.
fn sectors_of(write: u64) -> std::ops::Range<usize> {
    let random = mix(write ^ MAGIC);
    if random & 3 != 0 {
        return 0..SECTORS;
    }
    let from = (random >> 8) as usize % SECTORS;
    let to = from + 1 + (random >> 16) as usize % (SECTORS - from);
    from..to
}

fn word_of(sector: &[u8], index: usize) -> u64 {
    let bytes = &sector[index * 8..index * 8 + 8];
    u64::from_le_bytes(bytes.try_into().unwrap_or_default())
}

fn fill(sector: &mut [u8], disk: u64, write: u64, place: u64) {
    let head = [MAGIC, write, place, disk];
    let seed = mix(write) ^ mix(place) ^ mix(disk);
    for (index, bytes) in sector.chunks_exact_mut(8).enumerate() {
        let word = head
            .get(index)
            .copied()
            .unwrap_or_else(|| seed.wrapping_mul(2 * index as u64 + 1));
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

/// Returns the write that a sector came from (0: never written); `None` if this program can't have written it there.
fn origin(sector: &[u8], disk: u64, place: u64) -> Option<u64> {
    if sector.iter().all(|byte| *byte == 0) {
        return Some(0);
    }
    let write = word_of(sector, 1);
    let (block, index) = (place / SECTORS as u64, (place % SECTORS as u64) as usize);
    if write == 0 || block_of(write) != block || !sectors_of(write).contains(&index) {
        return None;
    }
    let mut expected = [0; SECTOR];
    fill(&mut expected, disk, write, place);
    (sector == expected).then_some(write)
}

/// What was found to be wrong so far.
#[derive(Default)]
struct Found {
    lost: u64,
    wrong_disk: u64,
    wrong_ram: u64,
    errors: u64,
}

/// Prints a line with its checksum, whether or not anybody reads the console.
fn say(text: &str) {
    let sum = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(format!("\n@{text} *{:08x}\n", sum as u32).as_bytes());
    let _ = out.flush();
}

/// Repeats the hello until the host answers what must be there.
fn greet() -> (u64, u64) {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let mut words = line
                .split_ascii_whitespace()
                .skip_while(|word| *word != "F")
                .skip(1);
            let mut number = || words.next()?.parse::<u64>().ok();
            if let (Some(acked), Some(disk)) = (number(), number()) {
                let _ = sender.send((acked, disk));
                return;
            }
        }
    });
    loop {
        say("H");
        if let Ok(told) = receiver.recv_timeout(Duration::from_millis(500)) {
            return told;
        }
    }
}

struct Disk {
    file: File,
    id: u64,
    /// The write that each sector contains.
    holds: Vec<u64>,
    found: Found,
}

impl Disk {
    fn open(id: u64) -> Disk {
        let open = || {
            OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(O_DIRECT)
                .open("/dev/vda")
        };
        loop {
            match open() {
                Ok(file) => {
                    return Disk {
                        file,
                        id,
                        holds: vec![0; BLOCKS as usize * SECTORS],
                        found: Found::default(),
                    };
                }
                Err(error) => say(&format!("B cannot open the disk: {error}")),
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn read(&mut self, block: u64, buffer: &mut Block) -> bool {
        match self.file.read_exact_at(&mut buffer.0, block * BLOCK as u64) {
            Ok(()) => true,
            Err(error) => {
                self.found.errors += 1;
                say(&format!("B block {block} cannot be read: {error}"));
                false
            }
        }
    }

    /// Verifies after a start that every sector contains what was acknowledged, or something later.
    fn look_over(&mut self, acked: u64) {
        let mut least = vec![0; self.holds.len()];
        for write in acked.saturating_sub(LOOK_BACK).max(1)..=acked {
            let first = block_of(write) as usize * SECTORS;
            for sector in sectors_of(write) {
                least[first + sector] = write;
            }
        }
        let mut buffer = Block([0; BLOCK]);
        for block in 0..BLOCKS {
            if !self.read(block, &mut buffer) {
                continue;
            }
            for (index, sector) in buffer.0.chunks_exact(SECTOR).enumerate() {
                let place = block as usize * SECTORS + index;
                match origin(sector, self.id, place as u64) {
                    Some(write) => {
                        if write < least[place] {
                            self.found.lost += 1;
                            say(&format!(
                                "B sector {place} holds write {write}; {} was acknowledged, of {acked}",
                                least[place]
                            ));
                        }
                        self.holds[place] = write;
                    }
                    None => self.wrong(place, sector),
                }
            }
        }
    }

    fn wrong(&mut self, place: usize, sector: &[u8]) {
        self.found.wrong_disk += SECTOR as u64;
        let words: Vec<String> = (0..5)
            .map(|index| format!("{:x}", word_of(sector, index)))
            .collect();
        say(&format!(
            "B sector {place} should hold write {}; it begins with {}",
            self.holds[place],
            words.join(" ")
        ));
    }

    fn write(&mut self, write: u64, buffer: &mut Block) {
        let (block, sectors) = (block_of(write), sectors_of(write));
        let first = block as usize * SECTORS;
        for (index, sector) in buffer.0.chunks_exact_mut(SECTOR).enumerate() {
            fill(sector, self.id, write, (first + index) as u64);
        }
        // The kernel requires memory and length to be multiples of the disk's sectors of 512 bytes.
        let bytes = &buffer.0[sectors.start * SECTOR..sectors.end * SECTOR];
        let at = block * BLOCK as u64 + (sectors.start * SECTOR) as u64;
        self.insist("written", |file| file.write_all_at(bytes, at));
        for sector in sectors {
            self.holds[first + sector] = write;
        }
    }

    fn sync(&mut self) {
        self.insist("flushed", |file| file.sync_data());
    }

    /// Repeats an operation until it succeeds. Errors are reported and counted; nothing is acknowledged meanwhile.
    fn insist(&mut self, what: &str, operation: impl Fn(&File) -> std::io::Result<()>) {
        while let Err(error) = operation(&self.file) {
            self.found.errors += 1;
            say(&format!("B the disk cannot be {what}: {error}"));
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn verify(&mut self, block: u64, buffer: &mut Block) {
        if !self.read(block, buffer) {
            return;
        }
        for (index, sector) in buffer.0.chunks_exact(SECTOR).enumerate() {
            let place = block as usize * SECTORS + index;
            match origin(sector, self.id, place as u64) {
                Some(write) if write == self.holds[place] => {}
                Some(write) => {
                    self.found.lost += 1;
                    say(&format!(
                        "B sector {place} holds write {write} instead of {}",
                        self.holds[place]
                    ));
                }
                None => self.wrong(place, sector),
            }
        }
    }
}

/// Pages whose content is derived from how often they were changed.
struct Memory {
    words: Vec<u64>,
    changes: Vec<u64>,
}

const WORDS: usize = BLOCK / 8;

impl Memory {
    fn new() -> Memory {
        let mut memory = Memory {
            words: vec![0; PAGES * WORDS],
            changes: vec![0; PAGES],
        };
        (0..PAGES).for_each(|page| memory.change(page));
        memory
    }

    fn seed(&self, page: usize) -> u64 {
        mix(page as u64) ^ mix(self.changes[page] ^ MAGIC)
    }

    fn change(&mut self, page: usize) {
        self.changes[page] += 1;
        let seed = self.seed(page);
        for (index, word) in self.words[page * WORDS..][..WORDS].iter_mut().enumerate() {
            *word = seed.wrapping_mul(2 * index as u64 + 1);
        }
    }

    /// Returns the number of wrong bytes in a page.
    fn verify(&self, page: usize) -> u64 {
        let seed = self.seed(page);
        let words = self.words[page * WORDS..][..WORDS].iter().enumerate();
        8 * words
            .filter(|(index, word)| **word != seed.wrapping_mul(2 * *index as u64 + 1))
            .count() as u64
    }
}

fn main() {
    let mut memory = Memory::new();
    let (acked, id) = greet();
    let mut disk = Disk::open(id);
    disk.look_over(acked);
    // Writes that were not acknowledged are repeated, identically.
    let mut write = acked;
    let (mut block, mut passes) = (0, 0u64);
    let (mut page, mut ram_passes) = (0, 0u64);
    let mut buffer = Block([0; BLOCK]);
    loop {
        for _ in 0..BATCH {
            write += 1;
            disk.write(write, &mut buffer);
        }
        disk.sync();
        for _ in 0..READ_AGAIN {
            disk.verify(block, &mut buffer);
            block = (block + 1) % BLOCKS;
            passes += u64::from(block == 0);
        }
        for _ in 0..PAGES_LOOKED_AT {
            let wrong = memory.verify(page);
            if wrong > 0 {
                disk.found.wrong_ram += wrong;
                say(&format!("B page {page} of memory has {wrong} wrong bytes"));
                memory.change(page);
            }
            page = (page + 1) % PAGES;
            ram_passes += u64::from(page == 0);
        }
        for change in 0..PAGES_CHANGED as u64 {
            memory.change(mix(write ^ change) as usize % PAGES);
        }
        let Found {
            lost,
            wrong_disk,
            wrong_ram,
            errors,
        } = disk.found;
        say(&format!(
            "A {write} {passes} {ram_passes} {lost} {wrong_disk} {wrong_ram} {errors}"
        ));
        std::thread::sleep(REST);
    }
}
