//! Waiting for a machine.

use super::answer::{Args, Failure, Path, blocking};
use crate::Node;
use axum::{Json, extract::State};
use floe_api::*;
use floe_ground::error::failed;
use std::{sync::Arc, time::Duration};
use tokio::sync::broadcast::error::RecvError;

type Floe = State<Arc<Node>>;

/// Waits until a machine does something, and answers with the machine as it is then.
#[utoipa::path(get, path = "/v1/machines/{name}/wait", tag = "machines", params(("name" = String, Path), WaitQuery),
    responses((status = 200, body = MachineInfo), (status = 404, body = ApiError)))]
pub async fn wait(
    State(node): Floe,
    Path(name): Path<String>,
    Args(query): Args<WaitQuery>,
) -> Result<Json<MachineInfo>, Failure> {
    let WaitQuery { what, timeout_s } = query;
    let Some(limit_s) = timeout_s else {
        return until(node, name, what).await.map(Json);
    };
    let limit = Duration::from_secs(limit_s);
    match tokio::time::timeout(limit, until(node.clone(), name.clone(), what)).await {
        Ok(reached) => reached.map(Json),
        Err(_) => Err(node.machines.not_reached(&name, what, limit_s).into()),
    }
}

/// Looks at the machine once, and again after each event that concerns it, whatever it is called by then. The wait ends with the
/// client's connection.
async fn until(node: Arc<Node>, name: String, what: WaitFor) -> Result<MachineInfo, Failure> {
    // listened to before the first look, so that nothing happens in between
    let mut events = node.core.listen();
    let entry = node.inventory.get(&name)?;
    loop {
        let name = entry.name.clone();
        let (looks, looked_at) = (node.clone(), entry.clone());
        let look = move || Ok(looks.machines.reached(&looked_at, what));
        if let Some(info) = blocking(look).await? {
            return Ok(info);
        }
        // its name may be another since that look; an event that was lost may have told so
        let concerns = |subject: &str| [name.as_str(), entry.name.as_str()].contains(&subject);
        loop {
            match events.recv().await {
                Ok(event) if !concerns(&event.subject) => {}
                Ok(_) | Err(RecvError::Lagged(_)) => break,
                Err(RecvError::Closed) => return Err(failed("the node ends", "").into()),
            }
        }
    }
}
