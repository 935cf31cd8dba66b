//! Where everything is stored on the disk.
//!
//! ```text
//! $FLOE_HOME (root: /var/lib/floe, others: ~/.local/share/floe)
//!   repo/       images of this node (floe_store::Repository)
//!   cache/      verified chunks (floe_store::Cache)
//!   machines/   NAME/{machine.json, lock, disks/, run/, console.log, qemu.log}
//!   forks/      the forks and their clones
//!   networks/   networks of families that have members here
//!   cluster/    keys, certificates and members of the cluster that this node is in
//!   hosts       nodes that forks know by name; written by the operator
//!   placement/  placement programs; written by the operator
//!   tickets/    allocations that these granted and that have to be given back
//!   traces/     what machines touched, by image, and the models made of it (floe_traces::TraceStore)
//!   models/     models that hubs sent
//!   outbox/     traces that wait to be sent to hubs
//!   mnt/        the mount
//!   hub/        hub.db, repo/            (floe hub, floe up)
//!   hub.token   address of the hub of floe up, and the token of the directory's owner for it
//!   page.token  token of the page
//! $FLOE_SOCKET (root: /run/floe/node.sock, others: $XDG_RUNTIME_DIR/floe/node.sock; with FLOE_HOME: $FLOE_HOME/node.sock)
//! ```

use std::path::{Path, PathBuf};

/// The state directory and the paths in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    root: PathBuf,
}

impl Home {
    /// Uses the given directory as state directory.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Home { root: root.into() }
    }

    /// Uses the directory that `FLOE_HOME` names; without it the default for the current user.
    pub fn from_env() -> Self {
        if let Some(home) = non_empty("FLOE_HOME") {
            return Home::at(std::path::absolute(&home).unwrap_or(home));
        }
        if rustix::process::geteuid().is_root() {
            return Home::at("/var/lib/floe");
        }
        let data = non_empty("XDG_DATA_HOME")
            .or_else(|| non_empty("HOME").map(|home| home.join(".local/share")))
            .unwrap_or_else(std::env::temp_dir);
        Home::at(data.join("floe"))
    }

    /// Returns the state directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }
    /// Returns the directory of images.
    pub fn repo(&self) -> PathBuf {
        self.root.join("repo")
    }
    /// Returns the directory of the chunk cache.
    pub fn cache(&self) -> PathBuf {
        self.root.join("cache")
    }
    /// Returns the directory of all machines.
    pub fn machines(&self) -> PathBuf {
        self.root.join("machines")
    }
    /// Returns the directory of one machine.
    pub fn machine(&self, name: &str) -> PathBuf {
        self.machines().join(name)
    }
    /// Returns the mount point.
    pub fn mountpoint(&self) -> PathBuf {
        self.root.join("mnt")
    }
    /// Returns the directory for the files of a running node: the supervisor's socket, live maps.
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }
    /// Returns the directory for temporary files, on the same file system as the rest.
    pub fn tmp(&self) -> PathBuf {
        self.root.join("tmp")
    }
    /// Returns the directory of forks.
    pub fn forks(&self) -> PathBuf {
        self.root.join("forks")
    }
    /// Returns the file that lists the images which `floe mount` shows in users' directories.
    pub fn views(&self) -> PathBuf {
        self.root.join("views")
    }

    /// Returns the directory with this node's part in swarms: its key, where it listens, what it seeds, and the pieces that are here.
    pub fn swarm(&self) -> PathBuf {
        self.root.join("swarm")
    }

    /// Returns the directory with the records of substrates, and the pool's budget.
    pub fn pool(&self) -> PathBuf {
        self.root.join("pool")
    }
    /// Returns the directory with the keys and members of the cluster that this node is in.
    pub fn cluster(&self) -> PathBuf {
        self.root.join("cluster")
    }
    /// Returns the file with the secret of which the keys of machines are made that are synced sealed.
    pub fn seal_key(&self) -> PathBuf {
        self.root.join("seal.key")
    }
    /// Returns the file with the nodes that are known by name.
    pub fn hosts(&self) -> PathBuf {
        self.root.join("hosts")
    }
    /// Returns the directory of placement programs.
    pub fn placement(&self) -> PathBuf {
        self.root.join("placement")
    }
    /// Returns the directory of allocations that placement programs granted.
    pub fn tickets(&self) -> PathBuf {
        self.root.join("tickets")
    }
    /// Returns the directory of families' networks.
    pub fn networks(&self) -> PathBuf {
        self.root.join("networks")
    }
    /// Returns the directory of machines' traces, by image.
    pub fn traces(&self) -> PathBuf {
        self.root.join("traces")
    }
    /// Returns the directory of models that hubs sent.
    pub fn models(&self) -> PathBuf {
        self.root.join("models")
    }
    /// Returns the directory of traces that wait to be sent to hubs.
    pub fn outbox(&self) -> PathBuf {
        self.root.join("outbox")
    }
    /// Returns the file with the address and token of the hub of `floe up`.
    pub fn hub_token(&self) -> PathBuf {
        self.root.join("hub.token")
    }
    /// Returns the hub's directory.
    pub fn hub(&self) -> PathBuf {
        self.root.join("hub")
    }

    /// Returns the node's socket: `FLOE_SOCKET`, or the default for this state directory.
    pub fn socket(&self) -> PathBuf {
        if let Some(socket) = non_empty("FLOE_SOCKET") {
            return socket;
        }
        if non_empty("FLOE_HOME").is_some() {
            return self.root.join("node.sock");
        }
        if rustix::process::geteuid().is_root() {
            return "/run/floe/node.sock".into();
        }
        match non_empty("XDG_RUNTIME_DIR") {
            Some(run) => run.join("floe/node.sock"),
            None => self.root.join("node.sock"),
        }
    }
}

fn non_empty(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}
