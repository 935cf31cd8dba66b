//! `floe up`: hub and node in one process with everything embedded, as needed on a laptop.

use floe_api::credentials::{HubAddress, OwnHub};
use floe_api::paths::Home;
use floe_hub::{HubError, HubHandle, HubOptions};
use floe_node::{NodeError, NodeHandle, NodeOptions};

/// The hub's user who owns the images of the state directory's owner.
const USER: &str = "local";

/// Why one of the two did not start. The other one has been ended again.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// The hub did not start.
    #[error("the hub did not start: {0}")]
    Hub(#[from] HubError),
    /// The node did not start.
    #[error("the node did not start: {0}")]
    Node(#[from] NodeError),
}

/// A running hub and a running node.
pub struct UpHandle {
    /// The hub.
    pub hub: HubHandle,
    /// The node.
    pub node: NodeHandle,
}

/// Starts both and returns once both answer. The node has a token for the hub: whoever may use the node may use what its
/// owner has on the hub, and nobody else may.
pub fn serve(hub: HubOptions, mut node: NodeOptions) -> Result<UpHandle, UpError> {
    let hub = floe_hub::serve(hub)?;
    let own = own_hub(&node.home, &hub);
    node.own_hub = match own {
        Ok(own) => Some(own),
        Err(error) => {
            hub.shutdown();
            return Err(error.into());
        }
    };
    match floe_node::serve(node) {
        Ok(node) => Ok(UpHandle { hub, node }),
        Err(error) => {
            hub.shutdown();
            Err(error.into())
        }
    }
}

/// Returns the token in the state directory if the hub still knows it, otherwise a new one, with the hub's current
/// address.
fn own_hub(home: &Home, hub: &HubHandle) -> Result<OwnHub, HubError> {
    let file = home.hub_token();
    let kept = OwnHub::load(&file).map(|own| own.token);
    let own = OwnHub {
        hub: HubAddress::of(&hub.url())
            .ok_or_else(|| HubError::Options(format!("{} is no address", hub.url())))?,
        token: hub.ensure_token(USER, kept)?,
    };
    own.save(&file)
        .map_err(HubError::file("cannot write", &file))?;
    Ok(own)
}

impl UpHandle {
    /// Blocks until the node is asked to end or a signal arrives, then ends both; machines keep running.
    pub fn wait_or_signal(self) {
        self.node.wait_or_signal();
        self.hub.shutdown();
    }
}
