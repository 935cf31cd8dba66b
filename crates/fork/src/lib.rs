//! `fork`: makes n clones of a running machine at one instant; the machine goes on (SnowFlock, section 4).
//!
//! ```text
//! stop, device state, freeze disks, copy pages, cont     the parent's pause, as a capture's
//! hash on all cores -> manifest, tables                  `layer`: an image that is in memory
//! n QEMUs on that image                                  `clones`; `decide` says which one runs where
//! pack, publish, put the parent's disks on it            `store`: later, if clones still need it; `when` says when
//! ```
//! Pages that are free and zero at the fork have no hash in the manifest, so nobody ever fetches them: those that a guest zeroes when it
//! frees them, and of a machine that was booted also those that it reports or gives to its balloon, which are holes of its memory then.
//! That is what the paper achieves by changing the guest. In a machine that was started from an image, a page that was given back is the
//! image's again, and a clone that fills it fetches what the image has there; a guest that zeroes what it frees is spared that.
//! Every clone gets a new machine-generation id from QEMU, from which its kernel reseeds its random numbers.
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "a test may ask whether a file is there"
    )
)]

mod build;
mod clones;
mod decide;
mod forked;
mod hosts;
mod instant;
mod kept;
mod kin;
mod known;
mod layer;
mod layers;
mod lent;
mod multicast;
mod network;
mod orders;
mod owed;
mod parents;
mod record;
mod records;
mod serve;
mod shares;
mod start;
mod store;
mod tickets;
mod unneeded;
mod when;

pub use forked::Forked;
pub use hosts::Reserved;
pub use instant::no_parent;
pub use kept::Keeping;
pub use layers::Layers;
pub use orders::is_ordered_by;
pub use serve::{PATH, Way, router};

use decide::{Fork, State};
use floe_api::{
    CLONES_MAX, CloneInfo, CloneState, ExpandReport, ExpandRequest, FORK_TTL_S_MAX, ForkReport,
    ForkRequest, InEnsemble, Limits, NetworkRequest, Outcome, PortForward,
};
use floe_ground::{
    caller::Visible,
    error::{NodeError, usage},
    names::MachineName,
    news::News,
    report::Report,
    time::unix_now,
};
use floe_hosts::{
    cluster::{Cluster, Remote},
    placement::{Held, Tickets},
};
use floe_image::Hash;
use floe_inventory::{
    core::Core,
    inventory::{Entry, Inventory, record::Attachment},
    network::Networks,
    resources::ForClones,
};
use floe_library::images::{FORK_LABEL, ImageUser, Images, sources::Found};
use floe_machines::{
    capture::Captures,
    machines::{Kin, Machines, Maker},
};
use floe_store::StoreError;
use floe_threads::Cancel;
use hosts::no_room;
use instant::{Instant, descriptor_bytes};
use lent::Lent;
use parking_lot::Mutex;
use record::ForkRecord;
use records::Records;
use start::Start;
use std::sync::{Arc, Weak};
use unneeded::Unneeded;

/// The warning for a fork with such a host.
const IN_CLEAR_TEXT: &str = "memory of the machine and the page's token cross the network in clear text: whoever can listen there \
    has both; floe cluster init makes it safe";

/// Where a clone may run.
enum Host {
    /// On this node.
    Here,
    /// On another node, which reads the parent's state at this address.
    There(Remote, String),
}

impl Host {
    /// Whether its orders and the state that it reads cross the network unencrypted.
    fn is_in_clear_text(&self) -> bool {
        matches!(self, Host::There(remote, _) if !remote.is_member())
    }

    fn url(&self) -> Option<&str> {
        match self {
            Host::Here => None,
            Host::There(remote, _) => Some(remote.url()),
        }
    }
}

/// A clone's name, place and ports, where the service that wants it has decided them (`ensemble`).
#[derive(Clone, Debug)]
pub struct Planned {
    /// Its name.
    pub name: MachineName,
    /// Its place in a network.
    pub place: Attachment,
    /// Ports of this host that lead to it.
    pub forwards: Vec<PortForward>,
    /// The ensemble that it is a part of.
    pub ensemble: InEnsemble,
}

/// What a service that needs clones says of them, beside a user's request: `pool`, `ensemble` and calls from inside a guest make forks
/// for purposes of their own.
#[derive(Default)]
pub struct Purpose<'a> {
    /// The ticket whose id becomes the fork's, so that a clone knows for whom it was made.
    pub ticket: Option<&'a str>,
    /// Room that was reserved already.
    pub reserved: Option<Reserved>,
    /// Called with the fork's id once the fork has its record.
    pub begun: Option<&'a (dyn Fn(&str) + Sync)>,
    /// What the clones' names begin with, instead of the name of what is forked.
    pub called: Option<MachineName>,
    /// What each clone is to be, by its number from 1, if that is decided. They run on this host.
    pub planned: &'a [Planned],
    /// The network that an image's clones get. Those of a machine are in its own.
    pub network: Option<&'a NetworkRequest>,
    /// The image to clone if it is not in this node's repository; what is forked is called by its id then.
    pub found: Option<&'a Found>,
}

/// A requested fork for which there is room: what a user and another service want of it, and what it is made of.
struct Asked<'a> {
    request: &'a ForkRequest,
    purpose: &'a Purpose<'a>,
    instant: &'a Instant,
    parent: &'a MachineName,
    hosts: &'a [Host],
    /// This host's resources for its share of the clones.
    room: &'a ForClones,
}

/// The service that forks machines. Locks: those of the records, the layers, the tickets and the images that may go; none is held while
/// another of them is taken. That of the records is held while one is written to the disk.
pub struct Forks {
    core: Arc<Core>,
    images: Arc<Images>,
    networks: Arc<Networks>,
    cluster: Arc<Cluster>,
    inventory: Arc<Inventory>,
    machines: Arc<Machines>,
    captures: Arc<Captures>,
    /// The forks that have clones.
    records: Records,
    /// The forks that are not stored yet.
    layers: Layers,
    /// What placement plug-ins granted to forks.
    tickets: Arc<Tickets>,
    /// The forks' images in the repository, until nobody needs them.
    unneeded: Mutex<Unneeded>,
    /// The images of machines that move to another node, which reads them as it reads a fork's.
    pub lent: Lent,
}

/// Where a forked image's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unstored {
    /// Still with this node or its supervisor.
    Kept,
    /// In the repository.
    Stored,
    /// Lost with the node that had it.
    Lost,
    /// Nobody knows: what the earlier node left can't be read now.
    Unread,
}

impl ImageUser for Forks {
    fn user_of(&self, image: &Hash) -> Option<String> {
        let records = self.records.user_of(image);
        records.or_else(|| self.layers.user_of(image))
    }

    fn images(&self) -> Vec<Hash> {
        self.layers.bases()
    }

    fn released(&self, image: &Hash) {
        self.drop_fork_image(image);
    }
}

impl Kin for Forks {
    fn removed(&self, name: &str) -> Result<(), NodeError> {
        self.machines.drop_blanks(name);
        self.records.note_missing(name, &[]);
        let struck = self.records.strike(name);
        self.tickets.look();
        struck.map(drop)
    }

    fn knows(&self, name: &str) -> bool {
        let of = |fork: &record::ForkRecord| {
            fork.parent == name || fork.clones.iter().any(|clone| clone.name == name)
        };
        self.records.all().iter().any(of)
    }
}

impl Forks {
    /// Opens the service, over what captures need too, with the forks and tickets that an earlier node left.
    pub fn open(
        captures: Arc<Captures>,
        networks: Arc<Networks>,
        cluster: Arc<Cluster>,
        layers: Layers,
    ) -> Result<Arc<Forks>, NodeError> {
        let home = &captures.core.home;
        let forks = Arc::new(Forks {
            records: Records::open(home)?,
            tickets: Arc::new(Tickets::open(home)?),
            unneeded: Mutex::new(Unneeded::of(&captures.images.repo)?),
            core: captures.core.clone(),
            images: captures.images.clone(),
            networks,
            cluster,
            inventory: captures.inventory.clone(),
            machines: captures.machines.clone(),
            captures,
            layers,
            lent: Lent::default(),
        });
        let user: Weak<Forks> = Arc::downgrade(&forks);
        forks.images.ask_too(user.clone());
        forks.machines.tell_kin(user);
        Ok(forks)
    }

    /// Whether a fork is one of this machine's.
    pub fn is_fork_of(&self, name: &str, fork: &str) -> bool {
        self.records
            .get(fork)
            .is_some_and(|record| record.parent == name)
    }

    /// Whether any fork is in memory only.
    pub fn any_unstored(&self) -> bool {
        !self.layers.is_empty()
    }

    /// Whether a fork of this machine is in memory only.
    pub fn any_unstored_of(&self, name: &str) -> bool {
        self.layers.any_of(name)
    }

    /// Has the memory of a machine's forks stored (that of the fork that made it, and of those that it is the parent of) and waits until it
    /// is. Returns an error once `cancel` is thrown.
    pub fn settle_all_of(&self, entry: &Entry, cancel: &Cancel) -> Result<(), NodeError> {
        let cloned_from = || {
            let record = entry.record();
            record.rests_on_this_node().then_some(record.image)
        };
        self.layers.settle(entry.name.as_str(), cloned_from, cancel)
    }

    /// Returns where a fork's memory is, if its machines' records say that it was not stored.
    pub fn find_unstored(&self, image: &Hash) -> Unstored {
        if self.layers.get(image).is_some() {
            return Unstored::Kept;
        }
        match self.is_stored(image) {
            Ok(true) if !self.layers.is_lost(image) => Unstored::Stored,
            Ok(_) => {
                self.layers.mark_lost(*image); // the node may have crashed before the fork had its own record
                match self.layers.any_unread() {
                    true => Unstored::Unread,
                    false => Unstored::Lost,
                }
            }
            Err(error) => {
                tracing::error!(fork = image.short(), %error, "nobody knows whether it is stored");
                Unstored::Unread
            }
        }
    }

    /// Whether the repository has a fork's image; an error if that can't be found out.
    fn is_stored(&self, image: &Hash) -> Result<bool, NodeError> {
        match self.images.repo.manifest(image) {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a clone of this name runs on another host.
    pub fn is_away(&self, name: &str) -> bool {
        self.records.away(name).is_some()
    }

    /// Forks a running machine, or starts clones of an image that holds one.
    pub fn fork(
        self: &Arc<Self>,
        name: &Visible<String>,
        request: &ForkRequest,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        self.fork_for(name, request, Purpose::default(), report)
    }

    /// Does the same for another service, with what that needs beside a user's request.
    pub fn fork_for(
        self: &Arc<Self>,
        name: &str,
        request: &ForkRequest,
        mut purpose: Purpose<'_>,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        if request.clones == 0 || request.clones > CLONES_MAX {
            return Err(usage(
                format!("{} clones", request.clones),
                format!("ask for 1 to {CLONES_MAX}"),
            ));
        }
        check_ttl(request.ttl_s)?;
        self.core.check_passable()?;
        let (names, hosts): (Vec<String>, Vec<Host>) = self.hosts(request)?.into_iter().unzip();
        if hosts.iter().any(Host::is_in_clear_text) {
            report.note(IN_CLEAR_TEXT);
        }
        let mut fork = Fork::new(request.clones, hosts.len());
        // asked before the machine is stopped, so that a fork without room does not pause its parent
        let reserved = match purpose.reserved.take() {
            Some(reserved) if reserved.is_of(&hosts) => reserved,
            // the list of hosts has changed: the earlier reservation is given back
            _ => self.ask_for_room(name, request, names, &hosts)?,
        };
        reserved.tell(&mut fork);
        if fork.granted() == 0 {
            return Err(no_room(&fork));
        }
        report.stage("hosts")?;
        let (instant, parent) = match purpose.found {
            Some(found) => Instant::of_image(found.clone(), name),
            None => self.instant(name, request.hooks_s, report)?,
        };
        let parent = purpose.called.take().unwrap_or(parent);
        let asked = Asked {
            request,
            purpose: &purpose,
            instant: &instant,
            parent: &parent,
            hosts: &hosts,
            room: &reserved.room,
        };
        let done = self.make_clones(&asked, &mut fork, reserved.held, report);
        self.machines.end_left_blanks(parent.as_str());
        let pause_ms = instant.pause_ms;
        // a machine that was forked will probably be forked again, into as many clones
        let here = |clone: &&CloneInfo| clone.host.is_none() && clone.state == CloneState::Running;
        let again = done
            .as_ref()
            .map_or(0, |report| report.clones.iter().filter(here).count());
        let maker = purpose.ticket.map_or(Maker::User, |_| Maker::Guest);
        let again = (maker, again as u32);
        // even if there are no clones, the copied state is stored or dropped
        self.store_later(instant.layer, instant.parent, request.settle, again);
        Ok(Outcome {
            fork: Some(done?),
            pause_ms,
            ..Default::default()
        })
    }

    /// Creates a fork's clones, and returns what became of each.
    fn make_clones(
        self: &Arc<Self>,
        asked: &Asked<'_>,
        fork: &mut Fork,
        mut held: Option<Held>,
        report: &mut Report,
    ) -> Result<ForkReport, NodeError> {
        let (parent, instant, request) = (asked.parent, asked.instant, asked.request);
        let taken = self.inventory.names().into_iter();
        let mut record = self.records.begin(
            asked.purpose.ticket,
            parent,
            instant.found.id,
            request.clones,
            unix_now(),
            taken,
        )?;
        let share = shares::note(asked, &mut record, self.core.options.guest_clones);
        let names = asked.purpose.planned.iter();
        let names = names.map(|one| one.name.to_string());
        self.records.call(&mut record, names);
        let id = record.id.clone();
        if let Some(begun) = asked.purpose.begun {
            begun(&id);
        }
        let clones = self
            .begin_clones(
                asked,
                fork,
                &mut record,
                share.as_ref(),
                held.as_mut(),
                report,
            )
            .inspect_err(|_| {
                self.records.forget(&id);
                self.share_again(record.shares_limits());
            })?;
        record
            .clones
            .retain_mut(|clone| match fork.state(clone.number) {
                Some(State::Running(host)) => {
                    clone.host = asked.hosts[*host].url().map(str::to_owned);
                    true
                }
                _ => false,
            });
        let running = record.clones.len() as u32;
        let shares = record.shares_limits().map(str::to_owned);
        let multicast = record.multicast.filter(|_| record.has_clones_away());
        if let Err(error) = self.records.finish(record) {
            // the clones run, and ending them would lose more
            tracing::error!(fork = id, %error, "a node that starts here later will not know of these clones");
        }
        self.share_again(shares.as_deref());
        self.records.note_missing(parent.as_str(), &clones);
        let _ = report.stage("clones"); // it is too late to cancel
        let asked = request.clones;
        let news = News::Forked { running, asked };
        self.core.tell(parent.as_str(), &news);
        Ok(ForkReport {
            id,
            parent: parent.to_string(),
            image: instant.found.id.to_string(),
            asked: request.clones,
            granted: fork.granted(),
            running,
            descriptor_bytes: descriptor_bytes(instant),
            ticket: held.as_ref().map(Held::name),
            dirty_chunks: instant.layer.as_ref().map_or(0, |layer| layer.ram_chunks),
            multicast,
            clones,
        })
    }

    /// Starts the clones of a fork that has its record.
    fn begin_clones(
        self: &Arc<Self>,
        asked: &Asked<'_>,
        fork: &mut Fork,
        record: &mut ForkRecord,
        share: Option<&Result<Limits, String>>,
        held: Option<&mut Held>,
        report: &mut Report,
    ) -> Result<Vec<CloneInfo>, NodeError> {
        let (hosts, request) = (asked.hosts, asked.request);
        if let Some(held) = held {
            held.of_fork(&record.id)?;
        }
        if hosts.iter().any(|host| host.url().is_some()) {
            let in_clear_text = hosts.iter().any(Host::is_in_clear_text);
            record.hosts_token = self.hosts_token(request).filter(|_| in_clear_text);
            record.multicast = self.open_multicast(request.multicast, hosts, record);
            // after a crash during this, the clones' token must still open their parent's state
            self.records.save(record.clone())?;
        }
        let left = |_: &NodeError| {
            let clones = record.clones.iter();
            clones.for_each(|clone| self.networks.leave_any(&clone.name));
        };
        let planned = asked.purpose.planned;
        let places = match planned.is_empty() {
            true => self.places(asked, record).inspect_err(left)?,
            false => planned.iter().map(|one| one.place.clone()).collect(),
        };
        let start = Start {
            asked,
            record,
            places: &places,
            loaded: &Mutex::default(),
            share,
        };
        let clones = self.start_clones(fork, &start, report);
        self.leave_vacant(record, &places, fork);
        clones
    }

    /// Has another host wait for the clones of a fork that run there, and bring them to their size.
    pub fn expand_away(&self, host: &str, request: &ExpandRequest) -> Result<ExpandReport, String> {
        let fork = self.records.get(&request.fork);
        let token = fork.and_then(|fork| fork.hosts_token);
        let remote = self.remote(host, token.as_deref());
        let remote = remote.map_err(|error| error.to_api().to_string())?;
        remote.expand(request)
    }

    /// Whether anybody needs a fork's image, or may: a machine whose record can't be read.
    fn is_needed(&self, id: &Hash) -> bool {
        self.images.user_of(id).is_some()
            || self.layers.get(id).is_some()
            || self.inventory.any_left_alone()
    }

    /// Removes a fork's image if nobody needs it any more.
    pub(crate) fn drop_fork_image(&self, id: &Hash) {
        if self.is_needed(id) {
            return;
        }
        let Ok(manifest) = self.images.repo.manifest(id) else {
            return;
        };
        if !manifest.config.labels.contains_key(FORK_LABEL) || self.images.may_have_name(id) {
            return;
        }
        match self.machines.under_disks() {
            Ok(under) if !under.contains(id) => {}
            Ok(_) => return, // the record of a machine whose disks were put onto it does not say so yet
            Err(error) => {
                return tracing::warn!(image = id.short(), %error, "a fork's image stays until it is known what disks stand on");
            }
        }
        match self.images.discard(id) {
            Ok(bytes) => tracing::info!(image = id.short(), bytes, "a fork's image is gone"),
            Err(error) => tracing::warn!(image = id.short(), %error, "a fork's image stays"),
        }
    }
}

/// Refuses a time to live that can't be meant.
fn check_ttl(ttl_s: Option<u64>) -> Result<(), NodeError> {
    match ttl_s {
        Some(s) if s == 0 || s > FORK_TTL_S_MAX => Err(usage(
            format!("a time to live of {s} s"),
            format!("clones live for 1 to {FORK_TTL_S_MAX} s, or for ever if none is given"),
        )),
        _ => Ok(()),
    }
}
