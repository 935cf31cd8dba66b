//! The rules of the house as ordinary tests: which crate may know which, what may not stand in the source, and
//! that the documents tell what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use floe_tests::{code, read, root, tracked};

/// A file that outgrows this holds a second idea that wants a room of its own.
const FILE_LINES_MAX: usize = 700;
/// A crate whose source outgrows this is two.
const CRATE_LINES_MAX: usize = 17_000;

fn metadata() -> serde_json::Value {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    serde_json::from_slice(&out.stdout).expect("cargo metadata is JSON")
}

/// Whom each crate uses, by their directories, as the table of ARCHITECTURE.md says.
fn uses() -> BTreeMap<String, BTreeSet<String>> {
    let document = read("ARCHITECTURE.md");
    let rows = document.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split(" |").collect();
        let directory = cells[0].strip_prefix("| `")?.strip_suffix("/`")?;
        let words = cells.get(2)?.split(|c: char| !c.is_ascii_lowercase());
        let used = words.filter(|word| !word.is_empty()).map(str::to_owned);
        Some((directory.to_owned(), used.collect()))
    });
    rows.collect()
}

/// Development dependencies count as well: a test that needs a crate above its own belongs to that crate.
#[test]
fn crates_use_those_that_the_architecture_names() {
    let told = uses();
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("packages");
    let crates = |directory: &str| directory.starts_with("crates/");
    let mut there = BTreeSet::new();
    for package in packages {
        let manifest = package["manifest_path"].as_str().expect("a path");
        let directory = Path::new(manifest).parent().expect("a directory");
        let directory = directory.strip_prefix(root()).expect("in this tree");
        let directory = directory.to_str().expect("UTF-8");
        there.extend(crates(directory).then_some(directory.to_owned()));
        let told = told
            .get(directory)
            .unwrap_or_else(|| panic!("{directory} has no row in the table of ARCHITECTURE.md"));
        let dependencies = package["dependencies"].as_array().expect("dependencies");
        let names = dependencies.iter().filter_map(|d| d["name"].as_str());
        let ours = names.filter(|name| *name == "floe" || name.starts_with("floe-"));
        let ours = ours.map(|name| name.trim_start_matches("floe-"));
        let used: BTreeSet<String> = ours.map(str::to_owned).collect();
        assert_eq!(
            &used, told,
            "what {directory} uses, and what ARCHITECTURE.md says"
        );
    }
    let rows = told.into_keys().filter(|directory| crates(directory));
    assert_eq!(there, rows.collect(), "crates, and rows of the table");
}

#[test]
fn nothing_is_left_for_later_in_the_source() {
    // Spelled in halves, so that this list does not find itself.
    let forbidden = [
        ["TO", "DO"].concat(),
        ["FIX", "ME"].concat(),
        ["todo", "!("].concat(),
        ["unimplemented", "!("].concat(),
        ["dbg", "!("].concat(),
        // a test that a host can't run is ignored for a reason, never passed
        ["#[ig", "nore]"].concat(),
        ["eprintln!(\"ski", "pped"].concat(),
        ["println!(\"ski", "pped"].concat(),
        ["pk", "ill "].concat(),
        ["kill", "all "].concat(),
    ];
    for file in tracked(&["rs", "sh", "toml", "md", "py"]) {
        let in_source = file.iter().any(|folder| folder == "src");
        for (number, line) in read(&file).lines().enumerate() {
            for word in &forbidden {
                assert!(
                    !line.contains(word),
                    "{}:{}: {line}",
                    file.display(),
                    number + 1
                );
            }
            // who looks into something writes there for a while
            let for_a_while = in_source && line.contains("\"/tmp/");
            assert!(!for_a_while, "{}:{}: {line}", file.display(), number + 1);
        }
    }
}

#[test]
fn no_source_file_outgrows_one_idea() {
    for file in tracked(&["rs"]) {
        let lines = read(&file).lines().count();
        assert!(lines <= FILE_LINES_MAX, "{}: {lines} lines", file.display());
    }
}

#[test]
fn no_crate_outgrows_what_one_can_know() {
    let mut crates: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for file in tracked(&["rs"]) {
        let in_source = file.iter().nth(2).is_some_and(|folder| folder == "src");
        if file.starts_with("crates") && in_source {
            let name = file.iter().take(2).collect();
            *crates.entry(name).or_default() += read(&file).lines().count();
        }
    }
    assert!(crates.len() > 20, "{} crates", crates.len());
    for (name, lines) in crates {
        assert!(
            lines <= CRATE_LINES_MAX,
            "{}: {lines} lines",
            name.display()
        );
    }
}

#[test]
fn decisions_have_no_io_and_no_clock() {
    let forbidden = [
        "std::fs",
        "std::net",
        "std::thread",
        "std::process",
        "std::os",
        "Instant",
        "SystemTime",
        "tokio",
        "libc",
    ];
    for file in tracked(&["rs"]) {
        let decides = [
            "crates/guest/src/exec",
            "crates/planner/src",
            "crates/sched/src",
            "crates/extents/src",
            "crates/swarm/src",
            "crates/peers/src/wire",
            "crates/peers/src/connection/ear.rs",
            "crates/peers/src/owner/gossip.rs",
            "crates/source/src/multicast/protocol",
            "crates/source/src/wrap/stripes.rs",
            "crates/machine/src/rounds.rs",
            "crates/mount/src/patience.rs",
            "crates/inventory/src/inventory/afterwards.rs",
            "crates/inventory/src/inventory/asleep.rs",
            "crates/inventory/src/inventory/turn.rs",
            "crates/inputs/src/decide.rs",
            "crates/ground/src/vnc.rs",
            "crates/guest/src/input.rs",
            "crates/inventory/src/inventory/lifecycle/decide.rs",
            "crates/inventory/src/inventory/lifecycle/state.rs",
            "crates/machines/src/machines/waiting.rs",
            "crates/moves/src/lease.rs",
            "crates/moves/src/when.rs",
            "crates/import/src/agent/decide.rs",
            "crates/import/src/agent/stat.rs",
            "crates/ground/src/pays.rs",
            "crates/ground/src/plan.rs",
            "crates/fork/src/decide.rs",
            "crates/fork/src/when.rs",
            "crates/pool/src/ensemble/decide.rs",
            "crates/pool/src/ensemble/file.rs",
            "crates/machines/src/trim/decide.rs",
            "crates/park/src/independence/decide.rs",
            "crates/park/src/independence/pace.rs",
            "crates/exchange/src/cheaper.rs",
            "crates/exchange/src/decide.rs",
            "crates/exchange/src/hedge.rs",
            "crates/exchange/src/reach.rs",
            "crates/front/src/seats.rs",
            "crates/front/src/turns.rs",
            "crates/front/src/pace.rs",
            "crates/front/src/memory.rs",
            "crates/inventory/src/resources/ledger.rs",
        ];
        if !decides.iter().any(|room| file.starts_with(room)) {
            continue;
        }
        let text = read(&file);
        for word in forbidden {
            assert!(!text.contains(word), "{} uses {word}", file.display());
        }
    }
}

/// ARCHITECTURE.md, "Deliberately absent".
#[test]
fn what_is_deliberately_absent_is_absent() {
    let absent: &[(&str, &[&str])] = &[
        ("image", &["std::fs", "std::net", "File"]),
        ("store", &["std::net", "tokio", "hyper", "http"]),
        ("source", &["planner"]),
        ("planner", &["Instant", "SystemTime", "async fn"]),
        ("mount", &["qemu", "Qemu", "QEMU", "async fn", "tokio"]),
        ("machine", &["blake3", "Hash::", "floe_store"]),
    ];
    for (room, words) in absent {
        let folder = Path::new("crates").join(room).join("src");
        let files = tracked(&["rs"]).into_iter();
        let files: Vec<_> = files.filter(|file| file.starts_with(&folder)).collect();
        assert!(!files.is_empty(), "crates/{room}");
        for file in files {
            let code = code(&read(&file));
            let found = words.iter().find(|word| code.contains(**word));
            assert_eq!(found, None, "{}", file.display());
        }
    }
    let manifest = read("Cargo.toml");
    let fuse = ["fuser", "fuse3", "polyfuse", "fuse-backend-rs"];
    assert!(
        !fuse
            .iter()
            .any(|name| manifest.contains(&format!("\n{name} =")))
    );
}

/// Whoever closes a file drops all locks that its process has on it, SQLite's too (crates/hub/src/upkeep.rs): the next process that is
/// done with the database then takes the log away from under those that write to it.
#[test]
fn nobody_but_sqlite_opens_its_databases() {
    // Spelled in halves, so that this rule does not find itself.
    let name = ["\"hub", ".db"].concat();
    let home = Path::new("crates/hub/src/upkeep.rs");
    // the first damages that of a hub that has ended, the second has SQLite read it
    let tests = ["transfer/tests/hub/disks.rs", "floe/tests/hub/beside.rs"]
        .map(|file| Path::new("crates").join(file));
    let opens = [
        "File::",
        "OpenOptions",
        "options()",
        "fs::read(",
        "fs::read_to_string",
        "fs::write",
        "fs::copy",
        "fs::open",
    ];
    let (mut named, mut users) = (BTreeSet::new(), 0);
    for file in tracked(&["rs"]) {
        let text = code(&read(&file));
        if text.contains(&name) {
            named.insert(file.clone());
        }
        let in_source = file.iter().any(|folder| folder == "src");
        let asks_for_it = in_source && text.contains("catalogue.path");
        assert!(!asks_for_it, "{}", file.display());
        if !in_source || !text.contains("rusqlite") {
            continue;
        }
        users += 1;
        assert!(file.starts_with("crates/hub/src"), "{}", file.display());
        let found = opens.iter().find(|word| text.contains(**word));
        assert_eq!(found, None, "{}", file.display());
        let connects = text.contains("Connection::open");
        assert_eq!(connects, file == home, "{}", file.display());
    }
    let may_name = BTreeSet::from_iter(tests.into_iter().chain([home.to_path_buf()]));
    assert_eq!(named, may_name, "who knows the name can open the file");
    assert!(users > 3, "the rule finds nothing");
}

/// A QEMU's sockets are in a directory of its user, who could put those of another process in their place.
#[test]
fn one_function_opens_the_sockets_of_a_qemu() {
    let home = Path::new("crates/machine/src/socket.rs");
    // the node's own socket, by its address: whether an earlier node listens there
    let own = Path::new("crates/node/src/serve.rs");
    let places = [
        "crates/machine/src",
        "crates/transfer/src",
        "crates/ground/src",
        "crates/import/src",
        "crates/hosts/src",
        "crates/inventory/src",
        "crates/library/src",
        "crates/exchange/src",
        "crates/machines/src",
        "crates/inputs/src",
        "crates/fork/src",
        "crates/pool/src",
        "crates/park/src",
        "crates/moves/src",
        "crates/node/src",
    ];
    let files = tracked(&["rs"]).into_iter();
    let files = files.filter(|file| places.iter().any(|place| file.starts_with(place)));
    let ways = ["UnixStream::connect", "floe_threads::connect"];
    let connects = |file: &PathBuf| ways.iter().any(|way| code(&read(file)).contains(way));
    let found: BTreeSet<PathBuf> = files.filter(connects).collect();
    assert_eq!(found, [home, own].map(Path::to_path_buf).into());
}

/// ARCHITECTURE.md, "Every queue on this way has a bound".
#[test]
fn every_bound_that_is_named_is_in_the_code() {
    let text = read("ARCHITECTURE.md");
    let table = text
        .split_once("| queue | bound | at the bound |")
        .expect("the table of bounds")
        .1;
    let rows: Vec<&str> = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert!(rows.len() > 8, "{} rows", rows.len());
    let rooms = [
        "mount",
        "planner",
        "source",
        "transfer",
        "ground",
        "import",
        "hosts",
        "inventory",
        "library",
        "exchange",
        "machines",
        "inputs",
        "fork",
        "pool",
        "park",
        "moves",
        "node",
    ]
    .map(|room| format!("crates/{room}/src"));
    let files = tracked(&["rs"]).into_iter();
    let files = files.filter(|file| rooms.iter().any(|room| file.starts_with(room)));
    let code: Vec<String> = files.map(|file| code(&read(&file))).collect();
    for row in rows {
        let bound = row.split('|').nth(2).unwrap_or_default();
        let names: Vec<&str> = bound.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no bound has a name: {row}");
        for name in names {
            let (constant, field) = (format!("const {name}:"), format!("pub {name}:"));
            let known = |code: &String| code.contains(&constant) || code.contains(&field);
            assert!(code.iter().any(known), "{name} is nowhere: {row}");
        }
    }
}

#[test]
fn only_the_root_of_the_node_has_methods_of_all_its_services() {
    for file in tracked(&["rs"]) {
        if file.starts_with("crates/node/src") && !file.ends_with("src/lib.rs") {
            let text = read(&file);
            assert!(!text.contains("impl Node {"), "{}", file.display());
        }
    }
}

#[test]
fn every_dependency_is_argued_for() {
    let manifest = read("Cargo.toml");
    let document = read("docs/dependencies.md");
    let table = manifest
        .split("[workspace.dependencies]")
        .nth(1)
        .and_then(|rest| rest.split("\n[").next())
        .expect("Cargo.toml has [workspace.dependencies]");
    for name in table
        .lines()
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, _)| name)
    {
        if name == "floe" || name.starts_with("floe-") || name.starts_with('#') {
            continue;
        }
        assert!(
            document.contains(&format!("`{name}`")),
            "docs/dependencies.md says nothing of `{name}`"
        );
    }
}

#[test]
fn the_architecture_names_every_crate_and_every_room() {
    let document = read("ARCHITECTURE.md");
    for file in tracked(&["rs"]) {
        let parts: Vec<_> = file.iter().map(|p| p.to_string_lossy()).collect();
        if parts[0] != "crates" || parts.get(2).is_none_or(|p| p != "src") {
            continue;
        }
        assert!(
            document.contains(&format!("{}/", parts[1])),
            "crates/{} is missing",
            parts[1]
        );
        if parts.len() > 4 {
            let room = &parts[3];
            assert!(
                document.contains(&format!("{room}/")),
                "crates/{}/src/{room}/ is missing",
                parts[1]
            );
        }
    }
}

#[test]
fn every_experiment_and_all_that_it_has_recorded_is_explained() {
    let document = read("docs/benchmarks.md");
    let (makefile, records) = (read("Makefile"), tracked(&["json"]));
    let lists = makefile
        .lines()
        .filter_map(|line| line.strip_prefix("EXPERIMENTS "));
    let experiments: Vec<&str> = lists
        .flat_map(str::split_whitespace)
        .filter(|word| !word.ends_with('='))
        .collect();
    assert!(experiments.len() > 40, "{experiments:?}");
    for experiment in experiments {
        assert!(
            document.contains(&format!("\n## {experiment}\n")),
            "docs/benchmarks.md lacks {experiment}"
        );
        let path = format!("lab/results/{experiment}.json");
        // what has no record is quoted nowhere, as another rule says
        if !records.contains(&PathBuf::from(&path)) {
            continue;
        }
        let result: serde_json::Value = serde_json::from_str(&read(&path)).expect(&path);
        assert_eq!(result["experiment"], experiment, "{path}");
        let figures = result["figures"].as_object().expect("figures");
        assert!(!figures.is_empty(), "{path} has no figures");
        for (name, figure) in figures {
            for key in ["value", "unit", "n", "spread", "against"] {
                assert!(figure.get(key).is_some(), "{path}: {name} lacks {key}");
            }
            assert!(
                document.contains(&format!("`{name}`"))
                    || families(&document).any(|family| belongs_to(name, family)),
                "docs/benchmarks.md does not explain {name}"
            );
        }
    }
}

/// Figures that are explained together: `<workload>.<link>.wait_s` stands for one of each workload and link.
fn families(document: &str) -> impl Iterator<Item = &str> {
    let quoted = document.split('`').skip(1).step_by(2);
    quoted.filter(|text| {
        text.contains('<') && text.contains('.') && !text.contains(char::is_whitespace)
    })
}

/// Whether a figure's name is the family's with something in place of each `<...>`.
fn belongs_to(name: &str, family: &str) -> bool {
    let fixed: Vec<&str> = family
        .split('<')
        .map(|part| part.split_once('>').map_or(part, |(_, after)| after))
        .collect();
    let (Some(first), Some(last)) = (fixed.first(), fixed.last()) else {
        return false;
    };
    let Some(mut rest) = name.strip_prefix(first).and_then(|n| n.strip_suffix(last)) else {
        return false;
    };
    for part in &fixed[1..fixed.len() - 1] {
        match rest.split_once(part) {
            Some((place, after)) if !place.is_empty() => rest = after,
            _ => return false,
        }
    }
    !rest.is_empty()
}

#[test]
fn a_family_of_figures_has_its_members_and_no_others() {
    let family = "<workload>.<link>.<policy>.wait_s";
    assert!(belongs_to("game.7.2.floe.wait_s", family));
    assert!(!belongs_to("game.7.wait_s", family));
    assert!(!belongs_to("game.7.2.floe.miss_rate", family));
    assert!(belongs_to("mean.floe.wait_s", "mean.<policy>.wait_s"));
    assert!(!belongs_to("mean..wait_s", "mean.<policy>.wait_s"));
}

/// The threat model names a test for each promise: in backquotes, with underscores, in a table's last column.
#[test]
fn every_promise_of_the_threat_model_has_its_test() {
    let sources: String = tracked(&["rs", "ts"]).iter().map(read).collect();
    let document = read("docs/security.md");
    let rows = document.lines().filter(|line| line.starts_with("| "));
    let last = |row: &str| {
        row.trim_end_matches('|')
            .rsplit('|')
            .next()
            .map(str::to_owned)
    };
    let cells: Vec<String> = rows.filter_map(last).collect();
    let named: Vec<&str> = cells
        .iter()
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .filter(|name| {
            name.matches('_').count() > 2
                && name
                    .chars()
                    .all(|c| c == '_' || c.is_ascii_lowercase() || c.is_ascii_digit())
        })
        .collect();
    assert!(named.len() > 20, "{} tests", named.len());
    let missing: Vec<_> = named
        .iter()
        .filter(|name| !sources.contains(&format!("fn {name}(")))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/security.md names tests that are not there: {missing:#?}"
    );
}
