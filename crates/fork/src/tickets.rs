//! Looks after plug-ins' tickets: gives back those whose clones have ended, and ends the clones of tickets that were
//! withdrawn.

use super::Forks;
use floe_api::KillRequest;
use floe_ground::{error::NodeError, news::News};
use floe_hosts::placement::{plug_in, ticket::Ticket};
use std::{sync::Arc, time::Duration};

/// How often it is checked whether clones have ended and tickets are still valid.
const LOOK_EVERY: Duration = Duration::from_secs(2);

impl Forks {
    /// Starts the thread that looks after tickets.
    pub fn start_watching_tickets(self: &Arc<Self>) -> Result<(), NodeError> {
        let waker = self.tickets.waker();
        let threads = &self.core.threads;
        Ok(
            threads.keep_waking("ticket-watch", &waker, self, LOOK_EVERY, |forks| {
                forks.machines.end_old_blanks(); // they wait for tickets
                for (id, ticket) in forks.tickets.at_rest() {
                    if let Err(why) = forks.look_after(&id, &ticket) {
                        let (placement, ticket) = (&ticket.placement, &ticket.ticket);
                        tracing::warn!(placement, ticket, why, "a ticket was not looked after");
                    }
                }
            })?,
        )
    }

    fn look_after(&self, id: &str, ticket: &Ticket) -> Result<(), String> {
        let plug_in = plug_in(Some(&ticket.placement), &self.core.home);
        let plug_in = plug_in.map_err(|error| error.to_api().to_string())?;
        let alive = ticket.fork.as_deref().is_some_and(|fork| self.runs(fork));
        let name = format!("{} {}", ticket.placement, ticket.ticket);
        if !alive {
            plug_in.release(&ticket.ticket)?;
            self.tickets.forget(id);
            self.core.tell(&name, &News::TicketReleased);
            return Ok(());
        }
        if plug_in.holds(&ticket.ticket)? {
            return Ok(());
        }
        self.core.tell(&name, &News::TicketLost);
        // a clone whose host does not answer must not keep the others from being ended
        let mut left = Vec::new();
        for clone in self.clones_of_fork(ticket.fork.as_deref().unwrap_or_default()) {
            if let Err(error) = self.kill(&clone, &KillRequest { all: false }) {
                left.push(format!("{clone} was not ended: {}", error.to_api()));
            }
        }
        if !left.is_empty() {
            return Err(left.join("; "));
        }
        self.tickets.forget(id);
        Ok(())
    }
}
