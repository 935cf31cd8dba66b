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
    routing::{delete, get, post},
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

/// Returns all routes.
// Long: one list of all paths.
pub fn router(node: Arc<Node>) -> Router {
    Router::new()
        .route("/v1/node", get(system::node))
        .route("/v1/page", get(system::page))
        .route("/v1/doctor", get(system::doctor))
        .route("/v1/events", get(system::events))
        .route("/v1/shutdown", post(system::shutdown))
        .route("/v1/cache", get(system::cache))
        .route("/v1/cache/gc", post(system::cache_gc))
        .route("/v1/cache/verify", post(system::cache_verify))
        .route("/v1/openapi.json", get(system::openapi))
        .route("/metrics", get(system::metrics))
        .route("/v1/images", get(images::list))
        .route("/v1/image", get(images::inspect))
        .route("/v1/images/{name}/thumbnail", get(screen::picture))
        .route("/v1/images/import", post(images::import))
        .route("/v1/images/verify", post(images::verify))
        .route("/v1/images/optimize", post(images::optimize))
        .route("/v1/images/tag", post(images::tag))
        .route("/v1/images/untag", post(images::untag))
        .route("/v1/images/remove", post(images::remove))
        .route("/v1/images/export", post(images::export))
        .route("/v1/images/push", post(images::push))
        .route("/v1/images/copy", post(images::copy))
        .route("/v1/images/pull", post(images::pull))
        .route("/v1/uploads", post(uploads::receive))
        .route("/v1/uploads/{id}", delete(uploads::drop))
        .route("/v1/mounts", get(images::mounts).post(images::mount))
        .route("/v1/mounts/remove", post(images::unmount))
        .route("/v1/machines", get(machines::list).post(machines::run))
        .route("/v1/machines/{name}", get(machines::inspect))
        .route("/v1/machines/{name}", delete(machines::remove))
        .route("/v1/machines/{name}/start", post(machines::start))
        .route("/v1/machines/{name}/stop", post(machines::stop))
        .route("/v1/machines/{name}/restart", post(machines::restart))
        .route("/v1/machines/{name}/rollback", post(machines::rollback))
        .route("/v1/machines/{name}/rename", post(machines::rename))
        .route(
            "/v1/machines/{name}/disks",
            get(machines::disks).post(machines::resize_disk),
        )
        .route("/v1/machines/{name}/size", post(resize::size))
        .route("/v1/machines/{name}/trim", post(resize::trim))
        .route(
            "/v1/machines/{name}/independent",
            post(independent::independent),
        )
        .route(
            "/v1/machines/{name}/disks/{disk}",
            post(resize::attach_disk).delete(resize::detach_disk),
        )
        .route("/v1/machines/{name}/cards", post(resize::attach_card))
        .route(
            "/v1/machines/{name}/cards/{card}",
            delete(resize::detach_card),
        )
        .route("/v1/machines/{name}/wait", get(watching::wait))
        .route("/v1/swarm", get(swarm::report))
        .route("/v1/swarm/listen", post(swarm::listen))
        .route("/v1/swarm/seeds", post(swarm::seed))
        .route("/v1/swarm/leave", post(swarm::leave))
        .route("/v1/io", get(io::io))
        .route("/v1/sched", get(sched::sched))
        .route("/v1/io/list", post(io::list))
        .route("/v1/io/say", post(io::say))
        .route("/v1/machines/{name}/input", post(io::input))
        .route("/v1/prune", post(system::prune))
        .route("/v1/usage", get(system::usage))
        .route("/v1/machines/{name}/park", post(machines::park))
        .route("/v1/machines/{name}/wake", post(machines::wake))
        .route("/v1/machines/{name}/move", post(moves::move_machine))
        .route("/v1/machines/{name}/recall", post(moves::recall))
        .route("/v1/machines/{name}/type", post(moves::type_on))
        .route("/v1/machines/{name}/sync", post(moves::sync))
        .route("/v1/machines/{name}/advise", post(moves::advise))
        .route("/v1/machines/{name}/pause", post(machines::pause))
        .route("/v1/machines/{name}/resume", post(machines::resume))
        .route("/v1/machines/{name}/capture", post(machines::capture))
        .route("/v1/machines/{name}/dock", post(pool::dock))
        .route("/v1/pool", get(pool::status))
        .route("/v1/pool/resize", post(pool::resize))
        .route("/v1/pool/verify", post(pool::verify))
        .route("/v1/pool/substrates", get(pool::list))
        .route(
            "/v1/pool/substrates/{name}",
            get(pool::inspect).delete(pool::remove),
        )
        .route("/v1/pool/substrates/{name}/activate", post(pool::activate))
        .route("/v1/pool/substrates/{name}/export", post(pool::export))
        .route("/v1/pool/import", post(pool::import))
        .route("/v1/pool/ensembles", post(pool::activate_ensemble))
        .route("/v1/machines/{name}/screenshot", post(machines::screenshot))
        .route("/v1/machines/{name}/vnc", get(screen::vnc))
        .route("/v1/machines/{name}/terminal", get(terminal::terminal))
        .route("/v1/machines/{name}/exec", post(exec::exec))
        .route("/v1/machines/{name}/console", get(machines::console))
        .route("/v1/machines/{name}/logs", get(machines::logs))
        .route("/v1/machines/{name}/forwards", post(machines::forward))
        .route("/v1/machines/{name}/limits", post(machines::limit))
        .route("/v1/machines/{name}/stream", get(machines::stream_info))
        .route("/v1/machines/{name}/fork", post(forks::fork))
        .route("/v1/machines/{name}/family", get(forks::family))
        .route("/v1/machines/{name}/kill", post(forks::kill))
        .route("/v1/clones", post(forks::receive))
        .route("/v1/clones/room", get(forks::room))
        .route("/v1/clones/expand", post(pool::expand))
        .route("/v1/hosts", get(forks::hosts))
        .route("/v1/networks/{id}/hosts", post(forks::network_hosts))
        .route("/v1/cluster", get(cluster::info))
        .route("/v1/cluster/init", post(cluster::init))
        .route("/v1/cluster/invite", post(cluster::invite))
        .route("/v1/cluster/join", post(cluster::join))
        .route("/v1/cluster/leave", post(cluster::leave))
        .route("/v1/cluster/revoke", post(cluster::revoke))
        .route("/v1/traces/list", post(traces::list))
        .route("/v1/traces/show", post(traces::show))
        .route("/v1/traces/export", post(traces::export))
        .route("/v1/traces/import", post(traces::import))
        .fallback(answer::no_such_path)
        .method_not_allowed_fallback(answer::no_such_method)
        .layer(axum::extract::DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(node)
}

/// The interface's description.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "floe node",
        description = "Runs virtual machines from images on one host. Served on a unix socket; who can open it \
            has the rights of the node. Long calls answer one JSON event a line (application/x-ndjson).",
        license(name = "MIT OR Apache-2.0")
    ),
    paths(
        system::node,
        system::page,
        system::doctor,
        system::events,
        system::shutdown,
        system::cache,
        system::cache_gc,
        system::cache_verify,
        images::list,
        images::inspect,
        images::import,
        images::verify,
        images::optimize,
        images::tag,
        images::untag,
        images::remove,
        images::export,
        images::push,
        images::copy,
        images::pull,
        uploads::receive,
        uploads::drop,
        images::mounts,
        images::mount,
        images::unmount,
        machines::list,
        machines::run,
        machines::inspect,
        machines::remove,
        machines::start,
        machines::stop,
        machines::restart,
        machines::rollback,
        machines::rename,
        machines::disks,
        machines::resize_disk,
        resize::size,
        resize::trim,
        independent::independent,
        resize::attach_card,
        resize::detach_card,
        resize::attach_disk,
        resize::detach_disk,
        watching::wait,
        system::usage,
        swarm::report,
        swarm::listen,
        swarm::seed,
        swarm::leave,
        io::io,
        sched::sched,
        io::list,
        io::say,
        io::input,
        system::prune,
        machines::park,
        machines::wake,
        moves::move_machine,
        moves::recall,
        moves::type_on,
        moves::sync,
        moves::advise,
        machines::pause,
        machines::resume,
        machines::capture,
        pool::dock,
        pool::status,
        pool::resize,
        pool::verify,
        pool::list,
        pool::inspect,
        pool::remove,
        pool::activate,
        pool::export,
        pool::import,
        pool::activate_ensemble,
        pool::expand,
        machines::screenshot,
        screen::picture,
        screen::vnc,
        terminal::terminal,
        exec::exec,
        machines::console,
        machines::logs,
        machines::forward,
        machines::limit,
        machines::stream_info,
        forks::fork,
        forks::family,
        forks::kill,
        forks::receive,
        forks::room,
        forks::hosts,
        forks::network_hosts,
        cluster::info,
        cluster::init,
        cluster::invite,
        cluster::join,
        cluster::leave,
        cluster::revoke,
        traces::list,
        traces::show,
        traces::export,
        traces::import,
    ),
    components(schemas(floe_api::Event)),
    modifiers(&Failures)
)]
pub struct Description;

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

    #[test]
    fn every_route_is_described() {
        let source = include_str!("mod.rs");
        let described = Description::openapi();
        let routes = source
            .lines()
            .filter_map(|line| line.trim().strip_prefix(".route(\"")?.split('"').next());
        // for programs that measure or make clients, and for members of a cluster alone
        let unlisted = [
            "/metrics",
            "/v1/openapi.json",
            "/v1/moves",
            "/v1/moves/question",
            "/v1/moves/recall",
            "/v1/moves/inputs",
            "/v1/moves/size",
            "/v1/moves/sync",
            "/v1/moves/speed",
            "/v1/moves/results",
            "/v1/moves/end",
            "/v1/moves/lease",
            "/v1/moves/look",
            "/v1/swarm/{image}",
            "/v1/swarm/{image}/packs",
        ];
        let mut count = 0;
        for route in routes.filter(|route| !unlisted.contains(route)) {
            assert!(described.paths.paths.contains_key(route), "{route}");
            count += 1;
        }
        assert!(count > 20);
    }
}
