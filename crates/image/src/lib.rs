//! floe-image
