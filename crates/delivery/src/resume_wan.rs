//! `resume-wan`: resumes a captured Debian behind 7.2 Mbit/s and 120 ms. How soon does it answer, and how much of it has
//! crossed the link by then? Compared with first copying the compressed image over the same link.
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::wan::{self, Wan};
use std::time::Duration;

/// How long the guest is used after its first answer, before bytes and touched chunks are counted.
const USE: Duration = Duration::from_secs(30);
/// How often it is asked a question meanwhile.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// Longest time for one such answer.
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("resume-wan", context.quick);
    let (guest, memory) = wan::guest(context)?;
    let wan = Wan::prepare(&context.scratch, &guest, memory, &mut |what| {
        eprintln!("resume-wan: {what}")
    })?;
    let rounds = context.pick(3, 1);
    let (mut answers, mut wires, mut ratios, mut touched_mb) = (
        Samples::default(),
        Samples::default(),
        Samples::default(),
        Samples::default(),
    );
    let mut runs = Samples::default();
    for round in 0..rounds {
        let resumed = wan.resume(&format!("near{round}"), |_| {})?;
        answers.push(resumed.answered.as_secs_f64());
        runs.push(resumed.outcome.total_ms / 1000.0);
        for _ in 0..context.pick(USE, ASK_EVERY).as_secs() / ASK_EVERY.as_secs() {
            std::thread::sleep(ASK_EVERY);
            resumed.node.ask(wan::MACHINE, ANSWER_MAX)?;
        }
        let (wire, touched) = (resumed.wire(&wan), wan.touched_bytes(&resumed)?);
        wires.push(resumed.wire_at_answer as f64 / 1e6);
        ratios.push(wire as f64 / touched as f64);
        touched_mb.push(touched as f64 / 1e6);
    }
    let (copied, copy_answered) = wan.copy_first("copy")?;
    let alternative = "copying the image first, then starting it";
    let copy_s = copy_answered.as_secs_f64();
    report
        .add(
            "answer_vs_copy",
            "x",
            &answers.values().iter().map(|s| s / copy_s).collect(),
        )
        .against(alternative, "s", copy_s);
    report
        .add("answer_s", "s", &answers)
        .against(alternative, "s", copy_s);
    report.add("run_s", "s", &runs);
    report.add("wire_ratio", "x", &ratios).against(
        "uncompressed bytes of touched chunks",
        "MB",
        touched_mb.median(),
    );
    report.add("wire_mb_at_answer", "MB", &wires).against(
        "the whole image, compressed",
        "MB",
        wan.image.stored_bytes as f64 / 1e6,
    );
    report.add_value("copy_s", "s", copied.as_secs_f64());
    report.note(format!(
        "the image: {} MB of state, {} MB as stored",
        wan.image.virtual_bytes / 1_000_000,
        wan.image.stored_bytes / 1_000_000
    ));
    report.note(
        "wire bytes are counted at the link, both directions, headers and retransmissions included",
    );
    Ok(report)
}
