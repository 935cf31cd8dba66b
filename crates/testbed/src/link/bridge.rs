//! Two namespaces joined by a pair of TUN devices, with a [`Link`] in each direction.
//!
//! There is one thread per direction: it reads what its device sends, asks the link when each packet arrives, and writes
//! the packet to the other device at that time. A packet's time is taken when it is read and the rate is kept in virtual
//! time, so if the thread is late (by tens of microseconds), that adds only to the delay, never to the rate.
use super::{Link, MTU, Namespace, Shape, Verdict, sys};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Instant;

/// The last stretch before a packet is due, in nanoseconds, is spent spinning, because waking up from sleep takes about
/// this long.
const SPIN_NS: u64 = 30_000;

/// How often an idle thread checks whether it should end, in nanoseconds.
const STOP_CHECK_NS: u64 = 100_000_000;

/// Most packets that are read at once before due ones are written.
const READ_BURST: usize = 64;

/// Packets that the kernel may buffer while the thread is not scheduled; enough for 20 ms of 10 Gbit/s.
const DEVICE_QUEUE_PACKETS: usize = 16_384;

/// Most links between the same two namespaces: each has a number, which is in its device's name and its addresses.
const NUMBER_MAX: u8 = 9;

/// Why two namespaces could not be joined.
#[derive(Debug, thiserror::Error)]
#[error(
    "the emulated link could not be set up: {0}; it needs root, /dev/net/tun and `ip` (Debian package iproute2)"
)]
pub struct BridgeError(#[from] io::Error);

/// Counters of one direction.
#[derive(Debug, Default)]
pub struct Counters {
    bytes: AtomicU64,
    packets: AtomicU64,
    lost: AtomicU64,
    no_room: AtomicU64,
}

/// The values of [`Counters`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Traffic {
    /// Bytes of IP packets that arrived.
    pub bytes_delivered: u64,
    /// Packets that arrived.
    pub packets_delivered: u64,
    /// Packets that were lost because of the configured loss.
    pub lost: u64,
    /// Packets that were dropped because the queue was full.
    pub no_room: u64,
}

impl Counters {
    /// Returns the current values.
    pub fn read(&self) -> Traffic {
        Traffic {
            bytes_delivered: self.bytes.load(Relaxed),
            packets_delivered: self.packets.load(Relaxed),
            lost: self.lost.load(Relaxed),
            no_room: self.no_room.load(Relaxed),
        }
    }
}

/// Two namespaces, their addresses, and the link between them. Dropping this removes all of it.
pub struct Bridge {
    /// The two ends.
    pub ends: Ends,
    /// From `near` to `far`.
    pub up: Arc<Counters>,
    /// From `far` to `near`.
    pub down: Arc<Counters>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// The two ends of a link.
pub struct Ends {
    /// The user's end, from which `up` leaves.
    pub near: Namespace,
    /// The server's end, from which `down` leaves.
    pub far: Namespace,
}

impl Bridge {
    /// The address of the near end.
    pub const NEAR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
    /// The address of the far end.
    pub const FAR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

    /// Creates two namespaces and joins them: `up` shapes what the near end sends, `down` what it receives.
    pub fn new(up: Shape, down: Shape) -> Result<Bridge, BridgeError> {
        let ends = Ends {
            near: Namespace::new()?,
            far: Namespace::new()?,
        };
        Bridge::between(ends, 0, up, down)
    }

    /// Adds another link between the same two namespaces, with this number (1 to 9, each once). Its far end has the
    /// address [`Bridge::far_of`].
    pub fn beside(&self, number: u8, up: Shape, down: Shape) -> Result<Bridge, BridgeError> {
        if !(1..=NUMBER_MAX).contains(&number) {
            let reason = format!("a link beside another has a number from 1 to {NUMBER_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason).into());
        }
        let ends = Ends {
            near: self.ends.near.another()?,
            far: self.ends.far.another()?,
        };
        Bridge::between(ends, number, up, down)
    }

    /// Returns the far end's address on the link with this number; [`Bridge::new`] makes number 0.
    pub fn far_of(number: u8) -> Ipv4Addr {
        let [a, b, _, d] = Bridge::FAR.octets();
        Ipv4Addr::new(a, b, number, d)
    }

    fn between(ends: Ends, number: u8, up: Shape, down: Shape) -> Result<Bridge, BridgeError> {
        let [a, b, _, d] = Bridge::NEAR.octets();
        let near = attach(&ends.near, number, Ipv4Addr::new(a, b, number, d))?;
        let far = attach(&ends.far, number, Bridge::far_of(number))?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut bridge = Bridge {
            ends,
            up: Arc::default(),
            down: Arc::default(),
            stop,
            threads: Vec::new(),
        };
        let directions = [
            ("link-up", &near, &far, up, bridge.up.clone(), 1),
            ("link-down", &far, &near, down, bridge.down.clone(), 2),
        ];
        for (name, from, to, shape, counters, seed) in directions {
            let direction = Direction {
                from: from.try_clone()?,
                to: to.try_clone()?,
                link: Link::new(shape, seed),
                counters,
                stop: bridge.stop.clone(),
            };
            bridge.threads.push(
                std::thread::Builder::new()
                    .name(name.into())
                    .spawn(move || direction.run())?,
            );
        }
        Ok(bridge)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Creates a TUN device with this number in `namespace`, enables it and sets its address.
fn attach(namespace: &Namespace, number: u8, address: Ipv4Addr) -> io::Result<File> {
    let device = format!("floe{number}");
    let tun = namespace.run(|| sys::open_tun(&device))??;
    namespace.ip(&format!(
        "link set {device} mtu {MTU} txqueuelen {DEVICE_QUEUE_PACKETS}"
    ))?;
    namespace.ip(&format!("addr add {address}/30 dev {device}"))?;
    namespace.ip(&format!("link set {device} up"))?;
    Ok(tun)
}

/// The work of one thread.
struct Direction {
    from: File,
    to: File,
    link: Link<Box<[u8]>>,
    counters: Arc<Counters>,
    stop: Arc<AtomicBool>,
}

impl Direction {
    fn run(mut self) {
        sys::exact_timers();
        let epoch = Instant::now();
        let now = || epoch.elapsed().as_nanos() as u64;
        let mut buffer = [0u8; 2 * MTU];
        while !self.stop.load(Relaxed) {
            self.take_in(&now, &mut buffer);
            while let Some((_, packet)) = self.link.arrival(now()) {
                // The device refuses packets while its end is down or its queue is full; the packet is then lost as on a
                // real wire.
                if self.to.write(&packet).is_ok() {
                    self.counters.bytes.fetch_add(packet.len() as u64, Relaxed);
                    self.counters.packets.fetch_add(1, Relaxed);
                }
            }
            let wait = self.link.next_arrival_ns().map_or(STOP_CHECK_NS, |due| {
                due.saturating_sub(now()).min(STOP_CHECK_NS)
            });
            if wait > SPIN_NS
                && sys::wait_readable(self.from.as_fd(), Some(wait - SPIN_NS)).is_err()
            {
                return;
            }
        }
    }

    /// Reads the packets that the device sends.
    fn take_in(&mut self, now: &impl Fn() -> u64, buffer: &mut [u8]) {
        for _ in 0..READ_BURST {
            let Ok(bytes) = self.from.read(buffer) else {
                return;
            };
            match self.link.offer(now(), buffer[..bytes].into(), bytes) {
                Verdict::Arrives { .. } => {}
                Verdict::Lost => _ = self.counters.lost.fetch_add(1, Relaxed),
                Verdict::NoRoom => _ = self.counters.no_room.fetch_add(1, Relaxed),
            }
        }
    }
}
