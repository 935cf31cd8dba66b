//! The code that a figure was measured of, so that all figures can be of one.
use floe_image::Hash;
use std::process::Command;

/// What an experiment's figures depend on, beside the machine: all in these but [`TESTS`].
const PARTS: [&str; 3] = ["crates", "web", "Cargo.lock"];
/// Folders of this name hold what no experiment runs: a mended test takes no figure back.
const TESTS: &str = "tests";
/// How many digits of a hash are kept.
const DIGITS: usize = 12;

/// Returns hashes of this repository's code, such as `crates 0123456789ab, web ...`: they change with the code, not with tests,
/// documents or recorded figures. Empty if the code is not as it was committed, or git can't say.
pub fn code_here() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .args(["-C", env!("CARGO_MANIFEST_DIR"), "-C", "../.."])
            .args(arguments)
            .output()
            .ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then_some(text)
    };
    let changed = git(&[&["status", "--porcelain", "--"], &PARTS[..]].concat());
    if changed.as_deref() != Some("") {
        return String::new();
    }
    let hashes: Option<Vec<String>> = PARTS
        .iter()
        .map(|part| {
            let files = git(&["ls-tree", "-r", "HEAD", "--", part])?;
            let hash = Hash::of(run_by_experiments(&files).as_bytes()).to_string();
            Some(format!("{part} {}", hash.get(..DIGITS)?))
        })
        .collect();
    hashes.map_or_else(String::new, |hashes| hashes.join(", "))
}

/// Returns those lines of git's list of files (mode, kind, object, tab, path) that are in no folder of tests.
fn run_by_experiments(files: &str) -> String {
    let is_test = |line: &&str| {
        let path = line.split_once('\t').map_or("", |(_, path)| path);
        path.split('/').any(|folder| folder == TESTS)
    };
    let kept = files.lines().filter(|line| !is_test(line));
    kept.flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_no_part_of_the_code_that_is_measured() {
        let list = "100644 blob aa\tcrates/x/src/lib.rs\n100644 blob bb\tcrates/x/tests/y.rs\n100644 blob cc\tcrates/x/src/tests.rs\n";
        let kept = "100644 blob aa\tcrates/x/src/lib.rs\n100644 blob cc\tcrates/x/src/tests.rs\n";
        assert_eq!(run_by_experiments(list), kept);
    }
}
