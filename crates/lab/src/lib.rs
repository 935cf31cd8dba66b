//! floe-lab
