//! Connections: which there are, and what follows from their beginning and end.
use super::gossip::runs;
use super::{Connected, DROPPED_MAX, Owner};
use crate::closed::{
    CLOSED_BUSY, CLOSED_DUPLICATE, CLOSED_FAULT, CLOSED_LEAVING, CLOSED_RESTING, CLOSED_STRANGER,
};
use crate::connection::{Connection, Ended, Meeting, Note, Unmet, dial};
use crate::members::{Key, Member};
use crate::wire::Message;
use floe_swarm::policy::{Event, Fault, PeerId, PieceId, Purpose};
use floe_swarm::roster::{CONNECTIONS_MAX, Move, REST_US, TOLD_MAX};
use std::sync::atomic::Ordering;

impl Owner {
    /// Takes the hub's list. A host that is connected since an earlier token stays connected as long as the list names it: it has proven
    /// itself then.
    pub(super) fn set_members(&mut self, members: Vec<Member>, token: [u8; 32]) {
        self.hello.token = token;
        let keys = members.iter().map(|member| member.key).collect();
        self.door.set_members(keys, token);
        let members = members
            .into_iter()
            .map(|member| (member.key.peer(), member));
        self.roster.set(members, &mut self.moves);
        let roster = &self.roster;
        self.traffic.retain(|id, _| roster.member(*id).is_some());
        self.waiting.retain(|id, _| roster.member(*id).is_some());
    }

    pub(super) fn step(&mut self, step: Move) {
        match step {
            Move::Joined(peer) => self.tell(Event::Joined(peer)),
            Move::Left(peer) => {
                self.waiting.remove(&peer);
                self.tell(Event::Left(peer));
            }
            Move::Dial(peer) => {
                let Some(member) = self.roster.member(peer).cloned() else {
                    return;
                };
                let (endpoints, hello) = (self.endpoints.clone(), self.hello);
                let notes = self.shared.notes.clone();
                tokio::spawn(async move {
                    let met = dial(&endpoints, &member, hello).await;
                    let _ = notes.send(Note::Dialled(member.key, met)).await;
                });
            }
            Move::Close(peer) => {
                if let Some(connection) = self.disconnect(peer) {
                    connection.close(CLOSED_STRANGER);
                }
            }
        }
    }

    pub(super) fn dialled(&mut self, key: Key, met: Result<Meeting, Unmet>) {
        match met {
            Ok(meeting) => self.admit(meeting),
            Err(unmet) => {
                let now_us = self.now_us();
                if unmet == Unmet::Failed {
                    tracing::debug!(peer = %key, "a host can't be reached");
                }
                self.roster.failed(now_us, key.peer(), &mut self.moves);
            }
        }
    }

    /// Takes a connection into use, unless there is a better one.
    ///
    /// Where two hosts dial each other at once, both keep the connection that was dialled by the one with the smaller key. One that
    /// comes from the same side as the one before it replaces that: its host has lost it. So does one of a host that began anew.
    pub(super) fn admit(&mut self, meeting: Meeting) {
        let peer = meeting.key.peer();
        let known = self.roster.member(peer).map(|member| member.key);
        if known != Some(meeting.key) || !self.roster.may_enter(peer) {
            return meeting.connection.close(CLOSED_STRANGER, &[]);
        }
        let before = self
            .connections
            .get(&peer)
            .map(|connected| &connected.connection);
        if let Some(before) = before {
            let mine = meeting.key > self.key;
            let better = before.session != meeting.session
                || before.dialled == meeting.dialled
                || meeting.dialled == mine;
            if !better {
                return meeting.connection.close(CLOSED_DUPLICATE, &[]);
            }
        } else if self.connections.len() >= CONNECTIONS_MAX {
            let now_us = self.now_us();
            self.roster.failed(now_us, peer, &mut self.moves);
            return meeting.connection.close(CLOSED_BUSY, &[]);
        }
        if let Some(connection) = self.disconnect(peer) {
            connection.close(CLOSED_DUPLICATE);
            // what was asked and told over it is void
            self.tell(Event::Left(peer));
            self.tell(Event::Joined(peer));
        }
        self.tell(Event::Places(peer, meeting.places));
        let number = self.next_number;
        self.next_number += 1;
        let connection = Connection::start(number, meeting, self.hello, &self.shared);
        let told = self
            .connections
            .values()
            .filter(|connected| connected.told)
            .count()
            < TOLD_MAX;
        let connected = Connected {
            connection,
            told,
            used_us: self.now_us(),
        };
        self.numbers.insert(number, peer);
        self.connections.insert(peer, connected);
        self.roster.connected(peer, &mut self.moves);
        if told {
            let here = runs(self.shared.shelf.pieces());
            self.say(peer, Message::Has(here));
        }
        for (piece, purpose) in self.waiting.remove(&peer).unwrap_or_default() {
            self.say(peer, Message::Ask(piece, purpose));
        }
    }

    fn disconnect(&mut self, peer: PeerId) -> Option<Connection> {
        let connected = self.connections.remove(&peer)?;
        self.numbers.remove(&connected.connection.number);
        Some(connected.connection)
    }

    /// A connection has ended, and not by this host's will.
    pub(super) fn ended(&mut self, peer: PeerId, ended: Ended) {
        if self.disconnect(peer).is_none() {
            return;
        }
        let now_us = self.now_us();
        match ended {
            Ended::Politely => self.roster.left(now_us, peer, &mut self.moves),
            Ended::Lost => self.roster.lost(now_us, peer, &mut self.moves),
            Ended::Resting => self.rested(peer),
        }
    }

    /// Notes that a host is still present, but without a connection, so that nothing is known any more of what it has.
    fn rested(&mut self, peer: PeerId) {
        self.roster.rested(peer);
        self.tell(Event::Left(peer));
        self.tell(Event::Joined(peer));
    }

    /// Notes that a connection was used.
    pub(super) fn used(&mut self, peer: PeerId) {
        let now_us = self.now_us();
        if let Some(connected) = self.connections.get_mut(&peer) {
            connected.used_us = now_us;
        }
    }

    /// Ends connections that nobody needs.
    pub(super) fn rest(&mut self, now_us: u64) {
        let idle = self.connections.iter().filter(|(peer, connected)| {
            let old = now_us.saturating_sub(connected.used_us) >= REST_US;
            old && connected.connection.dialled && !self.roster.is_near(**peer)
        });
        let idle: Vec<PeerId> = idle.map(|(peer, _)| *peer).collect();
        for peer in idle {
            if let Some(connection) = self.disconnect(peer) {
                connection.close(CLOSED_RESTING);
                self.rested(peer);
            }
        }
    }

    pub(super) fn ask(&mut self, peer: PeerId, piece: PieceId, purpose: Purpose) {
        if self.connections.contains_key(&peer) {
            self.used(peer);
            return self.say(peer, Message::Ask(piece, purpose));
        }
        if !self.roster.wanted(peer, &mut self.moves) {
            return self.tell(Event::Failed(peer, piece));
        }
        let waiting = self.waiting.entry(peer).or_default();
        waiting.retain(|(other, _)| *other != piece);
        waiting.push((piece, purpose));
    }

    /// Sends a message to a host, if there is a connection. The connection to one that reads so slowly that messages pile up is ended.
    pub(super) fn say(&mut self, peer: PeerId, message: Message) {
        let Some(connected) = self.connections.get(&peer) else {
            return;
        };
        if !connected.connection.say(message) {
            self.ended(peer, Ended::Lost);
        }
    }

    /// Tells neighbours what has come and gone here.
    pub(super) fn spread(&mut self, message: &Message) {
        let told = self
            .connections
            .iter()
            .filter(|(_, connected)| connected.told);
        let told: Vec<PeerId> = told.map(|(peer, _)| *peer).collect();
        for peer in told {
            self.say(peer, message.clone());
        }
    }

    /// Ends the connection to a host that the policy has dropped.
    pub(super) fn expel(&mut self, peer: PeerId, fault: Fault) {
        let now_us = self.now_us();
        if let Some(member) = self.roster.member(peer) {
            tracing::warn!(peer = %member.key, ?fault, "a host is dropped");
            if self.dropped.len() == DROPPED_MAX {
                self.dropped.pop_front();
            }
            self.dropped.push_back((member.key, fault));
        }
        self.waiting.remove(&peer);
        self.roster.dropped(now_us, peer, fault);
        if let Some(connection) = self.disconnect(peer) {
            connection.close(CLOSED_FAULT);
        }
    }

    /// Says good-bye to everybody.
    pub(super) fn part(&mut self) {
        self.numbers.clear();
        self.gauges.connected.store(0, Ordering::Relaxed);
        for (_, connected) in self.connections.drain() {
            connected.connection.close(CLOSED_LEAVING);
        }
    }
}
