//! WebSockets to a node, as a page has them.

use super::node::{PATIENCE, TestNode};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// Opens a page's WebSocket to a node.
pub fn web_socket(node: &TestNode, path: &str) -> UnixStream {
    let mut socket = UnixStream::connect(node.client().socket()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: floe\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    );
    socket.write_all(request.as_bytes()).unwrap();
    let head = read_until(&mut socket, b"\r\n\r\n");
    assert!(
        head.starts_with(b"HTTP/1.1 101 "),
        "{}",
        head.escape_ascii()
    );
    socket
}

/// Reads until these bytes have come.
pub fn read_until(from: &mut UnixStream, end: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while !all.ends_with(end) {
        let mut byte = [0];
        from.read_exact(&mut byte).unwrap();
        all.extend(byte);
    }
    all
}
