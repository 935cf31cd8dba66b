//! Where a machine's console is, which way what is typed on it goes, and what is shown of it while its QEMU is not on this host.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::super::error::CliError;
use super::super::typing::Source;
use floe_api::client::{Client, ClientError};
use floe_api::{LogQuery, MachineInfo, MachineMove, MachineStatus, MoveStanding};

/// How often the node is told that somebody types. Whose disk requests go first changes within seconds, so more often is of no use.
const TOLD_EVERY: Duration = Duration::from_millis(250);
/// How long it may take until it is known what has become of a machine whose console ended: a QEMU ends before its machine is said to be
/// parked, or another node's.
const SETTLES_IN: Duration = Duration::from_secs(10);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Where a machine's console is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// With its QEMU, on this host.
    Here,
    /// The machine is parked, or between two nodes: what it wrote is here.
    Nowhere,
    /// With the node that has borrowed it.
    There(String),
}

impl Place {
    /// Returns where a machine's console is now.
    pub fn of(client: &Client, machine: &str) -> Result<Place, ClientError> {
        client.machine(machine).map(|info| Place::in_info(&info))
    }

    fn in_info(info: &MachineInfo) -> Place {
        match &info.moves {
            Some(MachineMove {
                standing: MoveStanding::Lent,
                node,
            }) => Place::There(node.clone().unwrap_or_default()),
            // its QEMU has ended for good
            Some(MachineMove {
                standing: MoveStanding::Fenced,
                ..
            }) => Place::Here,
            Some(_) => Place::Nowhere,
            None if info.status == MachineStatus::Parked => Place::Nowhere,
            None => Place::Here,
        }
    }

    /// Returns where it is after it has ended here, connected to it, with so much of the end of what was written where it was not before;
    /// `None` if it has stopped, or nobody knows.
    pub fn after(
        &self,
        client: &Client,
        machine: &str,
        tail: u64,
    ) -> Result<Option<(Place, UnixStream)>, CliError> {
        let until = Instant::now() + SETTLES_IN;
        let mut closed = None;
        while Instant::now() < until {
            if let Ok(info) = client.machine(machine) {
                match Place::in_info(&info) {
                    Place::Here if is_over(&info) => return Ok(None),
                    // the line of one that runs on is another's, or its end was not noticed yet
                    Place::Here if *self == Place::Here => {}
                    Place::Here if info.status == MachineStatus::Starting => {}
                    now => {
                        // what was written here before is on the screen already
                        let tail = match now {
                            Place::There(_) if now != *self => tail,
                            _ => 0,
                        };
                        match now.open(client, machine, tail) {
                            Ok(opened) => return Ok(Some((now, opened))),
                            // it may be about to come back, or that node to answer again
                            Err(error) => closed = Some(error),
                        }
                    }
                }
            }
            // nothing tells of all that may become of it
            std::thread::sleep(LOOK_EVERY);
        }
        closed.map_or(Ok(None), Err)
    }

    /// Says in a few words what it means for who types.
    pub fn told(&self) -> String {
        match self {
            Place::Here => "it runs here".into(),
            Place::Nowhere => {
                "it stands still; what is typed is kept until its guest has got it".into()
            }
            Place::There(node) => {
                format!("it runs on {node}; what is typed is kept until its guest has got it")
            }
        }
    }

    /// Connects to a console, or to what is shown of it: that, and so much of the end of what was written before.
    pub fn open(&self, client: &Client, machine: &str, tail: u64) -> Result<UnixStream, CliError> {
        if *self == Place::Here {
            return Ok(client.attach(machine)?);
        }
        let query = LogQuery {
            follow: true,
            tail_bytes: Some(tail),
        };
        let mut log = client.logs(machine, &query)?;
        let cannot = |error: std::io::Error| CliError::failed("cannot follow the console", error);
        let (ours, mut theirs) = UnixStream::pair().map_err(cannot)?;
        let carry = move || {
            let _ = std::io::copy(&mut log, &mut theirs); // one of the two has ended
        };
        floe_threads::spawn("console-follows", carry).map_err(|error| cannot(error.into()))?;
        Ok(ours)
    }
}

/// Whether a machine's QEMU has ended, and does not go on where it was.
fn is_over(info: &MachineInfo) -> bool {
    matches!(info.status, MachineStatus::Stopped | MachineStatus::Failed)
}

/// Which way what is typed goes.
pub(super) struct Keys {
    client: Client,
    machine: String,
    /// Whether a person types.
    terminal: bool,
    source: Source,
    told: Option<Instant>,
    /// What the node has said last: whether it is to be kept.
    keep: bool,
    /// The beginning of a letter whose rest is still to come.
    begun: Vec<u8>,
}

impl Keys {
    pub fn new(client: &Client, machine: &str, terminal: bool) -> Keys {
        Keys {
            client: client.clone(),
            machine: machine.to_owned(),
            terminal,
            source: Source::new(client.clone(), machine.to_owned()),
            told: None,
            keep: false,
            begun: Vec::new(),
        }
    }

    /// Has the node keep what was typed, if the line would lose it. Returns whether it has: the line does not get it then.
    pub fn are_kept(&mut self, keys: &[u8], place: &Place) -> Result<bool, CliError> {
        if *place == Place::Here && !self.asks() {
            return Ok(false);
        }
        self.begun.extend_from_slice(keys);
        let text = whole(&mut self.begun);
        if !text.is_empty() {
            self.source.send(&text, 0)?;
        }
        // what follows on these is asked about, until none waits
        self.keep = true;
        Ok(true)
    }

    /// Tells the node now and then that somebody types: those bytes don't pass it, which orders disk requests by that. Returns whether it
    /// said last that what is typed is to be kept.
    fn asks(&mut self) -> bool {
        let is_due = self.told.is_none_or(|at| at.elapsed() >= TOLD_EVERY);
        if self.terminal && (is_due || self.keep) {
            self.told = Some(Instant::now());
            // what can't be told now is told with a later key
            let noted = self.client.has_input(&self.machine).unwrap_or_default();
            self.keep = noted.keep || self.keep && noted.waits;
        }
        self.keep
    }
}

/// Takes what is whole of a text. Bytes that are none are replaced.
fn whole(bytes: &mut Vec<u8>) -> String {
    let end = match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    };
    let taken: Vec<u8> = bytes.drain(..end).collect();
    String::from_utf8_lossy(&taken).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_that_comes_in_two_pieces_is_typed_as_one() {
        let mut bytes = b"l\xc3".to_vec();
        assert_eq!(whole(&mut bytes), "l");
        bytes.push(0xa4);
        assert_eq!(whole(&mut bytes), "ä");
        assert!(bytes.is_empty());
        bytes.extend(b"\xffx");
        assert_eq!(whole(&mut bytes), "\u{fffd}x");
    }
}
