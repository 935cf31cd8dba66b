//! The requests of those who take part in swarms.

use super::access::Viewer;
use super::batch::count_bytes;
use super::error::{ApiError, ApiResult};
use super::files::missing_pack;
use super::proofs;
use super::state::{Hub, blocking};
use super::swarm::addresses;
use super::swarm::members::{Content, Key, Refused, Who};
use super::visible::{OwnImage, VisibleImage};
use super::wire::{Args, Path, counted, json, parse_id};
use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use floe_api::hub::ErrorBody;
use floe_api::{
    PackCheck, SWARM_SHOWN_MAX, SwarmJoin, SwarmMember, SwarmMembership, SwarmOverview, SwarmPack,
};
use floe_front::{Party, Peer};
use floe_image::{Hash, PackRef};
use floe_peers::{PIECE_BYTES, Pack};
use futures::{StreamExt, TryStreamExt};
use serde::Deserialize;
use std::collections::HashSet;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use utoipa::IntoParams;

/// Most bytes that are proven at a time.
const PROVEN_BYTES_MAX: u64 = 16 * PIECE_BYTES;
/// Packs of an image that are read at a time for their trees, each in the turn of the one who asks.
const READ_AT_ONCE: usize = 4;

/// Where a request comes from, and which address of this host it has reached.
pub(crate) struct Origin {
    from: IpAddr,
    reached: Option<IpAddr>,
}

impl FromRequestParts<Arc<Hub>> for Origin {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Hub>) -> Result<Origin, Infallible> {
        let peer = parts.extensions.get::<Peer>();
        Ok(Origin {
            from: peer.map_or(IpAddr::from([0, 0, 0, 0]), Peer::ip),
            reached: peer.and_then(Peer::reached),
        })
    }
}

/// Parses 64 hex digits of a body or path, which must be there as `what`.
fn bytes_of(text: &str, what: &str) -> ApiResult<[u8; 32]> {
    let parsed: Result<Hash, _> = text.parse();
    let wrong = |error| {
        ApiError::bad(
            format!("the {what} is wrong: {error}"),
            "give 64 hex digits",
        )
    };
    Ok(*parsed.map_err(wrong)?.as_bytes())
}

fn refused(why: Refused) -> ApiError {
    match why {
        Refused::Taken => ApiError::new(
            StatusCode::CONFLICT,
            "key-taken",
            "somebody else takes part with this key",
            "use the key of this host; one that nobody uses any more is free after a minute",
        ),
        Refused::Full => ApiError::busy("this image's swarm has as many members as there may be"),
        Refused::TooMany => {
            ApiError::busy("this user or address has as many members in swarms as it may")
        }
    }
}

/// The code of the error for an image that has too much for a swarm.
const NO_SWARM: &str = "no-swarm";

/// The packs of a swarm, and their name.
struct Packs {
    content: Content,
    packs: Vec<SwarmPack>,
}

/// Returns the packs that whoever reads a copy of an image may bring others: those of its layout, and as far as a swarm can take them those
/// of other layouts that its members read by.
async fn packs_of(hub: &Arc<Hub>, viewer: &Viewer, image: VisibleImage) -> ApiResult<Packs> {
    let both = blocking(hub, viewer.party(), move |hub| {
        hub.retire(Some(image.id()))?;
        let catalogue = &hub.catalogue;
        Ok((catalogue.swarm_packs(&image)?, catalogue.packs(&image)?))
    });
    let (all, own) = both.await?;
    let more = all.len() > own.len();
    match named(hub, viewer, all).await {
        Err(error) if more && error.body.code == NO_SWARM => named(hub, viewer, own).await,
        packs => packs,
    }
}

/// Names packs as swarms do, each once.
async fn named(hub: &Arc<Hub>, viewer: &Viewer, mut packs: Vec<PackRef>) -> ApiResult<Packs> {
    let mut known = HashSet::new();
    packs.retain(|pack| known.insert(pack.id));
    let roots = packs.iter().map(|pack| proofs::root_of(hub, viewer, *pack));
    let roots: Vec<Pack> = futures::stream::iter(roots.collect::<Vec<_>>())
        .buffered(READ_AT_ONCE)
        .try_collect()
        .await?;
    let named = packs.iter().zip(&roots).map(|(pack, root)| SwarmPack {
        id: pack.id.to_string(),
        root: Hash::from(root.root).to_string(),
        bytes: root.bytes,
    });
    let packs = named.collect();
    let content = floe_peers::Content::new(roots).map_err(|error| {
        ApiError::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            NO_SWARM,
            format!("this image makes no swarm: {error}"),
            "read it from the hub alone",
        )
    })?;
    Ok(Packs {
        content: content.id(),
        packs,
    })
}

fn same_copy(one: &VisibleImage, other: &VisibleImage) -> bool {
    (one.public(), one.owner()) == (other.public(), other.owner())
}

/// Whether a member reads the same copy of an image: all public copies are one.
fn reads_same(hub: &Hub, image: &VisibleImage, party: &Party) -> bool {
    let name = match party {
        Party::User(name) => Some(&**name),
        Party::Address(_) => None,
    };
    let own = hub.catalogue.visible(image.id(), name);
    own.is_some_and(|own| same_copy(&own, image) || own.public() && image.public())
}

/// Takes part in the swarm of an image, or goes on doing so, and learns who else does.
///
/// Only who may read the image is told anything, and the hub names only those who may read the same copy of it: the user's own nodes, and
/// other users' if both sides are `open`. A member that does not repeat this in time is taken off the list. The first request for an image takes until the hub has read its packs.
#[utoipa::path(
    post, path = "/v1/images/{id}/swarm", tag = "swarm",
    params(("id" = String, Path, description = "64 hex digits")), request_body = SwarmJoin,
    responses((status = 200, body = SwarmMembership), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
              (status = 404, body = ErrorBody), (status = 409, body = ErrorBody, description = "somebody else has this key"),
              (status = 413, body = ErrorBody), (status = 422, body = ErrorBody, description = "the image makes no swarm"),
              (status = 503, body = ErrorBody, description = "there are too many members, or a pack is damaged"),
              (status = 507, body = ErrorBody)))]
pub(crate) async fn join(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    Origin { from, reached }: Origin,
    image: VisibleImage,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<Response> {
    let id = *image.id();
    let wish: SwarmJoin = json(&hub, &viewer, body, &headers).await?;
    let key = bytes_of(&wish.key, "key")?;
    let knows = wish.content.as_deref();
    let knows = knows.map(|text| bytes_of(text, "content")).transpose()?;
    let reads = wish.layout.as_deref();
    let reads = reads.map(|text| bytes_of(text, "layout")).transpose()?;
    let stranger = !viewer.party().is_user();
    let addresses = addresses::read(&wish.addresses, from, stranger).map_err(|wrong| {
        ApiError::bad(
            format!("the addresses are wrong: {wrong}"),
            "give address:port of this host, or 0.0.0.0:port for the one from which this request comes",
        )
    })?;
    // who may read what may change while the hub reads packs: what is known at the end counts
    let image = VisibleImage::check(&hub, &id, &viewer)?;
    let Packs { content, packs } = packs_of(&hub, &viewer, image.clone()).await?;
    let who = Who {
        key,
        party: viewer.party(),
        open: wish.open,
        // while there is one layout, it is all that is listed
        layout: reads.or(knows).unwrap_or(content),
    };
    let now = hub.swarms.now();
    let list = {
        let mut members = hub.swarms.members.lock();
        let still = VisibleImage::check(&hub, &id, &viewer)?;
        if !same_copy(&still, &image) {
            return Err(ApiError::busy("this image was published anew meanwhile"));
        }
        let joined = members.join(now, id, who, addresses);
        joined.map_err(refused)?;
        let same = |party: &Party| reads_same(&hub, &image, party);
        (still, members.list(now, id, (who.party, who.open), same))
    };
    let (image, list) = list;
    let members = list.members.into_iter();
    let members = members.map(|member| told(member, from, reached));
    let membership = SwarmMembership {
        content: Hash::from(content).to_string(),
        token: hub.swarms.secret.token(&id, image.holding()).to_string(),
        packs: match knows == Some(content) {
            true => Vec::new(),
            false => packs,
        },
        members: members.collect(),
        ask_again_ms: list.ask_again.as_millis() as u64,
        expires_after_s: list.expires_after.as_secs(),
    };
    let body = serde_json::to_vec(&membership).map_err(std::io::Error::other)?;
    answer(&hub, &viewer, "application/json", body)
}

/// Returns a member with its addresses as a host must use them whose request comes `from` there.
fn told(
    (key, addresses): (Key, Vec<SocketAddr>),
    from: IpAddr,
    reached: Option<IpAddr>,
) -> SwarmMember {
    let seen = |address| addresses::seen(address, from, reached).to_string();
    SwarmMember {
        key: Hash::from(key).to_string(),
        addresses: addresses.into_iter().map(seen).collect(),
    }
}

/// Shows the owner of an image who takes part in its swarm, and how much the hub gave.
///
/// Of other users' nodes only those are shown that are `open`: they are told to whoever may read the image and takes part like them.
#[utoipa::path(
    get, path = "/v1/images/{id}/swarm", tag = "swarm",
    params(("id" = String, Path, description = "64 hex digits")),
    responses((status = 200, body = SwarmOverview), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
              (status = 404, body = ErrorBody)))]
pub(crate) async fn overview(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    Origin { from, reached }: Origin,
    image: OwnImage,
) -> Json<SwarmOverview> {
    let (id, now) = (*image.id(), hub.swarms.now());
    let same = |party: &Party| reads_same(&hub, &image, party);
    let (own, mut others) = {
        let members = hub.swarms.members.lock();
        let known = |open| members.list(now, id, (viewer.party(), open), same).members;
        (known(false), known(true))
    };
    let count = u32::try_from(others.len()).unwrap_or(u32::MAX);
    let mine: HashSet<Key> = own.iter().map(|(key, _)| *key).collect();
    others.retain(|(key, _)| !mine.contains(key));
    let shown = |members: Vec<(Key, Vec<SocketAddr>)>| -> Vec<SwarmMember> {
        let members = members.into_iter().take(SWARM_SHOWN_MAX);
        members.map(|member| told(member, from, reached)).collect()
    };
    Json(SwarmOverview {
        own: shown(own),
        others: shown(others),
        count,
        hub_bytes: hub.swarms.given.lock().of(id, image.owner()),
        counted_s: now.as_secs(),
    })
}

/// Answers with bytes that count as the party's memory until they are taken, and that no cache may keep.
fn answer(
    hub: &Hub,
    viewer: &Viewer,
    kind: &'static str,
    bytes: impl Into<Bytes>,
) -> ApiResult<Response> {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    let body = Body::from(counted(hub, viewer, bytes)?);
    Ok((headers, body).into_response())
}

/// Takes part in the swarm of an image no longer. Who does not say this is taken off the list a little later.
#[utoipa::path(
    delete, path = "/v1/images/{id}/swarm/{key}", tag = "swarm",
    params(("id" = String, Path, description = "64 hex digits"),
           ("key" = String, Path, description = "the member's public key, 64 hex digits")),
    responses((status = 204), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
              (status = 404, body = ErrorBody), (status = 409, body = ErrorBody, description = "somebody else has this key")))]
pub(crate) async fn leave(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    image: VisibleImage,
    Path((_id, key)): Path<(String, String)>,
) -> ApiResult<StatusCode> {
    let key = bytes_of(&key, "key")?;
    let now = hub.swarms.now();
    let left = hub
        .swarms
        .members
        .lock()
        .leave(now, *image.id(), key, viewer.party());
    left.map_err(refused)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Which bytes of a pack to prove.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ProvenQuery {
    /// The first byte, a multiple of 65536.
    from: u64,
    /// How many: a multiple of 65536, or up to the pack's end; at most 1048576.
    bytes: u64,
    /// The image for whose swarm they are, 64 hex digits: its owner sees how much the hub gave.
    image: Option<String>,
}

impl ProvenQuery {
    /// Returns the copy of the image that is named, if the viewer may read one.
    fn image(&self, hub: &Hub, viewer: &Viewer) -> ApiResult<Option<VisibleImage>> {
        let Some(named) = &self.image else {
            return Ok(None);
        };
        let id = Hash::from(bytes_of(named, "image")?);
        Ok(hub.catalogue.visible(&id, viewer.name()))
    }

    fn range(&self, pack: &PackRef) -> ApiResult<Range<u64>> {
        let bad = |message: String| {
            let fix = format!("ask for pieces of {PIECE_BYTES} bytes, at most {PROVEN_BYTES_MAX}");
            Err(ApiError::bad(message, fix))
        };
        if self.bytes == 0 || self.bytes > PROVEN_BYTES_MAX {
            return bad(format!("{} bytes can't be proven at a time", self.bytes));
        }
        if !self.from.is_multiple_of(PIECE_BYTES) {
            return bad(format!("no piece begins at byte {}", self.from));
        }
        let end = self.from.checked_add(self.bytes);
        let Some(end) = end.filter(|end| *end <= pack.file_bytes) else {
            return Err(ApiError::new(
                StatusCode::RANGE_NOT_SATISFIABLE,
                "range",
                format!("the pack has {} bytes", pack.file_bytes),
                "ask for bytes within it",
            ));
        };
        if !end.is_multiple_of(PIECE_BYTES) && end != pack.file_bytes {
            return bad(format!("no piece ends at byte {end}"));
        }
        Ok(self.from..end)
    }
}

/// Returns a pack that somebody may read all of.
async fn readable(hub: &Arc<Hub>, viewer: &Viewer, id: &str) -> ApiResult<PackRef> {
    let id = parse_id(id)?;
    let name = viewer.name().map(str::to_owned);
    let found = blocking(hub, viewer.party(), move |hub| {
        Ok(hub.catalogue.pack_readable(&id, name.as_deref())?)
    });
    found.await?.ok_or_else(|| missing_pack(&id))
}

/// Says that what came of a pack was not what it should be.
///
/// The hub believes nobody that, and looks itself, once a minute for each user or address. If the pack is damaged, the list of images says so
/// until an image with it is pushed again.
#[utoipa::path(
    post, path = "/v1/packs/{id}/damaged", tag = "swarm",
    params(("id" = String, Path, description = "64 hex digits")),
    responses((status = 200, body = PackCheck), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
              (status = 404, body = ErrorBody),
              (status = 503, body = ErrorBody, description = "it has looked for this user or address a moment ago, or for many others")))]
pub(crate) async fn damaged(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    Path(id): Path<String>,
) -> ApiResult<Json<PackCheck>> {
    let pack = readable(&hub, &viewer, &id).await?;
    let now = hub.swarms.now();
    if !hub.swarms.doubts.lock().take(now, viewer.party()) {
        return Err(ApiError::busy(
            "the hub looks once a minute whether a pack is damaged",
        ));
    }
    let damaged = proofs::check(&hub, &viewer, pack).await?;
    Ok(Json(PackCheck { damaged }))
}

/// Returns pieces of a pack with the hashes that prove them.
///
/// The answer is bao's encoding of the range, with groups of 16 KiB: docs/format.md draws it. It is verified with the pack's root and
/// length, which `POST /v1/images/{id}/swarm` names.
#[utoipa::path(
    get, path = "/v1/packs/{id}/proven", tag = "swarm",
    params(("id" = String, Path, description = "64 hex digits"), ProvenQuery),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>),
              (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
              (status = 416, body = ErrorBody),
              (status = 503, body = ErrorBody, description = "too much is asked at a time, or the pack is damaged"),
              (status = 507, body = ErrorBody)))]
pub(crate) async fn proven(
    State(hub): State<Arc<Hub>>,
    viewer: Viewer,
    Path(id): Path<String>,
    Args(query): Args<ProvenQuery>,
) -> ApiResult<Response> {
    let pack = readable(&hub, &viewer, &id).await?;
    let range = query.range(&pack)?;
    let image = query.image(&hub, &viewer)?;
    let proven = proofs::prove(&hub, &viewer, pack, range).await?;
    count_bytes(proven.len());
    if let Some(image) = image {
        let mut given = hub.swarms.given.lock();
        given.add(*image.id(), image.owner(), proven.len() as u64);
    }
    answer(&hub, &viewer, "application/octet-stream", proven)
}
