//! Figures, as JSON for programs and as a table for people.
use super::{MachineInfo, Samples, code_here};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{self, Display};

/// How a remark about a broken promise begins.
const VIOLATION: &str = "VIOLATION: ";

/// What a figure is compared with, measured in the same run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Against {
    /// The name of the alternative.
    pub what: String,
    /// The value of the alternative.
    pub value: f64,
    /// The unit of its value.
    pub unit: String,
}

/// One measured number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The number: a median, unless the experiment's explanation or the figure's name says otherwise.
    pub value: f64,
    /// Its unit; `x` for a ratio.
    pub unit: String,
    /// Number of measurements.
    pub n: usize,
    /// The range of the measurements' middle half, in the same unit.
    pub spread: f64,
    /// The alternative that it is compared with.
    pub against: Option<Against>,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// The results of an experiment.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// The experiment's name.
    pub experiment: String,
    /// Whether this is the short version, whose figures prove nothing.
    pub quick: bool,
    /// The figures by name.
    pub figures: BTreeMap<String, Figure>,
    /// Remarks for the reader: what the numbers consist of, what could not be measured.
    pub notes: Vec<String>,
    /// The machine on which it ran.
    pub machine: MachineInfo,
    /// The code that was measured ([`code_here`]); empty if it was not as committed.
    #[serde(default)]
    pub code: String,
    /// When it ended, in seconds since 1970.
    pub finished_unix_s: u64,
    /// How many seconds the experiment took.
    #[serde(default)]
    pub took_s: u64,
    /// How many parts of the experiment's work were not done yet: with one these are no full run's figures.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lacking: usize,
    /// Plots of the figures, as SVG, by name; they are written next to the JSON.
    #[serde(skip)]
    pub plots: BTreeMap<String, String>,
    /// Limits that were violated: if there is one, the command ends with an error.
    #[serde(skip)]
    pub violations: Vec<String>,
}

impl Report {
    /// Makes an empty report.
    pub fn new(experiment: &str, quick: bool) -> Report {
        Report {
            experiment: experiment.into(),
            quick,
            figures: BTreeMap::new(),
            notes: Vec::new(),
            machine: MachineInfo::here(),
            code: code_here(),
            finished_unix_s: 0,
            took_s: 0,
            lacking: 0,
            plots: BTreeMap::new(),
            violations: Vec::new(),
        }
    }

    /// Whether these figures need no other run: all of them were measured, no promise was broken, and code and machine are
    /// those of `now`.
    pub fn holds_for(&self, now: &Report) -> bool {
        let broken = self.notes.iter().any(|note| note.starts_with(VIOLATION));
        let same = self.code == now.code && self.machine == now.machine;
        let full = !self.quick && self.lacking == 0;
        same && !self.code.is_empty() && self.machine.optimised && full && !broken
    }

    /// Says that some of the experiment's work was not done yet: then these are no full run's figures.
    pub fn lacks(&mut self, lacking: usize, of: usize, what: &str) {
        if lacking > 0 {
            self.note(format!(
                "{lacking} of {of} {what} are lacking: these figures are no full run's"
            ));
            self.lacking += lacking;
        }
    }

    /// Adds the median of `samples`.
    pub fn add(&mut self, name: &str, unit: &str, samples: &Samples) -> &mut Figure {
        self.add_quantile(name, unit, samples, 0.5)
    }

    /// Adds another quantile of `samples`.
    pub fn add_quantile(
        &mut self,
        name: &str,
        unit: &str,
        samples: &Samples,
        q: f64,
    ) -> &mut Figure {
        self.put(
            name,
            unit,
            samples.quantile(q),
            samples.len(),
            samples.spread(),
        )
    }

    /// Adds a number that was counted, not sampled.
    pub fn add_value(&mut self, name: &str, unit: &str, value: f64) -> &mut Figure {
        self.put(name, unit, value, 1, 0.0)
    }

    fn put(&mut self, name: &str, unit: &str, value: f64, n: usize, spread: f64) -> &mut Figure {
        assert!(value.is_finite(), "{name} is {value}: nothing was measured");
        let figure = Figure {
            value,
            unit: unit.into(),
            n,
            spread,
            against: None,
        };
        self.figures.insert(name.into(), figure);
        self.figures.get_mut(name).expect("it was just put there")
    }

    /// Adds the mean of `samples`.
    pub fn add_mean(&mut self, name: &str, unit: &str, samples: &Samples) -> &mut Figure {
        let mean = samples.values().iter().sum::<f64>() / samples.len() as f64;
        self.put(name, unit, mean, samples.len(), samples.spread())
    }

    /// Adds a remark about a violated limit, which makes the command fail.
    pub fn fail(&mut self, text: impl Into<String>) {
        let text = text.into();
        self.notes.push(format!("{VIOLATION}{text}"));
        self.violations.push(text);
    }

    /// Adds a remark for the reader.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }
}

impl Figure {
    /// Sets what the figure is compared with.
    pub fn against(&mut self, what: &str, unit: &str, value: f64) -> &mut Figure {
        self.against = Some(Against {
            what: what.into(),
            value,
            unit: unit.into(),
        });
        self
    }
}

/// Formats a value with as many digits as a reader needs.
pub fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let m = &self.machine;
        let quick = if self.quick {
            " (quick: a check, no figures to publish)"
        } else {
            ""
        };
        let build = if m.optimised {
            ""
        } else {
            ", floe NOT optimised"
        };
        writeln!(f, "{}{quick}", self.experiment)?;
        writeln!(
            f,
            "{} cores of {}, {} MiB, Linux {}, {}, {}{build}",
            m.cores,
            m.cpu,
            m.memory_mib,
            m.kernel,
            m.qemu.as_deref().unwrap_or("no QEMU"),
            m.accelerator
        )?;
        let rows: Vec<[String; 5]> = self
            .figures
            .iter()
            .map(|(name, figure)| {
                let against = figure.against.as_ref();
                [
                    name.clone(),
                    format!("{} {}", short(figure.value), figure.unit),
                    short(figure.spread),
                    figure.n.to_string(),
                    against.map_or(String::new(), |a| {
                        format!("{}: {} {}", a.what, short(a.value), a.unit)
                    }),
                ]
            })
            .collect();
        let head = ["figure", "value", "spread", "n", "against"].map(String::from);
        let widths: Vec<usize> = (0..5)
            .map(|column| {
                rows.iter()
                    .chain([&head])
                    .map(|row| row[column].chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        for row in [&head].into_iter().chain(&rows) {
            let [name, value, spread, n, against] = row;
            let line = format!(
                "  {name:<0$}  {value:>1$}  {spread:>2$}  {n:>3$}  {against}",
                widths[0], widths[1], widths[2], widths[3]
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        for note in &self.notes {
            writeln!(f, "  - {note}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::new("import", true);
        let samples: Samples = [0.7, 0.8, 0.9].into_iter().collect();
        report
            .add("import_vs_zstd", "x", &samples)
            .against("zstd -3 -T0", "MB/s", 350.0);
        report.note("4 GB, 1 GB of it data");
        report
    }

    #[test]
    fn the_json_is_what_was_promised() {
        let json: serde_json::Value = serde_json::to_value(report()).unwrap();
        assert_eq!(json["experiment"], "import");
        let figure = &json["figures"]["import_vs_zstd"];
        assert_eq!(figure["value"], 0.8);
        assert_eq!((&figure["unit"], &figure["n"]), (&"x".into(), &3.into()));
        assert!((figure["spread"].as_f64().unwrap() - 0.1).abs() < 1e-9);
        assert_eq!(figure["against"]["what"], "zstd -3 -T0");
        let back: Report = serde_json::from_value(json).unwrap();
        assert_eq!(back.figures, report().figures);
    }

    #[test]
    fn the_table_names_value_unit_and_alternative() {
        let text = report().to_string();
        assert!(
            text.contains("import_vs_zstd")
                && text.contains("0.800 x")
                && text.contains("zstd -3 -T0: 350.0 MB/s"),
            "{text}"
        );
        assert!(text.contains("quick"), "{text}");
    }

    #[test]
    fn figures_hold_for_the_code_and_the_machine_of_their_run() {
        let full = || {
            let mut full = report();
            (full.quick, full.code, full.machine.optimised) = (false, "crates 12".into(), true);
            full
        };
        assert!(full().holds_for(&full()));
        let changes: [fn(&mut Report); 7] = [
            |it| it.code = "crates 13".into(),
            |it| it.code.clear(),
            |it| it.quick = true,
            |it| it.machine.cpu = "another".into(),
            |it| it.machine.optimised = false,
            |it| it.lacks(1, 16, "runs"),
            |it| it.fail("a guest lost a byte"),
        ];
        for change in changes {
            let mut other = full();
            change(&mut other);
            assert!(!other.holds_for(&full()));
        }
    }

    #[test]
    #[should_panic(expected = "nothing was measured")]
    fn a_figure_without_measurements_is_a_fault() {
        report().add("empty", "x", &Samples::default());
    }
}
