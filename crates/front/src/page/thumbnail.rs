//! Thumbnails: the screen at a capture, scaled down, stored as the image's region `thumb`.

use axum::{
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use floe_image::Hash;
use std::io::Cursor;

/// The region that contains it.
pub const THUMB_REGION: &str = "thumb";
/// Largest thumbnail that is stored or shown, in bytes: noise of that size takes 1.2 MB, and no screen is noise.
pub const THUMB_BYTES_MAX: u64 = 1 << 20;
/// Most pixels in a row: twice what a catalogue shows, for high-resolution displays.
const WIDTH_MAX: u32 = 640;
/// Most pixels in a column: taller screens are scaled to it.
const HEIGHT_MAX: u32 = 640;
/// Most bytes of a decoded screen: 8K with four bytes per pixel.
const SCREEN_BYTES_MAX: usize = 7680 * 4320 * 4;

/// Who may cache a thumbnail, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Everybody, forever: the image is public and was requested by its id, which never changes its meaning.
    Public,
    /// Only the requesting browser, forever.
    Private,
    /// The browser, if it revalidates each time: the meaning of a name may change.
    Ask,
}

/// Returns a thumbnail as an HTTP answer.
pub fn answer(id: &Hash, png: Vec<u8>, keep: Keep, request: &HeaderMap) -> Response {
    let etag = HeaderValue::from_str(&format!("\"{id}\"")).expect("an id is hexadecimal");
    let known = request.get(header::IF_NONE_MATCH) == Some(&etag);
    let cache = match keep {
        Keep::Public => "public, max-age=31536000, immutable",
        Keep::Private => "private, max-age=31536000, immutable",
        Keep::Ask => "no-cache",
    };
    let common = [
        (header::ETAG, etag),
        (header::CACHE_CONTROL, HeaderValue::from_static(cache)),
        (header::CONTENT_TYPE, HeaderValue::from_static("image/png")),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
    ];
    match known {
        true => (StatusCode::NOT_MODIFIED, common).into_response(),
        false => (common, png).into_response(),
    }
}

/// Returns whether these bytes begin like a PNG, which is how a browser will treat them.
pub fn is_png(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x89PNG\r\n\x1a\n")
}

/// Scales a screen down. Returns `None` if it can't be read or has only one colour: a drawn placeholder then shows more.
pub fn of_screen(png: &[u8]) -> Option<Vec<u8>> {
    let mut decoder = png::Decoder::new_with_limits(
        Cursor::new(png),
        png::Limits {
            bytes: SCREEN_BYTES_MAX,
        },
    );
    decoder.set_transformations(png::Transformations::EXPAND | png::Transformations::STRIP_16);
    let mut reader = decoder.read_info().ok()?;
    let size = reader
        .output_buffer_size()
        .filter(|size| *size <= SCREEN_BYTES_MAX)?;
    let mut pixels = vec![0; size];
    let info = reader.next_frame(&mut pixels).ok()?;
    let step = info.color_type.samples();
    let picture = Picture {
        width: info.width,
        height: info.height,
        rgb: pixels
            .chunks_exact(step)
            .take(info.width as usize * info.height as usize)
            .flat_map(|pixel| match step {
                1 | 2 => [pixel[0]; 3],
                _ => [pixel[0], pixel[1], pixel[2]],
            })
            .collect(),
    };
    let first = picture.rgb.get(..3)?;
    if picture.rgb.chunks_exact(3).all(|pixel| pixel == first) {
        return None;
    }
    let small = picture.fitted(WIDTH_MAX, HEIGHT_MAX);
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, small.width, small.height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::High);
    let mut writer = encoder.write_header().ok()?;
    writer.write_image_data(&small.rgb).ok()?;
    writer.finish().ok()?;
    (out.len() as u64 <= THUMB_BYTES_MAX).then_some(out)
}

struct Picture {
    width: u32,
    height: u32,
    /// Three bytes per pixel, row by row.
    rgb: Vec<u8>,
}

impl Picture {
    /// Scales the picture to fit into this size, with the same proportions. Each pixel is the mean of those that it
    /// replaces.
    fn fitted(self, width_max: u32, height_max: u32) -> Picture {
        let scale = f64::min(
            f64::from(width_max) / f64::from(self.width),
            f64::from(height_max) / f64::from(self.height),
        );
        if scale >= 1.0 {
            return self;
        }
        let width = ((f64::from(self.width) * scale).round() as u32).max(1);
        let height = ((f64::from(self.height) * scale).round() as u32).max(1);
        let columns = spans(self.width, width);
        let rows = spans(self.height, height);
        let mut rgb = Vec::with_capacity((width * height * 3) as usize);
        for &(top, bottom) in &rows {
            for &(left, right) in &columns {
                let mut sums = [0u64; 3];
                for y in top..bottom {
                    let row = y * self.width as usize * 3;
                    for pixel in self.rgb[row + left * 3..row + right * 3].chunks_exact(3) {
                        for (sum, value) in sums.iter_mut().zip(pixel) {
                            *sum += u64::from(*value);
                        }
                    }
                }
                let count = ((bottom - top) * (right - left)) as u64;
                rgb.extend(sums.map(|sum| ((sum + count / 2) / count) as u8));
            }
        }
        Picture { width, height, rgb }
    }
}

/// Returns for each of `to` places the range of `from` places that it replaces; no range is empty.
fn spans(from: u32, to: u32) -> Vec<(usize, usize)> {
    let at = |index: u32| (u64::from(index) * u64::from(from) / u64::from(to)) as usize;
    (0..to)
        .map(|index| (at(index), at(index + 1).max(at(index) + 1)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn png(width: u32, height: u32, rgb: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = png::Encoder::new(&mut out, width, height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(rgb).unwrap();
        writer.finish().unwrap();
        out
    }

    fn size(png: &[u8]) -> (u32, u32) {
        let reader = png::Decoder::new(Cursor::new(png)).read_info().unwrap();
        reader.info().size()
    }

    #[test]
    fn a_screen_becomes_small_in_its_own_proportions() {
        let checks = |w: u32, h: u32| -> Vec<u8> {
            (0..w * h)
                .flat_map(|i| [(i % 251) as u8, (i / w % 250) as u8, 7])
                .collect()
        };
        for (from, to) in [
            ((1280, 800), (640, 400)),
            ((720, 400), (640, 356)),
            ((320, 200), (320, 200)),
            ((600, 1200), (320, 640)),
            ((4000, 2), (640, 1)),
        ] {
            let thumb = of_screen(&png(from.0, from.1, &checks(from.0, from.1))).unwrap();
            assert_eq!(size(&thumb), to);
            assert!(is_png(&thumb));
        }
    }

    #[test]
    fn a_pixel_is_the_mean_of_those_that_it_stands_for() {
        let picture = Picture {
            width: 4,
            height: 2,
            rgb: [0, 0, 0, 100, 100, 100, 10, 20, 30, 10, 20, 30].repeat(2),
        };
        let small = picture.fitted(2, 2);
        assert_eq!((small.width, small.height), (2, 1));
        assert_eq!(small.rgb, [50, 50, 50, 10, 20, 30]);
    }

    #[test]
    fn an_empty_screen_is_no_thumbnail() {
        assert_eq!(of_screen(&png(64, 64, &[9; 64 * 64 * 3])), None);
        assert_eq!(of_screen(b"no png"), None);
    }

    proptest! {
        #[test]
        fn damaged_pictures_are_refused_and_never_panic(at in 0usize..400, value: u8, cut in 0usize..400) {
            let mut bytes = png(20, 10, &(0..600).map(|i| i as u8).collect::<Vec<_>>());
            let (at, cut) = (at.min(bytes.len() - 1), cut.min(bytes.len()));
            bytes[at] = value;
            let _ = of_screen(&bytes[..cut]);
            let _ = of_screen(&bytes);
        }

        #[test]
        fn every_place_stands_for_some(from in 1u32..5000, to in 1u32..640) {
            prop_assume!(to <= from);
            let spans = spans(from, to);
            prop_assert_eq!(spans[0].0, 0);
            prop_assert_eq!(spans[spans.len() - 1].1, from as usize);
            prop_assert!(spans.iter().all(|(a, b)| a < b && *b <= from as usize));
        }
    }
}
