//! The sockets of a machine's QEMU by what they are for.

use std::io;
use std::os::unix::net::UnixStream;

use crate::files;
use crate::machine::Machine;
use crate::socket::connect;

/// A socket by which users are with a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Socket {
    /// The serial console: bytes in both directions, one client at a time.
    Console,
    /// The screen, for a VNC client.
    Screen,
}

impl Machine {
    /// Connects to a socket of this machine's QEMU; an error if another process listens there.
    pub fn connect(&self, to: Socket) -> io::Result<UnixStream> {
        self.connect_file(match to {
            Socket::Console => files::CONSOLE,
            Socket::Screen => files::VNC,
        })
    }

    /// The same by the name of its file.
    pub(crate) fn connect_file(&self, name: &str) -> io::Result<UnixStream> {
        connect(&self.run_file(name), self.pid())
    }
}
