//! What the programs of `floe-lab io` read, and how long they compute: the guest and the simulator follow the same script.

/// Size of what a file's place is a multiple of.
pub const BLOCK: u64 = 4096;
/// Where programs' and pages' files are, in bytes from the disk's beginning.
pub const FILES_BYTES: u64 = 96 << 20;
/// Reads of a launch, one after another.
pub const LAUNCH_READS: u64 = 60;

/// Returns a number that looks random and is the same each time.
pub fn mix(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Returns where file `number` of a program or page is, and its size, both in bytes.
pub fn file(of: u64, number: u64) -> (u64, usize) {
    let x = mix(of << 20 | number);
    let bytes = (1 + x % 4) * (16 << 10);
    (
        (x >> 8) % ((FILES_BYTES - bytes) / BLOCK) * BLOCK,
        bytes as usize,
    )
}

/// Returns how many microseconds a program computes after its read `number`: some thousand, now and then tens of thousands.
pub fn think_us(program: u64, number: u64) -> u64 {
    let x = mix(program ^ number << 8);
    match x % 5 {
        0 => 8_000 + x / 5 % 22_000,
        _ => 1_000 + x / 5 % 5_000,
    }
}
