//! What a screen shows, by the beginning of its video memory.
//!
//! In text mode a VGA's memory holds the characters themselves, in cells of four bytes (one from each plane: character, attribute,
//! font, nothing), and the font in the same cells, by which text mode is recognised. In graphics mode it holds pixels: a guest that
//! has drawn nothing has a black screen.

/// Bytes of a cell: one of each plane.
const CELL: usize = 4;
/// Cells that the window of text mode reaches (32 KiB of characters and attributes).
const TEXT_CELLS: usize = 16 << 10;
/// Characters in a line.
const COLUMNS: usize = 80;
/// Cells of one character's glyph in the font's plane.
const GLYPH: usize = 32;
/// How lines begin that SeaBIOS, iPXE, boot loaders and a kernel's unpacker write before a kernel has the screen.
const EARLY: [&str; 14] = [
    "SeaBIOS (version",
    "Machine UUID",
    "iPXE ",
    "gPXE ",
    "Press Ctrl-B to configure iPXE",
    "Press ESC for boot menu",
    "Booting from",
    "Boot failed",
    "No bootable device",
    "GRUB loading",
    "Welcome to GRUB!",
    "Probing EDD",
    "Decompressing Linux",
    "Booting the kernel",
];

/// What a screen shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// Nothing.
    Nothing,
    /// Text, all of which is of the kind that firmware and boot loaders write.
    Early,
    /// Something else: the guest uses the screen.
    Guest,
}

/// Says what a screen shows by the beginning of its video memory, which a guest has filled with whatever it likes.
pub fn shown(vram: &[u8]) -> Shown {
    let all_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    if !in_text_mode(vram) {
        return match all_zero(vram) {
            true => Shown::Nothing,
            false => Shown::Guest,
        };
    }
    let text: Vec<u8> = vram
        .chunks_exact(CELL)
        .take(TEXT_CELLS)
        .map(|cell| match cell[0] {
            0 => b' ',
            character => character,
        })
        .collect();
    let mut shown = Shown::Nothing;
    for line in text.chunks(COLUMNS).map(<[u8]>::trim_ascii) {
        if line.is_empty() {
            continue;
        }
        if !EARLY.iter().any(|begin| line.starts_with(begin.as_bytes())) {
            return Shown::Guest;
        }
        shown = Shown::Early;
    }
    shown
}

/// Whether there is a font, in which all capitals have a form and the space has none.
fn in_text_mode(vram: &[u8]) -> bool {
    let drawn = |character: u8| {
        let at = usize::from(character) * GLYPH * CELL;
        let glyph = vram.get(at..at + GLYPH * CELL);
        glyph.map(|cells| cells.chunks_exact(CELL).any(|cell| cell[2] != 0))
    };
    drawn(b' ') == Some(false) && (b'A'..=b'Z').all(|letter| drawn(letter) == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Video memory in text mode with these lines, as a VGA has it.
    fn text_mode(lines: &[&str]) -> Vec<u8> {
        let mut vram = vec![0; 1 << 20];
        for character in b'!'..=b'~' {
            vram[(usize::from(character) * GLYPH + 3) * CELL + 2] = 0x7e;
        }
        for (row, line) in lines.iter().enumerate() {
            for (column, byte) in line.bytes().enumerate() {
                let cell = (row * COLUMNS + column) * CELL;
                vram[cell] = byte;
                vram[cell + 1] = 7;
            }
        }
        vram
    }

    #[test]
    fn firmware_alone_is_no_use_of_the_screen_and_one_line_of_a_guest_is() {
        let early = [
            "SeaBIOS (version 1.16.2-debian-1.16.2-1)",
            "",
            "",
            "iPXE (http://ipxe.org) 00:02.0 CA00 PCI2.10 PnP PMM+0EFCA580+0EF0A580 CA00",
            "",
            "Booting from ROM..",
        ];
        assert_eq!(shown(&text_mode(&early)), Shown::Early);
        let with = |line| shown(&text_mode(&[&early[..], &[line]].concat()));
        assert_eq!(
            with("Decompressing Linux... Parsing ELF... done."),
            Shown::Early
        );
        assert_eq!(with("debian login:"), Shown::Guest);
        assert_eq!(with("# "), Shown::Guest);
        assert_eq!(shown(&text_mode(&[])), Shown::Nothing);
        // a kernel may scroll by showing a later part of the memory
        let far = [&[""; 180][..], &["login:"]].concat();
        assert_eq!(shown(&text_mode(&far)), Shown::Guest);
    }

    #[test]
    fn in_graphics_mode_a_black_screen_is_none() {
        let mut pixels = vec![0; 1 << 20];
        assert_eq!(shown(&pixels), Shown::Nothing);
        pixels[700_001] = 0x2e;
        assert_eq!(shown(&pixels), Shown::Guest);
        // a bright screen is not taken for a font
        pixels.fill(0xff);
        assert_eq!(shown(&pixels), Shown::Guest);
    }

    proptest! {
        #[test]
        fn any_memory_is_one_of_the_three(vram in proptest::collection::vec(any::<u8>(), 0..20_000)) {
            let found = shown(&vram);
            prop_assert_eq!(found == Shown::Nothing, vram.iter().all(|byte| *byte == 0) || in_text_mode(&vram) && found == Shown::Nothing);
        }
    }
}
