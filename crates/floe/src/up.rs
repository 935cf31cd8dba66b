//! `floe up`: hub and node in one process, everything embedded. What a laptop needs.

use crate::{
    hub::{self, HubError, HubHandle, HubOptions},
    node::{self, NodeError, NodeHandle, NodeOptions},
};

/// Why one of the two did not start. The other has been ended again.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// The hub.
    #[error("the hub did not start: {0}")]
    Hub(#[from] HubError),
    /// The node.
    #[error("the node did not start: {0}")]
    Node(#[from] NodeError),
}

/// Hub and node at work.
pub struct UpHandle {
    /// The hub.
    pub hub: HubHandle,
    /// The node.
    pub node: NodeHandle,
}

/// Starts both and returns once both answer.
pub fn serve(hub: HubOptions, node: NodeOptions) -> Result<UpHandle, UpError> {
    let hub = hub::serve(hub)?;
    match node::serve(node) {
        Ok(node) => Ok(UpHandle { hub, node }),
        Err(error) => {
            hub.shutdown();
            Err(error.into())
        }
    }
}

impl UpHandle {
    /// Blocks until somebody asks the node to end or a signal comes, then ends both; machines go on.
    pub fn wait_or_signal(self) {
        self.node.wait_or_signal();
        self.hub.shutdown();
    }
}
