//! floe-floe
