//! The requests about the cluster itself: of members to each other, and of newcomers with an invitation. Paths begin with
//! `/cluster`.

use super::{Cluster, listener, listener::Peer, roster::Roster, trust::Trust};
use axum::{
    Extension, Json, Router,
    extract::{DefaultBodyLimit, State},
    middleware::from_fn,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use floe_api::ApiError;
use floe_ground::{error::NodeError, failure, news::News};
use serde::{Deserialize, Serialize};
use std::{net::SocketAddr, sync::Arc};

pub(super) const NODE_JOIN: &str = "/cluster/v1/join";
pub(super) const NODE_LEAVE: &str = "/cluster/v1/leave";
pub(super) const NODE_RENEW: &str = "/cluster/v1/renew";
pub(super) const NODE_ROSTER: &str = "/cluster/v1/roster";
/// Largest body in bytes: a roster of all members with the longest names.
const BODY_BYTES_MAX: usize = 256 << 10;

/// What a newcomer sends to join.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JoinOrder {
    /// The invitation's id.
    pub invitation: String,
    /// Its secret.
    pub secret: String,
    /// A signing request for the newcomer's key, PEM.
    pub request: String,
    /// The name that it wants to have.
    pub name: String,
    /// The address at which it answers.
    pub address: SocketAddr,
}

/// What a new member receives.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JoinAnswer {
    /// The CA's certificate, PEM.
    pub ca: String,
    /// Its own certificate, PEM.
    pub certificate: String,
    /// From when to when that is valid, in seconds of Unix time.
    pub certified_unix_s: (u64, u64),
    /// Its id.
    pub id: String,
    /// The cluster's id.
    pub cluster: String,
    /// The members.
    pub roster: Roster,
}

/// What a member sends that has a new key.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RenewOrder {
    /// A signing request for it, PEM.
    pub request: String,
}

/// The certificate for a member's new key.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RenewAnswer {
    /// The certificate, PEM.
    pub certificate: String,
    /// From when to when it is valid, in seconds of Unix time.
    pub certified_unix_s: (u64, u64),
}

/// Tells what happened (the second) to whom (the first).
pub type Tell = Arc<dyn Fn(&str, &News) + Send + Sync>;

/// What the routes answer for.
#[derive(Clone)]
struct Answering {
    cluster: Arc<Cluster>,
    tell: Tell,
}

type Floe = State<Answering>;

/// Returns all routes of the port for members: those about the cluster, and `members`, which are for members only. Newcomers
/// may use only the one that is not behind the check of members.
pub fn router(cluster: Arc<Cluster>, tell: Tell, members: Router) -> Router {
    let node = Answering { cluster, tell };
    let own = Router::new()
        .route(NODE_LEAVE, post(leave))
        .route(NODE_RENEW, post(renew))
        .route(NODE_ROSTER, get(roster).post(learn))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(node.clone());
    let strangers = Router::new()
        .route(NODE_JOIN, post(join))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(node);
    own.merge(members).layer(from_fn(checked)).merge(strangers)
}

/// The trust with which requests are checked; one of their extensions.
#[derive(Clone)]
struct By(Arc<Trust>);

/// Adds the check of requests by this trust.
pub(super) fn guarded(router: Router, trust: Arc<Trust>) -> Router {
    router.layer(Extension(By(trust)))
}

async fn checked(request: axum::extract::Request, next: axum::middleware::Next) -> Response {
    match request.extensions().get::<By>().cloned() {
        Some(By(trust)) => listener::members_only(trust, request, next).await,
        None => listener::refusal("this node is in no cluster", ""),
    }
}

async fn join(State(node): Floe, Json(order): Json<JoinOrder>) -> Response {
    blocking(move || {
        let answer = node.cluster.admit(&order)?;
        let news = News::ClusterJoined(order.address.to_string());
        (node.tell)(&order.name, &news);
        node.cluster.spread_roster();
        Ok(answer)
    })
    .await
}

async fn leave(State(node): Floe, Extension(Peer(member)): Extension<Peer>) -> Response {
    blocking(move || {
        node.cluster.depart(&member)?;
        (node.tell)(&member.name, &News::ClusterLeft);
        Ok(())
    })
    .await
}

async fn renew(
    State(node): Floe,
    Extension(Peer(member)): Extension<Peer>,
    Json(order): Json<RenewOrder>,
) -> Response {
    blocking(move || {
        let (certificate, certified_unix_s) = node.cluster.renew_for(&member, &order.request)?;
        Ok(RenewAnswer {
            certificate,
            certified_unix_s,
        })
    })
    .await
}

async fn roster(Extension(By(trust)): Extension<By>) -> Json<Roster> {
    Json(trust.roster())
}

/// Takes a roster from the authority, or as the authority what it has forgotten of one that a member shows; nobody else may send one.
/// Answers the roster that is known then.
async fn learn(
    State(node): Floe,
    Extension(By(trust)): Extension<By>,
    Extension(client): Extension<floe_front::Peer>,
    body: bytes::Bytes,
) -> Response {
    let shown = client.certificate();
    let told = shown.is_some_and(|certificate| trust.is_authority(certificate));
    if !told && !node.cluster.is_authority() {
        return listener::refusal("only the cluster's authority tells who is a member", "");
    }
    blocking(move || {
        let roster = Roster::parse(&body);
        let roster = roster.map_err(|why| floe_ground::error::usage(why, ""))?;
        match told {
            true => node.cluster.learn(roster)?,
            false => node.cluster.is_shown(&roster)?,
        }
        Ok(trust.roster())
    })
    .await
}

/// Runs a call on a thread where it may block.
async fn blocking<T: Serialize + Send + 'static>(
    call: impl FnOnce() -> Result<T, NodeError> + Send + 'static,
) -> Response {
    match failure::blocking(call).await {
        Ok(answer) => Json(answer).into_response(),
        Err(failure) => failure.into_response(),
    }
}

impl Cluster {
    /// Whether this node is the authority of its cluster.
    fn is_authority(&self) -> bool {
        self.place().is_some_and(|place| place.authority.is_some())
    }

    /// Takes in what a member shows to the authority, and tells all if something of it was new.
    fn is_shown(self: &Arc<Self>, roster: &Roster) -> Result<(), NodeError> {
        let Some(place) = self.place() else {
            return Ok(());
        };
        if self.recall(&place, roster)? {
            self.spread_roster();
        }
        Ok(())
    }

    /// Takes a roster that the authority sent, if the known one gives way to it.
    pub(super) fn learn(&self, roster: Roster) -> Result<(), NodeError> {
        let Some(place) = self.place() else {
            return Ok(());
        };
        if place.trust.learn(roster) {
            self.files.save_roster(&place.trust.roster())?;
        }
        Ok(())
    }
}

/// Returns the error in another node's answer.
pub(super) fn said(body: &[u8], status: u16) -> String {
    serde_json::from_slice::<ApiError>(body).map_or_else(
        |_| format!("it answered {status}"),
        |error| error.to_string(),
    )
}
