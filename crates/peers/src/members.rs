//! Who the hosts of a swarm are.
use floe_swarm::policy::PeerId;
use std::fmt;
use std::net::SocketAddr;

/// A host's public key (Ed25519): who it is, proven with each connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub [u8; 32]);

impl Key {
    /// Returns the number by which the policies of all hosts know this one.
    pub(crate) fn peer(&self) -> PeerId {
        let hash = blake3::hash(&self.0);
        let (first, _) = hash
            .as_bytes()
            .split_first_chunk()
            .unwrap_or((&[0; 8], &[]));
        PeerId(u64::from_le_bytes(*first))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..5]
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A host of a swarm, as the hub lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Who it is.
    pub key: Key,
    /// Where it can be reached, any of them.
    pub addresses: Vec<SocketAddr>,
}
