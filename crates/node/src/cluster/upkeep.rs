//! Keeps a cluster up in the background: renews certificates before they expire, and keeps every member's roster current.

use super::{
    Ask, Cluster, Place, ask, certificates,
    membership::understood,
    record::{Member, Roster},
    routes::{NODE_RENEW, NODE_ROSTER, RenewAnswer, RenewOrder, said},
};
use crate::{error::NodeError, unix_now};
use floe_http::Method;
use floe_threads::Threads;
use std::{
    sync::Arc,
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

impl Place {
    /// Sends another member something.
    pub(super) fn tell(&self, member: &Member, path: &str, body: Vec<u8>) -> Result<(), String> {
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
            Ok((200..300, _)) => Ok(()),
            Ok((status, body)) => Err(said(&body, status)),
            Err(fault) => Err(fault.to_string()),
        }
    }

    /// Sends all other members the roster; returns the names of those that were not reached.
    pub(super) fn spread(&self) -> Vec<String> {
        let roster = self.trust.roster();
        let body = serde_json::to_vec(&roster).unwrap_or_default();
        let own = self.membership.read().id.clone();
        let others: Vec<&Member> = roster.members.iter().filter(|m| m.id != own).collect();
        let mut untold = Vec::new();
        for some in others.chunks(TOLD_AT_A_TIME) {
            floe_threads::scope(|scope| {
                let tell = |member: &&Member| {
                    let (member, body) = ((*member).clone(), body.clone());
                    scope.spawn("tell-member", move || {
                        let told = self.tell(&member, NODE_ROSTER, body);
                        told.map_err(|why| (member.name, why))
                    })
                };
                let told: Vec<_> = some.iter().map(tell).collect();
                for told in told {
                    if let Ok(Err((name, why))) = told.join() {
                        tracing::info!(member = name, why, "a member was not told of a change");
                        untold.push(name);
                    }
                }
            });
        }
        untold
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
    /// Asks the authority for the roster.
    fn ask_roster(&self, place: &Place) -> Result<(), NodeError> {
        let Some(authority) = place.authority() else {
            return Ok(());
        };
        let to = authority.address.to_string();
        let answer = ask(
            place.client.clone(),
            Ask {
                to: &to,
                method: Method::GET,
                path: NODE_ROSTER,
                body: Vec::new(),
                limit: TIMEOUT,
            },
        );
        let roster: Roster = understood(answer, &to)?;
        // parsed again as from the disk, which checks what was sent
        let checked = serde_json::to_vec(&roster).unwrap_or_default();
        match Roster::parse(&checked) {
            Ok(roster) => self.learn(roster),
            Err(why) => Err(crate::error::failed(format!("{to}: {why}"), "")),
        }
    }

    /// Gets a certificate for a new key.
    fn renew(&self, place: &Place) -> Result<(), NodeError> {
        let (key, request) = certificates::make_key()?;
        let membership = place.membership.read().clone();
        let (certificate, certified_unix_s) = match place.authority() {
            None => {
                let own = place.trust.roster().of_id(&membership.id).cloned();
                let own = own.ok_or_else(|| {
                    crate::error::failed("the authority is not in its own roster", "")
                })?;
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
        let bad = |why| crate::error::failed(format!("a new certificate: {why}"), "");
        let _changing = self.changing.lock();
        let is_ours = self.place().is_some_and(|now| std::ptr::eq(&*now, place));
        if !is_ours {
            return Ok(()); // the node has left the cluster meanwhile
        }
        let renewed = super::Membership {
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
}

impl Cluster {
    /// Sends all members the roster, on a thread of its own.
    pub(super) fn spread_roster(&self) {
        let Some(place) = self.place() else {
            return;
        };
        if let Err(error) = floe_threads::spawn("cluster-spread", move || place.spread()) {
            tracing::warn!(%error, "members learn of the change when they ask");
        }
    }

    /// Starts the thread that keeps the cluster up; `each_time` is called at each of its looks while the node is in a
    /// cluster.
    pub(crate) fn start_keeping(
        self: &Arc<Self>,
        threads: &Threads,
        each_time: impl Fn() + Send + 'static,
    ) -> Result<(), NodeError> {
        let mut asked: Option<Instant> = None;
        Ok(
            threads.keep("cluster-keep", self, LOOK_EVERY, move |cluster| {
                cluster.ensure_listening();
                let Some(place) = cluster.place() else {
                    return;
                };
                each_time();
                if asked.is_none_or(|asked| asked.elapsed() >= ASK_EVERY) {
                    asked = Some(Instant::now());
                    cluster.learn_roster(&place);
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
