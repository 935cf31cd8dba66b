//! Tickets that must be given back: each in a file of its own, so that none is forgotten if the node dies.
//!
//! A ticket belongs to one fork. It is released once none of the fork's clones runs any more. If the plug-in withdraws it
//! before that, its room may already be somebody else's, so the clones are ended.

use super::ticket::{TICKET_VERSION, Ticket};
use floe_api::paths::Home;
use floe_ground::{
    error::{NodeError, failed},
    files::{load_kept, replace_file},
};
use floe_threads::Waker;
use parking_lot::{Mutex, RwLock};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    sync::{Arc, Weak},
};

/// Largest file of a ticket that is read, in bytes.
const TICKET_BYTES_MAX: u64 = 16 << 10;

/// All tickets.
pub struct Tickets {
    dir: PathBuf,
    all: RwLock<BTreeMap<String, Ticket>>,
    /// Tickets of forks under way.
    in_use: Mutex<BTreeSet<String>>,
    /// Wakes the thread that looks after tickets.
    waker: Waker,
}

impl Tickets {
    /// Reads the tickets that an earlier node left.
    pub fn open(home: &Home) -> Result<Tickets, NodeError> {
        let dir = home.tickets();
        let all = load_kept(
            &dir,
            TICKET_BYTES_MAX,
            Ticket::parse,
            "is no ticket; what it holds is never given back",
        )?;
        Ok(Tickets {
            dir,
            all: RwLock::new(all),
            in_use: Mutex::default(),
            waker: Waker::default(),
        })
    }

    fn path(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }

    fn save(&self, id: &str, ticket: Ticket) -> Result<(), NodeError> {
        let bytes = serde_json::to_vec_pretty(&ticket)
            .map_err(|error| failed(format!("a ticket: {error}"), "report this"))?;
        // kept in memory even if the write fails, so that this node still gives the ticket back
        self.all.write().insert(id.to_owned(), ticket);
        replace_file(&self.path(id), &bytes)
    }

    /// Forgets a ticket that was given back. A file that can not be removed stays, and is logged.
    pub fn forget(&self, id: &str) {
        self.all.write().remove(id);
        if let Err(error) = fs::remove_file(self.path(id))
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(ticket = id, %error, "a ticket's file stays");
        }
    }

    /// Returns the tickets that no fork under way uses.
    pub fn at_rest(&self) -> Vec<(String, Ticket)> {
        let in_use = self.in_use.lock();
        let all = self.all.read();
        let rest = all.iter().filter(|(id, _)| !in_use.contains(*id));
        rest.map(|(id, ticket)| (id.clone(), ticket.clone()))
            .collect()
    }

    /// Returns what wakes the thread that looks after tickets.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Wakes that thread, because clones may have ended.
    pub fn look(&self) {
        if !self.all.read().is_empty() {
            self.waker.wake();
        }
    }
}

/// A ticket of a fork under way. It is given back soon after this is dropped, unless clones run with it.
pub struct Held {
    /// A weak handle, since the tickets may hold this value themselves, for a guest that has not claimed it yet.
    tickets: Weak<Tickets>,
    id: String,
    ticket: Ticket,
}

impl Held {
    /// Writes a ticket to the disk, for a fork that is about to be made.
    pub fn keep(tickets: &Arc<Tickets>, placement: &str, ticket: &str) -> Result<Held, NodeError> {
        let held = Held {
            tickets: Arc::downgrade(tickets),
            id: format!("{:016x}", rand::random::<u64>()),
            ticket: Ticket {
                version: TICKET_VERSION,
                placement: placement.to_owned(),
                ticket: ticket.to_owned(),
                fork: None,
            },
        };
        tickets.in_use.lock().insert(held.id.clone());
        tickets.save(&held.id, held.ticket.clone())?;
        Ok(held)
    }

    /// Notes which fork uses the ticket.
    pub fn of_fork(&mut self, fork: &str) -> Result<(), NodeError> {
        self.ticket.fork = Some(fork.to_owned());
        match self.tickets.upgrade() {
            Some(tickets) => tickets.save(&self.id, self.ticket.clone()),
            None => Err(failed("the node is stopping", "start it again")),
        }
    }

    /// Returns the ticket in words: `slurm 17`.
    pub fn name(&self) -> String {
        format!("{} {}", self.ticket.placement, self.ticket.ticket)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(tickets) = self.tickets.upgrade() {
            tickets.in_use.lock().remove(&self.id);
            tickets.look();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_come_back_after_a_restart_until_they_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let tickets = Tickets::open(&home).unwrap();
        let ticket = Ticket {
            version: TICKET_VERSION,
            placement: "slurm".into(),
            ticket: "17".into(),
            fork: Some("f".into()),
        };
        tickets.save("a", ticket.clone()).unwrap();
        fs::write(home.tickets().join("b.json"), "{}").unwrap();
        let again = Tickets::open(&home).unwrap();
        assert_eq!(again.at_rest(), [("a".to_owned(), ticket)]);
        again.in_use.lock().insert("a".into());
        assert_eq!(again.at_rest(), []);
        again.forget("a");
        assert_eq!(Tickets::open(&home).unwrap().all.read().len(), 0);
        assert!(Ticket::parse(br#"{"version":2,"placement":"p","ticket":"t"}"#).is_err());
    }
}
