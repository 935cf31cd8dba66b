//! The forwarded ports of parked machines. The node keeps their sockets and accepts nothing: connections wait in the kernel's queue,
//! as many as [`WAITING_MAX`], each with as many bytes as the kernel buffers. The first of them wakes the machine, and its QEMU gets
//! the sockets with all that waits. If the machine can't be woken, those that wait are ended, so that nobody waits for ever; who connects
//! soon after that waits until it is tried again, later with each failure (`inventory/asleep.rs`).
//!
//! Whoever has the machine's operation begins and ends the watch of its sockets; for a machine that could not be woken, the thread here
//! begins it once the machine has rested. A connection that comes before the watch has begun (while the machine is still being parked, say)
//! waits for it.

use super::Parks;
use floe_api::{PortForward, Protocol};
use floe_ground::{
    error::{NodeError, at},
    news::News,
    report::Report,
};
use floe_inventory::inventory::{Entry, HeldPort, lifecycle::Task};
use floe_machine::Machine;
use floe_machines::machines::launch::machine_forward;
use parking_lot::Mutex;
use rustix::{
    event::{Timespec, epoll},
    io::Errno,
};
use std::{
    collections::HashMap,
    io,
    net::{TcpListener, UdpSocket},
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Weak},
    time::Duration,
};

/// Most connections that wait for a machine to wake, for each of its ports. What comes beyond that tries again by itself: the kernel
/// does not answer it.
const WAITING_MAX: i32 = 64;
/// How long one look takes at most, and so how late the thread may notice that the node has ended.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// How many ports are read from the kernel at once.
const EVENTS: usize = 64;

/// The ports that are watched.
pub(super) struct Ports {
    epoll: OwnedFd,
    watched: Mutex<Watched>,
}

#[derive(Default)]
struct Watched {
    next: u64,
    /// The machines, by the number of each of their ports.
    machines: HashMap<u64, Weak<Entry>>,
    /// Machines whose ports are to be watched from a time of the node on.
    resting: Vec<(Duration, Weak<Entry>)>,
}

impl Ports {
    pub fn new() -> io::Result<Ports> {
        Ok(Ports {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            watched: Mutex::default(),
        })
    }

    /// Waits for the first connection to any port of a machine.
    fn watch(&self, entry: &Arc<Entry>) {
        let mut watched = self.watched.lock();
        watched.forget(entry);
        for port in &entry.state().held {
            watched.next += 1;
            let number = watched.next;
            let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
            let data = epoll::EventData::new_u64(number);
            let added = match epoll::add(&self.epoll, &port.socket, data, once) {
                Err(Errno::EXIST) => epoll::modify(&self.epoll, &port.socket, data, once),
                added => added,
            };
            match added {
                Ok(()) => drop(watched.machines.insert(number, Arc::downgrade(entry))),
                Err(error) => {
                    tracing::error!(machine = %entry.name, %error, "a port will not wake it");
                }
            }
        }
    }

    /// Waits for the first connection to any port of a machine once this time of the node has come.
    fn watch_from(&self, entry: &Arc<Entry>, until: Duration) {
        let mut watched = self.watched.lock();
        watched.forget(entry);
        watched.resting.push((until, Arc::downgrade(entry)));
    }

    /// Watches the ports of machines that have rested. Returns how long the next of them still rests, or a moment.
    fn watch_rested(&self, now: Duration) -> Duration {
        let mut rested = Vec::new();
        let mut wait = LOOK_MAX;
        self.watched
            .lock()
            .resting
            .retain(|(until, of)| match until.checked_sub(now) {
                Some(rest) if !rest.is_zero() => {
                    wait = wait.min(rest);
                    true
                }
                _ => {
                    rested.extend(of.upgrade());
                    false
                }
            });
        rested.iter().for_each(|entry| self.watch(entry));
        wait
    }

    /// Waits no more, and takes the sockets: they are about to be somebody else's.
    pub(super) fn take(&self, entry: &Arc<Entry>) -> Vec<HeldPort> {
        let held = entry.take_ports();
        for port in &held {
            let _ = epoll::delete(&self.epoll, &port.socket); // one that could not be watched
        }
        self.watched.lock().forget(entry);
        held
    }

    /// Returns machines to whose ports somebody connects, after this time at most. Each is returned once, however many of its ports
    /// that concerns, until its ports are watched again.
    fn wait(&self, long: Duration) -> Vec<Arc<Entry>> {
        let long = Timespec::try_from(long).expect("a second is short enough");
        let mut events = Vec::with_capacity(EVENTS);
        let room = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.epoll, room, Some(&long)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => tracing::error!(%error, "the kernel does not tell who connects"),
        }
        let mut watched = self.watched.lock();
        let mut wanted = Vec::new();
        for event in &events {
            let of = watched.machines.get(&event.data.u64());
            if let Some(entry) = of.and_then(Weak::upgrade) {
                watched.forget(&entry);
                wanted.push(entry);
            }
        }
        wanted
    }
}

impl Watched {
    /// Forgets the ports of a machine, and those of machines that are gone.
    fn forget(&mut self, entry: &Arc<Entry>) {
        let others = |of: &Weak<Entry>| of.upgrade().is_some_and(|of| !Arc::ptr_eq(&of, entry));
        self.machines.retain(|_, of| others(of));
        self.resting.retain(|(_, of)| others(of));
    }
}

impl Parks {
    /// Starts the thread that wakes machines to whose ports somebody connects.
    pub(super) fn start_answering(self: &Arc<Self>) -> Result<(), NodeError> {
        let parks = Arc::downgrade(self);
        let threads = &self.core.threads;
        let started = self.core.started;
        // only the ports are held while it waits, so that the service can go
        Ok(
            threads.keep("park-ports", &self.ports, Duration::ZERO, move |ports| {
                let long = ports.watch_rested(started.elapsed());
                for entry in ports.wait(long) {
                    let Some(parks) = parks.upgrade() else { return };
                    let asleep = entry.clone();
                    let wake = move || parks.wake_for_caller(&asleep);
                    if let Err(error) = floe_threads::spawn("park-wake", wake) {
                        tracing::error!(machine = %entry.name, %error, "no thread to wake it");
                        ports.watch_from(&entry, started.elapsed() + LOOK_MAX);
                    }
                }
            })?,
        )
    }

    fn wake_for_caller(self: Arc<Self>, entry: &Arc<Entry>) {
        // nobody reads it
        let (mut report, _events) = Report::new();
        // who has it may be about to have parked it, to end it, or to wake it
        let Some(operation) = entry.begin_when_free(Task::Wake, self.core.threads.over()) else {
            return; // the next node listens
        };
        if let Err(error) = self.wake_machine(&operation, false, &mut report) {
            tracing::warn!(machine = %entry.name, %error, "somebody connects to it, and it could not be woken");
        }
    }

    /// Takes the forwarded ports of a machine that is about to be parked away from its QEMU, or from its network. A QEMU that waits for its
    /// source gives nothing: its ports are opened anew once it has ended.
    pub(super) fn take_ports(&self, entry: &Entry, vm: &Machine) -> Vec<HeldPort> {
        let record = entry.record();
        if record.network.is_none() && entry.hangs() {
            return Vec::new();
        }
        let socket_of = |forward: &PortForward| match record.network {
            None => machine_forward(forward).and_then(|at| Ok(vm.take_port(&at)?)),
            Some(_) => {
                let socket = self.networks.take_inbound(entry.name.as_str(), forward);
                let closed = || Err(io::ErrorKind::NotConnected.into());
                let socket = socket.unwrap_or_else(closed);
                socket.map_err(at(format!("{forward} was not open")))
            }
        };
        let take = |forward: &PortForward| match socket_of(forward)
            .and_then(|socket| held_port(forward, socket))
        {
            Ok(port) => Some(port),
            Err(error) => {
                tracing::warn!(machine = %entry.name, %forward, %error, "the port is closed for a moment");
                None
            }
        };
        record.forwards.iter().filter_map(take).collect()
    }

    /// Opens the ports that a QEMU lacks because an earlier node was killed while it parked the machine.
    pub fn settle_ports(&self, entry: &Entry, vm: &Machine) {
        let record = entry.record();
        if record.network.is_some() {
            return;
        }
        let there = vm.forwards();
        for forward in &record.forwards {
            let opened = machine_forward(forward).and_then(|at| match there.contains(&at) {
                true => Ok(()),
                false => Ok(vm.add_forward(at)?),
            });
            if let Err(error) = opened {
                let name = entry.name.as_str();
                self.machines.tell_closed(name, forward, &error);
            }
        }
    }

    /// Gives them back to a machine that could not be parked.
    pub(super) fn give_back(&self, entry: &Entry, vm: &Machine, held: Vec<HeldPort>) {
        let place = &entry.record().network;
        for HeldPort { forward, socket } in held {
            let name = entry.name.as_str();
            let given = match place {
                None => {
                    machine_forward(&forward).and_then(|at| Ok(vm.give_port(at, socket.as_fd())?))
                }
                Some(place) => self
                    .networks
                    .open_inbound(name, place, &forward, Some(socket)),
            };
            if let Err(error) = given {
                self.machines.tell_closed(name, &forward, &error);
            }
        }
    }

    /// Listens at the ports of a parked machine, under an operation: those that were taken from its QEMU, and the others anew. What another
    /// node has, or may have, is not woken here, so that nobody waits for that.
    pub(super) fn hold_ports(&self, entry: &Arc<Entry>, mut held: Vec<HeldPort>) {
        if !entry.may_run() {
            return;
        }
        for forward in &entry.record().forwards {
            if held.iter().any(|port| port.forward == *forward) {
                continue;
            }
            match open(forward).and_then(|socket| held_port(forward, socket)) {
                Ok(port) => held.push(port),
                Err(error) => {
                    let (port, why) = (forward.to_string(), error.to_api().to_string());
                    tracing::warn!(machine = %entry.name, port, why, "a port is not open");
                    let news = News::PortCannotWake { port, why };
                    self.core.tell(entry.name.as_str(), &news);
                }
            }
        }
        entry.holds_ports(held);
        let now = self.core.started.elapsed();
        let rests = entry.state().asleep.rests_until(now);
        match rests {
            None => self.ports.watch(entry),
            Some(until) => self.ports.watch_from(entry, until),
        }
    }

    /// Listens again for a machine that an earlier node has parked, and that has no QEMU any more.
    pub fn hold_again(&self, entry: &Arc<Entry>) {
        self.hold_ports(entry, Vec::new());
    }
}

/// Holds a port by its socket.
fn held_port(forward: &PortForward, socket: OwnedFd) -> Result<HeldPort, NodeError> {
    let cannot = || at(format!("cannot listen for {forward}"));
    rustix::io::ioctl_fionbio(&socket, true).map_err(|e| cannot()(e.into()))?;
    if forward.protocol == Protocol::Tcp {
        rustix::net::listen(&socket, WAITING_MAX).map_err(|e| cannot()(e.into()))?;
    }
    Ok(HeldPort {
        forward: forward.clone(),
        socket,
    })
}

fn open(forward: &PortForward) -> Result<OwnedFd, NodeError> {
    let address = (forward.host_address.as_str(), forward.host_port);
    let opened = match forward.protocol {
        Protocol::Tcp => TcpListener::bind(address).map(OwnedFd::from),
        Protocol::Udp => UdpSocket::bind(address).map(OwnedFd::from),
    };
    opened.map_err(at(format!("cannot listen for {forward}")))
}

/// Ends the connections that wait at a port, and forgets its datagrams.
pub(super) fn turn_away(port: &HeldPort) {
    for _ in 0..WAITING_MAX {
        let gone = match port.forward.protocol {
            Protocol::Tcp => rustix::net::accept(&port.socket).map(drop),
            Protocol::Udp => {
                let flags = rustix::net::RecvFlags::DONTWAIT;
                rustix::net::recv(&port.socket, &mut [0u8; 1], flags).map(drop)
            }
        };
        if gone.is_err() {
            return; // nobody waits any more
        }
    }
}
