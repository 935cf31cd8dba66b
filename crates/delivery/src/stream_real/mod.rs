//! `stream-real`: a desktop from a hub behind 7.2 Mbit/s and 120 ms, as in section 5 of the vTube paper. How soon is it
//! usable, compared with downloading it; is the simulator right about each run; what does a second image of the same family cost?
mod screen;
pub(super) mod site;

use floe_planner::Config;
use floe_simulator::sim::sweep::START_WIRE_BYTES;
use floe_simulator::sim::{LinkSpec, Setup, replay};
use floe_testbed::content::Content;
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::link::{Rate, Shape};
use floe_testbed::shape::{ImageShape, RegionShape, urgency_of};
use site::{Published, Site, Used};
use std::collections::BTreeSet;

/// Number of users before the first one who is measured.
const TEACHERS: u64 = 3;
/// The short version's link.
const QUICK_BITS_PER_S: u64 = 72_000_000;

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("stream-real", context.quick);
    let guest = Guest::desktop()?;
    let mut shape = Shape::wan();
    if context.quick {
        shape.rate = Rate::BitsPerSecond(QUICK_BITS_PER_S);
    }
    let link = LinkSpec {
        name: "wan".into(),
        rate: shape.rate.clone(),
        rtt_ns: 2 * shape.delay_ns,
    };
    let site = Site::prepare(&context.scratch, &guest, shape, context.pick(TEACHERS, 1))?;
    let known = Known::of(&site, &site.first)?;
    let (mut usable, mut waits, mut second) =
        (Samples::default(), Samples::default(), Samples::default());
    let (mut simulated_s, mut first_mb, mut second_usable) =
        (Samples::default(), Samples::default(), Samples::default());
    for round in 0..context.pick(2, 1) {
        let node = site.near(&format!("near{round}"))?;
        let one = site.use_image(&node, &site.first, round)?;
        if round == 0 {
            // Nobody has used this image before: it is run with the model of the one that it was captured on.
            let other = site.use_image(&node, &site.second, round)?;
            second.push(other.down_bytes as f64 / one.down_bytes as f64);
            second_usable.push(other.usable.as_secs_f64());
        }
        drop(node);
        let simulated = known.simulate(&link, &one)?;
        eprintln!(
            "stream-real: usable after {:.1} s, waited {:.1} s ({:.1} s simulated), {:.1} MB; {} accesses, {} misses, paused {} times for {:.1} s",
            one.usable.as_secs_f64(),
            one.wait_s(),
            simulated,
            one.down_bytes as f64 / 1e6,
            one.trace.accesses.len(),
            one.stream.misses,
            one.stream.pauses,
            one.stream.paused_s
        );
        usable.push(one.usable.as_secs_f64());
        waits.push(one.wait_s());
        simulated_s.push(simulated);
        let run = round + 1;
        report
            .add_value(
                &format!("sim_over_real.{run}"),
                "x",
                simulated / one.wait_s(),
            )
            .against("waiting of the real machine", "s", one.wait_s());
        first_mb.push(one.down_bytes as f64 / 1e6);
    }
    let download_s = site.download("copy", &site.first)?.as_secs_f64();
    let alternative = "downloading the compressed image";
    report
        .add(
            "usable_vs_download",
            "x",
            &usable.values().iter().map(|s| s / download_s).collect(),
        )
        .against(alternative, "s", download_s);
    report
        .add("usable_s", "s", &usable)
        .against(alternative, "s", download_s);
    // Each run, because a median of one that is too high and one that is too low says nothing.
    let both = simulated_s.values().iter().zip(waits.values());
    let error = both.map(|(simulated, real)| (simulated / real - 1.0).abs());
    report.add_value("sim_error_max", "x", error.fold(0.0, f64::max));
    report.add("wait_s", "s", &waits).against(
        "the same run in the simulator",
        "s",
        simulated_s.median(),
    );
    report.add("second_image_ratio", "x", &second).against(
        "bytes of the first image",
        "MB",
        first_mb.median(),
    );
    report.add("second_usable_s", "s", &second_usable);
    report.add("first_mb", "MB", &first_mb).against(
        "the whole image, compressed",
        "MB",
        site.first.stored_bytes as f64 / 1e6,
    );
    report.note(
        "usable: the screen is the captured one but for its clock, and a menu opens at a key",
    );
    report.note(format!(
        "{} earlier users' runs were known to the hub before the first who is measured",
        context.pick(TEACHERS, 1)
    ));
    Ok(report)
}

/// The image as the simulator sees it, based on what is stored.
struct Known {
    content: Content,
    regions: Vec<RegionShape>,
}

impl Known {
    fn of(site: &Site, image: &Published) -> anyhow::Result<Known> {
        let content = Content::open(site.origin(), &image.id.to_string())?;
        let regions = content.regions().into_iter().enumerate();
        let regions = regions.map(|(number, name)| {
            let mut shape = RegionShape::new(1, urgency_of(&name));
            for chunk in content.nonzero_of(number) {
                shape.put(chunk as u64);
            }
            shape
        });
        Ok(Known {
            regions: regions.collect(),
            content,
        })
    }

    /// Returns the seconds that the simulator's machine waits in the same run over the same link.
    fn simulate(&self, link: &LinkSpec, used: &Used) -> anyhow::Result<f64> {
        let mut trace = used.trace.clone();
        // A zero chunk is never sent.
        trace.accesses.retain(|access| {
            let region = self.regions.get(usize::from(access.region));
            region.is_some_and(|region| region.has(u64::from(access.chunk)))
        });
        let touched: BTreeSet<(u8, u32)> =
            trace.accesses.iter().map(|a| (a.region, a.chunk)).collect();
        let image = ImageShape {
            regions: self.regions.clone(),
            chunk_wire_bytes: self.content.mean_wire_bytes(&touched)?.round() as usize,
        };
        let setup = Setup {
            image: &image,
            trace: &trace,
            link,
            config: Config::default(),
            model: used.model.clone(),
            preamble_bytes: START_WIRE_BYTES,
        };
        Ok(replay(&setup)?.wait_s())
    }
}
