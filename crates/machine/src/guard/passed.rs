//! Sockets that the node passes to QEMU: those of forwarded ports that it kept while the machine was parked.

use super::{O_CLOEXEC, SOL_SOCKET, is_machine, rules, sys, syscall};
use core::ffi::{c_int, c_uint, c_void};
use core::net::IpAddr;

/// The highest descriptor among which passed sockets are looked for, more than QEMU has.
const DESCRIPTORS_MAX: c_int = 4096;
const SO_TYPE: c_int = 3;
/// The node sets this on a socket that it passes; QEMU has none of its own that listens with it.
const SO_KEEPALIVE: c_int = 9;

/// Returns an integer option of a socket; `None` if the descriptor is no socket.
fn option(socket: c_int, name: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut len = 4 as c_uint;
    // SAFETY: writes at most `len` bytes to `value`.
    let got = unsafe {
        syscall(
            sys::GETSOCKOPT,
            socket,
            SOL_SOCKET,
            name,
            &raw mut value,
            &raw mut len,
        )
    };
    (got == 0).then_some(value)
}

/// Returns the address that a socket is bound to.
fn bound_to(socket: c_int) -> Option<(IpAddr, u16)> {
    let mut bytes = [0u8; 28];
    let mut len = bytes.len() as c_uint;
    // SAFETY: writes at most `len` bytes to `bytes`.
    let got = unsafe { syscall(sys::GETSOCKNAME, socket, bytes.as_mut_ptr(), &raw mut len) };
    let written = bytes.get(..len as usize).filter(|_| got == 0)?;
    rules::target(written)
}

/// Returns a socket that the node passed to this process for the address that `socket` is to be bound to.
fn passed_for(socket: c_int, to: (IpAddr, u16)) -> Option<c_int> {
    let kind = option(socket, SO_TYPE)?;
    (0..DESCRIPTORS_MAX).find(|&other| {
        other != socket
            && option(other, SO_TYPE) == Some(kind)
            && option(other, SO_KEEPALIVE) == Some(1)
            && bound_to(other) == Some(to)
    })
}

/// Like the C library's function, but a port whose socket the node has passed is taken over with all that waits there.
///
/// # Safety
///
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(socket: c_int, address: *const c_void, len: c_uint) -> c_int {
    // SAFETY: as the caller vouches; the option is an integer, and the descriptors are this process's own.
    unsafe {
        if !address.is_null() && is_machine() {
            let bytes = core::slice::from_raw_parts(address.cast::<u8>(), (len as usize).min(28));
            let to = rules::target(bytes).filter(|(_, port)| *port != 0);
            if let Some(passed) = to.and_then(|to| passed_for(socket, to))
                && syscall(sys::DUP3, passed, socket, O_CLOEXEC) >= 0
            {
                let off: c_int = 0;
                let size = 4 as c_uint;
                syscall(
                    sys::SETSOCKOPT,
                    socket,
                    SOL_SOCKET,
                    SO_KEEPALIVE,
                    &raw const off,
                    size,
                );
                return 0;
            }
        }
        syscall(sys::BIND, socket, address, len) as c_int
    }
}
