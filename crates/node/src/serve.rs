//! The node's life: open everything, take over what an earlier node left, answer, and end without hurting machines.

use crate::{
    Node,
    adopt::{self, Adoption},
    guest::Guests,
    helpers, rest, web,
};
use floe_exchange::{Active, Swarms};
use floe_fork as fork;
use floe_fork::Forks;
use floe_ground::files::PASSABLE_MODE;
use floe_ground::{
    error::{NodeError, at, busy},
    news::News,
    options::NodeOptions,
    reserve::Reserve,
};
use floe_hosts::{cluster, placement};
use floe_inputs::Inputs;
use floe_inventory::{
    core::{Core, Stop},
    inventory::{Entry, Inventory, Users},
    network,
    resources::Resources,
};
use floe_library::{
    images::{Images, Serving, WISHES_QUEUED_MAX, Wish, sources::Sources},
    traces::Traces,
    views::Views,
};
use floe_machines::{
    agents::Agents,
    capture::Captures,
    dirs::{close_dirs, make_dirs},
    machines::Machines,
    resize::Resizes,
    run::Runs,
    screens::Screens,
    shrink::Shrinks,
    trim::Trims,
    vcpus::Vcpus,
};
use floe_mount::{Keeper, Mount, MountOptions};
use floe_moves::Moves;
use floe_park::{independence::Independence, park::Parks};
use floe_pool::{
    ensemble::Ensembles,
    pool::{self, Pool, Stock},
};
use floe_store::{Cache, Repository, private};
use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};
use tokio::{net::UnixListener, runtime::Runtime, sync::watch};

/// How long long calls get to undo what they began when the node ends.
const JOBS_END: Duration = Duration::from_secs(10);
/// How long they get while a fork is not stored yet: without its memory its clones would be lost.
const STORING_END: Duration = Duration::from_secs(60);
/// How long open connections get after that.
const CONNECTIONS_END: Duration = Duration::from_secs(1);
/// Threads of the REST interface. Two suffice: they only translate between HTTP and calls.
const REST_THREADS: usize = 2;
/// Threads that carry pieces of swarms. Each packet wakes a task, which with a second thread would wake that as well; and machines keep
/// the other processors.
const SWARM_THREADS: usize = 1;

/// A running node. Dropping it ends the node; machines go on.
pub struct NodeHandle {
    node: Option<Arc<Node>>,
    runtime: Option<Runtime>,
    swarms: Option<Runtime>,
    stop: watch::Receiver<Option<Stop>>,
}

/// Starts a node on threads of its own and returns once it answers. May be called inside or outside a tokio runtime.
pub fn serve(options: NodeOptions) -> Result<NodeHandle, NodeError> {
    let home = options.home.clone();
    // machines take descriptors, and the limit that a shell sets is lower than what it allows
    floe_front::raise_descriptors();
    make_dirs(&options)?;
    let reserve = Arc::new(Reserve::open(home.run().join("reserve"))?);
    close_dirs(&options, &reserve)?;
    let _ = floe_front::telemetry::metrics();
    // an unknown plug-in name is refused now, and not when the first guest asks for clones
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
    // before the mount is taken over: a node that does not know its machines must not go on
    let machines = adopt::find_machines(&home)?;
    let keeper = start_keeper(&options)?;
    let mount = start_mount(&options, &keeper)?;
    let took_over = mount.took_over();
    let mount = Serving::new(mount);
    let (core, stopped) = Core::new(options, keeper, reserve, took_over, page.map(Arc::new));
    let (wishes, wished) = mpsc::sync_channel(WISHES_QUEUED_MAX);
    let (arrivals, arrived) = mpsc::channel();
    let runtime = threads("node-rest", REST_THREADS)?;
    let swarms = threads("swarm-pieces", SWARM_THREADS)?;
    let handles = (swarms.handle().clone(), runtime.handle().clone());
    let node = services(core, repo, cache, mount, wishes, arrivals, handles)?;
    begin(&node, machines, wished, arrived)?;
    // first, so that whoever makes this node a member through the interface finds it answering members
    let members = rest::members_router(node.clone())
        .merge(fork::router(node.forks.clone(), fork::Way::Sealed));
    let core = node.core.clone();
    let tell = Arc::new(move |subject: &str, news: &News| core.tell(subject, news));
    let members = cluster::router(node.cluster.clone(), tell, members);
    node.cluster.serve(runtime.handle().clone(), members);
    let app = rest::router(node.clone());
    let listener = {
        let _inside = runtime.enter();
        listener
            .set_nonblocking(true)
            .map_err(at("cannot listen"))?;
        UnixListener::from_std(listener).map_err(at("cannot listen"))?
    };
    runtime.spawn(async move {
        let app = app.into_make_service_with_connect_info::<floe_ground::caller::Peer>();
        if let Err(error) = axum::serve(listener, app).await {
            tracing::error!(%error, "the interface ended");
        }
    });
    if let (Some(listener), Some(guard)) = (page_listener, &node.core.page) {
        let app = web::router(node.clone(), guard.clone());
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener).map_err(at("cannot listen for browsers"))?
        };
        runtime.spawn(web::serve(listener, app));
    }
    tracing::info!(socket = %node.core.options.socket.display(), took_over = node.core.took_over, "node answers");
    Ok(NodeHandle {
        node: Some(node),
        runtime: Some(runtime),
        swarms: Some(swarms),
        stop: stopped,
    })
}

/// Starts so many threads for asynchronous work.
fn threads(name: &str, number: usize) -> Result<Runtime, NodeError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(number)
        .thread_name(name)
        .enable_all()
        .build()
        .map_err(at(format!("cannot start the threads {name}")))
}

impl NodeHandle {
    /// The node itself, for callers in the same process.
    pub fn node(&self) -> &Arc<Node> {
        self.node
            .as_ref()
            .expect("a handle has its node until it is dropped")
    }

    /// Returns the path of the socket on which the node answers.
    pub fn socket(&self) -> &Path {
        &self.node().core.options.socket
    }

    /// Asks the node to end, with or without its machines; returns at once.
    pub fn stop(&self, machines: bool) {
        self.node().core.ask_to_stop(machines);
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

    /// Does the same as [`NodeHandle::wait`], and treats SIGTERM and SIGINT as requests to end.
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
                node.core.ask_to_stop(false);
            });
        }
        self.wait();
    }

    /// Ends the node; machines go on running unless `stop_machines` is set.
    pub fn shutdown(self, stop_machines: bool) {
        self.stop(stop_machines);
        self.wait();
    }

    fn end(&mut self) {
        let (Some(node), Some(runtime)) = (self.node.take(), self.runtime.take()) else {
            return;
        };
        let machines = self.stop.borrow().is_some_and(|stop| stop.machines);
        let _ = fs::remove_file(&node.core.options.socket);
        end_jobs(&node);
        node.core.threads.end();
        // machines outlive the node, and nobody looks after their vCPUs then
        node.vcpus.end();
        node.machines.end_standby();
        if machines {
            node.machines.stop_all_machines();
        }
        node.inventory.leave();
        node.swarms.close();
        node.traces.close();
        let running = node.machines.any_running();
        let Some(mount) = node.images.take_mount() else {
            return;
        };
        let left = if running {
            tracing::info!("machines go on; the next node takes them over");
            mount.detach()
        } else {
            node.views.end_views();
            node.machines.resources.close_groups();
            mount.unmount()
        };
        if let Err(error) = left {
            tracing::warn!(%error, "the mount was not left as it should");
        }
        if let Err(error) = node.images.cache.flush() {
            tracing::warn!(%error, "the cache was not written out");
        }
        match running {
            true => node.core.keeper.leave(),
            false => node.core.keeper.end(),
        }
        runtime.shutdown_timeout(CONNECTIONS_END);
        if let Some(swarms) = self.swarms.take() {
            swarms.shutdown_background(); // it has left them all
        }
    }
}

impl Drop for NodeHandle {
    fn drop(&mut self) {
        self.end();
    }
}

fn end_jobs(node: &Node) {
    let asked = Instant::now();
    // a call that ends may have begun another: a cancelled fork stores what it has
    node.core.end_jobs(|| match node.forks.any_unstored() {
        true => asked + STORING_END,
        false => asked + JOBS_END,
    });
}

/// Creates the services, the lowest first. Nothing is done yet.
// Long: one list, in the order in which the services know each other.
fn services(
    core: Arc<Core>,
    repo: Repository,
    cache: Arc<Cache>,
    mount: Serving,
    wishes: mpsc::SyncSender<Wish>,
    arrivals: mpsc::Sender<Arc<Entry>>,
    (swarms, clients): (tokio::runtime::Handle, tokio::runtime::Handle),
) -> Result<Arc<Node>, NodeError> {
    let home = &core.home;
    let cluster = Arc::new(cluster::Cluster::open(home)?);
    let networks = Arc::new(network::Networks::open(home, cluster.clone())?);
    let layers = fork::Layers::new(fork::Keeping::new(core.keeper.clone(), home));
    let forked = fork::Forked::new(layers.clone(), cluster.clone(), cache.clone());
    let resources = Resources::of_this_host(
        home,
        core.options.memory_bytes_max,
        core.options.emulator_cache_mib,
    );
    let resources = Arc::new(resources);
    let stock = Stock::new(pool::budget(home)?, resources.clone());
    let active = Active::default();
    let sources = Sources::new(
        repo.clone(),
        cache.clone(),
        floe_ground::io::fetching(&core.options),
        home.run().join("index"),
        core.options.own_hub.clone(),
        vec![
            Box::new(forked),
            Box::new(stock.clone()),
            Box::new(active.clone()),
        ],
    );
    let images = Images::new(core.clone(), repo, cache, sources, mount, wishes)?;
    let views = Views::new(core.clone(), images.clone());
    let publisher = core.clone();
    let tell = move |machine: &str, news: &News| publisher.tell(machine, news);
    let users = Users::of_this_host(home);
    let inventory = Inventory::new(core.reserve.clone(), users, Arc::new(tell));
    let inventory = Arc::new(inventory);
    let vcpus = Vcpus::open(core.clone(), inventory.clone())?;
    let traces = Traces::open(core.clone(), images.clone(), inventory.clone())?;
    let agents = Agents::new(inventory.clone());
    let swarms = Swarms::open(
        core.clone(),
        cluster.clone(),
        images.clone(),
        inventory.clone(),
        traces.clone(),
        active,
        swarms,
    )?;
    let machines = Machines::new(
        traces.clone(),
        networks.clone(),
        resources,
        Screens::new(clients.clone()),
        arrivals,
    )?;
    let shrinks = Arc::new(Shrinks {
        core: core.clone(),
        inventory: inventory.clone(),
        agents: agents.clone(),
        waker: Default::default(),
    });
    let resizes = Arc::new(Resizes {
        core: core.clone(),
        inventory: inventory.clone(),
        images: images.clone(),
        agents: agents.clone(),
        machines: machines.clone(),
    });
    let trims = Trims::new(core.clone(), inventory.clone(), agents.clone());
    let runs = Arc::new(Runs {
        core: core.clone(),
        images: images.clone(),
        traces: traces.clone(),
        inventory: inventory.clone(),
        machines: machines.clone(),
    });
    let captures = Arc::new(Captures {
        core: core.clone(),
        images: images.clone(),
        traces: traces.clone(),
        inventory: inventory.clone(),
        agents: agents.clone(),
        machines: machines.clone(),
    });
    let forks = Forks::open(captures.clone(), networks.clone(), cluster.clone(), layers)?;
    let pool = Pool::open(
        captures.clone(),
        runs.clone(),
        forks.clone(),
        shrinks.clone(),
        resizes.clone(),
        stock,
    )?;
    let ensembles = Arc::new(Ensembles {
        inventory: inventory.clone(),
        machines: machines.clone(),
        networks: networks.clone(),
        agents: agents.clone(),
        pool: pool.clone(),
        under_way: Default::default(),
    });
    let parks = Parks::open(
        captures.clone(),
        networks.clone(),
        runs.clone(),
        forks.clone(),
    )?;
    let independence = Independence::new(
        core.clone(),
        images.clone(),
        inventory.clone(),
        machines.clone(),
        parks.clone(),
    );
    let inputs = Inputs::open(
        core.clone(),
        cluster.clone(),
        inventory.clone(),
        agents.clone(),
        machines.clone(),
        clients,
    )?;
    let moves = Moves::new(
        captures.clone(),
        cluster.clone(),
        forks.clone(),
        parks.clone(),
        inputs.clone(),
        resizes.clone(),
    );
    let guests = Guests::new(&captures, networks.clone(), forks.clone(), moves.clone());
    let adoption = Arc::new(Adoption {
        core: core.clone(),
        inventory: inventory.clone(),
        machines: machines.clone(),
        forks: forks.clone(),
        parks: parks.clone(),
    });
    Ok(Arc::new(Node {
        core,
        cluster,
        networks,
        images,
        views,
        inventory,
        vcpus,
        traces,
        swarms,
        agents,
        machines,
        shrinks,
        resizes,
        trims,
        independence,
        runs,
        captures,
        forks,
        pool,
        ensembles,
        parks,
        inputs,
        moves,
        guests,
        adoption,
    }))
}

/// Gives the services what an earlier node left, and starts their threads. `machines`: those that it left; `wished`: what the planner
/// wishes of machines; `arrived`: machines whose QEMU has begun.
fn begin(
    node: &Node,
    machines: Vec<adopt::Found>,
    wished: mpsc::Receiver<Wish>,
    arrived: mpsc::Receiver<Arc<Entry>>,
) -> Result<(), NodeError> {
    node.images.tidy_tmp();
    let found = node.forks.find_layers_again();
    node.forks.find_lost_forks();
    node.forks.open_groups_again();
    let left = node.adoption.attach_machines(machines);
    node.views.adopt_views();
    node.networks
        .tidy(|name| node.inventory.knows(name) || node.forks.is_away(name));
    node.machines.end_takeover()?;
    node.machines.start_watching()?;
    node.machines.start_buffering(wished)?;
    node.machines.start_watching_sources()?;
    node.guests.start_listening(arrived)?;
    node.runs.start_looking_after()?;
    node.independence.start_looking_after()?;
    node.vcpus.start_looking_after()?;
    node.parks.start_looking_after()?;
    node.moves.start_looking_after()?;
    node.shrinks.start_giving_back()?;
    node.trims.start_looking_after()?;
    node.forks.start_watching_parents()?;
    node.forks.start_watching_hosts()?;
    node.forks.start_ending_owed()?;
    node.forks.start_watching_tickets()?;
    node.forks.start_tidying()?;
    // a weak handle: a strong one would keep alive the service that the thread belongs to
    let tunnels = Arc::downgrade(&node.networks);
    node.cluster.start_keeping(&node.core.threads, move || {
        if let Some(networks) = tunnels.upgrade() {
            networks.open_tunnels();
        }
    })?;
    node.traces.start_tracing()?;
    node.traces.fetch_models_again();
    node.swarms.start_taking_part()?;
    node.forks.store_found(found);
    node.pool.start_warming();
    node.adoption.take_over_machines(left);
    node.inputs.start_giving()?;
    Ok(())
}

/// Connects to the supervisor. Starts one if none runs, now and whenever the supervisor has ended.
fn start_keeper(options: &NodeOptions) -> Result<Keeper, NodeError> {
    let socket = options.home.run().join("supervisor.sock");
    let command = options.supervisor.clone();
    let ensure = move |socket: &Path| {
        helpers::ensure_supervisor(&command, socket).map_err(|error| error.to_api().to_string())
    };
    Ok(Keeper::start(&socket, ensure)?)
}

fn start_mount(options: &NodeOptions, keeper: &Keeper) -> Result<Mount, NodeError> {
    let mut mount = MountOptions::new(options.home.run());
    mount.keeper = Some(keeper.clone());
    mount.io_timeout = options.io_timeout;
    mount.believed_after = floe_ground::io::BELIEVED_AFTER;
    mount.io = floe_ground::io::scheduling(options.io);
    mount.io_trace = options.io_trace.clone();
    if !options.read_ahead {
        // a window of one chunk holds only the chunk that was asked for
        mount.planner.window_log2_start = 0;
        mount.planner.window_log2_max = 0;
    }
    Ok(Mount::start(&options.mountpoint, mount)?)
}

/// Binds the socket. A socket that a dead node left is replaced; if a live node answers on it, that is an error.
fn bind(socket: &Path, group: Option<u32>) -> Result<std::os::unix::net::UnixListener, NodeError> {
    let shown = socket.display();
    if let Some(dir) = socket.parent() {
        private::make_dirs_with(dir, PASSABLE_MODE)
            .map_err(at(format!("cannot make {}", dir.display())))?;
    }
    match floe_threads::connect(socket) {
        Ok(_) => {
            return Err(busy(
                format!("a node answers on {shown} already"),
                "stop it first, or set another FLOE_SOCKET",
            ));
        }
        // only these say that nobody answers: what is there is no socket's, or of a node that has ended
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::ConnectionRefused | ErrorKind::NotFound
            ) => {}
        Err(error) => {
            return Err(at(format!("cannot see whether a node answers on {shown}"))(
                error,
            ));
        }
    }
    let _ = fs::remove_file(socket);
    // the umask keeps others from connecting before the mode is set
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let listener = floe_threads::listen(socket);
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
