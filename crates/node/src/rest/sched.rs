//! Where vCPUs run.

use super::answer::{Failure, answer};
use crate::Node;
use axum::{Json, extract::State};
use floe_api::*;
use std::sync::Arc;

/// Where the vCPUs of machines run, and how they fare.
#[utoipa::path(get, path = "/v1/sched", tag = "node", responses((status = 200, body = SchedReport)))]
pub async fn sched(State(node): State<Arc<Node>>) -> Result<Json<SchedReport>, Failure> {
    answer(move || Ok(node.vcpus.report())).await
}
