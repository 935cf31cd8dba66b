//! What a user of a hub may do now, by what the user stores and has asked: the decisions are `quota`'s.

use super::Quota;
use super::error::{ApiError, ApiResult};
use super::quota::{Room, refused};
use super::state::Hub;
use std::time::Instant;

/// Returns the quota of `user`.
pub(super) fn quota_of(hub: &Hub, user: &str) -> ApiResult<Quota> {
    Ok(hub.catalogue.quota(user)?.or(&hub.limits.quota))
}

/// Returns how many bytes `user` may have sent and not yet published, and may have in all.
pub(super) fn room_of(hub: &Hub, user: &str) -> ApiResult<Room> {
    Ok(Room {
        quota: quota_of(hub, user)?,
        staged_bytes_max: hub.limits.staged_bytes_max,
    })
}

/// Returns an error unless one more trace of `sender` may be kept. Traces of strangers are bounded per image only.
pub(super) fn check_traces(hub: &Hub, sender: Option<&str>) -> ApiResult<()> {
    let Some(user) = sender else { return Ok(()) };
    let (kept, quota) = (hub.traces.count_of(user), quota_of(hub, user)?);
    if kept >= quota.traces {
        return Err(refused(
            format!(
                "{kept} traces of {user} are kept here, and {} may be",
                quota.traces
            ),
            "wait until newer ones displace them",
        ));
    }
    Ok(())
}

/// Waits until `user` may ask about so many items; an error if that takes too long.
pub(super) async fn pace(hub: &Hub, user: &str, items: usize) -> ApiResult<()> {
    let wait = hub
        .asked
        .enter(&hub.limits, user, items as u64, Instant::now());
    let wait = wait
        .ok_or_else(|| ApiError::busy(&format!("{user} asks what is here faster than it may")))?;
    tokio::time::sleep(wait).await;
    Ok(())
}
