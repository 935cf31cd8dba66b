//! Plots as small SVG files: axes, lines, bars, circles. Nothing is interactive and nothing is loaded from elsewhere.
//!
//! - [`Svg`]: a picture made of marks. [`Axes`] and [`Scale`]: convert values to positions in it.
mod axes;
mod svg;

pub use axes::{Axes, Scale};
pub use svg::{Anchor, Svg};

/// Colours that people with any colour vision can tell apart (Okabe and Ito), dark enough for thin lines.
pub const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#aa4499", "#8a6d00", "#3b3b3b", "#56b4e9", "#cc3311",
];
/// The colour of the background: grid lines, other runs.
pub const FAINT: &str = "#d9d9d9";
/// The colour of text and axes.
pub const INK: &str = "#222222";
/// The colour of explanatory text.
pub const SOFT: &str = "#666666";
