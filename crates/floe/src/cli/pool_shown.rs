//! What the pool of a node and one on a host of its own have in common: who may see a substrate, and how full a pool is.

use clap::Args;

use super::output::{bytes, fields};
use floe_api::{PoolStatus, Visibility};

/// Who else may see a substrate.
#[derive(Debug, Args)]
#[group(id = "visible", multiple = false)]
pub(super) struct Visible {
    /// Nobody else may see it
    #[arg(long)]
    private: bool,
    /// These users of this host may see it too
    #[arg(long, value_delimiter = ',', value_name = "USER")]
    pub(super) restricted: Vec<String>,
    /// Everybody who may use this node may see it
    #[arg(long)]
    public: bool,
}

impl Visible {
    /// Returns what the user has asked for, if anything.
    pub(super) fn asked(&self) -> Option<Visibility> {
        match (self.private, self.public, self.restricted.is_empty()) {
            (true, _, _) => Some(Visibility::Private),
            (_, true, _) => Some(Visibility::Public),
            (_, _, false) => Some(Visibility::Restricted),
            _ => None,
        }
    }
}

/// Describes how full a pool is.
pub(super) fn status(status: &PoolStatus) -> String {
    let warm = match (status.warming, status.warm_ms) {
        (true, _) => "under way".to_owned(),
        (false, Some(ms)) => format!("after {:.1} s", ms / 1e3),
        (false, None) => String::new(),
    };
    fields(&[
        ("budget", bytes(status.budget_bytes)),
        (
            "the host has",
            status.host_bytes.map(bytes).unwrap_or_default(),
        ),
        ("used", bytes(status.used_bytes)),
        ("compressed", bytes(status.compressed_bytes)),
        ("unpacked", bytes(status.raw_bytes)),
        ("without sharing", bytes(status.referred_bytes)),
        ("substrates", status.substrates.to_string()),
        ("in memory", status.in_memory.to_string()),
        ("left for machines", status.gave_way.to_string()),
        ("warm", warm),
    ])
}

/// Returns the word for where a substrate is.
pub(super) fn place(in_memory: bool) -> &'static str {
    match in_memory {
        true => "memory",
        false => "disk",
    }
}
