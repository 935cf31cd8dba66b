//! The node's life: open everything, take over what an earlier node left, answer, and end without hurting machines.

use crate::node::{
    Node, NodeOptions, Stop,
    error::{NodeError, at, busy},
    fork,
    guest::Guests,
    helpers,
    machines::Machines,
    network, placement, rest,
    sources::Sources,
    standby, starts,
    traces::Traces,
    web,
};
use floe_mount::{Mount, MountOptions};
use floe_store::{Cache, Repository};
use parking_lot::{Mutex, RwLock};
use std::{
    fs,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicU64, mpsc},
    time::{Duration, Instant},
};
use tokio::{
    net::UnixListener,
    runtime::Runtime,
    sync::{broadcast, watch},
};

/// How long long calls get to undo what they began when the node ends.
const JOBS_END: Duration = Duration::from_secs(10);
/// The same while forks are not stored yet, whose clones would lose memory.
const STORING_END: Duration = Duration::from_secs(60);
/// How long open connections get after that.
const CONNECTIONS_END: Duration = Duration::from_secs(1);
/// Threads of the interface: they only translate.
const REST_THREADS: usize = 2;
/// Others may pass through on the way to a socket or disk that is theirs, but not look around.
const DIR_MODE: u32 = 0o711;

/// A running node. Dropping it ends the node; machines go on.
pub struct NodeHandle {
    node: Option<Arc<Node>>,
    runtime: Option<Runtime>,
    stop: watch::Receiver<Option<Stop>>,
}

/// Starts a node on threads of its own and returns once it answers. Callable with or without a tokio runtime around it.
pub fn serve(options: NodeOptions) -> Result<NodeHandle, NodeError> {
    let home = options.home.clone();
    for dir in [
        home.root().to_owned(),
        home.machines(),
        home.run(),
        home.tmp(),
        options.mountpoint.clone(),
    ] {
        make_dir(&dir)?;
    }
    fs::set_permissions(home.tmp(), fs::Permissions::from_mode(0o700))
        .map_err(at("cannot protect tmp/"))?;
    let _ = crate::telemetry::metrics();
    // a name that is wrong is said now, not to the first guest that asks
    placement::plug_in(options.guest_placement.as_deref(), &home)?;
    let listener = bind(&options.socket, options.socket_group)?;
    let web = options
        .web
        .as_ref()
        .map(|web| web::listen(web, &home))
        .transpose()?;
    let (page_listener, page) = web.unzip();
    let repo = Repository::create(&home.repo())?;
    let cache = Arc::new(Cache::open(&home.cache(), options.cache_budget)?);
    let mount = start_mount(&options)?;
    let took_over = mount.took_over();
    let (stop, stopped) = watch::channel(None);
    let (wishes, wished) = mpsc::channel();
    let (guests, arrived) = Guests::new();
    let layers = fork::Layers::default();
    let node = Arc::new(Node {
        sources: Sources::new(
            repo.clone(),
            layers.clone(),
            cache.clone(),
            options.io_timeout,
            home.run().join("index"),
        ),
        repo,
        cache,
        mount: RwLock::new(Some(mount)),
        machines: Machines::default(),
        standby: standby::Pool::default(),
        starts: starts::Starts::open(&home),
        layers,
        forks: fork::Forks::open(&home)?,
        tickets: placement::Tickets::open(&home)?,
        networks: network::Networks::open(&home)?,
        traces: Arc::new(Traces::open(&home)?),
        image_bytes: Mutex::default(),
        wishes,
        guests,
        views: Mutex::default(),
        storing: RwLock::new(()),
        accel: floe_machine::accel::detect(),
        took_over,
        page: page.map(Arc::new),
        started: Instant::now(),
        events: broadcast::channel(super::EVENTS_KEPT).0,
        stop,
        jobs: Mutex::default(),
        next_job: AtomicU64::new(0),
        home,
        options,
    });
    node.tidy_tmp();
    node.find_lost_forks();
    node.open_groups_again();
    node.adopt_machines();
    node.adopt_views();
    node.tidy_networks();
    node.with_mount(|mount| {
        mount.takeover_done();
        Ok(())
    })?;
    node.start_watching()?;
    node.start_buffering(wished)?;
    node.start_listening_to_guests(arrived)?;
    node.start_watching_parents()?;
    node.start_watching_hosts()?;
    node.start_watching_tickets()?;
    node.start_tracing()?;
    node.fetch_models_again();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(REST_THREADS)
        .thread_name("node-rest")
        .enable_all()
        .build()
        .map_err(at("cannot start the interface's threads"))?;
    let app = rest::router(node.clone());
    let listener = {
        let _inside = runtime.enter();
        listener
            .set_nonblocking(true)
            .map_err(at("cannot listen"))?;
        UnixListener::from_std(listener).map_err(at("cannot listen"))?
    };
    runtime.spawn(async move {
        if let Err(error) = axum::serve(listener, app).await {
            tracing::error!(%error, "the interface ended");
        }
    });
    if let (Some(listener), Some(guard)) = (page_listener, &node.page) {
        let app = web::router(node.clone(), guard.clone());
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener).map_err(at("cannot listen for browsers"))?
        };
        runtime.spawn(async move {
            if let Err(error) = axum::serve(listener, app).await {
                tracing::error!(%error, "the page ended");
            }
        });
    }
    tracing::info!(socket = %node.options.socket.display(), took_over, "node answers");
    Ok(NodeHandle {
        node: Some(node),
        runtime: Some(runtime),
        stop: stopped,
    })
}

impl NodeHandle {
    /// The node itself, for callers in the same process.
    pub fn node(&self) -> &Arc<Node> {
        self.node
            .as_ref()
            .expect("a handle has its node until it is dropped")
    }

    /// Where it answers.
    pub fn socket(&self) -> &Path {
        &self.node().options.socket
    }

    /// Asks the node to end, with its machines or without; returns at once.
    pub fn stop(&self, machines: bool) {
        self.node().ask_to_stop(machines);
    }

    /// Blocks until somebody asks the node to end, then ends it.
    pub fn wait(mut self) {
        let stop = self.stop.clone();
        if let Some(runtime) = &self.runtime {
            let mut stop = stop;
            let _ = runtime.block_on(async { stop.wait_for(Option::is_some).await.map(|_| ()) });
        }
        self.end();
    }

    /// As [`NodeHandle::wait`], and SIGTERM and SIGINT ask too.
    pub fn wait_or_signal(self) {
        use tokio::signal::unix::{SignalKind, signal};
        if let (Some(runtime), Some(node)) = (&self.runtime, &self.node) {
            let node = node.clone();
            runtime.spawn(async move {
                let (Ok(mut term), Ok(mut int)) = (
                    signal(SignalKind::terminate()),
                    signal(SignalKind::interrupt()),
                ) else {
                    return;
                };
                tokio::select! { _ = term.recv() => (), _ = int.recv() => () }
                node.ask_to_stop(false);
            });
        }
        self.wait();
    }

    /// Ends the node; machines go on unless they are to be stopped.
    pub fn shutdown(self, stop_machines: bool) {
        self.stop(stop_machines);
        self.wait();
    }

    fn end(&mut self) {
        let (Some(node), Some(runtime)) = (self.node.take(), self.runtime.take()) else {
            return;
        };
        let machines = self.stop.borrow().is_some_and(|stop| stop.machines);
        let _ = fs::remove_file(&node.options.socket);
        end_jobs(&node);
        node.end_standby();
        if machines {
            node.stop_all_machines();
        }
        node.machines.leave();
        node.traces.outbox.close();
        let running = node.machines.any_running();
        let Some(mount) = node.mount.write().take() else {
            return;
        };
        let left = if running {
            tracing::info!("machines go on; the next node takes them over");
            mount.detach()
        } else {
            node.end_views();
            mount.unmount()
        };
        if let Err(error) = left {
            tracing::warn!(%error, "the mount was not left as it should");
        }
        if let Err(error) = node.cache.flush() {
            tracing::warn!(%error, "the cache was not written out");
        }
        let supervisor = supervisor_socket(&node.options);
        if !running && let Ok(client) = floe_mount::supervisor::Client::connect(&supervisor) {
            let _ = client.quit(); // it holds nothing any more
        }
        runtime.shutdown_timeout(CONNECTIONS_END);
    }
}

impl Drop for NodeHandle {
    fn drop(&mut self) {
        self.end();
    }
}

fn end_jobs(node: &Node) {
    let asked = Instant::now();
    let patience = || match node.layers.is_empty() {
        true => JOBS_END,
        false => STORING_END,
    };
    // one that ends may have begun another: a fork that is cancelled stores what it has
    while node.cancel_jobs() > 0 && asked.elapsed() < patience() {
        std::thread::sleep(super::report::CANCEL_POLL);
    }
}

fn supervisor_socket(options: &NodeOptions) -> PathBuf {
    options.home.run().join("supervisor.sock")
}

fn start_mount(options: &NodeOptions) -> Result<Mount, NodeError> {
    let supervisor = supervisor_socket(options);
    helpers::ensure_supervisor(&options.supervisor, &supervisor)?;
    let mut mount = MountOptions::new(options.home.run());
    mount.supervisor = Some(supervisor);
    mount.io_timeout = options.io_timeout;
    if !options.read_ahead {
        // A window of one chunk is the demanded one.
        mount.planner.window_log2_start = 0;
        mount.planner.window_log2_max = 0;
    }
    Ok(Mount::start(&options.mountpoint, mount)?)
}

fn make_dir(dir: &Path) -> Result<(), NodeError> {
    // the mountpoint of a node that died answers nobody until it is taken over: don't touch it if it is there
    if fs::symlink_metadata(dir).is_ok() {
        return Ok(());
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(DIR_MODE)
        .create(dir)
        .map_err(at(format!("cannot make {}", dir.display())))
}

/// Binds the socket; one that a dead node left is replaced, a live node's is not.
fn bind(socket: &Path, group: Option<u32>) -> Result<std::os::unix::net::UnixListener, NodeError> {
    let shown = socket.display();
    if let Some(dir) = socket.parent() {
        fs::create_dir_all(dir).map_err(at(format!("cannot make {}", dir.display())))?;
    }
    if std::os::unix::net::UnixStream::connect(socket).is_ok() {
        return Err(busy(
            format!("a node answers on {shown} already"),
            "stop it first, or set another FLOE_SOCKET",
        ));
    }
    let _ = fs::remove_file(socket);
    // nobody else may connect in the moment before the mode is set
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let listener = std::os::unix::net::UnixListener::bind(socket);
    rustix::process::umask(before);
    let listener = listener.map_err(at(format!("cannot listen on {shown}")))?;
    if let Some(group) = group {
        std::os::unix::fs::chown(socket, None, Some(group))
            .map_err(at(format!("cannot give {shown} to group {group}")))?;
        fs::set_permissions(socket, fs::Permissions::from_mode(0o660))
            .map_err(at(format!("cannot open {shown} to a group")))?;
    }
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_can_connect_and_a_dead_nodes_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("sub/node.sock");
        let first = bind(&socket, None).unwrap();
        assert_eq!(
            fs::metadata(&socket).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let error = bind(&socket, None).unwrap_err().to_string();
        assert!(error.contains("already"), "{error}");
        drop(first);
        bind(&socket, None).unwrap();
    }
}
