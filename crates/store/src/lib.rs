//! floe-store
