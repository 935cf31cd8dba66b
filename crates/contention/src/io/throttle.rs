//! QEMU's throttle groups: its storage daemon opens the raw files, each machine's in a group of its own, and machines reach them over NBD as
//! their QEMUs would over the block layer.
//!
//! The protocol is that of <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>: fixed newstyle, simple replies.

use anyhow::{Context as _, bail, ensure};
use floe_sched::Op;
use floe_testbed::local::need;
use serde_json::json;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time for the daemon to begin.
const START_MAX: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// "NBDMAGIC" and "IHAVEOPT".
const HELLO: u64 = 0x4e42_444d_4147_4943;
const OPTION: u64 = 0x4948_4156_454f_5054;
/// Client and server speak the newstyle that is fixed, and without zeros at the end.
const FIXED_NO_ZEROES: u32 = 3;
const EXPORT_NAME: u32 = 1;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;

/// What each machine may have of a disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Requests a second in the long run.
    pub per_s: u64,
    /// Requests a second for a while.
    pub burst_per_s: u64,
    /// How long that is, in seconds.
    pub burst_s: u64,
}

/// The daemon. Dropping it ends it.
pub struct Throttled {
    daemon: Child,
    pub socket: PathBuf,
}

impl Throttled {
    /// Serves these files, each under its name, with this limit for each.
    pub fn start(
        dir: &Path,
        files: &[(String, PathBuf)],
        limit: Limit,
    ) -> anyhow::Result<Throttled> {
        need("qemu-storage-daemon", "qemu-system-common")?;
        std::fs::create_dir_all(dir)?;
        let socket = dir.join("nbd.sock");
        let mut command = Command::new("qemu-storage-daemon");
        command.arg("--nbd-server");
        command.arg(format!("addr.type=unix,addr.path={}", socket.display()));
        for (number, (name, file)) in files.iter().enumerate() {
            let (group, node) = (format!("group{number}"), format!("node{number}"));
            let limits = json!({
                "iops-total": limit.per_s,
                "iops-total-max": limit.burst_per_s,
                "iops-total-max-length": limit.burst_s,
            });
            let object = json!({"qom-type": "throttle-group", "id": group, "limits": limits});
            let file = json!({
                "driver": "file", "filename": file, "aio": "threads", "locking": "off",
                "cache": {"direct": true},
            });
            let raw = json!({"driver": "raw", "file": file, "cache": {"direct": true}});
            let throttled = json!({"driver": "throttle", "node-name": node, "throttle-group": group, "file": raw});
            let export = json!({
                "type": "nbd", "id": format!("export{number}"), "node-name": node, "name": name, "writable": true,
            });
            command.args(["--object".to_owned(), object.to_string()]);
            command.args(["--blockdev".to_owned(), throttled.to_string()]);
            command.args(["--export".to_owned(), export.to_string()]);
        }
        let log = std::fs::File::create(dir.join("log"))?;
        let daemon = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let mut throttled = Throttled {
            daemon: daemon.spawn()?,
            socket,
        };
        let start = Instant::now();
        while let Err(error) = UnixStream::connect(&throttled.socket) {
            let ended = throttled.daemon.try_wait()?.is_some();
            if ended || start.elapsed() > START_MAX {
                let said = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
                bail!(
                    "QEMU's storage daemon did not begin ({error}): {}",
                    said.trim()
                );
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(throttled)
    }
}

impl Drop for Throttled {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// A connection to one export, for one request at a time.
pub struct Connection {
    stream: UnixStream,
    number: u64,
}

impl Connection {
    /// Opens an export.
    pub fn open(socket: &Path, export: &str) -> anyhow::Result<Connection> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("cannot connect to {}", socket.display()))?;
        let mut connection = Connection { stream, number: 0 };
        let mut hello = [0; 18];
        connection.stream.read_exact(&mut hello)?;
        let long = |at: usize| u64::from_be_bytes(hello[at..at + 8].try_into().expect("eight"));
        ensure!(
            long(0) == HELLO && long(8) == OPTION,
            "this is no NBD server"
        );
        ensure!(hello[17] & 3 == 3, "this NBD server is older than QEMU's");
        let mut answer = FIXED_NO_ZEROES.to_be_bytes().to_vec();
        answer.extend(OPTION.to_be_bytes());
        answer.extend(EXPORT_NAME.to_be_bytes());
        answer.extend((export.len() as u32).to_be_bytes());
        answer.extend(export.as_bytes());
        connection.stream.write_all(&answer)?;
        // its size and what it can
        connection
            .stream
            .read_exact(&mut [0; 10])
            .with_context(|| format!("the storage daemon exports no {export:?}"))?;
        Ok(connection)
    }

    /// Makes a request, and waits until it is done.
    pub fn request(&mut self, op: Op, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.number += 1;
        let (what, offset, length) = match op {
            Op::Read => (0u16, offset, bytes.len() as u32),
            Op::Write => (1, offset, bytes.len() as u32),
            Op::Flush => (3, 0, 0),
        };
        let mut message = REQUEST.to_be_bytes().to_vec();
        message.extend(0u16.to_be_bytes());
        message.extend(what.to_be_bytes());
        message.extend(self.number.to_be_bytes());
        message.extend(offset.to_be_bytes());
        message.extend(length.to_be_bytes());
        self.stream.write_all(&message)?;
        if op == Op::Write {
            self.stream.write_all(bytes)?;
        }
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        let word = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().expect("four"));
        if word(0) != REPLY || reply[8..] != self.number.to_be_bytes() {
            return Err(io::Error::other(
                "the storage daemon answered something else",
            ));
        }
        if word(4) != 0 {
            return Err(io::Error::from_raw_os_error(word(4) as i32));
        }
        if op == Op::Read {
            self.stream.read_exact(bytes)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "needs qemu-storage-daemon: make test-all"]
    fn what_was_written_behind_a_throttle_group_is_read_again_and_stands_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("disk");
        std::fs::write(&file, vec![7; 1 << 20]).unwrap();
        let limit = Limit {
            per_s: 1_000,
            burst_per_s: 10_000,
            burst_s: 1,
        };
        let files = [
            ("other".into(), file.clone()),
            ("desk".into(), file.clone()),
        ];
        let throttled = Throttled::start(&dir.path().join("daemon"), &files[1..], limit).unwrap();
        let mut disk = Connection::open(&throttled.socket, "desk").unwrap();
        let mut bytes = [0; 8192];
        disk.request(Op::Read, 4096, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
        disk.request(Op::Write, 16384, &mut [9; 4096]).unwrap();
        disk.request(Op::Flush, 0, &mut []).unwrap();
        let mut second = Connection::open(&throttled.socket, "desk").unwrap();
        second.request(Op::Read, 12288, &mut bytes).unwrap();
        assert!(bytes[..4096].iter().all(|byte| *byte == 7));
        assert!(bytes[4096..].iter().all(|byte| *byte == 9));
        assert!(disk.request(Op::Read, 1 << 30, &mut bytes).is_err());
        assert_eq!(std::fs::read(&file).unwrap()[16384], 9);
        assert!(Connection::open(&throttled.socket, "other").is_err());
    }
}
