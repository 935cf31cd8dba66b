//! Joining, inviting and leaving: what users ask for, and what the authority answers newcomers.

use super::{
    Ask, Cluster, Place, ask, certificates,
    files::Kept,
    invitation::{Invitation, Refusal},
    record::{Authority, CLUSTER_VERSION, Membership},
    roster::{Heard, Member, Roster, check_id, check_name},
    routes::{JoinAnswer, JoinOrder, NODE_JOIN, NODE_LEAVE},
    trust,
};
use floe_api::*;
use floe_ground::{
    error::{NodeError, busy, failed, not_found, refused, usage},
    time::unix_now,
};
use floe_http::{Fault, Method, Url};
use serde::de::DeserializeOwned;
use std::{
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
    sync::Arc,
    time::Duration,
};

/// How long a newcomer's request may take.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);

fn unjoined() -> NodeError {
    refused(
        "this node is in no cluster",
        "floe cluster init makes one, floe cluster join enters one",
    )
}

/// Returns random bits as hex digits.
fn hex(bits: u32) -> String {
    let digits = (bits / 4) as usize;
    format!("{:032x}", rand::random::<u128>())[..digits].to_owned()
}

pub(super) fn url(address: SocketAddr) -> String {
    format!("https://{address}")
}

/// Returns this host's name as a member's, if it is valid as one.
fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let name = name.trim().split('.').next()?.to_ascii_lowercase();
    check_name(&name).ok().map(|()| name)
}

fn chosen_name(name: Option<&str>) -> Result<String, NodeError> {
    let name = name.map(str::to_owned).or_else(host_name).ok_or_else(|| {
        usage(
            "this host's name can't be the name of a member",
            "give one by --name",
        )
    })?;
    check_name(&name).map_err(|why| usage(why, "give another one by --name"))?;
    Ok(name)
}

/// Returns the address of this host from which another one is reached. Sends nothing.
fn own_address_to(there: SocketAddr) -> std::io::Result<IpAddr> {
    let any: SocketAddr = match there {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(there)?;
    Ok(socket.local_addr()?.ip())
}

/// Opens the port for members. Returns where it listens and the address at which others find it; `towards` is a host of the
/// intended network.
fn listen(
    wanted: Option<SocketAddr>,
    towards: SocketAddr,
) -> Result<(TcpListener, SocketAddr, SocketAddr), NodeError> {
    let own = || {
        own_address_to(towards).map_err(|error| {
            usage(
                format!(
                    "it is not clear which of this host's addresses the other hosts reach: {error}"
                ),
                format!("name it: --listen ADDRESS:{CLUSTER_PORT}"),
            )
        })
    };
    let listen = match wanted {
        Some(listen) => listen,
        None => SocketAddr::new(own()?, CLUSTER_PORT),
    };
    let bound = TcpListener::bind(listen).and_then(|listener| {
        let address = listener.local_addr()?;
        Ok((listener, address))
    });
    let (listener, listen) = bound.map_err(|error| {
        failed(
            format!("cannot listen for other nodes on {listen}: {error}"),
            "name another address of this host or another port: --listen ADDRESS:PORT",
        )
    })?;
    let mut address = listen;
    if address.ip().is_unspecified() {
        address.set_ip(own()?);
    }
    Ok((listener, listen, address))
}

impl Cluster {
    /// Returns what this node is in its cluster, and who else is in it.
    pub fn info(&self) -> ClusterInfo {
        let Some(place) = self.place() else {
            return ClusterInfo::default();
        };
        let membership = place.membership.read().clone();
        let roster = place.trust.roster();
        let members = roster
            .members
            .iter()
            .enumerate()
            .map(|(n, member)| ClusterMember {
                name: member.name.clone(),
                url: url(member.address),
                authority: n == 0,
                this: member.id == membership.id,
            });
        let detail = {
            let service = self.service.lock();
            match service.trouble.is_empty() {
                true => service.unheard.clone(),
                false => service.trouble.clone(),
            }
        };
        ClusterInfo {
            joined: true,
            cluster: membership.cluster,
            name: membership.name,
            url: url(membership.address),
            authority: place.authority.is_some(),
            fingerprint: place
                .trust
                .fingerprint()
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect(),
            certified_until_unix_s: membership.certified_unix_s.1,
            detail,
            members: members.collect(),
        }
    }

    fn check_unjoined(&self) -> Result<(), NodeError> {
        match self.place() {
            None if self.files.has_place() => Err(refused(
                "this node had a place in a cluster, whose files can't be read any more",
                "restore cluster/ of the state directory from a backup and restart the node, or give the place up: floe cluster leave",
            )),
            None => Ok(()),
            Some(place) => Err(busy(
                format!(
                    "this node is in cluster {} already",
                    place.membership.read().cluster
                ),
                "floe cluster leave",
            )),
        }
    }

    /// Creates a cluster with this node as its first member and its authority.
    pub fn init(&self, request: &ClusterInit) -> Result<ClusterInfo, NodeError> {
        let name = chosen_name(request.name.as_deref())?;
        let lifetime_s = request.certificate_s.unwrap_or(CERTIFICATE_S);
        if !(CERTIFICATE_S_MIN..=CERTIFICATE_S_MAX).contains(&lifetime_s) {
            return Err(usage(
                format!("certificates of {lifetime_s} seconds"),
                format!("choose {CERTIFICATE_S_MIN} to {CERTIFICATE_S_MAX}"),
            ));
        }
        let changing = self.changing.lock();
        self.check_unjoined()?;
        // an address that nobody has (RFC 5737): the route to it is the default route
        let outside = SocketAddr::from(([192, 0, 2, 1], CLUSTER_PORT));
        let (listener, listen, address) = listen(request.listen, outside)?;
        let (cluster, id) = (hex(64), hex(64));
        let (ca, ca_key) = certificates::make_ca(&cluster)?;
        let (key, signing_request) = certificates::make_key()?;
        let subject = certificates::Subject {
            id: &id,
            name: &name,
            authority: true,
            lifetime: Duration::from_secs(lifetime_s),
        };
        let signed = certificates::sign(&ca_key, &cluster, &signing_request, &subject)?;
        let (certificate, certified_unix_s) =
            signed.ok_or_else(|| failed("the own request was not understood", "report this"))?;
        let mut authority = Authority {
            version: CLUSTER_VERSION,
            cluster: cluster.clone(),
            lifetime_s,
            roster: Roster {
                members: vec![Member {
                    id: id.clone(),
                    name: name.clone(),
                    address,
                }],
                ..Default::default()
            },
            open: Vec::new(),
        };
        authority.roster.seal(&ca_key);
        let roster = authority.roster.clone();
        let kept = Kept {
            membership: Membership {
                version: CLUSTER_VERSION,
                cluster,
                id,
                name,
                address,
                listen,
                certified_unix_s,
                heard: Heard::of(&roster),
            },
            ca,
            node: key + &certificate,
            roster,
            authority: Some((authority, ca_key)),
        };
        self.settle_in(kept, listener)?;
        drop(changing);
        Ok(self.info())
    }

    /// Writes a new place in a cluster to the disk, and answers members from now on.
    fn settle_in(&self, kept: Kept, listener: TcpListener) -> Result<(), NodeError> {
        self.files.save(&kept)?;
        let entered = Place::of(kept).and_then(|place| {
            let why = |why| failed(format!("cannot answer members: {why}"), "report this");
            self.enter(place, listener).map_err(why)
        });
        entered.inspect_err(|_| {
            let _ = self.files.clear(); // the first error says more
        })
    }

    /// Returns this node's place if it is the authority.
    fn as_authority(&self) -> Result<Arc<Place>, NodeError> {
        let place = self.place().ok_or_else(unjoined)?;
        if place.authority.is_none() {
            let roster = place.trust.roster();
            let first = roster.members.first().map(|first| first.name.as_str());
            return Err(refused(
                "another node is this cluster's authority",
                format!("do it on {}", first.unwrap_or("the cluster's first host")),
            ));
        }
        Ok(place)
    }

    /// Creates an invitation for one node.
    pub fn invite(&self, request: &ClusterInvite) -> Result<ClusterInvited, NodeError> {
        let lifetime_s = request.expires_s.unwrap_or(INVITATION_S);
        if !(1..=INVITATION_S_MAX).contains(&lifetime_s) {
            return Err(usage(
                format!("an invitation for {lifetime_s} seconds"),
                format!("choose 1 to {INVITATION_S_MAX}"),
            ));
        }
        let place = self.as_authority()?;
        let invitation = Invitation {
            fingerprint: place.trust.fingerprint(),
            id: hex(64),
            secret: hex(128),
        };
        let now = unix_now();
        let expires_unix_s = now + lifetime_s;
        self.change(&place, |authority| {
            authority.invite(&invitation, expires_unix_s, now);
        })?;
        let url = url(place.membership.read().address);
        Ok(ClusterInvited {
            command: format!("floe cluster join {url} {invitation}"),
            url,
            invitation: invitation.to_string(),
            expires_unix_s,
        })
    }

    /// Changes what the authority knows: first on the disk, then in memory.
    pub(super) fn change<T>(
        &self,
        place: &Place,
        change: impl FnOnce(&mut Authority) -> T,
    ) -> Result<T, NodeError> {
        let known = place.authority.as_ref().ok_or_else(unjoined)?;
        let mut known = known.lock();
        let mut changed = known.clone();
        let outcome = change(&mut changed);
        if changed.roster != known.roster || changed.roster.seal.is_none() {
            changed.roster.seal(&self.files.ca_key()?);
        }
        if changed != *known {
            self.files.save_authority(&changed)?;
            if changed.roster != known.roster {
                self.files.save_roster(&changed.roster)?;
            }
            place.trust.learn(changed.roster.clone());
            place.trust.invite_until(changed.invites_until());
            *known = changed;
        }
        Ok(outcome)
    }

    /// Checks a newcomer's invitation, and makes the newcomer a member.
    pub(super) fn admit(&self, order: &JoinOrder) -> Result<JoinAnswer, NodeError> {
        let place = self.as_authority()?;
        let newcomer = Member {
            id: hex(64),
            name: order.name.clone(),
            address: order.address,
        };
        let cluster = place.membership.read().cluster.clone();
        let lifetime_s = place
            .authority
            .as_ref()
            .map_or(CERTIFICATE_S, |a| a.lock().lifetime_s);
        let subject = certificates::Subject {
            id: &newcomer.id,
            name: &newcomer.name,
            authority: false,
            lifetime: Duration::from_secs(lifetime_s),
        };
        let admitted = self.change(&place, |authority| {
            let newcomer = newcomer.clone();
            authority.admit(&order.invitation, &order.secret, newcomer, unix_now())
        })?;
        admitted.map_err(|why: Refusal| refused(why.to_string(), why.fix()))?;
        // only now, so that a stranger cannot make the authority sign anything
        let key = self.files.ca_key()?;
        let signed = certificates::sign(&key, &cluster, &order.request, &subject)
            .and_then(|signed| signed.ok_or_else(|| usage("that is no signing request", "")));
        let (certificate, certified_unix_s) = signed.inspect_err(|_| {
            let gone = self.change(&place, |authority| authority.roster.remove(&newcomer.id));
            if let Err(error) = gone {
                tracing::warn!(name = newcomer.name, %error, "a member that has no certificate stays listed");
            }
        })?;
        Ok(JoinAnswer {
            ca: self.files.ca()?,
            certificate,
            certified_unix_s,
            id: newcomer.id,
            cluster,
            roster: place.trust.roster(),
        })
    }

    /// Joins a cluster with an invitation.
    pub fn join(&self, request: &ClusterJoin) -> Result<ClusterInfo, NodeError> {
        let invitation: Invitation = request.invitation.trim().parse().map_err(
            |error: super::invitation::NoInvitation| {
                usage(
                    error.to_string(),
                    "copy the whole line that floe cluster invite printed",
                )
            },
        )?;
        let name = chosen_name(request.name.as_deref())?;
        let authority = authority_address(&request.url)?;
        let changing = self.changing.lock();
        self.check_unjoined()?;
        let (listener, listen, address) = listen(request.listen, authority)?;
        let (key, signing_request) = certificates::make_key()?;
        let order = JoinOrder {
            invitation: invitation.id.clone(),
            secret: invitation.secret.clone(),
            request: signing_request,
            name: name.clone(),
            address,
        };
        let answer = ask(
            trust::stranger(invitation.fingerprint),
            Ask {
                to: &authority.to_string(),
                method: Method::POST,
                path: NODE_JOIN,
                body: serde_json::to_vec(&order).unwrap_or_default(),
                limit: JOIN_TIMEOUT,
            },
        );
        if let Err(Fault::Refused(_)) = &answer {
            return Err(refused(
                "nobody is let into that cluster now: this invitation was used, or has expired",
                Refusal::Expired.fix(),
            ));
        }
        let answer: JoinAnswer = understood(answer, &request.url)?;
        let bad = |why: String| {
            failed(
                format!("the answer of {}: {why}", request.url),
                "report this",
            )
        };
        check_id(&answer.id)
            .and_then(|()| check_id(&answer.cluster))
            .map_err(bad)?;
        let ca = certificates::read(&answer.ca).map_err(bad)?;
        if certificates::fingerprint(&ca) != invitation.fingerprint {
            return Err(bad("it has another CA than the invitation".into()));
        }
        let kept = Kept {
            membership: Membership {
                version: CLUSTER_VERSION,
                cluster: answer.cluster,
                id: answer.id,
                name,
                address,
                listen,
                certified_unix_s: answer.certified_unix_s,
                heard: Heard::of(&answer.roster),
            },
            ca: answer.ca,
            node: key + &answer.certificate,
            roster: answer.roster,
            authority: None,
        };
        self.settle_in(kept, listener)?;
        drop(changing);
        Ok(self.info())
    }

    /// Gives up this node's place in the cluster; the answer says whether the authority was reached.
    pub fn leave(&self, force: bool) -> Result<ClusterChange, NodeError> {
        let _changing = self.changing.lock();
        let Some(place) = self.place() else {
            // remove what is left of a place whose files could not be read
            let lost = self.files.has_place();
            self.files.clear()?;
            return match lost {
                true => Ok(ClusterChange {
                    name: "this node".into(),
                    untold: Vec::new(),
                }),
                false => Err(unjoined()),
            };
        };
        let membership = place.membership.read().clone();
        let roster = place.trust.roster();
        let others = roster
            .members
            .iter()
            .filter(|member| member.id != membership.id);
        if place.authority.is_some() && others.count() > 0 && !force {
            return Err(refused(
                "this node is the authority of a cluster with other members, which would be without one: nobody could join, and \
                 certificates would run out",
                "revoke the others first, or dissolve the cluster with --force",
            ));
        }
        let mut untold = Vec::new();
        if place.authority.is_none()
            && let Some(authority) = roster.members.first()
            && let Err(why) = place.tell(authority, NODE_LEAVE, Vec::new())
        {
            tracing::warn!(why, "the authority was not told that this node leaves");
            untold.push(authority.name.clone());
        }
        self.exit()?;
        Ok(ClusterChange {
            name: membership.name,
            untold,
        })
    }

    /// Removes a member, and tells the others.
    pub fn revoke(&self, name: &str) -> Result<ClusterChange, NodeError> {
        let place = self.as_authority()?;
        let member = place.trust.roster().named(name).cloned();
        let member = member.ok_or_else(|| {
            not_found(
                format!("the cluster has no member {name}"),
                "floe cluster members",
            )
        })?;
        if !self.change(&place, |authority| authority.roster.remove(&member.id))? {
            return Err(refused(
                format!("{name} is the cluster's authority"),
                "dissolve the cluster there: floe cluster leave --force",
            ));
        }
        Ok(ClusterChange {
            name: name.to_owned(),
            untold: self.spread(&place),
        })
    }

    /// Removes a member that leaves by itself.
    pub(super) fn depart(&self, member: &Member) -> Result<(), NodeError> {
        let place = self.as_authority()?;
        self.change(&place, |authority| authority.roster.remove(&member.id))?;
        self.spread(&place);
        Ok(())
    }

    /// Takes in a list that a member shows, of which this node, as the authority, has forgotten something: it comes from a backup then.
    /// Returns whether that was so.
    pub(super) fn recall(&self, place: &Place, shown: &Roster) -> Result<bool, NodeError> {
        let key = self.files.ca_key()?;
        let recalled = self.change(place, |authority| authority.roster.recall(shown, &key))?;
        if recalled {
            tracing::warn!(
                number = place.trust.roster().number,
                "the list of the cluster's members was older than one that a member has, as after a restore from a backup, and has what \
                 is in that one now"
            );
        }
        Ok(recalled)
    }

    /// Signs a member's new key.
    pub(super) fn renew_for(
        &self,
        member: &Member,
        request: &str,
    ) -> Result<certificates::Signed, NodeError> {
        let place = self.as_authority()?;
        let membership = place.membership.read().clone();
        let lifetime_s = place
            .authority
            .as_ref()
            .map_or(CERTIFICATE_S, |a| a.lock().lifetime_s);
        let subject = certificates::Subject {
            id: &member.id,
            name: &member.name,
            authority: member.id == membership.id,
            lifetime: Duration::from_secs(lifetime_s),
        };
        let key = self.files.ca_key()?;
        let signed = certificates::sign(&key, &membership.cluster, request, &subject)?;
        signed.ok_or_else(|| usage("that is no signing request", ""))
    }
}

/// Returns the address in `https://ADDRESS:PORT`.
fn authority_address(url: &str) -> Result<SocketAddr, NodeError> {
    let bad = |why: &str| {
        usage(
            format!("{url:?}: {why}"),
            "write https://ADDRESS:PORT, as floe cluster invite printed it",
        )
    };
    let parsed = Url::parse(url).map_err(|error| bad(&error.to_string()))?;
    if parsed.scheme() != "https" {
        return Err(bad("it is no https address"));
    }
    let found = parsed
        .socket_addrs(|| None)
        .map_err(|error| bad(&error.to_string()))?;
    found
        .first()
        .copied()
        .ok_or_else(|| bad("it has no address"))
}

/// Decodes another node's answer.
pub(super) fn understood<T: DeserializeOwned>(
    answer: Result<(u16, bytes::Bytes), Fault>,
    url: &str,
) -> Result<T, NodeError> {
    let unreachable = |why: String| {
        NodeError::Api(ApiError {
            code: ErrorCode::Unreachable,
            message: format!("{url}: {why}"),
            fix: "check the address, the way to it, and that this invitation or membership is still good".into(),
        })
    };
    let (status, body) = answer.map_err(|fault| unreachable(fault.to_string()))?;
    if (200..300).contains(&status) {
        return serde_json::from_slice(&body)
            .map_err(|error| unreachable(format!("its answer makes no sense: {error}")));
    }
    match serde_json::from_slice::<ApiError>(&body) {
        Ok(said) => Err(said.into()),
        Err(_) => Err(unreachable(format!("it answered {status}"))),
    }
}
