//! floe-planner
