//! A picture made of marks.
use super::INK;
use std::fmt::Write as _;

/// On which side of its point a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// To the right of it.
    Start,
    /// Centred on it.
    Middle,
    /// To the left of it.
    End,
}

/// An SVG file under construction; lengths are in pixels from the upper left corner.
#[derive(Clone, Debug)]
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

impl Svg {
    /// Makes an empty picture with a title; `about` is read to people who can't see it.
    pub fn new(width: f64, height: f64, title: &str, about: &str) -> Svg {
        let mut body = String::new();
        let _ = write!(
            body,
            "<title>{}</title><desc>{}</desc>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
            escaped(title),
            escaped(about)
        );
        let mut svg = Svg {
            width,
            height,
            body,
        };
        svg.styled_text(16.0, 24.0, title, Anchor::Start, 15.0, INK, true);
        svg
    }

    /// Draws a line through points; `dash` is as in SVG, empty for none.
    pub fn line(&mut self, points: &[(f64, f64)], colour: &str, width: f64, dash: &str) {
        if points.len() < 2 {
            return;
        }
        let mut path = String::new();
        for (n, (x, y)) in points.iter().enumerate() {
            let step = if n == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{step}{} {}", short(*x), short(*y));
        }
        let dash = if dash.is_empty() {
            String::new()
        } else {
            format!(" stroke-dasharray=\"{dash}\"")
        };
        let _ = writeln!(
            self.body,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"{dash}/>"
        );
    }

    /// Draws a filled rectangle.
    pub fn bar(&mut self, x: f64, y: f64, width: f64, height: f64, colour: &str) {
        let [x, y, width, height] = [x, y, width.max(0.0), height.max(0.0)].map(short);
        let _ = writeln!(
            self.body,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{colour}\"/>"
        );
    }

    /// Draws a translucent circle.
    pub fn circle(&mut self, x: f64, y: f64, radius: f64, colour: &str) {
        let [x, y, radius] = [x, y, radius].map(short);
        let _ = writeln!(
            self.body,
            "<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" fill=\"{colour}\" fill-opacity=\"0.45\" stroke=\"{colour}\"/>"
        );
    }

    /// Writes a text.
    pub fn text(&mut self, x: f64, y: f64, text: &str, anchor: Anchor, colour: &str) {
        self.styled_text(x, y, text, anchor, 12.0, colour, false);
    }

    /// Writes a text vertically, reading upwards.
    pub fn upright_text(&mut self, x: f64, y: f64, text: &str, colour: &str) {
        let _ = writeln!(
            self.body,
            "<text transform=\"translate({} {}) rotate(-90)\" text-anchor=\"middle\" font-size=\"12\" fill=\"{colour}\">{}</text>",
            short(x),
            short(y),
            escaped(text)
        );
    }

    #[allow(clippy::too_many_arguments)]
    fn styled_text(
        &mut self,
        x: f64,
        y: f64,
        text: &str,
        anchor: Anchor,
        size: f64,
        colour: &str,
        bold: bool,
    ) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let weight = if bold { " font-weight=\"600\"" } else { "" };
        let _ = writeln!(
            self.body,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\" font-size=\"{size}\" fill=\"{colour}\"{weight}>{}</text>",
            short(x),
            short(y),
            escaped(text)
        );
    }

    /// Draws a legend of the colours as a row from `x` to the right, each with a dash pattern.
    pub fn legend(&mut self, x: f64, y: f64, entries: &[(&str, &str, &str)]) {
        let mut at = x;
        for (text, colour, dash) in entries {
            self.line(&[(at, y - 4.0), (at + 22.0, y - 4.0)], colour, 3.0, dash);
            self.text(at + 28.0, y, text, Anchor::Start, INK);
            at += 46.0 + text.chars().count() as f64 * 6.6;
        }
    }

    /// Returns the file's text.
    pub fn finish(self) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" font-family=\"system-ui, sans-serif\">\n{2}</svg>\n",
            self.width, self.height, self.body
        )
    }
}

/// Formats a length to a tenth of a pixel, which is as fine as anyone sees.
fn short(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_small_and_well_formed() {
        let mut svg = Svg::new(100.0, 50.0, "a < b & c", "about");
        svg.line(&[(0.0, 0.0), (10.04, 5.96)], "#000000", 1.0, "");
        svg.line(&[(0.0, 0.0)], "#ff0000", 1.0, "");
        svg.legend(0.0, 10.0, &[("one", "#000000", "4 2")]);
        let text = svg.finish();
        assert!(text.contains("a &lt; b &amp; c") && text.contains("M0 0L10 6"));
        assert!(!text.contains("#ff0000"), "one point is no line");
        assert_eq!(text.matches('<').count(), text.matches('>').count());
    }
}
