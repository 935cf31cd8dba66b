//! Whose disk requests go first: `floe io`.

use clap::Subcommand;

use super::Context;
use super::error::CliError;
use super::output::{bytes, fields, short, table, word};
use floe_api::{
    ErrorCode, IoClass, IoLink, IoList, IoListRequest, IoMachine, IoOrder, IoReport, IoSayRequest,
    IoSaying,
};

/// Show whose disk requests go first on this host, and how long each machine's wait
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example: all machines side by side
  floe io status
Example: one machine in detail
  floe io show web
Example: twice the share of others, and never more than a tenth of the disk while others want it
  floe limit web --io-weight 10 --io-cap 10
Example: what was learned of an image's programs, and what one of them is, said by hand
  floe io learned desktop
  floe io allow desktop mplayer

A person waits for what a guest reads soon after a key or a button was sent to it: on its screen and its console
(floe console, or the page's), with floe exec on a terminal, or over floe ssh. Which program reads is told by floe's
agent in the guest, or else guessed by the file. Every read of a disk counts, also of what the host has in memory, which
is answered at once; of memory, what has to come from the host's disk or over a network.")]
pub enum Io {
    /// Show the disk, the links to the sources of images, and all machines that use them
    #[command(after_help = "Example:\n  floe io status")]
    Status,
    /// Show one machine in detail: its rates and waits, and who in it is waited for, and why
    #[command(after_help = "Example:\n  floe io show web")]
    Show {
        /// The machine
        machine: String,
    },
    /// Show which programs of an image a person waits for: said by hand, and learned from its machines
    #[command(after_help = "\
Example:
  floe io learned desktop

The list belongs to the disk that the image stands on. So it is also that of images that were captured of its machines, and of clones:
what is said or learned of one of them holds for all.")]
    Learned {
        /// The image
        image: String,
    },
    /// Say that a person waits for a program, whatever it does, in all machines on an image's disk
    #[command(after_help = "Example:\n  floe io allow desktop mplayer")]
    Allow(Saying),
    /// Say that nobody waits for a program, whatever it does
    #[command(after_help = "Example:\n  floe io forbid desktop updatedb")]
    Forbid(Saying),
    /// Take back what was said of a program, and forget what was learned of it
    #[command(after_help = "Example:\n  floe io forget desktop mplayer")]
    Forget(Saying),
}

/// A program of an image.
#[derive(Debug, clap::Args)]
pub struct Saying {
    /// The image
    image: String,
    /// The program, as its guest calls it: floe io show lists names
    program: String,
}

impl Io {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let client = cx.client()?;
        let say = |saying: Saying, say: IoSaying| {
            let request = IoSayRequest {
                image: saying.image,
                program: saying.program,
                say,
            };
            cx.out.value(&client.io_say(&request)?, learned)
        };
        match self {
            Io::Status => cx.out.value(&client.io()?, status),
            Io::Show { machine } => {
                let report = client.io()?;
                let of = of_machine(&report, &machine)?;
                cx.out.value(of, details)
            }
            Io::Learned { image } => {
                let list = client.io_list(&IoListRequest { image })?;
                cx.out.value(&list, learned)
            }
            Io::Allow(saying) => say(saying, IoSaying::Allow),
            Io::Forbid(saying) => say(saying, IoSaying::Forbid),
            Io::Forget(saying) => say(saying, IoSaying::Forget),
        }
    }
}

fn learned(list: &IoList) -> String {
    let by_hand = |names: &[String]| match names {
        [] => "none".to_owned(),
        names => names.join(", "),
    };
    let mut text = fields(&[
        ("image", short(&list.image)),
        ("disk", short(&list.disk)),
        ("allowed", by_hand(&list.allowed)),
        ("forbidden", by_hand(&list.forbidden)),
    ]);
    if list.learned.is_empty() {
        return text + "Nothing was learned yet: that happens while somebody uses its machines.\n";
    }
    let rows = list.learned.iter().map(|row| {
        let believed = match row.believed {
            Some(true) => "waited for",
            Some(false) => "not waited for",
            None => "too little is known",
        };
        vec![
            row.program.clone(),
            row.machines.to_string(),
            row.seen.to_string(),
            row.interactive.to_string(),
            believed.to_owned(),
        ]
    });
    text.push('\n');
    let titles = [
        "PROGRAM",
        ">MACHINES",
        ">JUDGED",
        ">INTERACTIVE",
        "BELIEVED",
    ];
    text + &table(&titles, rows)
}

fn of_machine<'a>(report: &'a IoReport, name: &str) -> Result<&'a IoMachine, CliError> {
    let found = report.machines.iter().find(|machine| machine.name == name);
    found.ok_or_else(|| {
        let fix = match report.order {
            IoOrder::Vsip => {
                "floe ps lists the machines; one whose disks have not been used is not known here"
            }
            _ => "this node was started with --io fifo or off, and then no account is kept",
        };
        let what = format!("nothing is known of disk requests of a machine {name}");
        CliError::new(ErrorCode::NotFound, &what, fix)
    })
}

fn order(order: IoOrder) -> &'static str {
    match order {
        IoOrder::Vsip => "what a person waits for goes first (vsip)",
        IoOrder::Fifo => "first come, first served (fifo)",
        IoOrder::Off => "not at all (off)",
    }
}

fn status(report: &IoReport) -> String {
    let mut pairs = vec![("ordered", order(report.order).to_owned())];
    if report.order == IoOrder::Vsip {
        pairs.push((
            "disk",
            format!(
                "{:.0} requests/s predicted, {} of at most {} under way",
                report.capacity_per_s, report.in_flight, report.depth
            ),
        ));
        pairs.push(("kept free", milliseconds(report.held_us as f64)));
        pairs.push(("guard", format!("acted {} times", report.guarded)));
    }
    let mut text = fields(&pairs);
    if !report.machines.is_empty() {
        text += &at_disk(&report.machines);
    }
    text.extend(report.links.iter().map(link));
    text
}

fn at_disk(machines: &[IoMachine]) -> String {
    let rows = machines.iter().map(|machine| {
        vec![
            machine.name.clone(),
            machine.weight.to_string(),
            cap(machine),
            format!("{:.1}", machine.requests_per_s),
            format!("{}/s", bytes(machine.bytes_per_s as u64)),
            machine.queued.to_string(),
            waits(&machine.interactive),
            waits(&machine.normal),
            waits(&machine.bulk),
        ]
    });
    let titles = [
        "MACHINE",
        ">WEIGHT",
        ">CAP",
        ">REQ/S",
        ">RATE",
        ">QUEUED",
        ">INTERACTIVE",
        ">NORMAL",
        ">BULK",
    ];
    format!(
        "\n{}The last three: median and 99th percentile of the time from a request to its answer.\n",
        table(&titles, rows)
    )
}

/// Returns the queue before a link, with what was served of each class.
fn link(link: &IoLink) -> String {
    let from = match &link.sources[..] {
        [] => "this host's repository".to_owned(),
        sources => sources.join(", "),
    };
    let head = fields(&[
        ("link", from),
        (
            "of it",
            format!(
                "{:.0} requests/s predicted, {} of at most {} under way, {} queued ahead of need",
                link.capacity_per_s, link.in_flight, link.depth, link.ahead_queued
            ),
        ),
        ("guard", format!("acted {} times", link.guarded)),
    ]);
    if link.machines.is_empty() {
        return format!("\n{head}");
    }
    let served = |class: &IoClass| match class.served {
        0 => "-".to_owned(),
        served => format!("{served} in {}", waits(class)),
    };
    let rows = link.machines.iter().map(|machine| {
        vec![
            machine.name.clone(),
            format!("{:.1}", machine.requests_per_s),
            format!("{}/s", bytes(machine.bytes_per_s as u64)),
            machine.queued.to_string(),
            machine.in_flight.to_string(),
            served(&machine.interactive),
            served(&machine.normal),
            served(&machine.bulk),
        ]
    });
    let titles = [
        "MACHINE",
        ">REQ/S",
        ">RATE",
        ">QUEUED",
        ">UNDER WAY",
        ">INTERACTIVE",
        ">NORMAL",
        ">BULK",
    ];
    format!(
        "\n{head}{}The last three: how many were served, and in what time, as above.\n",
        table(&titles, rows)
    )
}

fn cap(machine: &IoMachine) -> String {
    match (machine.cap_percent, machine.capped) {
        (100, _) => "-".into(),
        (percent, false) => format!("{percent}%"),
        (percent, true) => format!("{percent}% reached"),
    }
}

fn waits(class: &IoClass) -> String {
    match class.served {
        0 => "-".into(),
        _ => format!(
            "{} / {}",
            milliseconds(class.wait_p50_us as f64),
            milliseconds(class.wait_p99_us as f64)
        ),
    }
}

fn milliseconds(us: f64) -> String {
    match us {
        us if us < 10_000.0 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.0} ms", us / 1e3),
    }
}

fn inputs(machine: &IoMachine) -> String {
    match (machine.inputs, machine.since_input_ms) {
        (0, _) | (_, None) => "none; without any, nobody is taken to wait".to_owned(),
        (inputs, Some(ms)) => format!("{inputs}, the last one {:.1} s ago", ms as f64 / 1e3),
    }
}

fn details(machine: &IoMachine) -> String {
    let class = |class: &IoClass| match class.served {
        0 => "none".to_owned(),
        served => format!(
            "{served} served; waited {} on average, {} in the median, {} at the 99th percentile",
            milliseconds(class.wait_mean_us),
            milliseconds(class.wait_p50_us as f64),
            milliseconds(class.wait_p99_us as f64)
        ),
    };
    let text = fields(&[
        ("machine", machine.name.clone()),
        (
            "weight",
            match machine.among {
                0 | 1 => machine.weight.to_string(),
                among => format!(
                    "{} and the cap, together with {} others",
                    machine.weight,
                    among - 1
                ),
            },
        ),
        ("cap", cap(machine)),
        (
            "rate",
            format!(
                "{:.1} requests and {} a second; {:.1} requests a second if all wanted all they can get",
                machine.requests_per_s,
                bytes(machine.bytes_per_s as u64),
                machine.predicted_per_s
            ),
        ),
        (
            "waiting",
            format!("{} queued, {} under way", machine.queued, machine.in_flight),
        ),
        (
            "may overtake",
            format!("{:.0} requests beyond its share", machine.ahead),
        ),
        ("inputs", inputs(machine)),
        ("interactive", class(&machine.interactive)),
        ("normal", class(&machine.normal)),
        ("bulk", class(&machine.bulk)),
        ("agent", agent(machine)),
        ("files", files(machine)),
        ("unknown", unknown(machine)),
    ]);
    text + &who(machine)
}

fn agent(machine: &IoMachine) -> String {
    match machine.agent_words {
        0 => "has told nothing of who reads".to_owned(),
        words => format!("has told {words} times who reads"),
    }
}

fn files(machine: &IoMachine) -> String {
    match (machine.files, &machine.files_unknown) {
        (Some(files), _) => format!("{files} are known"),
        (None, Some(why)) => format!("not known: {why}"),
        (None, None) => {
            "not known; they are looked for after an input, in the 16 machines that were used last"
                .to_owned()
        }
    }
}

fn unknown(machine: &IoMachine) -> String {
    let Some(unknown) = &machine.unknown else {
        return String::new();
    };
    format!(
        "{} reads of no known program or file, {} soon after the last input and {} before it; the last one {:.1} s ago, {}: {}",
        unknown.reads,
        unknown.after_input,
        unknown.before_input,
        unknown.since_ms as f64 / 1e3,
        word(&unknown.class),
        unknown.why
    )
}

fn who(machine: &IoMachine) -> String {
    if machine.programs.is_empty() {
        return String::new();
    }
    let rows = machine.programs.iter().map(|program| {
        vec![
            program.name.clone(),
            word(&program.source),
            word(&program.class),
            program.requests.to_string(),
            format!("{} / {}", program.after_inputs, program.before_inputs),
            format!("{:.1} s", program.since_ms as f64 / 1e3),
            program.why.clone(),
        ]
    });
    let titles = [
        "WHO",
        "BY",
        "CLASS",
        ">REQUESTS",
        ">AFTER/BEFORE INPUTS",
        ">AGO",
        "WHY",
    ];
    format!("\n{}", table(&titles, rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_api::{IoSource, IoUrgency};

    fn report() -> IoReport {
        let served = IoClass {
            served: 9,
            wait_mean_us: 1500.0,
            wait_p50_us: 1000,
            wait_p99_us: 25_000,
        };
        let web = IoMachine {
            name: "web".into(),
            weight: 10,
            cap_percent: 25,
            capped: true,
            interactive: served,
            ..Default::default()
        };
        IoReport {
            capacity_per_s: 120.0,
            depth: 2,
            machines: vec![web],
            links: vec![IoLink {
                sources: vec!["https://hub.example/v1".into()],
                ahead_queued: 40,
                machines: vec![floe_api::IoLinkMachine {
                    name: "web".into(),
                    queued: 3,
                    normal: served,
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    #[test]
    fn the_disk_and_its_machines_are_shown_with_their_waits() {
        let text = status(&report());
        for part in [
            "120 requests/s",
            "web",
            "25% reached",
            "1.0 ms / 25 ms",
            "INTERACTIVE",
            "https://hub.example/v1",
            "40 queued ahead of need",
            "9 in 1.0 ms / 25 ms",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let mut idle = report();
        idle.links[0].machines.clear();
        idle.links[0].sources.clear();
        idle.machines.clear();
        let text = status(&idle);
        assert!(text.contains("this host's repository") && !text.contains("MACHINE"));
        let text = details(&report().machines[0]);
        assert!(
            text.contains("9 served; waited 1.5 ms on average"),
            "{text}"
        );
        assert!(text.contains("none"), "{text}");
    }

    #[test]
    fn who_is_waited_for_is_shown_with_the_reason_and_so_is_what_was_learned() {
        let program = floe_api::IoProgram {
            name: "firefox".into(),
            source: IoSource::Agent,
            class: IoUrgency::Interactive,
            why: "started on an input just now".into(),
            after_inputs: 12,
            ..Default::default()
        };
        let machine = IoMachine {
            agent_words: 7,
            files_unknown: Some("no file system".into()),
            programs: vec![program],
            unknown: Some(floe_api::IoUnknown {
                reads: 40,
                why: "soon after an input".into(),
                since_ms: 1500,
                ..Default::default()
            }),
            ..Default::default()
        };
        let text = details(&machine);
        for part in [
            "told 7 times",
            "no file system",
            "firefox",
            "12 / 0",
            "started on",
            "40 reads of no known program or file",
            "1.5 s ago, normal: soon after an input",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let row = floe_api::IoLearned {
            program: "firefox".into(),
            machines: 3,
            seen: 9,
            interactive: 9,
            believed: Some(true),
        };
        let mut list = IoList {
            allowed: vec!["mplayer".into()],
            learned: vec![row],
            ..Default::default()
        };
        let text = learned(&list);
        assert!(
            text.contains("mplayer") && text.contains("waited for"),
            "{text}"
        );
        list.learned.clear();
        assert!(learned(&list).contains("Nothing was learned yet"));
    }

    #[test]
    fn without_an_order_nothing_is_claimed_and_a_stranger_is_named() {
        let off = IoReport {
            order: IoOrder::Off,
            ..Default::default()
        };
        let text = status(&off);
        assert!(
            text.contains("not at all") && !text.contains("predicted"),
            "{text}"
        );
        assert!(of_machine(&off, "web").is_err());
        assert!(of_machine(&report(), "web").is_ok());
    }
}
