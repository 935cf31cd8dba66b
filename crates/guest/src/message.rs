//! The messages between agent, node and programs; each message is a [`Line`].
//!
//! ```text
//! node                                       agent
//!   <- wake                                  it has just started
//!   hello session=S version=1 ->             at each connection, and after each wake
//!   <- ready session=S version=1
//!   place session=S time-ns=.. entropy=.. [id=.. mac=.. ...] ->
//!   <- placed session=S                      clock, random numbers and identity are in place
//!   <- call session=S number=7 do=clone ticket=T
//!   answer session=S number=7 is=cloned id=0 clones=4 ->
//! ```
//! `input` and `taken` are in [`mod@crate::input`].
//! Messages with a session other than that of the last hello belong to an earlier life of the machine, perhaps to its
//! parent's, and are ignored: bytes in flight at the moment of a fork arrive twice, in the parent and in its clones.

use crate::asked::Asked;
use crate::input::{Inputs, number_of};
use crate::line::{Line, LineError};

mod place;
pub use place::{Identity, Me, Place};

/// Version of the protocol.
pub const VERSION: u32 = 1;
/// Longest name, ticket or address, in bytes.
pub const TEXT_BYTES_MAX: usize = 255;
/// Number of random bytes that a node sends to seed the kernel's generator.
pub const ENTROPY_BYTES: usize = 64;

/// A program's call (SnowFlock, table 1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Request room for clones. With `hierarchical`, clones are processes: each cloned machine has as many of them as vCPUs.
    Ticket {
        /// How many clones are wanted.
        clones: u64,
        /// Whether clones are processes.
        hierarchical: bool,
    },
    /// Clone this machine.
    Clone {
        /// The ticket that permits it.
        ticket: String,
    },
    /// End this machine, a clone.
    Exit,
    /// Wait until all clones of a ticket have ended.
    Join {
        /// The ticket.
        ticket: String,
        /// Longest wait in ms; `None` means forever.
        timeout_ms: Option<u64>,
    },
    /// End all clones of a ticket.
    Kill {
        /// The ticket.
        ticket: String,
    },
    /// Return which machine this is.
    Whoami,
    /// Have the machine lent to another node, and go on there (AMPhone, section 5.3: the application notifies its VMM).
    Offload {
        /// The node's name or address; `None` for the only other one of the cluster.
        to: Option<String>,
        /// How many CPUs it is to have there; `None`: as many as here. Nodes that don't know this ignore it.
        cpus: Option<u32>,
        /// How many bytes of memory it is to have there, whole MiB; likewise.
        memory_bytes: Option<u64>,
    },
    /// Have the machine go on where it comes from.
    Recall,
}

/// The answer to a [`Call`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// There is room for clones.
    Ticket {
        /// The ticket, which permits one `clone`.
        ticket: String,
        /// Number of clones that are granted; with `hierarchical`, processes in clones.
        clones: u32,
        /// Number of these clones in each machine: 1 unless `hierarchical`.
        each: u32,
    },
    /// The machine was cloned; this is either the parent or one of the clones.
    Cloned {
        /// The clone's number; 0 in the parent.
        id: u32,
        /// Number of cloned machines that run; only in the parent.
        clones: Option<u32>,
    },
    /// The call has succeeded.
    Done {
        /// Number of clones that ended.
        ended: u32,
        /// How many of these did not end by themselves: they crashed, or their host is gone.
        lost: u32,
    },
    /// Which machine this is.
    Me(Box<Me>),
    /// The machine has moved.
    Moved {
        /// The name of the node that it is on now.
        node: String,
    },
    /// The call failed.
    Refused(Refusal),
}

/// Why a call was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The reason for programs, one of [`codes`].
    pub code: String,
    /// What is wrong, for people.
    pub message: String,
    /// What to do.
    pub fix: String,
}

/// The values of [`Refusal::code`].
pub mod codes {
    /// The call itself is wrong.
    pub const USAGE: &str = "usage";
    /// There is no such ticket, or it is another machine's.
    pub const UNKNOWN_TICKET: &str = "unknown-ticket";
    /// The ticket was used.
    pub const SPENT: &str = "spent";
    /// No host has room, or the machine and its clones have all the clones that they may have.
    pub const NO_ROOM: &str = "no-room";
    /// The machine's user has not allowed that it is cloned from inside.
    pub const NOT_ALLOWED: &str = "not-allowed";
    /// Only a clone can do this.
    pub const NOT_A_CLONE: &str = "not-a-clone";
    /// The machine was cloned or moved while the call was under way.
    pub const OTHER_MACHINE: &str = "other-machine";
    /// The node does not answer, or was restarted.
    pub const UNREACHABLE: &str = "unreachable";
    /// It took too long.
    pub const TIMEOUT: &str = "timeout";
    /// There are too many calls at once.
    pub const BUSY: &str = "busy";
    /// The attempt failed.
    pub const FAILED: &str = "failed";
}

impl Refusal {
    /// Makes a refusal with one of these codes.
    pub fn new(code: &str, message: impl Into<String>, fix: impl Into<String>) -> Refusal {
        Refusal {
            code: code.into(),
            message: message.into(),
            fix: fix.into(),
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)?;
        match self.fix.is_empty() {
            true => Ok(()),
            false => write!(f, "; {}", self.fix),
        }
    }
}

/// A message from the node to the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToGuest {
    /// A node has connected.
    Hello {
        /// The session that this connection begins.
        session: u64,
        /// The node's version of the protocol.
        version: u32,
        /// Whether it knows [frames](crate::exec::frame).
        frames: bool,
    },
    /// Set clock, random numbers and identity, then report that.
    Place {
        /// The session.
        session: u64,
        /// The values to set.
        place: Box<Place>,
    },
    /// The answer to a call.
    Answer {
        /// The session.
        session: u64,
        /// The call's number.
        number: u64,
        /// The result.
        answer: Answer,
    },
    /// From now on, tell who in the guest reads from disks. Agents that don't know this ignore it.
    Watch {
        /// The session.
        session: u64,
    },
    /// Give these inputs to the guest, as far as it has not got them. Agents that take inputs have said so.
    Input {
        /// The session.
        session: u64,
        /// The inputs.
        inputs: Inputs,
    },
}

/// A message from the agent to the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToHost {
    /// The agent has started and waits for a hello.
    Wake,
    /// The agent has received a hello.
    Ready {
        /// The hello's session.
        session: u64,
        /// The agent's version of the protocol.
        version: u32,
        /// Whether frames may stand between the lines of this session.
        frames: bool,
        /// Whether there are [hooks](crate::chores::HOOKS_DIR) in the guest.
        hooks: bool,
        /// Whether it takes inputs.
        inputs: bool,
    },
    /// Everything is in place.
    Placed {
        /// The hello's session.
        session: u64,
    },
    /// Something could not be put in place.
    NotPlaced {
        /// The hello's session.
        session: u64,
        /// Why.
        why: String,
    },
    /// A program makes a call.
    Call {
        /// The hello's session.
        session: u64,
        /// The number that the agent gave to the call.
        number: u64,
        /// The call.
        call: Call,
    },
    /// The program that made the call has disconnected: a call that only waits may end.
    Cancel {
        /// The hello's session.
        session: u64,
        /// The call's.
        number: u64,
    },
    /// There are hooks in the guest now, or none any more; or they are owed a call. Nodes that don't know this ignore it.
    Hooks {
        /// The hello's session.
        session: u64,
        /// Whether there are any.
        any: bool,
        /// Whether they are to be told that the machine goes on.
        owed: bool,
    },
    /// A program has read from disks. Only told where the node has asked for it.
    Asked {
        /// The hello's session.
        session: u64,
        /// Who, and what.
        asked: Asked,
    },
    /// The answer to inputs: up to which of a source's the guest has got.
    Taken {
        /// The hello's session.
        session: u64,
        /// The source.
        from: u64,
        /// The number of the last one; 0 if there was none.
        number: u64,
        /// Why the next one can't be given to it, if that is more than that it has not taken the last ones yet.
        why: Option<String>,
    },
}

/// Returns a key's value as text of bounded length.
fn text(line: &Line, key: &'static str) -> Result<String, LineError> {
    let text = line.text(key)?;
    match text.len() <= TEXT_BYTES_MAX {
        true => Ok(text.to_owned()),
        false => Err(LineError::BadValue(key)),
    }
}

fn some(line: &Line, key: &'static str) -> Result<Option<String>, LineError> {
    line.get(key).map(|_| text(line, key)).transpose()
}

fn some_number<T: std::str::FromStr>(
    line: &Line,
    key: &'static str,
) -> Result<Option<T>, LineError> {
    line.get(key).map(|_| line.number(key)).transpose()
}

impl Call {
    fn verb(&self) -> &'static str {
        match self {
            Call::Ticket { .. } => "ticket",
            Call::Clone { .. } => "clone",
            Call::Exit => "exit",
            Call::Join { .. } => "join",
            Call::Kill { .. } => "kill",
            Call::Whoami => "whoami",
            Call::Offload { .. } => "offload",
            Call::Recall => "recall",
        }
    }

    fn add_to(&self, line: Line) -> Line {
        match self {
            Call::Ticket {
                clones,
                hierarchical,
            } => line
                .with("clones", clones)
                .with("hierarchical", u8::from(*hierarchical)),
            Call::Clone { ticket } | Call::Kill { ticket } => line.with("ticket", ticket),
            Call::Join { ticket, timeout_ms } => line
                .with("ticket", ticket)
                .with_some("timeout-ms", *timeout_ms),
            Call::Offload {
                to,
                cpus,
                memory_bytes,
            } => line
                .with_some("to", to.as_deref())
                .with_some("cpus", *cpus)
                .with_some("memory-bytes", *memory_bytes),
            Call::Exit | Call::Whoami | Call::Recall => line,
        }
    }

    fn of(verb: &str, line: &Line) -> Result<Call, LineError> {
        Ok(match verb {
            "ticket" => Call::Ticket {
                clones: line.number("clones")?,
                hierarchical: line.number::<u8>("hierarchical")? != 0,
            },
            "clone" => Call::Clone {
                ticket: text(line, "ticket")?,
            },
            "exit" => Call::Exit,
            "join" => Call::Join {
                ticket: text(line, "ticket")?,
                timeout_ms: some_number(line, "timeout-ms")?,
            },
            "kill" => Call::Kill {
                ticket: text(line, "ticket")?,
            },
            "whoami" => Call::Whoami,
            "offload" => Call::Offload {
                to: some(line, "to")?,
                cpus: some_number(line, "cpus")?,
                memory_bytes: some_number(line, "memory-bytes")?,
            },
            "recall" => Call::Recall,
            other => return Err(LineError::UnknownVerb(other.into())),
        })
    }

    /// Returns the bytes that a program sends to the agent.
    pub fn encode(&self) -> Vec<u8> {
        let line = Line::new(self.verb()).with("version", VERSION);
        self.add_to(line).encode()
    }

    /// Parses what a program sent.
    pub fn decode(bytes: &[u8]) -> Result<Call, LineError> {
        let line = Line::decode(bytes)?;
        if line.number::<u32>("version")? == 0 {
            return Err(LineError::BadValue("version"));
        }
        Call::of(line.verb(), &line)
    }
}

impl Answer {
    fn verb(&self) -> &'static str {
        match self {
            Answer::Ticket { .. } => "ticket",
            Answer::Cloned { .. } => "cloned",
            Answer::Done { .. } => "done",
            Answer::Me(_) => "me",
            Answer::Moved { .. } => "moved",
            Answer::Refused(_) => "refused",
        }
    }

    fn add_to(&self, line: Line) -> Line {
        match self {
            Answer::Ticket {
                ticket,
                clones,
                each,
            } => line
                .with("ticket", ticket)
                .with("clones", clones)
                .with("each", each),
            Answer::Cloned { id, clones } => line.with("id", id).with_some("clones", *clones),
            Answer::Done { ended, lost } => line.with("ended", ended).with("lost", lost),
            Answer::Me(me) => me.add_to(line),
            Answer::Moved { node } => line.with("node", node),
            Answer::Refused(refusal) => line
                .with("code", &refusal.code)
                .with("fix", &refusal.fix)
                .with("message", &refusal.message),
        }
    }

    fn of(verb: &str, line: &Line) -> Result<Answer, LineError> {
        Ok(match verb {
            "ticket" => Answer::Ticket {
                ticket: text(line, "ticket")?,
                clones: line.number("clones")?,
                each: line.number("each")?,
            },
            "cloned" => Answer::Cloned {
                id: line.number("id")?,
                clones: some_number(line, "clones")?,
            },
            "done" => Answer::Done {
                ended: line.number("ended")?,
                lost: line.number("lost")?,
            },
            "me" => Answer::Me(Box::new(Me::of(line)?)),
            "moved" => Answer::Moved {
                node: text(line, "node")?,
            },
            "refused" => Answer::Refused(Refusal {
                code: text(line, "code")?,
                message: line.text("message")?.to_owned(),
                fix: line.text("fix")?.to_owned(),
            }),
            other => return Err(LineError::UnknownVerb(other.into())),
        })
    }

    /// Returns the bytes that the agent sends to a program.
    pub fn encode(&self) -> Vec<u8> {
        self.add_to(Line::new(self.verb())).encode()
    }

    /// Parses what the agent sent.
    pub fn decode(bytes: &[u8]) -> Result<Answer, LineError> {
        let line = Line::decode(bytes)?;
        Answer::of(line.verb(), &line)
    }
}

/// Returns the session, which is written as 16 hex digits.
fn session_of(line: &Line) -> Result<u64, LineError> {
    number_of(line, "session")
}

/// Returns whether the other side knows something, or has it; one that does not know of it says nothing.
fn knows(line: &Line, key: &'static str) -> Result<bool, LineError> {
    match line.get(key) {
        None => Ok(false),
        Some(_) => line.number::<u8>(key).map(|version| version > 0),
    }
}

fn opened(verb: &str, session: u64) -> Line {
    Line::new(verb).with("session", format_args!("{session:016x}"))
}

impl ToGuest {
    /// Returns the message's bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            ToGuest::Hello {
                session,
                version,
                frames,
            } => opened("hello", *session)
                .with("version", version)
                .with_some("frames", frames.then_some(1)),
            ToGuest::Place { session, place } => place.add_to(opened("place", *session)),
            ToGuest::Answer {
                session,
                number,
                answer,
            } => {
                let line = opened("answer", *session).with("number", number);
                answer.add_to(line.with("is", answer.verb()))
            }
            ToGuest::Watch { session } => opened("watch", *session),
            ToGuest::Input { session, inputs } => inputs.add_to(opened("input", *session)),
        }
        .encode()
    }

    /// Parses a line of the node.
    pub fn decode(bytes: &[u8]) -> Result<ToGuest, LineError> {
        let line = Line::decode(bytes)?;
        let session = session_of(&line);
        Ok(match line.verb() {
            "hello" => ToGuest::Hello {
                session: session?,
                version: line.number("version")?,
                frames: knows(&line, "frames")?,
            },
            "place" => ToGuest::Place {
                session: session?,
                place: Box::new(Place::of(&line)?),
            },
            "answer" => ToGuest::Answer {
                session: session?,
                number: line.number("number")?,
                answer: Answer::of(line.text("is")?, &line)?,
            },
            "watch" => ToGuest::Watch { session: session? },
            "input" => ToGuest::Input {
                session: session?,
                inputs: Inputs::of(&line)?,
            },
            other => return Err(LineError::UnknownVerb(other.into())),
        })
    }
}

impl ToHost {
    /// Returns the message's bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            ToHost::Wake => Line::new("wake").with("version", VERSION),
            ToHost::Ready {
                session,
                version,
                frames,
                hooks,
                inputs,
            } => opened("ready", *session)
                .with("version", version)
                .with_some("frames", frames.then_some(1))
                .with_some("hooks", hooks.then_some(1))
                .with_some("inputs", inputs.then_some(1)),
            ToHost::Hooks { session, any, owed } => opened("hooks", *session)
                .with("any", u8::from(*any))
                .with("owed", u8::from(*owed)),
            ToHost::Placed { session } => opened("placed", *session),
            ToHost::NotPlaced { session, why } => opened("not-placed", *session).with("why", why),
            ToHost::Call {
                session,
                number,
                call,
            } => {
                let line = opened("call", *session).with("number", number);
                call.add_to(line.with("do", call.verb()))
            }
            ToHost::Cancel { session, number } => opened("cancel", *session).with("number", number),
            ToHost::Asked { session, asked } => asked.add_to(opened("asked", *session)),
            ToHost::Taken {
                session,
                from,
                number,
                why,
            } => opened("taken", *session)
                .with("from", format_args!("{from:016x}"))
                .with("number", number)
                .with_some("why", why.as_deref()),
        }
        .encode()
    }

    /// Parses a line of a guest, which may contain anything.
    pub fn decode(bytes: &[u8]) -> Result<ToHost, LineError> {
        let line = Line::decode(bytes)?;
        let session = session_of(&line);
        Ok(match line.verb() {
            "wake" => ToHost::Wake,
            "ready" => ToHost::Ready {
                session: session?,
                version: line.number("version")?,
                frames: knows(&line, "frames")?,
                hooks: knows(&line, "hooks")?,
                inputs: knows(&line, "inputs")?,
            },
            "hooks" => ToHost::Hooks {
                session: session?,
                any: line.number::<u8>("any")? != 0,
                owed: line.number::<u8>("owed")? != 0,
            },
            "placed" => ToHost::Placed { session: session? },
            "not-placed" => ToHost::NotPlaced {
                session: session?,
                why: line.text("why")?.to_owned(),
            },
            "call" => ToHost::Call {
                session: session?,
                number: line.number("number")?,
                call: Call::of(line.text("do")?, &line)?,
            },
            "cancel" => ToHost::Cancel {
                session: session?,
                number: line.number("number")?,
            },
            "asked" => ToHost::Asked {
                session: session?,
                asked: Asked::of(&line)?,
            },
            "taken" => ToHost::Taken {
                session: session?,
                from: number_of(&line, "from")?,
                number: line.number("number")?,
                why: line.get("why").map(str::to_owned),
            },
            other => return Err(LineError::UnknownVerb(other.into())),
        })
    }
}
