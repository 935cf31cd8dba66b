//! `emulator`: checks the link emulator itself: rate and delay of real packets through two namespaces, compared with the
//! settings.
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::link::{Bridge, Rate, Shape, measure};
use std::time::Duration;

/// Links that are checked: the design's slow one, a slower one with a short delay, a fast one.
const LINKS: [(&str, u64, u64); 3] = [
    ("7.2mbit_60ms", 7_200_000, 60),
    ("1mbit_10ms", 1_000_000, 10),
    ("100mbit_5ms", 100_000_000, 5),
];

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("emulator", context.quick);
    let (rounds, time, probes) = context.pick(
        (5, Duration::from_secs(4), 300),
        (1, Duration::from_secs(2), 100),
    );
    for (name, bits, delay_ms) in LINKS {
        let shape = Shape {
            rate: Rate::BitsPerSecond(bits),
            delay_ns: delay_ms * 1_000_000,
            ..Shape::default()
        };
        let (mut rates, mut delays) = (Samples::default(), Samples::default());
        for _ in 0..rounds {
            let bridge = Bridge::new(shape.clone(), shape.clone())?;
            let sending_ns = (measure::PROBE_BYTES * 8) as f64 * 1e9 / bits as f64;
            let promised = (delay_ms * 1_000_000) as f64 + sending_ns;
            delays.push(measure::delay(&bridge, probes)?.median() / promised);
            rates.push(measure::rate(&bridge, bits as f64, time)? / bits as f64);
        }
        report.add(&format!("rate_{name}"), "x", &rates).against(
            "promised",
            "Mbit/s",
            bits as f64 / 1e6,
        );
        report.add(&format!("delay_{name}"), "x", &delays).against(
            "promised",
            "ms",
            delay_ms as f64,
        );
    }
    Ok(report)
}
