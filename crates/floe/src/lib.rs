//! floe
pub mod hub;
pub mod telemetry;
pub mod transfer;
