//! What the server and the receivers of a group decide: state machines without I/O or clocks. `now` is always the time since
//! some fixed moment.

mod rate;
mod receiver;
mod server;
mod timing;

pub use rate::{RATE_MAX, RATE_MIN};
pub use receiver::{Item, Receiver, ReceiverStats};
pub(super) use server::pack;
pub use server::{Next, Packed, Server, ServerStats};

#[cfg(test)]
mod tests;
