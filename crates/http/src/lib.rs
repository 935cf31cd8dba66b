//! The HTTP client: HTTP/1.1 on the calling thread, over TCP, TLS or a unix socket.
//!
//! A [`Server`] is where requests go: made from a URL, or from the path of a unix socket. [`Server::connect`] gives a
//! [`Connection`] for one request after another; a [`Pool`] keeps connections alive and bounds how many there are. A
//! request is sent by `exchange`, which hands the answer's body over as it arrives; [`Connection::open`] gives the
//! answer as an [`Answer`] to read from, for streams that a caller pulls.
//!
//! Each connection has a tokio runtime of its own that runs only while its owner waits in a call, so a request costs no
//! hop to another thread. Measured ping-pong of 4 KiB over loopback: some 40 us this way, no more than with a bare
//! blocking socket; a page fault has 250 us in all. An idle connection costs two descriptors.
//!
//! A [`Fault`] says whether a request may have reached the server, since that decides whether it may be sent again.
//!
//! Deliberately absent: redirects, proxies, cookies and compression. A request goes to the server that was named, and
//! a token with it. Trying again is the caller's business, except on a kept connection that the server has closed.
//!
//! The calling thread must not be one that runs an async runtime's tasks.

mod address;
mod connection;
mod pool;
mod server;
mod tls;

pub use address::{escape, escape_path, shown, socket_address, web};
pub use connection::{Answer, Connection, Ended, Limits, OnData, OnSent};
pub use pool::Pool;
pub use server::{Fault, Server};
pub use tls::trusting;

pub use bytes::Bytes;
pub use hyper::http::response::Parts;
pub use hyper::http::{HeaderMap, HeaderName, HeaderValue, header};
pub use hyper::{Method, Request, StatusCode};
pub use url::{Host, Position, Url};
