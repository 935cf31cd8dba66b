//! The list of the papers' tables and figures is whole, and what it names is there.

use floe_lab::experiments;
use floe_lab::papers::{Ours, PAPERS, Part, Row};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The root of the source tree.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `table 1` to `table 2`, or `figure 3.1` to `figure 3.13` with a chapter.
fn numbered(kind: &str, chapter: &str, count: usize) -> Vec<String> {
    let numbers = 1..=count;
    numbers.map(|n| format!("{kind} {chapter}{n}")).collect()
}

#[test]
fn every_table_and_figure_of_each_paper_is_listed_once() {
    let wang = [
        numbered("table", "3.", 1),
        numbered("figure", "3.", 13),
        numbered("table", "4.", 3),
        numbered("figure", "4.", 12),
        numbered("figure", "5.", 5),
    ];
    let expected = [
        ("vTube", numbered("figure", "", 14)),
        (
            "VMTorrent",
            [numbered("table", "", 2), numbered("figure", "", 10)].concat(),
        ),
        (
            "SnowFlock",
            [numbered("table", "", 2), numbered("figure", "", 6)].concat(),
        ),
        ("Substrate, SBCO and AMPhone", wang.concat()),
        (
            "vSIP",
            [
                numbered("table", "", 1),
                numbered("figure", "", 12),
                vec!["section 4.5".into(), "section 4.6".into()],
            ]
            .concat(),
        ),
    ];
    assert_eq!(PAPERS.len(), expected.len());
    for (paper, (name, parts)) in PAPERS.iter().zip(expected) {
        assert_eq!(paper.name, name);
        let listed: BTreeSet<String> = paper.parts.iter().map(|part| part.number.into()).collect();
        assert_eq!(
            listed.len(),
            paper.parts.len(),
            "{name}: one is there twice"
        );
        let parts: BTreeSet<String> = parts.into_iter().collect();
        assert_eq!(listed, parts, "{name}");
        assert!(
            paper.parts.iter().all(|part| !part.rows.is_empty()),
            "{name}"
        );
    }
}

/// All lines, each with its table or figure.
fn rows() -> impl Iterator<Item = (String, &'static Row)> {
    PAPERS.iter().flat_map(|paper| {
        let of_part = move |part: &'static Part| {
            let place = format!("{}, {}", paper.name, part.number);
            part.rows.iter().map(move |row| (place.clone(), row))
        };
        paper.parts.iter().flat_map(of_part)
    })
}

/// Whether an explained name, with a `<...>` for each thing that differs, is this key.
fn explains(name: &str, key: &str) -> bool {
    let fixed: Vec<&str> = name
        .split('<')
        .map(|part| part.split_once('>').map_or(part, |(_, after)| after))
        .collect();
    let [first, middle @ .., last] = &fixed[..] else {
        return name == key;
    };
    let ends = key.strip_prefix(*first);
    let Some(mut rest) = ends.and_then(|rest| rest.strip_suffix(*last)) else {
        return false;
    };
    for part in middle {
        match rest.split_once(*part) {
            Some((place, after)) if !place.is_empty() => rest = after,
            _ => return false,
        }
    }
    !rest.is_empty()
}

#[test]
fn what_the_list_names_is_recorded_or_explained() {
    let document = read("docs/benchmarks.md");
    let known: BTreeSet<&str> = experiments::ALL.iter().map(|of| of.name).collect();
    let with_options = ["cpu-user", "io", "swarm-real", "swarm-sim"];
    for (place, row) in rows() {
        let (experiment, key) = match row.ours {
            Ours::Value(experiment, key) | Ours::Against(experiment, key) => {
                (experiment, Some(key))
            }
            Ours::Picture(experiment, _) => (experiment, None),
            Ours::Told(_) | Ours::NotHere(..) => continue,
        };
        let is_known = known.contains(experiment) || with_options.contains(&experiment);
        assert!(is_known, "{place}: there is no experiment {experiment}");
        let Some(key) = key else {
            continue;
        };
        let path = root().join(format!("lab/results/{experiment}.json"));
        let recorded = match std::fs::read(&path) {
            Ok(bytes) => {
                let record: Value = serde_json::from_slice(&bytes).unwrap();
                record["figures"].get(key).is_some()
            }
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => panic!("{}: {error}", path.display()),
        };
        let section = document.split_once(&format!("\n## {experiment}\n"));
        let section = section.map_or("", |(_, after)| {
            after.split("\n## ").next().unwrap_or_default()
        });
        let mut names = section.split('`').skip(1).step_by(2);
        assert!(
            recorded || names.any(|name| explains(name, key)),
            "{place}: {experiment} neither recorded {key} nor is it explained in docs/benchmarks.md"
        );
    }
}

#[test]
fn what_the_list_says_is_told_in_a_file_is_told_there() {
    for (place, row) in rows() {
        let Ours::Told(told) = row.ours else {
            continue;
        };
        let paths = told
            .split([' ', ',', '(', ')'])
            .filter(|word| word.contains('/'));
        for path in paths.filter(|path| !path.contains('*')) {
            let found = std::fs::metadata(root().join(path));
            assert!(found.is_ok(), "{place}: {path}: {found:?}");
        }
    }
}

#[test]
fn what_the_list_says_is_not_here_stands_in_the_table_of_what_is_not_shown() {
    let not_shown = not_shown();
    let is_missing = |part: &&Part| {
        let mut rows = part.rows.iter();
        rows.any(|row| matches!(row.ours, Ours::NotHere(..)))
    };
    for paper in PAPERS {
        // one dissertation is three systems
        let mut names: Vec<&str> = paper.name.split([',', ' ']).collect();
        names.retain(|name| !["", "and"].contains(name));
        for part in paper.parts.iter().filter(is_missing) {
            let number = part.number.rsplit(' ').next();
            let tells = |cell: &str| {
                let is_of = names.iter().any(|name| cell.contains(name));
                is_of && cell.split([',', ' ']).any(|word| Some(word) == number)
            };
            let mut cells = not_shown.iter().map(String::as_str);
            assert!(cells.any(tells), "{}, {}", paper.name, part.number);
        }
    }
}

/// What the document's table of what is not shown names: the first cell of each row.
fn not_shown() -> Vec<String> {
    let document = read("docs/benchmarks.md");
    let table = document.split_once("\n## What of the papers is not shown\n");
    let (_, table) = table.expect("the section");
    let table = table.split("\n## ").next().unwrap_or_default();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| "));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    cells.map(str::to_owned).collect()
}

#[test]
fn what_the_table_says_is_not_shown_is_in_the_list_with_its_reason() {
    let mut checked = 0;
    for cell in not_shown() {
        let Some((system, parts)) = cell.split_once(", ") else {
            continue;
        };
        let system = system.rsplit(' ').next().unwrap_or_default();
        let kind = if parts.starts_with("table") {
            "table"
        } else {
            "figure"
        };
        let words = parts.split([',', ' ']);
        for number in words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit())) {
            let papers = PAPERS.iter().filter(|paper| paper.name.contains(system));
            let mut parts = papers.flat_map(|paper| paper.parts);
            let part = parts.find(|part| part.number == format!("{kind} {number}"));
            let part = part.unwrap_or_else(|| panic!("{cell}: there is no {kind} {number}"));
            let mut rows = part.rows.iter();
            let is_told = rows.any(|row| match row.ours {
                Ours::NotHere(why, command) => !why.is_empty() && !command.is_empty(),
                _ => false,
            });
            assert!(is_told, "{cell}: {} is all there", part.number);
            checked += 1;
        }
    }
    assert!(checked > 15, "{checked} were checked");
}

#[test]
fn a_family_explains_its_members() {
    assert!(explains("<who>.launch_<noise>", "bfq.launch_boot7"));
    assert!(explains("<launch>.reads", "netsurf.reads"));
    assert!(explains("n<N>.<policy>", "n100.ours"));
    assert!(explains("lag_ms", "lag_ms") && !explains("lag_ms", "lag_pct"));
    assert!(!explains("<launch>.reads", "netsurf.read_mb"));
    assert!(explains("<setting>.n<N>.<policy>", "run1.n100.ours"));
    assert!(!explains("<setting>.n<N>.<policy>", "netsurf.reads"));
}
