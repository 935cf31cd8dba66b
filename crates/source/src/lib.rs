//! floe-source
