//! Who this node is among the hosts of swarms, and where it listens: a key that lasts, and ports that firewalls can know.

use floe_ground::{
    error::{NodeError, at},
    files::{make_private_dir, replace_file},
};
use std::{
    fs, io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    path::{Path, PathBuf},
};

/// Bytes of a private key (Ed25519).
const KEY_BYTES: usize = 32;

/// A node's private key, and where it listened last.
pub(super) struct Identity {
    dir: PathBuf,
    secret: [u8; KEY_BYTES],
}

impl Identity {
    /// Reads the key in a directory, or makes one. One that can't be read is replaced: it only names this node to others for as long as
    /// hubs list it.
    pub fn open(dir: &Path) -> Result<Identity, NodeError> {
        make_private_dir(dir)?;
        let path = dir.join("key");
        let read = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            read => Some(read.map_err(at(format!("cannot read {}", path.display())))?),
        };
        let known = read.and_then(|bytes| bytes.try_into().ok());
        let secret = match known {
            Some(secret) => secret,
            None => {
                let secret: [u8; KEY_BYTES] = rand::random();
                replace_file(&path, &secret)?;
                secret
            }
        };
        Ok(Identity {
            dir: dir.to_owned(),
            secret,
        })
    }

    /// Returns the private key.
    pub fn secret(&self) -> [u8; KEY_BYTES] {
        self.secret
    }

    /// Returns the addresses to try, one set after the other: where it listened last, then all addresses of this host at a free port, with
    /// IPv6 and without. The port is the same for both, so that it is right by whichever of them a hub was asked.
    pub fn addresses(&self) -> Vec<Vec<SocketAddr>> {
        // without it another port is tried, and others find it there
        let kept = fs::read_to_string(self.dir.join("listen")).unwrap_or_default();
        let kept: Vec<SocketAddr> = kept.lines().flat_map(str::parse).take(2).collect();
        // free a moment ago; if somebody was faster, any is taken
        let free =
            UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| socket.local_addr());
        let port = free.map_or(0, |free| free.port());
        let four = |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        let six = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let all = [kept, vec![four(port), six], vec![four(port)], vec![four(0)]];
        all.into_iter().filter(|set| !set.is_empty()).collect()
    }

    /// Keeps where it listens, for the next time. If that fails, others find it elsewhere then.
    pub fn keep(&self, addresses: &[SocketAddr]) {
        let lines: String = addresses.iter().map(|at| format!("{at}\n")).collect();
        let path = self.dir.join("listen");
        if fs::read_to_string(&path).ok().as_deref() != Some(&*lines)
            && let Err(error) = replace_file(&path, lines.as_bytes())
        {
            tracing::warn!(%error, "the swarm's port is not kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_node_stays_who_it_is_and_its_key_is_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("swarm");
        let first = Identity::open(&at).unwrap();
        assert_eq!(Identity::open(&at).unwrap().secret(), first.secret());
        let mode = fs::metadata(at.join("key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(at.join("key"), b"too short").unwrap();
        let other = Identity::open(&at).unwrap();
        assert_ne!(other.secret(), first.secret());
        assert_eq!(Identity::open(&at).unwrap().secret(), other.secret());
    }

    #[test]
    fn a_port_is_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let identity = Identity::open(dir.path()).unwrap();
        assert_eq!(identity.addresses().len(), 3);
        let kept = ["0.0.0.0:4433", "[::]:4434"].map(|at| at.parse().unwrap());
        identity.keep(&kept);
        assert_eq!(identity.addresses()[0], kept);
        fs::write(dir.path().join("listen"), b"\xff nonsense").unwrap();
        assert_eq!(identity.addresses().len(), 3);
    }
}
