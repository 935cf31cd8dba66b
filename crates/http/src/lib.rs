//! The HTTP client: HTTP/1.1 on the calling thread, over TCP, TLS or a unix socket.
//!
//! A [`Server`] is where requests go: it is made from a URL, or from the path of a unix socket. [`Server::connect`] returns a
//! [`Connection`] for one request after another; [`Connections`] keeps some open and limits their number. `exchange` sends a
//! request and passes the answer's body on as it arrives; [`Connection::open`] returns the answer as an [`Answer`] to read
//! from, for streams that a caller pulls.
//!
//! Each connection has its own tokio runtime, which runs only while its owner waits in a call, so a request needs no switch to
//! another thread. A measured ping-pong of 4 KiB over loopback takes some 40 us this way, no more than with a bare blocking
//! socket; a page fault may take 250 us in all. An idle connection costs two descriptors.
//!
//! [`carry()`] carries the bytes of two connections to each other: of one that has gone over to another protocol, for instance.
//!
//! A [`Fault`] tells whether the request may have reached the server, since that decides whether it may be sent again.
//!
//! [`Proxies`] has what the environment says of proxies; a server is asked through one only if its owner says so ([`Server::through`]), as
//! floe's own hosts are asked directly.
//!
//! Deliberately absent: following redirects ([`redirected`] says where one leads, and whether one may go there), cookies and compression.
//! A request, and the token with it, goes to the server that was named and to no other. Retrying is left to the caller, except on
//! a kept connection that the server has closed.
//!
//! The calling thread must not be one that runs tasks of an async runtime.

mod address;
mod carry;
mod connection;
mod dial;
mod fault;
mod kept;
mod proxy;
mod redirect;
mod server;
mod tls;

pub use address::{escape, escape_path, shown, socket_address, web};
pub use carry::{LAST_WORDS, carry};
pub use connection::{Answer, Connection, Ended, Limits, OnData, OnSent, Switched};
pub use fault::Fault;
pub use kept::Connections;
pub use proxy::{Proxies, Proxy};
pub use redirect::redirected;
pub use server::Server;
pub use tls::{trusting, trusting_also};

pub use bytes::Bytes;
pub use hyper::http::request::Builder;
pub use hyper::http::response::Parts;
pub use hyper::http::{HeaderMap, HeaderName, HeaderValue, header};
pub use hyper::{Method, Request, StatusCode};
pub use url::{Host, Position, Url};
