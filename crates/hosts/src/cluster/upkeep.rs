//! Keeps a cluster up in the background: renews certificates before they expire, and keeps every member's roster current.

use super::{
    Ask, Cluster, Place, ask, certificates,
    membership::understood,
    record::Membership,
    roster::{Heard, Member, Roster},
    routes::{NODE_RENEW, NODE_ROSTER, RenewAnswer, RenewOrder, said},
};
use bytes::Bytes;
use floe_ground::{
    error::{NodeError, failed},
    time::unix_now,
};
use floe_http::Method;
use floe_threads::Threads;
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// How often members ask for the roster. A member that was away trusts one that was revoked meanwhile for at most this long
/// after it is back.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// How often it is checked whether there is a cluster and whether its port is open.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long a question to another member may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How many members are sent something at once.
const TOLD_AT_A_TIME: usize = 32;
/// How often a roster is sent to all in a row because a member's own had something new.
const SPREADS_MAX: usize = 3;

impl Place {
    /// Sends another member something; returns its answer.
    pub(super) fn tell(&self, member: &Member, path: &str, body: Vec<u8>) -> Result<Bytes, String> {
        let told = ask(
            self.client.clone(),
            Ask {
                to: &member.address.to_string(),
                method: Method::POST,
                path,
                body,
                limit: TIMEOUT,
            },
        );
        match told {
            Ok((200..300, body)) => Ok(body),
            Ok((status, body)) => Err(said(&body, status)),
            Err(fault) => Err(fault.to_string()),
        }
    }

    /// Sends all other members a roster; returns the names of those that do not know now who was removed, and the rosters of those that
    /// have another one.
    fn tell_all(&self, roster: &Roster) -> (Vec<String>, Vec<Roster>) {
        let body = serde_json::to_vec(roster).unwrap_or_default();
        let own = self.membership.read().id.clone();
        let others: Vec<&Member> = roster.members.iter().filter(|m| m.id != own).collect();
        let (mut untold, mut shown) = (Vec::new(), Vec::new());
        for some in others.chunks(TOLD_AT_A_TIME) {
            floe_threads::scope(|scope| {
                let tell = |member: &&Member| {
                    let (member, body) = ((*member).clone(), body.clone());
                    scope.spawn("tell-member", move || {
                        let told = self.tell(&member, NODE_ROSTER, body);
                        (member.name, told.and_then(|answer| Roster::parse(&answer)))
                    })
                };
                let told: Vec<_> = some.iter().map(tell).collect();
                for told in told {
                    match told.join() {
                        Ok((_, Ok(theirs))) if theirs == *roster => {}
                        Ok((name, Ok(theirs))) => {
                            if !theirs.knows_who_is_gone_in(roster) {
                                untold.push(name);
                            }
                            shown.push(theirs);
                        }
                        Ok((name, Err(why))) => {
                            tracing::info!(member = name, why, "a member was not told of a change");
                            untold.push(name);
                        }
                        Err(_) => {} // logged
                    }
                }
            });
        }
        (untold, shown)
    }

    /// Returns the authority, if that is another node.
    fn authority(&self) -> Option<Member> {
        match self.authority {
            Some(_) => None,
            None => self.trust.roster().members.first().cloned(),
        }
    }
}

impl Cluster {
    /// Sends the authority's roster to all members. An authority that comes from a backup takes in first what they know and it has
    /// forgotten. Returns the names of those that do not know now who was removed.
    pub(super) fn spread(&self, place: &Place) -> Vec<String> {
        let mut untold = Vec::new();
        for _ in 0..SPREADS_MAX {
            let shown;
            (untold, shown) = place.tell_all(&place.trust.roster());
            let mut recalled = false;
            for theirs in &shown {
                match self.recall(place, theirs) {
                    Ok(news) => recalled |= news,
                    Err(error) => {
                        tracing::warn!(%error, "what a member knows of the cluster is not taken in");
                    }
                }
            }
            if !recalled {
                break;
            }
        }
        untold
    }

    /// Asks the authority for the roster. One that is behind is shown this node's own.
    fn ask_roster(&self, place: &Place) -> Result<(), NodeError> {
        if place.authority.is_some() {
            return Ok(());
        }
        let authority = place.authority().ok_or_else(|| {
            failed(
                "this node has lost the list of members, and does not know whom to ask for it",
                "floe cluster leave, then join again",
            )
        })?;
        let told = self.exchange(place, &authority, Method::GET, Vec::new())?;
        let own = place.trust.roster();
        if told == own {
            return Ok(());
        }
        let shown = serde_json::to_vec(&own).unwrap_or_default();
        let told = self.exchange(place, &authority, Method::POST, shown)?;
        match told == place.trust.roster() {
            true => Ok(()),
            false => Err(failed(
                format!(
                    "{} has an older list of members (number {}) than this node has seen ({}), as after a restore from a backup",
                    authority.name, told.number, own.number
                ),
                "floe cluster leave, then join again",
            )),
        }
    }

    /// Sends the authority a request about the roster, and learns the one that it answers.
    fn exchange(
        &self,
        place: &Place,
        authority: &Member,
        method: Method,
        body: Vec<u8>,
    ) -> Result<Roster, NodeError> {
        let to = authority.address.to_string();
        let answer = ask(
            place.client.clone(),
            Ask {
                to: &to,
                method,
                path: NODE_ROSTER,
                body,
                limit: TIMEOUT,
            },
        );
        let roster: Roster = understood(answer, &to)?;
        roster
            .check()
            .map_err(|why| failed(format!("{to}: {why}"), ""))?;
        self.learn(roster.clone())?;
        Ok(roster)
    }

    /// Gets a certificate for a new key.
    fn renew(&self, place: &Place) -> Result<(), NodeError> {
        let (key, request) = certificates::make_key()?;
        let membership = place.membership.read().clone();
        let (certificate, certified_unix_s) = match place.authority() {
            None => {
                let own = place.trust.roster().of_id(&membership.id).cloned();
                let own =
                    own.ok_or_else(|| failed("the authority is not in its own roster", ""))?;
                self.renew_for(&own, &request)?
            }
            Some(authority) => {
                let to = authority.address.to_string();
                let answer = ask(
                    place.client.clone(),
                    Ask {
                        to: &to,
                        method: Method::POST,
                        path: NODE_RENEW,
                        body: serde_json::to_vec(&RenewOrder { request }).unwrap_or_default(),
                        limit: TIMEOUT,
                    },
                );
                let answer: RenewAnswer = understood(answer, &to)?;
                (answer.certificate, answer.certified_unix_s)
            }
        };
        let node = key + &certificate;
        let bad = |why| failed(format!("a new certificate: {why}"), "");
        let _changing = self.changing.lock();
        if !self.is_at(place) {
            return Ok(()); // the node has left the cluster meanwhile
        }
        let renewed = Membership {
            certified_unix_s,
            ..membership
        };
        self.files.save_certificate(&node, &renewed)?;
        place.trust.renew(&node, &node).map_err(bad)?;
        *place.membership.write() = renewed;
        tracing::info!(
            until_unix_s = certified_unix_s.1,
            "the certificate was renewed"
        );
        Ok(())
    }

    /// Whether this is still the node's place.
    fn is_at(&self, place: &Place) -> bool {
        self.place().is_some_and(|now| std::ptr::eq(&*now, place))
    }

    /// Notes whom to ask for the roster, and how new that must be, for when it is lost.
    fn note_heard(&self, place: &Place) -> Result<(), NodeError> {
        let Some(heard) = Heard::of(&place.trust.roster()) else {
            return Ok(());
        };
        let known = place.membership.read().clone();
        if known
            .heard
            .as_ref()
            .is_some_and(|known| known.number >= heard.number)
        {
            return Ok(());
        }
        let _changing = self.changing.lock();
        if self.is_at(place) {
            let heard = Some(heard);
            let changed = Membership { heard, ..known };
            self.files.save_membership(&changed)?;
            *place.membership.write() = changed;
        }
        Ok(())
    }

    /// Asks the members what this node has forgotten, if it is their authority: it may have been restored from a backup.
    fn recall_all(&self, place: &Place) {
        if place.authority.is_none() || place.recalled.load(Ordering::Relaxed) {
            return;
        }
        // what an older floe left is sealed
        if let Err(error) = self.change(place, |_| ()) {
            tracing::warn!(%error, "the list of the cluster's members is not sealed");
        }
        self.spread(place);
        place.recalled.store(true, Ordering::Relaxed);
    }
}

impl Cluster {
    /// Sends all members the roster, on a thread of its own.
    pub(super) fn spread_roster(self: &Arc<Self>) {
        let Some(place) = self.place() else {
            return;
        };
        let cluster = self.clone();
        if let Err(error) = floe_threads::spawn("cluster-spread", move || cluster.spread(&place)) {
            tracing::warn!(%error, "members learn of the change when they ask");
        }
    }

    /// Starts the thread that keeps the cluster up; `each_time` is called at each of its looks while the node is in a
    /// cluster.
    pub fn start_keeping(
        self: &Arc<Self>,
        threads: &Threads,
        each_time: impl Fn() + Send + 'static,
    ) -> Result<(), NodeError> {
        let mut asked: Option<Instant> = None;
        Ok(
            threads.keep("cluster-keep", self, LOOK_EVERY, move |cluster| {
                cluster.find_again();
                let Some(place) = cluster.place() else {
                    return;
                };
                cluster.recall_all(&place);
                cluster.ensure_listening();
                each_time();
                if asked.is_none_or(|asked| asked.elapsed() >= ASK_EVERY) {
                    asked = Some(Instant::now());
                    cluster.learn_roster(&place);
                    if let Err(error) = cluster.note_heard(&place) {
                        tracing::warn!(%error, "which member is this cluster's authority could not be noted");
                    }
                }
                if place.membership.read().is_due(unix_now())
                    && let Err(error) = cluster.renew(&place)
                {
                    tracing::warn!(%error, "this node's certificate was not renewed yet");
                }
            })?,
        )
    }

    fn learn_roster(&self, place: &Place) {
        let told = self.ask_roster(place);
        if let Err(error) = &told {
            tracing::info!(%error, "the cluster's authority does not tell who the members are");
        }
        let unheard = told.err().map(|error| error.to_api().message);
        self.service.lock().unheard = unheard.unwrap_or_default();
    }
}
