//! Names of a machine's files. All but QEMU's own output are in its `run` directory, which is QEMU's working directory.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// QMP socket for the node.
pub(crate) const QMP: &str = "qmp.sock";
/// A second QMP socket, for people and tools.
pub(crate) const QMP_SPARE: &str = "qmp-spare.sock";
/// Socket of the serial console.
pub(crate) const CONSOLE: &str = "console.sock";
/// File with the latest output of the serial console.
pub(crate) const CONSOLE_LOG: &str = "console.log";
/// File with the output before that: the guard in QEMU renames a full log to this name.
pub(crate) const CONSOLE_LOG_BEFORE: &str = "console.log.1";
/// Socket of the guest agent.
pub(crate) const AGENT: &str = "qga.sock";
/// Socket of the port on which programs in the guest talk to the node.
pub(crate) const FLOE: &str = "floe.sock";
/// Socket of the screen.
pub(crate) const VNC: &str = "vnc.sock";
/// The directory of sockets and logs, which belongs to the machine's user.
pub(crate) const RUN_DIR: &str = "run";
/// QEMU's own output.
pub(crate) const LOG: &str = "qemu.log";
/// Number of bytes at the end of that output that an error repeats.
const LOG_TAIL_BYTES: u64 = 2048;

/// Returns the last lines that QEMU wrote after offset `from`, or in a log that was shortened since.
pub(crate) fn tail(dir: &Path, from: u64) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(dir.join(LOG))?;
        let len = file.metadata()?.len();
        let from = if from > len { 0 } else { from };
        file.seek(SeekFrom::Start(
            from.max(len.saturating_sub(LOG_TAIL_BYTES)),
        ))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().unwrap_or_default()
}
