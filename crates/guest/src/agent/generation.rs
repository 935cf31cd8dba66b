//! Tells programs that their machine's state was copied or loaded: programs that draw random numbers by themselves, keep leases or hold
//! connections must know.
//!
//! The node says which generation of itself a machine is (the id that QEMU's vmgenid device has, too); it is another one each time that a
//! state is loaded: in a clone, in a machine from an image, in one that was woken. The file with it is in the guest's memory, so a copy
//! finds its parent's there.

use super::GENERATION_PATH;
use crate::chores::{COPIED, OWED_PATH, any_hooks, owe};
use crate::files::{content, replace};
use std::io;
use std::path::Path;

/// Mode of the file: everybody may know it.
const MODE: u32 = 0o644;
/// Length of an id, `01234567-89ab-cdef-0123-456789abcdef`, in bytes.
const ID_BYTES: usize = 36;

/// Records which generation this machine is. If that is not the one that was recorded before, its hooks are owed a call.
pub(super) fn note(id: &str) -> Result<(), String> {
    if note_in(Path::new(GENERATION_PATH), id)? && any_hooks() {
        owe(Path::new(OWED_PATH), COPIED)?;
    }
    Ok(())
}

/// Writes the file if it does not name this generation. Returns whether it named another one.
fn note_in(path: &Path, id: &str) -> Result<bool, String> {
    if id.len() != ID_BYTES || !id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-') {
        return Err(format!("{id:?} is no generation"));
    }
    let found = content(path)?;
    let (number, was) = read(&found);
    if was == id {
        return Ok(false);
    }
    let number = number.saturating_add(1);
    let text = format!("number={number}\nid={id}\n");
    let said = |error: io::Error| format!("{} can't be written: {error}", path.display());
    replace(path, text.as_bytes(), MODE).map_err(said)?;
    Ok(!was.is_empty())
}

/// Returns the number and the id that a file's text names: 0 and nothing of a text that names none.
fn read(text: &str) -> (u64, &str) {
    let value = |key: &str| {
        let mut values = text.lines().filter_map(|line| line.strip_prefix(key));
        values.next().unwrap_or_default()
    };
    (value("number=").parse().unwrap_or_default(), value("id="))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const FIRST: &str = "01234567-89ab-cdef-0123-456789abcdef";
    const SECOND: &str = "fedcba98-7654-3210-fedc-ba9876543210";

    #[test]
    fn a_generation_is_counted_once_and_only_a_copy_is_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("generation");
        let text = || fs::read_to_string(&path).unwrap();
        // a machine that has just booted is nobody's copy
        assert_eq!(note_in(&path, FIRST), Ok(false));
        assert_eq!(text(), format!("number=1\nid={FIRST}\n"));
        // its node was restarted
        assert_eq!(note_in(&path, FIRST), Ok(false));
        assert_eq!(text(), format!("number=1\nid={FIRST}\n"));
        assert_eq!(note_in(&path, SECOND), Ok(true));
        assert_eq!(text(), format!("number=2\nid={SECOND}\n"));
    }

    #[test]
    fn what_is_no_generation_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("generation");
        for bad in ["", "x", &"g".repeat(ID_BYTES), &FIRST[1..]] {
            assert!(note_in(&path, bad).is_err(), "{bad}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        // whatever was written there is no generation
        fs::write(&path, "number=many\nid").unwrap();
        assert_eq!(note_in(&path, FIRST), Ok(false));
        assert_eq!(read(&fs::read_to_string(&path).unwrap()), (1, FIRST));
    }
}
