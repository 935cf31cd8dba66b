//! The files that a node keeps about its cluster, in a directory that only its user can access.
//!
//! ```text
//! cluster.json    what this node is in the cluster; written last, removed first: without it there is no cluster
//! ca.pem          the CA's certificate
//! node.pem        this node's key and certificate
//! roster.json     the members
//! ca.key, authority.json    on the authority's host alone: the CA's key; members and open invitations
//! ```

use super::record::{Authority, Membership};
use super::roster::{Heard, Roster};
use floe_api::paths::Home;
use floe_ground::{
    error::{NodeError, at, failed},
    files::{make_private_dir, read_bounded, replace_file},
};
use serde::Serialize;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Largest file that is read, in bytes: all members with the longest names.
const BYTES_MAX: u64 = 1 << 20;
const MEMBERSHIP: &str = "cluster.json";
const CA: &str = "ca.pem";
const NODE: &str = "node.pem";
const ROSTER: &str = "roster.json";
const CA_KEY: &str = "ca.key";
const AUTHORITY: &str = "authority.json";

/// The directory with these files.
pub(super) struct Files {
    dir: PathBuf,
}

/// The content of all files.
pub(super) struct Kept {
    pub membership: Membership,
    /// The CA's certificate as PEM.
    pub ca: String,
    /// This node's key and certificate as PEM.
    pub node: String,
    pub roster: Roster,
    /// What only the authority has, with the CA's key as PEM.
    pub authority: Option<(Authority, String)>,
}

impl Files {
    pub fn open(home: &Home) -> Result<Files, NodeError> {
        let dir = home.cluster();
        make_private_dir(&dir)?;
        Ok(Files { dir })
    }

    /// Reads all files; returns `None` if the node is in no cluster.
    pub fn load(&self) -> Result<Option<Kept>, NodeError> {
        let Some(bytes) = self.read(MEMBERSHIP)? else {
            return Ok(None);
        };
        let membership = Membership::parse(&bytes).map_err(|why| self.bad(MEMBERSHIP, why))?;
        let authority = match (self.read(AUTHORITY)?, self.read(CA_KEY)?) {
            (None, None) => None,
            (None, Some(_)) => return Err(self.bad(AUTHORITY, "it is missing".into())),
            (Some(bytes), _) => {
                let parsed = Authority::parse(&bytes).map_err(|why| self.bad(AUTHORITY, why))?;
                Some((parsed, self.text(CA_KEY)?))
            }
        };
        let roster = self.read(ROSTER)?.map(|bytes| Roster::parse(&bytes));
        let roster = match roster.unwrap_or_else(|| Err("it is missing".into())) {
            Ok(roster) => roster,
            Err(why) => {
                tracing::warn!(
                    why,
                    "the list of the cluster's members is lost, and asked for again"
                );
                membership
                    .heard
                    .as_ref()
                    .map(Heard::list)
                    .unwrap_or_default()
            }
        };
        Ok(Some(Kept {
            membership,
            ca: self.text(CA)?,
            node: self.text(NODE)?,
            roster,
            authority,
        }))
    }

    /// Whether the node has a place in a cluster, even if its files cannot be read.
    pub fn has_place(&self) -> bool {
        // what can't be looked at may be there
        self.dir.join(MEMBERSHIP).try_exists().unwrap_or(true)
    }

    /// Writes a new place. If the node crashes during that, it has none.
    pub fn save(&self, kept: &Kept) -> Result<(), NodeError> {
        // remove what an unfinished earlier call may have left
        self.clear()?;
        if let Some((authority, key)) = &kept.authority {
            replace_file(&self.dir.join(CA_KEY), key.as_bytes())?;
            self.save_authority(authority)?;
        }
        replace_file(&self.dir.join(CA), kept.ca.as_bytes())?;
        self.save_roster(&kept.roster)?;
        self.save_certificate(&kept.node, &kept.membership)
    }

    pub fn save_authority(&self, authority: &Authority) -> Result<(), NodeError> {
        self.write(AUTHORITY, authority)
    }

    pub fn save_roster(&self, roster: &Roster) -> Result<(), NodeError> {
        self.write(ROSTER, roster)
    }

    /// Writes a new certificate with its key, and the changed membership.
    pub fn save_certificate(&self, node: &str, membership: &Membership) -> Result<(), NodeError> {
        replace_file(&self.dir.join(NODE), node.as_bytes())?;
        self.save_membership(membership)
    }

    /// Writes the changed membership.
    pub fn save_membership(&self, membership: &Membership) -> Result<(), NodeError> {
        self.write(MEMBERSHIP, membership)
    }

    /// Reads the CA's key.
    pub fn ca_key(&self) -> Result<String, NodeError> {
        self.text(CA_KEY)
    }

    /// Reads the CA's certificate.
    pub fn ca(&self) -> Result<String, NodeError> {
        self.text(CA)
    }

    /// Removes all files.
    pub fn clear(&self) -> Result<(), NodeError> {
        for name in [MEMBERSHIP, NODE, ROSTER, AUTHORITY, CA_KEY, CA] {
            let path = self.dir.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(at(format!("cannot remove {}", path.display()))(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn write(&self, name: &str, what: &impl Serialize) -> Result<(), NodeError> {
        let bytes = serde_json::to_vec_pretty(what)
            .map_err(|error| failed(format!("{name}: {error}"), "report this"))?;
        replace_file(&self.dir.join(name), &bytes)
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, NodeError> {
        let path = self.dir.join(name);
        match read_bounded(&path, BYTES_MAX) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(at(format!("cannot read {}", path.display()))(error)),
        }
    }

    fn text(&self, name: &str) -> Result<String, NodeError> {
        let bytes = self.read(name)?;
        let bytes = bytes.ok_or_else(|| self.bad(name, "it is missing".into()))?;
        String::from_utf8(bytes).map_err(|error| self.bad(name, error.to_string()))
    }

    fn bad(&self, name: &str, why: String) -> NodeError {
        let path: &Path = &self.dir.join(name);
        failed(
            format!("{}: {why}", path.display()),
            "floe cluster leave, then join again",
        )
    }
}
