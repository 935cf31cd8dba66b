//! The program in the disk's boot sector. In a small machine it stops at once, and takes no time of the host's processors. In a larger one
//! it reads chunks of the disk through the BIOS, one after the other as a list on the disk says, and tells their checksum on the serial
//! line: a real guest, whose bytes come through QEMU.
use anyhow::ensure;
use floe_image::CHUNK_SIZE;

/// Memory of a machine that stops at once, and of one that reads: the program draws the line at 80 MiB.
pub const STOPS_BYTES: u64 = 64 << 20;
pub const READS_BYTES: u64 = 128 << 20;
/// Most chunks of a list: the BIOS reads it at once.
pub const LIST_MAX: usize = LIST_SECTORS_MAX * SECTOR_BYTES / 4;
const LIST_SECTORS_MAX: usize = 127;
const SECTOR_BYTES: usize = 512;
/// How the checksum is told: digits of 16 kinds from this one on.
const FIRST_DIGIT: u8 = b'A';
/// What is told where the BIOS can't read.
const CANNOT_READ: char = '!';

/// Where its data is in the sector: the number of chunks (2 bytes), what the BIOS is asked (16 bytes; at first, for the list), the checksum
/// (4 bytes), the disk's number at the BIOS (1 byte), and what a BIOS looks for.
const COUNT_AT: usize = 480;
const ASK_AT: usize = 484;
const BOOTABLE_AT: usize = 510;
const BOOTABLE: [u8; 2] = [0x55, 0xaa];

/// Machine code of 16 bits, without absolute jumps.
#[rustfmt::skip]
const PROGRAM: [u8; 162] = [
    0x31, 0xc0,                                // xor ax, ax
    0x8e, 0xd8,                                // mov ds, ax
    0x8e, 0xd0,                                // mov ss, ax
    0xbc, 0x00, 0x7c,                          // mov sp, 0x7c00
    0x88, 0x16, 0xf8, 0x7d,                    // mov [disk], dl
    0xfc,                                      // cld
    0xb8, 0x01, 0xe8,                          // mov ax, 0xe801: how much memory?
    0x31, 0xd2,                                // xor dx, dx
    0xcd, 0x15,                                // int 0x15
    0x72, 0x69,                                // jc stop
    0x81, 0xfa, 0x00, 0x04,                    // cmp dx, 1024: of 64 KiB, above 16 MiB
    0x72, 0x63,                                // jb stop
    0xe8, 0x69, 0x00,                          // call read: the list
    0x31, 0xdb,                                // xor bx, bx
    0xb8, 0x00, 0x10,                          // next: mov ax, 0x1000
    0x8e, 0xc0,                                // mov es, ax
    0x26, 0x66, 0x8b, 0x07,                    // mov eax, es:[bx]
    0x66, 0xc1, 0xe0, 0x03,                    // shl eax, 3
    0x66, 0xa3, 0xec, 0x7d,                    // mov [ask + 8], eax: from this sector
    0xc7, 0x06, 0xe6, 0x7d, 0x08, 0x00,        // mov word ptr [ask + 2], 8: sectors
    0xc7, 0x06, 0xea, 0x7d, 0x00, 0x20,        // mov word ptr [ask + 6], 0x2000: to this segment
    0xe8, 0x47, 0x00,                          // call read
    0x66, 0x8b, 0x16, 0xf4, 0x7d,              // mov edx, [sum]
    0x1e,                                      // push ds
    0xb8, 0x00, 0x20,                          // mov ax, 0x2000
    0x8e, 0xd8,                                // mov ds, ax
    0x31, 0xf6,                                // xor si, si
    0xb9, 0x00, 0x04,                          // mov cx, 1024
    0x66, 0xad,                                // add: lodsd
    0x66, 0xd1, 0xc2,                          // rol edx, 1
    0x66, 0x31, 0xc2,                          // xor edx, eax
    0xe2, 0xf6,                                // loop add
    0x1f,                                      // pop ds
    0x66, 0x89, 0x16, 0xf4, 0x7d,              // mov [sum], edx
    0x83, 0xc3, 0x04,                          // add bx, 4
    0xff, 0x0e, 0xe0, 0x7d,                    // dec word ptr [count]
    0x75, 0xb7,                                // jnz next
    0xb9, 0x08, 0x00,                          // mov cx, 8
    0x66, 0xc1, 0x06, 0xf4, 0x7d, 0x04,        // digit: rol dword ptr [sum], 4
    0xa0, 0xf4, 0x7d,                          // mov al, [sum]
    0x24, 0x0f,                                // and al, 15
    0x04, 0x41,                                // add al, 'A'
    0xe8, 0x1f, 0x00,                          // call say
    0xe2, 0xee,                                // loop digit
    0xb0, 0x0a,                                // stop: mov al, '\n'
    0xe8, 0x18, 0x00,                          // call say
    0xfa,                                      // halt: cli
    0xf4,                                      // hlt
    0xeb, 0xfc,                                // jmp halt
    0xb4, 0x42,                                // read: mov ah, 0x42
    0x8a, 0x16, 0xf8, 0x7d,                    // mov dl, [disk]
    0xbe, 0xe4, 0x7d,                          // mov si, ask
    0xcd, 0x13,                                // int 0x13
    0x73, 0x0b,                                // jnc back
    0xb0, 0x21,                                // mov al, '!'
    0xe8, 0x02, 0x00,                          // call say
    0xeb, 0xe3,                                // jmp stop
    0xba, 0xf8, 0x03,                          // say: mov dx, 0x3f8
    0xee,                                      // out dx, al
    0xc3,                                      // back: ret
];

/// Returns the boot sector for a list of so many chunks that begins at this byte of the disk.
pub fn boot_sector(chunks: usize, list_at: u64) -> anyhow::Result<[u8; SECTOR_BYTES]> {
    ensure!(
        (1..=LIST_MAX).contains(&chunks),
        "a list of {chunks} chunks"
    );
    let mut sector = [0; SECTOR_BYTES];
    sector[..PROGRAM.len()].copy_from_slice(&PROGRAM);
    sector[COUNT_AT..COUNT_AT + 2].copy_from_slice(&(chunks as u16).to_le_bytes());
    let sectors = (4 * chunks).div_ceil(SECTOR_BYTES) as u16;
    let ask = &mut sector[ASK_AT..ASK_AT + 16];
    ask[0] = 16; // bytes of this
    ask[2..4].copy_from_slice(&sectors.to_le_bytes());
    ask[6..8].copy_from_slice(&0x1000u16.to_le_bytes()); // to this segment
    ask[8..].copy_from_slice(&(list_at / SECTOR_BYTES as u64).to_le_bytes());
    sector[BOOTABLE_AT..].copy_from_slice(&BOOTABLE);
    Ok(sector)
}

/// The checksum of chunks in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u32);

impl Sum {
    /// Adds a chunk.
    pub fn add(&mut self, chunk: &[u8; CHUNK_SIZE]) {
        for word in chunk.as_chunks::<4>().0 {
            self.0 = self.0.rotate_left(1) ^ u32::from_le_bytes(*word);
        }
    }

    /// Returns it as a guest tells it.
    pub fn told(self) -> String {
        let digit = |n: u32| char::from(FIRST_DIGIT + (self.0 >> (28 - 4 * n) & 15) as u8);
        (0..8).map(digit).collect()
    }
}

/// Returns what a guest told, once it has told all of it: its checksum, or that it could not read.
pub fn told(console: &str) -> Option<&str> {
    let lines = console.split_inclusive('\n');
    let mut whole = lines.filter_map(|line| line.strip_suffix('\n').map(str::trim));
    whole.find(|line| is_sum(line) || line.ends_with(CANNOT_READ))
}

fn is_sum(line: &str) -> bool {
    let digits = FIRST_DIGIT..FIRST_DIGIT + 16;
    line.len() == 8 && line.bytes().all(|digit| digits.contains(&digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_word_is_its_checksum_or_that_it_could_not_read() {
        let mut sum = Sum::default();
        assert_eq!(sum.told(), "AAAAAAAA");
        let mut chunk = [0; CHUNK_SIZE];
        chunk[CHUNK_SIZE - 8] = 1;
        chunk[CHUNK_SIZE - 1] = 0xf0;
        sum.add(&chunk);
        assert_eq!(sum.told(), "PAAAAAAC");
        assert_eq!(told("SeaBIOS\r\n\nPAAAAAAC\n"), Some("PAAAAAAC"));
        assert_eq!(told("SeaBIOS\nPAAAAAAC"), None);
        assert_eq!(told("\r\n!\n"), Some("!"));
    }

    #[test]
    fn the_sector_says_where_its_list_is() {
        let sector = boot_sector(300, 3 << 20).unwrap();
        assert_eq!(sector[COUNT_AT..COUNT_AT + 2], [44, 1]);
        let ask = [16, 0, 3, 0, 0, 0, 0, 0x10, 0, 0x18, 0, 0, 0, 0, 0, 0];
        assert_eq!(sector[ASK_AT..ASK_AT + 16], ask);
        assert_eq!(sector[BOOTABLE_AT..], BOOTABLE);
        assert!(boot_sector(0, 0).is_err() && boot_sector(LIST_MAX + 1, 0).is_err());
    }
}
