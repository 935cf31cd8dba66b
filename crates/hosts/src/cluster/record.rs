//! What a cluster's nodes store: who may become a member, and what a node is in the cluster. No I/O.

use super::invitation::{Invitation, Refusal};
use super::roster::{Heard, MEMBERS_MAX, Member, Roster, check_id, check_name};
use floe_image::Hash;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// Version of these records.
pub(crate) const CLUSTER_VERSION: u32 = 1;
/// Most invitations that may be open at a time.
pub(crate) const INVITATIONS_MAX: usize = 64;
/// How many wrong secrets make an invitation void. A secret has 128 random bits, so nobody guesses one; this only stops
/// useless tries.
const WRONG_MAX: u32 = 5;

/// What this node is in a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Membership {
    /// [`CLUSTER_VERSION`].
    pub version: u32,
    /// The cluster's id.
    pub cluster: String,
    /// This node's id in it.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Where the others reach it.
    pub address: SocketAddr,
    /// The address on which it listens; it differs from `address` behind address translation.
    pub listen: SocketAddr,
    /// From when to when its certificate is valid, in seconds of Unix time.
    pub certified_unix_s: (u64, u64),
    /// What is left of the list of members if its file is lost; absent as an older floe left it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard: Option<Heard>,
}

impl Membership {
    /// Decodes a file's content, or returns why that is impossible.
    pub fn parse(bytes: &[u8]) -> Result<Membership, String> {
        let membership: Membership =
            serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        check_version(membership.version)?;
        check_id(&membership.cluster)?;
        check_id(&membership.id)?;
        check_name(&membership.name)?;
        Ok(membership)
    }

    /// Whether it is time for a new certificate: after a third of the old one's life.
    pub fn is_due(&self, now_unix_s: u64) -> bool {
        let (from, to) = self.certified_unix_s;
        now_unix_s >= from.saturating_add(to.saturating_sub(from) / 3)
    }
}

/// What only the node that created a cluster knows of it. Decides who becomes a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Authority {
    /// [`CLUSTER_VERSION`].
    pub version: u32,
    /// The cluster's id, which is in the name of its CA.
    pub cluster: String,
    /// How long certificates are valid, in seconds.
    pub lifetime_s: u64,
    /// The members.
    pub roster: Roster,
    /// Invitations that nobody has used yet.
    pub open: Vec<Open>,
}

/// An invitation as the authority keeps it: nobody who reads this can use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Open {
    /// Its id.
    pub id: String,
    /// Hash of its secret.
    pub secret_hash: Hash,
    /// When it expires, in seconds of Unix time.
    pub expires_unix_s: u64,
    /// How often somebody came with a wrong secret.
    pub wrong: u32,
}

impl Authority {
    /// Decodes a file's content, or returns why that is impossible.
    pub fn parse(bytes: &[u8]) -> Result<Authority, String> {
        let authority: Authority =
            serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        check_version(authority.version)?;
        check_id(&authority.cluster)?;
        authority.roster.check()?;
        if authority.open.len() > INVITATIONS_MAX {
            return Err(format!("it has {} invitations", authority.open.len()));
        }
        Ok(authority)
    }

    /// Adds an invitation; if there are too many, the oldest one is removed.
    pub fn invite(&mut self, invitation: &Invitation, expires_unix_s: u64, now_unix_s: u64) {
        self.expire(now_unix_s);
        if self.open.len() >= INVITATIONS_MAX {
            self.open.remove(0);
        }
        self.open.push(Open {
            id: invitation.id.clone(),
            secret_hash: invitation.secret_hash(),
            expires_unix_s,
            wrong: 0,
        });
    }

    /// Returns when the last invitation expires, in seconds of Unix time; 0 if there are none.
    pub fn invites_until(&self) -> u64 {
        let ends = self.open.iter().map(|open| open.expires_unix_s);
        ends.max().unwrap_or(0)
    }

    fn expire(&mut self, now_unix_s: u64) {
        self.open.retain(|open| now_unix_s < open.expires_unix_s);
    }

    /// Uses an invitation: if it is valid, it is removed and the newcomer becomes a member.
    pub fn admit(
        &mut self,
        invitation: &str,
        secret: &str,
        newcomer: Member,
        now_unix_s: u64,
    ) -> Result<(), Refusal> {
        let secret_hash = Hash::of(secret.as_bytes());
        let known = self.open.iter_mut().find(|open| open.id == invitation);
        let open = known.ok_or(Refusal::Unknown)?;
        if open.secret_hash != secret_hash {
            open.wrong += 1;
            if open.wrong >= WRONG_MAX {
                self.open.retain(|open| open.id != invitation);
            }
            return Err(Refusal::Unknown);
        }
        if now_unix_s >= open.expires_unix_s {
            self.expire(now_unix_s);
            return Err(Refusal::Expired);
        }
        // errors that the newcomer can correct do not use up the invitation
        check_name(&newcomer.name).map_err(Refusal::Name)?;
        if self.roster.named(&newcomer.name).is_some() {
            return Err(Refusal::NameTaken(newcomer.name));
        }
        if let Some(other) = self.roster.at(newcomer.address) {
            return Err(Refusal::AddressTaken(other.address, other.name.clone()));
        }
        if self.roster.members.len() >= MEMBERS_MAX {
            return Err(Refusal::Full);
        }
        self.open.retain(|open| open.id != invitation);
        self.roster.admit(newcomer);
        Ok(())
    }
}

fn check_version(version: u32) -> Result<(), String> {
    match version {
        CLUSTER_VERSION => Ok(()),
        other => Err(format!(
            "it has version {other}, this floe knows version {CLUSTER_VERSION}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(n: u8) -> Member {
        Member {
            id: format!("{n:016x}"),
            name: format!("host-{n}"),
            address: SocketAddr::from(([10, 0, 0, n], 7071)),
        }
    }

    fn authority() -> Authority {
        Authority {
            version: CLUSTER_VERSION,
            cluster: "00000000000000aa".into(),
            lifetime_s: 1000,
            roster: Roster {
                number: 1,
                members: vec![member(1)],
                ..Default::default()
            },
            open: Vec::new(),
        }
    }

    fn invitation(n: u8) -> Invitation {
        Invitation {
            fingerprint: [1; 32],
            id: format!("{n:016x}"),
            secret: format!("{n:032x}"),
        }
    }

    #[test]
    fn an_invitation_is_good_once_and_for_a_while() {
        let mut authority = authority();
        let (one, two) = (invitation(1), invitation(2));
        authority.invite(&one, 100, 0);
        authority.invite(&two, 100, 0);
        assert!(
            !serde_json::to_string(&authority)
                .unwrap()
                .contains(&one.secret)
        );
        let mut admit = |i: &Invitation, n, now| authority.admit(&i.id, &i.secret, member(n), now);
        assert_eq!(admit(&one, 2, 50), Ok(()));
        assert_eq!(admit(&one, 3, 50), Err(Refusal::Unknown));
        assert_eq!(admit(&two, 3, 100), Err(Refusal::Expired));
        assert_eq!(admit(&two, 3, 50), Err(Refusal::Unknown));
        assert_eq!(authority.roster.members.len(), 2);
        assert_eq!(authority.roster.number, 2);
        assert_eq!(authority.invites_until(), 0);
    }

    #[test]
    fn wrong_secrets_void_an_invitation_and_a_taken_name_does_not() {
        let mut authority = authority();
        let (one, two) = (invitation(1), invitation(2));
        authority.invite(&one, 100, 0);
        authority.invite(&two, 100, 0);
        let taken = Member {
            address: member(9).address,
            ..member(1)
        };
        let refused = authority.admit(&one.id, &one.secret, taken, 5);
        assert_eq!(refused, Err(Refusal::NameTaken("host-1".into())));
        for _ in 0..WRONG_MAX {
            let refused = authority.admit(&two.id, &one.secret, member(2), 5);
            assert_eq!(refused, Err(Refusal::Unknown));
        }
        let refused = authority.admit(&two.id, &two.secret, member(2), 5);
        assert_eq!(refused, Err(Refusal::Unknown));
        assert_eq!(authority.admit(&one.id, &one.secret, member(2), 5), Ok(()));
    }

    #[test]
    fn what_floe_would_not_have_written_is_refused() {
        let bad = |change: &dyn Fn(&mut Authority)| {
            let mut authority = authority();
            change(&mut authority);
            Authority::parse(&serde_json::to_vec(&authority).unwrap()).unwrap_err()
        };
        assert!(bad(&|a| a.version = 2).contains("version 2"));
        assert!(bad(&|a| a.roster.members[0].id = "../x".into()).contains("no id"));
        assert!(bad(&|a| a.roster.members[0].name = "A b".into()).contains("no name"));
        assert!(bad(&|a| a.cluster = String::new()).contains("no id"));
        assert!(Roster::parse(b"{}").is_err() && Membership::parse(b"[]").is_err());
        assert!(check_name("here").is_err() && check_name("node-7").is_ok());
    }

    #[test]
    fn a_certificate_is_renewed_when_a_third_of_its_life_is_over() {
        let membership = Membership {
            version: CLUSTER_VERSION,
            cluster: "00000000000000aa".into(),
            id: member(1).id,
            name: "a".into(),
            address: member(1).address,
            listen: member(1).address,
            certified_unix_s: (100, 400),
            heard: Heard::of(&authority().roster),
        };
        assert!(!membership.is_due(199));
        assert!(membership.is_due(200));
        let bytes = serde_json::to_vec(&membership).unwrap();
        assert_eq!(Membership::parse(&bytes), Ok(membership));
    }
}
