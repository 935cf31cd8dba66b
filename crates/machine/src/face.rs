//! Where a guest shows itself: on its screen, or only on its serial console. And the console's line, on which one program at a
//! time can type.
//!
//! Firmware always writes on the screen, so a picture alone does not tell whether the guest uses it. The video memory does, see
//! [`shown`](crate::shown). Reading QEMU's memory changes nothing for the guest, which reading through a VGA's registers would. Rejected: the
//! picture's size (a text console has that of the firmware) and recognising letters in a picture.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use serde_json::json;

use crate::capture::vram_span;
use crate::error::MachineError;
use crate::machine::Machine;
use crate::sockets::Socket;

/// How much of the video memory is read, in bytes: all that text mode can use, and the upper 200 lines of a screen of 1280 points.
const LOOKED_AT_BYTES: u64 = 1 << 20;
impl Machine {
    /// Returns the beginning of the machine's video memory, by which [`shown`](crate::shown) says what its screen shows; empty if it has
    /// no screen.
    pub fn video_memory(&self) -> Result<Vec<u8>, MachineError> {
        let Some(span) = vram_span(self)? else {
            return Ok(Vec::new());
        };
        let mut vram = vec![0; span.len.min(LOOKED_AT_BYTES) as usize];
        File::open(format!("/proc/{}/mem", self.pid()))
            .and_then(|memory| memory.read_exact_at(&mut vram, span.address))
            .map_err(MachineError::io("read the video memory"))?;
        Ok(vram)
    }

    /// Connects to the serial console's line to type there; `None` if another program is connected, which has the line for itself
    /// until it leaves. What the guest writes must be read as long as the connection is held, or the guest waits.
    pub fn console_line(&self) -> Result<Option<UnixStream>, MachineError> {
        let lines = self.qmp.execute("query-chardev", json!({}))?;
        let lines = lines.as_array().map(Vec::as_slice).unwrap_or_default();
        let name =
            |line: &serde_json::Value, key: &str| line[key].as_str().unwrap_or_default().to_owned();
        let free = lines
            .iter()
            .find(|line| name(line, "label") == "console0")
            .is_some_and(|line| name(line, "filename").starts_with("disconnected:"));
        if !free {
            return Ok(None);
        }
        self.connect(Socket::Console)
            .map(Some)
            .map_err(MachineError::io("connect to the serial console"))
    }
}
