//! A userfaultfd by which a node learns what is written to QEMU's memory while it copies that memory for a capture.
//!
//! It is opened before QEMU's sandbox is on, with the one feature that makes it of use for that, and this library does nothing else with
//! it: a node takes a copy of the descriptor for as long as a capture takes. Where the kernel does not offer that (Linux 6.7 does), there
//! is none, and a capture copies everything in its pause.

use super::{O_CLOEXEC, is_machine, sys, syscall};
use core::ffi::{c_int, c_ulong};

const O_NONBLOCK: c_int = 0o4000;
/// It stops no fault of the kernel; so nobody needs privileges for it.
const USER_MODE_ONLY: c_int = 1;
/// `UFFDIO_API`
const SET_FEATURES: c_ulong = 0xc018_aa3f;
const VERSION: u64 = 0xaa;
/// `UFFD_FEATURE_WP_ASYNC`: a write to protected memory takes the protection off, is noted in the page table, and waits for nobody.
const NOTES_WRITES: u64 = 1 << 15;

/// A `struct uffdio_api`.
#[repr(C)]
struct Features {
    version: u64,
    features: u64,
    ioctls: u64,
}

/// Runs before the program does.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    if !is_machine() {
        return;
    }
    let mut wanted = Features {
        version: VERSION,
        features: NOTES_WRITES,
        ioctls: 0,
    };
    // SAFETY: integers, and a structure that the kernel reads and writes during the call.
    unsafe {
        let descriptor = syscall(sys::USERFAULTFD, O_CLOEXEC | O_NONBLOCK | USER_MODE_ONLY);
        if descriptor >= 0 && syscall(sys::IOCTL, descriptor, SET_FEATURES, &raw mut wanted) != 0 {
            syscall(sys::CLOSE, descriptor);
        }
    }
}
