//! Wrappers: sources around sources.

pub(crate) mod coalesce;
pub(crate) mod failover;
pub(crate) mod retry;
pub(crate) mod verified;
