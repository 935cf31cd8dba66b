//! Processes that a node's users start in a guest: how their streams share the agent's port with its lines.
//!
//! ```text
//! floe exec -- node -- Mux =============== virtio port =============== Mux -- agent -- process
//!                        open, data, signal ... ->    <- started, data, ended
//! ```
//! [`frame`] defines the form of a frame, which stands between the lines of the port; [`mux`] decides which frame is next,
//! so that a large copy delays no keystroke, and what the other side may send; [`request`] is what a process is to be.
//! None of them does I/O, and both ends use the same code. A node and an agent that know frames say so in `hello` and
//! `ready`; with any other, the port has lines alone.

pub mod frame;
pub mod mux;
pub mod request;
