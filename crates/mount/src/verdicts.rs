//! Records each request's verdict, for measurements: which class it had, and what that was concluded from.
//!
//! One file for each machine, `<directory>/<machine>.csv`, made anew when the machine comes to the mount. It is written out when it is a
//! second old, when the machine goes, and when somebody asks for the scheduler's status.

use crate::MountError;
use floe_sched::classify::{Source, Verdict};
use floe_sched::{Class, MachineId, Op};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Bytes of a file, beyond which nothing more is recorded.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// How long what was recorded may stay in memory.
const WRITTEN_EVERY: Duration = Duration::from_secs(1);
/// The first line of each file.
const HEADER: &str = "unix_us,op,disk,offset,bytes,class,source,rule,program\n";

/// A request and what was decided of it.
pub(crate) struct Decided<'a> {
    pub op: Op,
    /// The number of the disk among its machine's.
    pub disk: Option<u32>,
    pub offset: u64,
    pub bytes: u64,
    pub verdict: Verdict,
    /// Who asked, as far as that is known.
    pub program: &'a str,
}

struct Record {
    file: BufWriter<File>,
    bytes: u64,
    written: Instant,
}

/// The records of all machines.
pub(crate) struct Verdicts {
    dir: PathBuf,
    records: Mutex<HashMap<MachineId, Record>>,
}

impl Verdicts {
    /// Records in this directory, which is made if it is missing.
    pub(crate) fn new(dir: &Path) -> Result<Verdicts, MountError> {
        floe_store::private::make_dirs(dir).map_err(MountError::io("make", dir))?;
        Ok(Verdicts {
            dir: dir.to_owned(),
            records: Mutex::default(),
        })
    }

    /// Begins the file of a machine that is on the mount from now on.
    pub(crate) fn began(&self, machine: MachineId, name: &str) {
        let path = self.dir.join(format!("{name}.csv"));
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        let opened = options.open(&path).and_then(|file| {
            let mut file = BufWriter::with_capacity(64 << 10, file);
            file.write_all(HEADER.as_bytes())?;
            Ok(file)
        });
        match opened {
            Ok(file) => {
                let record = Record {
                    file,
                    bytes: 0,
                    written: Instant::now(),
                };
                self.records.lock().insert(machine, record);
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a machine's verdicts are not recorded");
            }
        }
    }

    /// Ends the file of a machine that is gone.
    pub(crate) fn gone(&self, machine: MachineId) {
        // what can't be written is missing in a measurement, and nowhere else
        drop(self.records.lock().remove(&machine));
    }

    /// Writes out what was recorded.
    pub(crate) fn write_out(&self) {
        for record in self.records.lock().values_mut() {
            let _ = record.file.flush(); // as above
        }
    }

    /// Records a request.
    pub(crate) fn record(&self, machine: MachineId, decided: &Decided<'_>) {
        let mut records = self.records.lock();
        let Some(record) = records.get_mut(&machine) else {
            return;
        };
        if record.bytes >= FILE_BYTES_MAX {
            return;
        }
        let line = line(SystemTime::now(), decided);
        record.bytes += line.len() as u64;
        let _ = record.file.write_all(line.as_bytes()); // as above
        if record.written.elapsed() >= WRITTEN_EVERY {
            record.written = Instant::now();
            let _ = record.file.flush();
        }
    }
}

fn line(now: SystemTime, decided: &Decided<'_>) -> String {
    let us = now
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_micros();
    let op = match decided.op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Flush => "flush",
    };
    let class = match decided.verdict.class {
        Class::Interactive => "interactive",
        Class::Normal => "normal",
        Class::Bulk => "bulk",
    };
    let source = match decided.verdict.source {
        Source::Agent => "agent",
        Source::Caller => "file",
        Source::Nothing => "none",
    };
    let disk = decided.disk.map_or(String::new(), |disk| disk.to_string());
    // a guest chooses its programs' names
    let program: String = decided.program.chars().map(plain).collect();
    let rule = decided.verdict.rule.to_string();
    let (offset, bytes) = (decided.offset, decided.bytes);
    format!("{us},{op},{disk},{offset},{bytes},{class},{source},{rule},{program}\n")
}

fn plain(c: char) -> char {
    if c == ',' || c == '"' || c.is_control() {
        '_'
    } else {
        c
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_sched::classify::Rule;

    #[test]
    fn each_request_is_a_line_whatever_its_program_is_called() {
        let dir = tempfile::tempdir().unwrap();
        let verdicts = Verdicts::new(&dir.path().join("new")).unwrap();
        let machine = MachineId(3);
        let decided = Decided {
            op: Op::Read,
            disk: Some(0),
            offset: 4096,
            bytes: 512,
            verdict: Verdict {
                class: Class::Interactive,
                rule: Rule::Launch,
                source: Source::Agent,
                program: None,
            },
            program: "a,b\n",
        };
        verdicts.record(machine, &decided);
        verdicts.began(machine, "web");
        verdicts.record(machine, &decided);
        verdicts.write_out();
        let text = std::fs::read_to_string(dir.path().join("new/web.csv")).unwrap();
        let (head, rows) = text.split_once('\n').unwrap();
        assert_eq!(head.split(',').count(), 9);
        let (us, row) = rows.split_once(',').unwrap();
        assert!(us.parse::<u64>().is_ok());
        assert_eq!(
            row,
            "read,0,4096,512,interactive,agent,started on an input just now,a_b_\n"
        );
    }
}
