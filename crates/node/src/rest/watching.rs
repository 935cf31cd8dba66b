//! Waiting for a machine.

use super::answer::{Args, Failure, Path, blocking};
use crate::{Node, error::failed};
use axum::{Json, extract::State};
use floe_api::*;
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

/// Looks at the machine once, and again after each event that concerns it. The wait ends with the client's connection.
async fn until(node: Arc<Node>, mut name: String, what: WaitFor) -> Result<MachineInfo, Failure> {
    // listened to before the first look, so that nothing happens in between
    let mut events = node.core.listen();
    let entry = node.inventory.get(&name)?;
    loop {
        let (looks, entry) = (node.clone(), entry.clone());
        if let Some(info) = blocking(move || Ok(looks.machines.reached(&entry, what))).await? {
            return Ok(info);
        }
        loop {
            match events.recv().await {
                Ok(event) if event.subject != name => {}
                Ok(event) if event.kind == Happened::MachineRenamed => name = event.detail,
                Ok(_) | Err(RecvError::Lagged(_)) => break,
                Err(RecvError::Closed) => return Err(failed("the node ends", "").into()),
            }
        }
    }
}
