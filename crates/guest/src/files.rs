//! Files that are replaced: whoever reads one finds the old content or the new one, also after a power cut.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The file that tells scripts which machine this is: one `key=value` per line, written once the identity is in place.
pub(crate) const IDENTITY_PATH: &str = "/run/floe.identity";

/// Replaces a file, or makes it. It keeps the mode that it has; a new one gets `mode`.
pub(crate) fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    // of this process alone: another may replace the same file at the same time
    temporary.push(format!(".floe-{}", std::process::id()));
    let write = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode)
            .open(&temporary)?;
        match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => file.set_permissions(found?.permissions())?,
        }
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&temporary); // the reason is the other error
    })
}

/// Returns what was asked of the system about a file; `None` if the file is not there, and on no other error.
pub(crate) fn if_there<T>(path: &Path, asked: io::Result<T>) -> Result<Option<T>, String> {
    match asked {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        asked => asked
            .map(Some)
            .map_err(|error| format!("{}: {error}", path.display())),
    }
}

/// Returns a file's text; none of a file that is not there.
pub(crate) fn content(path: &Path) -> Result<String, String> {
    let bytes = if_there(path, fs::read(path))?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_keeps_its_mode_and_nothing_is_left_of_one_that_can_not_be_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("seed");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        replace(&path, b"one", 0o600).unwrap();
        assert_eq!((fs::read(&path).unwrap(), mode()), (b"one".to_vec(), 0o600));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        replace(&path, b"two", 0o600).unwrap();
        assert_eq!((fs::read(&path).unwrap(), mode()), (b"two".to_vec(), 0o640));
        let busy = dir.path().join("busy");
        fs::create_dir_all(busy.join("full")).unwrap();
        assert!(replace(&busy, b"", 0o600).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
