//! The code that a figure was measured of, so that all figures can be of one.
use std::process::Command;

/// What an experiment's figures depend on, beside the machine.
const PARTS: [&str; 3] = ["crates", "web", "Cargo.lock"];
/// How many digits of an object's name are kept.
const DIGITS: usize = 12;

/// Returns the names of git's objects of this repository's code, such as `crates 0123456789ab, web ...`: they change with the
/// code, not with documents or recorded figures. Empty if the code is not as it was committed, or git can't say.
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
    let objects: Option<Vec<String>> = PARTS
        .iter()
        .map(|part| {
            let name = git(&["rev-parse", &format!("HEAD:{part}")])?;
            Some(format!("{part} {}", name.get(..DIGITS)?))
        })
        .collect();
    objects.map_or_else(String::new, |objects| objects.join(", "))
}
