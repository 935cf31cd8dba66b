//! A slow link on one machine: two network namespaces joined by two TUN devices, and between them a process that delivers
//! each packet when the link would have. netem is not used because the kernel here does not have it; besides, this link
//! can follow a recorded trace, count every byte, and be tested in virtual time.
//!
//! - [`Link`] is one direction, a state machine: `now` and a packet go in, due packets come out. It has no clock and no
//!   socket.
//! - [`Shape`] describes the behaviour: rate (or recorded [`Trace`]), delay, jitter, loss, queue.
//! - [`Namespace`] is one end; [`Bridge`] joins two of them with a `Link` in each direction.
//! - [`Segment`] is many ends at one switch, as fast as the kernel copies.
//! - [`measure`] checks whether a link behaves as described.
mod bridge;
pub mod measure;
mod namespace;
mod parse;
mod segment;
mod shape;
mod state;
mod sys;
pub mod tool;
mod trace;

pub use bridge::{Bridge, BridgeError, Counters, Ends, Traffic};
pub use namespace::Namespace;
pub use parse::{parse_bytes, parse_duration_ns, parse_rate, parse_share};
pub use segment::{SEGMENT_HOSTS_MAX, Segment};
pub use shape::{Rate, Shape};
pub use state::{Link, Verdict};
pub use sys::exact_timers;
pub use trace::{MTU, Trace, TraceError};
