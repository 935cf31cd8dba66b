//! The hosts of a fork: which they are, how much room each has, and how much of it a plug-in grants.

use super::{Fork, Host, decide::Event, serve};
use crate::Forks;
use floe_api::{CLONES_MAX, FORK_HOSTS_MAX, ForkRequest, HERE, Room};
use floe_ground::error::{NodeError, refused, usage};
use floe_hosts::{
    cluster::Remote,
    placement::{Ask, Held, Known, Offer, known_hosts, plug_in},
};
use floe_http::Url;
use floe_image::MachineConfig;
use floe_inventory::{inventory::Entry, resources::ForClones};
use floe_machines::machines::Maker;
use std::sync::Arc;

/// Room that is reserved for a fork.
pub struct Reserved {
    /// What the plug-in has granted; it is given back when this is dropped.
    pub held: Option<Held>,
    /// Addresses of the hosts that were asked; `None` is this host.
    hosts: Vec<Option<String>>,
    /// For each host, how many clones it may take, or why none.
    clones: Vec<Result<u32, String>>,
    /// This host's resources for its share of the clones.
    pub room: ForClones,
}

impl Reserved {
    /// Whether these are the hosts that were asked, in the same order.
    pub(super) fn is_of(&self, hosts: &[Host]) -> bool {
        let now = hosts.iter().map(Host::url);
        now.eq(self.hosts.iter().map(Option::as_deref))
    }

    /// Passes each host's room to the fork.
    pub fn tell(&self, fork: &mut Fork) {
        for (number, room) in self.clones.iter().enumerate() {
            fork.handle(Event::Room(number, room.clone()));
        }
    }
}

/// Returns the error that no host takes a clone, with the hosts' reasons.
pub(super) fn no_room(fork: &Fork) -> NodeError {
    let refusals: Vec<&str> = fork.refusals().iter().map(|(_, why)| *why).collect();
    refused(
        format!("there is no room for clones: {}", refusals.join("; ")),
        "end machines that are no longer needed (floe ps, floe kill), name other hosts, or insist with --overcommit",
    )
}

impl Forks {
    /// Returns the configuration of a machine or image.
    pub(crate) fn config_of(&self, name: &str) -> Result<MachineConfig, NodeError> {
        match self.inventory.get(name) {
            Ok(entry) => Ok(entry.record().config.clone()),
            Err(missing) => {
                let id = self.images.repo.resolve(name).map_err(|_| missing)?;
                Ok(self.images.repo.manifest(&id)?.config)
            }
        }
    }

    /// Returns how big a clone of a machine or image would be: virtual CPUs, and bytes of memory.
    pub(crate) fn clone_size(&self, name: &str) -> Result<(u32, u64), NodeError> {
        let config = self.config_of(name)?;
        let memory = config
            .memory_bytes_now()
            .unwrap_or(floe_machine::MEMORY_BYTES_DEFAULT);
        Ok((
            config.cpus_now().unwrap_or(1),
            memory.saturating_add(floe_ground::options::STANDBY_BYTES),
        ))
    }

    /// Returns for how many clones of a machine there is room if its guest asks for them.
    pub fn room_for_guests(&self, name: &str) -> Result<u32, NodeError> {
        let config = self.config_of(name)?;
        let hosts: Vec<Host> = self
            .hosts(&self.guest_fork(CLONES_MAX))?
            .into_iter()
            .map(|(_, host)| host)
            .collect();
        let mut fork = Fork::new(CLONES_MAX, hosts.len());
        for (number, room) in self.rooms(hosts.iter()).into_iter().enumerate() {
            let clones = room.and_then(|room| match &hosts[number] {
                Host::Here => self.machines.resources.room_for_clones(&config),
                Host::There(..) => Ok(room.clones),
            });
            fork.handle(Event::Room(number, clones));
        }
        Ok(fork.granted())
    }

    /// Starts QEMUs ahead for the clones of a ticket that a guest has just got, on all cores, since the guest will soon use it. If there
    /// are several hosts, as many are started here as this host will probably get.
    pub fn prepare_for_guest(&self, parent: &Arc<Entry>, clones: u32) {
        let hosts = self.hosts(&self.guest_fork(clones)).unwrap_or_default();
        if hosts.iter().any(|(_, host)| matches!(host, Host::Here)) {
            let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
            let part = clones.div_ceil(hosts.len() as u32);
            self.machines
                .prepare_clones(parent, Maker::Guest, part, cores);
        }
    }

    /// Returns the request for a fork that a guest asks for.
    pub fn guest_fork(&self, clones: u32) -> ForkRequest {
        ForkRequest {
            clones,
            hosts: self.core.options.guest_hosts.clone(),
            insecure: self.core.options.insecure_hosts,
            placement: self.core.options.guest_placement.clone(),
            ..Default::default()
        }
    }

    /// Has the plug-in for guests' forks reserve room for clones. Returns how many it granted, or `None` without a plug-in.
    /// Room that is not claimed (`Guests::reserved`) is given back when it is dropped.
    pub fn reserve_for_guest(
        self: &Arc<Self>,
        name: &str,
        clones: u32,
    ) -> Result<Option<(u32, Reserved)>, NodeError> {
        let request = self.guest_fork(clones);
        if request.placement.is_none() {
            return Ok(None);
        }
        let (names, hosts): (Vec<String>, Vec<Host>) = self.hosts(&request)?.into_iter().unzip();
        let reserved = self.ask_for_room(name, &request, names, &hosts)?;
        let mut fork = Fork::new(clones, hosts.len());
        reserved.tell(&mut fork);
        match fork.granted() {
            0 => Err(no_room(&fork)),
            granted => Ok(Some((granted, reserved))),
        }
    }

    /// Returns the hosts on which the clones of a fork may run, each with the name by which plug-ins know it.
    pub(super) fn hosts(&self, request: &ForkRequest) -> Result<Vec<(String, Host)>, NodeError> {
        let known = known_hosts(&self.core.home)?;
        let listed = |host: &Known| host.name.clone();
        let all = |known: &[Known]| match (&request.placement, known) {
            (None, _) | (_, []) => vec![HERE.to_owned()],
            (Some(_), known) => known.iter().map(listed).collect(),
        };
        let wanted = match request.hosts.is_empty() {
            true => all(&known),
            false => request.hosts.clone(),
        };
        if wanted.len() > FORK_HOSTS_MAX {
            return Err(usage(
                format!("{} hosts", wanted.len()),
                format!("name at most {FORK_HOSTS_MAX}"),
            ));
        }
        let mut hosts: Vec<(String, Host)> = Vec::new();
        for text in &wanted {
            let address = text.trim_end_matches('/');
            let mut named = known.iter();
            let named = named.find(|host| host.name == *text || host.address == address);
            let address = named.map_or(address, |host| host.address.as_str());
            let host = match address {
                HERE => Host::Here,
                there => self.host_there(there, request)?,
            };
            if hosts.iter().any(|(_, known)| known.url() == host.url()) {
                return Err(usage(format!("host {text} is named twice"), "name it once"));
            }
            hosts.push((named.map_or_else(|| text.clone(), listed), host));
        }
        Ok(hosts)
    }

    /// Finds a host by its name or address; it may turn out to be this one.
    fn host_there(&self, text: &str, request: &ForkRequest) -> Result<Host, NodeError> {
        let remote = match self.cluster.find(text) {
            Some(member) if Some(member.address) == self.cluster.own_address() => {
                return Ok(Host::Here);
            }
            Some(member) => self.remote(&format!("https://{}", member.address), None)?,
            None if text.starts_with("http://") && request.insecure => {
                let token = self.hosts_token(request);
                self.remote(text, Some(token.as_deref().unwrap_or_default()))?
            }
            None => return Err(self.no_member(text)),
        };
        let source = self.address_for(&remote)?;
        Ok(Host::There(remote, source))
    }

    /// Returns the error that a host is not in this node's cluster.
    pub(super) fn no_member(&self, host: &str) -> NodeError {
        match self.cluster.own_address() {
            None => refused(
                format!(
                    "host {host}: this node is in no cluster, and without one the machine's memory would cross the network in clear text"
                ),
                "floe cluster init on one host, floe cluster join on the others; or --insecure, on a network that only the hosts are in",
            ),
            Some(_) => refused(
                format!("host {host} is no member of this node's cluster"),
                "see floe cluster members; floe cluster invite here and floe cluster join there make it one",
            ),
        }
    }

    /// Returns another node: with an https address a member of the cluster, otherwise one whose page is asked in clear text
    /// with `token`.
    pub(super) fn remote(&self, url: &str, token: Option<&str>) -> Result<Remote, NodeError> {
        let address = Url::parse(url).ok();
        match (address.filter(|url| url.scheme() == "https"), token) {
            (Some(address), _) => {
                let tls = self.cluster.tls().ok_or_else(|| self.no_member(url))?;
                Remote::member(address, tls)
            }
            (None, Some(token)) => Remote::in_clear_text(url, token),
            (None, None) => Err(self.no_member(url)),
        }
    }

    pub(super) fn hosts_token(&self, request: &ForkRequest) -> Option<String> {
        let own = || self.core.page.as_ref().map(|page| page.token().to_owned());
        request.hosts_token.clone().or_else(own)
    }

    /// Returns the address at which another host can read this node's forks.
    pub(super) fn address_for(&self, remote: &Remote) -> Result<String, NodeError> {
        if remote.is_member() {
            let own = self.cluster.own_address();
            let own = own.ok_or_else(|| self.no_member(remote.url()))?;
            return Ok(format!("floe://{own}{}", serve::PATH));
        }
        let page = self.core.page.as_ref().ok_or_else(|| {
            refused(
                "clones on other hosts read their parent's state through this node's page, and it has none",
                "start the node with --web ADDRESS:PORT",
            )
        })?;
        let mut listen = page.listen();
        if listen.ip().is_unspecified() {
            listen.set_ip(remote.own_address()?);
        } else if listen.ip().is_loopback() && !remote.own_address()?.is_loopback() {
            return Err(refused(
                format!("{} cannot reach this node's page on {listen}", remote.url()),
                "start the node with --web ADDRESS:PORT of a network that both are in",
            ));
        }
        Ok(format!("floe+http://{listen}{}", serve::PATH))
    }

    /// Asks all hosts for their room, and the plug-in how much of it the fork gets.
    pub(super) fn ask_for_room(
        self: &Arc<Self>,
        name: &str,
        request: &ForkRequest,
        names: Vec<String>,
        hosts: &[Host],
    ) -> Result<Reserved, NodeError> {
        let plug_in = plug_in(request.placement.as_deref(), &self.core.home)?;
        let (cpus, memory_bytes) = match request.placement {
            Some(_) => self.clone_size(name)?,
            None => Default::default(),
        };
        let ask = Ask {
            parent: name.to_owned(),
            clones: request.clones,
            cpus,
            memory_bytes,
        };
        let offers: Vec<Offer> = names
            .into_iter()
            .zip(self.rooms(hosts.iter()))
            .map(|(name, room)| Offer { name, room })
            .collect();
        let grant = plug_in.request(&ask, &offers)?;
        let held = match (&request.placement, &grant.ticket) {
            (Some(placement), Some(ticket)) => Some(Held::keep(&self.tickets, placement, ticket)?),
            _ => None,
        };
        let mut clones = grant.clones;
        let room = self.reserve_here(name, request, hosts, &mut clones);
        Ok(Reserved {
            held,
            hosts: hosts
                .iter()
                .map(|host| host.url().map(str::to_owned))
                .collect(),
            clones,
            room,
        })
    }

    /// Reserves this host's resources for the clones that were granted here, or for as many of them as it can.
    fn reserve_here(
        &self,
        name: &str,
        request: &ForkRequest,
        hosts: &[Host],
        clones: &mut [Result<u32, String>],
    ) -> ForClones {
        let here = hosts.iter().position(|host| host.url().is_none());
        let here = here.and_then(|number| clones.get_mut(number));
        // an unknown name is reported when it is forked
        let (Some(here), Ok(config)) = (here, self.config_of(name)) else {
            return ForClones::default();
        };
        // without a plug-in the ledger alone decides; its error names who has reserved what is missing
        let granted = match (&request.placement, &here) {
            (None, _) => request.clones,
            (Some(_), Ok(granted)) => *granted,
            (Some(_), Err(_)) => return ForClones::default(),
        };
        let granted = granted.min(request.clones);
        let (room, why) = loop {
            let (room, why) =
                self.machines
                    .resources
                    .for_clones(name, &config, granted, request.overcommit);
            // QEMUs that wait for runs are ended to make room, unless other hosts may have some
            if why.is_none()
                || hosts.len() > 1
                || !self.machines.end_a_standby(&floe_image::Hash::ZERO)
            {
                break (room, why);
            }
        };
        *here = match (room.len(), why) {
            (0, Some(why)) => Err(why),
            (count, _) => Ok(count),
        };
        room
    }

    /// Asks all hosts for their room at the same time.
    fn rooms<'a>(&self, hosts: impl Iterator<Item = &'a Host>) -> Vec<Result<Room, String>> {
        floe_threads::scope(|scope| {
            let ask = |host: &'a Host| {
                scope.spawn("ask-room", move || match host {
                    Host::Here => self.machines.resources.room(),
                    Host::There(remote, _) => remote.room(),
                })
            };
            let asked: Vec<_> = hosts.map(ask).collect();
            let unasked = || Err("it could not be asked".to_owned());
            asked
                .into_iter()
                .map(|room| room.join().unwrap_or_else(|_| unasked()))
                .collect()
        })
    }

    /// Asks hosts that are known by name for their room.
    pub(crate) fn rooms_of(&self, known: &[Known]) -> Vec<Result<Room, String>> {
        let asked = self.guest_fork(1);
        let host = |known: &Known| match known.address.as_str() {
            HERE => Ok(Host::Here),
            url => self
                .host_there(url, &asked)
                .map_err(|error| error.to_api().to_string()),
        };
        let hosts: Vec<Result<Host, String>> = known.iter().map(host).collect();
        let mut rooms = self.rooms(hosts.iter().flatten()).into_iter();
        let room = |host: &Result<Host, String>| match host {
            Ok(_) => rooms.next().unwrap_or_else(|| Err(String::new())),
            Err(why) => Err(why.clone()),
        };
        hosts.iter().map(room).collect()
    }
}
