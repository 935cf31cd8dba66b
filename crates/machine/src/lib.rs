//! floe-machine
