//! Converts values to positions in a plot.
use super::{Anchor, FAINT, INK, SOFT, Svg};

/// How values become lengths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// Linear, from the first to the second value.
    Linear(f64, f64),
    /// Logarithmic; both ends must be above zero.
    Log(f64, f64),
}

impl Scale {
    /// Returns a scale from 0 to slightly more than the largest value.
    pub fn up_to(values: impl IntoIterator<Item = f64>) -> Scale {
        let most = values.into_iter().fold(0.0, f64::max);
        Scale::Linear(0.0, if most > 0.0 { most * 1.05 } else { 1.0 })
    }

    /// Returns 0 at the beginning and 1 at the end of the scale; values beyond the ends are clamped.
    fn share(self, value: f64) -> f64 {
        let share = match self {
            Scale::Linear(from, to) => (value - from) / (to - from),
            Scale::Log(from, to) => (value.max(from) / from).ln() / (to / from).ln(),
        };
        share.clamp(0.0, 1.0)
    }

    /// Returns about five round values for grid lines.
    fn ticks(self) -> Vec<f64> {
        match self {
            Scale::Linear(from, to) => {
                let step = round_step((to - from) / 5.0);
                let first = (from / step).ceil() as i64;
                let last = (to / step + 1e-9).floor() as i64;
                (first..=last).map(|n| n as f64 * step).collect()
            }
            Scale::Log(from, to) => {
                let decades = from.log10().ceil() as i32..=to.log10().floor() as i32;
                decades.map(|n| 10f64.powi(n)).collect()
            }
        }
    }
}

/// Returns the next of 1, 2 and 5 times a power of ten.
fn round_step(about: f64) -> f64 {
    let power = 10f64.powf(about.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let found = steps.into_iter().find(|s| s * power >= about * 0.999);
    found.unwrap_or(10.0) * power
}

fn label(value: f64) -> String {
    let text = match value.abs() {
        v if v >= 10.0 || v == 0.0 => format!("{value:.0}"),
        v if v >= 1.0 => format!("{value:.1}"),
        v if v >= 0.095 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// A frame in which marks are drawn.
#[derive(Clone, Copy, Debug)]
pub struct Axes {
    /// Left, top, width and height in the picture.
    pub at: (f64, f64, f64, f64),
    /// The scale from left to right.
    pub x: Scale,
    /// The scale from bottom to top.
    pub y: Scale,
}

impl Axes {
    /// Returns the position of a point.
    pub fn point(&self, x: f64, y: f64) -> (f64, f64) {
        let (left, top, width, height) = self.at;
        (
            left + self.x.share(x) * width,
            top + (1.0 - self.y.share(y)) * height,
        )
    }

    /// Draws grid, numbers, and the axes' names. Without names, the numbers are left out.
    pub fn draw(&self, svg: &mut Svg, x_name: &str, y_name: &str) {
        let (left, top, width, height) = self.at;
        let below = top + height;
        for value in self.y.ticks() {
            let (_, y) = self.point(0.0, value);
            svg.line(&[(left, y), (left + width, y)], FAINT, 1.0, "");
            if !y_name.is_empty() {
                svg.text(left - 6.0, y + 4.0, &label(value), Anchor::End, SOFT);
            }
        }
        for value in self.x.ticks() {
            let (x, _) = self.point(value, 0.0);
            svg.line(&[(x, below), (x, below + 4.0)], INK, 1.0, "");
            if !x_name.is_empty() {
                svg.text(x, below + 17.0, &label(value), Anchor::Middle, SOFT);
            }
        }
        svg.line(&[(left, below), (left + width, below)], INK, 1.0, "");
        svg.text(
            left + width / 2.0,
            below + 35.0,
            x_name,
            Anchor::Middle,
            INK,
        );
        svg.upright_text(left - 42.0, top + height / 2.0, y_name, INK);
    }

    /// Draws a line through values, reduced to what a screen can show.
    pub fn line(&self, svg: &mut Svg, values: &[(f64, f64)], colour: &str, dash: &str) {
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (n, (x, y)) in values.iter().enumerate() {
            let point = self.point(*x, *y);
            let far = points.last().is_none_or(|last| {
                (point.0 - last.0).abs() >= 1.0 || (point.1 - last.1).abs() >= 1.0
            });
            if far || n + 1 == values.len() {
                points.push(point);
            }
        }
        svg.line(&points, colour, 1.8, dash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lie_where_they_should() {
        let axes = Axes {
            at: (10.0, 20.0, 100.0, 50.0),
            x: Scale::Linear(0.0, 10.0),
            y: Scale::Log(1.0, 100.0),
        };
        assert_eq!(axes.point(0.0, 1.0), (10.0, 70.0));
        assert_eq!(axes.point(5.0, 10.0), (60.0, 45.0));
        assert_eq!(axes.point(99.0, 1e9), (110.0, 20.0));
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(
            Scale::Linear(0.0, 10.0).ticks(),
            [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        );
        assert_eq!(Scale::Log(0.5, 200.0).ticks(), [1.0, 10.0, 100.0]);
        assert_eq!(Scale::up_to([]), Scale::Linear(0.0, 1.0));
        assert_eq!(
            (label(0.25), label(20.0), label(1.0)),
            ("0.25".into(), "20".into(), "1".into())
        );
    }

    #[test]
    fn a_long_line_is_thinned_out() {
        let axes = Axes {
            at: (0.0, 0.0, 100.0, 10.0),
            x: Scale::Linear(0.0, 1.0),
            y: Scale::Linear(0.0, 1.0),
        };
        let values: Vec<_> = (0..100_000).map(|n| (f64::from(n) / 1e5, 0.0)).collect();
        let mut svg = Svg::new(100.0, 10.0, "", "");
        axes.line(&mut svg, &values, "#000000", "");
        assert!(svg.finish().len() < 3000);
    }
}
