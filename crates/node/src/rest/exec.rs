//! Processes in guests: a request to start one, whose connection then carries its streams. Of a machine that is lent, its borrower does
//! that, and this node carries the streams; so it is with a clone that runs on another node.

use super::answer::{Failure, Input, Path, blocking};
use crate::Node;
use axum::{
    extract::{FromRequest, Request, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use floe_api::{ApiError, EXEC_PROTOCOL, ExecRequest};
use floe_inputs::Look;
use floe_machines::agents::Process;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::UnixStream,
    time::sleep,
};

/// How long a process elsewhere that takes nothing any more may take to say its last.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Where a process runs.
enum Runs {
    Here(Process),
    /// With the machine's borrower, or on the clone's host: its streams.
    There(std::os::unix::net::UnixStream),
}

/// Starts a process in the machine's guest. The connection is switched to the protocol `floe-exec`: frames with the process's input,
/// output and end (docs/guest.md). Of a machine that is lent to another node it is a process there; so
/// it is for a clone that runs on another member of the cluster.
#[utoipa::path(post, path = "/v1/machines/{name}/exec", tag = "machines", params(("name" = String, Path)),
    request_body = ExecRequest,
    responses((status = 101, description = "the protocol floe-exec"), (status = 400, body = ApiError),
              (status = 404, body = ApiError), (status = 409, body = ApiError), (status = 422, body = ApiError),
              (status = 426, description = "the request does not ask for floe-exec")))]
pub async fn exec(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
    mut request: Request,
) -> Result<Response, Failure> {
    let upgrade = request.extensions_mut().remove::<OnUpgrade>();
    let wanted = request.headers().get(header::UPGRADE);
    let wanted = wanted.is_some_and(|protocol| protocol == EXEC_PROTOCOL);
    let Input(request) = Input::<ExecRequest>::from_request(request, &()).await?;
    let switching = [
        (header::CONNECTION, HeaderValue::from_static("upgrade")),
        (header::UPGRADE, HeaderValue::from_static(EXEC_PROTOCOL)),
    ];
    let Some(upgrade) = upgrade.filter(|_| wanted) else {
        return Ok((StatusCode::UPGRADE_REQUIRED, switching).into_response());
    };
    let start = move || {
        let entry = match node.inventory.get(&name) {
            Ok(entry) => entry,
            Err(absent) => {
                let host = node.forks.host_of(&name).ok_or(absent)?;
                let there = node.inputs.start_in_clone(&name, &host, request)?;
                return Ok(Runs::There(there));
            }
        };
        let there = Look::Process(Box::new(request.clone()));
        Ok(match node.inputs.look(&entry, there)? {
            Some(there) => Runs::There(there),
            None => Runs::Here(node.agents.exec(&name, &request)?),
        })
    };
    let process = blocking(start).await?;
    tokio::spawn(async move {
        // without it the user has gone, and dropping the process leaves it to itself
        if let Ok(user) = upgrade.await {
            match process {
                Runs::Here(process) => process.relay(TokioIo::new(user)).await,
                Runs::There(there) => carry(TokioIo::new(user), there).await,
            }
        }
    });
    Ok((StatusCode::SWITCHING_PROTOCOLS, switching).into_response())
}

/// Carries a process's streams between its user and the node where it runs, until either ends.
async fn carry(user: impl AsyncRead + AsyncWrite, there: std::os::unix::net::UnixStream) {
    let there = there.set_nonblocking(true).map(|()| there);
    let (mut from_there, mut to_there) = match there.and_then(UnixStream::from_std) {
        Ok(there) => there.into_split(),
        Err(error) => {
            tracing::warn!(%error, "a process's streams are not carried");
            return;
        }
    };
    let (mut from_user, mut to_user) = tokio::io::split(user);
    let up = async {
        // a process that takes nothing any more may still have something to say
        if tokio::io::copy(&mut from_user, &mut to_there)
            .await
            .is_err()
        {
            sleep(LAST_WORDS).await;
        }
    };
    tokio::select! {
        _ = tokio::io::copy(&mut from_there, &mut to_user) => {}
        () = up => {}
    }
    let _ = to_user.shutdown().await; // the user may be gone
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    #[tokio::test]
    async fn streams_are_carried_both_ways_until_the_other_node_has_said_all() {
        let (mut user, ours) = tokio::io::duplex(1 << 10);
        let (there, theirs) = UnixStream::pair().unwrap();
        let theirs = theirs.into_std().unwrap();
        let carried = tokio::spawn(carry(ours, theirs));
        let (mut from_us, mut to_us) = there.into_split();
        user.write_all(b"in").await.unwrap();
        let mut got = [0; 2];
        from_us.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"in");
        to_us.write_all(b"out, and over").await.unwrap();
        to_us.shutdown().await.unwrap();
        let mut all = String::new();
        user.read_to_string(&mut all).await.unwrap();
        assert_eq!(all, "out, and over");
        carried.await.unwrap();
    }

    #[tokio::test]
    async fn a_process_that_takes_nothing_any_more_is_heard_to_its_end() {
        let (mut user, ours) = tokio::io::duplex(1 << 10);
        let (there, theirs) = UnixStream::pair().unwrap();
        let there = there.into_std().unwrap();
        there.shutdown(std::net::Shutdown::Read).unwrap();
        let carried = tokio::spawn(carry(ours, theirs.into_std().unwrap()));
        user.write_all(b"nobody takes this").await.unwrap();
        let mut there = UnixStream::from_std(there).unwrap();
        there.write_all(b"exit 7").await.unwrap();
        there.shutdown().await.unwrap();
        let mut all = String::new();
        user.read_to_string(&mut all).await.unwrap();
        assert_eq!(all, "exit 7");
        carried.await.unwrap();
    }
}
