//! Connections to one server that are kept open, up to a limit.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use hyper::Request;
use hyper::http::response::Parts;
use parking_lot::{Condvar, Mutex};

use crate::connection::{Connection, Ended, Limits, OnData, OnSent};
use crate::fault::Fault;
use crate::server::Server;

/// Connections to one server.
#[derive(Debug)]
pub struct Connections {
    server: Arc<Server>,
    idle: Mutex<Vec<Connection>>,
    free: Mutex<usize>,
    freed: Condvar,
}

impl Connections {
    /// Makes room for at most `max` connections to `server`; each is made when it is first needed.
    pub fn new(server: Arc<Server>, max: usize) -> Connections {
        Connections {
            server,
            idle: Mutex::default(),
            free: Mutex::new(max),
            freed: Condvar::new(),
        }
    }

    /// Sends the request that `make` returns, and passes its answer to `data`. Blocks, at first until a connection is free.
    ///
    /// If the server has closed a kept connection meanwhile, the request is made again and sent over another one. So it must be
    /// a request that may be repeated.
    pub fn exchange<E>(
        &self,
        limits: &Limits,
        make: &dyn Fn() -> Result<Request<Bytes>, E>,
        mut sent: Option<&mut OnSent<'_, E>>,
        data: &mut OnData<'_, E>,
    ) -> Result<Parts, Ended<E>> {
        let _place = self
            .enter(limits.until)
            .ok_or(Fault::Late { asked: false })?;
        loop {
            let idle = self.idle.lock().pop();
            let reused = idle.is_some();
            let mut connection = match idle {
                Some(connection) => connection,
                None => self.connect(limits)?,
            };
            let request = make().map_err(Ended::Caller)?;
            let watcher: Option<&mut OnSent<'_, E>> = match &mut sent {
                None => None,
                Some(sent) => Some(&mut **sent),
            };
            match connection.exchange(request, limits, watcher, data) {
                Ok(parts) => {
                    if connection.is_clean() {
                        self.idle.lock().push(connection);
                    }
                    return Ok(parts);
                }
                Err(Ended::Fault(Fault::NoAnswer(_))) if reused => self.idle.lock().clear(),
                Err(ended) => return Err(ended),
            }
        }
    }

    fn connect(&self, limits: &Limits) -> Result<Connection, Fault> {
        let left = limits
            .until
            .map(|until| until.saturating_duration_since(Instant::now()));
        let own = left.is_none_or(|left| limits.connect < left);
        let limit = left.unwrap_or(limits.connect).min(limits.connect);
        match self.server.connect(limit) {
            Err(Fault::Late { .. }) if own => {
                let through = self.server.proxy().map(|proxy| proxy.shown());
                let through = through.map_or_else(String::new, |proxy| format!(" through {proxy}"));
                Err(Fault::NotAsked(format!(
                    "no connection within {limit:?}{through}"
                )))
            }
            other => other,
        }
    }

    /// Waits for a place; returns `None` if none became free before `until`.
    fn enter(&self, until: Option<Instant>) -> Option<Place<'_>> {
        let mut free = self.free.lock();
        while *free == 0 {
            match until {
                None => self.freed.wait(&mut free),
                Some(until) => {
                    if self.freed.wait_until(&mut free, until).timed_out() && *free == 0 {
                        return None;
                    }
                }
            }
        }
        *free -= 1;
        Some(Place(self))
    }
}

struct Place<'a>(&'a Connections);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *self.0.free.lock() += 1;
        self.0.freed.notify_one();
    }
}
