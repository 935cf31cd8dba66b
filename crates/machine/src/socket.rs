//! The sockets of a QEMU, and the one way to connect to them.
//!
//! They are in a directory that belongs to the machine's user, who could put the socket of another process, or a link to one, in their
//! place: whoever connected would tell that process what is for the guest, and would believe what it says. So each connection is
//! checked to lead to QEMU's process before anything is written or read.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Connects to a socket, whatever the length of its path; an error unless this process listens there.
pub(crate) fn connect(path: &Path, pid: u32) -> io::Result<UnixStream> {
    let stream = floe_threads::connect(path)?;
    let peer = rustix::net::sockopt::socket_peercred(&stream)?.pid;
    let peer = peer.as_raw_nonzero().get();
    match u32::try_from(peer) == Ok(pid) {
        true => Ok(stream),
        false => Err(io::Error::other(format!(
            "process {peer} listens there, not QEMU's process {pid}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn another_process_behind_a_socket_is_noticed_and_a_long_path_is_no_obstacle() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let short = dir.path().join("link");
        std::os::unix::fs::symlink(&deep, &short).unwrap();
        let _listener = UnixListener::bind(short.join("s")).unwrap();
        for path in [deep.join("s"), short.join("s")] {
            connect(&path, std::process::id()).unwrap();
            let error = connect(&path, 1).unwrap_err().to_string();
            assert!(error.contains("not QEMU's process 1"), "{error}");
        }
    }
}
