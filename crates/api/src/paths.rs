//! Where everything lies on the disk.
//!
//! ```text
//! $FLOE_HOME (root: /var/lib/floe, others: ~/.local/share/floe)
//!   repo/       images of this node (floe_store::Repository)
//!   cache/      verified chunks (floe_store::Cache)
//!   machines/   NAME/{machine.json, lock, disks/, run/, console.log, qemu.log}
//!   forks/      what forks there were, with their clones
//!   networks/   networks of families that have members here
//!   cluster/    keys, certificates and members of the cluster that this node is in
//!   hosts       nodes that are known by name, the operator's
//!   placement/  programs that share hosts out, the operator's
//!   tickets/    what they granted and has to be given back
//!   traces/     what machines touched, by image, and the models made of it (floe_traces::TraceStore)
//!   models/     models that hubs sent
//!   outbox/     traces on their way to hubs
//!   mnt/        the mount
//!   hub/        hub.db, repo/            (floe hub, floe up)
//!   hub.token   of the hub of floe up: its address, and the token of the directory's owner
//!   page.token  of the page
//! $FLOE_SOCKET (root: /run/floe/node.sock, others: $XDG_RUNTIME_DIR/floe/node.sock; with FLOE_HOME: $FLOE_HOME/node.sock)
//! ```

use std::path::{Path, PathBuf};

/// The state directory and what lies in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    root: PathBuf,
}

impl Home {
    /// A state directory at a place of the caller's choice.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Home { root: root.into() }
    }

    /// The directory that `FLOE_HOME` names, or else the user's.
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

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }
    /// Images.
    pub fn repo(&self) -> PathBuf {
        self.root.join("repo")
    }
    /// Chunks.
    pub fn cache(&self) -> PathBuf {
        self.root.join("cache")
    }
    /// Machines.
    pub fn machines(&self) -> PathBuf {
        self.root.join("machines")
    }
    /// One machine.
    pub fn machine(&self, name: &str) -> PathBuf {
        self.machines().join(name)
    }
    /// The mount.
    pub fn mountpoint(&self) -> PathBuf {
        self.root.join("mnt")
    }
    /// What belongs to a running node: supervisor's socket, live maps.
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }
    /// Temporary files, on the same file system as the rest.
    pub fn tmp(&self) -> PathBuf {
        self.root.join("tmp")
    }
    /// Forks.
    pub fn forks(&self) -> PathBuf {
        self.root.join("forks")
    }
    /// Images shown in directories of users.
    pub fn views(&self) -> PathBuf {
        self.root.join("views")
    }
    /// The cluster that this node is in.
    pub fn cluster(&self) -> PathBuf {
        self.root.join("cluster")
    }
    /// Nodes that are known by name.
    pub fn hosts(&self) -> PathBuf {
        self.root.join("hosts")
    }
    /// Programs that share hosts out.
    pub fn placement(&self) -> PathBuf {
        self.root.join("placement")
    }
    /// What they granted.
    pub fn tickets(&self) -> PathBuf {
        self.root.join("tickets")
    }
    /// Networks of families.
    pub fn networks(&self) -> PathBuf {
        self.root.join("networks")
    }
    /// Traces of machines, by image.
    pub fn traces(&self) -> PathBuf {
        self.root.join("traces")
    }
    /// Models that hubs sent.
    pub fn models(&self) -> PathBuf {
        self.root.join("models")
    }
    /// Traces on their way to hubs.
    pub fn outbox(&self) -> PathBuf {
        self.root.join("outbox")
    }
    /// Address and token of the hub of `floe up`.
    pub fn hub_token(&self) -> PathBuf {
        self.root.join("hub.token")
    }
    /// The hub's part.
    pub fn hub(&self) -> PathBuf {
        self.root.join("hub")
    }

    /// The node's socket: `FLOE_SOCKET`, or the place that belongs to this state directory.
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
