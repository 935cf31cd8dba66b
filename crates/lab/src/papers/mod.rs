//! The five papers that say what floe must do: each of their tables and figures, with what was recorded here beside it (`floe-lab
//! all`). What has no record is told with the command that makes it, what can't be shown here with the reason.
//!
//! One file for each paper. What a paper shows in a figure alone, without a number in its text, has no number here either.

mod snowflock;
mod vmtorrent;
mod vsip;
mod vtube;
mod wang;

use anyhow::Context as _;
use floe_testbed::harness::{Figure, code_here, short};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// All of them.
pub const PAPERS: [&Paper; 5] = [
    &vtube::PAPER,
    &vmtorrent::PAPER,
    &snowflock::PAPER,
    &wang::PAPER,
    &vsip::PAPER,
];

/// A paper.
#[derive(Debug)]
pub struct Paper {
    /// What its system is called.
    pub name: &'static str,
    /// Its title, authors and place.
    pub title: &'static str,
    /// Its tables and figures, in their order.
    pub parts: &'static [Part],
}

/// A table or figure of a paper, or a section that tells of an experiment without either.
#[derive(Debug)]
pub struct Part {
    /// As the paper numbers it: `figure 12`, `table 3.1`, `section 4.5`.
    pub number: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// What it says, line by line.
    pub rows: &'static [Row],
}

/// One line of a table or figure.
#[derive(Debug)]
pub struct Row {
    /// What it is about.
    pub what: &'static str,
    /// What the paper says, in its units; empty where it draws without a number.
    pub theirs: &'static str,
    /// Where ours is.
    pub ours: Ours,
}

/// Where the counterpart of a paper's line is.
#[derive(Clone, Copy, Debug)]
pub enum Ours {
    /// A figure, by its experiment and key.
    Value(&'static str, &'static str),
    /// What a figure is held against, by its experiment and key.
    Against(&'static str, &'static str),
    /// A picture, by the experiment that draws it and its name.
    Picture(&'static str, &'static str),
    /// Nothing was measured in the paper, or it is told where it was.
    Told(&'static str),
    /// Not shown here: the reason, and the command that comes nearest or would show it.
    NotHere(&'static str, &'static str),
}

/// Makes a line.
const fn row(what: &'static str, theirs: &'static str, ours: Ours) -> Row {
    Row { what, theirs, ours }
}

/// Of which code a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// Of this tree's.
    This,
    /// Of other code.
    Other,
    /// The record does not say.
    Unknown,
}

impl Code {
    /// The mark beside what is printed, and what it means; this tree's code has none.
    const MARKED: [(Code, &str, &str); 2] = [
        (
            Code::Other,
            "*",
            "measured on other code than this tree has now",
        ),
        (
            Code::Unknown,
            "?",
            "its record names no code: it is old, of an unfinished run, or of what was not committed",
        ),
    ];

    fn mark(self) -> &'static str {
        let mut marked = Code::MARKED.into_iter();
        let found = marked.find(|(code, ..)| *code == self);
        found.map_or("", |(_, mark, _)| mark)
    }
}

/// What there is of a paper's line.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Found {
    /// It was recorded.
    Recorded {
        /// The value.
        value: f64,
        /// Its unit.
        unit: String,
        /// The experiment and the figure's key.
        from: String,
        /// Of which code.
        code: Code,
    },
    /// It was drawn.
    Drawn {
        /// The picture's file.
        file: PathBuf,
        /// Of which code its experiment's record is.
        code: Code,
    },
    /// It is told in words.
    Told {
        /// Where.
        place: &'static str,
    },
    /// It could be recorded and was not.
    Missing {
        /// The command that does.
        command: String,
    },
    /// It can't be shown here.
    NotHere {
        /// Why.
        why: &'static str,
        /// The command that comes nearest, or would show it elsewhere.
        command: &'static str,
    },
}

/// A line of a paper beside ours.
#[derive(Debug, Serialize)]
pub struct Line {
    /// The paper's system.
    pub paper: &'static str,
    /// The table or figure.
    pub part: &'static str,
    /// What the line is about.
    pub what: &'static str,
    /// What the paper says.
    pub theirs: &'static str,
    /// What there is here.
    pub ours: Found,
}

/// What is read of an experiment's record.
#[derive(Debug, Deserialize)]
struct Record {
    experiment: String,
    figures: BTreeMap<String, Figure>,
    /// Empty if nobody knows, see [`code_here`].
    #[serde(default)]
    code: String,
}

/// What was recorded.
struct Records {
    folder: PathBuf,
    /// The code of this tree, as records name it.
    code: String,
    experiments: BTreeMap<String, Record>,
}

impl Records {
    /// Reads all records of a folder; `code` is that of this tree.
    fn read(folder: &Path, code: String) -> anyhow::Result<Records> {
        let cannot = || {
            format!(
                "cannot read the records in {}; run this at the root of the source tree, or name their folder with --results",
                folder.display()
            )
        };
        let mut experiments = BTreeMap::new();
        for entry in std::fs::read_dir(folder).with_context(cannot)? {
            let path = entry.with_context(cannot)?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let bytes = std::fs::read(&path).with_context(cannot)?;
            let record: Record = serde_json::from_slice(&bytes)
                .with_context(|| format!("{} is no record of an experiment", path.display()))?;
            experiments.insert(record.experiment.clone(), record);
        }
        Ok(Records {
            folder: folder.to_owned(),
            code,
            experiments,
        })
    }

    /// Returns the command that records all of an experiment.
    fn command(&self, experiment: &str) -> String {
        let file = self.folder.join(format!("{experiment}.json"));
        // a run without it measures what promises are of
        let all = if experiment == "io" { " --full" } else { "" };
        format!("floe-lab {experiment}{all} --json {}", file.display())
    }

    /// Returns of which code an experiment's record is.
    fn code(&self, experiment: &str) -> Code {
        let record = self.experiments.get(experiment);
        match record.map_or("", |record| record.code.as_str()) {
            "" => Code::Unknown,
            code if code == self.code => Code::This,
            _ => Code::Other,
        }
    }

    fn find(&self, ours: Ours) -> anyhow::Result<Found> {
        let missing = |experiment: &str| Found::Missing {
            command: self.command(experiment),
        };
        let figure =
            |experiment: &str, key: &str| self.experiments.get(experiment)?.figures.get(key);
        Ok(match ours {
            Ours::Value(experiment, key) => match figure(experiment, key) {
                Some(figure) => Found::Recorded {
                    value: figure.value,
                    unit: figure.unit.clone(),
                    from: format!("{experiment}: {key}"),
                    code: self.code(experiment),
                },
                None => missing(experiment),
            },
            Ours::Against(experiment, key) => {
                match figure(experiment, key).and_then(|figure| figure.against.as_ref()) {
                    Some(against) => Found::Recorded {
                        value: against.value,
                        unit: against.unit.clone(),
                        from: format!("{experiment}: {key}, against {}", against.what),
                        code: self.code(experiment),
                    },
                    None => missing(experiment),
                }
            }
            Ours::Picture(experiment, name) => {
                let file = self.folder.join("plots").join(format!("{name}.svg"));
                match std::fs::metadata(&file) {
                    Ok(_) => Found::Drawn {
                        file,
                        code: self.code(experiment),
                    },
                    Err(error) if error.kind() == ErrorKind::NotFound => missing(experiment),
                    Err(error) => {
                        return Err(error)
                            .with_context(|| format!("cannot look at {}", file.display()));
                    }
                }
            }
            Ours::Told(place) => Found::Told { place },
            Ours::NotHere(why, command) => Found::NotHere { why, command },
        })
    }

    /// Returns all lines of all papers.
    fn lines(&self) -> anyhow::Result<Vec<Line>> {
        let mut lines = Vec::new();
        for paper in PAPERS {
            for part in paper.parts {
                for row in part.rows {
                    lines.push(Line {
                        paper: paper.name,
                        part: part.number,
                        what: row.what,
                        theirs: row.theirs,
                        ours: self.find(row.ours)?,
                    });
                }
            }
        }
        Ok(lines)
    }
}

impl Found {
    /// Whether somebody could record it here.
    fn is_missing(&self) -> bool {
        matches!(self, Found::Missing { .. })
    }

    /// Returns of which code it is, if it was measured.
    fn code(&self) -> Option<Code> {
        match self {
            Found::Recorded { code, .. } | Found::Drawn { code, .. } => Some(*code),
            Found::Told { .. } | Found::Missing { .. } | Found::NotHere { .. } => None,
        }
    }

    /// Returns what is printed: the value, and where it is from.
    fn shown(&self) -> (String, String) {
        match self {
            Found::Recorded {
                value, unit, from, ..
            } => (format!("{} {unit}", short(*value)), from.clone()),
            Found::Drawn { file, .. } => ("drawn".into(), file.display().to_string()),
            Found::Told { place } => ("told".into(), (*place).into()),
            Found::Missing { command } => ("MISSING".into(), command.clone()),
            Found::NotHere { why, command } => ("not here".into(), format!("{why}: {command}")),
        }
    }
}

/// Print each table and figure of the five papers with what was recorded here beside it
///
/// A line that has no record is told with the command that makes it, one that can't be shown here with the reason; a mark tells which records
/// are not of this tree's code. Nothing is run.
#[derive(clap::Args)]
#[command(after_help = "Example: floe-lab all --missing")]
pub struct Arguments {
    /// Where the records of the experiments are
    #[arg(long, value_name = "DIR", default_value = "lab/results")]
    results: PathBuf,
    /// Only what could be recorded and was not
    #[arg(long)]
    missing: bool,
    /// Also write the lines as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Arguments {
    /// Prints them.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        let mut lines = Records::read(&self.results, code_here())?.lines()?;
        let all = lines.len();
        let (summary, marks) = (summary(&lines), marks(&lines));
        if self.missing {
            lines.retain(|line| line.ours.is_missing());
        }
        if let Some(path) = &self.json {
            std::fs::write(path, serde_json::to_string_pretty(&lines)? + "\n")
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        let mut out = std::io::stdout().lock();
        for paper in PAPERS {
            print(paper, &lines, &mut out)?;
        }
        writeln!(out, "{all} lines: {summary}")?;
        for mark in marks {
            writeln!(out, "{mark}")?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Says how many lines there are of each kind.
fn summary(lines: &[Line]) -> String {
    let count = |is: fn(&Found) -> bool| lines.iter().filter(|line| is(&line.ours)).count();
    format!(
        "{} recorded, {} drawn, {} told, {} missing, {} that can't be shown here",
        count(|ours| matches!(ours, Found::Recorded { .. })),
        count(|ours| matches!(ours, Found::Drawn { .. })),
        count(|ours| matches!(ours, Found::Told { .. })),
        count(Found::is_missing),
        count(|ours| matches!(ours, Found::NotHere { .. })),
    )
}

/// Says of each mark that is beside a line what it means, and of how many lines.
fn marks(lines: &[Line]) -> Vec<String> {
    let marked = Code::MARKED
        .into_iter()
        .filter_map(|(code, mark, meaning)| {
            let of = lines.iter().filter(|line| line.ours.code() == Some(code));
            let count = of.count();
            (count > 0).then(|| format!("{mark} {count} of these lines: {meaning}"))
        });
    marked.collect()
}

/// Prints those of the lines that are of a paper.
fn print(paper: &Paper, lines: &[Line], out: &mut impl Write) -> std::io::Result<()> {
    let of_paper = |line: &&Line| line.paper == paper.name;
    if !lines.iter().any(|line| of_paper(&line)) {
        return Ok(());
    }
    writeln!(out, "{}: {}", paper.name, paper.title)?;
    for part in paper.parts {
        let of_part = lines
            .iter()
            .filter(of_paper)
            .filter(|line| line.part == part.number);
        let rows: Vec<[String; 5]> = of_part
            .map(|line| {
                let (value, from) = line.ours.shown();
                let mark = line.ours.code().map_or("", Code::mark);
                [
                    line.what.into(),
                    line.theirs.into(),
                    value,
                    mark.into(),
                    from,
                ]
            })
            .collect();
        if rows.is_empty() {
            continue;
        }
        writeln!(out, "  {}: {}", part.number, part.title)?;
        let width = |column: usize| {
            let widths = rows.iter().map(|row| row[column].chars().count());
            widths.max().unwrap_or(0)
        };
        let (what, theirs, value) = (width(0), width(1), width(2));
        for row in &rows {
            let line = format!(
                "    {:what$}  {:>theirs$}  {:>value$} {:1} {}",
                row[0], row[1], row[2], row[3], row[4]
            );
            writeln!(out, "{}", line.trim_end())?;
        }
    }
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a record of one figure, measured on this code, and a picture.
    fn records(dir: &Path) -> Records {
        let record = r#"{"experiment": "fault", "quick": false, "code": "crates 12", "figures": {"fault_us_p50":
            {"value": 193.0, "unit": "us", "n": 5, "spread": 1.0, "against": {"what": "a peer", "value": 134.4, "unit": "us"}}}}"#;
        std::fs::write(dir.join("fault.json"), record).unwrap();
        std::fs::create_dir(dir.join("plots")).unwrap();
        std::fs::write(dir.join("plots/runs.svg"), "<svg/>").unwrap();
        Records::read(dir, "crates 12".into()).unwrap()
    }

    fn printed(lines: &[Line]) -> String {
        let mut out = Vec::new();
        for paper in PAPERS {
            print(paper, lines, &mut out).unwrap();
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_is_recorded_is_found_and_what_is_not_has_its_command() {
        let dir = tempfile::tempdir().unwrap();
        let records = records(dir.path());
        let find = |ours| records.find(ours).unwrap();
        let recorded = |value, from: &str| Found::Recorded {
            value,
            unit: "us".into(),
            from: from.into(),
            code: Code::This,
        };
        assert_eq!(
            find(Ours::Value("fault", "fault_us_p50")),
            recorded(193.0, "fault: fault_us_p50")
        );
        assert_eq!(
            find(Ours::Against("fault", "fault_us_p50")),
            recorded(134.4, "fault: fault_us_p50, against a peer")
        );
        assert!(matches!(
            find(Ours::Picture("stream-sim", "runs")),
            Found::Drawn { .. }
        ));
        for ours in [
            Ours::Value("fault", "another"),
            Ours::Value("fork", "fault_us_p50"),
            Ours::Picture("fault", "misses"),
        ] {
            let Found::Missing { command } = find(ours) else {
                panic!("{ours:?}");
            };
            assert!(command.starts_with("floe-lab f") && command.ends_with(".json"));
        }
        std::fs::write(dir.path().join("fork.json"), "{").unwrap();
        let read = |dir: &Path| Records::read(dir, String::new());
        assert!(
            read(dir.path()).is_err(),
            "a damaged record is no missing one"
        );
        assert!(read(&dir.path().join("nowhere")).is_err());
    }

    #[test]
    fn a_record_of_other_or_unknown_code_is_marked() {
        let dir = tempfile::tempdir().unwrap();
        let mut records = records(dir.path());
        let shown = |records: &Records| {
            let lines = records.lines().unwrap();
            (printed(&lines), marks(&lines).join("\n"))
        };
        let figure = |mark: &str| format!("193.0 us {mark} fault: fault_us_p50\n");
        let (text, marks) = shown(&records);
        assert!(text.contains(&figure(" ")), "{text}");
        // the picture's experiment has no record
        assert!(marks.starts_with("? 1 of these lines: "), "{marks}");
        // an uncommitted tree is no code that was measured
        for here in ["crates 13", ""] {
            records.code = here.into();
            let (text, marks) = shown(&records);
            assert!(text.contains(&figure("*")), "{text}");
            assert!(marks.starts_with("* 1 of these lines: "), "{marks}");
        }
        let record = records.experiments.get_mut("fault").unwrap();
        record.code.clear();
        let (text, marks) = shown(&records);
        assert!(text.contains(&figure("?")), "{text}");
        assert!(marks.starts_with("? 2 of these lines: "), "{marks}");
    }

    #[test]
    fn every_line_is_printed_below_its_table_or_figure() {
        let dir = tempfile::tempdir().unwrap();
        let lines = records(dir.path()).lines().unwrap();
        let text = printed(&lines);
        for paper in PAPERS {
            assert!(text.contains(paper.title), "{}", paper.name);
            for part in paper.parts {
                assert!(text.contains(&format!("  {}: {}\n", part.number, part.title)));
                assert!(part.rows.iter().all(|row| text.contains(row.what)));
            }
        }
        assert!(text.contains("193.0 us   fault: fault_us_p50\n"), "{text}");
        let summary = summary(&lines);
        assert!(summary.contains("1 drawn"), "{summary}");
    }
}
