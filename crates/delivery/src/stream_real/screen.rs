//! Compares a guest's screens: does it show what it showed before, and does it react?
use anyhow::{Context, bail};
use floe_testbed::live::Node;
use floe_testbed::workloads::Session;
use std::io::Cursor;
use std::time::{Duration, Instant};

/// Two values of a pixel, of 0 to 255, count as the same up to this difference.
const SAME: u8 = 24;
/// Screens count as the same if at most this share of their pixels differs, because they show a clock.
const SAME_SHARE: f64 = 0.01;
/// A key has had an effect if more than this share of the pixels changes: a menu takes some percent.
const REACTION_SHARE: f64 = 0.005;
/// Time after which the key is pressed again if nothing changes on the screen.
const PRESS_AGAIN: Duration = Duration::from_secs(4);
/// Time after which the menu is closed.
const CLOSED: Duration = Duration::from_secs(1);
/// Time between two screenshots.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Most bytes of a decoded screen.
const BYTES_MAX: usize = 64 << 20;

/// A screen's pixels.
pub struct Screen {
    size: (u32, u32),
    rgb: Vec<u8>,
}

impl Screen {
    /// Takes a screenshot of a machine.
    pub fn of(node: &Node, machine: &str) -> anyhow::Result<Screen> {
        let png = node.client.screenshot(machine)?;
        let limits = png::Limits { bytes: BYTES_MAX };
        let mut decoder = png::Decoder::new_with_limits(Cursor::new(png), limits);
        decoder.set_transformations(png::Transformations::EXPAND | png::Transformations::STRIP_16);
        let mut reader = decoder.read_info()?;
        let bytes = reader.output_buffer_size().context("a screen too large")?;
        let mut pixels = vec![0; bytes];
        let info = reader.next_frame(&mut pixels)?;
        let rgb = match info.color_type {
            png::ColorType::Rgb => pixels,
            png::ColorType::Rgba => pixels
                .chunks_exact(4)
                .flat_map(|pixel| [pixel[0], pixel[1], pixel[2]])
                .collect(),
            other => bail!("a screenshot in {other:?}"),
        };
        Ok(Screen {
            size: (info.width, info.height),
            rgb,
        })
    }

    /// Returns the share of the pixels that differ.
    fn difference(&self, other: &Screen) -> f64 {
        if self.size != other.size {
            return 1.0;
        }
        let pixels = self.rgb.chunks_exact(3).zip(other.rgb.chunks_exact(3));
        let differ = |(a, b): &(&[u8], &[u8])| a.iter().zip(*b).any(|(a, b)| a.abs_diff(*b) > SAME);
        pixels.filter(differ).count() as f64 / (self.rgb.len() / 3).max(1) as f64
    }
}

/// Waits until the machine shows what it showed at its capture and a key opens the menu. Returns when that was the case.
pub fn until_usable(
    node: &Node,
    machine: &str,
    session: &Session,
    captured: &Screen,
    patience: Duration,
) -> anyhow::Result<Instant> {
    let end = Instant::now() + patience;
    let look = || -> anyhow::Result<Screen> {
        if Instant::now() > end {
            bail!("{machine} was not usable within {patience:?}");
        }
        std::thread::sleep(LOOK_EVERY);
        Screen::of(node, machine)
    };
    let mut before = look()?;
    while before.difference(captured) > SAME_SHARE {
        before = look()?;
    }
    loop {
        session.input.press(&["ctrl", "esc"])?;
        let pressed = Instant::now();
        while pressed.elapsed() < PRESS_AGAIN {
            if look()?.difference(&before) > REACTION_SHARE {
                let usable = Instant::now();
                session.input.press(&["esc"])?;
                std::thread::sleep(CLOSED);
                return Ok(usable);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_no_difference_and_a_menu_is() {
        let screen = |changed: usize| Screen {
            size: (100, 100),
            rgb: (0..30_000)
                .map(|n| if n < changed * 3 { 255 } else { 0 })
                .collect(),
        };
        let before = screen(0);
        assert_eq!(before.difference(&screen(0)), 0.0);
        assert!(before.difference(&screen(40)) < REACTION_SHARE);
        let menu = before.difference(&screen(300));
        assert!((0.029..0.031).contains(&menu), "{menu}");
        let other = Screen {
            size: (100, 50),
            rgb: vec![0; 15_000],
        };
        assert_eq!(before.difference(&other), 1.0);
    }
}
