//! The curve of what is gained by how much work there is, with the trips that were measured on it.
use super::site::Link;
use floe_node::pays::{Case, Costs};
use floe_testbed::plot::{Axes, COLOURS, Scale, Svg};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 400.0;
const AT: (f64, f64, f64, f64) = (64.0, 70.0, 670.0, 270.0);
/// The shortest and the longest work on the device, in seconds.
const WORK_S: (f64, f64) = (1.0, 10_000.0);
/// The least and the most that is gained.
const GAIN: (f64, f64) = (0.05, 20.0);
/// How many points a curve has.
const POINTS: u32 = 200;

/// A job that was done over a link.
pub struct Done {
    /// The suffix of the link.
    pub link: &'static str,
    /// The last trip, as the model sees it.
    pub case: Case,
    /// What the model reckons with.
    pub costs: Costs,
    /// What each trip has gained.
    pub gains: Vec<f64>,
}

/// Draws, for each link, what the model says of its first job done in other sizes, and the trips of all jobs.
pub fn draw(links: &[Link], all: &[Done]) -> String {
    let mut svg = Svg::new(
        WIDTH,
        HEIGHT,
        "What is gained by having a job done on a strong host",
        "Time on the device over the time by the strong host, both ways included, by how long the job takes on the device; lines: the model, \
         dots: trips",
    );
    let axes = Axes {
        at: AT,
        x: Scale::Log(WORK_S.0, WORK_S.1),
        y: Scale::Log(GAIN.0, GAIN.1),
    };
    axes.draw(&mut svg, "seconds on the device", "gain");
    let even = [(WORK_S.0, 1.0), (WORK_S.1, 1.0)];
    axes.line(&mut svg, &even, COLOURS[5], "5 4");
    let mut legend = vec![("break-even", COLOURS[5], "5 4")];
    for (link, colour) in links.iter().zip(COLOURS) {
        let mut of_link = all
            .iter()
            .filter(|done| done.link == link.suffix)
            .peekable();
        let Some(first) = of_link.peek() else {
            continue;
        };
        axes.line(&mut svg, &curve(first), colour, "");
        legend.push((link.name, colour, ""));
        for done in of_link {
            for gain in &done.gains {
                let (x, y) = axes.point(done.case.work_s, *gain);
                svg.circle(x, y, 4.0, colour);
            }
        }
    }
    svg.legend(AT.0, 52.0, &legend);
    svg.finish()
}

/// Returns what the model says of a job in other sizes: seconds on the device, and the gain.
fn curve(done: &Done) -> Vec<(f64, f64)> {
    let (from, to) = WORK_S;
    let points = (0..=POINTS).map(|n| {
        let work_s = from * (to / from).powf(f64::from(n) / f64::from(POINTS));
        let case = Case {
            work_s,
            ..done.case
        };
        (work_s, case.forecast(&done.costs).gain)
    });
    points.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_rises_from_a_loss_to_nearly_the_speedup_and_crosses_at_the_break_even() {
        let done = Done {
            link: "",
            case: Case {
                work_s: 100.0,
                busy: 1.0,
                speedup: 6.0,
                up_bytes: 3e6,
                down_bytes: 1e6,
                up_bytes_s: 0.9e6,
                down_bytes_s: 0.9e6,
                round_trip_s: 0.12,
            },
            costs: Costs::default(),
            gains: vec![4.0, 5.0],
        };
        let points = curve(&done);
        assert!(points.windows(2).all(|pair| pair[0].1 < pair[1].1));
        assert!(points[0].1 < 0.2);
        let last = points.last().unwrap().1;
        assert!(last > 5.8 && last < 6.0, "{last}");
        let even_s = done.case.forecast(&done.costs).break_even_s.unwrap();
        for (work_s, gain) in &points {
            assert_eq!(*gain > 1.0, *work_s > even_s, "{work_s} s");
        }
        let plot = draw(&Link::fixed(), &[done]);
        assert_eq!(plot.matches("<circle").count(), 2);
        assert!(plot.contains("7.2 Mbit/s") && !plot.contains("50 Mbit/s"));
    }
}
