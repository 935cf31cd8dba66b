//! A host's membership in a multicast group: one thread receives, keeps what others asked for, and asks for what is wanted
//! here.

use std::collections::HashMap;
use std::io;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use floe_image::datagram::{DATAGRAM_BYTES_MAX, Datagram, GroupKey, GroupSealer};
use floe_image::{Hash, Kind};
use floe_store::Cache;
use parking_lot::Mutex;

use super::Invitation;
use super::socket::{Bell, asking_socket, group_socket, is_passing};
use crate::SourceError;
use crate::multicast::protocol::{Item, Receiver, ReceiverStats};

/// How many datagrams are received before requests are sent. A whole socket buffer of them would keep requests waiting.
const AT_A_TIME: usize = 256;
/// Shortest time to wait for a guest's page before it is asked for by unicast too.
const HEDGE_MIN: Duration = Duration::from_millis(10);
/// Longest such time.
const HEDGE_MAX: Duration = Duration::from_millis(100);

/// How long a read that no guest waits for may make no progress before it goes on by unicast: long enough for several requests.
/// If it were short, all receivers of a merely slow server would load the same node by the more expensive way.
const PROGRESS_MAX: Duration = Duration::from_millis(1500);
/// The same while it isn't known whether answers arrive at all.
const PROGRESS_IN_DOUBT_MAX: Duration = Duration::from_millis(300);

/// An item for a read that waits for it.
pub(super) type Parcel = (Kind, Hash, Arc<[u8]>);

/// A host in a group. It leaves when this is dropped.
///
/// Cost: one thread, and at most 4 MiB each of socket buffer and of incomplete items.
pub struct Group {
    shared: Arc<Shared>,
    described: String,
}

struct Shared {
    cache: Arc<Cache>,
    state: Mutex<State>,
    bell: Bell,
    started: Instant,
    /// How many datagrams of the server were received.
    heard: AtomicU64,
    /// How many datagrams were received that no member of the group sent.
    forged: AtomicU64,
    ended: AtomicBool,
}

struct State {
    receiver: Receiver,
    waiting: HashMap<Hash, Vec<(u64, mpsc::Sender<Parcel>)>>,
    readers: u64,
}

/// A read that waits for items, until this is dropped.
pub(super) struct Waiting<'a> {
    group: &'a Group,
    reader: u64,
    wants: Vec<Hash>,
    pub parcels: mpsc::Receiver<Parcel>,
    heard_before: u64,
}

impl Group {
    /// Joins a group. Items that nobody here waits for go into `cache`.
    pub fn join(invitation: &Invitation, cache: Arc<Cache>) -> Result<Group, SourceError> {
        let described = format!("multicast {} of {}", invitation.group, invitation.server);
        let fail = |error: io::Error| SourceError::Unsupported {
            at: described.clone(),
            reason: error.to_string(),
        };
        if !invitation.group.ip().is_multicast() {
            return Err(fail(io::Error::other("it is no group's address")));
        }
        let (asking, own) = asking_socket(invitation.server).map_err(fail)?;
        let group = group_socket(invitation.group, own).map_err(fail)?;
        // A node that was restarted is another receiver.
        let receiver = Receiver::new(rand::random(), 0);
        let shared = Arc::new(Shared {
            cache,
            state: Mutex::new(State {
                receiver,
                waiting: HashMap::new(),
                readers: 0,
            }),
            bell: Bell::new().map_err(fail)?,
            started: Instant::now(),
            heard: AtomicU64::new(0),
            forged: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        });
        let (works, key) = (shared.clone(), invitation.key);
        let shown = described.clone();
        let receives = floe_threads::spawn("mcast-receive", move || {
            if let Err(error) = works.work(&group, &asking, &key) {
                tracing::warn!(%error, group = shown, "multicast ended; it goes on by unicast");
            }
            works.ended.store(true, Relaxed);
        });
        receives.map_err(|error| fail(error.into()))?;
        Ok(Group { shared, described })
    }

    /// Returns what was received so far.
    pub fn stats(&self) -> ReceiverStats {
        self.shared.state.lock().receiver.stats()
    }

    /// Returns how many datagrams came from no member of the group, or made no sense.
    pub fn forged(&self) -> u64 {
        self.shared.forged.load(Relaxed)
    }

    /// Returns whether multicast arrives here, as far as is known.
    pub fn passes(&self) -> bool {
        !self.shared.ended.load(Relaxed) && self.shared.state.lock().receiver.is_open()
    }

    /// Returns a description of the group and its server, for messages.
    pub(super) fn describe(&self) -> &str {
        &self.described
    }

    /// Asks for an item that nobody waits for, if multicast didn't arrive and it is time to try it again.
    pub(super) fn try_again(&self, (kind, hash): &(Kind, Hash)) {
        let now = self.shared.started.elapsed();
        let mut state = self.shared.state.lock();
        let asks = state.receiver.try_again(now, *kind, hash);
        drop(state);
        if asks {
            self.shared.bell.ring();
        }
    }

    /// Returns how long to wait for the next item.
    pub(super) fn patience(&self, demand: bool) -> Duration {
        let state = self.shared.state.lock();
        match (demand, state.receiver.is_sure()) {
            (true, _) => state.receiver.hedge(HEDGE_MIN, HEDGE_MAX),
            (false, true) => PROGRESS_MAX,
            (false, false) => PROGRESS_IN_DOUBT_MAX,
        }
    }

    /// Asks for items; they come through the returned [`Waiting`].
    pub(super) fn want(&self, wants: &[(Kind, Hash)], demand: bool) -> Waiting<'_> {
        let (tell, parcels) = mpsc::channel();
        let mut state = self.shared.state.lock();
        state.readers += 1;
        let reader = state.readers;
        for (kind, hash) in wants {
            state.receiver.want(*kind, hash, demand);
            let waiting = state.waiting.entry(*hash).or_default();
            waiting.push((reader, tell.clone()));
        }
        drop(state);
        let heard_before = self.shared.heard.load(Relaxed);
        self.shared.bell.ring();
        Waiting {
            group: self,
            reader,
            wants: wants.iter().map(|(_, hash)| *hash).collect(),
            parcels,
            heard_before,
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.shared.ended.store(true, Relaxed);
        self.shared.bell.ring();
    }
}

impl Waiting<'_> {
    /// Notes that the read waited in vain. Returns whether multicast is given up now, because the server was silent too often.
    pub fn gave_up(&self) -> bool {
        let shared = &self.group.shared;
        if shared.heard.load(Relaxed) != self.heard_before {
            return false;
        }
        let now = shared.started.elapsed();
        shared.state.lock().receiver.unanswered(now)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.group.shared.state.lock();
        for hash in &self.wants {
            let Some(waiting) = state.waiting.get_mut(hash) else {
                continue; // it has arrived
            };
            waiting.retain(|(reader, _)| *reader != self.reader);
            if waiting.is_empty() {
                state.waiting.remove(hash);
                state.receiver.forget(hash);
            }
        }
    }
}

impl Shared {
    fn work(&self, group: &UdpSocket, asking: &UdpSocket, key: &GroupKey) -> io::Result<()> {
        let mut buffer = [0; DATAGRAM_BYTES_MAX + 1];
        let mut sealer = GroupSealer::new(*key, rand::random());
        while !self.ended.load(Relaxed) {
            // First receive: it may be just what would be asked for.
            let more = self.receive(group, key, &mut buffer)?;
            let (asks, wake) = {
                let mut state = self.state.lock();
                let asks = state.receiver.asks(self.started.elapsed());
                (asks, state.receiver.wake())
            };
            for ask in asks {
                let Some(sealed) = sealer.seal(&ask.encode()) else {
                    return Err(io::Error::other("the numbers of its datagrams are used up"));
                };
                match asking.send(&sealed) {
                    Ok(_) => {}
                    // The same as a datagram that is lost on the way.
                    Err(error) if is_passing(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            if !more {
                let wake = wake.map(|at| at.saturating_sub(self.started.elapsed()));
                self.bell.wait(group, wake)?;
            }
        }
        Ok(())
    }

    /// Receives datagrams; returns whether there may be more.
    fn receive(&self, group: &UdpSocket, key: &GroupKey, buffer: &mut [u8]) -> io::Result<bool> {
        for _ in 0..AT_A_TIME {
            let length = match group.recv_from(buffer) {
                Ok((length, _)) => length,
                Err(error) if is_passing(&error) => return Ok(false),
                Err(error) => return Err(error),
            };
            let opened = key.open(&buffer[..length]).unwrap_or_default();
            let Ok(Datagram::Piece(piece)) = Datagram::decode(&opened) else {
                self.forged.fetch_add(1, Relaxed);
                continue;
            };
            self.heard.fetch_add(1, Relaxed);
            let (item, waiting) = {
                let mut state = self.state.lock();
                let item = state.receiver.piece(self.started.elapsed(), &piece);
                let waiting = item
                    .as_ref()
                    .and_then(|item| state.waiting.remove(&item.hash));
                (item, waiting)
            };
            if let Some(item) = item {
                self.deliver(item, waiting.unwrap_or_default());
            }
        }
        Ok(true)
    }

    /// Gives an item to the reads that wait for it. Without any it goes into the cache, where the next read looks first.
    fn deliver(&self, item: Item, waiting: Vec<(u64, mpsc::Sender<Parcel>)>) {
        let bytes: Arc<[u8]> = item.bytes.into();
        let give = |waiting: Vec<(u64, mpsc::Sender<Parcel>)>| {
            let mut taken = false;
            for (_, tell) in waiting {
                taken |= tell.send((item.kind, item.hash, bytes.clone())).is_ok();
            }
            taken
        };
        if give(waiting) {
            return; // those reads keep it
        }
        if !self.cache.contains(item.kind, &item.hash)
            && let Err(error) = self.cache.put_item(item.kind, &item.hash, &bytes, None)
        {
            tracing::debug!(%error, "what was overheard is not kept");
        }
        // A read that began to want it meanwhile did not find it in the cache yet.
        let mut state = self.state.lock();
        if let Some(waiting) = state.waiting.remove(&item.hash) {
            state.receiver.forget(&item.hash);
            give(waiting);
        }
    }
}
