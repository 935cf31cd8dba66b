//! `floe up`, `floe node` and `floe down`: the processes that do the work.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::error::CliError;
use super::hub::{Answers, LISTEN_DEFAULT};
use super::images::acknowledge;
use super::{Context, args};
use crate::api::{NodeInfo, ShutdownRequest};
use crate::hub::{Anonymous, HubOptions};
use crate::node::{self, NodeHandle, NodeOptions};
use crate::telemetry::{LogOptions, init_logs};
use crate::up::{self, UpError};

/// Who publishes on the hub of `floe up`, which needs no token because it listens on this host only.
const LOCAL_USER: &str = "local";

/// What a node can be told.
#[derive(Debug, Args)]
struct NodeArgs {
    /// Most disk space of the chunk cache, such as 16G
    #[arg(long, value_parser = args::size, value_name = "SIZE")]
    cache: Option<u64>,
    /// Where images and machines appear as files; mnt/ in floe's state directory if not given
    #[arg(long, value_name = "DIR")]
    mountpoint: Option<PathBuf>,
    /// Give a guest an I/O error when no source answered for so many seconds; without it the guest waits
    #[arg(long, value_name = "SECONDS")]
    io_timeout: Option<u64>,
    /// Number of the group that may use the node's socket; whoever may use it has the node's rights
    #[arg(long, value_name = "GID")]
    socket_group: Option<u32>,
    /// QEMUs that wait for the next run of each of the images run last; 0 for none
    #[arg(long, value_name = "N")]
    standby: Option<usize>,
    /// Most memory for the translated code of each emulated machine, such as 32M: more machines fit on a host without KVM,
    /// each some 30 % slower at 32M
    #[arg(long, value_parser = args::size, value_name = "SIZE")]
    emulator_cache: Option<u64>,
    /// Write the log as JSON lines
    #[arg(long)]
    log_json: bool,
}

impl NodeArgs {
    fn options(self, cx: &Context) -> Result<NodeOptions, CliError> {
        init_logs(&LogOptions {
            json: self.log_json,
            verbosity: cx.verbose,
        });
        let mut options = NodeOptions::new(cx.home.clone())
            .map_err(|e| CliError::failed("cannot find this program's own file", e))?;
        options.socket = cx.socket.clone();
        options.socket_group = self.socket_group;
        options.io_timeout = self.io_timeout.map(Duration::from_secs);
        if let Some(mountpoint) = self.mountpoint {
            options.mountpoint = args::absolute(&mountpoint)?.into();
        }
        if let Some(cache) = self.cache {
            options.cache_budget = cache;
        }
        if let Some(standby) = self.standby {
            options.standby.each = standby;
        }
        if let Some(bytes) = self.emulator_cache {
            let mib = u32::try_from(bytes >> 20).ok().filter(|&mib| mib > 0);
            options.emulator_cache_mib = Some(mib.ok_or_else(|| {
                CliError::usage(
                    format!("--emulator-cache {bytes} is not between 1M and 4095T"),
                    "32M is the least that is worth it",
                )
            })?);
        }
        Ok(options)
    }
}

/// Run hub and node in one process, everything embedded, until Ctrl-C
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe up &
  floe run debian --name web
  floe push debian http://127.0.0.1:4500

Machines outlive it: the next floe up takes them over. floe down --machines ends them too.")]
pub struct Up {
    /// Address and port of the hub, on this host
    #[arg(long, default_value = LISTEN_DEFAULT)]
    listen: SocketAddr,
    #[command(flatten)]
    node: NodeArgs,
}

/// Run the node, which runs this host's machines, until Ctrl-C or SIGTERM
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe node --cache 32G
  systemctl start floe-node

Machines outlive it: the next node takes them over. floe down --machines ends them too.")]
pub struct Node {
    #[command(flatten)]
    node: NodeArgs,
}

/// End the node; machines go on and the next node takes them over
#[derive(Debug, Args)]
#[command(after_help = "\
Example: update floe under running machines
  floe down && apt upgrade floe && floe up
Example: before the host is switched off
  floe down --machines")]
pub struct Down {
    /// Power the machines down too
    #[arg(long)]
    machines: bool,
}

/// What `up` and `node` say once they answer.
#[derive(Serialize)]
struct Ready {
    #[serde(skip_serializing_if = "Option::is_none")]
    hub: Option<Answers>,
    node: NodeInfo,
    socket: PathBuf,
}

fn announce(cx: &Context, hub: Option<Answers>, node: &NodeHandle) -> Result<(), CliError> {
    let ready = Ready {
        hub,
        node: node.node().info().map_err(|e| CliError(e.to_api()))?,
        socket: node.socket().to_owned(),
    };
    cx.out.value(&ready, |ready| {
        let hub = ready.hub.as_ref().map(Answers::text).unwrap_or_default();
        let took_over = if ready.node.took_over {
            ", took machines over"
        } else {
            ""
        };
        format!(
            "{hub}node answers on {}{took_over}\n  files appear under {}\n",
            ready.socket.display(),
            ready.node.mountpoint
        )
    })?;
    if let Some(reason) = &ready.node.accel_reason {
        eprintln!("note: {reason}; guests run under TCG, 10 to 50 times slower");
    }
    Ok(())
}

impl Up {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let node = self.node.options(cx)?;
        let mut hub = HubOptions::new(cx.home.hub(), self.listen);
        hub.anonymous = Anonymous::User(LOCAL_USER.into());
        let up = up::serve(hub, node).map_err(|error| match error {
            UpError::Hub(error) => CliError::from(error),
            UpError::Node(error) => CliError(error.to_api()),
        })?;
        announce(cx, Some(Answers::of(&up.hub)), &up.node)?;
        up.wait_or_signal();
        Ok(())
    }
}

impl Node {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let node = node::serve(self.node.options(cx)?).map_err(|e| CliError(e.to_api()))?;
        announce(cx, None, &node)?;
        node.wait_or_signal();
        Ok(())
    }
}

impl Down {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let stop_machines = self.machines;
        cx.client()?.shutdown(&ShutdownRequest { stop_machines })?;
        acknowledge(cx, "the node ends")
    }
}
