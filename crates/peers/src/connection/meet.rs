//! How two hosts meet: a connection with proven keys, then a hello from each.
use crate::closed::{CLOSED_DUPLICATE, CLOSED_STRANGER};
use crate::endpoints::Endpoints;
use crate::members::{Key, Member};
use crate::wire::{Frames, Hello, Message, frames_of};
use quinn::{Connection, ConnectionError, RecvStream, SendStream};
use std::time::Duration;

/// A host that takes longer to say who it is and what it wants is not waited for.
pub(crate) const MEETING: Duration = Duration::from_secs(5);
/// Bytes that are read at a time: messages are small.
pub(super) const READ_BYTES: usize = 4 << 10;

/// A connection to a host that has introduced itself. If that host has dialled, this one has not said hello yet.
pub(crate) struct Meeting {
    pub(crate) connection: Connection,
    pub(super) send: SendStream,
    pub(super) recv: RecvStream,
    /// What has come after the other's hello.
    pub(super) frames: Frames,
    pub(crate) key: Key,
    /// Of the other.
    pub(crate) session: u64,
    /// How the other numbers pieces.
    pub(super) content: [u8; 32],
    /// At how many places it is a warden.
    pub(crate) places: u8,
    /// Whether this host has dialled.
    pub(crate) dialled: bool,
}

/// Why two hosts didn't meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unmet {
    /// The other has a connection to this host already.
    Duplicate,
    /// It can't be reached, doesn't know this host, or doesn't speak this protocol.
    Failed,
}

impl From<ConnectionError> for Unmet {
    fn from(error: ConnectionError) -> Unmet {
        match error {
            ConnectionError::ApplicationClosed(close) if close.error_code == CLOSED_DUPLICATE => {
                Unmet::Duplicate
            }
            _ => Unmet::Failed,
        }
    }
}

/// Connects to a host and exchanges hellos.
pub(crate) async fn dial(
    endpoints: &Endpoints,
    member: &Member,
    hello: Hello,
) -> Result<Meeting, Unmet> {
    let met = tokio::time::timeout(MEETING, meet(endpoints, member, hello));
    met.await.unwrap_or(Err(Unmet::Failed))
}

async fn meet(endpoints: &Endpoints, member: &Member, hello: Hello) -> Result<Meeting, Unmet> {
    let reached = endpoints.reach(member).await;
    let connection = reached.ok_or(Unmet::Failed)?;
    let (mut send, mut recv) = connection.open_bi().await?;
    for frame in frames_of(&Message::Hello(hello)) {
        let sent = send.write_all(&frame).await;
        sent.map_err(|_| why(&connection))?;
    }
    let mut frames = Frames::default();
    let Some(theirs) = first(&mut recv, &mut frames).await else {
        return Err(why(&connection));
    };
    if theirs.image != hello.image || theirs.token != hello.token {
        connection.close(CLOSED_STRANGER, b"another image");
        return Err(Unmet::Failed);
    }
    Ok(Meeting {
        connection,
        send,
        recv,
        frames,
        key: member.key,
        session: theirs.session,
        content: theirs.content,
        places: theirs.places,
        dialled: true,
    })
}

fn why(connection: &Connection) -> Unmet {
    connection.close_reason().map_or(Unmet::Failed, Unmet::from)
}

/// Hears what a host wants that has dialled and proven a key. The caller limits the time that this takes.
pub(crate) async fn hear(connection: Connection, key: Key) -> Option<(Hello, Meeting)> {
    let (send, mut recv) = connection.accept_bi().await.ok()?;
    let mut frames = Frames::default();
    let hello = first(&mut recv, &mut frames).await?;
    let meeting = Meeting {
        key,
        connection,
        send,
        recv,
        frames,
        session: hello.session,
        content: hello.content,
        places: hello.places,
        dialled: false,
    };
    Some((hello, meeting))
}

/// Returns the hello with which a stream begins.
async fn first(recv: &mut RecvStream, frames: &mut Frames) -> Option<Hello> {
    let mut buffer = [0; READ_BYTES];
    loop {
        match frames.next() {
            Ok(Some(Message::Hello(hello))) => return Some(hello),
            Ok(None) => {}
            _ => return None,
        }
        let read = recv.read(&mut buffer).await.ok()??;
        frames.put(&buffer[..read]);
    }
}
