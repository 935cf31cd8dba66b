//! A picture of the machine's screen.

use std::fs::File;
use std::io::{Read, Seek, Write};

use crate::error::MachineError;

/// Largest picture that is read, in bytes: 16 times the largest screen that fits into the video memory.
const PICTURE_BYTES_MAX: u64 = 256 << 20;

/// Converts QEMU's PPM to PNG, for a QEMU that was built without libpng.
pub(crate) fn png_from_ppm(mut ppm: File, out: &mut impl Write) -> Result<(), MachineError> {
    let mut bytes = Vec::new();
    ppm.rewind()
        .and_then(|()| ppm.take(PICTURE_BYTES_MAX).read_to_end(&mut bytes))
        .map_err(MachineError::io("read the screen"))?;
    let (width, height, pixels) = parse_ppm(&bytes).ok_or_else(|| {
        MachineError::io("read the screen")(std::io::Error::other(
            "QEMU's picture is not a PPM of 8 bits",
        ))
    })?;
    let mut encoder = png::Encoder::new(out, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let written = encoder
        .write_header()
        .and_then(|mut w| w.write_image_data(pixels));
    written.map_err(|e| MachineError::io("write the screen as PNG")(std::io::Error::other(e)))
}

/// Returns width, height and RGB bytes of a binary PPM.
pub fn parse_ppm(bytes: &[u8]) -> Option<(u32, u32, &[u8])> {
    let mut rest = bytes.strip_prefix(b"P6")?;
    let mut numbers = [0u32; 3];
    for number in &mut numbers {
        rest = rest.trim_ascii_start();
        let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        *number = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
        rest = &rest[digits..];
    }
    let [width, height, depth] = numbers;
    let pixels = rest.get(1..)?;
    let len = (width as usize)
        .checked_mul(height as usize)?
        .checked_mul(3)?;
    (depth == 255 && len > 0).then_some((width, height, pixels.get(..len)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_ppm_becomes_the_same_picture_as_png() {
        let mut ppm = tempfile::tempfile().unwrap();
        let pixels: Vec<u8> = (0..2 * 3 * 3).collect();
        write!(ppm, "P6\n2 3\n255\n").unwrap();
        ppm.write_all(&pixels).unwrap();
        let mut out = Vec::new();
        png_from_ppm(ppm, &mut out).unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(out))
            .read_info()
            .unwrap();
        let mut decoded = vec![0; 2 * 3 * 3];
        let info = reader.next_frame(&mut decoded).unwrap();
        assert_eq!((info.width, info.height, decoded), (2, 3, pixels));
    }

    proptest! {
        #[test]
        fn garbage_is_refused_and_never_panics(text in "P6[0-9 \n]{0,30}", tail in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = parse_ppm(&[text.as_bytes(), &tail].concat());
        }
    }
}
