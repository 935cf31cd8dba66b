//! Names and inode numbers. The kernel keeps numbers for as long as the connection lives, which is longer than a node, so the
//! supervisor holds their table beside the connection's descriptors; it gets the table before anybody gets a number. Each
//! change makes a new memory file: it is never half written, needs no room on a disk and goes with the connection.

use crate::abi::Attr;
use crate::image::Image;
use crate::machine::Machine;
use crate::overlay::Disk;
use crate::{Keeper, MountError};
use parking_lot::RwLock;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) const ROOT: u64 = 1;
const IMAGES: u64 = 2;
const MACHINES: u64 = 3;
const FIRST_FREE: u64 = 4;
const VERSION: u32 = 1;
/// The table's file in the runtime directory, where earlier versions kept it.
const OLD_FILE: &str = "inodes.json";
/// Most bytes of a table that is read: a million paths.
const TABLE_BYTES_MAX: u64 = 256 << 20;

/// What an inode number stands for.
#[derive(Clone)]
pub(crate) enum Node {
    Dir {
        path: String,
        uid: u32,
        gid: u32,
        mode: u32,
    },
    Region {
        image: Arc<Image>,
        region: usize,
    },
    Disk {
        machine: Arc<Machine>,
        disk: Arc<Disk>,
    },
}

/// The table of inodes, which outlives the process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Table {
    version: u32,
    next: u64,
    /// The longest WRITE in bytes, as agreed in INIT.
    pub max_write: u32,
    /// Inode numbers by path from the mountpoint; two paths may share one.
    paths: BTreeMap<String, u64>,
}

impl Table {
    fn decode(bytes: &[u8]) -> Result<Table, String> {
        let table: Table = serde_json::from_slice(bytes)
            .map_err(|e| format!("this is not a table of inodes: {e}"))?;
        if table.version != VERSION {
            return Err(format!(
                "the table has version {}, this floe reads {VERSION}",
                table.version
            ));
        }
        Ok(table)
    }
}

struct State {
    table: Table,
    nodes: HashMap<u64, Node>,
}

/// Where a mount's table is kept: the keeper, and the name that it has there.
pub(crate) struct Kept {
    pub keeper: Keeper,
    pub name: String,
}

pub(crate) struct Tree {
    kept: Option<Kept>,
    state: RwLock<State>,
    uid: u32,
    gid: u32,
}

/// The result of a look-up.
pub(crate) enum Found {
    Node(u64, Node),
    /// It existed before the takeover, and hasn't been added again yet.
    Expected,
    Nothing,
}

/// Returns a disk's path on the mount, and the node that stands there.
pub(crate) fn disk_entry(machine: &Arc<Machine>, disk: Arc<Disk>) -> (String, Option<Node>) {
    let path = format!("machines/{}/{}", machine.name, disk.name);
    let machine = machine.clone();
    (path, Some(Node::Disk { machine, disk }))
}

/// Returns whether a machine's directory shows this region of its image (its memory, not its disks).
pub(crate) fn is_shown(region: &str) -> bool {
    region == "vram" || floe_image::memory_block(region).is_some()
}

fn child(parent: &str, name: &str) -> String {
    if parent.is_empty() {
        name.to_owned()
    } else {
        format!("{parent}/{name}")
    }
}

impl Tree {
    /// Reads the table of a connection that is taken over; fails if there is none or it can't be read.
    pub(crate) fn load(kept: &Kept, runtime_dir: &Path) -> Result<Table, MountError> {
        let old = runtime_dir.join(OLD_FILE);
        let (path, file) = match kept.keeper.take(&kept.name)? {
            Some(fd) => (PathBuf::from(&kept.name), Ok(File::from(fd))),
            None => (old.clone(), File::open(&old)),
        };
        let read = |file: File| -> Result<Table, String> {
            let bytes = file.metadata().map_err(|e| e.to_string())?.len();
            if bytes > TABLE_BYTES_MAX {
                return Err(format!("{bytes} bytes are too many for a table of inodes"));
            }
            let mut table = vec![0; bytes as usize];
            file.read_exact_at(&mut table, 0)
                .map_err(|e| e.to_string())?;
            Table::decode(&table)
        };
        let read = file.map_err(|e| e.to_string()).and_then(read);
        read.map_err(|reason| MountError::Overlay { path, reason })
    }

    pub(crate) fn new(
        kept: Option<Kept>,
        table: Option<Table>,
        max_write: u32,
    ) -> Result<Self, MountError> {
        let fresh = || {
            let paths = [
                ("".to_owned(), ROOT),
                ("images".to_owned(), IMAGES),
                ("machines".to_owned(), MACHINES),
            ];
            Table {
                version: VERSION,
                next: FIRST_FREE,
                max_write,
                paths: paths.into(),
            }
        };
        let (uid, gid) = (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        let dir = |path: &str, mode| Node::Dir {
            path: path.to_owned(),
            uid,
            gid,
            mode,
        };
        // Knowing an image's name must not be enough to read its memory, so users get machines' directories only. Nobody but
        // the owner can list them.
        let nodes = [
            (ROOT, dir("", 0o711)),
            (IMAGES, dir("images", 0o700)),
            (MACHINES, dir("machines", 0o711)),
        ];
        let table = table.unwrap_or_else(fresh);
        let state = State {
            table,
            nodes: nodes.into(),
        };
        let tree = Self {
            kept,
            state: RwLock::new(state),
            uid,
            gid,
        };
        tree.save(&tree.state.read().table)?;
        Ok(tree)
    }

    fn save(&self, table: &Table) -> Result<(), MountError> {
        let Some(Kept { keeper, name }) = &self.kept else {
            return Ok(());
        };
        let write = || -> io::Result<File> {
            let file: File = memfd_create("floe-inodes", MemfdFlags::CLOEXEC)?.into();
            file.write_all_at(&serde_json::to_vec(table)?, 0)?;
            Ok(file)
        };
        keeper.hold(name, write().map_err(MountError::io("write", name))?)
    }

    /// Adds nodes by their paths; `None` makes a directory that belongs to `owner`. A path that has a number already keeps it.
    pub(crate) fn add(
        &self,
        entries: Vec<(String, Option<Node>)>,
        owner: Option<(u32, u32)>,
    ) -> Result<(), MountError> {
        let mut state = self.state.write();
        let mut table = state.table.clone();
        let (mut nodes, mut changed) = (Vec::new(), false);
        for (path, node) in entries {
            let shared = match &node {
                Some(Node::Region { image, region }) => {
                    let path = format!("images/{}/{}", image.id, image.regions[*region].name);
                    table
                        .paths
                        .get(&path)
                        .copied()
                        .or_else(|| region_ino(&state.nodes, image, *region))
                }
                _ => None,
            };
            let ino = table
                .paths
                .get(&path)
                .copied()
                .or(shared)
                .unwrap_or_else(|| {
                    table.next += 1;
                    table.next - 1
                });
            let (uid, gid) = owner.unwrap_or((self.uid, self.gid));
            let node = node.unwrap_or_else(|| Node::Dir {
                path: path.clone(),
                uid,
                gid,
                mode: 0o700,
            });
            changed |= table.paths.insert(path, ino) != Some(ino);
            nodes.push((ino, node));
        }
        if changed {
            self.save(&table)?;
            state.table = table;
        }
        state.nodes.extend(nodes);
        Ok(())
    }

    /// Removes a directory and what is in it, except nodes that another path still has; returns the removed names with their
    /// parents.
    pub(crate) fn remove(&self, path: &str) -> Result<Vec<(u64, String)>, MountError> {
        let mut state = self.state.write();
        let mut table = state.table.clone();
        let inside = format!("{path}/");
        let gone: Vec<(String, u64)> = table
            .paths
            .iter()
            .filter(|(p, _)| *p == path || p.starts_with(&inside))
            .map(|(p, i)| (p.clone(), *i))
            .collect();
        let mut names = Vec::new();
        for (path, _) in &gone {
            table.paths.remove(path);
            let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
            if let Some(ino) = state.table.paths.get(parent) {
                names.push((*ino, name.to_owned()));
            }
        }
        self.save(&table)?;
        for (_, ino) in gone {
            if !table.paths.values().any(|i| *i == ino) {
                state.nodes.remove(&ino);
            }
        }
        state.table = table;
        Ok(names)
    }

    /// Returns the node of an inode number that the kernel sent.
    pub(crate) fn node(&self, ino: u64) -> Found {
        let state = self.state.read();
        match state.nodes.get(&ino) {
            Some(node) => Found::Node(ino, node.clone()),
            None if state.table.paths.values().any(|i| *i == ino) => Found::Expected,
            None => Found::Nothing,
        }
    }

    /// Looks a name up in a directory.
    pub(crate) fn lookup(&self, parent: u64, name: &str) -> Found {
        let state = self.state.read();
        let Some(Node::Dir { path, .. }) = state.nodes.get(&parent) else {
            let expected = state.table.paths.values().any(|i| *i == parent);
            return if expected {
                Found::Expected
            } else {
                Found::Nothing
            };
        };
        let Some(ino) = state.table.paths.get(&child(path, name)) else {
            return Found::Nothing;
        };
        match state.nodes.get(ino) {
            Some(node) => Found::Node(*ino, node.clone()),
            None => Found::Expected,
        }
    }

    pub(crate) fn ino(&self, path: &str) -> Option<u64> {
        self.state.read().table.paths.get(path).copied()
    }

    /// Returns what is in a directory: inode number, whether it is a directory, and name.
    pub(crate) fn list(&self, dir: &str) -> Vec<(u64, bool, String)> {
        let state = self.state.read();
        let prefix = if dir.is_empty() {
            String::new()
        } else {
            format!("{dir}/")
        };
        let paths = state
            .table
            .paths
            .range(prefix.clone()..)
            .take_while(|(p, _)| p.starts_with(&prefix));
        let direct = paths.filter_map(|(p, ino)| {
            Some((&p[prefix.len()..], ino)).filter(|(n, _)| !n.is_empty() && !n.contains('/'))
        });
        let known = direct.filter_map(|(name, ino)| {
            Some((
                *ino,
                matches!(state.nodes.get(ino)?, Node::Dir { .. }),
                name.to_owned(),
            ))
        });
        known.collect()
    }

    /// Returns the names right below `dir` that existed before the takeover and haven't been added again.
    pub(crate) fn expected(&self, dir: &str) -> Vec<String> {
        let state = self.state.read();
        let missing = state
            .table
            .paths
            .iter()
            .filter(|(_, ino)| !state.nodes.contains_key(ino));
        let names = missing.filter_map(|(p, _)| p.strip_prefix(dir)?.strip_prefix('/'));
        names
            .filter(|n| !n.contains('/'))
            .map(str::to_owned)
            .collect()
    }

    pub(crate) fn attr(&self, ino: u64, node: &Node) -> Attr {
        let (size, mode, uid, gid) = match node {
            Node::Dir { uid, gid, mode, .. } => (0, libc::S_IFDIR | mode, *uid, *gid),
            // QEMU may open it for writing; WRITE is then refused, and so is a shared mapping (`serve`). The directories above
            // decide who may open it at all.
            Node::Region { image, region } => (
                image.regions[*region].size,
                libc::S_IFREG | 0o666,
                self.uid,
                self.gid,
            ),
            Node::Disk { machine, disk } => {
                (disk.size(), libc::S_IFREG | 0o600, machine.uid, machine.gid)
            }
        };
        let links = if matches!(node, Node::Dir { .. }) {
            2
        } else {
            1
        };
        Attr {
            ino,
            size,
            mode,
            links,
            uid,
            gid,
        }
    }
}

/// Returns the number of a region that a machine still shows after its image's directory was removed.
fn region_ino(nodes: &HashMap<u64, Node>, wanted: &Arc<Image>, region: usize) -> Option<u64> {
    let same = |node: &Node| matches!(node, Node::Region { image, region: r } if Arc::ptr_eq(image, wanted) && *r == region);
    nodes
        .iter()
        .find(|(_, node)| same(node))
        .map(|(ino, _)| *ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_the_process_and_are_never_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("sock");
        let serving = socket.clone();
        std::thread::spawn(move || crate::supervisor::run(&serving, || ()));
        let keeper = Keeper::start(&socket, |socket| {
            while crate::supervisor::Client::connect(socket).is_err() {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            Ok(())
        });
        let keeper = keeper.unwrap();
        let kept = || Kept {
            keeper: keeper.clone(),
            name: "tree".into(),
        };
        let tree = Tree::new(Some(kept()), None, 1).unwrap();
        tree.add(
            vec![("machines/a".into(), None), ("machines/b".into(), None)],
            Some((1, 1)),
        )
        .unwrap();
        let b = tree.ino("machines/b").unwrap();
        tree.remove("machines/a").unwrap();
        let table = Tree::load(&kept(), dir.path()).unwrap();
        let tree = Tree::new(Some(kept()), Some(table), 1).unwrap();
        assert_eq!(tree.expected("machines"), ["b"]);
        assert!(matches!(tree.node(b), Found::Expected));
        tree.add(
            vec![("machines/c".into(), None), ("machines/b".into(), None)],
            None,
        )
        .unwrap();
        assert_eq!(tree.ino("machines/b"), Some(b));
        assert!(tree.ino("machines/c").unwrap() > b);
        assert!(matches!(tree.lookup(MACHINES, "a"), Found::Nothing));
        assert_eq!(tree.list("machines").len(), 2);
        // An earlier version's file is read if the supervisor has none; a damaged file is reported.
        keeper.release("tree");
        let old = dir.path().join(OLD_FILE);
        std::fs::write(&old, "").unwrap();
        assert!(Tree::load(&kept(), dir.path()).is_err());
        let table = serde_json::to_vec(&tree.state.read().table).unwrap();
        std::fs::write(&old, table).unwrap();
        assert!(Tree::load(&kept(), dir.path()).is_ok());
        keeper.end();
    }
}
