//! The user ids of machines, each claimed for the whole host: nodes with different state directories must not give two machines one user,
//! who could read the files and end the processes of both.
//!
//! A claim is a symbolic link in a directory of root's, named by the id, that leads to the state directory of the node that has it. It is
//! made by one call that fails if there is one, so that a node that dies leaves it or not, and nothing between. It outlives its node, as
//! machines do: the next node of the state directory keeps what its machines have ([`Users::keep`]), and gives back the rest
//! ([`Users::release_left`]). What a state directory has that is gone is free. All of it goes with a reboot, after which no machine runs.

use super::{Inventory, Operation};
use floe_api::paths::Home;
use floe_ground::{
    error::{NodeError, at, failed},
    names::MachineName,
};
use floe_machine::exec::{UID_COUNT, UID_FIRST};
use floe_store::private;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// Where the claims of all nodes of this host are. Not in `/run/floe`, which is the node's service's own.
const CLAIMS: &str = "/run/floe-users";

/// How many ids at the end of the range are for machines that wait for a run, away from those of machines with a name.
const WAITING: u32 = 1024;

/// For what an id is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    /// A machine with a name.
    Machine,
    /// A QEMU that waits.
    Waiting,
}

/// The user ids of a node's machines. The directory of the claims is locked first, then the list.
#[derive(Debug, Default)]
pub struct Users {
    /// The directory of the claims, and the state directory that they lead to; `None` if the node can't change users.
    claims: Option<(PathBuf, PathBuf)>,
    /// The ids that this process has claimed, or its machines have.
    ours: Mutex<BTreeSet<u32>>,
}

impl Users {
    /// Returns the users of the machines of a state directory.
    pub fn of_this_host(home: &Home) -> Users {
        let is_root = rustix::process::geteuid().is_root();
        let home = home.root();
        let home = home.canonicalize().unwrap_or_else(|_| home.to_owned());
        Users {
            claims: is_root.then(|| (CLAIMS.into(), home)),
            ours: Mutex::default(),
        }
    }

    /// Claims an id that no machine of this host has; `None` if machines run as the node's user.
    pub fn claim(&self, what: For) -> Result<Option<u32>, NodeError> {
        let Some((dir, home)) = &self.claims else {
            return Ok(None);
        };
        let _held = hold(dir)?;
        let machines = UID_COUNT - WAITING;
        let numbers = match what {
            For::Machine => 0..machines,
            For::Waiting => machines..UID_COUNT,
        };
        for id in numbers.map(|number| UID_FIRST + number) {
            // one of an earlier node may have a machine that ends just now
            if !self.is_ours(id) && claim(dir, home, id)? == Claim::New {
                self.ours.lock().insert(id);
                return Ok(Some(id));
            }
        }
        Err(failed(
            "every user id for machines is taken on this host",
            "remove machines that are no longer needed, also those of other nodes here",
        ))
    }

    /// Keeps the id that a machine has already. Returns whether it is this node's: false if another node's machine has it. After an
    /// error it is kept as far as this node goes.
    pub fn keep(&self, id: u32) -> Result<bool, NodeError> {
        let Some((dir, home)) = &self.claims else {
            return Ok(true);
        };
        let kept = hold(dir).and_then(|_held| claim(dir, home, id));
        let is_anothers = matches!(kept, Ok(Claim::Anothers));
        if !is_anothers {
            self.ours.lock().insert(id);
        }
        kept.map(|_| !is_anothers)
    }

    /// Whether an id is one of this node's machines'.
    pub fn is_ours(&self, id: u32) -> bool {
        self.claims.is_none() || self.ours.lock().contains(&id)
    }

    /// Gives an id back, if it is one, whose machine is gone; another node's stays. An error is only logged: a later start of the node gives
    /// it back.
    pub fn release(&self, id: Option<u32>) {
        if let (Some(id), Some((dir, home))) = (id, &self.claims) {
            let released = hold(dir).and_then(|_held| release(dir, home, id));
            tell(released);
            self.ours.lock().remove(&id);
        }
    }

    /// Gives back what an earlier node has left and no machine has any more.
    pub fn release_left(&self) {
        let Some((dir, home)) = &self.claims else {
            return;
        };
        let left = || -> Result<(), NodeError> {
            let _held = hold(dir)?;
            let cannot = || format!("cannot list {}", dir.display());
            for entry in fs::read_dir(dir).map_err(at(cannot()))? {
                let name = entry.map_err(at(cannot()))?.file_name();
                let id = name.to_str().and_then(|id| id.parse().ok());
                if let Some(id) = id.filter(|id| !self.is_ours(*id)) {
                    release(dir, home, id)?;
                }
            }
            Ok(())
        };
        tell(left());
    }
}

impl Inventory {
    /// Keeps the user of a machine that was found on the disk. If another node's machine has it, as may be after a reboot, this one gets
    /// another at its next start ([`Inventory::settle_user`]).
    pub(super) fn keep_user(&self, machine: &MachineName, uid: Option<u32>) {
        let Some(uid) = uid else {
            return;
        };
        match self.users.keep(uid) {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(%machine, uid, "a machine of another node here has its user too; it gets another when it is started");
            }
            Err(error) => tracing::warn!(%machine, uid, %error, "its user may be given to others"),
        }
    }

    /// Gives a machine that is about to be started another user if its own is another node's.
    pub fn settle_user(&self, operation: &Operation) -> Result<(), NodeError> {
        let uid = operation.record().uid;
        if uid.is_none_or(|uid| self.users.is_ours(uid)) {
            return Ok(());
        }
        let uid = self.users.claim(For::Machine)?;
        operation.update(|record| record.uid = uid)
    }
}

/// Logs that ids could not be given back.
fn tell(released: Result<(), NodeError>) {
    if let Err(error) = released {
        tracing::warn!(%error, "user ids of machines that are gone stay taken");
    }
}

/// What came of claiming an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    /// It is this node's from now on.
    New,
    /// It was this node's already.
    Ours,
    /// It is another node's.
    Anothers,
}

/// Makes the directory of the claims and locks it, until what is returned is dropped.
fn hold(dir: &Path) -> Result<File, NodeError> {
    let what = || format!("cannot lock {}", dir.display());
    private::make_dirs(dir).map_err(at(what()))?;
    let held = File::open(dir).map_err(at(what()))?;
    flock(&held, FlockOperation::LockExclusive)
        .map_err(io::Error::from)
        .map_err(at(what()))?;
    Ok(held)
}

/// Claims an id for a state directory. The caller holds the directory's lock.
fn claim(dir: &Path, home: &Path, id: u32) -> Result<Claim, NodeError> {
    let path = dir.join(id.to_string());
    let what = || format!("cannot claim user {id} in {}", dir.display());
    match symlink(home, &path) {
        Ok(()) => return Ok(Claim::New),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(at(what())(error)),
    }
    let owner = fs::read_link(&path).map_err(at(what()))?;
    if owner == home {
        return Ok(Claim::Ours);
    }
    match fs::metadata(&owner) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        // it is there, or nobody knows
        _ => return Ok(Claim::Anothers),
    }
    fs::remove_file(&path).map_err(at(what()))?;
    symlink(home, &path).map_err(at(what()))?;
    Ok(Claim::New)
}

/// Gives an id of a state directory back. The caller holds the directory's lock.
fn release(dir: &Path, home: &Path, id: u32) -> Result<(), NodeError> {
    let path = dir.join(id.to_string());
    let what = || format!("cannot give user {id} in {} back", dir.display());
    match fs::read_link(&path) {
        Ok(owner) if owner == home => fs::remove_file(&path).map_err(at(what())),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(at(what())(error)),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Users of the machines of a state directory, which is made, with the claims elsewhere.
    pub fn of(claims: &Path, home: &Path) -> Users {
        fs::create_dir_all(home).unwrap();
        Users {
            claims: Some((claims.to_owned(), home.to_owned())),
            ours: Mutex::default(),
        }
    }

    fn numbers(users: &Users, what: For, count: usize) -> Vec<u32> {
        let claimed = (0..count).map(|_| users.claim(what).unwrap().unwrap());
        claimed.map(|id| id - UID_FIRST).collect()
    }

    #[test]
    fn no_two_nodes_get_one_id_and_what_is_given_back_is_free_for_all() {
        let dir = tempfile::tempdir().unwrap();
        let claims = dir.path().join("claims");
        let [a, b] = ["a", "b"].map(|home| of(&claims, &dir.path().join(home)));
        assert_eq!(numbers(&a, For::Machine, 2), [0, 1]);
        assert_eq!(numbers(&b, For::Machine, 2), [2, 3]);
        let first = UID_COUNT - WAITING;
        assert_eq!(numbers(&a, For::Waiting, 1), [first]);
        assert_eq!(numbers(&b, For::Waiting, 1), [first + 1]);
        // nobody gives back what is another's
        b.release(Some(UID_FIRST));
        b.release(Some(UID_FIRST + 2));
        assert_eq!(numbers(&a, For::Machine, 1), [2]);
    }

    #[test]
    fn what_a_node_that_died_had_its_next_one_keeps_and_gives_back() {
        let dir = tempfile::tempdir().unwrap();
        let claims = dir.path().join("claims");
        let (home, other) = (dir.path().join("a"), of(&claims, &dir.path().join("b")));
        assert_eq!(numbers(&of(&claims, &home), For::Machine, 3), [0, 1, 2]);
        let next = of(&claims, &home);
        assert!(next.keep(UID_FIRST + 1).unwrap());
        assert!(!other.keep(UID_FIRST + 1).unwrap());
        next.release_left();
        assert_eq!(numbers(&other, For::Machine, 2), [0, 2]);
        // it is gone altogether, and with it what it had
        fs::remove_dir(&home).unwrap();
        assert_eq!(numbers(&other, For::Machine, 1), [1]);
    }

    #[test]
    fn of_many_nodes_at_once_each_gets_ids_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let claims = dir.path().join("claims");
        let nodes = ["a", "b", "c"].map(|home| of(&claims, &dir.path().join(home)));
        let mut all: Vec<u32> = floe_threads::scope(|scope| {
            let begun = nodes
                .each_ref()
                .map(|node| scope.spawn("claims", move || numbers(node, For::Machine, 20)));
            begun
                .into_iter()
                .flat_map(|node| node.join().unwrap())
                .collect()
        });
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 60);
    }

    #[test]
    fn a_claim_that_cannot_be_made_is_an_error_and_no_id() {
        let dir = tempfile::tempdir().unwrap();
        let claims = dir.path().join("claims");
        fs::write(&claims, b"").unwrap();
        let error = of(&claims, &dir.path().join("a")).claim(For::Machine);
        assert!(error.unwrap_err().to_string().contains("claims"));
    }
}
