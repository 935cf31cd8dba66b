//! The node's REST interface. Handlers only translate: every answer comes from a method of [`Node`] or of a service, run on a
//! thread where it may block.

mod answer;
mod cluster;
mod exec;
mod forks;
mod images;
mod independent;
mod io;
mod machines;
mod moves;
mod pool;
mod resize;
mod sched;
mod screen;
mod swarm;
mod system;
mod terminal;
mod traces;
mod uploads;
mod watching;

use crate::Node;
use answer::Failures;
use axum::{
    Router,
    routing::{get, post},
};
use std::sync::Arc;
use utoipa::OpenApi;

/// Largest request body in bytes: labels and command lines are small.
pub const BODY_BYTES_MAX: usize = 1 << 20;

/// Returns the routes for the members of a cluster: to run clones, to ask about them, to give machines away, and who takes part in an
/// image's swarm. The rest of the interface is not for members.
pub fn members_router(node: Arc<Node>) -> Router {
    Router::new()
        .route("/v1/clones", post(forks::receive))
        .route("/v1/clones/room", get(forks::room))
        .route("/v1/clones/expand", post(pool::expand))
        .route("/v1/machines/{name}/family", get(forks::family))
        .route("/v1/machines/{name}/kill", post(forks::kill))
        .route("/v1/networks/{id}/hosts", post(forks::network_hosts))
        .route("/v1/moves", post(moves::order))
        .route("/v1/moves/question", post(moves::question))
        .route("/v1/moves/recall", post(moves::give_back))
        .route("/v1/moves/inputs", post(moves::inputs))
        .route("/v1/moves/size", post(moves::resize))
        .route("/v1/moves/sync", post(moves::sync_back))
        .route("/v1/moves/speed", post(moves::speed))
        .route("/v1/moves/results", post(moves::results))
        .route("/v1/moves/end", post(moves::end))
        .route("/v1/moves/lease", post(moves::lease))
        .route("/v1/moves/look", post(moves::look))
        .route("/v1/swarm/{image}", get(swarm::offer))
        .route("/v1/swarm/{image}/packs", get(swarm::offer_packs))
        .fallback(answer::no_such_path)
        .method_not_allowed_fallback(answer::no_such_method)
        .layer(axum::extract::DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(node)
}

floe_front::interface! {
    #[openapi(
        info(
            title = "floe node",
            description = "Runs virtual machines from images on one host. Served on a unix socket; who can open it \
                has the rights of the node. Long calls answer one JSON event a line (application/x-ndjson).",
            license(name = "MIT OR Apache-2.0")
        ),
        components(schemas(floe_api::Event)),
        modifiers(&Failures)
    )]
    state Arc<Node>;
    get "/v1/node" system::node,
    get "/v1/page" system::page,
    get "/v1/doctor" system::doctor,
    get "/v1/events" system::events,
    post "/v1/shutdown" system::shutdown,
    get "/v1/cache" system::cache,
    post "/v1/cache/gc" system::cache_gc,
    post "/v1/cache/verify" system::cache_verify,
    get "/v1/images" images::list,
    get "/v1/image" images::inspect,
    get "/v1/images/{name}/thumbnail" screen::picture,
    post "/v1/images/import" images::import,
    post "/v1/images/verify" images::verify,
    post "/v1/images/optimize" images::optimize,
    post "/v1/images/tag" images::tag,
    post "/v1/images/untag" images::untag,
    post "/v1/images/remove" images::remove,
    post "/v1/images/export" images::export,
    post "/v1/images/push" images::push,
    post "/v1/images/copy" images::copy,
    post "/v1/images/pull" images::pull,
    post "/v1/uploads" uploads::receive,
    delete "/v1/uploads/{id}" uploads::drop,
    get "/v1/mounts" images::mounts,
    post "/v1/mounts" images::mount,
    post "/v1/mounts/remove" images::unmount,
    get "/v1/machines" machines::list,
    post "/v1/machines" machines::run,
    get "/v1/machines/{name}" machines::inspect,
    delete "/v1/machines/{name}" machines::remove,
    post "/v1/machines/{name}/start" machines::start,
    post "/v1/machines/{name}/stop" machines::stop,
    post "/v1/machines/{name}/restart" machines::restart,
    post "/v1/machines/{name}/rollback" machines::rollback,
    post "/v1/machines/{name}/rename" machines::rename,
    get "/v1/machines/{name}/disks" machines::disks,
    post "/v1/machines/{name}/disks" machines::resize_disk,
    post "/v1/machines/{name}/size" resize::size,
    post "/v1/machines/{name}/trim" resize::trim,
    post "/v1/machines/{name}/independent" independent::independent,
    post "/v1/machines/{name}/disks/{disk}" resize::attach_disk,
    delete "/v1/machines/{name}/disks/{disk}" resize::detach_disk,
    post "/v1/machines/{name}/cards" resize::attach_card,
    delete "/v1/machines/{name}/cards/{card}" resize::detach_card,
    get "/v1/machines/{name}/wait" watching::wait,
    get "/v1/swarm" swarm::report,
    post "/v1/swarm/listen" swarm::listen,
    post "/v1/swarm/seeds" swarm::seed,
    post "/v1/swarm/leave" swarm::leave,
    get "/v1/io" io::io,
    get "/v1/sched" sched::sched,
    post "/v1/io/list" io::list,
    post "/v1/io/say" io::say,
    post "/v1/machines/{name}/input" io::input,
    post "/v1/prune" system::prune,
    get "/v1/usage" system::usage,
    post "/v1/machines/{name}/park" machines::park,
    post "/v1/machines/{name}/wake" machines::wake,
    post "/v1/machines/{name}/move" moves::move_machine,
    post "/v1/machines/{name}/recall" moves::recall,
    post "/v1/machines/{name}/type" moves::type_on,
    post "/v1/machines/{name}/sync" moves::sync,
    post "/v1/machines/{name}/advise" moves::advise,
    post "/v1/machines/{name}/pause" machines::pause,
    post "/v1/machines/{name}/resume" machines::resume,
    post "/v1/machines/{name}/capture" machines::capture,
    post "/v1/machines/{name}/dock" pool::dock,
    get "/v1/pool" pool::status,
    post "/v1/pool/resize" pool::resize,
    post "/v1/pool/verify" pool::verify,
    get "/v1/pool/substrates" pool::list,
    get "/v1/pool/substrates/{name}" pool::inspect,
    delete "/v1/pool/substrates/{name}" pool::remove,
    post "/v1/pool/substrates/{name}/activate" pool::activate,
    post "/v1/pool/substrates/{name}/export" pool::export,
    post "/v1/pool/import" pool::import,
    post "/v1/pool/ensembles" pool::activate_ensemble,
    post "/v1/machines/{name}/screenshot" machines::screenshot,
    get "/v1/machines/{name}/vnc" screen::vnc,
    get "/v1/machines/{name}/terminal" terminal::terminal,
    post "/v1/machines/{name}/exec" exec::exec,
    get "/v1/machines/{name}/console" machines::console,
    get "/v1/machines/{name}/logs" machines::logs,
    post "/v1/machines/{name}/forwards" machines::forward,
    post "/v1/machines/{name}/limits" machines::limit,
    get "/v1/machines/{name}/stream" machines::stream_info,
    post "/v1/machines/{name}/fork" forks::fork,
    get "/v1/machines/{name}/family" forks::family,
    post "/v1/machines/{name}/kill" forks::kill,
    post "/v1/clones" forks::receive,
    get "/v1/clones/room" forks::room,
    post "/v1/clones/expand" pool::expand,
    get "/v1/hosts" forks::hosts,
    post "/v1/networks/{id}/hosts" forks::network_hosts,
    get "/v1/cluster" cluster::info,
    post "/v1/cluster/init" cluster::init,
    post "/v1/cluster/invite" cluster::invite,
    post "/v1/cluster/join" cluster::join,
    post "/v1/cluster/leave" cluster::leave,
    post "/v1/cluster/revoke" cluster::revoke,
    post "/v1/traces/list" traces::list,
    post "/v1/traces/show" traces::show,
    post "/v1/traces/export" traces::export,
    post "/v1/traces/import" traces::import,
}

/// Returns all routes: those that are described, and two for programs that measure or make clients.
pub fn router(node: Arc<Node>) -> Router {
    described()
        .route("/v1/openapi.json", get(system::openapi))
        .route("/metrics", get(system::metrics))
        .fallback(answer::no_such_path)
        .method_not_allowed_fallback(answer::no_such_method)
        .layer(axum::extract::DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(node)
}

/// Returns the text of `docs/openapi-node.json`.
pub fn openapi_json() -> String {
    let mut text = Description::openapi()
        .to_pretty_json()
        .expect("a description has only strings");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `FLOE_BLESS=1 cargo test -p floe-node openapi` writes the file anew.
    #[test]
    fn the_checked_in_openapi_file_is_what_the_node_speaks() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi-node.json");
        let now = openapi_json();
        if std::env::var_os("FLOE_BLESS").is_some() {
            std::fs::write(path, &now).unwrap();
        }
        let then = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            now == then,
            "docs/openapi-node.json is not current: FLOE_BLESS=1 cargo test -p floe-node openapi"
        );
    }
}
