//! Tests of the whole tree live beside this file: [`house_rules`](../house_rules.rs) and the folder beside it hold the source to
//! its own rules. Here is what they share.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ stands in the root of the checkout")
        .to_path_buf()
}

/// Files that git tracks, relative to the root; of the kinds given by their extensions (none = all).
pub fn tracked(extensions: &[&str]) -> Vec<PathBuf> {
    let out = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root())
        .output()
        .expect("git is installed");
    assert!(
        out.status.success(),
        "git ls-files failed: not a git checkout?"
    );
    let files: Vec<PathBuf> = String::from_utf8(out.stdout)
        .expect("paths are UTF-8")
        .split('\0')
        .filter(|p| !p.is_empty())
        .map(PathBuf::from)
        .filter(|p| {
            extensions.is_empty()
                || p.extension()
                    .is_some_and(|e| extensions.iter().any(|x| e == *x))
        })
        .filter(|p| std::fs::metadata(root().join(p)).is_ok_and(|found| found.is_file()))
        .collect();
    assert!(!files.is_empty());
    files
}

/// The text of a file, given by its path relative to the root.
pub fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// What a source file says outside of its comments and of the tests at its end.
pub fn code(text: &str) -> String {
    let tests = text.match_indices("#[cfg(test)]\n").find(|(at, mark)| {
        let next = text[at + mark.len()..].lines().next().unwrap_or_default();
        next.contains("mod ") && next.ends_with('{')
    });
    let end = tests.map_or(text.len(), |(at, _)| at);
    let lines = text[..end].lines();
    let code = lines.map(|line| line.split("//").next().unwrap_or_default());
    code.collect::<Vec<_>>().join("\n")
}
