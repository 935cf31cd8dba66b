//! An invitation into a cluster: one word with what a newcomer needs to trust the authority, and the authority to trust the
//! newcomer. No I/O.
//!
//! ```text
//! floe1.FINGERPRINT.ID.SECRET
//!       64 hex digits: SHA-256 of the CA's certificate, with which the newcomer checks the other side
//!                   16: by which the authority finds the invitation
//!                      32: 128 random bits, valid once; the authority keeps their hash
//! ```

use floe_image::Hash;
use std::{fmt, net::SocketAddr, str::FromStr};

/// Beginning of an invitation's text.
const PREFIX: &str = "floe1";
/// Longest text that is parsed, in bytes.
const TEXT_MAX: usize = 256;

/// An invitation.
#[derive(Clone, PartialEq, Eq)]
pub struct Invitation {
    /// SHA-256 of the CA's certificate.
    pub fingerprint: [u8; 32],
    /// The invitation's id, 16 hex digits.
    pub id: String,
    /// The secret, 32 hex digits.
    pub secret: String,
}

impl Invitation {
    /// Returns the hash of the secret, which the authority keeps. The secret is random, so nobody can find it by trying.
    pub fn secret_hash(&self) -> Hash {
        Hash::of(self.secret.as_bytes())
    }
}

impl fmt::Display for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}.")?;
        for byte in self.fingerprint {
            write!(f, "{byte:02x}")?;
        }
        write!(f, ".{}.{}", self.id, self.secret)
    }
}

impl fmt::Debug for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Invitation({})", self.id)
    }
}

/// The text is not an invitation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no invitation: it has the form floe1.FINGERPRINT.ID.SECRET, all hex digits")]
pub struct NoInvitation;

impl FromStr for Invitation {
    type Err = NoInvitation;

    fn from_str(text: &str) -> Result<Invitation, NoInvitation> {
        if text.len() > TEXT_MAX {
            return Err(NoInvitation);
        }
        let parts: Vec<&str> = text.split('.').collect();
        let hex = |text: &str| text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        match parts[..] {
            [PREFIX, fingerprint, id, secret]
                if (fingerprint.len(), id.len(), secret.len()) == (64, 16, 32)
                    && parts[1..].iter().all(|part| hex(part)) =>
            {
                let mut bytes = [0; 32];
                for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
                    let digits = &fingerprint[at..at + 2];
                    *byte = u8::from_str_radix(digits, 16).map_err(|_| NoInvitation)?;
                }
                Ok(Invitation {
                    fingerprint: bytes,
                    id: id.to_owned(),
                    secret: secret.to_owned(),
                })
            }
            _ => Err(NoInvitation),
        }
    }
}

/// Why a newcomer does not become a member.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The invitation is unknown or used, or its secret is wrong.
    #[error(
        "this invitation is not good: it was used, it is another cluster's, or it is not whole"
    )]
    Unknown,
    /// The invitation has expired.
    #[error("this invitation has expired")]
    Expired,
    /// The name is not valid.
    #[error("{0}")]
    Name(String),
    /// Another member has the name.
    #[error("the cluster has a member {0} already")]
    NameTaken(String),
    /// Another member has the address.
    #[error("the cluster has a member at {0} already: {1}")]
    AddressTaken(SocketAddr, String),
    /// The cluster has too many members.
    #[error("the cluster is full")]
    Full,
}

impl Refusal {
    /// Returns what the user can do.
    pub fn fix(&self) -> &'static str {
        match self {
            Refusal::Unknown | Refusal::Expired => {
                "get a new one: floe cluster invite, on the cluster's first host"
            }
            Refusal::Name(_) | Refusal::NameTaken(_) => "give this node another name by --name",
            Refusal::AddressTaken(..) => {
                "floe cluster revoke that member on the cluster's first host, or give --listen ADDRESS:PORT"
            }
            Refusal::Full => "revoke members that are gone: floe cluster revoke",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_invitation_survives_being_written_down_and_debugging_does_not_show_it() {
        let invitation = Invitation {
            fingerprint: [0xab; 32],
            id: "0123456789abcdef".into(),
            secret: "00112233445566778899aabbccddeeff".into(),
        };
        let text = invitation.to_string();
        assert_eq!(text.parse(), Ok(invitation.clone()));
        assert!(!format!("{invitation:?}").contains("0011"));
        for bad in [
            "",
            "floe1",
            "floe2.a.b.c",
            &text[..text.len() - 1],
            &text.to_uppercase(),
            &format!("{text}0"),
            &text.replace("ab", "é"),
        ] {
            assert!(bad.parse::<Invitation>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_invitation_that_comes_back_or_none(text in "(floe1\\.)?[0-9a-fé.]{0,130}") {
            if let Ok(invitation) = text.parse::<Invitation>() {
                prop_assert_eq!(invitation.to_string(), text);
            }
        }
    }
}
