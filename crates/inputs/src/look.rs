//! What a lent machine shows, where its user sits: its screen, what it writes on its console, a picture, processes in its guest, and the
//! ports that lead there.
//!
//! ```text
//! lender                                      borrower
//! asks, by the machine's key ---------------> looks whether that member has lent it            `moves/look.rs`
//!        <-- the screen (RFB), bytes of the console's log, of a process's streams or of a port, on the same connection -->
//! ```
//! Nothing of it is looked at on the way, but for what the user does: that is kept and sent as all inputs for a machine elsewhere are,
//! except for what only QEMU can take, all that the pointer does for instance, which goes over this connection.

use super::Inputs;
use bytes::Bytes;
use floe_api::{ApiError, ErrorCode, ExecRequest};
use floe_ground::error::{NodeError, at, refused};
use floe_http::{Answer, Method, Server, Switched, Url, header};
use floe_inventory::inventory::{Entry, turn::Peer};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, Read},
    os::unix::net::UnixStream,
    time::Duration,
};

/// Where a member is asked for that.
const PATH: &str = "/v1/moves/look";
/// What the connection speaks then.
pub const PROTOCOL: &str = "floe-look";
/// How long connecting to a member may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long it may take to answer: its QEMU draws a picture within that.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// The same for a process: longer than its node waits for the agent in its guest.
const PROCESS_LIMIT: Duration = Duration::from_secs(90);

/// Longest answer of a member that shows nothing, in bytes.
const REFUSAL_BYTES_MAX: usize = 64 << 10;
/// Largest picture that is taken, in bytes.
const PICTURE_BYTES_MAX: u64 = 64 << 20;

/// What a member asks of a machine that it has lent to this node, or of a clone that it has ordered here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LookAsked {
    /// The machine's key; empty for a clone.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// The clone's name; of clones there are processes alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone: Option<String>,
    /// What is to be shown.
    pub what: Look,
}

/// What is shown of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Look {
    /// Its screen, for a VNC client.
    Screen,
    /// Its console from now on: how many bytes were written before, as 8 bytes, the greatest first, then those, and what follows.
    Console,
    /// What its guest wrote on its console.
    Log {
        /// Only so much of its end.
        tail_bytes: Option<u64>,
        /// Also what it writes from now on.
        follow: bool,
    },
    /// Its screen as PNG: how many bytes that has, as 8 bytes, the greatest first, and those.
    Picture,
    /// A process that is started in its guest: its streams, as users of that node have them ([`floe_api::EXEC_PROTOCOL`]).
    Process(Box<ExecRequest>),
    /// A connection to this TCP port of its guest, if a port of that node's host leads there.
    Port(u16),
}

impl Inputs {
    /// Connects to what the borrower of a machine shows of it; `None` if the machine is not lent.
    pub fn look(&self, entry: &Entry, what: Look) -> Result<Option<UnixStream>, NodeError> {
        let turn = entry.turn();
        let lent = turn.and_then(|turn| Some((turn.borrower()?.clone(), turn.key)));
        let Some((to, key)) = lent else {
            return Ok(None);
        };
        let clone = None;
        let asked = LookAsked { key, clone, what };
        self.ask_look(&to, entry.name.as_str(), &asked).map(Some)
    }

    /// Starts a process in a clone of this node's that runs on another one, and connects to its streams.
    pub fn start_in_clone(
        &self,
        name: &str,
        at: &Peer,
        request: ExecRequest,
    ) -> Result<UnixStream, NodeError> {
        let asked = LookAsked {
            key: String::new(),
            clone: Some(name.to_owned()),
            what: Look::Process(Box::new(request)),
        };
        self.ask_look(at, name, &asked)
    }

    fn ask_look(&self, to: &Peer, name: &str, asked: &LookAsked) -> Result<UnixStream, NodeError> {
        let unreachable = |why: String| {
            NodeError::Api(ApiError {
                code: ErrorCode::Unreachable,
                message: format!("{}, which runs {name}: {why}", to.name),
                fix: "check that its node runs, and the way to it".into(),
            })
        };
        let tls = self.cluster.tls().ok_or_else(|| {
            refused(
                "this node is in no cluster any more",
                "join it again: floe cluster join",
            )
        })?;
        let limit = match asked.what {
            Look::Process(_) => PROCESS_LIMIT,
            _ => ANSWER_LIMIT,
        };
        let asked = serde_json::to_vec(asked);
        let asked = asked.map_err(|error| unreachable(error.to_string()))?;
        let address = Url::parse(&format!("https://{}", to.address));
        let address = address.map_err(|error| unreachable(error.to_string()))?;
        let server = Server::new(&address, Some(tls)).map_err(unreachable)?;
        let request = server
            .request(Method::POST, PATH)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONNECTION, "upgrade")
            .header(header::UPGRADE, PROTOCOL)
            .body(Bytes::from(asked))
            .map_err(|error| unreachable(error.to_string()))?;
        let connection = server.connect(CONNECT_LIMIT);
        let switched = connection.and_then(|one| one.switch_within(request, limit));
        match switched.map_err(|fault| unreachable(fault.to_string()))? {
            Switched::Stream(shown, _none_yet) => Ok(shown),
            Switched::Refused(answer) => Err(refusal(to, name, *answer)),
        }
    }

    /// Returns a machine's screen as PNG, wherever it runs.
    pub fn screenshot(&self, name: &str) -> Result<Vec<u8>, NodeError> {
        let entry = self.inventory.get(name)?;
        let Some(mut there) = self.look(&entry, Look::Picture)? else {
            return self.machines.screenshot(name);
        };
        let mut read = || {
            there.set_read_timeout(Some(ANSWER_LIMIT))?;
            let mut length = [0; 8];
            there.read_exact(&mut length)?;
            let length = u64::from_be_bytes(length);
            if length > PICTURE_BYTES_MAX {
                return Err(io::Error::other(format!("{length} bytes are too many")));
            }
            let mut png = vec![0; length as usize];
            there.read_exact(&mut png)?;
            Ok(png)
        };
        read().map_err(at(format!("the picture of {name} did not come")))
    }
}

/// Returns why a member does not show a machine, in its own words.
fn refusal(by: &Peer, name: &str, mut answer: Answer) -> NodeError {
    let status = answer.head().status;
    let said = answer.body_within(REFUSAL_BYTES_MAX, ANSWER_LIMIT).ok();
    let said = said.and_then(|said| serde_json::from_slice::<ApiError>(&said).ok());
    match said {
        Some(said) => NodeError::Api(ApiError {
            message: format!("{}: {}", by.name, said.message),
            ..said
        }),
        None => refused(
            format!("{} does not show {name}: it answered {status}", by.name),
            "floe ps there shows how it stands; it must be a floe of the same version",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_api::Program;

    #[test]
    fn what_is_asked_is_read_as_it_was_written_and_nothing_else_is() {
        let asked = LookAsked {
            key: "00112233445566aa".into(),
            clone: None,
            what: Look::Log {
                tail_bytes: None,
                follow: true,
            },
        };
        let text = serde_json::to_string(&asked).unwrap();
        assert_eq!(serde_json::from_str::<LookAsked>(&text).unwrap(), asked);
        let process = LookAsked {
            what: Look::Process(Box::new(ExecRequest::new(Program::Dial { port: 22 }))),
            ..asked
        };
        let text = serde_json::to_string(&process).unwrap();
        assert_eq!(serde_json::from_str::<LookAsked>(&text).unwrap(), process);
        let in_clone = LookAsked {
            key: String::new(),
            clone: Some("web.1".into()),
            ..process
        };
        let text = serde_json::to_string(&in_clone).unwrap();
        assert_eq!(serde_json::from_str::<LookAsked>(&text).unwrap(), in_clone);
        for what in ["\"files\"", "{\"log\":{\"follow\":true,\"path\":\"/\"}}"] {
            let strange = format!("{{\"key\":\"00112233445566aa\",\"what\":{what}}}");
            assert!(serde_json::from_str::<LookAsked>(&strange).is_err());
        }
    }
}
