//! Figures that README.md and docs/benchmarks.md quote are those that were recorded: what a table says is what the experiment's file in
//! `lab/results/` says, rounded to the digits that are shown. A figure without a record is "not measured yet".

use std::collections::BTreeMap;

use floe_tests::{read, tracked};
use serde_json::Value;

/// A number as a document has it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Written {
    value: f64,
    /// Half of its last digit: what rounding may have taken away.
    half: f64,
}

impl Written {
    /// Whether this is a value, rounded.
    fn is(self, value: f64) -> bool {
        (self.value - value).abs() <= self.half * 1.0001 + 1e-9
    }
}

/// The numbers of a text, in order. Three digits after a space belong to the digits before it (`1 185`); digits within a word are no
/// number (`n8`), and a minus belongs to one if nothing but a space is before it.
fn numbers(text: &str) -> Vec<Written> {
    let letters: Vec<char> = text.chars().collect();
    let digit = |at: usize| letters.get(at).is_some_and(char::is_ascii_digit);
    let mut found = Vec::new();
    let mut at = 0;
    while at < letters.len() {
        let in_word =
            at > 0 && (letters[at - 1].is_alphanumeric() || ".,_".contains(letters[at - 1]));
        if !digit(at) || in_word {
            at += 1;
            continue;
        }
        let is_negative = at > 0 && letters[at - 1] == '-' && (at == 1 || letters[at - 2] == ' ');
        let (mut written, mut decimals) = (String::new(), 0);
        if is_negative {
            written.push('-');
        }
        loop {
            while digit(at) {
                written.push(letters[at]);
                at += 1;
            }
            let space = letters
                .get(at)
                .is_some_and(|c| [' ', '\u{202f}'].contains(c));
            let three = (1..=3).all(|n| digit(at + n)) && !digit(at + 4);
            if !(space && three) {
                break;
            }
            at += 1;
        }
        if letters.get(at) == Some(&'.') && digit(at + 1) {
            written.push('.');
            at += 1;
            while digit(at) {
                written.push(letters[at]);
                decimals += 1;
                at += 1;
            }
        }
        found.push(Written {
            value: written.parse().expect("digits are a number"),
            half: 0.5 * 10f64.powi(-decimals),
        });
    }
    found
}

/// The cells of a table's row.
fn cells(row: &str) -> Vec<&str> {
    let inside = row.trim().trim_start_matches('|').trim_end_matches('|');
    inside.split('|').map(str::trim).collect()
}

/// The figures of each experiment that has a record.
fn recorded() -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for file in tracked(&["json"]) {
        if file.starts_with("lab/results") {
            let report: Value = serde_json::from_str(&read(&file)).expect("a record is JSON");
            let name = report["experiment"].as_str().expect("a name").to_owned();
            all.insert(name, report["figures"].clone());
        }
    }
    assert!(all.len() > 20, "{} records", all.len());
    all
}

/// The number after the name of what a figure is compared with.
fn last_number(cell: &str) -> Option<Written> {
    let (_, number) = cell.rsplit_once(": ")?;
    numbers(number).first().copied()
}

/// What is wrong with a row of docs/benchmarks.md that explains these figures.
fn row_errors(
    columns: &[&str],
    row: &[&str],
    keys: &[&str],
    figures: Option<&Value>,
) -> Vec<String> {
    let cell = |name: &str| {
        let at = columns.iter().position(|column| *column == name);
        at.and_then(|at| row.get(at)).copied().unwrap_or_default()
    };
    let values = numbers(cell("value"));
    let mut wrong = Vec::new();
    for (number, key) in keys.iter().enumerate() {
        let figure = figures.and_then(|figures| figures.get(key));
        let Some(figure) = figure else {
            if !values.is_empty() {
                wrong.push(format!(
                    "`{key}` is quoted as {:?} and has no record",
                    cell("value")
                ));
            }
            continue;
        };
        let value = figure["value"].as_f64().expect("a value");
        if values.len() < keys.len() || !values[number].is(value) {
            wrong.push(format!(
                "`{key}` is {value} in its record, not {:?}",
                cell("value")
            ));
        }
        for name in ["spread", "n"] {
            let told = numbers(cell(name));
            let is = figure[name].as_f64().expect("a number");
            if told.first().is_some_and(|told| !told.is(is)) {
                wrong.push(format!(
                    "`{key}`: {name} is {is} in its record, not {:?}",
                    cell(name)
                ));
            }
        }
        let against = figure["against"]["value"].as_f64();
        let told = last_number(cell("against"));
        if !cell("against").is_empty() && !told.zip(against).is_some_and(|(told, is)| told.is(is)) {
            wrong.push(format!(
                "`{key}` is held against {against:?} in its record, not {:?}",
                cell("against")
            ));
        }
    }
    wrong
}

#[test]
fn what_the_benchmarks_say_of_a_figure_is_what_was_recorded() {
    let (recorded, document) = (recorded(), read("docs/benchmarks.md"));
    let (mut section, mut columns, mut compared, mut wrong) = ("", Vec::new(), 0, Vec::new());
    for (at, line) in document.lines().enumerate() {
        if let Some(name) = line.strip_prefix("## ") {
            section = name.trim();
        }
        if !line.starts_with('|') {
            columns.clear();
            continue;
        }
        let row = cells(line);
        if columns.is_empty() {
            columns = row;
            continue;
        }
        if columns[0] != "figure" || !columns.contains(&"value") {
            continue;
        }
        let keys: Vec<&str> = row[0].split('`').skip(1).step_by(2).collect();
        if keys.iter().any(|key| key.contains('<')) {
            continue;
        }
        compared += keys.len();
        let errors = row_errors(&columns, &row, &keys, recorded.get(section));
        wrong.extend(
            errors
                .into_iter()
                .map(|error| format!("line {}, {section}: {error}", at + 1)),
        );
    }
    assert!(compared > 300, "{compared} figures were compared");
    assert!(
        wrong.is_empty(),
        "docs/benchmarks.md:\n{}",
        wrong.join("\n")
    );
}

/// The figures in the columns of the tables that sum stream-sim up.
const STREAMED: [&str; 7] = [
    "fetch_ratio",
    "miss_rate",
    "wait_s",
    "launch_s",
    "buffering_ratio",
    "buffering_per_min",
    "stalls_per_min",
];

/// The mean of a workload's figure over all links.
fn over_links(figures: &Value, workload: &str, policy: &str, figure: &str) -> f64 {
    let (first, last) = (format!("{workload}."), format!(".{policy}.{figure}"));
    let figures = figures.as_object().expect("figures").iter();
    let of = figures.filter(|(key, _)| key.starts_with(&first) && key.ends_with(&last));
    let values: Vec<f64> = of
        .filter_map(|(_, figure)| figure["value"].as_f64())
        .collect();
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn the_tables_that_sum_streaming_up_are_the_means_of_what_was_recorded() {
    let (recorded, document) = (recorded(), read("docs/benchmarks.md"));
    let figures = &recorded["stream-sim"];
    let (_, section) = document
        .split_once("\n## stream-sim\n")
        .expect("the section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let (mut head, mut compared) = (Vec::new(), 0);
    for line in section.lines() {
        if !line.starts_with('|') {
            head.clear();
            continue;
        }
        let row = cells(line);
        if head.is_empty() || row[0].starts_with("---") {
            if head.is_empty() {
                head = row;
            }
            continue;
        }
        let mut expected = Vec::new();
        match head[0] {
            "policy" => {
                let of =
                    |figure: &&str| figures[format!("mean.{}.{figure}", row[0])]["value"].as_f64();
                expected.extend(STREAMED.iter().map(|figure| of(figure).expect("a mean")));
            }
            "workload" => {
                for policy in &head[1..] {
                    let of = |figure: &&str| over_links(figures, row[0], policy, figure);
                    expected.extend(STREAMED[..3].iter().map(of));
                }
            }
            _ => continue,
        }
        let told: Vec<Written> = row[1..].iter().flat_map(|cell| numbers(cell)).collect();
        assert_eq!(told.len(), expected.len(), "{line}");
        for (told, is) in told.iter().zip(&expected) {
            assert!(told.is(*is), "{} should be {is}: {line}", told.value);
        }
        compared += told.len();
    }
    assert!(compared > 100, "{compared} means were compared");
}

/// Where a number of README.md comes from: experiment, figure, whether it is that of the alternative, and by what it is multiplied.
type Quote = (&'static str, &'static str, bool, f64);

/// The rows of README.md's table of measurements, by their beginnings, with their numbers in order.
const README: &[(&str, &[Quote])] = &[
    (
        "a running Debian behind",
        &[
            ("resume-wan", "answer_s", false, 1.0),
            ("resume-wan", "wire_mb_at_answer", false, 1.0),
            ("resume-wan", "answer_s", true, 1.0),
            ("resume-wan", "wire_mb_at_answer", true, 1.0),
        ],
    ),
    (
        "a desktop on a hub",
        &[
            ("stream-real", "usable_s", false, 1.0),
            ("stream-real", "first_mb", false, 1.0),
            ("stream-real", "usable_s", true, 1.0),
            ("stream-real", "first_mb", true, 1.0),
        ],
    ),
    (
        "from `run` to a running guest",
        &[
            ("restore", "total_ms_p50", false, 1.0),
            ("restore", "standby_ms_p50", false, 1.0),
            ("restore", "total_ms_p50", true, 1.0),
        ],
    ),
    (
        "pause of a capture",
        &[
            ("capture", "pause_ms_p50", false, 1.0),
            ("capture", "pause_ms_p50", true, 1.0),
        ],
    ),
    (
        "eight clones of a running machine",
        &[
            ("fork", "all_running_ms_n8", false, 0.001),
            ("fork", "all_running_ms_n8", true, 0.001),
        ],
    ),
];

#[test]
fn what_the_readme_quotes_is_what_was_recorded() {
    let (recorded, document) = (recorded(), read("README.md"));
    let (_, table) = document
        .split_once("| | floe | otherwise |\n")
        .expect("README.md has a table of measurements");
    let rows: Vec<&str> = table
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert_eq!(
        rows.len(),
        README.len(),
        "each row of the table says here where its numbers come from"
    );
    for row in rows {
        let row = cells(row);
        let known = README
            .iter()
            .find(|(begins, _)| row[0].starts_with(*begins));
        let (_, quotes) =
            known.unwrap_or_else(|| panic!("say here where the numbers of {:?} come from", row[0]));
        let told: Vec<Written> = row[1..].iter().flat_map(|cell| numbers(cell)).collect();
        assert_eq!(told.len(), quotes.len(), "{row:?}");
        for (told, (experiment, key, alternative, scale)) in told.iter().zip(*quotes) {
            let figure = &recorded[*experiment][*key];
            let value = match alternative {
                true => &figure["against"]["value"],
                false => &figure["value"],
            };
            let is = scale
                * value
                    .as_f64()
                    .unwrap_or_else(|| panic!("{experiment} has no {key}"));
            assert!(
                told.is(is),
                "README.md says {}, {experiment}'s {key} is {is}: {row:?}",
                told.value
            );
        }
    }
}

#[test]
fn numbers_are_read_as_they_are_written() {
    let values = |text: &str| numbers(text).iter().map(|n| n.value).collect::<Vec<_>>();
    assert_eq!(values("28 s, 9 MB"), [28.0, 9.0]);
    assert_eq!(values("4 847 MB/s"), [4847.0]);
    assert_eq!(values("37 746, 2 542"), [37746.0, 2542.0]);
    assert_eq!(
        values("0.105 ms; `n8`, q35 and 1.20 / 100.00 % / 1164.5 s"),
        [0.105, 1.2, 100.0, 1164.5]
    );
    assert_eq!(values("-0.561 ms, 7-8, -2"), [-0.561, 7.0, 8.0, -2.0]);
    assert!(values("not measured yet").is_empty());
    assert_eq!(
        last_number("zstd -3 -T0: 1 185 MB/s").map(|n| n.value),
        Some(1185.0)
    );
    let short = numbers("0.58")[0];
    assert!(short.is(0.5796) && short.is(0.585) && !short.is(0.5851) && !short.is(0.57));
}

#[test]
fn a_row_that_says_something_else_than_its_record_is_found() {
    let columns = [
        "figure", "what", "value", "spread", "n", "against", "promise", "",
    ];
    let figures = serde_json::json!({
        "speed": {"value": 4.012, "unit": "x", "n": 5, "spread": 0.43, "against": {"what": "zstd", "value": 1185.4, "unit": "MB/s"}},
    });
    let errors = |row: &str| row_errors(&columns, &cells(row), &["speed"], Some(&figures)).len();
    assert_eq!(
        errors("| `speed` | how fast | 4.01 | 0.43 | 5 | zstd: 1 185 MB/s | >= 1 | met |"),
        0
    );
    assert_eq!(
        errors("| `speed` | how fast | 4.02 | 0.43 | 5 | zstd: 1 185 MB/s | >= 1 | met |"),
        1
    );
    assert_eq!(
        errors("| `speed` | how fast | not measured yet | | | | >= 1 | |"),
        1
    );
    assert_eq!(
        errors("| `speed` | how fast | 4.01 | 0.44 | 6 | zstd: 1 200 MB/s | >= 1 | met |"),
        3
    );
    let unknown = |row: &str| row_errors(&columns, &cells(row), &["other"], Some(&figures)).len();
    assert_eq!(unknown("| `other` | how fast | 3.1 | | | | | |"), 1);
    assert_eq!(
        unknown("| `other` | how fast | not measured yet | | | | | |"),
        0
    );
}
