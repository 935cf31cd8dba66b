//! `floe trace ...`: what machines of an image touched. floe learns from it what to fetch ahead.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::error::CliError;
use super::output::{age, bytes, fields, short, table};
use super::{Context, args};

/// Characters for a trace's chart, from few accesses to many.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// What machines of an image touched first, and what was learnt of it
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example: of a local image, or of one that was run here
  floe trace ls debian-booted
  floe trace show debian-booted 3f2a91
Example: of an image of yours on a hub: what its users' machines touched
  floe trace ls https://hub.example/debian-booted

floe run --no-trace keeps and sends none for one machine, floe up --no-traces for all of a node.")]
pub enum Trace {
    Ls(Ls),
    Show(Show),
    Export(Export),
    Import(Import),
}

#[derive(Debug, Args)]
struct Whose {
    /// A local image, the id of one that was run here, or the address of one that you own on a hub
    image: String,
    #[command(flatten)]
    access: super::login::Access,
}

impl Whose {
    fn request(self) -> Result<floe_api::TracesRequest, CliError> {
        let image = args::image(&self.image)?;
        Ok(floe_api::TracesRequest {
            token: self.access.token_for(&image)?,
            image,
            ca: self.access.ca()?,
        })
    }
}

/// List the traces of an image, and the models made of them
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  floe trace ls debian-booted\n  floe trace ls debian-booted --json | jq '.traces | length'"
)]
pub struct Ls {
    #[command(flatten)]
    of: Whose,
}

/// Show what a trace touched, and when
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  floe trace show debian-booted 3f2a91")]
pub struct Show {
    #[command(flatten)]
    of: Whose,
    /// Its hash, or the beginning of it
    trace: String,
}

/// Write a trace to a file
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  floe trace export debian-booted 3f2a91 first.trace")]
pub struct Export {
    #[command(flatten)]
    of: Whose,
    /// Its hash, or the beginning of it
    trace: String,
    /// File to write
    file: PathBuf,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
}

/// Take traces from files, for the image that they belong to
#[derive(Debug, Args)]
#[command(after_help = "\
Example: from one host to another
  floe trace import debian-booted first.trace second.trace
Example: to a hub
  floe trace import https://hub.example/debian-booted *.trace")]
pub struct Import {
    #[command(flatten)]
    of: Whose,
    /// The files
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

impl Trace {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        match self {
            Trace::Ls(ls) => {
                let of = ls.of.request()?;
                cx.out.value(&cx.client()?.traces(&of)?, listing)
            }
            Trace::Show(show) => {
                let request = floe_api::TraceRequest {
                    of: show.of.request()?,
                    trace: show.trace,
                    ..Default::default()
                };
                cx.out.value(&cx.client()?.trace(&request)?, describe)
            }
            Trace::Export(export) => {
                let request = floe_api::TraceRequest {
                    of: export.of.request()?,
                    trace: export.trace,
                    path: Some(args::absolute(&export.file)?),
                    force: export.force,
                };
                let done = cx.client()?.export_trace(&request)?;
                cx.out.value(&done, |done| {
                    format!("{} is in {}\n", short(&done.hash), export.file.display())
                })
            }
            Trace::Import(import) => {
                let to = import.of.request()?;
                let client = cx.client()?;
                let mut taken = Vec::new();
                for file in &import.files {
                    let path = args::existing(file)?;
                    let to = to.clone();
                    taken.push(client.import_trace(&floe_api::TraceImportRequest { to, path })?);
                }
                cx.out.value(&taken, |taken| {
                    let line = |moved: &floe_api::TraceMoved| {
                        let how = if moved.known { "was there" } else { "taken" };
                        format!("{} {how}: {}\n", short(&moved.hash), moved.path)
                    };
                    taken.iter().map(line).collect()
                })
            }
        }
    }
}

fn seconds(us: u64) -> String {
    format!("{:.1} s", us as f64 / 1e6)
}

fn listing(list: &floe_api::TraceList) -> String {
    let row = |t: &floe_api::TraceEntry| {
        vec![
            short(&t.summary.hash),
            t.uploader.clone().unwrap_or_else(|| "(nobody)".into()),
            format!("{} %", t.weight_percent),
            age(t.received_unix_ms / 1000),
            t.summary.accesses.to_string(),
            seconds(t.summary.end_us),
            seconds(t.summary.wait_us),
            bytes(t.summary.bytes),
        ]
    };
    let titles = [
        "TRACE",
        "FROM",
        ">WEIGHT",
        ">AGE",
        ">ACCESSES",
        ">LENGTH",
        ">WAITED",
        ">SIZE",
    ];
    let mut text = table(&titles, list.traces.iter().map(row));
    for model in &list.models {
        let state = if model.current {
            "of these traces"
        } else {
            "a new one is being made"
        };
        text += &format!(
            "model {}: version {}, {}, {state}\n",
            model.method,
            model.version,
            bytes(model.bytes)
        );
    }
    text
}

fn describe(t: &floe_api::TraceDetail) -> String {
    let s = &t.entry.summary;
    let most = t
        .accesses_over_time
        .iter()
        .copied()
        .max()
        .unwrap_or(0)
        .max(1);
    let bar = |count: &u64| match count {
        0 => ' ',
        count => BARS[((count - 1) * BARS.len() as u64 / most) as usize % BARS.len()],
    };
    let picture: String = t.accesses_over_time.iter().map(bar).collect();
    let regions = t
        .regions
        .iter()
        .map(|r| vec![r.region.clone(), r.chunks.to_string(), bytes(r.bytes)]);
    let mut text = fields(&[
        ("trace", s.hash.clone()),
        ("from", t.entry.uploader.clone().unwrap_or_default()),
        ("began", format!("{} ago", age(s.start_unix_us / 1_000_000))),
        (
            "length",
            format!(
                "{}, {} of it waiting",
                seconds(s.end_us),
                seconds(s.wait_us)
            ),
        ),
        ("accesses", s.accesses.to_string()),
        ("over time", format!("|{picture}|")),
    ]);
    text += "\n";
    text += &table(&["REGION", ">CHUNKS", ">BYTES"], regions);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> floe_api::TraceEntry {
        floe_api::TraceEntry {
            summary: floe_api::TraceSummary {
                hash: "ab".repeat(32),
                bytes: 2048,
                accesses: 300,
                end_us: 12_340_000,
                wait_us: 500_000,
                start_unix_us: 0,
            },
            uploader: None,
            received_unix_ms: 0,
            weight_percent: 100,
        }
    }

    #[test]
    fn a_list_tells_of_traces_and_models() {
        let list = floe_api::TraceList {
            image: "cd".repeat(32),
            traces: vec![entry()],
            models: vec![floe_api::ModelEntry {
                method: "floe".into(),
                version: 3,
                bytes: 1024,
                current: true,
            }],
        };
        let text = listing(&list);
        assert!(
            text.contains("abababababab") && text.contains("(nobody)"),
            "{text}"
        );
        assert!(text.contains("12.3 s") && text.contains("0.5 s"), "{text}");
        assert!(
            text.contains("model floe: version 3, 1.0 KiB, of these traces"),
            "{text}"
        );
    }

    #[test]
    fn a_trace_is_drawn_over_its_time() {
        let detail = floe_api::TraceDetail {
            entry: entry(),
            regions: Vec::new(),
            accesses_over_time: vec![0, 1, 4, 8, u64::from(u32::MAX)],
        };
        assert!(
            describe(&detail).contains("| ▁▁▁█|"),
            "{}",
            describe(&detail)
        );
    }
}
