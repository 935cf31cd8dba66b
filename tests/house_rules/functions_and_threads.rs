//! Rules for functions and threads: none is longer than a reader can hold in mind, none starts behind the back of those who look
//! after threads, none looks again and again for what it could wait for, none takes a file that can't be read for an empty one, and none
//! tells users what happened in words of its own.
//!
//! Tests and the lab's crates are excepted, which tell a story from its beginning to its end, and the crate of what runs inside guests: a
//! program there stays as small as it can be.

use std::path::Path;

use floe_tests::{read, tracked};

/// A function that is longer holds a second idea that wants a name of its own.
const FUNCTION_LINES_MAX: usize = 80;
/// How a comment begins that says why a function is longer.
const WHY_LONG: &str = "// Long: ";

/// The files of the product's own code, each with its lines outside of tests.
fn product() -> Vec<(String, Vec<String>)> {
    let rooms = [
        "crates/testbed",
        "crates/simulator",
        "crates/torture",
        "crates/contention",
        "crates/delivery",
        "crates/lab",
        "crates/guest",
        "crates/threads",
    ];
    let mut all = Vec::new();
    for file in tracked(&["rs"]) {
        let parts: Vec<_> = file.iter().map(|part| part.to_string_lossy()).collect();
        let in_source = parts.first().is_some_and(|first| first == "crates")
            && parts.get(2).is_some_and(|third| third == "src");
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let is_test = name.contains("tests") || name == "interleavings.rs";
        let excepted = rooms.iter().any(|room| file.starts_with(Path::new(room)));
        if !in_source || is_test || excepted {
            continue;
        }
        let text = read(&file);
        let end = text.find("\n#[cfg(test)]\nmod ").unwrap_or(text.len());
        let lines = text[..end].lines().map(str::to_owned).collect();
        all.push((file.display().to_string(), lines));
    }
    assert!(all.len() > 100);
    all
}

/// What a line says before its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

/// The name of the function that a line declares, if it does.
fn declares(line: &str) -> Option<&str> {
    let code = code(line);
    let mut rest = code.trim_start();
    for word in [
        "pub(crate) ",
        "pub(super) ",
        "pub ",
        "const ",
        "async ",
        "unsafe ",
    ] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    let name = rest.strip_prefix("fn ")?;
    name.split(['(', '<']).next()
}

/// The functions of a file: name, index of the first line, number of lines.
fn functions(lines: &[String]) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let Some(name) = declares(line) else {
            continue;
        };
        let indent = &line[..line.len() - line.trim_start().len()];
        // rustfmt puts a function's last brace below its first letter
        let last = lines[first..].iter().position(|line| {
            line.strip_prefix(indent).is_some_and(|rest| {
                rest == "}" || (rest == ";" || rest.ends_with(");")) && !rest.starts_with(' ')
            })
        });
        let one_line = line.trim_end().ends_with(['}', ';']);
        let count = if one_line {
            1
        } else {
            last.map_or(1, |last| last + 1)
        };
        found.push((name.to_owned(), first, count));
    }
    found
}

/// Whether one of the lines just above says something in a comment, or the line itself does.
fn has_reason(lines: &[String], at: usize) -> bool {
    let is_comment = |line: &String| {
        let line = line.trim_start();
        line.starts_with("// ") && line.len() > "// ".len()
    };
    lines[at].contains(" // ") || lines[at.saturating_sub(2)..at].iter().any(is_comment)
}

#[test]
fn no_function_is_long_without_a_reason_beside_it() {
    let mut long = Vec::new();
    for (file, lines) in product() {
        for (name, first, count) in functions(&lines) {
            let above = &lines[first.saturating_sub(4)..first];
            let reason = above
                .iter()
                .any(|line| line.trim_start().starts_with(WHY_LONG));
            if count > FUNCTION_LINES_MAX && !reason {
                long.push(format!("{file}:{}: {name} has {count} lines", first + 1));
            }
        }
    }
    assert!(
        long.is_empty(),
        "split them, or say why above them ({WHY_LONG}...): {long:#?}"
    );
}

#[test]
fn the_lines_of_functions_are_counted() {
    let text = "impl A {\n    /// Says.\n    pub fn one(\n        self,\n    ) -> u8 {\n        1\n    }\n\n    fn two() {}\n}\n";
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let found = functions(&lines);
    assert_eq!(found, [("one".into(), 2, 5), ("two".into(), 8, 1)]);
}

#[test]
fn threads_are_started_by_the_crate_that_looks_after_them() {
    let starts = [
        "thread::spawn(",
        "thread::scope(",
        "thread::Builder",
        "spawn_scoped(",
    ];
    let mut found = Vec::new();
    for (file, lines) in product() {
        for (number, line) in lines.iter().enumerate() {
            if starts.iter().any(|start| code(line).contains(start)) {
                found.push(format!("{file}:{}: {line}", number + 1));
            }
        }
    }
    assert!(
        found.is_empty(),
        "use floe_threads (spawn, scope, keep_running, Threads): {found:#?}"
    );
}

#[test]
fn nobody_sleeps_without_a_reason_beside_it() {
    let (mut found, mut reasons) = (Vec::new(), 0);
    for (file, lines) in product() {
        for (number, line) in lines.iter().enumerate() {
            if !code(line).contains("thread::sleep(") {
                continue;
            }
            match has_reason(&lines, number) {
                true => reasons += 1,
                false => found.push(format!("{file}:{}: {line}", number + 1)),
            }
        }
    }
    assert!(
        found.is_empty(),
        "wait for the event (floe_threads), or say why nothing tells of it: {found:#?}"
    );
    assert!(reasons > 0, "the rule finds nothing");
}

/// The lines in which a file or directory that can't be read is taken for an empty one.
fn takes_errors_for_nothing(lines: &[String]) -> Vec<usize> {
    let accesses = ["fs::", "File::", "metadata(", "read_dir("];
    let (mut statement, mut found) = (String::new(), Vec::new());
    for (number, line) in lines.iter().enumerate() {
        let code = code(line).trim();
        statement += code;
        let accesses_files = accesses.iter().any(|access| statement.contains(access));
        if accesses_files && code.contains("unwrap_or_default()") {
            found.push(number);
        }
        if code.ends_with([';', '{', '}', ',']) {
            statement.clear();
        }
    }
    found
}

#[test]
fn an_error_is_taken_for_nothing_only_with_a_reason_beside_it() {
    let text = "let a = fs::read(path)\n    .unwrap_or_default();\nlet b = fs::read(path)?;\nlet c = b.first().unwrap_or_default();\n";
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    assert_eq!(takes_errors_for_nothing(&lines), [1]);
    let (mut found, mut reasons) = (Vec::new(), 0);
    for (file, lines) in product() {
        for number in takes_errors_for_nothing(&lines) {
            match has_reason(&lines, number) {
                true => reasons += 1,
                false => found.push(format!("{file}:{}: {}", number + 1, lines[number])),
            }
        }
    }
    assert!(
        found.is_empty(),
        "only NotFound means that nothing is there: return the error, or say why it does no harm: {found:#?}"
    );
    assert!(reasons > 0, "the rule finds nothing");
}

/// Whether a line adds a limit to the time that it is now which may have come from outside: one that is no constant.
fn adds_a_limit(line: &str) -> bool {
    let mut rest = code(line).split("Instant::now() + ");
    rest.next();
    rest.any(|limit| limit.starts_with(|first: char| first.is_ascii_lowercase()))
}

#[test]
fn no_limit_from_outside_is_longer_than_a_clock_can_count() {
    assert!(adds_a_limit("let until = Instant::now() + timeout;"));
    assert!(!adds_a_limit(
        "let until = Instant::now() + PATIENCE; // + timeout"
    ));
    let (mut found, mut right) = (Vec::new(), 0);
    for (file, lines) in product() {
        for (number, line) in lines.iter().enumerate() {
            right += usize::from(code(line).contains("from_now("));
            if adds_a_limit(line) {
                found.push(format!("{file}:{}: {line}", number + 1));
            }
        }
    }
    assert!(
        found.is_empty(),
        "the sum of a clock and a limit that is too long is a panic: use floe_threads::from_now: {found:#?}"
    );
    assert!(right > 10, "the rule finds nothing");
}

#[test]
fn what_happens_on_a_node_is_told_as_news() {
    let news = "crates/ground/src/news.rs";
    let crates = [
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
    .map(|name| format!("crates/{name}/src/"));
    // who is told looks at the kind
    let readers = ["rest/watching.rs", "pool/seen.rs"];
    let (mut found, mut kinds) = (Vec::new(), 0);
    for (file, lines) in product() {
        let Some(room) = crates.iter().find_map(|base| file.strip_prefix(&**base)) else {
            continue;
        };
        if readers.contains(&room) {
            continue;
        }
        for (number, line) in lines.iter().enumerate() {
            match code(line).contains("Happened::") {
                true if file == news => kinds += 1,
                true => found.push(format!("{file}:{}: {line}", number + 1)),
                false => {}
            }
        }
    }
    assert!(
        found.is_empty(),
        "each event is a variant of News and has its text there: {found:#?}"
    );
    assert!(kinds > 50, "the rule finds nothing");
}
