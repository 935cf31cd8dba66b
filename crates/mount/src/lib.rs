//! floe-mount
