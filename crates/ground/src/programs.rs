//! Where the programs of this host are.

use std::path::{Path, PathBuf};

/// Directories of the administrator's programs, which not every search path names.
const MORE_PATH: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Returns the path of a program of the administrator.
pub fn find_admin(program: &str) -> Option<PathBuf> {
    let more = MORE_PATH.map(|dir| Path::new(dir).join(program));
    find(program).or_else(|| more.into_iter().find(|path| is_executable(path)))
}

/// Returns the path of `program` in the search path.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}
