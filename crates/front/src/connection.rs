//! One connection of a port: who is at its other end, where it is in its requests, and its seat.

use super::table::Seat;
use super::{Bounds, Party, telemetry};
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::time::Instant;

/// One connection, with what its requests and its stream need to know.
pub struct Connection {
    /// The client's address.
    pub address: SocketAddr,
    /// The address of this host that the client has reached, if the kernel tells it.
    local: Option<SocketAddr>,
    /// Limits of the connection.
    pub bounds: Arc<Bounds>,
    /// Taken until the socket is closed.
    seat: Mutex<Option<Seat>>,
    /// Whether the client has not proved to be a user.
    stranger: AtomicBool,
    /// What the client has shown in the TLS handshake, verified; empty if nothing.
    certificate: OnceLock<CertificateDer<'static>>,
    /// Progress of the next request's head.
    head: Mutex<Head>,
}

#[derive(Clone, Copy, PartialEq)]
enum Head {
    /// The next request has not begun.
    None,
    /// The first byte arrived at this time.
    Since(Instant),
    /// The head is complete; the request is being answered.
    Whole,
    /// No further request will come, because the connection has switched to another protocol.
    Upgraded,
}

impl Connection {
    /// Returns the connection of a client that has a seat. Until it shows otherwise the client is a stranger.
    pub fn new(
        address: SocketAddr,
        local: Option<SocketAddr>,
        bounds: Arc<Bounds>,
        seat: Seat,
    ) -> Connection {
        metrics::gauge!(telemetry::HUB_CONNECTIONS).increment(1);
        Connection {
            address,
            local,
            bounds,
            seat: Mutex::new(Some(seat)),
            stranger: AtomicBool::new(true),
            certificate: OnceLock::new(),
            head: Mutex::new(Head::None),
        }
    }

    /// Returns whether the client has not proved to be a user.
    pub fn is_strangers(&self) -> bool {
        self.stranger.load(Ordering::Relaxed)
    }

    /// Records what the client has shown in the TLS handshake, verified. Called once at most.
    pub fn shows(&self, certificate: CertificateDer<'static>) {
        let _ = self.certificate.set(certificate); // it is empty yet
    }

    /// Records that something has come from the client, be it of a TLS handshake: from now on it outlasts those that say nothing.
    pub fn speaks(&self) {
        if let Some(seat) = &*self.seat.lock() {
            seat.speaks();
        }
    }

    /// Records that bytes of a request arrived from the client.
    pub fn bytes_came(&self) {
        let mut head = self.head.lock();
        if *head == Head::None {
            *head = Head::Since(Instant::now());
            drop(head);
            // without TLS these are the first
            self.speaks();
        }
    }

    /// Returns when the head that is arriving must be complete; `None` if none is arriving.
    pub fn head_due(&self) -> Option<Instant> {
        match *self.head.lock() {
            Head::Since(since) => Some(since + self.bounds.head),
            _ => None,
        }
    }

    /// Records that a request's head is complete.
    pub fn asked(&self) {
        *self.head.lock() = Head::Whole;
        self.turns(true);
    }

    fn turns(&self, busy: bool) {
        if let Some(seat) = &*self.seat.lock() {
            seat.turns(busy);
        }
    }

    /// Records that the request has been answered.
    pub fn answered(&self) {
        let mut head = self.head.lock();
        if *head != Head::Upgraded {
            *head = Head::None;
            drop(head);
            self.turns(false);
        }
    }

    /// Records that the connection has switched to another protocol.
    pub fn upgraded(&self) {
        *self.head.lock() = Head::Upgraded;
    }

    /// Returns whether the connection has switched to another protocol.
    pub fn is_upgraded(&self) -> bool {
        *self.head.lock() == Head::Upgraded
    }

    /// Gives the connection's seat back when the socket is closed.
    pub fn closed(&self) {
        drop(self.seat.lock().take());
        metrics::gauge!(telemetry::HUB_CONNECTIONS).decrement(1);
    }
}

/// The client of a request, as found in the request's extensions.
#[derive(Clone)]
pub struct Peer(Arc<Connection>);

impl Peer {
    /// Returns the client at the other end of a connection.
    pub(crate) fn of(connection: Arc<Connection>) -> Peer {
        Peer(connection)
    }

    /// Returns the address that the client sends from.
    pub fn ip(&self) -> std::net::IpAddr {
        self.0.address.ip()
    }

    /// Returns the address of this host that the client has reached, if the kernel tells it.
    pub fn reached(&self) -> Option<std::net::IpAddr> {
        self.0.local.map(|local| local.ip())
    }

    /// Returns the party of the strangers at this address.
    pub fn party(&self) -> Party {
        Party::at(self.0.address.ip())
    }

    /// Returns the certificate that the client has shown in the TLS handshake, which the port's configuration has verified.
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.0.certificate.get()
    }

    /// Counts the connection for `party` from now on, because the client has proved to be that.
    pub fn is(&self, party: &Party) {
        if party.is_user() {
            self.0.stranger.store(false, Ordering::Relaxed);
        }
        if let Some(seat) = &*self.0.seat.lock() {
            seat.known(party);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::Pace;
    use crate::seats::Seats;
    use crate::table::Table;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn who_has_sent_a_part_of_a_request_without_tls_outlasts_those_that_say_nothing() {
        const LONG: Duration = Duration::from_secs(600);
        let bounds = Arc::new(Bounds {
            connections_max: 2,
            connections_each_max: 2,
            strangers: None,
            handshake: LONG,
            head: LONG,
            idle: LONG,
            pace: Pace {
                bytes_per_s_min: 1,
                stretch: LONG,
            },
            drain: LONG,
        });
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let table = Table::new(Seats::new(2, 2));
        let (told, tells) = mpsc::channel();
        let sit = |n: u8| {
            let told = told.clone();
            let leave = move || told.send(n).unwrap();
            let seat = table.sit(Party::at(address.ip()), leave).unwrap();
            Connection::new(address, None, bounds.clone(), seat)
        };
        let speaker = sit(0);
        speaker.bytes_came();
        let silent: Vec<Connection> = (1..5).map(sit).collect();
        assert_eq!(tells.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
        drop((speaker, silent));
    }
}
